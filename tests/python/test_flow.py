"""torch.cond, torch.while_loop and scans: inside one program where that is possible, right and counted elsewhere."""

import pytest
import rsx
import torch
import torch._dynamo
from helper import D


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def branch(x):
    return torch.cond(x.sum() > 0, lambda x: x * 2, lambda x: x - 1, (x,))


INPUTS = [torch.tensor([1.0, 2.0]), torch.tensor([-1.0, 0.5]), torch.tensor([3.0, -1.0]), torch.tensor([-2.0, 0.0])]


def test_cond_at_once_reads_its_predicate():
    for x in INPUTS:
        before = rsx.metrics()["cuts"].get("item", 0)
        assert torch.equal(branch(x.to(D)).cpu(), branch(x))
        assert rsx.metrics()["cuts"].get("item", 0) == before + 1


@pytest.mark.parametrize("front", ["jit", "compile"])
def test_cond_is_one_program(front):
    def f(x):
        return branch(x) + 1

    g = rsx.jit(f) if front == "jit" else torch.compile(f, backend="rsx")
    wants = [f(x) for x in INPUTS]
    before = rsx.metrics()["replays"]
    for _ in range(3):
        for x, want in zip(INPUTS, wants):
            assert torch.equal(g(x.to(D)).cpu(), want)
    assert rsx.metrics()["replays"] > before + 4
    cuts = rsx.metrics()["cuts"].get("item", 0)
    g(INPUTS[0].to(D))
    assert rsx.metrics()["cuts"].get("item", 0) == cuts


def countdown(n, x):
    return torch.while_loop(lambda n, x: n > 0, lambda n, x: (n - 1, x * 2 + 1), (n, x))


def newton(a):
    """Square roots; how often it iterates depends on the values."""
    x = torch.ones_like(a)
    return torch.while_loop(
        lambda x, a: ((x * x - a).abs() > 1e-3 * a).any(), lambda x, a: ((x + a / x) * 0.5, a.clone()), (x, a)
    )[0]


def swap(n, x, y):
    return torch.while_loop(lambda n, x, y: n > 0, lambda n, x, y: (n - 1, y.clone(), x.clone()), (n, x, y))


def with_constant(n, x):
    scale = torch.full((3,), 0.5, device=x.device)
    return torch.while_loop(lambda n, x: n > 0, lambda n, x: (n - 1, x * scale + torch.arange(3.0, device=x.device)), (n, x))


def power(n, w, x):
    return torch.while_loop(lambda n, w, x: n > 0, lambda n, w, x: (n - 1, w.clone(), torch.tanh(x @ w)), (n, w, x))


def nested(n, x):
    def body(n, x):
        m, x = torch.while_loop(lambda m, x: m > 0, lambda m, x: (m - 1, x + 1), (n.clone(), x * 2))
        return n - 1, x + m

    return torch.while_loop(lambda n, x: n > 0, body, (n, x))


def number(k):
    return torch.tensor(k)


torch.manual_seed(3)
LOOPS = {
    "countdown": (countdown, number(5), torch.ones(3)),
    "no iteration": (countdown, number(0), torch.ones(3)),
    "newton": (newton, torch.tensor([2.0, 3.0, 1000.0])),
    "swap": (swap, number(3), torch.ones(3), torch.zeros(3)),
    "constant": (with_constant, number(4), torch.ones(3)),
    "power": (power, number(7), torch.randn(8, 8), torch.randn(4, 8)),
    "transposed": (power, number(2), torch.randn(8, 8).t(), torch.randn(4, 8)),
    "part": (lambda n, x: countdown(n, x[3:6]), number(2), torch.arange(9.0)),
    "nested": (nested, number(3), torch.ones(2)),
}


def to(args, device):
    return [a.to(device) for a in args]


def flat(out):
    return out if isinstance(out, tuple) else (out,)


