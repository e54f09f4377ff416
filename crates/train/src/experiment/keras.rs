//! Keras' names of optimizers, schedules and their settings, and of what `compile` and `fit` take, with the line that
//! means the same here.
//!
//! A class of Keras has its own defaults, so it is no second name of a kind: the line has the defaults. Names of
//! layers, losses and metrics are beside those (`bf16scope_model::models::layers`).

use bf16scope_model::document::ConfigProblem;

/// Classes of optimizers and schedules, their kind here, and the line.
const CLASSES: [(&str, &str, &str); 20] = [
    ("SGD", "sgd", "write `optimizer: sgd`, or with momentum `optimizer: {kind: momentum, momentum: 0.9}`"),
    ("Adam", "adam", "write `optimizer: {kind: adam, epsilon: 1.0e-7, epsilon_hat: true}`, which has Keras' defaults"),
    (
        "AdamW",
        "adamw",
        "write `optimizer: {kind: adamw, epsilon: 1.0e-7, epsilon_hat: true}` and `weight_decay: {value: 0.004}`, \
         which have Keras' defaults",
    ),
    (
        "RMSprop",
        "rmsprop",
        "write `optimizer: {kind: rmsprop, epsilon: 1.0e-7, initial_accumulator_value: 0}`, which has Keras' defaults",
    ),
    ("Adagrad", "adagrad", "write `optimizer: adagrad`, which has Keras' defaults"),
    ("Adadelta", "adadelta", "write `optimizer: adadelta`, which has Keras' defaults"),
    ("Adamax", "adamax", "write `optimizer: adamax`, which has Keras' defaults"),
    ("Nadam", "nadam", "write `optimizer: nadam`, which has Keras' defaults"),
    ("Ftrl", "ftrl", "write `optimizer: ftrl`, which has Keras' defaults"),
    ("Lion", "lion", "write `optimizer: lion`, which has Keras' defaults"),
    ("Lamb", "lamb", "write `optimizer: {kind: lamb, epsilon: 1.0e-7}`, which has Keras' defaults"),
    (
        "Adafactor",
        "adafactor",
        "write `optimizer: {kind: adafactor, min_dim_size_to_factor: 1}`; Keras' `relative_step` of a rate of 0.001 is \
         `learning_rate: {kind: inverse_sqrt, value: 1, constant_until: 1000000, first_step: 1}`",
    ),
    (
        "LossScaleOptimizer",
        "adam",
        "name the inner optimizer, and write `loss_scale: dynamic` beside it, the default in f16",
    ),
    (
        "ExponentialDecay",
        "exponential",
        "write `{kind: exponential, value: …, decay_steps: …, decay_rate: …}`: `value` is its `initial_learning_rate`",
    ),
    (
        "CosineDecay",
        "cosine",
        "write `{kind: cosine, value: …, decay_steps: …}`: `value` is its `initial_learning_rate`, or the \
         `warmup_target` beside `warm_up: {steps: …}` under `train`",
    ),
    (
        "PolynomialDecay",
        "polynomial",
        "write `{kind: polynomial, value: …, decay_steps: …, end_value: 1.0e-4, power: 1}`, which has Keras' defaults: \
         `value` is its `initial_learning_rate`",
    ),
    (
        "PiecewiseConstantDecay",
        "piecewise",
        "write `{kind: piecewise, value: 0.1, changes: [{step: 101, value: 0.01}]}` for boundaries of [100] and \
         values of [0.1, 0.01]",
    ),
    (
        "OneCycleLR",
        "one_cycle",
        "write `{kind: one_cycle, value: …, decay_steps: …}`: `value` is its `max_lr`, and `decay_steps` its `total_steps`",
    ),
    ("CosineDecayRestarts", "cosine", RATE_WITHOUT_KIND),
    ("InverseTimeDecay", "piecewise", RATE_WITHOUT_KIND),
];

const RATE_WITHOUT_KIND: &str = "there is no such kind: `kind: piecewise` follows any rate, change by change";

/// Settings with another name here, where the name is a key of that kind.
const RENAMED: [(&str, &str); 11] = [
    ("beta_1", "beta1"),
    ("beta_2", "beta2"),
    ("epsilon_1", "epsilon1"),
    ("epsilon_2", "epsilon2"),
    ("eps", "epsilon"),
    ("rho", "decay"),
    ("clip_threshold", "clipping_threshold"),
    ("initial_learning_rate", "value"),
    ("end_learning_rate", "end_value"),
    ("max_lr", "value"),
    ("total_steps", "decay_steps"),
];

