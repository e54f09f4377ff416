"""The tracer on small scripts, with TensorFlow: what it writes is ported and run. `ci/tracer` runs this; it needs no pytest.

    python python/tests/traced.py target/debug/bf16scope
"""

import importlib.util
import json
import os
import subprocess
import sys
import tempfile

import numpy as np

HERE = os.path.dirname(os.path.abspath(__file__))
TRACER = os.path.join(HERE, "..", "bf16scope", "tf.py")
# Each below `=== title | NAME OPTIONS | lint EXPECTED | graph EXPECTED`.
SCRIPTS = os.path.join(HERE, "traced_scripts.txt")

# As people wrote for TensorFlow 1: contrib, flags, a scope, an optimizer over cores.
ESTIMATOR = '''import tensorflow as tf
from tensorflow.contrib import tpu as contrib_tpu
from tensorflow.contrib import cluster_resolver
tf.flags.DEFINE_integer("units", 6, "")
tf.flags.DEFINE_string("data_dir", None, "")
tf.flags.mark_flag_as_required("data_dir")
FLAGS = tf.flags.FLAGS

def network(x):
    x = tf.layers.conv2d(x, 4, 3, padding="same", use_bias=False)
    x = tf.nn.relu(tf.layers.batch_normalization(x, training=True, fused=True, momentum=0.9))
    return tf.layers.dense(tf.reduce_mean(x, [1, 2]), FLAGS.units)

def model_fn(features, labels, mode, params):
    with contrib_tpu.bfloat16_scope():
        logits = network(features)
    logits = tf.cast(logits, tf.float32)
    loss = tf.losses.sparse_softmax_cross_entropy(labels, logits)
    optimizer = contrib_tpu.CrossShardOptimizer(tf.train.MomentumOptimizer(params["rate"], 0.9))
    with tf.control_dependencies(tf.get_collection(tf.GraphKeys.UPDATE_OPS)):
        train_op = optimizer.minimize(loss, tf.train.get_global_step())
    return contrib_tpu.TPUEstimatorSpec(mode=mode, loss=loss, train_op=train_op)

def main(_):
    cluster_resolver.TPUClusterResolver("name")
'''

KERAS = '''import tensorflow as tf
def make():
    tf.keras.utils.set_random_seed(3)
    tf.keras.mixed_precision.set_global_policy("mixed_bfloat16")
    return tf.keras.Sequential([tf.keras.layers.Input((8,), 4), tf.keras.layers.Dense(6, activation="relu"),
                                tf.keras.layers.Dense(3, dtype="float32")])
'''

# An optimizer of plain ops, whose rate is a variable.
STEP = '''import tensorflow as tf
layers = tf.keras.layers
model = tf.keras.Sequential([tf.keras.Input((6,)), layers.Dense(8, "relu"), layers.Dense(4)])
optimizer = tf.keras.optimizers.RMSprop(0.002, rho=0.95)
loss_of = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
@tf.function
def step(x, y):
    with tf.GradientTape() as tape:
        loss = loss_of(y, model(x, training=True))
    optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
    return loss
'''

# Control flow of version 2, in a function: While, If, and a function in the place of its call.
FUNCTION = '''import tensorflow as tf

@tf.function
def halve(x):
    return x * 0.5

@tf.function
def compute(features):
    at, x = tf.constant(0), features
    while at < 5:
        x = tf.cond(tf.reduce_sum(x) > 4.0, lambda: halve(x), lambda: x + 1.0)
        at += 1
    return x
'''

# Two inputs that are not alike, and an array of the script's own that is too large for TensorFlow to copy it into the graph.
PAIR = '''import tensorflow as tf
SCALE = tf.range(200, dtype=tf.float32)

def make(width=200):
    a, b = tf.keras.Input((width,), 4, name="a"), tf.keras.Input((width,), 4, name="b")
    return tf.keras.Model([a, b], a - 2.0 * b)

@tf.function
def less(a, b):
    return (a - 2.0 * b) * SCALE
'''

