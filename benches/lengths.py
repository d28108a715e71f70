"""Thirty sequence lengths through a GPT, twice: what new shapes cost.

Each device runs the same training steps (or `--infer`: forward passes) over the same lengths in the same order; the first
pass sees every length for the first time, the second for the second. Devices take turns length by length, so that a machine
whose speed drifts slows both alike.

    python benches/lengths.py [--lengths 30] [--infer]
"""

from __future__ import annotations

import argparse
import pathlib
import sys
import time

import torch

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "examples"))

from gpt import GPT, Text  # noqa: E402


class Run:
    def __init__(self, device: str, text: Text, infer: bool) -> None:
        torch.manual_seed(0)
        self.device, self.infer = device, infer
        self.net = GPT(text.vocab, time=512).to(device)
        self.optimizer = torch.optim.AdamW(self.net.parameters(), lr=1e-3)

    def step(self, tokens: torch.Tensor, targets: torch.Tensor) -> tuple[float, float]:
        """Seconds and loss of one step."""
        start = time.perf_counter()
        tokens, targets = tokens.to(self.device), targets.to(self.device)
        if self.infer:
            with torch.no_grad():
                loss = self.net(tokens, targets)
        else:
            self.optimizer.zero_grad()
            loss = self.net(tokens, targets)
            loss.backward()
            self.optimizer.step()
        value = loss.item()
        return time.perf_counter() - start, value


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", type=int, default=30)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--infer", action="store_true", help="forward passes only")
    parser.add_argument("--verbose", action="store_true")
    args = parser.parse_args()
    import rsx

    text = Text()
    generator = torch.Generator().manual_seed(1)
    lengths = (64 + torch.randperm(400, generator=generator)[: args.lengths]).tolist()
    runs = {d: Run(d, text, args.infer) for d in ("cpu", "rsx")}
    # A first step makes the optimizer's state.
    warm = next(text.batches(args.batch, 48))
    for run in runs.values():
        run.step(*warm)
    rsx.reset_metrics()
    worst = 0.0
    for turn in ("first", "second"):
        total = dict.fromkeys(runs, 0.0)
        for n in lengths:
            batch = next(text.batches(args.batch, n, seed=n))
            results = {d: run.step(*batch) for d, run in runs.items()}
            for d, (seconds, _) in results.items():
                total[d] += seconds
            (cpu, a), (lazy, b) = results["cpu"], results["rsx"]
            worst = max(worst, abs(a - b) / abs(a))
            if args.verbose:
                m = rsx.metrics()
                print(f"{n:4} {cpu * 1e3:7.1f} {lazy * 1e3:7.1f} ms, compiles {m['compiles']}, eager {m['eager_runs']}")
        m = rsx.metrics()
        print(
            f"{turn} pass: eager {total['cpu']:.2f} s, rsx {total['rsx']:.2f} s, ratio {total['rsx'] / total['cpu']:.2f}; "
            f"compiles {m['compiles']}, {m['compile_seconds']:.2f} s"
        )
    print(f"largest relative difference of the loss: {worst:.1e}")


if __name__ == "__main__":
    main()
