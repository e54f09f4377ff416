"""Nine kinds of networks, each as somebody would write it for flax (linen and nnx), equinox or plain JAX.

Each takes a dtype to compute in (`jnp.float32`, or `jnp.bfloat16` for the form that is written by hand; None where the
library has none) and gives a `Kind`. All data are the 1,797 handwritten digits of 8 × 8 pixels, but DQN's: transitions of
a cart with a pole under a random policy, from the equations of motion.
"""

from __future__ import annotations

import csv
import gzip
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

DIGITS = Path(__file__).parents[2] / "examples" / "data" / "digits.csv.gz"


@dataclass
class Kind:
    """A network to train."""

    params: Any
    # Losses (the first is shown) and gradients of parameters for a batch, by a key.
    gradients: Callable
    # Its batches: a function of a step, and what is held back, or None.
    batch: Callable[[int], Any]
    # Share of what is held back that it gets right, of parameters; None where nothing is classified.
    accuracy: Callable | None = None


def digits():
    with gzip.open(DIGITS, "rt") as file:
        rows = np.array([list(map(int, row)) for row in csv.reader(file)])
    order = np.random.default_rng(0).permutation(len(rows))
    images, labels = rows[order, :-1].reshape(-1, 8, 8, 1) / np.float32(16), rows[order, -1]
    return (images[:1437], labels[:1437].astype(np.int32)), (images[1437:], labels[1437:].astype(np.int32))


TRAINING, TEST = digits()
BATCH = 64


def batch_of_digits(step: int):
    pick = np.random.default_rng(step).integers(0, len(TRAINING[0]), BATCH)
    return TRAINING[0][pick], TRAINING[1][pick]


def cross_entropy(logits, labels):
    return optax.softmax_cross_entropy_with_integer_labels(logits.astype(jnp.float32), labels).mean()


def classifier(params, apply) -> Kind:
    """Of a network that gives logits of images."""

    def loss(params, batch):
        return cross_entropy(apply(params, batch[0]), batch[1])

    def accuracy(params):
        return jnp.mean(jnp.argmax(apply(params, TEST[0]), -1) == TEST[1])

    def gradients(params, key, batch):
        return jax.value_and_grad(loss)(params, batch)

    return Kind(params, gradients, batch_of_digits, accuracy)


def linen(network: nn.Module) -> Kind:
    return classifier(network.init(jax.random.key(0), TRAINING[0][:2]), network.apply)


class ConvNeXtBlock(nn.Module):
    dtype: Any

    @nn.compact
    def __call__(self, x):
        dim = x.shape[-1]
        y = nn.Conv(dim, (5, 5), feature_group_count=dim, dtype=self.dtype)(x)
        y = nn.LayerNorm(dtype=self.dtype)(y)
        y = nn.Dense(dim, dtype=self.dtype)(nn.gelu(nn.Dense(4 * dim, dtype=self.dtype)(y)))
        scale = self.param("scale", nn.initializers.constant(0.1), (dim,))
        return x + y * scale.astype(y.dtype)


class ConvNeXt(nn.Module):
    dtype: Any
    dim: int = 32

    @nn.compact
    def __call__(self, x):
        x = nn.LayerNorm(dtype=self.dtype)(nn.Conv(self.dim, (2, 2), (2, 2), dtype=self.dtype)(x.astype(self.dtype)))
        for _ in range(3):
            x = ConvNeXtBlock(self.dtype)(x)
        return nn.Dense(10, dtype=self.dtype)(nn.LayerNorm(dtype=self.dtype)(x.mean((1, 2)))).astype(jnp.float32)


class ViTBlock(nn.Module):
    dtype: Any

    @nn.compact
    def __call__(self, x):
        y = nn.LayerNorm(dtype=self.dtype)(x)
        x = x + nn.MultiHeadDotProductAttention(4, dtype=self.dtype)(y, y)
        y = nn.LayerNorm(dtype=self.dtype)(x)
        return x + nn.Dense(x.shape[-1], dtype=self.dtype)(nn.gelu(nn.Dense(2 * x.shape[-1], dtype=self.dtype)(y)))


