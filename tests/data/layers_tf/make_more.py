"""What Keras' layers, and TensorFlow's functions, compute, and their gradients, in f32: `more.npz` beside this.

TensorFlow 2.15.1 on a CPU, without XLA: `python make_more.py`. Another CPU sums the products of dense layers, convolutions and
softmax in another order, so their last bits are others there. The layers' YAML is in `tests/networks/layers_more_tf.rs`.
`python make_more.py modules` writes `modules.txt.gz`: what TensorFlow hands to XLA for every case, before XLA changes it; names behind
it leave the cases that do not begin so out.
"""
import gzip
import os
import re
import sys
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import numpy as np
import tensorflow as tf
from tensorflow.compiler.xla.service import hlo_pb2

rng = np.random.default_rng(17)
L = tf.keras.layers
out = {}
MODULES = tuple(sys.argv[2:] or [""]) if sys.argv[1:2] == ["modules"] else ()
modules = []


def case(name, layer, *dims, integers={}, **kwargs):
    """`layer` of inputs `x`, `y`, …; those that `integers` has are those arrays."""
    names = "xyzuvw"[: len(dims)]
    arrays = [integers.get(n, rng.normal(size=d).astype("f4")) for n, d in zip(names, dims)]
    tensors = [tf.constant(a) for a in arrays]
    floats = [t for t in tensors if t.dtype == tf.float32]
    if isinstance(layer, L.Layer):
        layer(*tensors, **kwargs)
        weights = [rng.normal(size=v.shape).astype("f4") for v in layer.trainable_weights]
        for v, w in zip(layer.trainable_weights, weights):
            v.assign(w)
        variables, states = layer.trainable_weights, layer.non_trainable_weights
    else:
        variables, states, weights = [], [], []

    def result(cotangent, *tensors):
        floats = [t for t in tensors if t.dtype == tf.float32]
        with tf.GradientTape() as tape:
            tape.watch(floats)
            y = layer(*tensors, **kwargs)
            loss = tf.reduce_sum(y * cotangent)
        gradients = tape.gradient(loss, floats + variables, unconnected_gradients="zero")
        return y, [tf.convert_to_tensor(gradient) for gradient in gradients]

    cotangent = rng.normal(size=layer(*tensors, **kwargs).shape).astype("f4")
    if MODULES:
        return module(name, result, tf.constant(cotangent), names, tensors, variables, states)
    y, gradients = result(cotangent, *tensors)
    out[f"{name}/result"], out[f"{name}/cotangent"] = y.numpy(), cotangent
    for n, a in zip(names, arrays):
        out[f"{name}/{n}"] = a
    names = [n for n, t in zip(names, tensors) if t.dtype == tf.float32]
    for n, g in zip(names, gradients):
        out[f"{name}/gradient_{n}"] = g.numpy()
    for v, w, g in zip(variables, weights, gradients[len(floats):]):
        short = short_name(v)
        out[f"{name}/{short}"], out[f"{name}/gradient_{short}"] = w, g.numpy()


def module(name, result, cotangent, names, tensors, variables, states):
    """The text of a case's HLO behind a line of its name, its parameters and its results."""
    if not name.startswith(MODULES) or name == "upsample_2d":
        return  # XLA has no ResizeNearestNeighborGrad.
    compiled = tf.function(result, jit_compile=True)
    captured = compiled.get_concrete_function(cotangent, *tensors).captured_inputs
    variable = {id(v.handle): v for v in variables + states}
    captured = [variable[id(handle)] for handle in captured]
    arguments = list(zip(["cotangent", *names], [cotangent, *tensors])) + [(short_name(v), v) for v in captured]
    floats = [n for n, t in zip(names, tensors) if t.dtype == tf.float32]
    results = ["result"] + [f"gradient_{n}" for n in floats + [short_name(v) for v in variables]]
    ir = compiled.experimental_get_compiler_ir(cotangent, *tensors)
    text = ir(stage="hlo")
    if "{...}" in text:
        proto = hlo_pb2.HloModuleProto.FromString(ir(stage="hlo_serialized"))
        literals = {i.name: i.literal for c in proto.computations for i in c.instructions if i.opcode == "constant"}
        text = re.sub(r"(%([\w.]+) = \w+\[([\d,]*)\]\S* constant\(){\.\.\.}", lambda m: m[1] + elements(m[3], literals[m[2]]), text)
    text = re.sub(r", metadata={[^}]*}|, parameter_replication={[^}]*}|/\*index=\d+\*/", "", text)
    # An operand's shape stands where it is made.
    text = re.sub(r"(?<=[(\s])[a-z]\w*\[[\d,]*\](?:{[\d,]*})? %|(?<=get-tuple-element\()[^%]*%|(?<=while\()[^%]*%", "%", text)
    # Inputs that a loop reads may be constants of the module, and no parameters.
    shapes = re.findall(r"arg[\d.]+: \w+\[([\d,]*)\]", re.search("^ENTRY.*", text, re.M)[0])
    parameters = []
    for argument, tensor in arguments:
        if shapes and shapes[0] == ",".join(map(str, tensor.shape)):
            parameters.append(argument)
            shapes.pop(0)
    assert not shapes, f"{name}: {shapes} are no arguments"
    modules.append(f"// {name}: {' '.join(parameters)} -> {' '.join(results)}\n{text.strip()}\n")


