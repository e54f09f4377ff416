//! In-batch matching: each example's own pair among those of the batch.

use super::loss::{check_rows, loss};
use super::sparse_softmax_cross_entropy_per_example;
use crate::graph::Tensor;
use bf16scope_hlo::ops::{DotDims, OperandPrecision, PrecisionConfig, RuleError};
use bf16scope_hlo::{DType, Op};

/// The mean of two cross entropies: of an example's own second vector among those of the batch, given its first, and of
/// its own first given its second. Scores are dot products over `temperature`; vectors of length 1 have cosines.
///
/// # Shapes
/// first and second `[batch, n]`, weight `[batch]` (0 for rows that are no examples) → `[batch]`.
///
/// # Types
/// f32; products are of f32 on a TPU, too.
///
/// # Errors
/// bf16 or f16 vectors; shapes that differ; a rank that is not 2; a temperature that is not above 0.
///
/// # Source
/// Radford et al. 2021 (CLIP), with a temperature that is not learnt; its first half is the sampled softmax of two-tower
/// retrieval (Yi et al. 2019) without a correction for frequency.
#[track_caller]
pub fn matching_per_example(first: &Tensor, second: &Tensor, temperature: f64, weight: Option<&Tensor>) -> Tensor {
    let check = || {
        check_rows("first", first, "second", second)?;
        super::of_rank("matching/rank", "first", first, 2, "[batch, features]")?;
        match temperature as f32 > 0.0 && (temperature as f32).is_finite() {
            true => Ok(()),
            false => {
                let message = format!("temperature is {temperature}, expected a finite number above 0");
                Err(RuleError::new("matching/temperature", message))
            }
        }
    };
    loss("matching", [first, second], check, || {
        let (scores, rows) = pair_scores(first, second, temperature, weight);
        let each = |scores: &Tensor| sparse_softmax_cross_entropy_per_example(scores, &rows, 0.0);
        (each(&scores) + each(&scores.transpose(&[1, 0]))) / 2.0
    })
}

/// The scores of each example's first vector with the second ones of the batch, and the place of its own.
#[track_caller]
pub(crate) fn pair_scores(
    first: &Tensor,
    second: &Tensor,
    temperature: f64,
    weight: Option<&Tensor>,
) -> (Tensor, Tensor) {
    let scores = products(first, second) / temperature;
    let scores = weight.map_or(scores.clone(), |weight| among_real(&scores, weight));
    let rows = scores.graph().iota(DType::S32, &first.dims()[..1], 0);
    (scores, rows)
}

/// `first · secondᵀ`, in f32 on a TPU too.
#[track_caller]
pub(crate) fn products(first: &Tensor, second: &Tensor) -> Tensor {
    let precision = PrecisionConfig { operand_precision: vec![OperandPrecision::Highest; 2], algorithm: None };
    let dims = DotDims { lhs_contracting: vec![1], rhs_contracting: vec![1], ..DotDims::default() };
    first.emit("cosines", &[second], |e| e.emit(Op::Dot { dims, precision }, &[first.id, second.id], None))
}

/// Scores `[batch, batch]` without pairs with examples of weight 0.
#[track_caller]
pub(crate) fn among_real(scores: &Tensor, weight: &Tensor) -> Tensor {
    let (graph, dims) = (scores.graph(), scores.dims());
    let zeros = graph.full(DType::F32, &weight.dims(), 0.0);
    let is_real = weight.not_equal(&zeros);
    let both = [0, 1].map(|axis| is_real.broadcast_in_dim(&dims, &[axis]));
    // Far below any score, but finite, so that rows of padding stay finite too.
    let never = graph.full(DType::F32, &dims, -1e30);
    both[0].select(&both[1].select(scores, &never), &never)
}
