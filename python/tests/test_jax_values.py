"""What goes in and out of a lowered function: leaves of every kind, constants, callbacks, checks."""

import functools
import json
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from beside import ROUNDING, draw, far, loss, network, same_types

import bf16scope.jax


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
    assert [str(it.message).split(" of its")[0] for it in recwarn] == ["`<lambda>` changes [0].n"]
    recwarn.clear()
    # What is returned is not lost, and a dict that a function takes apart is its own.
    bf16scope.jax.lower(lambda batch: batch.pop("x") @ batch["w"])({"x": x, "w": x})
    bf16scope.jax.lower(lambda batch: batch.update(x=x) or batch["x"] @ batch["w"])({"x": x, "w": x})
    assert not recwarn


def test_dicts_and_lists_are_changed_as_without_lowering(recwarn):
    def f(state, log, x):
        state["n"], state["new"] = state["n"] + 1, {"h": x @ x}
        log[0]["sum"] = x.sum()
        log.append(2)
        state.pop("taken")
        return x @ x

    x = draw(2, 4, 4)
    lowered = bf16scope.jax.lower(f)
    state, log = {"n": jnp.int32(0), "taken": x}, [{}]
    for _ in range(2):
        assert far(f(dict(state), [{}], x), lowered(state, log, x)) <= 4 * ROUNDING
    assert state["n"] == 2 and state["taken"] is x and far(x @ x, state["new"]["h"]) <= 4 * ROUNDING
    assert far(x.sum(), log[0]["sum"]) <= ROUNDING and log[1:] == [2, 2]

    @jax.jit
    def around(x):
        state = {"n": jnp.float32(0), "taken": x}
        return lowered(state, [{}], x), state["n"], state["new"]["h"]

    assert around(x)[1] == 1 and far(x @ x, around(x)[2]) <= 4 * ROUNDING and not recwarn
    # The values of a gradient are of no use outside of it.
    loss = lambda x, state: jnp.sum(f(state, [{}], x))
    state = {"n": jnp.float32(0), "taken": x}
    for _ in range(2):
        jax.grad(bf16scope.jax.lower(loss))(x, state)
    assert list(state) == ["n", "taken"] and "`<lambda>` changes [1]['n'], [1]['new'] of its arguments" in str(recwarn.pop().message)


def test_changes_that_cannot_be_made_for_the_caller_are_said():
    def twice(a, b, x):
        a["n"], b["n"] = a["n"] + 1, b["n"] * 10
        return x @ x

    def shortened(log, x):
        log.pop()
        log[0] = log[0] + 1
        return x @ x

    state, log, x = {"n": jnp.float32(1)}, [jnp.float32(1), jnp.float32(1)], draw(2, 4, 4)
    with pytest.warns(UserWarning, match=r"`twice` changes \[0\]\['n'\] and \[1\]\['n'\] of its arguments, which are one object"):
        bf16scope.jax.lower(twice)(state, state, x)
    with pytest.warns(UserWarning, match=r"`shortened` changes \[0\] of its arguments in place, which is lost"):
        bf16scope.jax.lower(shortened)(log, x)
    assert log == [1, 1]


def test_changes_in_copies_that_jax_makes_are_said(recwarn):
    def f(state, x):
        state["x"] = state["x"] / 2  # which the function reads
        y = state["x"] @ x
        state["n"] = state["n"] + y.sum()
        return y

    x = draw(2, 4, 4)
    for transformed in (jax.checkpoint, jax.jit):
        state = {"n": jnp.float32(0), "x": x}
        with pytest.warns(UserWarning, match=r"`f` changes \[0\]\['n'\] of its arguments in place inside of `jax.checkpoint`, `jit`"):
            out = transformed(bf16scope.jax.lower(f))(state, x)
        assert far(x @ x / 2, out) <= 4 * ROUNDING and state["n"] == 0
    # A dict that is returned is not lost, and one of the function around is changed.
    jax.jit(bf16scope.jax.lower(lambda state, x: f(state, x) is None or state))({"n": jnp.float32(0), "x": x}, x)
    around = jax.jit(lambda x: (state := {"n": jnp.float32(0), "x": x}, bf16scope.jax.lower(f)(state, x), state["n"])[2])
    assert far((x @ x / 2).sum(), around(x)) <= 16 * ROUNDING and not recwarn


