"""Training steps on TPUs that are not here: memory and cycles of the lowered step, and of a lowered loss's gradient, over those
of the same step with its layers in bfloat16 by hand, as libtpu reports them.

    python benches/jax/score.py tpu-v5e tpu-v6e [--only cnn,gru]

A row is printed as soon as it is measured; `score.md` has the table.
"""

import argparse
import functools
import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import jax.numpy as jnp
import optax
from flax import linen

import bf16scope.jax


class Mlp(linen.Module):
    dtype: jnp.dtype

    @linen.compact
    def __call__(self, x):
        for width in (1024, 1024, 512):
            x = linen.relu(linen.Dense(width, dtype=self.dtype)(x))
        return linen.Dense(128, dtype=self.dtype)(x)


class Cnn(linen.Module):
    dtype: jnp.dtype

    @linen.compact
    def __call__(self, x):
        for width in (64, 128, 256):
            x = linen.Conv(width, (3, 3), dtype=self.dtype)(x)
            x = linen.relu(linen.BatchNorm(use_running_average=False, dtype=self.dtype)(x))
            x = linen.max_pool(x, (2, 2), (2, 2))
        return linen.Dense(128, dtype=self.dtype)(x.mean((1, 2)))


class Transformer(linen.Module):
    dtype: jnp.dtype
    norm: type = linen.LayerNorm
    gated: bool = False
    layers: int = 2

    @linen.compact
    def __call__(self, tokens):
        x = linen.Embed(4096, 512, dtype=self.dtype)(tokens)
        mask = linen.make_causal_mask(tokens)
        for _ in range(self.layers):
            x += linen.MultiHeadDotProductAttention(8, dtype=self.dtype)(self.norm(dtype=self.dtype)(x), mask=mask)
            h = self.norm(dtype=self.dtype)(x)
            wide = linen.Dense(2048, dtype=self.dtype)
            h = linen.silu(wide(h)) * linen.Dense(2048, dtype=self.dtype)(h) if self.gated else linen.gelu(wide(h))
            x += linen.Dense(512, dtype=self.dtype)(h)
        return linen.Dense(4096, dtype=self.dtype)(self.norm(dtype=self.dtype)(x))


class Recurrent(linen.Module):
    dtype: jnp.dtype
    cell: type = linen.GRUCell

    @linen.compact
    def __call__(self, tokens):
        x = linen.Embed(4096, 512, dtype=self.dtype)(tokens)
        for _ in range(2):
            x = linen.RNN(self.cell(512, dtype=self.dtype))(x)
        return linen.Dense(4096, dtype=self.dtype)(x)


class Mixer(linen.Module):
    dtype: jnp.dtype

    @linen.compact
    def __call__(self, x):
        x = linen.Conv(384, (4, 4), (4, 4), dtype=self.dtype)(x)
        x = x.reshape(x.shape[0], -1, 384)
        for _ in range(2):
            y = linen.LayerNorm(dtype=self.dtype)(x).swapaxes(1, 2)
            y = linen.Dense(y.shape[-1], dtype=self.dtype)(linen.gelu(linen.Dense(256, dtype=self.dtype)(y)))
            x += y.swapaxes(1, 2)
            y = linen.gelu(linen.Dense(1536, dtype=self.dtype)(linen.LayerNorm(dtype=self.dtype)(x)))
            x += linen.Dense(384, dtype=self.dtype)(y)
        return linen.Dense(128, dtype=self.dtype)(x.mean(1))


