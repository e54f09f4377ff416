//! Gradients of conversions.

use crate::ops::grad::{Cotangents, Vjp};

/// Back to the operand's dtype: how the gradient of an f32 variable read as bf16 arrives in f32. From and to integers
/// nothing flows.
pub(crate) fn convert(vjp: &Vjp<'_>) -> Cotangents {
    let e = vjp.e;
    vjp.each(|_| e.convert(vjp.g(), e.dtype(vjp.operand(0))))
}

/// The identity has one; bits read as another dtype are not a continuous function of the value.
pub(crate) fn bitcast_convert(vjp: &Vjp<'_>) -> Cotangents {
    let e = vjp.e;
    if e.dtype(vjp.operand(0)) != e.dtype(vjp.result) {
        return Err("bits read as another dtype are not a continuous function of the value".into());
    }
    vjp.each(|_| vjp.g())
}

/// Straight through: the derivative of rounding is 0 almost everywhere and would stop training; a rounded value stands
/// for the value it was rounded from, as with `convert`.
pub(crate) fn reduce_precision(vjp: &Vjp<'_>) -> Cotangents {
    vjp.each(|_| vjp.g())
}
