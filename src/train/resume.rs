//! Whether a run may go on from a checkpoint: what must be as it was, and what may have changed.
//!
//! What decides what is learnt, from what and in which order, must be as it was: the model, the precision, the batch, the
//! seed, the optimizer's kind, and the data. Else the run would be another one from here on, or test examples would have
//! been trained on. How it is learnt may change, as one lowers a learning rate that was too high, and so may how it is
//! computed, which changes at most the order of sums: the variables are the same under every
//! [`Tuning`]. Every such change is said, and of one of the tuning whether bits stay.

use super::checkpoint::{Checkpoint, DataIdentity, Settings};
use super::error::TrainError;
use super::session::Spec;
use crate::tuning::{CHOICES, Choice, Effect, Tuning};
use serde_json::{Map, Value, json};
use std::fmt;
use std::path::Path;

/// A setting that differs between a checkpoint and the run that goes on from it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// Its key, as in an experiment.
    pub key: String,
    /// What the checkpoint has.
    pub before: String,
    /// What this run has.
    pub now: String,
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Change { key, before, now } = self;
        write!(f, "{key} was {before}, is {now} now")?;
        let choice = key.strip_prefix("tune.").and_then(|key| Choice::of(key.split('.').next()?));
        match choice.map(|choice| choice.effect) {
            Some(Effect::Exact) => f.write_str(": the same bits"),
            Some(Effect::Reassociating) => f.write_str(": the same function, with other last bits from here on"),
            None => Ok(()),
        }
    }
}

/// What may change: keys, and beginnings of keys that end in a dot.
const MAY_CHANGE: &[&str] = &[
    // How it is learnt.
    "model.dropout",
    "train.label_smoothing",
    "train.learning_rate",
    "train.learning_rate.",
    "train.loss_scale",
    "train.optimizer.",
    "train.shift",
    "train.weight_decay.",
    // How it is computed.
    "model.format",
    "train.accumulate",
    "tune.",
];

/// The settings of a run, as an experiment has them: what a checkpoint keeps of them.
pub fn settings(spec: &Spec) -> Settings {
    Settings(as_json(spec))
}

fn as_json(spec: &Spec) -> Value {
    let json = |value: serde_json::Result<Value>| value.expect("settings are numbers, texts and lists");
    let objective = &spec.objective;
    json!({
        "model": json(serde_json::to_value(&spec.model)),
        "train": {
            "shift": spec.shift,
            "optimizer": kind_first(json(serde_json::to_value(objective.update.optimizer))),
            "learning_rate": kind_first(json(serde_json::to_value(&objective.update.learning_rate))),
            "weight_decay": json(serde_json::to_value(&objective.update.weight_decay)),
            "label_smoothing": objective.label_smoothing,
            "loss_scale": json(serde_json::to_value(objective.loss_scale)),
            "accumulate": objective.accumulate,
        },
        "tune": json(serde_json::to_value(&objective.tuning)),
    })
}

/// Settings as [`settings`] writes them, of a checkpoint from before there was `tune`, when its keys stood under the model
/// and the training, or from before some of its keys were renamed.
fn with_tune(settings: &Value) -> Value {
    let mut settings = settings.clone();
    if let Some(Value::Object(tune)) = settings.get_mut("tune") {
        for choice in &CHOICES {
            if let Some(value) = choice.was.and_then(|was| tune.remove(was)) {
                tune.insert(choice.key.to_string(), value);
            }
        }
        return settings;
    }
    let mut tune = serde_json::to_value(Tuning::none()).expect("a tuning has a JSON form");
    // Those were no choices: every program had them.
    (tune["cotangent_remat"], tune["pace"]) = (json!(true), json!(true));
    for block in ["model", "train"] {
        let Some(Value::Object(block)) = settings.get_mut(block) else { continue };
        for choice in &CHOICES {
            let key = if block.contains_key(choice.key) { choice.key } else { choice.was.unwrap_or(choice.key) };
            if let Some(value) = block.remove(key) {
                tune[choice.key] = value;
            }
        }
    }
    // All layers were what a number was missing for.
    if let Some(weights @ Value::Null) = tune.pointer_mut("/layer_remat/weights") {
        *weights = json!("all");
    }
    if let Value::Object(settings) = &mut settings {
        settings.insert("tune".to_string(), tune);
    }
    settings
}

