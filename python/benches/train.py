"""Nine kinds of networks, trained 200 steps on real data in f32, in bf16 as one writes it by hand, and lowered.

    python python/benches/train.py [--steps 200] [--only NAME]

For each: the mean loss of the last 20 steps over three seeds of noise and of batches, the accuracy on what was held back,
and what a call costs: the jitted lowered step beside the program that it was compiled to, called directly.
"""

import argparse
import statistics
import time

import jax
import jax.numpy as jnp
import optax

import bf16scope.jax
from kinds import KINDS


def step_of(kind, optimizer):
    def step(params, state, key, batch):
        loss, gradients = kind.gradients(params, key, batch)
        updates, state = optimizer.update(gradients, state, params)
        return optax.apply_updates(params, updates), state, loss

    return step


def train(kind, step, n_steps, seed):
    optimizer = optax.adam(2e-3)
    params, state = kind.params, optimizer.init(kind.params)
    losses = []
    for number in range(n_steps):
        key = jax.random.fold_in(jax.random.key(seed), number)
        params, state, loss = step(params, state, key, kind.batch(number + seed * n_steps))
        losses.append(float(loss))
    accuracy = float(jax.jit(kind.accuracy)(params)) if kind.accuracy else None
    return statistics.fmean(losses[-20:]), accuracy


def seconds(call, args, n=200):
    """The median of the fastest half of calls."""
    jax.block_until_ready(call(*args))
    taken = []
    for _ in range(n):
        began = time.perf_counter()
        jax.block_until_ready(call(*args))
        taken.append(time.perf_counter() - began)
    return statistics.median(sorted(taken)[: n // 2])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    print("| kind | loss f32 | by hand | lowered | accuracy f32 | by hand | lowered | call ÷ its program |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for name, make in KINDS.items():
        if options.only not in name:
            continue
        optimizer = optax.adam(2e-3)
        cells = {}
        for form, dtype in [("f32", jnp.float32), ("by hand", jnp.bfloat16), ("lowered", jnp.float32)]:
            kind = make(dtype)
            if kind is None:
                cells[form] = ("–", "–")
                continue
            step = step_of(kind, optimizer)
            # Every rounding is performed; otherwise XLA computes most of it in f32 on a CPU.
            step = jax.jit(
                bf16scope.jax.lower(step) if form == "lowered" else step,
                compiler_options={"xla_allow_excess_precision": False},
            )
            runs = [train(kind, step, options.steps, seed) for seed in range(options.seeds)]
            accuracies = [accuracy for _, accuracy in runs if accuracy is not None]
            accuracy = f"{statistics.fmean(accuracies):.1%}" if accuracies else "–"
            cells[form] = (f"{statistics.fmean(loss for loss, _ in runs):.4g}", accuracy)
        args = (kind.params, optimizer.init(kind.params), jax.random.key(0), kind.batch(0))
        args = jax.device_put(args)
        program = step.lower(*args).compile()
        ratio = seconds(step, args) / seconds(program, args)
        columns = [cells[form][0] for form in cells] + [cells[form][1] for form in cells]
        print(f"| {name} | {' | '.join(columns)} | {ratio:.3f} |", flush=True)


if __name__ == "__main__":
    main()
