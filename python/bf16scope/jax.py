"""Automatic mixed precision for JAX: a function goes in, the same function in bfloat16 comes out.

    import bf16scope.jax

    step = jax.jit(bf16scope.jax.lower(step), donate_argnums=0)

The returned function has the signature, the structure of results and the dtypes of the original. Inside, matrix products,
convolutions and the operations between them are bfloat16; sums of losses, statistics, logarithms and updates stay f32. XLA may
drop roundings to bfloat16 where it goes on in f32 (JAX allows excess precision): results are then closer to f32's, not farther.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
import inspect
import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar, overload

import numpy as np

try:
    import jax
except ImportError as error:
    raise ImportError(f"bf16scope.jax needs JAX ({error}): pip install 'bf16scope[jax]'") from error

from bf16scope import _derivatives as derivatives
from bf16scope import _jax_internals as internals
from bf16scope import _linen, _native, _nnx, _places, _program
from bf16scope._answer import Answer
from bf16scope._changes import Watch, unread_changes, write_back
from bf16scope._errors import Error
from bf16scope._leaves import Leaves, Shape, Statics, bare
from bf16scope._module import Module, Policy, Report, patterns, policy_text, policy_word
from bf16scope._scale import LossScale, scaled

__all__ = [
    "LossScale",
    "audit",
    "compile_for",
    "explain",
    "explain_casts",
    "fit",
    "full_precision",
    "lower",
    "module",
    "policy_for",
    "scaled",
]


#: The outermost of the two that runs: a lowered function, or `full_precision`.
_outermost: contextvars.ContextVar[str] = contextvars.ContextVar("bf16scope_outermost", default="")


def _is_in_full_precision() -> bool:
    # A lowered function that is pickled by its code, as cloudpickle does, would take the variable along, which has no pickle.
    return _outermost.get() == "full_precision"


@contextlib.contextmanager
def _within(name: str):
    token = _outermost.set(_outermost.get() or name)
    try:
        yield
    finally:
        _outermost.reset(token)


@contextlib.contextmanager
def _full_precision():
    with _within("full_precision"), jax.named_scope(internals.FULL_PRECISION):
        yield


_Function = TypeVar("_Function", bound=Callable[..., Any])


@overload
def full_precision(fn: _Function) -> _Function: ...
@overload
def full_precision(fn: None = None) -> contextlib.AbstractContextManager[None]: ...
def full_precision(fn=None):
    """Keeps operations in f32 inside of a lowered function, as `torch.autocast(enabled=False)` does: all operations of a function
    and their gradients, or, without a function, those of a context: `with full_precision():`. Around a call of a lowered
    function it changes nothing, and warns."""
    return _full_precision() if fn is None else _full_precision()(fn)


@overload
def lower(
    fn: _Function,
    policy: Policy = "default",
    dtype: Any = None,
    keep: str | Iterable[str] = (),
    *,
    static_argnums: int | Iterable[int] | None = (),
    static_argnames: str | Iterable[str] | None = (),
) -> _Function: ...
@overload
def lower(
    fn: None = None,
    policy: Policy = "default",
    dtype: Any = None,
    keep: str | Iterable[str] = (),
    *,
    static_argnums: int | Iterable[int] | None = (),
    static_argnames: str | Iterable[str] | None = (),
) -> Callable[[_Function], _Function]: ...
def lower(
    fn=None,
    policy="default",
    dtype=None,
    keep=(),
    *,
    static_argnums=(),
    static_argnames=(),
):
    """Lowers the inside of a function to bfloat16.

    The lowered function works alone, under `jax.jit`, `jax.grad`, `jax.vmap`, `jax.jvp`, `jax.checkpoint`, inside `scan`, `cond`, `while_loop`
    and `shard_map`, and with modules of flax's nnx and of equinox as arguments. Without a function, `lower` is a decorator:
    `@lower(policy="O2")`, also for methods, and for a class of modules, whose `__call__` it lowers.

    Lower a training step whole, with its `value_and_grad` and update in it, or its loss: `jax.grad` of a lowered loss (a
    function whose first float result is an f32 number) is lowered as a single module with its gradients, so that residuals are
    decided together with the backward pass that reads them. For any other function, and in float16, the forward and the backward
    pass are two modules, each lowered, and residuals that are bfloat16 inside stay bfloat16.

    Args:
      fn: any function of pytrees that `jax.jit` takes, or a method of a linen module; leaves that are not arrays are static.
      policy: which operations may be lowered: a preset (`bf16scope.policies()`), a policy document (YAML, or a dict of it), or the
        path of a file with one; `policy_for` finds one for a TPU. If a policy makes parameters or results narrow, they are cast at
        the function's boundary.
      dtype: `bfloat16` or `float16`, or JAX's dtypes; default the policy's, which is bfloat16. Gradients in float16 need a scaled
        loss.
      keep: patterns of the names of operations that stay in f32 (`*/layer_norm/*`; names are those of `jax.named_scope` and of
        jaxprs).
      static_argnums: as for `jax.jit`; arguments that a `jax.jit` around the function takes as static are static without it.
      static_argnames: as for `jax.jit`.

    Raises:
      bf16scope.Error: `fn` is not a function; the policy does not exist, or contradicts itself.
    """
    if fn is None:
        return functools.partial(
            lower, policy=policy, dtype=dtype, keep=keep, static_argnums=static_argnums, static_argnames=static_argnames
        )
    if not callable(fn):
        raise Error(f"`lower` takes a function, and was given {type(fn).__name__}", "write `lower(step)`, not `lower(step(x))`")
    if isinstance(fn, type):
        return _class(fn, functools.partial(lower, policy=policy, dtype=dtype, keep=keep, static_argnums=static_argnums, static_argnames=static_argnames))
    if internals.has_compiler_options(fn):
        raise Error(
            f"`{_called(fn)}` is a `jax.jit` with compiler_options, which JAX takes only from the outermost `jax.jit`",
            "move them there: `jax.jit(lower(step), compiler_options=…)`",
        )
    text = policy_text(policy)
    options = internals.Options(text, _native.narrow_dtype(text, _name(dtype)), tuple(patterns(keep)))
    statics = Statics(fn, static_argnums, static_argnames)
    plain, pure = _plain(fn, options), _nnx.Pure(fn)
    of_arrays = _plain(pure, options)

    @functools.wraps(fn)
    def lowered(*args, **kwargs):
        if _is_in_full_precision():
            help = f"write `full_precision` inside of `{_called(fn)}`, or call it without `lower`"
            _places.warn(f"`{_called(fn)}` is lowered, and a `full_precision` around its call changes nothing: {help}")
        args, kwargs = statics.marked(args, kwargs)
        if _nnx.has_objects((args, kwargs)):
            if not _nnx.are_in_states((args, kwargs)):
                return pure.of_objects(of_arrays, args, kwargs)
            with _nnx.named_layers():
                return plain(*args, **kwargs)
        if bound := _linen.bound(fn, args):
            return _linen.lifted(functools.partial(_plain, options=options), *bound, kwargs)
        return plain(*args, **kwargs)

    # equinox takes a module here, such as its `filter_grad`, for an attribute that is not trained.
    lowered.__wrapped__ = inspect.unwrap(fn)
    lowered.__bf16scope__ = fn, options  # type: ignore[attr-defined]
    return lowered


def _class(modules: type, lowering: Callable) -> type:
    """A subclass of a class of modules, under the same name, whose `__call__` is lowered."""
    if not any("__call__" in vars(base) for base in modules.__mro__[:-1]):
        raise Error(
            f"`lower` takes a function, or a class of modules that can be called, and {modules.__name__} has no `__call__`",
            "write `@lower` above a method of it",
        )
    named = {name: getattr(modules, name) for name in ("__module__", "__qualname__", "__doc__")}
    return type(modules)(modules.__name__, (modules,), {**named, "__call__": lowering(modules.__call__)})


def _plain(fn: Callable, options) -> Callable:
    """A function of pytrees, lowered."""
    run = jax.jit(functools.partial(_run, fn, options), static_argnums=0, inline=True)
    donating: dict[tuple[int, ...], Callable] = {}

    def run_donating(leaves, args, kwargs):
        """The results, of a function that `jax.jit` made with donated arguments, called outside of a program."""
        is_donated = [it for it, dynamic in zip(internals.donated_by_jit(fn, args, kwargs), leaves.shape.is_dynamic) if dynamic]
        numbers = tuple(number for number, it in enumerate(is_donated, start=1) if it)
        if numbers not in donating:
            donating[numbers] = jax.jit(functools.partial(_run, fn, options), static_argnums=0, donate_argnums=numbers)
        return donating[numbers](leaves.shape, *leaves.arrays)

    def finished(results, args, kwargs, *unread):
        out, changes = results.whole()
        write_back(fn, (args, kwargs), changes, *(it.whole() for it in unread))
        return out

    def call(*args, **kwargs):
        leaves = Leaves.from_arguments((args, kwargs))
        # Every trace changes the contents of open objects, so a function of them is not traced once more.
        if not getattr(fn, "is_open_once", False) and internals.differentiated(leaves.arrays):
            flat, results = _flat(fn, leaves.shape)
            arrays = derivatives.loss_at_once(flat, options, leaves.arrays)
            if arrays is not None:
                return finished(Leaves(arrays, results[0]), args, kwargs)
        if internals.donates(fn) and not internals.is_tracing():
            results, unread = run_donating(leaves, args, kwargs)
        else:
            results, unread = run(leaves.shape, *leaves.arrays)
        return finished(results, args, kwargs, unread)

    return call


def _flat(fn: Callable, shape: Shape) -> tuple[Callable, list[Shape]]:
    """The function as a function of flat arrays, for arguments of this shape, and a list that holds its results' shape after a
    call. The results themselves belong to one trace, and would be a leak outside of it."""
    results: list[Shape] = []

    # With the function's name and source position in JAX's messages.
    @functools.wraps(fn, updated=())
    def flat(*arrays):
        leaves = shape.leaves(arrays)
        args, kwargs = jax.tree_util.tree_unflatten(shape.tree, leaves)
        watch = Watch(fn, (args, kwargs), shape.tree, leaves)
        with _within("lower"):
            out = fn(*bare(args), **bare(kwargs))
        watch.warn()
        flat_out = Leaves.from_results((out, watch.changes()))
        flat_out.shape.check_is_computed(_called(fn), shape)
        results[:] = [flat_out.shape]
        return flat_out.arrays

    return flat, results


def _run(fn: Callable, options, shape: Shape, *arrays) -> tuple[Leaves, Leaves]:
    """The results of a lowered function whose arguments have this shape, and which of its changes in place it does not read."""
    flat, results = _flat(fn, shape)
    jaxpr, consts = internals.trace(flat, options, arrays)
    if internals.is_of_each_device(jaxpr):
        # The gradients of values that are the same on all devices are then summed outside.
        arrays = internals.vary_alike(list(arrays))
        jaxpr, consts = internals.trace(flat, options, arrays)
    # JAX differentiates a function faster than its jaxpr. A function that closes over values of another trace, or that reads
    # objects that are open only now, cannot be traced later.
    is_lasting = not getattr(fn, "is_open_once", False) and not any(isinstance(it, jax.core.Tracer) for it in consts)
    again = (lambda *args: flat(*args[len(consts) :])) if is_lasting else functools.partial(internals.inside, jaxpr)
    unread = unread_changes(jaxpr, results[0])
    return Leaves(list(derivatives.differentiable(jaxpr, options, again)(*consts, *arrays)), results[0]), unread


def module(fn: Callable, *args, platform: str | None = None, **kwargs) -> Module:
    """The module of a function for such arguments (arrays, or their `jax.ShapeDtypeStruct`s), in f32 as it is written. It donates
    the arguments that `jax.jit` donates.

    Args:
      platform: `cpu`, `tpu`, `cuda` or `rocm`; default the platform on which JAX runs.
    """
    if platform not in (None, *internals.PLATFORMS):
        raise Error(f"JAX has no platform `{platform}` that bf16scope knows", f"write one of {', '.join(internals.PLATFORMS)}")
    pure, (args, kwargs) = _of_arrays(fn, args, kwargs)
    traced = jax.jit(pure, keep_unused=True, **_donated(pure, args, kwargs)).trace(*args, **kwargs)
    lowered = traced.lower(lowering_platforms=(platform or jax.default_backend(),))
    return Module.read(lowered.compiler_ir("hlo").as_serialized_hlo_module_proto(), _called(fn))


def _of_arrays(fn: Callable, args: tuple, kwargs: dict) -> tuple[Callable, tuple[tuple, dict]]:
    """The function in a form that JAX traces: without options for another compiler, and a function of arrays only, if its
    arguments have other leaves or objects."""
    fn = internals.without_compiler_options(fn)
    if _nnx.has_objects((args, kwargs)):
        return _nnx.Pure(fn).alone(args, kwargs)
    leaves = Leaves.from_arguments((args, kwargs))
    if all(leaves.shape.is_dynamic):
        return fn, (args, kwargs)

    @functools.wraps(fn, updated=())
    def of_arrays(*arrays):
        args, kwargs = leaves.with_arrays(arrays).whole()
        return Leaves.from_results(fn(*args, **kwargs)).arrays

    return of_arrays, (tuple(leaves.arrays), {})


def _donated(fn: Callable, args: tuple, kwargs: dict) -> dict:
    """The arguments that a function made by `jax.jit` donates, as options of `jax.jit`."""
    if not hasattr(fn, "trace"):
        return {}
    numbered, named = fn.trace(*args, **kwargs).args_info
    if len(numbered) + len(named) != len(args) + len(kwargs):
        raise Error(
            f"`{_called(fn)}` has static arguments, which a module does not have",
            "give the function without `jax.jit`, and with their values: `lambda params, x: step(params, x, 3)`",
        )
    is_donated = lambda arg: any(leaf.donated for leaf in jax.tree_util.tree_leaves(arg))
    return {
        "donate_argnums": tuple(number for number, arg in enumerate(numbered) if is_donated(arg)),
        "donate_argnames": tuple(name for name, arg in named.items() if is_donated(arg)),
    }


def explain_casts(
    fn: Callable,
    *args,
    policy: Policy = "default",
    dtype: str | None = None,
    keep: str | Iterable[str] = (),
    **kwargs,
) -> Report:
    """Reports what `lower` decides for each operation of a function over such arguments, and why. A lowered function is reported
    with its own policy."""
    fn, options = _as_written(fn)
    if options and (policy, dtype, keep) == ("default", None, ()):
        policy, dtype, keep = options.policy, options.dtype, options.keep
    if _has_bodies(fn, args, kwargs):
        pure, (args, kwargs) = _of_arrays(fn, args, kwargs)
        parts = internals.lowered_parts(lower(pure, policy, dtype, keep), args, kwargs)
        return Report.joined([(part.name, report) for part, report in parts])
    _, report = module(fn, *args, **kwargs).lower(policy, _name(dtype), keep)
    return report


def _has_bodies(fn: Callable, args: tuple, kwargs: dict) -> bool:
    """Whether the function has bodies that each device runs (`shard_map`), which `lower` lowers each by itself."""
    pure, (args, kwargs) = _of_arrays(fn, args, kwargs)
    return internals.holds_shard_map(pure, args, kwargs)


def _as_written(fn: Callable) -> tuple[Callable, Any]:
    """The original of a lowered function, and the options that it is lowered with; None for a function that is not lowered."""
    fn, options = getattr(fn, "__bf16scope__", (fn, None))
    return fn, options


def audit(
    fn: Callable,
    *args,
    policy: Policy = "default",
    dtype: str | None = None,
    keep: str | Iterable[str] = (),
    budget: float | None = None,
    **kwargs,
) -> Answer:
    """Compares the function in f32 with its lowered form, operation by operation, over these arguments: is it still right? The body
    of a `shard_map` is lowered as part of the whole here, and `lower` lowers it by itself.

    Args:
      policy, dtype, keep: as for `lower`.
      budget: the largest scaled error that a result may have; if one exceeds it, operations to keep in f32 are searched. Without a
        budget `is_right` is None unless there is no error at all. `search["policy"]` is None if no policy was found.
    """
    fn, options = _as_written(fn)
    if options and (policy, dtype, keep) == ("default", None, ()):
        policy, dtype, keep = options.policy, options.dtype, options.keep
    leaves: list[Any] = [_numbers(leaf) for leaf in jax.tree_util.tree_leaves((args, kwargs))]
    if any(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in leaves):
        raise Error("`audit` computes the function, and was given shapes", "give arrays; `explain_casts` takes shapes")
    with tempfile.TemporaryDirectory() as folder:
        inputs = Path(folder) / "inputs.npz"
        np.savez(inputs, **{f"in{number}": leaf for number, leaf in enumerate(leaves)})
        options = ["--inputs", inputs, "--policy", policy_word(policy, folder), *(["--dtype", _short(_name(dtype))] if dtype else [])]
        options += [word for pattern in patterns(keep) for word in ("--keep", pattern)]
        if budget is not None:
            options += ["--budget", str(budget), "--save-policy", Path(folder) / "policy.yaml"]
        answer = _asked("audit", fn, folder, module(fn, *args, **kwargs), *options, page=True, allow=(0, 1))
    if answer.search and answer.search["end"] in ("nothing_left", "too_many"):
        answer.search["policy"] = None
    # Results are named as JAX names the leaves of the function's result.
    paths = jax.tree_util.tree_flatten_with_path(jax.eval_shape(fn, *args, **kwargs))[0]
    for result in answer.results:
        result["name"] = result["name"] or jax.tree_util.keystr(paths[result["index"]][0])
    return answer


def compile_for(
    fn: Callable, *args, target: str = "tpu-v2", compare: bool = False, policy: Policy | None = None, **kwargs
) -> Answer:
    """Compiles the function for a TPU by Google's compiler, without a TPU: memory, cycles, seconds.

    Args:
      args: arrays, or their `jax.ShapeDtypeStruct`s.
      target: `tpu-v2`, `tpu-v3`, … and a grid of chips if not one board: `tpu-v3:4x4`.
      compare: the function as it is and lowered, side by side.
      policy: lower the function first. A function from `lower` is lowered already.
    """
    options: list[str | Path] = ["--target", target]
    asked = lambda fn, folder, *more: _asked("compile", fn, folder, module(fn, *args, platform="tpu", **kwargs), *options, *more, allow=(0, 1))
    with tempfile.TemporaryDirectory() as folder:
        if (compare or policy) and _has_bodies(fn, args, kwargs):
            low = asked(lower(internals.without_compiler_options(fn), policy or "default"), folder)
            if not compare:
                return low
            # The program lowers a module as a whole, so that both are compiled as they are.
            answer, plain = low.to_dict(), asked(fn, folder).to_dict()
            form = {"precision": policy if isinstance(policy, str) else "default" if policy is None else "policy"}
            return Answer("compile", {**answer, "reports": [*plain["reports"], *({**it, **form} for it in answer["reports"])]})
        more = [*(["--compare"] if compare else []), *(["--policy", policy_word(policy, folder)] if policy else [])]
        return asked(fn, folder, *more)


def policy_for(
    fn: Callable, *args, target: str = "tpu-v2", compiles: int = 24, policy: Policy = "default", **kwargs
) -> dict[str, Any]:
    """Searches for the cheapest lowering of the function for a TPU, as `bf16scope lower --target` does: where rules are in doubt,
    Google's compiler compiles both forms. The result is a policy for `lower` of this very function, with such arguments.

    Args:
      target: as for `compile_for`.
      compiles: the largest number of programs that are compiled, besides cached ones.
      policy: the policy that is searched from.
    """
    pure, (args, kwargs) = _of_arrays(_as_written(fn)[0], args, kwargs)
    # Decisions name instructions of the module that `lower` reads.
    parts = internals.lowered_parts(lower(pure, "O0"), args, kwargs, ("tpu",))
    if len(parts) != 1:
        measured = f"`{_called(fn)}` is lowered as {len(parts)} modules, and decisions are for one"
        raise Error(measured, "ask about the function that each device runs in its `shard_map`")
    with tempfile.TemporaryDirectory() as folder:
        path, report = Path(folder) / "module.pb", Path(folder) / "report.json"
        path.write_bytes(parts[0][0].proto())
        options = ["-o", Path(folder) / "lowered.pb", "--target", target, "--compiles", str(compiles)]
        options += ["--policy", policy_word(policy, folder)]
        return _program.ask("lower", path, *options, names={str(path): _called(fn)}, report=report)["policy"]


def explain(fn: Callable, *args, target: str = "tpu-v2", **kwargs) -> Answer:
    """Shows where the compiled function's memory and time go: buffers at the peak, operations, source lines."""
    with tempfile.TemporaryDirectory() as folder:
        program = module(fn, *args, platform="tpu", **kwargs)
        return _asked("explain", fn, folder, program, "--target", target, page=True)


