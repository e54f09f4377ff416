//! Questions that cannot be asked, and programs that cannot be built or read.

use std::num::NonZeroU32;
use std::path::{Path, PathBuf};

use bf16scope_foreign::{ForeignError, Other};
use bf16scope_hlo::devices::{Devices, PlacementError};
use bf16scope_hlo::proto::ProtoError;
use bf16scope_hlo::text::ParseError;
use bf16scope_hlo::verify::VerifyErrors;
use bf16scope_model::document::ConfigError;
use bf16scope_passes::PassError;
use bf16scope_passes::amp::PolicyError;
use bf16scope_tpu::explain::ExplainError;
use bf16scope_tpu::explain::backend::BackEnd;
use bf16scope_tpu::{Target, TargetError, TpuError};
use bf16scope_train::{ProgramError, TrainError};

use super::fit::{BatchDim, BatchDimError};
use super::shell::word;

/// What is wrong with a question, or with what it is about.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StudyError {
    /// A file that cannot be read.
    #[error("cannot read {path}", path = .path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The cause.
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
    /// A policy's file that cannot be read.
    #[error("cannot read the policy {path}", path = .path.display())]
    ReadPolicy {
        /// The file.
        path: PathBuf,
        /// The cause.
        #[source]
        source: std::io::Error,
    },
    /// A policy's file that says nothing.
    #[error(
        "{path} is empty, expected a policy: keys such as `preset: default` or `dtype: f16`\nhelp: `--policy default` is the \
         policy without changes",
        path = .path.display()
    )]
    EmptyPolicy {
        /// The file.
        path: PathBuf,
    },
    /// A name of no preset, or what is no policy.
    #[error(transparent)]
    PolicyText(#[from] PolicyError),
    /// A file that is no policy.
    #[error("{path} is not a policy", path = .path.display())]
    Policy {
        /// The file.
        path: PathBuf,
        /// The cause.
        #[source]
        source: PolicyError,
    },
    /// Replicas that add up in less than the f32 that was asked for.
    #[error(
        "the replicas sum by {sums}, and f32 was asked for\nhelp: this is an error of bf16scope's, whose step keeps the cast before the sum: report it; `mesh: {{sum: bf16}}` says that bf16 will do"
    )]
    RoundedSums {
        /// Which sums.
        sums: String,
    },
    /// HLO text that is not UTF-8.
    #[error("{path}: the text is not UTF-8\nhelp: the file may be damaged", path = .path.display())]
    NotUtf8 {
        /// The file.
        path: PathBuf,
        /// The position of the first byte that is not.
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
        /// The cause.
        #[source]
        source: ProtoError,
    },
    /// A file that is neither text, nor StableHLO, nor a proto.
    #[error(
        "{path} holds no HLO: it begins neither with `HloModule` nor as StableHLO, and is no whole HloModuleProto\nhelp: a \
         proto may be truncated: write or copy it again; anything else is to be exported as HLO or StableHLO",
        path = .path.display()
    )]
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
        /// What is wrong with it.
        #[source]
        source: VerifyErrors,
    },
    /// A module that XLA has compiled, where a program to compile is wanted.
    #[error("{}", already_compiled(.path, *.of, *.devices))]
    AlreadyCompiled {
        /// The file.
        path: PathBuf,
        /// For which back end.
        of: BackEnd,
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
        /// The cause.
        #[source]
        source: Box<StudyError>,
    },
    /// A step that cannot be laid over the model axis.
    #[error("the step cannot be laid over its partitions")]
    Partition(#[source] PassError),
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
    /// A module that is given to be lowered, and was compiled.
    #[error(
        "{path} is what a compiler has made (is_scheduled=true), and lowering comes before compiling\nhelp: give the module \
         before optimization",
        path = .path.display()
    )]
    Scheduled {
        /// The file.
        path: PathBuf,
    },
    /// A module that cannot be lowered.
    #[error("{path} cannot be lowered", path = .path.display())]
    Lower {
        /// The file.
        path: PathBuf,
        /// The cause.
        #[source]
        source: PassError,
    },
    /// Nothing to put beside a module.
    #[error("{path}: no policy is named", path = .path.display())]
    NoPolicy {
        /// The file.
        path: PathBuf,
    },
    /// A module without anything to lower.
    #[error(
        "{path} has nothing in f32, so there is nothing to lower, and nothing to compare with\nhelp: compile it as it is, \
         without --compare and --policy; the f32 module that it came from can be compared",
        path = .path.display()
    )]
    NothingInF32 {
        /// The file.
        path: PathBuf,
    },
    /// A module without an op that a policy lowers.
    #[error(
        "{path} has no op that a policy lowers, so there is nothing to compare with\nhelp: compile it as it is, without \
         --compare and --policy",
        path = .path.display()
    )]
    NothingLowered {
        /// The file.
        path: PathBuf,
    },
    /// Policies that leave a module as it is.
    #[error(
        "{path}: {those} all of its {n} instructions with f32 as they are, so there is nothing to compare\nhelp: `bf16scope \
         lower {word} --policy {policy} --list -o lowered.txt` says why, instruction by instruction",
        path = .path.display(),
        those = those_leave(.policy, *.n_policies),
        word = word(.path)
    )]
    AllKept {
        /// The file.
        path: PathBuf,
        /// The first policy.
        policy: String,
        /// How many there are.
        n_policies: usize,
        /// Instructions with f32.
        n: usize,
    },
    /// A module that cannot be encoded.
    #[error(transparent)]
    Encode(ProtoError),
    /// A module of which it cannot be said over which devices it goes.
    #[error("{path} cannot be compiled", path = .path.display())]
    Placement {
        /// The file.
        path: PathBuf,
        /// The cause.
        #[source]
        source: PlacementError,
    },
    /// A module for several devices among those of one core.
    #[error(
        "{path}: {by} for {wants} devices, and fit is about one core: how a batch lies over cores is the module's \
         affair\nhelp: `bf16scope compile` says what one core's share of it takes; or export the step that one device does, on \
         its part of the batch",
        path = .path.display()
    )]
    SeveralDevices {
        /// The file.
        path: PathBuf,
        /// What says so.
        by: String,
        /// How many devices it wants.
        wants: i64,
    },
    /// A text that names no target.
    #[error(transparent)]
    Target(#[from] TargetError),
    /// None of what there must be one of.
    #[error("{what}: expected 1 or more")]
    Zero {
        /// What there is none of.
        what: &'static str,
    },
    /// Several of what a question is about one of.
    #[error("{question} is about one of the {what}, and there are {n}\nhelp: name one, or ask once for each")]
    Several {
        /// The question.
        question: &'static str,
        /// How many there are.
        n: usize,
        /// Of what.
        what: &'static str,
    },
    /// What the compiler, or getting it, refused.
    #[error(transparent)]
    Tpu(#[from] TpuError),
    /// One of several programs that cannot be compiled.
    #[error("{name} cannot be compiled")]
    Subject {
        /// Its name.
        name: String,
        /// The cause.
        #[source]
        source: Box<StudyError>,
    },
    /// What the compiler made of a program cannot be read.
    #[error("the compiler's optimized program cannot be read: this is a bug of bf16scope, please report it")]
    Optimized(#[source] ProtoError),
    /// What the compiler made of a program breaks rules.
    #[error("the compiler's optimized program is broken")]
    OptimizedBroken(#[source] VerifyErrors),
    /// A module that cannot be explained.
    #[error(transparent)]
    Explain(#[from] ExplainError),
    /// A folder without modules.
    #[error("{folder} holds no modules, HLO or StableHLO\nhelp: export the program at several batches", folder = .folder.display())]
    NoModules {
        /// The folder.
        folder: PathBuf,
    },
    /// Modules of which it was not said which axis is the batch.
    #[error("{folder} holds modules, and which of their axes is the batch must be said\nhelp: {help}", folder = .folder.display())]
    NoBatchDim {
        /// The folder.
        folder: PathBuf,
        /// What to say, as far as the modules tell.
        help: String,
    },
    /// A module without the batch that was said.
    #[error("{path}", path = .path.display())]
    BatchDim {
        /// Its file.
        path: PathBuf,
        /// The cause.
        #[source]
        source: BatchDimError,
    },
    /// Two modules of one batch.
    #[error(
        "{one} and {other} both have batch {batch} in --batch-dim {parameter}:{axis}\nhelp: keep one program at each batch in \
         the folder, or name the axis that differs",
        one = .one.display(),
        other = .other.display(),
        parameter = .batch_dim.parameter,
        axis = .batch_dim.axis
    )]
    SameBatch {
        /// The first.
        one: PathBuf,
        /// The second.
        other: PathBuf,
        /// Its batch.
        batch: u32,
        /// Where that is.
        batch_dim: BatchDim,
    },
    /// A program that the question has not.
    #[error("there is no program {label} of batch {batch}")]
    NoProgram {
        /// What it is called.
        label: String,
        /// Its batch.
        batch: u32,
    },
    /// Parts that make a batch too large to count.
    #[error("{parts} parts of {batch} are a batch of more than {}", i32::MAX)]
    TooManyExamples {
        /// How many parts.
        parts: u32,
        /// Examples in each.
        batch: u32,
    },
    /// Batches that are all too large to try.
    #[error("--max-batch {max_batch} is below {n_parts}, of which every batch of this model is a multiple")]
    BelowParts {
        /// The largest batch to try.
        max_batch: u32,
        /// Micro-batches.
        n_parts: u32,
    },
    /// A search without an answer.
    #[error("{target}, {label}: nothing compiles\n{why}")]
    NothingCompiles {
        /// For what.
        target: Target,
        /// Its label.
        label: String,
        /// The last failure.
        why: String,
    },
    /// A slice where slices of every size are planned.
    #[error(
        "{target} is one slice, and plan looks at slices of every size\nhelp: give {board} and --devices {n_cores}, or \
         `bf16scope compile --target {target} --mesh data=N`",
        n_cores = .target.n_cores().unwrap_or(1)
    )]
    OneSlice {
        /// The slice.
        target: Target,
        /// Its TPU.
        board: Target,
    },
    /// A TPU whose links are not known.
    #[error(
        "{board}: how fast its chips' links are is not known here, so there is no plan for it\nhelp: plan for tpu-v2 or tpu-v3; \
         `bf16scope compile --target {board} --mesh data=N` gives memory and cycles"
    )]
    NoLinks {
        /// The TPU.
        board: Target,
    },
    /// Nothing that can be planned.
    #[error(
        "there is nothing to plan: {why}\nhelp: give --devices of which there are slices, such as 8 or 32, and a --batch that \
         is a multiple of them",
        why = .left_out.join(" ")
    )]
    NothingToPlan {
        /// Why not.
        left_out: Vec<String>,
    },
}