/// Settings with another form here, a key that is valid where they are meant (empty: anywhere), and the line.
const LINES: [(&str, &str, &str); 27] = [
    ("clipnorm", "", "write `clip: {kind: norm, value: …}` under `train`"),
    ("global_clipnorm", "", "write `clip: {kind: global_norm, value: …}` under `train`"),
    ("clipvalue", "", "write `clip: {kind: value, value: …}` under `train`"),
    ("use_ema", "", "write `average: {decay: 0.99}` under `train`"),
    ("ema_momentum", "", "write `average: {decay: …}` under `train`"),
    ("beta_2_decay", "decay_exponent", "write `decay_exponent: 0.8` for a `beta_2_decay` of -0.8"),
    (
        "relative_step",
        "decay_exponent",
        "write `learning_rate: {kind: inverse_sqrt, value: 1, constant_until: 1000000, first_step: 1}`",
    ),
    ("amsgrad", "", "of `adam` and `adamw` alone: write `{kind: adam, amsgrad: true, …}`, or leave it out"),
    (
        "boundaries",
        "changes",
        "write `changes: [{step: 101, value: 0.01}]` for a boundary of 100: a step is the first of its value",
    ),
    ("values", "changes", "write `value: 0.1`, the first, and `changes: [{step: 101, value: 0.01}]`"),
    ("warmup_target", "value", "write it as `value`, and `warm_up: {steps: …}` under `train`"),
    ("cycle", "power", "the rate does not rise again here: leave it out"),
    ("three_phase", "pct_start", "there are two phases, torch's default: leave it out"),
    ("cycle_momentum", "pct_start", "the momentum stays as it is: leave it out"),
    ("base_momentum", "pct_start", "the momentum stays as it is: leave it out"),
    ("max_momentum", "pct_start", "the momentum stays as it is: leave it out"),
    ("class_weight", "", "write `class_weights: [1, 3, 0.5]` with a loss of classes, under `model`"),
    ("loss_weights", "", "write `weight: …` with each loss, under `model`"),
    ("sample_weight", "", "write `example_weights: NAME` with a loss, under `model`"),
    ("validation_split", "", "write `n_validation: 0.1` under `data`, or `n_test: 0.1`"),
    ("validation_data", "", "write `validation: …` under `data`, or `test: …`"),
    ("steps_per_epoch", "", "an epoch is every example once: leave it out"),
    ("initial_epoch", "", "`--resume`, on the command line, continues a run"),
    (
        "ModelCheckpoint",
        "",
        "write `keep_best: {monitor: test_loss}`, or `save_checkpoints_steps: …`; every epoch is saved",
    ),
    ("jit_compile", "", "every program is compiled by XLA: leave it out"),
    ("run_eagerly", "", "every program is compiled by XLA: leave it out"),
    ("verbose", "", "`-v` or `-q`, on the command line, says more or less"),
];

/// The line for a name of Keras in this problem, if it is one.
pub(super) fn help(problem: &ConfigProblem) -> Option<String> {
    match problem {
        ConfigProblem::UnknownValue { value, valid } => {
            let is_meant = |(class, kind, _): &&(&str, &str, &str)| plain(class) == plain(value) && has(valid, kind);
            CLASSES.iter().find(is_meant).map(|(_, _, line)| line.to_string())
        }
        ConfigProblem::UnknownKey { key, valid } => {
            let renamed = RENAMED.iter().find(|(name, now)| name == key && has(valid, now));
            let is_there = |beside: &str| beside.is_empty() || has(valid, beside);
            let is_meant = |(name, beside, _): &&(&str, &str, &str)| name == key && is_there(beside);
            let line = || LINES.iter().find(is_meant).map(|(_, _, line)| line.to_string());
            renamed.map(|(_, now)| format!("it is called `{now}`")).or_else(line)
        }
        _ => None,
    }
}

fn has(valid: &[String], name: &str) -> bool {
    valid.iter().any(|known| known == name)
}

