"""All that bf16scope takes of JAX beyond its documented interface, in one place.

A primitive holds the jaxpr of a function and how it is lowered. Where XLA's program is made, that jaxpr becomes a module of
its own, goes through bf16scope, and is merged as a function that is called once.

Tried with the versions that `TRIED` names; others work as long as the names that are imported here exist.
"""

from __future__ import annotations

import functools
import logging
import os
import re
import time
import warnings
from dataclasses import dataclass
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr, Primitive

from bf16scope._errors import Error
from bf16scope._module import Module, Report
from bf16scope._words import visible

#: The oldest and the newest version of JAX that the tests ran with.
TRIED = ("0.4.36", "0.10.2")

try:
    from jax._src.interpreters import batching, mlir, partial_eval
    from jax._src.lib.mlir import ir
    from jax._src.lib.mlir.dialects import func as func_dialect
    from jax._src.lib.mlir.dialects import hlo
    from jax.extend.core import jaxpr_as_fun

    _merge = mlir.merge_mlir_modules
    _hoisted = partial_eval.convert_constvars_jaxpr
    _batchers = batching.fancy_primitive_batchers
    _dce_jaxpr, _dce_rules = partial_eval.dce_jaxpr, partial_eval.dce_rules
    _register_lowering = mlir.register_lowering
except (ImportError, AttributeError) as error:
    raise ImportError(
        f"bf16scope.jax does not know jax {jax.__version__}: {error}; it was tried with {TRIED[0]} to {TRIED[1]}"
    ) from error

# Lines that JAX names are the user's, not those of this package, which stand between.
try:
    from jax._src.source_info_util import register_exclusion

    register_exclusion(os.path.dirname(__file__))
except (ImportError, AttributeError):
    pass

log = logging.getLogger("bf16scope")
if os.environ.get("BF16SCOPE_LOG"):
    log.addHandler(logging.StreamHandler())
    log.setLevel(logging.INFO)


@dataclass(frozen=True)
class Options:
    """How a function is lowered."""

    policy: str
    #: `bfloat16` or `float16`.
    dtype: str
    keep: tuple[str, ...]


def trace(fun, args) -> tuple[ClosedJaxpr, list[Any]]:
    """The jaxpr of a function of flat arguments, without constants of its own, and the values that it closes over: they
    come before the arguments.

    Raises:
      Error: a function with side effects.
    """
    types = [type_of(arg) for arg in args]
    for number, aval in enumerate(types):
        if not all(isinstance(dim, int) for dim in aval.shape):
            raise Error(f"array {number} has symbolic dims ({aval.shape})", "lower the function with the sizes that it runs with")
        spec = getattr(getattr(aval, "sharding", None), "spec", None) or ()
        if any(axis is not None for axis in spec):
            raise Error(
                f"array {number} is of type {aval}: its sharding is part of its type, which a lowered function would lose",
                "make the mesh with axis_types=(jax.sharding.AxisType.Auto, …)",
            )
    closed = jax.make_jaxpr(fun)(*map(struct_of, types))
    refuse_effects(closed)
    _refuse_other_sums(fun, args, closed)
    return ClosedJaxpr(_hoisted(closed.jaxpr), ()), list(closed.consts)


def refuse_effects(closed) -> None:
    """
    Raises:
      Error: a function that talks to its host, or to other devices by the name of an axis.
    """
    # Some say nothing but their place in memory.
    names = sorted(type(it).__name__ if " object at 0x" in str(it) else str(it) for it in closed.effects)
    if any("NamedAxis" in name for name in names):
        raise Error(
            f"the function has collectives over an axis that is bound outside of it ({', '.join(names)})",
            "lower the whole, `lower(jax.shard_map(step, …))` or `lower(jax.vmap(step, axis_name=…))`, or lower what is between "
            "the collectives",
        )
    calls = sorted({name for name in _primitives(closed.jaxpr) if "callback" in name})
    if names or calls:
        raise Error(
            f"the function has side effects ({', '.join(names or calls)}), and what is lowered is a program without",
            "take jax.debug.print, callbacks and the like out of it, or leave what has them outside `lower`",
        )


