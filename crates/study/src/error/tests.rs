//! The text of each error, whole.

use std::io;
use std::num::NonZeroU32;
use std::path::Path;

use super::*;
use crate::fit::{BatchDim, BatchDimError};
use bf16scope_foreign::Other;
use bf16scope_hlo::devices::{Devices, PlacementError};
use bf16scope_hlo::proto::ProtoError;
use bf16scope_hlo::verify::VerifyErrors;
use bf16scope_hlo::{Module, proto, text, verify};
use bf16scope_model::document;
use bf16scope_passes::amp::{Policy, PolicyDocument};
use bf16scope_passes::partition;
use bf16scope_tpu::explain::backend::BackEnd;

fn path() -> &'static Path {
    Path::new("a b/m.hlo")
}

fn target(text: &str) -> Target {
    text.parse().unwrap()
}

fn n(n: u32) -> NonZeroU32 {
    NonZeroU32::new(n).unwrap()
}

fn denied() -> io::Error {
    io::Error::other("denied")
}

fn missing() -> ProtoError {
    ProtoError::Missing { place: "main".to_string(), field: "name" }
}

/// A module whose parameter has the number of another one.
fn broken() -> Module {
    text::parse("HloModule m\nENTRY m {\n  ROOT x = f32[] parameter(1)\n}\n", "m.hlo").unwrap()
}

fn rules() -> VerifyErrors {
    verify::verify(&broken()).unwrap_err()
}

/// Compares the text with its help, the kind, the place, and the first cause.
#[track_caller]
fn check(error: &StudyError, kind: StudyErrorKind, place: &StudyPlace, whole: &str, cause: Option<&str>) {
    assert_eq!(error.to_string(), whole);
    let parts = whole.split_once("\nhelp: ").map_or((whole, None), |(text, help)| (text, Some(help)));
    assert_eq!((error.text(), error.help()), parts);
    assert_eq!((error.kind(), error.place()), (kind, place), "{whole}");
    assert_eq!(error.source().map(ToString::to_string).as_deref(), cause, "{whole}");
}

/// For an error in the file [`path`].
#[track_caller]
fn in_file(error: &StudyError, kind: StudyErrorKind, whole: &str, cause: Option<&str>) {
    check(error, kind, &StudyPlace::File(path().to_path_buf()), whole, cause);
}

/// For an error in a question.
#[track_caller]
fn in_question(error: &StudyError, kind: StudyErrorKind, whole: &str, cause: Option<&str>) {
    check(error, kind, &StudyPlace::Question, whole, cause);
}

#[test]
fn files() {
    let kind = StudyErrorKind::File;
    in_file(&StudyError::read(path(), denied()), kind, "cannot read a b/m.hlo", Some("denied"));
    let other = Other { what: "a model in ONNX", export: "export it as StableHLO" };
    let text = "a b/m.hlo is a model in ONNX, and no HLO or StableHLO\nhelp: export it as StableHLO";
    in_file(&StudyError::other(path(), other), kind, text, None);
    let utf8 = String::from_utf8(vec![0xff, b'a']).unwrap_err().utf8_error();
    let cause = "invalid utf-8 sequence of 1 bytes from index 0";
    let text = "a b/m.hlo: the text is not UTF-8\nhelp: the file may be damaged";
    in_file(&StudyError::not_utf8(path(), utf8), kind, text, Some(cause));
    let text = "a b/m.hlo: the proto holds no module";
    in_file(&StudyError::no_module(path(), missing()), kind, text, Some("main: name is missing"));
    let text = "a b/m.hlo holds no HLO: it begins neither with `HloModule` nor as StableHLO, and is no whole HloModuleProto\nhelp: \
                a proto may be truncated: write or copy it again; anything else is to be exported as HLO or StableHLO";
    in_file(&StudyError::no_hlo(path(), missing()), kind, text, Some("main: name is missing"));
    let help = "of an experiment in YAML, `bf16scope emit m.yaml -o model.hlo.pb` writes the program as a module";
    assert_eq!(StudyError::no_hlo(Path::new("m.yaml"), missing()).help(), Some(help));
    let text = "--fetch loss chooses within a TensorFlow graph, and a b/m.hlo is none\nhelp: leave it out: a module is one program";
    in_file(&StudyError::no_fetch(path(), "loss"), StudyErrorKind::Question, text, None);
    let text = "a b/m.hlo holds no modules, HLO or StableHLO\nhelp: export the program at several batches";
    in_file(&StudyError::no_modules(path()), kind, text, None);
    in_file(&StudyError::read_policy(path(), denied()), kind, "cannot read the policy a b/m.hlo", Some("denied"));
}

