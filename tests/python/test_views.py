"""Views are geometry on one storage: writes through any of them are seen by all, strides are the CPU's."""

import copy

import pytest
import rsx
import torch
from helper import D, both, message, same


def test_writes_through_views():
    def program(d):
        v = torch.randn(6, 8).to(d)
        v[:, 1:3].add_(1)
        v[2].mul_(2)
        v.t()[0].zero_()
        v.view(2, 3, 8)[1, 0] = 7
        v[::2, ::3] += 5
        v.diagonal().fill_(3)
        v.unfold(0, 2, 2)[0, 0, 0].sub_(1)
        v.masked_fill_(v > 4, -1)
        return v

    both(program)


def test_version_counters_follow_the_cpus():
    def program(d):
        x = torch.zeros(4, 4).to(d)
        y = x.view(16)
        y.add_(1)
        x[0].mul_(3)
        z = x.detach()
        z.sub_(1)
        return torch.tensor([x._version, y._version, z._version]), x

    both(program)


def test_view_sees_base_write_and_base_sees_view_write():
    x = torch.zeros(4, 4, device=D)
    v = x[1:3]
    w = v.t()
    x.add_(1)
    x[1, 1] = 9
    assert v.sum().item() == 16 and w.sum().item() == 16
    v.mul_(2)
    assert x.sum().item() == 8 + 32


def test_data_ptr_is_shared_by_views_and_kept_by_writes():
    x = torch.zeros(4, 4, device=D)
    p = x.data_ptr()
    assert p and x.view(-1).data_ptr() == p and x[1].data_ptr() == p + 16
    x.add_(1)
    assert x.data_ptr() == p
    y = torch.empty(4, device=D)
    assert y.data_ptr() != p


def test_memory_behind_data_ptr_is_up_to_date_each_time():
    import ctypes

    x = torch.zeros(4, device=D)

    def read():
        return list((ctypes.c_float * 4).from_address(x.data_ptr()))

    assert read() == [0, 0, 0, 0]
    x.add_(1)
    assert read() == [1, 1, 1, 1]
    x.copy_(torch.arange(4.0))
    assert read() == [0, 1, 2, 3]


def test_internal_overlap_is_refused_in_pytorchs_words():
    def program(d):
        return message(lambda: torch.zeros(1, 4, device=d).expand(3, 4).add_(1))

    assert program(D) == program("cpu")


@pytest.mark.filterwarnings("ignore:Use of")
def test_deprecated_writes_to_expanded_tensors_do_what_the_cpu_does():
    def program(d):
        x = torch.zeros(1, 4).to(d)
        x.expand(3, 4).masked_fill_(torch.eye(3, 4, dtype=torch.bool).to(d), 2)
        return x

    both(program)


def test_partial_overlap_is_refused():
    def program(d):
        x = torch.arange(6.0, device=d)
        return message(lambda: x[1:].add_(x[:-1]))

    assert program(D) == program("cpu")


def test_set_and_resize():
    x = torch.arange(8.0, device=D)
    e = torch.empty(0, device=D)
    e.set_(x.untyped_storage(), 2, (2, 2), (2, 1))
    assert e.tolist() == [[2, 3], [4, 5]]
    e.add_(10)
    assert x[2].item() == 12
    x.resize_(20)
    assert x.shape == (20,) and x[2].item() == 12
    x.resize_(3)
    assert x.tolist() == [0, 1, 12]


def test_storage_api():
    x = torch.arange(8.0, device=D)
    s = x.untyped_storage()
    assert s.nbytes() == 32 and s.device.type == "rsx" and s.is_rsx
    assert bytes(s.cpu()) == bytes(torch.arange(8.0).untyped_storage())
    assert s.clone().device.type == "rsx"
    s.resize_(0)
    assert s.nbytes() == 0
    s.resize_(32)
    x.fill_(2)
    assert x.sum().item() == 16


def test_data_assignment_moves_a_parameter_between_devices():
    p = torch.nn.Parameter(torch.ones(3))
    p.data = torch.zeros(5, device=D)
    assert p.device.type == "rsx" and p.shape == (5,)
    p.data = torch.ones(2)
    assert p.device.type == "cpu"


def test_data_assignment_leaves_old_views_alone():
    x = torch.zeros(10, device=D)
    y = x.view(2, 5)
    x.data = x.data + 1
    assert y.sum().item() == 0
    x.data.add_(1)
    assert x.sum().item() == 20


@pytest.mark.parametrize(
    "program",
    [
        lambda x: x.transpose(0, 2),
        lambda x: x.permute(2, 0, 1).contiguous(),
        lambda x: x.reshape(6, 4),
        lambda x: x.transpose(1, 2).reshape(2, 12),
        lambda x: x[:, ::2].clone(),
        lambda x: x[:, ::2].clone(memory_format=torch.contiguous_format),
        lambda x: x.expand(5, 2, 3, 4).sum(0),
        lambda x: torch.empty_like(x.permute(2, 1, 0)).fill_(0),
        lambda x: x.permute(2, 1, 0) + 1,
        lambda x: x.unsqueeze(0).to(memory_format=torch.channels_last),
        lambda x: torch.nn.functional.log_softmax(x, -1),
        lambda x: x.movedim(0, -1).softmax(0),
        lambda x: x.narrow(1, 1, 1).squeeze(1).t() * 2,
        lambda x: x.as_strided((2, 2), (1, 2), 1),
        lambda x: torch.stack((-x[..., 1::2], x[..., ::2]), -1),
        lambda x: x.double().to(torch.float32),
        lambda x: x.transpose(0, 1).to(torch.float64),
    ],
)
def test_strides_equal_the_cpus(program):
    both(lambda d: program(torch.randn(2, 3, 4).to(d)))


