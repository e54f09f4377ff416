//! Early stopping, a learning rate that falls on a plateau and the best checkpoint: across a stop and a resumption to the bit.
//! `bf16scope-train` compares their decisions with Keras' own callbacks (`tests/data/callbacks`).

use crate::digits;
use crate::run::client;

use bf16scope::graph::Precision;
use bf16scope::models::{Model, cnn};
use bf16scope::optim::{LearningRate, Update};
use bf16scope::train::callbacks::{Callbacks, EarlyStopping, KeepBest, Mode, ReduceOnPlateau};
use bf16scope::train::checkpoint::{Checkpoint, Place, best_of};
use bf16scope::train::replay::{ReplayFrom, state_at};
use bf16scope::train::{
    Event, Objective, Resumption, RunPlan, Session, Spec, TrainError, TrainErrorKind, find_rate, run,
};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

/// Steps in an epoch of the digits at batch 64.
const STEPS_PER_EPOCH: u64 = 1437 / 64;

fn spec() -> Spec {
    let model = cnn::Config { filters: vec![4], dropout: 0.25, ..cnn::Config::new([8, 8, 1], 10) };
    let update = Update { learning_rate: LearningRate::from(0.05), reducible: true, ..Update::default() };
    let objective = Objective { update, ..Objective::default() };
    Spec { precision: Precision::Bf16, batch: 64, objective, ..Spec::new(Model::Cnn(model).task(0.0)) }
}

/// Nothing is better by 10, so the rate falls after each epoch but the first; nor by 1 of accuracy.
fn callbacks() -> Callbacks {
    let (patience, mode) = (1, Mode::Auto);
    let reducing = ReduceOnPlateau {
        monitor: "train_loss".to_string(),
        patience,
        mode,
        factor: 0.3,
        min_delta: 10.0,
        ..Default::default()
    };
    let stopping = EarlyStopping {
        monitor: "test_accuracy".to_string(),
        patience: 3,
        min_delta: 1.0,
        restore_best: true,
        ..EarlyStopping::default()
    };
    let keeping = KeepBest { monitor: "val_loss".to_string(), mode };
    Callbacks { early_stopping: Some(stopping), reduce_on_plateau: Some(reducing), keep_best: Some(keeping) }
}

/// Runs until it ends, or until the step `stop_at`; what happened at the ends of epochs.
fn train(session: &mut Session, path: &Path, stop_at: Option<u64>) -> (Option<TrainErrorKind>, Vec<String>) {
    let plan = RunPlan { callbacks: callbacks(), ..RunPlan::new(9, Some(Place::claim(path).unwrap())) };
    let (stop, mut events) = (AtomicBool::new(false), Vec::new());
    let result = run(session, digits::digits().data(), &plan, &stop, &mut |event| match event {
        Event::Step { session, .. } => stop.store(Some(session.step()) == stop_at, Ordering::Relaxed),
        Event::Epoch(report) => events.push(report.to_string()),
        Event::Best { step, value, .. } => events.push(format!("best {value} after {step}")),
        Event::Reduced { epoch, learning_rate } => events.push(format!("{learning_rate} after epoch {epoch}")),
        Event::Stopped { epoch, best_step, is_restored, .. } => {
            events.push(format!("stopped after {epoch}, {best_step} is restored: {is_restored}"));
        }
        _ => {}
    });
    (result.err().map(|error| error.kind().clone()), events)
}

#[test]
fn a_run_that_is_resumed_decides_as_one_that_never_stopped() {
    let folder = tempfile::tempdir().unwrap();
    let (whole, parts) = (folder.path().join("whole.safetensors"), folder.path().join("parts.safetensors"));
    let mut session = Session::new(client(), spec()).unwrap();
    let initial = session.checkpoint(STEPS_PER_EPOCH).unwrap();
    let (error, expected) = train(&mut session, &whole, None);
    assert_eq!(error, None);
    // The rate of epochs 1 and 2, and its falls: each product rounded to f32.
    let mut rate = 0.05f32;
    for epoch in 2..=4 {
        rate = (f64::from(rate) * 0.3) as f32;
        assert!(expected.contains(&format!("{} after epoch {epoch}", f64::from(rate))), "{expected:?}");
    }
    let last = format!("stopped after 4, {STEPS_PER_EPOCH} is restored: true");
    assert_eq!(expected.last(), Some(&last), "{expected:?}");
    assert_eq!((session.step(), session.reduced()), (STEPS_PER_EPOCH, Some(0.05)));
    let end = Checkpoint::read(&whole).unwrap();
    assert_eq!(end.position.step, STEPS_PER_EPOCH);
    assert_eq!(end.callbacks.as_ref().unwrap().stopped, Some(4));
    assert!(!folder.path().join("whole-restore.safetensors").exists());
    // Its own run again has nothing left to do.
    session.restore(&whole, &end, Resumption::default()).unwrap();
    assert_eq!(train(&mut session, &whole, None), (None, Vec::new()));

    // Stopped in the middle of the third epoch, and at the end of the fourth's training.
    session.restore(Path::new("start"), &initial, Resumption::default()).unwrap();
    let mut seen = Vec::new();
    for stop_at in [Some(2 * STEPS_PER_EPOCH + 5), Some(3 * STEPS_PER_EPOCH), None] {
        let (error, events) = train(&mut session, &parts, stop_at);
        assert_eq!(matches!(error, Some(TrainErrorKind::Interrupted { .. })), stop_at.is_some(), "{error:?}");
        seen.extend(events);
        session = Session::new(client(), spec()).unwrap();
        session.restore(&parts, &Checkpoint::read(&parts).unwrap(), Resumption::default()).unwrap();
    }
    assert_eq!(seen, expected);
    assert_eq!(Checkpoint::read(&parts).unwrap(), end);
    let best = [&parts, &whole].map(|path| Checkpoint::read(best_of(path)).unwrap());
    assert_eq!(best[0], best[1]);
    assert_eq!(best[0].callbacks.as_ref().unwrap().keep_best.as_ref().unwrap().best_step, best[0].position.step);
}

