"""`bf16scope.jax.lower` under every transformation, beside f32 and beside what is written by hand."""

import functools
import os
import re
import subprocess
import sys
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import bf16scope
import bf16scope.jax

#: A value rounded to bfloat16 is off by at most half a unit in the last of 8 bits.
ROUNDING = 2.0**-8


def draw(seed, *dims):
    return jnp.asarray(np.random.default_rng(seed).standard_normal(dims), jnp.float32)


def loss(params, x, y):
    """A network of two layers."""
    hidden = jnp.tanh(x @ params["w1"] + params["b1"])
    logits = hidden @ params["w2"]
    return jnp.mean((jax.nn.log_softmax(logits)[jnp.arange(len(y)), y] * -1.0))


def network():
    params = {"w1": draw(1, 16, 32) / 4, "b1": jnp.zeros(32), "w2": draw(2, 32, 10) / 6}
    return params, draw(3, 8, 16), jnp.arange(8) % 10


def by_hand(params, x, y):
    """The same with its products in bfloat16, as one writes it by hand."""
    low = jnp.bfloat16
    hidden = jnp.tanh(x.astype(low) @ params["w1"].astype(low) + params["b1"].astype(low))
    logits = (hidden @ params["w2"].astype(low)).astype(jnp.float32)
    return jnp.mean((jax.nn.log_softmax(logits)[jnp.arange(len(y)), y] * -1.0))


def far(a, b):
    """The rms difference of two trees over the rms of the first."""
    leaves = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    squares = [(np.sum((np.float64(x) - np.float64(y)) ** 2), np.sum(np.float64(x) ** 2)) for x, y in leaves]
    return np.sqrt(sum(d for d, _ in squares) / sum(n for _, n in squares))


def same_types(a, b):
    assert jax.tree.structure(a) == jax.tree.structure(b)
    assert [(x.shape, x.dtype) for x in jax.tree.leaves(a)] == [(x.shape, x.dtype) for x in jax.tree.leaves(b)]


def has_low_dots(fn, *args):
    """Whether the program's products are of bfloat16."""
    dots = [line for line in jax.jit(fn).lower(*args).as_text().splitlines() if "dot_general" in line]
    assert dots
    return all("xbf16>" in line for line in dots)


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


def n_modules(fn, *args):
    """How many lowered modules are called in the program of a function."""
    return jax.jit(fn).lower(*args).as_text().count("call @bf16scope")


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


def test_leaves_of_every_kind_pass():
    def f(key, state, flag=True, *, scale):
        noise = jax.random.normal(key, (4, 4))
        out = (noise @ state["w"]) * scale
        return {"out": out, "count": state["count"] + 1, "key": jax.random.split(key)[0], "none": None, "flag": flag & True}

    state = {"w": draw(7, 4, 4), "count": jnp.int32(3), "nothing": None}
    low = bf16scope.jax.lower(f)
    for key in (jax.random.key(0), jax.random.PRNGKey(0)):
        exact, ours = f(key, state, jnp.bool_(True), scale=2.0), low(key, state, jnp.bool_(True), scale=2.0)
        assert jax.tree.structure(exact) == jax.tree.structure(ours)
        assert [leaf.dtype for leaf in jax.tree.leaves(exact)] == [leaf.dtype for leaf in jax.tree.leaves(ours)]
        assert int(ours["count"]) == 4
        same_key = jnp.all(jax.random.key_data(exact["key"]) == jax.random.key_data(ours["key"]))
        assert same_key


@jax.tree_util.register_pytree_with_keys_class
class Counted:
    """A layer that counts in place, as modules of nnx do."""

    def __init__(self, w, n):
        self.w, self.n = w, n

    def tree_flatten_with_keys(self):
        return ((jax.tree_util.GetAttrKey("w"), self.w), (jax.tree_util.GetAttrKey("n"), self.n)), None

    @classmethod
    def tree_unflatten(cls, _, leaves):
        return cls(*leaves)

    def __call__(self, x):
        self.n = self.n + 1
        return x @ self.w


