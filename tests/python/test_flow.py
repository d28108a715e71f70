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


def by_hand(cond, body, values):
    """The witness. (PyTorch 2.13's formula for torch.while_loop takes all gradients at the last iteration.)"""
    while cond(*values):
        values = body(*values)
    return values


def decay(loop, n, x, w):
    return loop(lambda n, x: n > 0, lambda n, x: (n - 1, torch.tanh(x @ w) + x), (n, x))[1]


def until_small(loop, x, w):
    return loop(lambda k, x: x.abs().max() > 0.1, lambda k, x: (k + 1, x * torch.sigmoid(w)), (torch.zeros((), device=x.device), x))[1]


def two_carried(loop, n, x, w):
    _, x, y = loop(lambda n, x, y: n > 0, lambda n, x, y: (n - 1, y * w[0], torch.sin(x) + y), (n, x, x * 2))
    return x.sum() + (y * y).sum()


def unused_carry(loop, n, x, w):
    return loop(lambda n, x, y: n > 0, lambda n, x, y: (n - 1, x * 2, y * w), (n, x, w.clone()))[1]


def carried_transposed(loop, n, x, w):
    return loop(lambda n, x: n > 0, lambda n, x: (n - 1, (x.t() * w).t()), (n, x.t()))[1]


def halves(loop, n, x, w):
    return loop(lambda n, x: n > 0, lambda n, x: (n - 1, (x.double() @ w.double()).float()), (n, x))[1].double()


GRADIENTS = {
    "decay": (decay, number(5), torch.randn(4, 4), torch.randn(4, 4) * 0.3),
    "decay, no iteration": (decay, number(0), torch.randn(4, 4), torch.randn(4, 4)),
    "decay, one iteration": (decay, number(1), torch.randn(4, 4), torch.randn(4, 4)),
    "until small": (until_small, torch.randn(5), torch.randn(5)),
    "two carried": (two_carried, number(4), torch.randn(3), torch.randn(3)),
    "unused carry": (unused_carry, number(3), torch.randn(3), torch.randn(3)),
    "transposed": (carried_transposed, number(3), torch.randn(3, 3), torch.randn(3, 3)),
    "two types": (halves, number(3), torch.randn(3, 3), torch.randn(3, 3)),
}


def gradients(f, loop, args, device, front=lambda f: f, wanted=(True, True)):
    wanted = iter(wanted)
    args = [a.clone().to(device).requires_grad_(a.is_floating_point() and next(wanted)) for a in args]
    front(lambda *args: f(loop, *args).sum().backward())(*args)
    return [a.grad for a in args]


def compare(gots, wants):
    for got, want in zip(gots, wants, strict=True):
        if got is not None:  # a loop gives zeros for what its iterations do not use, Python's nothing
            torch.testing.assert_close(got.cpu(), torch.zeros_like(got.cpu()) if want is None else want)
        else:
            assert want is None


@pytest.mark.parametrize("tier", ["auto", "compiled", "eager"])
@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients_through_a_while_loop(name, tier):
    f, *args = GRADIENTS[name]
    for wanted in ((True, True), (True, False), (False, True)):
        if name in ("decay, no iteration", "unused carry") and not wanted[0]:
            continue  # the Python loop's result needs no gradient
        wants = gradients(f, by_hand, args, "cpu", wanted=wanted)
        with rsx.tier(tier):
            gradients(f, torch.while_loop, args, D, wanted=wanted)  # records the loop and its gradient
            rsx.synchronize()
            rsx.reset_metrics()
            gots = gradients(f, torch.while_loop, args, D, wanted=wanted)
            m = rsx.metrics()
            assert (m["host_waits"], m["cuts"], m["calls"], m["fallbacks"]) == (0, {}, {}, {})
            compare(gots, wants)


def test_body_and_gradient_are_compiled_once():
    with rsx.tier("compiled"):
        f, _, x, w = GRADIENTS["decay"]
        gradients(f, torch.while_loop, (number(2), x, w), D)
        rsx.synchronize()
        rsx.reset_metrics()
        for n in (1, 7, 30):
            compare(gradients(f, torch.while_loop, (number(n), x, w), D), gradients(f, by_hand, (number(n), x, w), "cpu"))
        m = rsx.metrics()
        assert (m["compiles"], m["loop_iterations"]) == (0, 2 * (1 + 7 + 30))


def test_gradients_through_a_loop_are_replayed():
    f, n, x, w = GRADIENTS["decay"]
    w, v = w.to(D).requires_grad_(), w.clone().requires_grad_()

    def step(n, x, w, loop):
        w.grad = None
        loss = f(loop, n, x, w).sum()
        loss.backward()
        return loss

    g = rsx.jit(lambda n, x: step(n, x, w, torch.while_loop), strict=True)
    for _ in range(4):
        g(n.to(D), x.to(D))
    rsx.synchronize()
    rsx.wait_for_compiles()
    rsx.reset_metrics()
    for k in (1, 0, 9):
        g(number(k).to(D), x.to(D))
        if k:  # without an iteration w is not part of the Python loop
            step(number(k), x, v, by_hand)
        torch.testing.assert_close(w.grad.cpu(), v.grad if k else torch.zeros_like(v))
    m = rsx.metrics()
    assert (m["replays"], m["compiles"], m["cuts"].get("item", 0)) == (3, 0, 0)


