"""Automatic mixed precision for JAX: a function goes in, the same function in bfloat16 comes out.

    import bf16scope.jax

    step = jax.jit(bf16scope.jax.lower(step), donate_argnums=0)

The returned function has the signature, the results and the dtypes of the first. Inside, matrix products, convolutions and
what lies between them are bfloat16; sums of losses, statistics, logarithms and updates stay f32. XLA may drop roundings to
bfloat16 where it computes on in f32 (JAX allows excess precision): results are then closer to f32's, not farther.
"""

from __future__ import annotations

import functools
import os
import tempfile
import warnings
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from bf16scope import _jax_internals as internals
from bf16scope import _native, _program
from bf16scope._answer import Answer
from bf16scope._errors import Error
from bf16scope._module import Module, Policy, Report, patterns, policy_text, policy_word

__all__ = ["audit", "compile_for", "explain", "explain_casts", "fit", "lower", "module"]


def lower(
    fn: Callable,
    policy: Policy = "default",
    dtype: str | None = None,
    keep: str | Iterable[str] = (),
    *,
    static_argnums: int | Iterable[int] = (),
    static_argnames: str | Iterable[str] = (),
) -> Callable:
    """The function with its inside lowered to bfloat16.

    It works alone, under `jax.jit`, `jax.grad`, `jax.vmap`, `jax.checkpoint`, and inside `scan`, `cond` and `while_loop`.
    Lower a training step whole, with its `value_and_grad` and update in it, or its loss: `jax.grad` of a lowered loss (a
    function whose first float result is an f32 number) is one module with its gradients, and what the backward pass keeps is
    decided with what reads it. Of any other function, and in float16, forward and backward are two modules, each lowered, and
    residuals that are bfloat16 inside are kept so.

    Args:
      fn: any function of pytrees of arrays that `jax.jit` takes.
      policy: what may be lowered: a preset (`bf16scope.policies()`), a policy document (YAML, or a dict of it), or the path of
        a file with one, such as `bf16scope lower --target` writes. Where a policy makes parameters or results narrow, they are
        cast at the function's border.
      dtype: `bfloat16` or `float16`, or JAX's dtypes; default the policy's, which is bfloat16. Gradients in float16 want a scaled loss.
      keep: patterns of names (`*/layer_norm/*`; names are those of `jax.named_scope` and of jaxprs) of what stays in f32.
      static_argnums: as `jax.jit`'s; what a `jax.jit` around it takes as static is static here, too.
      static_argnames: as `jax.jit`'s.

    Raises:
      bf16scope.Error: what is no function; a policy that there is not, or that contradicts itself. Where the result is called:
        a function with side effects; an op that has no StableHLO.
    """
    if not callable(fn):
        raise Error(f"`lower` takes a function, and was given {type(fn).__name__}", "write `lower(step)`, not `lower(step(x))`")
    text = policy_text(policy)
    options = internals.Options(text, _native.narrow_dtype(text, _name(dtype)), tuple(patterns(keep)))

    @functools.wraps(fn)
    def traced(*args, **kwargs):
        leaves, tree = jax.tree_util.tree_flatten((args, kwargs))
        dynamic = [number for number, leaf in enumerate(leaves) if _is_array(leaf)]
        results = []

        # By its name and place in what JAX says of it.
        @functools.wraps(fn, updated=())
        def flat(*arrays):
            given = list(leaves)
            for number, array in zip(dynamic, arrays):
                given[number] = array
            args, kwargs = jax.tree_util.tree_unflatten(tree, given)
            out, out_tree = jax.tree_util.tree_flatten(fn(*args, **kwargs))
            _warn_of_changes((args, kwargs), tree, given)
            results[:] = [out_tree]
            return out

        arrays = [leaves[number] for number in dynamic]
        jaxpr, consts = internals.trace(flat, arrays)
        out = _differentiable(jaxpr, options)(*internals.vary_alike([*consts, *arrays]))
        return jax.tree_util.tree_unflatten(results[0], out)

    return jax.jit(traced, static_argnums=static_argnums, static_argnames=static_argnames, inline=True)


