//! An experiment: a YAML file that says what is trained, on what, and how.
//!
//! ```yaml
//! model: {kind: mlp, input: [8, 8, 1], n_classes: 10}
//! data: {csv: data/digits.csv.gz, scale: 0.0625, n_test: 360}
//! train:
//!   batch: 32
//!   epochs: 10
//!   optimizer: {kind: momentum, momentum: 0.9, nesterov: true}
//!   learning_rate: {kind: constant, value: 0.1}
//! ```
//!
//! [`DataConfig`] says what `data` may be. Paths in the file are relative to the file. Precision is not in it: it is a switch of the run.

use super::checkpoint::Place;
use super::data_config::{DataConfig, Examples};
use super::epochs::{Timed, unreached};
use super::error::TrainError;
use super::lines;
use super::mesh::Mesh;
use super::objective::Objective;
use super::run::Plan;
use super::spec::Spec;
use super::steps_per_call::StepsPerCall;
use crate::data::Source;
use crate::files;
use crate::graph::{Numbers, Precision, Storage};
use crate::models::yaml::{Node, NodeError, Step};
use crate::models::{Model, kind, yaml};
use crate::optim::{Average, Clip, LearningRate, LossScale, Optimizer, SlotStorage, Update, WarmUp, WeightDecay};
use crate::task::Task;
use crate::tuning::{Tune, Tuning};
use serde::Deserialize;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// An experiment.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Experiment {
    /// The network.
    pub model: Model,
    /// What it is trained and tested on; compiling needs none.
    pub data: Option<DataConfig>,
    /// How it is trained.
    #[serde(default)]
    pub train: TrainConfig,
    /// The devices that share a step's work. Default one.
    #[serde(default)]
    pub mesh: Mesh,
    /// How its programs are made cheaper on their target. Default `auto`.
    #[serde(default)]
    pub tune: Tune,
}

/// How a network is trained.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TrainConfig {
    /// Examples in a batch. Default 32.
    #[serde(deserialize_with = "count")]
    pub batch: u32,
    /// Passes over the data. Default 10.
    #[serde(deserialize_with = "count")]
    pub epochs: u32,
    /// Of initial values and of the order of examples. Default 0.
    pub seed: u64,
    /// How many pixels images are shifted by at most, at random, half of them not at all. Default 0.
    pub shift: u32,
    /// How variables change. Default momentum 0.9.
    #[serde(deserialize_with = "optimizer")]
    pub optimizer: Optimizer,
    /// How fast; a number alone is constant. Default 0.1.
    pub learning_rate: Timed<LearningRate>,
    /// What the rate is before. Default nothing.
    pub warm_up: Option<Timed<WarmUp>>,
    /// Training examples, as far as they are known: with `batch` they say how many steps an epoch has. [`Experiment::read`]
    /// takes them from `data`, where that says `n_train`; who reads the data knows better.
    #[serde(skip)]
    pub n_train: Option<u64>,
    /// L2 regularisation. Default none.
    pub weight_decay: WeightDecay,
    /// What gradients that are too large become. Default none.
    #[serde(deserialize_with = "kind_or_none")]
    pub clip: Option<Clip>,
    /// How variables are averaged over steps. Default not at all.
    pub average: Option<Average>,
    /// What variables are stored in: `f32`, `bf16_stochastic`, `bf16_compensated`, or, to see what is lost, `bf16_nearest`.
    /// Default f32.
    pub variables: Storage,
    /// What the optimizer's slots are stored in: `f32`, `bf16`, `bf16_stochastic`. Default f32.
    pub slots: SlotStorage,
    /// Label smoothing. Default 0.
    #[serde(deserialize_with = "yaml::fraction")]
    pub label_smoothing: f64,
    /// How the loss is scaled: `none`, `static:1024`, `dynamic`. Default `dynamic` in f16, `none` in bf16 and f32, which
    /// do not need it.
    pub loss_scale: Option<LossScale>,
    /// In how many micro-batches a batch is gone through before the update; it must divide `batch`. Default 1.
    #[serde(deserialize_with = "count")]
    pub accumulate: u32,
    /// How many steps a call of the device makes: `N`, one step's program after the other, or `while:N`, a loop. Default 1.
    pub steps_per_call: StepsPerCall,
    /// After how many steps there is a checkpoint, beside those after each epoch and when the run is stopped. Default never.
    #[serde(deserialize_with = "some_count")]
    pub save_checkpoints_steps: Option<u32>,
    /// After how many seconds there is one, at the end of a step. Default never.
    #[serde(deserialize_with = "some_count")]
    pub save_checkpoints_secs: Option<u32>,
    /// How many of the run's last checkpoints stay: the newest at its place, older ones beside it as
    /// `NAME-STEP.safetensors`. Default 1.
    #[serde(deserialize_with = "count")]
    pub keep_checkpoint_max: u32,
}

