"""Traces a TensorFlow script's `model_fn`, or a Keras model, into a graph that `bf16scope port` reads.

    python -m bf16scope.tf SCRIPT.py:model_fn --features 8x224x224x3,bfloat16 --labels 8,int32 -o model.meta

This RUNS the script, with the TensorFlow that is installed (2.15 and its `tf.compat.v1` were tried); it trains nothing. The
graph is written as a Saver writes it, with the line of each node. Where a script asks for `tf.contrib`, which no TensorFlow
has had since 2.0, what TPU programs use of it is stood in for; anything else of it is an error that names it.
"""

import argparse
import importlib.util
import inspect
import json
import os
import re
import sys
import types

SOURCE = "_bf16scope_source"
MODES = {"train": "train", "eval": "eval", "predict": "infer"}


class TraceError(Exception):
    """What is wrong with a script or with what was asked, in words."""


def parse_spec(text):
    """`name=8x224x224x3,bfloat16` as name, dims and dtype; the name may be left out, and dims of a scalar are empty."""
    name, _, rest = text.rpartition("=")
    dims, _, dtype = rest.partition(",")
    try:
        sizes = [int(size) for size in dims.split("x")] if dims else []
    except ValueError:
        raise TraceError(f"`{text}` is no shape; expected 8x224x224x3,bfloat16 or name=8x128,int32") from None
    return name, sizes, dtype or "float32"


def parse_params(texts):
    """`key=value` pairs: values are JSON where they can be, else text."""
    params = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals:
            raise TraceError(f"`{text}` is no parameter; expected key=value")
        try:
            params[key] = json.loads(value)
        except ValueError:
            params[key] = {"True": True, "False": False, "None": None}.get(value, value)
    return params


class Params(dict):
    """Parameters as scripts read them: by key and by attribute."""

    __getattr__ = dict.__getitem__

    def override(self, other):
        self.update(other)

    def values(self):
        return dict(self)


def _contrib(v1):
    """What TPU programs use of `tf.contrib`."""

    class Standin(types.ModuleType):
        def __getattr__(self, name):
            if name.startswith("__"):
                raise AttributeError(name)
            raise TraceError(
                f"the script uses {self.__name__}.{name}, which TensorFlow 2 does not have and nothing stands in for\n"
                f"help: replace it by its successor (tf.compat.v1, tf_slim, tensorflow_addons) and trace again"
            )

    contrib = Standin("tf.contrib")
    contrib.tpu = Standin("tf.contrib.tpu")
    for source in (v1.tpu, getattr(v1.estimator, "tpu", None)):
        for name in dir(source) if source else []:
            if not name.startswith("_"):
                setattr(contrib.tpu, name, getattr(source, name))
    contrib.training = Standin("tf.contrib.training")
    contrib.training.HParams = lambda **values: Params(values)
    contrib.layers = Standin("tf.contrib.layers")
    contrib.layers.variance_scaling_initializer = lambda factor=2.0, mode="FAN_IN", uniform=False, seed=None, dtype=None: (
        v1.variance_scaling_initializer(factor, mode.lower(), "uniform" if uniform else "truncated_normal", seed=seed)
    )
    contrib.layers.xavier_initializer = v1.glorot_uniform_initializer
    contrib.layers.l2_regularizer = lambda scale: lambda weights: scale * v1.nn.l2_loss(weights)
    contrib.framework = Standin("tf.contrib.framework")
    contrib.framework.nest = v1.nest if hasattr(v1, "nest") else None
    contrib.framework.get_or_create_global_step = v1.train.get_or_create_global_step
    contrib.data = Standin("tf.contrib.data")
    contrib.summary = v1.summary
    try:
        import tf_slim

        contrib.slim = tf_slim
        contrib.framework.arg_scope = tf_slim.arg_scope
    except ImportError:
        pass
    return contrib


def _is_version_1(text):
    """Whether a script is written against TensorFlow 1 under the name of TensorFlow."""
    if re.search(r"tensorflow\.compat\.v1|compat\.v1 as tf", text):
        return False
    words = r"\btf\.(contrib|get_variable|layers|placeholder|variable_scope|train\.\w*Optimizer|flags|logging|losses|app)\b"
    return re.search(words, text) is not None


