"""Makes tpu_cluster.meta.gz, a graph of `tpu.replicate` with an infeed and its host, and once.meta.gz, a graph with a one-shot iterator.

    python make_hosts.py FOLDER
"""

import gzip
import os
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
import tensorflow as tf
from tensorflow.python.tpu import tpu, tpu_feed, training_loop

v1 = tf.compat.v1


def save(folder, name):
    meta = v1.train.export_meta_graph(clear_devices=True)
    meta.meta_info_def.ClearField("stripped_op_list")
    library = [node for function in meta.graph_def.library.function for node in function.node_def]
    for node in [*meta.graph_def.node, *library]:
        for key in [key for key in node.attr if key in ("_class", "_output_shapes", "metadata")]:
            del node.attr[key]
    with open(os.path.join(folder, f"{name}.meta.gz"), "wb") as file:
        file.write(gzip.compress(meta.SerializeToString(deterministic=True), mtime=0))


def examples():
    return v1.data.Dataset.from_tensor_slices((tf.zeros([20, 4], tf.uint8), tf.zeros([20], tf.int32)))


def network(features, labels):
    with v1.tpu.bfloat16_scope():
        kernel = v1.get_variable("kernel", [4, 3], use_resource=True)
    logits = tf.cast(tf.matmul(features, tf.cast(kernel, features.dtype)), tf.float32)
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits))


def cluster(folder):
    """An evaluation as TPUEstimator makes it: two cores, three steps a call, each with a batch of the infeed."""
    with tf.Graph().as_default():
        dataset = examples().shuffle(20).map(lambda x, label: (tf.cast(x, tf.bfloat16), label))
        dataset = dataset.batch(8, drop_remainder=True).repeat()
        iterator = v1.data.make_initializable_iterator(dataset)
        infeed = tpu_feed.InfeedQueue(tuple_types=[tf.bfloat16, tf.int32], tuple_shapes=[[8, 4], [8]])

        def program():
            step = lambda total, features, labels: total + network(features, labels)
            return training_loop.repeat(3, step, [0.0], infeed_queue=infeed)

        tpu.replicate(program, [[], []])
        infeed.split_inputs_and_generate_enqueue_ops(list(iterator.get_next()))
        save(folder, "tpu_cluster")


def once(folder):
    """A pipeline without a cast, in a function of its own."""
    with tf.Graph().as_default():
        parse = lambda x, label: (tf.cast(x, tf.float32), label)
        dataset = examples().repeat().apply(v1.data.experimental.map_and_batch(parse, 8, drop_remainder=True)).prefetch(2)
        features, labels = v1.data.make_one_shot_iterator(dataset).get_next()
        network(tf.cast(features, tf.bfloat16), labels)
        save(folder, "once")


if __name__ == "__main__":
    v1.disable_v2_behavior()
    cluster(sys.argv[1])
    once(sys.argv[1])