def test_what_changes_in_place_is_said(recwarn):
    layer, x = Counted(draw(1, 4, 4), jnp.int32(0)), draw(2, 4, 4)
    bf16scope.jax.lower(lambda layer, x: layer(x))(layer, x)
    assert [str(it.message).split(" of its")[0] for it in recwarn] == ["the function that is lowered changes [0].n"]
    recwarn.clear()
    # What is returned is not lost, and a dict that a function takes apart is its own.
    bf16scope.jax.lower(lambda batch: batch.pop("x") @ batch["w"])({"x": x, "w": x})
    bf16scope.jax.lower(lambda batch: batch.update(x=x) or batch["x"] @ batch["w"])({"x": x, "w": x})
    assert not recwarn


def test_custom_vjp_inside():
    @jax.custom_vjp
    def clipped(x):
        return x

    clipped.defvjp(lambda x: (x, None), lambda _, g: (jnp.clip(g, -1e-3, 1e-3),))
    f = lambda w: jnp.sum(clipped(w @ w) ** 2)
    w = draw(8, 6, 6)
    exact, ours = jax.grad(f)(w), jax.grad(bf16scope.jax.lower(f))(w)
    assert far(exact, ours) <= 16 * ROUNDING and float(jnp.max(jnp.abs(ours))) < 0.1


def test_custom_calls_pass():
    f = lambda a: jnp.linalg.cholesky(a @ a.T + 8 * jnp.eye(4)) @ a
    a = draw(9, 4, 4)
    assert far(f(a), bf16scope.jax.lower(f)(a)) <= 16 * ROUNDING


def test_what_is_closed_over():
    params, x, y = network()
    constant = draw(10, 16, 16)

    @jax.jit
    def outer(params, x):
        low = bf16scope.jax.lower(lambda x: loss(params, x @ constant, y))
        return jax.value_and_grad(low)(x), jax.grad(lambda p: bf16scope.jax.lower(lambda x: loss(p, x @ constant, y))(x))(params)

    exact = jax.value_and_grad(lambda x: loss(params, x @ constant, y))(x), jax.grad(lambda p: loss(p, x @ constant, y))(params)
    same_types(exact, outer(params, x))
    assert far(exact, outer(params, x)) <= 16 * ROUNDING


def test_static_arguments_and_donation():
    def f(x, n, activation="tanh"):
        for _ in range(n):
            x = getattr(jnp, activation)(x @ x)
        return x

    x = draw(11, 4, 4) / 2
    low = bf16scope.jax.lower(f, static_argnums=1, static_argnames="activation")
    assert far(f(x, 2), low(x, 2)) <= 16 * ROUNDING
    jitted = jax.jit(bf16scope.jax.lower(functools.partial(f, n=2)), donate_argnums=0)
    assert far(f(x, 2), jitted(x + 0)) <= 16 * ROUNDING


def test_lowered_once_for_each_shape_and_dtype(caplog):
    caplog.set_level("INFO", "bf16scope")
    low = bf16scope.jax.lower(lambda x: x @ x)
    n_lowered = lambda: sum("lowered in" in message for message in caplog.messages)
    for n in (3, 3, 4):
        low(draw(0, n, n))
    assert n_lowered() == 2
    jax.jit(lambda x: low(x) + 1)(draw(1, 4, 4))
    assert n_lowered() == 2
    assert low(draw(0, 4, 4).astype(jnp.bfloat16)).dtype == jnp.bfloat16
    assert low(jnp.ones((4, 4), jnp.int32)).dtype == jnp.int32
    assert n_lowered() == 4


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


def mesh():
    if len(jax.devices()) < 8:
        pytest.skip("needs eight CPU devices")
    return Mesh(np.array(jax.devices()[:8]), ("data",))


def test_eight_devices_with_shardings():
    params, x, y = network()
    over = mesh()
    step = jax.value_and_grad(bf16scope.jax.lower(loss))
    place = lambda tree, spec: jax.device_put(tree, NamedSharding(over, spec))
    rows = PartitionSpec("data")
    sharded = jax.jit(step)(place(params, PartitionSpec()), place(x, rows), place(y, rows))
    whole = jax.jit(step)(params, x, y)
    same_types(whole, sharded)
    # Sums over eight parts are in another order: of f32, or of what was rounded once more.
    assert far(whole, sharded) <= ROUNDING


