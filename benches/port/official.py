"""Ports TensorFlow's official TPU programs, and compares the ported programs with TensorFlow. Run by hand:

    python benches/port/official.py --tpu CHECKOUT/tpu --bert CHECKOUT/bert --bf16scope target/debug/bf16scope -o OUT [NAME…]

The checkouts are those of github.com/tensorflow/tpu and github.com/google-research/bert; their files are not in this repository.
It needs a Python with TensorFlow 2.15.1 and tf_slim 1.1.0. For each program it records the graph, traced by
`python/bf16scope/tf.py` at a tiny batch and image in f32; initial values and ten batches; and losses, variables and slots after
ten steps of a TensorFlow session, once as it is and once with TensorFlow's own XLA (their distance shows the effect of another
order of sums). Then it runs `bf16scope port`, runs the step as HLO ten times (crates/tensorflow/examples/steps.rs), and trains
the experiment ten steps and evaluates it from the same weights.
The table goes to OUT/table.md; benches/port/README.md has the last one.
"""

import argparse
import importlib.util
import json
import os
import re
import subprocess
import sys
import types

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
N_STEPS = 10
BATCH = 4


def tracer():
    spec = importlib.util.spec_from_file_location("bf16scope_tf", os.path.join(ROOT, "python", "bf16scope", "tf.py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Program:
    """A program: where its model_fn is, and the shapes at which it is traced."""

    def __init__(self, script, function, features, labels, params=(), flags=(), paths=(), checkout="tpu", only_hlo=False):
        self.script, self.function, self.features, self.labels = script, function, features, labels
        self.params, self.flags, self.paths, self.checkout, self.only_hlo = params, flags, paths, checkout, only_hlo


def config(module, name, **changes):
    return lambda: dict(vars(importlib.import_module(module))[name], **changes)


BERT = {"vocab_size": 200, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64,
        "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "max_position_embeddings": 32, "type_vocab_size": 2}


def bert(module):
    """The model_fn of run_pretraining.py, with a small configuration without dropout."""
    import modeling

    return module.model_fn_builder(modeling.BertConfig.from_dict(BERT), None, 1e-3, 100, 4, False, False)


def dcgan(module):
    """dcgan's generator and discriminator, both trained in one step as by TPUGANEstimator."""
    import tensorflow.compat.v1 as tf

    def model_fn(features, labels, mode, params):
        with tf.variable_scope("Generator"):
            images = module.generator(features["noise"], is_training=True)
        with tf.variable_scope("Discriminator"):
            fake = module.discriminator(images, is_training=True)
        with tf.variable_scope("Discriminator", reuse=True):
            real = module.discriminator(features["images"], is_training=True)
        loss_of = lambda truth, logits: tf.reduce_mean(
            tf.nn.sigmoid_cross_entropy_with_logits(labels=tf.ones_like(logits) * truth, logits=logits))
        losses = {"Generator": loss_of(1.0, fake), "Discriminator": loss_of(1.0, real) + loss_of(0.0, fake)}
        ops = [tf.train.AdamOptimizer(2e-4, 0.5).minimize(loss, var_list=tf.trainable_variables(scope))
               for scope, loss in losses.items()]
        with tf.control_dependencies(ops):
            train_op = tf.assign_add(tf.train.get_global_step(), 1)
        return types.SimpleNamespace(loss=losses["Generator"] + losses["Discriminator"], train_op=train_op)

    return model_fn


def mobilenet(module):
    """mobilenet.py's model_fn without Keras' dropout of a thousandth, which draws different numbers in each session."""
    applications = module.tf.keras.applications
    original = applications.MobileNet
    applications.MobileNet = lambda *values, **options: original(*values, dropout=0.0, **options)
    return module.model_fn


def two_heads(_):
    """A program of our own: a network with two heads, a class and a number."""
    import tensorflow.compat.v1 as tf

    def model_fn(features, labels, mode, params):
        x = tf.layers.conv2d(features, 8, 3, padding="same", activation=tf.nn.relu)
        x = tf.layers.flatten(tf.layers.max_pooling2d(x, 2, 2))
        x = tf.layers.dense(x, 16, activation=tf.nn.relu, name="body")
        logits = tf.layers.dense(x, 7, name="classes")
        price = tf.layers.dense(x, 1, name="price")
        loss = tf.losses.sparse_softmax_cross_entropy(labels["class"], logits)
        loss += 0.25 * tf.losses.mean_squared_error(labels["price"], price)
        step = tf.train.get_global_step()
        rate = tf.train.cosine_decay(0.01, step, 1000)
        optimizer = tf.train.AdamOptimizer(rate)
        pairs = optimizer.compute_gradients(loss)
        gradients, _ = tf.clip_by_global_norm([gradient for gradient, _ in pairs], 5.0)
        train_op = optimizer.apply_gradients(zip(gradients, [variable for _, variable in pairs]), step)
        return types.SimpleNamespace(loss=loss, train_op=train_op)

    return model_fn


def fixed(name):
    return lambda module: getattr(module, name)


IMAGE = [f"{BATCH}x64x64x3,float32"]
PROGRAMS = {
    "resnet50": Program("models/official/resnet/resnet_main.py", fixed("resnet_model_fn"), IMAGE, [f"{BATCH},int32"],
                        config("official.resnet.configs.resnet_config", "RESNET_CFG", transpose_input=False, precision="float32",
                               skip_host_call=True, steps_per_epoch=10), paths=["models"]),
    "mnasnet_a1": Program("models/official/mnasnet/mnasnet_main.py", fixed("build_model_fn"), IMAGE, [f"{BATCH},int32"],
                          config("configs.mnasnet_config", "MNASNET_CFG", transpose_input=False, skip_host_call=True, dropout_rate=0.0,
                                 steps_per_epoch=10, quantized_training=False, add_summaries=False), paths=["models", "models/official/efficientnet", "models/official/mnasnet"]),
    "efficientnet_b0": Program("models/official/efficientnet/main.py", fixed("model_fn"), IMAGE, [f"{BATCH}x1000,float32"],
                               {"steps_per_epoch": 10, "use_bfloat16": False},
                               ["transpose_input=false", "input_image_size=64", "dropout_rate=0", "survival_prob=0", "skip_host_call=true"],
                               paths=["models", "models/official/efficientnet"]),
    "densenet121": Program("models/official/densenet/densenet_imagenet.py", fixed("model_fn"), IMAGE, [f"{BATCH}x1001,float32"],
                           {"batches_per_epoch": 10}, ["network_depth=121"], paths=["models", "models/official/densenet"]),
    "squeezenet": Program("models/official/squeezenet/squeezenet_model.py", fixed("model_fn"), [f"{BATCH}x224x224x3,float32"],
                          [f"{BATCH},int32"], config("configs.squeezenet_config", "SQUEEZENET_CFG"), paths=["models", "models/official/squeezenet"]),
    "mobilenet": Program("models/official/mobilenet/mobilenet.py", mobilenet, IMAGE, [f"{BATCH},int32"],
                         config("configs.mobilenet_config", "MOBILENET_CFG", input_perm=[0, 1, 2, 3]), paths=["models", "models/official/mobilenet"]),
    "inception_v3": Program("models/experimental/inception/inception_v3.py", fixed("inception_model_fn"), [f"{BATCH}x139x139x3,float32"],
                            [f"{BATCH},int32"], {"input_perm": [0, 1, 2, 3]}, ["skip_host_call=true"], paths=["models", "models/experimental/inception"]),
    "bert_pretraining": Program("run_pretraining.py", bert,
                                [f"input_ids={BATCH}x16,int32", f"input_mask={BATCH}x16,int32", f"segment_ids={BATCH}x16,int32",
                                 f"masked_lm_positions={BATCH}x3,int32", f"masked_lm_ids={BATCH}x3,int32",
                                 f"masked_lm_weights={BATCH}x3,float32", f"next_sentence_labels={BATCH}x1,int32"], [],
                                checkout="bert"),
    "two_heads": Program(None, two_heads, [f"{BATCH}x8x8x3,float32"], [f"class={BATCH},int32", f"price={BATCH}x1,float32"]),
    "unet3d": Program("models/official/unet3d/unet_model.py", fixed("unet_model_fn"), ["1x16x16x16x1,bfloat16"], ["1x16x16x16x3,bfloat16"],
                      config("unet_config", "UNET_CONFIG", depth=2, num_base_filters=4, use_bfloat16=True),
                      paths=["models", "models/official/unet3d"], only_hlo=True),
    "dcgan": Program("models/experimental/dcgan/cifar_model.py", dcgan, [f"noise={BATCH}x16,float32", f"images={BATCH}x32x32x3,float32"], [],
                     paths=["models/experimental/dcgan"], only_hlo=True),
    "retinanet": Program("models/official/retinanet/retinanet_model.py", None, [], [], paths=["models", "models/official/retinanet"], only_hlo=True),
}


def retinanet(module):
    """RetinaNet's model_fn with its default parameters, at an image of 128."""
    params = module.default_hparams().values()
    params.update(image_size=128, num_shards=1, use_tpu=False, resnet_checkpoint=None, use_bfloat16=False, num_examples_per_epoch=8, batch_size=2,
                  auto_mixed_precision=False, skip_eval_loss=False)
    return module.tpu_retinanet_model_fn, params


def retinanet_labels():
    labels = ["mean_num_positives=2x1,float32"]
    for level in range(3, 8):
        size = 128 >> level
        labels += [f"cls_targets_{level}=2x{size}x{size}x9,int32", f"box_targets_{level}=2x{size}x{size}x36,float32"]
    return labels


def write_safetensors(path, arrays):
    import numpy as np

    names = {"float32": "F32", "float64": "F64", "bfloat16": "BF16", "int32": "I32", "int64": "I64", "bool": "BOOL"}
    header, offset = {}, 0
    arrays = {key: np.ascontiguousarray(array) if np.ndim(array) else np.asarray(array) for key, array in arrays.items()}
    for key, array in arrays.items():
        header[key] = {"dtype": names[array.dtype.name], "shape": list(array.shape), "data_offsets": [offset, offset + array.nbytes]}
        offset += array.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for array in arrays.values():
            file.write(array.tobytes())


def draw(placeholders, rng):
    """A random batch: floats in [-1, 1), weights of 1, one-hot rows for float labels, small integers."""
    import numpy as np

    feeds = {}
    for name, tensor in placeholders.items():
        dims = [int(dim) for dim in tensor.shape]
        if tensor.dtype.is_integer:
            feeds[name] = rng.randint(0, 2 if len(dims) < 2 or dims[-1] == 1 else 5, dims).astype(tensor.dtype.as_numpy_dtype)
        elif "weight" in name or "mean_num" in name:
            feeds[name] = np.ones(dims, np.float32)
        elif name.startswith("label") and len(dims) == 2:
            feeds[name] = np.eye(dims[1], dtype=np.float32)[rng.randint(0, dims[1], dims[0])]
        else:
            feeds[name] = rng.uniform(-1, 1, dims).astype(tensor.dtype.as_numpy_dtype)
    return feeds


def trace(args, name):
    """Records a program's graph and TensorFlow's results, in a separate process."""
    program, tf_tracer = PROGRAMS[name], tracer()
    checkout = getattr(args, program.checkout)
    for path in program.paths or ([""] if program.script else []):
        sys.path.insert(0, os.path.join(checkout, path))
    # Read when TensorFlow is loaded; only the session with XLA uses it.
    os.environ["TF_XLA_FLAGS"] = "--tf_xla_cpu_global_jit"
    import numpy as np
    import tensorflow as tf

    from bf16scope._tensorflow_1 import Unsupplied

    v1 = tf.compat.v1
    v1.disable_v2_behavior()
    for missing in ("pycocotools", "pycocotools.coco", "pycocotools.cocoeval", "pycocotools.mask", "cv2", "PIL.Image"):
        # Modules that only the host's code uses, and a graph does not.
        if missing not in sys.modules and (missing[0] == "p" or importlib.util.find_spec(missing.split(".")[0]) is None):
            module = types.ModuleType(missing)
            module.__path__ = []
            for part in ("coco", "cocoeval", "mask", "COCO", "COCOeval", "Image"):
                setattr(module, part, Unsupplied(f"{missing}.{part}"))
            sys.modules.setdefault(missing, module)
    # A single core has no other core to sum with, and a CPU has no kernel for the sum.
    v1.tpu.CrossShardOptimizer = lambda optimizer, *_, **__: optimizer
    if program.script:
        script = os.path.join(checkout, program.script)
        os.chdir(os.path.dirname(script))
        module = tf_tracer.load(script, tf, program.flags)
    else:
        module = tf_tracer.stand_in(tf)
    if name == "retinanet":
        function, params = retinanet(module)
        program.features, program.labels = ["2x128x128x3,float32"], retinanet_labels()
    else:
        function, params = program.function(module), program.params
        params = params() if callable(params) else dict(params)
    params.setdefault("batch_size", BATCH)
    params.setdefault("use_tpu", False)
    logits = []
    for which in ("softmax_cross_entropy", "sparse_softmax_cross_entropy"):
        def watched(*values, real=getattr(v1.losses, which), **options):
            logits.append(options.get("logits", values[1] if len(values) > 1 else None))
            return real(*values, **options)
        setattr(v1.losses, which, watched)

    def built(mode):
        logits.clear()
        wanted = argparse.Namespace(features=program.features, labels=program.labels, params=[], mode=mode, cores=1, function=name)
        real = lambda features, labels, mode, params: tf_tracer.call(function, features, labels, mode, tf_tracer.Params(copied))
        copied = dict(params)
        v1.set_random_seed(1)
        return tf_tracer.build(tf, real, wanted)

    graph, features, labels, spec = built("train")
    n_forward = len(logits)
    places = {}
    for inputs in (features, labels):
        for tensor in (inputs.values() if isinstance(inputs, dict) else [inputs] if inputs is not None else []):
            places[tensor.op.name] = tensor
    with open(os.path.join(args.output, f"{name}.meta"), "wb") as file:
        file.write(tf_tracer.written(tf, graph, tf_tracer.Scopes(v1)))
    facts = {"nodes": len(graph.get_operations()), "heads": n_forward,
             "n_trained": len(graph.get_collection("trainable_variables")),
             "parameters": int(sum(np.prod(v.shape.as_list()) for v in graph.get_collection("trainable_variables")))}
    rng, arrays = np.random.RandomState(3), {}
    with graph.as_default():
        variables = {v.op.name: v for v in v1.global_variables()}
        initial = v1.global_variables_initializer()
        gifts = {n: v1.placeholder(v.dtype.base_dtype, v.shape) for n, v in variables.items()}
        assigned = [v1.assign(variables[n], gifts[n]) for n in variables]
        train = graph.get_collection("train_op")[-1]
        loss = graph.get_collection("losses")[-1]
    facts["variables"] = {n: v.shape.as_list() for n, v in variables.items()}
    feeds = [draw(places, rng) for _ in range(N_STEPS)]

    def session(jit):
        settings = v1.ConfigProto(inter_op_parallelism_threads=1, intra_op_parallelism_threads=2)
        if jit:
            settings.graph_options.optimizer_options.global_jit_level = v1.OptimizerOptions.ON_2
        return v1.Session(graph=graph, config=settings)

    def run(before, feeds=[] if args.no_steps else feeds, jit=False):
        losses, first = [], None
        with session(jit) as running:
            running.run(initial)
            if before is None:
                before = running.run(variables)
                for n, value in before.items():
                    if n.rsplit("/")[-1] in ("gamma", "beta", "bias", "biases") and value.dtype == np.float32:
                        before[n] = value + 0.1 * rng.standard_normal(value.shape).astype(np.float32)
            running.run(assigned, {gifts[n]: before[n] for n in variables})
            for feed in feeds:
                losses.append(running.run([loss, train], {places[n]: value for n, value in feed.items()})[0])
                first = first or running.run(variables)
            return before, losses, first, running.run(variables)

    try:
        before, losses, first, after = run(None)
    except tf.errors.OpError as error:
        facts["cannot_run"] = error.message[:300]
        before = None
    if before is not None:
        arrays.update({f"before/{n}": v for n, v in before.items()})
        if not args.no_steps:
            for at, feed in enumerate(feeds):
                arrays.update({f"step{at}/{n}": value for n, value in feed.items()})
                arrays[f"step{at}/loss"] = np.asarray(losses[at], np.float32)
            arrays.update({f"first/{n}": v for n, v in first.items()})
            arrays.update({f"after/{n}": v for n, v in after.items()})
            # An experiment shuffles its data, so it gets the same batch in every step.
            _, repeated_losses, _, repeated = run(before, feeds[:1] * N_STEPS)
            facts["repeated_losses"] = [float(value) for value in repeated_losses]
            write_safetensors(os.path.join(args.output, f"{name}.repeated.safetensors"), repeated)
            # TensorFlow compared with itself: a second time, and with its own XLA, which sums in another order.
            for which in ["again"] + ["xla"] * (not args.no_xla):
                _, other_losses, other_first, other_after = run(before, jit=which == "xla")
                arrays.update({f"{which}_first/{n}": v for n, v in other_first.items()})
                arrays.update({f"{which}/{n}": v for n, v in other_after.items()})
                arrays.update({f"{which}_step{at}/loss": np.asarray(value, np.float32) for at, value in enumerate(other_losses)})
            write_safetensors(os.path.join(args.output, f"{name}.safetensors"), arrays)
        write_safetensors(os.path.join(args.output, f"{name}.start.safetensors"), before)
        if n_forward and not program.only_hlo:
            evaluated, features, labels, _ = built("eval")
            with evaluated.as_default(), v1.Session(graph=evaluated) as running:
                known = {v.op.name: v for v in v1.global_variables()}
                running.run(v1.global_variables_initializer())
                for n, v in known.items():
                    v.load(before[n], running)
                names = {t.op.name: t for i in (features, labels) for t in (i.values() if isinstance(i, dict) else [i])}
                facts["logits"] = f"{name}.logits.npz"
                np.savez(os.path.join(args.output, facts["logits"]), features=feeds[0]["features"],
                         logits=running.run(logits[-1], {names[n]: value for n, value in feeds[0].items()}))
            np.savez(os.path.join(args.output, f"{name}.data.npz"), **feeds[0])
    with open(os.path.join(args.output, f"{name}.facts.json"), "w") as file:
        json.dump(facts, file)


def command(words, log):
    done = subprocess.run(words, capture_output=True, text=True)
    with open(log, "a") as file:
        file.write("$ " + " ".join(words) + "\n" + done.stdout[-20000:] + done.stderr[-4000:] + "\n")
    return done


def compare(args, name):
    """Ports a traced program; returns a row of the table."""
    out = lambda ending: os.path.join(args.output, f"{name}{ending}")
    facts, log = json.load(open(out(".facts.json"))), out(".log")
    if os.path.exists(log):
        os.remove(log)
    row = {"program": name, "nodes": facts["nodes"]}
    words = [args.bf16scope, "port", out(".meta"), "-o", out(""), "--json"]
    if os.path.exists(out(".start.safetensors")):
        words += ["--checkpoint", out(".start.safetensors")]
    done = command(words, log)
    if done.returncode == 2 and "--checkpoint" in words:
        # A network that layers cannot express does not start from a checkpoint.
        done = command(words[: words.index("--checkpoint")], log)
    report = json.loads(done.stdout)
    row["report"] = report
    row["facts"] = facts
    if os.path.exists(out(".safetensors")) and "instructions" in report["step"] and not args.no_run:
        done = command([args.steps, out(".meta"), out(".safetensors")] + ["--f64"] * args.f64, log)
        row["steps"] = json.loads(done.stdout) if done.returncode == 0 else {"error": done.stderr.strip().splitlines()[-1:]}
    experiment = os.path.join(out(""), "experiment.yaml")
    if facts.get("logits") and os.path.exists(experiment) and not args.no_run:
        row["logits"] = of_experiment(args, name, report, experiment, log)
    return row


def read_safetensors(path):
    import numpy as np

    dtypes = {"F32": "<f4", "F64": "<f8", "I32": "<i4", "I64": "<i8", "U64": "<u8", "U32": "<u4", "U8": "u1", "BOOL": "?"}
    with open(path, "rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        data = file.read()
    arrays = {key: np.frombuffer(data[slice(*info["data_offsets"])], dtypes[info["dtype"]]).reshape(info["shape"])
              for key, info in header.items() if key != "__metadata__" and info["dtype"] in dtypes}
    return arrays


def normalised(report, arrays):
    """Applies on the host the preprocessing that the graph applies to its features."""
    import numpy as np

    for note in report["differs"]:
        taken = re.match(r"`(mean|std)` \[(.*)\] is taken on the device", note["text"])
        if taken:
            numbers = np.array([float(number) for number in taken[2].split(",")], np.float32)
            arrays["features"] = arrays["features"] - numbers if taken[1] == "mean" else arrays["features"] / numbers
    return arrays


SLOTS = {"momentum": ["Momentum", "RMSProp_1"], "adam_m": ["Adam"], "adam_v": ["Adam_1"], "rms": ["RMSProp"], "average": ["ExponentialMovingAverage"]}


def of_experiment(args, name, report, experiment, log):
    """Compares the experiment with TensorFlow: logits, and variables and slots after ten steps of training."""
    import numpy as np

    out = lambda ending: os.path.join(args.output, f"{name}{ending}")
    inside = lambda file: os.path.join(out(""), file)
    with np.load(out(".logits.npz")) as arrays:
        batch = normalised(report, dict(arrays))
    expected = batch.pop("logits")
    np.savez(inside("inputs.npz"), **batch)
    done = command([args.bf16scope, "weights", inside("start.safetensors"), "--model", experiment, "--rules", "names",
                    "-o", inside("checkpoint.safetensors"), "--precision", "f32"], log)
    if done.returncode:
        return {"error": "weights: " + done.stderr.strip()[:200]}
    done = command([args.bf16scope, "predict", experiment, "--inputs", inside("inputs.npz"), "--precision", "f32",
                    "--checkpoint", inside("checkpoint.safetensors"), "-o", inside("predictions.npz")]
                   + ["--without-averages"] * any(line["section"] == "averages" for line in report["becomes"]), log)
    if done.returncode:
        return {"error": "predict: " + done.stderr.strip()[:200]}
    with np.load(inside("predictions.npz")) as arrays:
        # SqueezeNet's logits are a pixel of an image here.
        shaped = [arrays[key].reshape(expected.shape) for key in arrays.files if arrays[key].size == expected.size]
    facts = {"apart": min(float(np.abs(ours - expected).max()) for ours in shaped), "most": float(np.abs(expected).max())}
    if args.no_steps:
        return facts
    with np.load(out(".data.npz")) as arrays:
        np.savez(inside("data.npz"), **normalised(report, dict(arrays)))
    with open(experiment) as file:
        text = file.read()
    with open(inside("train.yaml"), "w") as file:
        text = text.replace("train:\n", "data: {npz: data.npz, test: {npz: data.npz}}\ntrain:\n  epochs: %d\n" % N_STEPS)
        if any("reads the softmax" in note["text"] for note in report["differs"]):
            # The experiment mends this slip; here it is compared with a graph that has it.
            layers = "    - {activation: softmax}\n    - {reshape: [%d]}\n" % expected.shape[-1]
            text = text.replace("  loss: ", layers + "  loss: ", 1)
        file.write(re.sub("  average:.*\n", lambda line: line[0].replace("}", ", evaluate: false}"), text))
    done = command([args.bf16scope, "train", inside("train.yaml"), "--precision", "f32", "--initialize-from", inside("start.safetensors"),
                    "--checkpoint", inside("trained.safetensors"), "--overwrite", "--no-run", "--json"], log)
    if done.returncode:
        return dict(facts, train_error="train: " + done.stderr.strip()[:200])
    # TensorFlow's loss has the L2 term before the step, `total_loss` the one behind it.
    epochs, theirs = json.loads(done.stdout)["epochs"], json.load(open(out(".facts.json")))["repeated_losses"]
    terms = [epoch.get("train_total_loss", epoch["train_loss"]) - epoch["train_loss"] for epoch in epochs]
    losses = [epoch["train_loss"] + term for epoch, term in zip(epochs[1:], terms)]
    facts["train_loss"] = max(abs(loss - other) / abs(other) for loss, other in zip(losses, theirs[1:]))
    ours, theirs, before = (read_safetensors(path) for path in (inside("trained.safetensors"), out(".repeated.safetensors"), out(".start.safetensors")))
    with open(inside("rules.yaml")) as file:
        names = dict(re.findall('ours: "([^{"]*)", theirs: "([^{"]*)"', file.read()))
    shares = {}
    for key, value in ours.items():
        variable, _, slot = key.rpartition("/")
        keys = [names.get(key, key)] + [f"{names.get(variable, variable)}/{theirs}" for theirs in SLOTS.get(slot, [])]
        theirs_key = next((key for key in keys if key in theirs and theirs[key].shape == value.shape), None)
        if theirs_key is None:
            continue
        after = theirs[theirs_key].astype(np.float64)
        change = np.linalg.norm((after - before[theirs_key]).ravel())
        if change > 1e-6 * np.linalg.norm(after.ravel()):
            shares[theirs_key] = float(np.linalg.norm((value - after).ravel()) / change)
    ordered = sorted(shares.items(), key=lambda share: share[1])
    return dict(facts, n=len(ordered), change=ordered[len(ordered) // 2][1], worst=ordered[-1][1], worst_variable=ordered[-1][0])


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--tpu"), parser.add_argument("--bert")
    parser.add_argument("--bf16scope", default="bf16scope"), parser.add_argument("--steps", default="target/debug/examples/steps")
    parser.add_argument("-o", "--output", required=True)
    parser.add_argument("--one", help="trace this program, in this process")
    parser.add_argument("--no-xla", action="store_true"), parser.add_argument("--no-run", action="store_true")
    parser.add_argument("--no-steps", action="store_true", help="logits alone")
    parser.add_argument("--traced", action="store_true", help="graphs are there already")
    parser.add_argument("--f64", action="store_true", help="the step in f64 too")
    parser.add_argument("names", nargs="*")
    args = parser.parse_args()
    for key in ("tpu", "bert", "output", "bf16scope", "steps"):
        if getattr(args, key):
            setattr(args, key, os.path.abspath(getattr(args, key)))
    os.makedirs(args.output, exist_ok=True)
    if args.one:
        return trace(args, args.one)
    rows = []
    for name in args.names or PROGRAMS:
        if not args.traced:
            words = [sys.executable, __file__, "--one", name, "--tpu", args.tpu, "--bert", args.bert or "", "-o", args.output]
            done = subprocess.run(words + ["--no-xla"] * args.no_xla + ["--no-steps"] * args.no_steps, capture_output=True, text=True)
            if done.returncode:
                print(f"{name}: not traced: {done.stderr.strip().splitlines()[-1]}")
                open(os.path.join(args.output, f"{name}.trace.log"), "w").write(done.stderr)
                continue
        row = compare(args, name)
        rows.append(row)
        print(line(row), flush=True)
    with open(os.path.join(args.output, "rows.json"), "w") as file:
        json.dump(rows, file, indent=1)
    with open(os.path.join(args.output, "table.md"), "w") as file:
        file.write(HEAD + "".join(line(row) + "\n" for row in rows))


HEAD = ("| program | nodes | trained variables, parameters | in layers | step as HLO: loss, variables and slots (median, worst) | TensorFlow's own XLA | "
        "logits of the experiment | its training: losses, variables and slots (median, worst) | differs | missing | slips |\n|" + " --- |" * 11 + "\n")


def line(row):
    report, facts, steps, ours = row["report"], row["facts"], row.get("steps", {}), row.get("logits", {})
    network = next((becomes["text"] for becomes in report["becomes"] if becomes["section"] == "network"), "none")
    number = lambda value: "" if value is None else f"{value:.0e}".replace("e-0", "e-")
    several = lambda facts, *keys: ", ".join(number(facts.get(key)) for key in keys) if keys[-1] in facts else ""
    hlo = steps.get("error") or several(steps, "loss", "change", "worst") or facts.get("cannot_run", report["step"])[:60]
    layers = re.sub(r"kind: layers, (\d+) layers; (\d+) variables of ([\d,]+) elements under their names", r"\1 layers: \2, \3", network)
    xla = several(steps, "xla_loss", "xla_change", "xla_worst") if steps.get("xla_worst") else ""
    cells = [row["program"], facts["nodes"], f"{facts['n_trained']}, {facts['parameters']:,}", layers, hlo, xla,
             ours.get("error") or several(ours, "apart"), ours.get("train_error") or several(ours, "train_loss", "change", "worst"),
             len(report["differs"]), len(report["missing"]), ", ".join(slip["what"] for slip in report["slips"]) or "none"]
    return "| " + " | ".join(str(cell) for cell in cells) + " |"


if __name__ == "__main__":
    main()
