"""Traces a TensorFlow script's `model_fn`, or a Keras model, into a graph that `bf16scope port` reads.

    python -m bf16scope.tf SCRIPT.py:model_fn --features 8x224x224x3,bfloat16 --labels 8,int32 -o model.meta

This RUNS the script, with the installed TensorFlow (2.15 and its `tf.compat.v1` were tried); it trains nothing. The graph is
written as a Saver writes it, with the source line of each node. `tf.contrib`, which TensorFlow 2 does not have, is replaced by
stand-ins for the parts that TPU programs use; using any other part is an error that names it.
"""

import argparse
import contextlib
import importlib
import importlib.abc
import importlib.util
import inspect
import json
import os
import re
import sys
import traceback
import types

SOURCE = "_bf16scope_source"
MODES = {"train": "train", "eval": "eval", "predict": "infer"}


class TraceError(Exception):
    """An error in the script or in the arguments."""


def parse_spec(text):
    """Parses `name=8x224x224x3,bfloat16` into name, dims and dtype; the name is optional, and a scalar has empty dims."""
    name, _, rest = text.rpartition("=")
    dims, _, dtype = rest.partition(",")
    try:
        sizes = [int(size) for size in dims.split("x")] if dims else []
        if min(sizes, default=0) < 0:
            raise ValueError
    except ValueError:
        raise TraceError(f"`{text}` is no shape; expected 8x224x224x3,bfloat16 or name=8x128,int32") from None
    return name, sizes, dtype or "float32"


def parse_specs(texts):
    """Parses the specs of a dict by name, or of a single array without a name; of two that share a name one would be lost."""
    specs = {}
    for text in texts:
        name, dims, dtype = parse_spec(text)
        if specs and (name in specs or "" in (name, *specs)):
            second = f"a second `{name}`" if name and name in specs else "beside an array without a name"
            raise TraceError(f"`{text}` is {second}; expected a name of its own for each of several, as NAME=8x128,int32")
        specs[name] = (text, dims, dtype)
    return specs


def as_dtype(tf, text, dtype):
    """TensorFlow's dtype of a spec."""
    try:
        return tf.as_dtype(dtype)
    except TypeError:
        raise TraceError(f"`{text}`: `{dtype}` is no dtype of TensorFlow; expected bfloat16, float32, int32, …") from None


def parse_params(texts):
    """Parses `key=value` pairs; a value that is not JSON is text."""
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

    __setattr__ = dict.__setitem__

    def __getattr__(self, name):
        try:
            return self[name]
        except KeyError:
            # `hasattr`, `getattr` with a default and `copy` expect this error.
            raise AttributeError(f"no parameter `{name}`; --params {name}=VALUE gives it") from None

    def override(self, other):
        self.update(other)


class HParams(Params):
    """`tf.contrib.training.HParams`, whose `values` is a dict."""

    def values(self):
        return dict(self)


class Unsupplied:
    """A name of `tf.contrib` without a stand-in: importing it succeeds, and using it is an error that names it."""

    def __init__(self, name):
        self.__dict__["name"] = name

    def _refuse(self):
        raise TraceError(
            f"the script uses {self.name}, which TensorFlow 2 does not have and nothing stands in for\n"
            f"help: replace it by its successor (tf.compat.v1, tf_slim, tensorflow_addons) and trace again"
        )

    def __call__(self, *values, **options):
        self._refuse()

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        self._refuse()


