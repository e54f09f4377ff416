"""Derivatives of lowered functions: the forward and the backward pass are lowered, for a loss as a single module."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from bf16scope import _jax_internals as internals
from bf16scope import _losses
from bf16scope._linear import Later, Linear, Products


def _is_inexact(aval) -> bool:
    return jax.dtypes.issubdtype(aval.dtype, np.inexact)


def differentiable(jaxpr, options, again: Callable) -> Callable:
    """A traced function of flat arguments, with a derivative whose passes are lowered: as a single module if it is a loss.

    Args:
      again: the function itself.
    """
    if internals.has_effects(jaxpr):
        # JAX does not allow a custom derivative for a function with effects.
        return functools.partial(internals.call, jaxpr)
    # Traced derivatives, which are kept as long as the function is.
    losses: dict[tuple[int, ...], _OneModule] = {}
    passes: dict[tuple[int, ...], _Passes] = {}

    def passes_of(wanted, primals):
        if wanted not in passes:
            passes[wanted] = _Passes(jaxpr, options, wanted, again, primals)
        return passes[wanted]

    def derivative(wanted, primals, tangents):
        if not _is_loss(jaxpr, options, wanted):
            return passes_of(wanted, primals).derivative(primals, tangents)
        if wanted not in losses:
            losses[wanted] = _OneModule(internals.name_of(jaxpr), options, wanted, again, primals)
        return losses[wanted].derivative(primals, tangents, passes_of)

    return _with_derivative(functools.partial(internals.call, jaxpr), derivative, functools.partial(_forward_mode, jaxpr))


def loss_at_once(fun: Callable, options, arrays) -> list[Any] | None:
    """The results of a loss that the surrounding program differentiates here: value and gradients are traced together, once.

    Args:
      fun: a function of flat arguments.
      arrays: its arguments, in a program that is being traced.

    Returns: its results, or None if the function has to be traced without its derivative: it is not a loss, it has effects, it
      shares values with other devices, or it closes over values that are differentiated.
    """
    wanted = internals.differentiated(arrays)
    if not wanted or options.dtype == "float16":
        return None
    try:
        loss = _OneModule(fun.__name__, options, wanted, fun, arrays)
    except _NoLoss:
        return None
    except ValueError as error:
        if "Reverse-mode" not in str(error):
            raise
        return None
    is_closed = any(map(internals.is_differentiated, loss.consts))
    if is_closed or internals.has_effects(loss.jaxpr) or internals.is_of_an_axis(loss.jaxpr):
        return None
    types = [internals.struct_of(internals.type_of(it)) for it in arrays]
    traced = functools.cache(lambda: internals.trace(fun, options, types))
    is_lasting = not any(isinstance(it, jax.core.Tracer) for it in loss.consts)
    if loss.others and not is_lasting:
        # A function that closes over values of another trace cannot be traced later.
        traced()

    @functools.cache
    def passes():
        jaxpr, consts = traced()
        again = (lambda *args: fun(*args[len(consts) :])) if is_lasting else functools.partial(internals.inside, jaxpr)
        return _Closed(consts, _Passes(jaxpr, options, tuple(len(consts) + number for number in wanted), again, [*consts, *types]))

    def derivative(numbers, primals, tangents):
        assert numbers == wanted, "bf16scope has a bug: what is differentiated here is what was traced"
        return loss.derivative(primals, tangents, lambda wanted, primals: passes())

    return _with_derivative(lambda *args: loss.values(args)[0], derivative)(*arrays)


def _with_derivative(call: Callable, derivative: Callable, forward_mode: Callable | None = None) -> Callable:
    """A function of flat arguments that JAX differentiates by `derivative`. That takes the numbers of the differentiated arguments,
    all arguments, and the tangents of the differentiated ones; it returns the results, and the tangents of float results by
    number.

    Args:
      forward_mode: the same, for a function that has no reverse mode.
    """

    @jax.custom_jvp
    def differentiated(*args):
        return call(*args)

    @functools.partial(differentiated.defjvp, symbolic_zeros=True)
    def both(primals, tangents):
        wanted = tuple(number for number, it in enumerate(tangents) if _is_differentiated(it))
        along = [_strong(tangents[number]) for number in wanted]
        try:
            results, by_number = derivative(wanted, primals, along)
        except ValueError as error:
            if forward_mode is None or "Reverse-mode" not in str(error):
                raise
            # The function has no reverse mode, since it has a `while_loop`, for example.
            results, by_number = forward_mode(wanted, primals, along)
        return results, [by_number[number] if number in by_number else _zero(it) for number, it in enumerate(results)]

    return differentiated


def _strong(tangent):
    """A tangent whose type is not weak: the gradient with respect to a Python number is then weak, as JAX's is."""
    if not getattr(internals.type_of(tangent), "weak_type", False):
        return tangent
    return jax.lax.convert_element_type(tangent, tangent.dtype)


