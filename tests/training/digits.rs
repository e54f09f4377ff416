//! The recipe of the example of digits, whole or squeezed into fewer epochs, and the accuracy that it ends with.

use crate::run;

use bf16scope::experiment::{Examples, Experiment, Timed};
use bf16scope::optim::LearningRate;
use bf16scope::train::{RunPlan, Session, Spec, run as train};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::AtomicBool;

/// Epochs of the example.
pub const WHOLE: u32 = 25;

/// Epochs of a run that `cargo test` has the time for; `ci/long` makes the whole ones.
pub const SHORT: u32 = 6;

/// The example's file.
pub fn path() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/digits.yaml")
}

/// The digits: training and test.
pub fn digits() -> &'static Examples {
    static DIGITS: OnceLock<Examples> = OnceLock::new();
    DIGITS.get_or_init(|| {
        Experiment::read(path()).unwrap().read_data(path(), &bf16scope::pjrt::Setup::from_env()).unwrap()
    })
}

/// The example, with the drops of its learning rate where so many epochs have them.
pub fn recipe(n_epochs: u32) -> Experiment {
    let mut experiment = Experiment::read(path()).unwrap();
    assert_eq!(experiment.train.epochs, WHOLE);
    experiment.train.epochs = n_epochs;
    let Timed::Steps(LearningRate::WarmUpStep { drops, .. }) = &mut experiment.train.learning_rate else {
        panic!("the example has another schedule")
    };
    drops.iter_mut().for_each(|drop| drop.step = drop.step * n_epochs / WHOLE);
    experiment
}

/// The accuracy on the test digits that so many epochs end with.
pub fn accuracy(spec: Spec, n_epochs: u32) -> f64 {
    let mut session = Session::new(run::optimized_client(), spec).unwrap();
    let plan = RunPlan::new(u64::from(n_epochs), None);
    let summary = train(&mut session, digits().data(), &plan, &AtomicBool::new(false), &mut |_| {}).unwrap();
    assert_eq!(summary.epochs.len() as u32, n_epochs);
    summary.value("accuracy").unwrap()
}
