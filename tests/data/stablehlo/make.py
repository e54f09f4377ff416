"""StableHLO as jax 0.10.2 writes it, in every form, and the same programs as HLO protos.

    pip install jax==0.10.2 flatbuffers
    python tests/data/stablehlo/make.py

Each program gives NAME.mlir (text), NAME.generic.mlir (generic form, with locations), NAME.mlirbc (bytecode),
NAME.vhlo.mlirbc (a portable artifact), NAME.jax (jax.export's file) and NAME.hlo.pb (an HloModuleProto). platforms.jax is exported for two.
"""

import io
import os
import pathlib

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"

import jax
import jax.numpy as jnp
import numpy as np
from jax import export, lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

HERE = pathlib.Path(__file__).parent
# The files that locations name, without their folders.
jax.config.update("jax_hlo_source_file_canonicalization_regex", ".*/")


def write(name, jitted, *args):
    lowered = jitted.trace(*args).lower()
    module = lowered.compiler_ir("stablehlo")
    (HERE / f"{name}.mlir").write_text(lowered.as_text())
    generic = module.operation.get_asm(print_generic_op_form=True, enable_debug_info=True)
    (HERE / f"{name}.generic.mlir").write_text(generic)
    bytecode = io.BytesIO()
    module.operation.write_bytecode(bytecode)
    (HERE / f"{name}.mlirbc").write_bytes(bytecode.getvalue())
    exported = export.export(jitted)(*args)
    (HERE / f"{name}.vhlo.mlirbc").write_bytes(exported.mlir_module_serialized)
    (HERE / f"{name}.jax").write_bytes(bytes(exported.serialize()))
    (HERE / f"{name}.hlo.pb").write_bytes(lowered.compiler_ir("hlo").as_serialized_hlo_module_proto())


def mlp(w, b, v, x, y):
    def loss(w, b, v):
        with jax.named_scope("hidden"):
            h = jax.nn.gelu(x @ w + b)
        with jax.named_scope("logits"):
            logits = h @ v
        return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(logits), y[:, None], 1))

    value, grads = jax.value_and_grad(loss, argnums=(0, 1, 2))(w, b, v)
    w, b, v = (p - 0.1 * g for p, g in zip((w, b, v), grads))
    return w, b, v, value


def many(x, k, i):
    """As many ops as fit: convolution, windows, gather, scatter, sort, loops, branches, random bits, chlo."""
    y = lax.conv_general_dilated(x, k, (2, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
    pooled = lax.reduce_window(y, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
    grad = jax.grad(lambda y: lax.reduce_window(y, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID").sum())(y)
    flat = y.reshape(-1, 4)
    taken = flat[i] + flat.at[i].add(1.0)[: i.shape[0]]
    ordered = lax.sort((flat[:, 0], flat[:, 1]), num_keys=1)
    summed = lax.fori_loop(0, 3, lambda n, s: s * 0.5 + n, flat)
    branch = lax.cond(i[0] > 1, lambda z: jnp.sin(z), lambda z: jnp.cos(z), flat)
    key, bits = lax.rng_bit_generator(jnp.array([1, 2], jnp.uint64 if jax.config.x64_enabled else jnp.uint32).repeat(2), (3,))
    special = lax.erf_inv(jnp.clip(flat, -0.9, 0.9)) + lax.digamma(flat + 9.0)
    top = lax.top_k(flat, 2)
    window = lax.dynamic_update_slice(flat, lax.dynamic_slice(flat, (i[0], 0), (2, 4)), (i[1], 0))
    padded = jnp.pad(flat, ((1, 2), (0, 0)))[::-1][::2]
    low = (flat.astype(jnp.bfloat16) @ flat.astype(jnp.bfloat16).T).astype(jnp.float32)
    cumulated = jnp.cumsum(flat, axis=0), jnp.argmax(flat, axis=1)
    return pooled, grad, taken, ordered, summed, branch, key, bits, special, top, window, padded, low, cumulated


def main():
    f32 = lambda *dims: jnp.ones(dims, jnp.float32)
    write("mlp", jax.jit(mlp, donate_argnums=(0, 1, 2)), f32(8, 16), f32(16), f32(16, 4), f32(6, 8), jnp.zeros(6, jnp.int32))
    write("many", jax.jit(many), f32(2, 8, 8, 3), f32(3, 3, 3, 4), jnp.zeros(3, jnp.int32))
    mesh = Mesh(np.array(jax.devices()).reshape(4, 2), ("batch", "model"))
    laid = lambda *axes: NamedSharding(mesh, P(*axes))

    def sharded(x, w):
        y = lax.with_sharding_constraint(jnp.tanh(x @ w), laid("batch", "model"))
        return y.sum(1)

    jitted = jax.jit(sharded, in_shardings=(laid("batch"), laid(None, "model")), out_shardings=laid("batch"))
    write("sharded", jitted, f32(8, 16), f32(16, 4))
    several = export.export(jax.jit(lambda x, y: jnp.tanh(x @ y)), platforms=["cpu", "tpu"])
    (HERE / "platforms.jax").write_bytes(bytes(several(f32(4, 4), f32(4, 4)).serialize()))


if __name__ == "__main__":
    main()
