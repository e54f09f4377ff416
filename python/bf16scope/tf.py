"""Traces a TensorFlow script's `model_fn`, or a Keras model, into a graph that `bf16scope port` reads.

    python -m bf16scope.tf SCRIPT.py:model_fn --features 8x224x224x3,bfloat16 --labels 8,int32 -o model.meta
    python -m bf16scope.tf SCRIPT.py:model_fn --input input_fn --params batch_size=8 --mode both -o model.meta

This RUNS the script, with the installed TensorFlow (2.15 and its `tf.compat.v1` were tried); it trains nothing. The graph is
written as a Saver writes it, with the lines that made each node. `tf.contrib`, which TensorFlow 2 does not have, is replaced by
stand-ins for the parts that TPU programs use; using any other part is an error that names it.
"""

import argparse
import ast
import collections
import contextlib
import functools
import inspect
import itertools
import json
import linecache
import os
import re
import sys
import traceback
import types

if not __package__ and "bf16scope" not in sys.modules:
    # This file runs without its package too, whose `__init__` needs more than an environment of TensorFlow has.
    sys.modules["bf16scope"] = types.ModuleType("bf16scope")
    sys.modules["bf16scope"].__path__ = [os.path.dirname(os.path.abspath(__file__))]

from bf16scope import _tensorflow_2 as steps
from bf16scope._tensorflow_1 import Params, TraceError, load, read_script, stand_in

# The attribute of a node with the lines that made it, and how many of them are kept.
SOURCE = "_bf16scope_source"
MAX_FRAMES = 16
# The attribute with the number that all elements of a variable have as the graph is traced.
VALUE = "_bf16scope_value"
# TensorFlow's numbers of dtypes: bfloat16, and all of floating point (float32, float64, bfloat16, float16).
BFLOAT16 = 14
FLOATS = {1, 2, 14, 19}
MODES = {"train": "train", "eval": "eval", "predict": "infer"}


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


def is_for_tpu(text):
    """Whether a script is for a TPU, as the lint decides it for batches."""
    return re.search(r"\bTPU(Estimator|EstimatorSpec|Strategy)\b", text) is not None


class Scopes:
    """Records where bfloat16 scopes are opened and closed, and the dtypes in which variables are requested inside of them."""

    def __init__(self, v1):
        # All that were opened, and those that are open, innermost last.
        self.entered, self.open = [], []
        from tensorflow.python.ops import variable_scope
        from tensorflow.python.tpu import bfloat16

        real, scopes = bfloat16.bfloat16_scope, self

        class Watched(contextlib.ContextDecorator):
            def __init__(self, name=None):
                self.name = name

            def _recreate_cm(self):
                return Watched(self.name)

            def __enter__(self):
                self.scope = real(self.name)
                opened = shown_place(users_line(inspect.stack()[1:]))
                self.record = types.SimpleNamespace(opened=opened, closed="", asked=collections.Counter())
                scopes.entered.append(self.record)
                scopes.open.append(self.record)
                return self.scope.__enter__()

            def __exit__(self, *error):
                self.record.closed = shown_place(last_line(*users_line(inspect.stack()[1:])))
                scopes.open.remove(self.record)
                return self.scope.__exit__(*error)

        bfloat16.bfloat16_scope = Watched
        for module in (v1.tpu, v1.contrib.tpu):
            module.bfloat16_scope = Watched
        # tf.get_variable, tf.layers and tf_slim all come here.
        get = variable_scope.VariableScope.get_variable

        def get_variable(scope, store, name, shape=None, dtype=None, *more, **options):
            if scopes.open:
                asked = "without a dtype" if dtype is None else f"in {v1.as_dtype(dtype).base_dtype.name}"
                scopes.open[-1].asked[asked] += 1
            return get(scope, store, name, shape, dtype, *more, **options)

        variable_scope.VariableScope.get_variable = get_variable


OURS = os.path.dirname(os.path.abspath(__file__))
# A script may go to another folder.
START = os.getcwd()


@functools.lru_cache(maxsize=None)
def users_path(name):
    """The path of a file of the user's code; empty for installed packages, Python's own files and the tracer's."""
    path = os.path.abspath(name)
    installed = ("site-packages", "dist-packages", os.sep + "lib" + os.sep + "python")
    return "" if os.path.dirname(path) == OURS or name.startswith("<") or any(part in path for part in installed) else path


