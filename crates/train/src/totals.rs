//! The reports of steps and evaluations: sums and weights, by name.

use bf16scope_model::task::Value;
use std::sync::Arc;

/// Sums and weights of a loss and of metrics, over any number of batches.
#[derive(Clone, Debug, PartialEq)]
pub struct Totals {
    names: Arc<[(String, Value)]>,
    sums: Vec<Sum>,
}

/// `Σ sum` and `Σ weight` of a name, row-major: in f64, which counts exactly to 2^53.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Sum {
    pub sums: Vec<f64>,
    pub weights: Vec<f64>,
}

impl Sum {
    fn add(&mut self, other: Sum) {
        for (total, batch) in [(&mut self.sums, other.sums), (&mut self.weights, other.weights)] {
            match total.is_empty() {
                true => *total = batch,
                false => total.iter_mut().zip(batch).for_each(|(total, batch)| *total += batch),
            }
        }
    }
}

impl Totals {
    /// Zero totals with these names, and the function that makes each value.
    pub(super) fn new(names: Arc<[(String, Value)]>) -> Totals {
        let sums = vec![Sum::default(); names.len()];
        Totals { names, sums }
    }

    /// Adds a batch's sums and weights, in the order of the names.
    pub(super) fn add(&mut self, batch: impl IntoIterator<Item = Sum>) {
        self.sums.iter_mut().zip(batch).for_each(|(total, batch)| total.add(batch));
    }

    /// Names, with their sums and weights.
    pub(super) fn sums(&self) -> impl Iterator<Item = (&str, &Sum)> {
        self.named().map(|(name, _, sum)| (name, sum))
    }

    /// Adds the sums and weights of `other`.
    pub fn merge(&mut self, other: &Totals) {
        self.add(other.sums.iter().cloned());
    }

    /// Names and values, the loss first if there is one. A value without any weight is NaN.
    pub fn values(&self) -> impl Iterator<Item = (&str, f64)> {
        self.named().map(|(name, value, sum)| (name, value.compute(&sum.sums, &sum.weights)))
    }

    fn named(&self) -> impl Iterator<Item = (&str, Value, &Sum)> {
        self.names.iter().zip(&self.sums).map(|((name, value), sum)| (name.as_str(), *value, sum))
    }

    /// The value of this name, if it is reported.
    pub fn value(&self, name: &str) -> Option<f64> {
        self.values().find(|(other, _)| *other == name).map(|(_, value)| value)
    }

    /// The loss, if there is one.
    pub fn loss(&self) -> Option<f64> {
        self.value("loss")
    }

    /// Names and values, by value.
    pub fn to_values(&self) -> Vec<(String, f64)> {
        self.values().map(|(name, value)| (name.to_string(), value)).collect()
    }

    /// The first value that is not finite. Two cases are legitimate: a metric without any weight, such as the precision
    /// of a network that never predicts true, and a perplexity that overflows f64 while its loss does not.
    pub fn not_finite(&self) -> Option<(&str, f64)> {
        self.named().find_map(|(name, value, sum)| {
            let value = if value == Value::Exponential { Value::Quotient } else { value };
            let value = value.compute(&sum.sums, &sum.weights);
            let is_right = sum.sums.iter().chain(&sum.weights).all(|number| number.is_finite());
            // If the sums are finite, a NaN is 0/0.
            let is_empty = name != "loss" && is_right && value.is_nan();
            (!value.is_finite() && !is_empty).then_some((name, value))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn totals_of(names: &[(&str, Value)]) -> Totals {
        Totals::new(names.iter().map(|(name, value)| (name.to_string(), *value)).collect())
    }

    fn batch<const N: usize>(sums: [(f64, f64); N]) -> [Sum; N] {
        sums.map(|(sum, weight)| Sum { sums: vec![sum], weights: vec![weight] })
    }

    #[test]
    fn what_nothing_counted_for_has_no_value_and_is_no_error() {
        let mut totals = totals_of(&[("loss", Value::Quotient), ("precision", Value::Quotient)]);
        totals.add(batch([(2.0, 4.0), (0.0, 0.0)]));
        assert!(totals.value("precision").unwrap().is_nan());
        assert_eq!(totals.not_finite(), None);
        totals.add(batch([(2.0, 4.0), (f64::NAN, 0.0)]));
        assert_eq!(totals.not_finite().map(|(name, _)| name), Some("precision"));
        let mut totals = totals_of(&[("loss", Value::Quotient), ("perplexity", Value::Exponential)]);
        totals.add(batch([(2.0, 1.0), (2000.0, 1.0)]));
        assert_eq!((totals.value("perplexity"), totals.not_finite()), (Some(f64::INFINITY), None));
    }

    #[test]
    fn batches_add_up_exactly() {
        let mut totals = totals_of(&[("loss", Value::Quotient), ("accuracy", Value::Quotient)]);
        assert_eq!(totals.not_finite().map(|(name, value)| (name, value.is_nan())), Some(("loss", true)));
        let mut other = totals.clone();
        totals.add(batch([(6.0, 3.0), (2.0, 4.0)]));
        other.add(batch([(1.0, 1.0), (1.0, 2.0)]));
        totals.merge(&other);
        assert_eq!(totals.to_values(), [("loss".to_string(), 1.75), ("accuracy".to_string(), 0.5)]);
        assert_eq!((totals.loss(), totals.value("auc"), totals.not_finite()), (Some(1.75), None, None));
    }

    /// Means of means would be 1/2 and 3/4.
    #[test]
    fn arrays_add_up_before_their_value_is_made() {
        let mut totals = totals_of(&[("mean_iou", Value::MeanOfQuotients)]);
        totals.add([Sum { sums: vec![1.0, 0.0], weights: vec![1.0, 1.0] }]);
        totals.add([Sum { sums: vec![0.0, 3.0], weights: vec![3.0, 3.0] }]);
        assert_eq!(totals.value("mean_iou"), Some(0.5));
    }
}
