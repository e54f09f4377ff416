//! Losses and metrics: sums and weights, so that batches, padding and micro-batches add up exactly.

use crate::graph::Tensor;
use bf16scope_hlo::DType;
use bf16scope_hlo::ops::BinaryOp;

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

/// A quantity that adds up: its value over any number of batches is made of `Σ sum` and `Σ weight`, added up on the host in
/// f64, by a rule.
#[derive(Clone, Debug)]
pub struct Metric {
    /// `f32[]` or `s32[]`, or an array of them. Counts are s32, which counts a batch to 2,147,483,647; f32 stops at
    /// 16,777,216.
    pub sum: Tensor,
    /// What it is divided by.
    pub weight: Weight,
    /// What the value is.
    pub value: Value,
}

/// What is made of the sums and weights of all batches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Value {
    /// `sum / weight`, of scalars.
    #[default]
    Quotient,
    /// `e^(sum / weight)`, of scalars: a perplexity of a mean cross-entropy.
    Exponential,
    /// The mean of `sumᵢ / weightᵢ` over those whose weight is not 0; sum and weight `[n]` both.
    MeanOfQuotients,
    /// The area under the curve through the points `(sum₁ᵢ / weight₁, sum₀ᵢ / weight₀)`, and the trapezoids between them; sum
    /// `[2, n]`, weight `[2]`: of the ROC curve, true and false positives at thresholds that rise.
    Area,
    /// `1 − Σ(y − p)² / Σ(y − ȳ)²`, and of `n` numbers the mean; sum `[3, n]` of `(y − p)²`, `y` and `y²`, weight `[n]`.
    Determination,
}

impl Value {
    /// The value, from so many sums and weights, row-major: NaN where nothing counted.
    pub fn of(self, sums: &[f64], weights: &[f64]) -> f64 {
        match (self, sums, weights) {
            (Value::Quotient, [sum], [weight]) => sum / weight,
            (Value::Exponential, [sum], [weight]) => (sum / weight).exp(),
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
            (Value::Quotient | Value::Exponential | Value::Area | Value::Determination, _, _) => f64::NAN,
        }
    }

    /// Whether sums and weights may have these dims.
    pub fn takes(self, sum: &[i64], weight: &[i64]) -> bool {
        match self {
            Value::Quotient | Value::Exponential => sum.is_empty() && weight.is_empty(),
            Value::MeanOfQuotients => sum.len() == 1 && sum == weight,
            Value::Area => matches!((sum, weight), ([2, n], [2]) if *n > 1),
            Value::Determination => matches!((sum, weight), ([3, n], [m]) if n == m),
        }
    }
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
        Metric { sum: sum_or_count(values), weight: Weight::Constant(n), value: Value::Quotient }
    }

    /// The mean of all elements, each counted as often as its weight says.
    ///
    /// # Shapes
    /// values any, pred or a float; weights the same dims → sum and weight `f32[]`, but of weights that are pred the weight
    /// `s32[]`, and of values that are pred too the sum: they are counted exactly. A value of weight 0 counts for nothing,
    /// even where it is NaN.
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

    /// The mean of quotients, `f32[n]` or `s32[n]` each, of which those that are over 0 are left out: over classes, from
    /// [`nn::ClassCounts`](crate::nn::ClassCounts) the mean accuracy or the mean of intersections over unions.
    pub fn mean_of_ratios(sums: &Tensor, weights: &Tensor) -> Metric {
        Metric { value: Value::MeanOfQuotients, ..Metric::ratio(sums, weights) }
    }

    /// The area under the ROC curve, from what [`nn::above_thresholds`](crate::nn::above_thresholds) counts.
    pub fn area(above: &Tensor, of: &Tensor) -> Metric {
        Metric { value: Value::Area, ..Metric::ratio(above, of) }
    }

    /// The share of a variance that is predicted (R²), from sums `[3, n]` of squared differences, of what is true and of its
    /// squares, and weights `[n]`.
    pub fn determination(sums: &Tensor, weights: &Tensor) -> Metric {
        Metric { value: Value::Determination, ..Metric::ratio(sums, weights) }
    }

    /// e to the power of this mean: of a cross-entropy, the perplexity.
    #[must_use]
    pub fn exponential(self) -> Metric {
        Metric { value: Value::Exponential, ..self }
    }
}

/// How many truths there are (pred), `s32[]`, or the sum of floats, `f32[]`.
#[track_caller]
fn sum_or_count(values: &Tensor) -> Tensor {
    let values = match values.dtype() {
        DType::Pred => values.cast(DType::S32),
        _ => values.cast(DType::F32),
    };
    values.sum(&all_axes(&values))
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

#[cfg(test)]
mod tests {
    use super::Value;

    #[test]
    fn values_are_of_sums_and_weights() {
        assert_eq!(Value::Quotient.of(&[3.0], &[4.0]), 0.75);
        assert_eq!(Value::Exponential.of(&[0.0], &[4.0]), 1.0);
        // A class that never came counts for nothing, as TensorFlow's MeanIoU has it.
        assert_eq!(Value::MeanOfQuotients.of(&[1.0, 0.0, 3.0], &[4.0, 0.0, 4.0]), 0.5);
        // Counts beyond f32's 2^24, where adding one more changes nothing there.
        let many = 16_777_217.0;
        assert_eq!(Value::Quotient.of(&[many], &[many + 1.0]), many / (many + 1.0));
        assert!((many as f32 as f64) < many);
        // All said yes, then the true ones, then nobody: everything under the curve.
        assert_eq!(Value::Area.of(&[2.0, 2.0, 0.0, 3.0, 0.0, 0.0], &[2.0, 3.0]), 1.0);
        // One threshold says nothing: half.
        assert_eq!(Value::Area.of(&[2.0, 0.0, 3.0, 0.0], &[2.0, 3.0]), 0.5);
        // Labels 1, 2, 3 and predictions 1, 2, 4, then labels 0, 4 and predictions 2, 2: 1 − 1/2 and 1 − 8/8.
        assert_eq!(Value::Determination.of(&[1.0, 6.0, 14.0], &[3.0]), 0.5);
        assert_eq!(Value::Determination.of(&[8.0, 4.0, 16.0], &[2.0]), 0.0);
        assert_eq!(
            Value::Determination.of(&[1.0, 8.0, 6.0, 4.0, 14.0, 16.0], &[3.0, 2.0]).to_bits(),
            0.25f64.to_bits()
        );
        for value in [Value::Quotient, Value::Exponential] {
            assert!(value.of(&[0.0], &[0.0]).is_nan());
        }
        assert!(Value::Area.of(&[0.0, 0.0, 3.0, 0.0], &[0.0, 3.0]).is_nan());
        assert!(Value::MeanOfQuotients.of(&[0.0], &[0.0]).is_nan());
    }

    #[test]
    fn each_value_has_its_dims() {
        assert!(Value::Quotient.takes(&[], &[]) && !Value::Quotient.takes(&[2], &[2]));
        assert!(Value::MeanOfQuotients.takes(&[3], &[3]) && !Value::MeanOfQuotients.takes(&[3], &[2]));
        assert!(Value::Area.takes(&[2, 5], &[2]) && !Value::Area.takes(&[2, 1], &[2]));
    }
}