#[test]
fn policies() {
    let kind = StudyErrorKind::Policy;
    let text = "a b/m.hlo is empty, expected a policy: keys such as `preset: default` or `dtype: f16`\nhelp: `--policy default` is \
                the policy without changes";
    in_file(&StudyError::empty_policy(path()), kind, text, None);
    let wrong = || {
        let document = document::from_str::<PolicyDocument>("policy", "allow: [dott]\n").unwrap();
        Policy::try_from(document).unwrap_err()
    };
    let cause = wrong().to_string();
    in_file(&StudyError::not_a_policy(path(), wrong()), kind, "a b/m.hlo is not a policy", Some(&cause));
    in_question(&wrong().into(), kind, &cause, None);
    let unknown = || Policy::preset("mine").unwrap_err();
    let text = format!(
        "{}\nhelp: a policy of your own is a YAML file, such as `mine.yaml`, or its text in braces: `{{keep: [head]}}`",
        unknown()
    );
    in_question(&StudyError::unknown_preset(unknown()), kind, &text, None);
}

#[test]
fn modules() {
    let kind = StudyErrorKind::Module;
    let cause = rules().to_string();
    in_file(&StudyError::broken(path(), rules()), kind, "a b/m.hlo: the module is broken", Some(&cause));
    in_question(&StudyError::encode(missing()), kind, "main: name is missing", None);
    let unsaid = || PlacementError::Unsaid { by: "main/%y is".to_string(), wants: 8 };
    let cause = unsaid().to_string();
    in_file(&StudyError::placement(path(), unsaid()), kind, "a b/m.hlo cannot be compiled", Some(&cause));

    let compiled = |back_end, devices| StudyError::already_compiled(path(), back_end, devices);
    let help = "help: give the module from before optimization: JAX's lowered.as_text(\"hlo\"), not compiled.as_text(); of \
                --xla_dump_to the file *before_optimizations*";
    let text = format!(
        "a b/m.hlo: XLA's TPU compiler compiled this module already (is_scheduled=true): it is the result of compiling, written for \
         one back end, and not a program to compile again\n{help}; `bf16scope explain` reads this one as it is"
    );
    in_file(&compiled(BackEnd::Tpu, Devices::ONE), kind, &text, None);
    let text = format!(
        "a b/m.hlo: XLA's CPU compiler compiled this module already (is_scheduled=true): it is one device's part of a program over \
         {}, the result of compiling, written for one back end, and not a program to compile again\n{help}",
        Devices { replicas: 4, partitions: 1 }
    );
    in_file(&compiled(BackEnd::Cpu, Devices { replicas: 4, partitions: 1 }), kind, &text, None);
    assert!(
        compiled(BackEnd::detect(&broken()), Devices::ONE).text().starts_with("a b/m.hlo: XLA compiled this module")
    );

    let text = "a b/m.hlo: replica_count=8 is for 8 devices, and fit is about one core: how a batch lies over cores is the module's \
                affair\nhelp: `bf16scope compile` says what one core's share of it takes; or export the step that one device does, on \
                its part of the batch";
    in_file(&StudyError::several_devices(path(), "replica_count=8 is", 8), StudyErrorKind::Devices, text, None);
}

