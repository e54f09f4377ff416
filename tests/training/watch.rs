//! The black box: what it says of runs with a planted fault, that it is silent of clean ones, and that it changes no bit.

use crate::{examples, run};

use bf16scope::data::Arrays;
use bf16scope::graph::{Precision, Storage};
use bf16scope::models::{Model, cnn, mlp};
use bf16scope::optim::{LearningRate, LossScale, Optimizer, Update};
use bf16scope::train::watch::{Anomaly, Quantity, Watch, WatchRecord, anomalies};
use bf16scope::train::{Data, Event, Objective, RunPlan, Session, Spec, TrainError, run as train};
use std::num::NonZeroU32;
use std::sync::atomic::AtomicBool;

const EVERY: u32 = 4;

/// 128 examples of 4 × 4 × 1 features in two classes, by the sign of their sum; `scale` is the size of the features.
fn dataset(scale: f32) -> Arrays {
    let value = |i: i32| (((i * 7919) % 1009) as f32 / 504.5 - 1.0) * scale;
    let features: Vec<f32> = (0..128 * 16).map(value).collect();
    let labels = features.chunks(16).map(|example| i32::from(example.iter().sum::<f32>() > 0.0)).collect();
    examples::images(features, &[4, 4, 1], labels)
}

fn spec(model: Model, precision: Precision, optimizer: Optimizer, rate: f64) -> Spec {
    let update = Update { optimizer, learning_rate: LearningRate::Constant { value: rate }, ..Update::default() };
    let objective = Objective { update, ..Objective::default() };
    Spec { precision, batch: 16, seed: 1, objective, ..Spec::new(model.task(0.0)) }
}

fn small_mlp() -> Model {
    Model::Mlp(mlp::Config { hidden: vec![16, 16], ..mlp::Config::new([4, 4, 1], 2) })
}

fn small_cnn() -> Model {
    Model::Cnn(cnn::Config { filters: vec![8], dropout: 0.25, ..cnn::Config::new([4, 4, 1], 2) })
}

/// Trains on `data`; gives the session, what was seen, and how it ended.
fn watched(spec: Spec, data: &Arrays, watch: bool) -> (Session, Vec<WatchRecord>, Result<(), TrainError>) {
    watched_every(spec, data, if watch { EVERY } else { 0 })
}

/// As [`watched`], every so many steps; of 0 never.
fn watched_every(spec: Spec, data: &Arrays, every: u32) -> (Session, Vec<WatchRecord>, Result<(), TrainError>) {
    let mut session = Session::new(run::client(), spec).unwrap();
    let mut records = Vec::new();
    let watch = NonZeroU32::new(every).map(|every| Watch { every });
    let plan = RunPlan { watch, ..RunPlan::new(2, None) };
    let data = Data { training: data, test: data };
    let result = train(&mut session, data, &plan, &AtomicBool::new(false), &mut |event| {
        if let Event::Watched(record) = event {
            records.push(record.clone());
        }
    });
    (session, records, result.map(drop))
}

fn first(records: &[WatchRecord]) -> Anomaly {
    anomalies(records).into_iter().next().expect("something is wrong with this run")
}

/// A look does not donate what it reads, and its program is another one.
#[test]
fn a_watched_run_has_the_bits_of_one_that_is_not() {
    for storage in [Storage::F32, Storage::Bf16Stochastic] {
        let spec = Spec { variables: storage, ..spec(small_cnn(), Precision::Bf16, Optimizer::ADAM, 1e-2) };
        let data = dataset(1.0);
        let (plain, none, _) = watched(spec.clone(), &data, false);
        let (seen, records, _) = watched(spec, &data, true);
        assert_eq!(none, []);
        assert_eq!(plain.state().unwrap(), seen.state().unwrap());
        assert_eq!(records.iter().map(|record| record.step).collect::<Vec<_>>(), [1, 5, 9, 13]);
    }
}

/// Of every array: shares of one whole, a size that fits the bins; each of the four quantities is there.
#[test]
fn counts_add_up() {
    let spec = spec(small_mlp(), Precision::Bf16, Optimizer::SGD, 0.1);
    let (_, records, _) = watched(spec, &dataset(1.0), true);
    for row in &records[1].rows {
        let all = row.zero + row.not_finite + row.bins.iter().sum::<f64>();
        assert!((all - 1.0).abs() < 1e-9, "{row:?}");
        assert!(row.rms <= row.max * 1.0001 && row.subnormal <= 1.0 - row.zero, "{row:?}");
    }
    for quantity in Quantity::ALL {
        let rows: Vec<_> = records[1].rows.iter().filter(|row| row.quantity == quantity).collect();
        assert!(rows.len() >= 3 && rows.iter().any(|row| row.max > 0.0), "{quantity}: {rows:?}");
    }
}

