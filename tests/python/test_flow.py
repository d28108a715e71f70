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


def test_while_loop_is_right_and_counted():
    def f(n, x):
        return torch.while_loop(lambda n, x: n > 0, lambda n, x: (n - 1, x * 2), (n, x))

    want = f(torch.tensor(5), torch.ones(3))
    before = rsx.metrics()["cuts"].get("item", 0)
    got = f(torch.tensor(5, device=D), torch.ones(3, device=D))
    for g, w in zip(got, want):
        assert torch.equal(g.cpu(), w)
    assert rsx.metrics()["cuts"]["item"] - before == 6


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