def users_lines(frames):
    """Files and lines in the user's code, in the order of frames."""
    return ((users_path(frame.filename), frame.lineno) for frame in frames if users_path(frame.filename))


def users_line(frames):
    """The innermost file and line in the user's code."""
    return next(users_lines(frames), ("", 0))


def shown_place(place):
    """A file and line as they are printed."""
    path, line = place
    return f"{os.path.relpath(path, START)}:{line}" if path else ""


def place_of(frames):
    """The innermost source position in the user's code."""
    return shown_place(users_line(frames))


@functools.lru_cache(maxsize=None)
def last_line(path, line):
    """The place where a `with` statement ends whose head is at a line, as Python leaves it at its head; else that line."""
    try:
        tree = ast.parse("".join(linecache.getlines(path)))
    except (SyntaxError, ValueError):
        return path, line
    statements = [node for node in ast.walk(tree) if isinstance(node, (ast.With, ast.AsyncWith))]
    ends = [node.end_lineno for node in statements if node.lineno <= line <= node.items[-1].context_expr.end_lineno]
    return path, max(ends, default=line)


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


def make_configuration(v1):
    """The configuration that an estimator gives where a script chose none."""
    return v1.estimator.tpu.RunConfig()


def call_input(name, function, mode, params, make_config=None):
    """Calls an input_fn with the arguments that it takes, as an estimator does, and with parameters by their names."""
    parameters = inspect.signature(function).parameters
    known = dict(params, params=params, mode=mode)
    if "config" in parameters:
        known["config"] = make_config and make_config()
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    for one in parameters.values():
        if one.kind in kinds and one.default is one.empty and one.name not in known:
            raise TraceError(f"--input `{name}` takes `{one.name}`, which an estimator does not give; expected --params {one.name}=VALUE")
    result = function(**{one: known[one] for one in parameters if one in known})
    # A function that makes the input_fn.
    is_function = inspect.isfunction(result) or isinstance(result, functools.partial)
    return call_input(name, result, mode, params, make_config) if is_function else result


def features_and_labels(name, element):
    """The features and labels of an element of a dataset, or of what an input_fn gives; None without labels."""
    if not isinstance(element, (tuple, list)) or hasattr(element, "_fields"):
        return element, None
    if len(element) not in (1, 2):
        raise TraceError(f"--input `{name}` gives {len(element)} things; expected features, or features and labels")
    return (*element, None)[:2]


def named_specs(flat, prefix):
    """Names of placeholders, from the paths of a nested structure, and their specs."""
    named = []
    for path, spec in flat:
        name = re.sub(r"[^A-Za-z0-9_./-]", "_", path)
        named.append((name if re.match(r"[A-Za-z.]", name) else f"{prefix}_{name}" if name else prefix, spec))
    return named


def slips_of_input(arrays, place, is_tpu):
    """Slips of an input's shapes, pairs of names and dims: a TPU's program has one shape. The lint has the first of them too."""
    if not is_tpu:
        return []
    start, slips = f"{place}: " if place else "", []
    if any(dims and dims[0] is None for _, dims in arrays):
        slips.append(f"{start}a batch without drop_remainder: the last batch is smaller, and a TPU's program has one shape\n"
                     "  help: .batch(batch_size, drop_remainder=True)")
    open_ones = [name for name, dims in arrays if dims is None or None in dims[1:]]
    if open_ones:
        slips.append(f"{start}input without a shape ({', '.join(open_ones)}): a TPU's program has one shape\n"
                     "  help: set_shape as the last step of the function that `map` takes")
    return slips


