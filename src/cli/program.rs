//! What `emit` and `compile` share: from a YAML file, or a file that holds a module, to a verified program.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use clap::ValueEnum;

use super::mesh::{MeshArgs, SplitArgs, check_slice};
use super::module_file;
use super::tune::TuneArg;

use crate::experiment::Experiment;
use crate::graph::{Precision, Program, Storage};
use crate::hlo::Module;
use crate::hlo::verify::verify;
use crate::task::{Feature, FeatureDType};
use crate::tpu::Target;
use crate::train::{Mesh, Objective, ProgramError, program};
use crate::tuning::Tuning;

/// Which program of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Which {
    /// One training step: state and a batch in, new state and loss out
    Train,
    /// Predictions for a batch
    Infer,
}

/// Arguments that choose a program.
#[derive(Debug, clap::Args)]
pub(super) struct Choice {
    /// A model in YAML (examples/resnet50.yaml), or a module: HLO (.txt, .hlo, .pb) or StableHLO (.mlir, .mlirbc, jax.export)
    #[arg(value_name = "MODEL.yaml|MODULE")]
    pub(super) model: PathBuf,
    /// Which program of a model [default: train]
    #[arg(long, value_enum)]
    program: Option<Which>,
    /// Batch size of a model, instead of the file's
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=i64::from(i32::MAX)))]
    batch: Option<u32>,
    /// Precision of a model's network: f32, bf16 or f16 [default: bf16]
    #[arg(long)]
    precision: Option<Precision>,
    #[command(flatten)]
    mesh: MeshArgs,
    #[command(flatten)]
    split: SplitArgs,
    /// What a model's variables are stored in, instead of the file's: f32, bf16_stochastic, bf16_compensated or bf16_nearest
    #[arg(long, value_name = "STORAGE")]
    variables: Option<Storage>,
    #[command(flatten)]
    pub(super) tune: TuneArg,
}

/// Reads a model file, and names it if that fails.
pub(super) fn read(path: &Path) -> anyhow::Result<Experiment> {
    let mut experiment = Experiment::read(path)?;
    experiment.count_examples(path)?;
    Ok(experiment)
}

impl Choice {
    /// Whether the file holds a module, not a model.
    pub(super) fn is_module(&self) -> bool {
        module_file::is_module(&self.model)
    }

    /// The module, if the file holds one. Options that choose among a model's programs are then an error.
    pub(super) fn module(&self) -> anyhow::Result<Option<Module>> {
        self.module_by(module_file::load)
    }

    /// As [`Choice::module`], loaded in another way.
    pub(super) fn module_by(
        &self,
        load: impl FnOnce(&Path) -> anyhow::Result<Module>,
    ) -> anyhow::Result<Option<Module>> {
        if !self.is_module() {
            return Ok(None);
        }
        let chosen = [
            ("--program", self.program.is_some()),
            ("--batch", self.batch.is_some()),
            ("--precision", self.precision.is_some()),
            (self.mesh.flag().unwrap_or("--mesh"), self.mesh.flag().is_some()),
            ("--split", self.split.is_some()),
            ("--variables", self.variables.is_some()),
            ("--tune", self.tune.is_some()),
        ];
        if let Some((flag, _)) = chosen.iter().find(|(_, is_chosen)| *is_chosen) {
            bail!(
                "{flag} chooses among a model's programs, and {} is one program already\nhelp: leave {flag} out, or give \
                 the model's YAML file",
                self.model.display()
            );
        }
        load(&self.model).map(Some)
    }

    /// Which program of a model.
    pub(super) fn program(&self) -> Which {
        self.program.unwrap_or(Which::Train)
    }

    /// What a model's network computes in.
    pub(super) fn precision(&self) -> Precision {
        self.precision.unwrap_or(Precision::Bf16)
    }

    /// Examples in a batch.
    pub(super) fn batch(&self, experiment: &Experiment) -> u32 {
        self.batch.unwrap_or(experiment.train.batch)
    }

    /// What a model's variables are stored in.
    pub(super) fn variables(&self, experiment: &Experiment) -> Storage {
        self.variables.unwrap_or(experiment.train.variables)
    }

    /// Builds and verifies the program, for a target.
    pub(super) fn build(
        &self,
        experiment: &Experiment,
        precision: Precision,
        target: &Target,
    ) -> anyhow::Result<Program> {
        self.mesh.check(self.program())?;
        let (mesh, n_partitions) = (self.mesh.over(*experiment.mesh)?, self.mesh.n_partitions(*experiment.mesh));
        if self.program() == Which::Train {
            check_slice(mesh, n_partitions, target)?;
        }
        let tuning = self.tune.tuning(experiment, target);
        let mut stored = experiment.clone();
        stored.train.variables = self.variables(experiment);
        let mut program = build(&stored, self.program(), precision, self.batch(experiment), mesh, tuning)
            .map_err(|error| match error.downcast::<ProgramError>() {
                Ok(error) => experiment.with_its_line(&self.model, error.into()).into(),
                Err(other) => other,
            })
            .with_context(|| format!("{} cannot be built", self.model.display()))?;
        program.module = self.split.apply(program.module, n_partitions, &experiment.mesh.split, mesh.sum)?;
        Ok(program)
    }
}

/// Builds and verifies a program of a model, tuned as said; a training step is that of each device of the mesh.
pub(super) fn build(
    experiment: &Experiment,
    which: Which,
    precision: Precision,
    batch: u32,
    mesh: Mesh,
    tuning: Tuning,
) -> anyhow::Result<Program> {
    let (task, batch) = (experiment.task(), i64::from(batch));
    let program = match which {
        Which::Train => {
            let objective = Objective { tuning, mesh, ..experiment.train.objective(precision)? };
            program::training(&*task, experiment.train.numbers(precision), batch, &objective)?
        }
        Which::Infer => program::prediction(&*task, experiment.train.numbers(precision), batch, &tuning)?,
    };
    let program = program.program;
    let _span = tracing::info_span!("verify").entered();
    verify(&program.module).context("the emitted module is broken: this is a bug of bf16scope, please report it")?;
    Ok(program)
}

/// What a batch of a model is of.
pub(super) fn unit(experiment: &Experiment) -> &'static str {
    let is_image = |feature: &Feature| feature.dtype == FeatureDType::Compute && feature.dims.len() == 3;
    if experiment.task().features().iter().any(is_image) { "images" } else { "examples" }
}
