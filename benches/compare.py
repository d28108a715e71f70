"""rsx against its peers, interleaved in one run: the table of README.md.

Every workload is built once per peer; rounds then call each peer in turn, so that a machine whose speed drifts slows
all of them alike. Reported are medians of times, medians of the per-round ratios to each peer, and the ratio to the best peer.
JAX is a peer where it is installed (`pip install jax`).

    python benches/compare.py [--peers eager,inductor,jax] [--workloads tail,gpt,...] [--rounds 20] [--json FILE]
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
            if p == "rsx":
                time.sleep(0.05)  # let a background compile finish: it is not what is measured here
    if "rsx" in steps:
        import rsx

        rsx.wait_for_compiles()
        steps["rsx"]()
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
    parser.add_argument("--workloads", default=",".join(WORKLOADS))
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--warmup", type=int, default=4)
    parser.add_argument("--json", type=pathlib.Path)
    args = parser.parse_args()
    peers = [*args.peers.split(","), "rsx"]
    if unknown := [p for p in peers[:-1] if p not in PEERS]:
        parser.error(f"unknown peers {unknown}")
    if unknown := [w for w in args.workloads.split(",") if w not in WORKLOADS]:
        parser.error(f"unknown workloads {unknown}: {', '.join(WORKLOADS)}")
    others = peers[:-1]
    columns = [f"{p}, ms" for p in peers] + [f"rsx / {p}" for p in others] + ["best peer / rsx"] * (len(others) > 1)
    print("| workload | " + " | ".join(columns) + " |")
    print("|---" * (1 + len(columns)) + "|")
    results = {}
    for name in args.workloads.split(","):
        times = results[name] = measure(name, peers, args.rounds, args.warmup)
        medians = {p: statistics.median(t) for p, t in times.items()}
        cells = [f"{medians[p]:.2f}" if p in times else "-" for p in peers]
        for p in others:
            ratio = statistics.median(a / b for a, b in zip(times["rsx"], times[p])) if p in times else None
            cells.append(f"{ratio:.2f}" if ratio else "-")
        if len(others) > 1:
            best = zip(*(times[p] for p in others if p in times))
            cells.append(f"{statistics.median(min(b) / a for a, b in zip(times['rsx'], best)):.2f}")
        print(f"| {name} | " + " | ".join(cells) + " |", flush=True)
    if args.json:
        args.json.write_text(json.dumps(results))


if __name__ == "__main__":
    main()
