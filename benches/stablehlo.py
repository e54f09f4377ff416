#!/usr/bin/env python3
"""A module of 5 MB, to see how long StableHLO takes to be read: BERT with 63 layers, a training step of JAX.

    pip install jax==0.10.2 flax==0.12.8 optax==0.2.8 flatbuffers
    python benches/stablehlo.py FOLDER

It writes big.mlir (text), big.mlirbc (bytecode of the same module), big.jax (jax.export's file) and big.located.mlir
(text with locations), and prints their sizes. docs/FORMATS.md has the times.
"""

import io
import pathlib
import sys
from functools import partial

sys.path.insert(0, str(pathlib.Path(__file__).parent / "tpu"))

import jax
import jax.numpy as jnp
import networks
import optax
from jax import export

LAYERS = 63


def main():
    folder = pathlib.Path(sys.argv[1])
    bert = networks.NETWORKS["bert_base"]
    networks.NETWORKS["bert_deep"] = bert._replace(model=partial(networks.Bert, layers=LAYERS))
    train, arguments = networks.step("bert_deep", jnp.float32, batch=4)
    # Only shapes: the weights would take gigabytes.
    jitted, shapes = jax.jit(train, donate_argnums=0), jax.eval_shape(arguments, 0)
    lowered = jitted.lower(*shapes)
    module = lowered.compiler_ir("stablehlo")
    for state in (optax.ScaleByAdamState, optax.EmptyState):
        export.register_namedtuple_serialization(state, serialized_name=f"optax.{state.__name__}")
    bytecode = io.BytesIO()
    module.operation.write_bytecode(bytecode)
    files = {
        "big.mlir": lowered.as_text().encode(),
        "big.mlirbc": bytecode.getvalue(),
        "big.jax": bytes(export.export(jitted)(*shapes).serialize()),
        "big.located.mlir": lowered.as_text(debug_info=True).encode(),
    }
    for name, content in files.items():
        (folder / name).write_bytes(content)
        print(f"{name}: {len(content)} bytes")


if __name__ == "__main__":
    main()
