"""Every kind of operation, lowered for each platform, most of which this machine does not have: an operation that bf16scope does
not model comes out as JAX makes it there.

BF16SCOPE_TPU_TARGET says for which TPU those that are operations of a TPU are compiled as well, `tpu-v5e`; by default for none.
"""

import os
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from beside import ROUNDING, far, for_a_tpu
from jax.ad_checkpoint import checkpoint_name

import bf16scope.jax

TARGET = os.environ.get("BF16SCOPE_TPU_TARGET")
IS_OLD = jax.__version_info__ < (0, 5)


def draw(seed, *dims):
    return jnp.asarray(np.random.default_rng(seed).standard_normal(dims), jnp.float32)


SIZES = jnp.array([100, 100, 56], jnp.int32)
x, w, wide, experts, image = draw(0, 256, 64), draw(1, 64, 64), draw(2, 64, 16384), draw(3, 3, 64, 64), draw(4, 2, 16, 16, 3)


def network(f):
    """An operation between two products."""
    return lambda x: f(jnp.tanh(x @ w)) @ w


def prefetch(dims):
    """A kernel with scalars that are there before it, as that of megablox has."""
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import tpu as pltpu

    def kernel(scalar, a, out):
        out[...] = a[...] * 2

    spec = pl.BlockSpec((256, 64), lambda i, n: (0, 0))
    grid = pltpu.PrefetchScalarGridSpec(num_scalar_prefetch=1, grid=(1,), in_specs=[spec], out_specs=spec)
    return lambda x: pl.pallas_call(kernel, grid_spec=grid, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype))(jnp.ones(dims, jnp.int32), x)


def decomposed(f):
    """What linear algebra makes of a square matrix."""
    return lambda x: f(x[:64].T @ x[:64] + 64 * jnp.eye(64))


CASES = {
    "ragged_dot": network(lambda h: jax.lax.ragged_dot(h, experts, SIZES)),
    "its gradient": jax.grad(lambda x: jnp.sum(network(lambda h: jax.lax.ragged_dot(h, experts, SIZES))(x) ** 2)),
    "ragged_dot in a scan": lambda x: jax.lax.scan(lambda h, _: (jnp.tanh(jax.lax.ragged_dot(h, experts, SIZES)), None), x, None, length=2)[0],
    "approx_max_k": lambda x: jax.lax.approx_max_k(x @ wide, 10),
    "its gradient too": jax.grad(lambda x: jnp.sum(jax.lax.approx_max_k(x @ wide, 10)[0])),
    "top_k": lambda x: jax.lax.top_k(x @ wide, 10)[0],
    "a kernel with a scalar": network(prefetch(())),
    "a kernel with scalars": network(prefetch((3,))),
    "cholesky": decomposed(jnp.linalg.cholesky),
    "eigh": decomposed(lambda a: jnp.linalg.eigh(a)[1]),
    "svd": decomposed(lambda a: jnp.linalg.svd(a)[1]),
    "qr": decomposed(lambda a: jnp.linalg.qr(a)[0]),
    "solve": decomposed(lambda a: jnp.linalg.solve(a, a)),
    "triangular": decomposed(lambda a: jax.scipy.linalg.solve_triangular(a, a)),
    "fft": network(lambda h: jnp.fft.irfft(jnp.fft.rfft(h), n=64)),
    "sort": network(lambda h: jnp.sort(h, -1)),
    "cumsum": network(lambda h: jnp.cumsum(h, -1)),
    "cumlogsumexp": network(lambda h: jax.lax.cumlogsumexp(h, 1)),
    "functions": network(lambda h: jax.lax.erf_inv(jax.lax.erf(h) / 2) + jax.scipy.special.gammaln(h * h + 1) + jax.scipy.special.i0(h)),
    "random numbers": lambda x: (x @ w) * jax.random.normal(jax.random.key(0), (256, 64)),
    "random bits": lambda x: (x @ w) * jax.random.bits(jax.random.key(0, impl="rbg"), (256, 64)).astype(jnp.float32),
    "convolution": lambda x: jax.lax.conv_general_dilated(
        image, draw(5, 3, 3, 3, 8), (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
    ),
    "pooling": jax.grad(lambda x: jnp.sum(jax.lax.reduce_window(x @ w, -jnp.inf, jax.lax.max, (2, 2), (2, 2), "VALID"))),
    "gather and scatter": lambda x: (x @ w)[SIZES].at[SIZES % 3].add(1.0) @ w,
    "while": lambda x: jax.lax.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, jnp.tanh(c[1] @ w)), (0, x))[1],
    "branches": lambda x: jax.lax.switch(jnp.argmax(x[0]) % 2, [lambda x: x @ w, lambda x: jnp.tanh(x)], x) @ w,
    "a narrow product": lambda x: jnp.dot(x, w, preferred_element_type=jnp.bfloat16),
    "attention": lambda x: jax.nn.dot_product_attention(*[(x @ w).reshape(4, 64, 4, 16)] * 3),
}


