"""The programs of the first pages of JAX, flax, equinox and optax, trained 100 steps in f32, in bfloat16 by hand and lowered, side
by side, on eight CPU devices. What a page has beside the lowered line is as it stands there; data is random and fixed.

    python benches/jax/tutorials.py [pipelined exported] > benches/jax/tutorials.md
"""

import functools
import os
import sys

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import datetime

import equinox as eqx
import flax
import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen, nnx
from flax.training import train_state
from jax.sharding import NamedSharding, PartitionSpec

import bf16scope.jax

STEPS = 100


def draw(seed, *dims):
    return jnp.asarray(np.random.default_rng(seed).standard_normal(dims), jnp.float32)


IMAGES, LABELS = draw(0, 256, 64), jnp.asarray(np.random.default_rng(1).integers(0, 8, 256))
CLASSES = draw(2, 8, 64)
# Each class is a direction, with noise.
IMAGES = IMAGES + CLASSES[LABELS]


def cross_entropy(logits, labels=LABELS):
    return optax.softmax_cross_entropy_with_integer_labels(logits.astype(jnp.float32), labels).mean()


def dense(params, x, dtype):
    for w, b in params[:-1]:
        x = jax.nn.relu(x.astype(dtype) @ w.astype(dtype) + b.astype(dtype))
    w, b = params[-1]
    return x.astype(dtype) @ w.astype(dtype) + b.astype(dtype)


def layers(*sizes):
    return [(draw(10 + n, a, b) / np.sqrt(a), jnp.zeros(b)) for n, (a, b) in enumerate(zip(sizes, sizes[1:]))]


def by_steps(step, *state):
    losses = []
    for _ in range(STEPS):
        *state, loss = step(*state)
        losses.append(float(loss))
    return losses


def sharded(lower, dtype):
    """JAX: data parallel over `make_mesh`, whose axes are `Explicit`."""
    over = jax.make_mesh((8,), ("batch",))
    x = jax.device_put(IMAGES, NamedSharding(over, PartitionSpec("batch")))
    y = jax.device_put(LABELS, NamedSharding(over, PartitionSpec("batch")))
    params = jax.device_put(layers(64, 128, 128, 8), NamedSharding(over, PartitionSpec()))

    @jax.jit
    @lower
    def step(params):
        loss, gradients = jax.value_and_grad(lambda params: jnp.mean((dense(params, x, dtype).astype(jnp.float32) - jax.nn.one_hot(y, 8)) ** 2))(params)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, gradients), loss

    return by_steps(step, params)


def shard_mapped(lower, dtype):
    """JAX: fully sharded data parallel by `shard_map`, weights gathered and gradients scattered."""
    over = jax.make_mesh((8,), ("batch",), axis_types=(jax.sharding.AxisType.Auto,))
    rows = PartitionSpec("batch")

    @functools.partial(jax.shard_map, mesh=over, in_specs=(rows, rows, rows), out_specs=PartitionSpec())
    def loss_of(params, x, y):
        gathered = jax.tree.map(lambda w: jax.lax.all_gather(w, "batch", tiled=True), params)
        return jax.lax.pmean(cross_entropy(dense(gathered, x, dtype), y), "batch")

    @jax.jit
    def step(params):
        loss, gradients = jax.value_and_grad(lower(loss_of))(params, IMAGES, LABELS)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, gradients), loss

    return by_steps(step, layers(64, 128, 8))


def scanned(lower, dtype):
    """JAX: a recurrent network by `scan`."""
    xs = IMAGES.reshape(256, 8, 8).swapaxes(0, 1)
    params = {"x": draw(3, 8, 64) / 3, "h": draw(4, 64, 64) / 8, "out": draw(5, 64, 8) / 8}

    def loss_of(params):
        low = jax.tree.map(lambda w: w.astype(dtype), params)
        cell = lambda h, x: (jnp.tanh(x.astype(dtype) @ low["x"] + h @ low["h"]), None)
        return cross_entropy(jax.lax.scan(cell, jnp.zeros((256, 64), dtype), xs)[0] @ low["out"])

    def step(params):
        loss, gradients = jax.value_and_grad(loss_of)(params)
        return jax.tree.map(lambda p, g: p - 0.3 * g, params, gradients), loss

    return by_steps(jax.jit(lower(step)), params)


