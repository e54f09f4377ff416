"""Support for flax's nnx, whose modules change in place: nnx's documented `split` and `merge` turn functions of modules into
functions of arrays, and layers get names. nnx is used only if the program has already imported it."""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import jax

from bf16scope._leaves import bare


def _nnx() -> Any:
    return sys.modules.get("flax.nnx")


def has_objects(arguments: Any) -> bool:
    """Whether the arguments contain nnx objects: modules, optimizers, random number generators and the like."""
    nnx = _nnx()
    if nnx is None or not hasattr(nnx, "update_context"):
        return False
    return _is_among(arguments, _objects(nnx))


def are_in_states(arguments: Any) -> bool:
    """Whether the nnx objects among the arguments are all variables of a `State`, as `split` gives it. They are values, which no
    function changes in place."""
    nnx = _nnx()
    is_whole = lambda value: isinstance(value, (nnx.State, *_objects(nnx)))
    without = jax.tree_util.tree_map(lambda value: None if isinstance(value, nnx.State) else value, arguments, is_leaf=is_whole)
    return not has_objects(without)


def _objects(nnx: Any) -> tuple[type, ...]:
    return tuple(getattr(nnx, name) for name in ("Object", "Pytree", "Module", "Variable") if hasattr(nnx, name))


def _is_among(arguments: Any, kinds: Any) -> bool:
    # An object is taken as a leaf, so nested objects need not be searched.
    is_one = lambda value: isinstance(value, kinds)
    return any(map(is_one, jax.tree_util.tree_leaves(arguments, is_leaf=is_one)))


class Pure:
    """A function of objects as a function of their structure and arrays. It returns the structure and arrays of the function's
    result and of its arguments after the call."""

    #: Its objects are open only during the first trace.
    is_open_once = True

    def __init__(self, fn: Callable):
        self.fn = fn
        functools.update_wrapper(self, fn, updated=())

    def __call__(self, graph: Any, state: Any) -> tuple[Any, Any]:
        nnx = _nnx()
        with nnx.merge_context(self, inner=True) as context:
            args, kwargs = context.merge(graph, state)
        with named_layers():
            out = self.fn(*bare(args), **bare(kwargs))
        with nnx.split_context(self) as context:
            # The result comes first, so that a loss is the first of the flat results.
            return context.split((out, (args, kwargs)))

    def of_objects(self, call: Callable, args: tuple, kwargs: dict) -> Any:
        """The function's result, computed by a `call` of this function; changes to its arguments are written back."""
        nnx = _nnx()
        with nnx.update_context(self):
            with nnx.split_context(self) as context:
                graph, state = context.split((args, kwargs))
            graph, state = call(graph, state)
            with nnx.merge_context(self, inner=False) as context:
                out, _ = context.merge(graph, state)
        return out


    def alone(self, args: tuple, kwargs: dict) -> tuple[Callable, tuple[tuple, dict]]:
        """The function as a function of arrays only, and these arrays; changes to its arguments are discarded."""
        nnx = _nnx()
        graph, state = nnx.split((args, kwargs))

        def of_state(state):
            args, kwargs = nnx.merge(graph, state)
            with named_layers():
                out = self.fn(*bare(args), **bare(kwargs))
            return nnx.state(out) if has_objects(out) else out

        functools.update_wrapper(of_state, self.fn, updated=())
        return of_state, ((state,), {})


class _Local(threading.local):
    def __init__(self):
        #: The modules that are being called, outermost first; None outside of a lowered function.
        self.modules: list[Any] | None = None


_local = _Local()
_lock = threading.Lock()
#: The original `__call__` of classes whose `__call__` is replaced, and the number of functions that are being traced.
_replaced: dict[type, Any] = {}
_n_traced = 0


@contextlib.contextmanager
def named_layers() -> Iterator[None]:
    """Within this block a module's operations are named after its attribute in the calling module, or after its class, as in
    linen."""
    global _n_traced
    with _lock:
        _n_traced += 1
        for kind in _kinds(_nnx().Module):
            if "__call__" in vars(kind) and kind not in _replaced:
                _replaced[kind] = vars(kind)["__call__"]
                kind.__call__ = _named(kind, _replaced[kind])
    before, _local.modules = _local.modules, []
    try:
        yield
    finally:
        _local.modules = before
        with _lock:
            _n_traced -= 1
            if _n_traced == 0:
                for kind, method in _replaced.items():
                    kind.__call__ = method
                _replaced.clear()


def _kinds(kind: type) -> Iterator[type]:
    yield kind
    for below in kind.__subclasses__():
        yield from _kinds(below)


def _named(kind: type, method: Any) -> Callable:
    @functools.wraps(method)
    def call(self, *args, **kwargs):
        bound = method.__get__(self, kind)
        modules = _local.modules
        # A method that calls its superclass's method is the same layer.
        if modules is None or modules and modules[-1] is self:
            return bound(*args, **kwargs)
        name = (_attribute(modules[-1], self) if modules else None) or type(self).__name__
        modules.append(self)
        try:
            with jax.named_scope(name):
                return bound(*args, **kwargs)
        finally:
            modules.pop()

    return call


def _attribute(module: Any, inner: Any) -> str | None:
    """The path of a module in the attributes of the module that calls it: `layers/0`."""
    rest: list[tuple[str, Any]] = list(vars(module).items())
    while rest:
        path, value = rest.pop(0)
        if value is inner:
            return path
        items = enumerate(value) if isinstance(value, (list, tuple)) else value.items() if isinstance(value, dict) else ()
        if type(value).__name__ in ("List", "Dict"):
            items = ((name.lstrip("_"), it) for name, it in vars(value).items())
        rest += [(f"{path}/{name}", it) for name, it in items]
    return None