class ViT(nn.Module):
    dtype: Any
    dim: int = 64

    @nn.compact
    def __call__(self, x):
        x = nn.Conv(self.dim, (2, 2), (2, 2), dtype=self.dtype)(x.astype(self.dtype))
        x = x.reshape(len(x), -1, self.dim)
        x = x + self.param("position", nn.initializers.normal(0.02), x.shape[1:]).astype(self.dtype)
        for _ in range(3):
            x = nn.remat(ViTBlock)(self.dtype)(x)
        return nn.Dense(10, dtype=self.dtype)(nn.LayerNorm(dtype=self.dtype)(x.mean(1))).astype(jnp.float32)


class Graph(nn.Module):
    """Messages between neighbouring pixels, summed by `segment_sum`."""

    dtype: Any

    @nn.compact
    def __call__(self, images):
        n = len(images)
        row, column = np.divmod(np.arange(64), 8)
        near = (abs(row[:, None] - row) <= 1) & (abs(column[:, None] - column) <= 1) & ~np.eye(64, dtype=bool)
        sender, receiver = map(np.concatenate, zip(*((ends + 64 * k) for k in range(n) for ends in [np.array(np.nonzero(near))])))
        places = jnp.tile(jnp.stack([row, column], -1) / 8.0, (n, 1))
        x = jnp.concatenate([images.reshape(-1, 1), places], -1).astype(self.dtype)
        x = nn.relu(nn.Dense(32, dtype=self.dtype)(x))
        for _ in range(3):
            message = nn.relu(nn.Dense(32, dtype=self.dtype)(jnp.concatenate([x[sender], x[receiver]], -1)))
            total = jax.ops.segment_sum(message, receiver, 64 * n) / 8
            x = nn.LayerNorm(dtype=self.dtype)(x + nn.Dense(32, dtype=self.dtype)(jnp.concatenate([x, total], -1)))
        return nn.Dense(10, dtype=self.dtype)(x.reshape(n, 64, -1).mean(1)).astype(jnp.float32)


class Recurrent(nn.Module):
    """The rows of a digit, one after the other."""

    dtype: Any

    @nn.compact
    def __call__(self, x):
        x = nn.RNN(nn.GRUCell(64, dtype=self.dtype))(x[..., 0].astype(self.dtype))
        return nn.Dense(10, dtype=self.dtype)(x[:, -1]).astype(jnp.float32)


def mixer(dtype) -> Kind:
    """MLP-Mixer in nnx: its state is split from it."""

    class Block(nnx.Module):
        def __init__(self, rngs):
            norm = lambda: nnx.LayerNorm(48, dtype=dtype, rngs=rngs)
            dense = lambda a, b: nnx.Linear(a, b, dtype=dtype, rngs=rngs)
            self.norms = nnx.List([norm(), norm()])
            self.tokens = nnx.List([dense(16, 32), dense(32, 16)])
            self.channels = nnx.List([dense(48, 96), dense(96, 48)])

        def __call__(self, x):
            y = self.norms[0](x).swapaxes(1, 2)
            x = x + self.tokens[1](nnx.gelu(self.tokens[0](y))).swapaxes(1, 2)
            return x + self.channels[1](nnx.gelu(self.channels[0](self.norms[1](x))))

    class Mixer(nnx.Module):
        def __init__(self, rngs):
            self.stem = nnx.Conv(1, 48, (2, 2), (2, 2), dtype=dtype, rngs=rngs)
            self.blocks = nnx.List([Block(rngs) for _ in range(3)])
            self.head = nnx.Linear(48, 10, dtype=dtype, rngs=rngs)

        def __call__(self, x):
            x = self.stem(x.astype(dtype)).reshape(len(x), 16, 48)
            for block in self.blocks:
                x = block(x)
            return self.head(x.mean(1)).astype(jnp.float32)

    form, state = nnx.split(Mixer(nnx.Rngs(0)))
    return classifier(state, lambda state, x: nnx.merge(form, state)(x))


