//! Runs that start from weights of others: what they begin with, what they remember, and what is frozen.

use crate::digits::digits;
use crate::run::client;

use bf16scope::graph::{Precision, Storage};
use bf16scope::hlo::Literal;
use bf16scope::models::{Model, cnn};
use bf16scope::optim::{Average, Optimizer};
use bf16scope::train::checkpoint::Checkpoint;
use bf16scope::train::{InitializeFrom, Objective, Spec, Trained, Trainer, program};
use bf16scope::weights::{self, WrittenFormat};
use std::path::Path;

fn spec(n_classes: i64) -> Spec {
    let model = Model::Cnn(cnn::Config { filters: vec![4], ..cnn::Config::new([8, 8, 1], n_classes) });
    Spec { batch: 40, seed: 3, precision: Precision::F32, ..Spec::new(model.task(0.0)) }
}

fn trainer<'a>(spec: Spec) -> Trainer<'a> {
    Trainer::from_spec(spec).on(client())
}

fn fit(trainer: Trainer<'_>) -> Trained {
    trainer.fit(digits().data().training, digits().data().test).unwrap()
}

/// A checkpoint of one epoch.
fn trained(path: &Path) -> Checkpoint {
    fit(trainer(spec(10)).epochs(1).checkpoint(path));
    Checkpoint::read(path).unwrap()
}

fn is_slot(name: &str) -> bool {
    name.ends_with("/momentum")
}

/// f32 to the bit, fresh slots, no step; and what it came from is in the settings, and stays there when the run goes on.
#[test]
fn a_fresh_run_starts_from_a_checkpoint_and_remembers_it() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let before = trained(&at("before.safetensors"));
    // Another seed: what is the same was taken.
    let other = || Spec { seed: 4, ..spec(10) };
    let from = InitializeFrom::new(at("before.safetensors"));
    fit(trainer(other()).epochs(0).initialize_from(from.clone()).checkpoint(at("now.safetensors")));
    let now = Checkpoint::read(at("now.safetensors")).unwrap();
    assert_eq!(now.position.step, 0);
    for (name, array) in &now.variables {
        match is_slot(name) {
            true => assert!(array.bytes.iter().all(|&byte| byte == 0), "{name}"),
            false => assert_eq!(array, &before.variables[name], "{name}"),
        }
    }
    let record = |checkpoint: &Checkpoint| {
        serde_json::to_value(&checkpoint.settings).unwrap()["train"]["initialize_from"].clone()
    };
    assert_eq!(record(&now)["rules"], "names");
    assert_eq!(record(&now)["sha256"].as_str().unwrap().len(), 64);
    // Gone on with, it does not start again: a file that is not there any more is not asked for.
    std::fs::remove_file(at("before.safetensors")).unwrap();
    let resumed = trainer(other()).epochs(1).initialize_from(from).resume(at("now.safetensors"));
    let resumed = fit(resumed.checkpoint(at("on.safetensors")));
    assert_eq!(resumed.changes(), []);
    let on = Checkpoint::read(at("on.safetensors")).unwrap();
    assert_eq!(record(&on), record(&now));
}

/// As `variables: bf16_…` would have stored it, and back again.
#[test]
fn bf16_goes_on_in_f32_and_f32_in_bf16() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let before = trained(&at("f32.safetensors"));
    let start = |storage: Storage, from: &str, to: &str| {
        let spec = Spec { variables: storage, ..spec(10) };
        let from = InitializeFrom::new(at(from));
        fit(trainer(spec).epochs(0).initialize_from(from).checkpoint(at(to)));
        Checkpoint::read(at(to)).unwrap()
    };
    let name = "cnn/block1/conv/kernel";
    let f32s = |checkpoint: &Checkpoint| -> Vec<f32> {
        let bytes = &checkpoint.variables[name].bytes;
        bytes.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
    };
    let narrow = start(Storage::Bf16Nearest, "f32.safetensors", "bf16.safetensors");
    let rounded: Vec<half::bf16> = f32s(&before).into_iter().map(half::bf16::from_f32).collect();
    let stored = narrow.variables[name].bytes.as_chunks::<2>().0.iter();
    assert_eq!(stored.map(|bytes| half::bf16::from_le_bytes(*bytes)).collect::<Vec<_>>(), rounded);
    let wide = start(Storage::F32, "bf16.safetensors", "wide.safetensors");
    assert_eq!(f32s(&wide), rounded.iter().map(|value| value.to_f32()).collect::<Vec<_>>());
    // With the remainders of the compensated form 16 bits or more come back: an error of 2^-17 of the value at most.
    start(Storage::Bf16Compensated, "f32.safetensors", "pair.safetensors");
    let whole = start(Storage::F32, "pair.safetensors", "whole.safetensors");
    for (before, after) in f32s(&before).into_iter().zip(f32s(&whole)) {
        assert!((before - after).abs() <= before.abs() * 2f32.powi(-17), "{before} {after}");
    }
}

