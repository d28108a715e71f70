"""Optimizers, in all their implementations, and gradient utilities."""

import pytest
import rsx
import torch
import torch.nn as nn
import torch.nn.functional as F
from helper import D


def train(optimizer, device, steps=5, clip=False, **kw):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 4)).to(device)
    opt = optimizer(net.parameters(), lr=1e-2, **kw)
    torch.manual_seed(1)
    x, y = torch.randn(32, 8).to(device), torch.randn(32, 4).to(device)
    losses = []
    for _ in range(steps):
        opt.zero_grad()
        loss = F.mse_loss(net(x), y)
        loss.backward()
        if clip:
            nn.utils.clip_grad_norm_(net.parameters(), 0.1)
        opt.step()
        losses.append(loss.item())
    return torch.tensor(losses), net


CASES = {
    "sgd": (torch.optim.SGD, {}),
    "sgd momentum": (torch.optim.SGD, {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1}),
    "sgd one by one": (torch.optim.SGD, {"momentum": 0.9, "foreach": False}),
    "sgd fused": (torch.optim.SGD, {"momentum": 0.9, "fused": True}),
    "adam": (torch.optim.Adam, {"amsgrad": True}),
    "adamw": (torch.optim.AdamW, {}),
    "adamw one by one": (torch.optim.AdamW, {"foreach": False}),
    "adamw fused": (torch.optim.AdamW, {"fused": True}),
    "adamw capturable": (torch.optim.AdamW, {"capturable": True}),
    "adagrad": (torch.optim.Adagrad, {}),
    "adagrad fused": (torch.optim.Adagrad, {"fused": True}),
    "rmsprop": (torch.optim.RMSprop, {"momentum": 0.9, "centered": True}),
    "adadelta": (torch.optim.Adadelta, {}),
    "adamax": (torch.optim.Adamax, {}),
    "nadam": (torch.optim.NAdam, {}),
    "radam": (torch.optim.RAdam, {}),
    "rprop": (torch.optim.Rprop, {}),
    "asgd": (torch.optim.ASGD, {}),
}


@pytest.mark.parametrize("name", CASES)
def test_curve_equals_eager(name):
    optimizer, kw = CASES[name]
    on_cpu = {k: v for k, v in kw.items() if k != "capturable" and not (k == "fused" and optimizer is torch.optim.Adagrad)}
    got, net = train(optimizer, D, **kw)
    want, reference = train(optimizer, "cpu", **on_cpu)
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
    for a, b in zip(net.parameters(), reference.parameters()):
        torch.testing.assert_close(a.detach().cpu(), b.detach(), rtol=1e-3, atol=1e-5)


def test_clipping():
    got, _ = train(torch.optim.AdamW, D, clip=True)
    want, _ = train(torch.optim.AdamW, "cpu", clip=True)
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
    p = nn.Parameter(torch.ones(4, device=D))
    p.grad = torch.full((4,), 3.0, device=D)
    norm = nn.utils.clip_grad_norm_([p], 1.0)
    assert norm.device.type == "rsx" and abs(norm.item() - 6) < 1e-5


def test_foreach_is_the_default_and_stays_one_record_per_call():
    params = [nn.Parameter(torch.ones(3, device=D)) for _ in range(200)]
    for p in params:
        p.grad = torch.ones(3, device=D)
    opt = torch.optim.AdamW(params)
    opt.step()
    rsx.synchronize()
    before = rsx.metrics()["records"]
    opt.step()
    assert rsx.metrics()["records"] - before < 20


def test_many_tensors_in_one_foreach():
    """More storages than any fixed limit; shared storages and repeated tensors among them."""
    base = torch.zeros(400, 4, device=D)
    rows = list(base.unbind(0))
    torch._foreach_add_(rows, [float(i) for i in range(400)])
    assert base[:, 0].tolist() == [float(i) for i in range(400)]
    apart = [torch.full((2,), float(i), device=D) for i in range(600)]
    out = torch._foreach_mul(apart, 2.0)
    assert [t[0].item() for t in (out[0], out[17], out[599])] == [0, 34, 1198]
    torch._foreach_add_(apart, out)
    assert apart[599].tolist() == [1797, 1797]
    norms = torch._foreach_norm(apart)
    assert len(norms) == 600 and norms[0].item() == 0


def test_lr_tensor_and_schedulers():
    p = nn.Parameter(torch.ones(4, device=D))
    opt = torch.optim.SGD([p], lr=1.0)
    sched = torch.optim.lr_scheduler.ExponentialLR(opt, 0.5)
    for _ in range(3):
        p.grad = torch.ones(4, device=D)
        opt.step()
        sched.step()
    assert p.tolist() == [1 - 1 - 0.5 - 0.25] * 4


def test_a_step_without_mark_step_is_one_segment():
    net = nn.Linear(8, 8).to(D)
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    x = torch.ones(4, 8, device=D)
    counts = []
    for _ in range(5):
        opt.zero_grad()
        net(x).sum().backward()
        opt.step()
        counts.append(rsx.metrics()["segments"])
    assert counts[-1] - counts[-2] == 1, counts
