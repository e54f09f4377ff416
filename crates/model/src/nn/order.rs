//! Along an axis of examples: running sums, sorting, and the largest elements.

use crate::graph::Tensor;
use bf16scope_hlo::ops::{BinaryOp, CompareKind, Comparison, RuleError, SliceDim, WindowDim};
use bf16scope_hlo::{DType, InstrId, Metadata, Op, Shape};

/// The sums of all elements up to each along `axis`, counting the batch: `[1, 2, 3]` → `[1, 3, 6]`.
///
/// # Types
/// bf16 and f16 are summed in f32, and each sum is rounded once; other dtypes in their own.
///
/// # Errors
/// An axis that x does not have, or the batch.
///
/// # Source
/// TensorFlow's `cumsum`, torch's `cumsum`.
#[track_caller]
pub fn cumsum(x: &Tensor, axis: i64, is_reversed: bool) -> Tensor {
    let axis = match axis_of("cumsum", x, axis) {
        Ok(axis) => axis,
        Err(result) => return result,
    };
    let dtype = match x.dtype() {
        DType::BF16 | DType::F16 => DType::F32,
        other => other,
    };
    let mut window = vec![WindowDim::of_size(1); x.rank()];
    let n = x.dims()[axis];
    let padding = if is_reversed { (0, n - 1) } else { (n - 1, 0) };
    window[axis] = WindowDim { padding_low: padding.0, padding_high: padding.1, ..WindowDim::of_size(n) };
    super::pool::reduce_window(&x.cast(dtype), BinaryOp::Add, 0.0, window).cast(x.dtype())
}

/// The elements along `axis`, counting the batch, from the smallest, or from the largest. A NaN counts as the largest.
///
/// # Types
/// Any real dtype; elements are moved, not computed, and so are their gradients.
///
/// # Errors
/// As [`cumsum`].
///
/// # Source
/// Keras' `ops.sort`, torch's `sort`.
#[track_caller]
pub fn sort(x: &Tensor, axis: i64, is_descending: bool) -> Tensor {
    let dimension = match axis_of("sort", x, axis) {
        Ok(axis) => axis as i64,
        Err(result) => return result,
    };
    let dtype = x.dtype();
    let (direction, word) = if is_descending { (Comparison::Gt, "greater") } else { (Comparison::Lt, "less") };
    x.emit("sort", &[], |e| {
        let to_apply = e.with_module_mut(|module| {
            module.made_once(&format!("{word}_{dtype}"), |module, comp| {
                let ids: Vec<InstrId> = [0, 1]
                    .map(|number| {
                        module.append(
                            comp,
                            Op::parameter(number),
                            Vec::new(),
                            Shape::scalar(dtype),
                            Metadata::default(),
                        )
                    })
                    .to_vec();
                let kind = dtype.is_float().then_some(CompareKind::TotalOrder);
                let op = Op::Compare { direction, kind };
                module.append(comp, op, ids, Shape::scalar(DType::Pred), Metadata::default());
            })
        });
        e.emit(Op::Sort { dimension, is_stable: false, to_apply }, &[x.id], None)
    })
}

/// The `k` largest elements of the last axis, the largest first.
///
/// # Shapes
/// x `[…, n]` → `[…, k]`.
///
/// # Types
/// As [`sort`].
///
/// # Errors
/// As [`cumsum`]; a `k` that is not from 1 to n.
///
/// # Source
/// The values of TensorFlow's and torch's `top_k`.
#[track_caller]
pub fn top_k(x: &Tensor, k: i64) -> Tensor {
    let last = match axis_of("top_k", x, -1) {
        Ok(axis) => axis,
        Err(result) => return result,
    };
    let n = x.dims()[last];
    if !(1..=n).contains(&k) {
        let message = format!("k is {k}, expected at most {n}, the last axis of x {}", x.shape());
        let help = "write a smaller `k`; the last axis is the one that is searched: `permute` brings another there";
        return x.graph().fail("top_k", &[x], RuleError::new("top_k/k", message).with_help(help));
    }
    let mut ranges: Vec<SliceDim> = x.dims().iter().map(|&dim| SliceDim { start: 0, limit: dim, stride: 1 }).collect();
    ranges[last].limit = k;
    sort(x, -1, true).slice(&ranges)
}

/// The axis, from 0; else the result of an error, or poison.
#[track_caller]
fn axis_of(op: &str, x: &Tensor, axis: i64) -> Result<usize, Tensor> {
    if x.is_poison() {
        return Err(x.clone());
    }
    let from_0 = x.axis(axis);
    if (1..x.rank() as i64).contains(&from_0) {
        return Ok(from_0 as usize);
    }
    let message = format!("axis is {axis}, expected an axis of x {} after the batch", x.shape());
    let help = match x.rank() {
        0 | 1 => "x has one number for each example: reshape what it is computed from".to_string(),
        2 => "write 1, or -1".to_string(),
        rank => format!("the batch is axis 0: write 1 to {}, or -1 for the last", rank - 1),
    };
    Err(x.graph().fail(op, &[x], RuleError::new("order/axis", message).with_help(help)))
}
