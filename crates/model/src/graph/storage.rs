//! The storage of variables: the one decision that [`Scope`](super::Scope) makes for every trainable variable.
//!
//! A layer requests a variable in the dtype that it computes in, and gets a value of that dtype. This module decides
//! what is kept between steps; [`Update`](crate::optim::Update) computes a new value in f32 and stores it accordingly.

use super::Precision;
use bf16scope_hlo::DType;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// The storage of trainable variables. As text: `f32`, `bf16_stochastic`, `bf16_compensated`, `bf16_nearest`.
///
/// The three bf16 storages have no f32 master copy: a network in a bf16 scope reads the variable without a cast, one in
/// f32 its exact f32 value, and every update is computed in f32 from the stored value. They differ in how they treat
/// the new value's lower 16 bits. Variables that a layer requests in f64, or in f16 outside a scope, and those that no
/// optimizer updates, are stored as usual.
///
/// `docs/BF16_WEIGHTS.md` says when to use which.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Storage {
    /// f32, whatever the network computes in. 4 bytes.
    #[default]
    F32,
    /// bf16, rounded up or down at random, with probabilities that make the mean exact: an update smaller than an ulp
    /// happens now and then instead of never. 2 bytes.
    Bf16Stochastic,
    /// bf16, with the remainder in a second bf16, the slot `<variable>/low`: 16 significant bits or more. 4 bytes, of
    /// which the network reads 2.
    Bf16Compensated,
    /// bf16, rounded to nearest even: **loses updates smaller than half an ulp**, 2^-9 to 2^-8 of the variable. 2 bytes. For
    /// comparisons.
    Bf16Nearest,
}

/// A text that is not a storage.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("variables cannot be stored as `{given}`, expected one of {}{suggestion}", names())]
pub struct UnknownStorage {
    /// The text.
    pub given: String,
    suggestion: &'static str,
}

impl Storage {
    /// Every storage.
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

    /// The dtype of a trainable variable that would otherwise be stored in `dtype`.
    pub fn dtype_for(self, dtype: DType) -> DType {
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

/// The precision of a network, and the storage of its variables. A [`Precision`] alone stores them in f32.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Numbers {
    /// The precision of the network.
    pub precision: Precision,
    /// The storage of its variables.
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