/// serde's `{"sgd": {…}}` as experiments have it: `{"kind": "sgd", …}`.
fn kind_first(value: Value) -> Value {
    let Value::Object(object) = value else { return value };
    let mut kinds = object.into_iter();
    match (kinds.next(), kinds.next()) {
        (Some((kind, Value::Object(fields))), None) => {
            let mut all = Map::from_iter([("kind".to_string(), Value::String(kind))]);
            all.extend(fields);
            Value::Object(all)
        }
        (other, _) => Value::Object(Map::from_iter(other)),
    }
}

/// What has changed and may, for a run of `spec` that goes on from `checkpoint`, read from `path`.
///
/// # Errors
/// [`TrainError::Resume`] with whatever has changed and may not.
pub fn check_settings(path: &Path, checkpoint: &Checkpoint, spec: &Spec) -> Result<Vec<Change>, TrainError> {
    let position = &checkpoint.position;
    let of_position =
        json!({"batch": position.batch, "seed": position.seed, "precision": position.precision.to_string()});
    let of_spec = json!({"batch": spec.batch, "seed": spec.seed, "precision": spec.precision.to_string()});
    let mut changes = Vec::new();
    compare("", &of_position, &of_spec, &mut changes);
    compare("", &with_tune(&checkpoint.settings.0), &as_json(spec), &mut changes);
    let (allowed, refused): (Vec<Change>, Vec<Change>) = changes.into_iter().partition(may_change);
    match refused.is_empty() {
        true => Ok(allowed),
        false => Err(TrainError::Resume { path: path.to_path_buf(), changes: refused }),
    }
}

fn may_change(change: &Change) -> bool {
    MAY_CHANGE.iter().any(|key| change.key == *key || (key.ends_with('.') && change.key.starts_with(key)))
}

/// How the settings of the model differ from those of a checkpoint: what an evaluation should know.
pub fn model_changes(checkpoint: &Checkpoint, model: &crate::models::Model) -> Vec<Change> {
    let mut changes = Vec::new();
    let now = serde_json::to_value(model).expect("a model's configuration has a JSON form");
    let before = with_tune(&checkpoint.settings.0);
    compare("model", before.get("model").unwrap_or(&Value::Null), &now, &mut changes);
    // Those are about training, or about how the same is computed.
    changes.retain(|change| !may_change(change));
    changes
}

/// Whether data are those that a checkpoint was made with.
///
/// # Errors
/// [`TrainError::Resume`] with what differs.
pub fn check_data(path: &Path, before: &DataIdentity, now: &DataIdentity) -> Result<(), TrainError> {
    let changes = data_changes(before, now);
    match changes.is_empty() {
        true => Ok(()),
        false => Err(TrainError::Resume { path: path.to_path_buf(), changes }),
    }
}

/// How data differ.
pub fn data_changes(before: &DataIdentity, now: &DataIdentity) -> Vec<Change> {
    let mut changes = Vec::new();
    for (name, before, now) in [("training", &before.training, &now.training), ("test", &before.test, &now.test)] {
        // What is hashed differs where the number does: one line says it.
        let rows: [(&str, String, String); 3] = [
            ("examples", before.n_examples.to_string(), now.n_examples.to_string()),
            ("features", before.features.clone(), now.features.clone()),
            ("labels", before.labels.clone(), now.labels.clone()),
        ];
        let n_rows = if before.n_examples == now.n_examples { 3 } else { 1 };
        for (what, before, now) in rows.into_iter().take(n_rows).filter(|(_, before, now)| before != now) {
            // Of a hash, what is enough to compare.
            let start = |text: String| text.get(..12).map_or(text.clone(), |start| format!("{start}…"));
            changes.push(Change { key: format!("data.{name}.{what}"), before: start(before), now: start(now) });
        }
    }
    changes
}

/// Adds what differs, key by key. Of two kinds, the whole is what differs: their keys have nothing in common.
fn compare(key: &str, before: &Value, now: &Value, changes: &mut Vec<Change>) {
    match (before, now) {
        (Value::Object(left), Value::Object(right)) if left.get("kind") == right.get("kind") => {
            let names = left.keys().chain(right.keys().filter(|name| !left.contains_key(*name)));
            for name in names {
                let below = if key.is_empty() { name.clone() } else { format!("{key}.{name}") };
                let of = |object: &Map<String, Value>| object.get(name).cloned().unwrap_or(Value::Null);
                compare(&below, &of(left), &of(right), changes);
            }
        }
        _ if before == now => {}
        _ => changes.push(Change { key: key.to_string(), before: shown(before), now: shown(now) }),
    }
}

fn shown(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null => "not set".to_string(),
        other => other.to_string(),
    }
}
