"""The first training step of a small GPT in a new process: eager, rsx with an empty disk cache, rsx with a warm one.

    python benches/first_step.py [--rounds 7] [--steps 3]

Each run is a process of its own; they take turns, and ratios are taken within a round, so that a machine whose speed drifts
slows all alike. The warm cache was filled by a process that trained for some steps.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve()


def child(device: str, steps: int) -> None:
    sys.path.insert(0, str(HERE.parents[1] / "examples"))
    from train_gpt import train

    _, seconds = train(device, steps)
    result = {"seconds": seconds}
    if device == "rsx":
        import rsx

        rsx.synchronize()
        result |= {k: rsx.metrics()[k] for k in ("compiles", "disk_hits", "eager_runs")}
    print(json.dumps(result))


def run(device: str, steps: int, cache: str = "") -> dict:
    command = [sys.executable, HERE, "--child", device, "--steps", str(steps)]
    out = subprocess.run(command, env={**os.environ, "RSX_CACHE_DIR": cache}, stdout=subprocess.PIPE, check=True, text=True)
    return json.loads(out.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=3, help="steps per process; the first is the one that counts")
    parser.add_argument("--child", choices=["cpu", "rsx"], help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        return child(args.child, args.steps)
    rows: dict[str, list[dict]] = {"eager": [], "cold": [], "warm": []}
    with tempfile.TemporaryDirectory() as warm:
        run("rsx", 12, warm)
        for k in range(args.rounds):
            rows["eager"].append(run("cpu", args.steps))
            with tempfile.TemporaryDirectory() as cold:
                rows["cold"].append(run("rsx", args.steps, cold))
            rows["warm"].append(run("rsx", args.steps, warm))
            print(f"round {k}: " + ", ".join(f"{n} {r[-1]['seconds'][0] * 1e3:.0f} ms" for n, r in rows.items()), flush=True)
    print(f"{'':8}{'first step, ms':>16}{'of eager':>10}{'range':>14}   compiles, from disk, runs op by op")
    for name, runs in rows.items():
        first = [r["seconds"][0] for r in runs]
        ratios = [f / e["seconds"][0] for f, e in zip(first, rows["eager"])]
        counts = [runs[-1].get(k, "-") for k in ("compiles", "disk_hits", "eager_runs")]
        print(
            f"{name:8}{statistics.median(first) * 1e3:16.0f}{statistics.median(ratios):10.2f}"
            f"{min(ratios):8.2f}-{max(ratios):.2f}   {counts[0]}, {counts[1]}, {counts[2]}"
        )


if __name__ == "__main__":
    main()
