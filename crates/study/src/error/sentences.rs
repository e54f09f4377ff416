//! The sentences of the study's own errors, a function each. Errors of other crates are passed on by `From`, in
//! [`super`].

use std::io;
use std::num::NonZeroU32;
use std::path::Path;
use std::str::Utf8Error;

use super::{StudyError, StudyErrorKind, StudyPlace};
use crate::fit::{BatchDim, BatchDimError};
use crate::shell::word;
use bf16scope_foreign::Other;
use bf16scope_hlo::devices::{Devices, PlacementError};
use bf16scope_hlo::proto::ProtoError;
use bf16scope_hlo::verify::VerifyErrors;
use bf16scope_passes::PassError;
use bf16scope_passes::amp::PolicyError;
use bf16scope_tpu::Target;
use bf16scope_tpu::explain::backend::BackEnd;

/// Files.
impl StudyError {
    pub(crate) fn read(path: &Path, source: io::Error) -> StudyError {
        let text = format!("cannot read {}", path.display());
        StudyError::in_file(StudyErrorKind::File, path, text).because(source)
    }

    /// A file of another format.
    pub(crate) fn other(path: &Path, other: Other) -> StudyError {
        let whole = format!("{} is {other}", path.display());
        match whole.split_once("\nhelp: ") {
            Some((text, help)) => StudyError::in_file(StudyErrorKind::File, path, text).with_help(help),
            None => StudyError::in_file(StudyErrorKind::File, path, whole),
        }
    }

    pub(crate) fn not_utf8(path: &Path, source: Utf8Error) -> StudyError {
        let text = format!("{}: the text is not UTF-8", path.display());
        StudyError::in_file(StudyErrorKind::File, path, text).with_help("the file may be damaged").because(source)
    }

    /// A proto that is not a module.
    pub(crate) fn no_module(path: &Path, source: ProtoError) -> StudyError {
        let text = format!("{}: the proto holds no module", path.display());
        StudyError::in_file(StudyErrorKind::File, path, text).because(source)
    }

    /// A file that is neither text, nor StableHLO, nor a proto.
    pub(crate) fn no_hlo(path: &Path, source: ProtoError) -> StudyError {
        let text = format!(
            "{} holds no HLO: it begins neither with `HloModule` nor as StableHLO, and is no whole HloModuleProto",
            path.display()
        );
        let is_yaml = path.extension().is_some_and(|extension| extension == "yaml" || extension == "yml");
        let help = match is_yaml {
            true => {
                let file = word(path);
                format!(
                    "of an experiment in YAML, `bf16scope emit {file} -o model.hlo.pb` writes the program as a module"
                )
            }
            false => {
                "a proto may be truncated: write or copy it again; anything else is to be exported as HLO or StableHLO"
                    .into()
            }
        };
        StudyError::in_file(StudyErrorKind::File, path, text).with_help(help).because(source)
    }

    /// `--fetch` for a file that is not a TensorFlow graph.
    pub(crate) fn no_fetch(path: &Path, fetch: &str) -> StudyError {
        let text = format!("--fetch {fetch} chooses within a TensorFlow graph, and {} is none", path.display());
        StudyError::in_file(StudyErrorKind::Question, path, text).with_help("leave it out: a module is one program")
    }

    pub(crate) fn no_modules(folder: &Path) -> StudyError {
        let text = format!("{} holds no modules, HLO or StableHLO", folder.display());
        StudyError::in_file(StudyErrorKind::File, folder, text).with_help("export the program at several batches")
    }
}

/// Policies.
impl StudyError {
    pub(crate) fn read_policy(path: &Path, source: io::Error) -> StudyError {
        let text = format!("cannot read the policy {}", path.display());
        StudyError::in_file(StudyErrorKind::File, path, text).because(source)
    }

    pub(crate) fn unknown_preset(source: PolicyError) -> StudyError {
        let help = "a policy of your own is a YAML file, such as `mine.yaml`, or its text in braces: `{keep: [head]}`";
        StudyError::from(source).with_help(help)
    }

    pub(crate) fn empty_policy(path: &Path) -> StudyError {
        let text =
            format!("{} is empty, expected a policy: keys such as `preset: default` or `dtype: f16`", path.display());
        let help = "`--policy default` is the policy without changes";
        StudyError::in_file(StudyErrorKind::Policy, path, text).with_help(help)
    }