def _zero(result):
    """The tangent of a result that does not depend on what is differentiated."""
    if _is_inexact(result):
        return jax.numpy.zeros(result.shape, result.dtype)
    if all(isinstance(dim, int) for dim in result.shape):
        return np.zeros(result.shape, jax.dtypes.float0)
    # NumPy has no array with symbolic dimensions.
    return jax.custom_derivatives.SymbolicZero(jax.core.ShapedArray(result.shape, jax.dtypes.float0))


def _forward_mode(jaxpr, wanted, primals, along):
    """The results of a traced function, and the tangents of float results by number."""
    inexact = [number for number, aval in enumerate(jaxpr.out_avals) if _is_inexact(aval)]

    def of_wanted(*values):
        args = list(primals)
        for number, value in zip(wanted, values):
            args[number] = value
        out = internals.call(jaxpr, *args)
        return [out[number] for number in inexact], out

    _, tangents, out = jax.jvp(of_wanted, tuple(primals[number] for number in wanted), tuple(along), has_aux=True)
    return list(out), dict(zip(inexact, tangents))


def _is_differentiated(tangent) -> bool:
    """Whether a tangent belongs to a float that is differentiated."""
    return not isinstance(tangent, jax.custom_derivatives.SymbolicZero) and _is_inexact(tangent)


def _is_loss(jaxpr, options, wanted) -> bool:
    """Whether a function is treated as a loss: its first float result is an f32 scalar. A function in float16 is not, since the
    loss scale, which keeps gradients from underflowing, arrives with the cotangent and has to go through the backward pass. A
    function that shares values with other devices of a `shard_map` is not either."""
    if options.dtype == "float16" or not _starts_with_a_number(jaxpr.out_avals):
        return False
    is_real = all(jax.dtypes.issubdtype(jaxpr.in_avals[number].dtype, np.floating) for number in wanted)
    return is_real and not internals.is_shared(jaxpr)


def _starts_with_a_number(results) -> bool:
    """Whether the first float among these results is an f32 scalar."""
    first = next(filter(_is_inexact, results), None)
    return first is not None and first.shape == () and first.dtype == np.float32


class _NoLoss(Exception):
    """A function whose gradient is being traced turned out not to be a loss."""


class _OneModule:
    """A loss and its gradients as a single module, lowered as a whole step is. Its derivative is the product with the gradients."""

    def __init__(self, name: str | None, options, wanted, fun, primals):
        self.wanted = wanted

        @internals.named(name)
        def both(*args):
            def of_wanted(*values):
                by_number = list(args)
                for number, value in zip(wanted, values):
                    by_number[number] = value
                out = fun(*by_number)
                types = list(map(internals.type_of, out))
                if not _starts_with_a_number(types):
                    raise _NoLoss
                self.loss, *others = (number for number, it in enumerate(types) if _is_inexact(it))
                # Results that are arguments: the argument's number by the result's.
                self.sources = {number: source for number in others for source, it in enumerate(by_number) if out[number] is it}
                self.others = [number for number in others if number not in self.sources]
                return out[self.loss], out

            _, vjp, out = jax.vjp(of_wanted, *(args[number] for number in wanted), has_aux=True)
            self.n_results = len(out)
            results = [_losses.named(it) if number == self.loss else it for number, it in enumerate(out)]
            return results + list(vjp(jax.numpy.ones_like(out[self.loss])))

        # Differentiation adds constants of JAX's.
        self.jaxpr, self.consts = internals.trace(both, options, primals)

    def values(self, primals) -> tuple[list[Any], list[Any]]:
        """The results, and the gradients."""
        out = internals.call(self.jaxpr, *self.consts, *primals)
        return list(out[: self.n_results]), list(out[self.n_results :])

    def derivative(self, primals, tangents, passes_of: Callable):
        """The results, and the nonzero tangents of float results by number. Tangents of results other than the loss and arguments
        are separate passes, which are traced only when they are used."""
        results, gradients = self.values(primals)
        if not gradients:
            return results, {}
        by_number = {self.loss: Products().apply(*gradients, *tangents)[0]}
        by_argument = dict(zip(self.wanted, tangents))
        by_number |= {number: by_argument[source] for number, source in self.sources.items() if source in by_argument}
        if self.others:

            def tangents_of_others(primals, tangents):
                _, by_number = passes_of(self.wanted, primals).derivative(primals, tangents)
                return [by_number[number] for number in self.others]

            types = [internals.type_of(results[number]) for number in self.others]
            later = Later(n_arguments=len(primals), tangents=tangents_of_others, results=types)
            by_number |= zip(self.others, later.apply(*primals, *tangents))
        return results, by_number


