"""What takes time: without the GIL, ended by Ctrl-C, without copies; a panic is an exception."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import bf16scope
from bf16scope import _native

ENDLESS = """HloModule endless

body { i = s32[] parameter(0) one = s32[] constant(1) ROOT next = s32[] add(i, one) }
always { i = s32[] parameter(0) ROOT yes = pred[] constant(true) }
ENTRY main { zero = s32[] parameter(0) ROOT end = s32[] while(zero), condition=always, body=body }
"""

SUM = """HloModule sum

add { a = f32[] parameter(0) b = f32[] parameter(1) ROOT c = f32[] add(a, b) }
ENTRY main { x = f32[SIZE] parameter(0) zero = f32[] constant(0) ROOT y = f32[] reduce(x, zero), dimensions={0}, to_apply=add }
"""

FILL = """HloModule fill

ENTRY main { x = f32[] parameter(0) ROOT y = f32[SIZE] broadcast(x), dimensions={} }
"""


def module(text):
    return bf16scope.Module.read(text.encode())


def test_a_panic_is_an_exception():
    with pytest.raises(bf16scope.Error, match="bf16scope failed: on purpose") as caught:
        _native.panic("on purpose")
    assert "a bug of bf16scope" in caught.value.help


def children(of):
    """The processes that a process started and that still are."""
    return [child for file in Path(f"/proc/{of}/task").glob("*/children") for child in file.read_text().split()]


def test_ctrl_c_ends_a_run_and_its_process():
    """And other threads of Python go on meanwhile: the GIL is free."""
    program = f"""
import os, signal, threading, time, bf16scope
# Two threads write here, and `print` writes a line and its end one after the other.
def say(line):
    os.write(1, line + b"\\n")
# Whatever whoever started the tests ignores; and it ends by itself.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.alarm(120)
module = bf16scope.Module.read({ENDLESS.encode()!r})
def tell():
    for _ in range(1000):
        say(b"tick")
        time.sleep(0.05)
threading.Thread(target=tell, daemon=True).start()
try:
    module.run([__import__("numpy").int32(0)])
except KeyboardInterrupt:
    say(b"interrupted")
time.sleep(60)
"""
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    try:
        deadline = time.monotonic() + 60
        while not children(process.pid):
            assert time.monotonic() < deadline and process.poll() is None
            time.sleep(0.05)
        # Ten ticks after the child began are ten during the run.
        assert process.stdout.readline() == "tick\n"
        assert [process.stdout.readline() for _ in range(10)] == ["tick\n"] * 10
        process.send_signal(signal.SIGINT)
        began = time.monotonic()
        while (line := process.stdout.readline()) != "interrupted\n":
            assert line, "it ended otherwise"
        while children(process.pid):
            time.sleep(0.02)
            assert time.monotonic() < began + 10, "the endless process is still there"
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def peak():
    """The most memory that this program had: `ru_maxrss` may be that of whoever started it."""
    status = Path("/proc/self/status").read_text()
    return int(re.search(r"VmHWM:\s*(\d+) kB", status)[1]) * 1024


def test_arrays_are_not_copied():
    """The most memory that this process ever had grows by no copy of an argument, and by one of a result, which is it."""
    n_bytes = 64 << 20
    program = f"""
import numpy as np, bf16scope, sys
sys.path.insert(0, {os.path.dirname(__file__)!r})
from test_work import FILL, SUM, module, peak
n = {n_bytes // 4}
x = np.ones(n, np.float32)
low = module(SUM.replace("SIZE", str(n)))
before = peak()
(total,) = low.run([x])
given = peak() - before
before = peak()
(filled,) = module(FILL.replace("SIZE", str(n))).run([np.float32(3)])
print(int(total), given, peak() - before, filled[-1], filled.ctypes.data % 16, filled.flags.writeable)
"""
    said = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, check=True).stdout.split()
    total, given, taken = map(int, said[:3])
    # Ones are summed exactly up to 2^24 in any one place; XLA's sum may stop there, and never goes below.
    assert total >= 2**24
    assert given < n_bytes / 4 and n_bytes * 0.75 < taken < n_bytes * 1.25
    assert said[3:] == ["3.0", "0", "False"]


def test_bfloat16_and_arrays_that_are_not_dense():
    transpose = module("HloModule t\nENTRY main { x = bf16[2,3] parameter(0) ROOT y = bf16[3,2] transpose(x), dimensions={1,0} }")
    x = np.arange(12).reshape(3, 4).astype(ml_dtypes.bfloat16)[:, ::2].T
    assert not x.flags.c_contiguous
    (y,) = transpose.run([x])
    assert y.dtype == ml_dtypes.bfloat16 and np.array_equal(y, x.T)
    empty = module("HloModule e\nENTRY main { x = f32[0,3] parameter(0) ROOT y = f32[3,0] transpose(x), dimensions={1,0} }")
    assert empty.run([np.zeros((0, 3), np.float32)])[0].shape == (3, 0)
