"""What is asked of `bf16scope.jax.lower`, and what it says: policies, `keep`, dtypes, platforms, warnings, answers."""

import functools
import os
import re
import subprocess
import sys
import warnings
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from beside import ROUNDING, draw, far, loss, n_low, network, same_types

import bf16scope
import bf16scope.jax


def test_log_says_what_each_function_costs():
    program = """
import jax.numpy as jnp, bf16scope.jax


def net(x):
    return x @ x
bf16scope.jax.lower(net)(jnp.ones((3, 3)))
"""
    ended = subprocess.run(
        [sys.executable, "-c", program], env={**os.environ, "BF16SCOPE_LOG": "1"}, capture_output=True, text=True, check=True
    )
    assert re.search(r"^net at .*: JAX made a module of \d+ instructions in [\d.]+ s; lowered in [\d.]+ s, ", ended.stderr, re.M)


def test_a_policy_that_there_is_not_is_told_at_once():
    for wrong in ({"policy": "defalt"}, {"dtype": "float8"}, {"policy": "rules: [nothing]"}):
        with pytest.raises(bf16scope.Error):
            bf16scope.jax.lower(loss, **wrong)


def test_wrong_use_is_one_clear_exception():
    with pytest.raises(bf16scope.Error, match="takes a function"):
        bf16scope.jax.lower(jnp.ones(3))
    with pytest.raises(bf16scope.Error, match="bf16_scop"):
        bf16scope.jax.lower(lambda x: x @ x, policy="bf16_scop")(draw(0, 3, 3))
    with pytest.raises(TypeError):
        bf16scope.jax.lower(lambda x: x)(np.array([object()]))
    with pytest.raises(bf16scope.Error, match="float16"):
        bf16scope.jax.lower(lambda x: x @ x, dtype="float8")(draw(0, 3, 3))


def test_what_computes_later_is_refused():
    async def step(x):
        return x @ x

    def layers(x):
        yield x @ x

    for fn, kind in ((step, "coroutine"), (layers, "generator"), (lambda x: map(jnp.tanh, [x @ x]), "map")):
        with pytest.raises(bf16scope.Error, match=f"gives a {kind}, which computes after JAX has traced the function"):
            bf16scope.jax.lower(fn)(draw(0, 3, 3))
    batches = iter([1, 2])
    assert bf16scope.jax.lower(lambda x, batches: (x @ x, batches))(draw(0, 3, 3), batches)[1] is batches


def test_two_files_alone_import_what_jax_does_not_document():
    """`_jax_internals` and `_carried`, as ARCHITECTURE.md has it."""
    files = Path(bf16scope.__file__).parent.glob("*.py")
    named = {file.name for file in files if "jax._src" in file.read_text()}
    assert named == {"_jax_internals.py", "_carried.py"}


