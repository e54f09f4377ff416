//! Runs without anomalies: the flight recorder raises no alarm. Short ones here; more than ten with examples and
//! recipes on real data are in `ci/long`.

use crate::run;

use bf16scope::experiment::Experiment;
use bf16scope::graph::{Init, Precision};
use bf16scope::hlo::ops::{BinaryOp, SliceDim};
use bf16scope::optim::{Optimizer, Update};
use bf16scope::pjrt::{Client, Platform, Setup};
use bf16scope::prelude::*;
use bf16scope::train::watch::{Watch, anomalies};
use bf16scope::train::{Data, Event, Objective, RunPlan, Session, Spec, run as train};
use bf16scope::tuning::Tuning;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

fn examples() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("examples")
}

/// Trains an experiment of `examples`, or a variation of it, for some epochs, with a record every few steps.
fn check(name: &str, change: impl Fn(String) -> String, precision: Precision, n_epochs: u32) {
    let path = examples().join(name);
    let text = change(std::fs::read_to_string(&path).unwrap());
    // Paths of the data are relative to the file.
    let folder = path.parent().unwrap();
    let file = tempfile::Builder::new().prefix(".clean").suffix(".yaml").tempfile().unwrap();
    let text = text.replace("../../data/", &format!("{}/data/", examples().display()));
    let text = text.replace(" data/", &format!(" {}/data/", folder.display()));
    std::fs::write(file.path(), text).unwrap();
    let mut experiment = Experiment::read(file.path()).unwrap_or_else(|error| panic!("{name}: {error}"));
    let examples =
        experiment.read_data(file.path(), &Setup::from_env()).unwrap_or_else(|error| panic!("{name}: {error}"));
    experiment.train.n_train = Some(examples.training.n_examples());
    let n = experiment.mesh.mesh.n_devices();
    let client = match n {
        1 => run::client_for_words().clone(),
        n => run::quickest(Client::for_platform(&Platform::cpu_devices(n).unwrap(), &Setup::from_env()).unwrap()),
    };
    let spec = experiment.spec(precision, &Tuning::none()).unwrap();
    let session = Session::new(&client, spec).unwrap_or_else(|error| panic!("{name}: {error}"));
    silent(session, examples.data(), n_epochs.into(), &format!("{name} in {precision}"));
}

/// Trains with a record every four steps, without anomalies.
fn silent(mut session: Session, data: Data<'_>, n_epochs: u64, what: &str) {
    let mut records = Vec::new();
    let watch = Some(Watch { every: NonZeroU32::new(4).unwrap() });
    let plan = RunPlan { watch, ..RunPlan::new(n_epochs, None) };
    let result = train(&mut session, data, &plan, &AtomicBool::new(false), &mut |event| {
        if let Event::Watched(record) = event {
            records.push(record.clone());
        }
    });
    result.unwrap_or_else(|error| panic!("{what}: {error}"));
    assert!(records.len() >= 3, "{what}: {} looks", records.len());
    assert_eq!(anomalies(&records), [], "{what}");
    println!("{what}: {} looks, nothing is wrong", records.len());
}

fn as_it_is(text: String) -> String {
    text
}

/// A custom task with an LSTM: images row by row, like a text word by word; one kernel for all unrolled steps.
#[derive(Debug)]
struct Lstm {
    units: i64,
    size: i64,
}

impl Task for Lstm {
    fn name(&self) -> &str {
        "lstm"
    }
    fn features(&self) -> Vec<Feature> {
        let size = self.size;
        vec![Feature::compute("images", [size, size, 1]), Feature::exact("labels", DType::S32, []).below(10).label()]
    }
    fn call(&self, s: &Scope, features: &Features<'_>, mode: Mode) -> Outputs {
        let (units, size) = (self.units, self.size);
        let logits = s.low_precision(|s| {
            let images = features.get("images");
            let (dtype, batch) = (images.dtype(), images.dims()[0]);
            let part = |x: &Tensor, [n_before, n]: [i64; 2], axis: usize| {
                let dims = x.dims();
                let whole = |(at, &limit): (usize, &i64)| match at == axis {
                    true => SliceDim { start: n_before, limit: n_before + n, stride: 1 },
                    false => SliceDim { start: 0, limit, stride: 1 },
                };
                x.slice(&dims.iter().enumerate().map(whole).collect::<Vec<_>>())
            };
            let last = s.within("lstm", |s| {
                let kernel = s.variable("kernel", dtype, [size + units, 4 * units], Init::GLOROT_UNIFORM).value;
                let bias = s.variable("bias", dtype, [4 * units], Init::Zeros).value;
                let zeros = || s.graph().full(dtype, &[batch, units], 0.0);
                (0..size).fold((zeros(), zeros()), |(h, c), step| {
                    let x = part(&images, [step, 1], 1).reshape([batch, size]);
                    let gates = Tensor::concatenate(&[&x, &h], 1).matmul(&kernel) + &bias;
                    let gate = |number: i64| part(&gates, [number * units, units], 1);
                    // Keras' unit_forget_bias: the gate remembers at the start.
                    let remembered = nn::sigmoid(&gate(1).binary_scalar(BinaryOp::Add, 1.0)) * &c;
                    let c = remembered + nn::sigmoid(&gate(0)) * nn::tanh(&gate(2));
                    (nn::sigmoid(&gate(3)) * nn::tanh(&c), c)
                })
            });
            nn::dense(s, &last.0, "logits", &Dense { units: 10, ..Dense::default() })
        });
        let logits = logits.cast(DType::F32);
        if mode == Mode::Predict {
            return Outputs::new().prediction("class", &nn::arg_max(&logits));
        }
        let loss = nn::sparse_softmax_cross_entropy_per_example(&logits, &features.get("labels"), 0.0);
        Outputs::new().loss(Loss::weighted(&loss, &features.weight()))
    }
}