/// A whole number from 1 up to what fits in an `i32`.
fn count<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<u32, D::Error> {
    Ok(yaml::positive_up_to(deserializer, i64::from(i32::MAX))? as u32)
}

fn optimizer<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Optimizer, D::Error> {
    Node::read(deserializer, |node| kind::read(&node).map_err(kind::elsewhere::<Optimizer>))
}

fn some_count<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<u32>, D::Error> {
    count(deserializer).map(Some)
}

fn kind_or_none<'de, D: serde::Deserializer<'de>, T: serde::de::DeserializeOwned>(
    deserializer: D,
) -> Result<Option<T>, D::Error> {
    kind::read(deserializer).map(Some)
}

impl Default for TrainConfig {
    fn default() -> Self {
        TrainConfig {
            batch: 32,
            epochs: 10,
            seed: 0,
            shift: 0,
            optimizer: Optimizer::default(),
            learning_rate: Timed::Steps(LearningRate::default()),
            warm_up: None,
            n_train: None,
            weight_decay: WeightDecay::default(),
            clip: None,
            average: None,
            variables: Storage::F32,
            slots: SlotStorage::F32,
            label_smoothing: 0.0,
            loss_scale: None,
            accumulate: 1,
            steps_per_call: StepsPerCall::default(),
            save_checkpoints_steps: None,
            save_checkpoints_secs: None,
            keep_checkpoint_max: 1,
        }
    }
}

impl TrainConfig {
    /// A key that does not go with the optimizer.
    fn misplaced(&self) -> Option<NodeError> {
        let key = |name: &str| Step::Key(name.to_string());
        if matches!(self.optimizer, Optimizer::Lars(_)) && self.weight_decay.decoupled {
            let way = vec![key("weight_decay"), Step::KeyItself("decoupled".to_string())];
            let error = NodeError::new(way, "`decoupled` does not go with lars, whose rule has the weight decay in it");
            return Some(error.with_help("leave it out, or write `optimizer: {kind: lamb}`, which decouples"));
        }
        None
    }

    /// Whether a length of the schedule is in epochs.
    pub fn is_by_epoch(&self) -> bool {
        self.learning_rate.is_by_epoch() || self.warm_up.as_ref().is_some_and(Timed::is_by_epoch)
    }

    /// Steps in an epoch, where it is known.
    pub fn steps_per_epoch(&self) -> Option<u32> {
        let steps = self.n_train? / u64::from(self.batch.max(1));
        u32::try_from(steps).ok().filter(|steps| *steps > 0)
    }

    /// How variables change in a step.
    ///
    /// # Errors
    /// Lengths in epochs of which nobody knows the steps, or that are less than a step.
    pub fn update(&self) -> Result<Update, TrainError> {
        let (learning_rate, warm_up) = self.schedule().map_err(|(key, error)| TrainError::Epochs {
            key,
            problem: error.message,
            help: error.help.unwrap_or_default(),
        })?;
        let (optimizer, weight_decay, clip) = (self.optimizer, self.weight_decay.clone(), self.clip);
        Ok(Update { optimizer, learning_rate, weight_decay, warm_up, clip, slots: self.slots })
    }

    /// The schedule in steps; an error with the key that it is under.
    fn schedule(&self) -> Result<(LearningRate, Option<WarmUp>), (&'static str, NodeError)> {
        let steps = match (self.steps_per_epoch(), self.is_by_epoch()) {
            (Some(steps), _) => steps,
            (None, false) => 1,
            (None, true) => {
                let key = if self.learning_rate.is_by_epoch() { "learning_rate" } else { "warm_up" };
                let (problem, help) = match self.n_train {
                    None => (
                        "lengths are in epochs, and nothing says how many steps an epoch has".to_string(),
                        "add `n_train: N` under `data`, the number of training examples, or give lengths in steps",
                    ),
                    Some(n) => (
                        format!(
                            "lengths are in epochs, and an epoch of {n} examples has no whole batch of {}",
                            self.batch
                        ),
                        "make `batch` smaller",
                    ),
                };
                return Err((key, NodeError::new(Vec::new(), problem).with_help(help)));
            }
        };
        let learning_rate = self.learning_rate.in_steps(steps).map_err(|error| ("learning_rate", error))?;
        let warm_up = self.warm_up.as_ref().map(|warm_up| warm_up.in_steps(steps)).transpose();
        Ok((learning_rate, warm_up.map_err(|error| ("warm_up", error))?))
    }