/// A rate is lowered by an epoch's report, and replays skip evaluations.
#[test]
fn a_rate_that_cannot_be_lowered_or_followed_is_said() {
    let plain = Spec { objective: Objective::default(), ..spec() };
    assert_eq!(
        Session::new(client(), plain).unwrap().set_reduced(0.1).unwrap_err().to_string(),
        "the learning rate of this session is no state of its program\nhelp: set `Update::reducible` of its objective"
    );
    let mut session = Session::new(client(), spec()).unwrap();
    let data = digits::digits().data();
    let step = 2 * STEPS_PER_EPOCH + 3;
    let error = state_at(&mut session, data, &ReplayFrom::Start, step, |_, _| Ok::<_, TrainError>(())).unwrap_err();
    assert_eq!(
        error.to_string(),
        format!(
            "step {step} is in a later epoch than the beginning of the run, and `reduce_on_plateau` may lower the learning rate \
             between\nhelp: make it again from a checkpoint of its own epoch: `keep_checkpoint_max` keeps more of them"
        )
    );
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.safetensors");
    session.checkpoint(STEPS_PER_EPOCH).unwrap().write(&path).unwrap();
    let from = ReplayFrom::Checkpoint(path.clone());
    let error = state_at(&mut session, data, &from, step, |_, _| Ok::<_, TrainError>(())).unwrap_err().to_string();
    let start =
        format!("step {step} is in a later epoch than {} (after step 0), and `reduce_on_plateau` may", path.display());
    assert!(error.starts_with(&start), "{error}");
}

#[test]
fn rates_are_tried_from_the_least_to_the_largest() {
    let source = &*digits::digits().training;
    let mut seen = Vec::new();
    let search = find_rate(client(), &spec(), source, (1e-4, 1.0), 40, |trial| seen.push(trial.rate)).unwrap();
    assert!((seen[0] - 1e-4).abs() < 1e-18 && seen.is_sorted() && search.trials.len() > 20, "{search:?}");
    let (steepest, below) = (search.steepest.unwrap(), search.below_least.unwrap());
    assert!((1e-4..=1.0).contains(&steepest) && (1e-5..=0.1).contains(&below), "{steepest} {below}");
    assert_eq!(
        find_rate(client(), &spec(), source, (1.0, 0.1), 40, |_| {}).unwrap_err().to_string(),
        "rates from 1 to 0.1 in 40 steps, expected two that rise, above 0, in 2 steps or more"
    );
}

#[test]
fn what_cannot_be_followed_is_refused_before_anything_is_compiled() {
    let refused = |change: &dyn Fn(&mut Callbacks, &mut Spec)| {
        let (mut callbacks, mut spec) = (callbacks(), spec());
        change(&mut callbacks, &mut spec);
        callbacks.check(&spec, 2).unwrap_err().to_string()
    };
    let all =
        "help: monitor one of `loss`, `accuracy`, `top_5_accuracy`; `train_` before it is that of the epoch's batches";
    assert_eq!(
        refused(&|callbacks, _| callbacks.keep_best.as_mut().unwrap().monitor = "test_auc".to_string()),
        format!("no `auc` is reported, which `test_auc` would be\n{all}")
    );
    let share = "kind: layers\ninputs: {x: [4]}\nlayers: [{dense: 3}]\nloss: sparse_softmax_cross_entropy\n\
                 metrics: [{accuracy: , name: share}]\n";
    assert_eq!(
        refused(&|callbacks, spec| {
            let model: Model = bf16scope::document::from_str("m.yaml", share).unwrap();
            spec.task = model.task(0.0);
            let keeping = KeepBest { monitor: "share".to_string(), mode: Mode::Auto };
            *callbacks = Callbacks { keep_best: Some(keeping), ..Callbacks::default() };
        }),
        "whether more or less of `share` is better is not known\nhelp: say it: `mode: max` or `mode: min`"
    );
    assert_eq!(
        refused(&|_, spec| spec.objective.update.reducible = false),
        "the learning rate of this run is no state that can be lowered\nhelp: set `Update::reducible`"
    );
    assert_eq!(
        refused(&|_, _| {}),
        "`restore_best` over 2 hosts, of which only the first reads checkpoints\nhelp: leave it out and write `keep_best` \
         beside `early_stopping`"
    );
}
