//! Weight decay: as the gradient of an L2 loss term, or decoupled from the gradient.

use super::number;
use crate::graph::Tensor;
use serde::{Deserialize, Serialize};

/// `loss + value · Σ ½‖w‖²` over the variables that are not excepted: adds `value · w` to the gradient of `w`.
///
/// The loss that a program reports lacks this term.
///
/// *Decoupled*, `lr · value · w` is subtracted from `w` in addition to the optimizer's change: slots do not see it.
///
/// # Source
/// `resnet_main.py` of TensorFlow's TPU models: 1e-4 times the sum of `l2_loss` (half the squared norm) over trainable
/// variables whose name does not hold `batch_normalization`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WeightDecay {
    /// The factor; 0 is no decay.
    #[serde(deserialize_with = "number::not_negative")]
    pub value: f64,
    /// Variables whose names contain one of these do not decay.
    #[serde(default)]
    pub except: Vec<String>,
    /// Whether the decay bypasses the optimizer (Loshchilov & Hutter 2019). Default false.
    #[serde(default, skip_serializing_if = "is_false")]
    pub decoupled: bool,
}

/// The decay of all variables.
impl From<f64> for WeightDecay {
    fn from(value: f64) -> WeightDecay {
        WeightDecay { value, ..WeightDecay::default() }
    }
}

/// Omitted from checkpoints if false, as before the key existed.
fn is_false(value: &bool) -> bool {
    !value
}

impl WeightDecay {
    /// Whether the variable called `name` decays.
    pub fn applies_to(&self, name: &str) -> bool {
        self.value != 0.0 && !self.excepts(name)
    }

    /// Whether the variable called `name` is excepted.
    pub(super) fn excepts(&self, name: &str) -> bool {
        self.except.iter().any(|part| name.contains(part.as_str()))
    }

    /// A part that no variable's name contains: it is probably misspelt, and the variables that it should except would
    /// decay.
    pub(super) fn idle<'a, I: Iterator<Item = &'a str>>(&self, names: impl Fn() -> I) -> Option<&str> {
        let is_idle = |part: &&String| !names().any(|name| name.contains(part.as_str()));
        self.except.iter().find(is_idle).map(String::as_str)
    }

    /// The gradient plus the term's gradient, unless the decay is decoupled.
    #[track_caller]
    pub(super) fn emit(&self, name: &str, value: &Tensor, gradient: &Tensor) -> Tensor {
        if self.applies_to(name) && !self.decoupled { gradient + value * self.value } else { gradient.clone() }
    }

    /// The decoupled decay of the variable called `name`.
    pub(super) fn decoupled_of(&self, name: &str) -> Option<f64> {
        (self.decoupled && self.applies_to(name)).then_some(self.value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_excepted_by_their_parts() {
        let decay = WeightDecay { value: 1e-4, except: vec!["bn".to_string(), "bias".to_string()], decoupled: false };
        assert!(decay.applies_to("cnn/conv1/kernel"));
        assert!(!decay.applies_to("cnn/bn1/scale"));
        assert!(!decay.applies_to("cnn/dense/bias"));
        assert!(!WeightDecay::default().applies_to("cnn/conv1/kernel"));
    }

    #[test]
    fn a_part_that_no_name_holds_is_found() {
        let decay =
            WeightDecay { value: 1e-4, except: vec!["kernel".to_string(), "bais".to_string()], decoupled: false };
        let names = || ["dense/kernel", "dense/bias"].into_iter();
        assert_eq!(decay.idle(names), Some("bais"));
        assert_eq!(WeightDecay::default().idle(names), None);
    }

    /// Checkpoints without `decoupled` are recorded as they were before the key existed.
    #[test]
    fn a_decay_that_is_not_decoupled_is_recorded_without_the_key() {
        let recorded = |decoupled| {
            let decay = WeightDecay { value: 0.5, except: vec![], decoupled };
            serde_json::to_string(&decay).unwrap()
        };
        assert_eq!(recorded(false), r#"{"value":0.5,"except":[]}"#);
        assert_eq!(recorded(true), r#"{"value":0.5,"except":[],"decoupled":true}"#);
    }
}