def test_a_batch_stays_sharded():
    over = mesh()
    low = bf16scope.jax.lower(lambda x, w: jnp.tanh(x @ w))
    x, w = draw(1, 16, 8), draw(2, 8, 8)
    whole = low(x, w)
    for spec in (PartitionSpec("data"), PartitionSpec(None, "data")):
        placed = jax.device_put(x, NamedSharding(over, spec))
        for out in (low(placed, w), jax.jit(low)(placed, w)):
            assert far(whole, out) <= ROUNDING
            # Columns are summed over, so that all devices have all of the result.
            assert len({str(shard.index) for shard in out.addressable_shards}) == (8 if spec[0] else 1)


def test_inside_shard_map():
    over = mesh()
    shard_map = getattr(jax, "shard_map", None) or __import__("jax.experimental.shard_map").experimental.shard_map.shard_map
    low = bf16scope.jax.lower(lambda x, w: jnp.tanh(x @ w))
    specs = dict(mesh=over, in_specs=(PartitionSpec("data"), PartitionSpec()), out_specs=PartitionSpec("data"))
    if jax.__version_info__ < (0, 5):
        # That version has no rule for custom_vjp under its check, and says so itself.
        specs["check_rep"] = False
    x, w = draw(1, 16, 8), draw(2, 8, 8)
    assert far(jnp.tanh(x @ w), jax.jit(shard_map(low, **specs))(x, w)) <= 4 * ROUNDING


def test_gradients_inside_shard_map_are_summed_as_jax_does():
    """Of what is the same on all devices, if it keeps account of that, wherever the gradient is taken."""
    over = mesh()
    if not hasattr(jax.lax, "pcast"):
        pytest.skip("this version keeps no account")
    x, w = draw(1, 16, 8), draw(2, 8, 8) / 3
    f = lambda w, x: jnp.sum(jnp.tanh(x @ w))
    specs = dict(mesh=over, in_specs=(PartitionSpec(), PartitionSpec("data")), out_specs=PartitionSpec())
    mapped = lambda gradient: jax.jit(jax.shard_map(lambda w, x: jax.lax.pmean(gradient(w, x), "data"), **specs))(w, x)
    exact = mapped(jax.grad(f))
    assert far(exact, jax.grad(f)(w, x)) <= 2.0**-20
    assert 0 < far(exact, mapped(jax.grad(bf16scope.jax.lower(f)))) <= 8 * ROUNDING
    assert 0 < far(exact, mapped(bf16scope.jax.lower(jax.grad(f)))) <= 8 * ROUNDING
    assert 0 < far(exact, mapped(lambda w, x: jax.grad(bf16scope.jax.lower(lambda w: f(w, x)))(w))) <= 8 * ROUNDING
    whole = jax.shard_map(jax.grad(f), **specs)
    assert 0 < far(exact, jax.jit(bf16scope.jax.lower(whole))(w, x)) <= 8 * ROUNDING


def test_shard_map_and_constraints_inside():
    # XLA ends the process over a sharding by a mesh that the program does not have.
    over = mesh()
    shard_map = getattr(jax, "shard_map", None) or __import__("jax.experimental.shard_map").experimental.shard_map.shard_map
    rows, whole = PartitionSpec("data"), PartitionSpec()
    mapped = shard_map(lambda x, w: jnp.tanh(x @ w), mesh=over, in_specs=(rows, whole), out_specs=rows)

    def constrained(x, w, mesh=over, spec=rows):
        x = jax.lax.with_sharding_constraint(x @ w, NamedSharding(mesh, spec))
        return jax.lax.with_sharding_constraint(jnp.tanh(x) @ w, NamedSharding(mesh, spec))

    x, w = draw(1, 16, 8), draw(2, 8, 8)
    for f in (mapped, constrained, lambda x, w: constrained(mapped(x, w), w)):
        low = bf16scope.jax.lower(f)
        assert 0 < far(f(x, w), low(x, w)) <= 8 * ROUNDING
        gradient = jax.grad(lambda w: jnp.sum(f(x, w) ** 2))(w)
        assert 0 < far(gradient, jax.jit(jax.grad(lambda w: jnp.sum(low(x, w) ** 2)))(w)) <= 8 * ROUNDING
    stays = jax.jit(bf16scope.jax.lower(constrained))(x, w)
    assert len({str(shard.index) for shard in stays.addressable_shards}) == 8
    sharded = jax.device_put(x, NamedSharding(over, rows))
    assert far(constrained(x, w), jax.jit(bf16scope.jax.lower(constrained))(sharded, w)) <= 8 * ROUNDING
    # Two functions in one program, by two meshes that have the same name in their own.
    other = Mesh(np.array(jax.devices()[:8]).reshape(4, 2), ("data", "model"))
    by_other = bf16scope.jax.lower(lambda x, w: constrained(x, w, other, PartitionSpec("data", "model")))
    low = bf16scope.jax.lower(constrained)
    ours = jax.jit(lambda x, w: jnp.stack([low(x, w).sum(), by_other(x, w).sum()]))(x, w)
    assert far(constrained(x, w).sum() * jnp.ones(2), ours) <= 8 * ROUNDING