# A command line that is read as the script is imported, parameters that are asked for, and a configuration.
ARGUMENTS = '''import argparse
import os
import tensorflow.compat.v1 as tf
tf.disable_v2_behavior()
parser = argparse.ArgumentParser()
parser.add_argument("--units", type=int, required=True)
args = parser.parse_args()
os.chdir("/")

def model_fn(features, labels, mode, config, params):
    units = getattr(params, "units", args.units)
    assert config.tpu_config.num_shards is None
    logits = tf.layers.dense(features["x"], units)
    loss = tf.losses.sparse_softmax_cross_entropy(labels, logits)
    train_op = tf.train.GradientDescentOptimizer(0.5).minimize(loss, tf.train.get_global_step())
    return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train_op)
'''

# An estimator with its input_fn, and a mode without a training op.
INPUT = ESTIMATOR.replace("    optimizer =", """    if mode == tf.estimator.ModeKeys.EVAL:
        return contrib_tpu.TPUEstimatorSpec(mode=mode, loss=loss)
    optimizer =""") + '''
def input_fn(params):
    images, labels = tf.zeros([20, 6, 6, 3]), tf.zeros([20], tf.int32)
    dataset = tf.data.Dataset.from_tensor_slices((images, labels))
    dataset = dataset.map(lambda image, label: ({"image": tf.cast(image, tf.bfloat16)}, label))
    return dataset.batch(params["batch_size"], drop_remainder=True)
'''


# As people wrote for TensorFlow 1.6: names of files below contrib's folder `python`.
FILES = ESTIMATOR.replace("from tensorflow.contrib import tpu as contrib_tpu\n", """from tensorflow.contrib.tpu.python.tpu import bfloat16
from tensorflow.contrib.tpu.python.tpu import tpu_estimator
from tensorflow.contrib.tpu.python.tpu import tpu_optimizer
""").replace("contrib_tpu.bfloat16", "bfloat16.bfloat16").replace("contrib_tpu.Cross", "tpu_optimizer.Cross").replace(
    "contrib_tpu.TPU", "tpu_estimator.TPU")

# A network of indices, whose table is f32 as it was asked for without a dtype.
INDICES = '''import tensorflow.compat.v1 as tf
tf.disable_v2_behavior()

def model_fn(features, labels, mode, params):
    with tf.tpu.bfloat16_scope():
        x = tf.reduce_mean(tf.gather(tf.get_variable("table", [20, 6]), features), 1)
        logits = tf.layers.dense(x, 3)
    loss = tf.losses.sparse_softmax_cross_entropy(labels, tf.cast(logits, tf.float32))
    train_op = tf.train.GradientDescentOptimizer(0.5).minimize(loss, tf.train.get_global_step())
    return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train_op)
'''

# A model that `fit` trains, with a train_step of its own that returns running means.
COMPILED = '''import tensorflow as tf

class Model(tf.keras.Model):
    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.compiled_loss(y, self(x, training=True))
        self.optimizer.minimize(loss, self.trainable_variables, tape=tape)
        self.compiled_metrics.update_state(y, self(x))
        return {metric.name: metric.result() for metric in self.metrics}

def make(kind=tf.keras.Model):
    x = tf.keras.Input((6,), name="x")
    model = kind(x, tf.keras.layers.Dense(4, name="scores")(x))
    model.compile(tf.keras.optimizers.SGD(0.25), tf.keras.losses.Huber(0.7))
    return model

own = make(Model)
'''

# Variables of one name, whose loss is returned as a part of it, and is scaled before its gradient is taken.
MODULES = '''import tensorflow as tf

class Linear(tf.Module):
    def __init__(self, n, m):
        super().__init__()
        self.w = tf.Variable(tf.random.normal([n, m]), name="w")

    def __call__(self, x):
        return tf.matmul(x, self.w)

one, two = Linear(6, 5), Linear(5, 4)
scale = tf.keras.mixed_precision.LossScaleOptimizer(tf.keras.optimizers.SGD(0.1), dynamic=False, initial_scale=128)

def loss_of(x, y):
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=two(tf.nn.relu(one(x)))))

@tf.function
def step(x, y):
    with tf.GradientTape() as tape:
        loss = loss_of(x, y)
    for v, g in zip([one.w, two.w], tape.gradient(loss, [one.w, two.w])):
        v.assign_sub(0.1 * g)
    return loss / 5

@tf.function
def scaled(x, y):
    with tf.GradientTape() as tape:
        loss = loss_of(x, y)
        product = scale.get_scaled_loss(loss)
    for v, g in zip([one.w, two.w], scale.get_unscaled_gradients(tape.gradient(product, [one.w, two.w]))):
        v.assign_sub(0.1 * g)
    return loss
'''


