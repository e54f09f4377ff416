//! The zoo: what its models emit, whole and readable in `hlo/`, and what a bf16 training program holds in f32.
//!
//! `BF16SCOPE_BLESS=1 cargo test --test networks zoo` rewrites the goldens. Compare `hlo/cnn_training_f32.txt` with
//! `hlo/cnn_training_bf16.txt` to see what a scope does.

use bf16scope::document;
use bf16scope::experiment::Experiment;
use bf16scope::graph::{Precision, Program};
use bf16scope::hlo::text::{PrintOptions, print};
use bf16scope::hlo::verify::verify;
use bf16scope::hlo::{ArrayShape, Computation, DType, InstrId, Module, Op};
use bf16scope::models::Model;
use bf16scope::optim::{LearningRate, Optimizer, Update};
use bf16scope::train::program::{Objective, prediction, training};
use bf16scope::tuning::Tuning;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// The models whose programs stand in `hlo/`, with their batch.
const ZOO: [(&str, &str, i64); 4] = [
    ("mlp", "{kind: mlp, input: [64], n_classes: 10, hidden: [128], dropout: 0.1}", 16),
    ("cnn", "{kind: cnn, input: [8, 8, 1], n_classes: 10, filters: [16, 32]}", 16),
    (
        "transformer_small",
        "{kind: transformer, vocabulary: 64, length: 16, max_length: 32, layers: 1, features: 32, heads: 2, hidden: 64}",
        4,
    ),
    ("resnet18_small", "{kind: resnet, depth: 18, input: [32, 32, 3], n_classes: 10, width: 8}", 8),
];

fn model(text: &str) -> Model {
    document::from_str("zoo", text).unwrap_or_else(|error| panic!("{error}"))
}

fn sgd_with_momentum() -> Objective {
    let optimizer = Optimizer::default();
    let update = Update { optimizer, learning_rate: LearningRate::Constant { value: 0.1 }, ..Update::default() };
    Objective { update, ..Objective::default() }
}

/// Every golden's file name and program.
fn programs() -> BTreeMap<String, Program> {
    let mut programs = BTreeMap::new();
    for (name, text, batch) in ZOO {
        let task = model(text).task(0.0);
        for precision in [Precision::F32, Precision::Bf16] {
            let step = training(&*task, precision, batch, &sgd_with_momentum()).unwrap().program;
            programs.insert(format!("{name}_training_{precision}.txt"), step);
            programs.insert(
                format!("{name}_inference_{precision}.txt"),
                prediction(&*task, precision, batch, &Tuning::none()).unwrap().program,
            );
        }
    }
    programs
}

/// The module with instructions named by their layer and opcode, so that a program in f32 and in bf16 differ where the
/// scope made a difference, and nowhere else.
fn readable(module: &Module) -> String {
    let mut module = module.clone();
    for computation in &mut module.computations {
        let mut n_uses = BTreeMap::new();
        for instr in &mut computation.instructions {
            if matches!(instr.op, Op::Parameter { .. }) || instr.metadata.op_name.is_empty() {
                continue;
            }
            let opcode = instr.op.opcode();
            let layer = instr.metadata.op_name.rsplit_once('/').map(|(layer, _)| layer.replace('/', "."));
            let base = layer.map_or(opcode.to_string(), |layer| format!("{layer}.{opcode}"));
            let n: &mut usize = n_uses.entry(base.clone()).or_default();
            *n += 1;
            instr.name = if *n == 1 { base } else { format!("{base}_{n}") };
        }
    }
    print(&module, &PrintOptions { metadata: false, ..PrintOptions::default() })
}

fn hlo_folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("hlo")
}

#[test]
fn emitted_modules_are_the_goldens() {
    let bless = std::env::var_os("BF16SCOPE_BLESS").is_some();
    let mut different = Vec::new();
    for (file, program) in programs() {
        verify(&program.module).unwrap_or_else(|errors| panic!("{file}: {errors}"));
        let text = readable(&program.module);
        let path = hlo_folder().join(&file);
        if bless {
            std::fs::write(&path, text).unwrap();
            continue;
        }
        let golden = std::fs::read_to_string(&path).unwrap_or_default();
        if golden != text {
            let line = golden.lines().zip(text.lines()).position(|(a, b)| a != b);
            let line = line.unwrap_or(golden.lines().count().min(text.lines().count()));
            let [golden, emitted] = [&golden, &text].map(|text| text.lines().nth(line).unwrap_or("(ends)").to_string());
            different.push(format!("hlo/{file}:{}\n  - {golden}\n  + {emitted}", line + 1));
        }
    }
    assert!(
        different.is_empty(),
        "goldens differ, first at:\n{}\nif that is right: BF16SCOPE_BLESS=1 cargo test --test networks zoo, and read the diff",
        different.join("\n")
    );
}

#[test]
fn nothing_else_is_in_the_folder() {
    let expected: BTreeSet<String> = programs().into_keys().chain(["README.md".to_string()]).collect();
    let files: BTreeSet<String> = std::fs::read_dir(hlo_folder())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    assert_eq!(files, expected, "files in hlo/ that no test reads, or goldens that are missing");
}

