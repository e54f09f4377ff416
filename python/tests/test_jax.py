"""`bf16scope.jax.lower` under every transformation, beside f32 and beside what is written by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from beside import ROUNDING, by_hand, draw, far, has_low_dots, loss, n_modules, network, same_types

import bf16scope.jax


def test_forward_is_as_far_from_f32_as_by_hand():
    args = network()
    low = bf16scope.jax.lower(loss)
    same_types(loss(*args), low(*args))
    assert has_low_dots(low, *args)
    assert 0 < far(loss(*args), low(*args)) <= 4 * ROUNDING


def test_gradients_are_as_near_as_by_hand():
    args = network()
    exact = jax.grad(loss)(*args)
    ours = jax.grad(bf16scope.jax.lower(loss))(*args)
    same_types(exact, ours)
    assert 0 < far(exact, ours) <= 1.1 * far(exact, jax.grad(by_hand)(*args))
    assert has_low_dots(jax.grad(bf16scope.jax.lower(loss)), *args)


def test_a_whole_step_is_one_module():
    args = network()
    step = jax.value_and_grad(loss)
    ours = bf16scope.jax.lower(step)
    same_types(step(*args), ours(*args))
    assert far(step(*args), ours(*args)) <= 1.1 * far(step(*args), jax.value_and_grad(by_hand)(*args))
    text = jax.jit(ours).lower(*args).as_text()
    assert text.count("call @bf16scope") == 1


def test_residuals_are_kept_in_bfloat16():
    params, x, _ = network()
    _, vjp = jax.vjp(bf16scope.jax.lower(lambda params: jnp.tanh(x @ params["w1"]) @ params["w2"]), params)
    kept = [leaf for leaf in jax.tree.leaves(vjp) if getattr(leaf, "dtype", None) == jnp.bfloat16]
    # What tanh gives, which the second product and tanh's own gradient read.
    assert (8, 32) in [leaf.shape for leaf in kept]


def test_a_loss_and_its_gradients_are_one_module():
    """And the same as where the whole is lowered: what is kept for the backward pass is what a step keeps."""
    args = network()
    ours, step = jax.value_and_grad(bf16scope.jax.lower(loss)), bf16scope.jax.lower(jax.value_and_grad(loss))
    assert n_modules(ours, *args) == 1
    assert all(np.array_equal(a, b) for a, b in zip(*map(jax.tree.leaves, (jax.jit(ours)(*args), jax.jit(step)(*args)))))
    temporaries = [jax.jit(f).lower(*args).compile().memory_analysis().temp_size_in_bytes for f in (ours, step)]
    assert temporaries[0] <= 1.1 * temporaries[1]
    # By a cotangent that is not one.
    tripled = jax.grad(lambda params: 3 * bf16scope.jax.lower(loss)(params, *args[1:]))(args[0])
    assert far(jax.tree.map(lambda g: 3 * g, ours(*args)[1]), tripled) <= 2.0**-23


def test_the_loss_is_the_number_that_is_differentiated():
    """Another number with more behind it is not the loss; and a mapped loss is one for each example, also where it reads what products read."""
    from bf16scope import _jax_internals as internals

    def loss(weights, x, shares):
        shared = (x @ weights[0]) * shares
        bent = jnp.tanh(shared)
        return shared.mean(), {"size": bent.mean(), "projected": bent @ weights[1]}

    args = [jnp.eye(8), draw(0, 8, 8)], jnp.ones((4, 8)), jnp.full((4, 8), 1 / 3)
    gradient = jax.value_and_grad(bf16scope.jax.lower(loss), has_aux=True)
    of_each = jax.vmap(gradient, in_axes=(None, 0, 0))
    for f in (gradient, jax.grad(bf16scope.jax.lower(loss), has_aux=True), of_each):
        [(module, report)] = internals.lowered_parts(f, args, {})
        assert [(it["result"], it["is_given"]) for it in report.to_dict()["losses"]] == [(0, True)]
    compiled = jax.jit(of_each).lower(*args).compile(compiler_options={"xla_allow_excess_precision": False})
    assert far(jnp.full(4, 1 / 3), compiled(*args)[0][0]) <= 2.0**-23
    # A policy that names losses knows better.
    named = jax.value_and_grad(bf16scope.jax.lower(loss, policy={"preset": "default", "losses": [2]}), has_aux=True)
    [(module, report)] = internals.lowered_parts(named, args, {})
    assert [it["result"] for it in report.to_dict()["losses"]] == [2]


def test_a_loss_with_what_is_beside_it():
    args = network()
    with_hidden = lambda params, x, y: (loss(params, x, y), {"hidden": jnp.tanh(x @ params["w1"]), "n": len(y)})
    low = bf16scope.jax.lower(with_hidden)
    ours = jax.value_and_grad(low, has_aux=True)
    exact = jax.value_and_grad(with_hidden, has_aux=True)(*args)
    assert n_modules(ours, *args) == 1
    assert far(exact[1], ours(*args)[1]) <= 8 * ROUNDING
    # Where both are differentiated, it is a forward and a backward pass.
    both = lambda f: lambda params: f(params, *args[1:])[0] + jnp.sum(f(params, *args[1:])[1]["hidden"] ** 2)
    assert n_modules(jax.grad(both(low)), args[0]) > 1
    assert far(jax.grad(both(with_hidden))(args[0]), jax.jit(jax.grad(both(low)))(args[0])) <= 8 * ROUNDING
    # And where the loss is not.
    alone = lambda f: lambda params: jnp.sum(f(params, *args[1:])[1]["hidden"] ** 2)
    assert far(jax.grad(alone(with_hidden))(args[0]), jax.grad(alone(low))(args[0])) <= 8 * ROUNDING


def test_a_program_traces_a_loss_once():
    """With its gradients, as in f32; what is beside it, and what it is given, may be differentiated as well."""
    params, x, y = network()
    n_calls = 0

    def counted(params, x):
        nonlocal n_calls
        n_calls += 1
        hidden = jnp.tanh(x @ params["w1"])
        return loss(params, x, y), (hidden, params, jax.lax.stop_gradient(params["w2"]))

    def of_all(low):
        value, (hidden, same, stopped) = low
        return value + jnp.sum(hidden**2) + 2 * jnp.sum(same["w1"]) + 3 * jnp.sum(stopped)

    programs = {
        "the loss": lambda lower: lambda params, x: jax.value_and_grad(lower(counted), has_aux=True)(params, x),
        "a loop": lambda lower: lambda params, x: jax.lax.scan(lambda w, x: (jax.grad(lambda w: lower(counted)(w, x)[0])(w), 0), params, jnp.stack([x, x])),
        "all results": lambda lower: lambda params, x: jax.grad(lambda params: of_all(lower(counted)(params, x)))(params),
        "a closed-over value": lambda lower: lambda params, x: jax.grad(lambda params: lower(lambda x: counted(params, x))(x)[0])(params),
        "forward": lambda lower: lambda params, x: jax.jvp(lower(counted), (params, x), (params, x)),
    }
    for name, program in programs.items():
        exact, before = program(lambda f: f)(params, x), n_calls
        ours = jax.jit(program(bf16scope.jax.lower))(params, x)
        if name in ("the loss", "a loop"):
            assert n_calls - before == 1, name
        same_types(exact, ours)
        assert far(exact, ours) <= 16 * ROUNDING, name


@pytest.mark.skipif(not hasattr(jax, "shard_map"), reason="this JAX tells no constant of a program that it traces")
def test_gradients_of_a_loss_are_not_multiplied_by_one():
    """The cotangent of `jax.grad` itself, which would be an operation for each parameter; by another they are multiplied."""
    args = network()
    low = bf16scope.jax.lower(loss)
    n_products = lambda f: [it.primitive.name for it in jax.make_jaxpr(jax.grad(f))(*args).eqns].count("mul")
    assert n_products(low) == 0
    assert n_products(lambda *args: 3 * low(*args)) >= len(args[0])


def test_a_loss_in_float16_is_scaled_within():
    """A gradient of 2^-26, which is none in f16, comes back where the loss is scaled outside."""
    x, w = jnp.ones((4, 4)), jnp.eye(4) * 2.0**-13
    f = lambda x: jnp.sum((x @ w) @ w)
    for given in ({"dtype": "float16"}, {"policy": "mixed_float16"}):
        low = bf16scope.jax.lower(f, **given)
        scaled = jax.jit(jax.grad(lambda x: low(x) * 2.0**14))(x)
        assert far(jax.grad(f)(x), scaled * 2.0**-14) <= 2.0**-9


def test_second_derivatives():
    f = lambda x: jnp.sum(jnp.tanh(x @ x))
    x = draw(4, 6, 6) / 4
    hessian = jax.jacrev(jax.grad(f))(x)
    ours = jax.jacrev(jax.grad(bf16scope.jax.lower(f)))(x)
    same_types(hessian, ours)
    assert far(hessian, ours) <= 16 * ROUNDING


def test_forward_mode_and_transposition():
    """What JAX makes of a function by its derivative, beside the same of f32."""
    w, x = draw(4, 6, 6) / 4, draw(5, 6, 6) / 4
    loss = lambda w: jnp.sum(jnp.tanh(x @ w) ** 2)
    network = lambda w: jnp.tanh(x @ w) @ w
    for f in (loss, network):
        low = bf16scope.jax.lower(f)
        cases = {
            "jvp": lambda f: jax.jvp(f, (w,), (x,)),
            "jacfwd": lambda f: jax.jacfwd(f)(w),
            "hessian": lambda f: jax.hessian(f)(w),
            "linearize": lambda f: jax.linearize(f, w)[1](x),
            "of a gradient": lambda f: jax.jvp(jax.grad(lambda w: jnp.sum(f(w))), (w,), (x,)),
            "gradient of a tangent": lambda f: jax.grad(lambda w: jnp.sum(jax.jvp(f, (w,), (x,))[1]))(w),
        }
        for name, case in cases.items():
            same_types(case(f), case(low))
            assert 0 < far(case(f), jax.jit(case, static_argnums=0)(low)) <= 16 * ROUNDING, name
    # What has no reverse mode in f32 has none here.
    loop = lambda w: jax.lax.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, jnp.tanh(c[1] @ w)), (0, x))[1]
    assert 0 < far(jax.jacfwd(loop)(w), jax.jacfwd(bf16scope.jax.lower(loop))(w)) <= 16 * ROUNDING
    with pytest.raises(ValueError, match="Reverse-mode"):
        jax.grad(lambda w: jnp.sum(bf16scope.jax.lower(loop)(w)))(w)
    pulled = lambda f: jax.linear_transpose(f, x)(x)
    assert 0 < far(pulled(lambda x: x @ w), pulled(bf16scope.jax.lower(lambda x: x @ w))) <= 4 * ROUNDING


def test_a_policy_of_remat_is_the_one_of_the_function():
    """As many values are kept as in f32, and those that are bfloat16 inside are."""
    saved_residuals = pytest.importorskip("jax._src.ad_checkpoint").saved_residuals
    w, h = draw(0, 8, 8) / 4, draw(1, 4, 8)

    def kept(block, policy):
        block = jax.checkpoint(block, policy=policy)
        loss = lambda w, h: jnp.mean(block(w, block(w, h)) ** 2)
        return sorted((aval.shape, str(aval.dtype)) for aval, _ in saved_residuals(loss, w, h)), jax.jit(jax.grad(loss))(w, h)

    block = lambda w, h: jnp.tanh(h @ w)
    policies = jax.checkpoint_policies
    for policy in (policies.dots_saveable, policies.nothing_saveable, policies.everything_saveable, None):
        (exact, gradient), (ours, of_lowered) = kept(block, policy), kept(bf16scope.jax.lower(block), policy)
        assert 0 < far(gradient, of_lowered) <= 16 * ROUNDING
        if policy is not policies.everything_saveable:
            assert [shape for shape, _ in ours] == [shape for shape, _ in exact]
        if policy is policies.dots_saveable:
            assert "bfloat16" in {dtype for _, dtype in ours}


def test_vmap():
    params, x, y = network()
    each = lambda f: jax.vmap(f, in_axes=(None, 0, 0))(params, x[:, None], y[:, None])
    ours = each(bf16scope.jax.lower(loss))
    same_types(each(loss), ours)
    assert far(each(loss), ours) <= 4 * ROUNDING
    grads = lambda f: jax.vmap(jax.grad(f), in_axes=(None, 0, 0))(params, x[:, None], y[:, None])
    same_types(grads(loss), grads(bf16scope.jax.lower(loss)))


def test_inside_scan_cond_while_and_remat():
    w, x = draw(5, 8, 8) / 4, draw(6, 4, 8)
    f = lambda x, w: jnp.tanh(x @ w)
    low = bf16scope.jax.lower(f)

    def all_of(f):
        scanned = jax.lax.scan(lambda x, _: (f(x, w), None), x, None, length=3)[0]
        branch = jax.lax.cond(x[0, 0] > 0, lambda: f(x, w), lambda: f(x, -w))
        looped = jax.lax.while_loop(lambda it: it[0] < 3, lambda it: (it[0] + 1, f(it[1], w)), (0, x))[1]
        again = jax.grad(lambda w: jnp.sum(jax.checkpoint(f)(x, w)))(w)
        through = jax.grad(lambda w: jnp.sum(jax.lax.scan(lambda x, _: (f(x, w), None), x, None, length=3)[0]))(w)
        return scanned, branch, looped, again, through

    same_types(all_of(f), all_of(low))
    assert far(all_of(f), all_of(low)) <= 16 * ROUNDING


def test_loops_branches_and_remat_inside():
    w, x = draw(5, 8, 8) / 4, draw(6, 4, 8)

    def f(w, x):
        x, ys = jax.lax.scan(lambda x, _: (jnp.tanh(x @ w), jnp.sum(x)), x, None, length=3)
        x = jax.lax.cond(jnp.sum(x) > 0, lambda x: x @ w, lambda x: x, x)
        x = jax.checkpoint(lambda x: jnp.sin(x @ w))(x)
        return jnp.sum(x) + jnp.sum(ys)

    same_types(jax.value_and_grad(f)(w, x), jax.value_and_grad(bf16scope.jax.lower(f))(w, x))
    assert far(jax.grad(f)(w, x), jax.grad(bf16scope.jax.lower(f))(w, x)) <= 16 * ROUNDING


def test_custom_vjp_inside():
    @jax.custom_vjp
    def clipped(x):
        return x

    clipped.defvjp(lambda x: (x, None), lambda _, g: (jnp.clip(g, -1e-3, 1e-3),))
    f = lambda w: jnp.sum(clipped(w @ w) ** 2)
    w = draw(8, 6, 6)
    exact, ours = jax.grad(f)(w), jax.grad(bf16scope.jax.lower(f))(w)
    assert far(exact, ours) <= 16 * ROUNDING and float(jnp.max(jnp.abs(ours))) < 0.1


def test_an_axis_of_vmap_is_summed_over_inside():
    x = draw(0, 3, 4, 4)
    f = lambda x: jax.lax.psum(x @ x, "i")
    mapped = lambda f: jax.vmap(f, axis_name="i")(x)
    assert 0 < far(mapped(f), mapped(bf16scope.jax.lower(f))) <= 4 * ROUNDING


def test_a_rule_of_vmap_of_the_users_own():
    w = draw(1, 4, 4)
    one = jax.custom_batching.sequential_vmap(lambda x: jnp.tanh(x @ w))
    x = draw(2, 3, 4)
    assert far(jax.vmap(one)(x), jax.vmap(bf16scope.jax.lower(one))(x)) <= 4 * ROUNDING


def test_a_network_over_closed_data_runs():
    """XLA's CPU backend has no product of narrow numbers that gives f32 once it has folded a transpose into it."""
    x, w, b, v = draw(0, 32, 16), draw(1, 32, 16) / 4, draw(2, 32), draw(3, 4, 32) / 6

    def of_one(w, b, v, x):
        h = w @ x + b
        return v @ jax.nn.relu(h - jax.lax.pmean(h, "rows"))

    loss = lambda w, b, v: jnp.mean(jax.vmap(of_one, (None, None, None, 0), axis_name="rows")(w, b, v, x) ** 2)
    step = jax.grad(loss, argnums=(0, 1, 2))
    assert 0 < far(step(w, b, v), bf16scope.jax.lower(step)(w, b, v)) <= 16 * ROUNDING