def elements(dims, literal):
    """The elements of a constant as HLO's text has them; texts leave those of many out."""
    values = np.array(list(literal.f32s), "f4") if literal.f32s else np.array(list(literal.s32s) or [int(p) for p in literal.preds])

    def braced(a):
        return "{" + ", ".join(braced(row) for row in a) + "}" if a.ndim else str(a)

    return braced(values.reshape([int(dim) for dim in dims.split(",")]))


def short_name(v):
    short = re.sub("^multi_head_attention[^/]*/", "", v.name.split(":")[0].split("/", 1)[1])
    short = short.replace("attention_output", "out")
    if v.name.startswith("depthwise_conv2d"):
        short = short.replace("depthwise_", "")
    if "_cell" in short:
        side = re.search("forward|backward", v.name)
        short = (side[0] + "/" if side else "") + short.rsplit("/", 1)[1]
    return short


case("conv3d", L.Conv3D(4, (2, 3, 2), strides=(1, 2, 1), padding="same"), (2, 4, 5, 3, 2))
case("conv3d_grouped", L.Conv3D(4, 2, groups=1, use_bias=False, activation="relu"), (1, 3, 4, 3, 2))
case("conv_transpose_1d", L.Conv1DTranspose(3, 4, strides=2, padding="same"), (2, 5, 4))
case("conv_transpose_1d_valid", L.Conv1DTranspose(3, 4, strides=3), (2, 5, 4))
case("conv_transpose_2d", L.Conv2DTranspose(3, (3, 4), strides=(2, 3)), (2, 4, 3, 2))
case("conv_transpose_2d_same", L.Conv2DTranspose(3, 3, strides=2, padding="same", activation="relu"), (2, 4, 3, 2))
case("conv_transpose_2d_short", L.Conv2DTranspose(3, 2, strides=3), (1, 4, 3, 2))
case("conv_transpose_2d_added", L.Conv2DTranspose(3, 3, strides=2, padding="same", output_padding=0), (1, 4, 3, 2))
case("conv_transpose_3d", L.Conv3DTranspose(2, 3, strides=2, padding="same"), (1, 2, 3, 2, 2))
case("separable_1d", L.SeparableConv1D(5, 3, depth_multiplier=2, padding="same"), (2, 7, 3))
case("separable_2d", L.SeparableConv2D(5, 3, strides=2, padding="same", activation="relu"), (2, 7, 6, 3))
case("max_pool_1d", L.MaxPooling1D(3, 2, padding="same"), (2, 7, 3))
case("max_pool_3d", L.MaxPooling3D((2, 1, 2)), (2, 4, 3, 5, 2))
case("avg_pool_1d", L.AveragePooling1D(3, 2, padding="same"), (2, 7, 3))
case("avg_pool_3d", L.AveragePooling3D(2, padding="same"), (2, 3, 4, 5, 2))
case("global_avg_3d", L.GlobalAveragePooling3D(), (2, 3, 4, 2, 3))
case("upsample_1d", L.UpSampling1D(3), (2, 4, 2))
case("upsample_3d", L.UpSampling3D((2, 1, 2)), (1, 2, 3, 2, 2))
case("upsample_lines", L.UpSampling2D((2, 3), interpolation="bilinear"), (2, 3, 4, 2))
case("zero_padding_1d", L.ZeroPadding1D((1, 2)), (2, 4, 2))
case("zero_padding_3d", L.ZeroPadding3D(((1, 2), (0, 1), (3, 0))), (1, 2, 3, 2, 2))
case("crop_1d", L.Cropping1D((1, 2)), (2, 6, 2))
case("crop_3d", L.Cropping3D(1), (1, 4, 3, 5, 2))
case("prelu", L.PReLU(shared_axes=[1, 2]), (2, 3, 4, 5))
case("softmax_axes", L.Softmax(axis=(1, 2)), (2, 3, 4, 5))
case("dot", lambda x, y: L.Dot(axes=(2, 1))([x, y]), (2, 3, 4), (2, 4, 5))
case("cosine", lambda x, y: L.Dot(axes=1, normalize=True)([x, y]), (3, 6), (3, 6))
case("unit_norm", lambda x: tf.math.l2_normalize(x, axis=-1), (3, 6))
case("multiply", lambda x, y: L.Multiply()([x, y]), (2, 3, 4, 5), (2, 5))
case("add_row", lambda x, y: L.Add()([x, y]), (2, 1, 5), (2, 4, 5))
case("batch_norm_plain", L.BatchNormalization(center=False, scale=False), (4, 3, 5), training=True)
case("layer_norm_plain", L.LayerNormalization(center=False), (4, 3, 5))
case("gather", lambda x, y: tf.gather(x, y, batch_dims=1), (2, 5, 3), (2, 4),
     integers={"y": np.array([[0, 3, 3, 4], [2, 0, 1, 1]], "i4")})
