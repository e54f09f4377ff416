#!/usr/bin/env python3
"""Writes group_norms.hlo: two convolutions with padding, each with a group norm that merges rows and columns, and the gradients
by weights and scales, as JAX exports them for a TPU.

    BF16SCOPE_VENV=/path/of/venv tests/data/norms/make.py
"""

import os
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent.parent.parent / "benches/tpu"), str(HERE.parent / "corpus")]

import in_venv


def main():
    in_venv.enter(without=["libtpu"])
    os.environ["JAX_PLATFORMS"] = "cpu"
    import jax
    import jax.numpy as jnp
    from export import text_of

    def group_norm(x, scale):
        groups = x.reshape(x.shape[0], -1, 8, x.shape[-1] // 8)
        off = groups - groups.mean((1, 3), keepdims=True)
        off = off * jax.lax.rsqrt(groups.var((1, 3), keepdims=True) + 1e-5)
        return off.reshape(x.shape) * scale

    def convolution(x, w, stride):
        return jax.lax.conv_general_dilated(x, w, (stride, stride), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))

    def loss(params, x):
        first, first_scale, second, second_scale, last = params
        x = jax.nn.relu(group_norm(convolution(x, first, 1), first_scale))
        x = jax.nn.relu(group_norm(convolution(x, second, 2), second_scale))
        return jnp.square(x.reshape(x.shape[0], -1, x.shape[-1]) @ last).mean()

    array = lambda *dims: jax.ShapeDtypeStruct(dims, jnp.float32)
    params = (array(3, 3, 64, 128), array(128), array(3, 3, 128, 256), array(256), array(256, 256))
    traced = jax.jit(jax.value_and_grad(loss, argnums=(0, 1))).trace(params, array(16, 16, 16, 64))
    (HERE / "group_norms.hlo").write_text(text_of(traced.lower(lowering_platforms=("tpu",))))


if __name__ == "__main__":
    main()
