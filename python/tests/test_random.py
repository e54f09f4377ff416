"""Random programs, lowered, some over devices, some in forward mode: dtypes, shapes and finiteness are those of the program, and
each number is within the bound of the casts.

The bound is computed beside the program, in f64: each value has how far what is computed may be from it, if every operand
and every result of every operation is rounded to bfloat16. Each operation says how it passes errors on (`Beside`).

Where many operations follow each other the bound grows beyond what results can be (2); of two programs in five it stays below 1.

BF16SCOPE_RANDOM says which programs: how many (default 12, and those that once went wrong), or from one to another,
`20..5000`. BF16SCOPE_RANDOM_SHOW=1 prints what each came to.
"""

import functools
import os
import random
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import bf16scope.jax

FIRST, _, LAST = os.environ.get("BF16SCOPE_RANDOM", "0..12").rpartition("..")
#: 348: differentiating it makes a constant. 3030: below.
SEEDS = [*range(int(FIRST or 0), int(LAST)), *([] if "BF16SCOPE_RANDOM" in os.environ else [348, 3030])]
SIZE = 4
#: Half a unit in the last of bfloat16's 8 bits, and some units of f32's, in which everything else is computed.
ROUNDING = 2.0**-8 + 2.0**-20


@dataclass
class Beside:
    """A value, and how far from it what is computed may be."""

    value: np.ndarray
    error: np.ndarray

    def rounded(self, n=1):
        for _ in range(n):
            self = Beside(self.value, self.error + ROUNDING * (abs(self.value) + self.error))
        return self

    def moved(self, f):
        """By an operation that only moves elements."""
        return Beside(f(self.value), f(self.error)).rounded()


def steep(f, slope, n_roundings=1):
    """A function of one number that is never steeper than this."""

    def beside(x):
        x = x.rounded()
        return Beside(f(x.value), slope * x.error).rounded(n_roundings)

    return beside


def sigmoid(x):
    # Of parts that are at most one, such as (1 + tanh(x / 2)) / 2: each may be rounded.
    x = x.rounded()
    return Beside(1 / (1 + np.exp(-x.value)), x.error / 4 + 4 * ROUNDING)


def add(x, y):
    x, y = x.rounded(), y.rounded()
    return Beside(x.value + y.value, x.error + y.error).rounded()


def subtract(x, y):
    return add(x, Beside(-y.value, y.error))


def product(f):
    def beside(x, y):
        x, y = x.rounded(), y.rounded()
        sizes = f(abs(x.value), y.error) + f(x.error, abs(y.value)) + f(x.error, y.error)
        return Beside(f(x.value, y.value), sizes + 2.0**-20 * f(abs(x.value), abs(y.value))).rounded()

    return beside


def larger(x, y):
    # Where they are so near that the comparison goes the other way, the other one is taken.
    x, y = x.rounded(), y.rounded()
    return Beside(np.maximum(x.value, y.value), 2 * (x.error + y.error)).rounded()


def quotient(x, y):
    """By what is at least one, in what is computed as well."""
    x, y = x.rounded(), y.rounded()
    least = np.maximum(1.0, y.value - y.error)
    return Beside(x.value / y.value, (x.error + abs(x.value / y.value) * y.error) / least).rounded()


def largest(x, axis):
    return Beside(x.value.max(axis, keepdims=True), x.error.max(axis, keepdims=True)).rounded()


def summed(x, axis):
    # Whatever the order, each of the sums on the way is at most the sum of magnitudes.
    x = x.rounded()
    sizes = (abs(x.value) + x.error).sum(axis, keepdims=True)
    return Beside(x.value.sum(axis, keepdims=True), x.error.sum(axis, keepdims=True) + SIZE * ROUNDING * sizes)


def mean(x):
    total = summed(x, 0)
    return Beside(total.value / SIZE, total.error / SIZE).rounded()


def softmax(x):
    x = subtract(x, largest(x, -1))
    power = np.exp(x.value)
    # exp is as steep as what it gives.
    power = Beside(power, power * np.expm1(np.minimum(x.error, 50.0))).rounded()
    return quotient(power, summed(power, -1))


def updated(x):
    row = Beside(x.value[:1] * 2, x.error[:1] * 2).rounded()
    f = lambda whole, row: np.concatenate([whole[:1], row, whole[2:]])
    return Beside(f(x.value, row.value), f(x.error, row.error)).rounded()


