"""The workloads of `workloads.py` in JAX: pure functions under `jax.jit`, parameters donated where they are updated.

Sizes, element types and what is computed equal the PyTorch versions'; initial values do not matter for times.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp

jax.config.update("jax_platforms", "cpu")

Step = Callable[[], object]


def normal(*shape: int, dtype=jnp.float32, scale: float = 1.0) -> jax.Array:
    key = jax.random.key(sum(shape))
    return (jax.random.normal(key, shape) * scale).astype(dtype)


def call(f: Callable, *args) -> Step:
    g = jax.jit(f)
    return lambda: jax.block_until_ready(g(*args))


def norm(x, w, b):
    x32 = x.astype(jnp.float32)
    d = x32 - x32.mean(-1, keepdims=True)
    y = d * jax.lax.rsqrt((d * d).mean(-1, keepdims=True) + 1e-5)
    return (y * w + b).astype(x.dtype)


def nll(logits, y):
    p = jax.nn.log_softmax(logits.astype(jnp.float32))
    return -jnp.take_along_axis(p, y[:, None], -1).mean()


def adamw_update(params, grads, m, v, t, lr=1e-3, b1=0.9, b2=0.999, eps=1e-8, wd=0.01):
    def one(p, g, m, v):
        m = b1 * m + (1 - b1) * g
        v = b2 * v + (1 - b2) * g * g
        p = p * (1 - lr * wd) - lr / (1 - b1**t) * m / (jnp.sqrt(v) / jnp.sqrt(1 - b2**t) + eps)
        return p, m, v

    out = jax.tree.map(one, params, grads, m, v)
    return tuple(jax.tree.map(lambda _, o, i=i: o[i], params, out) for i in range(3))


def trained(loss: Callable, params, times: int = 1) -> Step:
    """So many training steps with AdamW, then their results are there; all state is donated."""

    def step(params, m, v, t):
        value, grads = jax.value_and_grad(loss)(params)
        params, m, v = adamw_update(params, grads, m, v, t)
        return params, m, v, t + 1, value

    g = jax.jit(step, donate_argnums=(0, 1, 2, 3))
    zeros = jax.tree.map(jnp.zeros_like, params)
    state = [params, zeros, jax.tree.map(jnp.zeros_like, params), jnp.float32(1)]

    def run():
        for _ in range(times):
            *state[:], value = g(*state)
        jax.block_until_ready((state, value))
        return value

    return run


def tail() -> Step:
    w, b = jnp.ones(2048), jnp.zeros(2048)
    return call(lambda x, c: norm(jax.nn.gelu(x + c), w, b), normal(4096, 2048), normal(2048))


def pointwise() -> Step:
    def f(x):
        y = jax.nn.sigmoid(x) * 2 + 1
        y = jnp.tanh(y) - x
        return jnp.sqrt(y * y + 0.5) * x / 3

    return call(f, normal(8 << 20))


def softmax() -> Step:
    return call(lambda x: jax.nn.softmax(x), normal(4096, 4096))


def layer_norm() -> Step:
    dy = normal(8192, 1024)
    f = jax.grad(lambda x, w, b: (norm(x, w, b) * dy).sum(), argnums=(0, 1, 2))
    return call(f, normal(8192, 1024), jnp.ones(1024), jnp.zeros(1024))


def cross_entropy() -> Step:
    y = jnp.arange(4096)
    return call(jax.grad(lambda x: nll(x, y)), normal(4096, 4096))


def adamw() -> Step:
    params = [normal(1024, 1024) for _ in range(16)]
    grads = [normal(1024, 1024) for _ in range(16)]
    g = jax.jit(lambda p, g, m, v, t: (*adamw_update(p, g, m, v, t), t + 1), donate_argnums=(0, 2, 3, 4))
    zeros = [jnp.zeros_like(p) for p in params]
    state = [params, zeros, [jnp.zeros_like(p) for p in params], jnp.float32(1)]

    def run():
        state[:] = g(state[0], grads, *state[1:])
        jax.block_until_ready(state)

    return run


def mlp(dtype=jnp.float32) -> Step:
    u, d = normal(1024, 1024, dtype=dtype), normal(1024, 1024, dtype=dtype)
    b = jnp.zeros(1024, dtype)

    def f(x):
        return x + jax.nn.gelu(norm(x, jnp.ones(1024), jnp.zeros(1024)) @ u.T + b) @ d.T + b

    return call(f, normal(1024, 1024, dtype=dtype))


def mlp_bf16() -> Step:
    return mlp(jnp.bfloat16)


def decode() -> Step:
    w = normal(4096, 4096, dtype=jnp.bfloat16)
    return call(lambda x, w: x @ w.T, normal(1, 4096, dtype=jnp.bfloat16), w)


def dispatch(times: int = 1) -> Step:
    params = [(normal(64, 64, scale=0.1), jnp.zeros(64)) for _ in range(12)]
    x = normal(16, 64)

    def loss(params):
        h = x
        for w, b in params:
            h = jax.nn.relu(h @ w.T + b)
        return (h * h).mean()

    return trained(loss, params, times)


def dispatch_loop() -> Step:
    return dispatch(times=10)


# The GPT of examples/gpt.py.


def gpt_params(vocab: int, time: int = 256, dim: int = 256, layers: int = 4) -> dict:
    lin = lambda i, o: (normal(o, i, scale=0.02), jnp.zeros(o))  # noqa: E731
    ln = lambda: (jnp.ones(dim), jnp.zeros(dim))  # noqa: E731
    block = lambda: dict(  # noqa: E731
        n1=ln(), n2=ln(), qkv=lin(dim, 3 * dim), proj=lin(dim, dim), up=lin(dim, 4 * dim), down=lin(4 * dim, dim)
    )
    return dict(
        token=normal(vocab, dim, scale=0.02), position=normal(time, dim, scale=0.02),
        blocks=[block() for _ in range(layers)], norm=ln(), head=normal(vocab, dim, scale=0.02),
    )  # fmt: skip


def gpt_logits(p: dict, tokens, dtype=jnp.float32, heads: int = 8):
    def linear(x, wb):
        return x.astype(dtype) @ wb[0].astype(dtype).T + wb[1].astype(dtype)

    x = p["token"][tokens] + p["position"][: tokens.shape[1]]
    b, t, d = x.shape
    mask = jnp.tril(jnp.ones((t, t), bool))
    for k in p["blocks"]:
        q, key, v = (
            y.reshape(b, t, heads, d // heads).transpose(0, 2, 1, 3)
            for y in jnp.split(linear(norm(x, *k["n1"]), k["qkv"]), 3, -1)
        )
        s = (q @ key.swapaxes(-1, -2)).astype(jnp.float32) / (d // heads) ** 0.5
        a = jax.nn.softmax(jnp.where(mask, s, -jnp.inf)).astype(dtype)
        x = x + linear((a @ v).transpose(0, 2, 1, 3).reshape(b, t, d), k["proj"])
        x = x + linear(jax.nn.gelu(linear(norm(x, *k["n2"]), k["up"]), approximate=False), k["down"])
    return norm(x, *p["norm"]).astype(dtype) @ p["head"].astype(dtype).T


def vocabulary() -> int:
    from gpt import Text

    return Text().vocab


def gpt(dtype=jnp.float32) -> Step:
    vocab = vocabulary()
    tokens = jax.random.randint(jax.random.key(0), (4, 256), 0, vocab)

    def loss(p):
        return nll(gpt_logits(p, tokens, dtype).reshape(-1, vocab), tokens.reshape(-1))

    return trained(loss, gpt_params(vocab))


def gpt_bf16() -> Step:
    return gpt(jnp.bfloat16)


def gpt_inference() -> Step:
    vocab = vocabulary()
    tokens = jax.random.randint(jax.random.key(0), (1, 256), 0, vocab)
    return call(lambda p: gpt_logits(p, tokens), gpt_params(vocab))


WORKLOADS: dict[str, Callable[[], Step]] = {
    f.__name__: f
    for f in (
        tail, pointwise, softmax, layer_norm, cross_entropy, adamw, mlp, mlp_bf16, gpt, gpt_bf16, gpt_inference, decode,
        dispatch, dispatch_loop,
    )
}  # fmt: skip
"""ResNet has no JAX version: written by hand it would say more about its author than about JAX."""
