"""`bf16scope.Module`."""

import os
import signal
import subprocess
import sys
import threading
import warnings
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import bf16scope

DOT = """HloModule scores

ENTRY main {
  x = f32[4,8] parameter(0)
  w = f32[8,2] parameter(1)
  ROOT y = f32[4,2] dot(x, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}
"""


def test_read_lower_write():
    module = bf16scope.Module.read(DOT.encode())
    assert module.parameters == [("f32", (4, 8)), ("f32", (8, 2))] and module.results == [("f32", (4, 2))]
    low, report = module.lower()
    assert report.n_lowered == 1 and "f32[4,2]{1,0} dot(x.bf16, w.bf16)" in low.text()
    assert low.parameters == module.parameters and low.results == module.results
    assert "<table>" in report._repr_html_() and report.to_dict()["totals"]["dot"]["lowered"] == 1
    # Parameters are no operations.
    assert str(report).startswith("1 instructions lowered, 0 kept, 2 casts\nlowered      1  ") and str(report).count("\n") == 1
    again = bf16scope.Module.read(low.proto())
    assert again.text() == low.text()
    assert "stablehlo.dot_general" in low.stablehlo()


def test_what_is_read_and_run_is_told_apart():
    as_file, as_text = bf16scope.Module.read(DOT.encode()), bf16scope.Module.read(DOT)
    assert as_file.text() == as_text.text()
    for wrong, said in [
        (lambda: bf16scope.Module.read(3), "was given int"),
        (lambda: bf16scope.Module.read("/dev/zero"), "not a regular file but a character device"),
        (lambda: as_text.run({}), "give a list"),
    ]:
        with pytest.raises(bf16scope.Error, match=said):
            wrong()


def test_a_file_that_would_wait_is_refused_at_once(tmp_path):
    def is_late(*_):
        raise TimeoutError

    fifo = tmp_path / "m.txt"
    os.mkfifo(fifo)
    terminal, its_end = os.openpty()
    refused = {
        str(fifo): ("is not a regular file but a FIFO", "save to a file what comes through it, or use /dev/stdin"),
        os.ttyname(its_end): ("is not a regular file but a character device", "name a file"),
        # Only root may open it, and not every system has one.
        "/proc/kmsg": ("a read of it would wait for data that may never come", "save to a file what it gives, and name that file"),
    }
    before = signal.signal(signal.SIGALRM, is_late)
    signal.alarm(60)
    try:
        for path, (message, help) in refused.items():
            try:
                bf16scope.Module.read(path)
            except bf16scope.Error as error:
                assert error.message.endswith(message) and error.help == help, path
            except (PermissionError, FileNotFoundError):
                assert path == "/proc/kmsg"
            else:
                pytest.fail(f"{path} is read")
        with pytest.raises(bf16scope.Error, match="is not a regular file but a FIFO"):
            bf16scope.Module.read(DOT.encode()).lower(policy=fifo)
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
        os.close(terminal)
        os.close(its_end)
    # An open pipe is read to its end, however late it comes.
    reader, writer = os.pipe()
    timer = threading.Timer(0.3, lambda: (os.write(writer, DOT.encode()), os.close(writer)))
    timer.start()
    assert bf16scope.Module.read(f"/dev/fd/{reader}").n_instructions == 3
    timer.join()
    os.close(reader)


def test_symbolic_dimensions_get_sizes():
    path = Path(__file__).parents[2] / "tests/data/stablehlo/symbolic.jax"
    module = bf16scope.Module.read(path, dims={"b": 3})
    assert module.parameters[-2:] == [("f32", (3, 8)), ("s32", (3,))]
    with pytest.raises(bf16scope.Error, match="no size is given for `b`"):
        bf16scope.Module.read(path)
    with pytest.raises(ValueError, match="the size is -1"):
        bf16scope.Module.read(path, dims={"b": -1})


