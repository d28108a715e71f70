"""rsx.jit: recorded twice, then replayed; equal to the same function called itself, or refused with a reason."""

import warnings

import pytest
import rsx
import torch
import torch.nn as nn
import torch.nn.functional as F
from helper import D, pair, replays

def records() -> int:
    return rsx.metrics()["records"]


def equal(a, b, tol=2e-5):
    torch.testing.assert_close(a.detach().cpu(), b.detach().cpu(), rtol=tol, atol=tol)


def trainer(net, make_optimizer, *, outside_zero=False, set_to_none=True):
    opt = make_optimizer(net.parameters())

    def step(x, y):
        if not outside_zero:
            opt.zero_grad(set_to_none=set_to_none)
        loss = F.mse_loss(net(x), y)
        loss.backward()
        opt.step()
        return loss

    return step, opt


def mlp():
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))


OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=1e-3),
    "adamw": lambda p: torch.optim.AdamW(p, lr=1e-2, capturable=True),
    "adamw-single": lambda p: torch.optim.AdamW(p, lr=1e-2, capturable=True, foreach=False),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=1e-2, capturable=True),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("set_to_none", [True, False])
def test_training_steps(tier, name, set_to_none):
    a, b = pair(mlp)
    plain, _ = trainer(a, OPTIMIZERS[name], set_to_none=set_to_none)
    step, _ = trainer(b, OPTIMIZERS[name], set_to_none=set_to_none)
    fast = rsx.jit(step)
    before = replays()
    for i in range(8):
        torch.manual_seed(i)
        x, y = torch.randn(5, 8).to(D), torch.randn(5, 4).to(D)
        equal(fast(x, y), plain(x, y))
    assert not fast.reasons
    assert replays() - before >= 4
    for p, q in zip(a.parameters(), b.parameters()):
        equal(p, q)
        equal(p.grad, q.grad)


def test_a_replay_records_nothing(tier):
    net, _ = pair(mlp)
    step, _ = trainer(net, OPTIMIZERS["adamw"])
    fast = rsx.jit(step)
    x, y = torch.randn(5, 8, device=D), torch.randn(5, 4, device=D)
    for _ in range(4):
        fast(x, y)
    rsx.synchronize()
    rsx.reset_metrics()
    for _ in range(5):
        fast(x, y)
    rsx.synchronize()
    m = rsx.metrics()
    assert (m["records"], m["replays"], m["segments"], m["compiles"], m["host_waits"]) == (0, 5, 5, 0, 0) or m["host_waits"] == 1


def test_learning_rates_are_operands(tier):
    a, b = pair(mlp)
    plain, opt_a = trainer(a, OPTIMIZERS["adamw"])
    step, opt_b = trainer(b, OPTIMIZERS["adamw"])
    fast = rsx.jit(step)
    schedules = [torch.optim.lr_scheduler.LambdaLR(o, lambda s: 0.8**s) for o in (opt_a, opt_b)]
    x, y = torch.randn(5, 8, device=D), torch.randn(5, 4, device=D)
    before = replays()
    for _ in range(10):
        equal(fast(x, y), plain(x, y))
        for s in schedules:
            s.step()
    assert not fast.reasons
    assert replays() - before >= 6
    for p, q in zip(a.parameters(), b.parameters()):
        equal(p, q)


def test_number_arguments_are_operands(tier):
    def f(x, scale, shift):
        return x * (scale * 2 + 1) - shift / 4

    fast = rsx.jit(f)
    x = torch.randn(6, device=D)
    before = replays()
    for i in range(9):
        equal(fast(x, 0.5 + i, -1.0 - i * i), f(x, 0.5 + i, -1.0 - i * i))
    assert replays() - before >= 6
    assert not fast.reasons


def test_numbers_that_decide_are_constants(tier):
    def f(x, n):
        return x + 1 if n > 2 else x - 1

    fast = rsx.jit(f)
    x = torch.randn(6, device=D)
    for n in (1, 1, 1, 5, 5, 5, 1, 5, 2, 2, 2, 2):
        equal(fast(x, n), f(x, n))


def test_gradients_cleared_outside(tier):
    """The step's gradients are set by replays although nothing in the function refers to them afterwards."""
    a, b = pair(mlp)
    opt_a, opt_b = (torch.optim.SGD(n.parameters(), lr=0.1) for n in (a, b))

    def gradients(net, x):
        net(x).square().sum().backward()

    fast = rsx.jit(lambda x: gradients(b, x))
    before = replays()
    for _ in range(6):
        x = torch.randn(5, 8, device=D)
        for net, opt, call in ((a, opt_a, lambda x: gradients(a, x)), (b, opt_b, fast)):
            opt.zero_grad()
            call(x)
            opt.step()
    assert replays() > before
    for p, q in zip(a.parameters(), b.parameters()):
        equal(p, q)


