"""The programs of `tests/data/reports`, of kinds that users of bf16 report as wrong, lowered by `bf16scope.jax`."""

import sys
from pathlib import Path

import jax
import numpy as np
import pytest

from bf16scope.jax import lower

REPORTS = Path(__file__).resolve().parents[2] / "tests/data/reports"
sys.path.insert(0, str(REPORTS))
from programs import PROGRAMS  # noqa: E402


class Unmarked:
    """The `s` of a program as its author wrote it in f32."""

    def __call__(self, x):
        return x

    def dot(self, x, y):
        return x @ y


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_is_as_right_as_by_hand(name):
    f, inputs = PROGRAMS[name]
    recorded = np.load(REPORTS / f"{name}.npz")
    expected = [recorded[f"out{n}"] for n in range(sum(key.startswith("out") for key in recorded))]
    lowered = jax.jit(lower(lambda *inputs: jax.tree.leaves(f(Unmarked(), *inputs)))).lower(*inputs)
    results = lowered.compile(compiler_options={"xla_allow_excess_precision": False})(*inputs)
    assert len(results) == len(expected)
    for n, (result, right, bound) in enumerate(zip(results, expected, recorded["bounds"])):
        if right.dtype != np.float32:
            assert (np.asarray(result) == right).all(), n
            continue
        error = np.linalg.norm(np.asarray(result, np.float64) - right)
        # NaN is within no bound.
        assert error <= bound * np.linalg.norm(right.astype(np.float64)), (n, error, bound)
