"""How JAX differentiates a lowered function: both passes are lowered, in one module where the function is a loss."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from bf16scope import _jax_internals as internals
from bf16scope._linear import Later, Linear, Products


def _is_inexact(aval) -> bool:
    return jax.dtypes.issubdtype(aval.dtype, np.inexact)


def differentiable(jaxpr, options, again: Callable) -> Callable:
    """A traced function of flat arguments that JAX differentiates by lowering both passes: in one module, where it is a loss.

    Args:
      again: the function itself.
    """
    if internals.has_effects(jaxpr):
        # Of what has effects JAX takes no derivative but its own.
        return functools.partial(internals.call, jaxpr)
    # Derivatives that were traced. They last as long as the function does.
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
    """The results of a loss that the program around it differentiates here: its value and gradients are traced together, once.

    Args:
      fun: a function of flat arguments.
      arrays: its arguments, in a program that is being traced.

    Returns: its results, or None if the function has to be traced without its derivative: it is no loss, it has effects, it shares
      values with other devices, or it closes over what is differentiated.
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
        # One that closes over values of another trace cannot be traced later.
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
    """A function of flat arguments that JAX differentiates by `derivative`: of the numbers of arguments that are differentiated,
    all arguments, and the tangents of those, it gives the results, and by number the tangents of those that are floats.

    Args:
      forward_mode: the same for a function that has no other mode.
    """

    @jax.custom_jvp
    def differentiated(*args):
        return call(*args)

    @functools.partial(differentiated.defjvp, symbolic_zeros=True)
    def both(primals, tangents):
        wanted = tuple(number for number, it in enumerate(tangents) if _is_given(it))
        along = [tangents[number] for number in wanted]
        try:
            results, by_number = derivative(wanted, primals, along)
        except ValueError as error:
            if forward_mode is None or "Reverse-mode" not in str(error):
                raise
            # Such as a `while_loop`.
            results, by_number = forward_mode(wanted, primals, along)
        zero = lambda it: jax.numpy.zeros(it.shape, it.dtype) if _is_inexact(it) else np.zeros(it.shape, jax.dtypes.float0)
        return results, [by_number[number] if number in by_number else zero(it) for number, it in enumerate(results)]

    return differentiated


def _forward_mode(jaxpr, wanted, primals, given):
    """The results of a traced function, and the tangents of those that are floats, by number."""
    inexact = [number for number, aval in enumerate(jaxpr.out_avals) if _is_inexact(aval)]

    def of_wanted(*values):
        args = list(primals)
        for number, value in zip(wanted, values):
            args[number] = value
        out = internals.call(jaxpr, *args)
        return [out[number] for number in inexact], out

    _, tangents, out = jax.jvp(of_wanted, tuple(primals[number] for number in wanted), tuple(given), has_aux=True)
    return list(out), dict(zip(inexact, tangents))


def _is_given(tangent) -> bool:
    """Whether it is the tangent of a float that is differentiated."""
    return not isinstance(tangent, jax.custom_derivatives.SymbolicZero) and _is_inexact(tangent)


def _is_loss(jaxpr, options, wanted) -> bool:
    """Whether its first result with a gradient is a number. In float16 none is: what a loss is scaled by, so that gradients do
    not vanish on the way, comes with the cotangent and has to go through the backward pass. Nor is one that devices of a
    `shard_map` sum."""
    if options.dtype == "float16" or not _starts_with_a_number(jaxpr.out_avals):
        return False
    is_real = all(jax.dtypes.issubdtype(jaxpr.in_avals[number].dtype, np.floating) for number in wanted)
    return is_real and not internals.is_shared(jaxpr)


def _starts_with_a_number(results) -> bool:
    """Whether the first of these results that has a gradient is one number."""
    first = next(filter(_is_inexact, results), None)
    return first is not None and first.shape == () and first.dtype == np.float32


class _NoLoss(Exception):
    """A function whose gradient was traced turned out to be no loss."""


class _OneModule:
    """A loss with its gradients: one module, lowered as a whole step is. Its derivative is the product with them."""

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
                # Arguments that are results as well, by number of the result.
                self.sources = {number: source for number in others for source, it in enumerate(by_number) if out[number] is it}
                self.others = [number for number in others if number not in self.sources]
                return out[self.loss], out

            _, vjp, out = jax.vjp(of_wanted, *(args[number] for number in wanted), has_aux=True)
            self.n_results = len(out)
            return list(out) + list(vjp(jax.numpy.ones_like(out[self.loss])))

        # JAX makes constants of its own where it differentiates.
        self.jaxpr, self.consts = internals.trace(both, options, primals)

    def values(self, primals) -> tuple[list[Any], list[Any]]:
        """Results, and gradients."""
        out = internals.call(self.jaxpr, *self.consts, *primals)
        return list(out[: self.n_results]), list(out[self.n_results :])

    def derivative(self, primals, tangents, passes_of: Callable):
        """Results, and of those that are floats the tangents, by number, if they are not zero. Those of results that are neither
        the loss nor an argument are passes of their own, which are traced where they are used."""
        results, gradients = self.values(primals)
        if not gradients:
            return results, {}
        by_number = {self.loss: Products().apply(*gradients, *tangents)[0]}
        of_argument = dict(zip(self.wanted, tangents))
        by_number |= {number: of_argument[source] for number, source in self.sources.items() if source in of_argument}
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
    """The passes of a function whose first arguments are what it closes over."""

    consts: list[Any]
    passes: _Passes

    def derivative(self, primals, tangents):
        return self.passes.derivative([*self.consts, *primals], tangents)


