"""Autograd runs above the device and sees ordinary tensors."""

import threading

import pytest
import torch
import torch.nn as nn
from helper import D, both, message


def grads(program, *shapes, tol=1e-5):
    def run(d):
        leaves = [torch.randn(*s).to(d).requires_grad_() for s in shapes]
        program(*leaves).backward()
        return [leaf.grad for leaf in leaves]

    both(run, tol)


def test_basic():
    grads(lambda v: (v * 2).tanh()[:, 1:4].pow(2).sum() + v.exp().mean(), (5, 5))


def test_in_place_on_views():
    def program(v):
        y = v.clone()
        y[:, 1:3].mul_(v[:, 0:2].detach())
        y[0].sigmoid_()
        return (y**2).sum()

    grads(program, (4, 4))


def test_matmul_broadcast_and_norms():
    grads(lambda a, b: (a @ b).softmax(-1).log().sum() + a.norm() + torch.linalg.vector_norm(b, 3), (2, 3, 4), (4, 5))


def test_writing_a_saved_tensor_is_noticed():
    def program(d):
        x = torch.randn(3, device=d, requires_grad=True)
        y = x.exp()
        y.add_(1)
        return message(lambda: y.sum().backward())

    assert program(D)[0] is RuntimeError and "inplace operation" in program(D)[1]


def test_double_backward():
    def run(d):
        x = torch.randn(4).to(d).requires_grad_()
        (g,) = torch.autograd.grad((x**3).sum(), x, create_graph=True)
        (h,) = torch.autograd.grad(g.sum(), x)
        return g, h

    both(run)


def test_gradcheck():
    x = torch.randn(3, 4, device=D, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda t: (t.sin() * t).sum(1), x)


def test_hooks_and_custom_functions_run_in_the_calling_thread():
    seen = []

    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, g):
            seen.append(threading.get_ident())
            return g * 2

    x = torch.ones(2, device=D, requires_grad=True)
    x.register_hook(lambda g: seen.append(g.device.type))
    Double.apply(x).sum().backward()
    assert x.grad.tolist() == [2, 2]
    assert seen == [threading.get_ident(), "rsx"]


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoint_with_dropout(reentrant):
    from torch.utils.checkpoint import checkpoint

    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5), nn.Linear(8, 8)).to(D)
    x = torch.randn(4, 8, device=D, requires_grad=True)
    torch.manual_seed(1)
    net(x).sum().backward()
    want = x.grad.clone()
    x.grad = None
    torch.manual_seed(1)
    checkpoint(net, x, use_reentrant=reentrant).sum().backward()
    torch.testing.assert_close(x.grad.cpu(), want.cpu())


@pytest.mark.parametrize("cell", [nn.LSTM, nn.GRU, nn.RNN])
def test_recurrent_networks(cell):
    def run(d):
        net = cell(4, 5, num_layers=2, batch_first=True).to(d)
        x = torch.randn(2, 3, 4).to(d).requires_grad_()
        y = net(x)[0]
        y.pow(2).sum().backward()
        return [y, x.grad] + [p.grad for p in net.parameters()]

    both(run)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("causal, masked", [(False, False), (True, False), (False, True), (True, True)])
def test_attention(dtype, causal, masked):
    def run(d):
        q, k, v = (torch.randn(2, 3, 6, 8, dtype=dtype).to(d).requires_grad_() for _ in range(3))
        mask = torch.randn(6, 6, dtype=dtype).to(d) if masked else None
        y = nn.functional.scaled_dot_product_attention(q, k, v, mask, is_causal=causal)
        y.sin().sum().backward()
        return y.detach(), q.grad, k.grad, v.grad

    def compare():
        results = []
        for d in ("cpu", D):
            torch.manual_seed(0)
            results.append(run(d))
        for w, g in zip(*results):
            assert g.stride() == w.stride()
            torch.testing.assert_close(g.cpu(), w, rtol=1e-4, atol=1e-5)

    compare()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_attention_of_rows_that_see_no_key(tier, dtype):
    """0, not NaN, and gradients of 0: in every tier, and for every layout that the CPU's flash kernel does not take."""
    seen = torch.tensor([[1, 1, 1], [0, 0, 0], [1, 0, 1]], dtype=torch.bool)

    def run(d):
        out = []
        for form in (lambda q: (q, q, q), lambda q: (q.transpose(2, 3).contiguous().transpose(2, 3),) * 3, lambda q: (q, q, q[..., :4])):
            q = torch.randn(1, 2, 3, 8, dtype=dtype).to(d).requires_grad_()
            y = nn.functional.scaled_dot_product_attention(*form(q), attn_mask=seen.to(d))
            y.sum().backward()
            out += [y.detach().contiguous(), q.grad]
        return out

    for _ in range(2):
        both(run)


def test_attention_result_is_viewed_with_heads_side_by_side(tier):
    """What GPTs do, without `contiguous()`: the CPU lets it pass."""

    def run(d):
        q, k, v = (t.view(2, 6, 3, 8).transpose(1, 2) for t in torch.randn(2, 6, 72).to(d).split(24, dim=2))
        return nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).view(2, 6, 24)

    for _ in range(3):
        both(run)


def test_attention_forms_outside_the_fused_one():
    def run(d):
        q = torch.randn(2, 4, 5, 8).to(d)
        k, v = (torch.randn(2, 2, 5, 8).to(d) for _ in range(2))
        three = torch.randn(3, 5, 8).to(d)
        f = nn.functional.scaled_dot_product_attention
        mask = torch.rand(5, 5).to(d) > 0.3
        return f(q, k, v, enable_gqa=True), f(three, three, three), f(q, q, q, mask | torch.eye(5, dtype=torch.bool).to(d))

    both(lambda d: [t.contiguous() for t in run(d)])


def test_vmap_of_grad():
    x = torch.randn(3, 4, device=D)
    f = torch.func.vmap(torch.func.grad(lambda v: (v * v).sum()))
    torch.testing.assert_close(f(x).cpu(), 2 * x.cpu())


def test_batch_norm_statistics_and_gradients():
    def run(d):
        net = nn.BatchNorm2d(3).to(d)
        x = torch.randn(2, 3, 4, 4).to(d).requires_grad_()
        net(x).pow(3).sum().backward()
        net.eval()
        frozen = net(x.detach())
        return [x.grad, net.weight.grad, net.running_mean, net.running_var, net.num_batches_tracked, frozen]

    both(run, tol=1e-4)


def test_conv_channels_last_gradients():
    def run(d):
        net = nn.Conv2d(3, 4, 3, padding=1).to(d).to(memory_format=torch.channels_last)
        x = torch.randn(2, 3, 8, 8).to(d).to(memory_format=torch.channels_last).requires_grad_()
        y = net(x)
        y.pow(2).sum().backward()
        return [t.contiguous() for t in (y, x.grad, net.weight.grad, net.bias.grad)]

    both(run, tol=1e-4)