def test_gradients_through_a_compiled_loop():
    f, n, x, w = GRADIENTS["decay"]
    g = torch.compile(lambda n, x, w: f(torch.while_loop, n, x, w).sum(), backend="rsx", fullgraph=True)
    gradient = lambda n: gradients(lambda _, *args: g(*args), None, (number(n), x, w), D)  # noqa: E731
    for _ in range(4):
        gradient(3)
    rsx.wait_for_compiles()
    rsx.reset_metrics()
    for k in (1, 9):
        compare(gradient(k), gradients(f, by_hand, (number(k), x, w), "cpu"))
    m = rsx.metrics()
    assert (m["replays"], m["compiles"], m["cuts"].get("item", 0), m["loop_iterations"]) == (4, 0, 0, 20)


def test_a_tape_lives_as_long_as_the_graph():
    f, _, x, w = GRADIENTS["decay"]
    x, w = x.to(D).requires_grad_(), w.to(D).requires_grad_()
    for _ in range(2):  # the second time nothing is recorded, compiled or cached for the first time
        rsx.synchronize()
        before = rsx.metrics()["live_bytes"]
        y = f(torch.while_loop, number(1000).to(D), x, w).sum()
        rsx.synchronize()
        held = rsx.metrics()["live_bytes"] - before
        first = torch.autograd.grad(y, w, retain_graph=True)[0].cpu()
        assert torch.equal(torch.autograd.grad(y, w)[0].cpu(), first)
        del y, first
        rsx.synchronize()
        left = rsx.metrics()["live_bytes"] - before
    assert held > 1000 * x.nbytes and left < 1000


def test_what_a_loop_began_with_may_be_written():
    """It is on the tape. Only derivatives of the gradients need it again."""

    def make(d):
        x = torch.linspace(0, 1, 4).to(d).requires_grad_()
        start = x * 1
        count = torch.zeros((), dtype=torch.long, device=d)
        y = torch.while_loop(lambda i, x: i < 1, lambda i, x: (i + 1, x.sin()), (count, start))[1]
        start.add_(1)
        return x, y

    want, got = (torch.autograd.grad(y.sum(), x)[0] for x, y in (make("cpu"), make(D)))
    torch.testing.assert_close(got.cpu(), want)
    x, y = make(D)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        torch.autograd.grad(y.sum(), x, create_graph=True)


def test_a_freed_graph_is_an_error():
    x = torch.linspace(0, 1, 4).to(D).requires_grad_()
    count = torch.zeros((), dtype=torch.long, device=D)
    y = torch.while_loop(lambda i, x: i < 2, lambda i, x: (i + 1, x.sin()), (count, x))[1]
    y.sum().backward(retain_graph=True)
    y.sum().backward()
    with pytest.raises(RuntimeError, match="a second time"):
        y.sum().backward()


def test_gradients_of_gradients_of_a_loop():
    f, n, x, w = GRADIENTS["decay"]
    found = []
    for device, loop in (("cpu", by_hand), (D, torch.while_loop)):
        a, b = (t.double().to(device).requires_grad_() for t in (x, w))
        grads = torch.autograd.grad(f(loop, number(3).to(device), a, b).square().sum(), (a, b), create_graph=True)
        (grads[0].sum() + grads[1].square().sum()).backward()
        found.append([g.detach().cpu() for g in (*grads, a.grad, b.grad)])
    compare(found[1], found[0])


def test_gradients_through_a_loop_with_random_numbers():
    def f(n, x):
        return torch.while_loop(lambda n, x: n > 0, lambda n, x: (n - 1, x * torch.rand_like(x)), (n, x))[1]

    x = torch.ones(100, device=D, requires_grad=True)
    y = f(torch.tensor(3, device=D), x)
    y.sum().backward()
    torch.testing.assert_close(x.grad.cpu(), y.detach().cpu())  # the same numbers in both directions


def test_numbers_beside_a_loop_are_constants_of_it():
    def f(x, k):
        w = torch.ones(k, device=x.device)
        return torch.while_loop(lambda n, h: n < k, lambda n, h: (n + 1, h * w.sum()), (torch.zeros((), device=x.device), x))[1]

    for k in (2, 3, 4, 3):
        x = torch.ones(k)
        f(x.to(D), k)
        before = rsx.metrics()["host_waits"]
        got = f(x.to(D), k)
        assert rsx.metrics()["host_waits"] == before
        assert torch.equal(got.cpu(), f(x, k))


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


def rnn(x, w):
    from torch._higher_order_ops.scan import scan

    def step(c, x):
        h = torch.tanh(x + c @ w)
        return h, h * 2

    last, all = scan(step, torch.zeros_like(x[0]), x)
    return last.sum() + all.square().sum()


def product(x, w):
    from torch._higher_order_ops.associative_scan import associative_scan

    return associative_scan(lambda a, b: a * b + 0.1 * b, x @ w, dim=0, combine_mode="generic").sum()


def mapped(x, w):
    from torch._higher_order_ops.map import map as each

    return each(lambda x, w: torch.tanh(x @ w), x, w).sum()


@pytest.mark.parametrize("f", [rnn, product, mapped])
def test_scans_and_maps_with_gradients_wait_for_nothing(f):
    def gradients(x, w):
        x, w = x.clone().requires_grad_(), w.clone().requires_grad_()
        y = f(x, w)
        y.backward()
        return y, x.grad, w.grad

    x, w = torch.randn(6, 3, 4), torch.randn(4, 4) * 0.3
    wants = gradients(x, w)
    x, w = x.to(D), w.to(D)
    for _ in range(2):
        rsx.synchronize()
        rsx.reset_metrics()
        gots = gradients(x, w)
        m = rsx.metrics()
        assert (m["host_waits"], m["cuts"], m["fallbacks"]) == (0, {}, {})
        rsx.synchronize()
        m = rsx.metrics()
        assert (m["segments"], m["calls"]) == (1, {})
    compare([g.detach() for g in gots], [g.detach() for g in wants])
