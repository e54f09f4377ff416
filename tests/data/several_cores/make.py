"""A training step over eight cores as JAX writes it, and what libtpu says of it when JAX asks.

    pip install jax==0.10.2
    TPU_LIBRARY_PATH=/path/of/libtpu.so python make.py

Writes NAME.hlo.txt, the module before optimization, and `jax.json`, the figures of one core. The library is the version that
bf16scope compiles with.
"""

import json
import os
import pathlib

HERE = pathlib.Path(__file__).parent
os.environ.update(JAX_PLATFORMS="cpu", TPU_SKIP_MDS_QUERY="1", ALLOW_MULTIPLE_LIBTPU_LOAD="1", TPU_STDERR_LOG_LEVEL="3")
os.environ.update(TPU_ACCELERATOR_TYPE="v2-8", TPU_WORKER_HOSTNAMES="localhost", TPU_MIN_LOG_LEVEL="3")

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import topologies
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

BATCH = 4096


def loss(params, x, y):
    for w in params:
        x = jnp.tanh(x @ w)
    return jnp.mean((x - y).astype(jnp.float32) ** 2)


def step(params, x, y):
    value, grads = jax.value_and_grad(loss)(params, x, y)
    return [w - (0.1 * g).astype(w.dtype) for w, g in zip(params, grads)], value


def main():
    devices = topologies.get_topology_desc("v3:2x2", platform="tpu").devices
    figures = {}
    for name, dtype, n in (("f32", jnp.float32, 8), ("bf16", jnp.bfloat16, 8), ("f32_one", jnp.float32, 1)):
        mesh = Mesh(np.array(devices[:n]), ("data",))
        def array(dims, *axes):
            return jax.ShapeDtypeStruct(dims, dtype, sharding=NamedSharding(mesh, P(*axes)))
        params = [array((256, 512)), array((512, 256))]
        lowered = jax.jit(step, donate_argnums=0).lower(params, array((BATCH, 256), "data"), array((BATCH, 256), "data"))
        (HERE / f"{name}.hlo.txt").write_text(lowered.as_text("hlo"))
        compiled = lowered.compile(compiler_options={"xla_allow_excess_precision": False})
        memory, cost = compiled.memory_analysis(), compiled.cost_analysis()
        figures[name] = {
            "arguments": memory.argument_size_in_bytes,
            "outputs": memory.output_size_in_bytes,
            "aliased": memory.alias_size_in_bytes,
            "temporaries": memory.temp_size_in_bytes,
            "code": memory.generated_code_size_in_bytes,
            "flops": cost["flops"],
            "bytes_accessed": cost["bytes accessed"],
            "seconds": cost["optimal_seconds"],
        }
    (HERE / "jax.json").write_text(json.dumps(figures, indent=1) + "\n")


main()