def test_gradients_accumulate(tier):
    a, b = pair(mlp)
    fast = rsx.jit(lambda x: b(x).square().sum().backward())
    before = replays()
    for _ in range(7):
        x = torch.randn(5, 8, device=D)
        a(x).square().sum().backward()
        fast(x)
    assert replays() > before
    for p, q in zip(a.parameters(), b.parameters()):
        equal(p.grad, q.grad, 1e-4)


def test_random_numbers_advance(tier):
    def f(x):
        return F.dropout(x, 0.5), torch.randn(3, device=D)

    x = torch.ones(64, device=D)
    torch.manual_seed(7)
    want = [f(x) for _ in range(6)]
    state = torch.rsx.get_rng_state()
    fast = rsx.jit(f)
    before = replays()
    torch.manual_seed(7)
    for w in want:
        for a, b in zip(fast(x), w):
            assert torch.equal(a, b)
    assert replays() > before
    assert torch.equal(torch.rsx.get_rng_state(), state)


def test_buffers_are_updated(tier):
    a, b = pair(lambda: nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Dropout(0.2)))
    plain, _ = trainer(a, OPTIMIZERS["sgd"])
    step, _ = trainer(b, OPTIMIZERS["sgd"])
    fast = rsx.jit(step)
    x, y = torch.randn(5, 8, device=D), torch.randn(5, 8, device=D)
    for i in range(6):
        torch.manual_seed(i)
        want = plain(x, y)
        torch.manual_seed(i)
        equal(fast(x, y), want)
    for (k, p), (_, q) in zip(a.state_dict().items(), b.state_dict().items()):
        equal(p, q)
    assert int(b[1].num_batches_tracked) == 6 and not fast.reasons
    before = replays()
    b.eval()  # another function now
    fast(x, y)
    assert replays() == before and int(b[1].num_batches_tracked) == 6


def test_state_bound_to_a_name_is_carried(tier):
    class Counter:
        def __init__(self):
            self.total = torch.zeros(3, device=D)

        def add(self, x):
            self.total = self.total * 0.5 + x
            return self.total + 1

    a, b = Counter(), Counter()
    fast = rsx.jit(b.add)
    before = replays()
    for _ in range(7):
        x = torch.randn(3, device=D)
        equal(fast(x), a.add(x))
        equal(b.total, a.total)
    assert replays() - before >= 3


def test_sizes_and_aliases_are_guarded(tier):
    def f(a, b):
        a.add_(1)
        return a * b

    fast = rsx.jit(f)
    for shape in ((4,), (2, 3), (4,)):
        for _ in range(4):
            a, b = torch.randn(shape, device=D), torch.randn(shape, device=D)
            want = f(a.clone(), b)
            equal(fast(a, b), want)
    a = torch.randn(4, device=D)
    want = f(*[a.clone()] * 2)
    equal(fast(a, a), want)
    big = torch.randn(9, device=D)
    copy_ = big.clone()
    want = f(copy_[1:5], copy_[2:6])
    equal(fast(big[1:5], big[2:6]), want)


def test_results_that_are_arguments_or_views(tier):
    weight = torch.randn(4, device=D)

    def f(x):
        x.mul_(2)
        y = x + 1
        return x, x[1:], y, y[2:], weight, [weight[:2], {"n": 3, "y": y}]

    fast = rsx.jit(f)
    for _ in range(5):
        x = torch.randn(4, device=D)
        same = x.clone()
        got, want = fast(x), f(same)
        assert got[0] is x
        assert got[5][1]["n"] == 3
        assert got[2].untyped_storage().data_ptr() == got[3].untyped_storage().data_ptr()
        for g, w in zip([*got[:5], got[5][0], got[5][1]["y"]], [*want[:5], want[5][0], want[5][1]["y"]]):
            equal(g, w)
    assert not fast.reasons


def test_constants_made_inside(tier):
    def f(x):
        return x * torch.tensor([1.0, 2.0, 3.0], device=D) + torch.arange(3, device=D) + torch.zeros(3, device=D)

    fast = rsx.jit(f)
    before = replays()
    for _ in range(5):
        x = torch.randn(3, device=D)
        equal(fast(x), f(x))
    assert replays() - before == 3