def fit(fn: Callable, of_batch: Callable[[int], tuple], batches: Sequence[int], target: str = "tpu-v2") -> Answer:
    """Finds which of these batches fit on a TPU, and which is best.

    Args:
      of_batch: gives the arguments for a number of examples: `lambda n: (params, jax.ShapeDtypeStruct((n, 224, 224, 3), "float32"))`.
        The batch is the first axis of the first argument array whose first axis is the number of examples.
    """
    if not callable(of_batch):
        raise Error(f"`of_batch` is {type(of_batch).__name__}", "give a function of the number of examples: `lambda n: (params, images(n))`")
    if not isinstance(batches, Sequence) or not batches:
        raise Error(f"`batches` is {batches!r}", "give the numbers of examples to try: [32, 64, 128]")
    with tempfile.TemporaryDirectory() as folder:
        place = None
        for n in batches:
            args = of_batch(n)
            if not isinstance(args, tuple):
                raise Error(f"`of_batch({n})` gives a {type(args).__name__}", "give a tuple of the function's arguments")
            leaves = jax.tree_util.tree_leaves(args)
            matches = {number for number, leaf in enumerate(leaves) if np.shape(leaf)[:1] == (n,)}
            if not matches:
                raise Error(f"of {n} examples no argument has {n} rows", "make the first axis of an argument the batch")
            # A state may happen to have as many rows as one of the batches, but not as every batch.
            place = matches if place is None else place & matches
            (Path(folder) / f"batch_{n}.pb").write_bytes(module(fn, *args, platform="tpu").proto())
        if not place:
            raise Error("no argument has as many rows as there are examples for every batch")
        names = {folder: _called(fn)}
        answer = _program.ask("fit", folder, "--batch-dim", f"{min(place)}:0", "--target", target, allow=(0, 1), names=names)
    return Answer("fit", answer)