def _warn_of_changes(args, tree, before: list) -> None:
    """Says which attributes of its arguments a function has changed, as modules of flax's nnx do with their statistics. A dict
    or a list that a function fills is its own."""
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
            "return what changes (of flax's nnx: `nnx.split` the module, `nnx.merge(graph, state, copy=True)` inside, and return "
            "the state)",
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
    traced = jax.jit(fn, keep_unused=True, **_donated(fn, args, kwargs)).trace(*args, **kwargs)
    internals.refuse_effects(traced.jaxpr)
    lowered = traced.lower(lowering_platforms=(platform or jax.default_backend(),))
    return Module.read(lowered.compiler_ir("hlo").as_serialized_hlo_module_proto(), _called(fn))


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
    """What `lower` decides for each operation of the function over such arguments, and why."""
    _, report = module(fn, *args, **kwargs).lower(policy, _name(dtype), keep)
    return report


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
      budget: the largest scaled error that a result may have; if one exceeds it, what to keep in f32 is searched.
    """
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


def _is_array(leaf: Any) -> bool:
    """Whether it is an array; within `jax.jit` what is static is none."""
    return isinstance(leaf, (jax.Array, np.ndarray, np.generic))


def _is_inexact(aval) -> bool:
    return jax.dtypes.issubdtype(aval.dtype, np.inexact)


class _Residuals:
    """What the backward pass reads, beside how it is made of it."""

    def __init__(self, arrays, backward):
        self.arrays, self.backward = arrays, backward


jax.tree_util.register_pytree_node(
    _Residuals, lambda it: (it.arrays, it.backward), lambda backward, arrays: _Residuals(arrays, backward)
)


@functools.lru_cache(maxsize=256)
def _differentiable(jaxpr, options, may_be_loss=True) -> Callable:
    """The lowered jaxpr as a function of flat arguments that `jax.grad` differentiates by lowering both passes: in one module,
    where it is a loss."""

    @jax.custom_vjp
    def call(*args):
        return internals.call(jaxpr, options, *args)

    def forward(*args):
        # Of all that have any: JAX wants the same residuals whichever are asked for. Unused results go before XLA.
        args = [arg.value for arg in args]
        if not (may_be_loss and _is_loss(jaxpr, options)):
            return _passes(jaxpr, options).forward(args)
        one = _one_module(jaxpr, options)
        results, gradients = one.forward(args)
        kept = _passes(jaxpr, options).forward(args)[1] if one.has_others else None
        return results, _Residuals([gradients, kept], one.backward)

    def backward(residuals, cotangents):
        gradients = residuals.backward(residuals.arrays, cotangents)
        return tuple(gradients.get(number) for number in range(len(jaxpr.in_avals)))

    call.defvjp(forward, backward, symbolic_zeros=True)
    return call


def _is_loss(jaxpr, options) -> bool:
    """Whether its first result with a gradient is a number. In float16 none is: what a loss is scaled by, so that gradients do
    not vanish on the way, comes with the cotangent and has to go through the backward pass."""
    first = next((aval for aval in jaxpr.out_avals if _is_inexact(aval)), None)
    return first is not None and first.shape == () and first.dtype == np.float32 and options.dtype != "float16"


@functools.lru_cache(maxsize=256)
def _one_module(jaxpr, options) -> _OneModule:
    return _OneModule(jaxpr, options)


class _OneModule:
    """A loss with its gradients: one module, lowered as a whole step is. Its backward pass multiplies by the cotangent."""

    def __init__(self, jaxpr, options):
        self.options, self.n_results = options, len(jaxpr.out_avals)
        self.wanted = [number for number, aval in enumerate(jaxpr.in_avals) if _is_inexact(aval)]
        inexact = [number for number, aval in enumerate(jaxpr.out_avals) if _is_inexact(aval)]
        self.loss, self.has_others = inexact[0], len(inexact) > 1

        def both(*args):
            def of_wanted(*wanted):
                given = list(args)
                for number, value in zip(self.wanted, wanted):
                    given[number] = value
                out = jax.core.eval_jaxpr(jaxpr.jaxpr, (), *given)
                return out[self.loss], out

            _, vjp, out = jax.vjp(of_wanted, *(args[number] for number in self.wanted), has_aux=True)
            return list(out) + list(vjp(jax.numpy.ones((), np.float32)))

        # JAX makes constants of its own where it differentiates.
        self.jaxpr, self.consts = internals.trace(both, [internals.struct_of(aval) for aval in jaxpr.in_avals])

    def forward(self, args):
        out = _differentiable(self.jaxpr, self.options, may_be_loss=False)(*internals.vary_alike([*self.consts, *args]))
        return list(out[: self.n_results]), list(out[self.n_results :])

    def backward(self, residuals, cotangents):
        """Gradients by the number of their argument."""
        gradients, kept = residuals
        if any(_is_given(it) for number, it in enumerate(cotangents) if number != self.loss):
            return kept.backward(kept.arrays, cotangents)
        if not _is_given(cotangents[self.loss]):
            return {}
        return {number: it * cotangents[self.loss].astype(it.dtype) for number, it in zip(self.wanted, gradients)}


def _is_given(cotangent) -> bool:
    """Whether it is the cotangent of a float that is differentiated."""
    return _is_inexact(cotangent) and not isinstance(cotangent, jax.custom_derivatives.SymbolicZero)


@functools.lru_cache(maxsize=256)
def _passes(jaxpr, options) -> _Passes:
    return _Passes(jaxpr, options)


class _Passes:
    """Forward and backward pass of a jaxpr with respect to its arguments that are floats."""

    def __init__(self, jaxpr, options):
        self.jaxpr, self.options = jaxpr, options
        self.wanted = [number for number, aval in enumerate(jaxpr.in_avals) if _is_inexact(aval)]
        self.inexact = [number for number, aval in enumerate(jaxpr.out_avals) if _is_inexact(aval)]
        self.n_results = len(jaxpr.out_avals)
        structs = [internals.struct_of(aval) for aval in jaxpr.in_avals]
        whole, consts = internals.trace(self._forward, structs)
        # Where each leaf of the residuals comes from: an argument, or a result of the forward pass.
        arguments = {var: number for number, var in enumerate(whole.jaxpr.invars[len(consts) :])}
        outvars = whole.jaxpr.outvars[self.n_results :]
        self.sources, self.kept = [], []
        for number, var in enumerate(outvars):
            position = arguments.get(var) if _is_variable(var) else None
            if position is None:
                self.kept.append(number)
                self.sources.append(("result", len(self.kept) - 1))
            else:
                self.sources.append(("argument", position))
        # What both passes together, as one module, would keep narrow.
        structs_of_results = [internals.struct_of(jaxpr.out_avals[number]) for number in self.inexact]
        both, _ = internals.trace(self._both, structs + structs_of_results)
        narrow = internals.narrow_results(both, options)[-len(outvars) :] if outvars else []
        low = np.dtype(getattr(jax.numpy, options.dtype))
        self.narrow = [low if narrow[number] else None for number in self.kept]

        def forward(*args):
            out = jax.core.eval_jaxpr(whole.jaxpr, (), *consts, *args)
            results, residuals = out[: self.n_results], out[self.n_results :]
            kept = [residuals[number] for number in self.kept]
            return results + [it.astype(to) if to else it for it, to in zip(kept, self.narrow)]

        self.forward_jaxpr, self.forward_consts = internals.trace(forward, structs)

    def _forward(self, *args):
        """Results and the leaves of what `jax.vjp` keeps."""

        def of_wanted(*wanted):
            given = list(args)
            for number, value in zip(self.wanted, wanted):
                given[number] = value
            out = jax.core.eval_jaxpr(self.jaxpr.jaxpr, (), *given)
            return [out[number] for number in self.inexact], out

        _, vjp, out = jax.vjp(of_wanted, *(args[number] for number in self.wanted), has_aux=True)
        leaves, self.vjp_tree = jax.tree_util.tree_flatten(vjp)
        self.statics = [None if _is_array(leaf) else leaf for leaf in leaves]
        return list(out) + [leaf for leaf in leaves if _is_array(leaf)]

    def _both(self, *args):
        """Gradients, and the leaves of what is kept for them."""
        n_arguments = len(self.jaxpr.in_avals)
        kept = self._forward(*args[:n_arguments])[self.n_results :]
        return list(self._vjp(kept)(list(args[n_arguments:]))) + kept

    def _vjp(self, arrays):
        """The backward pass over the leaves that are arrays."""
        arrays = iter(arrays)
        leaves = [next(arrays) if static is None else static for static in self.statics]
        return jax.tree_util.tree_unflatten(self.vjp_tree, leaves)

    def forward(self, args):
        out = _differentiable(self.forward_jaxpr, self.options)(*internals.vary_alike([*self.forward_consts, *args]))
        results, kept = out[: self.n_results], out[self.n_results :]
        of_arguments = [args[position] for what, position in self.sources if what == "argument"]
        return list(results), _Residuals([list(kept), of_arguments], self.backward)

    def backward(self, residuals, cotangents):
        """Gradients by the number of their argument."""
        kept, of_arguments = residuals
        given = [number for number in self.inexact if _is_given(cotangents[number])]
        if not given or not self.wanted:
            return {}
        n_kept, n_arguments = len(kept), len(of_arguments)

        def of(*args):
            kept, of_arguments, given_cotangents = args[:n_kept], args[n_kept : n_kept + n_arguments], args[n_kept + n_arguments :]
            wide = [it.astype(np.float32) if to else it for it, to in zip(kept, self.narrow)]
            results, arguments = iter(wide), iter(of_arguments)
            vjp = self._vjp([next(arguments) if what == "argument" else next(results) for what, _ in self.sources])
            by_number = dict(zip(given, given_cotangents))
            avals = self.jaxpr.out_avals
            whole = [
                by_number[number] if number in by_number else jax.numpy.zeros(avals[number].shape, avals[number].dtype)
                for number in self.inexact
            ]
            return list(vjp(whole))

        args = [*kept, *of_arguments, *(cotangents[number] for number in given)]
        jaxpr, consts = internals.trace(of, args)
        gradients = _differentiable(jaxpr, self.options)(*internals.vary_alike([*consts, *args]))
        return dict(zip(self.wanted, gradients))


def _is_variable(var) -> bool:
    return type(var).__name__ != "Literal"
