"""A loop in the style of torch_xla: `rsx.mark_step()` ends each step, losses are read once at the end.

`mark_step` is never needed on rsx (an optimizer's step ends a segment by itself); loops that call it work the same.
"""

import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F

import rsx


def train(device: str, steps: int, amp: bool = False) -> list[float]:
    """Losses of each step of an MLP on a fixed random regression problem."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Dropout(0.0), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 3))
    net = net.to(device)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9, nesterov=True)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=steps)
    x, y = torch.randn(256, 20).to(device), torch.randn(256, 3).to(device)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        with torch.autocast(device, dtype=torch.bfloat16, enabled=amp):
            loss = F.smooth_l1_loss(net(x), y)
        loss.backward()
        optimizer.step()
        schedule.step()
        if device == "rsx":
            rsx.mark_step()
        losses.append(loss.detach())  # no wait: the value is read after the loop
    return [value.item() for value in losses]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=100)
    steps = parser.parse_args().steps
    for device in ("cpu", "rsx"):
        losses = train(device, steps)
        print(f"{device:>4}: first loss {losses[0]:.5f}, last loss {losses[-1]:.5f}")


if __name__ == "__main__":
    main()
