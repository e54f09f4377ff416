"""A training step of TensorFlow's DCGAN tutorial, small, for tests/training/gan.rs: TensorFlow 2.15.1 on a CPU, f32.

Two tapes over one forward pass, the losses and gradients of both networks, and the running statistics behind it. The
discriminator has a batch norm, too, which sees real pictures first and generated ones then. Variables have the names of
`bf16scope`'s network of layers.
"""

import numpy as np
import tensorflow as tf
from tensorflow.keras import layers

tf.keras.utils.set_random_seed(3)
rng = np.random.default_rng(7)
generator = tf.keras.Sequential([
    layers.Dense(2 * 2 * 8, use_bias=False, input_shape=(5,), name="dense"),
    layers.BatchNormalization(name="batch_norm"),
    layers.LeakyReLU(0.3),
    layers.Reshape((2, 2, 8)),
    layers.Conv2DTranspose(4, 3, strides=2, padding="same", use_bias=False, name="conv_transpose"),
    layers.BatchNormalization(name="batch_norm_1"),
    layers.LeakyReLU(0.3),
    layers.Conv2DTranspose(1, 3, strides=2, padding="same", activation="tanh", name="conv_transpose_1"),
])
discriminator = tf.keras.Sequential([
    layers.Conv2D(4, 3, strides=2, padding="same", input_shape=(8, 8, 1), name="conv"),
    layers.LeakyReLU(0.3),
    layers.Conv2D(8, 3, strides=2, padding="same", use_bias=False, name="conv_1"),
    layers.BatchNormalization(name="batch_norm"),
    layers.LeakyReLU(0.3),
    layers.Flatten(),
    layers.Dense(1, name="dense"),
])
networks = {"generator": generator, "discriminator": discriminator}
arrays = {}


def names(network):
    for layer in networks[network].layers:
        for variable in layer.weights:
            yield f"{network}/{layer.name}/{variable.name.split('/')[-1].split(':')[0]}", variable


images = np.tanh(rng.normal(size=(6, 8, 8, 1))).astype(np.float32)
noise = rng.normal(size=(6, 5)).astype(np.float32)
for network in networks:
    for name, variable in names(network):
        start = variable.numpy()
        if not name.endswith(("moving_mean", "moving_variance")):
            # Biases, offsets and factors that are not 0 and 1.
            start = start + 0.1 * rng.normal(size=start.shape).astype(np.float32)
            variable.assign(start)
        arrays[f"before/{name}"] = start

cross_entropy = tf.keras.losses.BinaryCrossentropy(from_logits=True)
with tf.GradientTape() as of_generator, tf.GradientTape() as of_discriminator:
    generated = generator(noise, training=True)
    real_output = discriminator(images, training=True)
    generated_output = discriminator(generated, training=True)
    generator_loss = cross_entropy(tf.ones_like(generated_output), generated_output)
    discriminator_loss = cross_entropy(tf.ones_like(real_output), real_output) + cross_entropy(
        tf.zeros_like(generated_output), generated_output
    )
tapes = {"generator": (of_generator, generator_loss), "discriminator": (of_discriminator, discriminator_loss)}
for network, (tape, loss) in tapes.items():
    arrays[f"{network}_loss"] = loss.numpy()
    trained = networks[network].trainable_variables
    gradients = dict(zip([id(variable) for variable in trained], tape.gradient(loss, trained)))
    for name, variable in names(network):
        if id(variable) in gradients:
            arrays[f"gradient/{name}"] = gradients[id(variable)].numpy()
        else:
            arrays[f"after/{name}"] = variable.numpy()
arrays |= {"images": images, "noise": noise}
np.savez_compressed("gan.npz", **arrays)
print({name: array.shape for name, array in arrays.items()}, generator_loss.numpy(), discriminator_loss.numpy())
