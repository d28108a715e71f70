"""rsx against its peers, interleaved in one run: the table of README.md.

Every workload is built once per peer; rounds then call each peer in turn, so that a machine whose speed drifts slows
all of them alike. Reported are medians of times and medians of the per-round ratios against each peer.

    python benches/compare.py [--peers eager,inductor,jax] [--ours rsx,rsx.jit,rsx.compile] [--workloads tail,gpt,...]
                              [--rounds 20] [--json FILE]

`rsx` is the device alone; `rsx.jit` has the whole step under `rsx.jit`, `rsx.compile` the model under
`torch.compile(backend="rsx")` as inductor has it. JAX knows some of the workloads only.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import statistics
import sys
import time
from collections.abc import Callable

import torch
import torch.nn as nn
import torch.nn.functional as F

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "examples"))

Step = Callable[[], object]


def device_of(peer: str) -> str:
    return "rsx" if peer.startswith("rsx") else "cpu"


def compiled(peer: str, f: Callable, step: bool = False) -> Callable:
    """`f` as the peer compiles it. `step`: it is a whole training step."""
    if peer == "rsx.jit" and (step or not torch.is_grad_enabled()):
        import rsx

        return rsx.jit(f, strict=True)
    if step:
        return f
    if peer == "inductor":
        return torch.compile(f)
    return torch.compile(f, backend="rsx") if peer == "rsx.compile" else f


def sync(peer: str) -> None:
    if peer.startswith("rsx"):
        torch.rsx.synchronize()


def cut(peer: str) -> None:
    if peer.startswith("rsx"):
        import rsx

        rsx.mark_step()


def tail(peer: str) -> Step:
    """Bias, tanh-gelu, layer norm on 4096x2048 f32."""
    torch.manual_seed(0)
    x, bias = torch.randn(4096, 2048).to(device_of(peer)), torch.randn(2048).to(device_of(peer))
    norm = nn.LayerNorm(2048).to(device_of(peer))

    def f(x, bias):
        return norm(F.gelu(x + bias, approximate="tanh"))

    with torch.no_grad():
        g = compiled(peer, f)

    def step():
        with torch.no_grad():
            y = g(x, bias)
        cut(peer)
        sync(peer)
        return y

    return step


def pointwise(peer: str) -> Step:
    """Chain of 10 pointwise ops over 8 M f32 elements."""
    x = torch.rand(8 << 20).to(device_of(peer))

    def f(x):
        y = torch.sigmoid(x) * 2 + 1
        y = torch.tanh(y) - x
        return torch.sqrt(y * y + 0.5) * x / 3

    with torch.no_grad():
        g = compiled(peer, f)

    def step():
        y = g(x)
        cut(peer)
        sync(peer)
        return y

    return step


def softmax(peer: str) -> Step:
    """Softmax over the rows of 4096x4096 f32."""
    x = torch.randn(4096, 4096).to(device_of(peer))
    with torch.no_grad():
        g = compiled(peer, lambda x: torch.softmax(x, -1))

    def step():
        y = g(x)
        cut(peer)
        sync(peer)
        return y

    return step


def training(peer: str, net: nn.Module, loss: Callable, **optimizer) -> Step:
    net = net.to(device_of(peer))
    # A step count on the host cannot be replayed.
    optimizer = {"capturable": True, **optimizer} if peer == "rsx.jit" else optimizer
    opt = torch.optim.AdamW(net.parameters(), lr=1e-3, **optimizer)
    loss = compiled(peer, loss)

    def train():
        opt.zero_grad()
        value = loss(net)
        value.backward()
        opt.step()
        return value

    train = compiled(peer, train, step=True)

    def step():
        value = train()
        cut(peer)
        sync(peer)
        return value

    return step


def gpt(peer: str, amp: bool = False) -> Step:
    """Training step of a GPT: 4 layers, width 256, 8 heads, 256 tokens, batch 4, AdamW."""
    from gpt import GPT, Text

    torch.manual_seed(0)
    text = Text()
    tokens, targets = (t.to(device_of(peer)) for t in next(text.batches(4, 256)))

    def loss(net):
        with torch.autocast(device_of(peer), dtype=torch.bfloat16, enabled=amp):
            return net(tokens, targets)

    return training(peer, GPT(text.vocab), loss)


def gpt_bf16(peer: str) -> Step:
    """The same under bf16 autocast."""
    return gpt(peer, amp=True)


def gpt_inference(peer: str) -> Step:
    """Forward of the same GPT without gradients, batch 1."""
    from gpt import GPT, Text

    torch.manual_seed(0)
    text = Text()
    net = GPT(text.vocab).to(device_of(peer)).eval()
    tokens = next(text.batches(1, 256))[0].to(device_of(peer))
    with torch.no_grad():
        g = compiled(peer, net)

    def step():
        with torch.no_grad():
            y = g(tokens)
        cut(peer)
        sync(peer)
        return y

    return step


def dispatch(peer: str) -> Step:
    """Dispatch-bound training step: 12 layers of 64x64, batch 16, AdamW."""
    torch.manual_seed(0)
    layers = [m for _ in range(12) for m in (nn.Linear(64, 64), nn.ReLU())]
    x = torch.randn(16, 64).to(device_of(peer))
    return training(peer, nn.Sequential(*layers), lambda net: net(x).square().mean())


def resnet(peer: str) -> Step:
    """Training step of a small ResNet: width 32, 32x32 images, batch 32."""
    from digits_resnet import ResNet

    torch.manual_seed(0)
    x = torch.randn(32, 1, 32, 32).to(device_of(peer))
    y = torch.randint(10, (32,)).to(device_of(peer))
    return training(peer, ResNet(32), lambda net: F.cross_entropy(net(x), y))


WORKLOADS: dict[str, Callable[[str], Step]] = {
    f.__name__: f for f in (tail, pointwise, softmax, gpt, gpt_bf16, gpt_inference, dispatch, resnet)
}


def make_step(make: Callable[[str], Step], peer: str) -> Step | None:
    """The workload for a peer; nothing if the peer does not have it."""
    if peer != "jax":
        return make(peer)
    from jax_peer import WORKLOADS as known

    return known[make.__name__]() if make.__name__ in known else None


def measure(make: Callable[[str], Step], peers: list[str], rounds: int, warmup: int) -> dict[str, list[float]]:
    """Milliseconds of every round, per peer."""
    steps = {p: step for p in peers if (step := make_step(make, p))}
    peers = list(steps)
    for p, step in steps.items():
        for _ in range(warmup):
            step()
            if p.startswith("rsx"):
                import rsx

                rsx.wait_for_compiles()  # a background compile is not what is measured here
    for step in steps.values():
        step()
    times: dict[str, list[float]] = {p: [] for p in peers}
    for r in range(rounds):
        for p in peers if r % 2 else reversed(peers):
            start = time.perf_counter()
            steps[p]()
            times[p].append((time.perf_counter() - start) * 1e3)
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", default="eager", help="comma-separated: eager, inductor, jax")
    parser.add_argument("--ours", default="rsx", help="comma-separated: rsx, rsx.jit, rsx.compile")
    parser.add_argument("--workloads", default=",".join(WORKLOADS))
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--warmup", type=int, default=4)
    parser.add_argument("--json", type=pathlib.Path)
    args = parser.parse_args()
    peers, ours = args.peers.split(","), args.ours.split(",")
    pairs = [(o, p) for o in ours for p in peers]
    print("| workload | " + " | ".join(f"{p}, ms" for p in peers + ours) + " | " + " | ".join(f"{o} / {p}" for o, p in pairs) + " |")
    print("|---" * (1 + len(peers) + len(ours) + len(pairs)) + "|")
    results = {}
    for name in args.workloads.split(","):
        times = measure(WORKLOADS[name], peers + ours, args.rounds, args.warmup)
        results[name] = times
        medians = [f"{statistics.median(times[p]):.2f}" if p in times else "" for p in peers + ours]
        ratio = lambda o, p: f"{statistics.median(a / b for a, b in zip(times[o], times[p])):.2f}" if p in times else ""
        print(f"| {name} | " + " | ".join(medians + [ratio(o, p) for o, p in pairs]) + " |", flush=True)
    if args.json:
        args.json.write_text(json.dumps(results))


if __name__ == "__main__":
    main()
