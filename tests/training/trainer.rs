//! `Trainer`: it trains to the bits of its session, stops and resumes, is loaded and used.

use crate::digits::digits;
use crate::run::client;

use bf16scope::data::{ArrayInfo, DataError, Fingerprint, Skipped, Source};
use bf16scope::graph::Precision;
use bf16scope::hlo::DType;
use bf16scope::models::{Model, cnn};
use bf16scope::optim::{LearningRate, Momentum, Optimizer, Update, WeightDecay};
use bf16scope::task::Task;
use bf16scope::train::checkpoint::Checkpoint;
use bf16scope::train::{
    Data, Event, Objective, RunPlan, Session, Spec, TrainError, TrainErrorKind, Trained, Trainer, run,
};
use std::borrow::Cow;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

fn data() -> Data<'static> {
    digits().data()
}

/// With batch norm, dropout and shifted images: all that a resumption must repeat.
fn task() -> Arc<dyn Task> {
    Model::Cnn(cnn::Config { filters: vec![8], dropout: 0.25, ..cnn::Config::new([8, 8, 1], 10) }).task(0.0)
}

fn trainer<'a>() -> Trainer<'a> {
    Trainer::new(task())
        .on(client())
        .epochs(2)
        .batch(40)
        .seed(3)
        .shift(1)
        .precision(Precision::F32)
        .optimizer(Momentum { momentum: 0.9, nesterov: true, ..Momentum::default() })
        .learning_rate(0.05)
        .weight_decay(1e-4)
}

fn fit(trainer: Trainer<'_>) -> Result<Trained, TrainError> {
    trainer.fit(data().training, data().test)
}

fn whole() -> Trained {
    fit(trainer()).unwrap()
}

#[test]
fn it_trains_to_the_bits_of_a_session_with_the_same_spec() {
    let update = Update {
        optimizer: Optimizer::Momentum(Momentum { momentum: 0.9, nesterov: true, ..Momentum::default() }),
        learning_rate: LearningRate::Constant { value: 0.05 },
        weight_decay: WeightDecay { value: 1e-4, except: Vec::new(), decoupled: false },
        ..Update::default()
    };
    let objective = Objective { update, ..Objective::default() };
    let spec = Spec { batch: 40, seed: 3, shift: 1, precision: Precision::F32, objective, ..Spec::new(task()) };
    let mut session = Session::new(client(), spec.clone()).unwrap();
    let summary = run(&mut session, data(), &RunPlan::new(2, None), &AtomicBool::new(false), &mut |_| {}).unwrap();
    let state = session.state().unwrap();

    let mut epochs = Vec::new();
    let trained = fit(trainer().on_epoch(|epoch| epochs.push(epoch.to_string()))).unwrap();
    assert!(trained.session().unwrap().state().unwrap() == state, "the weights differ");
    assert_eq!((trained.summary().steps, &trained.summary().test), (summary.steps, &summary.test));
    assert_eq!(epochs.len(), 2);
    assert!(epochs[1].starts_with("epoch 2: loss 0.") && epochs[1].contains("; test loss 0."), "{epochs:?}");
    let of_spec = fit(Trainer::from_spec(spec).on(client()).epochs(2)).unwrap();
    assert!(of_spec.into_session().unwrap().state().unwrap() == state, "the weights differ");
}

#[test]
fn no_replicas_are_refused_when_it_trains() {
    let error = fit(trainer().replicas(0)).unwrap_err().to_string();
    assert_eq!(error, "0 replicas; expected 1 or more\nhelp: `replicas(1)` trains on one device");
}

/// In its second epoch, of 35 steps.
#[test]
fn stopped_and_resumed_it_ends_with_the_same_bits() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("digits.safetensors");
    let stop = AtomicBool::new(false);
    let stopped = fit(trainer().checkpoint(&path).stop(&stop).on_event(|event| {
        if let Event::Step { session, .. } = event {
            stop.store(session.step() == 52, Ordering::Relaxed);
        }
    }));
    assert_eq!(stopped.unwrap_err().kind(), &TrainErrorKind::Interrupted { step: 52, epoch: 2 });
    assert_eq!(Checkpoint::read(&path).unwrap().position.step, 52);
    let resumed = fit(trainer().checkpoint(&path).resume(&path)).unwrap();
    assert_eq!((resumed.summary().epochs.len(), resumed.summary().steps), (1, 70));
    assert_eq!(resumed.changes(), []);
    assert!(resumed.session().unwrap().state().unwrap() == whole().session().unwrap().state().unwrap());
}

