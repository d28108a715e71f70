"""torch.autocast("rsx"): the op lists of CUDA."""

import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F
from helper import D


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_lists(dtype):
    x = torch.randn(4, 8, device=D)
    w = torch.randn(8, 8, device=D)
    with torch.autocast("rsx", dtype=dtype):
        assert (x @ w).dtype == dtype and F.linear(x, w).dtype == dtype
        assert F.scaled_dot_product_attention(*(torch.randn(1, 2, 4, 8, device=D),) * 3).dtype == dtype
        assert torch.softmax(x @ w, -1).dtype == torch.float32
        assert F.layer_norm(x @ w, (8,)).dtype == torch.float32
        assert ((x @ w) + x).dtype == torch.float32  # promotion
        assert torch.cat([x @ w, x]).dtype == torch.float32  # widest of the inputs
        with torch.autocast("rsx", enabled=False):
            assert (x @ w).dtype == torch.float32


def test_training_under_autocast_equals_cpu_autocast():
    def run(d):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 4)).to(d)
        x, y = torch.randn(32, 8).to(d), torch.randn(32, 4).to(d)
        opt = torch.optim.SGD(net.parameters(), lr=0.1)
        losses = []
        for _ in range(10):
            opt.zero_grad()
            with torch.autocast(d, dtype=torch.bfloat16):
                loss = F.mse_loss(net(x).float(), y)
            loss.backward()
            opt.step()
            losses.append(loss.item())
        assert net[0].weight.grad.dtype == torch.float32
        return torch.tensor(losses)

    torch.testing.assert_close(run(D), run("cpu"), rtol=2e-2, atol=1e-3)


def test_grad_scaler_skips_infinite_steps():
    p = nn.Parameter(torch.ones(2, device=D))
    opt = torch.optim.SGD([p], lr=1.0)
    scaler = torch.amp.GradScaler("rsx", init_scale=4.0)
    for bad in (False, True, False):
        opt.zero_grad()
        loss = p.sum() * (float("inf") if bad else 1.0)
        scaler.scale(loss).backward()
        scaler.unscale_(opt)
        scaler.step(opt)
        scaler.update()
    assert scaler.get_scale() == 2.0 and p.tolist() == [-1, -1]


def test_default_dtype_and_custom_ops():
    assert torch.get_autocast_dtype("rsx") in (torch.bfloat16, torch.float16)
    assert torch.amp.is_autocast_available("rsx")