def test_exports():
    """For several platforms, and of symbolic dimensions, of which products alone are narrow."""
    # Of older versions it needs what JAX does not bring along.
    export = pytest.importorskip("jax.export", exc_type=ImportError)
    f = lambda x: x @ x.T
    low = jax.jit(bf16scope.jax.lower(f))
    x, w, kernel = draw(0, 3, 4), draw(1, 4, 4) / 2, draw(2, 3, 3, 4, 8) / 5
    for platforms in (["tpu"], ["cpu", "tpu"]):
        exported = export.export(low, platforms=platforms)(x)
        products = [line for line in exported.mlir_module().splitlines() if "stablehlo.dot_general" in line]
        # A CPU reads the operands of what gives f32 widened.
        assert len(products) == len(platforms) and sum("xbf16>, tensor<" in line for line in products) == 1
    assert 0 < far(f(x), exported.call(x)) <= 4 * ROUNDING

    def loss(w, x):
        with jax.named_scope("head"):
            h = jax.lax.scan(lambda h, _: (jnp.tanh(h @ w), None), x @ w, None, length=2)[0]
        return jnp.mean((h @ w) ** 2)

    convolve = lambda x: jax.lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")).mean((1, 2))
    b, n = export.symbolic_shape("b, 2*n")
    of_rows, of_images = (jax.ShapeDtypeStruct(dims, jnp.float32) for dims in ((b, 4), (b, n, 6, 4)))
    if jax.__version_info__ < (0, 5):
        with pytest.raises(bf16scope.Error, match="symbolic dims"):
            export.export(jax.jit(bf16scope.jax.lower(convolve)))(of_images)
        return
    for ours, exact, args, values in (
        (bf16scope.jax.lower(convolve), convolve, (of_images,), (draw(3, 2, 8, 6, 4),)),
        (bf16scope.jax.lower(jax.grad(loss)), jax.grad(loss), (w, of_rows), (w, x)),
        (jax.grad(bf16scope.jax.lower(loss)), jax.grad(loss), (w, of_rows), (w, x)),
    ):
        exported = export.export(jax.jit(ours), platforms=("cpu", "tpu"))(*args)
        assert 0 < far(exact(*values), exported.call(*values)) <= 16 * ROUNDING
    n_narrow = lambda keep: export.export(jax.jit(bf16scope.jax.lower(loss, keep=keep)))(w, of_rows).mlir_module().count("xbf16>) -> ")
    assert (n_narrow("*/head/*"), n_narrow(())) == (1, 3)
    with_places = export.export(jax.jit(bf16scope.jax.lower(lambda x: (jnp.tanh(x @ w), jnp.argmax(x, -1)))))(of_rows)
    assert with_places.vjp().out_avals[0].shape == with_places.in_avals[0].shape


def test_a_platform_without_bfloat16_is_refused():
    """One that JAX does not have here multiplies nothing."""
    from bf16scope import _jax_internals

    with pytest.raises(bf16scope.Error, match="`metal` does not multiply matrices of bfloat16"):
        _jax_internals.check_platform("metal", "bfloat16")


def test_a_version_of_jax_that_is_not_known_is_said():
    """What is imported of JAX is looked for by name: of a version without one of them the message says which were tried."""
    program = "import jax._src.interpreters.mlir as mlir; del mlir.merge_mlir_modules; import bf16scope.jax"
    done = subprocess.run([sys.executable, "-c", program], stderr=subprocess.PIPE, text=True, check=False)
    said = f"ImportError: bf16scope.jax does not know jax {jax.__version__}: .*merge_mlir_modules.*; it was tried with 0.4.36 to"
    assert done.returncode == 1 and re.search(said, done.stderr), done.stderr


def test_float16():
    x = draw(0, 8, 8)
    ours = bf16scope.jax.lower(lambda x: x @ x, dtype="float16")(x)
    assert ours.dtype == jnp.float32 and 0 < far(x @ x, ours) <= 2.0**-10


def test_float16_with_a_scale_in_the_state():
    """The recipe of the page."""
    params, x, y = network()

    def step(params, scale, x, y):
        value, gradients = jax.value_and_grad(lambda params: loss(params, x, y) * scale)(params)
        gradients = jax.tree.map(lambda g: g / scale, gradients)
        is_finite = jnp.all(jnp.array([jnp.all(jnp.isfinite(g)) for g in jax.tree.leaves(gradients)]))
        params = jax.tree.map(lambda p, g: jnp.where(is_finite, p - 0.5 * g, p), params, gradients)
        return params, jnp.where(is_finite, scale, scale / 2), value / scale

    low = jax.jit(bf16scope.jax.lower(step, dtype="float16"))
    scale, scales, losses = jnp.float32(2.0**24), [], []
    for _ in range(40):
        params, scale, value = low(params, scale, x, y)
        scales.append(float(scale)), losses.append(float(value))
    # It begins where gradients overflow, comes down to where they do not, and stays.
    assert scales[0] == 2.0**23 and scales[-1] == scales[-10] >= 2.0**8
    assert losses[-1] < losses[0] / 2
    assert all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(params))


