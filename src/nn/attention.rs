//! Multi-head attention.

use super::{Dense, dense, is_float, of_rank, softmax};
use crate::graph::{Init, Scope, Tensor};
use crate::hlo::DType;
use crate::hlo::ops::{DotDims, RuleError};

/// Configuration of [`attention`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Attention {
    /// Heads, which share the features evenly.
    pub n_heads: i64,
    /// Whether a position sees only itself and those before it.
    pub is_causal: bool,
    /// How the four kernels start.
    pub kernel_init: Init,
}

impl Default for Attention {
    fn default() -> Attention {
        Attention { n_heads: 1, is_causal: false, kernel_init: Init::GLOROT_UNIFORM }
    }
}

/// Scaled dot-product attention over several heads: `softmax(q · kᵀ / √size) · v`, projected.
///
/// `q` is a dense layer of `queries`, `k` and `v` dense layers of `memory`; for self-attention both are one tensor.
/// Head `h` has features `h · size .. (h + 1) · size` of each, where `size = features / n_heads`.
///
/// # Shapes
/// queries `[batch, positions, features]`, memory `[batch, others, features]` → `[batch, positions, features]`;
/// variables `query`, `key`, `value`, `out`, each a `kernel` `[features, features]` and a `bias` `[features]`.
///
/// # Types
/// Everything in the dtype of queries, the softmax as well, its sum apart ([`softmax`]); `√size` is rounded to it.
/// A position that is not seen has a score of minus infinity, and so a weight and a gradient of exactly 0.
///
/// # Errors
/// Operands not floating, of other ranks, or of different batches, features or dtypes; features that the heads do not
/// divide; a causal mask where queries and memory have different lengths.
///
/// # Source
/// Vaswani et al. 2017; the order of operations is that of Flax's `MultiHeadDotProductAttention`: the scale divides `q`.
#[track_caller]
pub fn attention(s: &Scope, queries: &Tensor, memory: &Tensor, name: &str, config: &Attention) -> Tensor {
    s.layer(name, |s| {
        if let Some(poison) = [queries, memory].into_iter().find(|tensor| tensor.is_poison()) {
            return poison.clone();
        }
        if let Err(error) = check(queries, memory, config) {
            return s.graph().fail("attention", &[queries, memory], error);
        }
        let dims = queries.dims();
        let (features, size) = (dims[2], dims[2] / config.n_heads);
        let project = |x: &Tensor, name: &str| {
            let kernel_init = config.kernel_init;
            dense(s, x, name, &Dense { units: features, kernel_init, ..Dense::default() })
        };
        let heads = |x: &Tensor, name: &str| {
            let projected = project(x, name);
            let dims = projected.dims();
            projected.reshape([dims[0], dims[1], config.n_heads, size])
        };
        let (q, k, v) = (heads(queries, "query"), heads(memory, "key"), heads(memory, "value"));
        let mixed = s.within("weights", |_| weights(&q, &k, config.is_causal)).dot(&v, mixing());
        project(&mixed.transpose(&[0, 2, 1, 3]).reshape(dims), "out")
    })
}

/// `softmax(q · kᵀ / √size)`: q `[batch, positions, heads, size]`, k `[batch, others, heads, size]` →
/// `[batch, heads, positions, others]`.
#[track_caller]
fn weights(q: &Tensor, k: &Tensor, is_causal: bool) -> Tensor {
    let size = q.dims()[3];
    let scaled = q / (size as f64).sqrt();
    let by_head =
        DotDims { lhs_batch: vec![0, 2], rhs_batch: vec![0, 2], lhs_contracting: vec![3], rhs_contracting: vec![3] };
    let scores = scaled.dot(k, by_head);
    softmax(&if is_causal { without_later(&scores) } else { scores }, -1)
}

/// `[batch, heads, positions, others]` by `[batch, others, heads, size]` → `[batch, heads, positions, size]`.
fn mixing() -> DotDims {
    DotDims { lhs_batch: vec![0, 1], rhs_batch: vec![0, 2], lhs_contracting: vec![3], rhs_contracting: vec![1] }
}

/// Minus infinity where the last axis is past the one before it.
#[track_caller]
fn without_later(scores: &Tensor) -> Tensor {
    let (graph, dims) = (scores.graph(), scores.dims());
    let last = dims.len() as i64 - 1;
    let is_seen = graph.iota(DType::S32, &dims, last - 1).greater_equal(&graph.iota(DType::S32, &dims, last));
    is_seen.select(scores, &graph.full(scores.dtype(), &dims, f64::NEG_INFINITY))
}

fn check(queries: &Tensor, memory: &Tensor, config: &Attention) -> Result<(), RuleError> {
    for (what, x) in [("queries", queries), ("memory", memory)] {
        is_float("attention/dtype", what, x)?;
        of_rank("attention/rank", what, x, 3, "[batch, positions, features]")?;
    }
    let (q, m) = (queries.dims(), memory.dims());
    if (q[0], q[2], queries.dtype()) != (m[0], m[2], memory.dtype()) {
        let message = format!(
            "memory {} does not fit queries {}, expected one batch, one number of features and one dtype",
            memory.shape(),
            queries.shape()
        );
        return Err(RuleError::new("attention/shape", message));
    }
    super::at_least("attention/heads", "n_heads", config.n_heads, 1)?;
    if q[2] % config.n_heads != 0 {
        let message = format!("{} features do not divide into {} heads", q[2], config.n_heads);
        return Err(RuleError::new("attention/heads", message));
    }
    if config.is_causal && q[1] != m[1] {
        let message =
            format!("a causal mask wants as many queries as positions of memory, measured {} and {}", q[1], m[1]);
        return Err(RuleError::new("attention/causal", message));
    }
    Ok(())
}
