//! Common parts of losses and metrics: labels, and names.

use super::choice::Choice;
use crate::document::{ReadError, Value};
use crate::graph::Tensor;
use crate::task::Feature;
use bf16scope_hlo::DType;

/// The kind of labels that a loss or metric needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Labels {
    /// A class for each row.
    Classes,
    /// A number from 0 to 1 for each output element.
    Probabilities,
    /// A number for each output element.
    Numbers,
    /// A whole number for each example: equal ones match.
    Identities,
}

/// A loss or metric, with its names in Keras, PyTorch and common use.
pub(super) struct NameElsewhere {
    pub theirs: &'static str,
    pub ours: &'static str,
}

/// The error of a name that is not in `names`; it suggests one if `elsewhere` knows the meaning.
pub(super) fn unknown_name(what: &str, names: &[&str], elsewhere: &[NameElsewhere], choice: &Choice<'_>) -> ReadError {
    let plain = |name: &str| name.chars().filter(|c| c.is_alphanumeric()).collect::<String>().to_lowercase();
    let ours = names.iter().map(|&name| (name, name));
    let theirs = elsewhere.iter().map(|name| (name.theirs, name.ours));
    let meaning = |wanted: &str| {
        let mut all = theirs.clone().chain(ours.clone());
        all.find(|(name, _)| plain(name) == plain(wanted)).map(|(_, ours)| ours)
    };
    // `{cls: accuracy}` or `{cls: [accuracy]}`, as Keras has it.
    let of_output = choice.main.and_then(|main| match &main.value {
        Value::List(list) => list.first()?.text().and_then(meaning),
        _ => main.text().and_then(meaning),
    });
    let meant = meaning(choice.name);
    if let (None, Some(ours)) = (meant, of_output) {
        let output = choice.name;
        let message = format!("unknown value `{output}`, expected one of {}", names.join(", "));
        let help = format!("a {what} of an output is an item of a list: `[{{{ours}: , output: {output}}}]`");
        return ReadError::new(message).or_at(choice.mark).with_help(help);
    }
    choice.unknown(names, meant, |name| {
        format!("a {what} is its name, or with options `{{{name}: , labels: NAME, output: NAME}}`")
    })
}

pub(super) fn default_labels() -> String {
    "labels".to_string()
}

/// Broadcasts a value per example to each of its rows in `x`.
pub(super) fn of_rows(each: &Tensor, x: &Tensor) -> Tensor {
    if x.rank() <= 1 || x.is_poison() { each.clone() } else { each.broadcast_in_dim(&x.dims(), &[0]) }
}

/// The label for an output of `[batch, dims…]`: its class along the last axis, or numbers of the same dims.
pub(super) fn label_of(name: &str, dims: &[i64], labels: Labels) -> Feature {
    let dims = dims.get(1..).unwrap_or_default();
    match (labels, dims) {
        (Labels::Classes, [leading @ .., n_classes]) => {
            Feature::exact(name, DType::S32, leading).below(*n_classes).label()
        }
        // The loss refuses it.
        (Labels::Classes, []) => Feature::exact(name, DType::S32, []).label(),
        (Labels::Probabilities, dims) => Feature::exact(name, DType::F32, dims).label().probability(),
        (Labels::Numbers, dims) => Feature::exact(name, DType::F32, dims).label(),
        (Labels::Identities, _) => Feature::exact(name, DType::S32, []).label(),
    }
}