def scattered(x):
    x = x.rounded()
    f = lambda x: x + np.stack([x[0], 0 * x[0], x[1], 0 * x[0]])
    return Beside(f(x.value), f(x.error)).rounded(2)


def windows(x):
    def f(x, least):
        wide = np.pad(x, ((0, 1), (0, 1)), constant_values=least)
        return np.max([wide[:-1, :-1], wide[1:, :-1], wide[:-1, 1:], wide[1:, 1:]], axis=0)

    return Beside(f(x.value, -np.inf), f(x.error, 0.0)).rounded()


def scaled(x):
    """As large as one, so that nothing overflows."""
    return x / jnp.maximum(1.0, jnp.max(jnp.abs(x)))


def scaled_beside(x):
    size = largest(Beside(abs(x.value), x.error), (0, 1))
    return quotient(x, Beside(np.maximum(1.0, size.value), size.error))


def moved(f):
    return f, lambda x: x.moved(f)


#: Operations of one matrix, and what they do to errors.
UNARY = [
    (jnp.tanh, steep(np.tanh, 1)),
    (jnp.sin, steep(np.sin, 1)),
    (jax.nn.relu, steep(lambda x: np.maximum(x, 0), 1)),
    (jax.nn.sigmoid, sigmoid),
    (jnp.abs, steep(abs, 1)),
    (lambda x: x * 0.5, steep(lambda x: x * 0.5, 0.5)),
    (lambda x: -x, steep(lambda x: -x, 1)),
    (jnp.cos, steep(np.cos, 1)),
]
BINARY = [
    (jnp.add, add),
    (jnp.subtract, subtract),
    (jnp.multiply, product(np.multiply)),
    (jnp.maximum, larger),
    (jnp.matmul, product(np.matmul)),
    (jnp.matmul, product(np.matmul)),
    (lambda a, b: jnp.where(a > b, a, b), larger),
]
MOVES = [
    moved(lambda x: x.T),
    moved(lambda x: x[::-1]),
    (lambda x: jnp.concatenate([x[2:], x[:2]]), lambda x: x.moved(lambda x: np.concatenate([x[2:], x[:2]]))),
    (lambda x: jnp.take(x, jnp.array([3, 1, 0, 0]), axis=0), lambda x: x.moved(lambda x: x[[3, 1, 0, 0]])),
    (lambda x: jnp.pad(x[1:, 1:], ((0, 1), (1, 0))), lambda x: x.moved(lambda x: np.pad(x[1:, 1:], ((0, 1), (1, 0))))),
    (lambda x: jax.lax.dynamic_update_slice(x, x[:1] * 2, (1, 0)), updated),
    (lambda x: x.at[jnp.array([0, 2])].add(x[:2]), scattered),
    (lambda x: jnp.broadcast_to(x.mean(0), x.shape), lambda x: mean(x).moved(lambda x: np.broadcast_to(x, (SIZE, SIZE)))),
    (lambda x: x - x.max(-1, keepdims=True), lambda x: subtract(x, largest(x, -1))),
    (jax.nn.softmax, softmax),
    (
        lambda x: jnp.sort(x, -1),
        # Of two lists no two elements of which are farther apart than this, neither are they once sorted.
        lambda x: Beside(np.sort(x.value, -1), largest(x, -1).error + 0 * x.value).rounded(2),
    ),
    (lambda x: jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (2, 2), (1, 1), "SAME"), windows),
]


POLICIES = [None, jax.checkpoint_policies.dots_saveable, jax.checkpoint_policies.everything_saveable]


EXPLICIT = getattr(getattr(jax.sharding, "AxisType", None), "Explicit", None)


def mesh(kind=None):
    """Two by two devices, over axes that the compiler shards unless a kind is said."""
    kinds = getattr(jax.sharding, "AxisType", None)
    typed = {"axis_types": (kind or kinds.Auto,) * 2} if kinds else {}
    return Mesh(np.array(jax.devices()[:4]).reshape(2, 2), ("x", "y"), **typed)


def over_devices(f, *args):
    """The same by each device of a `shard_map`, over the mesh of the arguments' types where these have one."""
    shard_map = getattr(jax, "shard_map", None) or __import__("jax.experimental.shard_map").experimental.shard_map.shard_map
    unchecked = {"check_vma": False} if hasattr(jax, "shard_map") else {"check_rep": False}
    typed = getattr(getattr(getattr(jax, "typeof", lambda it: None)(args[0]), "sharding", None), "mesh", None)
    kind = EXPLICIT if typed is not None and not typed.empty and EXPLICIT in typed.axis_types else None
    return jax.jit(shard_map(f, mesh=mesh(kind), in_specs=(PartitionSpec(),) * 2, out_specs=PartitionSpec(), **unchecked))(*args)


