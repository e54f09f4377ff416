//! Loss scaling of f16 training programs, on the real CPU plugin: overflow is forced, a step is skipped, the scale
//! recovers and grows; and small gradients that f16 loses are kept.

use crate::{examples, run};

use bf16scope::data::{Arrays, Batch};
use bf16scope::graph::Precision;
use bf16scope::models::{Model, mlp};
use bf16scope::optim::{LearningRate, LossScale, Optimizer, Update};
use bf16scope::train::checkpoint::Array;
use bf16scope::train::{Objective, Session, Spec};
use std::collections::BTreeMap;

const BATCH: u32 = 8;

/// Sixteen examples of four features, in two classes.
fn dataset() -> Arrays {
    let features = (0..64).map(|i| ((i * 37) % 16) as f32 / 16.0 - 0.5).collect();
    let labels = (0..16).map(|i| i % 2).collect();
    examples::images(features, &[4], labels)
}

/// The same first batch at every step.
fn batch(session: &Session) -> Batch {
    examples::loader(&dataset(), session.spec()).epoch(0).next().unwrap().unwrap()
}

fn session(precision: Precision, optimizer: Optimizer, loss_scale: LossScale) -> Session {
    let learning_rate = LearningRate::Constant { value: 0.05 };
    let update = Update { optimizer, learning_rate, ..Update::default() };
    let objective = Objective { update, loss_scale, ..Objective::default() };
    let model = Model::Mlp(mlp::Config { hidden: vec![8], ..mlp::Config::new([4], 2) });
    let spec = Spec { precision, batch: BATCH, seed: 1, objective, ..Spec::new(model.task(0.0)) };
    Session::new(run::client(), spec).unwrap()
}

type State = BTreeMap<String, Array>;

fn f32_of(state: &State, name: &str) -> f32 {
    f32::from_le_bytes(state[name].bytes[..].try_into().unwrap())
}

fn s32_of(state: &State, name: &str) -> i32 {
    i32::from_le_bytes(state[name].bytes[..].try_into().unwrap())
}

/// Everything but the scaling's own state.
fn weights_and_slots(state: &State) -> State {
    state.iter().filter(|(name, _)| !name.starts_with("loss_scale/")).map(|(n, a)| (n.clone(), a.clone())).collect()
}

#[test]
fn an_overflow_skips_the_step_to_the_bit_and_the_scale_recovers_and_grows() {
    if !run::has_f16() {
        return;
    }
    // The cotangent of a logit is at most 1 / 8 in size: f16 (largest 65504) always overflows if the scale is above
    // 2^20 and the probability is not within 2^-3 of its label.
    let initial = 2f64.powi(30);
    let period = 4;
    let rule = LossScale::Dynamic { initial, period, factor: 2.0, minimum: 1.0 };
    let mut session = session(Precision::F16, Optimizer::ADAM, rule);
    let batch = batch(&session);
    let mut before = session.state().unwrap();
    assert_eq!(f32_of(&before, "loss_scale/scale"), initial as f32);
    let (mut n_skipped, mut n_good, mut n_grown, mut n_updates) = (0, 0, 0, 0);
    for step in 0..60 {
        let report = session.train(&batch).unwrap();
        assert!(report.loss().unwrap().is_finite(), "the loss that is reported is not scaled");
        let after = session.state().unwrap();
        let scale = f32_of(&before, "loss_scale/scale");
        let is_unchanged = weights_and_slots(&before) == weights_and_slots(&after);
        if s32_of(&after, "loss_scale/n_skipped") > n_skipped {
            n_skipped += 1;
            n_good = 0;
            assert!(is_unchanged, "step {step} was skipped but changed a weight or slot");
            assert_eq!(f32_of(&after, "loss_scale/scale"), scale / 2.0, "step {step}");
        } else {
            n_updates += 1;
            n_good += 1;
            assert!(!is_unchanged, "step {step} was not skipped and changed nothing");
            let grows = n_good == period as i32;
            let expected = if grows { scale * 2.0 } else { scale };
            assert_eq!(f32_of(&after, "loss_scale/scale"), expected, "step {step}");
            if grows {
                n_good = 0;
                n_grown += 1;
            }
        }
        assert_eq!(s32_of(&after, "loss_scale/n_good"), n_good, "step {step}");
        before = after;
    }
    // From 2^30 down to at most 2^20 are ten halvings; then it grows every four steps until it overflows again.
    assert!(n_skipped >= 10, "{n_skipped} steps were skipped");
    assert!(n_grown >= 2 && n_updates >= 20, "{n_grown} growths in {n_updates} updates");
}

#[test]
fn skipped_steps_do_not_count_for_adam() {
    if !run::has_f16() {
        return;
    }
    // After k skipped steps and one update, the weights equal those after one update from the start with the same
    // scale.
    let rule = |initial| LossScale::Dynamic { initial, period: 2000, factor: 2.0, minimum: 1.0 };
    let mut late = session(Precision::F16, Optimizer::ADAM, rule(2f64.powi(30)));
    let batch = batch(&late);
    let start = weights_and_slots(&late.state().unwrap());
    let scale = loop {
        let scale = f32_of(&late.state().unwrap(), "loss_scale/scale");
        late.train(&batch).unwrap();
        if weights_and_slots(&late.state().unwrap()) != start {
            break scale;
        }
    };
    assert!(late.step() > 5);
    let mut fresh = session(Precision::F16, Optimizer::ADAM, rule(f64::from(scale)));
    fresh.train(&batch).unwrap();
    assert_eq!(weights_and_slots(&late.state().unwrap()), weights_and_slots(&fresh.state().unwrap()));
}

#[test]
fn a_power_of_two_changes_no_bit_in_f32() {
    // Scaling by 2^10 and back is exact where nothing overflows or is subnormal, so the updates are the same.
    let sgd = Optimizer::SGD;
    let run = |loss_scale| {
        let mut session = session(Precision::F32, sgd, loss_scale);
        let batch = batch(&session);
        for _ in 0..5 {
            session.train(&batch).unwrap();
        }
        weights_and_slots(&session.state().unwrap())
    };
    let plain = run(LossScale::None);
    assert_eq!(run(LossScale::Static { scale: 1024.0 }), plain);
    assert_eq!(run(LossScale::DYNAMIC), plain);
}

#[test]
fn gradients_too_small_for_f16_are_kept_by_a_scale() {
    if !run::has_f16() {
        return;
    }
    // Scaled *down* by 2^24, cotangents of at most 2^-3 fall below f16's least 2^-24 and nothing is learnt; scaled up,
    // the network learns.
    let change = |loss_scale| {
        let mut session = session(Precision::F16, Optimizer::SGD, loss_scale);
        let before = session.state().unwrap();
        let batch = batch(&session);
        session.train(&batch).unwrap();
        weights_and_slots(&before) != weights_and_slots(&session.state().unwrap())
    };
    assert!(!change(LossScale::Static { scale: 2f64.powi(-24) }));
    assert!(change(LossScale::DYNAMIC));
}
