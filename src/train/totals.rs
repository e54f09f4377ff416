//! What steps and evaluations report: sums and weights, by name.

use std::sync::Arc;

/// Sums and weights of a loss and of metrics, over any number of batches.
#[derive(Clone, Debug, PartialEq)]
pub struct Totals {
    names: Arc<[String]>,
    /// `(Σ sum, Σ weight)` of each name.
    sums: Vec<(f64, f64)>,
}

impl Totals {
    /// Nothing yet, of these names.
    pub(super) fn new(names: Arc<[String]>) -> Totals {
        let sums = vec![(0.0, 0.0); names.len()];
        Totals { names, sums }
    }

    /// Adds a batch's sums and weights, in the order of the names.
    pub(super) fn add(&mut self, batch: impl IntoIterator<Item = (f64, f64)>) {
        for (total, (sum, weight)) in self.sums.iter_mut().zip(batch) {
            *total = (total.0 + sum, total.1 + weight);
        }
    }

    /// Adds another's.
    pub fn merge(&mut self, other: &Totals) {
        self.add(other.sums.iter().copied());
    }

    /// Names and values, the loss first where there is one. What no example counted for is NaN.
    pub fn values(&self) -> impl Iterator<Item = (&str, f64)> {
        self.names.iter().zip(&self.sums).map(|(name, (sum, weight))| (name.as_str(), sum / weight))
    }

    /// The value of this name, if it is reported.
    pub fn value(&self, name: &str) -> Option<f64> {
        self.values().find(|(other, _)| *other == name).map(|(_, value)| value)
    }

    /// The loss, if there is one.
    pub fn loss(&self) -> Option<f64> {
        self.value("loss")
    }

    /// Names and values, kept.
    pub fn to_values(&self) -> Vec<(String, f64)> {
        self.values().map(|(name, value)| (name.to_string(), value)).collect()
    }

    /// The first that is not a number, and its value. A metric for which nothing counted, as the precision of a network that
    /// never said yes, has no value, which is nothing wrong.
    pub fn not_finite(&self) -> Option<(&str, f64)> {
        let is_empty = |name: &str, sums: (f64, f64)| name != "loss" && sums == (0.0, 0.0);
        let wrong = |((name, value), sums): &((&str, f64), &(f64, f64))| !value.is_finite() && !is_empty(name, **sums);
        self.values().zip(&self.sums).find(wrong).map(|(found, _)| found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_nothing_counted_for_has_no_value_and_is_no_error() {
        let mut totals = Totals::new(["loss", "precision"].map(str::to_string).into());
        totals.add([(2.0, 4.0), (0.0, 0.0)]);
        assert!(totals.value("precision").unwrap().is_nan());
        assert_eq!(totals.not_finite(), None);
        totals.add([(2.0, 4.0), (f64::NAN, 0.0)]);
        assert_eq!(totals.not_finite().map(|(name, _)| name), Some("precision"));
    }

    #[test]
    fn batches_add_up_exactly() {
        let names: Arc<[String]> = ["loss", "accuracy"].map(str::to_string).into();
        let mut totals = Totals::new(Arc::clone(&names));
        assert_eq!(totals.not_finite().map(|(name, value)| (name, value.is_nan())), Some(("loss", true)));
        totals.add([(6.0, 3.0), (2.0, 4.0)]);
        let mut other = Totals::new(names);
        other.add([(1.0, 1.0), (1.0, 2.0)]);
        totals.merge(&other);
        assert_eq!(totals.to_values(), [("loss".to_string(), 1.75), ("accuracy".to_string(), 0.5)]);
        assert_eq!((totals.loss(), totals.value("auc"), totals.not_finite()), (Some(1.75), None, None));
    }
}
