//! `log Σ e^x` in one pass.

use crate::graph::Tensor;
use crate::hlo::ops::{BinaryOp, Comparison, UnaryOp};
use crate::hlo::{CompId, DType, InstrId, Metadata, Module, Op, Shape};

/// `log Σ e^x` over the last axis of f32 or f64 data, as a reduction by [`combination`]: with no greatest to wait for, it
/// is one pass, which a compiler can make where x itself is made.
///
/// Minus infinity adds nothing, a row of nothing else gives it. A NaN gives NaN, infinity infinity or NaN.
///
/// Every step rounds what is gathered so far, of the size of the result: see [`token_loss`](super::token_loss).
///
/// It has no gradient rule: what uses it has a gradient of its own.
#[track_caller]
pub(super) fn log_sum_exp(x: &Tensor) -> Tensor {
    x.emit("log_sum_exp", |e| {
        let dtype = x.dtype();
        let init = e.scalar(dtype, f64::NEG_INFINITY);
        let to_apply = e.with_module_mut(|module| combination(module, dtype));
        e.emit(Op::Reduce { dimensions: vec![x.rank() as i64 - 1], to_apply }, &[x.id, init], None)
    })
}

/// `(a, b) -> log(e^a + e^b)` on scalars of f32 or f64, as `max + log1p(e^-|a - b|)`; made once.
///
/// The power is 1 for equals, infinities included. A NaN comes through it, as it does not through every `max`. There is
/// no constant in it: compilers give one in a reduction a place in memory.
fn combination(module: &mut Module, dtype: DType) -> CompId {
    let name = format!("log_add_exp_{dtype}");
    if let Some(comp) = module.find_computation(&name) {
        return comp;
    }
    let comp = module.add_computation(&name);
    let mut append = |dtype, op, operands: &[InstrId]| {
        module.append(comp, op, operands.to_vec(), Shape::scalar(dtype), Metadata::default())
    };
    let [a, b] = [0, 1].map(|number| append(dtype, Op::parameter(number), &[]));
    let difference = append(dtype, Op::Binary(BinaryOp::Subtract), &[a, b]);
    let size = append(dtype, Op::Unary(UnaryOp::Abs), &[difference]);
    let exponent = append(dtype, Op::Unary(UnaryOp::Negate), &[size]);
    let power = append(dtype, Op::Unary(UnaryOp::Exp), &[exponent]);
    let is_equal = append(DType::Pred, Op::Compare { direction: Comparison::Eq, kind: None }, &[a, b]);
    let one = append(dtype, Op::Convert, &[is_equal]);
    let ratio = append(dtype, Op::Select, &[is_equal, one, power]);
    let more = append(dtype, Op::Unary(UnaryOp::Log1p), &[ratio]);
    let greater = append(dtype, Op::Binary(BinaryOp::Maximum), &[a, b]);
    append(dtype, Op::Binary(BinaryOp::Add), &[greater, more]);
    comp
}
