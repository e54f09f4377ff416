//! What a network wants to be given: names, dims and dtypes of the arrays of one example.
//!
//! A feature says nothing of files. [`Loader`](super::Loader) finds the array of its name in a
//! [`Source`](super::Source) and makes it what the feature says.

use std::ops::RangeInclusive;

use bf16scope_hlo::DType;
use bf16scope_hlo::element::{f64s, integers};
use serde::{Deserialize, Serialize};

/// What one example holds under one name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Feature {
    /// The name of the array in the source, and of the input of the program.
    pub name: String,
    /// Dimensions of one example, without the batch; none for one number.
    pub dims: Vec<i64>,
    /// The dtype that the program is given.
    pub dtype: FeatureDType,
    /// Whether it is what the network learns to say, and therefore absent when it predicts.
    pub is_label: bool,
    /// Of integers: how many values there are, from 0. The host checks it, for a program that gathers beyond its table
    /// reads the last row and says nothing.
    pub n_values: Option<i64>,
    /// Whether each number is a probability, from 0 to 1, as cross entropies of logits want their labels. The host checks it,
    /// for such a loss has no least value elsewhere, and trains to nothing without a word.
    pub is_probability: bool,
    /// Whether each number is the weight of an example or of a position, 0 or more. The host checks it, for a loss with a weight
    /// below 0 has no least value: training would make it as great as it can.
    pub is_weight: bool,
    /// What it is drawn from where the source has no array of its name: anew for every example of every epoch, and always the
    /// same in what has no epochs.
    pub random: Option<Random>,
}

/// Numbers that the host draws for a feature.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Random {
    /// Of mean 0 and standard deviation 1.
    Normal,
    /// From -1 up to but not including 1, all as likely.
    Uniform,
}

/// The dtype of a feature in the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FeatureDType {
    /// Float: numbers of any width, cast on the host to what the network computes in.
    Compute,
    /// This one, whatever the network computes in.
    Exact(DType),
}

impl Feature {
    /// Numbers that are cast to what the network computes in: images, measurements.
    pub fn compute(name: &str, dims: impl Into<Vec<i64>>) -> Feature {
        Feature {
            name: name.to_string(),
            dims: dims.into(),
            dtype: FeatureDType::Compute,
            is_label: false,
            n_values: None,
            is_probability: false,
            is_weight: false,
            random: None,
        }
    }

    /// Numbers of `dtype`: classes, tokens, weights in f32.
    pub fn exact(name: &str, dtype: DType, dims: impl Into<Vec<i64>>) -> Feature {
        Feature { dtype: FeatureDType::Exact(dtype), ..Feature::compute(name, dims) }
    }

    /// The same feature as a label, which is absent when the network predicts.
    pub fn label(self) -> Feature {
        Feature { is_label: true, ..self }
    }

    /// The same feature, of integers `0..n`.
    pub fn below(self, n: i64) -> Feature {
        Feature { n_values: Some(n), ..self }
    }

    /// The same feature, of numbers from 0 to 1.
    pub fn probability(self) -> Feature {
        Feature { is_probability: true, ..self }
    }

    /// The same feature, of numbers from 0 on.
    pub fn weight(self) -> Feature {
        Feature { is_weight: true, ..self }
    }

    /// The same feature, drawn where the source has no array of its name.
    pub fn drawn(self, random: Random) -> Feature {
        Feature { random: Some(random), ..self }
    }

    /// The dtype that the program is given if the network computes in `compute`.
    pub fn dtype_in(&self, compute: DType) -> DType {
        match self.dtype {
            FeatureDType::Compute => compute,
            FeatureDType::Exact(dtype) => dtype,
        }
    }

    /// The first number of a batch's array of `dtype` that is beyond [`n_values`](Feature::n_values), or no probability where
    /// [`is_probability`](Feature::is_probability). A batch of [`Loader`](super::Loader) has none, for it asks the same of what it
    /// reads; one that a program made itself may.
    pub fn first_outside(&self, dtype: DType, bytes: &[u8]) -> Option<Outside> {
        if let Some(n) = self.n_values
            && let Some((element, value)) = first_outside(dtype, bytes, 0..=i128::from(n) - 1)
        {
            return Some(Outside { element, value: value.to_string(), expected: format!("from 0 to {}", n - 1) });
        }
        let probabilities = self.is_probability.then_some(bytes)?;
        let (element, value) = first_improbable(dtype, probabilities, 1.0)?;
        Some(Outside { element, value: (value as f32).to_string(), expected: "from 0 to 1".to_string() })
    }

    /// How many numbers one example holds; `None` where the dims make no array or one that no memory holds.
    pub(super) fn n_elements(&self) -> Option<usize> {
        n_elements(&self.dims)
    }
}

/// A number of an array that a feature does not take.
#[derive(Clone, Debug, PartialEq)]
pub struct Outside {
    /// Its place among the array's elements, from 0.
    pub element: usize,
    /// The number.
    pub value: String,
    /// The numbers that the feature takes: `from 0 to 9`.
    pub expected: String,
}

/// The first of the little-endian integers of `dtype` that is not in `range`, and its place; `None` for other dtypes.
pub(crate) fn first_outside(dtype: DType, bytes: &[u8], range: RangeInclusive<i128>) -> Option<(usize, i128)> {
    integers(dtype, bytes)?.enumerate().find(|(_, value)| !range.contains(value))
}

/// The first of the little-endian numbers of `dtype` that, times `scale` in f32, is no probability, and its place.
pub(crate) fn first_improbable(dtype: DType, bytes: &[u8], scale: f32) -> Option<(usize, f64)> {
    f64s(dtype, bytes)?.enumerate().find(|(_, value)| !(0.0..=1.0).contains(&(*value as f32 * scale)))
}

/// How many numbers an array of `dims` holds, at most as many as fit 16 bytes each; `None` where a dim is not positive.
pub(super) fn n_elements(dims: &[i64]) -> Option<usize> {
    let count = dims.iter().try_fold(1usize, |count, &dim| count.checked_mul(usize::try_from(dim).ok()?))?;
    (count > 0 && count <= isize::MAX as usize / 16).then_some(count)
}

/// Whether a feature is whole numbers.
pub(crate) fn is_whole(feature: &Feature) -> bool {
    matches!(feature.dtype, FeatureDType::Exact(dtype) if !dtype.is_float())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_feature_is_said_in_a_line() {
        let image = Feature::compute("image", [28, 28, 1]);
        assert_eq!((image.dtype_in(DType::BF16), image.n_elements()), (DType::BF16, Some(784)));
        let label = Feature::exact("label", DType::S32, []).label().below(10);
        assert_eq!(
            label,
            Feature {
                name: "label".to_string(),
                dims: vec![],
                dtype: FeatureDType::Exact(DType::S32),
                is_label: true,
                n_values: Some(10),
                is_probability: false,
                is_weight: false,
                random: None,
            }
        );
        assert_eq!((label.dtype_in(DType::BF16), label.n_elements()), (DType::S32, Some(1)));
    }

    #[test]
    fn dims_that_make_no_array() {
        for dims in [vec![0], vec![3, -1], vec![i64::MAX, 8], vec![1 << 62]] {
            assert_eq!(n_elements(&dims), None, "{dims:?}");
        }
    }
}