def test_compile_asks_the_compiler_of_a_tpu():
    module = bf16scope.Module.read(DOT.encode())
    answer = module.compile("tpu-v3:2x2", policy="default")
    assert answer.reports[0]["cycles"] > 0
    with pytest.raises(bf16scope.Error, match="'tpu-v9' for `target`: no target"):
        module.compile("tpu-v9")


def test_what_text_leaves_out_is_warned_of():
    # Field 93 of an instruction, a mesh of replicas, which jax 0.12 writes.
    module = bf16scope.Module.read(DOT.encode())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        module.text()
    proto = module.proto()
    at = proto.index(b"\x0a\x01y\x12\x03dot")  # the last instruction; before it are its length, and the computation's in two bytes
    field = b"\xea\x05\x02\x0a\x00"
    computation = proto.index(b"\x0a\x04main\x12")
    longer = bytearray(proto[:at] + field + proto[at:])
    longer[at - 1] += len(field)
    longer[computation - 2] += len(field)
    later = bf16scope.Module.read(bytes(longer))
    with pytest.warns(UserWarning, match=r"no words for fields of main/%y \(dot: 93\); `proto` keeps them"):
        later.text()
    assert field in later.proto()


def test_errors_have_parts():
    with pytest.raises(bf16scope.Error) as caught:
        bf16scope.Module.read(b"HloModule m\nENTRY m {\n  x = f32[ parameter(0)\n}", "m.hlo")
    assert caught.value.where == "m.hlo:3:12"
    with pytest.raises(bf16scope.Error) as caught:
        bf16scope.Module.read(b"\x08\x08\x12\x07pytorch\x3a\x02\x0a\0\x42\x02\x10\x11", "m.onnx")
    assert "a model in ONNX" in caught.value.message and caught.value.help


def test_keep_that_matches_nothing_is_said():
    _, report = bf16scope.Module.read(DOT.encode()).lower(keep="*/norm/*")
    assert any("matches no instruction" in note for note in report.notes)


def test_run():
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((4, 8), np.float32), rng.standard_normal((8, 2), np.float32)
    low, _ = bf16scope.Module.read(DOT.encode()).lower()
    (ours,) = low.run([x, w])
    rounded = [array.astype(ml_dtypes.bfloat16).astype(np.float64) for array in (x, w)]
    exact = rounded[0] @ rounded[1]
    # Eight products are exact in f32; their sum is off by at most 8 roundings of f32, and is rounded to 8 bits of bf16.
    bound = 2.0**-8 * np.abs(exact) + 9 * 2.0**-24 * (np.abs(rounded[0]) @ np.abs(rounded[1]))
    assert ours.dtype == np.float32 and np.all(np.abs(ours - exact) <= bound)
    with pytest.raises(bf16scope.Error, match="parameter 1 of"):
        low.run([x, x])


def test_an_older_ml_dtypes_lacks_only_its_missing_dtypes():
    # 0.4 and before, as beside TensorFlow 2.15, have no integers of two bits.
    script = """
import ml_dtypes
del ml_dtypes.int2, ml_dtypes.uint2
import bf16scope
import numpy as np
text = "HloModule bits\\n\\nENTRY main {\\n  x = DTYPE[4] parameter(0)\\n  ROOT y = DTYPE[4] add(x, x)\\n}\\n"
print(bf16scope.Module.read(text.replace("DTYPE", "s8")).run([np.ones(4, np.int8)])[0])
try:
    bf16scope.Module.read(text.replace("DTYPE", "s2")).run([np.ones(4, np.int8)])
except bf16scope.Error as error:
    print(error)
"""
    output = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=300)
    assert output.returncode == 0, output.stderr
    doubled, *error = output.stdout.splitlines()
    assert doubled == "[2 2 2 2]"
    assert error[0].startswith("parameter 0 of bits is s2, `ml_dtypes.int2`, which ml_dtypes ") and "ml_dtypes>=0.5" in error[1]
