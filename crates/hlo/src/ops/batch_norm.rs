//! Batch normalisation: training, inference, and the gradient of training.
//!
//! All operands have one floating dtype: bf16 data with f32 parameters must be converted around the op. XLA expands
//! these ops into reductions and elementwise ops of that dtype, so only f32 keeps the statistics of bf16 data
//! accurate.
//!
//! Source: `ShapeInference::InferBatchNorm{Training,Inference,Grad}Shape`.

pub(crate) mod grad;
pub mod normalisation;

use super::{RuleError, operands};
use crate::{ArrayShape, DType, Shape};

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

/// Gradients of [`training`]'s first result, from the mean and variance that it returned.
///
/// # Shapes
/// x `[…, c, …]`, scale, mean, variance `[c]`, grad like x → (grad of x, of scale `[c]`, of offset `[c]`).
///
/// # Types
/// One floating dtype for all.
pub(super) fn gradients(attributes: &BatchNorm, operands: &[&Shape]) -> Result<Shape, RuleError> {
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
    // XLA reads sizes as s32 where it expands these ops.
    if let Some(size) = x.dims.iter().find(|&&size| size > i64::from(i32::MAX)) {
        let message = format!("{op} x is {}, expected dims of at most 2^31 - 1, not {size}", operands::show(x));
        return Err(RuleError::new("batch-norm/size", message));
    }
    if !(attributes.epsilon.is_finite() && attributes.epsilon >= 0.0) {
        let message = format!("{op} epsilon is {}, expected a finite number of 0 or more", attributes.epsilon);
        return Err(RuleError::new("batch-norm/epsilon", message));
    }
    Ok(x)
}

/// Per-feature operands: `[c]` in x's dtype. Returns that shape.
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

#[cfg(test)]
mod tests {
    use super::super::{Op, testing::expect};
    use super::*;
    use expect_test::expect as text;

    const NORM: BatchNorm = BatchNorm { epsilon: 1e-5, feature_index: 3 };

    #[test]
    fn accepts() {
        let x = "f32[<=8,28,28,64]";
        let c = "f32[64]";
        expect(&Op::BatchNormTraining(NORM), &[x, c, c], "", text!["(f32[<=8,28,28,64], f32[64], f32[64])"]);
        expect(&Op::BatchNormInference(NORM), &[x, c, c, c, c], "", text!["f32[<=8,28,28,64]"]);
        expect(&Op::BatchNormGrad(NORM), &[x, c, c, c, x], "", text!["(f32[<=8,28,28,64], f32[64], f32[64])"]);
        expect(
            &Op::BatchNormTraining(NORM),
            &["bf16[8,28,28,64]", "bf16[64]", "bf16[64]"],
            "",
            text!["(bf16[8,28,28,64], bf16[64], bf16[64])"],
        );
    }

    #[test]
    fn rejects() {
        let x = "f32[8,28,28,64]";
        let c = "f32[64]";
        let training = |norm: BatchNorm, operands: &[&str], expected| {
            expect(&Op::BatchNormTraining(norm), operands, "", expected);
        };
        training(
            NORM,
            &["f32[2147483648,1,1,64]", c, c],
            text![[r#"
                batch-norm/size: batch-norm-training x is f32[2147483648,1,1,64], expected dims of at most 2^31 - 1, not 2147483648"#]],
        );
        training(NORM, &[x, c], text!["operands/arity: batch-norm-training takes 3 operands, got 2"]);
        training(
            NORM,
            &["bf16[8,28,28,64]", c, c],
            text![[r#"
            batch-norm/dtypes: batch-norm-training dtypes differ: x is bf16[8,28,28,64], scale is f32[64]
              help: `convert` what is bf16 to f32 before batch-norm-training, and the results that must be bf16 back after it"#]],
        );
        training(
            NORM,
            &[x, "s32[64]", c],
            text![[r#"
            batch-norm/dtypes: batch-norm-training dtypes differ: x is f32[8,28,28,64], scale is s32[64]
              help: `convert` scale to f32"#]],
        );
        training(
            NORM,
            &["s32[8,28,28,64]", c, c],
            text![[r#"
            operands/dtype: batch-norm-training x is s32[8,28,28,64], expected a floating dtype
              help: insert a `convert` to such a dtype"#]],
        );
        training(
            NORM,
            &[x, c, "f32[28]"],
            text![[r#"
                batch-norm/features: batch-norm-training offset is f32[28], expected f32[64]: dimension 3 of x, which is f32[8,28,28,64]"#]],
        );
        training(
            NORM,
            &[x, "f32[64,1]", c],
            text![[r#"
                batch-norm/features: batch-norm-training scale is f32[64,1], expected f32[64]: dimension 3 of x, which is f32[8,28,28,64]"#]],
        );
        training(
            BatchNorm { feature_index: 4, ..NORM },
            &[x, c, c],
            text!["operands/axis: batch-norm-training feature_index names axis 4, expected 0 <= axis < 4"],
        );
        training(
            BatchNorm { epsilon: f32::NAN, ..NORM },
            &[x, c, c],
            text!["batch-norm/epsilon: batch-norm-training epsilon is NaN, expected a finite number of 0 or more"],
        );
        training(
            BatchNorm { epsilon: -1.0, ..NORM },
            &[x, c, c],
            text!["batch-norm/epsilon: batch-norm-training epsilon is -1, expected a finite number of 0 or more"],
        );
        expect(
            &Op::BatchNormInference(NORM),
            &[x, c, c, c, "f32[63]"],
            "",
            text![[r#"
                batch-norm/features: batch-norm-inference variance is f32[63], expected f32[64]: dimension 3 of x, which is f32[8,28,28,64]"#]],
        );
        expect(
            &Op::BatchNormGrad(NORM),
            &[x, c, c, c, "bf16[8,28,28,64]"],
            "",
            text![[r#"
            batch-norm/dtypes: batch-norm-grad dtypes differ: x is f32[8,28,28,64], grad is bf16[8,28,28,64]
              help: `convert` what is bf16 to f32 before batch-norm-grad, and the results that must be bf16 back after it"#]],
        );
        expect(
            &Op::BatchNormGrad(NORM),
            &[x, c, c, c, "f32[8,28,64]"],
            "",
            text![[r#"
            operands/dims-differ: batch-norm-grad dims differ: x is f32[8,28,28,64], grad is f32[8,28,64]
              help: hlo broadcasts nothing by itself: insert a `broadcast` of the smaller one"#]],
        );
    }
}