def test_new_parameters_are_noticed(tier):
    net = nn.Linear(3, 3).to(D)
    fast = rsx.jit(lambda x: net(x).detach())
    x = torch.randn(2, 3, device=D)
    for _ in range(4):
        fast(x)
    net.weight.data = torch.ones(3, 3, device=D)
    equal(fast(x), net(x))
    net.load_state_dict({"weight": torch.zeros(3, 3), "bias": torch.ones(3)})
    for _ in range(4):
        equal(fast(x), torch.ones(2, 3))


def test_closure_numbers_are_guarded(tier):
    temperature = 2.0

    def f(x):
        return x / temperature

    fast = rsx.jit(f)
    x = torch.randn(3, device=D)
    for temperature in (2.0, 2.0, 2.0, 4.0, 4.0, 4.0, 4.0):  # noqa: B007 - read by f
        equal(fast(x), x / temperature)


REFUSED = {
    "item": (lambda x: x * x.sum().item(), "read on the host (item)"),
    "shape": (lambda x: x[x > 0].sum(), "depends on values"),
    "sync": (lambda x: (x + 1, rsx.synchronize())[0], "synchronized"),
    "gradient": (lambda x: nn.Parameter(x) * 2, "gradients outside"),
    "data": (lambda x, n=[0]: (n.__setitem__(0, n[0] + 1), x + torch.full((3,), n[0] * 1.0).to(D))[1], "host data"),
    "number": (lambda x, n=[0]: (n.__setitem__(0, n[0] + 1), x * n[0])[1], "a number that changes"),
    "seed": (lambda x: (torch.manual_seed(3), x + torch.rand(3, device=D))[1], "seed"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals_say_why_and_stay_right(name):
    f, reason = REFUSED[name]
    fast = rsx.jit(f)
    with pytest.warns(UserWarning, match="is recorded on every call instead of replayed"):
        for _ in range(8):
            fast(torch.randn(3, device=D))
    assert any(reason in r for r in fast.reasons), fast.reasons
    before = replays()
    fast(torch.randn(3, device=D))
    assert replays() == before


def test_adam_on_the_host_is_refused():
    net, _ = pair(mlp)
    step, _ = trainer(net, lambda p: torch.optim.AdamW(p, lr=1e-3))
    fast = rsx.jit(step)
    x, y = torch.randn(5, 8, device=D), torch.randn(5, 4, device=D)
    with pytest.warns(UserWarning, match="capturable=True"):
        for _ in range(9):
            fast(x, y)


def test_cpu_arguments_are_refused():
    fast = rsx.jit(lambda x: x.to(D) + 1)
    with pytest.warns(UserWarning, match="move it to rsx"):
        equal(fast(torch.ones(3)), torch.full((3,), 2.0))


def test_errors_are_the_functions_own():
    fast = rsx.jit(lambda a, b: a @ b)
    for _ in range(3):
        with pytest.raises(RuntimeError, match="mat1 and mat2"):
            fast(torch.ones(2, 3, device=D), torch.ones(2, 3, device=D))
    x = torch.ones(2, 2, device=D)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(4):
            equal(fast(x, x), torch.full((2, 2), 2.0))


def test_strict_raises():
    fast = rsx.jit(lambda x: x.sum().item(), strict=True)
    with pytest.raises(RuntimeError, match="read on the host"):
        fast(torch.ones(3, device=D))


def test_modes_are_kinds():
    net = nn.Linear(4, 4).to(D)
    fast = rsx.jit(lambda x: net(x).detach())
    x = torch.randn(2, 4, device=D)
    for _ in range(4):
        assert fast(x).dtype == torch.float32
    for _ in range(4):
        with torch.autocast(D, dtype=torch.bfloat16):
            assert fast(x).dtype == torch.bfloat16


def test_methods_and_decorator():
    class Model:
        def __init__(self):
            self.w = torch.randn(3, device=D)

        @rsx.jit
        def f(self, x):
            return x * self.w

    m, n = Model(), Model()
    for _ in range(4):
        x = torch.randn(3, device=D)
        equal(m.f(x), x * m.w)
        equal(n.f(x), x * n.w)


def test_memory_stays_flat():
    net, _ = pair(mlp)
    step, _ = trainer(net, OPTIMIZERS["adamw"])
    fast = rsx.jit(step)
    x, y = torch.randn(5, 8, device=D), torch.randn(5, 4, device=D)
    seen = []
    for _ in range(3):
        for _ in range(40):
            fast(x, y)
        rsx.synchronize()
        seen.append((torch.rsx.memory_allocated(), rsx.metrics()["live_storages"]))
    assert seen[1] == seen[2]