def _asked(
    command: str, fn: Callable, folder: str, program: Module, *options: str | Path, page: bool = False, allow: Sequence[int] = (0,)
) -> Answer:
    """The program's answer about the module of a function."""
    path, shown = Path(folder) / "module.pb", Path(folder) / "page.html"
    path.write_bytes(program.proto())
    names = {str(path): _called(fn)}
    shows: list[str | Path] = ["--html", shown] if page else []
    answer = _program.ask(command, path, *options, *shows, allow=allow, names=names)
    return Answer(command, answer, shown.read_text().replace(str(path), _called(fn)) if page and shown.exists() else None)


def _called(fn: Callable) -> str:
    """A function's name in messages."""
    return getattr(fn, "__name__", "module")


def _numbers(leaf: Any) -> np.ndarray | jax.ShapeDtypeStruct:
    """A leaf as an array in the dtype that JAX uses (f32 for f64, if x64 is off); a PRNG key as its numbers; a shape as it is."""
    if isinstance(leaf, jax.ShapeDtypeStruct):
        return leaf
    is_key = jax.dtypes.issubdtype(getattr(leaf, "dtype", np.dtype(np.float32)), jax.dtypes.extended)
    return np.asarray(jax.random.key_data(leaf) if is_key else jax.numpy.asarray(leaf))


def _name(dtype: Any) -> str | None:
    """A dtype's name: `bfloat16` for `"bfloat16"` and for `jnp.bfloat16`."""
    if dtype is None or isinstance(dtype, str):
        return dtype
    try:
        return np.dtype(dtype).name
    except TypeError:
        raise Error(f"`dtype` is {dtype!r}", "write bfloat16 or float16") from None


def _short(dtype: str | None) -> str:
    return {"bfloat16": "bf16", "float16": "f16"}.get(str(dtype), str(dtype))
