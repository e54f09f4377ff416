//! Checks whether a run may resume from a checkpoint: which settings must be equal, and which may change.
//!
//! Settings that decide what is learnt, from which data and in which order, must be equal: the task, the precision, the
//! batch, the seed, the optimizer's kind, and the data. Otherwise the run would become another one, or test examples
//! would have been trained on. Settings of how it is learnt may change, such as a learning rate that was too high. So
//! may settings of how it is computed, which change at most the order of sums: the variables are the same under every
//! [`Tuning`]. The storage of variables and slots may change too: they are converted. Every change is reported: for the
//! tuning, whether the bits stay the same; for the storage, how the numbers are converted.
//!
//! A task describes itself by its [`Identity`]. A change that the identity does not show, such as another closure,
//! shows in a hash of its prediction module.

use super::change::{Change, NOT_SET};
use super::checkpoint::{Checkpoint, DataIdentity, FunctionHash, Settings};
use super::error::{TrainError, TrainErrorKind};
use super::program;
use super::spec::Spec;
use super::steps_per_call::StepsPerCall;
use bf16scope_data::{DRAW_VERSION, DrawVersion, ORDER_VERSION};
use bf16scope_hlo::text::{PrintOptions, print};
use bf16scope_hlo::{Metadata, Module};
use bf16scope_model::document;
use bf16scope_model::graph::Precision;
use bf16scope_model::task::{Identity, Task};
use bf16scope_passes::partition::Rule;
use bf16scope_passes::tuning::Tuning;
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::path::Path;

/// Settings that may change beside those that the task allows: keys, and prefixes of keys that end in a dot.
const MAY_CHANGE: &[&str] = &[
    // How it is learnt, and the averages.
    "train.average",
    "train.average.",
    "train.clip",
    "train.clip.",
    "train.learning_rate",
    "train.learning_rate.",
    "train.learning_rate_floor",
    "train.loss_scale",
    "train.optimizer.",
    "train.shift",
    "train.trainable",
    "train.trainable[",
    "train.slots",
    "train.variables",
    "train.warm_up",
    "train.warm_up.",
    "train.weight_decay.",
    // How it is computed.
    "mesh",
    "mesh.",
    "train.accumulate",
    "tune.",
];

/// The settings of a run by the keys of an experiment, as a checkpoint stores them.
pub fn settings(spec: &Spec) -> Settings {
    Settings(as_json(spec))
}

fn as_json(spec: &Spec) -> Value {
    let mut settings = whatever_the_calls(spec);
    // Unrolled steps have the bits of single ones, so they are no setting.
    if let StepsPerCall::While(_) = spec.steps_per_call {
        settings["train"]["steps_per_call"] = json!(spec.steps_per_call.to_string());
    }
    settings
}

/// The settings of a task, as a checkpoint stores them.
fn settings_of(identity: &Identity) -> Value {
    serde_json::to_value(identity).expect("settings are numbers, texts and lists")["settings"].take()
}

fn whatever_the_calls(spec: &Spec) -> Value {
    let json = |value: serde_json::Result<Value>| value.expect("settings are numbers, texts and lists");
    let objective = &spec.objective;
    let mut settings = json!({
        "model": settings_of(&spec.task.identity()),
        "train": {
            "shift": spec.shift,
            "optimizer": kind_first(json(serde_json::to_value(objective.update.optimizer))),
            "learning_rate": kind_first(json(serde_json::to_value(&objective.update.learning_rate))),
            "weight_decay": json(serde_json::to_value(&objective.update.weight_decay)),
            "loss_scale": json(serde_json::to_value(objective.loss_scale)),
            "accumulate": objective.accumulate,
        },
        "tune": json(serde_json::to_value(&objective.tuning)),
    });
    // Absent if there is no clipping, as in checkpoints that are older than the key.
    if let Some(clip) = objective.update.clip {
        settings["train"]["clip"] = kind_first(json(serde_json::to_value(clip)));
    }
    if objective.mesh.n_devices() > 1 {
        settings["mesh"] = json(serde_json::to_value(objective.mesh));
    }
    for Rule { pattern, axis } in &objective.split {
        settings["mesh"]["split"][pattern] = json!(axis);
    }
    for (key, value) in [("variables", spec.variables.name()), ("slots", objective.update.slots.name())] {
        if value != DEFAULT_STORAGE {
            settings["train"][key] = json!(value);
        }
    }
    if let Some(warm_up) = objective.update.warm_up {
        settings["train"]["warm_up"] = json(serde_json::to_value(warm_up));
    }
    if objective.update.floor != 0.0 {
        settings["train"]["learning_rate_floor"] = json!(objective.update.floor);
    }
    if !objective.update.groups.is_empty() {
        settings["train"]["optimizers"] = json(serde_json::to_value(&objective.update.groups));
    }
    if !objective.trainable.is_empty() {
        settings["train"]["trainable"] = json!(objective.trainable);
    }
    if let Some(average) = objective.average {
        settings["train"]["average"] = json(serde_json::to_value(average));
    }
    settings
}