def read_input(tf, name, function, args, is_tpu):
    """Two functions that make placeholders, of features and labels, with the shapes of what an input_fn gives; nothing is read."""
    from tensorflow.python.util import nest

    v1, graph = tf.compat.v1, tf.Graph()
    with graph.as_default():
        params = Params(parse_params(args.params))
        result = call_input(name, function, MODES[args.mode], params, lambda: make_configuration(v1))
        if result is None:
            raise TraceError(f"--input `{name}` gives None; expected a dataset, or features and labels")
        element = getattr(result, "element_spec", None)
        if element is None:
            spec_of = lambda value: tf.TensorSpec(value.shape, value.dtype) if isinstance(value, tf.Tensor) else value
            element = nest.map_structure(spec_of, result)
        batches = [one for one in graph.get_operations() if re.search(r"Batch\w*Dataset|BatchAndDrop", one.type)]
        place = place_of(reversed(list(batches[-1].traceback))) if batches else ""
    makers, arrays = [], []
    for part, prefix in zip(features_and_labels(name, element), ("features", "labels")):
        named = [] if part is None else named_specs(nest.flatten_with_joined_string_paths(part), prefix)
        for one, spec in named:
            if not isinstance(spec, tf.TensorSpec):
                raise TraceError(f"--input `{name}` gives a {type(spec).__name__} for {one}; expected an array, as "
                                 "tf.sparse.to_dense and .to_tensor() make")
            arrays.append((one, None if spec.shape.rank is None else spec.shape.as_list()))

        def make(part=part, named=named):
            made = [v1.placeholder(spec.dtype, spec.shape, name=one) for one, spec in named]
            return None if part is None else nest.pack_sequence_as(part, made)

        makers.append(make)
    print(f"`{name}` gives {', '.join(f'{one} {dims}' for one, dims in arrays)}", file=sys.stderr)
    for slip in slips_of_input(arrays, place, is_tpu):
        print(slip, file=sys.stderr)
    return makers


def build(tf, function, args, makers=None):
    """The graph of a model_fn, with its loss and training op in their collections; also its features, labels and spec.

    `makers` make the placeholders of features and of labels; without them they are those of the command line.
    """
    v1 = tf.compat.v1
    graph = tf.Graph()
    makers = makers or [lambda: placeholders(v1, args.features, "features"), lambda: placeholders(v1, args.labels, "labels")]
    with graph.as_default():
        v1.train.get_or_create_global_step()
        features, labels = (make() for make in makers)
        params, make_config = Params(parse_params(args.params)), lambda: make_configuration(v1)
        some = next(iter(features.values())) if isinstance(features, dict) else features
        if hasattr(some, "shape") and some.shape.rank and some.shape.as_list()[0] is not None:
            params.setdefault("batch_size", some.shape.as_list()[0] or 1)
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


def trace_model_fn(tf, function, args, scopes, makers=None):
    """The graph of a model_fn as a serialized MetaGraphDef."""
    return written(tf, build(tf, function, args, makers)[0], scopes)


def written(tf, graph, scopes):
    """A graph as a serialized MetaGraphDef, with the source lines of its nodes."""
    with graph.as_default():
        meta = tf.compat.v1.train.export_meta_graph(clear_devices=True)
    add_places(graph, meta.graph_def)
    meta.meta_info_def.ClearField("stripped_op_list")
    report(meta, scopes)
    return meta.SerializeToString(deterministic=True)


def add_places(graph, definition):
    """Stores in an attribute of each node, of functions too, the lines in the user's code that made it, innermost first."""
    add_places_of(graph, definition.node)
    for function in definition.library.function:
        inner = getattr(graph._get_function(function.signature.name), "graph", None)
        if inner is not None:
            add_places_of(inner, function.node_def)


def add_places_of(graph, nodes):
    """Stores them for the nodes of one graph."""
    for node in nodes:
        try:
            frames = reversed(list(graph.get_operation_by_name(node.name).traceback))
        except (KeyError, AttributeError, TypeError):
            continue
        places = [shown_place(place).encode() for place in itertools.islice(users_lines(frames), MAX_FRAMES)]
        if places:
            node.attr[SOURCE].list.s.extend(places)


def described(entered):
    """A line for each place where scopes were opened and closed, with the dtypes that layers in them asked for."""
    rows = {}
    for one in entered:
        times, asked = rows.get((one.opened, one.closed), (0, collections.Counter()))
        rows[one.opened, one.closed] = (times + 1, asked + one.asked)
    lines = []
    for (opened, closed), (times, asked) in rows.items():
        often = f" ({times} times)" if times > 1 else ""
        end = f"closed at {closed}" if closed else "not closed"
        counts = ", ".join(f"{n} {dtype}" for dtype, n in sorted(asked.items()))
        opening = f"at {opened}" if opened else "in an installed package"
        lines.append(f"bfloat16_scope opened {opening}{often}, {end}; variables that layers asked for: {counts or 'none'}")
    return lines


