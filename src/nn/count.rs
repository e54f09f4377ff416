//! Counts that metrics over a whole evaluation are made of: by class, and above thresholds. All are s32, so that they are
//! exact and add up over batches.

use super::loss::{check_labels, is_label};
use super::metric::{arg_max, check_sides};
use crate::graph::Tensor;
use crate::hlo::ops::{BinaryOp, RuleError};
use crate::hlo::{DType, Literal};

/// What a confusion matrix says of each class: `s32[n_classes]` each.
#[derive(Clone, Debug)]
pub struct ClassCounts {
    /// Rows of the class that were taken for it: the diagonal.
    pub hits: Tensor,
    /// Rows of the class.
    pub labelled: Tensor,
    /// Rows that were taken for the class.
    pub said: Tensor,
}

impl ClassCounts {
    /// Rows that are of the class, or were taken for it: what intersections over unions are over.
    #[track_caller]
    pub fn unions(&self) -> Tensor {
        &self.labelled + &self.said - &self.hits
    }
}

/// Counts rows by class, of those that `counted` says, or of all. A row with a NaN is taken for no class.
///
/// # Shapes
/// logits `[…, n_classes]` of any floating dtype, labels `[…]` of any integer dtype, counted `pred[…]` → `s32[n_classes]`.
///
/// # Errors
/// Labels that are not integers, and labels or `counted` without the logits' leading dims.
///
/// # Source
/// TensorFlow's `confusion_matrix`, and what `MeanIoU` and `mean_per_class_accuracy` take of it.
#[track_caller]
pub fn class_counts(logits: &Tensor, labels: &Tensor, counted: Option<&Tensor>) -> ClassCounts {
    let all = |x: &Tensor| ClassCounts { hits: x.clone(), labelled: x.clone(), said: x.clone() };
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
        let said = is_label(&arg_max(logits), &dims);
        let rows: Vec<i64> = (0..dims.len() as i64 - 1).collect();
        let counted = counted.map(|counted| counted.broadcast_in_dim(&dims, &rows));
        let count = |is: &Tensor| {
            let is = counted.as_ref().map_or(is.clone(), |counted| is.binary(BinaryOp::And, counted));
            let is = is.cast(DType::S32);
            if rows.is_empty() { is } else { is.sum(&rows) }
        };
        let hits = count(&labelled.binary(BinaryOp::And, &said));
        ClassCounts { hits, labelled: count(&labelled), said: count(&said) }
    })
}

/// At each of so many thresholds, how many sigmoids of logits are above it: of those whose label is above 1/2, and of the
/// others; and how many there are of both. Thresholds are equally far apart from 0 to 1, the first just below 0 and the last
/// just above 1. A NaN is above none.
///
/// # Shapes
/// logits and labels of one shape and floating dtype, counted `pred` of that shape → `s32[2, n_thresholds]`, `s32[2]`.
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
        let of = [truth.clone(), truth.not()].map(|is| match counted {
            Some(counted) => is.binary(BinaryOp::And, &flat(counted)),
            None => is,
        });
        let dims = [n, n_thresholds];
        let thresholds = graph.constant(Literal::from_elements([n_thresholds], &thresholds(n_thresholds)));
        let above = p.broadcast_in_dim(&dims, &[0]).greater(&thresholds.broadcast_in_dim(&dims, &[1]));
        let count = |is: Tensor| is.cast(DType::S32).sum(&[0]);
        let above = of
            .each_ref()
            .map(|of| count(above.binary(BinaryOp::And, &of.broadcast_in_dim(&dims, &[0]))).reshape([1, n_thresholds]));
        let of = of.map(|of| count(of).reshape([1]));
        (Tensor::concatenate(&[&above[0], &above[1]], 0), Tensor::concatenate(&[&of[0], &of[1]], 0))
    })
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
        Some(counted) if counted.dtype() != DType::Pred || counted.dims() != dims => {
            let message = format!("what is counted is {}, expected pred of dims {dims:?}", counted.shape());
            Err(RuleError::new("metric/counted", message))
        }
        Some(_) | None => Ok(()),
    }
}
