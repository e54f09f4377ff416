//! Labels that are a constant: `labels: 1`, `labels: ones`.

use super::Config;
use super::objective::{Labels, label_of};
use crate::document::Node;
use crate::graph::Tensor;
use bf16scope_hlo::DType;
use serde::{Deserialize, Deserializer};

/// A name, or a number instead.
pub(super) fn labels<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    Node::read(deserializer, |node| match f64::deserialize(node) {
        Ok(number) if number.is_finite() => Ok(number.to_string()),
        _ => String::deserialize(node),
    })
}

/// The constant that `labels` stands for; `None` if it is the name of an input or a described label.
pub(super) fn constant(config: &Config, labels: &str) -> Option<f64> {
    if config.inputs.iter().chain(&config.labels).any(|input| input.name == labels) {
        return None;
    }
    match labels {
        "ones" => Some(1.0),
        "zeros" => Some(0.0),
        number => number.parse().ok().filter(|number: &f64| number.is_finite()),
    }
}

/// A label with this constant everywhere, for an output.
///
/// # Errors
/// A constant that is invalid for such labels.
pub(super) fn constant_labels(output: &Tensor, number: f64, labels: Labels) -> Result<Tensor, String> {
    let dims = output.dims();
    let feature = label_of("", &dims, labels);
    let dtype = feature.dtype_in(DType::F32);
    let is_class = |n: i64| number.fract() == 0.0 && (0.0..n as f64).contains(&number);
    let expected = match (labels, feature.n_values) {
        (Labels::Identities, _) => Some("a label: it says which examples belong together".to_string()),
        (Labels::Classes, Some(n)) if !is_class(n) => Some(format!("a class, a whole number below {n}")),
        (Labels::Probabilities, _) if !(0.0..=1.0).contains(&number) => Some("a number from 0 to 1".to_string()),
        _ => None,
    };
    match expected {
        Some(expected) => Err(format!("the label of every example is {number}, expected {expected}")),
        None => {
            let batch = dims.first().copied().into_iter();
            let dims: Vec<i64> = batch.chain(feature.dims.iter().copied()).collect();
            Ok(output.graph().full(dtype, &dims, number))
        }
    }
}