#[test]
fn a_checkpoint_that_is_loaded_evaluates_and_predicts_as_the_run_that_left_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("digits.safetensors");
    let trained = fit(trainer().checkpoint(&path)).unwrap();
    let loaded = trainer().load(&path).unwrap();
    assert!(loaded.session().is_none());
    assert_eq!((loaded.summary().steps, loaded.summary().checkpoint.as_deref()), (70, Some(path.as_path())));
    let evaluation = loaded.evaluate(data().test).unwrap();
    let mut values = evaluation.totals.to_values();
    // L2 is a function of the weights, not of the examples.
    values.extend(trained.summary().value("total_loss").map(|total| ("total_loss".to_string(), total)));
    assert_eq!((evaluation.n_examples, &values), (360, &trained.summary().test));
    assert_eq!(trained.evaluate(data().test).unwrap(), evaluation);

    // Nine batches of 40, one after the other.
    let predictions = loaded.predict(data().test).unwrap();
    assert_eq!(trained.predict(data().test).unwrap(), predictions);
    let logits = predictions.to_vec::<f32>("logits").unwrap();
    assert_eq!((logits.len(), &predictions.arrays()[0].dims[..]), (3600, &[360, 10][..]));
    assert!(logits.iter().all(|logit| logit.is_finite()) && logits[..10] != logits[3590..]);
    let messages = [predictions.to_vec::<i32>("logits").unwrap_err(), predictions.to_vec::<f32>("labels").unwrap_err()];
    assert_eq!(
        messages.map(|error| error.to_string()),
        [
            "the task predicts logits f32, and no `logits s32`\nhelp: ask by the name and the dtype that it predicts",
            "the task predicts logits f32, and no `labels`\nhelp: ask by the name and the dtype that it predicts"
        ]
    );
}

#[test]
fn what_may_not_go_on_is_refused_before_anything_is_compiled() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("digits.safetensors");
    let missing = fit(trainer().resume(&path)).unwrap_err().to_string();
    assert!(missing.starts_with(&format!("{}: ", path.display())), "{missing}");
    fit(trainer().epochs(1).checkpoint(&path)).unwrap();
    let other = fit(trainer().seed(4).resume(&path)).unwrap_err().to_string();
    assert!(other.contains("seed was 3, is 4 now"), "{other}");
    let other = Trainer::new(Model::Cnn(cnn::Config::new([8, 8, 1], 10)).task(0.0)).load(Path::new(&path));
    let other = other.unwrap_err().to_string();
    assert!(other.contains("the checkpoint is of another function"), "{other}");
    // Another learning rate is allowed, and reported.
    let rate = LearningRate::Constant { value: 0.025 };
    let resumed = fit(trainer().learning_rate(rate).resume(&path)).unwrap();
    let changes: Vec<String> = resumed.changes().iter().map(ToString::to_string).collect();
    assert_eq!(changes, ["train.learning_rate.value was 0.05, is 0.025 now"]);
}

/// The test digits; the first cannot be read, and may be skipped.
#[derive(Debug)]
struct Holes {
    n_bad: u64,
    skipped: Skipped,
}

impl Holes {
    fn new(n_bad: u64) -> Holes {
        Holes { n_bad, skipped: Skipped::new(360) }
    }
}

impl Source for Holes {
    fn n_examples(&self) -> u64 {
        data().test.n_examples()
    }
    fn arrays(&self) -> &[ArrayInfo] {
        data().test.arrays()
    }
    fn read(&self, index: u64) -> Result<Vec<Cow<'_, [u8]>>, DataError> {
        match index < self.n_bad {
            true => Err(DataError::unreadable(self.place(index), "it is torn")),
            false => data().test.read(index),
        }
    }
    fn place(&self, index: u64) -> String {
        data().test.place(index)
    }
    fn fingerprint(&self) -> Fingerprint {
        data().test.fingerprint()
    }
    fn skipped(&self) -> Option<&Skipped> {
        Some(&self.skipped)
    }
}

/// An evaluation used to fail: "the batch has 0 valid examples".
#[test]
fn a_whole_batch_of_an_evaluation_may_be_left_out() {
    let trained = fit(trainer().epochs(1)).unwrap();
    let n_examples = |n_bad| trained.evaluate(&Holes::new(n_bad)).unwrap().n_examples;
    // Batches are of 40.
    assert_eq!([0, 39, 40, 41, 80, 359].map(n_examples), [360, 321, 320, 319, 280, 1]);
    let error = trained.evaluate(&Holes::new(360)).unwrap_err().to_string();
    assert_eq!(
        error,
        "all 360 examples to evaluate on are left out, because none can be read\nhelp: mend the files, or look at one with \
         `bf16scope data show`"
    );
    let holes = Holes::new(40);
    let summary = trainer().epochs(1).fit(data().training, &holes).unwrap().summary().clone();
    assert_eq!(summary.epochs.len(), 1);
}

