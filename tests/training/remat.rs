//! Rematerialisation: the same gradients to the last bit, fewer residuals on a TPU, and the errors of patterns that
//! match nothing.

use crate::{examples, run};

use bf16scope::data::csv;
use bf16scope::document;
use bf16scope::graph::Precision;
use bf16scope::hlo::proto::encode;
use bf16scope::hlo::text::{PrintOptions, print};
use bf16scope::hlo::verify::verify;
use bf16scope::hlo::{CompId, DType, Emitter, InstrId, Module, Op, Shape};
use bf16scope::models::Model;
use bf16scope::passes::remat::remat;
use bf16scope::tpu::{CompileReport, Target, compile};
use bf16scope::train::checkpoint::Array;
use bf16scope::train::{Objective, Session, Spec, program};
use bf16scope::tuning::{Remat, Tuning};
use std::collections::BTreeMap;
use std::path::Path;

fn model(text: &str) -> Model {
    document::from_str("model.yaml", text).unwrap()
}

/// Convolutions, batch norms, pooling and dropout.
fn cnn() -> Model {
    model("kind: cnn\ninput: [8, 8, 1]\nn_classes: 10\nfilters: [8, 16]\ndropout: 0.25\n")
}

/// Residual blocks with and without a projection.
fn resnet() -> Model {
    model("kind: resnet\ndepth: 18\nwidth: 4\ninput: [8, 8, 1]\nn_classes: 10\n")
}

/// The same on larger images: no activation is so much smaller than its kernel that it is always kept.
fn larger_resnet() -> Model {
    model("kind: resnet\ndepth: 18\nwidth: 4\ninput: [64, 64, 3]\nn_classes: 10\n")
}

fn scopes(patterns: &[&str]) -> Remat {
    Remat::Scopes(patterns.iter().map(|pattern| pattern.to_string()).collect())
}

fn objective(remat: &Remat) -> Objective {
    Objective { tuning: Tuning::none().with(|tuning| tuning.remat = remat.clone()), ..Objective::default() }
}

/// Every variable and slot after three steps on the digits: with momentum, a slot holds the gradients themselves.
fn trained(model: &Model, precision: Precision, remat: &Remat) -> BTreeMap<String, Array> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/data/digits.csv.gz");
    let client = run::client();
    let task = model.task(0.0);
    let digits = csv::read_scaled(&path, &task.features(), 1.0 / 16.0).unwrap();
    let spec = Spec { precision, batch: 16, seed: 1, objective: objective(remat), ..Spec::new(task) };
    let mut session = Session::new(client, spec.clone()).unwrap();
    for batch in examples::loader(&digits, &spec).epoch(0).take(3) {
        session.train(&batch.unwrap()).unwrap();
    }
    session.state().unwrap()
}

fn keeps_bits(model: &Model, precision: Precision, remats: &[Remat]) {
    let expected = trained(model, precision, &Remat::None);
    for remat in remats {
        let actual = trained(model, precision, remat);
        let different: Vec<_> = expected.keys().filter(|name| expected[*name] != actual[*name]).collect();
        assert!(different.is_empty(), "{} {precision} {remat:?}: these differ: {different:?}", model.kind());
    }
}

#[test]
fn gradients_keep_their_bits() {
    keeps_bits(&cnn(), Precision::F32, &[Remat::Elementwise]);
    keeps_bits(&cnn(), Precision::Bf16, &[scopes(&["conv*"])]);
}

#[test]
fn gradients_of_blocks_keep_their_bits() {
    keeps_bits(&resnet(), Precision::Bf16, &[scopes(&["conv2", "stem"])]);
}

/// How many convolutions a training program has, and how many barriers.
fn counts(remat: &Remat) -> (usize, usize) {
    let program =
        program::training(&*larger_resnet().task(0.0), Precision::Bf16, 8, &objective(remat)).unwrap().program;
    verify(&program.module).unwrap();
    let entry = program.module.entry();
    let count = |is: fn(&Op) -> bool| entry.instructions.iter().filter(|instr| is(&instr.op)).count();
    (count(|op| matches!(op, Op::Convolution(_))), count(|op| matches!(op, Op::OptimizationBarrier)))
}