#[test]
fn an_npz_by_names_and_another_number_of_classes() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let before = trained(&at("before.safetensors"));
    let arrays =
        before.variables.iter().filter(|(name, _)| !is_slot(name)).map(|(name, array)| {
            (name.clone(), Literal::Array { shape: array.shape.clone(), bytes: array.bytes.clone() })
        });
    for (name, format) in [("w.npz", WrittenFormat::Npz), ("w.safetensors", WrittenFormat::Safetensors)] {
        weights::write(&at(name), format, arrays.clone()).unwrap();
        let refused = InitializeFrom::new(at(name)).read(&spec(7)).unwrap_err().to_string();
        assert!(
            refused.contains("cnn/logits/kernel is 10 along axis 1, expected 7")
                && refused.ends_with("`except: ['cnn/logits/*']` under `train`"),
            "{refused}"
        );
        let from = InitializeFrom { except: vec!["cnn/logits/*".to_string()], ..InitializeFrom::new(at(name)) };
        let summary = from.read(&spec(7)).unwrap().summary().to_string();
        assert!(summary.ends_with("; start afresh: cnn/logits/kernel, cnn/logits/bias"), "{summary}");
        let fresh = fit(trainer(spec(10)).epochs(0)).session().unwrap().state().unwrap();
        let from = InitializeFrom { except: vec!["cnn/logits/*".to_string()], ..InitializeFrom::new(at(name)) };
        let now = fit(trainer(spec(10)).epochs(0).initialize_from(from)).session().unwrap().state().unwrap();
        for (name, array) in now.iter().filter(|(name, _)| !is_slot(name)) {
            let expected = if name.starts_with("cnn/logits/") { &fresh[name] } else { &before.variables[name] };
            assert_eq!(array, expected, "{name}");
        }
    }
}

/// Frozen variables keep their bits, have no slot and no average, and the program is smaller.
#[test]
fn what_is_frozen_has_no_gradient_and_no_slots() {
    let objective = |trainable: &[&str], average| {
        let trainable = trainable.iter().map(|pattern| pattern.to_string()).collect();
        let mut objective = Objective { trainable, average, ..Objective::default() };
        objective.update.optimizer = Optimizer::ADAM;
        objective
    };
    let build =
        |objective: &Objective| program::training(&*spec(10).task, Precision::Bf16, 40, objective).map(|it| it.program);
    let all = build(&objective(&[], None)).unwrap();
    let some = build(&objective(&["cnn/logits/*"], Some(Average::new(0.9)))).unwrap();
    let names: Vec<&str> = some.variables.iter().map(|variable| variable.name.as_str()).collect();
    assert!(names.contains(&"cnn/block1/conv/kernel") && names.contains(&"cnn/logits/kernel/adam_m"));
    assert!(!names.iter().any(|name| name.starts_with("cnn/block1/conv/kernel/")), "{names:?}");
    let n_convolutions = |program: &bf16scope::graph::Program| {
        let all = program.module.computations.iter().flat_map(|computation| &computation.instructions);
        all.filter(|instr| matches!(instr.op, bf16scope::hlo::Op::Convolution(_))).count()
    };
    assert_eq!((n_convolutions(&all), n_convolutions(&some)), (2, 1));

    for accumulate in [1, 2] {
        let mut objective = objective(&["cnn/logits/*"], None);
        objective.accumulate = std::num::NonZeroU32::new(accumulate).unwrap();
        let spec = Spec { objective, ..spec(10) };
        let trained = fit(trainer(spec.clone()).epochs(1));
        let session = trained.session().unwrap();
        let fresh = fit(trainer(spec).epochs(0)).session().unwrap().state().unwrap();
        let now = session.state().unwrap();
        assert_eq!(now["cnn/block1/conv/kernel"], fresh["cnn/block1/conv/kernel"]);
        assert_ne!(now["cnn/logits/kernel"], fresh["cnn/logits/kernel"]);
        assert_eq!(session.trainable(), ["cnn/logits/kernel", "cnn/logits/bias"]);
        assert!(session.n_frozen() > 0);
    }

    let error = build(&objective(&["cnn/logit/*"], None)).unwrap_err().to_string();
    assert_eq!(
        error,
        "`cnn/logit/*` under `trainable` is the name of no variable that could train: did you mean `cnn/logits/bias`?\nhelp: \
         `*` is any text: `*/logits/*` is all of a layer `logits`"
    );
}
