//! `log Σ e^x`, in two passes or one.

use crate::graph::Tensor;
use bf16scope_hlo::ops::{BinaryOp, Comparison, UnaryOp};
use bf16scope_hlo::{CompId, DType, InstrId, Metadata, Module, Op, Shape};
use bf16scope_passes::tuning::Softmax;

/// `log Σ e^x` over the last axis of f32 or f64 data.
///
/// A NaN gives NaN; infinity gives infinity or NaN. A row of minus infinity gives minus infinity, or NaN in two passes.
///
/// In one pass it has no gradient rule: its callers have a custom VJP.
#[track_caller]
pub(super) fn log_sum_exp(x: &Tensor, softmax: Softmax) -> Tensor {
    let last = x.rank() as i64 - 1;
    match softmax {
        Softmax::TwoPasses => {
            let greatest = x.max(&[last]);
            let leading: Vec<i64> = (0..last).collect();
            let powers = (x - greatest.broadcast_in_dim(&x.dims(), &leading)).exponential();
            powers.sum(&[last]).log() + greatest
        }
        Softmax::OnePass => x.emit("log_sum_exp", &[], |e| {
            let dtype = x.dtype();
            let init = e.scalar(dtype, f64::NEG_INFINITY);
            let to_apply = e.with_module_mut(|module| combination(module, dtype));
            e.emit(Op::Reduce { dimensions: vec![last], to_apply }, &[x.id, init], None)
        }),
    }
}

/// `(a, b) -> log(e^a + e^b)` on scalars of f32 or f64, as `max + log1p(e^-|a - b|)`; emitted once per module.
///
/// The exponential is 1 for equal operands, infinities included. It propagates NaN, which not every `max` does. The
/// computation has no constant: compilers would give a constant in a reduction a place in memory.
fn combination(module: &mut Module, dtype: DType) -> CompId {
    let name = format!("log_add_exp_{dtype}");
    module.made_once(&name, |module, comp| write_combination(module, comp, dtype))
}

fn write_combination(module: &mut Module, comp: CompId, dtype: DType) {
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
}