def rematerialised(lower, dtype):
    """JAX: blocks under `jax.checkpoint` with a policy, in a `scan`."""
    params = {"blocks": draw(6, 6, 64, 64) / 8, "out": draw(5, 64, 8) / 8}

    @functools.partial(jax.checkpoint, policy=jax.checkpoint_policies.dots_with_no_batch_dims_saveable)
    def block(x, w):
        return x + jnp.tanh(x @ w.astype(dtype)), None

    def loss_of(params):
        return cross_entropy(jax.lax.scan(block, IMAGES.astype(dtype), params["blocks"])[0] @ params["out"].astype(dtype))

    @jax.jit
    def step(params):
        loss, gradients = jax.value_and_grad(lower(loss_of))(params)
        return jax.tree.map(lambda p, g: p - 0.03 * g, params, gradients), loss

    return by_steps(step, params)


def of_nnx(lower, dtype):
    """flax nnx: the tutorial's module with batch norm and dropout, `nnx.jit` and `nnx.Optimizer`."""

    class Network(nnx.Module):
        def __init__(self, rngs):
            self.linear = nnx.Linear(64, 128, dtype=dtype, rngs=rngs)
            self.norm = nnx.BatchNorm(128, dtype=dtype, rngs=rngs)
            self.dropout = nnx.Dropout(0.2, rngs=rngs)
            self.out = nnx.Linear(128, 8, dtype=dtype, rngs=rngs)

        def __call__(self, x):
            return self.out(self.dropout(nnx.relu(self.norm(self.linear(x)))))

    model = Network(nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.adamw(5e-3, 0.9), wrt=nnx.Param)

    @nnx.jit
    @lower
    def step(model, optimizer):
        loss, gradients = nnx.value_and_grad(lambda model: cross_entropy(model(IMAGES)))(model)
        optimizer.update(model, gradients)
        return loss

    return [float(step(model, optimizer)) for _ in range(STEPS)]


def of_linen(lower, dtype):
    """flax linen: a convolutional network in a `TrainState`."""

    class Network(linen.Module):
        @linen.compact
        def __call__(self, x):
            x = linen.relu(linen.Conv(16, (3, 3), dtype=dtype)(x))
            x = linen.avg_pool(x, (2, 2), (2, 2)).reshape((x.shape[0], -1))
            return linen.Dense(8, dtype=dtype)(linen.relu(linen.Dense(64, dtype=dtype)(x)))

    images = IMAGES.reshape(256, 8, 8, 1)
    model = Network()
    state = train_state.TrainState.create(apply_fn=model.apply, params=model.init(jax.random.key(0), images), tx=optax.adam(3e-3))

    @jax.jit
    @lower
    def step(state):
        loss, gradients = jax.value_and_grad(lambda params: cross_entropy(state.apply_fn(params, images)))(state.params)
        return state.apply_gradients(grads=gradients), loss

    return by_steps(step, state)


def of_equinox(lower, dtype):
    """equinox: `eqx.nn.MLP` under `filter_jit` and `filter_value_and_grad`."""
    model = eqx.nn.MLP(64, 8, 128, 2, key=jax.random.key(0))
    optimizer = optax.adam(3e-3)

    @eqx.filter_value_and_grad
    @lower
    def loss_of(model):
        low = jax.tree.map(lambda it: it.astype(dtype) if eqx.is_inexact_array(it) else it, (model, IMAGES))
        return cross_entropy(jax.vmap(low[0])(low[1]))

    @eqx.filter_jit
    def step(model, state):
        loss, gradients = loss_of(model)
        updates, state = optimizer.update(gradients, state, model)
        return eqx.apply_updates(model, updates), state, loss

    return by_steps(step, model, optimizer.init(eqx.filter(model, eqx.is_array)))


