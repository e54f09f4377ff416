//! Masks of attention, dropout of its weights, and relative position biases.

use super::{Attention, mixing, scoring};
use crate::document;
use crate::graph::{Init, Scope, Tensor};
use crate::nn::dropout::dropout;
use crate::nn::options::random_normal;
use bf16scope_hlo::ops::{BinaryOp, Comparison, GatherDims, RuleError};
use bf16scope_hlo::{DType, Emitter, InstrId, Literal, Op};
use serde::{Deserialize, Serialize};

/// The meaning of attention's mask input.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MaskKind {
    /// `[batch, others]`: 0 for padding.
    #[default]
    Padding,
    /// `[batch, positions]`: a position attends to those with the same segment id.
    Segments,
    /// `[batch, positions, others]`: 0 where the first does not attend to the second.
    Full,
}

/// Learned relative position biases as in T5: one per bucket of distances; buckets widen with distance.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RelativePositions {
    /// The number of buckets for both directions together. Default 32.
    #[serde(deserialize_with = "document::positive")]
    pub num_buckets: i64,
    /// All distances from here on share one bucket. Default 128.
    #[serde(deserialize_with = "document::positive")]
    pub max_distance: i64,
    /// The initializer of the biases. Default `random_normal`.
    #[serde(default = "random_normal")]
    pub initializer: Init,
}

impl Default for RelativePositions {
    fn default() -> RelativePositions {
        RelativePositions { num_buckets: 32, max_distance: 128, initializer: Init::RANDOM_NORMAL }
    }
}

impl RelativePositions {
    /// The bucket of a distance between two positions, as in T5's `_relative_position_bucket`.
    fn bucket(&self, distance: i64, is_causal: bool) -> i64 {
        let n = if is_causal { self.num_buckets } else { self.num_buckets / 2 };
        let after = if !is_causal && distance > 0 { n } else { 0 };
        let away = if is_causal { (-distance).max(0) } else { distance.abs() };
        let exact = n / 2;
        if away < exact {
            return after + away;
        }
        // In f32, as in T5: rounding decides the bounds of buckets.
        let share = (away as f32 / exact as f32).ln() / (self.max_distance as f32 / exact as f32).ln();
        after + (exact + (share * (n - exact) as f32) as i64).min(n - 1)
    }

    /// The bias added to scores `[batch, heads, positions, others]`: `[heads, positions, others]`, from the variable
    /// `relative_positions` `[num_buckets, heads]`.
    fn bias(&self, s: &Scope, scores: &Tensor, is_causal: bool) -> Tensor {
        let dims = scores.dims();
        let (heads, positions, others) = (dims[1], dims[2], dims[3]);
        let table = s.variable("relative_positions", scores.dtype(), [self.num_buckets, heads], self.initializer).value;
        let each = (0..positions).flat_map(|from| (0..others).map(move |to| to - from));
        let buckets: Vec<i32> = each.map(|distance| self.bucket(distance, is_causal) as i32).collect();
        let buckets = Literal::from_elements([positions, others], &buckets);
        let op = Op::Gather(GatherDims {
            offset_dims: vec![2],
            collapsed_slice_dims: vec![0],
            start_index_map: vec![0],
            index_vector_dim: 2,
            slice_sizes: vec![1, heads],
            ..GatherDims::default()
        });
        let rows = table.emit("gather", &[], |e| {
            let buckets = e.emit(Op::Constant(buckets), &[], None);
            e.emit(op, &[table.id, buckets], None)
        });
        rows.transpose(&[2, 0, 1]).broadcast_in_dim(&dims, &[1, 2, 3])
    }
}