    /// What of the schedule is wrong, or never comes in a training of so many epochs; an error from `train` on.
    fn schedule_problem(&self) -> Option<NodeError> {
        let under = |(key, error): (&'static str, NodeError)| error.within(Step::Key(key.to_string()));
        let (learning_rate, warm_up) = match self.schedule() {
            Ok(schedule) => schedule,
            Err(error) => return Some(under(error)),
        };
        let n_steps = u64::from(self.steps_per_epoch()?) * u64::from(self.epochs);
        let (key, error) = unreached(&learning_rate, warm_up.as_ref(), n_steps)?;
        let error = match (key, &self.warm_up) {
            ("warm_up", Some(warm_up)) => warm_up.as_written(error),
            _ => self.learning_rate.as_written(error),
        };
        Some(under((key, error)))
    }

    /// What the training program minimises in this precision, and how; not tuned.
    ///
    /// # Errors
    /// As of [`TrainConfig::update`].
    pub fn objective(&self, precision: Precision) -> Result<Objective, TrainError> {
        let update = self.update()?;
        let loss_scale = self.loss_scale.unwrap_or(match precision {
            Precision::F16 => LossScale::DYNAMIC,
            Precision::F32 | Precision::Bf16 => LossScale::None,
        });
        let accumulate = NonZeroU32::new(self.accumulate).unwrap_or(NonZeroU32::MIN);
        Ok(Objective { update, loss_scale, accumulate, average: self.average, ..Objective::default() })
    }

    /// What a network that computes in this precision is stored in.
    pub fn numbers(&self, precision: Precision) -> Numbers {
        Numbers { precision, variables: self.variables }
    }

    /// How long a run is, and what it leaves at `checkpoint`.
    pub fn plan(&self, checkpoint: Option<Place>) -> Plan {
        Plan {
            save_checkpoints_steps: self.save_checkpoints_steps.and_then(NonZeroU32::new),
            save_checkpoints_secs: self.save_checkpoints_secs.and_then(NonZeroU32::new),
            keep_checkpoint_max: NonZeroU32::new(self.keep_checkpoint_max).unwrap_or(NonZeroU32::MIN),
            ..Plan::new(u64::from(self.epochs), checkpoint)
        }
    }
}

impl Experiment {
    /// Reads an experiment.
    ///
    /// # Errors
    /// Where the file cannot be read, or is not right: then with the line. Of a schedule that is not right for as many
    /// examples as there are, [`Experiment::check_schedule`] says so once they are counted.
    pub fn read(path: &Path) -> Result<Experiment, TrainError> {
        let failed = |source| TrainError::Read { path: path.to_path_buf(), source };
        let text = files::read_text(path, yaml::MAX_BYTES as u64).map_err(failed)?;
        let (name, text) = (path.display().to_string(), text.as_str());
        let mut experiment: Experiment = yaml::from_str(&name, text)?;
        if experiment.train.label_smoothing > 0.0 && !experiment.model.is_smoothed() {
            let way = vec![Step::Key("train".to_string()), Step::KeyItself("label_smoothing".to_string())];
            let error = NodeError::new(way, "no loss of `model` has label smoothing");
            return Err(yaml::error_at(&name, text, error.with_help("leave it out: it is for cross entropies")).into());
        }
        if let Some(error) = experiment.train.misplaced() {
            return Err(yaml::error_at(&name, text, error.within(Step::Key("train".to_string()))).into());
        }
        experiment.train.n_train = experiment.data.as_ref().and_then(|data| data.n_train);
        if experiment.train.n_train.is_some() {
            experiment.check_schedule(path)?;
        }
        Ok(experiment)
    }

    /// Whether the schedule, of an experiment that was read from `path`, is right for as many examples as there are: whether
    /// whatever happens in it does before training ends. Where the number of examples is not known, and lengths are in steps,
    /// it is.
    ///
    /// # Errors
    /// With the line: a warm-up longer than the training, a change of the rate after its end; lengths in epochs of which
    /// nobody knows the steps, or that are less than a step.
    pub fn check_schedule(&self, path: &Path) -> Result<(), TrainError> {
        match self.train.schedule_problem() {
            Some(error) => Err(lines::error_in(path, error.within(Step::Key("train".to_string())))),
            None => Ok(()),
        }
    }