def report(meta, scopes):
    """Prints where scopes were opened and closed and what layers asked for, and warns if they had no effect."""
    for line in described(scopes.entered):
        print(line, file=sys.stderr)
    asked = any(one.asked["in bfloat16"] for one in scopes.entered)
    casts = [node.attr for node in meta.graph_def.node if node.op == "Cast"]
    if scopes.entered and not asked and not any(attr["DstT"].type == BFLOAT16 for attr in casts):
        is_lost = any(attr["SrcT"].type == BFLOAT16 for attr in casts)
        inputs = [node.attr["dtype"].type for node in meta.graph_def.node if node.op == "Placeholder"]
        has_numbers = any(dtype in FLOATS for dtype in inputs)
        help = ("help: its bfloat16 is cast to float32, as layers of tf.keras do, which the scope does not reach: use tf.layers, or\n"
                '  tf.keras.mixed_precision.set_global_policy("mixed_bfloat16") without the scope'
                if is_lost else
                "help: cast the features to tf.bfloat16 as the last step of input_fn, and trace with --features …,bfloat16"
                if has_numbers else
                "help: of indices, tf.get_variable(…, dtype=tf.bfloat16) in the scope is an f32 table whose rows are bfloat16, or cast\n"
                "  its rows: tf.cast(tf.nn.embedding_lookup(table, ids), tf.bfloat16)")
        print(f"warning: a bfloat16_scope was opened, and nothing in it asked for bfloat16: the network is float32\n{help}",
              file=sys.stderr)


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
    specs, labels = [(text, *parse_spec(text)) for text in args.features], parse_specs(args.labels)
    if labels:
        steps.check_labels(model, args.function.rpartition(":")[2], args.labels)
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
    if args.mode == "train" and steps.is_compiled(model):
        if labels:
            by_name = {name: tf.TensorSpec(dims, as_dtype(tf, text, dtype), name or "labels") for name, (text, dims, dtype) in labels.items()}
            return steps.step_of(tf, model, inputs_of_model(model, names, signature), by_name.get("", by_name))
        print("the model is compiled: with --labels 8,int32 its training step is traced, with its loss and optimizer", file=sys.stderr)
    call = tf.function(lambda inputs: model(inputs, training=args.mode == "train"))
    return call.get_concrete_function(inputs_of_model(model, names, signature))


def trace_keras(tf, model, args):
    """The graph of a Keras model or tf.function as a serialized GraphDef with its functions."""
    with steps.Differentiated().watched(tf) as differentiated:
        concrete = concrete_function(tf, model, args)
    definition = concrete.graph.as_graph_def()
    # Variables are captured handles here: each is replaced by the variable's own node, and a captured array by a constant.
    handles = {id(variable.handle): variable for variable in concrete.graph.variables}
    captured = {inner.op.name: outer for outer, inner in concrete.graph.captures}
    names = names_of(concrete.graph)
    for node in definition.node:
        outer = captured.get(node.name)
        if outer is None:
            continue
        if outer.dtype == tf.resource:
            place_variable(tf, node, outer, handles.get(id(outer)), names)
        elif hasattr(outer, "numpy") and outer.dtype != tf.variant:
            node.op = "Const"
            node.ClearField("attr")
            node.attr["dtype"].type = outer.dtype.as_datatype_enum
            node.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(outer.numpy(), outer.dtype))
    add_places(concrete.graph, definition)
    # Keras' `trainable = False` leaves its variables trainable by their own word: a step changes those that it trains.
    changes = lambda op: op.type.startswith("Assign") or any(word in op.type for word in ("Apply", "Scatter", "If", "While", "Call"))
    changed = {id(outer) for outer, inner in concrete.graph.captures if any(changes(op) for op in inner.consumers())}
    trained = [one for one in concrete.graph.variables if one.trainable and id(one.handle) in changed]
    if not any("gradient_tape/" in node.name for node in definition.node):
        return definition.SerializeToString(deterministic=True)
    loss = differentiated.loss(concrete.graph)
    return trained_step(tf, concrete, definition, trained, names, loss).SerializeToString(deterministic=True)


def names_of(graph):
    """Names of variables by their handles, in the order in which the function reads them: those of a tf.Module, and others outside
    of layers, may share a name."""
    order = {id(outer): at for at, (outer, _) in enumerate(graph.captures)}
    names, taken = {}, set()
    for variable in sorted(graph.variables, key=lambda one: order.get(id(one.handle), len(order))):
        name = variable.name.split(":")[0]
        free = next(one for one in itertools.chain([name], (f"{name}_{n}" for n in itertools.count(1))) if one not in taken)
        taken.add(free)
        names[id(variable.handle)] = free
    return names


