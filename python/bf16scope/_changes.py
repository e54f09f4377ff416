"""Changes that a function makes in place: entries of dicts and lists among its arguments are changed for the caller, as without
lowering; changes of other objects are lost, as in `jax.jit`, with a warning."""

from __future__ import annotations

import functools
import types
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import jax

from bf16scope import _jax_internals as internals
from bf16scope import _places
from bf16scope._leaves import Leaves, Shape

_DICTS = (dict, OrderedDict, defaultdict)
_NUMBERS = (bool, int, float, complex)


@dataclass(frozen=True)
class _Fixed:
    """A place or a number, as a leaf that is not an array."""

    value: Any


#: The depth to which closed-over values are searched, and the size of the largest dict or list: a value may hold itself, or a data set.
_DEPTH, _MOST = 3, 10_000


def _containers(value: Any, path: tuple = (), is_bounded: bool = False) -> Iterator[tuple[tuple, Any, Any]]:
    """The dicts and lists in a value, each with its path and a copy of its entries."""
    is_dict, is_list = type(value) in _DICTS, type(value) is list
    if not (is_dict or is_list or isinstance(value, tuple)) or is_bounded and (len(path) == _DEPTH or len(value) > _MOST):
        return
    if is_dict or is_list:
        yield path, value, value.copy()
    for key, item in list(value.items() if is_dict else enumerate(value)):
        yield from _containers(item, (*path, key), is_bounded)


def _changed(now: Any, before: Any) -> Iterator[tuple[Any, Any]]:
    """The new and replaced entries of a dict or list. What a function removes from its copy stays with the caller."""
    if isinstance(now, dict):
        yield from ((key, it) for key, it in now.items() if key not in before or before[key] is not it)
    elif len(now) >= len(before):
        yield from ((key, it) for key, it in enumerate(now) if key >= len(before) or before[key] is not it)


class Watch:
    """A look at a function's arguments and at what it closes over, before it is traced."""

    def __init__(self, fn: Callable, arguments: Any, tree: Any, leaves: list[Any]):
        self.fn, self.arguments, self.tree, self.leaves = fn, arguments, tree, leaves
        self.containers = list(_containers(arguments))
        self.closed = [(name, entries, entries.copy()) for name, entries in _closed_over(fn)]

    def changes(self) -> tuple[tuple[_Fixed, Any], ...]:
        """The changed entries of dicts and lists, each with its place: a pytree whose places are static."""
        changes: list[tuple[_Fixed, Any]] = []
        for path, now, before in self.containers:
            for key, it in _changed(now, before):
                value = jax.tree_util.tree_map(lambda leaf: _Fixed(leaf) if isinstance(leaf, _NUMBERS) else leaf, it)
                if all(map(_may_return, jax.tree_util.tree_leaves(value))):
                    changes.append((_Fixed((*path, key)), value))
        return tuple(changes)

    def warn(self) -> None:
        """Warns of changes that are lost."""
        as_in_jit = "which is lost, as in `jax.jit`"
        if lost := [*self._lost(), *self._shortened()]:
            _warn(f"`{_name(self.fn)}` changes {', '.join(lost)} of its arguments in place", as_in_jit)
        stored = [
            f"{place}{key}" if place.endswith(".") else _written(place, (key,))
            for place, now, before in self.closed
            for key, it in _changed(now, before)
            if any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree_util.tree_leaves(it))
        ]
        if stored:
            _warn(f"`{_name(self.fn)}` stores {', '.join(stored)} outside of itself while JAX traces it and has no numbers yet", as_in_jit)

    def _shortened(self) -> Iterator[str]:
        """Lists from which entries were removed and in which others were set: which entry of the caller's one is meant is not known."""
        for path, now, before in self.containers:
            known = {id(it) for it in before}
            if isinstance(now, list) and len(now) < len(before) and any(id(it) not in known for it in now):
                yield _written("", path[1:])

    def _lost(self) -> list[str]:
        """The changed attributes of objects among the arguments."""
        leaves, tree = jax.tree_util.tree_flatten(self.arguments)
        if tree == self.tree and all(map(lambda a, b: a is b, leaves, self.leaves)):
            return []
        paths = lambda arguments: {jax.tree_util.keystr(path[1:]): (path, leaf) for path, leaf in jax.tree_util.tree_flatten_with_path(arguments)[0]}
        before, now = paths(jax.tree_util.tree_unflatten(self.tree, self.leaves)), paths(self.arguments)
        changed = (place for place, (_, leaf) in now.items() if place in before and before[place][1] is not leaf)
        return [place for place in changed if _is_in_object(self.arguments, now[place][0])]


