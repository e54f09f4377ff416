"""Training steps by Keras and TensorFlow with constraints, spectral norms and gradient penalties, which stand in
`tests/training/constraints.rs`.

TensorFlow 2.15.1 on a CPU: `python record.py`.
"""
import os
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import numpy as np
import tensorflow as tf

L, C = tf.keras.layers, tf.keras.constraints
x_of, y_of = (5, 3), (5, 2)


def values(dims, first):
    return (((np.arange(np.prod(dims)) * 7 + first) % 13) / 10 - 0.6).astype("f4").reshape(dims)


def show(name, *arrays):
    numbers = [f"{number:.7g}" for array in arrays for number in np.asarray(array).ravel()]
    print(f'("{name}", &[{", ".join(numbers)}]),')


class Clip(C.Constraint):
    def __call__(self, w):
        return tf.clip_by_value(w, -0.25, 0.25)


def constrained(name, **options):
    layer = L.Dense(2, **options)
    model = tf.keras.Sequential([tf.keras.Input(x_of[1:]), layer])
    layer.set_weights([values((3, 2), 1), values((2,), 2)])
    model.compile(tf.keras.optimizers.SGD(0.5), "mse")
    for _ in range(3):
        model.train_on_batch(values(x_of, 5), values(y_of, 7))
    show(name, *layer.get_weights())


constrained("non_neg", kernel_constraint=C.NonNeg())
constrained("max_norm", kernel_constraint=C.MaxNorm(0.5), bias_constraint=C.MaxNorm(0.1))
constrained("max_norm_rows", kernel_constraint=C.MaxNorm(0.5, axis=1))
constrained("unit_norm", kernel_constraint="unit_norm")
constrained("min_max_norm", kernel_constraint=C.MinMaxNorm(0.2, 0.5, 0.75))
constrained("clip", kernel_constraint=Clip())

# One step of 0.5 down the mean square, through the spectral norm as torch differentiates it: u and v are constants.
for name, dims, rounds in [("spectral_norm", (3, 2), 1), ("spectral_norm_thrice", (3, 2), 3)]:
    kernel, bias = tf.Variable(values(dims, 1)), tf.Variable(values(dims[-1:], 2))
    u = tf.math.l2_normalize(values(dims[-1:], 4)[None])
    for _ in range(rounds):
        v = tf.math.l2_normalize(tf.matmul(u, kernel, transpose_b=True))
        u = tf.math.l2_normalize(tf.matmul(v, kernel))
    u, v = tf.constant(u), tf.constant(v)
    with tf.GradientTape() as tape:
        sigma = tf.matmul(tf.matmul(v, kernel), u, transpose_b=True)
        loss = tf.reduce_mean((values(x_of, 5) @ (kernel / sigma) + bias - values(y_of, 7)) ** 2)
    for variable, gradient in zip([kernel, bias], tape.gradient(loss, [kernel, bias])):
        variable.assign_sub(0.5 * gradient)
    show(name, kernel, bias, u, v)
    if rounds == 1:
        layer = L.SpectralNormalization(L.Dense(dims[-1]), power_iterations=1)
        layer.build((None, dims[0]))
        layer.layer.set_weights([values(dims, 1), values(dims[-1:], 2)])
        layer.vector_u.assign(values(dims[-1:], 4)[None])
        output = layer(values(x_of, 5), training=True)
        assert np.isclose(np.mean((output - values(y_of, 7)) ** 2), loss, rtol=1e-6), "Keras' layer gives another loss"

# WGAN-GP's penalty, 10 times, of a critic; the penalty's gradient alone.
hidden, last = tf.Variable(values((3, 4), 1)), tf.Variable(values((4, 1), 2))
with tf.GradientTape() as outer:
    x = tf.constant(values(x_of, 5))
    with tf.GradientTape() as inner:
        inner.watch(x)
        score = tf.tanh(x @ hidden) @ last
    slope = inner.gradient(score, x)
    norm = tf.sqrt(tf.reduce_sum(slope ** 2, axis=1) + 1e-12)
    penalty = 10 * tf.reduce_mean((norm - 1) ** 2)
gradients = outer.gradient(penalty, [hidden, last])
show("gradient_penalty", penalty, *[v - 0.5 * g for v, g in zip([hidden, last], gradients)])

# A physical law: the second derivative of a network with respect to its input.
hidden, last = tf.Variable(values((1, 4), 1)), tf.Variable(values((4, 1), 2))
with tf.GradientTape() as outer:
    t = tf.constant(values((5, 1), 5))
    with tf.GradientTape() as second:
        second.watch(t)
        with tf.GradientTape() as first:
            first.watch(t)
            u = tf.tanh(t @ hidden) @ last
        du = first.gradient(u, t)
    ddu = second.gradient(du, t)
    law = tf.reduce_mean((ddu + u) ** 2)
gradients = outer.gradient(law, [hidden, last])
show("second_derivative", law, *[v - 0.5 * g for v, g in zip([hidden, last], gradients)])