def ring(x):
    size = 8
    turn = lambda x, _: (jax.lax.ppermute(x, "data", [(i, (i + 1) % size) for i in range(size)]) * 0.5 + x, None)
    return jax.lax.scan(turn, x, None, length=3)[0]


#: What devices do together within a `shard_map`, each with a part of (16, 16), by one axis of 8 or by ("data", "model").
TOGETHER = {
    "all_gather": lambda x: jax.lax.all_gather(x, "data")[::-1].sum(0),
    "all_gather, of a mesh": lambda x: jax.lax.all_gather(x, "model", axis=1, tiled=True),
    "all_to_all, of a mesh": lambda x: jax.lax.all_to_all(x, "model", split_axis=0, concat_axis=1, tiled=True),
    "all_to_all": lambda x: jax.lax.all_to_all(x.reshape(2, 8, 2), "data", split_axis=1, concat_axis=1).reshape(2, -1),
    "axis_index, of a mesh": lambda x: x * (1 + jax.lax.axis_index("model") + 2 * jax.lax.axis_index("data")),
    "ppermute, of a mesh": lambda x: jax.lax.ppermute(x, "data", [(0, 2), (2, 0), (1, 3)]),
    "ppermute, in a scan": ring,
    "pshuffle": lambda x: jax.lax.pshuffle(x, "data", [3, 1, 0, 2, 7, 6, 5, 4]),
    "psum_scatter": lambda x: jax.lax.psum_scatter(x.reshape(8, 4), "data")[None],
    "psum_scatter, of a mesh": lambda x: jax.lax.psum_scatter(x, "model", scatter_dimension=1, tiled=True),
}


@pytest.mark.parametrize("name", TOGETHER)
def test_collectives_inside_shard_map(name):
    over, spec = mesh(), PartitionSpec("data")
    if name.endswith("of a mesh"):
        over = Mesh(np.array(jax.devices()[:8]).reshape(4, 2), ("data", "model"))
        spec = PartitionSpec("data", "model")
    shard_map = getattr(jax, "shard_map", None) or __import__("jax.experimental.shard_map").experimental.shard_map.shard_map
    together = shard_map(lambda x: TOGETHER[name](jnp.tanh(x)), mesh=over, in_specs=spec, out_specs=spec)
    x, w = draw(1, 16, 16), draw(2, 16, 16) / 4
    f = lambda w: together(x @ w)

    def both(f, w):
        """The result, and the gradient of half the sum of its squares."""
        result, pull = jax.vjp(f, w)
        return result, *pull(result)

    both = jax.jit(both, static_argnums=0)
    for exact, ours in zip(both(f, w), both(bf16scope.jax.lower(f), w), strict=True):
        assert 0 < far(exact, ours) <= 8 * ROUNDING


def test_pmap_inside():
    mesh()
    f = jax.pmap(lambda x, w: jnp.tanh(x @ w), in_axes=(0, None))
    x, w = draw(1, 8, 2, 8), draw(2, 8, 8)
    if "shard_map" in str(jax.make_jaxpr(f)(x, w)):
        assert 0 < far(f(x, w), bf16scope.jax.lower(f)(x, w)) <= 4 * ROUNDING
    else:
        # Of older versions it is replicas of a program, which know their number.
        with pytest.raises(bf16scope.Error, match="pmap"):
            bf16scope.jax.lower(f)(x, w)


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


def test_exports_for_several_platforms():
    # Of older versions it needs what JAX does not bring along.
    export = pytest.importorskip("jax.export", exc_type=ImportError)
    f = lambda x: x @ x.T
    low = jax.jit(bf16scope.jax.lower(f))
    (b,) = export.symbolic_shape("b")
    with pytest.raises(bf16scope.Error, match="symbolic dims"):
        export.export(low)(jax.ShapeDtypeStruct((b, 4), jnp.float32))
    x = draw(0, 3, 4)
    for platforms in (["tpu"], ["cpu", "tpu"]):
        exported = export.export(low, platforms=platforms)(x)
        assert exported.mlir_module().count("xbf16>, tensor<4x3xbf16>") == len(platforms)
    assert 0 < far(f(x), exported.call(x)) <= 4 * ROUNDING


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