class Contrib(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports stand-ins for `tensorflow.contrib` and its submodules, and modules of TensorFlow 1 that have moved."""

    MOVED = {"tensorflow.python.estimator": "tensorflow_estimator.python.estimator"}

    def __init__(self, v1):
        self.v1 = v1
        from tensorflow.python.framework import ops

        if not hasattr(ops, "Tensor"):
            # tf_slim 1.1.0 needs it here, as in TensorFlow 2.14 and before.
            ops.Tensor = v1.Tensor
        try:
            import tf_slim

            self.slim = tf_slim
        except ImportError:
            self.slim = None

    def find_spec(self, name, path=None, target=None):
        if name == "tensorflow.contrib" or name.startswith(("tensorflow.contrib.", *self.MOVED)):
            return importlib.util.spec_from_loader(name, self, is_package=True)
        return None

    def create_module(self, spec):
        for old, new in self.MOVED.items():
            if spec.name.startswith(old):
                return importlib.import_module(new + spec.name[len(old) :])
        if self.slim and spec.name.startswith("tensorflow.contrib.slim."):
            tail = spec.name[len("tensorflow.contrib.slim.") :].replace("python.slim.", "")
            try:
                return importlib.import_module(f"tf_slim.{tail}")
            except ImportError:
                pass
        return Standin(spec.name, self)

    def exec_module(self, module):
        pass

    def named(self, module, name):
        """The stand-in for a name of a module of contrib; None without one."""
        v1 = self.v1
        parts = module.split(".")[2:]
        place = [v1.tpu, getattr(v1.estimator, "tpu", None)] if "tpu" in parts else []
        if "tpu" not in parts and name in self.words():
            return self.words()[name]
        if "slim" in parts and self.slim:
            place.append(self.slim)
        if "layers" in parts and self.slim:
            place.append(self.slim.layers)
        if "framework" in parts:
            place += [v1, v1.train]
        if "summary" in parts:
            place.append(v1.summary)
        if "data" in parts:
            place += [v1.data.experimental, v1.data]
        if "estimator" in parts:
            place.append(v1.estimator)
        if "cluster_resolver" in parts or "distribute" in parts:
            place += [v1.distribute.cluster_resolver, v1.distribute]
        if "rnn" in parts:
            place.append(v1.nn.rnn_cell)
        for source in place:
            if source is not None and hasattr(source, name):
                return getattr(source, name)
        return None

    def words(self):
        v1 = self.v1
        words = {
            "HParams": lambda **values: HParams(values),
            "variance_scaling_initializer": lambda factor=2.0, mode="FAN_IN", uniform=False, seed=None, dtype=None: (
                v1.variance_scaling_initializer(factor, mode.lower(), "uniform" if uniform else "truncated_normal", seed=seed)
            ),
            "xavier_initializer": lambda uniform=True, seed=None, dtype=None: v1.variance_scaling_initializer(
                1.0, "fan_avg", "uniform" if uniform else "truncated_normal", seed=seed
            ),
            "l2_regularizer": lambda scale, scope=None: lambda weights: scale * v1.nn.l2_loss(weights),
            "xavier_initializer_conv2d": lambda uniform=True, seed=None, dtype=None: words["xavier_initializer"](uniform, seed),
            "get_or_create_global_step": v1.train.get_or_create_global_step,
        }
        if self.slim:
            words["arg_scope"] = self.slim.arg_scope
        return words


class Standin(types.ModuleType):
    """A module of `tf.contrib`."""

    def __init__(self, name, contrib):
        super().__init__(name)
        self.__dict__["_contrib"] = contrib

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        value = self._contrib.named(self.__name__, name)
        if value is None and self.__name__.count(".") == 1:
            # `tf.contrib.tpu` may be used without an explicit import.
            value = importlib.import_module(f"{self.__name__}.{name}")
        if value is None:
            value = Unsupplied(f"{self.__name__.replace('tensorflow', 'tf', 1)}.{name}")
        setattr(self, name, value)
        return value


def stand_in(tf):
    """Installs stand-ins for names of TensorFlow 1 that TensorFlow 2 no longer has."""
    v1 = tf.compat.v1
    if not any(isinstance(finder, Contrib) for finder in sys.meta_path):
        # Before TensorFlow's own finders, since its lazy modules are looked up only once.
        sys.modules.setdefault("tensorflow.compat.v1.estimator", v1.estimator)
        sys.meta_path.insert(0, Contrib(v1))
        v1.contrib = importlib.import_module("tensorflow.contrib")


def _is_version_1(text):
    """Whether a script uses TensorFlow 1's API under the name `tensorflow`."""
    if re.search(r"tensorflow\.compat\.v1|compat\.v1 as tf", text):
        return False
    words = r"\btf\.(contrib|get_variable|layers|placeholder|variable_scope|train\.\w*Optimizer|flags|logging|losses|app)\b"
    return re.search(words, text) is not None


def load(path, tf, flags=()):
    """Loads the script as a module, with TensorFlow 1's names if it uses them."""
    path = os.path.abspath(path)
    with open(path, encoding="utf-8", errors="replace") as file:
        text = file.read()
    sys.path.insert(0, os.path.dirname(path))
    # A script that reads its command line as it is imported reads its own flags, not the tracer's.
    sys.argv = [path, *(f"--{flag}" for flag in flags)]
    stand_in(tf)
    if _is_version_1(text):
        as_version_1(tf)
    spec = importlib.util.spec_from_file_location("traced_script", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules["traced_script"] = module
    spec.loader.exec_module(module)
    # argparse may have read some of them as the script was imported.
    parse_flags(flags, known_only="argparse" in text)
    return module


def as_version_1(tf):
    """Makes `import tensorflow` import TensorFlow 1's API from now on."""
    v1 = tf.compat.v1
    v1.disable_v2_behavior()
    v1.__path__ = tf.__path__
    sys.modules["tensorflow"] = v1


def parse_flags(flags, known_only=False):
    """Parses absl's flags as a script's `main` would: their defaults, and the values from `--flag`."""
    from absl import flags as absl_flags

    known = absl_flags.FLAGS
    known.unparse_flags()
    try:
        known(["traced_script", *(f"--{flag}" for flag in flags)], known_only=known_only)
    except absl_flags.Error as error:
        # absl checks flags once all are read. One that `main` requires, such as a data_dir, is not needed to build a graph.
        if not known.is_parsed():
            raise TraceError(f"--flag: {error}") from None


class Scopes:
    """Records where bfloat16 scopes are opened, and which variables are requested inside of them."""

    def __init__(self, v1):
        self.opened, self.requests, self.depth = [], [], 0
        from tensorflow.python.tpu import bfloat16

        real, scopes = bfloat16.bfloat16_scope, self

        class Watched(contextlib.ContextDecorator):
            def __init__(self, name=None):
                self.name = name

            def __enter__(self):
                self.scope = real(self.name)
                scopes.opened.append(place_of(inspect.stack()[1:]))
                scopes.depth += 1
                return self.scope.__enter__()

            def __exit__(self, *error):
                scopes.depth -= 1
                return self.scope.__exit__(*error)

        bfloat16.bfloat16_scope = Watched
        for module in (v1.tpu, v1.contrib.tpu):
            module.bfloat16_scope = Watched
        get = v1.get_variable

        def get_variable(name, shape=None, dtype=None, *more, **options):
            if scopes.depth:
                asked = "float32 (none asked for)" if dtype is None else str(getattr(dtype, "name", dtype))
                scopes.requests.append((name, asked))
            return get(name, shape, dtype, *more, **options)

        v1.get_variable = get_variable


OURS = os.path.abspath(__file__)
# A script may go to another folder.
START = os.getcwd()


def place_of(frames):
    """The innermost source position in the user's code: not in an installed package, and not in this file."""
    for frame in frames:
        name, line = (frame.filename, frame.lineno)
        path = os.path.abspath(name)
        if "site-packages" not in path and "dist-packages" not in path and path != OURS and not name.startswith("<"):
            if os.sep + "lib" + os.sep + "python" not in path:
                return f"{os.path.relpath(path, START)}:{line}"
    return ""


def place_of_error(error):
    """The innermost position of an error in the user's code."""
    return place_of(reversed(traceback.extract_tb(error.__traceback__)))


def placeholders(v1, specs, prefix):
    """Placeholders with these specs: a single one without a name, or a dict by name."""
    by_name = {}
    for name, (text, dims, dtype) in parse_specs(specs).items():
        by_name[name] = v1.placeholder(as_dtype(v1, text, dtype), dims, name=name or prefix)
    return by_name[""] if list(by_name) == [""] else by_name or None


def call(function, features, labels, mode, params, make_config=None):
    """Calls a model_fn with the arguments that it takes."""
    names = inspect.signature(function).parameters
    known = {"features": features, "labels": labels, "mode": mode, "params": params}
    if "config" in names:
        # The configuration that an estimator gives where a script chose none.
        known["config"] = make_config and make_config()
    positional = [features, labels, mode, params]
    if "features" in names:
        return function(**{name: known[name] for name in names if name in known})
    return function(*positional[: min(len(names), 4)])


def build(tf, function, args):
    """The graph of a model_fn, with its loss and training op in their collections; also its features, labels and spec."""
    v1 = tf.compat.v1
    graph = tf.Graph()
    with graph.as_default():
        v1.train.get_or_create_global_step()
        features, labels = placeholders(v1, args.features, "features"), placeholders(v1, args.labels, "labels")
        params, make_config = Params(parse_params(args.params)), lambda: v1.estimator.tpu.RunConfig()
        some = next(iter(features.values())) if isinstance(features, dict) else features
        if some is not None and some.shape.rank:
            params.setdefault("batch_size", int(some.shape[0] or 1))
        from tensorflow.python.tpu import tpu_function

        if args.cores > 1:
            with tpu_function.tpu_shard_context(args.cores):
                spec = call(function, features, labels, MODES[args.mode], params, make_config)
            graph.create_op("TPUReplicateMetadata", [], [], attrs={"num_replicas": v1.AttrValue(i=args.cores)})
        else:
            spec = call(function, features, labels, MODES[args.mode], params, make_config)
        train_op = getattr(spec, "train_op", None)
        if args.mode == "train" and train_op is None:
            raise TraceError(f"`{args.function}` gives no train_op in mode train; got {type(spec).__name__}")
        for collection, value in (("losses", getattr(spec, "loss", None)), ("train_op", train_op)):
            if value is not None:
                graph.clear_collection(collection)
                graph.add_to_collection(collection, value)
    return graph, features, labels, spec


def trace_model_fn(tf, function, args, scopes):
    """The graph of a model_fn as a serialized MetaGraphDef."""
    return written(tf, build(tf, function, args)[0], scopes)


def written(tf, graph, scopes):
    """A graph as a serialized MetaGraphDef, with the source lines of its nodes."""
    with graph.as_default():
        meta = tf.compat.v1.train.export_meta_graph(clear_devices=True)
    add_places(graph, meta)
    report(meta, scopes)
    return meta.SerializeToString(deterministic=True)


def add_places(graph, meta):
    """Stores each node's source line in an attribute."""
    for node in meta.graph_def.node:
        try:
            place = place_of(reversed(list(graph.get_operation_by_name(node.name).traceback)))
        except (KeyError, AttributeError):
            place = ""
        if place:
            node.attr[SOURCE].s = place.encode()
    meta.meta_info_def.ClearField("stripped_op_list")


def report(meta, scopes):
    """Prints where scopes were opened, and warns if they had no effect."""
    for place in scopes.opened:
        print(f"bfloat16_scope opened at {place}", file=sys.stderr)
    asked = [name for name, dtype in scopes.requests if dtype == "bfloat16"]
    if scopes.opened and not asked and not any(n.op == "Cast" and n.attr["DstT"].type == 14 for n in meta.graph_def.node):
        print(
            "warning: a bfloat16_scope was opened, and nothing in it asked for bfloat16: the network is float32\n"
            "help: cast the features to tf.bfloat16 as the last step of input_fn, and trace with --features …,bfloat16",
            file=sys.stderr,
        )


def inputs_of_function(function, names, specs):
    """Positional and keyword inputs of a tf.function: names that are its parameters' decide, and else the order."""
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    parameters = inspect.signature(getattr(function, "python_function", function)).parameters.values()
    known = [parameter.name for parameter in parameters if parameter.kind in kinds]
    strange = [name for name in names if name not in known]
    if not strange:
        return [], dict(zip(names, specs))
    if len(strange) == len(names):
        is_dict = len(known) == len(parameters) == 1 and len(names) > 1 and all(names)
        return ([dict(zip(names, specs))] if is_dict else specs), {}
    raise TraceError(f"--features `{strange[0]}` is none of the function's inputs; expected {', '.join(known)}")


def inputs_of_model(model, names, specs):
    """The first argument of a Keras model: an array, a dict by names, or a list in the model's order."""
    known = list(getattr(model, "input_names", None) or [])
    if len(specs) == 1:
        return specs[0]
    if any(names) and not all(names) or all(names) and known and sorted(known) != sorted(names):
        expected = ", ".join(known) or "a name for each, or for none"
        raise TraceError(f"--features has the names {', '.join(name or '(none)' for name in names)}; expected {expected}")
    return dict(zip(names, specs)) if all(names) else specs


def concrete_function(tf, model, args):
    """A Keras model or tf.function at the shapes of its features."""
    specs = [(text, *parse_spec(text)) for text in args.features]
    names = [name for _, name, _, _ in specs]
    doubled = next((name for name in names if name and names.count(name) > 1), None)
    if doubled:
        raise TraceError(f"--features has two named `{doubled}`; expected a name for each")
    signature = [tf.TensorSpec(dims, as_dtype(tf, text, dtype), name or "features") for text, name, dims, dtype in specs]
    if hasattr(model, "get_concrete_function"):
        positional, by_name = inputs_of_function(model, names, signature) if signature else ([], {})
        return model.get_concrete_function(*positional, **by_name)
    if not signature:
        inputs = getattr(model, "inputs", None)
        if not inputs:
            raise TraceError(f"`{args.function}` has no inputs of its own; expected --features 8x224x224x3,float32")
        signature = [tf.TensorSpec(tensor.shape, tensor.dtype, tensor.name.split(":")[0]) for tensor in inputs]
        names = [""] * len(signature)
    call = tf.function(lambda inputs: model(inputs, training=args.mode == "train"))
    return call.get_concrete_function(inputs_of_model(model, names, signature))


def trace_keras(tf, model, args):
    """The graph of a Keras model or tf.function as a serialized GraphDef with its functions."""
    concrete = concrete_function(tf, model, args)
    definition = concrete.graph.as_graph_def()
    # Variables are captured handles here: each is replaced by the variable's own node, and a captured array by a constant.
    handles = {id(variable.handle): variable for variable in concrete.graph.variables}
    captured = {inner.op.name: outer for outer, inner in concrete.graph.captures}
    for node in definition.node:
        outer = captured.get(node.name)
        variable = handles.get(id(outer))
        if variable is not None:
            node.op = "VarHandleOp"
            node.ClearField("attr")
            node.attr["dtype"].type = variable.dtype.as_datatype_enum
            node.attr["shape"].shape.CopyFrom(variable.shape.as_proto())
            node.attr["shared_name"].s = variable.name.split(":")[0].encode()
        elif hasattr(outer, "numpy") and outer.dtype not in (tf.resource, tf.variant):
            node.op = "Const"
            node.ClearField("attr")
            node.attr["dtype"].type = outer.dtype.as_datatype_enum
            node.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(outer.numpy(), outer.dtype))
    return definition.SerializeToString(deterministic=True)


def is_maker(target):
    """Whether a function makes what is traced: it can be called without arguments, and takes no features."""
    if not inspect.isfunction(target):
        return False
    parameters = inspect.signature(target).parameters
    return "features" not in parameters and all(one.default is not one.empty for one in parameters.values())


def traced(args):
    """The graph of what the command line names, as it is written."""
    path, colon, name = args.function.rpartition(":")
    if not colon or not os.path.isfile(path):
        raise TraceError(f"`{args.function}` names no function; expected SCRIPT.py:model_fn")
    folder, file = os.path.split(os.path.abspath(args.output))
    if not os.path.isdir(folder) or os.path.isdir(os.path.join(folder, file)):
        raise TraceError(f"-o {args.output} is no file that can be written; expected one in a folder that is there")
    try:
        import tensorflow as tf
    except ImportError:
        raise TraceError("TensorFlow is not installed\nhelp: pip install tensorflow-cpu==2.15.1 (Python 3.9 to 3.11)") from None
    print(f"running {path}, as it stands, with TensorFlow {tf.__version__}", file=sys.stderr)
    stand_in(tf)
    # Before the script, which may import these names for itself.
    scopes = Scopes(tf.compat.v1)
    module = load(path, tf, args.flag)
    if not hasattr(module, name):
        raise TraceError(f"{path} has no `{name}`")
    target = getattr(module, name)
    if is_maker(target):
        target = target()
    is_keras = hasattr(target, "get_concrete_function") or hasattr(target, "get_weights")
    return trace_keras(tf, target, args) if is_keras else trace_model_fn(tf, target, args, scopes)


def main(arguments=None):
    """The command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m bf16scope.tf", description=__doc__.split("\n\n")[0],
                                     epilog="It runs the script, and trains nothing.")
    parser.add_argument("function", metavar="SCRIPT.py:NAME", help="a model_fn, or a function or name of a Keras model")
    parser.add_argument("--features", action="append", default=[], metavar="[NAME=]DIMS,DTYPE", help="8x224x224x3,bfloat16")
    parser.add_argument("--labels", action="append", default=[], metavar="[NAME=]DIMS,DTYPE", help="8,int32")
    parser.add_argument("--params", action="append", default=[], metavar="KEY=VALUE", help="one of the model_fn's params")
    parser.add_argument("--flag", action="append", default=[], metavar="NAME=VALUE", help="one of the script's flags, absl's or argparse's")
    parser.add_argument("--mode", choices=sorted(MODES), default="train")
    parser.add_argument("--cores", type=int, default=1, help="how many cores CrossShardOptimizer sums over")
    parser.add_argument("-o", "--output", required=True, metavar="FILE", help="model.meta, or of Keras model.pb")
    args = parser.parse_args(arguments)
    output = os.path.abspath(args.output)
    try:
        data = traced(args)
    except TraceError as error:
        place = place_of_error(error)
        print(f"bf16scope.tf: {place}: {error}" if place else f"bf16scope.tf: {error}", file=sys.stderr)
        return 2
    except SystemExit as end:
        place = place_of_error(end)
        print(f"bf16scope.tf: the script ended the program{place and f' at {place}'} ({end.code}), and nothing was traced\n"
              'help: put what it runs under `if __name__ == "__main__":`; --flag gives what its command line needs', file=sys.stderr)
        return 2
    except Exception as error:
        traceback.print_exc()
        place = place_of_error(error)
        help = "help: the lines above are the script's own error; --params, --flag and --features give what it expects"
        print(f"bf16scope.tf: the script failed{place and f' at {place}'} as it built its graph\n{help}", file=sys.stderr)
        return 2
    try:
        with open(output, "wb") as file:
            file.write(data)
    except OSError as error:
        print(f"bf16scope.tf: {args.output} cannot be written: {error.strerror}", file=sys.stderr)
        return 2
    print(f"wrote {args.output}; `bf16scope port {args.output}` says what it becomes", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
