"""Complaints of section 2.4: views, strides, in-place. See complaints.py."""

import io

import pytest
import rsx
import torch
import torch.nn as nn
import torch.nn.functional as F
from complaints import D, both, same


def test_v1_data_assignment():
    """pytorch/xla#3392."""
    x = torch.zeros(10, device=D)
    y = x.view(2, 5)
    x.data = x.data + 1
    assert y.sum().item() == 0
    x.data.add_(1)
    assert x.sum().item() == 20 and y.sum().item() == 0


def test_v2_split_aliases():
    """pytorch/xla#3072."""
    a = torch.zeros(4, device=D)
    b, _ = torch.split(a, 2)
    a[0] = -1
    assert b[0].item() == -1


def test_v3_base_and_view():
    """pytorch/xla#2418."""
    t = torch.zeros(16, device=D)
    b = t.view(2, 8)
    b += 1
    assert t.sum().item() == 16


def test_v5_in_place_on_transposed():
    """pytorch/pytorch#118115."""

    def f(device):
        x, y, z = (torch.rand(2, 3).to(device).t() for _ in range(3))
        return x.addcdiv_(y, z + 1)

    both(f)


def test_v6_strided_operands():
    """pytorch/pytorch#131736, #78043, PR#162779."""

    def f(device):
        x = torch.randn(4, 6).to(device)
        w = torch.randn(8, 6).to(device)
        return (
            F.softplus(x.moveaxis(0, 1)),
            torch.stack((-x[..., 1::2], x[..., ::2]), -1),
            F.linear(x, w[::2]),
            torch.cat((x.t()[1:3], x.t()[::2])),
        )

    both(f)


def test_v8_masked_fill_on_expanded():
    """pytorch/pytorch#12230."""

    def f(device):
        x = torch.ones(2, 1, 2).to(device).expand(2, 2, 2)
        try:
            x.masked_fill_(torch.tensor([[True, False]] * 2).to(device), 0)
        except RuntimeError as e:
            return str(e).split(".")[0]
        return x.cpu().tolist()

    assert f(D) == f("cpu")


VIEWS = [
    lambda x: x.reshape(6, 4),
    lambda x: x.transpose(0, 2).reshape(4, 6),
    lambda x: x.transpose(0, 1).contiguous(),
    lambda x: x[:, :1].transpose(0, 1),
    lambda x: x.unsqueeze(0).to(memory_format=torch.channels_last),
    lambda x: x[:, :, ::2].clone(),
    lambda x: x.permute(2, 0, 1) + x.permute(2, 0, 1),
    lambda x: torch.empty_like(x.permute(1, 0, 2)).zero_(),
    lambda x: x.expand(2, 2, 3, 4).sum(0),
    lambda x: x.flatten(1).t().exp(),
    lambda x: x.unfold(2, 2, 1).mul(2),
    lambda x: x.diagonal(dim1=0, dim2=2).sqrt(),
]


@pytest.mark.parametrize("i", range(len(VIEWS)))
def test_v9_strides_as_on_cpu(i):
    """pytorch/pytorch#116433, #172693, #78611, #85558."""
    x = torch.rand(2, 3, 4)
    want, got = VIEWS[i](x), VIEWS[i](x.to(D))
    same(got, want)
    for mf in (torch.contiguous_format, *([torch.channels_last] if want.dim() == 4 else [])):
        assert got.is_contiguous(memory_format=mf) == want.is_contiguous(memory_format=mf)


def test_v10_rank_of_strides():
    """PR pytorch/xla#5486."""
    both(lambda d: F.log_softmax(torch.rand(1, 80, 643).to(d), -1))


def test_v12_gradients_kept_across_steps():
    """tinygrad#16571, PR#14278: memory held outside is not reused; a function may return its own input."""

    def f(device):
        torch.manual_seed(0)
        net = nn.Linear(4, 4).to(device)
        opt = torch.optim.SGD(net.parameters(), lr=0.1)
        kept = []
        for _ in range(4):
            opt.zero_grad()
            net(torch.ones(2, 4).to(device)).square().sum().backward()
            kept.append(net.weight.grad)
            opt.step()
        same_one = (lambda x: x)(net.weight)
        return [*(g.clone() for g in kept), same_one.detach()]

    both(f)


def test_v14_saving_a_subset():
    """pytorch/xla#8422."""
    t0, t1 = torch.ones(4, device=D), torch.ones(4, device=D)
    t2 = t0 + t1
    t1.add_(1)
    file = io.BytesIO()
    torch.save(t1, file)
    rsx.synchronize()
    file.seek(0)
    assert torch.load(file).sum().item() == 8 and t2.sum().item() == 8


def test_v15_dlpack():
    """pytorch/xla#7304, #7198: an alias that sees writes, or an error that says what to do."""
    x = torch.zeros(4, device=D)
    try:
        y = torch.utils.dlpack.from_dlpack(x)
    except (RuntimeError, BufferError, TypeError, NotImplementedError) as e:
        assert "rsx" in str(e)
        return
    x[0] = 9
    assert y[0].item() == 9
