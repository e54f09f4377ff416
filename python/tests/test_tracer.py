"""What the tracer reads of its command line, without TensorFlow; `traced.py` runs it with one."""

import subprocess
import sys

import pytest

from bf16scope import tf


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


def test_parameters_are_json_where_they_can_be():
    texts = ["rate=0.1", "name=resnet", "perm=[0,1]", "flag=True", "none=None"]
    assert tf.parse_params(texts) == {"rate": 0.1, "name": "resnet", "perm": [0, 1], "flag": True, "none": None}
    with pytest.raises(tf.TraceError, match="`rate` is no parameter; expected key=value"):
        tf.parse_params(["rate"])


def test_a_name_of_contrib_is_an_error_where_it_is_used():
    crf = tf.Unsupplied("tf.contrib.crf")
    with pytest.raises(tf.TraceError, match="tf.contrib.crf, which TensorFlow 2 does not have"):
        crf.crf_decode
    with pytest.raises(tf.TraceError, match="help: replace it by its successor"):
        crf()


def test_a_graph_is_written_against_version_1():
    assert tf._is_version_1("import tensorflow as tf\nx = tf.layers.dense(x, 3)\n")
    assert not tf._is_version_1("import tensorflow.compat.v1 as tf\nx = tf.layers.dense(x, 3)\n")
    assert not tf._is_version_1("import tensorflow as tf\nmodel = tf.keras.Sequential()\n")


def test_a_script_that_is_not_there_is_said(tmp_path):
    words = [sys.executable, "-m", "bf16scope.tf", f"{tmp_path}/none.py:model_fn", "-o", "model.meta"]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 2
    assert "none.py:model_fn` names no function; expected SCRIPT.py:model_fn" in done.stderr
