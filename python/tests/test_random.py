"""Random programs: what `lower` gives has the dtypes and shapes of what went in, and is finite where that is. How far
it may be from it is not asked: where a program sorts or compares, a rounding may change its way.

BF16SCOPE_RANDOM says how many programs (default 20).
"""

import os
import random

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bf16scope.jax

N = int(os.environ.get("BF16SCOPE_RANDOM", "20"))
SIZE = 4

UNARY = [jnp.tanh, jnp.sin, jax.nn.relu, jax.nn.sigmoid, jnp.abs, lambda x: x * 0.5, lambda x: -x, jnp.cos]
BINARY = [jnp.add, jnp.subtract, jnp.multiply, jnp.maximum, jnp.matmul, jnp.matmul, lambda a, b: jnp.where(a > b, a, b)]
MOVES = [
    lambda x: x.T,
    lambda x: x[::-1],
    lambda x: jnp.concatenate([x[2:], x[:2]]),
    lambda x: jnp.take(x, jnp.array([3, 1, 0, 0]), axis=0),
    lambda x: jnp.pad(x[1:, 1:], ((0, 1), (1, 0))),
    lambda x: jax.lax.dynamic_update_slice(x, x[:1] * 2, (1, 0)),
    lambda x: x.at[jnp.array([0, 2])].add(x[:2]),
    lambda x: jnp.broadcast_to(x.mean(0), x.shape),
    lambda x: x - x.max(-1, keepdims=True),
    lambda x: jax.nn.softmax(x),
    lambda x: jnp.sort(x, -1),
    lambda x: jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (2, 2), (1, 1), "SAME"),
]


def scaled(x):
    """As large as one, so that nothing overflows."""
    return x / jnp.maximum(1.0, jnp.max(jnp.abs(x)))


def program(rng, depth=0):
    """A function of two square matrices, of 3 to 30 operations."""
    steps = []
    for _ in range(rng.randint(3, 10 if depth == 0 else 4)):
        kind = rng.random()
        if kind < 0.3:
            steps.append(("unary", rng.choice(UNARY), rng.randrange(1 << 20)))
        elif kind < 0.6:
            steps.append(("binary", rng.choice(BINARY), rng.randrange(1 << 20)))
        elif kind < 0.85 or depth == 2:
            steps.append(("unary", rng.choice(MOVES), rng.randrange(1 << 20)))
        else:
            inner = program(rng, depth + 1)
            steps.append((rng.choice(["scan", "cond", "remat", "while", "jit"]), inner, rng.randrange(1 << 20)))

    def run(a, b):
        values = [a, b]
        for kind, f, seed in steps:
            pick = random.Random(seed)
            x, y = pick.choice(values[-4:]), pick.choice(values[-4:])
            if kind == "unary":
                out = f(x)
            elif kind == "binary":
                out = f(x, y)
            elif kind == "scan":
                out = jax.lax.scan(lambda c, _: (scaled(f(c, y)), None), x, None, length=2)[0]
            elif kind == "cond":
                out = jax.lax.cond(jnp.array(seed % 2 == 0), f, lambda a, b: a + b, x, y)
            elif kind == "while":
                out = jax.lax.while_loop(lambda it: it[0] < 2, lambda it: (it[0] + 1, scaled(f(it[1], y))), (0, x))[1]
            elif kind == "remat":
                out = jax.checkpoint(f)(x, y)
            else:
                out = jax.jit(f)(x, y)
            values.append(scaled(out))
        return values[-1] + values[-2]

    return run


@pytest.mark.parametrize("seed", range(N))
def test_random(seed):
    rng = random.Random(seed)
    f = program(rng)
    differentiates = rng.random() < 0.5 and "while" not in repr(f)
    values = np.random.default_rng(seed)
    a, b = (jnp.asarray(values.standard_normal((SIZE, SIZE)), jnp.float32) for _ in range(2))
    low = bf16scope.jax.lower(f)
    exact, ours = jax.jit(f)(a, b), jax.jit(low)(a, b)
    assert exact.dtype == ours.dtype and exact.shape == ours.shape
    assert bool(jnp.all(jnp.isfinite(exact))) == bool(jnp.all(jnp.isfinite(ours)))
    if differentiates:
        total = lambda f: lambda a, b: jnp.sum(f(a, b))
        try:
            gradient = jax.grad(total(f), argnums=(0, 1))(a, b)
        except ValueError as error:  # a while_loop has no reverse mode
            assert "while_loop" in str(error) or "Reverse-mode" in str(error)
            return
        of_lowered = jax.grad(total(low), argnums=(0, 1))(a, b)
        for exact, ours in zip(gradient, of_lowered):
            assert exact.dtype == ours.dtype and exact.shape == ours.shape
            assert bool(jnp.all(jnp.isfinite(exact))) == bool(jnp.all(jnp.isfinite(ours)))
