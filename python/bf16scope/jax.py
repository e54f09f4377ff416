"""Automatic mixed precision for JAX: a function goes in, the same function in bfloat16 comes out.

    import bf16scope.jax

    step = jax.jit(bf16scope.jax.lower(step), donate_argnums=0)

The returned function has the signature, the results and the dtypes of the first. Inside, matrix products, convolutions and
what lies between them are bfloat16; sums of losses, statistics, logarithms and updates stay f32. XLA may drop roundings to
bfloat16 where it computes on in f32 (JAX allows excess precision): results are then closer to f32's, not farther.
"""

from __future__ import annotations

import contextlib
import functools
import tempfile
import warnings
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
from bf16scope import _linen, _native, _nnx, _program
from bf16scope._answer import Answer
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
    "scaled",
]


@contextlib.contextmanager
def _full_precision():
    with jax.named_scope(internals.FULL_PRECISION):
        yield


_Function = TypeVar("_Function", bound=Callable[..., Any])


@overload
def full_precision(fn: _Function) -> _Function: ...
@overload
def full_precision(fn: None = None) -> contextlib.AbstractContextManager[None]: ...
def full_precision(fn=None):
    """What stays in f32 inside of a function that is lowered, as `torch.autocast(enabled=False)`: a function, whose operations
    all do, and their gradients; without one, a context: `with full_precision():`."""
    return _full_precision() if fn is None else _full_precision()(fn)


