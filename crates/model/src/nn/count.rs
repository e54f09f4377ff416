//! Counts for metrics over a whole evaluation: by class, and above thresholds. They are s32, so they are exact and add
//! up over batches; with weights they are f32 sums of weights.

use super::loss::{check_labels, is_label};
use super::metric::{arg_max, check_sides};
use crate::graph::Tensor;
use bf16scope_hlo::ops::{BinaryOp, RuleError};
use bf16scope_hlo::{DType, Literal};

/// The counts of a confusion matrix for each class: `s32[n_classes]` each, or `f32[n_classes]` with weights.
#[derive(Clone, Debug)]
pub struct ClassCounts {
    /// Rows of the class that were predicted as it: the diagonal.
    pub hits: Tensor,
    /// Rows of the class.
    pub labelled: Tensor,
    /// Rows that were predicted as the class.
    pub predicted: Tensor,
}

impl ClassCounts {
    /// Rows that are of the class, or were predicted as it: the denominators of intersection over union.
    #[track_caller]
    pub fn unions(&self) -> Tensor {
        &self.labelled + &self.predicted - &self.hits
    }
}

/// Counts rows by class: those that `counted` selects, or all; if `counted` is f32, it is the weight of each row. A row
/// with a NaN is predicted as no class.
///
/// # Shapes
/// logits `[…, n_classes]` of any floating dtype, labels `[…]` of any integer dtype, counted `pred[…]` or `f32[…]` →
/// `s32[n_classes]`, or `f32[n_classes]` of counted f32.
///
/// # Errors
/// Labels that are not integers, and labels or `counted` without the logits' leading dims.
///
/// # Source
/// TensorFlow's `confusion_matrix`, with its `weights`, as used by `MeanIoU` and `mean_per_class_accuracy`.
#[track_caller]
pub fn class_counts(logits: &Tensor, labels: &Tensor, counted: Option<&Tensor>) -> ClassCounts {
    let all = |x: &Tensor| ClassCounts { hits: x.clone(), labelled: x.clone(), predicted: x.clone() };
    if let Some(poison) = [logits, labels].into_iter().chain(counted).find(|tensor| tensor.is_poison()) {
        return all(poison);
    }
    let graph = logits.graph();
    graph.scope().layer("metric", |_| {
        let checked = check_labels(logits, labels).and_then(|()| check_counted(&labels.dims(), counted));
        if let Err(error) = checked {
            return all(&graph.fail("class_counts", &[logits, labels], error));
        }
        let dims = logits.dims();
        let labelled = is_label(labels, &dims);
        let predicted = is_label(&arg_max(logits), &dims);
        let rows: Vec<i64> = (0..dims.len() as i64 - 1).collect();
        let counted = counted.map(|counted| counted.broadcast_in_dim(&dims, &rows));
        let count = |is: &Tensor| {
            let is = one_each(is.clone(), counted.as_ref());
            if rows.is_empty() { is } else { is.sum(&rows) }
        };
        let hits = count(&labelled.binary(BinaryOp::And, &predicted));
        ClassCounts { hits, labelled: count(&labelled), predicted: count(&predicted) }
    })
}