TEXT, IMAGES = jax.ShapeDtypeStruct((32, 256), jnp.int32), jax.ShapeDtypeStruct((256, 32, 32, 3), jnp.float32)
STEPS = {
    "mlp": (Mlp, jax.ShapeDtypeStruct((4096, 784), jnp.float32), optax.sgd(0.1)),
    "cnn": (Cnn, IMAGES, optax.sgd(0.1, momentum=0.9)),
    "mixer": (Mixer, IMAGES, optax.adamw(1e-3)),
    "four-layer transformer": (functools.partial(Transformer, layers=4), TEXT, optax.adam(1e-3)),
    "gated transformer": (functools.partial(Transformer, norm=linen.RMSNorm, gated=True), TEXT, optax.adamw(1e-3)),
    "transformer with lion": (Transformer, TEXT, optax.lion(1e-4)),
    "transformer with adafactor": (Transformer, TEXT, optax.adafactor(1e-3)),
    "gru": (Recurrent, TEXT, optax.adam(1e-3)),
    "lstm": (functools.partial(Recurrent, cell=linen.OptimizedLSTMCell), TEXT, optax.adam(1e-3)),
    "mlp with clipping": (Mlp, jax.ShapeDtypeStruct((8192, 784), jnp.float32), optax.chain(optax.clip_by_global_norm(1.0), optax.adam(1e-3))),
}


def forms(name):
    """The step in bf16 by hand, lowered whole, and with its loss lowered; and its arguments."""
    network, inputs, optimizer = STEPS[name]
    labels = jax.ShapeDtypeStruct(inputs.shape if inputs.dtype == jnp.int32 else inputs.shape[:1], jnp.int32)
    variables = jax.eval_shape(network(jnp.float32).init, jax.random.key(0), inputs)
    params, others = variables["params"], {key: it for key, it in variables.items() if key != "params"}
    state = jax.eval_shape(optimizer.init, params)

    def step(dtype, lower, params, others, state, inputs, labels):
        def loss_of(params, others, inputs, labels):
            logits, changed = network(dtype).apply({"params": params, **others}, inputs, mutable=list(others))
            return optax.softmax_cross_entropy_with_integer_labels(logits.astype(jnp.float32), labels).mean(), changed

        (loss, others), gradients = jax.value_and_grad(lower(loss_of), has_aux=True)(params, others, inputs, labels)
        updates, state = optimizer.update(gradients, state, params)
        return optax.apply_updates(params, updates), others, state, loss

    lower = bf16scope.jax.lower
    functions = {
        "by hand": functools.partial(step, jnp.bfloat16, lambda f: f),
        "step": lower(functools.partial(step, jnp.float32, lambda f: f)),
        "loss": functools.partial(step, jnp.float32, lower),
    }
    return {key: jax.jit(it, donate_argnums=(0, 1, 2)) for key, it in functions.items()}, (params, others, state, inputs, labels)


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("targets", nargs="+")
    arguments.add_argument("--only", default=",".join(STEPS), help=f"names of steps, with commas between: {', '.join(STEPS)}")
    options = arguments.parse_args()
    only = options.only.split(",")
    if unknown := [it for it in only if it not in STEPS]:
        arguments.error(f"there is no step {', '.join(map(repr, unknown))}: expected names of {', '.join(STEPS)}")
    head = ["target", "step", "by hand: MiB", "kilocycles", "`lower(step)`: memory", "cycles", "`grad(lower(loss))`: memory", "cycles"]
    print(f"| {' | '.join(head)} |\n| --- | --- |{' ---: |' * 6}", flush=True)
    for target in options.targets:
        for name in [it for it in STEPS if it in only]:
            functions, args = forms(name)
            reports = {key: bf16scope.jax.compile_for(it, *args, target=target).reports[0] for key, it in functions.items()}
            # Arguments, results that are not arguments, and temporaries; without the code.
            memory = {key: it["hbm"]["total"] - it["hbm"]["code"] for key, it in reports.items()}
            cycles = {key: it["cycles"] for key, it in reports.items()}
            ratios = " | ".join(f"{it[key] / it['by hand']:.3f}" for key in ("step", "loss") for it in (memory, cycles))
            print(f"| {target} | {name} | {memory['by hand'] / 2**20:.0f} | {cycles['by hand'] / 1e3:.0f} | {ratios} |", flush=True)


if __name__ == "__main__":
    main()