/// TensorFlow's total loss: the loss plus `tf.nn.l2_loss` of the kernels, computed here from the final state of a run.
#[test]
fn the_total_loss_has_what_l2_adds() {
    let decay = WeightDecay { value: 0.01, except: vec!["bias".to_string()], decoupled: false };
    let trained = fit(trainer().epochs(1).weight_decay(decay.clone())).unwrap();
    let session = trained.session().unwrap();
    let decays = |name: &str| !name.contains("bias");
    let state = session.state().unwrap();
    let squares = session.trainable().into_iter().filter(|name| decays(name)).map(|name| {
        assert_eq!(state[name].shape.dtype, DType::F32);
        let words = state[name].bytes.as_chunks().0.iter().map(|word| f64::from(f32::from_le_bytes(*word)));
        words.map(|w| w * w).sum::<f64>()
    });
    let l2 = 0.01 * squares.sum::<f64>() / 2.0;
    assert!(l2 > 0.0);
    let summary = trained.summary();
    let [loss, total] = ["loss", "total_loss"].map(|name| summary.value(name).unwrap());
    // The same terms, added in two orders in f64: 53 bits, and fewer than 2^16 of them.
    assert!((total - (loss + l2)).abs() <= (loss + l2) * 2f64.powi(16 - 53), "{total}, {loss} and {l2}");
    // Decoupled weight decay is no term of the loss.
    let decoupled = fit(trainer().epochs(1).weight_decay(WeightDecay { decoupled: true, ..decay })).unwrap();
    assert_eq!(decoupled.summary().value("total_loss"), None);
}

#[test]
fn of_no_epochs_the_checkpoint_is_of_the_initial_state() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("digits.safetensors");
    let trained = fit(trainer().epochs(0).checkpoint(&path)).unwrap();
    assert_eq!((trained.summary().epochs.len(), trained.summary().steps), (0, 0));
    assert_eq!(trained.summary().checkpoint.as_deref(), Some(path.as_path()));
    let checkpoint = Checkpoint::read(&path).unwrap();
    assert_eq!(checkpoint.position.step, 0);
    assert!(checkpoint.variables == trained.session().unwrap().state().unwrap());
    // It is the state with which a run begins.
    let resumed = fit(trainer().checkpoint(&path).resume(&path)).unwrap();
    assert!(resumed.session().unwrap().state().unwrap() == whole().session().unwrap().state().unwrap());
    // No more epochs for a run in progress leave its checkpoint as it is.
    let before = std::fs::read(&path).unwrap();
    let end = fit(trainer().epochs(0).checkpoint(&path).resume(&path)).unwrap();
    assert_eq!(end.summary().steps, 70);
    assert!(std::fs::read(&path).unwrap() == before);
}

#[test]
fn early_stopping_ends_as_the_last_epoch_does() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("digits.safetensors");
    let mut asked = Vec::new();
    let stopped = trainer().epochs(5).checkpoint(&path).stop_when(|epoch| {
        asked.push((epoch.epoch, epoch.test_value("loss"), epoch.train_value("no such")));
        epoch.epoch == 2
    });
    let stopped = fit(stopped).unwrap();
    let whole = whole();
    assert_eq!((stopped.summary().steps, &stopped.summary().test), (whole.summary().steps, &whole.summary().test));
    assert!(stopped.into_session().unwrap().state().unwrap() == whole.session().unwrap().state().unwrap());
    let losses: Vec<_> = whole.summary().epochs.iter().map(|epoch| epoch.test_value("loss")).collect();
    assert_eq!(asked, [(1, losses[0], None), (2, losses[1], None)]);
    // Its checkpoint can be resumed.
    let resumed = fit(trainer().epochs(3).resume(&path)).unwrap();
    assert_eq!((resumed.summary().epochs.len(), resumed.summary().epochs[0].epoch), (1, 3));
}

#[test]
fn asked_to_stop_at_the_end_of_an_epoch_it_makes_no_step_more() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("digits.safetensors");
    let stop = AtomicBool::new(false);
    let stopped = fit(trainer().checkpoint(&path).stop(&stop).on_epoch(|_| stop.store(true, Ordering::Relaxed)));
    let n = whole().summary().steps / 2;
    assert_eq!(stopped.unwrap_err().kind(), &TrainErrorKind::Interrupted { step: n, epoch: 1 });
    assert_eq!(Checkpoint::read(&path).unwrap().position.step, n);
    // After the last epoch there is nothing to stop.
    let ended = fit(trainer().epochs(1).stop(&stop).on_epoch(|_| stop.store(true, Ordering::Relaxed)));
    assert_eq!(
        ended.unwrap_err().kind(),
        &TrainErrorKind::Interrupted { step: 1, epoch: 1 },
        "it was set from the beginning"
    );
    stop.store(false, Ordering::Relaxed);
    fit(trainer().epochs(1).stop(&stop).on_epoch(|_| stop.store(true, Ordering::Relaxed))).unwrap();
}

#[test]
fn a_batch_of_nothing_is_told_what_a_batch_may_be() {
    let n = data().training.n_examples();
    let message = fit(trainer().batch(0)).unwrap_err().to_string();
    assert_eq!(message, format!("a batch of 0 trains on nothing\nhelp: set `batch` to 1 up to {n} (--batch)"));
    let message = fit(trainer().batch(100_000)).unwrap_err().to_string();
    assert!(message.contains(&format!("set `batch` to {n} or less")), "{message}");
}
