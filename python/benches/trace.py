"""Processor time until XLA has the program of 50 layers and their gradients: in f32, lowered whole, and with the loss lowered. Of
the rounds it prints the medians, and the share of f32's.

    python python/benches/trace.py [ROUNDS]
"""

import os
import statistics
import sys
import time

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import jax.numpy as jnp

import bf16scope.jax
from bf16scope import Module
from bf16scope import _jax_internals as internals

LAYERS, WIDTH = 50, 64
in_rust = [0.0]


def timed(method):
    def call(*args, **kwargs):
        began = time.process_time()
        try:
            return method(*args, **kwargs)
        finally:
            in_rust[0] += time.process_time() - began

    return call


for name in ("read", "lower", "stablehlo"):
    setattr(Module, name, timed(getattr(Module, name)))
# With MLIR's printing of the text that is read.
internals._read = timed(internals._read)

matrix = jnp.ones((WIDTH, WIDTH))
params = [{"w": matrix, "b": matrix[0], "g": matrix[0], "v": matrix} for _ in range(LAYERS)]
x = jnp.ones((8, WIDTH))


def loss_of(params, x):
    for layer in params:
        h = x - x.mean(-1, keepdims=True)
        h = h * jax.lax.rsqrt((h**2).mean(-1, keepdims=True) + 1e-6) * layer["g"]
        x = x + jax.nn.gelu(h @ layer["w"] + layer["b"]) @ layer["v"]
    return jnp.mean(x**2)


def step(params, x, loss_of=loss_of):
    loss, gradients = jax.value_and_grad(loss_of)(params, x)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, gradients), loss


# Functions of each round, so that nothing is cached.
FORMS = {
    "f32": lambda: lambda params, x: step(params, x),
    "`lower(step)`": lambda: bf16scope.jax.lower(lambda params, x: step(params, x)),
    "`grad(lower(loss))`": lambda: lambda params, x: step(params, x, bf16scope.jax.lower(lambda *args: loss_of(*args))),
}



def measured(form, params):
    """Seconds of tracing, of lowering, and of these in Rust."""
    jax.clear_caches()
    in_rust[0], began = 0.0, time.process_time()
    traced = jax.jit(form()).trace(params, x)
    between = time.process_time()
    traced.lower()
    return between - began, time.process_time() - between, in_rust[0]


# JAX imports some of itself when a program is first made.
for form in FORMS.values():
    measured(form, params[:1])
# In turns, as a machine may have other work beside.
rounds = {name: [] for name in FORMS}
for _ in range(int(sys.argv[1]) if sys.argv[1:] else 5):
    for name, form in FORMS.items():
        rounds[name].append(measured(form, params))
totals = {name: statistics.median(tracing + lowering for tracing, lowering, _ in seconds) for name, seconds in rounds.items()}
for name, seconds in rounds.items():
    tracing, lowering, rust = map(statistics.median, zip(*seconds))
    print(f"| {name} | {tracing:.2f} | {lowering:.2f} | {rust:.2f} | {totals[name] / totals['f32']:.2f} |")
