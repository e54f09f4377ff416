"""A small MobileNet-like network of Keras with random weights: its weights, and what it computes.

tensorflow-cpu 2.21 with Keras 3, Python 3.11, on a CPU: python make_keras.py
"""
import keras
import numpy as np


def network():
    inputs = keras.Input((16, 16, 3), name="images")
    x = keras.layers.Conv2D(8, 3, strides=2, padding="same", use_bias=False, name="stem")(inputs)
    x = keras.layers.BatchNormalization(name="stem_bn")(x)
    x = keras.layers.ReLU(6.0)(x)
    for number, filters in enumerate((12, 16)):
        x = keras.layers.DepthwiseConv2D(3, strides=number + 1, padding="same", use_bias=False, name=f"depthwise{number}")(x)
        x = keras.layers.BatchNormalization(name=f"depthwise{number}_bn")(x)
        x = keras.layers.ReLU(6.0)(x)
        x = keras.layers.Conv2D(filters, 1, use_bias=False, name=f"pointwise{number}")(x)
        x = keras.layers.BatchNormalization(name=f"pointwise{number}_bn")(x)
        x = keras.layers.ReLU(6.0)(x)
    x = keras.layers.GlobalAveragePooling2D()(x)
    return keras.Model(inputs, keras.layers.Dense(5, name="logits")(x))


rng = np.random.default_rng(0)
model = network()
values = []
for variable in model.weights:
    # So that logits depend on the image: kernels keep the size of what they read, and the bias is small.
    fan_in = 9 if variable.path.startswith("depthwise") else np.prod(variable.shape[:-1])
    scale = 2.5 / np.sqrt(fan_in) if variable.path.endswith("kernel") else 0.3
    value = rng.normal(size=variable.shape) * scale
    if variable.path.endswith(("gamma", "moving_variance")):
        value = 1.0 + 0.1 * np.abs(value)
    values.append(value.astype(np.float32))
model.set_weights(values)
images = rng.normal(size=(8, 16, 16, 3)).astype(np.float32)
np.savez_compressed("mobile_names.npz", **{v.path: np.asarray(v) for v in model.weights})
model.save("mobile.keras")
logits = model(images, training=False).numpy()
keras.config.set_dtype_policy("mixed_bfloat16")
low = network()
low.set_weights(values)
np.savez_compressed("mobile.npz", images=images, logits=logits, logits_bf16=np.asarray(low(images, training=False), np.float32))