def test_values_that_are_stored_outside_are_said():
    x, log = draw(2, 4, 4), []
    with pytest.warns(UserWarning, match=r"`<lambda>` stores log\[0\] outside of itself"):
        bf16scope.jax.lower(lambda x: log.append(x @ x) or x @ x)(x)

    class Network:
        def __call__(self, x):
            self.hidden = x @ x
            return self.hidden

    with pytest.warns(UserWarning, match="`Network` stores self.hidden outside of itself"):
        bf16scope.jax.lower(Network())(x)


@pytest.mark.skipif(not hasattr(jax, "new_ref"), reason="this JAX has no references")
def test_references_are_read_and_written():
    """Made inside, among the arguments, and closed over."""
    x = draw(9, 4, 4) / 2

    def inside(x):
        kept = jax.new_ref(jnp.zeros_like(x))
        kept[...] = x @ x
        return jnp.tanh(kept[...]) @ x

    def argument(kept, x):
        kept[...] = jnp.tanh(kept[...] @ x)
        return kept[...] @ x

    def outcome(f):
        kept = jax.new_ref(x)
        return f(kept, x), kept[...]

    assert 0 < far(inside(x), bf16scope.jax.lower(inside)(x)) <= 16 * ROUNDING
    for ours in (bf16scope.jax.lower(argument), jax.jit(bf16scope.jax.lower(argument))):
        assert 0 < far(outcome(argument), outcome(ours)) <= 16 * ROUNDING
    total = jax.new_ref(jnp.zeros_like(x))

    @bf16scope.jax.lower
    def added(x):
        total[...] = total[...] + x @ x
        return x @ x

    for _ in range(2):
        assert 0 < far(x @ x, added(x)) <= 4 * ROUNDING
    assert 0 < far(2 * (x @ x), total[...]) <= 4 * ROUNDING


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
    with pytest.raises(bf16scope.Error, match="static_argnums has 7, and `f` takes 3 positional arguments"):
        bf16scope.jax.lower(f, static_argnums=7)
    with pytest.raises(bf16scope.Error, match="static_argnames has `mode`, and `f` takes no argument of that name"):
        bf16scope.jax.lower(f, static_argnames="mode")
    for wrong in ("n", 1.0, ("n",)):
        with pytest.raises(bf16scope.Error, match="static_argnums is .*\n.*write numbers of arguments"):
            bf16scope.jax.lower(f, static_argnums=wrong)
    for wrong in (1, (1,)):
        with pytest.raises(bf16scope.Error, match="static_argnames is .*\n.*write names of arguments"):
            bf16scope.jax.lower(f, static_argnames=wrong)
    # As `jax.jit` takes them.
    for numbers, names in ((np.int64(1), None), (None, ["n"])):
        assert far(f(x, 2), bf16scope.jax.lower(f, static_argnums=numbers, static_argnames=names)(x, 2)) <= 16 * ROUNDING
    for wrong in (np.ones(2), [2]):
        with pytest.raises(bf16scope.Error, match="argument `n` of `f` is static, and is .*, which has no hash"):
            low(x, wrong)
    with pytest.raises(bf16scope.Error, match="argument `n` of `f` is static, and is an array that JAX is tracing"):
        jax.jit(low)(x, 2)


def test_static_values_of_other_types_are_not_compared():
    class Factor:
        """It compares itself with its like only, and has the hash of another type's value."""

        def __hash__(self):
            return hash((3, 1))

        def __eq__(self, other):
            return other.is_factor

        is_factor = True

    x = jnp.ones(3)
    scaled = bf16scope.jax.lower(lambda it, x: x * (3.0 if isinstance(it, Factor) else 2.0), static_argnums=0)
    for value, expected in (((3, 1), 2), (Factor(), 3), ((3, 1), 2)):
        assert np.array_equal(scaled(value, x), x * expected)
    kinds = bf16scope.jax.lower(lambda it, x: x * (2.0 if type(it) is bool else 4.0), static_argnums=0)
    for value, expected in ((1, 4), (True, 2), (1, 4)):
        assert np.array_equal(kinds(value, x), x * expected)