def test_f64_is_left_alone():
    with jax.experimental.enable_x64() if hasattr(jax.experimental, "enable_x64") else jax.enable_x64():
        x = jnp.asarray(np.random.default_rng(0).standard_normal((4, 4)))
        assert x.dtype == jnp.float64
        assert jnp.array_equal(bf16scope.jax.lower(lambda x: x @ x)(x), x @ x)


def test_what_talks_to_its_host_goes_on_to(capfd):
    x, seen = draw(0, 4, 4), []

    def f(x):
        y = x @ x
        jax.debug.callback(lambda it: seen.append(np.asarray(it)), y)
        jax.debug.print("sum {}", y.sum())
        return jax.pure_callback(lambda a: np.asarray(a) * 2, jax.ShapeDtypeStruct((4, 4), jnp.float32), jnp.tanh(y)) @ x

    low = bf16scope.jax.lower(f)
    ours = jax.jit(low)(x)
    jax.effects_barrier()
    assert 0 < far(f(x), ours) <= 16 * ROUNDING
    assert 0 < far(x @ x, seen[0]) <= 4 * ROUNDING and seen[0].dtype == np.float32
    assert "sum " in capfd.readouterr().out
    # In a loop too, and with what is printed in order.
    in_order = lambda x: jax.lax.fori_loop(0, 3, lambda n, x: (jax.debug.print("step {}", n, ordered=True), jnp.tanh(x @ x))[1], x)
    assert 0 < far(in_order(x), bf16scope.jax.lower(in_order)(x)) <= 16 * ROUNDING
    jax.effects_barrier()
    assert capfd.readouterr().out.split() == ["step", "0", "step", "1", "step", "2"] * 2
    # A callback whose result nothing reads is none.
    unread = lambda x: (jax.pure_callback(lambda a: a, jax.ShapeDtypeStruct((4, 4), jnp.float32), x), x @ x)[1]
    assert 0 < far(x @ x, bf16scope.jax.lower(unread)(x)) <= 4 * ROUNDING
    assert bf16scope.jax.explain_casts(f, x).n_lowered


def test_checks_find_what_they_find_in_f32():
    from jax.experimental import checkify

    x = draw(0, 4, 4)

    def checked(x):
        checkify.check(jnp.all(x < 1e3), "too large: {}", x.max())
        return jnp.log(x) @ x

    for f, errors in ((checked, checkify.user_checks), (lambda x: jnp.log(x) @ x, checkify.nan_checks)):
        for value in (jnp.abs(x), -jnp.abs(x) + 1e4, -jnp.abs(x)):
            exact, ours = (checkify.checkify(it, errors=errors)(value)[0].get() for it in (f, bf16scope.jax.lower(f)))
            assert exact == ours
    assert checkify.checkify(bf16scope.jax.lower(checked))(x * 1e6)[0].get().startswith("too large")


def test_an_axis_of_vmap_is_summed_over_inside():
    x = draw(0, 3, 4, 4)
    f = lambda x: jax.lax.psum(x @ x, "i")
    mapped = lambda f: jax.vmap(f, axis_name="i")(x)
    assert 0 < far(mapped(f), mapped(bf16scope.jax.lower(f))) <= 4 * ROUNDING


def test_debug_nans_names_the_operation():
    w = jnp.ones((4, 4))
    low = bf16scope.jax.lower(lambda x: jnp.log(x) @ w)
    half = bf16scope.jax.lower(lambda x: (lambda y: y - y)((x * 1e5) @ w), dtype="float16")
    # Older versions of JAX turn the question off while they look for the operation, and say that they found none.
    said = ("log", "gives none in f32") if hasattr(jax, "shard_map") else ("invalid value", "invalid value")
    with jax.debug_nans(True):
        for call in (low, jax.jit(low)):
            with pytest.raises(FloatingPointError, match=said[0]):
                call(-w)
            assert bool(jnp.isfinite(call(w)).all())
        with pytest.raises(FloatingPointError, match=said[1]):
            half(w)