def _refuse_other_sums(fun, args, closed) -> None:
    """What is lowered knows no axes of a `shard_map` around it, along which some values differ and others do not.

    Raises:
      Error: a function that computes something else where it does not know them.
    """
    if {"pvary", "pcast"} & set(_primitives(closed.jaxpr, "shard_map")):
        raise Error(
            "the function closes over an array that differs along an axis of the `shard_map` around it",
            "pass the array as an argument, or lower the whole: `lower(jax.shard_map(step, …))`",
        )
    if len({_varying(type_of(arg)) for arg in args}) > 1:
        # As `shard_map` sums gradients of what is the same on all devices.
        if any(name.startswith("psum") for name in _primitives(jax.make_jaxpr(fun)(*args).jaxpr, "shard_map")):
            raise Error(
                "inside this `shard_map` the function sums over devices, as gradients of what is the same on all of them are summed",
                "lower the loss, `jax.grad(lower(loss))`, or the whole, `lower(jax.shard_map(step, …))`",
            )


def _primitives(jaxpr, but_within: str = ""):
    """Names of the primitives of a jaxpr, and of those within, but not of those within one of this name."""
    for equation in jaxpr.eqns:
        yield equation.primitive.name
        if equation.primitive.name == but_within:
            continue
        for value in equation.params.values():
            for inner in value if isinstance(value, (tuple, list)) else (value,):
                inner = getattr(inner, "jaxpr", inner)
                if hasattr(inner, "eqns"):
                    yield from _primitives(inner, but_within)


def type_of(value):
    """The type of an argument, or the type that it is itself."""
    if isinstance(value, jax.ShapeDtypeStruct):
        return value
    return jax.typeof(value) if hasattr(jax, "typeof") else jax.core.get_aval(value)


def _varying(aval) -> frozenset:
    """The axes of a `shard_map` along which a value differs, where JAX keeps account of that."""
    manual = getattr(aval, "manual_axis_type", None)
    return frozenset(getattr(aval, "vma", None) or getattr(manual, "varying", None) or ())


def vary_alike(args: list) -> list:
    """The arguments of a function that knows no axes of a `shard_map`, all varying along the same."""
    axes = frozenset().union(*(_varying(type_of(arg)) for arg in args))
    missing = [tuple(axis for axis in axes if axis not in _varying(type_of(arg))) for arg in args]
    cast = functools.partial(jax.lax.pcast, to="varying") if hasattr(jax.lax, "pcast") else getattr(jax.lax, "pvary", None)
    return [cast(arg, axes) if axes else arg for arg, axes in zip(args, missing)]


def module_of(jaxpr: ClosedJaxpr, platform: str) -> Module:
    """The jaxpr as a module for a platform: what `jax.jit` of it compiles there."""
    avals = [struct_of(aval) for aval in jaxpr.in_avals]
    traced = jax.jit(jaxpr_as_fun(jaxpr), keep_unused=True).trace(*avals)
    lowered = traced.lower(lowering_platforms=(platform,))
    program = lowered.compiler_ir("hlo").as_serialized_hlo_module_proto()
    return Module.read(program)


@functools.lru_cache(maxsize=256)
def lowered(jaxpr: ClosedJaxpr, options: Options, platform: str) -> tuple[Module, Report]:
    """The jaxpr's module, lowered, and the report."""
    began = time.perf_counter()
    module = module_of(jaxpr, platform)
    made = time.perf_counter()
    low, report = module.lower(options.policy, options.dtype, options.keep)
    name = _function_of(jaxpr) or module.name
    seconds = made - began, time.perf_counter() - made
    log.info("%s: JAX made a module of %d instructions in %.3f s; lowered in %.3f s, %r", name, module.n_instructions, *seconds, report)
    for note in report.notes:
        warnings.warn(visible(f"{name}: {note.replace(f' in {module.name}', '')}"), stacklevel=2)
    return low, report


def _function_of(jaxpr: ClosedJaxpr) -> str | None:
    """The user's function and its place, as JAX says them."""
    place = getattr(getattr(jaxpr.jaxpr, "debug_info", None), "func_src_info", None)
    return "the gradient of a lowered function" if place and os.path.dirname(__file__) in place else place


#: Platforms of JAX that compute in bfloat16 and float16, whatever the device: XLA widens there what the device does not have.
PLATFORMS = ("cpu", "tpu", "cuda", "rocm")


