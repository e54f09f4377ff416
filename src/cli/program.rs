//! What `emit` and `compile` share: from a YAML file to a verified program.

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use clap::ValueEnum;

use crate::graph::{Precision, Program};
use crate::hlo::verify::verify;
use crate::train::{Experiment, program};

/// Which program of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Which {
    /// One training step: state and a batch in, new state and loss out
    Train,
    /// Logits of a batch
    Infer,
}

/// Arguments that choose a program.
#[derive(Debug, clap::Args)]
pub(super) struct Choice {
    /// The model: a YAML file such as examples/resnet50.yaml
    #[arg(value_name = "MODEL.yaml")]
    pub(super) model: PathBuf,
    /// Which program of it
    #[arg(long, value_enum, default_value_t = Which::Train)]
    pub(super) program: Which,
    /// Examples in a batch, if not what the file says
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=i64::from(i32::MAX)))]
    pub(super) batch: Option<u32>,
}

/// Reads a model file, and names it if that fails.
pub(super) fn read(path: &Path) -> anyhow::Result<Experiment> {
    Ok(Experiment::read(path)?)
}

impl Choice {
    /// Examples in a batch.
    pub(super) fn batch(&self, experiment: &Experiment) -> u32 {
        self.batch.unwrap_or(experiment.train.batch)
    }

    /// Builds and verifies the program.
    pub(super) fn build(&self, experiment: &Experiment, precision: Precision) -> anyhow::Result<Program> {
        let batch = i64::from(self.batch(experiment));
        let built = match self.program {
            Which::Train => program::training(&experiment.model, precision, batch, &experiment.train.objective()),
            Which::Infer => program::inference(&experiment.model, precision, batch),
        };
        let program = built.with_context(|| format!("{} cannot be built", self.model.display()))?;
        let _span = tracing::info_span!("verify").entered();
        verify(&program.module)
            .context("the emitted module is broken: this is a bug of bf16scope, please report it")?;
        Ok(program)
    }
}
