//! Layers that reduce or normalise axes of examples: `reduce`, `softmax`, `unit_norm`, and `dot` of two inputs.

use super::layer_options::{Arity, LayerOptions};
use crate::document::{self, Node, Value};
use crate::graph::{Scope, Tensor};
use crate::nn::options::is_default;
use crate::nn::{self, Reduction};
use bf16scope_hlo::ops::RuleError;
use serde::{Deserialize, Deserializer, Serialize};

/// One axis, or several.
pub(super) fn axes<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<i64>, D::Error> {
    let fits = |n: f64| n.fract() == 0.0 && n.abs() <= f64::from(u8::MAX);
    let axis = |node: &Node| document::number(node, fits, "an axis, or a list of axes").map(|n| n as i64);
    Node::read(deserializer, |node| match &node.value {
        Value::List(list) => list.iter().map(axis).collect(),
        _ => axis(node).map(|axis| vec![axis]),
    })
}

/// Options of `reduce`; see [`nn::reduce`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Reduce {
    /// The reduction: a sum, a mean, a maximum, …
    pub function: Reduction,
    /// The axes, counting the batch. Default: all but the batch.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "axes")]
    pub axis: Vec<i64>,
    /// Whether the axes are kept with size 1. Default false.
    #[serde(default, skip_serializing_if = "is_default")]
    pub keepdims: bool,
}

impl LayerOptions for Reduce {
    fn build(&self, s: &Scope, name: &str, inputs: &[&Tensor]) -> Tensor {
        s.layer(name, |_| nn::reduce(inputs[0], self.function, &self.axis, self.keepdims))
    }
}

/// Options of `softmax` over given axes; see [`nn::softmax`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Softmax {
    /// The axes, counting the batch. Default -1, the last.
    #[serde(default = "last", deserialize_with = "axes")]
    pub axis: Vec<i64>,
}

fn last() -> Vec<i64> {
    vec![-1]
}

impl Softmax {
    /// Whether it is over the last axis alone.
    pub(super) fn is_over_last(&self) -> bool {
        self.axis == [-1]
    }
}

impl LayerOptions for Softmax {
    fn build(&self, s: &Scope, name: &str, inputs: &[&Tensor]) -> Tensor {
        let x = inputs[0];
        s.layer(name, |s| {
            if x.is_poison() {
                return x.clone();
            }
            let mut axes = x.axes(&self.axis);
            axes.sort_unstable();
            let is_twice = axes.windows(2).any(|pair| pair[0] == pair[1]);
            if axes.is_empty() || is_twice || axes.iter().any(|axis| !(1..x.rank() as i64).contains(axis)) {
                let message =
                    format!("axes are {:?}, expected axes of {} after the batch, each once", self.axis, x.shape());
                return s.graph().fail("softmax", &[x], RuleError::new("softmax/axes", message));
            }
            if let [axis] = axes[..] {
                return nn::softmax(x, axis);
            }
            // Joins the axes as the last one, and restores them afterwards.
            let dims = x.dims();
            let rest: Vec<i64> = (0..x.rank() as i64).filter(|axis| !axes.contains(axis)).collect();
            let order = [&rest[..], &axes[..]].concat();
            let moved = x.transpose(&order);
            let n: i64 = axes.iter().map(|&axis| dims[axis as usize]).product();
            let joined: Vec<i64> = rest.iter().map(|&axis| dims[axis as usize]).chain([n]).collect();
            let y = nn::softmax(&moved.reshape(joined), -1).reshape(moved.dims());
            let mut back = vec![0; order.len()];
            (0..).zip(&order).for_each(|(at, &axis)| back[axis as usize] = at);
            y.transpose(&back)
        })
    }
}

/// Options of `unit_norm`; see [`nn::unit`].
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UnitNorm {
    /// The axis, counting the batch. Default -1, the last.
    #[serde(default = "minus_one")]
    pub axis: i64,
}

fn minus_one() -> i64 {
    -1
}

impl LayerOptions for UnitNorm {
    fn build(&self, s: &Scope, name: &str, inputs: &[&Tensor]) -> Tensor {
        s.layer(name, |_| nn::unit(inputs[0], self.axis))
    }
}

/// Options of `dot` and `cosine`; see [`nn::dot_along`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Dot {
    /// One axis for both inputs, or one for each, counting the batch. Default -1, the last.
    #[serde(default = "last", deserialize_with = "axes")]
    pub axes: Vec<i64>,
    /// Whether vectors are normalised first. Default false.
    #[serde(default, skip_serializing_if = "is_default")]
    pub normalize: bool,
}

/// Options of `cosine`: [`Dot`] that normalises.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cosine {
    /// As in `dot`.
    #[serde(default = "last", deserialize_with = "axes")]
    pub axes: Vec<i64>,
}

fn dot(s: &Scope, name: &str, inputs: &[&Tensor], axes: &[i64], normalize: bool) -> Tensor {
    s.layer(name, |s| match (inputs, axes) {
        ([x, y], [axis]) => nn::dot_along(x, y, [*axis; 2], normalize),
        ([x, y], [of_x, of_y]) => nn::dot_along(x, y, [*of_x, *of_y], normalize),
        _ => {
            let message = format!(
                "it reads {} and has {} axes, expected two, and one axis or one of each",
                inputs.len(),
                axes.len()
            );
            s.graph().fail("dot", inputs, RuleError::new("dot/inputs", message))
        }
    })
}

impl LayerOptions for Dot {
    const ARITY: Arity = Arity::Several;

    fn build(&self, s: &Scope, name: &str, inputs: &[&Tensor]) -> Tensor {
        dot(s, name, inputs, &self.axes, self.normalize)
    }
}

impl LayerOptions for Cosine {
    const ARITY: Arity = Arity::Several;

    fn build(&self, s: &Scope, name: &str, inputs: &[&Tensor]) -> Tensor {
        dot(s, name, inputs, &self.axes, true)
    }
}
