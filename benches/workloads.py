"""The workloads of benches/compare.py, once per peer: each function returns a step to be timed.

Steps end when their results are there (the device is synchronised). Peers: `eager`, `inductor` (torch.compile on the CPU), `rsx`,
`rsx.jit` (the whole step under `rsx.jit`) and `rsx.compile` (the model under `torch.compile(backend="rsx")`) run the same PyTorch
code; `jax` has its own in `jax_peer.py`.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn as nn
import torch.nn.functional as F

Step = Callable[[], object]


def device_of(peer: str) -> str:
    return "rsx" if peer.startswith("rsx") else "cpu"


def compiled(peer: str, f: Callable, step: bool = False, grad: bool = False) -> Callable:
    """`f` as the peer compiles it. `step`: it is a whole training step; `grad`: autograd goes through it."""
    if peer == "rsx.jit" and not grad:
        import rsx

        return rsx.jit(f, strict=True)
    if step:
        return f
    if peer == "inductor":
        return torch.compile(f)
    return torch.compile(f, backend="rsx") if peer == "rsx.compile" else f


def timed(peer: str, f: Callable, *args, times: int = 1) -> Step:
    """A step: `f(*args)` so many times, and its results are there."""
    mark = wait = lambda: None
    if peer.startswith("rsx"):
        import rsx

        mark, wait = rsx.mark_step, torch.rsx.synchronize

    def step():
        for _ in range(times):
            y = f(*args)
            mark()
        wait()
        return y

    return step


def inference(peer: str, f: Callable, *args) -> Step:
    """`f(*args)` as the peer compiles it, without gradients."""
    g = compiled(peer, f)

    def forward():
        with torch.no_grad():
            return g(*args)

    return timed(peer, forward)


def tail(peer: str) -> Step:
    """Bias, tanh-gelu, layer norm on 4096x2048 f32."""
    torch.manual_seed(0)
    x, bias = torch.randn(4096, 2048).to(device_of(peer)), torch.randn(2048).to(device_of(peer))
    norm = nn.LayerNorm(2048).to(device_of(peer))

    def f(x, bias):
        return norm(F.gelu(x + bias, approximate="tanh"))

    return inference(peer, f, x, bias)


def pointwise(peer: str) -> Step:
    """Chain of 10 pointwise ops over 8 M f32 elements."""
    x = torch.rand(8 << 20).to(device_of(peer))

    def f(x):
        y = torch.sigmoid(x) * 2 + 1
        y = torch.tanh(y) - x
        return torch.sqrt(y * y + 0.5) * x / 3

    return timed(peer, compiled(peer, f), x)


def softmax(peer: str) -> Step:
    """Softmax over the rows of 4096x4096 f32."""
    x = torch.randn(4096, 4096).to(device_of(peer))
    return timed(peer, compiled(peer, lambda x: torch.softmax(x, -1)), x)


def training(peer: str, net: nn.Module, loss: Callable, times: int = 1, **optimizer) -> Step:
    net = net.to(device_of(peer))
    # A step count on the host cannot be replayed.
    optimizer = {"capturable": True, **optimizer} if peer == "rsx.jit" else optimizer
    opt = torch.optim.AdamW(net.parameters(), lr=1e-3, **optimizer)
    loss = compiled(peer, loss, grad=True)

    def train():
        opt.zero_grad()
        value = loss(net)
        value.backward()
        opt.step()
        return value

    return timed(peer, compiled(peer, train, step=True), times=times)


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
    return inference(peer, net, tokens)


def dispatch(peer: str, times: int = 1) -> Step:
    """Dispatch-bound training step: 12 layers of 64x64, batch 16, AdamW."""
    torch.manual_seed(0)
    layers = [m for _ in range(12) for m in (nn.Linear(64, 64), nn.ReLU())]
    x = torch.randn(16, 64).to(device_of(peer))
    return training(peer, nn.Sequential(*layers), lambda net: net(x).square().mean(), times)


def dispatch_loop(peer: str) -> Step:
    """Ten such steps before the host waits, as in a training loop that prints the loss now and then."""
    return dispatch(peer, times=10)


def resnet(peer: str) -> Step:
    """Training step of a small ResNet: width 32, 32x32 images, batch 32."""
    from digits_resnet import ResNet

    torch.manual_seed(0)
    x = torch.randn(32, 1, 32, 32).to(device_of(peer))
    y = torch.randint(10, (32,)).to(device_of(peer))
    return training(peer, ResNet(32), lambda net: F.cross_entropy(net(x), y))


def layer_norm(peer: str) -> Step:
    """Layer norm, forward and backward, over 8192 rows of 1024 f32."""
    torch.manual_seed(0)
    x = torch.randn(8192, 1024).to(device_of(peer)).requires_grad_()
    dy = torch.randn(8192, 1024).to(device_of(peer))
    norm = nn.LayerNorm(1024).to(device_of(peer))
    return gradients(peer, norm, x, dy, [x, *norm.parameters()])


def cross_entropy(peer: str) -> Step:
    """Cross entropy with its gradient over 4096 rows of 4096 f32 logits."""
    torch.manual_seed(0)
    x = torch.randn(4096, 4096).to(device_of(peer)).requires_grad_()
    y = torch.randint(4096, (4096,)).to(device_of(peer))
    return gradients(peer, lambda x: F.cross_entropy(x, y), x, None, [x])


def gradients(peer: str, f: Callable, x: torch.Tensor, dy: torch.Tensor | None, wanted: list[torch.Tensor]) -> Step:
    g = compiled(peer, f, grad=True)
    return timed(peer, lambda: torch.autograd.grad(g(x), wanted, dy))


def adamw(peer: str) -> Step:
    """AdamW update of 16 M f32 parameters in 16 tensors."""
    torch.manual_seed(0)
    params = [torch.randn(1024, 1024).to(device_of(peer)).requires_grad_() for _ in range(16)]
    for p in params:
        p.grad = torch.randn(1024, 1024).to(device_of(peer))
    # Each peer's own best: eager and inductor have a fused kernel, which rsx has no need of.
    opt = torch.optim.AdamW(params, lr=1e-3, fused=not peer.startswith("rsx"))

    return timed(peer, opt.step)


def mlp(peer: str, dtype: torch.dtype = torch.float32) -> Step:
    """MLP block at 1024: x + W2(gelu(W1(norm(x)) + b1)) + b2, without gradients."""
    torch.manual_seed(0)
    layers = nn.LayerNorm(1024), nn.Linear(1024, 1024), nn.Linear(1024, 1024)
    norm, up, down = (m.to(device_of(peer), dtype) for m in layers)
    x = torch.randn(1024, 1024).to(device_of(peer), dtype)
    return inference(peer, lambda x: x + down(F.gelu(up(norm(x)), approximate="tanh")), x)


def mlp_bf16(peer: str) -> Step:
    """The same in bf16."""
    return mlp(peer, torch.bfloat16)


def decode(peer: str) -> Step:
    """One token's product with a 4096x4096 bf16 matrix: weights from memory are all there is."""
    torch.manual_seed(0)
    w = torch.randn(4096, 4096).to(device_of(peer), torch.bfloat16)
    x = torch.randn(1, 4096).to(device_of(peer), torch.bfloat16)
    return inference(peer, lambda x: F.linear(x, w), x)


WORKLOADS: dict[str, Callable[[str], Step]] = {
    f.__name__: f
    for f in (
        tail, pointwise, softmax, layer_norm, cross_entropy, adamw, mlp, mlp_bf16, gpt, gpt_bf16, gpt_inference, resnet,
        decode, dispatch, dispatch_loop,
    )
}  # fmt: skip