fn check_lstm(units: i64, precision: Precision, n_epochs: u64) {
    let path = examples().join("digits.yaml");
    let experiment = Experiment::read(&path).unwrap();
    let examples = experiment.read_data(&path, &Setup::from_env()).unwrap();
    let update = Update { optimizer: Optimizer::ADAM, ..Update::default() };
    let objective = Objective { update, ..Objective::default() };
    let spec = Spec { precision, objective, batch: 128, seed: 1, ..Spec::new(Lstm { units, size: 8 }) };
    let session = Session::new(run::client(), spec).unwrap();
    silent(session, examples.data(), n_epochs, &format!("an LSTM of {units} in {precision}"));
}

#[test]
fn an_lstm() {
    check_lstm(16, Precision::Bf16, 1);
}

/// Too long for `cargo test`: `ci/long` runs them.
#[cfg_attr(not(feature = "long-tests"), allow(dead_code))]
mod long {
    use super::*;

    /// An_lstm is the short form.
    #[cfg_attr(feature = "long-tests", test)]
    fn larger_lstms() {
        check_lstm(128, Precision::Bf16, 4);
        check_lstm(128, Precision::F32, 2);
    }

    /// Small twins of what is trained for days: an encoder of text, and convolutions of one filter a feature.
    ///
    /// Watch::a_watched_run_has_the_bits_of_one_that_is_not is the short form.
    #[cfg_attr(feature = "long-tests", test)]
    fn small_twins_of_recipes() {
        check("recipes/small/bert_finetune.yaml", as_it_is, Precision::Bf16, 2);
        check("recipes/small/mnasnet_a1.yaml", as_it_is, Precision::Bf16, 1);
        check("recipes/small/efficientnet_b0.yaml", as_it_is, Precision::Bf16, 1);
        check("recipes/small/resnet50_lars.yaml", as_it_is, Precision::Bf16, 1);
    }

    /// The digits: batch norms, dropout of images that are shifted, momentum.
    ///
    /// Watch::a_watched_run_has_the_bits_of_one_that_is_not is the short form.
    #[cfg_attr(feature = "long-tests", test)]
    fn digits_in_three_precisions_on_replicas_and_with_averages() {
        check("digits.yaml", as_it_is, Precision::Bf16, 2);
        check("digits.yaml", as_it_is, Precision::F32, 1);
        if run::has_f16() {
            check("digits.yaml", as_it_is, Precision::F16, 1);
        }
        check("digits.yaml", |text| text + "mesh: {data: 2}\n", Precision::Bf16, 1);
        let with = |keys: &'static str| move |text: String| text.replace("train:\n", &format!("train:\n  {keys}\n"));
        check("digits.yaml", with("average: {decay: 0.9}"), Precision::Bf16, 1);
        check("digits.yaml", with("variables: bf16_stochastic"), Precision::Bf16, 1);
    }

    /// A decoder of text, and a perceptron.
    ///
    /// Watch::a_watched_run_has_the_bits_of_one_that_is_not is the short form.
    #[cfg_attr(feature = "long-tests", test)]
    fn text_and_a_perceptron() {
        check("recipes/small/gpt2_small.yaml", as_it_is, Precision::Bf16, 5);
        check("recipes/small/gpt2_small.yaml", as_it_is, Precision::F32, 4);
        check("mlp.yaml", as_it_is, Precision::Bf16, 2);
    }

    /// Embeddings of words: a batch reads few of their rows.
    ///
    /// Watch::a_watched_run_has_the_bits_of_one_that_is_not is the short form.
    #[cfg_attr(feature = "long-tests", test)]
    fn embeddings_of_few_words() {
        let small = |text: String| text.replace("[16, 32, 64]", "[8, 16]");
        check("two_tower.yaml", small, Precision::Bf16, 2);
        let adam = |text: String| text.replace("{kind: adafactor}", "adam").replace("value: 0.02", "value: 0.001");
        check("two_tower.yaml", |text| small(adam(text)), Precision::Bf16, 2);
        check("two_tower.yaml", |text| small(adam(text)), Precision::F32, 1);
    }

    /// Residual blocks of convolutions.
    ///
    /// Watch::a_watched_run_has_the_bits_of_one_that_is_not is the short form.
    #[cfg_attr(feature = "long-tests", test)]
    fn a_residual_network_of_images() {
        check("recipes/small/resnet50.yaml", as_it_is, Precision::Bf16, 1);
    }
}
