"""Values and gradients by TensorFlow, for tests/networks/functions_tf.rs. See README.md.

usage: python record.py functions.npz
"""
import os
import sys

os.environ["TF_ENABLE_ONEDNN_OPTS"] = "0"
os.environ["CUDA_VISIBLE_DEVICES"] = ""
import keras
import numpy as np
import tensorflow as tf

rng = np.random.default_rng(20261122)
arrays = {}


def uniform(*shape, size=4.0):
    return rng.uniform(-size, size, shape).astype(np.float32)


def record(case, function, differentiated, others=(), xla=False):
    """What `function` of all inputs is, and its gradients by `differentiated`, in f32 and f64."""
    inputs = dict(differentiated) | dict(others)
    for name, value in inputs.items():
        arrays[f"{case}/in/{name}"] = value
    for dtype in ["float32", "float64"]:
        keras.backend.set_floatx(dtype)
        keras.config.set_dtype_policy(dtype)

        def run():
            given = {name: tf.constant(v if v.dtype == np.int32 else v.astype(dtype)) for name, v in inputs.items()}
            wrt = {name: given[name] for name in dict(differentiated)}
            with tf.GradientTape() as tape:
                tape.watch(wrt)
                value = function(*given.values())
            key = f"{case}/cotangent"
            if key not in arrays:
                arrays[key] = uniform(*value.shape, size=1.0)
            return value, tape.gradient(value, wrt, tf.constant(arrays[key].astype(dtype)))

        value, gradients = tf.function(run, jit_compile=True)() if xla else run()
        arrays[f"{case}/{dtype}/value"] = value.numpy()
        for name, gradient in gradients.items():
            arrays[f"{case}/{dtype}/gradient/{name}"] = tf.convert_to_tensor(gradient).numpy()


# Activations: on numbers at random, and on those where a rule may go wrong: kinks, and what overflows on the way.
# In f64 TensorFlow takes the constants of these three from f32: there they are written out.
def in_f64(function, formula):
    return lambda x: formula(x) if x.dtype == tf.float64 else function(x)

wide = lambda value: tf.constant(value, tf.float64)
ACTIVATIONS = {
    "relu": tf.nn.relu,
    "relu6": tf.nn.relu6,
    "leaky_relu": in_f64(lambda x: tf.nn.leaky_relu(x, alpha=0.2), lambda x: tf.where(x > 0, x, wide(0.2) * x)),
    "elu": tf.nn.elu,
    "selu": tf.nn.selu,
    "gelu": in_f64(lambda x: tf.nn.gelu(x, approximate=False),
                   lambda x: wide(0.5) * x * (1 + tf.math.erf(x * wide(np.sqrt(0.5))))),
    "gelu_tanh": in_f64(lambda x: tf.nn.gelu(x, approximate=True),
                        lambda x: wide(0.5) * x * (1 + tf.tanh(wide(np.sqrt(2 / np.pi)) * (x + wide(0.044715) * x ** 3)))),
    "silu": tf.nn.silu,
    "softplus": tf.nn.softplus,
    "softsign": tf.nn.softsign,
    "sigmoid": tf.nn.sigmoid,
    "hard_sigmoid": keras.activations.hard_sigmoid,
    "tanh": tf.nn.tanh,
    "exponential": tf.exp,
    "softmax": tf.nn.softmax,
    "log_softmax": tf.nn.log_softmax,
}
EDGES = np.array([[0.0, -0.0, 6.0, 3.0, -3.0, 40.0, -40.0, 1e-6, -1e-6]], np.float32)
for name, function in ACTIVATIONS.items():
    record(name, function, {"x": uniform(6, 11)})
    record(f"{name}_edges", function, {"x": EDGES})

# Layers with a kernel. Keras' layers call these functions.
def depthwise(strides, padding, rate):
    return lambda x, kernel, bias: tf.nn.bias_add(
        tf.nn.depthwise_conv2d(x, kernel, [1, strides, strides, 1], padding, dilations=[rate, rate]), bias)

def conv(strides, padding, rate):
    return lambda x, kernel, bias: tf.nn.bias_add(
        tf.nn.conv2d(x, kernel, [1, strides, strides, 1], padding, dilations=[1, rate, rate, 1]), bias)