    pub(crate) fn not_a_policy(path: &Path, source: PolicyError) -> StudyError {
        let text = format!("{} is not a policy", path.display());
        StudyError::in_file(StudyErrorKind::Policy, path, text).because(source)
    }
}

/// Modules.
impl StudyError {
    pub(crate) fn broken(path: &Path, source: VerifyErrors) -> StudyError {
        let text = format!("{}: the module is broken", path.display());
        StudyError::in_file(StudyErrorKind::Module, path, text).because(source)
    }

    pub(crate) fn encode(error: ProtoError) -> StudyError {
        StudyError::passed_on(StudyErrorKind::Module, error)
    }

    /// A module whose placement on devices is unknown.
    pub(crate) fn placement(path: &Path, source: PlacementError) -> StudyError {
        let text = format!("{} cannot be compiled", path.display());
        StudyError::in_file(StudyErrorKind::Module, path, text).because(source)
    }

    /// A module that XLA has compiled, where a program to compile is expected.
    pub(crate) fn already_compiled(path: &Path, back_end: BackEnd, devices: Devices) -> StudyError {
        let (by, explain) = match back_end {
            BackEnd::Tpu => ("XLA's TPU compiler", "; `bf16scope explain` reads this one as it is"),
            BackEnd::Cpu => ("XLA's CPU compiler", ""),
            _ => ("XLA", ""),
        };
        let part = match devices.is_one() {
            true => String::new(),
            false => format!("one device's part of a program over {devices}, "),
        };
        let text = format!(
            "{}: {by} compiled this module already (is_scheduled=true): it is {part}the result of compiling, written for one back \
             end, and not a program to compile again",
            path.display()
        );
        let help = format!(
            "give the module from before optimization: JAX's lowered.as_text(\"hlo\"), not compiled.as_text(); of --xla_dump_to \
             the file *before_optimizations*{explain}"
        );
        StudyError::in_file(StudyErrorKind::Module, path, text).with_help(help)
    }

    /// A module for several devices among modules for one core; `by` sets the number `wants`.
    pub(crate) fn several_devices(path: &Path, by: &str, wants: i64) -> StudyError {
        let text = format!(
            "{}: {by} for {wants} devices, and fit is about one core: how a batch lies over cores is the module's affair",
            path.display()
        );
        let help = "`bf16scope compile` says what one core's share of it takes; or export the step that one device does, on its \
                    part of the batch";
        StudyError::in_file(StudyErrorKind::Devices, path, text).with_help(help)
    }
}

/// Lowering.
impl StudyError {
    /// A module to lower that is already compiled.
    pub(crate) fn scheduled(path: &Path) -> StudyError {
        let text = format!(
            "{} is what a compiler has made (is_scheduled=true), and lowering comes before compiling",
            path.display()
        );
        StudyError::in_file(StudyErrorKind::Lowering, path, text).with_help("give the module before optimization")
    }

    pub(crate) fn lower(path: &Path, source: PassError) -> StudyError {
        let text = format!("{} cannot be lowered", path.display());
        StudyError::in_file(StudyErrorKind::Lowering, path, text).because(source)
    }

    /// No policy for a comparison.
    pub(crate) fn no_policy(path: &Path) -> StudyError {
        StudyError::in_file(StudyErrorKind::Lowering, path, format!("{}: no policy is named", path.display()))
    }

    pub(crate) fn nothing_in_f32(path: &Path) -> StudyError {
        let text =
            format!("{} has nothing in f32, so there is nothing to lower, and nothing to compare with", path.display());
        let help =
            "compile it as it is, without --compare and --policy; the f32 module that it came from can be compared";
        StudyError::in_file(StudyErrorKind::Lowering, path, text).with_help(help)
    }

    pub(crate) fn nothing_lowered(path: &Path) -> StudyError {
        let text = format!("{} has no op that a policy lowers, so there is nothing to compare with", path.display());
        let help = "compile it as it is, without --compare and --policy";
        StudyError::in_file(StudyErrorKind::Lowering, path, text).with_help(help)
    }