def test_conjugate_and_negative_views():
    def program(d):
        c = torch.view_as_complex(torch.randn(4, 2)).to(d)
        r = torch.view_as_real(c)
        n = c.conj().imag
        out = torch.zeros(4, dtype=torch.complex64).to(d)
        out.copy_(c.conj())
        out[0] = 2 - 1j
        return out, n + 1, n.clone(), r, c.conj().clone(), c.conj() @ c, c.conj().resolve_conj()

    both(program)


def test_split_aliases():
    a = torch.arange(4.0, device=D)
    b, _ = torch.split(a, 2)
    a[0] = -1
    assert b[0].item() == -1


def test_out_variants_and_their_resize():
    a = torch.randn(3, 3)
    d = a.to(D)
    out = torch.empty(3, 3, device=D)
    torch.matmul(d, d, out=out)
    same(out, a @ a)
    empty = torch.empty(0, device=D)
    torch.add(d[:2], 1, out=empty)
    assert empty.shape == (2, 3)
    values, order = torch.empty(0, device=D), torch.empty(0, dtype=torch.long, device=D)
    torch.sort(d, out=(values, order))
    same(values, a.sort()[0])
    same(order, a.sort()[1])


def test_reshaped_inputs_of_a_transposed_write():
    def program(d):
        x, y, z = (torch.rand(2, 3).to(d).t() for _ in range(3))
        x.addcdiv_(y, z)
        return x

    both(program)


def test_zero_sized_tensors():
    def program(d):
        x = torch.empty(0, 3, device=d)
        return x + 1, x.sum(0), torch.cat([x, torch.ones(2, 3, device=d)]), x.t() @ x, x.clone()

    both(program)


def test_high_ranks_still_work():
    def program(d):
        x = torch.randn(2, 1, 2, 1, 2, 1, 2, 1, 2, 1).to(d)
        return x + 1, x.sum((0, 2)), x.permute(*reversed(range(10))).contiguous()

    both(program)


@pytest.mark.parametrize("tier", ["auto", "compiled"])
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("rank", [2, 3])
def test_convolutions_keep_channels_last(rank, transposed, tier):
    import torch.nn.functional as F

    op = getattr(F, f"conv{'_transpose' * transposed}{rank}d")
    layout = torch.channels_last if rank == 2 else torch.channels_last_3d
    torch.manual_seed(0)
    for input_last, weight_last in ((True, False), (False, True), (True, True), (False, False)):
        x, w = torch.randn(2, 4, *[6] * rank), torch.randn(4, 4, *[3] * rank)
        x = x.contiguous(memory_format=layout) if input_last else x
        w = w.contiguous(memory_format=layout) if weight_last else w
        grads = []
        for device in ("cpu", D):
            with rsx.tier(tier):
                a, b = x.clone().to(device).requires_grad_(), w.clone().to(device).requires_grad_()
                y = op(a, b, padding=1).relu()
                y.square().sum().backward()
                grads.append([t.detach().cpu() for t in (y, a.grad, b.grad)])
                if device == D:
                    assert y.stride() == grads[0][0].stride()
        for got, want in zip(grads[1], grads[0], strict=True):
            torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("make", [lambda: torch.nn.Linear(8, 8), lambda: torch.nn.BatchNorm1d(8)])
def test_a_deep_copy_written_in_its_own_segment_is_lowered(make, tier):
    """`copy.deepcopy` copies storages as bytes; the copy is used under the element type of the tensor."""
    net = make().to(D)
    plain = torch.arange(6.0, device=D).reshape(2, 3)
    rsx.synchronize()
    calls = dict(rsx.metrics()["calls"])
    with torch.no_grad():
        ema, twin = copy.deepcopy(net), copy.deepcopy(copy.deepcopy(plain))
        for p, q in zip(ema.state_dict().values(), net.state_dict().values()):
            p.mul_(0.5).add_(q, alpha=1) if p.is_floating_point() else p.copy_(q)
        twin.t().mul_(2)
    assert rsx.metrics()["segments"] and twin.tolist() == [[0, 2, 4], [6, 8, 10]] and plain.tolist() == [[0, 1, 2], [3, 4, 5]]
    for p, q in zip(ema.state_dict().values(), net.state_dict().values()):
        torch.testing.assert_close(p.cpu(), q.cpu() * 1.5 if p.is_floating_point() else q.cpu())
    assert rsx.metrics()["calls"] == calls


def test_an_operand_given_as_output_is_not_resized():
    """Found by test_fuzz."""
    for device in ("cpu", D):
        x, y = torch.ones(4, device=device), torch.ones(3, 4, device=device)
        with pytest.raises(RuntimeError, match="doesn't match the broadcast shape"):
            torch.mul(x, y, out=x)
        assert x.shape == (4,)


def test_overlap_that_kernels_refuse_is_refused():
    """Found by test_fuzz."""
    for device in ("cpu", D):
        x = torch.ones(3, device=device)
        with pytest.raises(RuntimeError, match="single memory location"):
            x.index_put_((torch.tensor([0, 1, 2], device=device),), x, accumulate=True)
        with pytest.raises(RuntimeError, match="single memory location"):
            x[:1].expand(3).cumsum_(0)