class Failure(Exception):
    """What a check found, in words."""


def check(is_so, *said):
    if not is_so:
        raise Failure(" ".join(str(word) for word in said))


def run(words, status=0):
    done = subprocess.run(words, capture_output=True, text=True, env=dict(os.environ, TF_CPP_MIN_LOG_LEVEL="3"))
    check(done.returncode == status, f"exit status {done.returncode}, expected {status}:", " ".join(words), "\n", done.stdout, done.stderr)
    return done.stdout + done.stderr


def trace(folder, text, name, *options, status=0):
    script, graph = os.path.join(folder, "script.py"), os.path.join(folder, "graph.pb")
    with open(script, "w") as file:
        file.write(text)
    said = run([sys.executable, TRACER, f"{script}:{name}", *options, "-o", graph], status)
    return graph, said


MODEL = ["--features", "8x6x6x3,bfloat16", "--labels", "8,int32", "--params", "rate=0.1", "--cores", "8", "--flag", "units=5"]


def an_estimator_is_traced(program, folder):
    graph, said = trace(folder, ESTIMATOR, "model_fn", *MODEL)
    scope = "script.py:16; variables that layers asked for: "
    check("bfloat16_scope opened at" in said and "script.py:15, closed at" in said and scope in said, said)
    # The kernels and the bias; batch norm's four are f32.
    check("asked for: 3 in bfloat16, 4 in float32" in said, said)
    out = os.path.join(folder, "ported")
    screen = run([program, "port", graph, "-o", out])
    for part in ("optimizer", "mesh: {data: 8}", "{kind: momentum, momentum: 0.9}", "the graph shows none"):
        check(part in screen, part, "is not in", screen)
    with open(os.path.join(out, "experiment.yaml")) as file:
        text = file.read()
    for line in ("{batch_norm: , momentum: 0.9, epsilon: 0.001, name: batch_normalization}", "{dense: 5, name: dense}", "learning_rate: 0.1"):
        check(line in text, line, "is not in", text)


def a_loss_in_bf16_is_shown_at_its_line(program, folder):
    graph, _ = trace(folder, ESTIMATOR.replace("    logits = tf.cast(logits, tf.float32)\n", ""), "model_fn", *MODEL)
    screen = run([program, "port", graph], status=1)
    check("script.py:17" in screen and "softmax or cross-entropy in bf16" in screen, screen)


def gradients_that_are_summed_are_shown(program, folder):
    summed = ESTIMATOR.replace("optimizer.minimize(loss, tf", "optimizer.apply_gradients([(g, v) for g, v in zip(tf.gradients("
                               "loss, tf.trainable_variables()), tf.trainable_variables())], tf")
    graph, _ = trace(folder, summed, "model_fn", *MODEL)
    check("gradients are summed over cores, not averaged" in run([program, "port", graph], status=1), "no alarm")


def the_numbers_of_an_optimizer_are_ported(program, folder):
    graph, _ = trace(folder, STEP, "step", "--features", "x=8x6", "--features", "y=8,int32")
    screen = run([program, "port", graph])
    for part in ("decay: 0.95, momentum: 0.0, epsilon: 1.0e-7, initial_accumulator_value: 0.0", "0.002"):
        check(part in screen and "Missing" not in screen, part, "is not in", screen)


def a_scope_that_layers_of_keras_do_not_see_is_shown(program, folder):
    keras = ESTIMATOR.replace("network(features)", "tf.keras.layers.Dense(5)(tf.keras.layers.Flatten()(features))")
    _, said = trace(folder, keras, "model_fn", *MODEL)
    check("nothing in it asked for bfloat16" in said and "layers of tf.keras" in said and "last step of input_fn" not in said, said)


def files_of_contrib_are_stood_in_for(program, folder):
    graph, _ = trace(folder, FILES, "model_fn", *MODEL)
    check("{kind: momentum, momentum: 0.9}" in run([program, "port", graph]), "no optimizer")
    strange = FILES.replace("bfloat16.bfloat16_scope()", "bfloat16.scope_of(tpu_optimizer)")
    _, shown = trace(folder, strange, "model_fn", *MODEL, status=2)
    check("tf.contrib.tpu.python.tpu.bfloat16.scope_of, which TensorFlow 2 does not have" in shown, shown)


