"""Train a small GPT on device="rsx" and on eager CPU from the same seed, and compare.

Each run is a process of its own, so that times and peak memory are its own. Writes both loss curves to
`out/train_gpt.png` and prints a table.
"""

import argparse
import json
import pathlib
import resource
import statistics
import subprocess
import sys
import time

import torch
from tqdm import tqdm

from gpt import GPT, Text


def train(
    device: str, steps: int, batch: int = 4, length: int = 256, amp: bool = False, progress: bool = False, **model
) -> tuple[list[float], list[float]]:
    """Losses and seconds of each step. Nothing here knows of rsx but the name of the device."""
    text = Text()
    torch.manual_seed(0)
    net = GPT(text.vocab, time=length, **model).to(device)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    losses, seconds = [], []
    batches = text.batches(batch, length)
    for _ in tqdm(range(steps), desc=f"{device:>4}", disable=not progress, file=sys.stderr):
        tokens, targets = next(batches)
        start = time.perf_counter()
        optimizer.zero_grad()
        with torch.autocast(device, dtype=torch.bfloat16, enabled=amp):
            loss = net(tokens.to(device), targets.to(device))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        seconds.append(time.perf_counter() - start)
    return losses, seconds


def rss_mib() -> float:
    """Peak resident memory of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def child(device: str, args: argparse.Namespace) -> None:
    """One run, reported as a line of JSON."""
    torch.zeros(1).add_(1)
    before = rss_mib()
    losses, seconds = train(device, args.steps, amp=args.amp, progress=True)
    result = {"device": device, "losses": losses, "seconds": seconds, "memory": rss_mib() - before}
    if device == "rsx":
        import rsx

        result["metrics"] = {k: v for k, v in rsx.metrics().items() if isinstance(v, (int, float))}
    print(json.dumps(result))


def run(device: str, args: argparse.Namespace) -> dict:
    command = [sys.executable, __file__, "--child", device, "--steps", str(args.steps)] + ["--amp"] * args.amp
    out = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True).stdout
    return json.loads(out.splitlines()[-1])


def plot(runs: list[dict], path: pathlib.Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    fig, ax = plt.subplots(figsize=(7, 4), constrained_layout=True)
    for r, style in zip(runs, ({"lw": 3, "alpha": 0.4}, {"lw": 1})):
        ax.plot(r["losses"], label=r["device"], **style)
    ax.set(xlabel="step", ylabel="cross entropy", title="small GPT, rsx against eager, same seed")
    ax.legend()
    path.parent.mkdir(parents=True, exist_ok=True)
    fig.savefig(path, dpi=120)


def table(eager: dict, lazy: dict) -> str:
    median = lambda r: statistics.median(r["seconds"][1:]) * 1e3  # noqa: E731
    rows = [
        ("final loss", f"{eager['losses'][-1]:.5f}", f"{lazy['losses'][-1]:.5f}"),
        ("first step, ms", f"{eager['seconds'][0] * 1e3:.1f}", f"{lazy['seconds'][0] * 1e3:.1f}"),
        ("median step, ms", f"{median(eager):.1f}", f"{median(lazy):.1f}"),
        ("peak memory above start, MiB", f"{eager['memory']:.0f}", f"{lazy['memory']:.0f}"),
    ]
    m = lazy["metrics"]
    for key in ("segments", "compiles", "compile_seconds", "kernels", "eager_runs", "host_waits"):
        value = m.get(key, 0)
        rows.append((key.replace("_", " "), "-", f"{value:.2f}" if isinstance(value, float) else str(value)))
    lines = [f"{'':30}{'eager':>12}{'rsx':>12}"]
    lines += [f"{name:30}{a:>12}{b:>12}" for name, a, b in rows]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--amp", action="store_true", help="bfloat16 autocast")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("out/train_gpt.png"))
    parser.add_argument("--child", choices=["cpu", "rsx"], help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        return child(args.child, args)
    print(f"training text: {Text()}")
    eager, lazy = run("cpu", args), run("rsx", args)
    plot([eager, lazy], args.out)
    worst = max(abs(a - b) / abs(a) for a, b in zip(eager["losses"][:50], lazy["losses"][:50]))
    print(table(eager, lazy))
    print(f"largest relative difference of the loss over the first 50 steps: {worst:.1e}")
    print(f"loss curves: {args.out}")


if __name__ == "__main__":
    main()
