//! Losses and metrics: sums and weights, so that batches, padding and micro-batches add up exactly.

use crate::graph::Tensor;
use crate::hlo::DType;

/// What training minimises, and what an evaluation reports as `loss`.
#[derive(Clone, Debug)]
pub enum Loss {
    /// `f32[]`: the mean over the batch, or the micro-batch. Over batches, and over micro-batches, means are averaged,
    /// as TPUEstimator averages those of its cores. In an evaluation a batch counts as often as it has examples that
    /// are no padding; the task leaves padding out of its mean by [`Features::weight`](super::Features::weight).
    Mean(Tensor),
    /// A sum and what it is to be divided by, `f32[]` both: exact whatever the batches, for masked tokens and the like.
    /// Where a whole batch weighs 0, the loss is 0.
    Weighted {
        /// `Σ wᵢ lᵢ`.
        sum: Tensor,
        /// `Σ wᵢ`; no gradient goes through it.
        weight: Tensor,
    },
}

impl Loss {
    /// The weighted mean of `losses`, as sum and weight.
    ///
    /// # Shapes
    /// losses any, weights the same → `f32[]` twice. A loss of weight 0 counts for nothing, even where it is NaN.
    #[track_caller]
    pub fn weighted(losses: &Tensor, weights: &Tensor) -> Loss {
        let (sum, weight) = weighted_sum(losses, weights);
        Loss::Weighted { sum, weight }
    }
}

impl From<Tensor> for Loss {
    fn from(mean: Tensor) -> Loss {
        Loss::Mean(mean)
    }
}

impl From<&Tensor> for Loss {
    fn from(mean: &Tensor) -> Loss {
        Loss::Mean(mean.clone())
    }
}

/// A quantity that adds up: its value over any number of batches is `Σ sum / Σ weight`.
#[derive(Clone, Debug)]
pub struct Metric {
    /// `f32[]` or `s32[]`.
    pub sum: Tensor,
    /// What it is divided by.
    pub weight: Weight,
}

/// What the sum of a metric is divided by.
#[derive(Clone, Debug)]
pub enum Weight {
    /// The same number for every batch: how many there are of what was summed.
    Constant(f64),
    /// `f32[]` or `s32[]`.
    Tensor(Tensor),
}

impl Metric {
    /// The mean of all elements: of truths (pred), the part that is true.
    ///
    /// # Shapes
    /// values any, pred or a float → the sum `s32[]` or `f32[]`.
    #[track_caller]
    pub fn mean(values: &Tensor) -> Metric {
        let n = values.dims().iter().product::<i64>() as f64;
        let values = match values.dtype() {
            DType::Pred => values.cast(DType::S32),
            _ => values.cast(DType::F32),
        };
        Metric { sum: values.sum(&all_axes(&values)), weight: Weight::Constant(n) }
    }

    /// The mean of all elements, each counted as often as its weight says.
    ///
    /// # Shapes
    /// values any, pred or a float; weights the same dims → sum and weight `f32[]`. A value of weight 0 counts for
    /// nothing, even where it is NaN.
    #[track_caller]
    pub fn weighted(values: &Tensor, weights: &Tensor) -> Metric {
        let (sum, weight) = weighted_sum(values, weights);
        Metric { sum, weight: Weight::Tensor(weight) }
    }

    /// A quotient of two sums, `f32[]` or `s32[]` each.
    pub fn ratio(sum: &Tensor, weight: &Tensor) -> Metric {
        Metric { sum: sum.clone(), weight: Weight::Tensor(weight.clone()) }
    }
}

/// `Σ wᵢ vᵢ` and `Σ wᵢ`, f32, where nothing comes of a value of weight 0.
#[track_caller]
fn weighted_sum(values: &Tensor, weights: &Tensor) -> (Tensor, Tensor) {
    let (values, weights) = (values.cast(DType::F32), weights.cast(DType::F32));
    let zeros = weights.graph().full(DType::F32, &weights.dims(), 0.0);
    let counted = weights.equal(&zeros).select(&zeros, &(&values * &weights));
    (counted.sum(&all_axes(&counted)), weights.sum(&all_axes(&weights)))
}

fn all_axes(x: &Tensor) -> Vec<i64> {
    (0..x.rank() as i64).collect()
}