#[test]
fn lowering() {
    let kind = StudyErrorKind::Lowering;
    let text = "a b/m.hlo is what a compiler has made (is_scheduled=true), and lowering comes before compiling\nhelp: give the \
                module before optimization";
    in_file(&StudyError::scheduled(path()), kind, text, None);
    let refused = || bf16scope_passes::amp::run(&broken(), &Policy::default()).unwrap_err();
    let cause = refused().to_string();
    in_file(&StudyError::lower(path(), refused()), kind, "a b/m.hlo cannot be lowered", Some(&cause));
    in_file(&StudyError::no_policy(path()), kind, "a b/m.hlo: no policy is named", None);
    let text = "a b/m.hlo has nothing in f32, so there is nothing to lower, and nothing to compare with\nhelp: compile it as it is, \
                without --compare and --policy; the f32 module that it came from can be compared";
    in_file(&StudyError::nothing_in_f32(path()), kind, text, None);
    let text = "a b/m.hlo has no op that a policy lowers, so there is nothing to compare with\nhelp: compile it as it is, without \
                --compare and --policy";
    in_file(&StudyError::nothing_lowered(path()), kind, text, None);
    let help =
        "help: `bf16scope lower 'a b/m.hlo' --policy O1 --list -o lowered.txt` says why, instruction by instruction";
    let text = format!(
        "a b/m.hlo: policy O1 leaves all of its 7 instructions with f32 as they are, so there is nothing to compare\n{help}"
    );
    in_file(&StudyError::all_kept(path(), "O1", 1, 7), kind, &text, None);
    let text = text.replace("policy O1 leaves", "the policies named leave");
    in_file(&StudyError::all_kept(path(), "O1", 2, 7), kind, &text, None);
}

#[test]
fn models_and_devices() {
    let kind = StudyErrorKind::Devices;
    let refused = || partition::run(&Module::new("step"), &partition::Config::new(2, [])).unwrap_err();
    let cause = refused().to_string();
    let text = "the step cannot be laid over its partitions";
    in_question(&StudyError::partition(refused()), kind, text, Some(&cause));
    let text = "w* is split over the model axis, and there is none\nhelp: give the mesh one";
    in_question(&StudyError::no_model_axis("w*"), kind, text, None);
    let text = "a mesh is for a training step, whose batch its devices share\nhelp: leave it out: an inference is of one device";
    in_question(&StudyError::mesh_of_inference(), kind, text, None);
    let text = "1 device does not split in replicas of 2 (`mesh: {model: 2}`)\nhelp: give a multiple of 2";
    in_question(&StudyError::devices(n(1), n(2)), kind, text, None);
    in_question(&StudyError::devices(n(5), n(2)), kind, &text.replace("1 device does", "5 devices do"), None);
    let text = "a mesh of 6 devices does not divide tpu-v2, which has 8 cores\nhelp: use all of them, or a part of the slice, such as \
                4";
    let v2 = target("tpu-v2");
    check(&StudyError::slice(6, &v2, 8, 4), kind, &StudyPlace::Target(v2), text, None);

    let of_task = StudyPlace::Program("net".to_string());
    let text = "net: replicas are split\nhelp: leave the model axis out of the objective's mesh; `Compare` takes a step with one";
    check(&StudyError::model_axis("net", "replicas are split"), kind, &of_task, text, None);
    let built = StudyError::build("net", StudyError::zero("0 parts"));
    let cause = "0 parts: expected 1 or more";
    check(&built, StudyErrorKind::Question, &of_task, "net cannot be built", Some(cause));
    assert_eq!(built.chain(), format!("net cannot be built: {cause}"));
}

