"""Makes schedule_*.meta.gz: tiny training graphs, each with a learning rate in a common form.

    python make_schedules.py FOLDER [NAME …]

and prints, as schedules.txt has it, each rate at a few steps, as TensorFlow computes it. TensorFlow 2.15.1.
"""

import gzip
import os
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
import tensorflow as tf

v1 = tf.compat.v1
train = v1.train


def epochs(step):
    """ResNet's: by fractions of an epoch of 1251.14 steps."""
    epoch = tf.cast(step, tf.float32) / 1251.14
    rate = 0.4 * epoch / 5
    for factor, start in ((1.0, 5), (0.1, 30), (0.01, 60), (0.001, 80)):
        rate = tf.where(epoch < start, rate, 0.4 * factor)
    return rate


def bert(step):
    falling = train.polynomial_decay(tf.constant(1e-4), step, 1000, end_learning_rate=0.0)
    share = tf.cast(step, tf.float32) / 100.0
    is_warm_up = tf.cast(step < 100, tf.float32)
    return (1.0 - is_warm_up) * falling + is_warm_up * 1e-4 * share


def efficientnet(step):
    decayed = train.exponential_decay(0.128, step, 2400, 0.97, staircase=True)
    return tf.cond(step < 500, lambda: 0.128 * tf.cast(step, tf.float32) / 500, lambda: decayed)


def rsqrt_decay(step):
    """Tensor2Tensor's constant * linear_warmup * rsqrt_decay, over its root of the hidden size."""
    at = tf.cast(step, tf.float32)
    return 2.0 * 0.1 * tf.minimum(1.0, at / 500.0) * tf.math.rsqrt(tf.maximum(at, 500.0)) * 512 ** -0.5


SCHEDULES = {
    "piecewise": lambda step: train.piecewise_constant(step, [100, 250], [0.1, 0.01, 0.002]),
    "cosine": lambda step: train.cosine_decay(0.2, step, 5000, alpha=0.01),
    "polynomial": lambda step: train.polynomial_decay(0.03, step, 800, 0.005, power=2.0),
    "exponential": lambda step: train.exponential_decay(0.05, step, 300, 0.9),
    "staircase_floor": lambda step: tf.maximum(train.exponential_decay(0.66, step, 3753, 0.94, staircase=True), 6.6e-5),
    "epochs": epochs,
    "bert": bert,
    "efficientnet": efficientnet,
    "warm_then_cosine": lambda step: tf.where(step < 200, 0.5 * tf.cast(step, tf.float32) / 200, train.cosine_decay(0.5, step - 200, 4800)),
    "floor_cosine": lambda step: tf.maximum(train.cosine_decay(0.2, step, 5000), 0.01),
    "floor_warm_up": lambda step: tf.maximum(efficientnet(step), 1e-4),
    "floor_line": lambda step: tf.maximum(train.polynomial_decay(0.03, step, 800, end_learning_rate=0.0), 0.0015),
    "floor_switched": lambda step: tf.where(step < 700, train.exponential_decay(0.05, step, 300, 0.9), 0.01),
    "natural": lambda step: train.natural_exp_decay(0.05, step, 300, 0.5),
    "inverse_time": lambda step: train.inverse_time_decay(0.05, step, 300, 0.2),
    "rsqrt": lambda step: tf.math.rsqrt(tf.maximum(tf.cast(step, tf.float32), 10000.0)),
    "rsqrt_at_once": lambda step: 0.3 * tf.math.rsqrt(tf.cast(step, tf.float32) + 20.0),
    "rsqrt_least": lambda step: tf.minimum(0.01, tf.math.rsqrt(tf.cast(step + 1, tf.float32))),
    "rsqrt_decay": rsqrt_decay,
    "noam_of_step": lambda step: 2 * 512 ** -0.5 * tf.minimum(tf.cast(step, tf.float32) ** -0.5, tf.cast(step, tf.float32) * 400 ** -1.5),
    "noam": lambda step: 64 ** -0.5 * tf.minimum(tf.cast(step + 1, tf.float32) ** -0.5, tf.cast(step + 1, tf.float32) * 4000 ** -1.5),
}


def short_bert(step, warm_up=3, total=20):
    falling = train.polynomial_decay(tf.constant(1e-3), step, total, end_learning_rate=0.0)
    is_warm_up = tf.cast(step < warm_up, tf.float32)
    return (1.0 - is_warm_up) * falling + is_warm_up * 1e-3 * tf.cast(step, tf.float32) / float(warm_up)


def warm_up_of_3(step, rest):
    at = tf.cast(step, tf.float32)
    return tf.where(at < 3.0, 0.1 * at / 3.0, rest(step))


# Of a few steps, where pieces would fit too.
SHORT = {
    "short_bert": short_bert,
    "short_line": lambda step: train.polynomial_decay(0.1, step, 5, 0.01),
    "short_square": lambda step: train.polynomial_decay(0.1, step, 8, 0.01, power=2.0),
    "short_cosine": lambda step: train.cosine_decay(0.1, step, 8, alpha=0.1),
    "short_warm_cosine": lambda step: warm_up_of_3(step, lambda step: train.cosine_decay(0.1, step - 3, 7)),
    "short_warm_line": lambda step: warm_up_of_3(step, lambda step: train.polynomial_decay(0.1, step - 3, 6, 0.0)),
    "short_floor": lambda step: tf.maximum(train.polynomial_decay(0.1, step, 10, 0.0), 0.02),
    "short_pieces": lambda step: train.piecewise_constant(step, [5, 10], [0.1, 0.05, 0.0]),
    "short_warm_pieces": lambda step: warm_up_of_3(step, lambda step: train.piecewise_constant(step, [10, 15], [0.1, 0.01, 0.001])),
}
SCHEDULES.update(SHORT)
FIRST_STEPS = (*range(25), 1000)
STEPS = (0, 1, 50, 99, 100, 101, 199, 200, 249, 250, 251, 499, 500, 700, 2400, 5000, 6255, 6256, 40000, 90000)


def main(folder, *names):
    for name in names or SCHEDULES:
        schedule = SCHEDULES[name]
        graph = tf.Graph()
        with graph.as_default():
            x = v1.placeholder(tf.float32, [2, 3], name="features")
            labels = v1.placeholder(tf.int32, [2], name="labels")
            loss = v1.losses.sparse_softmax_cross_entropy(labels, v1.layers.dense(x, 2, use_bias=False))
            step = train.get_or_create_global_step()
            rate = schedule(step)
            train.GradientDescentOptimizer(rate).minimize(loss, global_step=step)
            meta = train.export_meta_graph(clear_devices=True)
            with v1.Session() as session:
                values = []
                for at in FIRST_STEPS if name in SHORT else STEPS:
                    step.load(at, session)
                    values.append(f"{at}:{session.run(rate):.9g}")
            print(name, *values)
        meta.meta_info_def.ClearField("stripped_op_list")
        for node in meta.graph_def.node:
            for key in [key for key in node.attr if key in ("_class", "_output_shapes", "_XlaMustCompile")]:
                del node.attr[key]
        with open(os.path.join(folder, f"schedule_{name}.meta.gz"), "wb") as file:
            file.write(gzip.compress(meta.SerializeToString(deterministic=True), mtime=0))


if __name__ == "__main__":
    v1.disable_v2_behavior()
    main(*sys.argv[1:])