@functools.lru_cache(maxsize=8)
def check_platform(platform: str, dtype: str) -> None:
    """
    Raises:
      Error: a platform that does not multiply matrices of the dtype. Those that are not known are asked.
    """
    if platform in PLATFORMS:
        return
    try:
        with jax.default_device(jax.devices(platform)[0]), jax.disable_jit(False):
            x = jax.numpy.ones((2, 2), dtype)
            jax.block_until_ready(jax.jit(lambda x: x @ x)(x))
    except Exception as error:
        raise Error(
            f"JAX's platform `{platform}` does not multiply matrices of {dtype}: {error}",
            f"lower for one that does, such as {', '.join(PLATFORMS)}, or leave the function as it is",
        ) from error


def narrow_results(jaxpr: ClosedJaxpr, options: Options) -> list[bool]:
    """Of each result of the lowered jaxpr, whether it could be narrow as well."""
    low, _ = lowered(jaxpr, options, jax.default_backend())
    return low._native.narrow_results()


def struct_of(aval) -> jax.ShapeDtypeStruct:
    """What is traced instead of an argument of this type."""
    return jax.ShapeDtypeStruct(aval.shape, aval.dtype, weak_type=getattr(aval, "weak_type", False))


lower_p = Primitive("bf16scope_lower")
lower_p.multiple_results = True


def call(jaxpr: ClosedJaxpr, options: Options, *args):
    """The results of a jaxpr without constants, lowered."""
    return lower_p.bind(*args, jaxpr=jaxpr, options=options)


@functools.lru_cache(maxsize=256)
def _compiled(jaxpr: ClosedJaxpr, options: Options):
    return jax.jit(functools.partial(call, jaxpr, options))


@lower_p.def_impl
def _impl(*args, jaxpr, options):
    # Under `jax.disable_jit` too, as there is nothing else to run. Of a NaN JAX would ask this again, which operation made it.
    with jax.disable_jit(False), jax.debug_nans(False):
        results = _compiled(jaxpr, options)(*args)
    if jax.config.jax_debug_nans and any(_has_nan(it) for it in results):
        jax.core.eval_jaxpr(jaxpr.jaxpr, (), *args)  # JAX names the operation
        raise FloatingPointError(
            f"invalid value (nan) in {_function_of(jaxpr) or 'a lowered function'}, which gives none in f32: `bf16scope.jax.audit` "
            "of it says where"
        )
    return results


def _has_nan(array) -> bool:
    return jax.dtypes.issubdtype(array.dtype, jax.numpy.inexact) and bool(jax.numpy.isnan(array).any())


@lower_p.def_abstract_eval
def _abstract(*avals, jaxpr, options):
    varying = next((aval for aval in avals if _varying(aval)), None)
    if varying is None:
        return jaxpr.out_avals
    # Results vary as the arguments do, which all vary alike.
    name = "manual_axis_type" if hasattr(varying, "manual_axis_type") else "vma"
    return [
        aval.update(**{name: getattr(varying, name), "sharding": varying.sharding.update(spec=_whole(aval))})
        for aval in jaxpr.out_avals
    ]


def _whole(aval):
    return jax.sharding.PartitionSpec(*[None] * len(aval.shape))


@functools.lru_cache(maxsize=256)
def _batched(jaxpr: ClosedJaxpr, axes: tuple, avals: tuple, axis_size: int) -> tuple[ClosedJaxpr, list[Any]]:
    mapped = jax.vmap(jaxpr_as_fun(jaxpr), in_axes=axes, out_axes=0, axis_size=axis_size)
    return trace(mapped, list(map(struct_of, avals)))


def _batch(axis_size: int, args, axes, *, jaxpr, options):
    """`vmap` of it: what `vmap` makes of the jaxpr is lowered."""
    unmapped = getattr(batching, "not_mapped", None)
    axes = tuple(None if axis is unmapped else axis for axis in axes)
    avals = tuple(type_of(arg) for arg in args)
    batched, consts = _batched(jaxpr, axes, avals, axis_size)
    results = call(batched, options, *vary_alike([*consts, *args]))
    return results, [0] * len(results)


_batchers[lower_p] = lambda axis_data, args, axes, **params: _batch(
    getattr(axis_data, "size", axis_data), args, axes, **params
)


