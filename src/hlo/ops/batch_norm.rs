//! Batch normalisation: training, inference, and the gradient of training.
//!
//! All operands have one floating dtype: bf16 data with f32 parameters must be converted around the op. XLA expands
//! these ops into reductions and elementwise ops of that dtype, so f32 also is what keeps the statistics of bf16 data.
//!
//! Source: `ShapeInference::InferBatchNorm{Training,Inference,Grad}Shape`.

pub(crate) mod grad;

use super::{RuleError, operands};
use crate::hlo::{ArrayShape, DType, Shape};

/// Attributes of the `batch-norm-*` ops.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BatchNorm {
    /// Added to the variance.
    pub epsilon: f32,
    /// The dimension of features.
    pub feature_index: i64,
}

/// `y = (x - mean) / sqrt(variance + epsilon) * scale + offset`, with the statistics of x itself, over all dims but
/// the feature's; the variance is the biased one (divided by n).
///
/// # Shapes
/// x `[…, c, …]`, scale `[c]`, offset `[c]` → (like x, mean `[c]`, variance `[c]`).
///
/// # Types
/// One floating dtype for all.
pub(super) fn training(attributes: &BatchNorm, operands: &[&Shape]) -> Result<Shape, RuleError> {
    let op = "batch-norm-training";
    let [x, scale, offset] = operands::arity(op, operands)?;
    let x = check_data(op, attributes, x)?;
    let statistics = check_features(op, attributes, x, [("scale", scale), ("offset", offset)])?;
    Ok(Shape::Tuple(vec![operands::show(x).into(), statistics.clone(), statistics]))
}

/// `y = (x - mean) / sqrt(variance + epsilon) * scale + offset`, with given statistics.
///
/// # Shapes
/// x `[…, c, …]`, scale, offset, mean, variance `[c]` → like x.
///
/// # Types
/// One floating dtype for all.
pub(super) fn inference(attributes: &BatchNorm, operands: &[&Shape]) -> Result<Shape, RuleError> {
    let op = "batch-norm-inference";
    let [x, scale, offset, mean, variance] = operands::arity(op, operands)?;
    let x = check_data(op, attributes, x)?;
    let features = [("scale", scale), ("offset", offset), ("mean", mean), ("variance", variance)];
    check_features(op, attributes, x, features)?;
    Ok(operands::show(x).into())
}

/// Gradients of [`training`]'s first result, with the mean and variance that it gave.
///
/// # Shapes
/// x `[…, c, …]`, scale, mean, variance `[c]`, grad like x → (grad of x, of scale `[c]`, of offset `[c]`).
///
/// # Types
/// One floating dtype for all.
pub(super) fn grad(attributes: &BatchNorm, operands: &[&Shape]) -> Result<Shape, RuleError> {
    let op = "batch-norm-grad";
    let [x, scale, mean, variance, grad] = operands::arity(op, operands)?;
    let x = check_data(op, attributes, x)?;
    let features = [("scale", scale), ("mean", mean), ("variance", variance)];
    let gradient = check_features(op, attributes, x, features)?;
    let grad = operands::array(op, "grad", grad)?;
    check_dtype(op, x, ("grad", grad))?;
    operands::same_dims(op, ("x", x), ("grad", grad))?;
    Ok(Shape::Tuple(vec![operands::show(x).into(), gradient.clone(), gradient]))
}

/// x: a floating array that has the feature dimension.
fn check_data<'a>(op: &str, attributes: &BatchNorm, x: &'a Shape) -> Result<&'a ArrayShape, RuleError> {
    let x = operands::array(op, "x", x)?;
    operands::dtype(op, "x", x, DType::is_float, "a floating dtype")?;
    operands::axis(op, "feature_index", attributes.feature_index, x.rank())?;
    if !(attributes.epsilon.is_finite() && attributes.epsilon >= 0.0) {
        let message = format!("{op} epsilon is {}, expected a finite number of 0 or more", attributes.epsilon);
        return Err(RuleError::new("batch-norm/epsilon", message));
    }
    Ok(x)
}

/// Per-feature operands: `[c]` in x's dtype. Gives that shape.
fn check_features<const N: usize>(
    op: &str,
    attributes: &BatchNorm,
    x: &ArrayShape,
    features: [(&str, &Shape); N],
) -> Result<Shape, RuleError> {
    let n_features = x.dims[operands::axis(op, "feature_index", attributes.feature_index, x.rank())?];
    let expected = ArrayShape::new(x.dtype, [n_features]);
    for (role, shape) in features {
        let array = operands::array(op, role, shape)?;
        check_dtype(op, x, (role, array))?;
        if array.dims != expected.dims {
            let message = format!(
                "{op} {role} is {}, expected {expected}: dimension {} of x, which is {}",
                operands::show(array),
                attributes.feature_index,
                operands::show(x)
            );
            return Err(RuleError::new("batch-norm/features", message));
        }
    }
    Ok(expected.into())
}

fn check_dtype(op: &str, x: &ArrayShape, (role, array): (&str, &ArrayShape)) -> Result<(), RuleError> {
    if array.dtype == x.dtype {
        return Ok(());
    }
    let message = format!("{op} dtypes differ: x is {}, {role} is {}", operands::show(x), operands::show(array));
    let help = if array.dtype.is_float() {
        let (wide, narrow) =
            if array.dtype.bits() > x.dtype.bits() { (array.dtype, x.dtype) } else { (x.dtype, array.dtype) };
        format!("`convert` what is {narrow} to {wide} before {op}, and the results that must be {narrow} back after it")
    } else {
        format!("`convert` {role} to {}", x.dtype)
    };
    Err(RuleError::new("batch-norm/dtypes", message).with_help(help))
}
