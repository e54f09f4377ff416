"""What tests of JAX compare: a network in f32 and by hand, and how far results are apart."""

import jax
import jax.numpy as jnp
import numpy as np

#: A value rounded to bfloat16 is off by at most half a unit in the last of 8 bits.
ROUNDING = 2.0**-8


def draw(seed, *dims):
    return jnp.asarray(np.random.default_rng(seed).standard_normal(dims), jnp.float32)


def loss(params, x, y):
    """A network of two layers."""
    hidden = jnp.tanh(x @ params["w1"] + params["b1"])
    logits = hidden @ params["w2"]
    return jnp.mean((jax.nn.log_softmax(logits)[jnp.arange(len(y)), y] * -1.0))


def network():
    params = {"w1": draw(1, 16, 32) / 4, "b1": jnp.zeros(32), "w2": draw(2, 32, 10) / 6}
    return params, draw(3, 8, 16), jnp.arange(8) % 10


def by_hand(params, x, y):
    """The same with its products in bfloat16, as one writes it by hand."""
    low = jnp.bfloat16
    hidden = jnp.tanh(x.astype(low) @ params["w1"].astype(low) + params["b1"].astype(low))
    logits = (hidden @ params["w2"].astype(low)).astype(jnp.float32)
    return jnp.mean((jax.nn.log_softmax(logits)[jnp.arange(len(y)), y] * -1.0))


def far(a, b):
    """The rms difference of two trees over the rms of the first."""
    leaves = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    squares = [(np.sum((np.float64(x) - np.float64(y)) ** 2), np.sum(np.float64(x) ** 2)) for x, y in leaves]
    return np.sqrt(sum(d for d, _ in squares) / sum(n for _, n in squares))


def same_types(a, b):
    assert jax.tree.structure(a) == jax.tree.structure(b)
    assert [(x.shape, x.dtype) for x in jax.tree.leaves(a)] == [(x.shape, x.dtype) for x in jax.tree.leaves(b)]


def for_a_tpu(fn, *args):
    """The program as a TPU gets it: on a CPU products that give f32 read widened operands."""
    return jax.jit(fn).trace(*args).lower(lowering_platforms=("tpu",)).as_text()


def has_low_dots(fn, *args):
    """Whether the program's products are of bfloat16."""
    dots = [line for line in for_a_tpu(fn, *args).splitlines() if "dot_general" in line]
    assert dots
    return all("xbf16>" in line for line in dots)


def n_modules(fn, *args):
    """How many lowered modules are called in the program of a function."""
    return jax.jit(fn).lower(*args).as_text().count("call @bf16scope")


def n_low(fn, *args):
    """How many products are of bfloat16."""
    lines = for_a_tpu(fn, *args).splitlines()
    return sum("bf16>" in line.split(" : ")[-1] for line in lines if "dot_general" in line)