    /// Counts the training examples where lengths are in epochs and nobody knows how many there are; the experiment was read
    /// from `path`.
    ///
    /// # Errors
    /// Data that cannot be read, or that are not there.
    pub fn count_examples(&mut self, path: &Path) -> Result<(), TrainError> {
        if self.train.n_train.is_none() && self.train.is_by_epoch() && self.data.is_some() {
            self.train.n_train = Some(self.read_data(path)?.training.n_examples());
        }
        if self.train.is_by_epoch() { self.check_schedule(path) } else { Ok(()) }
    }

    /// What is learnt.
    pub fn task(&self) -> Arc<dyn Task> {
        self.model.task(self.train.label_smoothing)
    }

    /// Reads the data of the experiment that was read from `path`: for training, and for testing.
    ///
    /// # Errors
    /// Where there are none, or a file is not right: then with its place.
    pub fn read_data(&self, path: &Path) -> Result<Examples, TrainError> {
        match &self.data {
            Some(data) => {
                data.read(path, &self.task().features()).map_err(|error| lines::with_its_line(self, path, error))
            }
            None => Err(TrainError::NoData { path: path.to_path_buf() }),
        }
    }

    /// Reads other examples for the experiment that was read from `path`, by the rules of its data (see
    /// [`DataConfig::read_other`]); those of its task's features that are no labels.
    ///
    /// # Errors
    /// A file that is not right, with its place.
    pub fn read_other(&self, path: &Path, file: &Path) -> Result<Box<dyn Source>, TrainError> {
        let mut features = self.task().features();
        features.retain(|feature| !feature.is_label);
        self.data.clone().unwrap_or_default().read_other(path, file, &features)
    }

    /// What the training program minimises in this precision, and how, for a target on which `auto` pays.
    ///
    /// # Errors
    /// As of [`TrainConfig::update`].
    pub fn objective(&self, precision: Precision, auto: &Tuning) -> Result<Objective, TrainError> {
        Ok(Objective { tuning: self.tune.tuning(auto), mesh: self.mesh, ..self.train.objective(precision)? })
    }

    /// What a session trains on a device for which `auto` pays: of a CPU [`Tuning::none`].
    ///
    /// # Errors
    /// As of [`TrainConfig::update`].
    pub fn spec(&self, precision: Precision, auto: &Tuning) -> Result<Spec, TrainError> {
        Ok(Spec {
            task: self.task(),
            precision,
            variables: self.train.variables,
            batch: self.train.batch,
            seed: self.train.seed,
            shift: self.train.shift,
            objective: self.objective(precision, auto)?,
            steps_per_call: self.train.steps_per_call,
        })
    }

