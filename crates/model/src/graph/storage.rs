//! What variables are stored in: the one decision that [`Scope`](super::Scope) makes for every variable that trains.
//!
//! A layer asks for a variable in the dtype that it computes in, and gets a value of that dtype. What is kept between
//! steps is decided here, and how a new value gets into it by [`Update`](crate::optim::Update), which computes it in f32.

use super::Precision;
use bf16scope_hlo::DType;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// What variables that train are stored in. As text: `f32`, `bf16_stochastic`, `bf16_compensated`, `bf16_nearest`.
///
/// In the three that are bf16 there is no f32 master copy: a network in a bf16 scope reads the variable without a cast,
/// one in f32 its exact f32 value, and every update is computed in f32 from what is stored. They differ in what becomes
/// of the new value's lower 16 bits. Variables that a layer asks for in f64, or in f16 outside a scope, and those that
/// no optimizer updates, are stored as they would be otherwise.
///
/// `docs/BF16_WEIGHTS.md` says when to use which.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Storage {
    /// f32, whatever the network computes in. 4 bytes.
    #[default]
    F32,
    /// bf16, rounded up or down at random, to either with the probability that makes the mean right: an update smaller
    /// than an ulp is made once in a while instead of never. 2 bytes.
    Bf16Stochastic,
    /// bf16, with what it lacks in a second bf16, the slot `<variable>/low`: 16 significant bits or more. 4 bytes, of which
    /// the network reads 2.
    Bf16Compensated,
    /// bf16, rounded to nearest even: **loses updates smaller than half an ulp**, 2^-9 to 2^-8 of the variable. 2 bytes. For
    /// comparisons.
    Bf16Nearest,
}

/// A way to store variables that is none.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("variables cannot be stored as `{given}`, expected one of {}{suggestion}", names())]
pub struct UnknownStorage {
    /// What was given.
    pub given: String,
    suggestion: &'static str,
}

impl Storage {
    /// Every way.
    pub const ALL: [Storage; 4] =
        [Storage::F32, Storage::Bf16Stochastic, Storage::Bf16Compensated, Storage::Bf16Nearest];

    /// As text.
    pub fn name(self) -> &'static str {
        match self {
            Storage::F32 => "f32",
            Storage::Bf16Stochastic => "bf16_stochastic",
            Storage::Bf16Compensated => "bf16_compensated",
            Storage::Bf16Nearest => "bf16_nearest",
        }
    }

    /// The dtype of a variable that trains and that would be stored in `dtype`.
    pub fn of(self, dtype: DType) -> DType {
        match (self, dtype) {
            (Storage::Bf16Stochastic | Storage::Bf16Compensated | Storage::Bf16Nearest, DType::F32) => DType::BF16,
            (_, other) => other,
        }
    }
}

fn names() -> String {
    Storage::ALL.map(Storage::name).join(", ")
}

impl fmt::Display for Storage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Storage {
    type Err = UnknownStorage;

    fn from_str(text: &str) -> Result<Storage, UnknownStorage> {
        Storage::ALL.into_iter().find(|storage| storage.name() == text).ok_or_else(|| UnknownStorage {
            given: text.to_string(),
            suggestion: match text {
                "bf16" | "bfloat16" => {
                    ": did you mean `bf16_stochastic`? Rounded to nearest, `bf16_nearest`, small updates are lost"
                }
                _ => "",
            },
        })
    }
}

/// What a network computes in, and what its variables are stored in. A [`Precision`] alone stores them in f32.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Numbers {
    /// What the network computes in.
    pub precision: Precision,
    /// What variables are stored in.
    pub variables: Storage,
}

impl From<Precision> for Numbers {
    fn from(precision: Precision) -> Numbers {
        Numbers { precision, variables: Storage::F32 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_form_round_trips() {
        for storage in Storage::ALL {
            assert_eq!(storage.to_string().parse(), Ok(storage));
            assert_eq!(serde_yaml::from_str::<Storage>(storage.name()).unwrap(), storage);
        }
    }

    #[test]
    fn plain_bf16_is_no_choice_by_accident() {
        assert_eq!(
            "bf16".parse::<Storage>().unwrap_err().to_string(),
            "variables cannot be stored as `bf16`, expected one of f32, bf16_stochastic, bf16_compensated, bf16_nearest: \
             did you mean `bf16_stochastic`? Rounded to nearest, `bf16_nearest`, small updates are lost"
        );
    }
}
