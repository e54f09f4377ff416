"""Makes step_*.meta.gz: tiny training steps with numbers in bf16, for several cores, with norms of gradients, sums over steps,
averages, and a Keras network of mixed precision.

    python make_steps.py FOLDER [NAME …]

TensorFlow 2.15.1.
"""

import gzip
import os
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
import tensorflow as tf

v1 = tf.compat.v1
keras = tf.keras


def dense(x, name, units):
    with v1.variable_scope(name):
        kernel = v1.get_variable("kernel", [int(x.shape[-1]), units])
        bias = v1.get_variable("bias", [units], initializer=v1.zeros_initializer())
    return tf.matmul(x, tf.cast(kernel, x.dtype)) + tf.cast(bias, x.dtype)


def network(dtype, head=lambda x: x):
    x = v1.placeholder(dtype, [8, 6], name="features")
    labels = v1.placeholder(tf.int32, [8], name="labels")
    return head(dense(tf.nn.relu(dense(x, "first", 4)), "second", 5)), labels


def loss_of(dtype):
    logits, labels = network(dtype)
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=tf.cast(logits, tf.float32))
    return tf.reduce_mean(losses)


def step():
    return v1.train.get_or_create_global_step()


def smoothed(labels_of):
    logits, labels = network(tf.bfloat16)
    labels = tf.cast(labels_of(labels), tf.float32)
    losses = tf.nn.softmax_cross_entropy_with_logits(labels=labels, logits=tf.cast(logits, tf.float32))
    v1.train.GradientDescentOptimizer(0.1).minimize(tf.reduce_mean(losses), step())


def cores(change):
    loss = loss_of(tf.bfloat16)
    optimizer = v1.train.GradientDescentOptimizer(0.1)
    pairs = optimizer.compute_gradients(loss * 0.125)
    v1.get_default_graph().create_op(
        "TPUReplicateMetadata", [], [], attrs={"num_replicas": v1.AttrValue(i=8)}, name="TPUReplicateMetadata")
    groups = tf.constant([list(range(8))], tf.int32)
    total = lambda x: tf.raw_ops.CrossReplicaSum(input=x, group_assignment=groups)
    if change == "loss":
        v1.summary.scalar("loss_of_all", total(loss))
    update = optimizer.apply_gradients([(total(g) if change == "gradients" else g, v) for g, v in pairs], step())
    if change == "variables":
        with tf.control_dependencies([update]):
            for variable in v1.trainable_variables():
                variable.assign(total(variable.read_value() * 0.125))


def changed(change):
    optimizer = v1.train.MomentumOptimizer(0.1, 0.9)
    gradients, variables = zip(*optimizer.compute_gradients(loss_of(tf.bfloat16)))
    optimizer.apply_gradients(zip(change(gradients), variables), step())


def cast(tensors, dtype):
    return [tf.cast(x, dtype) for x in tensors]


def norm_by_hand(gradients):
    norm = tf.sqrt(sum(tf.reduce_sum(tf.square(g)) for g in cast(gradients, tf.bfloat16)))
    factor = tf.cast(tf.minimum(1.0 / norm, tf.cast(1.0, tf.bfloat16)), tf.float32)
    return [g * factor for g in gradients]


def norm_shown(gradients):
    v1.summary.scalar("norm", tf.cast(tf.linalg.global_norm(cast(gradients, tf.bfloat16)), tf.float32))
    return gradients


def accumulated(n=4, divisor=4.0):
    optimizer = v1.train.GradientDescentOptimizer(0.1)
    pairs = optimizer.compute_gradients(loss_of(tf.float32))
    at = step()
    sums = [v1.get_variable(v.op.name + "/sum", v.shape, initializer=v1.zeros_initializer(), trainable=False) for _, v in pairs]

    def update():
        done = optimizer.apply_gradients([(s.read_value() / divisor, v) for s, (_, v) in zip(sums, pairs)])
        with tf.control_dependencies([done]):
            return tf.group(*[s.assign(tf.zeros_like(s)) for s in sums])

    with tf.control_dependencies([s.assign_add(g) for s, (g, _) in zip(sums, pairs)]):
        updated = tf.cond(tf.equal(at % n, n - 1), update, tf.no_op)
    with tf.control_dependencies([updated]):
        v1.add_to_collection("train_op", v1.assign_add(at, 1).op)


