"""Dynamic loss scaling for float16, whose gradients would underflow without it: the scale grows while gradients are finite, and
falls when they are not. It is a value of a train state (`LossScale`), or wraps an optimizer of optax (`scaled`)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp

_Tree = TypeVar("_Tree")

#: The number of losses that this process has scaled: a user who scales losses needs no warning that f16 requires it.
n_scaled = 0


@jax.tree_util.register_pytree_node_class
@dataclass(frozen=True)
class LossScale:
    """A dynamic loss scale.

    Attributes:
      value: the factor of the loss, f32; never below 1.
      n_finite: the number of steps with finite gradients since the scale last changed.
      period: the number of such steps after which the scale grows.
      factor: the scale is multiplied by it when it grows, and divided by it when gradients are not finite.
    """

    value: Any = 2.0**15
    n_finite: Any = 0
    period: int = 2000
    factor: float = 2.0

    def tree_flatten(self):
        # Numbers become arrays, so that the first step's state has the same types as all others.
        is_number = isinstance(self.value, (int, float))
        value = jnp.float32(self.value) if is_number else self.value
        n_finite = jnp.int32(self.n_finite) if isinstance(self.n_finite, int) else self.n_finite
        return (value, n_finite), (self.period, self.factor)

    @classmethod
    def tree_unflatten(cls, statics, arrays):
        return cls(*arrays, *statics)

    def scaled(self, loss: Any) -> Any:
        """The loss multiplied by the scale."""
        global n_scaled
        n_scaled += 1
        return loss * jnp.asarray(self.value, loss.dtype)

    def unscaled(self, gradients: _Tree) -> _Tree:
        """Gradients of the scaled loss, divided by the scale, in their dtypes."""
        divided = lambda it: (jnp.asarray(it, jnp.float32) / self.value).astype(it.dtype)
        return jax.tree_util.tree_map(divided, gradients)

    def next(self, is_finite: Any) -> LossScale:
        """The loss scale of the next step, given whether this step's gradients were finite."""
        value, n_finite = jnp.float32(self.value), jnp.int32(self.n_finite) + 1
        is_grown = (n_finite >= self.period) & jnp.isfinite(value * self.factor)
        grown = jnp.where(is_grown, value * self.factor, value)
        fallen = jnp.maximum(value / self.factor, 1.0)
        n_finite = jnp.where(is_finite & (n_finite < self.period), n_finite, 0)
        return replace(self, value=jnp.where(is_finite, grown, fallen), n_finite=n_finite)


def all_finite(tree: Any) -> Any:
    """Whether all numbers of a tree are finite."""
    finite = [jnp.all(jnp.isfinite(it)) for it in jax.tree_util.tree_leaves(tree)]
    return jnp.all(jnp.array(finite)) if finite else jnp.array(True)


def select(condition: Any, yes: _Tree, no: _Tree) -> _Tree:
    """Selects one of two trees by a condition."""
    return jax.tree_util.tree_map(lambda a, b: jnp.where(condition, a, b), yes, no)


class ScaledState(NamedTuple):
    """The state of a scaled optimizer: the inner optimizer's state, and the loss scale."""

    inner: Any
    scale: LossScale


class _Transformation(NamedTuple):
    """A gradient transformation of optax."""

    init: Any
    update: Any


def scaled(optimizer: Any, scale: LossScale | None = None) -> Any:
    """An optimizer of optax that takes gradients of `state.scale.scaled(loss)`: it unscales them, skips steps with gradients that
    are not finite, and keeps the loss scale in its state.

        optimizer = bf16scope.jax.scaled(optax.adam(1e-3))
        loss, gradients = jax.value_and_grad(lambda params: state.scale.scaled(loss_of(params, batch)))(params)
        updates, state = optimizer.update(gradients, state, params)
    """
    first = scale or LossScale()

    def init(params):
        return ScaledState(optimizer.init(params), jax.tree_util.tree_map(jnp.asarray, first))

    def update(gradients, state, params=None, **extra):
        gradients = state.scale.unscaled(gradients)
        is_finite = all_finite(gradients)
        # The update of a step with gradients that are not finite is discarded.
        updates, inner = optimizer.update(gradients, state.inner, params, **extra)
        updates = select(is_finite, updates, jax.tree_util.tree_map(jnp.zeros_like, updates))
        return updates, ScaledState(select(is_finite, inner, state.inner), state.scale.next(is_finite))

    return _Transformation(init, update)