pub(super) fn check(
    queries: &Tensor,
    memory: &Tensor,
    mask: Option<&Tensor>,
    config: &Attention,
) -> Result<(), RuleError> {
    let (batch, positions, others) = (queries.dims()[0], queries.dims()[1], memory.dims()[1]);
    if !(0.0..1.0).contains(&config.dropout) {
        let message = format!("dropout is {}, expected 0 up to but not including 1", config.dropout);
        return Err(RuleError::new("attention/dropout", message));
    }
    if let Some(relative) = config.relative_positions
        && (relative.num_buckets < 4 || relative.max_distance <= relative.num_buckets / 2)
    {
        let message = format!("{} buckets up to a distance of {}", relative.num_buckets, relative.max_distance);
        let error = RuleError::new("attention/relative", message);
        return Err(error.with_help("use at least 4 buckets, and a distance of more than half of them"));
    }
    if config.window.is_some_and(|window| window < 1) || (config.window.is_some() && positions != others) {
        let message = format!(
            "a window of {:?} wants as many queries as positions of memory, measured {positions} and {others}",
            config.window.unwrap_or(0)
        );
        return Err(RuleError::new("attention/window", message));
    }
    let Some(mask) = mask else { return Ok(()) };
    let (expected, words) = match config.mask {
        MaskKind::Padding => (vec![batch, others], "[batch, others]"),
        MaskKind::Segments => (vec![batch, others], "[batch, positions]"),
        MaskKind::Full => (vec![batch, positions, others], "[batch, positions, others]"),
    };
    if mask.dims() == expected && (config.mask != MaskKind::Segments || positions == others) {
        return Ok(());
    }
    let message = format!("mask {} is not {words}, expected {expected:?}", mask.shape());
    Err(RuleError::new("attention/mask", message).with_help(HELP))
}

/// The remedy for a mask of other dims.
pub(super) const HELP: &str = "`mask: padding`, `segments` or `full` says what it is";

/// Where the first of two positions attends to the second: `pred`, `[batch, 1, others]` or `[batch, positions,
/// others]`.
pub(super) fn seen(mask: &Tensor, kind: MaskKind) -> Tensor {
    let dims = mask.dims();
    match kind {
        MaskKind::Padding => {
            mask.not_equal(&mask.graph().full(mask.dtype(), &dims, 0.0)).reshape([dims[0], 1, dims[1]])
        }
        MaskKind::Segments => {
            let square = [dims[0], dims[1], dims[1]];
            mask.broadcast_in_dim(&square, &[0, 1]).equal(&mask.broadcast_in_dim(&square, &[0, 2]))
        }
        MaskKind::Full => mask.not_equal(&mask.graph().full(mask.dtype(), &dims, 0.0)),
    }
}

/// The visible positions of scores `[batch, heads, positions, others]`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Visible {
    is_causal: bool,
    window: Option<i64>,
    /// The result of [`seen`].
    mask: Option<InstrId>,
}

impl Visible {
    pub(super) fn new(config: &Attention, mask: Option<&Tensor>) -> Visible {
        Visible { is_causal: config.use_causal_mask, window: config.window, mask: mask.map(|mask| mask.id) }
    }

    /// [`Visible::mask_scores`], for a tensor.
    #[track_caller]
    pub(super) fn mask_tensor(self, scores: &Tensor) -> Tensor {
        let is_all = !self.is_causal && self.window.is_none() && self.mask.is_none();
        if is_all || scores.is_poison() {
            return scores.clone();
        }
        scores.emit("select", &[], |e| self.mask_scores(e, scores.id))
    }

    /// Scores, minus infinity where masked by distance. A mask input gives a very low finite score, because a row
    /// without visible positions would divide by 0.
    pub(super) fn mask_scores(self, e: &Emitter, scores: InstrId) -> InstrId {
        let mut scores = scores;
        if let Some(is_seen) = self.by_distance(e, scores) {
            scores = e.select(is_seen, scores, e.full_like(scores, f64::NEG_INFINITY));
        }
        match self.by_mask(e, scores) {
            // The lowest finite number of f16, if the scores are f16.
            Some(is_seen) => {
                let least = if e.dtype(scores) == DType::F16 { -6e4 } else { -1e9 };
                e.select(is_seen, scores, e.full_like(scores, least))
            }
            None => scores,
        }
    }

    /// The cotangent of scores, 0 where a mask hides them.
    pub(super) fn cotangent(self, e: &Emitter, of_scores: InstrId) -> InstrId {
        match self.by_mask(e, of_scores) {
            Some(is_seen) => e.select(is_seen, of_scores, e.full_like(of_scores, 0.0)),
            None => of_scores,
        }
    }

