"""Attributes of functions and values of JAX beyond its documented interface, for `_jax_internals`."""

from __future__ import annotations

import functools

import jax
from jax.extend.core import ClosedJaxpr

from bf16scope._errors import Error

#: Operations in a scope of this name stay in f32 wherever they are lowered.
FULL_PRECISION = "bf16scope_full_precision"


def statics_of_jit(fun) -> tuple[set[int], set[str]]:
    """The numbers and names of the static arguments of a function that `jax.jit` made."""
    info = getattr(fun, "_jit_info", None)
    return set(getattr(info, "static_argnums", None) or ()), set(getattr(info, "static_argnames", None) or ())


def has_compiler_options(fun) -> bool:
    """Whether `jax.jit` made a function, with options for the compiler, which JAX takes only from the outermost `jax.jit`."""
    return bool(getattr(getattr(fun, "_jit_info", None), "compiler_options_kvs", ()))


def without_compiler_options(fun):
    """The function, without the compiler options that `jax.jit` gave it."""
    if not has_compiler_options(fun):
        return fun
    info = fun._jit_info
    names = ("static_argnums", "static_argnames", "donate_argnums", "donate_argnames", "inline")
    kinds = {name: getattr(info, name) for name in names}
    for name in ("in_shardings", "out_shardings"):
        kinds[name] = getattr(info, f"{name}_treedef").unflatten(getattr(info, f"{name}_leaves"))
    return jax.jit(fun.__wrapped__, **kinds)


def donates(fun) -> bool:
    """Whether `jax.jit` made a function, and it donates arguments."""
    info = getattr(fun, "_jit_info", None)
    return bool(getattr(info, "donate_argnums", None) or getattr(info, "donate_argnames", None))


def donated_by_jit(fun, args: tuple, kwargs: dict) -> list[bool]:
    """For each leaf of the arguments whether a function that `jax.jit` made donates it."""
    info = getattr(fun, "_jit_info", None)
    numbers, names = (getattr(info, name, None) or () for name in ("donate_argnums", "donate_argnames"))
    flags = [jax.tree_util.tree_map(lambda _: number in numbers, arg) for number, arg in enumerate(args)]
    return jax.tree_util.tree_leaves((flags, {name: jax.tree_util.tree_map(lambda _: name in names, arg) for name, arg in kwargs.items()}))


def named(name: str | None):
    """A decorator that gives a function this name, if there is one."""

    def rename(fun):
        @functools.wraps(fun)
        def renamed(*args):
            return fun(*args)

        renamed.__name__ = name or fun.__name__
        return renamed

    return rename


def is_variable(atom) -> bool:
    """Whether an atom of a jaxpr is a variable, and not a literal."""
    return type(atom).__name__ != "Literal"


#: Effects that JAX allows in functions with a custom derivative.
_HARMLESS = ("NamedAxisEffect", "DebugEffect")


def has_effects(jaxpr: ClosedJaxpr) -> bool:
    """Whether a function has effects that JAX does not allow with a custom derivative: mutable arrays, checks."""
    return any(type(effect).__name__ not in _HARMLESS for effect in jaxpr.effects)


def is_of_an_axis(jaxpr: ClosedJaxpr) -> bool:
    """Whether a function depends on an axis of a surrounding `shard_map` or `vmap`: it communicates, or its values vary, along it."""
    return is_varying(jaxpr) or any(type(effect).__name__ == "NamedAxisEffect" for effect in jaxpr.effects)


def is_shared(jaxpr: ClosedJaxpr) -> bool:
    """Whether devices of a surrounding `shard_map` share the computation: they communicate, or some inputs and results are the
    same on all devices and others vary."""
    axes = [varying(aval) for aval in (*jaxpr.in_avals, *jaxpr.out_avals) if jax.dtypes.issubdtype(aval.dtype, jax.numpy.inexact)]
    return len(set(axes)) > 1 or any(type(effect).__name__ == "NamedAxisEffect" for effect in jaxpr.effects)


def is_of_each_device(jaxpr: ClosedJaxpr) -> bool:
    """Whether devices of a surrounding `shard_map` share only arguments: all results vary over the devices."""
    is_float = lambda aval: jax.dtypes.issubdtype(aval.dtype, jax.numpy.inexact)
    axes = frozenset().union(*map(varying, jaxpr.in_avals))
    results = {varying(aval) for aval in jaxpr.out_avals if is_float(aval)}
    return is_shared(jaxpr) and results == {axes} and not any(type(it).__name__ == "NamedAxisEffect" for it in jaxpr.effects)


def type_of(value):
    """The type of an argument, which may be a type itself."""
    if isinstance(value, jax.ShapeDtypeStruct):
        return value
    return jax.typeof(value) if hasattr(jax, "typeof") else jax.core.get_aval(value)


