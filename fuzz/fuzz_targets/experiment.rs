//! Any bytes as an experiment: an error that prints, or one whose program is built (where no number in it is large) and
//! verifies.
#![no_main]

use bf16scope::experiment::Experiment;
use bf16scope::graph::Precision;
use bf16scope::tuning::Tuning;
use bf16scope::{document, hlo, train};
use libfuzzer_sys::fuzz_target;

/// Networks of any size may be asked for, and one of a million layers takes as long as it takes: of numbers with so many
/// digits in a row none is built.
const MAX_DIGITS: usize = 2;

fn is_small(text: &str) -> bool {
    let digits = text.split(|c: char| !c.is_ascii_digit() && c != '_').map(str::len);
    digits.max().unwrap_or(0) <= MAX_DIGITS && !text.contains("0x") && !text.contains("0o")
}

fuzz_target!(|bytes: &[u8]| {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let experiment = match document::from_str::<Experiment>("experiment.yaml", text) {
        Ok(experiment) => experiment,
        Err(error) => return drop(error.to_string()),
    };
    drop((experiment.train.steps_per_epoch(), experiment.train.plan(None)));
    let spec = match experiment.spec(Precision::Bf16, &Tuning::none()) {
        Ok(spec) => spec,
        Err(error) => return drop(error.to_string()),
    };
    if !is_small(text) {
        return;
    }
    match train::program::training(&*spec.task, spec.precision, i64::from(spec.batch), &spec.objective) {
        Ok(program) => hlo::verify(&program.program.module).expect("what is built verifies"),
        Err(error) => drop(error.to_string()),
    }
});
