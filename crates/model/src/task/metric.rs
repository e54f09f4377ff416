//! Losses and metrics: sums and weights, so that batches, padding and micro-batches add up exactly.

use crate::graph::Tensor;
use bf16scope_hlo::DType;
use bf16scope_hlo::ops::BinaryOp;

/// The loss that training minimises, and that an evaluation reports as `loss`.
#[derive(Clone, Debug)]
pub enum Loss {
    /// `f32[]`: the mean over the batch, or the micro-batch. Means are averaged over batches and micro-batches, as
    /// TPUEstimator averages those of its cores. In an evaluation a batch counts by its number of examples that are not
    /// padding; the task excludes padding from its mean by [`Features::weight`](super::Features::weight).
    Mean(Tensor),
    /// A sum and its divisor, `f32[]` both: exact for any split into batches, for masked tokens and the like. If a
    /// whole batch has weight 0, the loss is 0.
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
    /// losses any, weights the same → `f32[]` twice. A loss of weight 0 is ignored, even if it is NaN.
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

/// A quantity that adds up: its value over any number of batches is a function of `Σ sum` and `Σ weight`, which the
/// host adds up in f64.
#[derive(Clone, Debug)]
pub struct Metric {
    /// `f32[]` or `s32[]`, or an array of them. Counts are s32, which counts a batch to 2,147,483,647; f32 stops at
    /// 16,777,216.
    pub sum: Tensor,
    /// The divisor.
    pub weight: Weight,
    /// The function of sums and weights.
    pub value: Value,
}

/// The function of the sums and weights of all batches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Value {
    /// `sum / weight`, of scalars.
    #[default]
    Quotient,
    /// `e^(sum / weight)`, of scalars: the perplexity for a mean cross-entropy.
    Exponential,
    /// `√(sum / weight)`, of scalars: the root of a mean of squares.
    Root,
    /// The mean of `sumᵢ / weightᵢ` over those whose weight is not 0; sum and weight `[n]` both.
    MeanOfQuotients,
    /// The area under the curve through the points `(sum₁ᵢ / weight₁, sum₀ᵢ / weight₀)`, by trapezoids; sum `[2, n]`,
    /// weight `[2]`: for the ROC curve, true and false positives at rising thresholds.
    Area,
    /// `1 − Σ(y − p)² / Σ(y − ȳ)²`, averaged over `n` outputs; sum `[3, n]` of `(y − p)²`, `y` and `y²`, weight `[n]`.
    Determination,
}

impl Value {
    /// The value from sums and weights, row-major: NaN if all weights are 0.
    pub fn compute(self, sums: &[f64], weights: &[f64]) -> f64 {
        match (self, sums, weights) {
            (Value::Quotient, [sum], [weight]) => sum / weight,
            (Value::Exponential, [sum], [weight]) => (sum / weight).exp(),
            (Value::Root, [sum], [weight]) => (sum / weight).sqrt(),
            (Value::MeanOfQuotients, sums, weights) => {
                let quotients = sums.iter().zip(weights).filter(|(_, weight)| **weight != 0.0);
                let quotients: Vec<f64> = quotients.map(|(sum, weight)| sum / weight).collect();
                quotients.iter().sum::<f64>() / quotients.len() as f64
            }
            (Value::Area, sums, [positives, negatives]) => {
                let (trues, falses) = sums.split_at(sums.len() / 2);
                let points: Vec<(f64, f64)> =
                    falses.iter().zip(trues).map(|(x, y)| (x / negatives, y / positives)).collect();
                points.windows(2).map(|two| (two[0].0 - two[1].0) * (two[0].1 + two[1].1) / 2.0).sum()
            }
            (Value::Determination, sums, weights) if sums.len() == 3 * weights.len() => {
                let n = weights.len();
                let of_number = |at: usize| {
                    let (rest, sum, squares) = (sums[at], sums[n + at], sums[2 * n + at]);
                    1.0 - rest / (squares - sum * sum / weights[at])
                };
                (0..n).map(of_number).sum::<f64>() / n as f64
            }
            (Value::Quotient | Value::Exponential | Value::Root | Value::Area | Value::Determination, _, _) => f64::NAN,
        }
    }

    /// Whether sums and weights may have these dims.
    pub fn takes(self, sum: &[i64], weight: &[i64]) -> bool {
        match self {
            Value::Quotient | Value::Exponential | Value::Root => sum.is_empty() && weight.is_empty(),
            Value::MeanOfQuotients => sum.len() == 1 && sum == weight,
            Value::Area => matches!((sum, weight), ([2, n], [2]) if *n > 1),
            Value::Determination => matches!((sum, weight), ([3, n], [m]) if n == m),
        }
    }
}

/// The divisor of a metric's sum.
#[derive(Clone, Debug)]
pub enum Weight {
    /// The same number for every batch: the number of summed elements.
    Constant(f64),
    /// `f32[]` or `s32[]`.
    Tensor(Tensor),
}

impl Metric {
    /// The mean of all elements; for truths (pred), the share of true ones.
    ///
    /// # Shapes
    /// values any, pred or a float → the sum `s32[]` or `f32[]`.
    #[track_caller]
    pub fn mean(values: &Tensor) -> Metric {
        let n = values.dims().iter().product::<i64>() as f64;
        Metric { sum: sum_or_count(values), weight: Weight::Constant(n), value: Value::Quotient }
    }

