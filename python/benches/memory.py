"""What a training step needs in f32, lowered whole, and with its loss lowered: temporaries on a CPU and on a TPU, and what
lowering takes beside JAX's own tracing.

    python python/benches/memory.py [--target tpu-v2] [NETWORK=BATCH …]

Networks are those of benches/tpu/networks.py. Nothing is run: programs are compiled for shapes.
"""

import argparse
import logging
import re
import sys
import time
from pathlib import Path

import jax
import jax.numpy as jnp

import bf16scope.jax

sys.path.insert(0, str(Path(__file__).parents[2] / "benches" / "tpu"))
import networks  # noqa: E402

NETWORKS = {
    "resnet50": 64,
    "bert_base": 16,
    "gpt": 16,
    "vit": 64,
    "convnext": 64,
    "gru": 64,
    "graph": 8,
    "statespace": 32,
    "experts": 32,
}


class Seconds(logging.Handler):
    """The seconds that lowering says it took, added up."""

    def __init__(self):
        super().__init__()
        self.lowering = 0.0

    def emit(self, record):
        if found := re.search(r"lowered in ([0-9.]+) s", record.getMessage()):
            self.lowering += float(found[1])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--target", default="tpu-v2", help="`none` leaves the TPU out")
    parser.add_argument("networks", nargs="*", default=[f"{name}={batch}" for name, batch in NETWORKS.items()])
    options = parser.parse_args()
    seconds = Seconds()
    logging.getLogger("bf16scope").addHandler(seconds)
    logging.getLogger("bf16scope").setLevel(logging.INFO)
    print("| network, batch | CPU f32, MiB | step ÷ f32 | loss ÷ step | TPU f32, MiB | step ÷ f32 | loss ÷ step | JAX's tracing, s | lowering, s |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    for given in options.networks:
        name, batch = given.split("=")
        step, arguments = networks.step(name, jnp.float32, int(batch))
        of_loss, _ = networks.step(name, jnp.float32, int(batch), of_loss=bf16scope.jax.lower)
        args = jax.eval_shape(arguments, 0)
        forms = [step, bf16scope.jax.lower(step), of_loss]
        jitted = [jax.jit(form, donate_argnums=0) for form in forms]
        began = time.perf_counter()
        jitted[0].lower(*args)
        tracing, seconds.lowering = time.perf_counter() - began, 0.0
        lowered = jitted[1].lower(*args)
        lowering = seconds.lowering
        on_cpu = [one.compile().memory_analysis().temp_size_in_bytes for one in (jitted[0].lower(*args), lowered, jitted[2].lower(*args))]
        columns = [on_cpu]
        if options.target != "none":
            answers = [bf16scope.jax.compile_for(form, *args, target=options.target) for form in forms]
            columns.append([answer.reports[0]["hbm"]["temporaries"] for answer in answers])
        cells = [f"{f32 / 2**20:.1f} | {step / f32:.3f} | {loss / step:.3f}" for f32, step, loss in columns]
        print(f"| {name}, {batch} | {' | '.join(cells)} | {tracing:.2f} | {lowering:.2f} |", flush=True)


if __name__ == "__main__":
    main()