def state_space(dtype) -> Kind | None:
    """A selective scan over the pixels, as Mamba's, in equinox, which has no dtype to compute in."""
    if dtype != jnp.float32:
        return None

    class Scan(eqx.Module):
        into: eqx.nn.Linear
        select: eqx.nn.Linear
        out: eqx.nn.Linear
        decay: jax.Array

        def __init__(self, key):
            keys = jax.random.split(key, 3)
            self.into = eqx.nn.Linear(32, 64, key=keys[0])
            self.select = eqx.nn.Linear(32, 16 + 32, key=keys[1])
            self.out = eqx.nn.Linear(32, 32, key=keys[2])
            self.decay = jnp.log(jnp.tile(jnp.arange(1.0, 9.0), (32, 1)))

        def __call__(self, x):
            u, gate = jnp.split(jax.vmap(self.into)(x), 2, -1)
            chosen = jax.vmap(self.select)(x)
            b, c, step = chosen[:, :8], chosen[:, 8:16], jax.nn.softplus(chosen[:, 16:])

            def one(state, at):
                u, b, c, step = at
                state = state * jnp.exp(-step[:, None] * jnp.exp(self.decay)) + (step * u)[:, None] * b
                return state, state @ c

            _, y = jax.lax.scan(one, jnp.zeros((32, 8)), (u, b, c, step))
            return x + jax.vmap(self.out)(y * jax.nn.silu(gate))

    class Network(eqx.Module):
        stem: eqx.nn.Linear
        scans: list
        norms: list
        head: eqx.nn.Linear

        def __init__(self, key):
            keys = jax.random.split(key, 4)
            self.stem = eqx.nn.Linear(8, 32, key=keys[0])
            self.scans = [Scan(keys[1]), Scan(keys[2])]
            self.norms = [eqx.nn.LayerNorm(32), eqx.nn.LayerNorm(32)]
            self.head = eqx.nn.Linear(32, 10, key=keys[3])

        def __call__(self, x):
            x = jax.vmap(self.stem)(x[..., 0])
            for scan, norm in zip(self.scans, self.norms):
                x = jax.vmap(norm)(scan(x))
            return self.head(x.mean(0))

    params, form = eqx.partition(Network(jax.random.key(0)), eqx.is_array)
    return classifier(params, lambda params, x: jax.vmap(eqx.combine(params, form))(x))


def autoencoder(dtype) -> Kind:
    """A variational autoencoder: noise by a key, an exponential, a sum in the loss."""

    class Network(nn.Module):
        @nn.compact
        def __call__(self, x, noise):
            x = nn.relu(nn.Dense(128, dtype=dtype)(x.reshape(len(x), -1).astype(dtype)))
            mean, log_variance = nn.Dense(8, dtype=dtype)(x), nn.Dense(8, dtype=dtype)(x)
            mean, log_variance = mean.astype(jnp.float32), log_variance.astype(jnp.float32)
            z = mean + jnp.exp(log_variance / 2) * noise
            x = nn.relu(nn.Dense(128, dtype=dtype)(z.astype(dtype)))
            return nn.Dense(64, dtype=dtype)(x).astype(jnp.float32), mean, log_variance

    network = Network()

    def loss(params, key, batch):
        images = batch[0]
        logits, mean, log_variance = network.apply(params, images, jax.random.normal(key, (len(images), 8)))
        likelihood = optax.sigmoid_binary_cross_entropy(logits, images.reshape(logits.shape)).sum(-1)
        divergence = -0.5 * (1 + log_variance - mean**2 - jnp.exp(log_variance)).sum(-1)
        return (likelihood + divergence).mean()

    params = network.init(jax.random.key(0), TRAINING[0][:2], jnp.zeros((2, 8)))
    return Kind(params, jax.value_and_grad(loss), batch_of_digits)


def adversarial(dtype) -> Kind:
    """A GAN: two networks, two losses, in one step."""

    class Generator(nn.Module):
        @nn.compact
        def __call__(self, z):
            x = nn.relu(nn.Dense(128, dtype=dtype)(z.astype(dtype)))
            x = nn.relu(nn.Dense(4 * 4 * 32, dtype=dtype)(x)).reshape(-1, 4, 4, 32)
            return nn.sigmoid(nn.ConvTranspose(1, (4, 4), (2, 2), dtype=dtype)(x))

    class Discriminator(nn.Module):
        @nn.compact
        def __call__(self, x):
            x = nn.leaky_relu(nn.Conv(32, (3, 3), (2, 2), dtype=dtype)(x.astype(dtype)), 0.2)
            x = nn.leaky_relu(nn.Conv(64, (3, 3), (2, 2), dtype=dtype)(x), 0.2)
            return nn.Dense(1, dtype=dtype)(x.reshape(len(x), -1)).astype(jnp.float32)

    generator, discriminator = Generator(), Discriminator()

    def gradients(params, key, batch):
        z = jax.random.normal(key, (BATCH, 16))

        def of_discriminator(params_d):
            made = jax.lax.stop_gradient(generator.apply(params["g"], z))
            real, fake = discriminator.apply(params_d, batch[0]), discriminator.apply(params_d, made)
            return (jax.nn.softplus(-real) + jax.nn.softplus(fake)).mean()

        def of_generator(params_g):
            return jax.nn.softplus(-discriminator.apply(params["d"], generator.apply(params_g, z))).mean()

        loss_d, gradient_d = jax.value_and_grad(of_discriminator)(params["d"])
        loss_g, gradient_g = jax.value_and_grad(of_generator)(params["g"])
        return loss_d + loss_g, {"g": gradient_g, "d": gradient_d}

    keys = jax.random.split(jax.random.key(0))
    params = {"g": generator.init(keys[0], jnp.zeros((2, 16))), "d": discriminator.init(keys[1], TRAINING[0][:2])}
    return Kind(params, gradients, batch_of_digits)


