//! Ten runs on real data with nothing wrong: the black box raises no alarm.

use crate::run;

use bf16scope::experiment::Experiment;
use bf16scope::graph::Precision;
use bf16scope::pjrt::{Client, Platform, Setup};
use bf16scope::train::watch::{Watch, anomalies};
use bf16scope::train::{Event, RunPlan, Session, run as train};
use bf16scope::tuning::Tuning;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

fn examples() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("examples")
}

/// Trains an experiment of `examples`, or a text beside them, for some epochs, with a look every few steps.
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
        1 => run::client().clone(),
        n => run::quick(Client::of(&Platform::cpu_devices(n).unwrap(), &Setup::from_env()).unwrap()),
    };
    let spec = experiment.spec(precision, &Tuning::none()).unwrap();
    let mut session = Session::new(&client, spec).unwrap_or_else(|error| panic!("{name}: {error}"));
    let mut records = Vec::new();
    let watch = Some(Watch { every: NonZeroU32::new(4).unwrap() });
    let plan = RunPlan { watch, ..RunPlan::new(n_epochs.into(), None) };
    let result = train(&mut session, examples.data(), &plan, &AtomicBool::new(false), &mut |event| {
        if let Event::Watched(record) = event {
            records.push(record.clone());
        }
    });
    result.unwrap_or_else(|error| panic!("{name}: {error}"));
    assert!(records.len() >= 4, "{name}: {} looks", records.len());
    assert_eq!(anomalies(&records), [], "{name} in {precision}");
}

fn as_it_is(text: String) -> String {
    text
}

/// The digits: batch norms, dropout of images that are shifted, momentum.
#[test]
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
#[test]
fn text_and_a_perceptron() {
    check("recipes/small/gpt2_small.yaml", as_it_is, Precision::Bf16, 5);
    check("recipes/small/gpt2_small.yaml", as_it_is, Precision::F32, 4);
    check("mlp.yaml", as_it_is, Precision::Bf16, 2);
}

/// Residual blocks of convolutions.
#[test]
fn a_residual_network_of_images() {
    check("recipes/small/resnet50.yaml", as_it_is, Precision::Bf16, 1);
}
