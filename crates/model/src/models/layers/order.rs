//! Layers along an axis: `cumsum`, `sort`, `top_k`.

use super::layer_options::LayerOptions;
use crate::document;
use crate::graph::{Scope, Tensor};
use crate::nn;
use crate::nn::options::is_default;
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

impl LayerOptions for Sort {
    fn build(&self, s: &Scope, name: &str, inputs: &[&Tensor]) -> Tensor {
        s.layer(name, |_| nn::sort(inputs[0], self.axis, self.direction == SortDirection::Descending))
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