case("expression", lambda x, y: x * tf.sigmoid(y) + tf.square(x - y) / 2 - tf.maximum(x, 0.25), (3, 4), (3, 4))
case("expression_where", lambda x, y: tf.where(x > y, x * 2.0, tf.zeros_like(y)), (3, 4), (3, 4))
for how in ["sum", "mean", "max", "min", "prod", "variance", "std", "logsumexp"]:
    case(f"reduce_{how}", lambda x: getattr(tf.math, "reduce_" + how)(x, axis=[1, 2]), (2, 3, 4, 2))
case("reduce_l2_norm", lambda x: tf.norm(x, axis=2, keepdims=True), (2, 3, 4))
mask = np.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 0]], "i4")
segments = np.array([[1, 1, 2, 2, 0], [1, 1, 1, 2, 2]], "i4")


def attention(heads, size, seen, **kwargs):
    layer = L.MultiHeadAttention(heads, size, **kwargs)

    class Wrapped(L.Layer):
        def call(self, x, y=None, z=None):
            return layer(x, x if y is None else y, attention_mask=seen, use_causal_mask=False)

        @property
        def trainable_weights(self):
            return layer.trainable_weights

    return Wrapped()


positions = np.arange(5)
ahead = positions[:, None] - positions[None, :]
case("attention_padding", attention(2, 3, np.repeat(mask[:, None] > 0, 5, 1)), (2, 5, 6))
out["attention_padding/mask"] = mask
case("attention_segments", attention(2, 3, segments[:, :, None] == segments[:, None, :]), (2, 5, 6))
out["attention_segments/mask"] = segments
case("attention_window", attention(2, 3, np.repeat(((ahead >= 0) & (ahead < 2))[None], 2, 0)), (2, 5, 6))
case("attention_cross", attention(2, 4, np.repeat(mask[:, None] > 0, 3, 1)), (2, 3, 6), (2, 5, 6))
out["attention_cross/mask"] = mask


def started(layer, n):
    """A recurrent layer that starts from y, n times."""

    class Started(L.Layer):
        def call(self, x, y):
            return layer(x, initial_state=[y] * n)

        @property
        def trainable_weights(self):
            return layer.trainable_weights

    return Started()


