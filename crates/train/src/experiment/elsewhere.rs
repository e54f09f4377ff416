//! Keys of an experiment in the wrong block, or with the names of other frameworks.

use super::{Experiment, TrainConfig, data, keras};
use bf16scope_model::document::kind::keys_of;
use bf16scope_model::document::{ConfigError, ConfigProblem, Document};
use bf16scope_model::models::kinds_with_key;
use std::path::Path;

/// Names of other frameworks, and ours.
const BY_ANOTHER_NAME: [(&str, &str); 24] = [
    ("lr", "learning_rate"),
    ("eta", "learning_rate"),
    ("wd", "weight_decay"),
    ("l2", "weight_decay"),
    ("bs", "batch"),
    ("batch_size", "batch"),
    ("num_epochs", "epochs"),
    ("n_epochs", "epochs"),
    ("max_epochs", "epochs"),
    ("opt", "optimizer"),
    ("random_seed", "seed"),
    ("rng_seed", "seed"),
    ("warmup", "warm_up"),
    ("warmup_steps", "warm_up"),
    ("grad_clip", "clip"),
    ("clip_norm", "clip"),
    ("max_grad_norm", "clip"),
    ("gradient_clipping", "clip"),
    ("gradient_clip", "clip"),
    ("ema", "average"),
    ("grad_accum", "accumulate"),
    ("gradient_accumulation_steps", "accumulate"),
    ("pretrained", "initialize_from"),
    ("freeze", "trainable"),
];

/// Names that are no keys, and where the choice is made.
const NOT_IN_A_FILE: [(&str, &str); 8] = [
    ("precision", "`--precision f32|bf16|f16`, on the command line, is what the network computes in"),
    ("dtype", "`--precision f32|bf16|f16`, on the command line, is what the network computes in"),
    ("mixed_precision", "`--precision f32|bf16|f16`, on the command line, is what the network computes in"),
    ("model_checkpoint", "write `keep_best: accuracy`: the checkpoint of the best epoch stays beside the last"),
    ("tensorboard", "every run's folder has event files: `tensorboard --logdir runs`"),
    ("callbacks", "`early_stopping`, `reduce_on_plateau` and `keep_best` are keys of `train`"),
    ("device", "`--device`, on the command line, is where it runs"),
    ("target", "`--target`, on the command line, is what it is compiled for"),
];

/// Adds the right block to the error of an unknown key at the top, or of `train` or `data`, if it is known; and says
/// where a network stands in the place of an experiment, or the reverse.
pub(super) fn with_its_block(document: &Document, mut error: ConfigError) -> ConfigError {
    let help = match &error.problem {
        ConfigProblem::UnknownKey { key, valid } => {
            let of_keras = || keras::help(&error.problem);
            let in_place = of_a_network(document, key, valid).or_else(|| of_an_experiment(document, key));
            in_place.or_else(of_keras).or_else(|| help(key, valid))
        }
        ConfigProblem::UnknownValue { .. } => keras::help(&error.problem),
        ConfigProblem::MissingKey { .. } => of_an_experiment(document, "model"),
        _ => None,
    };
    if let Some(help) = help {
        error.problem = ConfigProblem::Together { message: error.problem.to_string(), help: Some(help) };
    }
    error
}

/// The line that makes a network run, if the whole file is one.
fn of_a_network(document: &Document, key: &str, valid: &[String]) -> Option<String> {
    let is_of_a_network = key == "kind" || !kinds_with_key(key).is_empty();
    let is_one = document.root().get("model").is_none() && keys_of::<Experiment>() == *valid && is_of_a_network;
    let file = Path::new(document.path()).file_name().map_or(document.path().into(), |name| name.to_string_lossy());
    is_one.then(|| {
        format!("the file is a network: write an experiment with `model: {{include: {file}}}`, and `data` and `train` beside it")
    })
}

/// The right place of an experiment's key that stands in its `model`.
fn of_an_experiment(document: &Document, key: &str) -> Option<String> {
    let is_in_model = document.root().get("model").and_then(|model| model.get(key)).is_some();
    if !is_in_model || !kinds_with_key(key).is_empty() {
        return None;
    }
    if !keys_of::<Experiment>().contains(&key) {
        let mut blocks = blocks().into_iter();
        let (block, _) = blocks.find(|(_, keys)| keys.contains(&now(key)))?;
        return Some(format!("write `{}: …` under `{block}`, beside `model`", now(key)));
    }
    Some(match key {
        "model" => {
            "an experiment stands under `model`, where a network is expected: leave the outer `model` out".into()
        }
        key => format!("write `{key}` beside `model`, not in it: it is an experiment's key, and no network's"),
    })
}

/// The blocks of an experiment that hold keys, with those.
fn blocks() -> [(&'static str, Vec<&'static str>); 2] {
    [("train", keys_of::<TrainConfig>()), ("data", data::keys())]
}

/// Our name of a key.
pub(super) fn now(key: &str) -> &str {
    BY_ANOTHER_NAME.iter().find(|(name, _)| *name == key).map_or(key, |(_, now)| now)
}

