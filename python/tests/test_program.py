"""The commands as functions: they ask the program that comes along."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bf16scope
import bf16scope.jax


def f(w, x):
    return jnp.sum(jnp.tanh(x @ w) @ w.T)


W, X = np.linspace(-1, 1, 128, dtype=np.float32).reshape(8, 16), np.ones((4, 8), np.float32)


def test_explain_casts():
    report = bf16scope.jax.explain_casts(jax.grad(f), W, X)
    dots = [it for it in report.decisions if it["opcode"] == "dot"]
    assert dots and all(it["new"].startswith("bf16") for it in dots)


def test_audit():
    answer = bf16scope.jax.audit(f, W, X)
    assert "audit" in repr(answer) and answer.to_dict() and "iframe" in answer._repr_html_()
    with pytest.raises(AttributeError, match="no `nothing`"):
        answer.nothing


def test_the_same_bits_as_run():
    """Sums of small whole numbers are exact in any order, and their roundings to bfloat16 are not: both round alike."""

    def f(w, x):
        return jax.nn.relu(x @ w) @ w.T

    rng = np.random.default_rng(0)
    w, x = (rng.integers(-9, 10, dims).astype(np.float32) for dims in [(64, 48), (8, 64)])
    low, _ = bf16scope.jax.module(f, w, x).lower()
    (ours,) = low.run([w, x])
    assert ours.tobytes() != np.asarray(f(w, x)).tobytes()
    # JAX may leave out roundings; told not to, it gives our bits.
    compiled = jax.jit(bf16scope.jax.lower(f)).lower(w, x).compile({"xla_allow_excess_precision": False})
    assert np.asarray(compiled(w, x)).tobytes() == ours.tobytes()


def test_errors_of_the_program_are_exceptions():
    with pytest.raises(bf16scope.Error, match="tpu-v9"):
        bf16scope.jax.compile_for(f, W, X, target="tpu-v9")


def test_arguments_are_audited_as_jax_takes_them():
    answer = bf16scope.jax.audit(lambda x, w, n: jnp.tanh(x @ w) * n, np.ones((4, 4)), np.ones((4, 4), np.float32), 2)
    assert answer.to_dict()


def test_keys_are_audited():
    answer = bf16scope.jax.audit(lambda x, key: x @ x.T * jax.random.normal(key, ()), X, jax.random.key(0))
    assert answer.to_dict()
