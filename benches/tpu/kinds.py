"""Further kinds of networks than those in `networks.py`, on which lowering rules were not developed."""

import jax
import jax.numpy as jnp
from flax import linen as nn


class GraphNetwork(nn.Module):
    """A graph network: messages from both ends of each edge, summed at their target."""

    dtype: jnp.dtype
    width: int = 128
    rounds: int = 3

    @nn.compact
    def __call__(self, inputs):
        nodes, senders, receivers = inputs
        x = nn.Dense(self.width, dtype=self.dtype)(nodes)
        for _ in range(self.rounds):
            ends = jnp.concatenate([x[senders], x[receivers]], axis=-1)
            messages = nn.Dense(self.width, dtype=self.dtype)(nn.relu(nn.Dense(self.width, dtype=self.dtype)(ends)))
            arrived = jax.ops.segment_sum(messages, receivers, nodes.shape[0])
            y = nn.relu(nn.Dense(self.width, dtype=self.dtype)(jnp.concatenate([x, arrived], axis=-1)))
            x = nn.LayerNorm(dtype=self.dtype)(x + nn.Dense(self.width, dtype=self.dtype)(y))
        return nn.Dense(16, dtype=self.dtype)(x).astype(jnp.float32)


class GatedAudio(nn.Module):
    """A WaveNet: gated, dilated convolutions over time, whose outputs are concatenated at the end."""

    dtype: jnp.dtype
    width: int = 64
    layers: int = 6

    @nn.compact
    def __call__(self, samples):
        x = nn.Conv(self.width, (3,), dtype=self.dtype)(samples)
        outputs = []
        for layer in range(self.layers):
            y = nn.Conv(2 * self.width, (3,), kernel_dilation=2**layer, padding="CAUSAL", dtype=self.dtype)(x)
            values, gates = jnp.split(y, 2, axis=-1)
            y = jnp.tanh(values) * nn.sigmoid(gates)
            outputs.append(y)
            x = x + nn.Conv(self.width, (1,), dtype=self.dtype)(y)
        y = nn.relu(nn.Conv(self.width, (1,), dtype=self.dtype)(jnp.concatenate(outputs, axis=-1)))
        return nn.Conv(64, (1,), dtype=self.dtype)(y).astype(jnp.float32)


class Gru(nn.Module):
    """Two GRU layers over a text, each a loop."""

    dtype: jnp.dtype
    width: int = 256
    vocabulary: int = 2048

    @nn.compact
    def __call__(self, tokens):
        x = nn.Embed(self.vocabulary, self.width, dtype=self.dtype)(tokens)
        for _ in range(2):
            x = nn.RNN(nn.GRUCell(self.width, dtype=self.dtype))(x)
        return nn.Dense(self.vocabulary, dtype=self.dtype)(x).astype(jnp.float32)


class LstmByScan(nn.Module):
    """A layer of an LSTM as `lax.scan` over time, whose gates are one product, with norms between layers."""

    dtype: jnp.dtype
    width: int = 256

    @nn.compact
    def __call__(self, x):
        for layer in range(2):
            kernel = self.param(f"kernel{layer}", nn.initializers.orthogonal(), (self.width, 4 * self.width))
            gates = nn.Dense(4 * self.width, dtype=self.dtype)(x)
            kernel = kernel.astype(self.dtype)

            def cell(state, gates, kernel=kernel):
                c, h = state
                i, f, g, o = jnp.split(gates + h @ kernel, 4, axis=-1)
                c = nn.sigmoid(f + 1) * c + nn.sigmoid(i) * jnp.tanh(g)
                h = nn.sigmoid(o) * jnp.tanh(c)
                return (c, h), h

            start = jnp.zeros((x.shape[0], self.width), self.dtype)
            _, hidden = jax.lax.scan(cell, (start, start), jnp.swapaxes(gates, 0, 1))
            x = nn.LayerNorm(dtype=self.dtype)(jnp.swapaxes(hidden, 0, 1))
        return nn.Dense(32, dtype=self.dtype)(x).astype(jnp.float32)


