"""Splits the leaves of arguments and results into arrays and static values. It is independent of lowering."""

from __future__ import annotations

import inspect
import operator
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np

from bf16scope import _jax_internals as internals
from bf16scope._errors import Error


@dataclass(frozen=True)
class Shape:
    """A pytree without its arrays."""

    tree: Any
    is_dynamic: tuple[bool, ...]
    statics: tuple[Any, ...] = field(compare=False)
    #: Keys that distinguish static leaves, types first, since 1, 1.0 and True are equal in Python.
    keys: tuple[Any, ...]

    def leaves(self, arrays: Sequence[Any]) -> list[Any]:
        dynamic, static = iter(arrays), iter(self.statics)
        return [next(dynamic if is_dynamic else static) for is_dynamic in self.is_dynamic]

    def check_is_computed(self, function: str, arguments: Shape) -> None:
        """Checks that no result, such as a coroutine or a generator, computes only after the function has returned. Arguments may
        be returned whatever they are.

        Raises:
          Error: one does.
        """
        for it in self.statics:
            if isinstance(it, (Awaitable, Iterator)) and all(it is not argument for argument in arguments.statics):
                getattr(it, "close", lambda: None)()
                raise Error(
                    f"`{function}` gives a {type(it).__name__}, which computes after JAX has traced the function",
                    "give arrays: a list of them, or lower the function that the coroutine calls",
                )


class Leaves:
    """A pytree with leaves that need not be arrays; JAX sees only the arrays as its leaves."""

    def __init__(self, arrays: list[Any], shape: Shape):
        self.arrays, self.shape = arrays, shape

    @staticmethod
    def from_arguments(value: Any) -> Leaves:
        """The leaves of arguments. Booleans are static. While JAX traces, all Python numbers are static, since they are constants of
        the surrounding function, as without lowering. Otherwise a number is an array, which may differ from call to call."""
        leaves, tree = jax.tree_util.tree_flatten(value)
        if all(map(_is_array, leaves)):
            return _split(leaves, tree, [True] * len(leaves))
        is_traced = any(isinstance(leaf, jax.core.Tracer) for leaf in leaves) or internals.is_tracing()
        kinds = (bool, int, float, complex) if is_traced else bool
        return _split(leaves, tree, _are_dynamic(value, leaves, kinds))

    @staticmethod
    def from_results(value: Any) -> Leaves:
        leaves, tree = jax.tree_util.tree_flatten(value)
        return _split(leaves, tree, _are_dynamic(value, leaves, ()))

    def with_arrays(self, arrays: Sequence[Any]) -> Leaves:
        return Leaves(list(arrays), self.shape)

    def whole(self) -> Any:
        return jax.tree_util.tree_unflatten(self.shape.tree, self.shape.leaves(self.arrays))


jax.tree_util.register_pytree_node(Leaves, lambda it: (it.arrays, it.shape), lambda shape, arrays: Leaves(list(arrays), shape))

_NUMBERS = (bool, int, float, complex)


def _split(leaves: list[Any], tree: Any, is_dynamic: list[bool]) -> Leaves:
    arrays = [leaf for leaf, dynamic in zip(leaves, is_dynamic) if dynamic]
    statics = tuple(leaf for leaf, dynamic in zip(leaves, is_dynamic) if not dynamic)
    keys = tuple((type(it), repr(it) if isinstance(it, _NUMBERS) else it) for it in statics)
    return Leaves(arrays, Shape(tree, tuple(is_dynamic), statics, keys))


def _is_array(leaf: Any) -> bool:
    if isinstance(leaf, (jax.Array, np.ndarray, np.generic, jax.core.Tracer)):
        return True
    is_shaped = hasattr(leaf, "__jax_array__") or hasattr(leaf, "aval") or (hasattr(leaf, "dtype") and hasattr(leaf, "shape"))
    return is_shaped and not isinstance(leaf, type)


def _are_dynamic(value: Any, leaves: list[Any], static: Any) -> list[bool]:
    """Whether each leaf is dynamic, that is, computed with by JAX. Static leaves are those that are neither arrays nor numbers,
    numbers of the `static` types, and numbers inside of an object, such as an iteration count of an equinox module."""
    is_dynamic = [_is_array(leaf) or isinstance(leaf, _NUMBERS) and not isinstance(leaf, static) for leaf in leaves]
    if any(dynamic and isinstance(leaf, _NUMBERS) for dynamic, leaf in zip(is_dynamic, leaves)):
        paths = jax.tree_util.tree_flatten_with_path(value)[0]
        builtin = (jax.tree_util.DictKey, jax.tree_util.SequenceKey)
        is_of_object = [not all(isinstance(key, builtin) for key in path) for path, _ in paths]
        is_dynamic = [it and not (isinstance(leaf, _NUMBERS) and of_object) for it, leaf, of_object in zip(is_dynamic, leaves, is_of_object)]
    # A leaf that is not hashable cannot be static: JAX reports that it is not an array.
    return [dynamic or not _is_hashable(leaf) for dynamic, leaf in zip(is_dynamic, leaves)]


