"""What Keras' layers compute, and their gradients, in f32: `layers.npz` beside this.

TensorFlow 2.15.1 on a CPU, without XLA: `python make_layers.py`.
"""
import os
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import numpy as np
import tensorflow as tf

rng = np.random.default_rng(11)
L = tf.keras.layers
out = {}


def case(name, layer, dims):
    x = rng.normal(size=dims).astype("f4")
    layer.build(dims)
    weights = [rng.normal(size=v.shape).astype("f4") for v in layer.weights]
    layer.set_weights(weights)
    xt = tf.constant(x)
    with tf.GradientTape() as tape:
        tape.watch(xt)
        y = layer(xt)
        cotangent = rng.normal(size=y.shape).astype("f4")
        loss = tf.reduce_sum(y * cotangent)
    gradients = tape.gradient(loss, [xt] + layer.trainable_weights)
    out[f"{name}/x"], out[f"{name}/y"], out[f"{name}/cotangent"] = x, y.numpy(), cotangent
    out[f"{name}/gradient_x"] = gradients[0].numpy()
    for v, w, g in zip(layer.trainable_weights, weights, gradients[1:]):
        short = v.name.split("/")[-1].split(":")[0]
        out[f"{name}/{short}"], out[f"{name}/gradient_{short}"] = w, g.numpy()


case("conv1d_valid", L.Conv1D(6, 3, strides=2), (2, 9, 4))
case("conv1d_same", L.Conv1D(6, 4, padding="same", groups=2, activation="relu"), (2, 9, 4))
case("conv1d_causal", L.Conv1D(6, 3, padding="causal", dilation_rate=2, use_bias=False), (1, 9, 4))
case("group_norm", L.GroupNormalization(groups=2), (3, 4, 5, 6))
case("group_norm_instance", L.GroupNormalization(groups=-1, center=False, scale=False), (3, 7, 4))
case("global_avg_pool", L.GlobalAveragePooling1D(), (3, 5, 4))
case("global_max_pool", L.GlobalMaxPooling1D(), (3, 5, 4))
case("permute", L.Permute((2, 3, 1)), (2, 3, 4, 5))
case("crop", L.Cropping2D(((1, 2), (0, 3))), (2, 6, 7, 3))
np.savez_compressed("layers.npz", **out)
