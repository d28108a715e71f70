"""Complaints of section 2.1: recompilation and scalars. See complaints.py."""

import math

import pytest
import rsx
import torch
import torch.nn as nn
from complaints import D, both, compiles, same


def test_r1_few_compiles_in_a_plain_loop():
    """pytorch/xla#1368, #5554."""
    with rsx.tier("compiled"):
        net = nn.Linear(10, 5).to(D)
        opt = torch.optim.SGD(net.parameters(), lr=0.1)
        counts = []
        for _ in range(5):
            opt.zero_grad()
            net(torch.ones(4, 10, device=D)).sum().backward()
            opt.step()
            counts.append(compiles())
    assert counts[-1] - counts[1] <= 2, counts
    assert counts[-1] == counts[-2], counts


def test_r2_rates_that_meet_eps():
    """pytorch/xla#3604: equal scalars must not share a parameter of the program."""
    with rsx.tier("compiled"):
        p = torch.ones(8, device=D, requires_grad=True)
        q = torch.ones(8, requires_grad=True)
        counts = []
        for lr in (1e-2, 1e-4, 1e-8, 1e-9):
            for t in (p, q):
                t.grad = torch.full_like(t, 0.5)
                torch.optim.Adam([t], lr=lr, eps=1e-8).step()
            rsx.mark_step()
            counts.append(compiles())
    assert counts[-1] == counts[1], counts
    same(p.detach(), q.detach())


@pytest.mark.parametrize("name", ["LambdaLR", "OneCycleLR", "ReduceLROnPlateau"])
def test_r4_schedules_do_not_recompile(name):
    """pytorch/pytorch#130467, #163093, #120934."""
    with rsx.tier("compiled"):
        net = nn.Linear(6, 3).to(D)
        opt = torch.optim.AdamW(net.parameters(), lr=1e-2)
        sched = {
            "LambdaLR": lambda: torch.optim.lr_scheduler.LambdaLR(opt, lambda s: 0.9**s),
            "OneCycleLR": lambda: torch.optim.lr_scheduler.OneCycleLR(opt, 0.1, total_steps=30),
            "ReduceLROnPlateau": lambda: torch.optim.lr_scheduler.ReduceLROnPlateau(opt, patience=1),
        }[name]()
        counts = []
        for _ in range(20):
            opt.zero_grad()
            loss = net(torch.ones(4, 6, device=D)).square().mean()
            loss.backward()
            opt.step()
            sched.step(*([loss.item()] if name == "ReduceLROnPlateau" else []))
            counts.append(compiles())
    assert counts[-1] == counts[2], counts


def test_r6_slice_starts_do_not_recompile():
    """pytorch/xla#1368."""
    with rsx.tier("compiled"):
        x, host = torch.arange(100.0).to(D), torch.arange(100.0)
        start = compiles()
        for i in range(50):
            assert x[i : i + 8].sum().item() == host[i : i + 8].sum().item()
        assert compiles() - start <= 2


def decode(device, tokens: int):
    """Greedy decoding with `torch.cat`: the sequence grows by one each time."""
    torch.manual_seed(0)
    table = nn.Embedding(17, 17).to(device)
    sequence = torch.zeros(1, 1, dtype=torch.long, device=device)
    for _ in range(tokens):
        sequence = torch.cat([sequence, table(sequence).mean(1).argmax(-1, keepdim=True)], 1)
    return sequence.cpu()


def test_r8_greedy_decoding_with_cat():
    """pytorch/xla#2757."""

    with rsx.tier("compiled"):
        before = compiles()
        assert torch.equal(decode(D, 64), decode("cpu", 64))
        assert compiles() - before <= 8


def test_r10_number_then_tensor():
    """jax#3163, #4274."""

    def f(device):
        x = 0
        for i in range(10):
            x = torch.as_tensor(x, device=device) + i
        return x

    both(f)


def test_r11_math_on_norms_in_an_optimizer():
    """pytorch/xla#1777, #2511: each distinct cut site compiles once per shape, not once per parameter."""

    def step(params):
        for p in params:
            trust = math.sqrt(p.norm()) or 1.0
            p.sub_(p * (0.01 * trust))

    torch.manual_seed(0)
    host = [torch.rand(4, 4) for _ in range(50)]
    with rsx.tier("compiled"), torch.no_grad():
        params = [p.to(D) for p in host]
        before = compiles()
        step(params)
        step(params)
        rsx.mark_step()
        assert compiles() - before <= 8
    with torch.no_grad():
        step(host)
        step(host)
    for p, h in zip(params, host):
        same(p, h, 1e-4)
    assert "item" in rsx.report()
