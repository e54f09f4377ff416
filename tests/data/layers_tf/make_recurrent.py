"""What Keras' LSTM and GRU compute, and their gradients, in f32: `recurrent.npz` beside this.

TensorFlow 2.15.1 on a CPU, without XLA: `python make_recurrent.py`.
"""
import os
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import numpy as np
import tensorflow as tf

rng = np.random.default_rng(7)
B, T, D, U = 3, 5, 4, 6
out = {}


def case(name, make, masked, bidirectional, sequences):
    layer = make(U, return_sequences=sequences)
    if bidirectional:
        layer = tf.keras.layers.Bidirectional(layer)
    x = rng.normal(size=(B, T, D)).astype("f4")
    mask = np.array([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0], [0, 1, 1, 1, 0]], bool) if masked else None
    layer.build((B, T, D))
    weights = [rng.normal(size=v.shape, scale=0.5).astype("f4") for v in layer.weights]
    layer.set_weights(weights)
    xt = tf.constant(x)
    with tf.GradientTape() as tape:
        tape.watch(xt)
        y = layer(xt, mask=None if mask is None else tf.constant(mask))
        cot = rng.normal(size=y.shape).astype("f4")
        loss = tf.reduce_sum(y * cot)
    gx, *gw = tape.gradient(loss, [xt] + layer.trainable_weights)
    out[f"{name}/x"] = x
    out[f"{name}/y"] = y.numpy()
    out[f"{name}/cotangent"] = cot
    out[f"{name}/gradient_x"] = gx.numpy()
    if masked:
        out[f"{name}/mask"] = mask.astype("f4")
    for v, w, g in zip(layer.trainable_weights, weights, gw):
        short = v.name.split("/")[-1].split(":")[0]
        side = "forward/" if "forward" in v.name else "backward/" if "backward" in v.name else ""
        out[f"{name}/{side}{short}"] = w
        out[f"{name}/gradient_{side}{short}"] = tf.convert_to_tensor(g).numpy()


for kind, make in (("lstm", tf.keras.layers.LSTM), ("gru", tf.keras.layers.GRU)):
    case(kind, make, False, False, False)
    case(f"{kind}_sequences", make, False, False, True)
    case(f"{kind}_masked", make, True, False, True)
    case(f"{kind}_bidirectional", make, True, True, True)
    case(f"{kind}_bidirectional_last", make, False, True, False)
np.savez_compressed("recurrent.npz", **out)
