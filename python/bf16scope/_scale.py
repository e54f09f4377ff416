"""The factor of a loss in float16, whose gradients would vanish without one: it grows while gradients are finite, and falls where
they are not. As a value of a train state (`LossScale`) and around an optimizer of optax (`scaled`)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp

_Tree = TypeVar("_Tree")

#: How many losses this process has scaled: a user who scales one needs no warning that f16 wants it.
n_scaled = 0


@jax.tree_util.register_pytree_node_class
@dataclass(frozen=True)
class LossScale:
    """The factor of a loss.

    Attributes:
      value: what the loss is multiplied by, f32.
      n_finite: for how many steps gradients were finite since it last changed.
      period: after so many finite steps it grows.
      factor: by what it grows, and is divided where gradients are not finite; it is never below 1.
    """

    value: Any = 2.0**15
    n_finite: Any = 0
    period: int = 2000
    factor: float = 2.0

    def tree_flatten(self):
        # As arrays, so that the state of the first step has the types of all others.
        is_number = isinstance(self.value, (int, float))
        value = jnp.float32(self.value) if is_number else self.value
        n_finite = jnp.int32(self.n_finite) if isinstance(self.n_finite, int) else self.n_finite
        return (value, n_finite), (self.period, self.factor)

    @classmethod
    def tree_unflatten(cls, statics, arrays):
        return cls(*arrays, *statics)

    def scaled(self, loss: Any) -> Any:
        """The loss, multiplied."""
        global n_scaled
        n_scaled += 1
        return loss * jnp.asarray(self.value, loss.dtype)

    def unscaled(self, gradients: _Tree) -> _Tree:
        """Gradients of the scaled loss as those of the loss, of their dtypes."""
        divided = lambda it: (jnp.asarray(it, jnp.float32) / self.value).astype(it.dtype)
        return jax.tree_util.tree_map(divided, gradients)

    def next(self, is_finite: Any) -> LossScale:
        """The factor of the next step, by whether gradients were finite in this."""
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
    """One of two trees."""
    return jax.tree_util.tree_map(lambda a, b: jnp.where(condition, a, b), yes, no)


class ScaledState(NamedTuple):
    """The state of a scaled optimizer: that of the optimizer within, and the factor, by which the loss is multiplied."""

    inner: Any
    scale: LossScale


class _Transformation(NamedTuple):
    """What optax calls a gradient transformation."""

    init: Any
    update: Any


def scaled(optimizer: Any, scale: LossScale | None = None) -> Any:
    """An optimizer of optax that takes gradients of `state.scale.scaled(loss)`: it divides them, leaves steps out whose gradients
    are not finite, and keeps the factor in its state.

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
        # What the optimizer makes of what is not finite is not taken.
        updates, inner = optimizer.update(gradients, state.inner, params, **extra)
        updates = select(is_finite, updates, jax.tree_util.tree_map(jnp.zeros_like, updates))
        return updates, ScaledState(select(is_finite, inner, state.inner), state.scale.next(is_finite))

    return _Transformation(init, update)