class _Passes:
    """A function and its derivative with respect to some arguments as two functions: results with what is kept for the
    derivative, and the derivative, which JAX transposes to the backward pass."""

    def __init__(self, jaxpr, options, wanted, again, primals):
        self.jaxpr, self.options, self.wanted, self.again = jaxpr, options, wanted, again
        self.inexact = [number for number, aval in enumerate(jaxpr.out_avals) if _is_inexact(aval)]
        self.n_results = len(jaxpr.out_avals)
        whole, consts = internals.trace(internals.named_as(jaxpr)(self._forward), options, primals)
        # Where each of what is kept comes from: an argument, or a result.
        sources = internals.sources(whole)
        self.sources, self.kept = [], []
        for number, position in enumerate(sources[self.n_results :]):
            position = None if position is None else position - len(consts)
            if position is None or position < 0:
                self.kept.append(number)
                self.sources.append(("result", len(self.kept) - 1))
            else:
                self.sources.append(("argument", position))
        # What both passes together, as one module, would keep narrow.
        n_kept = len(sources) - self.n_results
        narrow = [False] * n_kept
        if n_kept and not internals.is_of_an_axis(jaxpr):
            cotangents = [internals.struct_of(jaxpr.out_avals[number]) for number in self.inexact]
            both, _ = internals.trace(functools.partial(self._both, whole), options, [*consts, *primals, *cotangents])
            narrow = internals.narrow_results(both, options)[-n_kept:]
        low = np.dtype(getattr(jax.numpy, options.dtype))
        self.narrow = [low if narrow[number] else None for number in self.kept]

        @internals.named_as(jaxpr)
        def forward(*args):
            out = internals.inside(whole, *consts, *args)
            results, residuals = out[: self.n_results], out[self.n_results :]
            kept = [residuals[number] for number in self.kept]
            return results + [it.astype(to) if to else it for it, to in zip(kept, self.narrow)]

        self.forward_jaxpr, self.forward_consts = internals.trace(forward, options, primals)

    def _forward(self, *args):
        """Results and what their derivative reads."""
        results, linear = self._linearized(args)
        self.linear = internals.without_constants(linear)
        return list(results) + list(linear.consts)

    def _linearized(self, args):
        def of_wanted(*values):
            given = list(args)
            for number, value in zip(self.wanted, values):
                given[number] = value
            out = self.again(*given)
            return [out[number] for number in self.inexact], out

        wanted = [args[number] for number in self.wanted]
        _, linear, out = jax.linearize(of_wanted, *wanted, has_aux=True)
        return out, jax.make_jaxpr(linear)(*wanted)

    def _both(self, whole, *args):
        """Gradients, and what is kept for them, by the forward pass that was traced."""
        n_arguments = len(whole.in_avals)
        args, cotangents = args[:n_arguments], args[n_arguments:]
        kept = internals.inside(whole, *args)[self.n_results :]
        wanted = [internals.struct_of(self.jaxpr.in_avals[number]) for number in self.wanted]
        transposed = jax.linear_transpose(lambda *it: jax.core.eval_jaxpr(self.linear.jaxpr, (), *kept, *it), *wanted)
        return list(transposed(list(cotangents))) + kept

    def derivative(self, primals, tangents):
        """Results, and of those that are floats the tangents, by number."""
        out = internals.call(self.forward_jaxpr, *self.forward_consts, *primals)
        results, kept = list(out[: self.n_results]), list(out[self.n_results :])
        arguments = [primals[position] for what, position in self.sources if what == "argument"]
        if not self.inexact:
            return results, {}
        n_kept, n_arguments = len(kept), len(arguments)

        @internals.named_as(self.jaxpr)
        def linear(*args):
            wide = [it.astype(np.float32) if to else it for it, to in zip(args, self.narrow)]
            by_result, by_argument = iter(wide), iter(args[n_kept : n_kept + n_arguments])
            residuals = [next(by_argument if what == "argument" else by_result) for what, _ in self.sources]
            return jax.core.eval_jaxpr(self.linear.jaxpr, (), *residuals, *args[n_kept + n_arguments :])

        args = [*kept, *arguments, *tangents]
        jaxpr, consts = internals.trace(linear, self.options, args)
        return results, dict(zip(self.inexact, Linear(jaxpr, self.options).apply(*consts, *args)))
