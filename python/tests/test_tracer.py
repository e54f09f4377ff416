"""What the tracer reads of its command line, without TensorFlow; `traced.py` runs it with one."""

import argparse
import collections
import copy
import functools
import inspect
import subprocess
import sys
import types

import pytest

from bf16scope import _tensorflow_1, tf


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("8x224x224x3,bfloat16", ("", [8, 224, 224, 3], "bfloat16")),
        ("ids=8x128,int32", ("ids", [8, 128], "int32")),
        ("rate=,float32", ("rate", [], "float32")),
        ("4x3", ("", [4, 3], "float32")),
    ],
)
def test_specs_are_names_dims_and_dtypes(text, expected):
    assert tf.parse_spec(text) == expected


def test_a_spec_without_a_shape_is_an_error():
    with pytest.raises(tf.TraceError, match="`8x,int32` is no shape; expected 8x224x224x3,bfloat16"):
        tf.parse_spec("8x,int32")
    with pytest.raises(tf.TraceError, match="`-1x4` is no shape"):
        tf.parse_spec("-1x4")


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["ids=8,int32", "ids=9,int32"], "`ids=9,int32` is a second `ids`; expected a name of its own for each"),
        (["8x4", "8x3"], "`8x3` is beside an array without a name; expected a name of its own for each"),
        (["8x4", "ids=8x3"], "`ids=8x3` is beside an array without a name"),
    ],
)
def test_no_feature_hides_another(texts, message):
    with pytest.raises(tf.TraceError, match=message):
        tf.parse_specs(texts)
    assert list(tf.parse_specs(["ids=8,int32", "mask=8"])) == ["ids", "mask"]


