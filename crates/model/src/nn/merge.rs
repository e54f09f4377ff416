//! Merges several tensors: elementwise with broadcasting, or by concatenation.

use crate::graph::Tensor;
use bf16scope_hlo::ops::{BinaryOp, RuleError};

/// The elementwise operation of [`merge`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Merge {
    /// Their sum.
    Add,
    /// The first minus the others.
    Subtract,
    /// Their product.
    Multiply,
    /// Their mean.
    Average,
    /// The maximum of each element.
    Maximum,
    /// The minimum of each element.
    Minimum,
}

/// Combines tensors elementwise, from the first to the last. They broadcast: an axis of size 1 is repeated, and a
/// tensor of fewer axes gets axes of size 1 after the batch, so `[b, c]` multiplies the channels of `[b, h, w, c]`.
///
/// # Shapes
/// Equal shapes, or shapes that broadcast → the largest.
///
/// # Types
/// In their dtype, rounding after each operation. The gradient of a repeated axis is a sum.
///
/// # Errors
/// Dtypes that differ; shapes that do not broadcast.
///
/// # Source
/// Keras' `Add`, `Multiply` and the like.
///
/// # Panics
/// Without tensors.
#[track_caller]
pub fn merge(tensors: &[&Tensor], how: Merge) -> Tensor {
    let (what, op) = match how {
        Merge::Add => ("add", BinaryOp::Add),
        Merge::Subtract => ("subtract", BinaryOp::Subtract),
        Merge::Multiply => ("multiply", BinaryOp::Multiply),
        Merge::Average => ("average", BinaryOp::Add),
        Merge::Maximum => ("maximum", BinaryOp::Maximum),
        Merge::Minimum => ("minimum", BinaryOp::Minimum),
    };
    let _open = tensors[0].graph().open_layer();
    if let Some(poison) = tensors.iter().find(|tensor| tensor.is_poison()) {
        return (*poison).clone();
    }
    let aligned = match aligned(tensors) {
        Ok(aligned) => aligned,
        Err(error) => return tensors[0].graph().fail(what, tensors, error),
    };
    let (first, others) = aligned.split_first().expect("merge has at least one tensor");
    let merged = others.iter().fold(first.clone(), |merged, other| merged.binary(op, other));
    match how {
        Merge::Average => merged / tensors.len() as f64,
        Merge::Add | Merge::Subtract | Merge::Multiply | Merge::Maximum | Merge::Minimum => merged,
    }
}

/// Reshapes tensors to the largest rank, with axes of size 1 after the batch.
///
/// # Errors
/// Dtypes that differ; shapes that do not broadcast.
pub(crate) fn aligned(tensors: &[&Tensor]) -> Result<Vec<Tensor>, RuleError> {
    let rank = tensors.iter().map(|tensor| tensor.rank()).max().unwrap_or(0);
    let dims = |tensor: &Tensor| {
        let mut dims = tensor.dims();
        let at = dims.len().min(1);
        dims.splice(at..at, std::iter::repeat_n(1, rank - dims.len()));
        dims
    };
    let first = tensors.first().expect("there is a tensor");
    let all: Vec<Vec<i64>> = tensors.iter().map(|tensor| dims(tensor)).collect();
    let meets = |dims: &Vec<i64>| {
        let fits =
            |axis: usize| all.iter().all(|other| other[axis] == dims[axis] || other[axis] == 1 || dims[axis] == 1);
        (0..rank).all(fits)
    };
    let differs = |other: &&&Tensor| other.dtype() != first.dtype();
    let wrong = tensors.iter().zip(&all).find(|(_, dims)| !meets(dims)).map(|(tensor, dims)| (tensor, Some(dims)));
    if let Some((other, dims)) = tensors.iter().find(differs).map(|tensor| (tensor, None)).or(wrong) {
        // The other of the two mismatched tensors.
        let at =
            |others: &Vec<i64>, dims: &Vec<i64>| others.iter().zip(dims).any(|(a, b)| a != b && *a != 1 && *b != 1);
        let against = dims.and_then(|dims| all.iter().position(|others| at(others, dims)));
        let (left, right) = match against {
            Some(number) => (other.shape(), tensors[number].shape()),
            None => (first.shape(), other.shape()),
        };
        let expected = if left.dtype() == right.dtype() { "equal shapes, or sizes of 1" } else { "equal dtypes" };
        let message = format!("{left} and {right} meet, expected {expected}");
        return Err(unequal("merge/shape", message, left.dtype() == right.dtype()));
    }
    let in_rank = |(tensor, dims): (&&Tensor, Vec<i64>)| match tensor.rank() == rank {
        true => (*tensor).clone(),
        false => tensor.reshape(dims),
    };
    Ok(tensors.iter().zip(all.clone()).map(in_rank).collect())
}

/// The error of tensors that do not meet, with the help for different dtypes.
fn unequal(rule: &'static str, message: String, have_one_dtype: bool) -> RuleError {
    let error = RuleError::new(rule, message);
    if have_one_dtype {
        return error;
    }
    error.with_help("cast one of them with .cast(dtype), or in YAML with the layer `cast: compute`")
}

/// Concatenates tensors along `axis`; -1 is the last.
///
/// # Shapes
/// Equal except along `axis` → the same, with the sum of their sizes along it.
///
/// # Types
/// One dtype, any; nothing is computed.
///
/// # Errors
/// An axis that they do not have; dtypes, ranks or other sizes that differ.
///
/// # Panics
/// Without tensors.
#[track_caller]
pub fn concat(tensors: &[&Tensor], axis: i64) -> Tensor {
    if let Some(poison) = tensors.iter().find(|tensor| tensor.is_poison()) {
        return (*poison).clone();
    }
    let first = tensors.first().expect("concat has at least one tensor");
    match fit(tensors, axis) {
        Ok(at) => Tensor::concatenate(tensors, at),
        Err(error) => first.graph().fail("concat", tensors, error),
    }
}

/// The axis, counted from 0, along which a nonempty list of tensors is concatenated.
fn fit(tensors: &[&Tensor], axis: i64) -> Result<i64, RuleError> {
    let (first, dims, at) = (tensors[0], tensors[0].dims(), tensors[0].axis(axis));
    if !(0..dims.len() as i64).contains(&at) {
        return Err(RuleError::new("concat/axis", format!("axis is {axis}, expected one of {}", first.shape())));
    }
    let elsewhere = |dims: &[i64]| {
        let mut dims = dims.to_vec();
        dims.remove(at as usize);
        dims
    };
    for other in &tensors[1..] {
        let fits = other.dtype() == first.dtype()
            && other.rank() == dims.len()
            && elsewhere(&other.dims()) == elsewhere(&dims);
        if !fits {
            let shapes = format!("{} and {}", first.shape(), other.shape());
            let message = format!("{shapes} meet, expected equal shapes but along axis {axis}");
            return Err(unequal("concat/shape", message, other.dtype() == first.dtype()));
        }
    }
    Ok(at)
}
