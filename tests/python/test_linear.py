"""Linear layers: one op each way where the call is plain, PyTorch's decomposition everywhere else; the same results."""

import pytest
import rsx
import torch
import torch.autograd.forward_ad as forward_ad
import torch.nn as nn
import torch.nn.functional as F
from helper import D, both, message

TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-12, torch.bfloat16: 5e-2, torch.float16: 1e-2}


@pytest.mark.parametrize("frozen", ["", "x", "w", "b", "xw", "wb", "xb"])
@pytest.mark.parametrize("shape", [(5, 4), (2, 3, 4), (2, 2, 3, 4), (1, 4), (4,), (0, 4), (2, 0, 4)])
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_values_and_gradients(shape, dtype, frozen):
    for bias in (True, False):
        if frozen == "xw" and not bias:
            continue

        def make(d, bias=bias):
            x, w, b = (torch.randn(s).to(dtype) for s in (shape, (3, 4), (3,)))
            x, w, b = (t.to(d).requires_grad_(n not in frozen) for n, t in zip("xwb", (x, w, b)))
            y = F.linear(x, w, b if bias else None)
            y.backward(torch.randn(y.shape).to(dtype).to(d))
            return y, x.grad, w.grad, b.grad

        for tier in ("eager", "compiled"):
            with rsx.tier(tier):
                both(make, TOLERANCE[dtype])


def test_layouts_of_operands():
    def make(d):
        base = torch.randn(6, 5, 8).to(d)
        w, b = torch.randn(8, 3).to(d).t().requires_grad_(), torch.randn(6).to(d)[::2].requires_grad_()
        out = []
        for x in (base.transpose(0, 1), base[:, ::2], base[..., :4].repeat(1, 1, 2), base[:1].expand(3, 5, 8), base.permute(2, 1, 0)[:, :, :1].expand(8, 5, 8)):
            x = x.detach().requires_grad_()
            y = F.linear(x, w, b)
            out += [y, *torch.autograd.grad(y.sum(), [x, w, b])]  # the gradient of a sum has strides of 0
        return out

    torch.manual_seed(0)
    want = make("cpu")
    for tier in ("eager", "compiled"):
        torch.manual_seed(0)
        with rsx.tier(tier):
            got = make(D)
            for n, (w, g) in enumerate(zip(want, got)):
                torch.testing.assert_close(g.detach().cpu(), w.detach(), rtol=1e-5, atol=1e-5)
                assert n % 4 in (0, 1) or g.stride() == w.stride()  # the result and its input keep the input's order or not


@pytest.mark.parametrize("tier", ["eager", "compiled"])
@pytest.mark.parametrize("view", [lambda w: w.t(), lambda w: w[:, ::2], lambda w: w.t()[::2], lambda w: w])
def test_gradients_of_weights_are_laid_out_as_on_the_cpu(view, tier):
    def make(d):
        w = torch.randn(8, 8).to(d).requires_grad_()
        v = view(w)
        y = F.linear(torch.randn(5, v.shape[1]).to(d), v)
        return y, *torch.autograd.grad(y, [v, w], torch.randn(y.shape).to(d))

    with rsx.tier(tier):
        both(make)


def test_one_op_each_way():
    net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)).to(D)
    x = torch.randn(2, 3, 4).to(D)

    def step():
        before = rsx.metrics()["records"]
        y = net(x)
        forward = rsx.metrics()["records"]
        y.backward(torch.ones_like(y))
        return forward - before, rsx.metrics()["records"] - forward - 1  # less ones_like

    assert step() == (2, 2)
    assert type(net(x).grad_fn).__name__ == "LinearBackward0"


def test_higher_derivatives():
    def make(d):
        x, w, b = (torch.randn(*s).to(d).requires_grad_() for s in ((2, 3, 4), (5, 4), (5,)))
        y = F.linear(x, w, b).tanh()
        first = torch.autograd.grad(y.square().sum(), [x, w, b], create_graph=True)
        return torch.autograd.grad(sum(g.square().sum() for g in first), [x, w, b])

    both(make)
    x, w, b = (torch.randn(*s, dtype=torch.float64).to(D).requires_grad_() for s in ((2, 4), (3, 4), (3,)))
    assert torch.autograd.gradcheck(F.linear, (x, w, b), check_forward_ad=True)
    assert torch.autograd.gradgradcheck(F.linear, (x, w, b))