/// A class without case and underscores, as TensorFlow 1 has `cosine_decay`.
fn plain(name: &str) -> String {
    name.chars().filter(|&c| c != '_').collect::<String>().to_lowercase()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::elsewhere::with_its_block;
    use crate::experiment::{Experiment, TrainConfig};
    use bf16scope_model::document::kind::{names_of, with_key};
    use bf16scope_model::document::{self, Document};
    use bf16scope_model::optim::{LearningRate, Optimizer};

    /// The help of an experiment with this line of `train`.
    fn help_of(train: &str) -> String {
        let text = format!("model: {{kind: mlp, input: [64], n_classes: 10}}\ntrain: {{{train}}}\n");
        let document = Document::parse("e.yaml", &text).unwrap();
        let message = with_its_block(&document, document.read::<Experiment>().unwrap_err()).to_string();
        message.split_once("help: ").map(|(_, help)| help.to_string()).unwrap_or(message)
    }

    #[test]
    fn a_name_of_keras_is_told_with_the_line_that_means_it() {
        let adam = "write `optimizer: {kind: adam, epsilon: 1.0e-7, epsilon_hat: true}`, which has Keras' defaults";
        let rmsprop = "write `optimizer: {kind: rmsprop, epsilon: 1.0e-7, initial_accumulator_value: 0}`, which has \
                       Keras' defaults";
        for (train, help) in [
            ("optimizer: Adam", adam),
            ("optimizer: {kind: Adam, beta_1: 0.8}", adam),
            ("optimizers: [{variables: ['*'], optimizer: Adam}]", adam),
            ("optimizer: RMSprop", rmsprop),
            ("optimizer: {kind: adam, beta_1: 0.8}", "it is called `beta1`"),
            ("optimizers: [{variables: ['*'], optimizer: {kind: adam, beta_2: 0.8}}]", "it is called `beta2`"),
            ("optimizer: {kind: rmsprop, rho: 0.9}", "it is called `decay`"),
            ("optimizer: {kind: rmsprop, ema_momentum: 0.9}", "write `average: {decay: …}` under `train`"),
            ("optimizer: {kind: adam, clipnorm: 1}", "write `clip: {kind: norm, value: …}` under `train`"),
            ("global_clipnorm: 1", "write `clip: {kind: global_norm, value: …}` under `train`"),
            ("clipnorm: 1", "write `clip: {kind: norm, value: …}` under `train`"),
            ("learning_rate: {kind: cosine, initial_learning_rate: 1, decay_steps: 9}", "it is called `value`"),
            ("validation_split: 0.1", "write `n_validation: 0.1` under `data`, or `n_test: 0.1`"),
        ] {
            assert_eq!(help_of(train), help, "{train}");
        }
        let cycle = help_of("learning_rate: {kind: OneCycleLR, max_lr: 1, total_steps: 9}");
        assert!(cycle.contains("write `{kind: one_cycle, value: …, decay_steps: …}`"), "{cycle}");
        assert!(help_of("learning_rate: {kind: one_cycle, max_lr: 1}").contains("it is called `value`"));
        assert!(help_of("learning_rate: {kind: one_cycle, value: 1, total_steps: 9}").contains("`decay_steps`"));
        for (key, expected) in [
            ("three_phase", "there are two phases"),
            ("cycle_momentum", "the momentum stays as it is"),
            ("base_momentum", "the momentum stays as it is"),
        ] {
            let text = format!("learning_rate: {{kind: one_cycle, value: 1, decay_steps: 9, {key}: false}}");
            assert!(help_of(&text).contains(expected), "{}", help_of(&text));
        }
        let cosine = help_of("learning_rate: {kind: CosineDecay, initial_learning_rate: 1, decay_steps: 9}");
        assert!(cosine.starts_with("write `{kind: cosine, value: …, decay_steps: …}`"), "{cosine}");
    }

    #[test]
    fn each_line_can_be_written_and_each_kind_is_there() {
        let kinds = [names_of::<Optimizer>(), names_of::<LearningRate>()].concat();
        for (class, kind, line) in CLASSES {
            assert!(kinds.contains(&kind) && !kinds.contains(&class), "{class}");
            let is_of_train = |text: &&str| {
                let keys = ["optimizer: ", "weight_decay: ", "learning_rate: "];
                keys.iter().any(|key| text.starts_with(key)) && !text.contains('…')
            };
            for text in line.split('`').skip(1).step_by(2).filter(is_of_train) {
                document::from_str::<TrainConfig>("e.yaml", text).unwrap();
            }
        }
        for (name, now) in RENAMED {
            let kinds = [with_key::<Optimizer>(now), with_key::<LearningRate>(now)].concat();
            assert!(!kinds.is_empty(), "{name} {now}");
        }
    }
}
