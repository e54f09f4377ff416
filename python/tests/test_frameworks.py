"""The tutorials of flax, equinox and optax with the one line changed: trained in f32 and lowered, side by side."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bf16scope.jax

ROUNDING = 2.0**-8
lower = bf16scope.jax.lower


def draw(seed, *dims):
    return jnp.asarray(np.random.default_rng(seed).standard_normal(dims), jnp.float32)


X, LABELS = draw(0, 32, 16), jnp.arange(32) % 4


def cross_entropy(logits, labels=LABELS):
    return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(logits), labels[:, None], -1))


def alike(exact, ours):
    """Losses of a training that falls as f32's does: half a unit of bf16 in each logit, which are of a size of about four, and so
    in a loss, and what some steps make of it."""
    exact, ours = np.asarray(exact), np.asarray(ours)
    assert exact[-1] < exact[0] / 2 and ours[-1] < ours[0] / 2
    assert np.any(exact != ours) and np.max(abs(exact - ours)) <= 16 * ROUNDING * max(1, exact.max())


@pytest.fixture
def nnx():
    nnx = pytest.importorskip("flax.nnx", reason="only with flax")
    if not hasattr(nnx, "Pytree"):
        pytest.skip("this version of flax says its tutorial otherwise")
    return nnx


@pytest.fixture
def optax():
    return pytest.importorskip("optax", reason="only with optax")


def network(nnx, lower=lambda of: of):
    @lower
    class Network(nnx.Module):
        def __init__(self, rngs):
            self.first = nnx.Linear(16, 32, rngs=rngs)
            self.norm = nnx.BatchNorm(32, rngs=rngs)
            self.dropout = nnx.Dropout(0.1, rngs=rngs)
            self.head = nnx.Linear(32, 4, rngs=rngs)

        def __call__(self, x):
            return self.head(self.dropout(nnx.relu(self.norm(self.first(x)))))

    return Network(nnx.Rngs(0))


@pytest.mark.parametrize("where", ["step", "jitted step", "loss", "network", "class"])
def test_nnx(nnx, optax, where):
    """Parameters, batch statistics and the count of dropout change in place, wherever the line stands."""

    def train(lower):
        model = network(nnx, lower) if where == "class" else network(nnx)
        optimizer = nnx.Optimizer(model, optax.adam(3e-2), wrt=nnx.Param)
        apply = lower(lambda model: model(X)) if where == "network" else lambda model: model(X)
        loss_of = lambda model: cross_entropy(apply(model))
        loss_of = lower(loss_of) if where == "loss" else loss_of

        def step(model, optimizer):
            loss, gradients = nnx.value_and_grad(loss_of)(model)
            optimizer.update(model, gradients)
            return loss

        step = lower(step) if where == "step" else nnx.jit(lower(step) if where == "jitted step" else step)
        losses = [float(step(model, optimizer)) for _ in range(8)]
        return losses, model.norm.mean[...] / jnp.sqrt(model.norm.var[...]), int(model.dropout.rngs.count[...])

    (exact, mean, count), (ours, our_mean, our_count) = train(lambda f: f), train(lower)
    alike(exact, ours)
    assert count == our_count == 8
    # In units of what is averaged.
    assert 0 < float(jnp.max(abs(mean - our_mean))) <= 16 * ROUNDING


def test_a_loss_of_states_of_nnx(nnx, optax):
    """Flax's functional form: parameters, and what else the model holds, are values; the loss returns what changed."""

    def train(lower):
        graph, params, rest = nnx.split(network(nnx), nnx.Param, ...)
        optimizer = optax.adam(3e-2)
        state = optimizer.init(params)

        def loss_of(params, rest):
            model = nnx.merge(graph, params, rest, copy=True)
            return cross_entropy(model(X)), nnx.state(model, nnx.Not(nnx.Param))

        @jax.jit
        def step(params, rest, state):
            (loss, rest), gradients = jax.value_and_grad(lower(loss_of), has_aux=True)(params, rest)
            updates, state = optimizer.update(gradients, state, params)
            return loss, (optax.apply_updates(params, updates), rest, state)

        losses, all = [], (params, rest, state)
        for _ in range(8):
            loss, all = step(*all)
            losses.append(float(loss))
        return losses, int(nnx.merge(graph, *all[:2]).dropout.rngs.count[...])

    (exact, count), (ours, our_count) = train(lambda f: f), train(lower)
    alike(exact, ours)
    assert count == our_count == 8