@pytest.mark.parametrize("policy", ["O3", "jmp:params=bf16,compute=bf16,output=bf16", {"preset": "default", "results": "lower"}])
def test_dtypes_stay_where_a_policy_narrows_the_border(policy):
    params, x, y = network()
    low = bf16scope.jax.lower(loss, policy)
    same_types(loss(params, x, y), low(params, x, y))
    same_types(params, jax.grad(low)(params, x, y))


def test_a_rule_of_vmap_of_the_users_own():
    w = draw(1, 4, 4)
    one = jax.custom_batching.sequential_vmap(lambda x: jnp.tanh(x @ w))
    x = draw(2, 3, 4)
    assert far(jax.vmap(one)(x), jax.vmap(bf16scope.jax.lower(one))(x)) <= 4 * ROUNDING


def test_without_jit_and_with_dtypes_of_jax():
    x = draw(0, 4, 4)
    low = bf16scope.jax.lower(lambda x: x @ x, dtype=jnp.bfloat16)
    with jax.disable_jit():
        assert low(x).tobytes() == low(x).tobytes() and 0 < far(x @ x, low(x)) <= 4 * ROUNDING


def test_shardings_that_are_types_stay():
    """Meshes are `Explicit` by default since jax 0.9."""
    kinds = getattr(jax.sharding, "AxisType", None)
    if kinds is None or not hasattr(kinds, "Explicit") or not hasattr(jax, "set_mesh"):
        pytest.skip("this version has no shardings in types")
    over = jax.make_mesh((4, 2), ("data", "model"), axis_types=(kinds.Explicit,) * 2)
    place = lambda it, *spec: jax.device_put(it, NamedSharding(over, PartitionSpec(*spec)))
    x, w, v = place(draw(0, 8, 16), "data", None), place(draw(1, 16, 8) / 4, None, "model"), place(draw(2, 8, 16) / 3, "model", None)

    def network(w, v, x):
        hidden = jnp.tanh(x @ w)
        return jnp.dot(hidden, v, out_sharding=PartitionSpec("data", None))

    loss = lambda w, v, x: jnp.mean(network(w, v, x) ** 2)
    scanned = lambda w, v, x: jax.lax.scan(lambda x, _: (network(w, v, x), None), x, None, length=3)[0]
    step = lambda w, v, x: (w - 0.1 * jax.grad(loss)(w, v, x), loss(w, v, x))
    cases = {
        "network": (network, lambda it: it),
        "step": (step, lambda it: it),
        "loss": (loss, lambda it: jax.value_and_grad(it, argnums=(0, 1))),
        "gradient of a network": (network, lambda it: jax.grad(lambda *args: jnp.sum(it(*args) ** 2))),
        "scan": (scanned, lambda it: it),
        "vmap": (lambda w, v, x: jax.vmap(lambda x: jnp.tanh(x @ w))(x), lambda it: it),
    }
    with jax.set_mesh(over):
        for name, (f, around) in cases.items():
            exact, ours = (jax.jit(around(it))(w, v, x) for it in (f, bf16scope.jax.lower(f)))
            assert 0 < far(exact, ours) <= 16 * ROUNDING, name
            assert [it.sharding for it in jax.tree.leaves(exact)] == [it.sharding for it in jax.tree.leaves(ours)], name


def test_what_shard_map_holds_is_carried():
    """Loops, branches and pipelines over devices whose result is lowered again."""
    over = mesh()
    shard_map = getattr(jax, "shard_map", None) or __import__("jax.experimental.shard_map").experimental.shard_map.shard_map
    rows, whole = PartitionSpec("data"), PartitionSpec()
    w, x = draw(0, 16, 16) / 4, draw(1, 16, 16)
    turn = lambda h: jax.lax.ppermute(h, "data", [(i, (i + 1) % 8) for i in range(8)])
    bodies = {
        "scan": lambda w, x: jax.lax.scan(lambda h, _: (jnp.tanh(h @ w), None), x, None, length=3)[0],
        "cond": lambda w, x: jax.lax.cond(jnp.sum(w) > 0, lambda: jnp.tanh(x @ w), lambda: x),
        "pipeline": lambda w, x: jax.lax.scan(lambda h, _: (turn(jnp.tanh(h @ w)), None), x, None, length=3)[0],
        "psum": lambda w, x: x @ w - jax.lax.psum(x @ w, "data"),
    }
    for name, body in bodies.items():
        f = shard_map(body, mesh=over, in_specs=(whole, rows), out_specs=rows)
        around = lambda w, x: jnp.tanh(f(w, x)) @ w
        for it in (f, around):
            exact, ours = jax.jit(it)(w, x), jax.jit(bf16scope.jax.lower(it))(w, x)
            assert 0 < far(exact, ours) <= 16 * ROUNDING, name
        if name != "cond" or jax.__version_info__ >= (0, 5):
            gradient = lambda it: jax.jit(jax.grad(lambda w: jnp.sum(it(w, x) ** 2)))(w)
            assert 0 < far(gradient(f), gradient(bf16scope.jax.lower(f))) <= 16 * ROUNDING, name