def struct_of(aval) -> jax.ShapeDtypeStruct:
    """The shape and dtype to trace with in place of an argument of this type."""
    kinds = {}
    if getattr(getattr(aval, "sharding", None), "mesh", None) is not None and not aval.sharding.mesh.empty:
        kinds["sharding"] = aval.sharding
    if varying(aval):
        kinds |= {"vma": varying(aval)} if hasattr(aval, "vma") else {"manual_axis_type": aval.manual_axis_type}
    return jax.ShapeDtypeStruct(aval.shape, aval.dtype, weak_type=getattr(aval, "weak_type", False), **kinds)


def varying(aval) -> frozenset:
    """The axes of a `shard_map` along which a value varies, if JAX tracks them."""
    manual = getattr(aval, "manual_axis_type", None)
    return frozenset(getattr(aval, "vma", None) or getattr(manual, "varying", None) or ())


def is_varying(jaxpr: ClosedJaxpr) -> bool:
    """Whether an argument or result varies along an axis of a surrounding `shard_map`."""
    return any(varying(aval) for aval in (*jaxpr.in_avals, *jaxpr.out_avals))


def is_manual(jaxpr: ClosedJaxpr) -> bool:
    """Whether a function is in the body of a `shard_map`, whose values are no arguments of a program of their own."""
    meshes = (getattr(getattr(aval, "sharding", None), "mesh", None) for aval in (*jaxpr.in_avals, *jaxpr.out_avals))
    return any(getattr(mesh, "manual_axes", ()) for mesh in meshes)


def vary_alike(args: list) -> list:
    """The arguments, cast so that all vary along the same axes of a `shard_map`."""
    axes = frozenset().union(*(varying(type_of(arg)) for arg in args))
    missing = [tuple(axis for axis in axes if axis not in varying(type_of(arg))) for arg in args]
    cast = functools.partial(jax.lax.pcast, to="varying") if hasattr(jax.lax, "pcast") else getattr(jax.lax, "pvary", None)
    return [cast(arg, axes) if axes else arg for arg, axes in zip(args, missing)]


def equations(jaxpr):
    """The equations of a jaxpr, and of jaxprs nested in it."""
    for equation in jaxpr.eqns:
        yield equation
        for value in equation.params.values():
            for inner in value if isinstance(value, (tuple, list)) else (value,):
                inner = getattr(inner, "jaxpr", inner)
                if hasattr(inner, "eqns"):
                    yield from equations(inner)


_ORDER = {"lt", "le", "gt", "ge"}
_PRODUCT_NAMES = {"dot_general", "conv_general_dilated", "ragged_dot", "ragged_dot_general"}


def _is_bounded(condition, n_consts: int) -> bool:
    """Whether a condition asks, besides all else, that an integer is below or above a value that the loop does not change."""
    fixed = {*condition.constvars, *condition.invars[:n_consts]}
    by_result = {var: it for it in condition.eqns for var in it.outvars}
    atoms = list(condition.outvars)
    for atom in atoms:
        it = by_result.get(atom) if is_variable(atom) else None
        if it is not None and it.primitive.name in ("and", "convert_element_type"):
            atoms += it.invars
        elif it is not None and it.primitive.name in _ORDER and jax.dtypes.issubdtype(it.invars[0].aval.dtype, jax.numpy.integer):
            if sum(not is_variable(side) or side in fixed for side in it.invars) == 1:
                return True
    return False


def goes_on_by_floats(jaxpr) -> bool:
    """Whether there is a `while_loop` with products that continues by a comparison of floats."""
    for equation in equations(jaxpr):
        if equation.primitive.name != "while":
            continue
        condition, body = equation.params["cond_jaxpr"].jaxpr, equation.params["body_jaxpr"].jaxpr
        is_float = lambda it: jax.dtypes.issubdtype(it.invars[0].aval.dtype, jax.numpy.floating)
        compares = not _is_bounded(condition, equation.params["cond_nconsts"]) and any(
            it.primitive.name in _ORDER and is_float(it) for it in equations(condition)
        )
        products = [it for it in equations(body) if it.primitive.name in _PRODUCT_NAMES and is_float(it)]
        if compares and any(FULL_PRECISION not in str(it.source_info.name_stack) for it in products):
            return True
    return False


#: Platforms of JAX that compute in bfloat16 and float16 on every device: XLA widens operations that a device does not support.
PLATFORMS = ("cpu", "tpu", "cuda", "rocm")


@functools.lru_cache(maxsize=8)
def check_platform(platform: str, dtype: str) -> None:
    """Checks that a platform multiplies matrices of a dtype, by a trial on platforms that are not in `PLATFORMS`.

    Raises:
      Error: the platform does not.
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