def test_a_loss_of_nnx_and_its_gradients_are_one_module(nnx):
    graph, state = nnx.split(network(nnx))
    low = lower(lambda model: cross_entropy(model(X)))

    def program(state):
        model = nnx.merge(graph, state)
        return nnx.value_and_grad(low)(model), nnx.state(model)

    assert jax.jit(program).lower(state).as_text().count("call @bf16scope") == 1


def test_layers_of_nnx_have_names(nnx):
    before = vars(nnx.Linear)["__call__"]
    model = nnx.Sequential(nnx.Linear(8, 8, rngs=nnx.Rngs(0)), nnx.Linear(8, 8, rngs=nnx.Rngs(1)))
    loss = lambda model, x: jnp.mean(model(x) ** 2)
    low = lambda f, keep=(): {
        (it["op_name"], it["new"][:4] == "bf16") for it in bf16scope.jax.explain_casts(f, model, draw(0, 4, 8), keep=keep).decisions if it["opcode"] == "dot"
    }
    names = {name.split("/", 1)[1] for name, _ in low(loss)}
    assert names == {"Sequential/layers/0/dot_general", "Sequential/layers/1/dot_general"}
    kept = {is_low for name, is_low in low(nnx.grad(loss), "*/layers/1/*") if "layers/1" in name}
    assert kept == {False} and True in {is_low for _, is_low in low(nnx.grad(loss), "*/layers/1/*")}
    # What stands in for the methods meanwhile does not stay.
    assert vars(nnx.Linear)["__call__"] is before


def test_static_values_reach_functions_of_nnx_objects(nnx):
    """The values themselves, and not what marks them: by `lower`, under `nnx.jit`, for methods, and beside each kind of object."""

    class Layer(nnx.Module):
        def __init__(self, rngs):
            self.linear = nnx.Linear(16, 16, rngs=rngs)

        @lower(static_argnames="train")
        def __call__(self, x, train=True):
            return x * 0 + (1.0 if train else 2.0)

    layer, seen = Layer(nnx.Rngs(0)), []
    graph, state = nnx.split(layer)

    def f(it, value):
        seen.append(value)
        return X * 2.0

    pairs = [(layer, "train"), (layer, False), (layer, (3, 2)), (layer, jax.nn.relu), (state, graph), (nnx.Rngs(0), 1)]
    for it, value in pairs:
        # Each function anew, since one that was traced is not traced again.
        by_number, by_name = lower(f, static_argnums=1), lower(f, static_argnames="value")
        for call in (by_number, by_name, nnx.jit(lower(f, static_argnums=1), static_argnums=1)):
            seen.clear()
            assert np.array_equal(call(it, value), X * 2)
            assert seen and all(type(other) is type(value) and other == value for other in seen)
    for call in (lambda layer, x: layer(x, train=False), lambda layer, x: layer(x, False)):
        assert np.array_equal(call(layer, X), X * 0 + 2) and np.array_equal(nnx.jit(call)(layer, X), X * 0 + 2)


def test_nnx_with_remat_does_not_warn(nnx):
    class Block(nnx.Module):
        def __init__(self, rngs):
            self.inner = nnx.Linear(16, 16, rngs=rngs)

        @nnx.remat
        def __call__(self, x):
            return nnx.relu(self.inner(x))

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        gradient = nnx.grad(lower(lambda model: jnp.mean(model(X) ** 2)))(Block(nnx.Rngs(0)))
    assert bool(jnp.any(gradient["inner"]["kernel"][...] != 0))


def test_equinox(optax):
    eqx = pytest.importorskip("equinox", reason="only with equinox")

    def train(lower, is_step):
        model = eqx.nn.MLP(16, 4, 32, 2, key=jax.random.key(0))
        loss_of = lambda model, x: cross_entropy(jax.vmap(model)(x))
        loss_of = loss_of if is_step else lower(loss_of)
        optimizer = optax.adam(1e-2)
        state = optimizer.init(eqx.filter(model, eqx.is_array))

        def step(model, state):
            loss, gradients = eqx.filter_value_and_grad(loss_of)(model, X)
            updates, state = optimizer.update(gradients, state, model)
            return eqx.apply_updates(model, updates), state, loss

        step, losses = eqx.filter_jit(lower(step) if is_step else step), []
        for _ in range(20):
            model, state, loss = step(model, state)
            losses.append(float(loss))
        return losses

    exact = train(lambda f: f, True)
    alike(exact, train(lower, True))
    alike(exact, train(lower, False))


