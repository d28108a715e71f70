"""Random numbers: seeds, states, distributions; the state lives on the host."""

import pytest
import rsx
import torch
from helper import D


def test_same_seed_same_numbers():
    torch.manual_seed(3)
    a = torch.rand(100, device=D)
    b = torch.randn(100, device=D)
    torch.manual_seed(3)
    assert torch.equal(a, torch.rand(100, device=D)) and torch.equal(b, torch.randn(100, device=D))
    assert not torch.equal(torch.rand(100, device=D), torch.rand(100, device=D))


def test_generators_are_independent():
    g = torch.Generator(device=D)
    assert g.device.type == "rsx"
    g.manual_seed(3)
    a = torch.randn(5, device=D, generator=g)
    torch.rand(3, device=D)
    g.manual_seed(3)
    assert torch.equal(a, torch.randn(5, device=D, generator=g))


def test_states_can_be_kept_and_restored():
    state = torch.rsx.get_rng_state()
    assert state.dtype == torch.uint8 and state.device.type == "cpu"
    a = torch.rand(7, device=D)
    torch.rsx.set_rng_state(state)
    assert torch.equal(a, torch.rand(7, device=D))
    with torch.random.fork_rng(devices=[0], device_type="rsx"):
        torch.rand(3, device=D)
    b = torch.rand(7, device=D)
    torch.rsx.set_rng_state(state)
    torch.rand(7, device=D)
    assert torch.equal(b, torch.rand(7, device=D))
    with pytest.raises(RuntimeError):
        torch.rsx.set_rng_state(torch.zeros(3, dtype=torch.uint8))


def test_reading_the_state_never_waits():
    rsx.synchronize()
    torch.rand(5, device=D)
    before = rsx.metrics()
    torch.rsx.get_rng_state()
    torch.rsx.initial_seed()
    after = rsx.metrics()
    assert before["segments"] == after["segments"] and before["host_waits"] == after["host_waits"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_distributions(dtype):
    n = 100_000
    torch.manual_seed(0)
    u = torch.rand(n, device=D, dtype=dtype).cpu().double()
    assert 0 <= u.min() and u.max() <= 1 and abs(u.mean() - 0.5) < 0.01 and abs(u.var() - 1 / 12) < 0.005
    g = torch.randn(n, device=D, dtype=dtype).cpu().double()
    assert abs(g.mean()) < 0.02 and abs(g.std() - 1) < 0.02 and 4 < g.abs().max() < 7
    e = torch.empty(n, device=D, dtype=dtype).exponential_(2.0).cpu().double()
    assert abs(e.mean() - 0.5) < 0.02 and e.min() >= 0
    b = torch.empty(n, device=D, dtype=dtype).bernoulli_(0.3).cpu().double()
    assert abs(b.mean() - 0.3) < 0.01 and set(b.unique().tolist()) == {0.0, 1.0}


def test_integers():
    x = torch.randint(-3, 7, (100_000,), device=D).cpu()
    assert x.min() == -3 and x.max() == 6
    assert (x.bincount() if x.min() >= 0 else (x + 3).bincount()).min() > 9_000
    assert torch.randint(0, 2**40, (1000,), device=D).max().item() > 2**38
    assert torch.empty(1000, dtype=torch.uint8, device=D).random_().float().std().item() > 50


def test_other_random_ops_are_reproducible():
    def draw():
        torch.manual_seed(5)
        p = torch.full((50,), 0.4, device=D)
        return [
            torch.bernoulli(p),
            torch.multinomial(p, 20),
            torch.randperm(50, device=D),
            torch.normal(p, 1.0),
            torch.poisson(p * 10),
            torch.nn.functional.dropout(p, 0.5),
            torch.nn.functional.rrelu(p - 0.5, training=True),
            torch.nn.functional.gumbel_softmax(p[None]),
        ]

    for a, b in zip(draw(), draw(), strict=True):
        assert torch.equal(a, b)
    assert sorted(draw()[2].tolist()) == list(range(50)) and len(set(draw()[1].tolist())) == 20


def test_dropout_masks_differ_and_scale():
    x = torch.ones(10_000, device=D, requires_grad=True)
    a = torch.nn.functional.dropout(x, 0.25)
    b = torch.nn.functional.dropout(x, 0.25)
    assert not torch.equal(a, b)
    values = a.unique().tolist()
    assert values[0] == 0 and abs(values[1] - 4 / 3) < 1e-6
    assert abs((a > 0).float().mean().item() - 0.75) < 0.02
    a.sum().backward()
    assert torch.equal(x.grad, a.detach())
    assert torch.nn.functional.dropout(x, 1.0).sum().item() == 0
    assert torch.nn.functional.dropout(x, 0.5, training=False) is x
