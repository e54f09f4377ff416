//! Input features of a network: names, dims and dtypes of the arrays of one example.
//!
//! A feature does not refer to files. [`Loader`](super::Loader) finds the array with its name in a
//! [`Source`](super::Source) and converts it.

use std::ops::RangeInclusive;

use super::alignment::Alignment;
use bf16scope_hlo::DType;
use bf16scope_hlo::element::{f64s, integers};
use serde::{Deserialize, Serialize};

/// One named array of every example, as the network takes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Feature {
    /// The name of the array in the source, and of the input of the program.
    pub name: String,
    /// Dimensions of one example, without the batch axis; empty for a scalar.
    pub dims: Vec<i64>,
    /// The dtype in the program.
    pub dtype: FeatureDType,
    /// Whether it is a label, which predictions do not need.
    pub is_label: bool,
    /// For integers: the number of valid values, from 0. The host checks it, because a program that gathers beyond its
    /// table silently reads the last row.
    pub n_values: Option<i64>,
    /// Whether each number is a probability, from 0 to 1, as cross entropies of logits expect of labels. The host
    /// checks it, because outside that range such a loss has no minimum and training silently diverges.
    pub is_probability: bool,
    /// Whether each number is the weight of an example or of a position, 0 or more. The host checks it, because a loss
    /// with a negative weight has no minimum: training would make that example's loss as large as it can.
    pub is_weight: bool,
    /// The steps into which it has to fit, if it is a sequence of labels. The host checks them, because a sequence that
    /// does not fit has an infinite loss.
    pub alignments: Vec<Alignment>,
    /// The distribution to draw from if the source has no array of this name: new numbers for every example of every
    /// epoch, and always the same numbers outside of epochs.
    pub random: Option<Random>,
}

/// Distributions from which the host draws a feature.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Random {
    /// Normal, with mean 0 and standard deviation 1.
    Normal,
    /// Uniform in [-1, 1).
    Uniform,
}

/// The dtype of a feature in the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FeatureDType {
    /// Float: numbers of any width, cast on the host to what the network computes in.
    Compute,
    /// This dtype, whatever the network computes in.
    Exact(DType),
}

impl Feature {
    /// Numbers that are cast to the network's compute dtype: images, measurements.
    pub fn compute(name: &str, dims: impl Into<Vec<i64>>) -> Feature {
        Feature {
            name: name.to_string(),
            dims: dims.into(),
            dtype: FeatureDType::Compute,
            is_label: false,
            n_values: None,
            is_probability: false,
            is_weight: false,
            alignments: Vec::new(),
            random: None,
        }
    }

    /// Numbers of `dtype`: classes, tokens, weights in f32.
    pub fn exact(name: &str, dtype: DType, dims: impl Into<Vec<i64>>) -> Feature {
        Feature { dtype: FeatureDType::Exact(dtype), ..Feature::compute(name, dims) }
    }

    /// Makes it a label, which predictions do not need.
    pub fn label(self) -> Feature {
        Feature { is_label: true, ..self }
    }

    /// The same feature, with integers in `0..n`.
    pub fn below(self, n: i64) -> Feature {
        Feature { n_values: Some(n), ..self }
    }

    /// The same feature, with numbers from 0 to 1.
    pub fn probability(self) -> Feature {
        Feature { is_probability: true, ..self }
    }

    /// The same feature, with numbers of at least 0.
    pub fn weight(self) -> Feature {
        Feature { is_weight: true, ..self }
    }

    /// The same feature, drawn where the source has no array of its name.
    pub fn drawn(self, random: Random) -> Feature {
        Feature { random: Some(random), ..self }
    }

    /// The dtype in the program if the network computes in `compute`.
    pub fn dtype_in(&self, compute: DType) -> DType {
        match self.dtype {
            FeatureDType::Compute => compute,
            FeatureDType::Exact(dtype) => dtype,
        }
    }

    /// The first number in a batch's array of `dtype` that is beyond [`n_values`](Feature::n_values), or not a
    /// probability where [`is_probability`](Feature::is_probability) is set. Batches of [`Loader`](super::Loader) have
    /// been checked; a batch that a program made itself may contain one.
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

    /// How many numbers one example holds; `None` if the dims are invalid or the array would exceed any memory.
    pub(super) fn n_elements(&self) -> Option<usize> {
        n_elements(&self.dims)
    }
}

/// A number of an array that its feature does not accept.
#[derive(Clone, Debug, PartialEq)]
pub struct Outside {
    /// Its place among the array's elements, from 0.
    pub element: usize,
    /// The number.
    pub value: String,
    /// The numbers that the feature accepts: `from 0 to 9`.
    pub expected: String,
}

/// The first of the little-endian integers of `dtype` that is not in `range`, and its place; `None` for other dtypes.
pub(crate) fn first_outside(dtype: DType, bytes: &[u8], range: RangeInclusive<i128>) -> Option<(usize, i128)> {
    integers(dtype, bytes)?.enumerate().find(|(_, value)| !range.contains(value))
}

/// The first of the little-endian numbers of `dtype` that, times `scale` in f32, is not a probability, and its place.
pub(crate) fn first_improbable(dtype: DType, bytes: &[u8], scale: f32) -> Option<(usize, f64)> {
    f64s(dtype, bytes)?.enumerate().find(|(_, value)| !(0.0..=1.0).contains(&(*value as f32 * scale)))
}

/// How many numbers an array of `dims` holds, at most as many as fit 16 bytes each; `None` where a dim is not positive.
pub(super) fn n_elements(dims: &[i64]) -> Option<usize> {
    let count = dims.iter().try_fold(1usize, |count, &dim| count.checked_mul(usize::try_from(dim).ok()?))?;
    (count > 0 && count <= isize::MAX as usize / 16).then_some(count)
}

/// Whether a feature has whole numbers.
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
                alignments: Vec::new(),
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
