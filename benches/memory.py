"""Device memory and time of the GPT's training step: eager, and rsx under several memory limits.

    python benches/memory.py [--limits 90,80,72] [--rounds 10]

Each run is a process of its own. Eager's figure is the peak of what its tensors take (the profiler's account of the CPU
allocator); rsx's is `metrics()["peak_bytes"]`. Both in MB of 1e6 bytes.
"""

import argparse
import itertools
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve()


def eager_peak() -> int:
    """Most bytes that tensors take at a time while a model is made and trained for three steps."""
    import torch
    import workloads

    # From the very start: frees of what was allocated before are not reported.
    with torch.profiler.profile(profile_memory=True) as p:
        step = workloads.gpt("eager")
        for _ in range(3):
            step()
    events = [e for e in p.profiler.kineto_results.events() if e.name() == "[memory]"]
    return max(itertools.accumulate(e.nbytes() for e in sorted(events, key=lambda e: e.start_ns())))


def child(device: str, rounds: int) -> None:
    sys.path[:0] = [str(HERE.parent), str(HERE.parents[1] / "examples")]
    import workloads

    step = workloads.gpt("eager" if device == "cpu" else "rsx")
    for _ in range(6):
        step()
    if device == "rsx":
        import rsx

        rsx.reset_metrics()
    seconds = []
    for _ in range(rounds):
        start = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - start)
    peak = rsx.metrics()["peak_bytes"] if device == "rsx" else eager_peak()
    print(json.dumps({"ms": statistics.median(seconds) * 1e3, "peak": peak}))


def run(device: str, rounds: int, limit: str = "") -> dict | None:
    environment = {**os.environ, **({"RSX_MEMORY_LIMIT": limit} if limit else {})}
    command = [sys.executable, HERE, "--child", device, "--rounds", str(rounds)]
    out = subprocess.run(command, env=environment, capture_output=True, text=True)
    if out.returncode:
        print(out.stderr.strip().splitlines()[-1], file=sys.stderr)
        return None
    return json.loads(out.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--limits", default="90,80,72", help="MB, comma-separated")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--child", choices=["cpu", "rsx"], help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        return child(args.child, args.rounds)
    eager = run("cpu", args.rounds)
    print(f"{'':14}{'step, ms':>10}{'peak, MB':>10}{'of eager':>10}")
    rows = [("eager", eager), ("rsx", run("rsx", args.rounds))]
    rows += [(f"rsx, {limit} MB", run("rsx", args.rounds, f"{float(limit) * 1e6:.0f}")) for limit in args.limits.split(",")]
    for name, r in rows:
        print(f"{name:14}" + (f"{r['ms']:10.1f}{r['peak'] / 1e6:10.1f}{r['peak'] / eager['peak']:10.2f}" if r else "   does not fit"))


if __name__ == "__main__":
    main()
