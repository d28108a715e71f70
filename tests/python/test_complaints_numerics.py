"""Complaints of section 2.5: dtypes, RNG, numerics. See complaints.py."""

import rsx
import torch
import torch.nn as nn
import torch.nn.functional as F
from complaints import D, both, compiles


def test_n1_promotion():
    """pytorch/xla#592, PR#3608, #3551."""

    def f(device):
        a = torch.arange(4).to(device)
        b = torch.rand(4).to(device)
        u = torch.arange(4, dtype=torch.uint8).to(device)
        d = torch.rand(4, dtype=torch.float64).to(device)
        return (
            torch.cat([a, b]),
            torch.where(b > 0.5, 1, u),
            u[1:],
            a / 2,
            a * 2.5,
            u + True,
            torch.addcdiv(d, d, d + 1),
            b + d,
            a + u,
        )

    both(f)


def test_n2_bf16_times_number():
    """pytorch/xla#1929."""
    net = nn.Linear(4, 4).to(D, torch.bfloat16)
    y = net(torch.ones(2, 4, device=D, dtype=torch.bfloat16))
    y *= 0.5
    y.sum().backward()
    assert y.dtype == net.weight.grad.dtype == torch.bfloat16


def test_n4_mixed_types():
    """pytorch/xla PR#4672, PR#7090, aws-neuron-sdk#1318."""

    def f(device):
        a = torch.rand(8).to(device, torch.bfloat16).requires_grad_()
        F.mse_loss(a, torch.rand(8).to(device)).backward()
        x = torch.rand(4, 4).to(device).requires_grad_()
        with torch.autocast(device, dtype=torch.bfloat16):
            F.gelu(F.linear(x, torch.ones(4, 4).to(device))).sum().backward()
        return a.grad, x.grad

    for w, g in zip(f("cpu"), f(D)):
        assert w.dtype == g.dtype and w.shape == g.shape
        assert torch.isfinite(g.float()).all()


def test_n5_seeds():
    """pytorch/xla#2092, PR#1932, #2636, #8636."""
    with rsx.tier("compiled"):
        draws = []
        for _ in range(2):
            torch.manual_seed(0)
            draws.append(torch.rand(16, device=D).cpu())
        assert torch.equal(*draws)
        x = torch.ones(64, device=D)
        rsx.synchronize()  # or the first segment would fill x as well
        masks = [F.dropout(x).cpu()]
        before = compiles()
        masks += [F.dropout(x).cpu() for _ in range(3)]
        assert compiles() == before
        assert not torch.equal(masks[0], masks[1]) and not torch.equal(masks[1], masks[2])


def test_n7_dropout_equal_on_every_tier():
    """pytorch/pytorch#90097."""
    results = []
    for tier in ("eager", "compiled"):
        with rsx.tier(tier):
            torch.manual_seed(3)
            x = torch.ones(128, device=D)
            results.append([F.dropout(x, 0.3).cpu(), torch.randn(33, device=D).cpu(), torch.rand(7, device=D).cpu()])
    for a, b in zip(*results):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


def test_n9_multinomial_is_uniform():
    """tinygrad#4999."""
    torch.manual_seed(0)
    n = 8
    counts = torch.bincount(torch.multinomial(torch.ones(n, device=D) / n, 8000, replacement=True).cpu(), minlength=n)
    assert (counts - 1000).abs().max() < 150