def n_low(fn, *args):
    """How many products are of bfloat16."""
    lines = jax.jit(fn).lower(*args).as_text().splitlines()
    return sum("bf16>" in line.split(" : ")[-1] for line in lines if "dot_general" in line)


def test_layers_stay_in_f32_through_transformations():
    lower = functools.partial(bf16scope.jax.lower, keep="*/head/*")
    w, x = draw(0, 8, 8) / 4, draw(1, 4, 8)

    def loss(w, x):
        with jax.named_scope("head"):
            return jnp.mean(jnp.tanh(x @ w) ** 2)

    loop = lambda w, x: jax.lax.scan(lambda total, _: (total + loss(w, x), None), 0.0, None, length=2)[0]
    each = lambda w, x: jax.vmap(loss, in_axes=(None, 0))(w, x[:, None])
    for f in (loss, jax.grad(loss), loop, jax.grad(loop), each, jax.grad(jax.checkpoint(loss))):
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


def test_decorators():
    class Network:
        @bf16scope.jax.lower(keep="nothing*", static_argnums=0, static_argnames="power")
        def apply(self, w, x, power=1):
            """Its own words."""
            return (x @ w) ** power

    w, x = draw(0, 8, 8), draw(1, 4, 8)
    with pytest.warns(UserWarning, match="matches no"):
        ours = Network().apply(w, x, power=2)
    assert 0 < far((x @ w) ** 2, ours) <= 8 * ROUNDING
    assert Network.apply.__doc__ == "Its own words."


def test_answers_are_said_and_judged():
    f = lambda x: jnp.tanh(x @ x) @ x
    x = draw(0, 16, 16)
    low = bf16scope.jax.lower(f, keep="*/tanh")
    assert bf16scope.jax.explain_casts(low, x).n_lowered == bf16scope.jax.explain_casts(f, x, keep="*/tanh").n_lowered > 0
    answer = bf16scope.jax.audit(f, x)
    assert answer.is_right is None and "results:" in str(answer) and "error: " in str(answer)
    assert bf16scope.jax.audit(f, x, budget=1.0).is_right is True
    strict = bf16scope.jax.audit(f, x, budget=1e-9)
    assert strict.is_right is False and strict.search["policy"] is None
    assert 0 < far(f(x), bf16scope.jax.lower(f, policy={})(x)) <= 16 * ROUNDING


def test_a_loop_to_a_tolerance_warns():
    w, x = draw(0, 8, 8) / 8, draw(1, 4, 8)

    def fixed_point(w, x, body=lambda h, w, x: jnp.tanh(h @ w + x)):
        go_on = lambda c: (jnp.max(jnp.abs(c[0] - c[1])) > 1e-2) & (c[2] < 100)
        return jax.lax.while_loop(go_on, lambda c: (body(c[0], w, x), c[0], c[2] + 1), (x, x + 1, 0))[0]

    with pytest.warns(UserWarning, match="comparison of floats"):
        bf16scope.jax.lower(fixed_point)(w, x)
    in_full = bf16scope.jax.full_precision(lambda h, w, x: jnp.tanh(h @ w + x))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        bf16scope.jax.lower(lambda w, x: fixed_point(w, x, in_full) @ w)(w, x)


def test_without_jax_the_extra_is_named():
    program = "import sys; sys.modules['jax'] = None; import bf16scope.jax"
    done = subprocess.run([sys.executable, "-c", program], stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 1 and "pip install 'bf16scope[jax]'" in done.stderr, done.stderr