def _is_in_object(value: Any, path: tuple) -> bool:
    """Whether a path leads through an object other than a dict, a list or a tuple."""
    for key in path:
        if not (type(value) in _DICTS or isinstance(value, (list, tuple))):
            return True
        attribute = getattr(key, "name", None)
        value = value[getattr(key, "idx", getattr(key, "key", None))] if attribute is None else getattr(value, attribute)
    return False


def unread_changes(jaxpr: Any, results: Shape) -> Leaves:
    """The places of changes from which a traced function computes nothing that it returns, for `write_back`."""
    n_arrays = sum(results.is_dynamic)
    _, changes = Leaves(list(range(n_arrays)), results).whole()
    places = [(place.value, [it for it in jax.tree_util.tree_leaves(value) if isinstance(it, int)]) for place, value in changes]
    n_returned = n_arrays - sum(len(numbers) for _, numbers in places)
    unread = internals.unread_results(jaxpr, n_returned) if places else set()
    return Leaves.from_results(_Fixed(tuple(place for place, numbers in places if numbers and unread.issuperset(numbers))))


def write_back(fn: Callable, arguments: Any, changes: tuple[tuple[_Fixed, Any], ...], unread: _Fixed = _Fixed(())) -> None:
    """Makes the changes in the caller's dicts and lists, but for values of a transformation, which would outlive it. What is changed
    in JAX's copies is lost, with a warning where the function itself does not read it."""
    if unread.value and internals.is_given_copies("lowered"):
        places = ", ".join(_written("", place[1:]) for place in unread.value)
        _warn(f"`{_name(fn)}` changes {places} of its arguments in place inside of `jax.checkpoint`, `jit` or the like", "which is lost")
    is_fixed, lost = lambda it: isinstance(it, _Fixed), []
    written: dict[tuple[int, Any], tuple] = {}
    for place, value in changes:
        if any(map(internals.is_differentiated, jax.tree_util.tree_leaves(value))):
            lost.append(_written("", place.value[1:]))
            continue
        *path, key = place.value
        container = functools.reduce(lambda inside, step: inside[step], path, arguments)
        first = written.setdefault((id(container), key), place.value)
        if first != place.value:
            places = f"{_written('', first[1:])} and {_written('', place.value[1:])}"
            _warn(f"`{_name(fn)}` changes {places} of its arguments, which are one object, each in a copy of its own", "and the second change is kept")
        value = jax.tree_util.tree_map(lambda it: it.value if is_fixed(it) else it, value, is_leaf=is_fixed)
        if isinstance(container, list) and key >= len(container):
            container.append(value)
        else:
            container[key] = value
    if lost:
        _warn(f"`{_name(fn)}` changes {', '.join(lost)} of its arguments in place inside of `jax.grad`, `vmap` or the like", "which is lost")


def _warn(measured: str, outcome: str) -> None:
    help = "return what changes, and set it where the function is called"
    _places.warn(f"{measured}, {outcome}: {help}")


def _name(fn: Callable) -> str:
    return getattr(fn, "__name__", type(fn).__name__)


def _may_return(leaf: Any) -> bool:
    """Whether a leaf is an array, or can be static."""
    try:
        return hasattr(leaf, "dtype") or hash(leaf) is not None
    except TypeError:
        return False


def _closed_over(fn: Callable) -> Iterator[tuple[str, Any]]:
    """The dicts and lists that a function closes over or finds in its module, and the attributes of such objects, each with its name:
    `log`, `self.`."""
    while isinstance(fn, functools.partial) or hasattr(fn, "__wrapped__"):
        fn = fn.func if isinstance(fn, functools.partial) else fn.__wrapped__
    code = getattr(fn, "__code__", None)
    names, known = getattr(code, "co_names", ()), getattr(fn, "__globals__", {})
    closed = [(name, known[name]) for name in names if name in known]
    for name, cell in zip(getattr(code, "co_freevars", ()), getattr(fn, "__closure__", None) or ()):
        try:
            closed.append((name, cell.cell_contents))
        except ValueError:  # It is not set yet.
            pass
    this = getattr(fn, "__self__", fn if code is None else None)
    for name, value in [*closed, ("self", this)]:
        yield from ((_written(name, path), it) for path, it, _ in _containers(value, is_bounded=True))
        is_plain = not isinstance(value, (type, types.ModuleType, types.FunctionType, types.MethodType, jax.Array, *_DICTS, list, tuple))
        if is_plain and isinstance(getattr(value, "__dict__", None), dict):
            yield f"{name}.", value.__dict__


def _written(name: str, path: tuple) -> str:
    return name + "".join(f"[{key!r}]" for key in path)