def a_scope_of_indices_is_told_of_its_table(program, folder):
    _, shown = trace(folder, INDICES, "model_fn", "--features", "8x4,int32", "--labels", "8,int32")
    check("nothing in it asked for bfloat16" in shown and "help: of indices, tf.get_variable(" in shown, shown)


def a_compiled_model_is_traced_with_its_step(program, folder):
    for name, features in (("make", []), ("own", ["--features", "8x6"])):
        graph, shown = trace(folder, COMPILED, name, *features, "--labels", "8x4")
        screen = run([program, "port", graph])
        for part in ("{huber: , delta: 0.7}", "{kind: sgd}", "0.25", "the graph shows none"):
            check(part in screen and "Missing" not in screen, name, part, "is not in", screen, shown)
    _, shown = trace(folder, COMPILED, "make")
    check("the model is compiled: with --labels 8,int32 its training step is traced" in shown, shown)
    _, shown = trace(folder, KERAS, "make", "--labels", "8,int32", status=2)
    check("the model `make` is not compiled, so it has no loss that takes labels" in shown, shown)
    _, shown = trace(folder, MODULES, "step", "--features", "x=8x6", "--labels", "8,int32", status=2)
    check("`step` is a tf.function; expected all its inputs as --features" in shown, shown)


def the_loss_is_what_gradients_are_taken_of(program, folder):
    for name, expected in (("step", "whose gradients the tape takes"), ("scaled", "the result that is a number")):
        graph, shown = trace(folder, MODULES, name, "--features", "x=8x6", "--features", "y=8,int32")
        check(expected in shown, name, shown)
        text = shown_by(program, graph)["experiment"]
        check("\n  loss: sparse_softmax_cross_entropy\n" in text, name, text)


def variables_of_one_name_are_told_apart(program, folder):
    graph, _ = trace(folder, MODULES, "step", "--features", "x=8x6", "--features", "y=8,int32")
    shown = shown_by(program, graph)
    check("{dense: 5, use_bias: false" in shown["experiment"] and "{dense: 4, use_bias: false" in shown["experiment"], shown)
    # The first that is read keeps the name.
    check(any("`w` is called `MatMul/kernel`" in note["text"] for note in shown["differs"]), shown["differs"])
    check(not shown["missing"] and "does not become HLO" not in shown["step"], shown)


def a_module_that_is_not_installed_is_named(program, folder):
    _, shown = trace(folder, "import no_such_module\n", "model_fn", status=2)
    check("help: it imports `no_such_module`, which is not installed: pip install it" in shown, shown)


def what_nothing_stands_in_for_is_named(program, folder):
    decoded = ESTIMATOR.replace("logits = network(features)", "logits = tf.contrib.crf.crf_decode(network(features))")
    _, said = trace(folder, decoded, "model_fn", *MODEL, status=2)
    check("tf.contrib.crf.crf_decode, which TensorFlow 2 does not have" in said, said)
    _, said = trace(folder, ESTIMATOR, "model_fn", "--flag", "unit=5", status=2)
    check("--flag" in said and "unit" in said, said)
    _, said = trace(folder, "x = 1\nraise ValueError('no')\n", "model_fn", status=2)
    check("script.py\", line 2" in said and "ValueError: no" in said and "the script failed at" in said and "script.py:2 as it" in said, said)


def keras_computes_the_same(program, folder):
    graph, _ = trace(folder, KERAS, "make")
    import tensorflow as tf

    sys.path.insert(0, folder)
    names = {}
    exec(KERAS, names)
    model = names["make"]()
    x = np.random.RandomState(1).uniform(-1, 1, (4, 8)).astype(np.float32)
    arrays = {variable.name.split(":")[0].replace("/", "."): variable.numpy() for variable in model.variables}
    features = model.inputs[0].name.split(":")[0]
    ours = computed(program, folder, graph, dict(arrays, **{features: x}))
    theirs = model(x).numpy()
    # A hidden value is rounded to bf16 (2^-9 of it), and may fall the other way; six of them meet in a sum.
    bound = 6 * 2.0**-8 * np.abs(theirs).max()
    check(np.abs(ours - theirs).max() <= bound, ours, theirs)
    emitted = run([program, "emit", graph, "-o", os.path.join(folder, "step.txt")])
    with open(os.path.join(folder, "step.txt")) as file:
        check("bf16[4,6]" in file.read(), emitted)