def transitions(n: int = 20_000):
    """A cart with a pole, pushed left or right by chance: states, actions, rewards, next states, ends."""
    rng = np.random.default_rng(0)
    state, found = rng.uniform(-0.05, 0.05, 4), []
    for _ in range(n):
        action = int(rng.integers(2))
        x, v, angle, spin = state
        push, sin, cos = (10.0 if action else -10.0), np.sin(angle), np.cos(angle)
        common = (push + 0.05 * spin**2 * sin) / 1.1
        turn = (9.8 * sin - cos * common) / (0.5 * (4 / 3 - 0.1 * cos**2 / 1.1))
        go = common - 0.05 * turn * cos / 1.1
        after = state + 0.02 * np.array([v, go, spin, turn])
        end = abs(after[0]) > 2.4 or abs(after[2]) > 0.2095
        found.append((*state, action, 1.0, *after, end))
        state = rng.uniform(-0.05, 0.05, 4) if end else after
    rows = np.array(found, np.float32)
    return rows[:, :4], rows[:, 4].astype(np.int32), rows[:, 5], rows[:, 6:10], rows[:, 10]


def dqn(dtype) -> Kind:
    """Double Q-learning in plain JAX: argmax of what one network says, valued by an older one."""
    replay = transitions()

    def apply(layers, x):
        x = x.astype(dtype)
        for number, (w, b) in enumerate(layers):
            x = x @ w.astype(dtype) + b.astype(dtype)
            x = jax.nn.relu(x) if number < 2 else x
        return x.astype(jnp.float32)

    def gradients(params, key, batch):
        state, action, reward, after, end = batch
        best = jnp.argmax(apply(params["online"], after), -1)
        worth = jnp.take_along_axis(apply(params["target"], after), best[:, None], -1)[:, 0]
        goal = jax.lax.stop_gradient(reward + 0.99 * (1 - end) * worth)

        def loss(online):
            said = jnp.take_along_axis(apply(online, state), action[:, None], -1)[:, 0]
            return optax.huber_loss(said, goal).mean()

        value, gradient = jax.value_and_grad(loss)(params["online"])
        # The older network goes after the newer one by gradients of its own, so that one optimizer serves both.
        pull = jax.tree.map(lambda old, new: old - new, params["target"], params["online"])
        return value, {"online": gradient, "target": pull}

    rng = np.random.default_rng(0)
    layers = [
        (jnp.asarray(rng.normal(0, a**-0.5, (a, b)), jnp.float32), jnp.zeros(b))
        for a, b in [(4, 64), (64, 64), (64, 2)]
    ]
    pick = lambda step: np.random.default_rng(step).integers(0, len(replay[0]), BATCH)
    return Kind(
        {"online": layers, "target": layers}, gradients, lambda step: tuple(column[pick(step)] for column in replay)
    )


KINDS: dict[str, Callable[[Any], Kind | None]] = {
    "ConvNeXt (linen)": lambda dtype: linen(ConvNeXt(dtype)),
    "MLP-Mixer (nnx)": mixer,
    "VAE (linen)": autoencoder,
    "graph network, segment_sum (linen)": lambda dtype: linen(Graph(dtype)),
    "GRU by scan (linen)": lambda dtype: linen(Recurrent(dtype)),
    "selective scan (equinox)": state_space,
    "GAN, two losses (linen)": adversarial,
    "double DQN (plain JAX)": dqn,
    "ViT with remat (linen)": lambda dtype: linen(ViT(dtype)),
}
