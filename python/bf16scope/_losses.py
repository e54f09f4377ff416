"""Losses in jaxprs. A result that is differentiated carries a name there, which every transformation of JAX keeps and which no
program has."""

from __future__ import annotations

from jax.ad_checkpoint import checkpoint_name

_NAME = "bf16scope_loss"


def named(loss):
    """A loss, with the name."""
    return checkpoint_name(loss, _NAME)


def numbers(jaxpr) -> list[int] | None:
    """Returns the numbers of the results with the name, or None if no result has it and losses have to be guessed."""
    is_named = lambda equation: equation.primitive.name == "name" and equation.params["name"] == _NAME
    losses = {id(var) for equation in jaxpr.eqns if is_named(equation) for var in equation.outvars}
    return [number for number, var in enumerate(jaxpr.outvars) if id(var) in losses] or None