case("lstm_started", started(L.LSTM(4, return_sequences=True), 2), (2, 5, 3), (2, 4))
case("gru_started", started(L.GRU(4), 1), (2, 5, 3), (2, 4))
case("lstm_started_both", started(L.Bidirectional(L.LSTM(4, return_sequences=True)), 4), (2, 5, 3), (2, 4))
case("take_last", lambda x: x[:, :, -1], (2, 5, 3))
case("dense", L.Dense(4, activation="relu"), (3, 6))
case("conv1d", L.Conv1D(6, 3, padding="causal", dilation_rate=2), (2, 9, 4))
case("conv2d", L.Conv2D(4, 3, strides=2, padding="same"), (2, 5, 6, 3))
case("depthwise", L.DepthwiseConv2D(3, padding="same", depth_multiplier=2), (2, 5, 4, 3))
case("group_norm", L.GroupNormalization(groups=2), (3, 4, 5, 6))
case("layer_norm", L.LayerNormalization(), (4, 3, 5))
case("permute", L.Permute((2, 3, 1)), (2, 3, 4, 5))
case("global_avg_1d", L.GlobalAveragePooling1D(), (3, 5, 4))
case("global_avg_2d", L.GlobalAveragePooling2D(), (3, 5, 4, 2))
case("global_max_1d", L.GlobalMaxPooling1D(), (3, 5, 4))
case("max_pool_2d", L.MaxPooling2D(3, 2, padding="same"), (2, 5, 6, 3))
case("avg_pool_2d", L.AveragePooling2D(2), (2, 5, 6, 3))
case("crop_2d", L.Cropping2D(((1, 2), (0, 3))), (2, 6, 7, 3))
case("upsample_2d", L.UpSampling2D((2, 3)), (2, 3, 4, 2))
case("softmax", L.Softmax(), (3, 5))
case("repeat_vector", L.RepeatVector(3), (2, 4))
case("slice", lambda x: x[:, 1:-1], (2, 5, 3))
case("one_hot", lambda x: tf.one_hot(x, 5), (2, 4), integers={"x": np.array([[0, 4, 2, 5], [1, 1, -1, 3]], "i4")})
case("cast_compute", lambda x: tf.cast(x, tf.float32), (2, 3), integers={"x": np.array([[0, -7, 3], [100, 1, 5]], "i4")})
case("cast_int32", lambda x: tf.cast(tf.cast(x * 2, tf.int32), x.dtype), (3, 8))
padded = rng.normal(size=(2, 4, 3)).astype("f4")
padded[0, 2:] = padded[1, 1, :2] = padded[1, 3] = 0
case("masking", lambda x: tf.cast(L.Masking().compute_mask(x), tf.float32), (2, 4, 3), integers={"x": padded})
images = dict(recurrent_activation="sigmoid")
case("convlstm", L.ConvLSTM2D(3, 3, padding="same", return_sequences=True, **images), (2, 4, 5, 6, 2))
case("convlstm_last", L.ConvLSTM2D(2, (3, 2), strides=2, use_bias=False, **images), (2, 3, 7, 6, 2))


def weighted(shape, function):
    """`function` of x and a variable of this shape."""

    class Weighted(L.Layer):
        def build(self, _):
            self.value = self.add_weight("value", shape)

        def call(self, x):
            return function(x, self.value)

    return Weighted()


case("variable_scale", weighted((4,), lambda x, v: x * v), (2, 3, 4))
case("variable_queries", weighted((2, 4), lambda x, v: tf.einsum("qf,bpf->bqp", v, x)), (2, 3, 4))
case("variable_number", weighted((), lambda x, v: x * tf.exp(v)), (2, 3, 4))
case("expression_more", lambda x, y: tf.clip_by_value(x, -0.5, 0.75) * tf.round(3 * y) + tf.pow(y ** 2 + 1, 0.5)
     + tf.math.floormod(x, 0.75) + tf.math.floordiv(y, 0.5) - tf.where(x > y, 1.0, 0.5) * 2 ** 0.5, (3, 4), (3, 4))
case("attention_windows", attention(2, 3, None, attention_axes=(2,)), (2, 3, 4, 6))
case("attention_wider", attention(2, 3, None), (2, 3, 6), (2, 5, 4))
case("attention_windows_masked", attention(2, 3, np.repeat(np.repeat(mask[:, None, None] > 0, 4, 1), 5, 2),
                                           attention_axes=(2,)), (2, 4, 5, 6))
out["attention_windows_masked/mask"] = np.repeat(mask[:, None], 4, 1)


def masked(layer):
    """A recurrent layer under the mask."""

    class Masked(L.Layer):
        def call(self, x):
            return layer(x, mask=tf.constant(mask > 0))

        @property
        def trainable_weights(self):
            return layer.trainable_weights

    return Masked()