@pytest.mark.skipif(not hasattr(jax.jit(len), "_jit_info"), reason="this JAX does not tell what jit donates")
def test_options_of_the_compiler_are_of_the_outermost_jit():
    """Questions leave them out, since they are for another compiler; `lower` names their place."""
    options = {"compiler_options": {"xla_allow_excess_precision": False}, "donate_argnums": 0}
    f, x = lambda x: jnp.tanh(x @ x) @ x, draw(11, 4, 4) / 2
    with pytest.raises(bf16scope.Error, match="compiler_options.*\n?.*move them there"):
        bf16scope.jax.lower(jax.jit(f, **options))
    for plain in (f, bf16scope.jax.lower(f)):
        jitted = jax.jit(plain, **options)
        assert "input_output_alias" in (text := bf16scope.jax.module(jitted, x).text()) and text.count(" dot(") == 2
        assert bf16scope.jax.explain_casts(jitted, x).n_lowered == bf16scope.jax.explain_casts(f, x).n_lowered > 0
    mesh = jax.make_mesh((1,), ("x",))
    sharded = jax.jit(f, in_shardings=jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("x")), **options)
    assert "sharding=" in bf16scope.jax.module(sharded, x).text()


@pytest.mark.skipif(not hasattr(jax.jit(len), "_jit_info"), reason="this JAX does not tell what jit donates")
def test_what_jit_donates_and_takes_as_static():
    f = lambda n, state, x: {name: it * n + jnp.sum(x @ x) for name, it in state.items()}
    x = draw(11, 4, 4) / 2
    for options in ({"static_argnums": 0, "donate_argnums": 1}, {"static_argnames": "n", "donate_argnames": "state"}):
        low = bf16scope.jax.lower(jax.jit(f, **options))
        for args, kwargs in (((2, {"w": x + 0}, x), {}), ((), {"n": 2, "state": {"w": x + 0}, "x": x})):
            state = kwargs["state"] if kwargs else args[1]
            exact = f(2, {"w": x}, x)
            assert far(exact, low(*args, **kwargs)) <= 16 * ROUNDING
            assert state["w"].is_deleted() and not x.is_deleted()
        # In a program that is traced it is the program that donates.
        kept = x + 0
        assert far(f(2, {"w": kept}, x), jax.jit(lambda w, x: low(2, {"w": w}, x))(kept, x)) <= 16 * ROUNDING and not kept.is_deleted()


def test_a_cotangent_may_be_a_number_of_python():
    w = draw(12, 4, 4)
    square = lambda w: jnp.sum((w @ w) ** 2)
    _, back = jax.vjp(bf16scope.jax.lower(square), w)
    assert far(jax.grad(square)(w), back(1.0)[0]) <= 16 * ROUNDING


def test_lowered_functions_run_where_leaks_are_checked():
    w = draw(12, 4, 4)
    low = bf16scope.jax.lower(lambda w: jnp.sum((w @ w) ** 2))
    expected = jax.value_and_grad(low)(w)
    with jax.checking_leaks():
        for it in (jax.value_and_grad(low), jax.jit(jax.value_and_grad(low))):
            assert jax.tree.all(jax.tree.map(jnp.array_equal, it(w), expected))


@pytest.mark.parametrize("transformed", [lambda fn: fn, jax.jit, jax.grad, lambda fn: jax.jit(jax.grad(fn))])
def test_leaks_of_a_lowered_function_are_found(transformed):
    leaked, w = [], draw(12, 4, 4)

    def leaks(w):
        leaked.append(w @ w)
        return jnp.sum(w @ w)

    with jax.checking_leaks(), pytest.raises(Exception, match="Leaked trace"), pytest.warns(UserWarning, match=r"stores leaked\[0\] outside"):
        transformed(bf16scope.jax.lower(leaks))(w)


def test_lowered_functions_go_to_other_processes():
    """By their code, as joblib and Ray send functions."""
    cloudpickle = pytest.importorskip("cloudpickle", reason="only with cloudpickle")
    w = draw(12, 4, 4) / 2
    low = bf16scope.jax.lower(lambda w: jnp.sum(jnp.tanh(w @ w)))
    sent = cloudpickle.dumps((np.asarray(w), low, jax.jit(low), jax.grad(low)))
    script = "import pickle, sys; w, *calls = pickle.load(sys.stdin.buffer); print([call(w).tolist() for call in calls])"
    received = subprocess.run([sys.executable, "-c", script], input=sent, capture_output=True, check=True).stdout
    value, again, gradient = json.loads(received)
    assert value == again == float(low(w)) and far(jax.grad(low)(w), np.float32(gradient)) == 0


