"""Flax's linen, whose modules have their variables and random numbers in a scope while they run: a function of such modules as a
function of arrays, by linen's own lifting. It is imported only where the program has linen already."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import jax


def bound(fn: Callable, args: tuple) -> tuple[Any, Callable, tuple] | None:
    """The module with a scope that a function is of, if it is of any: the module, a function that takes it first, and the other
    arguments. It is the function itself, the object whose method that is, or an argument."""
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
    """The result of a function of a module, by `lower` of a function of the arrays that the module's scope has; what changes of
    these is changed."""
    from flax.core import lift
    from flax.linen import transforms

    def lifting(of_scope, scopes, *args, **kwargs):
        # How many random numbers were drawn: as many before each trace.
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