def placed(more, f, a, b):
    """The arguments, some of them on a mesh: of axes that the compiler shards, or of `Explicit` ones, whose shardings are in the
    types of all that is computed. Where JAX wants more said than the program says, they are replicated over that mesh."""
    rows, columns, all_of_it = PartitionSpec("x", None), PartitionSpec(None, "y"), PartitionSpec(None, None)
    draw = more.random()
    kind = EXPLICIT if draw >= 0.2 else None
    if draw >= 0.4 or (draw >= 0.2 and EXPLICIT is None):
        return a, b
    on = lambda *places: tuple(jax.device_put(it, NamedSharding(mesh(kind), place)) for it, place in zip((a, b), places))
    if kind is None:
        return on(rows, columns)
    sharded = on(*more.choice([(rows, columns), (rows, all_of_it), (all_of_it, columns)]))
    # JAX refuses some: branches or carried values whose shardings differ, sizes that the mesh does not divide (as late as it writes
    # the program), arguments of a `shard_map`. What it refuses in f32 is not asked of the lowered program.
    try:
        jax.jit(lambda a, b: (f(a, b), jax.grad(lambda a, b: jnp.sum(f(a, b)), argnums=(0, 1))(a, b))).lower(*sharded)
        return sharded
    except Exception as error:
        assert type(error).__name__ in ("ShardingTypeError", "TypeError", "ValueError"), error
        return on(all_of_it, all_of_it)


#: Ways of forward mode: results and tangents of a function at the first two arguments, along the second two.
FORWARD = [
    lambda f, a, b, da, db: jax.jvp(f, (a, b), (da, db)),
    lambda f, a, b, da, db: (lambda out, along: (out, along(da, db)))(*jax.linearize(f, a, b)),
    lambda f, a, b, da, db: (f(a, b), jax.jacfwd(lambda a, b: jnp.sum(f(a, b), 0), argnums=1)(a, b)),
]


def program(rng, depth=0):
    """Two functions of two square matrices, of 3 to 30 operations: what is computed, and what it is beside its error."""
    # Without a product nothing is lowered.
    steps = [("binary", (jnp.matmul, product(np.matmul)), 0)] if depth == 0 else []
    for _ in range(rng.randint(2, 9 if depth == 0 else 3)):
        kind = rng.random()
        if kind < 0.3:
            steps.append(("unary", rng.choice(UNARY), rng.randrange(1 << 20)))
        elif kind < 0.6:
            steps.append(("binary", rng.choice(BINARY), rng.randrange(1 << 20)))
        elif kind < 0.85 or depth == 2:
            steps.append(("unary", rng.choice(MOVES), rng.randrange(1 << 20)))
        else:
            inner = program(rng, depth + 1)
            steps.append((rng.choice(["scan", "cond", "remat", "while", "jit"]), inner, rng.randrange(1 << 20)))

    def chosen(values, seed):
        pick = random.Random(seed)
        return pick.choice(values[-4:]), pick.choice(values[-4:])

    def run(a, b):
        values = [a, b]
        for kind, (f, _), seed in steps:
            x, y = chosen(values, seed)
            if kind == "unary":
                out = f(x)
            elif kind == "binary":
                out = f(x, y)
            elif kind == "scan":
                out = jax.lax.scan(lambda c, _: (scaled(f(c, y)), None), x, None, length=2)[0]
            elif kind == "cond":
                out = jax.lax.cond(jnp.array(seed % 2 == 0), f, lambda a, b: a + b, x, y)
            elif kind == "while":
                out = jax.lax.while_loop(lambda it: it[0] < 2, lambda it: (it[0] + 1, scaled(f(it[1], y))), (0, x))[1]
            elif kind == "remat":
                out = jax.checkpoint(f, policy=POLICIES[seed % len(POLICIES)])(x, y)
            elif seed % 3 == 0:
                out = over_devices(f, x, y)
            else:
                out = jax.jit(f)(x, y)
            values.append(scaled(out))
        return values[-1] + values[-2]

    def beside(a, b):
        values = [a, b]
        for kind, (_, f), seed in steps:
            x, y = chosen(values, seed)
            if kind == "unary":
                out = f(x)
            elif kind in ("scan", "while"):
                out = x.rounded()
                for _ in range(2):
                    out = scaled_beside(f(out, y)).rounded()
            elif kind == "cond" and seed % 2:
                out = add(x, y)
            else:
                out = f(x, y)
            values.append(scaled_beside(out).rounded())
        return add(values[-1], values[-2])

    return run, beside


