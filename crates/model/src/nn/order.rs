//! Along an axis of examples: running sums, sorting, and the largest elements.

use crate::graph::Tensor;
use bf16scope_hlo::ops::{BinaryOp, CompareKind, Comparison, RuleError, SliceDim, WindowDim};
use bf16scope_hlo::{CompId, DType, InstrId, Metadata, Module, Op, Shape};

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
    let by = comparison(x.dtype(), is_descending, &[x.dtype()]);
    x.emit("sort", &[], |e| {
        let to_apply = e.with_module_mut(|module| by.computation(module));
        e.emit(Op::Sort { dimension, is_stable: false, to_apply }, &[x.id], None)
    })
}

/// The places, from 0, of the elements along `axis` in the order of [`sort`]; elements that are equal stand in their own.
///
/// # Shapes
/// x `[…, n, …]` → `s32[…, n, …]`.
///
/// # Gradient
/// Whole numbers have none.
///
/// # Errors
/// As [`cumsum`].
///
/// # Source
/// TensorFlow's `argsort` with `stable=True`.
#[track_caller]
pub fn arg_sort(x: &Tensor, axis: i64, is_descending: bool) -> Tensor {
    let dimension = match axis_of("arg_sort", x, axis) {
        Ok(axis) => axis as i64,
        Err(result) => return result,
    };
    let places = x.graph().iota(DType::S32, &x.dims(), dimension);
    let by = comparison(x.dtype(), is_descending, &[x.dtype(), DType::S32]);
    let fixed = x.stop_gradient();
    let sorted = x.emit("sort", &[&fixed, &places], |e| {
        let to_apply = e.with_module_mut(|module| by.computation(module));
        e.emit(Op::Sort { dimension, is_stable: true, to_apply }, &[fixed.id, places.id], None)
    });
    sorted.get_tuple_element(1)
}

/// The comparison of a sort, which reads the first of its operands.
struct By {
    name: String,
    direction: Comparison,
    kind: Option<CompareKind>,
    operands: Vec<DType>,
}

fn comparison(dtype: DType, is_descending: bool, operands: &[DType]) -> By {
    let (direction, word) = if is_descending { (Comparison::Gt, "greater") } else { (Comparison::Lt, "less") };
    let with = operands[1..].iter().map(|dtype| format!("_with_{dtype}")).collect::<String>();
    let kind = dtype.is_float().then_some(CompareKind::TotalOrder);
    By { name: format!("{word}_{dtype}{with}"), direction, kind, operands: operands.to_vec() }
}

impl By {
    fn computation(&self, module: &mut Module) -> CompId {
        module.made_once(&self.name, |module, comp| {
            let sides = self.operands.iter().flat_map(|&dtype| [dtype, dtype]);
            let ids: Vec<InstrId> = (0..)
                .zip(sides)
                .map(|(number, dtype)| {
                    let (op, shape) = (Op::parameter(number), Shape::scalar(dtype));
                    module.append(comp, op, Vec::new(), shape, Metadata::default())
                })
                .collect();
            let op = Op::Compare { direction: self.direction, kind: self.kind };
            module.append(comp, op, ids[..2].to_vec(), Shape::scalar(DType::Pred), Metadata::default());
        })
    }
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
    match largest(x, k) {
        Ok(ranges) => sort(x, -1, true).slice(&ranges),
        Err(result) => result,
    }
}

/// The places, from 0, of the elements that [`top_k`] returns, in its order; of equal ones the first stands first.
///
/// # Shapes
/// x `[…, n]` → `s32[…, k]`.
///
/// # Errors
/// As [`top_k`].
///
/// # Source
/// The indices of TensorFlow's `top_k`.
#[track_caller]
pub fn top_k_indices(x: &Tensor, k: i64) -> Tensor {
    match largest(x, k) {
        Ok(ranges) => arg_sort(x, -1, true).slice(&ranges),
        Err(result) => result,
    }
}

/// The range of the first `k` of the last axis; else the result of an error, or poison.
#[track_caller]
fn largest(x: &Tensor, k: i64) -> Result<Vec<SliceDim>, Tensor> {
    let last = axis_of("top_k", x, -1)?;
    let n = x.dims()[last];
    if !(1..=n).contains(&k) {
        let message = format!("k is {k}, expected at most {n}, the last axis of x {}", x.shape());
        let help = "write a smaller `k`; the last axis is the one that is searched: `permute` brings another there";
        return Err(x.graph().fail("top_k", &[x], RuleError::new("top_k/k", message).with_help(help)));
    }
    let mut ranges: Vec<SliceDim> = x.dims().iter().map(|&dim| SliceDim { start: 0, limit: dim, stride: 1 }).collect();
    ranges[last].limit = k;
    Ok(ranges)
}

/// `of` x with `axis`, counting the batch, as its last.
///
/// # Errors
/// As [`cumsum`].
#[track_caller]
pub(crate) fn with_last(name: &str, x: &Tensor, axis: i64, of: impl FnOnce(&Tensor) -> Tensor) -> Tensor {
    match axis_of(name, x, axis) {
        Ok(axis) if axis + 1 == x.rank() => of(x),
        Ok(axis) => {
            let others = (0..x.rank() as i64).filter(|&other| other != axis as i64);
            of(&x.transpose(&others.chain([axis as i64]).collect::<Vec<i64>>()))
        }
        Err(result) => result,
    }
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