def bucket(distance, both, num_buckets, max_distance):
    """`_relative_position_bucket` of T5, in its own operations."""
    buckets = 0
    if both:
        num_buckets //= 2
        buckets += tf.cast(tf.math.greater(distance, 0), distance.dtype) * num_buckets
        distance = tf.math.abs(distance)
    else:
        distance = -tf.math.minimum(distance, 0)
    max_exact = num_buckets // 2
    share = tf.math.log(tf.cast(distance, tf.float32) / tf.cast(max_exact, tf.float32)) / np.log(max_distance / max_exact)
    far = max_exact + tf.cast(share * (num_buckets - max_exact), distance.dtype)
    far = tf.math.minimum(far, num_buckets - 1)
    return buckets + tf.where(tf.math.less(distance, max_exact), distance, far)


class T5Attention(L.Layer):
    """T5's self-attention with a table of relative positions, with queries divided by the root of their size."""

    def __init__(self, heads, size, both):
        super().__init__()
        self.heads, self.size, self.both = heads, size, both

    def build(self, dims):
        features = dims[-1]
        self.kernels = [self.add_weight(f"{name}/kernel", (features, self.heads, self.size)) for name in ["query", "key", "value"]]
        self.table = self.add_weight("relative_positions", (8, self.heads))
        self.out = self.add_weight("out/kernel", (self.heads, self.size, features))

    def call(self, x):
        q, k, v = (tf.einsum("bpf,fhs->bhps", x, kernel) for kernel in self.kernels)
        scores = tf.einsum("bhps,bhos->bhpo", q / self.size ** 0.5, k)
        at = tf.range(x.shape[1])
        buckets = bucket(at[None, :] - at[:, None], self.both, 8, 20)
        scores += tf.transpose(tf.gather(self.table, buckets), [2, 0, 1])[None]
        if not self.both:
            scores = tf.where(at[None, :] > at[:, None], -1e9, scores)
        return tf.einsum("bhps,hsf->bpf", tf.einsum("bhpo,bhos->bhps", tf.nn.softmax(scores), v), self.out)


class RmsNorm(L.Layer):
    """T5's norm, as Keras 3's `RMSNormalization`."""

    def build(self, dims):
        self.scale = self.add_weight("scale", (dims[-1],))

    def call(self, x):
        return x * tf.math.rsqrt(tf.reduce_mean(tf.square(x), -1, keepdims=True) + 1e-6) * self.scale


class PositionEmbedding(L.Layer):
    """A learned vector for each position, added, as BERT's."""

    def __init__(self, positions):
        super().__init__()
        self.positions = positions

    def build(self, dims):
        self.table = self.add_weight("embeddings", (self.positions, dims[-1]))

    def call(self, x):
        return x + self.table[: x.shape[1]]


A = tf.keras.activations
activations = {
    "relu": A.relu, "relu6": tf.nn.relu6, "leaky_relu": tf.nn.leaky_relu, "elu": A.elu, "selu": A.selu, "gelu": A.gelu,
    "gelu_tanh": lambda x: A.gelu(x, approximate=True), "silu": A.swish, "softplus": A.softplus, "softsign": A.softsign,
    "sigmoid": A.sigmoid, "hard_sigmoid": lambda x: tf.nn.relu6(x + 3.0) / 6.0, "tanh": A.tanh, "exponential": A.exponential,
    "softmax": A.softmax, "log_softmax": tf.nn.log_softmax, "linear": A.linear,
}
for name, function in activations.items():
    case(f"activation_{name}", function, (4, 9), integers={"x": (3 * rng.normal(size=(4, 9))).astype("f4")})
case("leaky_relu", L.LeakyReLU(0.1), (3, 7))
case("instance_norm", L.GroupNormalization(groups=-1), (3, 4, 5, 6))
case("batch_norm", L.BatchNormalization(), (3, 4, 2, 5), training=True)
for name, layer in [("add", L.Add), ("subtract", L.Subtract), ("average", L.Average), ("maximum", L.Maximum), ("minimum", L.Minimum)]:
    case(name, lambda x, y: layer()([x, y]), (2, 3, 4), (2, 3, 4))
case("concat", lambda x, y: L.Concatenate()([x, y]), (2, 3, 4), (2, 3, 2))
case("embedding", L.Embedding(6, 3), (2, 4), integers={"x": np.array([[0, 5, 2, 2], [1, 2, 4, 0]], "i4")})
case("global_max_2d", L.GlobalMaxPooling2D(), (3, 5, 4, 2))
case("global_max_3d", L.GlobalMaxPooling3D(), (2, 3, 4, 2, 3))
case("relative_positions", T5Attention(2, 3, True), (2, 12, 6))
case("relative_positions_causal", T5Attention(2, 3, False), (2, 12, 6))
case("simple_rnn", L.SimpleRNN(4), (2, 5, 3))
case("simple_rnn_masked", masked(L.SimpleRNN(4, return_sequences=True)), (2, 5, 3))
case("lstm_masked", masked(L.LSTM(4, return_sequences=True)), (2, 5, 3))
case("gru_masked", masked(L.GRU(4, return_sequences=True)), (2, 5, 3))
for name in ["simple_rnn_masked", "lstm_masked", "gru_masked"]:
    out[f"{name}/mask"] = mask