#[test]
fn convolutions_run_again_in_matched_scopes_only() {
    let (n_convolutions, n_barriers) = counts(&Remat::None);
    assert_eq!(n_barriers, 0);
    let (n, n_barriers) = counts(&Remat::Elementwise);
    assert_eq!(n, n_convolutions);
    assert!(n_barriers > 0);
    // One in each of eight blocks.
    assert_eq!(counts(&scopes(&["conv2"])).0, n_convolutions + 8);
    assert_eq!(counts(&scopes(&["stage1/block1/conv2"])).0, n_convolutions + 1);
    // A whole block, with its shortcut.
    assert_eq!(counts(&scopes(&["stage2/block1"])).0, n_convolutions + 3);
}

#[test]
fn every_copy_leads_back_to_a_barrier_and_to_no_value_that_was_to_be_dropped() {
    let program = program::training(&*larger_resnet().task(0.0), Precision::Bf16, 8, &objective(&scopes(&["conv2"])));
    let program = program.unwrap().program;
    let entry = program.module.entry();
    let is_backward = |id: InstrId| entry.instr(id).metadata.op_name.starts_with("gradient/");
    for id in entry.ids().filter(|&id| is_backward(id)) {
        for operand in entry.instr(id).operands.iter().map(|&operand| entry.instr(operand)) {
            let name = &operand.metadata.op_name;
            let dropped = name.starts_with("resnet/") && name.ends_with("conv2/convolution");
            assert!(!dropped, "{} uses {name}", entry.instr(id).name);
        }
    }
}

/// A kernel is large or small relative to the output of its convolution; the variable is there anyway, so the backward
/// pass repeats the casts of large ones, and those of the forward pass need not stay alive.
#[test]
fn large_kernels_are_cast_again() {
    let program = |remat: &Remat| {
        let program = program::training(&*resnet().task(0.0), Precision::Bf16, 8, &objective(remat)).unwrap().program;
        verify(&program.module).unwrap();
        program
    };
    // Per convolution of the forward pass whether its kernel is large, and whether the backward pass reads that cast.
    let kernels = |remat: &Remat| -> Vec<(bool, bool)> {
        let program = program(remat);
        let entry = program.module.entry();
        let is_backward = |name: &str| name.starts_with("gradient/") || name.starts_with("remat/");
        let of_backward = |id: &InstrId| is_backward(&entry.instr(*id).metadata.op_name);
        let n = |id: InstrId| entry.instr(id).shape.dims().iter().product::<i64>();
        let is_convolution = |id: &InstrId| matches!(entry.instr(*id).op, Op::Convolution(_));
        let forward = entry.ids().filter(|id| is_convolution(id) && !of_backward(id));
        let kernel = |id: InstrId| {
            let kernel = entry.instr(id).operands[1];
            let is_read = entry.ids().any(|id| of_backward(&id) && entry.instr(id).operands.contains(&kernel));
            (n(kernel) > 2 * n(id), is_read)
        };
        forward.map(kernel).collect()
    };
    let (kept, again) = (kernels(&Remat::None), kernels(&Remat::Convolutional));
    // The stem's kernel is in no gradient: images have none.
    assert!(kept[1..].iter().all(|(_, is_read)| *is_read), "{kept:?}");
    assert!(again[1..].iter().all(|(is_large, is_read)| is_large != is_read), "{again:?}");
    assert!(again.iter().any(|(is_large, _)| *is_large) && again[1..].iter().any(|(is_large, _)| !is_large));
    // Each is the variable behind a barrier, with the same cast.
    let program = program(&Remat::Convolutional);
    let entry = program.module.entry();
    let is_again = |name: &str| name.starts_with("remat/") && name.ends_with("conv2/Cast");
    for id in entry.ids().filter(|&id| is_again(&entry.instr(id).metadata.op_name)) {
        let barrier = entry.instr(entry.instr(id).operands[0]);
        assert_eq!(barrier.op, Op::OptimizationBarrier);
        assert!(matches!(entry.instr(barrier.operands[0]).op, Op::Parameter { .. }));
    }
}

