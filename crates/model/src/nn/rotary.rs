//! Rotary position embeddings (RoPE): queries and keys are rotated by their positions, so that their products depend on
//! distances.

use super::options::above_zero;
use crate::document;
use crate::graph::{Scope, Tensor};
use bf16scope_hlo::ops::{RuleError, SliceDim};
use bf16scope_hlo::{DType, Literal};
use serde::{Deserialize, Serialize};

/// Configuration of rotary positions.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Rope {
    /// The base of the frequencies, Hugging Face's `rope_theta`: feature `i` of the first half of a head of `size` features
    /// is rotated by `max_wavelength^(-2i / size)` radians for each position. Default 10,000.
    #[serde(deserialize_with = "above_zero")]
    pub max_wavelength: f64,
    /// The scaling of frequencies for longer sequences. Default none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scaling: Option<RopeScaling>,
}

impl Default for Rope {
    fn default() -> Rope {
        Rope { max_wavelength: 10_000.0, scaling: None }
    }
}

/// Llama 3.1's scaling, Hugging Face's `rope_scaling` with `rope_type: llama3`, by its names: rotations with periods
/// above `original_max_position_embeddings / low_freq_factor` are slowed `factor` times, those with periods below
/// `original_max_position_embeddings / high_freq_factor` are unchanged, and those in between are interpolated.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RopeScaling {
    /// The slow-down.
    #[serde(deserialize_with = "above_zero")]
    pub factor: f64,
    /// Rotations with fewer periods than this in the original positions are slowed in full.
    #[serde(deserialize_with = "above_zero")]
    pub low_freq_factor: f64,
    /// Rotations with more periods than this are unchanged.
    #[serde(deserialize_with = "above_zero")]
    pub high_freq_factor: f64,
    /// The longest sequence before the scaling.
    #[serde(deserialize_with = "document::positive")]
    pub original_max_position_embeddings: i64,
}

/// The largest head: the program has a constant for each pair of features, and networks have at most 256 features.
const MAX_HEAD: i64 = 1 << 16;

impl RopeScaling {
    /// Factor, low, high and positions, for formulas.
    fn numbers(&self) -> [f64; 4] {
        let RopeScaling { factor, low_freq_factor, high_freq_factor, original_max_position_embeddings } = *self;
        [factor, low_freq_factor, high_freq_factor, original_max_position_embeddings as f64]
    }
}

impl Rope {
    /// Radians per position, for each pair of features of a head.
    fn frequencies(&self, size: i64) -> Vec<f64> {
        let frequency = |pair: i64| {
            let plain = self.max_wavelength.powf(-2.0 * pair as f64 / size as f64);
            let Some(scaling) = self.scaling else { return plain };
            let [factor, low, high, original_length] = scaling.numbers();
            let periods = original_length * plain / std::f64::consts::TAU;
            let unscaled = ((periods - low) / (high - low)).clamp(0.0, 1.0);
            plain * (unscaled + (1.0 - unscaled) / factor)
        };
        (0..size / 2).map(frequency).collect()
    }

    /// Checks the size of heads, and the settings.
    pub(super) fn check(&self, size: i64) -> Result<(), RuleError> {
        let wrong = |message: String| Err(RuleError::new("attention/rotary", message));
        if size % 2 != 0 {
            return wrong(format!("a head has {size} features, expected an even number: they are rotated in pairs"));
        }
        if size > MAX_HEAD {
            return wrong(format!("a head has {size} features that are rotated, expected at most {MAX_HEAD}"));
        }
        if !(self.max_wavelength >= 1.0 && self.max_wavelength.is_finite()) {
            return wrong(format!("max_wavelength is {}, expected a number of at least 1", self.max_wavelength));
        }
        let Some(scaling) = self.scaling else { return Ok(()) };
        let [factor, low, high, original_length] = scaling.numbers();
        for (what, value) in [("factor", factor), ("low", low), ("original_length", original_length)] {
            if !(value > 0.0 && value.is_finite()) {
                return wrong(format!("{what} is {value}, expected a number above 0"));
            }
        }
        if !(high > low && high.is_finite()) {
            return wrong(format!("high is {high}, expected a number above low, which is {low}"));
        }
        Ok(())
    }
}

/// Rotates each head of x by its position, from 0: each pair of features `i` and `i + size / 2` is a vector in the
/// plane, rotated by `position · frequency_i`.
///
/// # Shapes
/// x `[batch, positions, heads, size]` → the same.
///
/// # Types
/// Frequencies are rounded to f32 once, angles are f32 products; bf16 and f16 data is widened, rotated in f32 and
/// rounded once.
///
/// # Source
/// Su et al. 2021 (RoFormer), with pairs across the halves of a head, as in GPT-NeoX and Hugging Face's Llama. (The
/// weights that Meta published pair neighbours.)
#[track_caller]
pub(super) fn rotated(s: &Scope, x: &Tensor, rope: &Rope) -> Tensor {
    let (dims, dtype) = (x.dims(), x.dtype());
    let wide = if dtype.bits() < 32 { DType::F32 } else { dtype };
    let (positions, size) = (dims[1], dims[3]);
    let half = size / 2;
    let frequencies = rope.frequencies(size);
    let frequencies = match wide {
        DType::F64 => Literal::from_elements([half], &frequencies),
        _ => Literal::from_elements([half], &frequencies.iter().map(|&value| value as f32).collect::<Vec<_>>()),
    };
    let each = [positions, half];
    let frequencies = s.graph().constant(frequencies).broadcast_in_dim(&each, &[1]);
    let angles = s.graph().iota(wide, &each, 0) * frequencies;
    let part = [dims[0], positions, dims[2], half];
    let of_head = |table: Tensor| table.broadcast_in_dim(&part, &[1, 3]);
    let (cos, sin) = (of_head(angles.cosine()), of_head(angles.sine()));
    let all = |limit| SliceDim { start: 0, limit, stride: 1 };
    let data = x.cast(wide);
    let [first, second] = [0, half].map(|start| {
        let features = SliceDim { start, limit: start + half, stride: 1 };
        data.slice(&[all(dims[0]), all(positions), all(dims[2]), features])
    });
    let rotated = [&first * &cos - &second * &sin, &second * &cos + &first * &sin];
    Tensor::concatenate(&[&rotated[0], &rotated[1]], 3).cast(dtype)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Recorded from `transformers` 5.24: `ROPE_INIT_FUNCTIONS["llama3"]` with `rope_theta` 500,000, heads of 16, factor 8,
    /// `low_freq_factor` 1, `high_freq_factor` 4 and 8,192 positions, in f32; each is a few f32 roundings from ours.
    #[test]
    fn frequencies_are_those_of_transformers() {
        let scaling = RopeScaling {
            factor: 8.0,
            low_freq_factor: 1.0,
            high_freq_factor: 4.0,
            original_max_position_embeddings: 8192,
        };
        let rope = Rope { max_wavelength: 500_000.0, scaling: Some(scaling) };
        let recorded = [
            1.0,
            0.193922758102417,
            0.03760603070259094,
            0.00729266507551074,
            0.0005248460220173001,
            3.428102354519069e-5,
            6.647869668086059e-6,
            1.289173155782919e-6,
        ];
        for (ours, theirs) in rope.frequencies(16).iter().zip(recorded) {
            assert!((ours - theirs).abs() <= theirs * 8.0 / (1 << 24) as f64, "{ours}, recorded {theirs}");
        }
        assert_eq!(Rope::default().frequencies(4), [1.0, 0.01]);
    }
}