    /// The weighted mean of all elements.
    ///
    /// # Shapes
    /// values any, pred or a float; weights the same dims → sum and weight `f32[]`; with pred weights the weight is
    /// `s32[]`, and with pred values too the sum: they are counted exactly. A value of weight 0 is ignored, even if it
    /// is NaN.
    #[track_caller]
    pub fn weighted(values: &Tensor, weights: &Tensor) -> Metric {
        if weights.dtype() != DType::Pred {
            let (sum, weight) = weighted_sum(values, weights);
            return Metric::ratio(&sum, &weight);
        }
        let counted = match values.dtype() {
            DType::Pred => values.binary(BinaryOp::And, weights),
            _ => {
                let zeros = weights.graph().full(DType::F32, &weights.dims(), 0.0);
                weights.select(&values.cast(DType::F32), &zeros)
            }
        };
        Metric::ratio(&sum_or_count(&counted), &sum_or_count(weights))
    }

    /// A quotient of two sums, `f32[]` or `s32[]` each.
    pub fn ratio(sum: &Tensor, weight: &Tensor) -> Metric {
        Metric { sum: sum.clone(), weight: Weight::Tensor(weight.clone()), value: Value::Quotient }
    }

    /// The mean of quotients, `f32[n]` or `s32[n]` each, without those over 0: over classes, the mean accuracy or the
    /// mean intersection over union from [`nn::ClassCounts`](crate::nn::ClassCounts).
    pub fn mean_of_ratios(sums: &Tensor, weights: &Tensor) -> Metric {
        Metric { value: Value::MeanOfQuotients, ..Metric::ratio(sums, weights) }
    }

    /// The area under the ROC curve, from the counts of [`nn::above_thresholds`](crate::nn::above_thresholds).
    pub fn area(above: &Tensor, totals: &Tensor) -> Metric {
        Metric { value: Value::Area, ..Metric::ratio(above, totals) }
    }

    /// The share of the variance that is predicted (R²), from sums `[3, n]` of squared differences, of targets and of
    /// their squares, and weights `[n]`.
    pub fn determination(sums: &Tensor, weights: &Tensor) -> Metric {
        Metric { value: Value::Determination, ..Metric::ratio(sums, weights) }
    }

    /// e to the power of this mean: for a cross-entropy, the perplexity.
    #[must_use]
    pub fn exponential(self) -> Metric {
        Metric { value: Value::Exponential, ..self }
    }

    /// The root of this mean: of squared errors, their size in the unit of the labels.
    #[must_use]
    pub fn root(self) -> Metric {
        Metric { value: Value::Root, ..self }
    }
}

/// The number of truths (pred), `s32[]`, or the sum of floats, `f32[]`.
#[track_caller]
fn sum_or_count(values: &Tensor) -> Tensor {
    let values = match values.dtype() {
        DType::Pred => values.cast(DType::S32),
        _ => values.cast(DType::F32),
    };
    values.sum(&all_axes(&values))
}

/// `Σ wᵢ vᵢ` and `Σ wᵢ`, f32, where a value of weight 0 is ignored.
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

#[cfg(test)]
mod tests {
    use super::Value;

    #[test]
    fn values_are_of_sums_and_weights() {
        assert_eq!(Value::Quotient.compute(&[3.0], &[4.0]), 0.75);
        assert_eq!(Value::Exponential.compute(&[0.0], &[4.0]), 1.0);
        assert_eq!(Value::Root.compute(&[12.0], &[3.0]), 2.0);
        // A class without examples is ignored, as in TensorFlow's MeanIoU.
        assert_eq!(Value::MeanOfQuotients.compute(&[1.0, 0.0, 3.0], &[4.0, 0.0, 4.0]), 0.5);
        // Counts beyond f32's 2^24, where adding one would have no effect.
        let many = 16_777_217.0;
        assert_eq!(Value::Quotient.compute(&[many], &[many + 1.0]), many / (many + 1.0));
        assert!((many as f32 as f64) < many);
        // All predicted positive, then the true ones, then none: the whole area.
        assert_eq!(Value::Area.compute(&[2.0, 2.0, 0.0, 3.0, 0.0, 0.0], &[2.0, 3.0]), 1.0);
        // A single point gives half the area.
        assert_eq!(Value::Area.compute(&[2.0, 0.0, 3.0, 0.0], &[2.0, 3.0]), 0.5);
        // Labels 1, 2, 3 and predictions 1, 2, 4, then labels 0, 4 and predictions 2, 2: 1 − 1/2 and 1 − 8/8.
        assert_eq!(Value::Determination.compute(&[1.0, 6.0, 14.0], &[3.0]), 0.5);
        assert_eq!(Value::Determination.compute(&[8.0, 4.0, 16.0], &[2.0]), 0.0);
        assert_eq!(
            Value::Determination.compute(&[1.0, 8.0, 6.0, 4.0, 14.0, 16.0], &[3.0, 2.0]).to_bits(),
            0.25f64.to_bits()
        );
        for value in [Value::Quotient, Value::Exponential, Value::Root] {
            assert!(value.compute(&[0.0], &[0.0]).is_nan());
        }
        assert!(Value::Area.compute(&[0.0, 0.0, 3.0, 0.0], &[0.0, 3.0]).is_nan());
        assert!(Value::MeanOfQuotients.compute(&[0.0], &[0.0]).is_nan());
    }

    #[test]
    fn each_value_has_its_dims() {
        assert!(Value::Quotient.takes(&[], &[]) && !Value::Quotient.takes(&[2], &[2]));
        assert!(Value::MeanOfQuotients.takes(&[3], &[3]) && !Value::MeanOfQuotients.takes(&[3], &[2]));
        assert!(Value::Area.takes(&[2, 5], &[2]) && !Value::Area.takes(&[2, 1], &[2]));
    }
}
