//! Embeddings: rows of a table by index, or by position, a learned first position, and learned numbers alone.

use super::options::{glorot_uniform, random_uniform, zeros};
use super::{at_least, is_float, of_rank};
use crate::document;
use crate::graph::{Init, Scope, Tensor};
use bf16scope_hlo::ops::{GatherDims, RuleError, SliceDim};
use bf16scope_hlo::{DType, Op};
use serde::{Deserialize, Serialize};

/// Configuration of [`embedding`]. The defaults are Keras'; the dims have none.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Embedding {
    /// Rows of the table, the exclusive upper bound of indices.
    #[serde(deserialize_with = "document::positive")]
    pub input_dim: i64,
    /// Elements of a row.
    #[serde(deserialize_with = "document::positive")]
    pub output_dim: i64,
    /// The table's initializer. Default `random_uniform`.
    #[serde(default = "random_uniform")]
    pub embeddings_initializer: Init,
    /// The dtype of the output, in which the table is requested: indices are integers and have none. Default: that of
    /// the open low-precision scope, else f32. Not in YAML.
    #[serde(skip)]
    pub dtype: Option<DType>,
}

impl Default for Embedding {
    fn default() -> Embedding {
        Embedding { input_dim: 0, output_dim: 0, embeddings_initializer: Init::RANDOM_UNIFORM, dtype: None }
    }
}

/// `table[index]`, for every index.
///
/// # Shapes
/// indices `[…]` → `[…, output_dim]`; table `[input_dim, output_dim]`.
///
/// # Types
/// indices any integer dtype. In a low-precision scope the table is f32; rows are gathered from it and then cast, which
/// gives the same values as casting the table first, without a copy of the table, and sums the gradients of a row in
/// f32. An index outside the table reads its first or last row, as HLO's `gather` clamps.
///
/// # Errors
/// indices that are not integers; dims below 1.
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
        let dtype = config.dtype.or(s.low_precision_dtype()).unwrap_or(DType::F32);
        let dims = [config.input_dim, config.output_dim];
        let table = s.variable("embeddings", dtype, dims, config.embeddings_initializer);
        let rank = indices.rank() as i64;
        let op = Op::Gather(GatherDims {
            offset_dims: vec![rank],
            collapsed_slice_dims: vec![0],
            start_index_map: vec![0],
            index_vector_dim: rank,
            slice_sizes: vec![1, config.output_dim],
            ..GatherDims::default()
        });
        indices.emit("gather", &[&table.full], |e| e.emit(op, &[table.full.id, indices.id], None)).cast(dtype)
    })
}

fn check(indices: &Tensor, config: &Embedding) -> Result<(), RuleError> {
    at_least("embedding/dims", "input_dim", config.input_dim, 1)?;
    at_least("embedding/dims", "output_dim", config.output_dim, 1)?;
    if indices.dtype().is_integer() {
        return Ok(());
    }
    let message = format!("indices are {}, expected an integer dtype", indices.shape());
    Err(RuleError::new("embedding/dtype", message))
}

/// Configuration of [`position_embedding`].
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PositionEmbedding {
    /// Rows of the table: the longest sequence.
    #[serde(deserialize_with = "document::positive")]
    pub max_length: i64,
    /// The table's initializer. Default `random_uniform`.
    #[serde(default = "random_uniform")]
    pub initializer: Init,
}

impl Default for PositionEmbedding {
    fn default() -> PositionEmbedding {
        PositionEmbedding { max_length: 512, initializer: Init::RANDOM_UNIFORM }
    }
}

/// `x + table[position]`: learned position embeddings.
///
/// # Shapes
/// x `[batch, positions, features]` → the same; table `embeddings` `[max_length, features]`, whose first `positions`
/// rows are read.
///
/// # Types
/// In the dtype of x, in which the table is requested.
///
/// # Errors
/// x not floating or of another rank, or longer than the table.
///
/// # Source
/// Devlin et al. 2018 (BERT).
#[track_caller]
pub fn position_embedding(s: &Scope, x: &Tensor, name: &str, config: &PositionEmbedding) -> Tensor {
    s.layer(name, |s| {
        if x.is_poison() {
            return x.clone();
        }
        if let Err(error) = check_positions(x, config) {
            return s.graph().fail("position_embedding", &[x], error);
        }
        let dims = x.dims();
        let table = s.variable("embeddings", x.dtype(), [config.max_length, dims[2]], config.initializer);
        let all = |limit| SliceDim { start: 0, limit, stride: 1 };
        let rows = table.value.slice(&[all(dims[1]), all(dims[2])]);
        x + rows.broadcast_in_dim(&dims, &[1, 2])
    })
}

