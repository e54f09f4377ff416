//! Narrowing: the interval between two records is replayed step by step, to find the first anomaly and the setting that
//! changed.

use crate::{examples, run};

use bf16scope::data::Arrays;
use bf16scope::models::{Model, mlp};
use bf16scope::optim::{LearningRate, Optimizer, RateChange, Update};
use bf16scope::train::replay::{ReplayFrom, state_at};
use bf16scope::train::watch::{Watch, WatchRecord, anomalies};
use bf16scope::train::{
    Data, Event, Narrowed, Objective, RunPlan, Session, Spec, TrainError, interval_of, narrow, run as train,
};
use half::bf16;
use std::num::NonZeroU32;
use std::sync::atomic::AtomicBool;

/// The interval between records in steps; an epoch has 32.
const EVERY: u32 = 10;
const BATCH: u32 = 8;
const N: usize = 256;

fn spec(learning_rate: LearningRate) -> Spec {
    let model = Model::Mlp(mlp::Config { hidden: vec![16, 16], ..mlp::Config::new([4, 4, 1], 2) });
    let update = Update { optimizer: Optimizer::SGD, learning_rate, ..Update::default() };
    Spec {
        batch: BATCH,
        seed: 1,
        objective: Objective { update, ..Objective::default() },
        ..Spec::new(model.task(0.0))
    }
}

fn value(i: usize) -> f32 {
    ((i * 7919) % 1009) as f32 / 504.5 - 1.0
}

/// 256 examples; those of `larger` have features of another size.
fn dataset(larger: usize, scale: f32) -> Arrays {
    let features: Vec<f32> = (0..N * 16).map(|i| value(i) * if i / 16 == larger { scale } else { 1.0 }).collect();
    let labels = features.chunks(16).map(|example| i32::from(example.iter().sum::<f32>() > 0.0)).collect();
    examples::images(features, &[4, 4, 1], labels)
}

/// Trains an epoch with a record every ten steps, and narrows the anomaly.
fn narrowed(spec: &Spec, data: &Arrays) -> (Vec<WatchRecord>, Option<Narrowed>) {
    let data = Data { training: data, test: data };
    let mut session = Session::new(run::client(), spec.clone()).unwrap();
    let mut records: Vec<WatchRecord> = Vec::new();
    let plan = RunPlan { watch: NonZeroU32::new(EVERY).map(|every| Watch { every }), ..RunPlan::new(1, None) };
    train(&mut session, data, &plan, &AtomicBool::new(false), &mut |event| {
        if let Event::Watched(record) = event {
            records.push(record.clone());
        }
    })
    .unwrap();
    assert_eq!(records.iter().map(|record| record.step).collect::<Vec<_>>(), [1, 11, 21, 31]);
    let mut n_made = 0;
    let narrowed = narrow(&mut session, data, &ReplayFrom::Start, &records, |_, _| {
        n_made += 1;
        Ok::<(), TrainError>(())
    })
    .unwrap();
    if let Some(narrowed) = &narrowed {
        assert_eq!(interval_of(&records), Some(narrowed.steps[0]));
        assert!(n_made >= narrowed.records.len());
        // A replayed step has its original numbers.
        for look in narrowed.records.iter().filter(|look| look.step % u64::from(EVERY) == 1) {
            let first = records.iter().find(|record| record.step == look.step).unwrap();
            assert_eq!(first.rows, look.rows);
        }
    }
    (records, narrowed)
}

/// A rate that rises sevenfold four times, between steps 11 and 21: each rise is below what `rate_jump` asks for.
#[test]
fn the_setting_that_changed_is_named_where_the_look_saw_what_followed() {
    let rises = [(13, 0.07), (14, 0.5), (15, 3.5), (16, 24.0)];
    let changes = rises.map(|(step, value)| RateChange { step, value }).to_vec();
    let (records, narrowed) = narrowed(&spec(LearningRate::Piecewise { value: 0.01, changes }), &dataset(N, 1.0));
    let coarse = anomalies(&records);
    assert!(coarse[0].step == 21 && coarse[0].rule != "rate_jump", "{coarse:?}");
    let narrowed = narrowed.unwrap();
    // The effect of the largest or second-largest rate shows in the next step's numbers.
    let first = &narrowed.anomalies[0];
    assert!((17..=19).contains(&first.step), "{:?}", narrowed.anomalies);
    assert_eq!(narrowed.steps, [1, first.step]);
    let change = &narrowed.settings[0];
    assert_eq!((change.step, change.setting, change.before, change.now), (17, "learning_rate", 3.5, 24.0));
    assert_eq!(
        change.to_string(),
        "`learning_rate` is 2.400e1 from step 17 on, and was 3.500e0: `changes[3]` follows `changes[2]`"
    );
    assert_eq!(narrowed.settings.len(), 4);
}

/// One example of thousands, between two records: its step is named, and no setting changed.
#[test]
fn a_batch_that_did_it_is_named_by_its_step() {
    const STEP: u64 = 15;
    let spec = spec(LearningRate::Constant { value: 0.1 });
    let data = dataset(N, 1.0);
    let both = Data { training: &data, test: &data };
    let mut session = Session::new(run::client(), spec.clone()).unwrap();
    let next = state_at(&mut session, both, &ReplayFrom::Start, STEP, |_, _| Ok::<(), TrainError>(())).unwrap();
    let images = next.batch.arrays.iter().find(|array| array.name == "images").unwrap();
    let first = images.to_vec::<bf16>().unwrap()[..16].to_vec();
    let is_first = |at: &usize| (0..16).all(|i| bf16::from_f32(value(at * 16 + i)) == first[i]);
    let at = (0..N).find(is_first).expect("each example is in some batch");
    let (records, narrowed) = narrowed(&spec, &dataset(at, 3e4));
    let coarse = anomalies(&records);
    assert!(coarse[0].step > STEP, "{coarse:?}");
    let narrowed = narrowed.expect("something is wrong");
    let first = &narrowed.anomalies[0];
    assert_eq!((first.rule, first.step), ("unscaled_input", STEP), "{:?}", narrowed.anomalies);
    assert_eq!(narrowed.settings, []);
}

#[test]
fn where_nothing_is_wrong_there_is_nothing_to_narrow() {
    let (records, narrowed) = narrowed(&spec(LearningRate::Constant { value: 0.05 }), &dataset(N, 1.0));
    assert_eq!(anomalies(&records), []);
    assert!(narrowed.is_none() && interval_of(&records).is_none());
}
