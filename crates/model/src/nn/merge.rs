//! Several tensors to one: sums and the like of equal shapes, and concatenation.

use crate::graph::Tensor;
use bf16scope_hlo::ops::{BinaryOp, RuleError};

/// How [`merge`] makes one tensor of several.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Merge {
    /// Their sum.
    Add,
    /// The first less the others.
    Subtract,
    /// Their product.
    Multiply,
    /// Their mean.
    Average,
    /// The maximum of each element.
    Maximum,
    /// The least of each element.
    Minimum,
}

/// Tensors of one shape, element by element, from the first to the last.
///
/// # Shapes
/// All the same → the same.
///
/// # Types
/// In their dtype, each operation rounding to it.
///
/// # Errors
/// Shapes or dtypes that differ.
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
    if let Some(poison) = tensors.iter().find(|tensor| tensor.is_poison()) {
        return (*poison).clone();
    }
    let (first, others) = tensors.split_first().expect("merge has at least one tensor");
    if let Some(other) = others.iter().find(|other| other.shape() != first.shape()) {
        let message = format!("{} and {} meet, expected equal shapes", first.shape(), other.shape());
        return first.graph().fail(what, tensors, RuleError::new("merge/shape", message));
    }
    let merged = others.iter().fold((*first).clone(), |merged, other| merged.binary(op, other));
    match how {
        Merge::Average => merged / tensors.len() as f64,
        Merge::Add | Merge::Subtract | Merge::Multiply | Merge::Maximum | Merge::Minimum => merged,
    }
}

/// Tensors behind one another along `axis`; -1 is the last.
///
/// # Shapes
/// All the same but along `axis` → the same, with the sum of their sizes along it.
///
/// # Types
/// Any, but one; nothing is computed.
///
/// # Errors
/// An axis that they have not; dtypes, ranks or other sizes that differ.
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

/// The axis, counted from 0, along which tensors, of which there is one, meet.
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
            return Err(RuleError::new("concat/shape", message));
        }
    }
    Ok(at)
}