/// The key of the weights that a run was initialized from, if it was.
pub(super) const INITIALIZED: &str = "initialize_from";

/// The storage of variables and slots where the settings have none.
const DEFAULT_STORAGE: &str = "f32";

/// The storage of a run's variables and slots, from its settings.
fn storage_of(settings: &Value) -> [&str; 2] {
    ["variables", "slots"].map(|key| settings["train"][key].as_str().unwrap_or(DEFAULT_STORAGE))
}

/// Whether the storage in a checkpoint differs from that of a run of `spec`.
pub(super) fn stores_otherwise(checkpoint: &Checkpoint, spec: &Spec) -> bool {
    storage_of(&checkpoint.settings.0) != storage_of(&whatever_the_calls(spec))
}

/// Converts serde's `{"sgd": {…}}` to the form of experiments: `{"kind": "sgd", …}`.
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

/// The fingerprint of a task's function: a hash of its prediction module in f32, for one example, not tuned, without
/// names and source locations. `None` for a task without predictions.
pub fn function_of(task: &dyn Task) -> Option<FunctionHash> {
    let program = program::prediction(task, Precision::F32, 1, &Tuning::none()).ok()?;
    let text = print(&without_names(program.program.module), &PrintOptions::default());
    let sha256 = bf16scope_files::hex(Sha256::digest(text.as_bytes()));
    Some(FunctionHash { sha256, version: env!("CARGO_PKG_VERSION").to_string() })
}

/// The module with its instructions renamed to their numbers.
fn without_names(mut module: Module) -> Module {
    module.name = "function".to_string();
    for (number, computation) in module.computations.iter_mut().enumerate() {
        computation.name = format!("c{number}");
        for (at, instr) in computation.instructions.iter_mut().enumerate() {
            instr.name = format!("c{number}.{at}");
            instr.metadata = Metadata::default();
        }
    }
    module
}

/// How strictly a checkpoint must match the task that resumes from it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Resumption {
    /// Whether the task's settings or its function may differ, as long as the variables fit.
    pub other_function: bool,
}

impl Resumption {
    /// The allowed changes of a run of `spec` that resumes from `checkpoint`, read from `path`.
    ///
    /// # Errors
    /// A checkpoint of another run, with the changes that are not allowed.
    pub fn check(self, path: &Path, checkpoint: &Checkpoint, spec: &Spec) -> Result<Vec<Change>, TrainError> {
        let position = &checkpoint.position;
        let of_position = json!({
            "batch": position.batch, "seed": position.seed, "precision": position.precision.to_string(),
        });
        let of_spec = json!({"batch": spec.batch, "seed": spec.seed, "precision": spec.precision.to_string()});
        let mut changes = Vec::new();
        compare("", &of_position, &of_spec, &mut changes);
        // Between epochs any order is as good as another; within an epoch, examples would be repeated.
        if position.order != ORDER_VERSION && !position.step.is_multiple_of(position.steps_per_epoch) {
            changes.push(Change::new("data.order", position.order.to_string(), ORDER_VERSION.to_string()));
        }
        // Older draws continue as they began; draws of a later build are unknown here.
        if DrawVersion::from_number(position.draws).is_none() {
            changes.push(Change::new("data.draws", position.draws.to_string(), DRAW_VERSION.to_string()));
        }
        let (mut before, mut now) = (checkpoint.settings.0.clone(), as_json(spec));
        for settings in [&mut before, &mut now] {
            let [variables, slots] = storage_of(settings).map(|storage| json!(storage));
            settings.as_object_mut().map(|settings| settings.remove("model"));
            if let Some(train) = settings.get_mut("train").and_then(Value::as_object_mut) {
                train.insert("variables".to_string(), variables);
                train.insert("slots".to_string(), slots);
                // A resumed run is not initialized again.
                train.remove(INITIALIZED);
            }
        }
        compare("", &before, &now, &mut changes);
        let (mut allowed, refused): (Vec<Change>, Vec<Change>) = changes.into_iter().partition(may_change);
        if !refused.is_empty() {
            let (_, of_task) = self.task_changes(checkpoint, &*spec.task);
            let changes: Vec<Change> = refused.into_iter().chain(of_task).collect();
            return Err(other_run(path, &changes));
        }
        let (mut changes, refused) = self.task_changes(checkpoint, &*spec.task);
        if !refused.is_empty() {
            return Err(other_run(path, &refused));
        }
        changes.append(&mut allowed);
        Ok(changes)
    }