def test_a_class_without_a_call_is_refused():
    with pytest.raises(bf16scope.Error, match="Plain has no `__call__`"):
        lower(type("Plain", (), {}))


def test_equinox_keeps_what_is_no_array():
    """Numbers and booleans that a module has are those of the program, in what comes back as well."""
    eqx = pytest.importorskip("equinox", reason="only with equinox")

    class Repeated(eqx.Module):
        linear: eqx.nn.Linear
        dropout: eqx.nn.Dropout
        times: int = 2

        def __call__(self, x, key=None):
            for _ in range(self.times):
                x = jnp.tanh(self.linear(x))
            return self.dropout(x, key=key)

    model = Repeated(eqx.nn.Linear(16, 16, key=jax.random.key(0)), eqx.nn.Dropout(0.5))
    apply = lambda model, key: jax.vmap(lambda x: model(x, key))(X)
    for it, key in ((model, jax.random.key(1)), (eqx.nn.inference_mode(model), None)):
        for call in (lower(apply), eqx.filter_jit(lower(apply))):
            assert 0 < float(jnp.linalg.norm(apply(it, key) - call(it, key))) <= 8 * ROUNDING * float(jnp.linalg.norm(apply(it, key)))
    doubled = lower(lambda model: eqx.tree_at(lambda it: it.linear.weight, model, model.linear.weight * 2))(model)
    assert (doubled.times, doubled.dropout.inference) == (2, False)