@pytest.mark.parametrize("policy", ["O3", "jmp:params=bf16,compute=bf16,output=bf16", {"preset": "default", "results": "lower"}])
def test_dtypes_stay_where_a_policy_narrows_the_border(policy):
    params, x, y = network()
    low = bf16scope.jax.lower(loss, policy)
    same_types(loss(params, x, y), low(params, x, y))
    same_types(params, jax.grad(low)(params, x, y))


def test_layers_stay_in_f32_through_transformations():
    lower = functools.partial(bf16scope.jax.lower, keep="*/head/*")
    w, x = draw(0, 8, 8) / 4, draw(1, 4, 8)

    def loss(w, x):
        with jax.named_scope("head"):
            return jnp.mean(jnp.tanh(x @ w) ** 2)

    loop = lambda w, x: jax.lax.scan(lambda total, _: (total + loss(w, x), None), 0.0, None, length=2)[0]
    each = lambda w, x: jax.vmap(loss, in_axes=(None, 0))(w, x[:, None])

    def around(w, x):
        with jax.named_scope("head"):
            return jnp.sum(jax.lax.scan(lambda h, _: (jnp.tanh(h @ w), None), x, None, length=2)[0])

    for f in (loss, jax.grad(loss), loop, jax.grad(loop), around, jax.grad(around), each, jax.grad(jax.checkpoint(loss))):
        assert n_low(lower(f), w, x) == 0 < n_low(bf16scope.jax.lower(f), w, x)
    assert n_low(jax.grad(lower(loss)), w, x) == 0


def test_a_part_in_full_precision():
    w, x = draw(0, 8, 8) / 4, draw(1, 4, 8)
    f = lambda w, x: jnp.sum(jnp.tanh(x @ w) @ w)

    def with_context(w, x):
        with bf16scope.jax.full_precision():
            h = jnp.tanh(x @ w)
        return jnp.sum(h @ w)

    decorated = bf16scope.jax.full_precision(lambda w, x: jnp.tanh(x @ w))
    for part in (with_context, lambda w, x: jnp.sum(decorated(w, x) @ w)):
        assert (n_low(bf16scope.jax.lower(f), w, x), n_low(bf16scope.jax.lower(part), w, x)) == (2, 1)
        gradients = n_low(bf16scope.jax.lower(jax.grad(f)), w, x), n_low(bf16scope.jax.lower(jax.grad(part)), w, x)
        assert gradients[0] > gradients[1] > 0
    # What is lowered otherwise inside is so.
    inner = bf16scope.jax.lower(lambda w, x: jnp.tanh(x @ w), keep="*")
    assert n_low(bf16scope.jax.lower(lambda w, x: jnp.sum(inner(w, x) @ w)), w, x) == 1


def test_full_precision_around_a_lowered_function_warns():
    x = draw(0, 8, 8) / 4
    low = bf16scope.jax.lower(lambda x: jnp.tanh(x @ x) @ x)

    def around(x):
        with bf16scope.jax.full_precision():
            return low(x)

    for call in (around, bf16scope.jax.full_precision(low), jax.jit(around)):
        with pytest.warns(UserWarning, match="`<lambda>` is lowered, and a `full_precision` around its call changes nothing"):
            call(x)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        low(x)
        for call in (bf16scope.jax.lower(around), jax.grad(lambda x: bf16scope.jax.lower(around)(x).sum())):
            call(x)


def test_answers_are_said_and_judged():
    f = lambda x: jnp.tanh(x @ x) @ x
    x = draw(0, 16, 16)
    low = bf16scope.jax.lower(f, keep="*/tanh")
    assert bf16scope.jax.explain_casts(low, x).n_lowered == bf16scope.jax.explain_casts(f, x, keep="*/tanh").n_lowered > 0
    answer = bf16scope.jax.audit(f, x)
    assert answer.is_right is None and "results 0:" in str(answer) and "error: " in str(answer)
    assert bf16scope.jax.audit(f, x, budget=1.0).is_right is True
    strict = bf16scope.jax.audit(f, x, budget=1e-9)
    assert strict.is_right is False and strict.search["policy"] is None
    assert 0 < far(f(x), bf16scope.jax.lower(f, policy={})(x)) <= 16 * ROUNDING