#[test]
fn clean_runs_raise_no_alarm() {
    let runs = [
        (small_mlp(), Precision::F32, Optimizer::SGD, 0.1, 0),
        (small_mlp(), Precision::Bf16, Optimizer::ADAM, 1e-2, 1),
        (small_mlp(), Precision::Bf16, Optimizer::ADAM, 1e-3, 2),
        (small_mlp(), Precision::F32, Optimizer::ADAM, 1e-3, 3),
        (small_mlp(), Precision::Bf16, Optimizer::SGD, 0.05, 4),
        (small_cnn(), Precision::F32, Optimizer::ADAM, 1e-3, 5),
        (small_cnn(), Precision::Bf16, Optimizer::SGD, 0.05, 6),
        (small_cnn(), Precision::Bf16, Optimizer::ADAM, 1e-2, 7),
        (small_cnn(), Precision::F32, Optimizer::SGD, 0.1, 8),
        (small_cnn(), Precision::Bf16, Optimizer::ADAM, 1e-3, 9),
    ];
    for (model, precision, optimizer, rate, seed) in runs {
        let spec = Spec { seed, ..spec(model, precision, optimizer, rate) };
        let (_, records, result) = watched(spec, &dataset(1.0), true);
        result.unwrap();
        assert_eq!(anomalies(&records), [], "seed {seed}");
    }
}

#[test]
fn bf16_weights_that_stall_are_named() {
    let spec = Spec { variables: Storage::Bf16Nearest, ..spec(small_mlp(), Precision::Bf16, Optimizer::SGD, 1e-4) };
    let (_, records, _) = watched(spec, &dataset(1.0), true);
    let found = first(&records);
    assert_eq!((found.rule, found.step, found.quantity), ("stalled", 1 + u64::from(EVERY), Quantity::Update));
    assert!(found.layer.ends_with("/kernel"), "{found:?}");
}

#[test]
fn gradients_that_f16_flushes_are_named() {
    if !run::has_f16() {
        return;
    }
    // A cotangent of a logit is at most 1 / 16 here; 2^-24 times that is below half of f16's least number.
    let mut spec = spec(small_mlp(), Precision::F16, Optimizer::SGD, 0.1);
    spec.objective.loss_scale = LossScale::Static { scale: 2f64.powi(-24) };
    let (_, records, _) = watched(spec, &dataset(1.0), true);
    let found = first(&records);
    assert_eq!((found.rule, found.step, found.quantity), ("flushed", 1, Quantity::Cotangent), "{found:?}");
}

#[test]
fn features_that_are_too_large_explode() {
    let spec = spec(small_mlp(), Precision::F32, Optimizer::SGD, 1e2);
    let (_, records, _) = watched(spec, &dataset(30.0), true);
    let found = first(&records);
    assert!(["exploding", "saturated_softmax", "not_finite"].contains(&found.rule), "{found:?}");
    assert!(found.step <= 1 + u64::from(EVERY), "{found:?}");
}

/// Without `watch` too: the step is made again.
#[test]
fn a_loss_that_is_not_finite_says_where_it_began() {
    let spec = spec(small_mlp(), Precision::Bf16, Optimizer::SGD, 1e30);
    for watch in [false, true] {
        let (_, records, result) = watched(spec.clone(), &dataset(1.0), watch);
        let error = result.unwrap_err().to_string();
        let found = anomalies(&records).into_iter().find(|anomaly| anomaly.rule == "not_finite").unwrap();
        assert!(error.contains(&format!("which began in {}, forward: ", found.layer)), "{error}\n{found:?}");
        assert!(found.layer.contains("mlp/"), "{found:?}");
    }
}

/// A scale that may not shrink: all 8 steps of the window overflow f16 and are left out.
#[test]
fn a_loss_scale_that_is_stuck_is_named() {
    if !run::has_f16() {
        return;
    }
    let mut spec = spec(small_mlp(), Precision::F16, Optimizer::ADAM, 1e-2);
    let scale = 2f64.powi(40);
    spec.objective.loss_scale = LossScale::Dynamic { initial: scale, period: 2000, factor: 2.0, minimum: scale };
    let (_, records, _) = watched_every(spec, &dataset(1.0), 8);
    let found = first(&records);
    assert_eq!((found.rule, found.step, found.direction), ("loss_scale_stuck", 9, "backward"), "{found:?}");
    assert!(found.found.starts_with("8 of the last 8 steps were left out"), "{found:?}");
}
