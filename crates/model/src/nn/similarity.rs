//! Products of two layers along axes: dot products, and cosines.

use crate::graph::Tensor;
use bf16scope_hlo::DType;
use bf16scope_hlo::ops::{DotDims, RuleError};

/// The dot product of x and y along an axis of each, example by example; with `normalize` both are divided by their
/// lengths along it, which gives the cosine.
///
/// # Shapes
/// x `[batch, …a, n, …b]`, y `[batch, …c, n, …d]` → `[batch, …a, …b, …c, …d]`; for two vectors `[batch, 1]`.
///
/// # Types
/// Everything in the dtype of x; lengths in f32, rounded once. A vector is divided by at least 1e-6.
///
/// # Errors
/// Dtypes or batches that differ, x or y not floating; axes that they do not have, or of different sizes.
///
/// # Source
/// Keras' `Dot`.
#[track_caller]
pub fn dot_along(x: &Tensor, y: &Tensor, axes: [i64; 2], normalize: bool) -> Tensor {
    if let Some(poison) = [x, y].into_iter().find(|tensor| tensor.is_poison()) {
        return poison.clone();
    }
    let [x_axis, y_axis] = [x.axis(axes[0]), y.axis(axes[1])];
    if let Err(error) = check(x, y, [x_axis, y_axis]) {
        return x.graph().fail("dot", &[x, y], error);
    }
    let (x, y) = match normalize {
        true => (unit(x, x_axis), unit(y, y_axis)),
        false => (x.clone(), y.clone()),
    };
    let dims = DotDims {
        lhs_batch: vec![0],
        rhs_batch: vec![0],
        lhs_contracting: vec![x_axis],
        rhs_contracting: vec![y_axis],
    };
    let product = x.dot(&y, dims);
    match product.rank() {
        1 => product.reshape([x.dims()[0], 1]),
        _ => product,
    }
}

/// x divided by its length along an axis.
///
/// # Errors
/// The batch's axis, or one that x does not have.
///
/// # Source
/// TensorFlow's `l2_normalize`, with an epsilon of 1e-12 below the root.
#[track_caller]
pub fn unit(x: &Tensor, axis: i64) -> Tensor {
    if x.is_poison() {
        return x.clone();
    }
    let axis = x.axis(axis);
    if !(1..x.rank() as i64).contains(&axis) {
        let message = format!("axis is {axis}, expected one of {} after the batch", x.shape());
        let error = RuleError::new("unit/axis", message);
        return x.graph().fail("unit", &[x], error);
    }
    let wide = x.cast(if x.dtype().bits() < 32 { DType::F32 } else { x.dtype() });
    let squares = (&wide * &wide).sum(&[axis]);
    let least = x.graph().full(squares.dtype(), &squares.dims(), 1e-12);
    let scale = squares.maximum(&least).rsqrt();
    let remaining: Vec<i64> = (0..x.rank() as i64).filter(|&other| other != axis).collect();
    (&wide * scale.broadcast_in_dim(&x.dims(), &remaining)).cast(x.dtype())
}

fn check(x: &Tensor, y: &Tensor, [x_axis, y_axis]: [i64; 2]) -> Result<(), RuleError> {
    super::is_float("dot/dtype", "x", x)?;
    let has = |tensor: &Tensor, axis: i64| (1..tensor.rank() as i64).contains(&axis);
    let size = |tensor: &Tensor, axis: i64| tensor.dims()[axis as usize];
    let fits = has(x, x_axis)
        && has(y, y_axis)
        && (x.dtype(), size(x, 0), size(x, x_axis)) == (y.dtype(), size(y, 0), size(y, y_axis));
    if fits {
        return Ok(());
    }
    let message = format!(
        "{} along axis {x_axis} and {} along axis {y_axis} meet, expected one dtype, one batch and equal sizes of axes after it",
        x.shape(),
        y.shape()
    );
    Err(RuleError::new("dot/axes", message))
}
