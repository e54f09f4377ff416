//! Embedding: rows of a table by index.

use super::at_least;
use crate::graph::{Init, Scope, Tensor};
use crate::hlo::ops::{GatherDims, RuleError};
use crate::hlo::{DType, Op};

/// Configuration of [`embedding`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Embedding {
    /// Rows of the table.
    pub vocabulary: i64,
    /// Elements of a row.
    pub features: i64,
    /// The dtype of the result, in which the table is asked for: indices are integers and cannot say.
    pub dtype: DType,
    /// How the table starts.
    pub init: Init,
}

impl Default for Embedding {
    fn default() -> Embedding {
        // Keras' `uniform`: within ±0.05.
        Embedding { vocabulary: 0, features: 0, dtype: DType::F32, init: Init::Uniform { limit: 0.05 } }
    }
}

/// `table[index]`, for every index.
///
/// # Shapes
/// indices `[…]` → `[…, features]`; table `[vocabulary, features]`.
///
/// # Types
/// indices any integer dtype. In a low-precision scope the table is f32; the rows are taken from it and then cast, which
/// gives the same values as casting the table first, without a copy of the table, and sums gradients of a row in f32.
/// An index outside the table reads its first or last row, as HLO's `gather` clamps.
///
/// # Errors
/// indices that are not integers; vocabulary or features below 1.
///
/// # Source
/// Keras' `Embedding`.
#[track_caller]
pub fn embedding(s: &Scope, indices: &Tensor, name: &str, config: &Embedding) -> Tensor {
    s.layer(name, |s| {
        if indices.is_poison() {
            return indices.clone();
        }
        if let Err(error) = check(indices, config) {
            return s.graph().fail("embedding", &[indices], error);
        }
        let table = s.variable("embeddings", config.dtype, [config.vocabulary, config.features], config.init);
        let rank = indices.rank() as i64;
        let op = Op::Gather(GatherDims {
            offset_dims: vec![rank],
            collapsed_slice_dims: vec![0],
            start_index_map: vec![0],
            index_vector_dim: rank,
            slice_sizes: vec![1, config.features],
            ..GatherDims::default()
        });
        indices.emit("gather", |e| e.emit(op, &[table.stored.id, indices.id], None)).cast(config.dtype)
    })
}

fn check(indices: &Tensor, config: &Embedding) -> Result<(), RuleError> {
    at_least("embedding/vocabulary", "vocabulary", config.vocabulary, 1)?;
    at_least("embedding/features", "features", config.features, 1)?;
    if indices.dtype().is_integer() {
        return Ok(());
    }
    let message = format!("indices are {}, expected an integer dtype", indices.shape());
    Err(RuleError::new("embedding/dtype", message))
}
