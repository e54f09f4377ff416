"""Makes training.*: graphs of training steps as a Saver writes them, and TensorFlow's results of three steps.

    python make_training.py FOLDER

writes NAME.meta.gz (MetaGraphDef) and NAME.safetensors (variables before, batches, losses and variables after). Tiny
networks in the forms that people write: references and resources, bfloat16_scope, batch norm's updates as control inputs,
schedules by the global step. TensorFlow 2.15.1 made what is committed.
"""

import gzip
import json
import os
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
import numpy as np
import tensorflow as tf

v1 = tf.compat.v1
layers = v1.layers


def batch_norm(x, training=True, gamma=None):
    return layers.batch_normalization(x, momentum=0.9, epsilon=1e-5, training=training, fused=True,
                                      gamma_initializer=gamma or v1.ones_initializer())


def fixed_padding(x, size):
    before = (size - 1) // 2
    return tf.pad(x, [[0, 0], [before, size - 1 - before], [before, size - 1 - before], [0, 0]])


def conv(x, filters, size, stride=1):
    x = fixed_padding(x, size) if stride > 1 else x
    return layers.conv2d(x, filters, size, stride, "SAME" if stride == 1 else "VALID", use_bias=False,
                         kernel_initializer=v1.variance_scaling_initializer())


def bottleneck(x, filters, stride):
    shortcut = batch_norm(conv(x, 4 * filters, 1, stride)) if int(x.shape[-1]) != 4 * filters else x
    y = tf.nn.relu(batch_norm(conv(x, filters, 1)))
    y = tf.nn.relu(batch_norm(conv(y, filters, 3, stride)))
    y = batch_norm(conv(y, 4 * filters, 1), gamma=v1.zeros_initializer())
    return tf.nn.relu(y + shortcut)


def mlp(x):
    x = layers.dense(layers.flatten(x), 8, activation=tf.nn.relu)
    return layers.dense(x, 5)


def cnn(x):
    x = tf.nn.relu(batch_norm(layers.conv2d(x, 4, 3, padding="same", use_bias=False)))
    x = layers.max_pooling2d(x, 2, 2)
    x = layers.conv2d(x, 6, 3, activation=tf.nn.relu)
    return layers.dense(layers.flatten(x), 5)


def resnet(x):
    x = tf.nn.relu(batch_norm(conv(x, 4, 7, 2)))
    x = layers.max_pooling2d(x, 3, 2, padding="SAME")
    for filters, stride, n in ((2, 1, 2), (4, 2, 1)):
        for at in range(n):
            x = bottleneck(x, filters, stride if at == 0 else 1)
    x = layers.average_pooling2d(x, int(x.shape[1]), 1)
    x = tf.reshape(x, [-1, int(x.shape[-1])])
    return layers.dense(x, 5, kernel_initializer=v1.random_normal_initializer(stddev=0.01))


def program(network, shape, optimizer, in_bf16, use_resource, decay=0.0, smoothing=0.0, bad=()):
    """A model_fn's training graph."""
    graph = tf.Graph()
    with graph.as_default():
        v1.set_random_seed(1)
        features = v1.placeholder(tf.float32, shape, name="features")
        labels = v1.placeholder(tf.int32, shape[:1], name="labels")
        with v1.variable_scope("", use_resource=use_resource):
            x = features if "no_cast" in bad else tf.cast(features, tf.bfloat16) if in_bf16 else features
            if in_bf16:
                with tf.compat.v1.tpu.bfloat16_scope():
                    logits = network(x)
            else:
                logits = network(x)
            if in_bf16 and "bf16_loss" not in bad:
                logits = tf.cast(logits, tf.float32)
            one_hot = tf.one_hot(labels, 5, dtype=logits.dtype)
            loss = v1.losses.softmax_cross_entropy(one_hot, logits, label_smoothing=smoothing)
            if decay:
                loss += tf.cast(decay, loss.dtype) * tf.add_n([tf.nn.l2_loss(v) for v in v1.trainable_variables() if "batch_norm" not in v.name])
            step = v1.train.get_or_create_global_step()
            train_step = optimizer(step)
            updates = v1.get_collection(v1.GraphKeys.UPDATE_OPS)
            with tf.control_dependencies(updates):
                train_step.minimize(loss, global_step=step)
            v1.summary.scalar("loss", loss)
        saver = v1.train.Saver()
    return graph, features, labels, loss, saver


def rate(step):
    warm = 0.1 * tf.cast(step, tf.float32) / 2.0
    return tf.where(step < 2, warm, v1.train.exponential_decay(0.1, step, 10, 0.5))


PROGRAMS = {
    "mlp": (mlp, [4, 3, 3, 1], lambda step: v1.train.GradientDescentOptimizer(rate(step)), True, False, {}),
    "mlp_adam": (mlp, [4, 3, 3, 1], lambda step: v1.train.AdamOptimizer(0.01), False, True, {}),
    "cnn": (cnn, [3, 8, 8, 1], lambda step: v1.train.RMSPropOptimizer(0.01, 0.9, 0.9, 1e-3), False, True, {"decay": 1e-3}),
    "resnet": (resnet, [2, 16, 16, 3], lambda step: v1.train.MomentumOptimizer(rate(step), 0.9, use_nesterov=True), False, False, {"decay": 1e-4, "smoothing": 0.1}),
    "resnet_bf16": (resnet, [2, 16, 16, 3], lambda step: v1.train.MomentumOptimizer(rate(step), 0.9, use_nesterov=True), True, True, {"decay": 1e-4}),
}