@dataclass(frozen=True)
class _Closed:
    """The passes of a function that takes its closed-over values as its first arguments."""

    consts: list[Any]
    passes: _Passes

    def derivative(self, primals, tangents):
        return self.passes.derivative([*self.consts, *primals], tangents)


class _Passes:
    """A function and its derivative with respect to some arguments as two functions: one computes the results and the residuals,
    the other the derivative, which JAX transposes to the backward pass."""

    def __init__(self, jaxpr, options, wanted, again, primals):
        self.jaxpr, self.options, self.wanted, self.again = jaxpr, options, wanted, again
        self.inexact = [number for number, aval in enumerate(jaxpr.out_avals) if _is_inexact(aval)]
        self.n_results = len(jaxpr.out_avals)
        whole, consts = internals.trace(internals.named_as(jaxpr)(self._forward), options, primals)
        # The source of each residual: an argument, or a further result of the forward pass.
        sources = internals.sources(whole)
        self.sources, self.computed = [], []
        for number, position in enumerate(sources[self.n_results :]):
            position = None if position is None else position - len(consts)
            if position is None or position < 0:
                self.computed.append(number)
                self.sources.append(("result", len(self.computed) - 1))
            else:
                self.sources.append(("argument", position))
        # The residuals that would be narrow if both passes were a single module.
        n_residuals = len(sources) - self.n_results
        narrow = [False] * n_residuals
        if n_residuals and not internals.is_of_an_axis(jaxpr):
            cotangents = [internals.struct_of(jaxpr.out_avals[number]) for number in self.inexact]
            both, _ = internals.trace(functools.partial(self._both, whole), options, [*consts, *primals, *cotangents])
            narrow = internals.narrow_results(both, options)[-n_residuals:]
        low = np.dtype(getattr(jax.numpy, options.dtype))
        self.narrow = [low if narrow[number] else None for number in self.computed]

        @internals.named_as(jaxpr)
        def forward(*args):
            out = internals.inside(whole, *consts, *args)
            results, residuals = out[: self.n_results], out[self.n_results :]
            computed = [residuals[number] for number in self.computed]
            return results + [it.astype(to) if to else it for it, to in zip(computed, self.narrow)]

        self.forward_jaxpr, self.forward_consts = internals.trace(forward, options, primals)

    def _forward(self, *args):
        """The results and the residuals."""
        results, linear = self._linearized(args)
        self.linear = internals.without_constants(linear)
        return list(results) + list(linear.consts)

    def _linearized(self, args):
        def of_wanted(*values):
            by_number = list(args)
            for number, value in zip(self.wanted, values):
                by_number[number] = value
            out = self.again(*by_number)
            return [out[number] for number in self.inexact], out

        wanted = [args[number] for number in self.wanted]
        _, linear, out = jax.linearize(of_wanted, *wanted, has_aux=True)
        return out, jax.make_jaxpr(linear)(*wanted)

    def _both(self, whole, *args):
        """Gradients and residuals, by the traced forward pass."""
        n_arguments = len(whole.in_avals)
        args, cotangents = args[:n_arguments], args[n_arguments:]
        residuals = internals.inside(whole, *args)[self.n_results :]
        wanted = [internals.struct_of(self.jaxpr.in_avals[number]) for number in self.wanted]
        transposed = jax.linear_transpose(lambda *it: jax.core.eval_jaxpr(self.linear.jaxpr, (), *residuals, *it), *wanted)
        return list(transposed(list(cotangents))) + residuals

    def derivative(self, primals, tangents):
        """The results, and the tangents of float results by number."""
        out = internals.call(self.forward_jaxpr, *self.forward_consts, *primals)
        results, computed = list(out[: self.n_results]), list(out[self.n_results :])
        arguments = [primals[position] for what, position in self.sources if what == "argument"]
        if not self.inexact:
            return results, {}
        n_computed, n_arguments = len(computed), len(arguments)

        @internals.named_as(self.jaxpr)
        def linear(*args):
            wide = [it.astype(np.float32) if to else it for it, to in zip(args, self.narrow)]
            by_result, by_argument = iter(wide), iter(args[n_computed : n_computed + n_arguments])
            residuals = [next(by_argument if what == "argument" else by_result) for what, _ in self.sources]
            return jax.core.eval_jaxpr(self.linear.jaxpr, (), *residuals, *args[n_computed + n_arguments :])

        args = [*computed, *arguments, *tangents]
        jaxpr, consts = internals.trace(linear, self.options, args)
        return results, dict(zip(self.inexact, Linear(jaxpr, self.options).apply(*consts, *args)))
