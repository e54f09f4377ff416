"""Makes `losses.meta.gz`: one training step with many losses as Keras and tf.losses trace them, each of a layer of its own.

    python make_losses.py FOLDER
"""

import argparse
import gzip
import importlib.util
import os
import sys

import tensorflow as tf

HERE = os.path.dirname(os.path.abspath(__file__))
TRACER = os.path.join(HERE, "..", "..", "..", "..", "python", "bf16scope", "tf.py")
v1, L = tf.compat.v1, tf.keras.losses


def focal_by_hand(y, x):
    """RetinaNet's, of plain ops around a cross-entropy."""
    entropy, p = tf.nn.sigmoid_cross_entropy_with_logits(labels=y, logits=x), tf.sigmoid(x)
    share = y * 0.25 + (1 - y) * (1 - 0.25)
    return tf.reduce_mean(share * tf.pow(1 - (y * p + (1 - y) * (1 - p)), 1.5) * entropy)


def divergence_by_hand(y, x):
    """With an ε that is no power of a focal loss."""
    return tf.reduce_mean(tf.reduce_sum(y * (v1.log(tf.clip_by_value(y, 1e-7, 1.0)) - tf.nn.log_softmax(x)), -1))


def focal_of_classes(y, x):
    entropy = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=tf.cast(y[:, 0], tf.int32), logits=x)
    return tf.reduce_mean(0.5 * (1 - tf.exp(-entropy)) ** 2 * entropy)


LOSSES = {
    "percentage": lambda y, x: L.MeanAbsolutePercentageError()(y, x),
    "logarithmic": lambda y, x: L.MeanSquaredLogarithmicError()(y, x),
    "divergence": lambda y, x: L.KLDivergence()(y, tf.nn.softmax(x)),
    "divergence_by_hand": divergence_by_hand,
    "cosine": lambda y, x: 1 + L.CosineSimilarity()(y, x),
    "cosine_distance": lambda y, x: v1.losses.cosine_distance(tf.nn.l2_normalize(y, 1), tf.nn.l2_normalize(x, 1), axis=1),
    "focal": lambda y, x: L.BinaryFocalCrossentropy(from_logits=True)(y, x),
    "focal_balanced": lambda y, x: L.BinaryFocalCrossentropy(apply_class_balancing=True, alpha=0.3, gamma=1.5)(y, tf.sigmoid(x)),
    "focal_by_hand": focal_by_hand,
    "focal_of_rows": lambda y, x: L.CategoricalFocalCrossentropy(alpha=0.5, gamma=3.0)(y, tf.nn.softmax(x)),
    "focal_of_classes": focal_of_classes,
    "hinge_of_rows": lambda y, x: L.CategoricalHinge()(y, x),
    "real": lambda y, x: L.BinaryCrossentropy(from_logits=True)(tf.ones_like(x), x),
}


def model_fn(features, labels, mode):
    terms = [0.5 * loss(labels[name], v1.layers.dense(features, 4, name=name)) for name, loss in LOSSES.items()]
    loss = tf.add_n(terms)
    train = v1.train.GradientDescentOptimizer(0.1).minimize(loss, v1.train.get_global_step())
    return v1.estimator.EstimatorSpec(mode, loss=loss, train_op=train)


def main(folder):
    spec = importlib.util.spec_from_file_location("bf16scope_tf", TRACER)
    tracer = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tracer)
    tracer.stand_in(tf)
    v1.disable_v2_behavior()
    labels = [f"{name}=8x4,float32" for name in LOSSES]
    args = argparse.Namespace(features=["x=8x6,float32"], labels=labels, params=[], mode="train", cores=1, function="model_fn")
    call = lambda features, labels, mode: model_fn(features["x"], labels, mode)
    graph = tracer.trace_model_fn(tf, call, args, tracer.Scopes(v1))
    with open(os.path.join(folder, "losses.meta.gz"), "wb") as file:
        file.write(gzip.compress(graph, mtime=0))


if __name__ == "__main__":
    main(*sys.argv[1:])
