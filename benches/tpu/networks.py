"""Training steps as users of JAX write them, with flax and optax: what `jax` and `policy` compile.

In bf16 a network is what flax makes of `dtype=jnp.bfloat16`: f32 parameters, sums of norms in f32, and logits that are
cast to f32 before the loss.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import kinds
import optax
from flax import linen as nn


def conv(x, features, size, stride=1, groups=1, dtype=None):
    """A convolution without bias, and its batch norm."""
    x = nn.Conv(features, (size, size), stride, feature_group_count=groups, use_bias=False, dtype=dtype)(x)
    return nn.BatchNorm(use_running_average=False, momentum=0.9, epsilon=1e-5, dtype=dtype)(x)


class Bottleneck(nn.Module):
    """1×1, 3×3 with the stride, 1×1 to four times the features; the shortcut is projected where the shape changes."""

    features: int
    stride: int
    dtype: jnp.dtype

    @nn.compact
    def __call__(self, x):
        y = nn.relu(conv(x, self.features, 1, dtype=self.dtype))
        y = nn.relu(conv(y, self.features, 3, self.stride, dtype=self.dtype))
        y = conv(y, 4 * self.features, 1, dtype=self.dtype)
        if x.shape != y.shape:
            x = conv(x, 4 * self.features, 1, self.stride, dtype=self.dtype)
        return nn.relu(x + y)


class ResNet50(nn.Module):
    """ResNet-50 v1.5 with 1000 classes."""

    dtype: jnp.dtype

    @nn.compact
    def __call__(self, x):
        x = nn.max_pool(nn.relu(conv(x, 64, 7, 2, dtype=self.dtype)), (3, 3), (2, 2), padding="SAME")
        for stage, n_blocks in enumerate([3, 4, 6, 3]):
            for block in range(n_blocks):
                x = Bottleneck(64 * 2**stage, 2 if stage > 0 and block == 0 else 1, self.dtype)(x)
        return nn.Dense(1000, dtype=self.dtype)(jnp.mean(x, axis=(1, 2))).astype(jnp.float32)


class Bert(nn.Module):
    """An encoder of BERT-base's size: post-norm layers, learned positions, and a dense layer to the vocabulary."""

    dtype: jnp.dtype
    layers: int = 12
    width: int = 768
    vocabulary: int = 30522

    @nn.compact
    def __call__(self, tokens):
        positions = nn.Embed(512, self.width, dtype=self.dtype)(jnp.arange(tokens.shape[1]))
        x = nn.LayerNorm(dtype=self.dtype)(nn.Embed(self.vocabulary, self.width, dtype=self.dtype)(tokens) + positions)
        for _ in range(self.layers):
            y = nn.MultiHeadDotProductAttention(self.width // 64, dtype=self.dtype)(x, x)
            x = nn.LayerNorm(dtype=self.dtype)(x + y)
            y = nn.Dense(self.width, dtype=self.dtype)(nn.gelu(nn.Dense(4 * self.width, dtype=self.dtype)(x)))
            x = nn.LayerNorm(dtype=self.dtype)(x + y)
        return nn.Dense(self.vocabulary, dtype=self.dtype)(x).astype(jnp.float32)


def pre_norm_layer(x, heads, mask, dtype):
    """A pre-norm block: attention and two dense layers, each with a residual connection."""
    y = nn.LayerNorm(dtype=dtype)(x)
    x = x + nn.MultiHeadDotProductAttention(heads, dtype=dtype)(y, y, mask=mask)
    y = nn.gelu(nn.Dense(4 * x.shape[-1], dtype=dtype)(nn.LayerNorm(dtype=dtype)(x)))
    return x + nn.Dense(x.shape[-1], dtype=dtype)(y)


class ViT(nn.Module):
    """A vision transformer: patches of 16×16."""

    dtype: jnp.dtype
    layers: int = 3
    width: int = 384

    @nn.compact
    def __call__(self, x):
        x = nn.Conv(self.width, (16, 16), (16, 16), dtype=self.dtype)(x)
        x = x.reshape(x.shape[0], -1, self.width)
        x = x + self.param("positions", nn.initializers.normal(0.02), (1, *x.shape[1:])).astype(self.dtype)
        for _ in range(self.layers):
            x = pre_norm_layer(x, self.width // 64, None, self.dtype)
        x = jnp.mean(nn.LayerNorm(dtype=self.dtype)(x), axis=1)
        return nn.Dense(100, dtype=self.dtype)(x).astype(jnp.float32)


class Gpt(nn.Module):
    """A decoder that ties its logits to its embedding."""

    dtype: jnp.dtype
    layers: int = 3
    width: int = 512
    vocabulary: int = 8192

    @nn.compact
    def __call__(self, tokens):
        embedding = nn.Embed(self.vocabulary, self.width, dtype=self.dtype)
        positions = nn.Embed(tokens.shape[1], self.width, dtype=self.dtype)(jnp.arange(tokens.shape[1]))
        x = embedding(tokens) + positions
        mask = nn.make_causal_mask(tokens)
        for _ in range(self.layers):
            x = pre_norm_layer(x, self.width // 64, mask, self.dtype)
        return embedding.attend(nn.LayerNorm(dtype=self.dtype)(x)).astype(jnp.float32)


class UNet(nn.Module):
    """A U-Net: three scales with batch norms, and a class for each pixel."""

    dtype: jnp.dtype
    features: int = 48

    @nn.compact
    def __call__(self, x):
        def twice(x, features):
            return nn.relu(conv(nn.relu(conv(x, features, 3, dtype=self.dtype)), features, 3, dtype=self.dtype))

        skips = []
        for scale in range(2):
            skips.append(twice(x, self.features * 2**scale))
            x = nn.max_pool(skips[-1], (2, 2), (2, 2))
        x = twice(x, self.features * 4)
        for scale in reversed(range(2)):
            x = nn.ConvTranspose(self.features * 2**scale, (2, 2), (2, 2), dtype=self.dtype)(x)
            x = twice(jnp.concatenate([x, skips[scale]], axis=-1), self.features * 2**scale)
        return nn.Conv(8, (1, 1), dtype=self.dtype)(x).astype(jnp.float32)


class EfficientNet(nn.Module):
    """An EfficientNet: blocks that widen, convolve depthwise, apply squeeze-and-excitation, and narrow again."""

    dtype: jnp.dtype

    @nn.compact
    def __call__(self, x):
        x = nn.silu(conv(x, 32, 3, 2, dtype=self.dtype))
        for features, size, stride in [(16, 3, 1), (24, 3, 2), (24, 3, 1), (40, 5, 2), (80, 3, 2)]:
            wide = 6 * x.shape[-1]
            y = nn.silu(conv(x, wide, 1, dtype=self.dtype))
            y = nn.silu(conv(y, wide, size, stride, wide, dtype=self.dtype))
            weights = nn.silu(nn.Dense(x.shape[-1] // 4, dtype=self.dtype)(jnp.mean(y, axis=(1, 2))))
            y = y * nn.sigmoid(nn.Dense(wide, dtype=self.dtype)(weights))[:, None, None, :]
            y = conv(y, features, 1, dtype=self.dtype)
            x = x + y if x.shape == y.shape else y
        x = jnp.mean(nn.silu(conv(x, 320, 1, dtype=self.dtype)), axis=(1, 2))
        return nn.Dense(100, dtype=self.dtype)(x).astype(jnp.float32)


class Lstm(nn.Module):
    """Two recurrent layers over a text, each a loop."""

    dtype: jnp.dtype
    width: int = 512
    vocabulary: int = 8192

    @nn.compact
    def __call__(self, tokens):
        x = nn.Embed(self.vocabulary, self.width, dtype=self.dtype)(tokens)
        for _ in range(2):
            x = nn.RNN(nn.OptimizedLSTMCell(self.width, dtype=self.dtype))(x)
        return nn.Dense(self.vocabulary, dtype=self.dtype)(x).astype(jnp.float32)


class Dlrm(nn.Module):
    """A DLRM: clicks from numbers and categories, by embeddings, products of all pairs and dense layers."""

    dtype: jnp.dtype
    tables: int = 8
    rows: int = 20_000
    width: int = 64

    @nn.compact
    def __call__(self, inputs):
        numbers, categories = inputs
        x = numbers.astype(self.dtype)
        for features in [512, 256, self.width]:
            x = nn.relu(nn.Dense(features, dtype=self.dtype)(x))
        looked_up = [nn.Embed(self.rows, self.width, dtype=self.dtype)(categories[:, i]) for i in range(self.tables)]
        all_of = jnp.stack([x, *looked_up], axis=1)
        pairs = jnp.einsum("bid,bjd->bij", all_of, all_of)
        lower = jnp.tril_indices(self.tables + 1, -1)
        x = jnp.concatenate([x, pairs[:, lower[0], lower[1]]], axis=1)
        for features in [1024, 512, 256]:
            x = nn.relu(nn.Dense(features, dtype=self.dtype)(x))
        return nn.Dense(1, dtype=self.dtype)(x)[:, 0].astype(jnp.float32)


class Denoiser(nn.Module):
    """A diffusion model's small U-Net: group norms, time embeddings, attention at the lower scale."""

    dtype: jnp.dtype
    features: int = 64

    @nn.compact
    def __call__(self, inputs):
        x, times = inputs
        frequencies = jnp.exp(-jnp.log(1e4) * jnp.arange(32) / 32)
        angles = times[:, None] * frequencies
        angles = jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], axis=1)
        time = nn.silu(nn.Dense(4 * self.features, dtype=self.dtype)(angles))

        def block(x, features):
            y = nn.Conv(features, (3, 3), dtype=self.dtype)(nn.silu(nn.GroupNorm(16, dtype=self.dtype)(x)))
            y = y + nn.Dense(features, dtype=self.dtype)(time)[:, None, None, :]
            y = nn.Conv(features, (3, 3), dtype=self.dtype)(nn.silu(nn.GroupNorm(16, dtype=self.dtype)(y)))
            return y + (x if x.shape == y.shape else nn.Conv(features, (1, 1), dtype=self.dtype)(x))

        x = top = block(nn.Conv(self.features, (3, 3), dtype=self.dtype)(x), self.features)
        x = block(nn.Conv(2 * self.features, (3, 3), (2, 2), dtype=self.dtype)(x), 2 * self.features)
        y = nn.GroupNorm(16, dtype=self.dtype)(x).reshape(x.shape[0], -1, x.shape[-1])
        x = x + nn.MultiHeadDotProductAttention(2, dtype=self.dtype)(y, y).reshape(x.shape)
        x = nn.Conv(self.features, (3, 3), dtype=self.dtype)(jax.image.resize(x, top.shape[:3] + x.shape[3:], "nearest"))
        x = block(jnp.concatenate([x, top], axis=-1), self.features)
        return nn.Conv(3, (3, 3), dtype=self.dtype)(nn.silu(nn.GroupNorm(16, dtype=self.dtype)(x))).astype(jnp.float32)


def cross_entropy(logits, labels):
    """Mean over all labels."""
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


def clicks(logits, labels):
    """Mean of the sigmoid's cross-entropy."""
    return optax.sigmoid_binary_cross_entropy(logits, labels).mean()


def squares(outputs, wanted):
    """Mean of squares."""
    return jnp.mean(jnp.square(outputs - wanted))


def floats(*dims):
    """Normal floats."""
    return lambda key, batch: jax.random.normal(key, (batch, *dims))


def integers(n, *dims):
    """Integers below `n`."""
    return lambda key, batch: jax.random.randint(key, (batch, *dims), 0, n)


def coin(key, batch):
    """Ones with probability 0.3, else zeros."""
    return jax.random.bernoulli(key, 0.3, (batch,)).astype(jnp.float32)


def up_to_batch(per_example):
    """Integers below the batch size, `per_example` for each example in one array: the ends of a graph's edges."""
    return lambda key, batch: jax.random.randint(key, (batch * per_example,), 0, batch)


def own_number(_, batch):
    """Each example's number in the batch."""
    return jnp.arange(batch)


def supervised(loss):
    """An objective: the loss of a model's outputs and labels, and the model's updated state."""

    def objective(model, variables, inputs, labels, mutable):
        outputs, changed = model.apply(variables, inputs, mutable=mutable)
        return loss(outputs, labels), changed

    return objective


def adversarial(model, variables, noise, images, mutable):
    """Both losses of a GAN; each depends only on its own network's parameters."""

    def without(name):
        params = variables["params"]
        return variables | {"params": params | {name: jax.lax.stop_gradient(params[name])}}

    def bce(logits, label):
        return optax.sigmoid_binary_cross_entropy(logits, jnp.full_like(logits, label)).mean()

    (made, of_made), changed = model.apply(without("discriminator"), noise, mutable=mutable)
    judge = partial(model.apply, without("generator"), method="judge")
    of_real, of_fake = judge(images), judge(jax.lax.stop_gradient(made))
    return bce(of_made, 1.0) + bce(of_real, 1.0) + bce(of_fake, 0.0), changed


def burgers(model, variables, points, wanted, mutable):
    """The residual of Burgers' equation, u_t + u u_x = 0.01 u_xx, plus the error at the first points."""

    def u(point):
        return model.apply(variables, point)

    def residual(point):
        (u_t, u_x), second = jax.grad(u)(point), jax.jvp(jax.grad(u), (point,), (jnp.array([0.0, 1.0]),))[1]
        return u_t + u(point) * u_x - 0.01 * second[1]

    off = jnp.mean(jnp.square(u(points[: wanted.shape[0] // 8]) - wanted[: wanted.shape[0] // 8]))
    return jnp.mean(jnp.square(jax.vmap(residual)(points))) + off, {name: variables[name] for name in mutable}


class Network(NamedTuple):
    """A network to train."""

    model: type
    # A function of outputs and labels; None with an `objective`.
    loss: callable
    optimizer: optax.GradientTransformation
    inputs: tuple
    labels: callable
    objective: callable = None


NETWORKS = {
    "resnet50": Network(ResNet50, cross_entropy, optax.sgd(0.1, 0.9), (floats(224, 224, 3),), integers(1000)),
    "bert_base": Network(Bert, cross_entropy, optax.adam(1e-4), (integers(30522, 128),), integers(30522, 128)),
    "vit": Network(ViT, cross_entropy, optax.adamw(1e-4), (floats(224, 224, 3),), integers(100)),
    "gpt": Network(Gpt, cross_entropy, optax.adamw(1e-4), (integers(8192, 256),), integers(8192, 256)),
    "unet": Network(UNet, cross_entropy, optax.sgd(0.1, 0.9), (floats(128, 128, 3),), integers(8, 128, 128)),
    "efficientnet": Network(EfficientNet, cross_entropy, optax.rmsprop(1e-3), (floats(128, 128, 3),), integers(100)),
    "lstm": Network(Lstm, cross_entropy, optax.adam(1e-3), (integers(8192, 64),), integers(8192, 64)),
    "dlrm": Network(
        Dlrm,
        clicks,
        optax.adagrad(1e-2),
        (floats(13), integers(20_000, 8)),
        coin,
    ),
    "diffusion": Network(
        Denoiser,
        squares,
        optax.adamw(1e-4),
        (floats(32, 32, 3), lambda key, batch: jax.random.uniform(key, (batch,), maxval=1000.0)),
        floats(32, 32, 3),
    ),
    # Lowering rules are developed on these and on the nine before them.
    "graph": Network(
        kinds.GraphNetwork, cross_entropy, optax.adam(1e-3), (floats(64), up_to_batch(8), up_to_batch(8)), integers(16)
    ),
    "audio": Network(kinds.GatedAudio, cross_entropy, optax.adam(1e-3), (floats(1024, 1),), integers(64, 1024)),
    "gru": Network(kinds.Gru, cross_entropy, optax.adam(1e-3), (integers(2048, 64),), integers(2048, 64)),
    "histories": Network(
        kinds.Histories, clicks, optax.adam(1e-3), (integers(20_000, 32), integers(20_000), floats(8)), coin
    ),
    "shufflenet": Network(
        kinds.ShuffleNet, cross_entropy, optax.sgd(0.1, 0.9), (floats(112, 112, 3),), integers(100)
    ),
    "densenet": Network(kinds.DenseNet, cross_entropy, optax.sgd(0.1, 0.9), (floats(64, 64, 3),), integers(100)),
    "gan": Network(kinds.Gan, None, optax.adam(2e-4, 0.5), (floats(64),), floats(32, 32, 3), adversarial),
    "experts": Network(kinds.MixtureOfExperts, cross_entropy, optax.adamw(1e-4), (integers(1024, 64),), integers(1024, 64)),
    "llama": Network(kinds.Llama, cross_entropy, optax.adamw(1e-4), (integers(2048, 256),), integers(2048, 256)),
    "statespace": Network(kinds.StateSpace, cross_entropy, optax.adamw(1e-3), (floats(64, 32),), integers(32, 64)),
    # These are only evaluated.
    "lstm_scan": Network(kinds.LstmByScan, cross_entropy, optax.adam(1e-3), (floats(64, 64),), integers(32, 64)),
    "convnext": Network(kinds.ConvNext, cross_entropy, optax.adamw(1e-4), (floats(96, 96, 3),), integers(100)),
    "mixer": Network(kinds.Mixer, cross_entropy, optax.adamw(1e-4), (floats(128, 128, 3),), integers(100)),
    "unet3d": Network(kinds.VolumeUNet, cross_entropy, optax.adam(1e-3), (floats(32, 32, 32, 1),), integers(4, 32, 32, 32)),
    "flow": Network(kinds.Flow, lambda outputs, _: outputs.mean(), optax.adam(1e-3), (floats(64),), own_number),
    "two_tower": Network(
        kinds.TwoTower, cross_entropy, optax.adamw(1e-4), (floats(64, 64, 3), integers(4096, 32)), own_number
    ),
    "pinn": Network(kinds.Field, None, optax.adam(1e-3), (floats(2),), floats(), burgers),
}


# Smaller variants for steps that run on a CPU: the same kinds of layers and widths, with smaller images or fewer layers.
SMALLER = {
    "resnet50": {"inputs": (floats(96, 96, 3),)},
    "bert_base": {
        "model": partial(Bert, layers=2, vocabulary=8192),
        "inputs": (integers(8192, 128),),
        "labels": integers(8192, 128),
    },
}


def step(name, dtype, batch, input_dtype=jnp.float32, to_run=False, of_loss=lambda loss: loss):
    """A training step, which takes a state and a batch and returns the next state and the loss; and a function that makes both
    from a seed. `to_run` makes large networks smaller, and returns the gradients after the loss; `of_loss` of the loss is
    differentiated."""
    network = NETWORKS[name]._replace(**SMALLER.get(name, {}) if to_run else {})
    model = network.model(dtype=dtype)
    objective = network.objective or supervised(network.loss)

    def arguments(seed):
        keys = jax.random.split(jax.random.key(seed), 2 + len(network.inputs))
        inputs = [make(key, batch) for make, key in zip(network.inputs, keys[2:])]
        inputs = [x.astype(input_dtype) if jnp.issubdtype(x.dtype, jnp.floating) else x for x in inputs]
        inputs = inputs[0] if len(inputs) == 1 else tuple(inputs)
        variables = model.init(keys[0], inputs)
        params, rest = variables["params"], {name: value for name, value in variables.items() if name != "params"}
        return (params, rest, network.optimizer.init(params)), (inputs, network.labels(keys[1], batch))

    def train(state, batch):
        params, rest, moments = state
        inputs, labels = batch

        def loss(params):
            return objective(model, {"params": params} | rest, inputs, labels, list(rest))

        (value, rest), gradients = jax.value_and_grad(of_loss(loss), has_aux=True)(params)
        updates, moments = network.optimizer.update(gradients, moments, params)
        state = (optax.apply_updates(params, updates), rest, moments)
        return (state, value, gradients) if to_run else (state, value)

    return train, arguments
