//! Reductions over axes of examples: sums, means and so on.

use crate::graph::Tensor;
use bf16scope_hlo::DType;
use bf16scope_hlo::ops::{BinaryOp, RuleError};
use serde::{Deserialize, Serialize};

/// The reduction that [`reduce`] applies along its axes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reduction {
    /// Their sum.
    Sum,
    /// Their mean.
    Mean,
    /// The maximum.
    Max,
    /// The minimum.
    Min,
    /// Their product.
    Prod,
    /// The mean of squared differences from the mean.
    Variance,
    /// The standard deviation, √variance.
    Std,
    /// The square root of the sum of squares.
    L2Norm,
    /// The logarithm of the sum of exponentials.
    Logsumexp,
}

/// Reduces `x` over axes, counting the batch; over all but the batch if `axes` is empty.
///
/// # Shapes
/// x `[batch, …]` → the same without the axes, or with size 1 with `keepdims`.
///
/// # Types
/// bf16 and f16 are reduced in f32, and the result is rounded once; `max` and `min` are exact in any dtype.
///
/// # Errors
/// Axes that x does not have, the batch among them, or one twice; x not floating, except for `sum`, `max`, `min` and
/// `prod`.
///
/// # Source
/// TensorFlow's `reduce_sum`, `reduce_mean` and the like.
#[track_caller]
pub fn reduce(x: &Tensor, reduction: Reduction, axes: &[i64], keepdims: bool) -> Tensor {
    if x.is_poison() {
        return x.clone();
    }
    let _open = x.graph().open_layer();
    let mut axes = match axes {
        [] => (1..x.rank() as i64).collect(),
        axes => x.axes(axes),
    };
    axes.sort_unstable();
    if let Err(error) = check(x, reduction, &axes) {
        return x.graph().fail("reduce", &[x], error);
    }
    let is_exact = matches!(reduction, Reduction::Max | Reduction::Min);
    let dtype = match x.dtype() {
        DType::BF16 | DType::F16 if !is_exact => DType::F32,
        other => other,
    };
    let wide = x.cast(dtype);
    let remaining: Vec<i64> = (0..x.rank() as i64).filter(|axis| !axes.contains(axis)).collect();
    let along = |reduced: &Tensor| reduced.broadcast_in_dim(&x.dims(), &remaining);
    let variance = || {
        let difference = &wide - along(&wide.mean(&axes));
        (&difference * &difference).mean(&axes)
    };
    let reduced = match reduction {
        Reduction::Sum => wide.sum(&axes),
        Reduction::Mean => wide.mean(&axes),
        Reduction::Max => wide.max(&axes),
        Reduction::Min => wide.reduce(BinaryOp::Minimum, &axes),
        Reduction::Prod => wide.reduce(BinaryOp::Multiply, &axes),
        Reduction::Variance => variance(),
        Reduction::Std => variance().sqrt(),
        Reduction::L2Norm => (&wide * &wide).sum(&axes).sqrt(),
        Reduction::Logsumexp => {
            let max = wide.max(&axes);
            (&wide - along(&max)).exponential().sum(&axes).log() + max
        }
    };
    let reduced = reduced.cast(x.dtype());
    if !keepdims {
        return reduced;
    }
    let dims = x.dims();
    let dims = (0..).zip(&dims).map(|(axis, &dim)| if axes.contains(&axis) { 1 } else { dim });
    reduced.reshape(dims.collect::<Vec<i64>>())
}

fn check(x: &Tensor, reduction: Reduction, axes: &[i64]) -> Result<(), RuleError> {
    let is_of_any = matches!(reduction, Reduction::Sum | Reduction::Max | Reduction::Min | Reduction::Prod);
    if !is_of_any {
        super::is_float("reduce/dtype", "x", x)?;
    }
    let is_twice = axes.windows(2).any(|pair| pair[0] == pair[1]);
    if is_twice || axes.iter().any(|axis| !(1..x.rank() as i64).contains(axis)) {
        let message = format!("axes are {axes:?}, expected axes of {} after the batch, each once", x.shape());
        return Err(RuleError::new("reduce/axes", message));
    }
    Ok(())
}
