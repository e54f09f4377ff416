//! Elements by index: rows that another layer selects, and one-hot vectors.

use crate::graph::Tensor;
use bf16scope_hlo::ops::{GatherDims, RuleError};
use bf16scope_hlo::{DType, Op};

/// Gathers, for each example, the rows at its indices.
///
/// # Shapes
/// x `[batch, n, …]`, indices `[batch]` → `[batch, …]`, or `[batch, k]` → `[batch, k, …]`.
///
/// # Types
/// Nothing is computed; the gradient adds up if a row is taken several times. An index out of range takes the first or
/// last row, as HLO's `gather` clamps.
///
/// # Errors
/// Indices that are not integers, or of another batch or rank; x of rank below 2.
///
/// # Source
/// TensorFlow's `gather` with `batch_dims=1`.
#[track_caller]
pub fn gather_rows(x: &Tensor, indices: &Tensor) -> Tensor {
    if let Some(poison) = [x, indices].into_iter().find(|tensor| tensor.is_poison()) {
        return poison.clone();
    }
    let wrong = |message: String| x.graph().fail("gather", &[x, indices], RuleError::new("gather/indices", message));
    let (dims, at) = (x.dims(), indices.dims());
    if !indices.dtype().is_integer() {
        return wrong(format!("indices are {}, expected an integer dtype", indices.shape()));
    }
    if dims.len() < 2 || !(1..=2).contains(&at.len()) || at[0] != dims[0] {
        let message = format!(
            "x {} and indices {} meet, expected [batch, n, …] and [batch] or [batch, k]",
            x.shape(),
            indices.shape()
        );
        return wrong(message);
    }
    // Each index is preceded by the number of its example.
    let n_rows = at.iter().product::<i64>() / at[0].max(1);
    let pairs = [at[0], n_rows, 1];
    let indices = indices.cast(DType::S32).reshape(pairs);
    let examples = x.graph().iota(DType::S32, &pairs, 0);
    let pairs = Tensor::concatenate(&[&examples, &indices], 2);
    let rest: Vec<i64> = dims[2..].to_vec();
    let op = Op::Gather(GatherDims {
        offset_dims: (2..2 + rest.len() as i64).collect(),
        collapsed_slice_dims: vec![0, 1],
        start_index_map: vec![0, 1],
        index_vector_dim: 2,
        slice_sizes: [&[1, 1], &rest[..]].concat(),
        ..GatherDims::default()
    });
    let rows = pairs.emit("gather", &[x], |e| e.emit(op, &[x.id, pairs.id], None));
    rows.reshape([&at[..], &rest[..]].concat())
}

/// 1 at the class, else 0; all 0 for a class out of range.
///
/// # Shapes
/// classes `[…]` → `[…, depth]`, of `dtype`.
///
/// # Errors
/// Classes that are not integers; a depth below 1.
///
/// # Source
/// TensorFlow's `one_hot`.
#[track_caller]
pub fn one_hot(classes: &Tensor, depth: i64, dtype: DType) -> Tensor {
    if classes.is_poison() {
        return classes.clone();
    }
    let fits = super::at_least("one_hot/depth", "depth", depth, 1).and_then(|()| match classes.dtype().is_integer() {
        true => Ok(()),
        false => {
            let message = format!("classes are {}, expected an integer dtype", classes.shape());
            Err(RuleError::new("one_hot/dtype", message))
        }
    });
    if let Err(error) = fits {
        return classes.graph().fail("one_hot", &[classes], error);
    }
    let dims = [&classes.dims()[..], &[depth]].concat();
    let axes: Vec<i64> = (0..classes.rank() as i64).collect();
    let each = classes.broadcast_in_dim(&dims, &axes);
    let all = classes.graph().iota(classes.dtype(), &dims, dims.len() as i64 - 1);
    each.equal(&all).cast(dtype)
}