    /// Policies, `policy` being the first, that leave all `n` instructions with f32 unchanged.
    pub(crate) fn all_kept(path: &Path, policy: &str, n_policies: usize, n: usize) -> StudyError {
        let those = match n_policies {
            2.. => "the policies named leave".to_string(),
            _ => format!("policy {policy} leaves"),
        };
        let text = format!(
            "{}: {those} all of its {n} instructions with f32 as they are, so there is nothing to compare",
            path.display()
        );
        let help = format!(
            "`bf16scope lower {} --policy {policy} --list -o lowered.txt` says why, instruction by instruction",
            word(path)
        );
        StudyError::in_file(StudyErrorKind::Lowering, path, text).with_help(help)
    }
}

/// Models and devices.
impl StudyError {
    /// A model or task whose program cannot be built.
    pub(crate) fn build(name: &str, source: StudyError) -> StudyError {
        let place = StudyPlace::Program(name.to_string());
        StudyError::new(source.kind(), format!("{name} cannot be built")).at(place).because(source)
    }

    pub(crate) fn partition(source: PassError) -> StudyError {
        StudyError::new(StudyErrorKind::Devices, "the step cannot be laid over its partitions").because(source)
    }

    /// A task with a model axis, in a question about single-device replicas.
    pub(crate) fn model_axis(name: &str, problem: &str) -> StudyError {
        let help = "leave the model axis out of the objective's mesh; `Compare` takes a step with one";
        let place = StudyPlace::Program(name.to_string());
        StudyError::new(StudyErrorKind::Devices, format!("{name}: {problem}")).with_help(help).at(place)
    }

    /// Rules for a missing model axis.
    pub(crate) fn no_model_axis(pattern: &str) -> StudyError {
        let text = format!("{pattern} is split over the model axis, and there is none");
        StudyError::new(StudyErrorKind::Devices, text).with_help("give the mesh one")
    }

    /// Several devices for a single-device program.
    pub(crate) fn mesh_of_inference() -> StudyError {
        let text = "a mesh is for a training step, whose batch its devices share";
        StudyError::new(StudyErrorKind::Devices, text).with_help("leave it out: an inference is of one device")
    }

    /// Devices that do not divide into replicas of `model` each.
    pub(crate) fn devices(n: NonZeroU32, model: NonZeroU32) -> StudyError {
        let do_not = if n.get() == 1 { "device does not" } else { "devices do not" };
        let text = format!("{n} {do_not} split in replicas of {model} (`mesh: {{model: {model}}}`)");
        StudyError::new(StudyErrorKind::Devices, text).with_help(format!("give a multiple of {model}"))
    }

    /// A mesh that does not divide a slice; `below` devices do.
    pub(crate) fn slice(devices: u64, target: &Target, n_cores: u64, below: u64) -> StudyError {
        let text = format!("a mesh of {devices} devices does not divide {target}, which has {n_cores} cores");
        let help = format!("use all of them, or a part of the slice, such as {below}");
        StudyError::new(StudyErrorKind::Devices, text).with_help(help).at(StudyPlace::Target(target.clone()))
    }
}

/// Questions.
impl StudyError {
    /// An empty list or a zero.
    pub(crate) fn zero(what: &str) -> StudyError {
        StudyError::new(StudyErrorKind::Question, format!("{what}: expected 1 or more"))
    }

    /// Several where a question needs one.
    pub(crate) fn several(question: &str, n: usize, what: &str) -> StudyError {
        let text = format!("{question} is about one of the {what}, and there are {n}");
        StudyError::new(StudyErrorKind::Question, text).with_help("name one, or ask once for each")
    }

    /// Modules whose batch axis is unknown, with a suggestion as far as the modules allow one.
    pub(crate) fn no_batch_dim(folder: &Path, help: String) -> StudyError {
        let text = format!("{} holds modules, and which of their axes is the batch must be said", folder.display());
        StudyError::in_file(StudyErrorKind::Question, folder, text).with_help(help)
    }

    /// A module without the named batch axis.
    pub(crate) fn batch_dim(path: &Path, source: BatchDimError) -> StudyError {
        StudyError::in_file(StudyErrorKind::Question, path, path.display().to_string()).because(source)
    }

    /// Two modules with the same batch.
    pub(crate) fn same_batch(one: &Path, other: &Path, batch: u32, batch_dim: &BatchDim) -> StudyError {
        let BatchDim { parameter, axis } = batch_dim;
        let (one, shown) = (one.display(), other.display());
        let text = format!("{one} and {shown} both have batch {batch} in --batch-dim {parameter}:{axis}");
        let help = "keep one program at each batch in the folder, or name the axis that differs";
        StudyError::in_file(StudyErrorKind::Question, other, text).with_help(help)
    }

