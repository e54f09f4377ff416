"""Writes symbolic.mlir, a training step whose batch has a symbolic size, and the same with sizes (jax 0.10.2)."""

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
    with open(name, "w") as file:
        file.write(export.export(jax.jit(step), platforms=["cpu"])(p, x, y).mlir_module())


write("symbolic.mlir", export.symbolic_shape("b")[0])
write("symbolic_3.mlir", 3)
write("symbolic_32.mlir", 32)