image = lambda channels: uniform(2, 7, 6, channels)
record("depthwise_same", depthwise(1, "SAME", 1), {"x": image(3), "kernel": uniform(3, 2, 3, 1), "bias": uniform(3)})
record("depthwise_strided", depthwise(2, "SAME", 1), {"x": image(3), "kernel": uniform(3, 3, 3, 2), "bias": uniform(6)})
record("depthwise_dilated", depthwise(1, "VALID", 2), {"x": image(2), "kernel": uniform(3, 2, 2, 3), "bias": uniform(6)})
# On a CPU TensorFlow has gradients of groups and of dilation only by XLA.
record("conv_grouped", conv(2, "SAME", 1), {"x": image(4), "kernel": uniform(3, 3, 2, 6), "bias": uniform(6)}, xla=True)
record("conv_dilated", conv(1, "VALID", 2), {"x": image(2), "kernel": uniform(3, 2, 2, 4), "bias": uniform(4)}, xla=True)

# Layers without one.
record("max_pool", lambda x: tf.nn.max_pool2d(x, [3, 2], [2, 1], "SAME"), {"x": image(2)})
record("avg_pool", lambda x: tf.nn.avg_pool2d(x, [3, 2], [2, 1], "SAME"), {"x": image(2)})
record("global_max_pool", lambda x: keras.layers.GlobalMaxPooling2D()(x), {"x": image(2)})
record("global_avg_pool", lambda x: keras.layers.GlobalAveragePooling2D()(x), {"x": image(2)})
record("zero_padding", lambda x: keras.layers.ZeroPadding2D(((1, 2), (0, 3)))(x), {"x": image(2)})
record("upsample", lambda x: keras.layers.UpSampling2D((2, 3))(x), {"x": image(2)})
record("layer_norm", lambda x, gamma, beta: keras.ops.layer_normalization(x, gamma, beta, epsilon=1e-3),
       {"x": uniform(3, 4, 8), "gamma": uniform(8), "beta": uniform(8)})
# An index that comes twice: its row's gradients add up.
record("embedding", lambda table, indices: tf.gather(table, indices), {"table": uniform(7, 3)},
       {"indices": np.array([[0, 6, 2], [2, 2, 5]], np.int32)})

# Layers that merge.
for name, layer in {
    "add": keras.layers.Add, "subtract": keras.layers.Subtract, "multiply": keras.layers.Multiply,
    "average": keras.layers.Average, "maximum": keras.layers.Maximum, "minimum": keras.layers.Minimum,
}.items():
    names = "ab" if name == "subtract" else "abc"
    record(name, lambda *x, layer=layer: layer()(list(x)), {n: uniform(4, 5) for n in names})
record("concat", lambda a, b: keras.layers.Concatenate(axis=1)([a, b]), {"a": uniform(2, 3, 4), "b": uniform(2, 1, 4)})

# Losses, one number for each example. Those of tf.losses smooth labels likewise, but compute in f32 alone.
# Multiples of 1/64, whose sum is exactly 1: TensorFlow's gradient takes it for 1, ours is that of the formula.
distribution = (rng.multinomial(64, [0.1, 0.3, 0.0, 0.2, 0.15, 0.25], 5) / 64).astype(np.float32)
classes = {"labels": np.array([0, 5, 2, 2, 3], np.int32)}
answers = {"labels": (uniform(5, 6) > 0).astype(np.float32)}
mean_of_rows = lambda values: tf.reduce_mean(values, axis=[1])
record("mean_squared_error", lambda x, labels: keras.losses.mean_squared_error(labels, x),
       {"x": uniform(5, 6)}, {"labels": uniform(5, 6)})
record("mean_absolute_error", lambda x, labels: keras.losses.mean_absolute_error(labels, x),
       {"x": uniform(5, 6)}, {"labels": uniform(5, 6)})
record("sigmoid_cross_entropy", lambda x, labels: mean_of_rows(
    tf.nn.sigmoid_cross_entropy_with_logits(labels=labels, logits=x)), {"x": uniform(5, 6)}, answers)
record("sigmoid_cross_entropy_smoothed", lambda x, labels: keras.losses.binary_crossentropy(
    labels, x, from_logits=True, label_smoothing=0.1), {"x": uniform(5, 6)}, answers)
