//! A task's predictions as arrays on the host.

use super::error::{TrainError, TrainErrorKind, TrainPlace};
use bf16scope_data::NamedArray;
use bf16scope_hlo::Element;

/// Predictions for a number of examples: arrays by name, `[n, …]` each.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Predictions(Vec<NamedArray>);

impl Predictions {
    /// Appends the predictions of the next examples.
    pub(super) fn append(&mut self, arrays: Vec<NamedArray>) {
        if self.0.is_empty() {
            self.0 = arrays;
            return;
        }
        for (all, next) in self.0.iter_mut().zip(arrays) {
            all.dims[0] += next.dims[0];
            all.bytes.extend(next.bytes);
        }
    }

    /// All arrays, in the task's order.
    pub fn arrays(&self) -> &[NamedArray] {
        &self.0
    }

    /// All arrays, by value.
    pub fn into_arrays(self) -> Vec<NamedArray> {
        self.0
    }

    /// The array of this name.
    ///
    /// # Errors
    /// When the task does not predict it.
    pub fn get(&self, name: &str) -> Result<&NamedArray, TrainError> {
        let named = self.0.iter().map(|array| format!("{} {}", array.name, array.dtype));
        let missing = || no_prediction(name, &named.collect::<Vec<_>>().join(", "));
        self.0.iter().find(|array| array.name == name).ok_or_else(missing)
    }

    /// The elements of the array of this name, row-major: `to_vec::<i32>("class")`. bf16 and f16 can be read as f32,
    /// which is exact.
    ///
    /// # Errors
    /// When the task does not predict it, or in another dtype.
    pub fn to_vec<T: Element>(&self, name: &str) -> Result<Vec<T>, TrainError> {
        let array = self.get(name)?;
        array
            .to_vec()
            .map_err(|_| no_prediction(&format!("{name} {}", T::DTYPE), &format!("{} {}", array.name, array.dtype)))
    }
}

/// The error of a prediction that the task does not have, with those that it has.
fn no_prediction(wanted: &str, predicted: &str) -> TrainError {
    let text = format!("the task predicts {predicted}, and no `{wanted}`");
    TrainError::new(TrainErrorKind::Model, TrainPlace::Nowhere, text)
        .with_help("ask by the name and the dtype that it predicts")
}
