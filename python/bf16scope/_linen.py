"""Support for flax's linen, whose modules hold their variables and random numbers in a scope while they run: linen's own lifting
turns a function of such modules into a function of arrays. linen is used only if the program has already imported it."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import jax


def bound(fn: Callable, args: tuple) -> tuple[Any, Callable, tuple] | None:
    """The bound module that a function uses, if any: the module, a function that takes it as its first argument, and the other
    arguments. The module is the function itself, the object of the method, or one of the arguments."""
    linen = sys.modules.get("flax.linen")
    if linen is None:
        return None
    is_bound = lambda it: isinstance(it, linen.Module) and it.scope is not None
    if is_bound(fn):
        return fn, type(fn).__call__, args
    if is_bound(getattr(fn, "__self__", None)):
        return fn.__self__, fn.__func__, args  # type: ignore[attr-defined]
    place = next((number for number, it in enumerate(args) if is_bound(it)), None)
    if place is None:
        return None
    if place == 0:
        return args[0], fn, args[1:]
    return args[place], lambda module, *rest, **named: fn(*rest[:place], module, *rest[place:], **named), args[:place] + args[place + 1 :]


def lifted(lower: Callable, module: Any, fn: Callable, args: tuple, kwargs: dict) -> Any:
    """The result of a function of a module, computed by `lower` of a function of the arrays in the module's scope; changes to
    these arrays are written back."""
    from flax.core import lift
    from flax.linen import transforms

    def lifting(of_scope, scopes, *args, **kwargs):
        # The counts of random numbers drawn are reset before each trace.
        drawn = [(it.rng_counters, dict(it.rng_counters)) for it in jax.tree_util.tree_leaves(scopes)]

        def inner(scope_of, repacked, variables, rngs, *args, **kwargs):
            @functools.wraps(fn, updated=())
            def of_arrays(variables, rngs, *args, **kwargs):
                for counters, before in drawn:
                    counters.clear()
                    counters.update(before)
                scope = scope_of(variables, rngs)
                return of_scope(scope, *args, **kwargs), repacked(scope)

            of_arrays.is_open_once = True  # type: ignore[attr-defined]
            return lower(of_arrays)(variables, rngs, *args, **kwargs)

        return lift.pack(inner, (True,), (True,), (True,), name="lower", enable_kwargs=True)(scopes, *args, **kwargs)

    return transforms.lift_direct_transform(lifting, (fn,), module, *args, **kwargs)