    /// The allowed changes of a task for an evaluation or a prediction with `checkpoint`, read from `path`.
    ///
    /// # Errors
    /// A checkpoint of another function, with the changes that are not allowed.
    pub fn check_task(self, path: &Path, checkpoint: &Checkpoint, task: &dyn Task) -> Result<Vec<Change>, TrainError> {
        let (allowed, refused) = self.task_changes(checkpoint, task);
        match refused.is_empty() {
            true => Ok(allowed),
            false => {
                let text = format!("the checkpoint is of another function:{}", lines(&refused));
                let help = "set `model` as it was, or give --other-function where its variables fit";
                Err(TrainError::of_file(TrainErrorKind::Checkpoint, path, text).with_help(help))
            }
        }
    }

    /// The task's allowed and refused changes.
    fn task_changes(self, checkpoint: &Checkpoint, task: &dyn Task) -> (Vec<Change>, Vec<Change>) {
        let identity = task.identity();
        let mut changes = Vec::new();
        let before = checkpoint.settings.0.get("model").unwrap_or(&Value::Null);
        compare("model", before, &settings_of(&identity), &mut changes);
        let is_changeable = |change: &Change| {
            let setting = change.key.strip_prefix("model.").and_then(|key| key.split(['.', '[']).next());
            setting.is_some_and(|setting| identity.may_change(setting))
        };
        let (mut allowed, mut refused): (Vec<Change>, Vec<Change>) = changes.into_iter().partition(is_changeable);
        // A changed setting already explains another function.
        let functions = checkpoint.function.as_ref().filter(|_| refused.is_empty()).zip(function_of(task));
        if let Some((before, now)) = functions.filter(|(before, now)| before.sha256 != now.sha256) {
            let short = |function: &FunctionHash| function.sha256.get(..12).unwrap_or_default().to_string();
            let change = Change::new("function", short(before), short(&now));
            // Another version may emit the same function differently.
            if before.version == now.version { &mut refused } else { &mut allowed }.push(change);
        }
        if self.other_function {
            allowed.append(&mut refused);
        }
        (allowed, refused)
    }
}

fn may_change(change: &Change) -> bool {
    MAY_CHANGE.iter().any(|key| change.key == *key || (key.ends_with('.') && change.key.starts_with(key)))
}

/// Checks that data are those of a checkpoint.
///
/// # Errors
/// Other data, with the differences.
pub fn check_data(path: &Path, before: &DataIdentity, now: &DataIdentity) -> Result<(), TrainError> {
    let changes = data_changes(before, now);
    match changes.is_empty() {
        true => Ok(()),
        false => Err(other_run(path, &changes)),
    }
}

