//! `--tune`: the tuning of a model's programs, instead of the file's.

use bf16scope_passes::tuning::Tuning;
use bf16scope_pjrt::Platform;
use bf16scope_study::TuneChoice;
use bf16scope_tpu::{Spec, Target};
use bf16scope_train::experiment::Experiment;

/// The argument for programs of a model.
#[derive(Debug, clap::Args)]
pub(super) struct TuneArg {
    /// How to tune a model's programs, instead of the file's `tune`: none is the program as TensorFlow writes it, auto does
    /// what pays off on the target; a target, such as tpu-v2, tunes for that one, wherever the program runs
    #[arg(long, value_name = "auto|none|TARGET")]
    tune: Option<TuneChoice>,
}

impl TuneArg {
    pub(super) fn is_some(&self) -> bool {
        self.tune.is_some()
    }

    /// The flag with which a run was trained.
    pub(super) fn recorded(choice: Option<TuneChoice>) -> TuneArg {
        TuneArg { tune: choice }
    }

    /// The chosen tuning.
    pub(super) fn choice(&self) -> TuneChoice {
        self.tune.clone().unwrap_or_default()
    }

    /// The tuning of an experiment's programs for `target`.
    pub(super) fn tuning(&self, experiment: &Experiment, target: &Target) -> Tuning {
        self.choice().tuning(&experiment.tune, target)
    }

    /// The flag as text, for a command that continues this one.
    pub(super) fn again(&self) -> String {
        self.tune.as_ref().map_or(String::new(), |choice| format!(" --tune {choice}"))
    }
}

/// The help of an option that takes TPUs: their names, followed by `more`.
pub(super) fn targets_help(more: &str) -> String {
    let mut names = Target::tpus();
    let last = names.pop().unwrap_or_default();
    format!("{} or {last}{more}", names.join(", "))
}

/// The target of a device. A plugin from a file is unknown, and is not tuned for.
pub(super) fn target_of(device: &Platform) -> Target {
    match *device == Platform::tpu() {
        // All TPUs are tuned alike.
        true => Target::board(&Spec::ALL[0]),
        false => Target::Cpu,
    }
}