#[test]
fn the_same_program_is_written_every_time() {
    let text = |remat| {
        let program =
            program::training(&*larger_resnet().task(0.0), Precision::Bf16, 8, &objective(&remat)).unwrap().program;
        print(&program.module, &PrintOptions::default())
    };
    assert_eq!(text(scopes(&["block*"])), text(scopes(&["block*"])));
    assert_ne!(text(scopes(&["block*"])), text(Remat::Elementwise));
}

#[test]
fn a_pattern_that_matches_nothing_is_an_error() {
    let error = |patterns: &[&str]| {
        let result = program::training(&*larger_resnet().task(0.0), Precision::Bf16, 8, &objective(&scopes(patterns)));
        result.unwrap_err().to_string()
    };
    assert_eq!(
        error(&["conv2", "blok1"]),
        "remat: no scope of the network matches `blok1`\nhelp: did you mean `block1`?"
    );
    assert_eq!(
        error(&["zzz/*"]),
        "remat: no scope of the network matches `zzz/*`\nhelp: `bf16scope emit` shows the names, as op_name"
    );
}

#[test]
fn an_earlier_failure_of_the_emitter_comes_back() {
    let e = Emitter::new(Module::new("broken"), CompId(0));
    let [x, y] = [2, 3].map(|size| e.parameter(size - 2, &Shape::array(DType::F32, [size])));
    e.add(x, y);
    let error = remat(&e, 2, &[], &Remat::Elementwise).unwrap_err();
    assert_eq!(error.to_string(), e.error().unwrap().to_string());
}

/// The TPU compiler's reports of a network's training step, with a batch so large that activations are most of the
/// memory.
fn reports<const N: usize>(network: &str, remats: [Remat; N]) -> [CompileReport; N] {
    let model = model(network);
    let target: Target = "tpu-v2".parse().unwrap();
    remats.map(|remat| {
        let program = program::training(&*model.task(0.0), Precision::Bf16, 256, &objective(&remat)).unwrap().program;
        verify(&program.module).unwrap();
        compile(&target, &encode::to_bytes(&program.module).unwrap(), 256).unwrap()
    })
}

#[test]
fn a_tpu_keeps_less() {
    let network = "kind: cnn\ninput: [32, 32, 3]\nn_classes: 10\nfilters: [16, 16]\n";
    let [none, convolutions] = reports(network, [Remat::None, scopes(&["conv*"])]);
    assert!(convolutions.hbm.temporaries < none.hbm.temporaries, "{none:?}\n{convolutions:?}");
    assert!(convolutions.flops > 1.05 * none.flops, "{none:?}\n{convolutions:?}");
}

/// Too long for `cargo test`: `ci/long` runs them.
#[cfg_attr(not(feature = "long-tests"), allow(dead_code))]
mod long {
    use super::*;

    /// `gradients_keep_their_bits` has each precision with the other form.
    #[cfg_attr(feature = "long-tests", test)]
    fn gradients_keep_their_bits_in_each_precision() {
        keeps_bits(&cnn(), Precision::F32, &[scopes(&["conv*"])]);
        keeps_bits(&cnn(), Precision::Bf16, &[Remat::Elementwise]);
    }

    /// Compiles three ResNets, a minute of a core.
    #[cfg_attr(feature = "long-tests", test)]
    fn gradients_of_whole_blocks_keep_their_bits() {
        keeps_bits(&resnet(), Precision::Bf16, &[Remat::Elementwise, scopes(&["stage?/block*"])]);
    }

    /// Three compiles of a ResNet for a TPU.
    #[cfg_attr(feature = "long-tests", test)]
    fn a_tpu_keeps_the_less_the_more_is_computed_again() {
        let network = "kind: resnet\ndepth: 18\nwidth: 16\ninput: [32, 32, 3]\nn_classes: 10\n";
        let [none, elementwise, convolutions] = reports(network, [Remat::None, Remat::Elementwise, scopes(&["conv2"])]);
        assert!(elementwise.hbm.temporaries < none.hbm.temporaries, "{none:?}\n{elementwise:?}");
        assert!(convolutions.hbm.temporaries < elementwise.hbm.temporaries, "{elementwise:?}\n{convolutions:?}");
        assert!(convolutions.flops > 1.05 * none.flops, "{none:?}\n{convolutions:?}");
    }
}