#[test]
fn questions() {
    let kind = StudyErrorKind::Question;
    in_question(&StudyError::zero("a batch of 0 examples"), kind, "a batch of 0 examples: expected 1 or more", None);
    let text = "compare is about one of the targets, and there are 2\nhelp: name one, or ask once for each";
    in_question(&StudyError::several("compare", 2, "targets"), kind, text, None);
    let text = "a b/m.hlo holds modules, and which of their axes is the batch must be said\nhelp: use --batch-dim x:0";
    in_file(&StudyError::no_batch_dim(path(), "use --batch-dim x:0".to_string()), kind, text, None);
    let no_batch = || BatchDimError::NoBatch { parameter: "x".to_string(), size: 0, axis: 1 };
    let cause = "parameter `x` has size 0 on axis 1, which is not a batch";
    in_file(&StudyError::batch_dim(path(), no_batch()), kind, "a b/m.hlo", Some(cause));
    let there = "parameters 0 `x` [8,4]".to_string();
    let no_axis = BatchDimError::NoAxis { parameter: "x".to_string(), rank: 2, axis: 3, there: there.clone() };
    let text = "parameter `x` has 2 axes, and axis 3 was named: it has parameters 0 `x` [8,4]";
    assert_eq!(no_axis.to_string(), text);
    let no_parameter = BatchDimError::NoParameter { parameter: "y".to_string(), there };
    assert_eq!(no_parameter.to_string(), "no parameter `y`: it has parameters 0 `x` [8,4]");
    let text = "m.hlo and a b/m.hlo both have batch 8 in --batch-dim x:0\nhelp: keep one program at each batch in the folder, or name \
                the axis that differs";
    let dim = BatchDim { parameter: "x".to_string(), axis: 0 };
    in_file(&StudyError::same_batch("m.hlo".as_ref(), path(), 8, &dim), kind, text, None);
    let bf16 = StudyPlace::Program("bf16".to_string());
    check(&StudyError::no_program("bf16", 8), kind, &bf16, "there is no program bf16 of batch 8", None);
    let text = "32 parts of 99 are a batch of more than 2147483647";
    in_question(&StudyError::too_many_examples(32, 99), kind, text, None);
    let text = "--max-batch 2 is below 4, of which every batch of this model is a multiple";
    in_question(&StudyError::below_parts(2, 4), kind, text, None);
    let (slice, board) = (target("tpu-v3:4x4"), target("tpu-v3"));
    let text = "tpu-v3:4x4 is one slice, and plan looks at slices of every size\nhelp: give tpu-v3 and --devices 32, or `bf16scope \
                compile --target tpu-v3:4x4 --mesh data=N`";
    check(&StudyError::one_slice(&slice, &board), kind, &StudyPlace::Target(slice), text, None);
    let v4 = target("tpu-v4");
    let text = "tpu-v4: how fast its chips' links are is not known here, so there is no plan for it\nhelp: plan for tpu-v2 or tpu-v3; \
                `bf16scope compile --target tpu-v4 --mesh data=N` gives memory and cycles";
    check(&StudyError::no_links(&v4), kind, &StudyPlace::Target(v4), text, None);
    let text = "there is nothing to plan: No a. No b.\nhelp: give --devices of which there are slices, such as 8 or 32, and a --batch \
                that is a multiple of them";
    in_question(&StudyError::nothing_to_plan(&["No a.".to_string(), "No b.".to_string()]), kind, text, None);
}

