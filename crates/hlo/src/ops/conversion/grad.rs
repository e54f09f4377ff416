//! Gradients of conversions.

use crate::ops::grad::{Cotangents, Vjp};

/// Converts back to the operand's dtype: so the gradient of an f32 variable that is read as bf16 is f32. Conversions
/// from and to integers have none.
pub(crate) fn convert(vjp: &Vjp<'_>) -> Cotangents {
    let e = vjp.e;
    vjp.each(|_| e.convert(vjp.g(), e.dtype(vjp.operand(0))))
}

/// The identity has a gradient; bits read as another dtype are not a continuous function of the value.
pub(crate) fn bitcast_convert(vjp: &Vjp<'_>) -> Cotangents {
    let e = vjp.e;
    if e.dtype(vjp.operand(0)) != e.dtype(vjp.result) {
        return Err("bits read as another dtype are not a continuous function of the value".into());
    }
    vjp.each(|_| vjp.g())
}

/// Straight through: the derivative of rounding is 0 almost everywhere and would stop training; a rounded value stands
/// for the original, as with `convert`.
pub(crate) fn reduce_precision(vjp: &Vjp<'_>) -> Cotangents {
    vjp.each(|_| vjp.g())
}