def _dce(used, *rest):
    """Leaves out unused results, and what is computed for them alone."""
    # Newer versions of JAX tell a rule which arguments are live, too.
    equation = rest[-1]
    if not any(used) and not equation.effects:
        return [False] * len(equation.invars), None
    if all(used):
        return [True] * len(equation.invars), equation
    jaxpr, is_read = _dce_jaxpr(equation.params["jaxpr"].jaxpr, list(used))
    params = {**equation.params, "jaxpr": _closed(jaxpr)}
    invars = [var for var, read in zip(equation.invars, is_read) if read]
    outvars = [var for var, use in zip(equation.outvars, used) if use]
    return is_read, equation.replace(invars=invars, outvars=outvars, params=params)


@functools.lru_cache(maxsize=256)
def _closed(jaxpr) -> ClosedJaxpr:
    """The same closed jaxpr for the same jaxpr, so that it is lowered once."""
    return ClosedJaxpr(jaxpr, ())


_dce_rules[lower_p] = _dce


#: A module's meshes, by which the shardings in it go: `{mesh = #sdy.mesh<["x"=4]>, …}` in a string of MLIR.
_MESHES = re.compile(r'"xla\.sdy\.meshes" = "\{((?:[^"\\]|\\.)*)\}"')
_MESH = re.compile(r"(\w+) = #sdy\.mesh(<(?:[^<>]|<[^<>]*>)*>)")
#: Shardings as XLA had them before meshes, which stand beside. Where there is one, XLA leaves all meshes aside and says so.
_WITHOUT_MESH = re.compile(r', mhlo\.sharding = "(?:[^"\\]|\\.)*"|mhlo\.sharding = "(?:[^"\\]|\\.)*"(?:, )?')


def _with_meshes(text: str) -> str:
    """The module's text with its meshes written out wherever a sharding goes by one. Merging leaves attributes of a module
    behind, and XLA ends the process over a sharding whose mesh is missing."""
    found = _MESHES.search(text)
    if not found:
        return text
    for name, mesh in _MESH.findall(found[1]):
        text = text.replace(f"<@{name}, ", f"<mesh{mesh}, ")
    return _WITHOUT_MESH.sub("", text)


_CHANNEL = re.compile(r"(?<=channel_handle<handle = )\d+")


def _with_channels_of(context, text: str) -> str:
    """The module's text with channels that nobody else in the program has: each module counts its own."""
    channels: dict[str, str] = {}
    if not hasattr(context, "new_channel"):
        return text
    return _CHANNEL.sub(lambda found: channels.setdefault(found[0], str(context.new_channel())), text)


def _emit(context, *args, jaxpr, options):
    """Where a program is made: the lowered module is merged into it and called."""
    within = context.module_context
    platforms = context.platforms or within.platforms
    if len(platforms) != 1:
        raise Error(
            f"a lowered function was exported for {len(platforms)} platforms ({', '.join(platforms)}) at once",
            "export it for one platform: `jax.export.export(f, platforms=[\"tpu\"])`",
        )
    check_platform(platforms[0], options.dtype)
    low, _ = lowered(jaxpr, options, platforms[0])
    text = _with_channels_of(within, _with_meshes(low.stablehlo()))
    module = ir.Module.parse(text, context=within.module.context)
    types = ir.SymbolTable(module.operation)["main"].type
    name = _merge(within.module, f"bf16scope_{low.name}", module, dst_symtab=within.symbol_table)
    # A policy may make parameters and results narrow; the function keeps its dtypes.
    inputs = [_cast(arg, to) for arg, to in zip(args, types.inputs, strict=True)]
    results = func_dialect.CallOp(types.results, ir.FlatSymbolRefAttr.get(name), inputs).results
    return [_wide(result) if aval.dtype == "float32" else result for result, aval in zip(results, context.avals_out, strict=True)]


def _wide(value):
    return _cast(value, ir.RankedTensorType.get(ir.RankedTensorType(value.type).shape, ir.F32Type.get()))


def _cast(value, to):
    return value if value.type == to else hlo.convert(to, value)


_register_lowering(lower_p, _emit)

try:
    # Before 0.6 a `shard_map` asked each primitive how its results vary.
    from jax.experimental.shard_map import register_norewrite, register_standard_check

    register_standard_check(lower_p)
    register_norewrite(lower_p)
except (ImportError, AttributeError):
    pass
