"""A primitive of JAX for functions that are linear in some of their arguments.

Without it JAX would evaluate the parts of a derivative that depend on the other arguments eagerly, and keep their results, in f32,
as residuals instead of these arguments. As a single operation it is differentiated, transposed, batched and lowered by the rules
below.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.extend.core import ClosedJaxpr, Primitive

from bf16scope._jax_internals import Options, ad, batching, call, inside, mlir, named_as, partial_eval
from bf16scope._jax_internals import register_lowering, struct_of, trace, varying

_derivative_p = Primitive("bf16scope_derivative")
_derivative_p.multiple_results = True


@dataclass(frozen=True, eq=False)
class Linear:
    """A traced function that is linear in some of its arguments."""

    jaxpr: ClosedJaxpr
    options: Options

    def __call__(self, *args):
        """Its results for concrete values."""
        return call(self.jaxpr, *args)

    def apply(self, *args) -> list[Any]:
        """Its results as an application of the primitive, which JAX can transpose."""
        return _derivative_p.bind(*args, function=self)

    def types(self, args) -> list[Any]:
        """The types of its results for arguments of these types."""
        return self.jaxpr.out_avals

    def batched(self, args, axes, size: int) -> list[Any]:
        mapped = jax.vmap(functools.partial(inside, self.jaxpr), in_axes=axes, out_axes=0, axis_size=size)
        traced, consts = trace(named_as(self.jaxpr)(mapped), self.options, args)
        return Linear(traced, self.options).apply(*consts, *args)

    def transposed(self, cotangents: dict[int, Any], args, wanted: list[int]) -> list[Any]:
        """The backward pass, as a separate marked call."""
        known = {number: arg for number, arg in enumerate(args) if number not in wanted}

        @named_as(self.jaxpr)
        def backward(*values):
            residuals = dict(zip(known, values))

            def linear(*tangents):
                by_number = residuals | dict(zip(wanted, tangents))
                results = inside(self.jaxpr, *(by_number[number] for number in range(len(args))))
                return [results[number] for number in cotangents]

            types = [struct_of(args[number].aval) for number in wanted]
            return list(jax.linear_transpose(linear, *types)(list(values[len(known) :])))

        values = [*known.values(), *cotangents.values()]
        traced, consts = trace(backward, self.options, values)
        return call(traced, *consts, *values)


@dataclass(frozen=True, eq=False)
class Products(Linear):
    """The sum of the products of gradients with tangents; the first half of the arguments are the gradients."""

    jaxpr: Any = None
    options: Any = None

    def __call__(self, *args):
        half = len(args) // 2
        wide = lambda it: jax.lax.convert_element_type(it, jax.numpy.float32)
        products = [jax.numpy.sum(wide(gradient) * wide(tangent)) for gradient, tangent in zip(args[:half], args[half:])]
        return [functools.reduce(jax.lax.add, products)]

    def batched(self, args, axes, size):
        return jax.vmap(self, in_axes=axes, out_axes=0, axis_size=size)(*args)

    def transposed(self, cotangents, args, wanted):
        (cotangent,) = cotangents.values()
        half = len(args) // 2
        if any(number < half for number in wanted):
            raise NotImplementedError("a product with gradients is transposed in its tangents")
        gradients = [args[number - half] for number in wanted]
        if _is_one(cotangent):
            # The cotangent of `jax.grad` itself: each product would be one more operation of the program, for every parameter.
            return gradients
        # JAX passes a Python number on as it is.
        scale = functools.cache(functools.partial(jax.lax.convert_element_type, cotangent))
        return [it * scale(it.dtype) for it in gradients]

    def types(self, args):
        # A scalar that varies over a `shard_map`'s axes as the gradients do.
        return [_varying_as(jax.core.ShapedArray((), jax.numpy.dtype("float32")), args)]


@dataclass(frozen=True, eq=False)
class Later(Linear):
    """The tangents of some results of a function, as a function of its arguments and of some of their tangents. It is traced only
    when they are used."""

    jaxpr: Any = None
    options: Any = None
    n_arguments: int = 0
    #: Computes the results' tangents from the arguments and their tangents.
    tangents: Any = None
    #: The types of the results.
    results: Any = ()

    def __call__(self, *args):
        return self.tangents(args[: self.n_arguments], args[self.n_arguments :])

    def batched(self, args, axes, size):
        return jax.vmap(self, in_axes=axes, out_axes=0, axis_size=size)(*args)

    def transposed(self, cotangents, args, wanted):
        def linear(*tangents):
            by_number = dict(enumerate(args)) | dict(zip(wanted, tangents))
            results = self(*by_number.values())
            return [results[number] for number in cotangents]

        types = [struct_of(args[number].aval) for number in wanted]
        return list(jax.linear_transpose(linear, *types)(list(cotangents.values())))

    def types(self, args):
        return self.results


def _is_one(value) -> bool:
    """Whether a number is known to be 1 while a program is traced: a constant that JAX itself writes there."""
    if isinstance(value, partial_eval.DynamicJaxprTracer) and hasattr(value, "get_const"):
        value = value.get_const()
    # An array may be on a device, and would have to be waited for.
    return value is not None and not isinstance(value, jax.Array) and np.ndim(value) == 0 and bool(np.asarray(value) == 1)


@_derivative_p.def_impl
def _derivative(*args, function):
    return function(*args)


@_derivative_p.def_abstract_eval
def _derivative_types(*avals, function):
    return function.types(avals)


def _varying_as(aval, models):
    model = next((it for it in models if varying(it)), None)
    if model is None:
        return aval
    name = "manual_axis_type" if hasattr(model, "manual_axis_type") else "vma"
    return aval.update(**{name: getattr(model, name), "sharding": model.sharding.update(spec=jax.sharding.PartitionSpec())})


def _derivative_jvp(primals, tangents, *, function):
    # JAX's traces give lists and tuples, and `jvp` wants two of a kind.
    return jax.jvp(function, tuple(primals), tuple(map(ad.instantiate_zeros, tangents)))


def _derivative_transpose(cotangents, *args, function):
    wanted = [number for number, arg in enumerate(args) if ad.is_undefined_primal(arg)]
    by_number = {number: it for number, it in enumerate(cotangents) if type(it) is not ad.Zero}
    transposed = dict(zip(wanted, function.transposed(by_number, args, wanted), strict=True)) if by_number else {}
    return [transposed.get(number) for number in range(len(args))]


def _derivative_batch(axis_data, args, axes, *, function):
    size = getattr(axis_data, "size", axis_data)
    axes = tuple(None if axis is getattr(batching, "not_mapped", None) else axis for axis in axes)
    results = function.batched(args, axes, size)
    return results, [0] * len(results)


ad.primitive_jvps[_derivative_p] = _derivative_jvp
ad.primitive_transposes[_derivative_p] = _derivative_transpose
batching.fancy_primitive_batchers[_derivative_p] = _derivative_batch
register_lowering(_derivative_p, mlir.lower_fun(_derivative, multiple_results=True))

try:
    # Before JAX 0.6 `shard_map` needed a rule of each primitive for how its results vary.
    from jax.experimental.shard_map import register_norewrite, register_standard_check

    register_standard_check(_derivative_p)
    register_norewrite(_derivative_p)
except (ImportError, AttributeError):
    pass
