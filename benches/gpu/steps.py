"""Training steps on one GPU, in f32, in bf16 as one writes it by hand, and lowered: how long a step takes, what memory its program
needs, and what the losses come to.

    python benches/gpu/steps.py [--seconds 550] [--n-steps 20] [NETWORK=BATCH …]

It needs `bf16scope`, `flax`, `optax` and a `jax` for the GPU (`pip install "jax[cuda12]"`); where JAX has none it runs on the CPU, for
which `--small` makes the networks smaller. Networks are those of benches/tpu/networks.py. What is not begun when the seconds are over
is left out, and said.
"""

import argparse
import statistics
import sys
import time
from pathlib import Path

import jax
import jax.numpy as jnp

import bf16scope.jax

sys.path.insert(0, str(Path(__file__).parents[1] / "tpu"))
import networks  # noqa: E402

NETWORKS = {
    "resnet50": 128,
    "bert_base": 64,
    "gpt": 64,
    "vit": 64,
    "convnext": 64,
    "unet": 64,
    "lstm": 256,
    "experts": 64,
    "diffusion": 64,
    "dlrm": 4096,
}


def measured(name, form, batch, n_steps, small):
    """Median milliseconds of a step, MiB of temporaries, the first loss and the last."""
    dtype = jnp.bfloat16 if form == "by hand" else jnp.float32
    step, arguments = networks.step(name, dtype, batch, to_run=small)
    step = bf16scope.jax.lower(step) if form == "lowered" else step
    state, examples = arguments(0)
    compiled = jax.jit(step, donate_argnums=0).lower(state, examples).compile()
    memory = compiled.memory_analysis()
    times, losses = [], []
    for _ in range(n_steps + 2):
        began = time.perf_counter()
        state, loss, *_ = compiled(state, examples)
        losses.append(float(loss))
        times.append(time.perf_counter() - began)
    # The first two steps are warm-up.
    return 1e3 * statistics.median(times[2:]), memory.temp_size_in_bytes / 2**20, losses[0], losses[-1]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=550)
    parser.add_argument("--n-steps", type=int, default=20)
    parser.add_argument("--small", action="store_true", help="smaller networks, as tests run them")
    parser.add_argument("networks", nargs="*", default=[f"{name}={batch}" for name, batch in NETWORKS.items()])
    options = parser.parse_args()
    began, device = time.perf_counter(), jax.devices()[0]
    print(f"{device.device_kind} ({device.platform}), jax {jax.__version__}; {options.n_steps} steps\n")
    print("| network, batch | ms f32 | by hand | lowered | MiB f32 | by hand | lowered | last loss f32 | by hand | lowered |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    left_out = []
    for argument in options.networks:
        name, batch = argument.split("=")
        if time.perf_counter() - began > options.seconds:
            left_out.append(name)
            continue
        forms = [measured(name, form, int(batch), options.n_steps, options.small) for form in ("f32", "by hand", "lowered")]
        times, memory, _, losses = zip(*forms)
        cells = [*(f"{it:.2f}" for it in times), *(f"{it:.0f}" for it in memory), *(f"{it:.4g}" for it in losses)]
        print(f"| {name}, {batch} | {' | '.join(cells)} |", flush=True)
    if left_out:
        print(f"\nThe seconds were over before {', '.join(left_out)}.")


if __name__ == "__main__":
    main()
