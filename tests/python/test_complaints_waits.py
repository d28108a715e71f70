"""Complaints of section 2.3: data-dependent shapes and waits. See complaints.py."""

import copy
import math

import rsx
import torch
import torch.nn as nn
from complaints import D, both, compiles


def test_d1_masked_writes():
    """pytorch/xla#4248, pytorch#134241."""

    def f(device):
        a = torch.randn(5, 6).to(device)
        b = torch.randn(5, 6).to(device)
        m = torch.rand(5, 6).to(device) > 0.5
        a[a > 0] = 1.0
        a[m] = b[m]
        return a

    both(f)


def test_d3_writes_under_varying_masks():
    """google/torchax PR#96."""

    def f(device):
        x = torch.zeros(12).to(device)
        for n in (3, 7, 5, 9):
            mask = (torch.arange(12) < n).to(device)
            x[mask] = torch.arange(float(n)).to(device) + x[mask]
        return x

    both(f)


def test_d4_item_runs_nothing_twice():
    """pytorch/xla#2120, #2296, PR#2770."""
    with rsx.tier("eager"):
        x = torch.ones(8, device=D)
        rsx.synchronize()
        before = rsx.metrics()["eager_ops"]
        loss = (x * 2).sum()
        assert loss.item() == 16
        rsx.mark_step()
        assert loss.item() == 16
        rsx.synchronize()
        assert rsx.metrics()["eager_ops"] - before == 2


def test_d6_printing_compiles_nothing():
    """pytorch PR#71147."""
    with rsx.tier("compiled"):
        x = torch.randn(8, 4096).to(D)
        before = compiles()
        text = repr(x)
        assert compiles() == before
        assert "device='rsx:0'" in text and "..." in text


def test_d7_print_right_after_forward():
    """pytorch/xla#7596."""
    net = nn.Linear(4, 4).to(D)
    x = torch.ones(2, 4)
    want = repr(copy.deepcopy(net).cpu()(x).detach())
    assert want.rstrip(")") in repr(net(x.to(D)).detach())


def test_d8_grad_scaler():
    """pytorch/xla#2918, #3043."""

    def f(device):
        torch.manual_seed(0)
        net = nn.Linear(4, 2).to(device)
        opt = torch.optim.SGD(net.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler(device, init_scale=1024.0, growth_interval=4)
        scales = []
        for step in range(10):
            x = torch.ones(3, 4)
            if step == 5:
                x[0, 0] = math.inf
            opt.zero_grad()
            loss = net(x.to(device)).square().mean()
            scaler.scale(loss).backward()
            scaler.step(opt)
            scaler.update()
            scales.append(scaler.get_scale())
        return net.weight.detach().cpu(), torch.tensor(scales)

    for w, g in zip(f("cpu"), f(D)):
        torch.testing.assert_close(g, w)
