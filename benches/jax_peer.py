"""The workloads of compare.py in JAX, where they are short to say."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

jax.config.update("jax_platforms", "cpu")


def tail() -> Callable[[], object]:
    rng = np.random.default_rng(0)
    x, bias = jnp.asarray(rng.normal(size=(4096, 2048)), jnp.float32), jnp.asarray(rng.normal(size=2048), jnp.float32)
    scale, shift = jnp.ones(2048), jnp.zeros(2048)

    @jax.jit
    def f(x, bias, scale, shift):
        y = jax.nn.gelu(x + bias, approximate=True)
        centred = y - y.mean(-1, keepdims=True)
        return centred * jax.lax.rsqrt((centred**2).mean(-1, keepdims=True) + 1e-5) * scale + shift

    return lambda: f(x, bias, scale, shift).block_until_ready()


def pointwise() -> Callable[[], object]:
    x = jnp.asarray(np.random.default_rng(0).random(8 << 20), jnp.float32)

    @jax.jit
    def f(x):
        y = jax.nn.sigmoid(x) * 2 + 1
        y = jnp.tanh(y) - x
        return jnp.sqrt(y * y + 0.5) * x / 3

    return lambda: f(x).block_until_ready()


def softmax() -> Callable[[], object]:
    x = jnp.asarray(np.random.default_rng(0).normal(size=(4096, 4096)), jnp.float32)
    f = jax.jit(lambda x: jax.nn.softmax(x, -1))
    return lambda: f(x).block_until_ready()


def dispatch() -> Callable[[], object]:
    rng = np.random.default_rng(0)
    params = [(jnp.asarray(rng.normal(size=(64, 64)) / 8, jnp.float32), jnp.zeros(64)) for _ in range(12)]
    x = jnp.asarray(rng.normal(size=(16, 64)), jnp.float32)
    zeros = jax.tree.map(jnp.zeros_like, params)
    state = [params, zeros, jax.tree.map(jnp.copy, zeros), jnp.zeros((), jnp.float32)]

    def loss(params, x):
        for w, b in params:
            x = jax.nn.relu(x @ w.T + b)
        return (x * x).mean()

    def step(params, m, v, t, x, rate=1e-3, b1=0.9, b2=0.999, eps=1e-8, decay=1e-2):
        value, grads = jax.value_and_grad(loss)(params, x)
        t = t + 1
        m = jax.tree.map(lambda m, g: b1 * m + (1 - b1) * g, m, grads)
        v = jax.tree.map(lambda v, g: b2 * v + (1 - b2) * g * g, v, grads)

        def update(p, m, v):
            return p * (1 - rate * decay) - rate * (m / (1 - b1**t)) / (jnp.sqrt(v / (1 - b2**t)) + eps)

        return jax.tree.map(update, params, m, v), m, v, t, value

    compiled = jax.jit(step, donate_argnums=(0, 1, 2, 3))

    def run():
        *state[:], value = compiled(*state, x)
        jax.block_until_ready((state, value))

    return run


WORKLOADS = {f.__name__: f for f in (tail, pointwise, softmax, dispatch)}