def test_the_tracer_runs_without_its_package():
    words = [sys.executable, "-S", tf.__file__, "none.py:model_fn", "-o", "model.meta"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and "`none.py:model_fn` names no function; expected SCRIPT.py:model_fn" in done.stderr, done.stderr


def test_parameters_are_read_as_a_dict_and_as_attributes():
    params = tf.Params(rate=0.1)
    assert params.rate == params["rate"] and not hasattr(params, "depth") and getattr(params, "depth", 3) == 3
    params.depth = 4
    assert params["depth"] == 4 and list(params.values()) == [0.1, 4] and copy.deepcopy(params) == params
    assert _tensorflow_1.HParams(rate=0.1).values() == {"rate": 0.1}
    with pytest.raises(AttributeError, match="no parameter `width`; --params width=VALUE gives it"):
        params.width


def test_a_model_fn_gets_what_it_takes():
    assert tf.call(lambda features, labels, mode: (features, labels, mode), 1, 2, "train", {}) == (1, 2, "train")
    assert tf.call(lambda features, mode: (features, mode), 1, 2, "train", {}) == (1, "train")
    assert tf.call(lambda features, config: config, 1, 2, "train", {}, lambda: "config") == "config"
    assert tf.call(lambda x, y, mode, params: (x, y, params), 1, 2, "train", {"rate": 3}) == (1, 2, {"rate": 3})


def test_an_input_fn_gets_what_an_estimator_gives_and_parameters_by_their_names():
    def call(function, **params):
        return tf.call_input("input_fn", function, "train", tf.Params(params), lambda: "config")

    assert call(lambda: 1) == 1
    assert call(lambda params, mode, config: (params["batch_size"], mode, config), batch_size=8) == (8, "train", "config")
    assert call(lambda batch_size, folder="there", **options: (batch_size, folder, options), batch_size=8) == (8, "there", {})
    assert call(lambda folder: lambda params: (folder, params.folder), folder="here") == ("here", "here")
    assert call(lambda params: functools.partial(lambda a, b: a + b, 1), b=2) == 3
    with pytest.raises(tf.TraceError, match="--input `input_fn` takes `folder`, which an estimator does not give; expected --params folder="):
        call(lambda params, folder: None)


def test_an_input_fn_gives_features_or_features_and_labels():
    assert tf.features_and_labels("input_fn", {"x": 1}) == ({"x": 1}, None)
    assert tf.features_and_labels("input_fn", (1,)) == (1, None)
    assert tf.features_and_labels("input_fn", ({"x": 1}, 2)) == ({"x": 1}, 2)
    pair = collections.namedtuple("Pair", "left right")(1, 2)
    assert tf.features_and_labels("input_fn", pair) == (pair, None)
    with pytest.raises(tf.TraceError, match="--input `input_fn` gives 3 things; expected features, or features and labels"):
        tf.features_and_labels("input_fn", (1, 2, 3))
    flat = [("", 1), ("ids", 2), ("0", 3), ("image/raw", 4), ("my key", 5), ("_x", 6)]
    names = ["features", "ids", "features_0", "image/raw", "my_key", "features__x"]
    assert tf.named_specs(flat, "features") == list(zip(names, range(1, 7)))


def test_an_input_without_one_shape_is_a_slip_beside_a_tpu():
    batch = "script.py:4: a batch without drop_remainder: the last batch is smaller, and a TPU's program has one shape\n"
    arrays = [("x", [None, 3]), ("labels", [None])]
    assert tf.slips_of_input(arrays, "script.py:4", True) == [batch + "  help: .batch(batch_size, drop_remainder=True)"]
    assert tf.slips_of_input(arrays, "script.py:4", False) == []
    assert tf.slips_of_input([("x", [8, 3]), ("rate", [])], "script.py:4", True) == []
    (slip,) = tf.slips_of_input([("x", [8, None]), ("ids", None), ("labels", [8])], "", True)
    assert slip.startswith("input without a shape (x, ids): a TPU's program has one shape\n")
    assert tf.is_for_tpu("tf.estimator.tpu.TPUEstimator(x)\n") and not tf.is_for_tpu("tf.estimator.Estimator(x)\n")


def test_a_scope_ends_where_its_with_statement_does(tmp_path):
    script = tmp_path / "script.py"
    script.write_text("with a(), b(\n    1):\n    x = 2\n    with c(): y = 3\n    z = f(\n        4)\nstack.close()\n")
    path = str(script)
    assert [tf.last_line(path, line)[1] for line in (1, 2, 3, 4, 7)] == [6, 6, 3, 4, 7]
    assert tf.last_line(path, 1)[0] == path
    broken = tmp_path / "broken.py"
    broken.write_text("with a(:\n")
    assert tf.last_line(str(broken), 1) == (str(broken), 1)

    class Watched:
        def __enter__(self):
            self.opened = tf.users_line(inspect.stack()[1:])[1]
            return self

        def __exit__(self, *error):
            self.closed = tf.last_line(*tf.users_line(inspect.stack()[1:]))[1]

    with Watched() as scope:
        pass
        pass
    assert scope.closed - scope.opened == 2


def test_a_node_has_the_lines_that_led_to_it_innermost_first():
    frame = lambda name, line: types.SimpleNamespace(filename=name, lineno=line)
    stack = [frame("/home/me/train.py", 40), frame("/usr/lib/python3.11/contextlib.py", 3), frame("/home/me/model.py", 12)]
    stack += [frame("/venv/site-packages/tensorflow/ops.py", 9), frame("<string>", 1), frame(tf.__file__, 7)]
    assert list(tf.users_lines(reversed(stack))) == [("/home/me/model.py", 12), ("/home/me/train.py", 40)]
    assert tf.users_line(reversed(stack)) == ("/home/me/model.py", 12) and tf.users_line(stack[-1:]) == ("", 0)

    class Attributes(dict):
        def __missing__(self, key):
            self[key] = types.SimpleNamespace(list=types.SimpleNamespace(s=[]))
            return self[key]

    node = lambda name: types.SimpleNamespace(name=name, attr=Attributes())
    operation = types.SimpleNamespace(traceback=stack)
    graph = types.SimpleNamespace(get_operation_by_name=lambda name: {"y": operation}[name])
    nodes = [node("y"), node("none")]
    tf.add_places_of(graph, nodes)
    places = [tf.shown_place(("/home/me/model.py", 12)).encode(), tf.shown_place(("/home/me/train.py", 40)).encode()]
    assert nodes[0].attr[tf.SOURCE].list.s == places and nodes[1].attr == {}


def test_scopes_are_shown_with_the_dtypes_that_layers_asked_for():
    def scope(opened, closed, **asked):
        names = {"bf16": "in bfloat16", "f32": "in float32", "none": "without a dtype"}
        counts = collections.Counter({names[key]: n for key, n in asked.items()})
        return types.SimpleNamespace(opened=opened, closed=closed, asked=counts)

    first, second = scope("a.py:3", "a.py:5", bf16=2), scope("a.py:3", "a.py:5", bf16=1, f32=1)
    entered = [first, scope("a.py:9", "", f32=1, none=4), second, scope("", "b.py:1")]
    assert tf.described(entered) == [
        "bfloat16_scope opened at a.py:3 (2 times), closed at a.py:5; variables that layers asked for: 3 in bfloat16, 1 in float32",
        "bfloat16_scope opened at a.py:9, not closed; variables that layers asked for: 1 in float32, 4 without a dtype",
        "bfloat16_scope opened in an installed package, closed at b.py:1; variables that layers asked for: none",
    ]


def test_each_mode_has_a_file():
    outputs = lambda mode, output: tf.outputs(argparse.Namespace(mode=mode, output=output))
    assert outputs("eval", "a/model.meta") == {"eval": "a/model.meta"}
    assert outputs("both", "a.b/model.meta") == {"train": "a.b/model.train.meta", "eval": "a.b/model.eval.meta"}
    assert outputs("both", "a.b/model") == {"train": "a.b/model.train", "eval": "a.b/model.eval"}


def test_a_function_of_defaults_makes_a_model():
    assert tf.is_maker(lambda: None) and tf.is_maker(lambda width=64: None)
    assert not tf.is_maker(lambda features=None, labels=None: None) and not tf.is_maker(lambda x, y=None: None)


def test_features_go_to_the_inputs_of_their_names():
    def two(ids, mask):
        pass

    assert tf.inputs_of_function(two, ["mask", "ids"], ["m", "i"]) == ([], {"mask": "m", "ids": "i"})
    assert tf.inputs_of_function(two, ["", ""], ["i", "m"]) == (["i", "m"], {})
    assert tf.inputs_of_function(lambda features: None, ["a", "b"], [1, 2]) == ([{"a": 1, "b": 2}], {})
    with pytest.raises(tf.TraceError, match="--features `masks` is none of the function's inputs; expected ids, mask"):
        tf.inputs_of_function(two, ["masks", "ids"], ["m", "i"])
    model = types.SimpleNamespace(input_names=["a", "b"])
    assert tf.inputs_of_model(model, ["b", "a"], [1, 2]) == {"b": 1, "a": 2}
    assert tf.inputs_of_model(model, ["", ""], [1, 2]) == [1, 2]
    with pytest.raises(tf.TraceError, match="--features has the names a, c; expected a, b"):
        tf.inputs_of_model(model, ["a", "c"], [1, 2])


def test_parameters_are_json_where_they_can_be():
    texts = ["rate=0.1", "name=resnet", "perm=[0,1]", "flag=True", "none=None"]
    assert tf.parse_params(texts) == {"rate": 0.1, "name": "resnet", "perm": [0, 1], "flag": True, "none": None}
    with pytest.raises(tf.TraceError, match="`rate` is no parameter; expected key=value"):
        tf.parse_params(["rate"])


def test_a_name_of_contrib_is_an_error_where_it_is_used():
    crf = _tensorflow_1.Unsupplied("tf.contrib.crf")
    with pytest.raises(tf.TraceError, match="tf.contrib.crf, which TensorFlow 2 does not have"):
        crf.crf_decode
    with pytest.raises(tf.TraceError, match="help: replace it by its successor"):
        crf()


def test_a_graph_is_written_against_version_1():
    assert _tensorflow_1._is_version_1("import tensorflow as tf\nx = tf.layers.dense(x, 3)\n")
    assert not _tensorflow_1._is_version_1("import tensorflow.compat.v1 as tf\nx = tf.layers.dense(x, 3)\n")
    assert not _tensorflow_1._is_version_1("import tensorflow as tf\nmodel = tf.keras.Sequential()\n")


def test_a_script_that_is_not_there_is_said(tmp_path):
    words = [sys.executable, "-m", "bf16scope.tf", f"{tmp_path}/none.py:model_fn", "-o", "model.meta"]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 2
    assert "none.py:model_fn` names no function; expected SCRIPT.py:model_fn" in done.stderr


def test_a_graph_that_cannot_be_written_is_said_before_the_script_runs(tmp_path):
    script = tmp_path / "script.py"
    script.write_text("raise ValueError('it ran')\n")
    words = [sys.executable, "-m", "bf16scope.tf", f"{script}:model_fn", "-o", f"{tmp_path}/none/model.meta"]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 2
    assert "none/model.meta is no file that can be written; expected one in a folder that is there" in done.stderr


def test_an_input_that_is_given_twice_is_said_before_the_script_runs(tmp_path):
    script = tmp_path / "script.py"
    script.write_text("raise ValueError('it ran')\n")
    words = [sys.executable, "-m", "bf16scope.tf", f"{script}:model_fn", "--input", "input_fn", "--labels", "8,int32"]
    done = subprocess.run([*words, "-o", f"{tmp_path}/model.meta"], capture_output=True, text=True)
    assert done.returncode == 2
    assert "--input input_fn and --labels both say what the input is; expected one of them" in done.stderr