def carried(text):
    """What XLA knows by its name alone, each as often as it is there."""
    names = re.findall(r"chlo\.ragged_dot|stablehlo\.composite|custom_call @\w+|call_target_name = \"\w+\"", text)
    return sorted(names)


@pytest.mark.parametrize("platform", ["tpu", "cuda", "cpu"])
@pytest.mark.parametrize("name", CASES)
def test_lowered_for_a_platform(name, platform):
    f = CASES[name]
    as_text = lambda f: jax.jit(f).trace(x).lower(lowering_platforms=(platform,)).as_text()
    try:
        exact = as_text(f)
    except Exception as error:  # what JAX cannot do there in f32
        with pytest.raises(type(error)):
            as_text(bf16scope.jax.lower(f))
        return
    ours = as_text(bf16scope.jax.lower(f))
    assert carried(ours) == carried(exact)
    if platform == "cpu" and not name.startswith("a kernel") and name not in ("eigh", "svd"):
        a, b = (jax.tree.leaves(jax.jit(it)(x))[0].astype(jnp.float32) for it in (f, bf16scope.jax.lower(f)))
        assert a.shape == b.shape and bool(jnp.isfinite(a).all()) == bool(jnp.isfinite(b).all())


@pytest.mark.skipif(not hasattr(jax, "memory"), reason="this JAX names no memories")
def test_values_are_moved_between_memories_as_in_f32():
    """To the host and back, inside and by `jax.checkpoint`, which keeps there what the backward pass reads."""
    memory, low = jax.memory.Space, bf16scope.jax.lower
    moved = network(lambda h: jax.device_put(jax.device_put(h, memory.Host), memory.Device))
    offloading = jax.checkpoint_policies.save_and_offload_only_these_names(
        names_which_can_be_saved=[], names_which_can_be_offloaded=["hidden"], offload_src="device", offload_dst="pinned_host"
    )
    kept = jax.checkpoint(lambda x: jnp.tanh(checkpoint_name(x @ w, "hidden")) @ w, policy=offloading)
    loss = lambda x: jnp.mean(kept(x) ** 2)
    places = lambda f: sorted(re.findall(r'_xla_buffer_placement = "(\w+)"', for_a_tpu(f, x)))
    for f, ours in ((moved, low(moved)), (jax.grad(loss), jax.grad(low(loss))), (jax.grad(loss), low(jax.grad(loss)))):
        assert places(ours) == places(f) and len(places(f)) == 2
    assert 0 < far(jax.jit(moved)(x), jax.jit(low(moved))(x)) <= 16 * ROUNDING


@pytest.mark.skipif(not TARGET, reason="BF16SCOPE_TPU_TARGET names no TPU")
@pytest.mark.parametrize("name", ["ragged_dot", "its gradient", "approx_max_k", "a kernel with a scalar", "a kernel with scalars"])
def test_compiled_for_a_tpu(name):
    answer = bf16scope.jax.compile_for(bf16scope.jax.lower(CASES[name]), x, target=TARGET)
    assert answer.reports[0]["cycles"] > 0
