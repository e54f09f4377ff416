"""Makes `keras_NAME.meta.gz`: training steps of tf.function with Keras' optimizers of plain ops, as the tracer writes them.

    python make_keras.py FOLDER [NAME…]
"""

import argparse
import gzip
import importlib.util
import os
import sys

import tensorflow as tf

HERE = os.path.dirname(os.path.abspath(__file__))
TRACER = os.path.join(HERE, "..", "..", "..", "..", "python", "bf16scope", "tf.py")
K = tf.keras.optimizers
OPTIMIZERS = {
    "momentum": lambda: K.SGD(K.schedules.CosineDecay(0.1, 1000), momentum=0.9, nesterov=True),
    "decayed": lambda: K.SGD(0.1, momentum=0.9, weight_decay=1e-4, clipvalue=0.5),
    "adam": lambda: K.Adam(1e-3, beta_2=0.98, global_clipnorm=2.0),
    "adamw": lambda: K.AdamW(1e-3, weight_decay=0.004),
    "amsgrad": lambda: K.Adam(amsgrad=True),
    "nadam": lambda: K.Nadam(),
    "rmsprop": lambda: K.RMSprop(1e-3, rho=0.9, momentum=0.8, centered=True),
    "adagrad": lambda: K.Adagrad(0.05, initial_accumulator_value=0.2),
    "adadelta": lambda: K.Adadelta(1.0),
    "adamax": lambda: K.Adamax(2e-3),
    "ftrl": lambda: K.Ftrl(0.05, l1_regularization_strength=0.01, l2_regularization_strength=0.02),
    "lion": lambda: K.Lion(1e-4, weight_decay=0.1),
    "legacy": lambda: K.legacy.SGD(0.1, momentum=0.9, nesterov=True),
}
DENSE = ["x=8x6,float32", "y=8,int32"]
IDS = ["ids=8x4,int32", "y=8,int32"]


def trained_by(optimizer):
    """A step of an embedding, whose gradient is sparse, and a dense layer."""
    ids = tf.keras.Input((4,), dtype="int32", name="ids")
    x = tf.keras.layers.GlobalAveragePooling1D()(tf.keras.layers.Embedding(20, 6)(ids))
    model = tf.keras.Model(ids, tf.keras.layers.Dense(3)(x))
    loss_of = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    @tf.function
    def step(ids, y):
        with tf.GradientTape() as tape:
            loss = loss_of(y, model(ids, training=True))
        optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
        return loss

    return step


def by_hand():
    """Updates that are written in the loop, of a loss that is a sum."""
    kernel, bias = tf.Variable(tf.ones([6, 3]), name="dense/kernel"), tf.Variable(tf.zeros([3]), name="dense/bias")

    @tf.function
    def step(x, y):
        with tf.GradientTape() as tape:
            logits = tf.matmul(x, kernel) + bias
            loss = tf.reduce_sum(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=logits))
        for variable, gradient in zip([kernel, bias], tape.gradient(loss, [kernel, bias])):
            variable.assign_sub(0.05 * gradient)
        return loss

    return step


def two():
    """Two networks, each with a loss and an optimizer of its own, as in a GAN."""
    first = tf.keras.Sequential([tf.keras.Input((6,)), tf.keras.layers.Dense(6, name="first")])
    second = tf.keras.Sequential([tf.keras.Input((6,)), tf.keras.layers.Dense(1, name="second")])
    loss_of = tf.keras.losses.BinaryCrossentropy(from_logits=True)
    optimizers = [K.Adam(1e-4), K.Adam(2e-4, beta_1=0.5)]

    @tf.function
    def step(x, y):
        with tf.GradientTape() as one, tf.GradientTape() as other:
            fake, real = second(first(x)), second(y)
            loss = loss_of(tf.ones_like(fake), fake)
            judged = loss_of(tf.ones_like(real), real) + loss_of(tf.zeros_like(fake), fake)
        optimizers[0].apply_gradients(zip(one.gradient(loss, first.trainable_variables), first.trainable_variables))
        optimizers[1].apply_gradients(zip(other.gradient(judged, second.trainable_variables), second.trainable_variables))
        return loss, judged

    return step


class Positions(tf.keras.layers.Layer):
    """Learned positions, in a table that is longer than a sequence."""

    def __init__(self, name):
        super().__init__(name=name)
        self.table = tf.keras.layers.Embedding(10, 12, name="table")

    def call(self, x):
        return x + self.table(tf.range(8))


def decoder():
    """A decoder of Keras' layers: positions, causal attention with dropout, and a layer norm, all at their defaults."""
    layers = tf.keras.layers
    ids = tf.keras.Input((8,), dtype="int32", name="ids")
    x = Positions("positions")(layers.Embedding(20, 12, name="tokens")(ids))
    heads = layers.MultiHeadAttention(3, 4, dropout=0.1, name="heads")(x, x, use_causal_mask=True)
    x = layers.LayerNormalization(name="norm")(x + heads)
    model = tf.keras.Model(ids, layers.Dense(5, name="scores")(x))
    optimizer, loss_of = K.SGD(0.1), tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    @tf.function
    def step(ids, y):
        with tf.GradientTape() as tape:
            loss = loss_of(y, model(ids, training=True))
        optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
        return loss

    return step


def main(folder, *names):
    spec = importlib.util.spec_from_file_location("bf16scope_tf", TRACER)
    tracer = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tracer)
    steps = {name: (lambda make=make: trained_by(make()), IDS) for name, make in OPTIMIZERS.items()}
    steps.update(by_hand=(by_hand, DENSE), two=(two, ["x=8x6,float32", "y=8x6,float32"]), decoder=(decoder, ["ids=4x8,int32", "y=4x8,int32"]))
    for name in names or steps:
        tf.keras.backend.clear_session()
        tf.keras.utils.set_random_seed(54)
        make, features = steps[name]
        args = argparse.Namespace(features=features, labels=[], mode="train", function=name)
        with open(os.path.join(folder, f"keras_{name}.meta.gz"), "wb") as file:
            file.write(gzip.compress(tracer.trace_keras(tf, make(), args), mtime=0))


if __name__ == "__main__":
    main(*sys.argv[1:])
