"""The commands as functions: they ask the program that comes along."""

import json
import re
from pathlib import Path

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


def test_a_printed_answer_has_its_figures():
    answer = bf16scope.jax.compile_for(f, W, X, target="tpu-v3")
    report = answer.reports[0]
    assert f"cycles: {report['cycles']:,}" in str(answer) and f"total: {report['hbm']['total']:,}" in str(answer)
    # Longer lists are rows.
    rows = {"rows": [{"name": name, "n": 1} for name in "abcd"]}
    assert "    name a, n 1" in str(bf16scope._answer.Answer("audit", rows))


def test_a_printed_explanation_has_its_figures():
    answer = bf16scope.jax.explain(f, W, X)
    (program,) = answer.programs
    shown = [it.strip() for it in str(answer).splitlines()]
    assert shown[0] == "bf16scope explain" and f"target: {answer.target}" in shown
    for line in (f"cycles: {program['total']['cycles']:,}", f"n steps: {program['n_steps']}", f"module: {program['module']}"):
        assert line in shown, line
    for step in program["steps"]:
        assert f"op: {step['op']}" in shown and f"bound: {step['bound']}" in shown


def test_a_policy_for_a_tpu_names_what_lower_reads(monkeypatch):
    assert bf16scope.jax.policy_for(f, W, X, target="tpu-v3", compiles=1)["preset"] == "default"

    def ask(command, path, *options, **others):
        name, dims = re.search(r"(\S+) = f32\[([\d,]*)\]\S* tanh", bf16scope.Module.read(path).text()).groups()
        decided = {"instruction": name, "of": f"tanh f32[{dims}]", "as": "barrier", "because": "a trial"}
        return {"policy": {"preset": "default", "decided": [decided]}}

    monkeypatch.setattr(bf16scope._program, "ask", ask)
    low = bf16scope.jax.lower(f, policy=bf16scope.jax.policy_for(f, W, X))
    assert "opt-barrier(" in bf16scope.jax.module(low, W, X).text()


def test_lines_are_those_of_the_user():
    low = bf16scope.jax.lower(f)
    program = bf16scope.jax.module(lambda w, x: low(w, x), W, X).proto()
    assert b"test_program.py" in program and b"_jax_internals.py" not in program


def test_what_jit_donates_is_donated():
    step = lambda params, x: jax.tree.map(lambda w: w - (x @ w).sum(), params)
    args = {"w": jnp.ones((8, 8))}, jnp.ones((4, 8))
    alias = "input_output_alias={ {}: (0, {}, may-alias) }"
    assert alias in bf16scope.jax.module(jax.jit(step, donate_argnums=0), *args).text()
    assert alias in bf16scope.jax.module(jax.jit(bf16scope.jax.lower(step), donate_argnames="params"), *args).text()
    assert "alias" not in bf16scope.jax.module(step, *args).text()
    with pytest.raises(bf16scope.Error, match="has static arguments"):
        bf16scope.jax.module(jax.jit(lambda x, n: x * n, static_argnums=1), args[1], 3)


def test_fit():
    """Two batches of a small function, by the TPU compiler; the batch is found by its number of rows."""
    w = jax.ShapeDtypeStruct((128, 128), jnp.float32)
    of_batch = lambda n: (w, jax.ShapeDtypeStruct((n, 128), jnp.float32))
    answer = bf16scope.jax.fit(f, of_batch, [16, 24])
    assert answer.model == "f" and [row["batch"] for row in answer.series[0]["rows"]] == [16, 24]
    # Printed, it has the sentence that answers, and a row for each batch with its figures.
    shown, rows = str(answer).splitlines(), answer.series[0]["rows"]
    assert shown[:2] == ["bf16scope fit", "  answers: " + " ".join(answer.answers)]
    for row in rows:
        for line in (f"batch: {row['batch']}", f"cycles: {row['fits']['cycles']:,}", f"total: {row['fits']['hbm']['total']:,}"):
            assert line in [it.strip() for it in shown], line
    with pytest.raises(bf16scope.Error, match="give a tuple"):
        bf16scope.jax.fit(f, lambda n: w, [16])


def test_policies_are_read_in_one_way(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    forms = [{"preset": "default", "deny": ["dot"]}, "{preset: default, deny: [dot]}", "preset: default\ndeny: [dot]\n"]
    for name in ("plain", "a.policy", "a.json", "a.yaml"):
        Path(name).write_text(json.dumps(forms[0]) if name == "a.json" else forms[2])
        forms += [name, f"./{name}", Path(name)]
    for form in forms:
        assert bf16scope.jax.explain_casts(f, W, X, policy=form).n_lowered == 0
    for form in (forms[0], forms[1], "plain", Path("a.json")):
        assert bf16scope.jax.audit(f, W, X, policy=form).error == 0
    for wrong in ("O9", str(tmp_path), "nothing.yaml", None, 3):
        with pytest.raises(bf16scope.Error, match="preset|policy"):
            bf16scope.jax.lower(f, wrong)


def test_what_an_audit_found_is_a_policy():
    step = lambda params, x: {"params": params - X.sum(), "loss": f(params, x)}
    answer = bf16scope.jax.audit(step, W, X, budget=1e-3)
    assert [it["name"] for it in answer.results] == ["['loss']", "['params']"]
    policy = answer.search["policy"]
    assert bf16scope.jax.audit(step, W, X, policy=policy).error == answer.search["error"] <= 1e-3 < answer.error
    assert 0 < bf16scope.jax.explain_casts(step, W, X, policy=policy).n_lowered < bf16scope.jax.explain_casts(step, W, X).n_lowered
    # All of what is lowered would have to be kept: that is no policy.
    assert bf16scope.jax.audit(step, W, X, budget=1e-7).search["policy"] is None


def test_a_policy_document_and_wrong_arguments():
    report = bf16scope.jax.explain_casts(f, W, X, policy="preset: default\ndeny: [dot]\n")
    assert not any(it["new"].startswith("bf16") for it in report.decisions if it["opcode"] == "dot")
    answer = bf16scope.jax.audit(f, W, X, policy="preset: default\ndeny: [dot]\n")
    assert "dot" in str(answer.policy)
    with pytest.raises(bf16scope.Error, match="was given shapes"):
        bf16scope.jax.audit(f, jax.ShapeDtypeStruct((8, 16), jnp.float32), X)
    with pytest.raises(bf16scope.Error, match="no platform `xpu`"):
        bf16scope.jax.module(f, W, X, platform="xpu")
    with pytest.raises(bf16scope.Error, match="for `budget`: expected a number over 0"):
        bf16scope.jax.audit(f, W, X, budget=-1)


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
    with pytest.raises(bf16scope.Error, match="'tpu-v9' for `target`: no target"):
        bf16scope.jax.compile_for(f, W, X, target="tpu-v9")


def test_arguments_are_audited_as_jax_takes_them():
    answer = bf16scope.jax.audit(lambda x, w, n: jnp.tanh(x @ w) * n, np.ones((4, 4)), np.ones((4, 4), np.float32), 2)
    assert answer.to_dict()


def test_keys_are_audited():
    answer = bf16scope.jax.audit(lambda x, key: x @ x.T * jax.random.normal(key, ()), X, jax.random.key(0))
    assert answer.to_dict()
