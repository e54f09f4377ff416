//! Questions that cannot be asked, and programs that cannot be built or read.

use std::num::NonZeroU32;
use std::path::PathBuf;

use crate::document::ConfigError;
use crate::foreign::{ForeignError, Other};
use crate::hlo::devices::Devices;
use crate::hlo::proto::ProtoError;
use crate::hlo::text::ParseError;
use crate::hlo::verify::VerifyErrors;
use crate::passes::partition::PartitionError;
use crate::tpu::Target;
use crate::train::{ProgramError, TrainError};

/// What is wrong with a question, or with what it is about.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StudyError {
    /// A file that cannot be read.
    #[error("cannot read {path}", path = .path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// A file of another kind.
    #[error("{path} is {other}", path = .path.display())]
    Other {
        /// The file.
        path: PathBuf,
        /// What it is.
        other: Other,
    },
    /// HLO text that is not UTF-8.
    #[error("{path}: the text is not UTF-8\nhelp: the file may be damaged", path = .path.display())]
    NotUtf8 {
        /// The file.
        path: PathBuf,
        /// Where.
        #[source]
        source: std::str::Utf8Error,
    },
    /// HLO text with an error in it.
    #[error(transparent)]
    Text(#[from] ParseError),
    /// StableHLO that cannot be converted.
    #[error(transparent)]
    Foreign(#[from] ForeignError),
    /// A proto that is no module.
    #[error("{path}: the proto holds no module", path = .path.display())]
    NoModule {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: ProtoError,
    },
    /// A file that is neither text, nor StableHLO, nor a proto.
    #[error("{path} holds no HLO: it neither begins with `HloModule` or as StableHLO, nor is it a proto", path = .path.display())]
    NoHlo {
        /// The file.
        path: PathBuf,
        /// What it is not, as a proto.
        #[source]
        source: ProtoError,
    },
    /// A module that breaks rules.
    #[error("{path}: the module is broken", path = .path.display())]
    Broken {
        /// The file.
        path: PathBuf,
        /// Which.
        #[source]
        source: VerifyErrors,
    },
    /// A module that XLA has compiled, where a program to compile is wanted.
    #[error("{}", super::module_file::already_compiled(.path, *.by_tpus, *.devices))]
    AlreadyCompiled {
        /// The file.
        path: PathBuf,
        /// Whether XLA's TPU compiler did.
        by_tpus: bool,
        /// The devices that it was compiled for.
        devices: Devices,
    },
    /// A model's file that is not right.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// An experiment that is not right.
    #[error(transparent)]
    Train(#[from] TrainError),
    /// A program that cannot be made of a task.
    #[error(transparent)]
    Program(#[from] ProgramError),
    /// A program of ours that breaks rules.
    #[error("the emitted module is broken: this is a bug of bf16scope, please report it")]
    Emitted(#[source] VerifyErrors),
    /// A model whose program cannot be built.
    #[error("{path} cannot be built", path = .path.display())]
    Build {
        /// The model's file.
        path: PathBuf,
        /// Why.
        #[source]
        source: Box<StudyError>,
    },
    /// A step that cannot be laid over the model axis.
    #[error("the step cannot be laid over its partitions")]
    Partition(#[source] PartitionError),
    /// Rules of a model axis that is not there.
    #[error("{pattern} is split over the model axis, and there is none\nhelp: give the mesh one")]
    NoModelAxis {
        /// The first pattern.
        pattern: String,
    },
    /// Devices for a program that is of one.
    #[error(
        "a mesh is for a training step, whose batch its devices share\nhelp: leave it out: an inference is of one device"
    )]
    MeshOfInference,
    /// Devices that do not split in replicas.
    #[error(
        "{} not split in replicas of {model} (`mesh: {{model: {model}}}`)\nhelp: give a multiple of {model}",
        devices_do(*.devices)
    )]
    Devices {
        /// How many there are.
        devices: NonZeroU32,
        /// How many a replica is of.
        model: NonZeroU32,
    },
    /// A mesh that does not divide a slice.
    #[error(
        "a mesh of {devices} devices does not divide {target}, which has {n_cores} cores\nhelp: use all of them, or a part of the \
         slice, such as {below}"
    )]
    Slice {
        /// Devices of the mesh.
        devices: u64,
        /// The slice.
        target: Target,
        /// Its cores.
        n_cores: u64,
        /// Fewer devices, which divide it.
        below: u64,
    },
}

fn devices_do(n: NonZeroU32) -> String {
    if n.get() == 1 { "1 device does".to_string() } else { format!("{n} devices do") }
}

impl StudyError {
    /// The error and its causes in a line, as it is said of one program among others.
    pub fn chain(&self) -> String {
        let mut text = self.to_string();
        let mut source = std::error::Error::source(self);
        while let Some(error) = source {
            text += &format!(": {error}");
            source = error.source();
        }
        text
    }
}
