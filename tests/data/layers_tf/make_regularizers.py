"""Losses of Keras with regularizers, which stand in `tests/networks/objectives.rs`.

TensorFlow 2.15.1 on a CPU: `python make_regularizers.py`.
"""
import os
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import numpy as np
import tensorflow as tf

L, R = tf.keras.layers, tf.keras.regularizers


def values(dims, first):
    return (((np.arange(np.prod(dims)) * 7 + first) % 13) / 10 - 0.6).astype("f4").reshape(dims)


def loss(of_shared, of_last):
    a, b = tf.keras.Input([3]), tf.keras.Input([3])
    shared, last = L.Dense(4, **of_shared), L.Dense(2, **of_last)
    model = tf.keras.Model([a, b], last(L.Concatenate()([shared(a), shared(b)])))
    shared.set_weights([values((3, 4), 1), values((4,), 2)])
    last.set_weights([values((8, 2), 3), values((2,), 4)])
    model.compile("sgd", "mse")
    return model.evaluate([values((5, 3), 5), values((5, 3), 6)], values((5, 2), 7), batch_size=5, verbose=0)


l1, l2 = dict(kernel_regularizer=R.L1(0.02)), dict(bias_regularizer=R.L2(0.03))
activity, both = dict(activity_regularizer=R.L1L2(0.01, 0.04)), dict(kernel_regularizer="l1_l2")
for of_shared, of_last in [
    ({}, {}),
    (l1, {}),
    (l2, {}),
    (activity, {}),
    ({}, both),
    (l1 | l2 | activity, both | dict(activity_regularizer="l2")),
]:
    print(loss(of_shared, of_last))