/// The differences between two data sets.
pub fn data_changes(before: &DataIdentity, now: &DataIdentity) -> Vec<Change> {
    let mut changes = Vec::new();
    for (name, before, now) in [("training", &before.training, &now.training), ("test", &before.test, &now.test)] {
        // If the number of examples differs, so do the hashes: one line is enough.
        if before.n_examples != now.n_examples {
            let (before, now) = (before.n_examples.to_string(), now.n_examples.to_string());
            changes.push(Change::new(&format!("data.{name}.examples"), before, now));
            continue;
        }
        // A prefix of the hash is enough to compare.
        let start = |arrays: &BTreeMap<String, String>, array: &String| {
            let hash = arrays.get(array).map_or("not there", String::as_str);
            hash.get(..12).map_or(hash.to_string(), |start| format!("{start}…"))
        };
        let names = before.arrays.keys().chain(now.arrays.keys().filter(|array| !before.arrays.contains_key(*array)));
        for array in names.filter(|array| before.arrays.get(*array) != now.arrays.get(*array)) {
            let key = format!("data.{name}.{array}");
            changes.push(Change::new(&key, start(&before.arrays, array), start(&now.arrays, array)));
        }
    }
    changes
}

/// Adds the differences key by key. Objects of two kinds differ as wholes: they have no keys in common.
fn compare(key: &str, before: &Value, now: &Value, changes: &mut Vec<Change>) {
    match (before, now) {
        (Value::Object(left), Value::Object(right))
            if left.get("kind") == right.get("kind") && are_alike(left, right) =>
        {
            let names = left.keys().chain(right.keys().filter(|name| !left.contains_key(*name)));
            for name in names {
                let below = if key.is_empty() { name.clone() } else { format!("{key}.{name}") };
                let value_in = |object: &Map<String, Value>| object.get(name).cloned().unwrap_or(Value::Null);
                compare(&below, &value_in(left), &value_in(right), changes);
            }
        }
        _ if before == now => {}
        (Value::Array(left), Value::Array(right)) if left.iter().chain(right).any(Value::is_object) => {
            compare_lists(key, left, right, changes);
        }
        _ => changes.push(Change::new(key, shown(before), shown(now))),
    }
}

/// Compares lists, such as layers. Equal elements at both ends are skipped, so an inserted element is one line.
fn compare_lists(key: &str, before: &[Value], now: &[Value], changes: &mut Vec<Change>) {
    let n_same = before.iter().zip(now).take_while(|(before, now)| before == now).count();
    let ends = before[n_same..].iter().rev().zip(now[n_same..].iter().rev());
    let n_same_at_end = ends.take_while(|(before, now)| before == now).count();
    let before = &before[n_same..before.len() - n_same_at_end];
    let now = &now[n_same..now.len() - n_same_at_end];
    for number in 0..before.len().max(now.len()) {
        let element = |list: &[Value]| list.get(number).cloned().unwrap_or(Value::Null);
        compare(&format!("{key}[{}]", n_same + number), &element(before), &element(now), changes);
    }
}

/// Whether two objects are of one kind, if a key with its options tells the kind: `{dense: {…}, name: a}`.
fn are_alike(left: &Map<String, Value>, right: &Map<String, Value>) -> bool {
    let has_other = |object: &Map<String, Value>, other: &Map<String, Value>| {
        object.iter().any(|(key, value)| value.is_object() && !other.contains_key(key))
    };
    !(has_other(left, right) && has_other(right, left))
}

/// The most characters of a value that are shown.
const MAX_SHOWN: usize = 120;

fn shown(value: &Value) -> String {
    let text = match value {
        Value::String(text) => text.clone(),
        Value::Null => NOT_SET.to_string(),
        other => document::to_line(other),
    };
    match text.chars().count() > MAX_SHOWN {
        true => text.chars().take(MAX_SHOWN - 1).chain(['…']).collect(),
        false => text,
    }
}

/// The error of a checkpoint whose run had other settings or other data and cannot be resumed.
pub(crate) fn other_run(path: &Path, changes: &[Change]) -> TrainError {
    let text = format!("the checkpoint is of another run:{}", lines(changes));
    TrainError::of_file(TrainErrorKind::Checkpoint, path, text)
        .with_help(format!("{}, or leave --resume out to start again", resume_help(changes)))
}

fn lines(changes: &[Change]) -> String {
    changes.iter().map(|change| format!("\n  {change}")).collect()
}

