"""Makes slip_*.meta.gz, tiny training graphs with one mistake each, and clean_*.meta.gz, graphs without one.

    python make_slips.py FOLDER
"""

import gzip
import os
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
import tensorflow as tf

v1 = tf.compat.v1


def dense(x, name, units, dtype=None):
    with v1.variable_scope(name):
        kernel = v1.get_variable("kernel", [int(x.shape[-1]), units], dtype or x.dtype)
        bias = v1.get_variable("bias", [units], dtype or x.dtype, v1.zeros_initializer())
    return tf.matmul(x, tf.cast(kernel, x.dtype)) + tf.cast(bias, x.dtype)


def save(folder, name, slip):
    graph = tf.Graph()
    with graph.as_default():
        x = v1.placeholder(tf.bfloat16, [8, 6], name="features")
        labels = v1.placeholder(tf.int32, [8], name="labels")

        def network(x):
            x = dense(x, "first", 4)
            if slip == "moments":
                mean, variance = tf.nn.moments(x, [0])
                x = (x - mean) * tf.math.rsqrt(variance + tf.cast(1e-3, x.dtype))
            if slip in ("norm_by_hand", "norm_in_f32"):
                x = tf.cast(x, tf.float32) if slip == "norm_in_f32" else x
                mean = tf.reduce_mean(x, 0)
                variance = tf.reduce_mean(tf.square(x - mean), 0)
                x = tf.cast((x - mean) * tf.math.rsqrt(variance + 1e-3), tf.bfloat16)
            return dense(tf.nn.relu(x), "second", 5)

        if slip == "bf16_variables":
            logits = network(x)
        else:
            with v1.tpu.bfloat16_scope():
                logits = network(x)
        if slip not in ("bf16_loss", "dice"):
            logits = tf.cast(logits, tf.float32)
        if slip == "dice":
            # UNet3D's: the network's own dtype goes on to its end.
            shares, truth = tf.nn.softmax(logits), tf.one_hot(labels, 5, dtype=tf.bfloat16)
            dice = (2.0 * tf.reduce_sum(shares * truth, [0]) + 1.0) / (tf.reduce_sum(shares + truth, [0]) + 1.0)
            loss = 1.0 - tf.reduce_mean(tf.cast(dice, tf.float32))
        else:
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits))
        optimizer = v1.train.GradientDescentOptimizer(0.1)
        if slip in ("sum_over_cores", "cores"):
            scaled = loss * 0.125 if slip == "cores" else loss
            pairs = optimizer.compute_gradients(scaled)
            graph_def = graph.create_op("TPUReplicateMetadata", [], [], attrs={"num_replicas": v1.AttrValue(i=8)}, name="TPUReplicateMetadata")
            groups = tf.constant([list(range(8))], tf.int32)
            pairs = [(tf.raw_ops.CrossReplicaSum(input=g, group_assignment=groups), v) for g, v in pairs]
            optimizer.apply_gradients(pairs)
        else:
            optimizer.minimize(loss)
        v1.summary.scalar("loss", tf.cast(loss, tf.float32))
        meta = v1.train.export_meta_graph(clear_devices=True)
    meta.meta_info_def.ClearField("stripped_op_list")
    for node in meta.graph_def.node:
        for key in [key for key in node.attr if key in ("_class", "_output_shapes")]:
            del node.attr[key]
    with open(os.path.join(folder, f"{name}.meta.gz"), "wb") as file:
        file.write(gzip.compress(meta.SerializeToString(deterministic=True), mtime=0))


if __name__ == "__main__":
    v1.disable_v2_behavior()
    for slip in ("bf16_loss", "bf16_variables", "dice", "moments", "norm_by_hand", "sum_over_cores"):
        save(sys.argv[1], f"slip_{slip}", slip)
    save(sys.argv[1], "clean_bf16", "")
    save(sys.argv[1], "clean_cores", "cores")
    save(sys.argv[1], "clean_norm", "norm_in_f32")
