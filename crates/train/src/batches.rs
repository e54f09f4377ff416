//! The batches of a run as a function of seed, epoch and step: the examples of each device call, the same for a run and
//! for its replay.

use super::checkpoint::DataIdentity;
use super::error::{TrainError, TrainErrorKind, TrainPlace};
use super::spec::Spec;
use super::steps_per_call::StepsPerCall;
use bf16scope_data::{Ask, DataPlace, DrawVersion, Loader, Source};

/// The data of a run.
#[derive(Clone, Copy, Debug)]
pub struct Data<'a> {
    /// Training examples.
    pub training: &'a dyn Source,
    /// Test examples, evaluated after each epoch.
    pub test: &'a dyn Source,
}

impl Data<'_> {
    /// The fingerprints that identify these data.
    pub fn identity(&self) -> DataIdentity {
        DataIdentity {
            training: self.training.fingerprint(),
            test: self.test.fingerprint(),
            classes: self.training.classes(),
            learnt: self.training.learnt().cloned(),
        }
    }
}

/// The batches of a run of `spec`, as one host reads them.
pub(super) fn loader<'a>(spec: &Spec, training: &'a dyn Source) -> Result<Loader<'a>, TrainError> {
    let (features, compute) = (spec.task.features(), spec.precision.compute());
    match Loader::new(training, &features, compute, spec.batch as usize, spec.seed) {
        Err(error) => Err(match error.place() {
            DataPlace::Argument("batch") => batch_size(spec.batch as usize, training.n_examples()),
            _ => error.into(),
        }),
        Ok(loader) => Ok(loader.shifted(spec.shift)?),
    }
}

/// The error of a batch size that is 0 or larger than the training set.
fn batch_size(batch: usize, n_examples: u64) -> TrainError {
    let (text, help) = match (batch, n_examples) {
        (_, 0) => ("there are no training examples".to_string(), "keep fewer examples for testing".to_string()),
        (0, _) => {
            ("a batch of 0 trains on nothing".to_string(), format!("set `batch` to 1 up to {n_examples} (--batch)"))
        }
        _ => (
            format!(
                "a batch of {batch} does not fit: there are {n_examples} training examples, without those for testing"
            ),
            format!("set `batch` to {n_examples} or less (--batch), or keep fewer examples for testing"),
        ),
    };
    TrainError::new(TrainErrorKind::Data, TrainPlace::Nowhere, text).with_help(help)
}

/// The batches of host `host.0` of `host.1` of a slice: its contiguous part of every batch, drawn as when the run
/// began.
pub(super) fn loader_of_host<'a>(
    spec: &Spec,
    training: &'a dyn Source,
    host: (u32, u32),
    draws: DrawVersion,
) -> Result<Loader<'a>, TrainError> {
    let (features, compute) = (spec.task.features(), spec.precision.compute());
    let (number, n_hosts) = host;
    let batch = spec.batch as usize / n_hosts as usize;
    let loader = Loader::new(training, &features, compute, batch, spec.seed)?;
    Ok(loader.of_host(number, n_hosts)?.shifted(spec.shift)?.drawing(draws))
}

/// The calls of an epoch from a step on. A call makes several steps where it starts at a multiple of them and the epoch
/// has as many left, so the split depends on nothing but the place in the epoch.
pub(super) fn asks(
    calls: StepsPerCall,
    epoch: u64,
    step: u64,
    steps_per_epoch: u64,
) -> impl Iterator<Item = Ask> + Send + use<> {
    let n = calls.n().get();
    let per_call = u64::from(n);
    let n_of = move |step: u64| {
        let is_whole = step.is_multiple_of(per_call) && step + per_call <= steps_per_epoch;
        if is_whole { n } else { 1 }
    };
    let next = move |step: &u64| Some(step + u64::from(n_of(*step))).filter(|step| *step < steps_per_epoch);
    let first = Some(step).filter(|step| *step < steps_per_epoch);
    std::iter::successors(first, next).map(move |step| Ask::Steps { epoch, step, n: n_of(step) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_that_does_not_fit_says_what_does() {
        let error = |batch, n_examples| batch_size(batch, n_examples).to_string();
        assert_eq!(error(4, 0), "there are no training examples\nhelp: keep fewer examples for testing");
        assert_eq!(error(0, 9), "a batch of 0 trains on nothing\nhelp: set `batch` to 1 up to 9 (--batch)");
        assert_eq!(
            error(10, 9),
            "a batch of 10 does not fit: there are 9 training examples, without those for testing\nhelp: set `batch` to 9 or \
             less (--batch), or keep fewer examples for testing"
        );
    }
}
