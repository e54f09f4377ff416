//! The arguments that choose a program, shared by `emit`, `compile` and `explain`.

use std::path::{Path, PathBuf};

use anyhow::bail;
use clap::ValueEnum;

use super::mesh::{MeshArgs, SplitArgs};
use super::sizes::SizeArgs;
use super::tune::TuneArg;
use super::whole::whole;
use super::{Context, module_file};

use bf16scope_hlo::Module;
use bf16scope_model::graph::{Precision, Storage};
use bf16scope_pjrt::Setup;
use bf16scope_study::{Converter, ModelProgram, ModelSubject};

/// Which program of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Which {
    /// One training step: state and a batch in, new state and loss out
    Train,
    /// Predictions for a batch
    Infer,
}

impl Which {
    /// Checks that it can run on several devices, if several are requested.
    ///
    /// # Errors
    /// It is not a training step.
    pub(super) fn check(self, mesh: &MeshArgs) -> anyhow::Result<()> {
        match (mesh.flag(), self) {
            (Some(flag), Which::Infer) => bail!(
                "{flag} is for a training step, whose batch they share, and this is --program infer\nhelp: leave it out: an \
                 inference is of one device"
            ),
            (Some(_) | None, _) => Ok(()),
        }
    }
}

impl From<Which> for ModelProgram {
    fn from(which: Which) -> ModelProgram {
        match which {
            Which::Train => ModelProgram::Training,
            Which::Infer => ModelProgram::Inference,
        }
    }
}

/// Arguments that choose a program.
#[derive(Debug, clap::Args)]
pub(super) struct Choice {
    /// A model in YAML (examples/resnet50.yaml), or a module: HLO (.txt, .hlo, .pb) or StableHLO (.mlir, .mlirbc, jax.export)
    #[arg(value_name = "MODEL.yaml|MODULE")]
    pub(super) model: PathBuf,
    #[command(flatten)]
    sizes: SizeArgs,
    /// Which program of a model [default: train]
    #[arg(long, value_enum)]
    program: Option<Which>,
    /// Batch size of a model, instead of the file's
    #[arg(long, value_name = "N", value_parser = whole(1..=i32::MAX as u32), allow_negative_numbers = true)]
    batch: Option<u32>,
    /// Precision of a model's network: f32, bf16 or f16 [default: bf16]
    #[arg(long)]
    precision: Option<Precision>,
    #[command(flatten)]
    mesh: MeshArgs,
    #[command(flatten)]
    split: SplitArgs,
    /// Storage of a model's variables, instead of the file's: f32, bf16_stochastic, bf16_compensated or bf16_nearest
    #[arg(long, value_name = "STORAGE")]
    variables: Option<Storage>,
    #[command(flatten)]
    tune: TuneArg,
}

impl Choice {
    /// Whether the file holds a module, not a model.
    pub(super) fn is_module(&self) -> bool {
        module_file::is_module(&self.model)
    }

    /// The module, if the file holds one. Options that choose among a model's programs are then an error.
    pub(super) fn module(&self, context: &Context) -> anyhow::Result<Option<Module>> {
        self.module_by(|path| Ok(module_file::load(path, &self.converter(context)?)?))
    }

    /// The converter that reads the module.
    ///
    /// # Errors
    /// A dimension has two sizes.
    pub(super) fn converter(&self, context: &Context) -> anyhow::Result<Converter> {
        self.sizes.converter(context)
    }

    /// Like [`Choice::module`], with another loader.
    pub(super) fn module_by(
        &self,
        load: impl FnOnce(&Path) -> anyhow::Result<Module>,
    ) -> anyhow::Result<Option<Module>> {
        if !self.is_module() {
            self.sizes.refuse(&self.model)?;
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

    /// The chosen program of a model.
    pub(super) fn program(&self) -> Which {
        self.program.unwrap_or(Which::Train)
    }

    /// The compute precision of a model's network.
    pub(super) fn precision(&self) -> Precision {
        self.precision.unwrap_or(Precision::Bf16)
    }

    /// The model, with the options replacing what its file says.
    ///
    /// # Errors
    /// A file that is not a model; several devices for a single-device program.
    pub(super) fn subject(&self, setup: &Setup) -> anyhow::Result<ModelSubject<'static>> {
        let subject = ModelSubject::read(&self.model, setup)?;
        self.program().check(&self.mesh)?;
        let mesh = self.mesh.choice();
        Ok(ModelSubject {
            program: self.program().into(),
            batch: self.batch.unwrap_or(subject.batch),
            variables: self.variables.unwrap_or(subject.variables),
            mesh,
            split: self.split.rules(mesh.n_partitions(subject.objective.mesh))?,
            tune_choice: self.tune.choice(),
            ..subject
        })
    }
}