def averaged(how):
    loss = loss_of(tf.float32)
    v1.summary.scalar("loss", loss)
    update = v1.train.MomentumOptimizer(0.1, 0.9).minimize(loss, step())
    averages = v1.train.ExponentialMovingAverage(0.999)
    with tf.control_dependencies([update] if how == "waits" else []):
        averages.apply(v1.trainable_variables())
    if how == "grouped":
        tf.group(update, v1.get_default_graph().get_operation_by_name("ExponentialMovingAverage"), name="train")


def mixed(last_dtype, loss_of_probabilities):
    keras.mixed_precision.set_global_policy("mixed_bfloat16")
    inputs = keras.Input([6], batch_size=8)
    hidden = keras.layers.Dense(4, activation="relu")(inputs)
    model = keras.Model(inputs, keras.layers.Dense(5, activation="softmax", dtype=last_dtype)(hidden))
    keras.mixed_precision.set_global_policy("float32")
    labels = v1.placeholder(tf.int32, [8], name="labels")
    probabilities = model(v1.placeholder(tf.float32, [8, 6], name="features"), training=True)
    loss = tf.cast(loss_of_probabilities(labels, probabilities), tf.float32)
    v1.train.GradientDescentOptimizer(0.1).minimize(loss, step())


def by_hand(labels, probabilities):
    logarithms = tf.math.log(tf.cast(probabilities, tf.float32) + 1e-7)
    return -tf.reduce_mean(tf.reduce_sum(tf.one_hot(labels, 5) * logarithms, -1))


def by_classes(labels, probabilities):
    return keras.losses.CategoricalCrossentropy()(tf.one_hot(labels, 5), probabilities)


def clipped(dtype):
    return lambda gradients: cast(tf.clip_by_global_norm(cast(gradients, dtype), 1.0)[0], tf.float32)


STEPS = {
    "smooth": lambda: smoothed(lambda labels: tf.one_hot(labels, 5, dtype=tf.bfloat16) * 0.9 + 0.02),
    "smooth_values": lambda: smoothed(lambda labels: tf.one_hot(labels, 5, 0.92, 0.02)),
    "cores_apart": lambda: cores(""),
    "cores_loss": lambda: cores("loss"),
    "cores_gradients": lambda: cores("gradients"),
    "cores_variables": lambda: cores("variables"),
    "norm_bf16": lambda: changed(clipped(tf.bfloat16)),
    "norm_f32": lambda: changed(clipped(tf.float32)),
    "norm_by_hand": lambda: changed(norm_by_hand),
    "norm_shown": lambda: changed(norm_shown),
    "accumulated": accumulated,
    "accumulated_v2": accumulated,
    "accumulated_sum_v2": lambda: accumulated(divisor=1.0),
    "average_waits": lambda: averaged("waits"),
    "average_grouped": lambda: averaged("grouped"),
    "average_beside": lambda: averaged("beside"),
    "keras_bf16": lambda: mixed(None, by_classes),
    "keras_by_hand": lambda: mixed(None, by_hand),
    "keras_f32": lambda: mixed("float32", by_classes),
}


def main(folder, *names):
    for name in names or STEPS:
        is_v2 = name.endswith("_v2") or name.startswith("keras")
        (v1.enable_control_flow_v2 if is_v2 else v1.disable_control_flow_v2)()
        (v1.enable_resource_variables if is_v2 else v1.disable_resource_variables)()
        graph = tf.Graph()
        with graph.as_default():
            STEPS[name]()
            meta = v1.train.export_meta_graph(clear_devices=True)
        meta.meta_info_def.ClearField("stripped_op_list")
        for node in meta.graph_def.node:
            for key in [key for key in node.attr if key in ("_class", "_output_shapes", "_XlaMustCompile")]:
                del node.attr[key]
        with open(os.path.join(folder, f"step_{name}.meta.gz"), "wb") as file:
            file.write(gzip.compress(meta.SerializeToString(deterministic=True), mtime=0))


if __name__ == "__main__":
    v1.disable_v2_behavior()
    v1.keras.layers.enable_v2_dtype_behavior()
    main(*sys.argv[1:])