def test_numbers_of_python_are_static_where_they_are_constants(caplog):
    """Under `jax.jit`, which is traced again where they change, and as what an object has; not as arguments of a call."""
    caplog.set_level("INFO", "bf16scope")
    x = draw(11, 4, 4) / 2
    power = lambda x, n, is_scaled=False: functools.reduce(jnp.matmul, [x] * n) * (2 if is_scaled else 1)
    jitted = jax.jit(bf16scope.jax.lower(power), static_argnums=(1, 2))
    for n, is_scaled in ((2, False), (2, True), (3, False)):
        assert 0 < far(power(x, n, is_scaled), jitted(x, n, is_scaled)) <= 16 * ROUNDING
    kinds = jax.jit(lambda x: [bf16scope.jax.lower(lambda x, n: x * (2.0 if isinstance(n, it) else 1.0))(x, it(1)) for it in (int, float, bool)])
    assert all(np.array_equal(it, x * 2) for it in kinds(x))

    @jax.tree_util.register_pytree_with_keys_class
    class Times:
        def __init__(self, w, n):
            self.w, self.n = w, n

        def tree_flatten_with_keys(self):
            return [(jax.tree_util.GetAttrKey("w"), self.w), (jax.tree_util.GetAttrKey("n"), self.n)], None

        @classmethod
        def tree_unflatten(cls, _, leaves):
            return cls(*leaves)

    updated = bf16scope.jax.lower(lambda it: Times(power(it.w, it.n), it.n))(Times(x, 2))
    assert updated.n == 2 and isinstance(updated.n, int) and 0 < far(x @ x, updated.w) <= 4 * ROUNDING
    n_before, rated = len(caplog.messages), bf16scope.jax.lower(lambda x, rate: (x @ x) * rate)
    for rate in (0.1, 0.2, 0.3):
        assert 0 < far((x @ x) * rate, rated(x, rate)) <= 4 * ROUNDING
    assert sum("lowered in" in message for message in caplog.messages[n_before:]) == 1


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


def test_without_jit_and_with_dtypes_of_jax():
    x = draw(0, 4, 4)
    low = bf16scope.jax.lower(lambda x: x @ x, dtype=jnp.bfloat16)
    with jax.disable_jit():
        assert low(x).tobytes() == low(x).tobytes() and 0 < far(x @ x, low(x)) <= 4 * ROUNDING


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


def test_a_gradient_of_a_python_number_is_as_weak_as_jax_has_it():
    x = draw(3, 4, 4)

    def f(w, scale):
        return jnp.sum(jnp.tanh(x @ w) * scale)

    low = bf16scope.jax.lower(f)
    for transform in (
        lambda f: jax.grad(f, (0, 1))(x, 2.0),
        lambda f: jax.jit(jax.value_and_grad(f, 1))(x, 2.0),
        lambda f: jax.grad(f, 1)(x, jnp.float32(2)),
        lambda f: jax.jvp(f, (x, 2.0), (x, 1.0)),
        lambda f: jax.jacfwd(f, 1)(x, 2.0),
        lambda f: jax.jacrev(f, 1)(x, 2.0),
    ):
        weak = [[leaf.weak_type for leaf in jax.tree.leaves(transform(it))] for it in (f, low)]
        assert weak[0] == weak[1]
    assert jax.grad(low, 1)(x, 2.0).weak_type


def test_warnings_stand_at_the_line_that_calls():
    x, store = draw(3, 4, 4), {}

    def goes_on(x):
        return jax.lax.while_loop(lambda c: jnp.max(jnp.abs(c - jnp.tanh(c @ x))) > 1e-3, lambda c: jnp.tanh(c @ x), x).sum()

    def stores(x):
        store["y"] = jnp.tanh(x @ x)
        return store["y"].sum()

    lower = bf16scope.jax.lower
    for call in (
        # It is compiled, and does not run: rounded to bf16 it may go on for ever.
        lambda: jax.jit(lower(goes_on)).lower(x),
        lambda: lower(stores)(x),
        lambda: jax.grad(lower(stores))(x),
        lambda: jax.vmap(lower(stores))(jnp.stack([x])),
    ):
        with pytest.warns(UserWarning) as caught:
            call()
        assert {warning.filename for warning in caught} == {__file__}
