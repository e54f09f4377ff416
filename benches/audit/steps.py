"""Twelve training steps of flax and optax, eight as people write them and four with a planted trouble, audited.

`python steps.py [STEP…]` with jax, flax and optax (see in_venv.py of benches/tpu for the versions) writes each as StableHLO
text with its inputs, asks `bf16scope audit --budget 2.5e-1` of it (or `BUDGET`), and prints a row of a table: what was planted, at which
place the audit's list has it, how far the results are, how many instructions a search keeps, and what that took.
`BF16SCOPE` names the program, `KEEP_STEPS` a folder where steps and answers stay. What is planted is in the scope `planted`.
"""

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen as nn

BUDGET = os.environ.get("BUDGET", "2.5e-1")
BATCH, LENGTH, WIDTH, HEADS, WORDS, CLASSES = 8, 32, 64, 4, 512, 10


def attention(x, mask=None, is_planted=False):
    """Self-attention; planted: a softmax without subtracting the maximum of the scores."""
    q, k, v = (nn.DenseGeneral((HEADS, WIDTH // HEADS), name=name)(x) for name in ("query", "key", "value"))
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / np.sqrt(WIDTH // HEADS)
    if mask is not None:
        scores = jnp.where(mask, scores, -1e9)
    if is_planted:
        with jax.named_scope("planted"):
            # Scores as large as they become without normalisation; their exponentials are far from overflow in f32.
            powers = jnp.exp(scores * 12)
            weights = powers / jnp.sum(powers, axis=-1, keepdims=True)
    else:
        weights = jax.nn.softmax(scores)
    x = jnp.einsum("bhqk,bkhd->bqhd", weights, v)
    return nn.DenseGeneral(WIDTH, axis=(-2, -1), name="out")(x)


class Norm(nn.Module):
    """A layer norm of numbers far from 0, with its variance computed as E[x²] - E[x]²."""

    @nn.compact
    def __call__(self, x):
        with jax.named_scope("planted"):
            x = x + 100
            mean = jnp.mean(x, axis=-1, keepdims=True)
            variance = jnp.mean(x * x, axis=-1, keepdims=True) - mean * mean
            y = (x - mean) * jax.lax.rsqrt(variance + 1e-5)
        return y * self.param("scale", nn.initializers.ones, x.shape[-1:])


class Block(nn.Module):
    is_causal: bool = False
    is_post_norm: bool = False
    trouble: str = ""

    @nn.compact
    def __call__(self, x):
        mask = jnp.tril(jnp.ones((LENGTH, LENGTH), bool)) if self.is_causal else None
        norm = Norm if self.trouble == "variance" else nn.LayerNorm
        attend = lambda x: attention(x, mask, self.trouble == "softmax")
        feed = lambda x: nn.Dense(WIDTH)(nn.gelu(nn.Dense(4 * WIDTH)(x)))
        if self.is_post_norm:
            x = norm()(x + attend(x))
            return norm()(x + feed(x))
        x = x + attend(norm()(x))
        return x + feed(norm()(x))


class Transformer(nn.Module):
    """Transformer layers with logits over words. Only the last layer has the planted trouble."""

    is_causal: bool = False
    is_post_norm: bool = False
    trouble: str = ""
    layers: int = 1

    @nn.compact
    def __call__(self, tokens):
        x = nn.Embed(WORDS, WIDTH)(tokens)
        x = x + self.param("positions", nn.initializers.normal(0.02), (LENGTH, WIDTH))
        for layer in range(self.layers):
            x = Block(self.is_causal, self.is_post_norm, self.trouble if layer + 1 == self.layers else "")(x)
        return nn.Dense(WORDS)(nn.LayerNorm()(x))


class Cnn(nn.Module):
    """Convolutions with batch norms; residual, or one filter a feature."""

    is_depthwise: bool = False

    @nn.compact
    def __call__(self, x):
        def conv(x, features, groups=1, size=3):
            x = nn.Conv(features, (size, size), feature_group_count=groups, use_bias=False)(x)
            return nn.BatchNorm(use_running_average=False)(x)

        x = nn.relu(conv(x, 16))
        for _ in range(2):
            if self.is_depthwise:
                y = nn.silu(conv(nn.silu(conv(x, 64, size=1)), 64, groups=64))
                x = x + conv(y, 16, size=1)
            else:
                x = nn.relu(x + conv(nn.relu(conv(x, 16)), 16))
        return nn.Dense(CLASSES)(jnp.mean(x, axis=(1, 2)))


class Lstm(nn.Module):
    @nn.compact
    def __call__(self, tokens):
        x = nn.RNN(nn.OptimizedLSTMCell(WIDTH))(nn.Embed(WORDS, WIDTH)(tokens))
        return nn.Dense(WORDS)(x)


class Towers(nn.Module):
    """Clicks of three tables and five numbers."""

    @nn.compact
    def __call__(self, inputs):
        numbers, categories = inputs
        x = nn.relu(nn.Dense(WIDTH)(numbers))
        parts = [x] + [nn.Embed(1000, WIDTH)(categories[:, i]) for i in range(3)]
        x = nn.relu(nn.Dense(WIDTH)(jnp.concatenate(parts, axis=-1)))
        return nn.Dense(2)(x)


class Mlp(nn.Module):
    out: int
    widths: tuple = (WIDTH, WIDTH)

    @nn.compact
    def __call__(self, x):
        for width in self.widths:
            x = nn.leaky_relu(nn.Dense(width)(x))
        return nn.Dense(self.out)(x)


def cross_entropy(logits, labels):
    return jnp.mean(optax.softmax_cross_entropy_with_integer_labels(logits, labels))


def drawn(shape, seed, below=None):
    random = np.random.default_rng(seed)
    if below:
        return random.integers(0, below, shape).astype(np.int32)
    return random.normal(size=shape).astype(np.float32)


def supervised(network, optimizer, inputs, labels):
    """A step of a network with labels; batch statistics are state too."""
    variables = network.init(jax.random.key(0), inputs)
    params, state = variables["params"], {k: v for k, v in variables.items() if k != "params"}

    def step(params, slots, state, inputs, labels):
        def loss_of(params):
            logits, new = network.apply({"params": params, **state}, inputs, mutable=list(state))
            return cross_entropy(logits, labels), new

        (loss, new), gradients = jax.value_and_grad(loss_of, has_aux=True)(params)
        updates, slots = optimizer.update(gradients, slots, params)
        return optax.apply_updates(params, updates), slots, new, {"loss": loss}

    return step, (params, optimizer.init(params), state, inputs, labels)


def gan(is_planted):
    """A step of both networks of a GAN; planted: log(1 - p) for a discriminator with p close to 1."""
    generator, judge, optimizer = Mlp(32), Mlp(1), optax.adam(1e-3, b1=0.5)
    noise, real = drawn((64, 16), 1), drawn((64, 32), 2)
    params = {"g": generator.init(jax.random.key(0), noise), "d": judge.init(jax.random.key(1), real)}

    def step(params, slots, noise, real):
        def losses(params):
            fake = generator.apply(params["g"], noise)
            logits = lambda x: judge.apply(params["d"], x)
            still = lambda tree: jax.tree.map(jax.lax.stop_gradient, tree)
            if is_planted:
                with jax.named_scope("planted"):
                    # For most examples p is within 2^-9 of 1.
                    p = jax.nn.sigmoid(logits(fake) + 8)
                    against = -jnp.mean(jnp.log(1 - p))
            else:
                against = jnp.mean(jax.nn.softplus(logits(jax.lax.stop_gradient(fake))))
            for_real = jnp.mean(jax.nn.softplus(-logits(real)))
            fooled = jnp.mean(jax.nn.softplus(-judge.apply(still(params["d"]), fake)))
            return against + for_real + fooled, {"d": against + for_real, "g": fooled}

        gradients, parts = jax.grad(losses, has_aux=True)(params)
        updates, slots = optimizer.update(gradients, slots, params)
        return optax.apply_updates(params, updates), slots, {"loss": parts}

    return step, (params, optimizer.init(params), noise, real)


def long_sum():
    """A perceptron whose inputs are scaled by a sum of a million terms."""
    network, optimizer = Mlp(CLASSES), optax.sgd(1e-2, momentum=0.9)
    inputs, labels, terms = drawn((32, 16), 3), drawn(32, 4, CLASSES), np.abs(drawn(1_000_000, 5))
    params = network.init(jax.random.key(0), inputs)

    def step(params, slots, inputs, labels, terms):
        def loss_of(params):
            with jax.named_scope("planted"):
                scale = jnp.sum(terms) / terms.size
            return cross_entropy(network.apply(params, inputs * scale), labels)

        loss, gradients = jax.value_and_grad(loss_of)(params)
        updates, slots = optimizer.update(gradients, slots, params)
        return optax.apply_updates(params, updates), slots, {"loss": loss}

    return step, (params, optimizer.init(params), inputs, labels, terms)


def words(network, optimizer):
    return supervised(network, optimizer, drawn((BATCH, LENGTH), 1, WORDS), drawn((BATCH, LENGTH), 2, WORDS))


def images(network, optimizer):
    return supervised(network, optimizer, drawn((16, 16, 16, 3), 1), drawn(16, 2, CLASSES))


def clicks():
    inputs = (drawn((64, 5), 1), drawn((64, 3), 2, 1000))
    return supervised(Towers(), optax.adagrad(1e-2), inputs, drawn(64, 3, 2))


# `default` sums the gradient of a bias of logits in bf16, as networks written for bf16 do; `default, logits kept` does not.
LOGITS = "default, logits kept"

# Name, policy, step and arguments. A trouble that `default` avoids by itself is audited under a policy that does not.
STEPS = [
    ("GAN, Adam", "default", lambda: gan(False)),
    ("embeddings, Adagrad", "default", clicks),
    ("GAN, Adam: log of 1 - p", "default", lambda: gan(True)),
    ("perceptron, momentum: a sum of 10^6 terms", "O3", long_sum),
    ("LSTM, Adam", LOGITS, lambda: words(Lstm(), optax.adam(1e-3))),
    ("residual CNN with batch norms, momentum", "default", lambda: images(Cnn(), optax.sgd(1e-2, momentum=0.9))),
    ("depthwise CNN with batch norms, Adam", "default", lambda: images(Cnn(True), optax.adam(1e-3))),
    (
        "encoder, AdamW: softmax without its maximum",
        LOGITS,
        lambda: words(Transformer(trouble="softmax"), optax.adamw(1e-3)),
    ),
    (
        "encoder, Adam: variance by E[x²] - E[x]²",
        LOGITS,
        lambda: words(Transformer(trouble="variance"), optax.adam(1e-3)),
    ),
    ("post-norm encoder, LAMB", LOGITS, lambda: words(Transformer(is_post_norm=True), optax.lamb(1e-3))),
    ("decoder, Adam", LOGITS, lambda: words(Transformer(is_causal=True), optax.adam(1e-3))),
    ("encoder of two layers, AdamW", LOGITS, lambda: words(Transformer(layers=2), optax.adamw(1e-3))),
    ("encoder of two layers, AdamW", "default", lambda: words(Transformer(layers=2), optax.adamw(1e-3))),
]


def audit(program, folder, policy):
    """The audit's JSON with its list in order, and its duration: wall-clock and processor seconds."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.time()
    if policy == LOGITS:
        policy = folder / "logits.yaml"
        policy.write_text("preset: default\nlogits: keep\n")
    command = [program, "audit", folder / "step.mlir", "--inputs", folder / "in.npz", "--policy", policy, "--json"]
    more = ["--budget", BUDGET, "--save-policy", folder / "keep.yaml", "--quiet"]
    done = subprocess.run([*command, *more], stdout=subprocess.PIPE, text=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    processor = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    if done.returncode == 2:
        sys.exit(f"{folder}: not audited")
    (folder / "audit.json").write_text(done.stdout)
    return json.loads(done.stdout), time.time() - began, processor


def place_of_planted(found):
    def key(row):
        born = row["born"]["scaled"]
        lost = float("inf") if born is None else max(born, row["grown"])
        return -lost, -row["born"]["mean_ulp"], row["position"]

    rows = sorted(found["rows"], key=key)
    places = [n + 1 for n, row in enumerate(rows) if "planted" in row["op_name"]]
    return places[0] if places else None


def main():
    program = os.environ.get("BF16SCOPE", "bf16scope")
    wanted = sys.argv[1:]
    print("| step | policy | instructions | off by, at most | planted at place | kept | runs | seconds | of processors |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    for name, policy, make in STEPS:
        if wanted and not any(part in name for part in wanted):
            continue
        step, arguments = make()
        with tempfile.TemporaryDirectory() as folder:
            folder = Path(os.environ.get("KEEP_STEPS", folder)) / f"{name} by {policy}".replace(" ", "_")
            folder.mkdir(parents=True, exist_ok=True)
            traced = jax.jit(step, donate_argnums=(0, 1), keep_unused=True).trace(*arguments)
            (folder / "step.mlir").write_text(traced.lower(lowering_platforms=("tpu",)).as_text(debug_info=True))
            leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(arguments)]
            np.savez(folder / "in.npz", **{f"in{n}": leaf for n, leaf in enumerate(leaves)})
            report, clock, processor = audit(program, folder, policy)
        search = report["search"]
        n_kept, runs = (len(search["keep"]), search["n_runs"]) if search else (0, 0)
        if search and not search["is_reached"]:
            keeps = f"{search['end']} with {n_kept}"
        elif search and search["end"] == "too_many":
            keeps = f"nothing: {n_kept} would do"
        elif search and search["end"] != "minimal":
            keeps = f"{n_kept} ({search['end']})"
        elif n_kept:
            keeps = f"{n_kept}: " + ", ".join(op_name(report, name) for name in search["keep"])
        else:
            keeps = "0"
        place = place_of_planted(report) if ":" in name else ""
        off = float("inf") if report["error"] is None else report["error"]
        print(
            f"| {name} | {policy} | {len(report['rows'])} | {off:.2e} | {place} | {keeps} | {runs} | {clock:.0f} "
            f"| {processor:.0f} |",
            flush=True,
        )


def op_name(report, name):
    return next((row["op_name"] for row in report["rows"] if row["instruction"] == name), name)


if __name__ == "__main__":
    main()