def load(path, tf):
    """The script as a module; under TensorFlow 1's names where it is written against them."""
    v1 = tf.compat.v1
    with open(path, encoding="utf-8", errors="replace") as file:
        text = file.read()
    sys.path.insert(0, os.path.dirname(os.path.abspath(path)))
    if not hasattr(v1, "contrib"):
        v1.contrib = _contrib(v1)
    if _is_version_1(text):
        v1.disable_v2_behavior()
        v1.__path__ = tf.__path__
        sys.modules["tensorflow"] = v1
        for name in ("tpu", "training", "layers", "framework", "data"):
            sys.modules[f"tensorflow.contrib.{name}"] = getattr(v1.contrib, name)
        sys.modules["tensorflow.contrib"] = v1.contrib
    spec = importlib.util.spec_from_file_location("traced_script", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules["traced_script"] = module
    spec.loader.exec_module(module)
    return module


class Scopes:
    """Where bfloat16 scopes open and close, and what variables are asked for inside."""

    def __init__(self, v1):
        self.opened, self.requests, self.depth = [], [], 0
        from tensorflow.python.tpu import bfloat16

        real, scopes = bfloat16.bfloat16_scope, self

        class Watched:
            def __init__(self, name=None):
                self.scope = real(name)

            def __enter__(self):
                scopes.opened.append(place_of(inspect.stack()[1:]))
                scopes.depth += 1
                return self.scope.__enter__()

            def __exit__(self, *error):
                scopes.depth -= 1
                return self.scope.__exit__(*error)

        bfloat16.bfloat16_scope = Watched
        for module in (v1.tpu, getattr(v1.contrib, "tpu", None)):
            if module is not None:
                module.bfloat16_scope = Watched
        get = v1.get_variable

        def get_variable(name, shape=None, dtype=None, *more, **options):
            if scopes.depth:
                asked = "float32 (none asked for)" if dtype is None else str(getattr(dtype, "name", dtype))
                scopes.requests.append((name, asked))
            return get(name, shape, dtype, *more, **options)

        v1.get_variable = get_variable


OURS = os.path.abspath(__file__)


def place_of(frames):
    """The innermost place that is the user's: not in an installed package, nor here."""
    for frame in frames:
        name, line = (frame.filename, frame.lineno)
        path = os.path.abspath(name)
        if "site-packages" not in path and "dist-packages" not in path and path != OURS and not name.startswith("<"):
            if os.sep + "lib" + os.sep + "python" not in path:
                return f"{os.path.relpath(path)}:{line}"
    return ""


def placeholders(v1, specs, prefix):
    """Placeholders of these specs: one, or a dict by name."""
    made = {}
    for text in specs:
        name, dims, dtype = parse_spec(text)
        made[name] = v1.placeholder(v1.as_dtype(dtype), dims, name=name or prefix)
    return made[""] if list(made) == [""] else made or None


def call(function, features, labels, mode, params):
    """Calls a model_fn with as many of these as it takes."""
    names = inspect.signature(function).parameters
    known = {"features": features, "labels": labels, "mode": mode, "params": params, "config": None}
    positional = [features, labels, mode, params]
    if "features" in names:
        return function(**{name: known[name] for name in names if name in known})
    return function(*positional[: min(len(names), 4)])


def trace_model_fn(tf, function, args, scopes):
    """The graph of a model_fn, its loss and the op that trains in their collections."""
    v1 = tf.compat.v1
    graph = tf.Graph()
    with graph.as_default():
        v1.train.get_or_create_global_step()
        features, labels = placeholders(v1, args.features, "features"), placeholders(v1, args.labels, "labels")
        params = Params(parse_params(args.params))
        if args.features and isinstance(features, v1.Tensor) and features.shape.rank:
            params.setdefault("batch_size", int(features.shape[0] or 1))
        from tensorflow.python.tpu import tpu_function

        def build():
            return call(function, features, labels, MODES[args.mode], params)

        if args.cores > 1:
            with tpu_function.tpu_shard_context(args.cores):
                spec = build()
            graph.create_op("TPUReplicateMetadata", [], [], attrs={"num_replicas": v1.AttrValue(i=args.cores)})
        else:
            spec = build()
        loss = getattr(spec, "loss", None)
        train_op = getattr(spec, "train_op", None)
        if args.mode == "train" and train_op is None:
            raise TraceError(f"`{args.function}` gives no train_op in mode train; got {type(spec).__name__}")
        if loss is not None:
            graph.clear_collection("losses")
            graph.add_to_collection("losses", loss)
        if train_op is not None:
            graph.clear_collection("train_op")
            graph.add_to_collection("train_op", train_op)
        meta = v1.train.export_meta_graph(clear_devices=True)
    add_places(graph, meta)
    report(meta, scopes)
    return meta.SerializeToString(deterministic=True)


def add_places(graph, meta):
    """Each node's line, in an attribute."""
    for node in meta.graph_def.node:
        try:
            place = place_of(reversed(list(graph.get_operation_by_name(node.name).traceback)))
        except (KeyError, AttributeError):
            place = ""
        if place:
            node.attr[SOURCE].s = place.encode()
    meta.meta_info_def.ClearField("stripped_op_list")


def report(meta, scopes):
    """What the scopes saw, and what dtypes show of them."""
    for place in scopes.opened:
        print(f"bfloat16_scope opened at {place}", file=sys.stderr)
    asked = [name for name, dtype in scopes.requests if dtype == "bfloat16"]
    if scopes.opened and not asked and not any(n.op == "Cast" and n.attr["DstT"].type == 14 for n in meta.graph_def.node):
        print(
            "warning: a bfloat16_scope was opened, and nothing in it asked for bfloat16: the network is float32\n"
            "help: cast the features to tf.bfloat16 as the last step of input_fn, and trace with --features …,bfloat16",
            file=sys.stderr,
        )


def trace_keras(tf, model, args):
    """The graph of a Keras model or tf.function, as a GraphDef with its functions."""
    specs = [parse_spec(text) for text in args.features]
    signature = [tf.TensorSpec(dims, dtype, name or "features") for name, dims, dtype in specs]
    if not signature:
        signature = [tf.TensorSpec(tensor.shape, tensor.dtype, tensor.name.split(":")[0]) for tensor in model.inputs]
    function = model if hasattr(model, "get_concrete_function") else tf.function(lambda *xs: model(*xs, training=args.mode == "train"))
    concrete = function.get_concrete_function(*signature)
    definition = concrete.graph.as_graph_def()
    # Variables come in as captured handles: each becomes the variable's own node again.
    handles = {id(variable.handle): variable for variable in concrete.graph.variables}
    captured = {inner.op.name: handles.get(id(outer)) for outer, inner in concrete.graph.captures}
    for node in definition.node:
        variable = captured.get(node.name)
        if variable is not None:
            node.op = "VarHandleOp"
            node.ClearField("attr")
            node.attr["dtype"].type = variable.dtype.as_datatype_enum
            node.attr["shape"].shape.CopyFrom(variable.shape.as_proto())
            node.attr["shared_name"].s = variable.name.split(":")[0].encode()
    return definition.SerializeToString(deterministic=True)


def main(arguments=None):
    """The command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m bf16scope.tf", description=__doc__.split("\n\n")[0],
                                     epilog="It runs the script, and trains nothing.")
    parser.add_argument("function", metavar="SCRIPT.py:NAME", help="a model_fn, or a function or name of a Keras model")
    parser.add_argument("--features", action="append", default=[], metavar="[NAME=]DIMS,DTYPE", help="8x224x224x3,bfloat16")
    parser.add_argument("--labels", action="append", default=[], metavar="[NAME=]DIMS,DTYPE", help="8,int32")
    parser.add_argument("--params", action="append", default=[], metavar="KEY=VALUE", help="one of the model_fn's params")
    parser.add_argument("--mode", choices=sorted(MODES), default="train")
    parser.add_argument("--cores", type=int, default=1, help="how many cores CrossShardOptimizer sums over")
    parser.add_argument("-o", "--output", required=True, metavar="FILE", help="model.meta, or of Keras model.pb")
    args = parser.parse_args(arguments)
    try:
        path, colon, name = args.function.rpartition(":")
        if not colon or not os.path.isfile(path):
            raise TraceError(f"`{args.function}` names no function; expected SCRIPT.py:model_fn")
        try:
            import tensorflow as tf
        except ImportError:
            raise TraceError("TensorFlow is not installed\nhelp: pip install tensorflow-cpu==2.15.1 (Python 3.9 to 3.11)") from None
        print(f"running {path}, as it stands, with TensorFlow {tf.__version__}", file=sys.stderr)
        module = load(path, tf)
        if not hasattr(module, name):
            raise TraceError(f"{path} has no `{name}`")
        target = getattr(module, name)
        if inspect.isfunction(target) and not inspect.signature(target).parameters:
            target = target()
        is_keras = hasattr(target, "get_concrete_function") or hasattr(target, "get_weights")
        data = trace_keras(tf, target, args) if is_keras else trace_model_fn(tf, target, args, Scopes(tf.compat.v1))
        with open(args.output, "wb") as file:
            file.write(data)
    except TraceError as error:
        print(f"bf16scope.tf: {error}", file=sys.stderr)
        return 2
    print(f"wrote {args.output}; `bf16scope port {args.output}` says what it becomes", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