def test_equinox_does_not_warn_of_its_own_gradients():
    eqx = pytest.importorskip("equinox", reason="only with equinox")
    model = eqx.nn.Linear(16, 4, key=jax.random.key(0))
    loss_of = lambda model, x: jnp.mean(jax.vmap(model)(x) ** 2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for transform in (eqx.filter_value_and_grad, eqx.filter_grad):
            eqx.filter_jit(lower(transform(loss_of)))(model, X)


def test_equinox_checks(capfd):
    eqx = pytest.importorskip("equinox", reason="only with equinox")
    f = lambda x: eqx.error_if(x @ x, jnp.any(x > 1e3), "too large")
    x = draw(0, 4, 4)
    assert 0 < float(jnp.linalg.norm(f(x) - lower(f)(x))) <= 4 * ROUNDING * float(jnp.linalg.norm(f(x)))
    for it in (f, lower(f)):
        with pytest.raises(Exception, match="too large"):
            jax.block_until_ready(jax.jit(it)(x * 1e4))


def test_linen(optax):
    linen = pytest.importorskip("flax.linen", reason="only with flax")

    class Network(linen.Module):
        @linen.compact
        def __call__(self, x):
            x = linen.relu(linen.BatchNorm(use_running_average=False)(linen.Dense(32)(x)))
            return linen.Dense(4, name="head")(x)

    def train(lower):
        variables = Network().init(jax.random.key(0), X)
        optimizer = optax.adam(1e-2)
        params, statistics, state = variables["params"], variables["batch_stats"], optimizer.init(variables["params"])

        def loss_of(params, statistics):
            logits, changed = Network().apply({"params": params, "batch_stats": statistics}, X, mutable=["batch_stats"])
            return cross_entropy(logits), changed["batch_stats"]

        def step(params, statistics, state):
            (loss, statistics), gradients = jax.value_and_grad(loss_of, has_aux=True)(params, statistics)
            updates, state = optimizer.update(gradients, state, params)
            return optax.apply_updates(params, updates), statistics, state, loss

        step, losses = jax.jit(lower(step)), []
        for _ in range(20):
            params, statistics, state, loss = step(params, statistics, state)
            losses.append(float(loss))
        return losses

    alike(train(lambda f: f), train(lower))


@pytest.mark.parametrize("order", ["lowered compact", "compact lowered", "setup", "lowered in another", "class"])
def test_linen_methods(order):
    """As decorators of methods that make parameters, change statistics and draw random numbers."""
    linen = pytest.importorskip("flax.linen", reason="only with flax")

    def network(lower):
        def body(self, x):
            x = linen.BatchNorm(use_running_average=False)(linen.Dense(32)(x))
            return linen.Dense(4)(linen.Dropout(0.5, deterministic=False)(x))

        if order == "setup":

            class Network(linen.Module):
                def setup(self):
                    self.first, self.norm, self.dropout = linen.Dense(32), linen.BatchNorm(use_running_average=False), linen.Dropout(0.5, deterministic=False)

                @lower(policy="default")
                def hidden(self, x, scale=1.0):
                    return self.dropout(self.norm(self.first(x))) * scale

                def __call__(self, x):
                    return self.hidden(x, scale=0.5)

        elif order == "lowered in another":

            class Network(linen.Module):
                @linen.compact
                def __call__(self, x):
                    x = lower(policy="default")(lambda x, layer: layer(x))(x, linen.Dense(32))
                    x = linen.Dropout(0.5, deterministic=False)(linen.BatchNorm(use_running_average=False)(x))
                    return lower(policy="default")(linen.Dense(4))(x)

        elif order == "class":
            Network = lower(policy="default")(type("Network", (linen.Module,), {"__call__": linen.compact(body), "__module__": __name__}))

        else:
            inner, outer = (linen.compact, lower(policy="default")) if order == "lowered compact" else (lower(policy="default"), linen.compact)
            Network = type("Network", (linen.Module,), {"__call__": outer(inner(body)), "__module__": __name__})
        return Network()

    def run(lower):
        model = network(lower)
        variables = jax.jit(model.init)({"params": jax.random.key(0), "dropout": jax.random.key(1)}, X)

        def loss_of(params):
            values = {"params": params, "batch_stats": variables["batch_stats"]}
            out, changed = model.apply(values, X, mutable=["batch_stats"], rngs={"dropout": jax.random.key(2)})
            return jnp.mean(out**2), changed

        return variables, *jax.jit(jax.value_and_grad(loss_of, has_aux=True))(variables["params"])

    exact, ours = run(lambda policy: lambda f: f), run(lower)
    assert jax.tree.structure(exact) == jax.tree.structure(ours)
    assert all(np.array_equal(a, b) for a, b in zip(*map(jax.tree.leaves, (exact[0]["params"], ours[0]["params"]))))
    for a, b in zip(*map(jax.tree.leaves, (exact[1:], ours[1:]))):
        # Biases before a normalization have no gradient but what rounding makes.
        assert float(jnp.linalg.norm(a - b)) <= 8 * ROUNDING * max(1e-1, float(jnp.linalg.norm(a)))
    assert any(not np.array_equal(a, b) for a, b in zip(*map(jax.tree.leaves, (exact[1:], ours[1:]))))


def test_a_scaled_loss_in_float16(optax, monkeypatch):
    """By an optimizer of optax, and by a value of the state: the factor comes down to where gradients are finite, and training
    goes on; a step whose gradients are not finite changes nothing."""
    params = {"w": draw(1, 16, 32) / 4, "v": draw(2, 32, 4) / 6}
    loss_of = lambda params: cross_entropy(jnp.tanh(X @ params["w"]) @ params["v"])
    optimizer = bf16scope.jax.scaled(optax.adam(1e-2), bf16scope.jax.LossScale(2.0**24, period=10))

    def step(params, state):
        loss, gradients = jax.value_and_grad(lambda params: state.scale.scaled(loss_of(params)))(params)
        updates, state = optimizer.update(gradients, state, params)
        return optax.apply_updates(params, updates), state, loss / state.scale.value

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        low = jax.jit(lower(step, dtype="float16"))
        state, scales, first = optimizer.init(params), [], params
        for number in range(40):
            params, state, _ = low(params, state)
            scales.append(float(state.scale.value))
            if number == 0:
                assert scales == [2.0**23] and all(np.array_equal(params[name], first[name]) for name in first)
        # And where the loss alone is lowered, by the first that a process scales.
        monkeypatch.setattr(bf16scope._scale, "n_scaled", 0)
        low_loss = lower(loss_of, dtype="float16")
        gradient = jax.jit(jax.grad(lambda params, scale: scale.scaled(low_loss(params))))(params, state.scale)
        assert all(bool(jnp.isfinite(it).all()) for it in jax.tree.leaves(gradient))
    assert float(loss_of(params)) < float(loss_of(first)) / 2
    assert min(scales) >= 2.0**8 and max(b / a for a, b in zip(scales, scales[1:])) == 2.0
    assert int(state.inner[0].count) < 40

    scale = bf16scope.jax.LossScale(4.0, period=2)
    assert float(scale.next(True).next(True).value) == 8.0 and float(scale.next(True).next(False).value) == 2.0
    assert float(bf16scope.jax.LossScale(1.0).next(False).value) == 1.0