/// The advice on how to resume with the old settings.
fn resume_help(changes: &[Change]) -> String {
    let flag = |change: &Change| ["batch", "seed", "precision"].contains(&change.key.as_str());
    let flags: Vec<String> = changes
        .iter()
        .filter(|change| flag(change))
        .map(|Change { key, before, .. }| format!("--{key} {before}"))
        .collect();
    let of_build = |change: &&Change| ["data.order", "data.draws"].contains(&change.key.as_str());
    let of_data = |change: &&Change| change.key.starts_with("data.") && !of_build(change);
    let (n_data, n_build) = (changes.iter().filter(of_data).count(), changes.iter().filter(of_build).count());
    let mut parts = Vec::new();
    if !flags.is_empty() {
        parts.push(format!("give {}", flags.join(" ")));
    }
    if flags.len() + n_data + n_build < changes.len() {
        parts.push("set the experiment as it was".to_string());
    }
    if n_data > 0 {
        parts.push("use the data, `scale` and `n_test` it was made with".to_string());
    }
    if n_build > 0 {
        parts.push("use the version of bf16scope that made it".to_string());
    }
    parts.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn changes(before: Value, now: Value) -> Vec<String> {
        let mut changes = Vec::new();
        compare("model", &before, &now, &mut changes);
        changes.iter().map(Change::to_string).collect()
    }

    /// Layers that differed in one number used to be two lines of JSON with all layers.
    #[test]
    fn of_lists_of_layers_the_keys_that_differ_are_shown() {
        let dense = |units: u32| json!({"dense": {"units": units, "activation": "relu"}});
        let layers = |layers: Value| json!({"kind": "layers", "layers": layers});
        let before = layers(json!(["flatten", dense(8), dense(9), dense(2)]));
        assert_eq!(
            changes(before.clone(), layers(json!(["flatten", dense(8), dense(7), dense(2)]))),
            ["model.layers[2].dense.units was 9, is 7 now"]
        );
        let dropout = json!({"dropout": {"rate": 0.5}});
        assert_eq!(
            changes(before.clone(), layers(json!(["flatten", dense(8), dropout, dense(9), dense(2)]))),
            ["model.layers[2] was not set, is {dropout: {rate: 0.5}} now"]
        );
        assert_eq!(
            changes(before.clone(), layers(json!(["flatten", dense(8), dense(2)]))),
            ["model.layers[2] was {dense: {activation: relu, units: 9}}, is not set now"]
        );
        assert_eq!(
            changes(before.clone(), layers(json!(["flatten", dense(8), dropout, dense(2)]))),
            ["model.layers[2] was {dense: {activation: relu, units: 9}}, is {dropout: {rate: 0.5}} now"]
        );
        assert_eq!(changes(before.clone(), before), [""; 0]);
        // A list of numbers is compared as one value.
        assert_eq!(changes(json!({"hidden": [8, 8]}), json!({"hidden": [9]})), ["model.hidden was [8, 8], is [9] now"]);
        let long = "x".repeat(200);
        assert_eq!(changes(json!(long), json!(1)), [format!("model was {}…, is 1 now", "x".repeat(119))]);
    }

    #[test]
    fn a_checkpoint_of_another_run_says_what_changed_and_how_to_go_on() {
        let change = |key: &str, before: &str, now: &str| Change {
            key: key.to_string(),
            before: before.to_string(),
            now: now.to_string(),
        };
        let resume = |changes: Vec<Change>| other_run(Path::new("a.safetensors"), &changes).to_string();
        assert_eq!(
            resume(vec![change("batch", "32", "64")]),
            "a.safetensors: the checkpoint is of another run:\n  batch was 32, is 64 now\n\
             help: give --batch 32, or leave --resume out to start again"
        );
        assert_eq!(
            resume(vec![
                change("precision", "bf16", "f32"),
                change("seed", "3", "4"),
                change("model.hidden", "[8]", "[9]"),
                change("data.test.labels", "a", "b"),
            ]),
            "a.safetensors: the checkpoint is of another run:\n  precision was bf16, is f32 now\n  seed was 3, is 4 now\n  \
             model.hidden was [8], is [9] now\n  data.test.labels was a, is b now\n\
             help: give --precision bf16 --seed 3, set the experiment as it was, use the data, `scale` and `n_test` it was \
             made with, or leave --resume out to start again"
        );
    }
}