case("cumsum", lambda x: tf.cumsum(x, 1), (2, 7, 3))
case("cumsum_reverse", lambda x: tf.cumsum(x, -1, reverse=True), (2, 3, 7))
# Numbers that are all different in bf16, too.
apart = (rng.permutation(42).reshape(2, 7, 3) / 4 - 5).astype("f4")
case("sort", lambda x: tf.sort(x, 1), (2, 7, 3), integers={"x": apart})
case("sort_descending", lambda x: tf.sort(x, direction="DESCENDING"), (2, 7, 3), integers={"x": apart})
case("top_k", lambda x: tf.math.top_k(x, 3).values, (2, 3, 7), integers={"x": apart.reshape(2, 3, 7)})
case("unit_norm_axis", L.UnitNormalization(axis=1), (2, 5, 3))

def both(x, y):
    return tf.complex(x, y)


case("fft_plane", lambda x: tf.math.real(tf.signal.fft2d(tf.cast(x, tf.complex64))), (2, 6, 5))
case("fft_imaginary", lambda x: tf.math.imag(tf.signal.fft(tf.cast(x, tf.complex64))), (2, 3, 7))
case("fft_steps", lambda x, y: tf.transpose(tf.math.real(tf.signal.fft(tf.transpose(both(x, y), (0, 2, 1)))), (0, 2, 1)),
     (2, 8, 3), (2, 8, 3))
case("ifft_power", lambda x, y: tf.abs(tf.signal.ifft(both(x, y))) ** 2, (2, 3, 6), (2, 3, 6))
case("rfft_abs", lambda x: tf.abs(tf.signal.rfft(x)), (2, 3, 8))
case("rfft_plane", lambda x: tf.math.imag(tf.signal.rfft2d(x)), (2, 4, 5))
case("irfft_even", lambda x, y: tf.signal.irfft(both(x, y)), (2, 3, 5), (2, 3, 5))
case("irfft_odd", lambda x, y: tf.signal.irfft(both(x, y), [7]), (2, 3, 4), (2, 3, 4))
case("irfft_plane", lambda x, y: tf.signal.irfft2d(both(x, y)), (2, 4, 4), (2, 4, 4))
case("top_k_indices", lambda x: tf.cast(tf.math.top_k(x, 3).indices, tf.float32) * tf.math.top_k(x, 3).values, (3, 9))
case("sort_indices", lambda x: tf.cast(tf.argsort(x, 1, stable=True), tf.float32) * x, (3, 5, 2))
case("arg_max", lambda x: x * tf.one_hot(tf.argmax(x, 1), 5, axis=1), (3, 5, 2))
case("arg_min", lambda x: x * tf.one_hot(tf.argmin(x, -1), 4), (3, 5, 4))
case("constant", lambda x: x * tf.constant([[1, 2.5, -3], [0, 1, 4]]), (4, 2, 3))
case("rescaling", L.Rescaling(0.25, -1.5), (4, 3, 5))
case("rms_norm", RmsNorm(), (3, 4, 7))
case("position_embedding", PositionEmbedding(6), (3, 4, 5))

# The share of Keras' noise below -2, -1, 0, 1 and 2 standard deviations, of 65,536 numbers.
tf.random.set_seed(5)
for name, layer, mean, deviation in [("gaussian_noise", L.GaussianNoise(0.5), 2, 0.5), ("gaussian_dropout", L.GaussianDropout(0.2), 2, 1)]:
    noise = (layer(tf.fill((64, 1024), 2.0), training=True).numpy() - mean) / deviation
    out[f"{name}/below"] = np.array([(noise < bound).mean() for bound in (-2, -1, 0, 1, 2)], "f4")
if MODULES:
    with gzip.GzipFile("modules.txt.gz", "wb", mtime=0) as file:
        file.write("".join(modules).encode())
else:
    np.savez_compressed("more.npz", **out)