def of_optax(lower, dtype):
    """optax: clipping, a schedule with warm-up and accumulated gradients."""
    chain = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(optax.warmup_cosine_decay_schedule(0.0, 1e-2, 10, STEPS)))
    optimizer = optax.MultiSteps(chain, 2)
    params = layers(64, 128, 8)

    @jax.jit
    @lower
    def step(params, state):
        loss, gradients = jax.value_and_grad(lambda params: cross_entropy(dense(params, IMAGES, dtype)))(params)
        updates, state = optimizer.update(gradients, state, params)
        return optax.apply_updates(params, updates), state, loss

    return by_steps(step, params, optimizer.init(params))


def experts(lower, dtype):
    """A mixture of experts by `ragged_dot`, as MaxText has one."""
    params = {"route": draw(7, 64, 4) / 8, "experts": draw(8, 4, 64, 64) / 8, "out": draw(5, 64, 8) / 8}

    def loss_of(params):
        # The expert of a row is chosen in f32, also in bf16 by hand.
        weights = jax.nn.softmax(IMAGES @ params["route"])
        chosen = jnp.argmax(weights, -1)
        order = jnp.argsort(chosen)
        x = jax.lax.ragged_dot(IMAGES[order].astype(dtype), params["experts"].astype(dtype), jnp.bincount(chosen, length=4))
        x = jax.nn.relu(x)[jnp.argsort(order)] * jnp.max(weights, -1, keepdims=True).astype(dtype)
        return cross_entropy(x @ params["out"].astype(dtype))

    @jax.jit
    @lower
    def step(params):
        loss, gradients = jax.value_and_grad(loss_of)(params)
        return jax.tree.map(lambda p, g: p - 0.3 * g, params, gradients), loss

    return by_steps(step, params)


def tensor_parallel(lower, dtype):
    """Levanter's way: batch and widths sharded over two axes, `with_sharding_constraint` between, rows by sequence where nothing is multiplied."""
    over = jax.make_mesh((2, 4), ("data", "model"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    on = lambda *axes: NamedSharding(over, PartitionSpec(*axes))
    x = jax.device_put(IMAGES.reshape(32, 8, 64), on("data", None, None))
    labels = jax.device_put(LABELS.reshape(32, 8), on("data", None))
    params = {
        "up": jax.device_put(draw(20, 3, 64, 256) / 8, on(None, None, "model")),
        "down": jax.device_put(draw(21, 3, 256, 64) / 16, on(None, "model", None)),
        "out": jax.device_put(draw(22, 64, 8) / 8, on()),
    }

    def block(x, w):
        up, down = (it.astype(dtype) for it in w)
        x = jax.lax.with_sharding_constraint(x, on("data", "model", None))
        y = x - x.mean(-1, keepdims=True)
        y = y * jax.lax.rsqrt((y**2).mean(-1, keepdims=True) + 1e-6)
        y = jax.lax.with_sharding_constraint(jax.nn.gelu(y.astype(dtype) @ up), on("data", None, "model"))
        return x + y @ down, None

    def loss_of(params):
        y = jax.lax.scan(jax.checkpoint(block), x.astype(dtype), (params["up"], params["down"]))[0]
        return cross_entropy(y @ params["out"].astype(dtype), labels)

    @jax.jit
    @lower
    def step(params):
        loss, gradients = jax.value_and_grad(loss_of)(params)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, gradients), loss

    return by_steps(step, params)


def pipelined(lower, dtype):
    """A pipeline of four stages by `ppermute` in a `shard_map`, eight microbatches, as MaxText has one."""
    n_stages, n_batches = 4, 8
    over = jax.make_mesh((n_stages,), ("stage",), axis_types=(jax.sharding.AxisType.Auto,), devices=jax.devices()[:n_stages])
    params = {"stages": draw(23, n_stages, 64, 64) / 12, "out": draw(22, 64, 8) / 8}
    round_trip = [(stage, (stage + 1) % n_stages) for stage in range(n_stages)]

    @functools.partial(jax.shard_map, mesh=over, in_specs=(PartitionSpec("stage"), PartitionSpec()), out_specs=PartitionSpec())
    def pipeline(stages, batches):
        stage = jax.lax.axis_index("stage")
        w = stages[0].astype(dtype)

        def tick(carry, time):
            arrived, done = carry
            x = jnp.where(stage == 0, batches[jnp.minimum(time, n_batches - 1)], arrived)
            x = x + jnp.tanh(x @ w)
            place = jnp.maximum(time - n_stages + 1, 0)
            done = done.at[place].set(jnp.where((stage == n_stages - 1) & (time >= n_stages - 1), x, done[place]))
            return (jax.lax.ppermute(x, "stage", round_trip), done), None

        zeros = jax.lax.pcast(jnp.zeros_like(batches), ("stage",), to="varying")
        (_, done), _ = jax.lax.scan(tick, (zeros[0], zeros), jnp.arange(n_batches + n_stages - 1))
        return jax.lax.psum(jnp.where(stage == n_stages - 1, done, 0), "stage")

    def loss_of(params):
        y = pipeline(params["stages"], IMAGES.reshape(n_batches, -1, 64).astype(dtype)).reshape(-1, 64)
        return cross_entropy(y @ params["out"].astype(dtype))

    @jax.jit
    def step(params):
        loss, gradients = jax.value_and_grad(lower(loss_of))(params)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, gradients), loss

    return by_steps(step, params)