def recurrent(_):
    """Rows of a table, summed by segment and read by a recurrent network, and optimizers that update the rows that were read."""
    graph = tf.Graph()
    with graph.as_default():
        ids = v1.placeholder(tf.int32, [3, 4], name="ids")
        lengths = v1.placeholder(tf.int32, [3], name="lengths")
        labels = v1.placeholder(tf.int32, [3], name="labels")
        tables = [v1.get_variable(f"table_{n}", [9, 5], use_resource=n == 1) for n in range(3)]
        cell = v1.nn.rnn_cell.BasicLSTMCell(6)
        outputs, state = v1.nn.dynamic_rnn(cell, tf.gather(tables[0], ids), sequence_length=lengths, dtype=tf.float32)
        rows = [tf.reshape(tf.gather(table, ids), [12, 5]) for table in tables]
        segments = tf.reshape(tf.minimum(ids // 3, 3), [12])
        largest = tf.math.unsorted_segment_max(rows[1], segments, 3)
        summed = tf.math.unsorted_segment_mean(rows[2], segments, 3)
        features = tf.concat([state.h, tf.reduce_sum(outputs, 1), tf.maximum(largest, -1.0), summed], 1)
        kernel = v1.get_variable("kernel", [22, 5])
        loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=tf.matmul(features, kernel)))
        step = v1.train.get_or_create_global_step()
        optimizers = [(v1.train.AdagradOptimizer(0.1), tables[:1] + cell.trainable_variables), (v1.train.FtrlOptimizer(0.1, l1_regularization_strength=1e-3), tables[1:2]),
                      (v1.train.MomentumOptimizer(0.1, 0.9), tables[2:] + [kernel])]
        # All gradients before any update.
        gradients = v1.tuple(tf.gradients(loss, [v for _, trained in optimizers for v in trained]))
        updates = []
        for optimizer, trained in optimizers:
            updates.append(optimizer.apply_gradients(list(zip(gradients, trained))))
            gradients = gradients[len(trained):]
        with tf.control_dependencies(updates):
            train = v1.assign_add(step, 1)
        graph.add_to_collection("train_op", train)
        graph.add_to_collection("losses", loss)
        saver = v1.train.Saver()
    return graph, {ids: lambda rng: rng.randint(0, 9, [3, 4]), lengths: lambda rng: rng.randint(1, 5, [3]), labels: lambda rng: rng.randint(0, 5, [3])}, loss, saver


def save(folder, name):
    if name == "recurrent":
        graph, drawn, loss, saver = recurrent(name)
        return write(folder, name, graph, loss, saver, drawn)
    network, shape, optimizer, in_bf16, use_resource, more = PROGRAMS[name]
    graph, features, labels, loss, saver = program(network, shape, optimizer, in_bf16, use_resource, **more)
    drawn = {features: lambda rng: rng.uniform(-1, 1, shape).astype(np.float32), labels: lambda rng: rng.randint(0, 5, shape[:1])}
    write(folder, name, graph, loss, saver, drawn)


def write(folder, name, graph, loss, saver, drawn):
    rng, arrays = np.random.RandomState(7), {}
    with graph.as_default(), v1.Session() as session:
        session.run(v1.global_variables_initializer())
        variables = {v.op.name: v for v in v1.global_variables()}
        for key, value in session.run(variables).items():
            arrays[f"before/{key}"] = value
        train = graph.get_collection("train_op")[-1]
        for at in range(3):
            batch = {tensor: draw(rng).astype(tensor.dtype.as_numpy_dtype) for tensor, draw in drawn.items()}
            loss_before, _ = session.run([loss, train], batch)
            arrays.update({f"step{at}/{tensor.op.name}": value for tensor, value in batch.items()}, **{f"step{at}/loss": loss_before})
        for key, value in session.run(variables).items():
            arrays[f"after/{key}"] = value
        meta = saver.export_meta_graph(clear_devices=True)
    meta.meta_info_def.ClearField("stripped_op_list")
    for node in meta.graph_def.node:
        for key in [key for key in node.attr if key in ("_class", "_output_shapes")]:
            del node.attr[key]
    with open(os.path.join(folder, f"{name}.meta.gz"), "wb") as file:
        file.write(gzip.compress(meta.SerializeToString(deterministic=True), mtime=0))
    names = {"float32": "F32", "int32": "I32", "int64": "I64", "bfloat16": "BF16"}
    header, data = {}, b""
    for key, array in arrays.items():
        array = np.asarray(array)
        raw = np.ascontiguousarray(array).tobytes()
        header[key] = {"dtype": names[array.dtype.name], "shape": list(array.shape), "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(os.path.join(folder, f"{name}.safetensors"), "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text + data)
    print(name, len(meta.graph_def.node), "nodes", [float(arrays[f"step{at}/loss"]) for at in range(3)])


if __name__ == "__main__":
    v1.disable_v2_behavior()
    for name in sys.argv[2:] or [*PROGRAMS, "recurrent"]:
        save(sys.argv[1], name)