def test_transformations_see_the_decomposed_layer():
    def make(d):
        net = nn.Linear(4, 3)
        x, t = torch.randn(5, 2, 4), torch.randn(5, 2, 4)
        net, x, t = net.to(d), x.to(d), t.to(d)
        params = dict(net.named_parameters())
        loss = lambda p, x: torch.func.functional_call(net, p, (x,)).square().sum()  # noqa: E731
        each = torch.func.vmap(torch.func.grad(loss), (None, 0))(params, x)
        with forward_ad.dual_level():
            tangent = forward_ad.unpack_dual(net(forward_ad.make_dual(x, t))).tangent
        hessian = torch.func.hessian(lambda x: net(x).square().sum())(x[0, 0])
        return each["weight"], each["bias"], tangent, torch.func.jvp(net, (x,), (t,))[1], torch.func.vmap(net)(x), hessian

    both(make)


def test_modes_and_subclasses_see_the_decomposed_layer():
    from torch.utils._python_dispatch import TorchDispatchMode

    seen = []

    class Mode(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            seen.append(func.name())
            return func(*args, **(kwargs or {}))

    net = nn.Linear(4, 3).to(D)
    with Mode():
        net(torch.ones(2, 4, device=D))
    assert "aten::addmm" in seen and "aten::linear" not in seen


def test_hooks_checkpoints_and_saved_tensors():
    from torch.utils.checkpoint import checkpoint

    def make(d):
        net = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4)).to(d)
        x = torch.randn(3, 4).to(d).requires_grad_()
        packed = []
        with torch.autograd.graph.saved_tensors_hooks(lambda t: packed.append(t) or t * 1, lambda t: t):
            y = checkpoint(net, x, use_reentrant=False) + net(x)
        y.square().sum().backward()
        assert packed
        return [x.grad, *(p.grad for p in net.parameters())]

    both(make)


def test_nothing_is_kept_for_a_gradient_that_nobody_wants():
    """As on the CPU: writing an operand afterwards is an error only if a gradient needs it."""

    def outcome(d, frozen, written):
        x, w = torch.randn(2, 4).to(d), torch.randn(3, 4).to(d)
        y = F.linear(x.requires_grad_(frozen != "x"), w.requires_grad_(frozen != "w"))
        with torch.no_grad():
            (x if written == "x" else w).add_(1)
        try:
            y.sum().backward()
        except RuntimeError as e:
            return str(e).split("version")[-1].split(";")[0]
        return None

    for frozen in ("", "x", "w"):
        for written in ("x", "w"):
            assert outcome("cpu", frozen, written) == outcome(D, frozen, written), (frozen, written)


@pytest.mark.parametrize(
    "call",
    [
        lambda d: F.linear(torch.ones(2, 4, device=d), torch.ones(3, 5, device=d)),
        lambda d: F.linear(torch.ones(2, 4, device=d), torch.ones(3, 4, device=d), torch.ones(2, device=d)),
        lambda d: F.linear(torch.ones(2, 4, device=d), torch.ones(3, 4, device=d).double()),
        lambda d: F.linear(torch.ones(2, 4, device=d), torch.ones(3, 4, device=d), torch.ones(3, device=d).double()),
        lambda d: F.linear(torch.ones(2, 4, device=d), torch.ones(2, 3, 4, device=d)),
    ],
)
def test_mistakes_have_the_cpus_words(call):
    assert message(lambda: call(D)) == message(lambda: call("cpu"))


def test_without_autograd():
    with torch.inference_mode():
        for x, w, b in (((2, 4), (3, 4), (3,)), ((4,), (3, 4), (3,)), ((2, 4), (4,), ()), ((0, 4), (3, 4), (3,))):
            both(lambda d: (F.linear(torch.ones(x).to(d), torch.ones(w).to(d), torch.ones(b).to(d) if len(w) > 1 else None),))


def test_autocast_and_compile():
    net = nn.Linear(4, 3).to(D)
    x = torch.randn(2, 5, 4).to(D)
    with torch.autocast(D, dtype=torch.bfloat16):
        y = net(x)
    assert y.dtype == torch.bfloat16
    y.float().sum().backward()
    assert net.weight.grad.dtype == torch.float32
    for options in ({"backend": "rsx"}, {"backend": "aot_eager", "dynamic": True}):
        compiled = torch.compile(net, **options)
        torch.testing.assert_close(compiled(x), net(x))
        compiled(x[:1]).sum().backward()