/// For each of `n_thresholds`, the number of sigmoids of logits above it, among elements whose label is above 1/2 and
/// among the others; and the number of elements in both groups. Thresholds are equally spaced from 0 to 1, the first
/// just below 0 and the last just above 1. A NaN is above no threshold.
///
/// # Shapes
/// logits and labels of one shape and floating dtype, counted `pred` or f32 of that shape → `s32[2, n_thresholds]`,
/// `s32[2]`, or f32 if counted is f32, which is the weight of each element.
///
/// # Errors
/// Shapes or dtypes that differ; fewer than 2 thresholds.
///
/// # Source
/// Keras' `AUC(num_thresholds=n, from_logits=True)`.
#[track_caller]
pub fn above_thresholds(
    logits: &Tensor,
    labels: &Tensor,
    counted: Option<&Tensor>,
    n_thresholds: i64,
) -> (Tensor, Tensor) {
    let both = |x: &Tensor| (x.clone(), x.clone());
    if let Some(poison) = [logits, labels].into_iter().chain(counted).find(|tensor| tensor.is_poison()) {
        return both(poison);
    }
    let graph = logits.graph();
    graph.scope().layer("metric", |_| {
        if let Some(poison) = check_sides("above_thresholds", logits, labels) {
            return both(&poison);
        }
        let checked = super::at_least("metric/thresholds", "the number of thresholds", n_thresholds, 2);
        if let Err(error) = checked.and_then(|()| check_counted(&logits.dims(), counted)) {
            return both(&graph.fail("above_thresholds", &[logits, labels], error));
        }
        let n = logits.dims().iter().product::<i64>();
        let flat = |x: &Tensor| x.reshape([n]);
        let p = flat(&logits.cast(DType::F32).logistic());
        let truth = flat(&labels.greater(&graph.full(labels.dtype(), &labels.dims(), 0.5)));
        // The elements that count, or their weights.
        let selected = [truth.clone(), truth.not()].map(|is| match counted {
            Some(counted) if counted.dtype() == DType::Pred => is.binary(BinaryOp::And, &flat(counted)),
            Some(weights) => one_each(is, Some(&flat(weights))),
            None => is,
        });
        let dims = [n, n_thresholds];
        let thresholds = graph.constant(Literal::from_elements([n_thresholds], &thresholds(n_thresholds)));
        let above = p.broadcast_in_dim(&dims, &[0]).greater(&thresholds.broadcast_in_dim(&dims, &[1]));
        let count = |is: Tensor| if is.dtype() == DType::Pred { is.cast(DType::S32) } else { is }.sum(&[0]);
        let above_of = |selected: &Tensor| match selected.broadcast_in_dim(&dims, &[0]) {
            selected if selected.dtype() == DType::Pred => above.binary(BinaryOp::And, &selected),
            weights => one_each(above.clone(), Some(&weights)),
        };
        let above = selected.each_ref().map(|selected| count(above_of(selected)).reshape([1, n_thresholds]));
        let selected = selected.map(|selected| count(selected).reshape([1]));
        (Tensor::concatenate(&[&above[0], &above[1]], 0), Tensor::concatenate(&[&selected[0], &selected[1]], 0))
    })
}

/// 1 where `is` holds and the element counts, s32; or its weight, f32.
#[track_caller]
fn one_each(is: Tensor, counted: Option<&Tensor>) -> Tensor {
    match counted {
        None => is.cast(DType::S32),
        Some(counted) if counted.dtype() == DType::Pred => is.binary(BinaryOp::And, counted).cast(DType::S32),
        Some(weights) => is.select(weights, &weights.graph().full(DType::F32, &weights.dims(), 0.0)),
    }
}

/// Keras' thresholds, in f32.
fn thresholds(n: i64) -> Vec<f32> {
    let last = n - 1;
    let threshold = |at: i64| match at {
        0 => -1e-7,
        at if at == last => 1.0 + 1e-7,
        at => at as f64 / last as f64,
    };
    (0..n).map(|at| threshold(at) as f32).collect()
}

fn check_counted(dims: &[i64], counted: Option<&Tensor>) -> Result<(), RuleError> {
    match counted {
        Some(counted) if !matches!(counted.dtype(), DType::Pred | DType::F32) || counted.dims() != dims => {
            let message = format!("what is counted is {}, expected pred or f32 of dims {dims:?}", counted.shape());
            Err(RuleError::new("metric/counted", message))
        }
        Some(_) | None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every probability from 0 to 1 is above the first threshold, and none above the last.
    #[test]
    fn the_outer_thresholds_lie_outside_of_probabilities() {
        assert_eq!(thresholds(5), [-1e-7, 0.25, 0.5, 0.75, 1.0 + f32::EPSILON]);
    }
}