class Histories(nn.Module):
    """A recommender: a user's history, weighed by attention to the offered item."""

    dtype: jnp.dtype
    items: int = 20_000
    width: int = 128

    @nn.compact
    def __call__(self, inputs):
        history, item, numbers = inputs
        table = nn.Embed(self.items, self.width, dtype=self.dtype)
        seen, offered = table(history), table(item)
        repeated = jnp.broadcast_to(offered[:, None, :], seen.shape)
        pairs = jnp.concatenate([seen, repeated, seen * repeated], axis=-1)
        scores = nn.Dense(1, dtype=self.dtype)(nn.relu(nn.Dense(64, dtype=self.dtype)(pairs)))[..., 0]
        scores = jnp.where(history > 0, scores, jnp.asarray(-1e9, scores.dtype))
        weights = nn.softmax(scores, axis=-1)
        pooled = jnp.einsum("bt,btd->bd", weights, seen)
        x = jnp.concatenate([pooled, offered, numbers.astype(self.dtype)], axis=-1)
        for features in [256, 128]:
            x = nn.relu(nn.Dense(features, dtype=self.dtype)(x))
        return nn.Dense(1, dtype=self.dtype)(x)[:, 0].astype(jnp.float32)


def norm(x, dtype):
    """A batch norm while training."""
    return nn.BatchNorm(use_running_average=False, momentum=0.9, epsilon=1e-5, dtype=dtype)(x)


