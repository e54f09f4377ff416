"""Makes two_heads.meta.gz, plain_ops.meta.gz and up.meta.gz: networks whose layers consist of several ops each.

    python make_ported.py FOLDER

TensorFlow 2.15.1.
"""

import gzip
import os
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
import tensorflow as tf

v1 = tf.compat.v1


def two_heads():
    x = v1.placeholder(tf.float32, [4, 12], name="features")
    labels, price = v1.placeholder(tf.int32, [4], name="class"), v1.placeholder(tf.float32, [4, 1], name="price_label")
    x = v1.layers.dense(x, 6, activation=tf.nn.relu, name="body")
    loss = v1.losses.sparse_softmax_cross_entropy(labels, v1.layers.dense(x, 3, name="classes"))
    loss += 0.25 * v1.losses.mean_squared_error(price, v1.layers.dense(x, 1, name="price"))
    return loss


def normalised(x, axes, scale, offset, epsilon):
    mean, variance = tf.nn.moments(x, axes, keepdims=axes == [-1])
    return tf.nn.batch_normalization(x, mean, variance, offset, scale, epsilon), (mean, variance)


def variable(name, n, value=0.0, trainable=True):
    return v1.get_variable(name, [n], initializer=v1.constant_initializer(value), trainable=trainable)


def moved(name, momentum, statistics):
    for part, batch in zip(("moving_mean", "moving_variance"), statistics):
        moving = variable(f"{name}/{part}", 4, float(part == "moving_variance"), False)
        update = v1.assign_sub(moving, (moving - batch) * (1.0 - momentum))
        v1.add_to_collection(v1.GraphKeys.UPDATE_OPS, update)


def plain_ops():
    x = v1.placeholder(tf.float32, [2, 6, 6, 3], name="features")
    labels = v1.placeholder(tf.int32, [2], name="labels")
    x = v1.layers.conv2d(x, 4, 3, padding="same", name="conv",
                         kernel_initializer=v1.variance_scaling_initializer(2.0, "fan_out"))
    x, statistics = normalised(x, [0, 1, 2], variable("unfused/gamma", 4, 1.0), variable("unfused/beta", 4), 1e-3)
    moved("unfused", 0.9, statistics)
    x = tf.nn.swish(x)
    # slim: weights, and no gamma.
    weights = v1.get_variable("slim/weights", [3, 3, 4, 4])
    x = tf.nn.conv2d(x, weights, 1, "SAME")
    beta = variable("slim/BatchNorm/beta", 4)
    x, mean, variance = v1.nn.fused_batch_norm(x, tf.ones([4]), beta, epsilon=1e-3)[:3]
    moved("slim/BatchNorm", 0.999, (mean, variance))
    gate = tf.reduce_mean(x, [1, 2], keepdims=True)
    gate = v1.layers.conv2d(gate, 2, 1, activation=tf.nn.relu, name="reduce")
    x = x * tf.sigmoid(v1.layers.conv2d(gate, 4, 1, name="expand"))
    x = tf.reduce_mean(x, [1, 2])
    x, _ = normalised(x, [-1], variable("norm/gamma", 4, 1.0), variable("norm/beta", 4), 1e-6)
    logits = v1.layers.dense(x, 3, name="logits", kernel_initializer=v1.glorot_normal_initializer(),
                             bias_initializer=v1.ones_initializer())
    return v1.losses.sparse_softmax_cross_entropy(labels, logits)


def bert_gelu(x):
    return x * (0.5 * (1.0 + tf.tanh(0.7978845608028654 * (x + 0.044715 * tf.pow(x, 3)))))


def up():
    """Transposed convolutions, resizes and GELUs."""
    x = v1.placeholder(tf.float32, [2, 8, 8, 3], name="features")
    labels = v1.placeholder(tf.int32, [2], name="labels")
    x = tf.nn.gelu(v1.layers.conv2d(x, 4, 3, 2, "same", name="down"))
    x = bert_gelu(v1.layers.conv2d_transpose(x, 6, 3, 2, "same", name="same"))
    x = tf.nn.gelu(v1.layers.conv2d_transpose(x, 5, [3, 2], 2, name="valid"), approximate=True)
    kernel = v1.get_variable("odd/kernel", [3, 3, 4, 5])
    x = tf.nn.conv2d_transpose(x, kernel, [2, 33, 31, 4], 2, "SAME")
    x = v1.image.resize_nearest_neighbor(x, [66, 93])
    x = tf.image.resize(x, [132, 186])
    x = tf.reduce_mean(x, [1, 2])
    return v1.losses.sparse_softmax_cross_entropy(labels, v1.layers.dense(x, 3, name="logits"))


def main(folder):
    for name, network in (("two_heads", two_heads), ("plain_ops", plain_ops), ("up", up)):
        graph = tf.Graph()
        with graph.as_default():
            loss = network()
            with tf.control_dependencies(v1.get_collection(v1.GraphKeys.UPDATE_OPS)):
                v1.train.MomentumOptimizer(0.1, 0.9).minimize(loss, v1.train.get_or_create_global_step())
            meta = v1.train.export_meta_graph(clear_devices=True)
        meta.meta_info_def.ClearField("stripped_op_list")
        for node in meta.graph_def.node:
            for key in [key for key in node.attr if key in ("_class", "_output_shapes")]:
                del node.attr[key]
        with open(os.path.join(folder, f"{name}.meta.gz"), "wb") as file:
            file.write(gzip.compress(meta.SerializeToString(deterministic=True), mtime=0))


if __name__ == "__main__":
    v1.disable_v2_behavior()
    main(sys.argv[1])
