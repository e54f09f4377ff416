//! Precisions: the dtype in which a network computes.
//!
//! Variables, logits, loss and update are f32 in all three; see [`Scope`](super::Scope) for the rule.

use bf16scope_hlo::DType;
use std::fmt;
use std::str::FromStr;

/// The dtype in which a network computes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Precision {
    /// f32 throughout.
    F32,
    /// bf16 inside the scope.
    #[default]
    Bf16,
    /// f16 inside the scope.
    F16,
}

/// A text that is not a precision.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown precision `{given}`, expected {}{suggestion}", names())]
pub struct UnknownPrecision {
    /// The text.
    pub given: String,
    suggestion: &'static str,
}

impl Precision {
    /// Every precision.
    pub const ALL: [Precision; 3] = [Precision::F32, Precision::Bf16, Precision::F16];

    /// The dtype the network computes in.
    pub fn compute(self) -> DType {
        match self {
            Precision::F32 => DType::F32,
            Precision::Bf16 => DType::BF16,
            Precision::F16 => DType::F16,
        }
    }

    /// `f32`, `bf16` or `f16`.
    pub fn name(self) -> &'static str {
        match self {
            Precision::F32 => "f32",
            Precision::Bf16 => "bf16",
            Precision::F16 => "f16",
        }
    }
}

/// `f32, bf16, f16`.
fn names() -> String {
    Precision::ALL.map(Precision::name).join(", ")
}

impl From<Precision> for DType {
    fn from(precision: Precision) -> DType {
        precision.compute()
    }
}

impl fmt::Display for Precision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Precision {
    type Err = UnknownPrecision;

    fn from_str(text: &str) -> Result<Precision, UnknownPrecision> {
        Precision::ALL.into_iter().find(|precision| precision.name() == text).ok_or_else(|| UnknownPrecision {
            given: text.to_string(),
            suggestion: match text.to_ascii_lowercase().as_str() {
                "bfloat16" | "bf16" => ": did you mean `bf16`?",
                "float16" | "half" | "fp16" | "f16" => ": did you mean `f16`?",
                "float32" | "float" | "fp32" | "f32" => ": did you mean `f32`?",
                _ => "",
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_form_round_trips() {
        for precision in Precision::ALL {
            assert_eq!(precision.to_string().parse(), Ok(precision));
            assert_eq!(serde_yaml::from_str::<Precision>(precision.name()).unwrap(), precision);
        }
    }

    #[test]
    fn unknown_precision_lists_the_known_ones() {
        let error = |text: &str| text.parse::<Precision>().unwrap_err().to_string();
        assert_eq!(error("int8"), "unknown precision `int8`, expected f32, bf16, f16");
        assert_eq!(error("bfloat16"), "unknown precision `bfloat16`, expected f32, bf16, f16: did you mean `bf16`?");
    }
}