class ShuffleNet(nn.Module):
    """A ShuffleNet: grouped 1×1 convolutions with a channel shuffle around depthwise convolutions."""

    dtype: jnp.dtype
    groups: int = 4

    @nn.compact
    def __call__(self, x):
        def grouped(x, features, groups=self.groups):
            return nn.Conv(features, (1, 1), feature_group_count=groups, use_bias=False, dtype=self.dtype)(x)

        def shuffled(x):
            *pixels, features = x.shape
            x = x.reshape(*pixels, self.groups, features // self.groups)
            return jnp.swapaxes(x, -1, -2).reshape(*pixels, features)

        x = nn.relu(norm(nn.Conv(32, (3, 3), 2, use_bias=False, dtype=self.dtype)(x), self.dtype))
        for features, stride in [(128, 2), (128, 1), (256, 2), (256, 1)]:
            y = shuffled(nn.relu(norm(grouped(x, features // 4), self.dtype)))
            narrow = y.shape[-1]
            y = nn.Conv(narrow, (3, 3), stride, feature_group_count=narrow, use_bias=False, dtype=self.dtype)(y)
            y = norm(grouped(norm(y, self.dtype), features if stride == 1 else features - x.shape[-1]), self.dtype)
            if stride == 1:
                x = nn.relu(x + y)
            else:
                pooled = nn.avg_pool(x, (3, 3), (2, 2), padding="SAME")
                x = nn.relu(jnp.concatenate([pooled, y], axis=-1))
        return nn.Dense(100, dtype=self.dtype)(jnp.mean(x, axis=(1, 2))).astype(jnp.float32)


class DenseNet(nn.Module):
    """A DenseNet: each layer reads the outputs of all layers before it."""

    dtype: jnp.dtype
    growth: int = 32

    @nn.compact
    def __call__(self, x):
        x = nn.Conv(64, (3, 3), 2, use_bias=False, dtype=self.dtype)(x)
        for stage, layers in enumerate([4, 4]):
            if stage > 0:
                x = nn.Conv(x.shape[-1] // 2, (1, 1), use_bias=False, dtype=self.dtype)(nn.relu(norm(x, self.dtype)))
                x = nn.avg_pool(x, (2, 2), (2, 2))
            for _ in range(layers):
                y = nn.Conv(4 * self.growth, (1, 1), use_bias=False, dtype=self.dtype)(nn.relu(norm(x, self.dtype)))
                y = nn.Conv(self.growth, (3, 3), use_bias=False, dtype=self.dtype)(nn.relu(norm(y, self.dtype)))
                x = jnp.concatenate([x, y], axis=-1)
        x = jnp.mean(nn.relu(norm(x, self.dtype)), axis=(1, 2))
        return nn.Dense(100, dtype=self.dtype)(x).astype(jnp.float32)


class Generator(nn.Module):
    """A generator: images from noise."""

    dtype: jnp.dtype

    @nn.compact
    def __call__(self, noise):
        x = nn.Dense(8 * 8 * 128, dtype=self.dtype)(noise).reshape(-1, 8, 8, 128)
        for features in [128, 64]:
            x = nn.relu(norm(x, self.dtype))
            x = nn.ConvTranspose(features, (4, 4), (2, 2), use_bias=False, dtype=self.dtype)(x)
        return jnp.tanh(nn.Conv(3, (3, 3), dtype=self.dtype)(nn.relu(norm(x, self.dtype))))


class Discriminator(nn.Module):
    """A discriminator: whether images are real."""

    dtype: jnp.dtype

    @nn.compact
    def __call__(self, x):
        for features in [64, 128, 128]:
            x = nn.leaky_relu(nn.Conv(features, (4, 4), (2, 2), dtype=self.dtype)(x), 0.2)
        return nn.Dense(1, dtype=self.dtype)(x.reshape(x.shape[0], -1))[:, 0].astype(jnp.float32)


class Gan(nn.Module):
    """A GAN: each network is trained with the other's parameters held constant."""

    dtype: jnp.dtype

    def setup(self):
        self.generator, self.discriminator = Generator(self.dtype), Discriminator(self.dtype)

    def __call__(self, noise):
        images = self.generator(noise)
        return images, self.discriminator(images)

    def judge(self, images):
        return self.discriminator(images)


class MixtureOfExperts(nn.Module):
    """A mixture of experts: a router sends each token to two experts."""

    dtype: jnp.dtype
    width: int = 256
    experts: int = 8
    layers: int = 2

    @nn.compact
    def __call__(self, tokens):
        x = nn.Embed(1024, self.width, dtype=self.dtype)(tokens)
        for layer in range(self.layers):
            y = nn.LayerNorm(dtype=self.dtype)(x)
            x = x + nn.MultiHeadDotProductAttention(4, dtype=self.dtype)(y, y)
            y = nn.LayerNorm(dtype=self.dtype)(x)
            # The router is f32 for every dtype of the experts, as users write it.
            scores = nn.Dense(self.experts, dtype=jnp.float32)(y.astype(jnp.float32))
            best, which = jax.lax.top_k(nn.softmax(scores), 2)
            weights = jnp.sum(jax.nn.one_hot(which, self.experts) * best[..., None], axis=-2).astype(self.dtype)
            wide = self.param(f"wide{layer}", nn.initializers.lecun_normal(), (self.experts, self.width, 512))
            narrow = self.param(f"narrow{layer}", nn.initializers.lecun_normal(), (self.experts, 512, self.width))
            hidden = nn.silu(jnp.einsum("btd,edf->betf", y, wide.astype(self.dtype)))
            outputs = jnp.einsum("betf,efd->betd", hidden, narrow.astype(self.dtype))
            x = x + jnp.einsum("betd,bte->btd", outputs, weights)
        return nn.Dense(1024, dtype=self.dtype)(nn.LayerNorm(dtype=self.dtype)(x)).astype(jnp.float32)


class Llama(nn.Module):
    """A decoder with rotary positions, grouped queries, RMS norms, and gated dense layers."""

    dtype: jnp.dtype
    width: int = 256
    heads: int = 8
    layers: int = 2
    vocabulary: int = 2048

    @nn.compact
    def __call__(self, tokens):
        def dense(features):
            return nn.DenseGeneral(features, use_bias=False, dtype=self.dtype)

        def rotated(x):
            half = x.shape[-1] // 2
            angles = jnp.arange(x.shape[1])[:, None] / 1e4 ** (jnp.arange(half) / half)
            sin, cos = jnp.sin(angles)[:, None], jnp.cos(angles)[:, None]
            a, b = x[..., :half].astype(jnp.float32), x[..., half:].astype(jnp.float32)
            return jnp.concatenate([a * cos - b * sin, a * sin + b * cos], axis=-1).astype(self.dtype)

        x = nn.Embed(self.vocabulary, self.width, dtype=self.dtype)(tokens)
        size = self.width // self.heads
        mask = jnp.tril(jnp.ones((tokens.shape[1],) * 2, bool))
        for _ in range(self.layers):
            y = nn.RMSNorm(dtype=self.dtype)(x)
            queries, keys = rotated(dense((self.heads, size))(y)), rotated(dense((self.heads // 4, size))(y))
            values = dense((self.heads // 4, size))(y)
            keys, values = jnp.repeat(keys, 4, axis=2), jnp.repeat(values, 4, axis=2)
            scores = jnp.einsum("bqhd,bkhd->bhqk", queries, keys, preferred_element_type=jnp.float32)
            scores = jnp.where(mask, scores / size**0.5, -1e9)
            y = jnp.einsum("bhqk,bkhd->bqhd", nn.softmax(scores).astype(self.dtype), values)
            x = x + dense(self.width)(y.reshape(x.shape))
            y = nn.RMSNorm(dtype=self.dtype)(x)
            x = x + dense(self.width)(nn.silu(dense(704)(y)) * dense(704)(y))
        return dense(self.vocabulary)(nn.RMSNorm(dtype=self.dtype)(x)).astype(jnp.float32)


class ConvNext(nn.Module):
    """A ConvNeXt: depthwise 7×7 convolutions, then two dense layers for each pixel."""

    dtype: jnp.dtype

    @nn.compact
    def __call__(self, x):
        x = nn.LayerNorm(dtype=self.dtype)(nn.Conv(96, (4, 4), (4, 4), dtype=self.dtype)(x))
        for width, blocks in [(96, 2), (192, 2)]:
            if x.shape[-1] != width:
                x = nn.Conv(width, (2, 2), (2, 2), dtype=self.dtype)(nn.LayerNorm(dtype=self.dtype)(x))
            for _ in range(blocks):
                y = nn.Conv(width, (7, 7), feature_group_count=width, dtype=self.dtype)(x)
                y = nn.gelu(nn.Dense(4 * width, dtype=self.dtype)(nn.LayerNorm(dtype=self.dtype)(y)))
                x = x + nn.Dense(width, dtype=self.dtype)(y)
        return nn.Dense(100, dtype=self.dtype)(jnp.mean(x, axis=(1, 2))).astype(jnp.float32)


class Mixer(nn.Module):
    """An MLP-Mixer: dense layers over positions, then over features."""

    dtype: jnp.dtype
    width: int = 256
    layers: int = 3

    @nn.compact
    def __call__(self, x):
        def twice(x, features):
            return nn.Dense(x.shape[-1], dtype=self.dtype)(nn.gelu(nn.Dense(features, dtype=self.dtype)(x)))

        x = nn.Conv(self.width, (8, 8), (8, 8), dtype=self.dtype)(x).reshape(x.shape[0], -1, self.width)
        for _ in range(self.layers):
            y = jnp.swapaxes(nn.LayerNorm(dtype=self.dtype)(x), 1, 2)
            x = x + jnp.swapaxes(twice(y, 256), 1, 2)
            x = x + twice(nn.LayerNorm(dtype=self.dtype)(x), 1024)
        x = jnp.mean(nn.LayerNorm(dtype=self.dtype)(x), axis=1)
        return nn.Dense(100, dtype=self.dtype)(x).astype(jnp.float32)


class VolumeUNet(nn.Module):
    """A U-Net of volumes, with group norms: two scales."""

    dtype: jnp.dtype
    features: int = 32

    @nn.compact
    def __call__(self, x):
        def twice(x, features):
            for _ in range(2):
                x = nn.Conv(features, (3, 3, 3), use_bias=False, dtype=self.dtype)(x)
                x = nn.relu(nn.GroupNorm(8, dtype=self.dtype)(x))
            return x

        top = twice(x, self.features)
        x = twice(nn.max_pool(top, (2, 2, 2), (2, 2, 2)), 2 * self.features)
        x = nn.ConvTranspose(self.features, (2, 2, 2), (2, 2, 2), dtype=self.dtype)(x)
        x = twice(jnp.concatenate([x, top], axis=-1), self.features)
        return nn.Conv(4, (1, 1, 1), dtype=self.dtype)(x).astype(jnp.float32)


class Flow(nn.Module):
    """A normalising flow: coupling layers that scale and shift half of the numbers by functions of the other half. It returns
    each example's negative log-likelihood."""

    dtype: jnp.dtype
    layers: int = 6
    width: int = 512

    @nn.compact
    def __call__(self, x):
        log_volume = jnp.zeros(x.shape[0])
        for _ in range(self.layers):
            still, moved = jnp.split(x, 2, axis=-1)
            y = nn.relu(nn.Dense(self.width, dtype=self.dtype)(still))
            y = nn.relu(nn.Dense(self.width, dtype=self.dtype)(y))
            y = nn.Dense(x.shape[-1], dtype=self.dtype, kernel_init=nn.initializers.normal(1e-2))(y)
            scale, shift = jnp.split(y.astype(jnp.float32), 2, axis=-1)
            scale = jnp.tanh(scale)
            x = jnp.concatenate([moved * jnp.exp(scale) + shift, still], axis=-1)
            log_volume = log_volume + jnp.sum(scale, axis=-1)
        return jnp.sum(jnp.square(x), axis=-1) / 2 - log_volume


class StateSpace(nn.Module):
    """Layers with a diagonal recurrence over time, by `lax.scan`, between gates.

    The recurrence is f32 in both forms, as in the kernels that people use for such layers: a decay that is rounded to bf16
    and multiplied by itself at each step is off by a multiple of its rounding.
    """

    dtype: jnp.dtype
    width: int = 256
    layers: int = 2

    @nn.compact
    def __call__(self, x):
        x = nn.Dense(self.width, dtype=self.dtype)(x)
        for layer in range(self.layers):
            y = nn.LayerNorm(dtype=self.dtype)(x)
            decay = self.param(f"decay{layer}", nn.initializers.normal(1.0), (self.width,))
            forget = nn.sigmoid(nn.Dense(self.width, dtype=self.dtype)(y).astype(jnp.float32) + decay)
            given = ((1 - forget) * nn.Dense(self.width, dtype=self.dtype)(y)).astype(self.dtype)

            def cell(state, now):
                forget, given = now
                state = forget * state + given.astype(jnp.float32)
                return state, state.astype(self.dtype)

            over_time = jax.tree.map(lambda a: jnp.swapaxes(a, 0, 1), (forget, given))
            _, states = jax.lax.scan(cell, jnp.zeros(given[:, 0].shape, jnp.float32), over_time)
            gated = jnp.swapaxes(states, 0, 1) * nn.silu(nn.Dense(self.width, dtype=self.dtype)(y))
            x = x + nn.Dense(self.width, dtype=self.dtype)(gated)
        return nn.Dense(32, dtype=self.dtype)(x).astype(jnp.float32)


class TwoTower(nn.Module):
    """A two-tower model: unit vectors of images and texts, and the similarities of all pairs."""

    dtype: jnp.dtype
    width: int = 256

    @nn.compact
    def __call__(self, inputs):
        images, tokens = inputs
        x = nn.Conv(64, (4, 4), (4, 4), dtype=self.dtype)(images)
        for features in [128, self.width]:
            x = nn.Conv(features, (3, 3), (2, 2), dtype=self.dtype)(nn.gelu(nn.LayerNorm(dtype=self.dtype)(x)))
        x = nn.Dense(self.width, dtype=self.dtype)(jnp.mean(x, axis=(1, 2)))
        y = nn.Embed(4096, self.width, dtype=self.dtype)(tokens)
        z = nn.LayerNorm(dtype=self.dtype)(y)
        y = y + nn.MultiHeadDotProductAttention(4, dtype=self.dtype)(z, z)
        y = nn.Dense(self.width, dtype=self.dtype)(jnp.mean(nn.LayerNorm(dtype=self.dtype)(y), axis=1))

        def unit(x):
            x = x.astype(jnp.float32)
            return (x / jnp.sqrt(jnp.sum(jnp.square(x), axis=-1, keepdims=True) + 1e-6)).astype(self.dtype)

        scale = self.param("scale", nn.initializers.constant(2.6), ())
        return jnp.exp(scale) * (unit(x) @ unit(y).T).astype(jnp.float32)


class Field(nn.Module):
    """A physics-informed network: a function of position and time, whose derivatives the loss uses."""

    dtype: jnp.dtype
    width: int = 256

    @nn.compact
    def __call__(self, x):
        for _ in range(4):
            x = jnp.tanh(nn.Dense(self.width, dtype=self.dtype)(x))
        return nn.Dense(1, dtype=self.dtype)(x)[..., 0].astype(jnp.float32)
