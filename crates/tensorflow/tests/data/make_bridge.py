"""Makes `bridge_*`: functions of TensorFlow 2 as graphs, and the HLO that its own XLA bridge makes of them.

    python make_bridge.py FOLDER

writes NAME.pb (a GraphDef) and NAME.hlo.pb (an HloModuleProto, before XLA optimizes it). `tests/bridge.rs` lowers the graph,
compares instructions, and runs both modules. TensorFlow 2.15.1 made what is committed.
"""

import os
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
import tensorflow as tf


def elementwise(x, y):
    both = tf.tanh(x) * y + tf.exp(-x * x) - tf.sqrt(y * y + 1.0)
    chosen = tf.where(x > y, both, tf.maximum(x, 0.25) / (tf.abs(y) + 0.5))
    return tf.math.log(tf.abs(chosen) + 1.0), tf.cast(tf.cast(chosen, tf.bfloat16) * tf.cast(x, tf.bfloat16), tf.float32)


def step(x, y, w1, b1, w2, b2):
    """A training step of two dense layers: the loss, and the variables after a step of gradient descent."""
    variables = [w1, b1, w2, b2]
    with tf.GradientTape() as tape:
        tape.watch(variables)
        hidden = tf.nn.relu(tf.nn.bias_add(tf.matmul(x, w1), b1))
        out = tf.nn.bias_add(tf.matmul(hidden, w2), b2)
        loss = tf.reduce_sum(tf.square(out - y))
    return [loss] + [v - 0.125 * g for v, g in zip(variables, tape.gradient(loss, variables))]


FUNCTIONS = {
    "bridge_elementwise": (elementwise, [("x", [3, 5]), ("y", [3, 5])]),
    "bridge_step": (step, [("x", [4, 3]), ("y", [4, 2]), ("w1", [3, 6]), ("b1", [6]), ("w2", [6, 2]), ("b2", [2])]),
}


def named(function):
    """The function with its results named `out0`, `out1`, …"""
    return lambda *values: [tf.identity(y, f"out{n}") for n, y in enumerate(function(*values))]


def main(folder):
    for name, (function, arguments) in FUNCTIONS.items():
        body = named(function)
        specs = [tf.TensorSpec(dims, tf.float32, name=argument) for argument, dims in arguments]
        definition = tf.function(body, input_signature=specs).get_concrete_function().graph.as_graph_def()
        for node in definition.node:
            for key in [key for key in node.attr if key.startswith("_")]:
                del node.attr[key]
        with open(os.path.join(folder, f"{name}.pb"), "wb") as file:
            file.write(definition.SerializeToString(deterministic=True))
        compiled = tf.function(body, input_signature=specs, jit_compile=True)
        module = compiled.experimental_get_compiler_ir(*[tf.zeros(spec.shape) for spec in specs])(stage="hlo_serialized")
        with open(os.path.join(folder, f"{name}.hlo.pb"), "wb") as file:
            file.write(module)


if __name__ == "__main__":
    main(sys.argv[1])
