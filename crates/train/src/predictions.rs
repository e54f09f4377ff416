//! What a task predicts for a number of examples, as arrays on the host.

use super::error::TrainError;
use bf16scope_data::NamedArray;
use bf16scope_hlo::DType;
use half::{bf16, f16};

/// Predictions for a number of examples: arrays by name, `[n, …]` each.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Predictions(Vec<NamedArray>);

impl Predictions {
    /// Adds those of the next examples.
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

    /// All of them, in the task's order.
    pub fn arrays(&self) -> &[NamedArray] {
        &self.0
    }

    /// All of them, to keep.
    pub fn into_arrays(self) -> Vec<NamedArray> {
        self.0
    }

    /// The one of this name.
    ///
    /// # Errors
    /// [`TrainError::Prediction`] where the task predicts none.
    pub fn get(&self, name: &str) -> Result<&NamedArray, TrainError> {
        let named = self.0.iter().map(|array| format!("{} {}", array.name, array.dtype));
        let none = || TrainError::Prediction { wanted: name.to_string(), found: named.collect::<Vec<_>>().join(", ") };
        self.0.iter().find(|array| array.name == name).ok_or_else(none)
    }

    /// The numbers of the one of this name, row-major: f32, or bf16 and f16, each of which is an f32.
    ///
    /// # Errors
    /// [`TrainError::Prediction`] where the task predicts none, or of another dtype.
    pub fn f32s(&self, name: &str) -> Result<Vec<f32>, TrainError> {
        let NamedArray { dtype, bytes, .. } = self.get(name)?;
        let pairs = || bytes.as_chunks::<2>().0.iter();
        match dtype {
            DType::F32 => Ok(bytes.as_chunks::<4>().0.iter().map(|word| f32::from_le_bytes(*word)).collect()),
            DType::BF16 => Ok(pairs().map(|word| bf16::from_le_bytes(*word).to_f32()).collect()),
            DType::F16 => Ok(pairs().map(|word| f16::from_le_bytes(*word).to_f32()).collect()),
            _ => Err(self.of_another_dtype(name, "f32")),
        }
    }

    /// The integers of the one of this name, row-major: s32, as classes are.
    ///
    /// # Errors
    /// [`TrainError::Prediction`] where the task predicts none, or of another dtype.
    pub fn i32s(&self, name: &str) -> Result<Vec<i32>, TrainError> {
        let NamedArray { dtype, bytes, .. } = self.get(name)?;
        match dtype {
            DType::S32 => Ok(bytes.as_chunks::<4>().0.iter().map(|word| i32::from_le_bytes(*word)).collect()),
            _ => Err(self.of_another_dtype(name, "s32")),
        }
    }

    fn of_another_dtype(&self, name: &str, dtype: &str) -> TrainError {
        match self.get(name) {
            Ok(array) => TrainError::Prediction {
                wanted: format!("{name} {dtype}"),
                found: format!("{} {}", array.name, array.dtype),
            },
            Err(none) => none,
        }
    }
}
