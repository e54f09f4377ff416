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


def goes_on_by_floats(jaxpr) -> bool:
    """Whether there is a `while_loop` with products that continues by a comparison of floats."""
    for equation in equations(jaxpr):
        if equation.primitive.name != "while":
            continue
        condition, body = equation.params["cond_jaxpr"].jaxpr, equation.params["body_jaxpr"].jaxpr
        is_float = lambda it: jax.dtypes.issubdtype(it.invars[0].aval.dtype, jax.numpy.floating)
        compares = any(it.primitive.name in _ORDER and is_float(it) for it in equations(condition))
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
