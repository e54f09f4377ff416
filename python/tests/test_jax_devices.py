"""`bf16scope.jax.lower` over several devices: shardings, `shard_map`, `pmap`."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from beside import ROUNDING, draw, far, for_a_tpu, loss, network, same_types

import bf16scope
import bf16scope.jax


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


#: Functions of one device's rows, and the spec of the result.
BODIES = {
    "layer": (lambda w, x: jnp.tanh(x @ w) @ w, PartitionSpec("data")),
    "loop": (lambda w, x: jax.lax.scan(lambda h, _: (jnp.tanh(h @ w), None), x, None, length=3)[0], PartitionSpec("data")),
    "gradients": (
        lambda w, x: jax.lax.pmean(jax.grad(lambda w: jnp.mean((jnp.tanh(x @ w) @ w) ** 2))(w), "data"),
        PartitionSpec(),
    ),
    "attention": (
        lambda w, x: jax.nn.softmax((x @ w) @ jax.lax.all_gather(x, "data", tiled=True).T) @ jax.lax.all_gather(x, "data", tiled=True),
        PartitionSpec("data"),
    ),
}


@pytest.mark.parametrize("policy", ["default", "O2", "O3", "mixed_bfloat16"])
@pytest.mark.parametrize("name", BODIES)
def test_shard_map_runs_by_every_policy(name, policy):
    """XLA ended the process over casts between the borders and the body."""
    over = mesh()
    body, out = BODIES[name]
    shard_map = getattr(jax, "shard_map", None) or __import__("jax.experimental.shard_map").experimental.shard_map.shard_map
    specs = dict(mesh=over, in_specs=(PartitionSpec(), PartitionSpec("data")), out_specs=out)
    specs["check_vma" if hasattr(jax, "shard_map") else "check_rep"] = False
    mapped = shard_map(body, **specs)
    w, x = draw(1, 16, 16) / 4, draw(2, 16, 16)
    assert 0 < far(jax.jit(mapped)(w, x), jax.jit(bf16scope.jax.lower(mapped, policy=policy))(w, x)) <= 8 * ROUNDING


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
    # What devices gather for themselves of weights that each has a part of.
    gathered = lambda w, x: jnp.tanh(x @ jax.lax.all_gather(w, "data", tiled=True))
    parts = dict(mesh=over, in_specs=(PartitionSpec("data"), PartitionSpec("data")), out_specs=PartitionSpec())
    of_parts = lambda lower: jax.jit(jax.grad(jax.shard_map(lambda w, x: jax.lax.psum(jnp.sum(lower(gathered)(w, x) ** 2), "data"), **parts)))(w, x)
    assert 0 < far(of_parts(lambda f: f), of_parts(bf16scope.jax.lower)) <= 8 * ROUNDING
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


def test_shard_map_over_a_mesh_of_types():
    """Inside of `shard_map` an Explicit mesh's axes are manual, and outside arrays keep the shardings of their types."""
    kinds = getattr(jax.sharding, "AxisType", None)
    if kinds is None or not hasattr(kinds, "Explicit") or not hasattr(jax, "set_mesh"):
        pytest.skip("this version has no shardings in types")
    mesh()
    over, rows, whole = jax.make_mesh((8,), ("data",), axis_types=(kinds.Explicit,)), PartitionSpec("data"), PartitionSpec()
    place = lambda it, spec: jax.device_put(it, NamedSharding(over, spec))
    w, x = place(draw(0, 16, 16) / 4, whole), place(draw(1, 16, 16), rows)
    bodies = {
        "ppermute": (lambda w, x: jax.lax.ppermute(jnp.tanh(x @ w), "data", [(i, (i + 1) % 8) for i in range(8)]) @ w, rows),
        "loss": (lambda w, x: jax.lax.pmean(jnp.mean(jnp.tanh(x @ w) ** 2), "data"), whole),
    }
    with jax.set_mesh(over):
        for name, (body, out) in bodies.items():
            f = jax.shard_map(body, in_specs=(whole, rows), out_specs=out)
            around = lambda w, x: jnp.tanh(f(w, x) * x) @ w

            def both(g, w, x):
                """The result, and a gradient; operands have shardings in their types."""
                assert jax.typeof(x).sharding.spec[0] == "data"
                result, pull = jax.vjp(g, w, x)
                return result, *pull(result)

            exact, ours = (jax.jit(both, static_argnums=0)(it, w, x) for it in (around, bf16scope.jax.lower(around)))
            assert 0 < far(exact, ours) <= 16 * ROUNDING, name
            assert [it.sharding for it in exact] == [it.sharding for it in ours], name


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