def place_variable(tf, node, handle, variable, names):
    """Makes a placeholder of a captured handle the node of its variable; a counter that is only added to has no variable in its
    graph's list, and keeps the name of its placeholder."""
    known = getattr(handle, "_handle_data", None)
    if variable is None and not (known and known.is_set and known.shape_and_type):
        return
    name = names[id(variable.handle)] if variable is not None else node.name.removesuffix("/resource")
    dtype = variable.dtype.as_datatype_enum if variable is not None else known.shape_and_type[0].dtype
    shape = variable.shape.as_proto() if variable is not None else known.shape_and_type[0].shape
    node.op = "VarHandleOp"
    node.ClearField("attr")
    node.attr["dtype"].type = dtype
    node.attr["shape"].shape.CopyFrom(shape)
    node.attr["shared_name"].s = name.encode()
    value = value_of_all(variable)
    if value is not None:
        node.attr[VALUE].f = value


def value_of_all(variable):
    """The number that all elements of a variable have before the first step: a rate, or a slot; None of weights."""
    if variable is None or not variable.dtype.is_floating:
        return None
    try:
        values = variable.numpy().ravel()
        return float(values[0]) if len(values) and (values == values[0]).all() else None
    except Exception:
        # A variable that is initialised later has no value yet.
        return None


def trained_step(tf, concrete, definition, trained, names, differentiated):
    """A function that takes gradients as a MetaGraphDef, which names its results, the loss last, and the variables it trains."""
    from tensorflow.core.framework import variable_pb2
    from tensorflow.python.util import nest

    meta = tf.compat.v1.MetaGraphDef(graph_def=definition)
    meta.meta_info_def.tensorflow_version = tf.__version__
    for variable in trained:
        name = names[id(variable.handle)]
        proto = variable_pb2.VariableDef(variable_name=f"{name}:0", is_resource=True, trainable=True)
        meta.collection_def["trainable_variables"].bytes_list.value.append(proto.SerializeToString())
    paths = [path for path, _ in nest.flatten_with_joined_string_paths(concrete.structured_outputs)]
    is_number = lambda tensor: tensor.dtype.is_floating and tensor.shape.rank == 0
    # Results that are no tensors have a path and no tensor.
    paths = paths if len(paths) == len(concrete.outputs) else [""] * len(concrete.outputs)
    numbers = [(path, tensor) for path, tensor in zip(paths, concrete.outputs) if is_number(tensor)]
    if not numbers and differentiated is None:
        print("warning: no result of the function is a number, so the loss is not known\nhelp: return the loss", file=sys.stderr)
        return meta
    loss = next((tensor for path, tensor in numbers if "loss" in path), numbers[0][1] if numbers else differentiated)
    among = "the result that is a number" if len(numbers) == 1 else f"of {len(numbers)} results that are numbers"
    if differentiated is not None and steps.behind(loss) is not steps.behind(differentiated):
        loss, among = differentiated, "whose gradients the tape takes"
    print(f"the loss is `{loss.name}`, {among}", file=sys.stderr)
    others = [tensor for tensor in concrete.outputs if tensor is not loss]
    meta.collection_def["losses"].node_list.value.extend(tensor.name for tensor in (*others, loss))
    return meta


def is_maker(target):
    """Whether a function makes what is traced: it can be called without arguments, and takes no features."""
    if not inspect.isfunction(target):
        return False
    parameters = inspect.signature(target).parameters
    return "features" not in parameters and all(one.default is not one.empty for one in parameters.values())


def outputs(args):
    """The modes that are traced, and the file that each is written to: of both, the mode is a part of its name."""
    if args.mode != "both":
        return {args.mode: args.output}
    stem, ending = os.path.splitext(args.output)
    return {mode: f"{stem}.{mode}{ending}" for mode in ("train", "eval")}


