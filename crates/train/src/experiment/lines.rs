//! Adds the line of the experiment that an error is about.

use super::Experiment;
use crate::weight_names::WeightNameError;
use crate::{ProgramError, TrainError, TrainPlace};
use bf16scope_data::{DataError, DataErrorKind, DataPlace};
use bf16scope_model::document::{Document, Mark, NodeError, Origin, ReadError, Step, Value};
use bf16scope_passes::PassErrorKind;
use std::error::Error;

/// The error with the line of its key. An error without a key, or about a key that is not in the file (a flag may set
/// it), is returned unchanged.
pub(super) fn with_its_line(experiment: &Experiment, error: TrainError) -> TrainError {
    let Some(document) = experiment.origin.document() else { return error };
    if let Some((mark, help)) = range(experiment, &error) {
        let message = match error.cause::<DataError>() {
            Some(error) => error.stopped().unwrap_or_else(|| error.to_string()),
            None => chain(&error),
        };
        return document.read_error(ReadError::new(message).or_at(mark).with_help(help)).into();
    }
    match way_to(experiment, &error) {
        Some(way) => with_line(&experiment.origin, way, error),
        None => error,
    }
}

/// The error with the line that `way` leads to in the document, if the key is there.
pub(super) fn with_line(origin: &Origin, way: Vec<Step>, error: TrainError) -> TrainError {
    match origin.document() {
        Some(document) if document.root().place_of(&way).is_some() => at_its_line(document, way, &error),
        _ => error,
    }
}

fn at_its_line(document: &Document, way: Vec<Step>, error: &TrainError) -> TrainError {
    let whole = chain(error);
    let (message, help) = match (error.cause(), whole.split_once("\nhelp: ")) {
        // The place in our own source is of no use to the user.
        (Some(ProgramError::Build(error)), _) => (error.0.error.message.as_str(), error.0.error.help.as_deref()),
        (Some(ProgramError::Pass(pass)), Some((message, _))) if *pass.kind() == PassErrorKind::NoRules => (
            message,
            Some("say what is, by the pattern of a name and an axis: `split: {'*/query/kernel': 1}` beside `model`"),
        ),
        (_, Some((message, help))) => (message, Some(help)),
        (_, None) => (whole.as_str(), None),
    };
    document.error(NodeError { help: help.map(str::to_string), ..NodeError::new(way, message) }).into()
}

/// The messages of an error and its causes.
fn chain(error: &TrainError) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let further = format!(": {error}");
        // A transparent error repeats its source.
        if !text.contains(&error.to_string()) {
            text += &further;
        }
        cause = error.source();
    }
    text
}

/// The place in the model that gives the number of classes or table rows which a value exceeds, and advice.
fn range(experiment: &Experiment, error: &TrainError) -> Option<(Mark, String)> {
    let error = error.cause::<DataError>()?;
    // Examples on disk may be skipped.
    let is_on_disk = error.stopped().is_some();
    let DataErrorKind::Value { feature: name, value } = error.kind() else { return None };
    let value: i128 = value.parse().ok()?;
    let feature = experiment.task().features().into_iter().find(|feature| feature.name == *name)?;
    feature.n_values?;
    let mark = experiment.model.place_of_range(&feature, &experiment.origin.at("model"))?;
    let help = match u64::try_from(value) {
        Ok(value) if is_on_disk => format!(
            "write {} or more here, or leave such examples out: `on_error: {{skip: N}}` under `data`; where the data count from 1, \
             `offset: -1` of `{name}` counts from 0",
            value.saturating_add(1)
        ),
        Err(_) if is_on_disk => format!(
            "`{name}` is counted from 0: see `offset` of the feature, or leave such examples out: `on_error: {{skip: N}}` under \
             `data`"
        ),
        Ok(value) => format!(
            "write {} or more here, or leave such examples out; where the data count from 1, subtract 1 from `{name}` in the file",
            value.saturating_add(1)
        ),
        Err(_) => format!("`{name}` is counted from 0"),
    };
    Some((mark, help))
}

fn key(name: &str) -> Step {
    Step::Key(name.to_string())
}