def text_classifier(lower, dtype):
    """flax nnx: an LSTM over embedded text, batches drawn by step, `nnx.jit` around and the loss lowered"""
    tokens = jnp.asarray(np.random.default_rng(30).integers(0, 64, (256, 12)))
    # A label depends on the number of tokens in the lower half.
    labels = jnp.clip((tokens < 32).sum(1) - 3, 0, 6)

    class Classifier(nnx.Module):
        def __init__(self, rngs):
            self.embed = nnx.Embed(64, 32, dtype=dtype, rngs=rngs)
            self.rnn = nnx.RNN(nnx.OptimizedLSTMCell(32, 64, dtype=dtype, rngs=rngs))
            self.out = nnx.Linear(64, 7, dtype=dtype, rngs=rngs)

        def __call__(self, tokens):
            return self.out(self.rnn(self.embed(tokens))[:, -1])

    model = Classifier(nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.adam(1e-2), wrt=nnx.Param)

    def loss_of(model, tokens, labels):
        logits = model(tokens)
        return cross_entropy(logits, labels), logits

    @nnx.jit
    def step(model, optimizer, number):
        rows = (jnp.arange(128) + 128 * number) % 256
        (loss, _), gradients = nnx.value_and_grad(lower(loss_of), has_aux=True)(model, tokens[rows], labels[rows])
        optimizer.update(model, gradients)
        return loss

    return [float(step(model, optimizer, number)) for number in range(STEPS)]