def check_arguments(args):
    """Refuses a command line that cannot be followed, before the script runs."""
    path, colon, _ = args.function.rpartition(":")
    if not colon or not os.path.isfile(path):
        raise TraceError(f"`{args.function}` names no function; expected SCRIPT.py:model_fn")
    for output in outputs(args).values():
        folder, file = os.path.split(os.path.abspath(output))
        if not os.path.isdir(folder) or os.path.isdir(os.path.join(folder, file)):
            raise TraceError(f"-o {output} is no file that can be written; expected one in a folder that is there")
    if args.input and (args.features or args.labels):
        other = "--features" if args.features else "--labels"
        raise TraceError(f"--input {args.input} and {other} both say what the input is; expected one of them")


def traced(args):
    """The graphs of what the command line names, as they are written, by their files."""
    check_arguments(args)
    path, _, name = args.function.rpartition(":")
    text = read_script(path)
    try:
        import tensorflow as tf
    except ImportError:
        raise TraceError("TensorFlow is not installed\nhelp: pip install tensorflow-cpu==2.15.1 (Python 3.9 to 3.11)") from None
    print(f"running {path}, as it stands, with TensorFlow {tf.__version__}", file=sys.stderr)
    stand_in(tf)
    # Before the script, which may import these names for itself.
    scopes = Scopes(tf.compat.v1)
    module = load(path, tf, args.flag)
    for wanted in (name, args.input):
        if wanted and not hasattr(module, wanted):
            raise TraceError(f"{path} has no `{wanted}`")
    target = getattr(module, name)
    if is_maker(target):
        target = target()
    is_keras = hasattr(target, "get_concrete_function") or hasattr(target, "get_weights")
    if is_keras and args.input:
        raise TraceError(f"--input is for a model_fn, and `{name}` is a Keras model or tf.function; "
                         "expected --features 8x224x224x3,float32")
    graphs = {}
    for mode, output in outputs(args).items():
        one = argparse.Namespace(**dict(vars(args), mode=mode))
        if args.mode == "both":
            print(f"mode {mode}:", file=sys.stderr)
        if is_keras:
            graphs[output] = trace_keras(tf, target, one)
            continue
        is_tpu = args.cores > 1 or is_for_tpu(text)
        makers = read_input(tf, args.input, getattr(module, args.input), one, is_tpu) if args.input else None
        graphs[output] = trace_model_fn(tf, target, one, scopes, makers)
        scopes.entered.clear()
    return graphs


def main(arguments=None):
    """The command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m bf16scope.tf", description=__doc__.split("\n\n")[0],
                                     epilog="It runs the script, and trains nothing.")
    parser.add_argument("function", metavar="SCRIPT.py:NAME", help="a model_fn, or a function or name of a Keras model")
    parser.add_argument("--features", action="append", default=[], metavar="[NAME=]DIMS,DTYPE", help="8x224x224x3,bfloat16")
    parser.add_argument("--labels", action="append", default=[], metavar="[NAME=]DIMS,DTYPE", help="8,int32")
    parser.add_argument("--input", metavar="NAME",
                        help="the script's input_fn, whose shapes features and labels get; it is called, and its data is not read")
    parser.add_argument("--params", action="append", default=[], metavar="KEY=VALUE", help="one of the model_fn's params")
    parser.add_argument("--flag", action="append", default=[], metavar="NAME=VALUE", help="one of the script's flags, absl's or argparse's")
    parser.add_argument("--mode", choices=sorted([*MODES, "both"]), default="train",
                        help="both writes train and eval, to model.train.meta and model.eval.meta")
    parser.add_argument("--cores", type=int, default=1, help="how many cores CrossShardOptimizer sums over")
    parser.add_argument("-o", "--output", required=True, metavar="FILE", help="model.meta, or of Keras model.pb")
    args = parser.parse_args(arguments)
    start = os.getcwd()
    try:
        graphs = traced(args)
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
        if isinstance(error, ModuleNotFoundError):
            help = f"help: it imports `{error.name}`, which is not installed: pip install it, or put its folder in PYTHONPATH"
        print(f"bf16scope.tf: the script failed{place and f' at {place}'} as it built its graph\n{help}", file=sys.stderr)
        return 2
    for output, data in graphs.items():
        try:
            # The script may have gone to another folder.
            with open(os.path.join(start, output), "wb") as file:
                file.write(data)
        except OSError as error:
            print(f"bf16scope.tf: {output} cannot be written: {error.strerror}", file=sys.stderr)
            return 2
        print(f"wrote {output}; `bf16scope port {output}` says what it becomes", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
