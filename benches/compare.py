"""rsx against its peers, interleaved in one run: the table of README.md.

Every workload is built once per peer; rounds then call each peer in turn, so that a machine whose speed drifts slows
all of them alike. Reported are medians of times, medians of the per-round ratios to each peer, and the ratio to the best peer.
JAX is a peer where it is installed (`pip install jax`).

    python benches/compare.py [--peers eager,inductor,jax] [--ours rsx,rsx.jit,rsx.compile]
                              [--workloads tail,gpt,...] [--rounds 20] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import pathlib
import statistics
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "examples"))

from workloads import WORKLOADS, Step  # noqa: E402

PEERS = ("eager", "inductor", "jax")
OURS = ("rsx", "rsx.jit", "rsx.compile")


def build(name: str, peer: str) -> Step | None:
    """A workload's step for a peer; none if the peer has no such workload."""
    if peer != "jax":
        return WORKLOADS[name](peer)
    import jax_peer

    make = jax_peer.WORKLOADS.get(name)
    return make and make()


def measure(name: str, peers: list[str], rounds: int, warmup: int) -> dict[str, list[float]]:
    """Milliseconds of every round, per peer."""
    steps = {p: s for p in peers if (s := build(name, p))}
    peers = list(steps)
    for p, step in steps.items():
        for _ in range(warmup):
            step()
            if p in OURS:
                import rsx

                rsx.wait_for_compiles()  # a background compile is not what is measured here
    times: dict[str, list[float]] = {p: [] for p in peers}
    for r in range(rounds):
        for p in peers if r % 2 else reversed(peers):
            start = time.perf_counter()
            steps[p]()
            times[p].append((time.perf_counter() - start) * 1e3)
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", default="eager", help="comma-separated: " + ", ".join(PEERS))
    parser.add_argument("--ours", default="rsx", help="comma-separated: " + ", ".join(OURS))
    parser.add_argument("--workloads", default=",".join(WORKLOADS))
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--warmup", type=int, default=4)
    parser.add_argument("--json", type=pathlib.Path)
    args = parser.parse_args()
    others, ours = args.peers.split(","), args.ours.split(",")
    peers = others + ours
    if unknown := [p for p in peers if p not in PEERS + OURS]:
        parser.error(f"unknown peers {unknown}")
    if unknown := [w for w in args.workloads.split(",") if w not in WORKLOADS]:
        parser.error(f"unknown workloads {unknown}: {', '.join(WORKLOADS)}")
    columns = [f"{p}, ms" for p in peers] + [f"{o} / {p}" for o in ours for p in others]
    columns += [f"best peer / {o}" for o in ours] * (len(others) > 1)
    print("| workload | " + " | ".join(columns) + " |")
    print("|---" * (1 + len(columns)) + "|")
    results = {}
    for name in args.workloads.split(","):
        times = results[name] = measure(name, peers, args.rounds, args.warmup)
        medians = {p: statistics.median(t) for p, t in times.items()}
        cells = [f"{medians[p]:.2f}" if p in times else "-" for p in peers]
        ratio = lambda a, b: f"{statistics.median(x / y for x, y in zip(a, b)):.2f}"  # noqa: E731
        cells += [ratio(times[o], times[p]) if p in times else "-" for o in ours for p in others]
        if len(others) > 1:
            best = [min(t) for t in zip(*(times[p] for p in others if p in times))]
            cells += [ratio(best, times[o]) for o in ours]
        print(f"| {name} | " + " | ".join(cells) + " |", flush=True)
    if args.json:
        args.json.write_text(json.dumps(results))


if __name__ == "__main__":
    main()