def attention(lower, dtype):
    """equinox: a transformer of `MultiheadAttention` and `LayerNorm`, under `vmap`, `filter_jit` and `filter_value_and_grad`"""

    class Block(eqx.Module):
        norms: list
        attention: eqx.nn.MultiheadAttention
        mlp: eqx.nn.MLP

        def __init__(self, key):
            first, second = jax.random.split(key)
            self.norms = [eqx.nn.LayerNorm(32), eqx.nn.LayerNorm(32)]
            self.attention = eqx.nn.MultiheadAttention(4, 32, key=first)
            self.mlp = eqx.nn.MLP(32, 32, 64, 1, activation=jax.nn.gelu, key=second)

        def __call__(self, x):
            y = jax.vmap(self.norms[0])(x)
            x = x + self.attention(y, y, y, mask=jnp.tril(jnp.ones((len(x), len(x)), bool)))
            return x + jax.vmap(self.mlp)(jax.vmap(self.norms[1])(x))

    class Transformer(eqx.Module):
        into: eqx.nn.Linear
        blocks: list
        out: eqx.nn.Linear

        def __init__(self, key):
            keys = jax.random.split(key, 4)
            self.into, self.out = eqx.nn.Linear(8, 32, key=keys[0]), eqx.nn.Linear(32, 8, key=keys[1])
            self.blocks = [Block(it) for it in keys[2:]]

        def __call__(self, x):
            x = jax.vmap(self.into)(x)
            for block in self.blocks:
                x = block(x)
            return self.out(x[-1])

    model = Transformer(jax.random.key(0))
    optimizer = optax.adamw(1e-3)

    def loss_of(model, x, labels):
        low = jax.tree.map(lambda it: it.astype(dtype) if eqx.is_inexact_array(it) else it, (model, x))
        return cross_entropy(jax.vmap(low[0])(low[1]), labels)

    @eqx.filter_jit
    def step(model, state, x, labels):
        loss, gradients = eqx.filter_value_and_grad(lower(loss_of))(model, x, labels)
        updates, state = optimizer.update(gradients, state, eqx.filter(model, eqx.is_inexact_array))
        return eqx.apply_updates(model, updates), state, loss

    x = IMAGES.reshape(256, 8, 8)
    return by_steps(lambda model, state: step(model, state, x, LABELS), model, optimizer.init(eqx.filter(model, eqx.is_inexact_array)))


def exported(lower, dtype):
    """`jax.export`: a step of accumulated gradients (`MultiSteps`) written, read again and called"""
    optimizer = optax.MultiSteps(optax.adam(3e-3), 2)
    params = layers(64, 128, 8)
    tree = jax.tree.structure((params, optimizer.init(params)))

    def step(*leaves):
        params, state = jax.tree.unflatten(tree, leaves)
        loss, gradients = jax.value_and_grad(lower(lambda params: cross_entropy(dense(params, IMAGES, dtype))))(params)
        updates, state = optimizer.update(gradients, state, params)
        return *jax.tree.leaves((optax.apply_updates(params, updates), state)), loss

    leaves = jax.tree.leaves((params, optimizer.init(params)))
    written = jax.export.export(jax.jit(step))(*leaves).serialize()
    return by_steps(jax.jit(jax.export.deserialize(written).call), *leaves)


PROGRAMS = [
    sharded, shard_mapped, scanned, rematerialised, of_nnx, of_linen, of_equinox, of_optax, experts, tensor_parallel, pipelined,
    text_classifier, attention, exported,
]


def main():
    named = [it for it in PROGRAMS if it.__name__ in sys.argv[1:]]
    if len(named) != len(sys.argv[1:]):
        sys.exit(f"tutorials.py: expected names of {', '.join(it.__name__ for it in PROGRAMS)}, found {' '.join(sys.argv[1:])}")
    date = datetime.date.today()
    print(f"# Tutorials, {STEPS} steps\n")
    print(f"`python benches/jax/tutorials.py`, {date}, jax {jax.__version__}, flax {flax.__version__}, equinox {eqx.__version__}, optax {optax.__version__}, eight CPU devices.")
    print("Mean losses of the first and the last ten steps, and the largest difference from f32 of the mean of any ten steps, over f32's first.\n")
    print("| program | first ten | last ten: f32 | by hand | lowered | off: by hand | lowered |\n| --- | ---: | ---: | ---: | ---: | ---: | ---: |")
    for program in named or PROGRAMS:
        forms = [(lambda f: f, jnp.float32), (lambda f: f, jnp.bfloat16), (bf16scope.jax.lower, jnp.float32)]
        tens = [np.reshape(program(*form), (STEPS // 10, 10)).mean(1) for form in forms]
        off = [np.max(abs(it - tens[0])) / tens[0][0] for it in tens[1:]]
        lasts = " | ".join(f"{it[-1]:.4f}" for it in tens)
        print(f"| {program.__doc__.rstrip('.')} | {tens[0][0]:.4f} | {lasts} | {off[0]:.1e} | {off[1]:.1e} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