/// The users of each instruction of the entry.
fn users(entry: &Computation) -> Vec<Vec<InstrId>> {
    let mut users = vec![Vec::new(); entry.instructions.len()];
    for (at, instr) in entry.instructions.iter().enumerate() {
        for operand in &instr.operands {
            users[operand.idx()].push(InstrId(at as u32));
        }
    }
    users
}

/// ResNet-50's training step in bf16, batch 4: only dims depend on the batch.
fn resnet50_in_bf16() -> Program {
    training(&*model("{kind: resnet}").task(0.0), Precision::Bf16, 4, &sgd_with_momentum()).unwrap().program
}

/// Whether it is a batch of feature maps.
fn is_activation(shape: &ArrayShape) -> bool {
    shape.rank() == 4 && shape.dims[0] == 4
}

/// No f32 copy of an activation outlives its batch norm. An f32 array of an activation's size is one of two things:
/// - a bf16 value widened, which only a batch norm, its gradient or the last mean reads: it can be made again from the
///   bf16 value, so it is nothing to keep for the backward part;
/// - made by a batch norm or its gradient, or the gradient of the last mean, and only read by the conversion to bf16.
#[test]
fn resnet50_keeps_no_activation_in_f32() {
    let program = resnet50_in_bf16();
    let entry = program.module.entry();
    let users = users(entry);
    let opcode = |id: InstrId| entry.instr(id).op.opcode().into_owned();
    let dtype = |id: InstrId| entry.instr(id).shape.dtype();
    let mut n_checked = 0;
    for (at, instr) in entry.instructions.iter().enumerate() {
        let Some(shape) = instr.shape.as_array() else { continue };
        if shape.dtype != DType::F32 || !is_activation(shape) {
            continue;
        }
        n_checked += 1;
        let maker = instr.op.opcode();
        let is_widened = maker == "convert" && dtype(instr.operands[0]) == Some(DType::BF16);
        let is_normalised = maker == "get-tuple-element" && opcode(instr.operands[0]).starts_with("batch-norm-");
        let name = &instr.metadata.op_name;
        assert!(is_widened || is_normalised || maker == "broadcast", "{name}: {shape} is made by {maker}");
        for &user in &users[at] {
            let reader = opcode(user);
            let reads_well = if is_widened {
                reader.starts_with("batch-norm-") || reader == "reduce"
            } else {
                reader == "convert" && dtype(user) == Some(DType::BF16)
            };
            assert!(reads_well, "{name}: {shape}, made by {maker}, is read by {reader}");
        }
    }
    assert!(n_checked > 0);
}

/// Products are bf16, and conversions are those the scope and the batch norms ask for. A change here is a change of what
/// the scope costs.
#[test]
fn resnet50_converts_what_the_scope_says_and_nothing_more() {
    let program = resnet50_in_bf16();
    let entry = program.module.entry();
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for instr in &entry.instructions {
        let Some(shape) = instr.shape.as_array() else { continue };
        let from = instr.operands.first().and_then(|&id| entry.instr(id).shape.dtype());
        let what = match (&instr.op, from, shape.dtype) {
            (Op::Convolution(_), _, DType::BF16) => "bf16 convolutions",
            (Op::Dot { .. }, _, DType::BF16) => "bf16 dots",
            (Op::Convolution(_) | Op::Dot { .. }, _, _) => "other products",
            (Op::Convert, Some(DType::F32), DType::BF16) if is_activation(shape) => "activations to bf16",
            (Op::Convert, Some(DType::BF16), DType::F32) if is_activation(shape) => "activations to f32",
            (Op::Convert, Some(DType::F32), DType::BF16) => "others to bf16",
            (Op::Convert, Some(DType::BF16), DType::F32) => "others to f32",
            _ => continue,
        };
        *counts.entry(what).or_default() += 1;
    }
    let (n_convs, n_variables) = (53, 55);
    let expected = BTreeMap::from([
        // Forward, by kernel, and by input (the images need no gradient).
        ("bf16 convolutions", 3 * n_convs - 1),
        ("bf16 dots", 3),
        // Into and out of each batch norm and its gradient; the last mean sums in f32, and so it is in its gradient.
        ("activations to f32", 2 * n_convs + 1),
        ("activations to bf16", 2 * n_convs + 1),
        // Kernels and the last bias as read; the mean, the gradient of the logits, and the sum of it for the bias.
        ("others to bf16", n_variables + 3),
        // Their gradients; the logits, their gradient where it is summed for the bias, and the gradient of the mean.
        ("others to f32", n_variables + 3),
    ]);
    assert_eq!(counts, expected);
}

/// Every example is an experiment, and its programs can be built in every precision.
#[test]
fn examples_build() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples");
    let mut n_built = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|extension| extension != "yaml") {
            continue;
        }
        let experiment = Experiment::read(&path).unwrap_or_else(|error| panic!("{error}"));
        for precision in Precision::ALL {
            for auto in [Tuning::none(), Tuning::tpu()] {
                let step =
                    training(&*experiment.task(), precision, 2, &experiment.objective(precision, &auto).unwrap());
                let step = step.unwrap_or_else(|error| panic!("{}: {error}", path.display())).program;
                verify(&step.module).unwrap_or_else(|errors| panic!("{}: {errors}", path.display()));
                assert_eq!(step.warnings, [""; 0], "{}", path.display());
            }
        }
        n_built += 1;
    }
    assert!(n_built >= 3, "only {n_built} examples were found");
}