@overload
def lower(
    fn: _Function,
    policy: Policy = "default",
    dtype: Any = None,
    keep: str | Iterable[str] = (),
    *,
    static_argnums: int | Iterable[int] = (),
    static_argnames: str | Iterable[str] = (),
) -> _Function: ...
@overload
def lower(
    fn: None = None,
    policy: Policy = "default",
    dtype: Any = None,
    keep: str | Iterable[str] = (),
    *,
    static_argnums: int | Iterable[int] = (),
    static_argnames: str | Iterable[str] = (),
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
    """The function with its inside lowered to bfloat16.

    It works alone, under `jax.jit`, `jax.grad`, `jax.vmap`, `jax.jvp`, `jax.checkpoint`, inside `scan`, `cond`, `while_loop`
    and `shard_map`, and with modules of flax's nnx and of equinox as arguments. Without a function it is a decorator:
    `@lower(policy="O2")`, on methods as well, and on a class of modules, whose `__call__` it lowers.

    Lower a training step whole, with its `value_and_grad` and update in it, or its loss: `jax.grad` of a lowered loss (a
    function whose first float result is an f32 number) is one module with its gradients, and what the backward pass keeps is
    decided with what reads it. Of any other function, and in float16, forward and backward are two modules, each lowered, and
    residuals that are bfloat16 inside are kept so.

    Args:
      fn: any function of pytrees that `jax.jit` takes, and methods of linen's modules; what is no array among their leaves is
        static.
      policy: what may be lowered: a preset (`bf16scope.policies()`), a policy document (YAML, or a dict of it), or the path of
        a file with one, such as `bf16scope lower --target` writes. Where a policy makes parameters or results narrow, they are
        cast at the function's border.
      dtype: `bfloat16` or `float16`, or JAX's dtypes; default the policy's, which is bfloat16. Gradients in float16 want a scaled loss.
      keep: patterns of names (`*/layer_norm/*`; names are those of `jax.named_scope` and of jaxprs) of what stays in f32.
      static_argnums: as `jax.jit`'s; what a `jax.jit` around it takes as static is static here without it.
      static_argnames: as `jax.jit`'s.

    Raises:
      bf16scope.Error: what is no function; a policy that there is not, or that contradicts itself.
    """
    if fn is None:
        return functools.partial(
            lower, policy=policy, dtype=dtype, keep=keep, static_argnums=static_argnums, static_argnames=static_argnames
        )
    if not callable(fn):
        raise Error(f"`lower` takes a function, and was given {type(fn).__name__}", "write `lower(step)`, not `lower(step(x))`")
    if isinstance(fn, type):
        return _class(fn, functools.partial(lower, policy=policy, dtype=dtype, keep=keep, static_argnums=static_argnums, static_argnames=static_argnames))
    text = policy_text(policy)
    options = internals.Options(text, _native.narrow_dtype(text, _name(dtype)), tuple(patterns(keep)))
    statics = Statics(fn, static_argnums, static_argnames)
    plain, pure = _plain(fn, options), _nnx.Pure(fn)
    of_arrays = _plain(pure, options)

    @functools.wraps(fn)
    def lowered(*args, **kwargs):
        args, kwargs = statics.marked(args, kwargs)
        if _nnx.has_objects((args, kwargs)):
            return pure.of_objects(of_arrays, args, kwargs)
        if of_module := _linen.bound(fn, args):
            return _linen.lifted(functools.partial(_plain, options=options), *of_module, kwargs)
        return plain(*args, **kwargs)

    lowered.__bf16scope__ = fn, options  # type: ignore[attr-defined]
    return lowered


def _class(of: type, lowering: Callable) -> type:
    """The class of modules whose call is lowered, under the same name."""
    if not any("__call__" in vars(base) for base in of.__mro__[:-1]):
        raise Error(
            f"`lower` takes a function, or a class of modules that can be called, and {of.__name__} has no `__call__`",
            "write `@lower` above a method of it",
        )
    named = {name: getattr(of, name) for name in ("__module__", "__qualname__", "__doc__")}
    return type(of)(of.__name__, (of,), {**named, "__call__": lowering(of.__call__)})


def _plain(fn: Callable, options) -> Callable:
    """The function of pytrees, lowered."""
    run = jax.jit(functools.partial(_run, fn, options), static_argnums=0, inline=True)

    def call(*args, **kwargs):
        given = Leaves.of_arguments((args, kwargs))
        # What objects that are open hold changes with each trace, so that one more would be seen.
        if not getattr(fn, "is_open_once", False) and internals.differentiated(given.arrays):
            flat, results = _flat(fn, given.shape)
            arrays = derivatives.loss_at_once(flat, options, given.arrays)
            if arrays is not None:
                return results[0].with_arrays(arrays).whole()
        return run(given.shape, *given.arrays).whole()

    return call


def _flat(fn: Callable, shape: Shape) -> tuple[Callable, list[Leaves]]:
    """The function as one of flat arrays, for arguments of this shape, and a list that holds its results once it was called."""
    results: list[Leaves] = []

    # By its name and place in what JAX says of it.
    @functools.wraps(fn, updated=())
    def flat(*arrays):
        leaves = shape.leaves(arrays)
        args, kwargs = jax.tree_util.tree_unflatten(shape.tree, leaves)
        out = fn(*bare(args), **bare(kwargs))
        _warn_of_changes((args, kwargs), shape.tree, leaves)
        results[:] = [Leaves.of_results(out)]
        return results[0].arrays

    return flat, results


def _run(fn: Callable, options, shape: Shape, *arrays) -> Leaves:
    """The results of a function whose arguments have this shape, lowered."""
    flat, results = _flat(fn, shape)
    jaxpr, consts = internals.trace(flat, options, arrays)
    if internals.is_of_each_device(jaxpr):
        # Then the gradient of what is the same on all is summed outside.
        arrays = internals.vary_alike(list(arrays))
        jaxpr, consts = internals.trace(flat, options, arrays)
    # JAX differentiates functions sooner than what it has traced of them. One that closes over values of another trace, or
    # that is of objects that are open at this time alone, cannot be traced later.
    is_lasting = not getattr(fn, "is_open_once", False) and not any(isinstance(it, jax.core.Tracer) for it in consts)
    again = (lambda *args: flat(*args[len(consts) :])) if is_lasting else functools.partial(internals.inside, jaxpr)
    return results[0].with_arrays(derivatives.differentiable(jaxpr, options, again)(*consts, *arrays))


def _warn_of_changes(args, tree, before: list) -> None:
    """Says which attributes of its arguments a function has changed. A dict or a list that a function fills is its own."""
    paths, after = jax.tree_util.tree_flatten_with_path(args)
    if after != tree:
        return
    builtin = (jax.tree_util.DictKey, jax.tree_util.SequenceKey)
    changed = [
        jax.tree_util.keystr(path[1:])
        for (path, leaf), old in zip(paths, before)
        if leaf is not old and not all(isinstance(key, builtin) for key in path)
    ]
    if changed:
        warnings.warn(
            f"the function that is lowered changes {', '.join(changed)} of its arguments in place, which is lost, as in `jax.jit`: "
            "return what changes",
            stacklevel=2,
        )


def module(fn: Callable, *args, platform: str | None = None, **kwargs) -> Module:
    """The function over such arguments (arrays, or their `jax.ShapeDtypeStruct`s) as a module, in f32 as it is written. What
    `jax.jit` donates of them, the module donates.

    Args:
      platform: `cpu`, `tpu`, `cuda` or `rocm`; default where JAX runs.
    """
    if platform not in (None, *internals.PLATFORMS):
        raise Error(f"JAX has no platform `{platform}` that bf16scope knows", f"write one of {', '.join(internals.PLATFORMS)}")
    pure, (args, kwargs) = _of_arrays(fn, args, kwargs)
    donated = _donated(fn, args, kwargs) if pure is fn else {}
    lowered = jax.jit(pure, keep_unused=True, **donated).trace(*args, **kwargs).lower(lowering_platforms=(platform or jax.default_backend(),))
    return Module.read(lowered.compiler_ir("hlo").as_serialized_hlo_module_proto(), _called(fn))


def _of_arrays(fn: Callable, args: tuple, kwargs: dict) -> tuple[Callable, tuple[tuple, dict]]:
    """The function as one that JAX traces: of the arrays alone, where some leaves of its arguments are none, or are objects."""
    if _nnx.has_objects((args, kwargs)):
        return _nnx.Pure(fn).alone(args, kwargs)
    given = Leaves.of_arguments((args, kwargs))
    if all(given.shape.is_dynamic):
        return fn, (args, kwargs)

    @functools.wraps(fn, updated=())
    def of_arrays(*arrays):
        args, kwargs = given.with_arrays(arrays).whole()
        return Leaves.of_results(fn(*args, **kwargs)).arrays

    return of_arrays, (tuple(given.arrays), {})


def _donated(fn: Callable, args: tuple, kwargs: dict) -> dict:
    """Which arguments a function that `jax.jit` made donates, as options of `jax.jit`."""
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
    """What `lower` decides for each operation of the function over such arguments, and why; of a lowered function, what was
    decided with the policy that it has."""
    fn, options = _as_written(fn)
    if options and (policy, dtype, keep) == ("default", None, ()):
        policy, dtype, keep = options.policy, options.dtype, options.keep
    _, report = module(fn, *args, **kwargs).lower(policy, _name(dtype), keep)
    return report


def _as_written(fn: Callable) -> tuple[Callable, Any]:
    """The function that `lower` was given, and how it is lowered."""
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
    """The function in f32 beside its lowered form, operation by operation, over these arguments: is it still right?

    Args:
      policy, dtype, keep: as `lower`'s.
      budget: the largest scaled error that a result may have; if one exceeds it, what to keep in f32 is searched. Without one
        `is_right` is None unless nothing is off. `search["policy"]` is None where no policy was found.
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
    # As JAX names the leaves of what the function gives.
    paths = jax.tree_util.tree_flatten_with_path(jax.eval_shape(fn, *args, **kwargs))[0]
    for result in answer.results:
        result["name"] = result["name"] or jax.tree_util.keystr(paths[result["index"]][0])
    return answer


def compile_for(
    fn: Callable, *args, target: str = "tpu-v2", compare: bool = False, policy: Policy | None = None, **kwargs
) -> Answer:
    """What Google's compiler makes of the function for a TPU, without one: memory, cycles, seconds.

    Args:
      args: arrays, or their `jax.ShapeDtypeStruct`s.
      target: `tpu-v2`, `tpu-v3`, … and a grid of chips if not one board: `tpu-v3:4x4`.
      compare: as given and lowered, side by side.
      policy: lower it first. A function that `lower` gave is lowered already.
    """
    options: list[str | Path] = ["--target", target, *(["--compare"] if compare else [])]
    with tempfile.TemporaryDirectory() as folder:
        options += ["--policy", policy_word(policy, folder)] if policy else []
        return _asked("compile", fn, folder, module(fn, *args, platform="tpu", **kwargs), *options, allow=(0, 1))


def explain(fn: Callable, *args, target: str = "tpu-v2", **kwargs) -> Answer:
    """Where the memory and the time of the compiled function go: buffers at the peak, operations, source lines."""
    with tempfile.TemporaryDirectory() as folder:
        program = module(fn, *args, platform="tpu", **kwargs)
        return _asked("explain", fn, folder, program, "--target", target, page=True)


def fit(fn: Callable, of_batch: Callable[[int], tuple], batches: Sequence[int], target: str = "tpu-v2") -> Answer:
    """Which of these batches fit, and which is best.

    Args:
      of_batch: the arguments for so many examples: `lambda n: (params, jax.ShapeDtypeStruct((n, 224, 224, 3), "float32"))`.
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
            found = [number for number, leaf in enumerate(leaves) if np.shape(leaf)[:1] == (n,)]
            if not found:
                raise Error(f"of {n} examples no argument has {n} rows", "make the first axis of an argument the batch")
            # A state may have as many rows as one batch has examples, but not as each has.
            place = set(found) if place is None else place & set(found)
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
    """What messages call a function."""
    return getattr(fn, "__name__", "module")


def _numbers(leaf: Any) -> np.ndarray | jax.ShapeDtypeStruct:
    """An array of the dtype that JAX takes it in (f64 as f32, where f64 is off); a PRNG key is its numbers, a shape itself."""
    if isinstance(leaf, jax.ShapeDtypeStruct):
        return leaf
    is_key = jax.dtypes.issubdtype(getattr(leaf, "dtype", np.dtype(np.float32)), jax.dtypes.extended)
    return np.asarray(jax.random.key_data(leaf) if is_key else jax.numpy.asarray(leaf))


def _name(dtype: Any) -> str | None:
    """`bfloat16` of `"bfloat16"` and of `jnp.bfloat16`."""
    if dtype is None or isinstance(dtype, str):
        return dtype
    try:
        return np.dtype(dtype).name
    except TypeError:
        raise Error(f"`dtype` is {dtype!r}", "write bfloat16 or float16") from None


def _short(dtype: str | None) -> str:
    return {"bfloat16": "bf16", "float16": "f16"}.get(str(dtype), str(dtype))