def of_parts(inner=lambda f: f, **options):
    """The gradients of two replicated weights over eight devices, with the batch sharded."""
    over, rows, whole = mesh(), PartitionSpec("data"), PartitionSpec()
    shard_map = getattr(jax, "shard_map", None) or __import__("jax.experimental.shard_map").experimental.shard_map.shard_map
    f = shard_map(inner(lambda w, v, x: jnp.tanh(x @ w) @ v), mesh=over, in_specs=(whole, whole, rows), out_specs=rows, **options)
    gradients = jax.value_and_grad(lambda w, v, x: jnp.mean((f(w, v, x) - x) ** 2), argnums=(0, 1))
    return gradients, draw(0, 16, 32) / 4, draw(1, 32, 16) / 4, draw(2, 64, 16)


@pytest.mark.parametrize("is_checked", [True, False])
def test_gradients_are_not_rounded_before_devices_sum_them(is_checked):
    options = {} if is_checked else {"check_vma": False} if hasattr(jax, "shard_map") else {"check_rep": False}
    for inner, outer in ((lambda f: f, bf16scope.jax.lower), (bf16scope.jax.lower, lambda f: f)):
        if inner is bf16scope.jax.lower and is_checked and jax.__version_info__ < (0, 5):
            continue  # That version has no rule for custom_vjp under its check.
        gradients, *args = of_parts(inner, **options)
        lines = for_a_tpu(outer(gradients), *args).splitlines()
        dots = [line.split(" -> ")[-1] for line in lines if "dot_general" in line]
        # Eight rows each are activations.
        of_weights = [it for it in dots if "<8x" not in it]
        assert len(dots) == 5 and len(of_weights) == 2 and all(it.endswith("xf32>") for it in of_weights), dots
        assert any(it == "tensor<8x32xbf16>" for it in dots), dots


def test_questions_are_about_the_bodies_that_lower_makes(monkeypatch):
    gradients, *args = of_parts()
    low = bf16scope.jax.lower(gradients)
    dots = [line.split(" -> ")[-1] for line in for_a_tpu(low, *args).splitlines() if "dot_general" in line]
    for f in (gradients, low):
        report = bf16scope.jax.explain_casts(f, *args)
        rows = [it for it in report.decisions if it["opcode"] == "dot"]
        assert all(it["computation"].startswith("shard_map/") for it in rows)
        assert sorted(it["new"] for it in rows) == sorted(it.rstrip(">").split("x")[-1] for it in dots)
        assert report.totals["dot"] == {"lowered": 5, "kept": 0} and report.n_lowered >= 5
        # The reasons add up to the head, with products that give f32.
        head, *reasons = str(report).splitlines()
        counts = {kind: sum(int(it.split()[1]) for it in reasons if it.startswith(kind)) for kind in ("lowered", "kept")}
        assert head.startswith(f"{counts['lowered']} instructions lowered, {counts['kept']} kept, ")
    asked = []

    def program(command, fn, folder, module, *options, **others):
        asked.append((module.text().count("bf16["), options))
        return bf16scope._answer.Answer(command, {"reports": [{"precision": "as given", "cycles": len(asked)}], "verdict": None})

    monkeypatch.setattr(bf16scope.jax, "_asked", program)
    answer = bf16scope.jax.compile_for(gradients, *args, compare=True, policy="O1")
    assert [(it["precision"], it["cycles"]) for it in answer.reports] == [("as given", 2), ("O1", 1)]
    assert [n > 0 for n, _ in asked] == [True, False] and all("--compare" not in options for _, options in asked)