fn those_leave(policy: &str, n_policies: usize) -> String {
    if n_policies > 1 { "the policies named leave".to_string() } else { format!("policy {policy} leaves") }
}

fn devices_do(n: NonZeroU32) -> String {
    if n.get() == 1 { "1 device does".to_string() } else { format!("{n} devices do") }
}

impl StudyError {
    /// Whether a program does not fit, of several one.
    pub fn is_out_of_memory(&self) -> bool {
        match self {
            StudyError::Tpu(TpuError::OutOfMemory { .. }) => true,
            StudyError::Subject { source, .. } => source.is_out_of_memory(),
            _ => false,
        }
    }

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

/// That XLA has compiled a module already.
fn already_compiled(path: &Path, back_end: BackEnd, devices: Devices) -> String {
    let (by, explain) = match back_end {
        BackEnd::Tpu => ("XLA's TPU compiler", "; `bf16scope explain` reads this one as it is"),
        BackEnd::Cpu => ("XLA's CPU compiler", ""),
        _ => ("XLA", ""),
    };
    let of = if devices.is_one() { String::new() } else { format!("one device's part of a program over {devices}, ") };
    format!(
        "{}: {by} compiled this module already (is_scheduled=true): it is {of}the result of compiling, written for one back \
         end, and not a program to compile again\nhelp: give the module from before optimization: JAX's \
         lowered.as_text(\"hlo\"), not compiled.as_text(); of --xla_dump_to the file *before_optimizations*{explain}",
        path.display()
    )
}
