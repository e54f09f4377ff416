//! Gradients of `dot`.
//!
//! `result [batch, m, n]` of `lhs [batch, m, k]` and `rhs [batch, n, k]` (in any order of dimensions): the cotangent of
//! lhs is `dot(g, rhs)` over n, that of rhs `dot(lhs, g)` over m, in this order of operands, as TensorFlow's `MatMul`
//! gradient. They run in the operands' dtype; if the dot's result is wider than its operands (as `bf16 × bf16 → f32`),
//! in the wider one.

use super::{DotDims, PrecisionConfig, range_and_precision, wider};
use crate::ops::grad::{Cotangents, Vjp};
use crate::{DType, Emitter, InstrId, Op};

/// See the module's documentation.
pub(crate) fn dot(vjp: &Vjp<'_>, dims: &DotDims, precision: &PrecisionConfig) -> Cotangents {
    let (e, g, lhs, rhs) = (vjp.e, vjp.g(), vjp.operand(0), vjp.operand(1));
    let n_batch = dims.lhs_batch.len() as i64;
    let lhs_free = free_dims(e.dims(lhs).len(), &dims.lhs_batch, &dims.lhs_contracting);
    let rhs_free = free_dims(e.dims(rhs).len(), &dims.rhs_batch, &dims.rhs_contracting);
    let first_rhs_free = n_batch + lhs_free.len() as i64;
    let batch: Vec<i64> = (0..n_batch).collect();
    vjp.each(|idx| {
        if idx == 0 {
            let backward = DotDims {
                lhs_batch: batch.clone(),
                rhs_batch: dims.rhs_batch.clone(),
                lhs_contracting: (first_rhs_free..first_rhs_free + rhs_free.len() as i64).collect(),
                rhs_contracting: rhs_free.clone(),
            };
            let product = mixed_dot(e, [g, rhs], backward, precision, e.dtype(lhs));
            // Its dims: batch, lhs's free ones, then rhs's contracting ones in ascending order.
            let contracted = paired_in_order_of(&dims.rhs_contracting, &dims.lhs_contracting);
            place(e, product, &[dims.lhs_batch.clone(), lhs_free.clone(), contracted].concat())
        } else {
            let backward = DotDims {
                lhs_batch: dims.lhs_batch.clone(),
                rhs_batch: batch.clone(),
                lhs_contracting: lhs_free.clone(),
                rhs_contracting: (n_batch..first_rhs_free).collect(),
            };
            let product = mixed_dot(e, [lhs, g], backward, precision, e.dtype(rhs));
            // Its dims: batch, lhs's contracting ones in ascending order, then rhs's free ones.
            let contracted = paired_in_order_of(&dims.lhs_contracting, &dims.rhs_contracting);
            place(e, product, &[dims.rhs_batch.clone(), contracted, rhs_free.clone()].concat())
        }
    })
}

/// Dimensions that are neither batch nor contracting, ascending.
fn free_dims(rank: usize, batch: &[i64], contracting: &[i64]) -> Vec<i64> {
    (0..rank as i64).filter(|axis| !batch.contains(axis) && !contracting.contains(axis)).collect()
}

/// The entries of `values` in ascending order of the `keys` they stand beside.
fn paired_in_order_of(keys: &[i64], values: &[i64]) -> Vec<i64> {
    let mut pairs: Vec<(i64, i64)> = keys.iter().copied().zip(values.iter().copied()).collect();
    pairs.sort();
    pairs.into_iter().map(|(_, value)| value).collect()
}

/// Transposes so that dimension `i` of `x` becomes dimension `places[i]`.
fn place(e: &Emitter, x: InstrId, places: &[i64]) -> InstrId {
    e.transpose(x, &crate::ops::movement::grad::inverse(places))
}

/// A dot of operands of possibly different dtypes, run in the widest of them, with a result of dtype `dtype`.
fn mixed_dot(e: &Emitter, operands: [InstrId; 2], dims: DotDims, precision: &PrecisionConfig, dtype: DType) -> InstrId {
    let operands = to_widest(e, operands);
    let [lhs, rhs] = operands;
    // `dot` takes no scalars: the cotangent of a product of vectors multiplies.
    let product = match (e.dims(lhs).is_empty(), e.dims(rhs).is_empty()) {
        (true, _) => e.mul(e.broadcast(lhs, &[], &e.dims(rhs)), rhs),
        (false, true) => e.mul(lhs, e.broadcast(rhs, &[], &e.dims(lhs))),
        (false, false) => e.emit(Op::Dot { dims, precision: precision.clone() }, &operands, None),
    };
    e.convert(product, dtype)
}

/// Both operands in the dtype of their product; for two floats that do not represent each other's values (bf16
/// and f16), in f32, which represents both.
pub(crate) fn to_widest(e: &Emitter, operands: [InstrId; 2]) -> [InstrId; 2] {
    let [lhs, rhs] = operands.map(|operand| e.dtype(operand));
    let parts = [lhs, rhs].map(range_and_precision);
    let holds_neither = match parts {
        [Some(lhs), Some(rhs)] => (lhs.0 > rhs.0) != (lhs.1 > rhs.1) && lhs.0 != rhs.0 && lhs.1 != rhs.1,
        _ => false,
    };
    let widest = wider(lhs, rhs).filter(|_| !holds_neither).unwrap_or(DType::F32);
    operands.map(|operand| e.convert(operand, widest))
}