def functions_compute_the_same(program, folder):
    graph, _ = trace(folder, FUNCTION, "compute", "--features", "2x3,float32")
    names = {}
    script = os.path.join(folder, "again.py")
    with open(script, "w") as file:
        file.write(FUNCTION)
    # tf.function reads its source, so it comes from a file.
    sys.path.insert(0, folder)
    names = vars(__import__("again"))
    for seed in range(3):
        x = np.random.RandomState(seed).uniform(-1, 2, (2, 3)).astype(np.float32)
        ours = computed(program, folder, graph, {"features": x})
        check(np.array_equal(ours, names["compute"](x).numpy()), seed, ours)


def features_go_to_the_inputs_of_their_names(program, folder):
    a, b = (np.random.RandomState(seed).uniform(-1, 1, (4, 200)).astype(np.float32) for seed in (1, 2))
    for name, scale in (("make", 1.0), ("less", np.arange(200, dtype=np.float32))):
        graph, _ = trace(folder, PAIR, name, "--features", "b=4x200", "--features", "a=4x200")
        ours = computed(program, folder, graph, {"a": a, "b": b})
        check(np.allclose(ours, (a - 2 * b) * scale, rtol=1e-6, atol=1e-5), name, ours)


def a_script_reads_its_own_command_line(program, folder):
    model = ["--features", "x=8x3", "--labels", "8,int32"]
    graph, _ = trace(folder, ARGUMENTS, "model_fn", *model, "--flag", "units=5")
    out = os.path.join(folder, "ported")
    screen = run([program, "port", graph, "-o", out])
    with open(os.path.join(out, "experiment.yaml")) as file:
        check("{dense: 5, name: dense}" in file.read(), screen)
    _, said = trace(folder, ARGUMENTS, "model_fn", *model, status=2)
    check("the script ended the program at" in said and "script.py:7 (2), and nothing was traced" in said, said)


def an_input_fn_gives_the_shapes_and_both_modes_are_written(program, folder):
    text = INPUT.replace("network(features)", 'network(features["image"])')
    options = ["--input", "input_fn", "--params", "rate=0.1", "--params", "batch_size=8", "--cores", "8", "--mode", "both"]
    _, shown = trace(folder, text, "model_fn", *options)
    check("image [8, 6, 6, 3], labels [8]" in shown and "drop_remainder" not in shown, shown)
    check(shown.count("bfloat16_scope opened at") == 2 and "graph.eval.pb` says what it becomes" in shown, shown)
    screen = run([program, "port", os.path.join(folder, "graph.train.pb")])
    check("{kind: momentum, momentum: 0.9}" in screen, screen)
    check("{kind: momentum" not in run([program, "port", os.path.join(folder, "graph.eval.pb")]), "eval trains")
    _, shown = trace(folder, text.replace(", drop_remainder=True", ""), "model_fn", *options[:-2])
    slip = "script.py:33: a batch without drop_remainder: the last batch is smaller, and a TPU's program has one shape"
    check(slip in shown and "image [None, 6, 6, 3]" in shown, shown)


def shown_by(program, path):
    """The JSON that `port` prints."""
    done = subprocess.run([program, "port", path, "--json"], capture_output=True, text=True)
    check(done.returncode in (0, 1), path, done.stderr)
    return json.loads(done.stdout)


def a_node_has_the_lines_that_led_to_it(program, folder):
    graph, _ = trace(folder, ESTIMATOR.replace("x = tf.nn", "x = tf.Variable(tf.ones([4], tf.bfloat16)) * tf.nn"), "model_fn", *MODEL)
    slip = shown_by(program, graph)["slips"][0]
    check(slip["place"].endswith("script.py:11") and slip["callers"][0].endswith("script.py:16"), slip)
    # Functions have lines too.
    graph, _ = trace(folder, FUNCTION, "compute", "--features", "2x3,float32")
    run([program, "emit", graph, "-o", os.path.join(folder, "step.txt")])
    with open(os.path.join(folder, "step.txt")) as file:
        text = file.read()
    check(all(f"source_line={line}" in text for line in (5, 11)), text)