record("softmax_cross_entropy", lambda x, labels: tf.nn.softmax_cross_entropy_with_logits(labels=labels, logits=x),
       {"x": uniform(5, 6)}, {"labels": distribution})
record("softmax_cross_entropy_smoothed", lambda x, labels: keras.losses.categorical_crossentropy(
    labels, x, from_logits=True, label_smoothing=0.1), {"x": uniform(5, 6)}, {"labels": distribution})
record("sparse_softmax_cross_entropy", lambda x, labels: tf.nn.sparse_softmax_cross_entropy_with_logits(
    labels=labels, logits=x), {"x": uniform(5, 6)}, classes)
record("sparse_softmax_cross_entropy_smoothed", lambda x, labels: keras.losses.categorical_crossentropy(
    tf.one_hot(labels, 6, dtype=x.dtype), x, from_logits=True, label_smoothing=0.1), {"x": uniform(5, 6)}, classes)


# Losses of detectors and of segmentation, of probabilities that come from logits. No logit is where Keras clips them.
of_rows = lambda x: list(range(1, len(x.shape)))
record("sigmoid_focal", lambda x, labels: keras.losses.binary_focal_crossentropy(
    labels, tf.sigmoid(x), apply_class_balancing=True), {"x": uniform(5, 6)}, answers)
record("sigmoid_focal_smoothed", lambda x, labels: keras.losses.binary_focal_crossentropy(
    labels, tf.sigmoid(x), gamma=1.5, label_smoothing=0.1), {"x": uniform(5, 6)}, answers)
# RetinaNet's own, of TensorFlow's TPU models, by its formula.
def retinanet(x, labels):
    modulator = tf.exp(2.0 * labels * -x - 2.0 * tf.math.log1p(tf.exp(-x)))
    loss = modulator * tf.nn.sigmoid_cross_entropy_with_logits(labels=labels, logits=x)
    return mean_of_rows(tf.where(labels == 1.0, wide_as(0.25, x) * loss, wide_as(0.75, x) * loss))


wide_as = lambda value, x: tf.constant(value, x.dtype)
record("sigmoid_focal_retinanet", retinanet, {"x": uniform(5, 6)}, answers)
record("softmax_focal", lambda x, labels: keras.losses.categorical_focal_crossentropy(
    labels, x, from_logits=True), {"x": uniform(5, 6)}, {"labels": distribution})
record("softmax_focal_smoothed", lambda x, labels: keras.losses.categorical_focal_crossentropy(
    labels, x, alpha=1.0, gamma=1.5, from_logits=True, label_smoothing=0.1), {"x": uniform(5, 6)}, {"labels": distribution})
record("sparse_softmax_focal", lambda x, labels: keras.losses.categorical_focal_crossentropy(
    tf.one_hot(labels, 6, dtype=x.dtype), x, from_logits=True), {"x": uniform(5, 6)}, classes)
record("huber", lambda x, labels: keras.losses.huber(labels, x, delta=1.0), {"x": uniform(5, 6)},
       {"labels": uniform(5, 6)})
record("huber_delta", lambda x, labels: keras.losses.huber(labels, x, delta=0.125), {"x": uniform(5, 6)},
       {"labels": uniform(5, 6)})
masks = {"labels": (uniform(4, 3, 5) > 0).astype(np.float32)}
record("sigmoid_dice", lambda x, labels: keras.losses.dice(labels, tf.sigmoid(x), axis=of_rows(x)),
       {"x": uniform(4, 3, 5)}, masks)
record("softmax_dice", lambda x, labels: keras.losses.dice(labels, tf.nn.softmax(x), axis=of_rows(x)),
       {"x": uniform(4, 3, 5)}, {"labels": np.eye(5, dtype=np.float32)[rng.integers(0, 5, (4, 3))]})
# Weights of classes: Keras' `class_weight` multiplies the loss of each example by that of its class.
class_weight = lambda x: tf.constant([1.0, 0.5, 2.0, 0.0, 0.25, 3.0], x.dtype)
record("sparse_softmax_cross_entropy_weighted", lambda x, labels: tf.gather(class_weight(x), labels)
       * tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=x), {"x": uniform(5, 6)}, classes)

np.savez_compressed(sys.argv[1], **arrays)
print("tensorflow", tf.__version__, "keras", keras.__version__, "numpy", np.__version__, len(arrays), "arrays")
