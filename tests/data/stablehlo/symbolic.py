"""Writes a training step whose batch has a symbolic size, as text and in two serialized forms, and as text with sizes
(jax 0.10.2; `serialize` needs flatbuffers). With
JAX_HLO_SOURCE_FILE_CANONICALIZATION_REGEX='.*/' in the environment locations name this file alone."""

import jax
import jax.numpy as jnp
from jax import export

F32 = jnp.float32


def loss(p, x, y):
    logits = jax.nn.log_softmax(jax.nn.relu(x @ p["w1"] + p["b1"]) @ p["w2"])
    return -jnp.mean(logits[jnp.arange(x.shape[0]), y])


def step(p, x, y):
    value, gradients = jax.value_and_grad(loss)(p, x, y)
    return value, jax.tree.map(lambda a, b: a - 0.1 * b, p, gradients)


def write(name, b):
    weights = {"w1": (8, 16), "b1": (16,), "w2": (16, 4)}
    p = {name: jax.ShapeDtypeStruct(shape, F32) for name, shape in weights.items()}
    x, y = jax.ShapeDtypeStruct((b, 8), F32), jax.ShapeDtypeStruct((b,), jnp.int32)
    exported = export.export(jax.jit(step), platforms=["cpu"])(p, x, y)
    with open(name, "w") as file:
        file.write(exported.mlir_module())
    return exported


exported = write("symbolic.mlir", export.symbolic_shape("b")[0])
with open("symbolic.mlirbc", "wb") as file:
    file.write(exported.mlir_module_serialized)
with open("symbolic.jax", "wb") as file:
    file.write(exported.serialize())
write("symbolic_3.mlir", 3)
write("symbolic_32.mlir", 32)