    /// A program that the question does not contain.
    pub(crate) fn no_program(label: &str, batch: u32) -> StudyError {
        let text = format!("there is no program {label} of batch {batch}");
        StudyError::new(StudyErrorKind::Question, text).at(StudyPlace::Program(label.to_string()))
    }

    /// Parts that make a batch overflow.
    pub(crate) fn too_many_examples(parts: u32, batch: u32) -> StudyError {
        let text = format!("{parts} parts of {batch} are a batch of more than {}", i32::MAX);
        StudyError::new(StudyErrorKind::Question, text)
    }

    /// A limit below the smallest possible batch.
    pub(crate) fn below_parts(max_batch: u32, n_parts: u32) -> StudyError {
        let text =
            format!("--max-batch {max_batch} is below {n_parts}, of which every batch of this model is a multiple");
        StudyError::new(StudyErrorKind::Question, text)
    }

    /// A slice, where slices of every size are planned.
    pub(crate) fn one_slice(target: &Target, board: &Target) -> StudyError {
        let text = format!("{target} is one slice, and plan looks at slices of every size");
        let n_cores = target.n_cores().unwrap_or(1);
        let help =
            format!("give {board} and --devices {n_cores}, or `bf16scope compile --target {target} --mesh data=N`");
        StudyError::new(StudyErrorKind::Question, text).with_help(help).at(StudyPlace::Target(target.clone()))
    }

    /// A TPU with unknown link speeds.
    pub(crate) fn no_links(board: &Target) -> StudyError {
        let text = format!("{board}: how fast its chips' links are is not known here, so there is no plan for it");
        let help = format!(
            "plan for tpu-v2 or tpu-v3; `bf16scope compile --target {board} --mesh data=N` gives memory and cycles"
        );
        StudyError::new(StudyErrorKind::Question, text).with_help(help).at(StudyPlace::Target(board.clone()))
    }

    pub(crate) fn nothing_to_plan(left_out: &[String]) -> StudyError {
        let text = format!("there is nothing to plan: {}", left_out.join(" "));
        let help =
            "give --devices of which there are slices, such as 8 or 32, and a --batch that is a multiple of them";
        StudyError::new(StudyErrorKind::Question, text).with_help(help)
    }
}

/// The compiler, and its output.
impl StudyError {
    /// One of several programs that cannot be compiled.
    pub(crate) fn subject(name: &str, source: StudyError) -> StudyError {
        let place = StudyPlace::Program(name.to_string());
        StudyError::new(source.kind(), format!("{name} cannot be compiled")).at(place).because(source)
    }

    /// A search without a result; `why` is the last failure.
    pub(crate) fn nothing_compiles(target: &Target, label: &str, why: &str) -> StudyError {
        let text = format!("{target}, {label}: nothing compiles\n{why}");
        StudyError::new(StudyErrorKind::Compiler, text).at(StudyPlace::Target(target.clone()))
    }

    /// A program of ours that violates rules.
    pub(crate) fn emitted(source: VerifyErrors) -> StudyError {
        let text = "the emitted module is broken: this is a bug of bf16scope, please report it";
        StudyError::new(StudyErrorKind::Bug, text).because(source)
    }

    /// The compiler's optimized program cannot be parsed.
    pub(crate) fn optimized(source: ProtoError) -> StudyError {
        let text = "the compiler's optimized program cannot be read: this is a bug of bf16scope, please report it";
        StudyError::new(StudyErrorKind::Bug, text).because(source)
    }

    /// The compiler's optimized program violates rules.
    pub(crate) fn optimized_broken(source: VerifyErrors) -> StudyError {
        StudyError::new(StudyErrorKind::Bug, "the compiler's optimized program is broken").because(source)
    }

    /// Replicas that sum in less than the requested f32.
    pub(crate) fn rounded_sums(sums: &str) -> StudyError {
        let text = format!("the replicas sum by {sums}, and f32 was asked for");
        let help = "this is an error of bf16scope's, whose step keeps the cast before the sum: report it; `mesh: {sum: bf16}` \
                    says that bf16 will do";
        StudyError::new(StudyErrorKind::Bug, text).with_help(help)
    }
}