/// The path of keys to the cause of an error.
fn way_to(experiment: &Experiment, error: &TrainError) -> Option<Vec<Step>> {
    if let TrainPlace::Keys(ways) = error.place() {
        let root = experiment.origin.document().map(Document::root);
        let mut ways = ways.iter().map(|way| way.iter().map(|name| key(name)).collect::<Vec<Step>>());
        return ways.find(|way| root.is_some_and(|root| root.place_of(way).is_some()));
    }
    if let Some(error) = error.cause::<WeightNameError>() {
        return way_to_weights(experiment, error);
    }
    if let Some(error) = error.cause::<ProgramError>() {
        return way_of_program(experiment, error);
    }
    match error.cause::<DataError>()?.place() {
        DataPlace::Argument("shift") => Some(vec![key("train"), key("shift")]),
        DataPlace::Argument("n_test") => Some(vec![key("data"), key("n_test")]),
        _ => None,
    }
}

fn way_to_weights(experiment: &Experiment, error: &WeightNameError) -> Option<Vec<Step>> {
    match error {
        WeightNameError::Idle { pattern, .. } => {
            way_to_pattern(experiment, vec![key("train"), key("except")], |text| text == pattern)
        }
        // A flag may name another file, which is not in the experiment.
        WeightNameError::Weights(error) => {
            let file = experiment.train.initialize_from.as_ref()?;
            error.path().ends_with(file).then(|| vec![key("train"), key("initialize_from")])
        }
        _ => None,
    }
}

/// The path of keys to what prevents a program.
fn way_of_program(experiment: &Experiment, error: &ProgramError) -> Option<Vec<Step>> {
    match error {
        ProgramError::Trainable { pattern, .. } => {
            way_to_pattern(experiment, vec![key("train"), key("trainable")], |text| text == pattern)
        }
        ProgramError::Accumulate { .. } => Some(vec![key("train"), key("accumulate")]),
        ProgramError::Replicas { .. } => Some(vec![key("mesh"), key("data")]),
        ProgramError::Pass(error) => match error.kind() {
            PassErrorKind::NoRules => Some(vec![key("mesh"), key("model")]),
            PassErrorKind::NoMatch(pattern) => Some(vec![key("mesh"), key("split"), Step::KeyItself(pattern.clone())]),
            PassErrorKind::Split => Some(vec![key("mesh"), key("split")]),
            _ => None,
        },
        ProgramError::NoModelAxis => Some(vec![key("mesh"), key("split")]),
        ProgramError::ShardedParts => Some(vec![key("mesh"), key("state")]),
        ProgramError::TransposedParts => Some(vec![key("tune"), key("transpose_input")]),
        ProgramError::Statistics { .. } => Some(vec![key("mesh"), key("batch_norm"), key("across")]),
        ProgramError::Build(error) => {
            let message = &error.0.error.message;
            match error.0.error.rule {
                "optimizer/except" => {
                    let parts = &experiment.train.weight_decay.except;
                    let at = parts.iter().position(|part| message.contains(&format!("`{part}`")))?;
                    Some(vec![key("train"), key("weight_decay"), key("except"), Step::Index(at)])
                }
                "optimizer/pattern" => (0..experiment.train.optimizers.len()).find_map(|number| {
                    let way = vec![key("train"), key("optimizers"), Step::Index(number), key("variables")];
                    way_to_pattern(experiment, way, |text| message.contains(&format!("the pattern `{text}`,")))
                }),
                "optimizer/rate" => Some(vec![key("train"), key("learning_rate")]),
                _ => None,
            }
        }
        _ => None,
    }
}

/// The path to the pattern that is meant, where `way` leads to one, or to a list of them.
fn way_to_pattern(experiment: &Experiment, way: Vec<Step>, is_it: impl Fn(&str) -> bool) -> Option<Vec<Step>> {
    let root = experiment.origin.document()?.root();
    let node = way.iter().try_fold(root, |node, step| node.after(step))?;
    match &node.value {
        Value::List(list) => {
            let at = list.iter().position(|node| node.text().is_some_and(&is_it))?;
            Some([way, vec![Step::Index(at)]].concat())
        }
        _ => node.text().is_some_and(&is_it).then_some(way),
    }
}