    /// The error with the line of the key that it is about, where it is one of the experiment's that was read from `path`.
    #[must_use]
    pub fn with_its_line(&self, path: &Path, error: TrainError) -> TrainError {
        lines::with_its_line(self, path, error)
    }
}

/// Where the checkpoint of the experiment at `path` goes unless told otherwise: `checkpoints/NAME-PRECISION.safetensors`
/// in the current directory.
pub fn default_checkpoint(path: &Path, precision: Precision) -> PathBuf {
    let name = path.file_stem().unwrap_or_default().to_string_lossy();
    Path::new("checkpoints").join(format!("{name}-{precision}.safetensors"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::models::mlp;
    use crate::optim::{MomentumDtype, RateDrop};
    use crate::train::data_config::Scale;
    use crate::tuning::{Keys, Remat};
    use expect_test::{Expect, expect};

    fn parse(text: &str) -> Result<Experiment, String> {
        yaml::from_str("e.yaml", text).map_err(|error: crate::models::ConfigError| error.to_string())
    }

    fn check(train: &str, expected: Expect) {
        let text = format!("model: {{kind: mlp, input: [4], n_classes: 2}}\ntrain:\n{train}");
        expected.assert_eq(&parse(&text).unwrap_err());
    }

    #[test]
    fn every_key_is_read() {
        let experiment = parse(
            "model: {kind: mlp, input: [4], n_classes: 2}
data: {csv: data/x.csv, scale: 0.5, n_test: 3}
train:
  batch: 8
  epochs: 7
  seed: 6
  shift: 2
  optimizer: {kind: momentum, momentum: 0.8, nesterov: true}
  learning_rate:
    kind: warm_up_step
    value: 0.4
    warm_up: 10
    drops: [{step: 20, multiplier: 0.1}]
  weight_decay: {value: 1.0e-4, except: [bn]}
  average: {decay: 0.999, num_updates: true, evaluate: false}
  variables: bf16_stochastic
  slots: bf16
  label_smoothing: 0.1
  loss_scale: static:128
  accumulate: 4
  steps_per_call: while:25
  save_checkpoints_steps: 100
  save_checkpoints_secs: 600
  keep_checkpoint_max: 5
mesh: {data: 2}
tune: {remat: [block*, stem]}
",
        );
        let drops = vec![RateDrop { step: 20, multiplier: 0.1 }];
        let expected = Experiment {
            model: Model::Mlp(mlp::Config::new([4], 2)),
            data: Some(DataConfig {
                csv: Some(PathBuf::from("data/x.csv")),
                scale: Some(Scale::All(0.5)),
                n_test: Some(3),
                ..DataConfig::default()
            }),
            train: TrainConfig {
                batch: 8,
                epochs: 7,
                seed: 6,
                shift: 2,
                optimizer: Optimizer::Momentum { momentum: 0.8, nesterov: true, momentum_dtype: MomentumDtype::F32 },
                learning_rate: Timed::Steps(LearningRate::WarmUpStep { value: 0.4, warm_up: 10, drops }),
                n_train: None,
                weight_decay: WeightDecay { value: 1e-4, except: vec!["bn".to_string()], decoupled: false },
                clip: None,
                warm_up: None,
                average: Some(Average { num_updates: true, evaluate: false, ..Average::new(0.999) }),
                variables: Storage::Bf16Stochastic,
                slots: SlotStorage::Bf16,
                label_smoothing: 0.1,
                loss_scale: Some(LossScale::Static { scale: 128.0 }),
                accumulate: 4,
                steps_per_call: StepsPerCall::While(NonZeroU32::new(25).unwrap()),
                save_checkpoints_steps: Some(100),
                save_checkpoints_secs: Some(600),
                keep_checkpoint_max: 5,
            },
            mesh: Mesh::replicas(NonZeroU32::new(2).unwrap()),
            tune: Keys {
                remat: Some(Remat::Scopes(vec!["block*".to_string(), "stem".to_string()])),
                ..Keys::default()
            }
            .into(),
        };
        assert_eq!(experiment, Ok(expected));
    }

    #[test]
    fn label_smoothing_that_no_loss_has_is_refused() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        let text = "model: {kind: layers, inputs: {x: [2]}, layers: [{dense: 1}], loss: mean_squared_error}\n\
                    train: {label_smoothing: 0.1}\n";
        std::io::Write::write_all(&mut file, text.as_bytes()).unwrap();
        let error = Experiment::read(file.path()).unwrap_err().to_string();
        let expected = format!("{}:2:9: no loss of `model` has label smoothing\n", file.path().display());
        assert!(error.starts_with(&expected) && error.contains("leave it out"), "{error}");
    }

    #[test]
    fn everything_but_the_model_has_a_default() {
        let experiment = parse("model: {kind: mlp, input: [4], n_classes: 2}\n").unwrap();
        assert_eq!(experiment.data, None);
        assert_eq!((experiment.train, experiment.tune), (TrainConfig::default(), Tune::Auto));
        let kinds = "model: {kind: mlp, input: [4], n_classes: 2}\ntrain: {optimizer: {kind: adam}}\n";
        assert_eq!(parse(kinds).unwrap().train.optimizer, Optimizer::ADAM);
    }

    /// As every tool has it: a number is a constant rate, a name an optimizer with its defaults, and keys have no order.
    #[test]
    fn short_forms_and_any_order_are_read() {
        let train = |text: &str| {
            parse(&format!("model: {{n_classes: 2, kind: mlp, input: [4]}}\ntrain: {{{text}}}\n")).unwrap().train
        };
        for (text, value) in [("0.01", 0.01), ("1", 1.0), ("0", 0.0)] {
            let rate = Timed::Steps(LearningRate::Constant { value });
            assert_eq!(train(&format!("learning_rate: {text}")).learning_rate, rate);
        }
        assert_eq!(train("optimizer: adam").optimizer, Optimizer::ADAM);
        let nesterov = Optimizer::Momentum { momentum: 0.9, nesterov: true, momentum_dtype: MomentumDtype::F32 };
        assert_eq!(train("optimizer: {nesterov: true, momentum: 0.9, kind: momentum}").optimizer, nesterov);
        let decay =
            "learning_rate: {staircase: true, kind: exponential, value: 1.0e-3, decay_steps: 9, decay_rate: 0.5}";
        assert_eq!(
            train(decay).learning_rate,
            train(&decay.replace("kind: exponential, ", "").replace("{", "{kind: exponential, ")).learning_rate
        );
    }

    #[test]
    fn errors_point_at_the_line() {
        check(
            "  average: {decay: 0}\n",
            expect![[r#"
            e.yaml:3:20: found floating point `0.0`, expected a number above 0 and below 1
              3 |   average: {decay: 0}
                |                    ^"#]],
        );
        check(
            "  average: {decay: 0.99, num_update: true}\n",
            expect![[r#"
            e.yaml:3:26: unknown key `num_update`, expected one of decay, num_updates, moving_statistics, evaluate
              3 |   average: {decay: 0.99, num_update: true}
                |                          ^^^^^^^^^^
              help: did you mean `num_updates`?"#]],
        );
        check(
            "  average: {num_updates: true}\n",
            expect![[r#"
            e.yaml:3:12: missing key `decay`
              3 |   average: {num_updates: true}
                |            ^^^^^^^^^^^^
              help: add `decay: …` to the block that starts here"#]],
        );
        check(
            "  batch: 0\n",
            expect![[r#"
            e.yaml:3:10: found integer `0`, expected a whole number from 1 to 2147483647
              3 |   batch: 0
                |          ^"#]],
        );
        check(
            "  batch: 3000000000\n",
            expect![[r#"
                e.yaml:3:10: found integer `3000000000`, expected a whole number from 1 to 2147483647
                  3 |   batch: 3000000000
                    |          ^^^^^^^^^^"#]],
        );
        check(
            "  optimizer: {kind: momentun}\n",
            expect![[r#"
            e.yaml:3:21: unknown value `momentun`, expected one of sgd, momentum, adam, adafactor, rmsprop, adagrad, adadelta, ftrl, adamw, lamb, lars
              3 |   optimizer: {kind: momentun}
                |                     ^^^^^^^^
              help: did you mean `momentum`?"#]],
        );
        check(
            "  optimizer: {kind: momentum, momentum: 0.9, nestorov: true}\n",
            expect![[r#"
            e.yaml:3:46: unknown key `nestorov`, expected one of momentum, nesterov, momentum_dtype
              3 |   optimizer: {kind: momentum, momentum: 0.9, nestorov: true}
                |                                              ^^^^^^^^
              help: did you mean `nesterov`?"#]],
        );
        check(
            "  optimizer: {kind: adafactor, clipping_treshold: 2}\n",
            expect![[r#"
            e.yaml:3:32: unknown key `clipping_treshold`, expected one of decay_exponent, clipping_threshold, scale_by_parameter, momentum, momentum_dtype, min_dim_size_to_factor, epsilon1, epsilon2
              3 |   optimizer: {kind: adafactor, clipping_treshold: 2}
                |                                ^^^^^^^^^^^^^^^^^
              help: did you mean `clipping_threshold`?"#]],
        );
        check(
            "  optimizer: {kind: adafactor, min_dim_size_to_factor: 0}\n",
            expect![[r#"
                e.yaml:3:56: found integer `0`, expected a whole number of at least 1
                  3 |   optimizer: {kind: adafactor, min_dim_size_to_factor: 0}
                    |                                                        ^"#]],
        );
        check(
            "  optimizer: {kind: adam, momentum_dtype: f16}\n",
            expect![[r#"
            e.yaml:3:43: unknown value `f16`, expected one of f32, bf16
              3 |   optimizer: {kind: adam, momentum_dtype: f16}
                |                                           ^^^
              help: did you mean `bf16`?"#]],
        );
        check(
            "  learning_rate:\n    kind: warm_up_step\n    value: 0.1\n    warm_up: 0\n    drops:\n      - {step: 60, multiplier: 0.1}\n      - {step: 30, multiplier: 0.01}\n",
            expect![[r#"
                e.yaml:8:7: found a drop at step 30 after one at step 60, expected ascending steps
                  8 |       - {step: 60, multiplier: 0.1}
                    |       ^"#]],
        );
        check(
            "  accumulate: 0\n",
            expect![[r#"
            e.yaml:3:15: found integer `0`, expected a whole number from 1 to 2147483647
              3 |   accumulate: 0
                |               ^"#]],
        );
        check(
            "  optimizer:\n    momentum: 0.9\n    nesterov: true\n",
            expect![[r#"
            e.yaml:4:5: missing key `kind`
              4 |     momentum: 0.9
                |     ^^^^^^^^
              help: add `kind: …` to the block that starts here"#]],
        );
        check(
            "  optimizer:\n    momentun: 0.9\n    kind: momentum\n",
            expect![[r#"
            e.yaml:4:5: unknown key `momentun`, expected one of momentum, nesterov, momentum_dtype
              4 |     momentun: 0.9
                |     ^^^^^^^^
              help: did you mean `momentum`?"#]],
        );
        check(
            "  optimizer: {momentum: 2, kind: momentum}\n",
            expect![[r#"
            e.yaml:3:25: found floating point `2.0`, expected a number from 0 up to but not including 1
              3 |   optimizer: {momentum: 2, kind: momentum}
                |                         ^"#]],
        );
        check(
            "  optimizer: {momentum: 0.9, momentum: 0.9, kind: momentum}\n",
            expect![[r#"
            e.yaml:3:14: key `momentum` is given twice
              3 |   optimizer: {momentum: 0.9, momentum: 0.9, kind: momentum}
                |              ^^^^^^^^^
              help: keep one `momentum`"#]],
        );
        check(
            "  optimizer: adm\n",
            expect![[r#"
                e.yaml:3:14: unknown value `adm`, expected one of sgd, momentum, adam, adafactor, rmsprop, adagrad, adadelta, ftrl, adamw, lamb, lars
                  3 |   optimizer: adm
                    |              ^^^
                  help: did you mean `adam`?"#]],
        );
        check(
            "  optimizer: 0.1\n",
            expect![[r#"
                e.yaml:3:14: found floating point `0.1`, expected keys with `kind: …`, one of sgd, momentum, adam, adafactor, rmsprop, adagrad, adadelta, ftrl, adamw, lamb, lars
                  3 |   optimizer: 0.1
                    |              ^^^"#]],
        );
        check(
            "  learning_rate: exponential\n",
            expect![[r#"
            e.yaml:3:18: missing key `value`
              3 |   learning_rate: exponential
                |                  ^^^^^^^^^^^
              help: add `value: …` to the block that starts here"#]],
        );
        check(
            "  learning_rate: -0.1\n",
            expect![[r#"
            e.yaml:3:18: found floating point `-0.1`, expected 0, or a finite number above 0 in f32
              3 |   learning_rate: -0.1
                |                  ^^^^"#]],
        );
        check(
            "  learning_rate: [0.1]\n",
            expect![[r#"
                e.yaml:3:18: found a list, expected a number, or keys with `kind: …`, one of constant, exponential, cosine, polynomial, linear, piecewise, inverse_sqrt, warm_up_step
                  3 |   learning_rate: [0.1]
                    |                  ^"#]],
        );
        check(
            "  optimizer: {kind: sgd, momentum: 0.9}\n",
            expect![[r#"
            e.yaml:3:26: unknown key `momentum`, expected no key here
              3 |   optimizer: {kind: sgd, momentum: 0.9}
                |                          ^^^^^^^^
              help: `momentum` goes with `kind: momentum`, `kind: adafactor`, `kind: rmsprop`, `kind: lars`"#]],
        );
        check(
            "  learning_rate: {kind: constant}\n",
            expect![[r#"
            e.yaml:3:18: missing key `value`
              3 |   learning_rate: {kind: constant}
                |                  ^^^^^
              help: add `value: …` to the block that starts here"#]],
        );
        check(
            "  epoch: 3\n",
            expect![[r#"
                e.yaml:3:3: unknown key `epoch`, expected one of batch, epochs, seed, shift, optimizer, learning_rate, warm_up, weight_decay, clip, average, variables, slots, label_smoothing, loss_scale, accumulate, steps_per_call, save_checkpoints_steps, save_checkpoints_secs, keep_checkpoint_max
                  3 |   epoch: 3
                    |   ^^^^^
                  help: did you mean `epochs`?"#]],
        );
    }

    #[test]
    fn what_is_tuned_is_said_beside_model_and_train() {
        let tune = |text: &str| parse(&format!("model: {{kind: mlp, input: [4], n_classes: 2}}\ntune: {text}\n"));
        assert_eq!(tune("auto").unwrap().tune, Tune::Auto);
        assert_eq!(tune("none").unwrap().tune, Tune::None);
        let check = |text: &str, expected: Expect| expected.assert_eq(&tune(text).unwrap_err());
        check(
            "all",
            expect![[r#"
            e.yaml:2:7: unknown value `all`, expected one of auto, none
              2 | tune: all
                |       ^^^"#]],
        );
        check(
            "[remat]",
            expect![[r#"
            e.yaml:2:7: found a list, expected auto, none, or keys such as {remat: elementwise}
              2 | tune: [remat]
                |       ^"#]],
        );
        check(
            "{remt: none}",
            expect![[r#"
            e.yaml:2:8: unknown key `remt`, expected one of base, stem, pair_columns, norm_gradient, softmax, layer_remat, remat, cotangent_remat, pace
              2 | tune: {remt: none}
                |        ^^^^
              help: did you mean `remat`?"#]],
        );
        check(
            "{remat: everything}",
            expect![[r#"
            e.yaml:2:15: unknown value `everything`, expected one of none, elementwise, convolutional
              2 | tune: {remat: everything}
                |               ^^^^^^^^^^"#]],
        );
        check(
            "{layer_remat: {weights: some}}",
            expect![[r#"
            e.yaml:2:31: found string "some", expected a number of layers, or all
              2 | tune: {layer_remat: {weights: some}}
                |                               ^^^^"#]],
        );
        check(
            "{base: none, recompute: {weights: 0}, residual: true}",
            expect![[r#"
            e.yaml:2:20: `recompute` is called `layer_remat`
              2 | tune: {base: none, recompute: {weights: 0}, residual: true}
                |                    ^^^^^^^^^
              help: write `tune: {base: none, layer_remat: {weights: 0}, cotangent_remat: true}`"#]],
        );
        check(
            "{base: tpu-v2}",
            expect![[r#"
            e.yaml:2:14: unknown value `tpu-v2`, expected one of auto, none
              2 | tune: {base: tpu-v2}
                |              ^^^^^^"#]],
        );
    }

    /// Earlier versions read these keys there.
    #[test]
    fn a_choice_that_stands_elsewhere_is_quoted_as_it_is_written_now() {
        check(
            "  remat: [\"*/conv3\", block1]\n",
            expect![[r#"
            e.yaml:3:3: `remat` is a choice for a target, expected under `tune`
              3 |   remat: ["*/conv3", block1]
                |   ^^^^^
              help: write `tune: {remat: ["*/conv3", block1]}` beside `model` and `train`, or nothing: `tune: auto`, the default, is what pays on the target"#]],
        );
        let check = |text: &str, expected: Expect| expected.assert_eq(&parse(text).unwrap_err());
        check(
            "model:
  kind: resnet
  stem: pool_first # as it was
  norm_gradient: per_feature
  pair_columns: true
train: {remat: elementwise}
",
            expect![[r#"
                e.yaml:3:3: `stem` is a choice for a target, expected under `tune`
                  3 |   stem: pool_first # as it was
                    |   ^^^^
                  help: write `tune: {stem: pool_first, pair_columns: true, norm_gradient: per_feature, remat: elementwise}` beside `model` and `train`, or nothing: `tune: auto`, the default, is what pays on the target"#]],
        );
        check(
            "model:
  kind: transformer
  layers: 2
  recompute:
    weights: 0
  softmax: one_pass
",
            expect![[r#"
                e.yaml:4:3: `recompute` is a choice for a target, expected under `tune`
                  4 |   recompute:
                    |   ^^^^^^^^^
                  help: write `tune: {softmax: one_pass, layer_remat: {weights: 0}}` beside `model` and `train`, or nothing: `tune: auto`, the default, is what pays on the target"#]],
        );
        check(
            "model: {kind: mlp, input: [4], n_classes: 2}\nresidual: false\n",
            expect![[r#"
            e.yaml:2:1: `residual` is a choice for a target, expected under `tune`
              2 | residual: false
                | ^^^^^^^^
              help: write `tune: {cotangent_remat: false}` beside `model` and `train`, or nothing: `tune: auto`, the default, is what pays on the target"#]],
        );
    }

    #[test]
    fn checkpoints_of_precisions_do_not_overwrite_each_other() {
        let path = |precision| default_checkpoint(Path::new("examples/digits.yaml"), precision);
        assert_eq!(path(Precision::Bf16), Path::new("checkpoints/digits-bf16.safetensors"));
        assert_eq!(path(Precision::F32), Path::new("checkpoints/digits-f32.safetensors"));
    }

    #[test]
    fn an_experiment_without_data_says_what_to_add() {
        let experiment = parse("model: {kind: mlp, input: [4], n_classes: 2}\n").unwrap();
        assert_eq!(
            experiment.read_data(Path::new("e.yaml")).unwrap_err().to_string(),
            "e.yaml: the experiment has no `data`, which training and evaluation need\n\
             help: add a `data:` block with `csv` and `n_test`, as in examples/digits.yaml"
        );
    }

    #[test]
    fn a_missing_experiment_is_named() {
        let error = Experiment::read(Path::new("/nonexistent/e.yaml")).unwrap_err();
        assert_eq!(error.to_string(), "/nonexistent/e.yaml: cannot read the experiment");
    }
}