    fn by_mask(self, e: &Emitter, scores: InstrId) -> Option<InstrId> {
        let (mask, dims) = (self.mask?, e.dims(scores));
        let mask_dims = e.dims(mask);
        Some(match mask_dims[1] == dims[2] {
            true => e.broadcast(mask, &[0, 2, 3], &dims),
            false => e.broadcast(e.reshape(mask, &[mask_dims[0], mask_dims[2]]), &[0, 3], &dims),
        })
    }

    /// Where a position is not later, if attention is causal, and within the window.
    fn by_distance(self, e: &Emitter, scores: InstrId) -> Option<InstrId> {
        if !self.is_causal && self.window.is_none() {
            return None;
        }
        let dims = e.dims(scores);
        let last = dims.len() as i64 - 1;
        let (from, to) = (e.iota(DType::S32, &dims, last - 1), e.iota(DType::S32, &dims, last));
        let is_not_later = || e.compare(Comparison::Ge, from, to);
        let Some(window) = self.window else { return Some(is_not_later()) };
        let ahead = e.sub(from, to);
        let is_near = e.compare(Comparison::Lt, ahead, e.full_like(ahead, window as f64));
        let other = match self.is_causal {
            true => is_not_later(),
            false => e.compare(Comparison::Gt, ahead, e.full_like(ahead, -window as f64)),
        };
        Some(e.binary(BinaryOp::And, is_near, other))
    }
}

/// `dropout(softmax(q · kᵀ / √size + bias)) · v`, in the plain order of operations: `[batch, heads, positions, size]`.
#[track_caller]
pub(super) fn mix(s: &Scope, [q, k, v]: [&Tensor; 3], mask: Option<&Tensor>, config: &Attention) -> Tensor {
    let scores = (q / (q.dims()[3] as f64).sqrt()).dot(k, scoring());
    if scores.is_poison() {
        return scores;
    }
    let scores = match &config.relative_positions {
        Some(relative) => {
            let bias = relative.bias(s, &scores, config.use_causal_mask);
            scores + bias
        }
        None => scores,
    };
    let scores = Visible::new(config, mask).mask_tensor(&scores);
    let wide = scores.cast(if scores.dtype().bits() < 32 { DType::F32 } else { scores.dtype() });
    let weights = crate::nn::softmax(&wide, -1).cast(scores.dtype());
    dropout(s, &weights, "dropout", config.dropout).dot(v, mixing())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// For each bucket the least distance backwards, as T5's `_relative_position_bucket` gives it in NumPy's float32.
    #[test]
    fn buckets_of_distances_are_t5s() {
        let both = RelativePositions::default();
        let bounds = |relative: RelativePositions, is_causal: bool| -> Vec<i64> {
            let buckets: Vec<i64> = (0..=200).map(|away| relative.bucket(-away, is_causal)).collect();
            assert!(buckets.is_sorted());
            (0..=buckets[200]).map(|bucket| buckets.iter().position(|other| *other == bucket).unwrap() as i64).collect()
        };
        assert_eq!(bounds(both, false), [0, 1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 23, 32, 46, 64, 91]);
        let mut expected: Vec<i64> = (0..16).collect();
        expected.extend([16, 19, 21, 24, 27, 31, 35, 40, 46, 52, 59, 67, 77, 87, 99, 113]);
        assert_eq!(bounds(both, true), expected);
        let few = RelativePositions { num_buckets: 8, max_distance: 20, ..both };
        assert_eq!(bounds(few, false), [0, 1, 2, 7]);
        assert_eq!(bounds(few, true), [0, 1, 2, 3, 4, 6, 9, 14]);
        // Distances ahead have the other half of the buckets, or, if they are masked, that of no distance.
        for ahead in 1..=200 {
            assert_eq!(both.bucket(ahead, false), 16 + both.bucket(-ahead, false));
            assert_eq!(both.bucket(ahead, true), 0);
        }
    }
}