fn check_positions(x: &Tensor, config: &PositionEmbedding) -> Result<(), RuleError> {
    is_float("position_embedding/dtype", "x", x)?;
    of_rank("position_embedding/rank", "x", x, 3, "[batch, positions, features]")?;
    let positions = x.dims()[1];
    if positions <= config.max_length {
        return Ok(());
    }
    let message = format!("x has {positions} positions, the table {} rows", config.max_length);
    let help = "make max_length at least as long as the sequences";
    Err(RuleError::new("position_embedding/length", message).with_help(help))
}

/// Configuration of [`class_token`]. The default is ViT's.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClassToken {
    /// The token's initializer. Default `zeros`.
    #[serde(default = "zeros")]
    pub initializer: Init,
}

impl Default for ClassToken {
    fn default() -> ClassToken {
        ClassToken { initializer: Init::Zeros }
    }
}

/// Prepends a learned `token` to each example, whose output represents the whole sequence.
///
/// # Shapes
/// x `[batch, positions, features]` → `[batch, positions + 1, features]`; variable `token` `[features]`.
///
/// # Types
/// In the dtype of x, in which the token is requested; nothing is computed.
///
/// # Errors
/// x not floating or of another rank.
///
/// # Source
/// Dosovitskiy et al. 2020 (ViT).
#[track_caller]
pub fn class_token(s: &Scope, x: &Tensor, name: &str, config: &ClassToken) -> Tensor {
    s.layer(name, |s| {
        if x.is_poison() {
            return x.clone();
        }
        let axes = "[batch, positions, features]";
        let fits = is_float("class_token/dtype", "x", x).and_then(|()| of_rank("class_token/rank", "x", x, 3, axes));
        if let Err(error) = fits {
            return s.graph().fail("class_token", &[x], error);
        }
        let dims = x.dims();
        let token = s.variable("token", x.dtype(), [dims[2]], config.initializer).value;
        Tensor::concatenate(&[&token.broadcast_in_dim(&[dims[0], 1, dims[2]], &[2]), x], 1)
    })
}

/// Configuration of [`free_variable`]. The default initializer is that of Keras' `add_weight`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FreeVariable {
    /// Its dims; none for one number.
    #[serde(deserialize_with = "document::positives")]
    pub shape: Vec<i64>,
    /// Its initializer. Default `glorot_uniform`.
    #[serde(default = "glorot_uniform")]
    pub initializer: Init,
}

/// Learned numbers that depend on no input, such as the scale of a residual or the queries of a decoder, repeated for
/// every example.
///
/// # Shapes
/// like `[batch, …]` → `[batch, …shape]`: only the size of its batch is read. Variable `value` of `shape`.
///
/// # Types
/// That of the open low-precision scope, else f32.
///
/// # Errors
/// like without a batch.
///
/// # Source
/// Keras' `add_weight` of a layer, broadcast as its use broadcasts it.
#[track_caller]
pub fn free_variable(s: &Scope, like: &Tensor, name: &str, config: &FreeVariable) -> Tensor {
    s.layer(name, |s| {
        let Some(&batch) = like.dims().first().filter(|_| !like.is_poison()) else {
            return match like.is_poison() {
                true => like.clone(),
                false => {
                    let message = format!("like {} has no axes, expected a batch", like.shape());
                    s.graph().fail("free_variable", &[like], RuleError::new("free_variable/batch", message))
                }
            };
        };
        let dtype = s.low_precision_dtype().unwrap_or(DType::F32);
        let value = s.variable("value", dtype, config.shape.clone(), config.initializer).value;
        let dims = [&[batch][..], &config.shape].concat();
        value.broadcast_in_dim(&dims, &(1..dims.len() as i64).collect::<Vec<i64>>())
    })
}
