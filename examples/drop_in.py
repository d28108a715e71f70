"""Nothing changes but the name of the device: an autoencoder with no `mark_step` and no import of rsx."""

import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F


def train(device: str, steps: int, amp: bool = False) -> list[float]:
    """Losses of each step; read every tenth step only, as many loops do."""
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Linear(64, 128), nn.GELU(), nn.LayerNorm(128), nn.Linear(128, 8), nn.SiLU(), nn.Linear(8, 64)
    ).to(device)
    optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3)
    data = torch.rand(512, 64)
    losses = []
    for step in range(steps):
        x = data[(step * 64) % 512 :][:64].to(device)
        with torch.autocast(device, dtype=torch.bfloat16, enabled=amp):
            loss = F.mse_loss(net(x).float(), x)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
        if step % 10 == 9:
            losses[-1].item()
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