fn help(key: &str, valid: &[String]) -> Option<String> {
    let blocks = blocks();
    let is_at_top = keys_of::<Experiment>() == *valid;
    let is_in = |block: &[&str]| is_at_top || block.iter().all(|key| valid.iter().any(|name| name == key));
    // Deeper, the same name may have another meaning.
    if !is_at_top && !blocks.iter().any(|(_, keys)| is_in(keys)) {
        return None;
    }
    let now = now(key);
    if now != key && valid.iter().any(|name| name == now) {
        return Some(format!("it is called `{now}`"));
    }
    if keys_of::<Experiment>().contains(&now) {
        return Some(format!("write `{now}` beside `model` and `train`"));
    }
    if let Some((block, _)) = blocks.iter().find(|(_, keys)| keys.contains(&now)) {
        return Some(format!("write `{now}: …` under `{block}`"));
    }
    let kinds = kinds_with_key(key);
    if !kinds.is_empty() {
        return Some(format!("write `{key}` under `model`, with `kind: {}`", kinds.join("` or `kind: ")));
    }
    NOT_IN_A_FILE.iter().find(|(name, _)| *name == key).map(|(_, help)| help.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use bf16scope_model::document::Document;

    fn message(text: &str) -> String {
        let document = Document::parse("e.yaml", text).unwrap();
        with_its_block(&document, document.read::<Experiment>().unwrap_err()).to_string()
    }

    const MODEL: &str = "model: {kind: mlp, input: [64], n_classes: 10}\n";

    #[test]
    fn a_key_in_another_block_is_told_its_own() {
        for (text, help) in [
            ("batch: 3\n", "write `batch: …` under `train`"),
            ("batch_size: 3\n", "write `batch: …` under `train`"),
            ("lr: 3\n", "write `learning_rate: …` under `train`"),
            ("n_test: 3\n", "write `n_test: …` under `data`"),
            ("csv: a.csv\n", "write `csv: …` under `data`"),
            ("loss: mean\n", "write `loss` under `model`, with `kind: two_tower` or `kind: layers`"),
            ("n_classes: 3\n", "write `n_classes` under `model`, with `kind: mlp`"),
            ("precision: bf16\n", "`--precision f32|bf16|f16`, on the command line"),
            ("train: {lr: 3}\n", "it is called `learning_rate`"),
            ("train: {ema: 0.9}\n", "it is called `average`"),
            ("train: {n_test: 3}\n", "write `n_test: …` under `data`"),
            ("train: {mesh: {data: 2}}\n", "write `mesh` beside `model` and `train`"),
            ("train: {loss: mean}\n", "write `loss` under `model`"),
            ("train: {epoch: 3}\n", "did you mean `epochs`?"),
            ("train: {callbacks: [x]}\n", "`early_stopping`, `reduce_on_plateau` and `keep_best` are keys of `train`"),
            ("train: {gradient_clip: 1}\n", "it is called `clip`"),
            ("train: {model_checkpoint: {}}\n", "write `keep_best: accuracy`: the checkpoint of the best epoch stays"),
            ("train: {<<: {batch: 3}}\n", "keys are not merged"),
            ("train: {optimizer: {kind: adam, lr: 3}}\n", "write `learning_rate` under `train`, beside `optimizer`"),
        ] {
            let message = message(&format!("{MODEL}{text}"));
            assert!(
                message.contains(": unknown key `") && message.contains(&format!("help: {help}")),
                "{text}: {message}"
            );
        }
    }

    #[test]
    fn a_network_in_the_place_of_an_experiment_is_told_and_the_reverse() {
        let network = "the file is a network: write an experiment with `model: {include: e.yaml}`, and `data` and `train` \
                       beside it";
        for (text, help) in [
            ("kind: layers\nlayers: [{dense: 2}]\n", network),
            ("layers: [{dense: 2}]\n", network),
            ("model: {kind: mlp, train: {epochs: 3}}\n", "write `train` beside `model`, not in it"),
            ("model: {kind: mlp, optimizer: adam}\n", "write `optimizer: …` under `train`, beside `model`"),
            ("model: {kind: mlp, lr: 0.1}\n", "write `learning_rate: …` under `train`, beside `model`"),
            ("model: {model: {kind: mlp}}\n", "an experiment stands under `model`, where a network is expected"),
        ] {
            let message = message(text);
            assert!(message.contains(&format!("help: {help}")), "{text}: {message}");
        }
    }

    #[test]
    fn what_is_called_otherwise_is_no_key_and_what_it_is_called_is() {
        let mut keys = keys_of::<TrainConfig>();
        keys.extend(keys_of::<Experiment>());
        for (name, now) in BY_ANOTHER_NAME {
            assert!(!keys.contains(&name) && keys.contains(&now), "{name} {now}");
        }
        assert!(NOT_IN_A_FILE.iter().all(|(name, _)| !keys.contains(name)));
    }
}