def scripts():
    """The scripts of traced_scripts.txt: number, title, name and options for the tracer, expected of lint and graph, text."""
    with open(SCRIPTS) as file:
        for at, part in enumerate(file.read().split("=== ")[1:]):
            head, text = part.split("\n", 1)
            title, command, *expected = head.split(" | ")
            yield str(at), title, command.split(), expected, text


def trace_all(folder):
    """Traces the scripts, each in a child of this process, which imports TensorFlow once for all; the exit status."""
    import tensorflow  # noqa: F401

    spec = importlib.util.spec_from_file_location("tracer", TRACER)
    tracer = sys.modules["tracer"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tracer)
    for number, _, (name, *options), _, text in scripts():
        place = os.path.join(folder, number)
        os.mkdir(place)
        script = os.path.join(place, "script.py")
        with open(script, "w") as file:
            file.write(text)
        child = os.fork()
        if child == 0:
            status = 1
            try:
                status = tracer.main([f"{script}:{name}", *options, "-o", os.path.join(place, "graph.pb")])
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(status)
        if os.waitpid(child, 0)[1] != 0:
            return 1
    return 0


def scripts_have_their_slips_at_their_lines(program, folder):
    """Scripts in as many styles, half of them clean, through lint and tracer."""
    run([sys.executable, os.path.abspath(__file__), "--trace", folder])
    wrong, n_clean, n = [], 0, 0
    listed = lambda pairs: "; ".join(f"{line} {what}" for line, what in pairs) or "clean"
    for number, title, _, expected, _ in scripts():
        place = os.path.join(folder, number)
        findings = shown_by(program, os.path.join(place, "script.py"))["findings"]
        slips = shown_by(program, os.path.join(place, "graph.pb"))["slips"]
        lint = listed((one["line"], one["what"]) for one in findings if one["is_slip"])
        graph = listed((one["place"].rsplit("script.py:")[-1], one["what"]) for one in slips)
        shown = [f"lint {lint}", f"graph {graph}"]
        n, n_clean = n + 1, n_clean + (shown == ["lint clean", "graph clean"])
        if shown != expected:
            wrong.append(f"{title}: {shown}, expected {expected}")
    check(not wrong, "\n".join(wrong))
    check((n, n_clean) == (40, 20), n, n_clean)


def computed(program, folder, graph, arrays):
    """The first result of a graph on arrays by the names of its parameters."""
    inputs, outputs = os.path.join(folder, "in.npz"), os.path.join(folder, "out.npz")
    np.savez(inputs, **arrays)
    run([program, "run", graph, "--inputs", inputs, "-o", outputs])
    with np.load(outputs) as results:
        return results["out0"]


CHECKS = [an_estimator_is_traced, files_of_contrib_are_stood_in_for, a_scope_of_indices_is_told_of_its_table,
          a_compiled_model_is_traced_with_its_step, the_loss_is_what_gradients_are_taken_of,
          variables_of_one_name_are_told_apart, a_module_that_is_not_installed_is_named, a_loss_in_bf16_is_shown_at_its_line, gradients_that_are_summed_are_shown,
          what_nothing_stands_in_for_is_named, keras_computes_the_same, functions_compute_the_same,
          the_numbers_of_an_optimizer_are_ported, a_scope_that_layers_of_keras_do_not_see_is_shown,
          features_go_to_the_inputs_of_their_names, a_script_reads_its_own_command_line,
          an_input_fn_gives_the_shapes_and_both_modes_are_written, a_node_has_the_lines_that_led_to_it,
          scripts_have_their_slips_at_their_lines]


def main(program):
    failed = 0
    for one in CHECKS:
        with tempfile.TemporaryDirectory() as folder:
            try:
                one(os.path.abspath(program), folder)
                print("ok    ", one.__name__)
            except Failure as failure:
                failed += 1
                print("FAILED", one.__name__, "\n", failure)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(trace_all(sys.argv[2]) if sys.argv[1] == "--trace" else main(*sys.argv[1:]))
