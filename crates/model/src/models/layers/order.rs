//! Layers along an axis: `cumsum`, `sort`, `top_k`, `arg_max`, `arg_min`, `viterbi`.

use super::layer_options::{Arity, LayerOptions};
use crate::document;
use crate::graph::{Scope, Tensor};
use crate::nn;
use crate::nn::options::is_default;
use bf16scope_hlo::ops::RuleError;
use serde::{Deserialize, Serialize};

/// Options of `cumsum`; see [`nn::cumsum`].
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cumsum {
    /// The axis, counting the batch. Default -1, the last.
    #[serde(default = "last")]
    pub axis: i64,
    /// Whether the sums are of all elements from each on, to the last. Default false.
    #[serde(default, skip_serializing_if = "is_default")]
    pub reverse: bool,
}

fn last() -> i64 {
    -1
}

impl LayerOptions for Cumsum {
    fn build(&self, s: &Scope, name: &str, inputs: &[&Tensor]) -> Tensor {
        s.layer(name, |_| nn::cumsum(inputs[0], self.axis, self.reverse))
    }
}

/// Which element is the first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SortDirection {
    /// The smallest.
    #[default]
    Ascending,
    /// The largest.
    Descending,
}

/// Options of `sort`; see [`nn::sort`].
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sort {
    /// The axis, counting the batch. Default -1, the last.
    #[serde(default = "last")]
    pub axis: i64,
    /// Which element is the first. Default `ascending`.
    #[serde(default, skip_serializing_if = "is_default")]
    pub direction: SortDirection,
}

impl Sort {
    /// The places of the sorted elements.
    pub(super) fn indices(&self, x: &Tensor) -> Tensor {
        nn::arg_sort(x, self.axis, self.direction == SortDirection::Descending)
    }
}

impl LayerOptions for Sort {
    fn build(&self, s: &Scope, name: &str, inputs: &[&Tensor]) -> Tensor {
        s.layer(name, |_| nn::sort(inputs[0], self.axis, self.direction == SortDirection::Descending))
    }
}

macro_rules! places {
    ($($(#[$doc:meta])* $Layer:ident, |$x:ident| $ordered:expr;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
        #[serde(deny_unknown_fields)]
        pub struct $Layer {
            /// The axis, counting the batch. Default -1, the last.
            #[serde(default = "last")]
            pub axis: i64,
        }

        impl LayerOptions for $Layer {
            fn build(&self, s: &Scope, name: &str, inputs: &[&Tensor]) -> Tensor {
                s.layer(name, |_| nn::with_last("arg_max", inputs[0], self.axis, |$x| nn::arg_max(&$ordered)))
            }
        }
    )*};
}

places! {
    /// Options of `arg_max`, the place of the largest element; see [`nn::arg_max`].
    ArgMax, |x| x.clone();
    /// Options of `arg_min`, the place of the smallest element; see [`nn::arg_max`] of the negative.
    ArgMin, |x| x.negate();
}

/// `viterbi` has no options: `{viterbi: [scores, transitions]}`, and whole numbers, the length of each example, as a third;
/// see [`nn::viterbi`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Viterbi {}

impl LayerOptions for Viterbi {
    const ARITY: Arity = Arity::Several;

    fn build(&self, s: &Scope, name: &str, inputs: &[&Tensor]) -> Tensor {
        s.layer(name, |s| match inputs {
            [scores, transitions] => nn::viterbi(scores, transitions, None),
            [scores, transitions, lengths] => nn::viterbi(scores, transitions, Some(lengths)),
            _ => {
                let message = format!("it reads {}, expected scores, transitions and maybe lengths", inputs.len());
                s.graph().fail("viterbi", inputs, RuleError::new("viterbi/inputs", message))
            }
        })
    }
}

/// Options of the layer `top_k`; see [`nn::top_k`].
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TopKOfLayer {
    /// How many elements.
    #[serde(deserialize_with = "document::positive")]
    pub k: i64,
}

impl LayerOptions for TopKOfLayer {
    fn build(&self, s: &Scope, name: &str, inputs: &[&Tensor]) -> Tensor {
        s.layer(name, |_| nn::top_k(inputs[0], self.k))
    }
}