#[test]
fn the_compiler_and_what_it_makes() {
    let v2 = target("tpu-v2");
    let too_large =
        || TpuError::OutOfMemory { target: target("tpu-v2"), needed: None, available: None, text: String::new() };
    let whole = too_large().to_string();
    let passed_on = StudyError::from(too_large());
    in_question(&passed_on, StudyErrorKind::OutOfMemory, &whole, None);
    let of_f32 = StudyPlace::Program("f32".to_string());
    let subject = StudyError::subject("f32", passed_on);
    check(&subject, StudyErrorKind::OutOfMemory, &of_f32, "f32 cannot be compiled", Some(&whole));
    let text = "tpu-v2, bf16: nothing compiles\nbatch 1: INTERNAL";
    let nothing = StudyError::nothing_compiles(&v2, "bf16", "batch 1: INTERNAL");
    check(&nothing, StudyErrorKind::Compiler, &StudyPlace::Target(v2), text, None);

    let kind = StudyErrorKind::Bug;
    let cause = rules().to_string();
    let text = "the emitted module is broken: this is a bug of bf16scope, please report it";
    in_question(&StudyError::emitted(rules()), kind, text, Some(&cause));
    let text = "the compiler's optimized program cannot be read: this is a bug of bf16scope, please report it";
    in_question(&StudyError::optimized(missing()), kind, text, Some("main: name is missing"));
    let text = "the compiler's optimized program is broken";
    in_question(&StudyError::optimized_broken(rules()), kind, text, Some(&cause));
    let text = "the replicas sum by all-reduce in bf16, and f32 was asked for\nhelp: this is an error of bf16scope's, whose step keeps \
                the cast before the sum: report it; `mesh: {sum: bf16}` says that bf16 will do";
    in_question(&StudyError::rounded_sums("all-reduce in bf16"), kind, text, None);
}

/// An error that is passed on keeps its text and its cause.
#[test]
fn errors_of_others_are_passed_on() {
    let parse = || text::parse("HloModule m\nENTRY m {", "m.hlo").unwrap_err();
    in_question(&parse().into(), StudyErrorKind::Module, &parse().to_string(), None);
    let wire = || proto::decode::from_bytes(b"\xff").unwrap_err();
    let cause = wire().source().map(ToString::to_string);
    in_question(&StudyError::encode(wire()), StudyErrorKind::Module, &wire().to_string(), cause.as_deref());
    let sizes = || ForeignError::of_no_symbols("m.mlir");
    in_question(&sizes().into(), StudyErrorKind::Module, &sizes().to_string(), None);
    assert!(StudyError::from(sizes()).inner().is_some_and(|error| error.is::<ForeignError>()));
    let config = || document::from_str::<PolicyDocument>("p.yaml", "dtipe: f16").unwrap_err();
    let file = StudyPlace::File("p.yaml".into());
    check(&config().into(), StudyErrorKind::Model, &file, &config().to_string(), None);
    in_question(&TrainError::from(config()).into(), StudyErrorKind::Model, &config().to_string(), None);
    let program = || ProgramError::NoModelAxis;
    in_question(&program().into(), StudyErrorKind::Model, &program().to_string(), None);
    assert!(StudyError::from(program()).passed::<ProgramError>().is_ok());
    assert!(
        StudyError::from(program())
            .passed::<ForeignError>()
            .is_err_and(|error| error.text() == StudyError::from(program()).text())
    );
    let name = || "tpu-v9".parse::<Target>().unwrap_err();
    in_question(&name().into(), StudyErrorKind::Question, &name().to_string(), None);
    let cpu = || TpuError::NotATpu(Target::Cpu);
    in_question(&cpu().into(), StudyErrorKind::Question, &cpu().to_string(), None);
    let unscheduled = || ExplainError::NotScheduled { module: "m".to_string() };
    in_question(&unscheduled().into(), StudyErrorKind::Module, &unscheduled().to_string(), None);
}

/// Every new error needs a comparison of its text here.
#[test]
fn every_sentence_is_compared() {
    let (source, tests) = (include_str!("sentences.rs"), include_str!("tests.rs"));
    let names: Vec<&str> =
        source.split("    pub(crate) fn ").skip(1).filter_map(|rest| rest.split(['(', '<']).next()).collect();
    assert!(names.len() > 40, "{names:?}");
    let missing: Vec<&&str> = names.iter().filter(|name| !tests.contains(&format!("StudyError::{name}("))).collect();
    assert!(missing.is_empty(), "no test compares the text of {missing:?}");
}