def _is_hashable(leaf: Any) -> bool:
    try:
        hash(leaf)
    except TypeError:
        return False
    return True


@dataclass(frozen=True)
class _Static:
    """A static argument as a single leaf."""

    #: It is compared first: values of two types may have no comparison, and 1 equals True.
    kind: type
    value: Any


def bare(arguments):
    """Arguments with static ones unwrapped."""
    if isinstance(arguments, dict):
        return {name: it.value if isinstance(it, _Static) else it for name, it in arguments.items()}
    return tuple(it.value if isinstance(it, _Static) else it for it in arguments)


def _numbers_in(value: Any) -> set[int]:
    """The numbers in `static_argnums`."""
    many = () if value is None else value if isinstance(value, Iterable) else (value,)
    try:
        return {operator.index(it) for it in many}
    except TypeError:
        raise Error(f"static_argnums is {value!r}", "write numbers of arguments: static_argnums=(0, 2)") from None


def _names_in(value: Any) -> set[str]:
    """The names in `static_argnames`."""
    many = () if value is None else tuple(value) if isinstance(value, Iterable) and not isinstance(value, str) else (value,)
    if not all(isinstance(it, str) for it in many):
        raise Error(f"static_argnames is {value!r}", 'write names of arguments: static_argnames=("mode", "n")')
    return set(many)


class Statics:
    """The static arguments of a function, by number and by name, as for `jax.jit`."""

    def __init__(self, fn: Callable, numbers: int | Iterable[int] | None, names: str | Iterable[str] | None):
        self.numbers, self.names = _numbers_in(numbers), _names_in(names)
        self.function: str = getattr(fn, "__name__", repr(fn))
        self.positional: list[str] = []
        # Static arguments of the `jax.jit` that made the function are static for the lowered function.
        by_jit = internals.statics_of_jit(fn)
        self.numbers, self.names = self.numbers | by_jit[0], self.names | by_jit[1]
        if not self.numbers and not self.names:
            return
        try:
            parameters = list(inspect.signature(fn).parameters.values())
        except (TypeError, ValueError):
            return
        positional = self.positional = [it.name for it in parameters if it.kind in (it.POSITIONAL_ONLY, it.POSITIONAL_OR_KEYWORD)]
        self._check(parameters, len(positional))
        by_number = {positional[number] for number in self.numbers if -len(positional) <= number < len(positional)}
        self.numbers |= {number for number, name in enumerate(positional) if name in self.names}
        self.names |= by_number

    def _check(self, parameters: list[inspect.Parameter], n_positional: int) -> None:
        beyond = sorted(number for number in self.numbers if not -n_positional <= number < n_positional)
        if beyond and not any(it.kind == it.VAR_POSITIONAL for it in parameters):
            raise Error(
                f"static_argnums has {beyond[0]}, and `{self.function}` takes {n_positional} positional arguments",
                f"write numbers from 0 to {n_positional - 1}" if n_positional else "leave static_argnums out",
            )
        known = [it.name for it in parameters if it.kind in (it.POSITIONAL_OR_KEYWORD, it.KEYWORD_ONLY)]
        unknown = sorted(name for name in self.names if name not in known)
        if unknown and not any(it.kind == it.VAR_KEYWORD for it in parameters):
            raise Error(
                f"static_argnames has `{unknown[0]}`, and `{self.function}` takes no argument of that name", f"its arguments are {', '.join(known)}"
            )

    def marked(self, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
        if not self.numbers and not self.names:
            return args, kwargs
        numbers = {number % len(args) for number in self.numbers if -len(args) <= number < len(args)} if args else set()
        args = tuple(self._static(arg, number) if number in numbers else arg for number, arg in enumerate(args))
        return args, {name: self._static(arg, name) if name in self.names else arg for name, arg in kwargs.items()}

    def _static(self, arg: Any, place: int | str) -> _Static:
        """A static argument, marked.

        Raises:
          Error: it has no hash.
        """
        if _is_hashable(arg):
            return _Static(type(arg), arg)
        name = place if isinstance(place, str) else self.positional[place] if place < len(self.positional) else f"number {place}"
        measured = f"{type(arg).__module__}.{type(arg).__name__}".removeprefix("builtins.")
        help = "give a value with a hash, such as a tuple"
        if isinstance(arg, jax.core.Tracer):
            measured, help = "an array that JAX is tracing", "make it static in the `jax.jit` around the function too"
        raise Error(
            f"argument `{name}` of `{self.function}` is static, and is {measured}, which has no hash",
            f"{help}, or take `{name}` out of static_argnums and static_argnames",
        )