def compiled(f, *args):
    """The program of a function, soon: optimized little, and with every rounding performed, where XLA may otherwise compute all
    of it in f32 on a CPU. Not optimized at all (0), XLA may compute a value twice, and not to the same bits: then an array has
    no element that equals its maximum, and the gradient divides by their number (3030)."""
    options = {"xla_allow_excess_precision": False, "xla_backend_optimization_level": 1}
    return jax.jit(f).lower(*args).compile(options)


@pytest.mark.parametrize("seed", SEEDS)
def test_random(seed):
    rng = random.Random(seed)
    f, beside = program(rng)
    differentiates = rng.random() < 0.5
    values = np.random.default_rng(seed)
    a, b = (jnp.asarray(values.standard_normal((SIZE, SIZE)), jnp.float32) for _ in range(2))
    # Drawn apart, so that a seed goes on to give the same program.
    more = random.Random(-1 - seed)
    # Wherever they are, the numbers in f32 are those of one device.
    plain = a, b
    a, b = placed(more, f, a, b)
    low = bf16scope.jax.lower(f)
    total = lambda f: lambda a, b: jnp.sum(f(a, b))
    gradient = lambda f: jax.grad(total(f), argnums=(0, 1))
    # Operation by operation, so that nothing of f32 is compiled twice in all the programs.
    with jax.disable_jit():
        exact = f(*plain)
    if differentiates:
        try:
            ours, of_lowered = compiled(lambda a, b: (low(a, b), gradient(low)(a, b)), a, b)(a, b)
        except ValueError as error:  # a while_loop has no reverse mode
            assert "while_loop" in str(error) or "Reverse-mode" in str(error)
            with pytest.raises(ValueError, match="while_loop|Reverse-mode"):
                jax.eval_shape(gradient(f), a, b)
            differentiates = False
    if not differentiates and more.random() < 0.75:
        # Forward mode, which loops have as well.
        forward = more.choice(FORWARD)
        along = (b, a) if a is plain[0] else tuple(jax.device_put(it, like.sharding) for it, like in ((b, a), (a, b)))
        ours, tangent = compiled(functools.partial(forward, low), a, b, *along)(a, b, *along)
        exact_tangent = jax.eval_shape(functools.partial(forward, f), a, b, *along)[1]
        assert exact_tangent.dtype == tangent.dtype and exact_tangent.shape == tangent.shape
        if not bool(jnp.all(jnp.isfinite(tangent))):
            assert not bool(jnp.all(jnp.isfinite(forward(f, *plain, *reversed(plain))[1])))
    elif not differentiates:
        ours = compiled(low, a, b)(a, b)
    assert exact.dtype == ours.dtype and exact.shape == ours.shape
    assert jax.eval_shape(low, a, b) == jax.eval_shape(f, a, b), "the types differ"
    assert bool(jnp.all(jnp.isfinite(exact))) == bool(jnp.all(jnp.isfinite(ours)))
    near = beside(*(Beside(np.float64(it), np.zeros(it.shape)) for it in (a, b)))
    # What stands beside is the same function: f32 is off by units of its own, as often as there are operations.
    assert np.all(abs(near.value - np.float64(exact)) <= 2.0**-12 * near.error / ROUNDING + 1e-5)
    distance = abs(near.value - np.float64(ours))
    assert np.all(distance <= near.error), f"{np.max(distance / near.error)} times the bound"
    if os.environ.get("BF16SCOPE_RANDOM_SHOW"):
        print(f"\nprogram {seed}: {np.max(distance / near.error):.3f} of the bound, which is {np.max(near.error):.3g}")
    if differentiates:
        with jax.disable_jit():
            exact = gradient(f)(*plain)
        for exact, ours in zip(exact, of_lowered):
            assert exact.dtype == ours.dtype and exact.shape == ours.shape
            assert bool(jnp.all(jnp.isfinite(exact))) == bool(jnp.all(jnp.isfinite(ours)))
