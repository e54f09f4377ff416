"""How JAX differentiates a lowered function: both passes are lowered, in one module where the function is a loss."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from bf16scope import _jax_internals as internals


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

    @jax.custom_jvp
    def call(*args):
        return internals.call(jaxpr, *args)

    # Derivatives that were traced. They last as long as the function does.
    known: dict[Any, Any] = {}

    def derivative_of(kind, wanted, primals):
        if (kind, wanted) not in known:
            known[kind, wanted] = kind(jaxpr, options, wanted, again, primals)
        return known[kind, wanted]

    def derivative(primals, tangents):
        wanted = tuple(number for number, it in enumerate(tangents) if _is_given(it))
        given = [tangents[number] for number in wanted]
        try:
            results, by_number = of_both_modes(wanted, primals, given)
        except ValueError as error:
            if "Reverse-mode" not in str(error):
                raise
            # Such as a `while_loop`, which has forward mode alone.
            results, by_number = _forward_mode(jaxpr, wanted, primals, given)
        zero = lambda it: jax.numpy.zeros(it.shape, it.dtype) if _is_inexact(it) else np.zeros(it.shape, jax.dtypes.float0)
        return results, [by_number[number] if number in by_number else zero(it) for number, it in enumerate(results)]

    def of_both_modes(wanted, primals, given):
        if _is_loss(jaxpr, options, wanted):
            results, by_number = derivative_of(_OneModule, wanted, primals).derivative(primals, given)
            others = [number for number, it in enumerate(results) if _is_inexact(it) and number not in by_number]
            if others:
                # Unused, it goes before XLA.
                _, of_others = derivative_of(_Passes, wanted, primals).derivative(primals, given)
                by_number |= {number: of_others[number] for number in others}
        else:
            results, by_number = derivative_of(_Passes, wanted, primals).derivative(primals, given)
        return results, by_number

    call.defjvp(derivative, symbolic_zeros=True)
    return call


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
    first = next((aval for aval in jaxpr.out_avals if _is_inexact(aval)), None)
    if first is None or first.shape != () or first.dtype != np.float32 or options.dtype == "float16":
        return False
    is_real = all(jax.dtypes.issubdtype(jaxpr.in_avals[number].dtype, np.floating) for number in wanted)
    return is_real and not internals.is_shared(jaxpr)


class _OneModule:
    """A loss with its gradients: one module, lowered as a whole step is. Its derivative is the product with them."""

    def __init__(self, jaxpr, options, wanted, again, primals):
        self.n_results = len(jaxpr.out_avals)
        self.loss = next(number for number, aval in enumerate(jaxpr.out_avals) if _is_inexact(aval))

        @internals.named_as(jaxpr)
        def both(*args):
            def of_wanted(*values):
                given = list(args)
                for number, value in zip(wanted, values):
                    given[number] = value
                out = again(*given)
                return out[self.loss], out

            _, vjp, out = jax.vjp(of_wanted, *(args[number] for number in wanted), has_aux=True)
            return list(out) + list(vjp(jax.numpy.ones_like(out[self.loss])))

        # JAX makes constants of its own where it differentiates.
        self.jaxpr, self.consts = internals.trace(both, options, primals)

    def derivative(self, primals, tangents):
        """Results, and of those that are floats the tangents, by number."""
        out = internals.call(self.jaxpr, *self.consts, *primals)
        results, gradients = list(out[: self.n_results]), out[self.n_results :]
        by_number = {self.loss: internals.Products().apply(*gradients, *tangents)[0]} if gradients else {}
        return results, by_number


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
            both, _ = internals.trace(self._both, options, [*primals, *cotangents])
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

    def _both(self, *args):
        """Gradients, and what is kept for them."""
        n_arguments = len(self.jaxpr.in_avals)
        args, cotangents = args[:n_arguments], args[n_arguments:]
        _, linear = self._linearized(args)
        wanted = [internals.struct_of(internals.type_of(args[number])) for number in self.wanted]
        transposed = jax.linear_transpose(lambda *it: jax.core.eval_jaxpr(linear.jaxpr, linear.consts, *it), *wanted)
        return list(transposed(list(cotangents))) + list(linear.consts)

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
        return results, dict(zip(self.inexact, internals.Linear(jaxpr, self.options).apply(*consts, *args)))