def test_a_loop_to_a_tolerance_warns():
    w, x = draw(0, 8, 8) / 8, draw(1, 4, 8)

    def fixed_point(w, x, body=lambda h, w, x: jnp.tanh(h @ w + x), is_bounded=lambda n: n != -1):
        go_on = lambda c: (jnp.max(jnp.abs(c[0] - c[1])) > 1e-2) & is_bounded(c[2])
        return jax.lax.while_loop(go_on, lambda c: (body(c[0], w, x), c[0], c[2] + 1), (x, x + 1, 0))[0]

    with pytest.warns(UserWarning, match="comparison of floats"):
        bf16scope.jax.lower(fixed_point)(w, x)
    in_full = bf16scope.jax.full_precision(lambda h, w, x: jnp.tanh(h @ w + x))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        bf16scope.jax.lower(lambda w, x: fixed_point(w, x, in_full) @ w)(w, x)
        # A number of steps that the loop does not change ends it, from either side.
        for is_bounded in (lambda n: n < 100, lambda n: 100 > n):
            bf16scope.jax.lower(lambda w, x: fixed_point(w, x, is_bounded=is_bounded))(w, x)
        bf16scope.jax.lower(lambda w, x, n: fixed_point(w, x, is_bounded=lambda it: it < n))(w, x, 100)


def test_without_jax_the_extra_is_named():
    program = "import sys; sys.modules['jax'] = None; import bf16scope.jax"
    done = subprocess.run([sys.executable, "-c", program], stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 1 and "pip install 'bf16scope[jax]'" in done.stderr, done.stderr


def test_a_program_is_read_as_xla_converts_it(monkeypatch):
    """Most programs are read by their text, in a third of the converter's time: operations have the names that the converter gives
    them, in loops, branches and calls as well, and products the same decisions."""
    from bf16scope import _jax_internals as internals

    def step(params, x, labels):
        def block(x, w):
            with jax.named_scope("block"):
                x = jax.lax.cond(x.sum() > 0, lambda x: x @ w, lambda x: jnp.tanh(x) @ w, x)
                return jax.nn.gelu(jnp.sort(x, -1)), None

        def loss_of(params):
            y = jax.lax.scan(jax.checkpoint(block), x, params["blocks"])[0]
            y = jax.lax.conv_general_dilated(y.reshape(2, 4, 4, 2), params["kernel"], (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
            logits = y.reshape(8, 8)[jnp.array([1, 0, 3, 2, 5, 4, 7, 6])]
            return -jnp.take_along_axis(jax.nn.log_softmax(logits), labels[:, None], 1).mean()

        loss, gradients = jax.value_and_grad(loss_of)(params)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, gradients), loss

    args = {"blocks": draw(0, 3, 8, 8) / 3, "kernel": draw(1, 3, 3, 2, 2) / 4}, draw(2, 8, 8), jnp.arange(8)
    read, found = internals._read, []

    def both(module):
        program = read(module)
        assert program, "the text is not read"
        found.extend([program.module, internals._converted(module).module])
        return program

    monkeypatch.setattr(internals, "_read", both)
    text = jax.jit(bf16scope.jax.lower(step)).lower(*args).as_text()
    assert "bf16" in text
    of_products = lambda module: sorted(
        (it["op_name"], it["new"].split("{")[0]) for it in module.lower()[1].decisions if it["opcode"] in ("dot", "convolution", "sort", "gather")
    )
    here, by_xla = map(of_products, found)
    assert here == by_xla and len(here) >= 10 and any("while" in name and "/body/" in name and "/block/" in name for name, _ in here)
    # The converter reads the other programs: here one with a carried operation.
    found.clear()
    jax.jit(bf16scope.jax.lower(lambda x: jax.lax.approx_max_k(x @ x, 2)[0])).trace(args[1]).lower(lowering_platforms=("tpu",))
    assert not found