@pytest.mark.parametrize("tier", ["auto", "compiled", "eager"])
@pytest.mark.parametrize("name", LOOPS)
def test_while_loop_is_one_op(name, tier):
    f, *args = LOOPS[name]
    wants = flat(f(*args))
    with rsx.tier(tier):
        f(*to(args, D))  # records the loop
        device = to(args, D)
        rsx.synchronize()
        rsx.reset_metrics()
        gots = flat(f(*device))
        rsx.synchronize()
        m = rsx.metrics()
        assert (m["segments"], sum(m["fallbacks"].values()), m["calls"], m["cuts"].get("item", 0)) == (1, 0, {}, 0)
        for got, want in zip(gots, wants, strict=True):
            torch.testing.assert_close(got.cpu(), want)
        # Results are memory of their own.
        before = [a.cpu() for a in device]
        for got in gots:
            got.add_(1)
        assert all(torch.equal(a.cpu(), b) for a, b in zip(device, before))


@pytest.mark.parametrize("front", ["jit", "compile"])
@pytest.mark.parametrize("name", ["countdown", "newton", "power", "nested"])
def test_while_loop_is_replayed(name, front):
    f, *args = LOOPS[name]
    g = rsx.jit(f, strict=True) if front == "jit" else torch.compile(f, backend="rsx", fullgraph=True)
    for _ in range(4):
        g(*to(args, D))
    rsx.synchronize()
    rsx.reset_metrics()
    for k in (1, 2, 6):
        again = [number(k) if a.dim() == 0 else a * k for a in args]
        for got, want in zip(flat(g(*to(again, D))), flat(f(*again)), strict=True):
            torch.testing.assert_close(got.cpu(), want)
    m = rsx.metrics()
    assert (m["replays"], m["compiles"], m["cuts"].get("item", 0)) == (3, 0, 0)
    assert m["loop_iterations"] > 5


def test_what_cannot_be_one_op_is_run_by_the_host():
    def noisy(n, x):
        return torch.while_loop(lambda n, x: n > 0, lambda n, x: (n - 1, x + torch.rand_like(x)), (n, x))

    before = rsx.metrics()["cuts"].get("item", 0)
    n, x = noisy(torch.tensor(5, device=D), torch.zeros(100, device=D))
    assert n.item() == 0 and 1 < x.mean().item() < 4 and x.std().item() > 0.1
    assert rsx.metrics()["cuts"]["item"] - before >= 6


def test_gradients_through_a_while_loop():
    def f(w, x):
        return torch.while_loop(lambda n, x, w: n > 0, lambda n, x, w: (n - 1, torch.tanh(x * w), w.clone()), (number(3).to(x.device), x, w))[1]

    grads = []
    for device in ("cpu", D):
        w = torch.full((4,), 0.7, device=device, requires_grad=True)
        f(w, torch.ones(4, device=device)).sum().backward()
        grads.append(w.grad.cpu())
    torch.testing.assert_close(*grads)


def test_a_fault_in_a_loop_is_raised_and_harms_nothing():
    def walk(n, x, i):
        return torch.while_loop(
            lambda n, x, i: n > 0, lambda n, x, i: (n - 1, x + x.index_select(0, i), i + 1), (n, x, i)
        )

    x = torch.ones(3, device=D)
    for tier in ("auto", "compiled"):
        with rsx.tier(tier):
            good = walk(torch.tensor(2, device=D), x, torch.zeros(3, dtype=torch.long, device=D))
            assert good[1].tolist() == [4, 4, 4]
            with pytest.raises(IndexError, match="out of"):
                walk(torch.tensor(9, device=D), x, torch.zeros(3, dtype=torch.long, device=D))[1].cpu()
            assert x.tolist() == [1, 1, 1]


def test_a_program_with_a_loop_is_not_saved(tmp_path):
    f, *args = LOOPS["countdown"]
    with pytest.raises(ValueError, match="while_loop"):
        rsx.compile(f, *to(args, D)).save(tmp_path / "p.rsx")


def test_scan_is_one_segment():
    from torch._higher_order_ops.scan import scan

    def f(init, xs):
        return scan(lambda c, x: (c * 0.5 + x, c + 1), init, xs)

    init, xs = torch.zeros(3), torch.arange(12.0).reshape(4, 3)
    want = f(init, xs)
    device = init.to(D), xs.to(D)
    f(*device)
    rsx.synchronize()
    before = rsx.metrics()["segments"]
    got = f(*device)
    rsx.synchronize()
    assert rsx.metrics()["segments"] - before == 1
    for g, w in zip(got, want):
        torch.testing.assert_close(g.cpu(), w)
