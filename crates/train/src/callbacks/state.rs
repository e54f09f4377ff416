//! The decisions of callbacks at the end of an epoch, from their counters.

use super::{Callbacks, EarlyStopping, ReduceOnPlateau, is_maximised, split};
use crate::callback_state::{CallbackState, Followed, Mode};
use crate::epoch_report::EpochReport;
use bf16scope_model::optim::Update;

/// The callbacks' decisions about an epoch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Verdict {
    /// Whether the run ends.
    pub stop: bool,
    /// Whether the learning rate is lowered.
    pub reduce: bool,
    /// Whether the state is the best so far, for `keep_best`.
    pub is_best: bool,
    /// Whether an early end would restore this state.
    pub is_to_restore: bool,
}

impl Followed {
    fn new(monitor: &str, mode: Mode) -> Followed {
        Followed { monitor: monitor.to_string(), mode, best: None, best_step: 0, wait: 0, cooldown: 0 }
    }

    fn is_maximised(&self) -> bool {
        is_maximised(split(&self.monitor).1, self.mode).unwrap_or(false)
    }

    /// The monitored value in a report.
    fn value(&self, report: &EpochReport) -> Option<f64> {
        let (is_train, name) = split(&self.monitor);
        if is_train { report.train_value(name) } else { report.test_value(name) }
    }

    /// The best value, or infinitely bad before there is one.
    fn best_or_worst(&self) -> f64 {
        self.best.unwrap_or(if self.is_maximised() { f64::NEG_INFINITY } else { f64::INFINITY })
    }

    /// Keras' `EarlyStopping._is_improvement`, which subtracts `min_delta` from the value.
    fn is_better(&self, value: f64, reference: f64, min_delta: f64) -> bool {
        if self.is_maximised() { value - min_delta > reference } else { value + min_delta < reference }
    }

    /// Keras' `ReduceLROnPlateau.monitor_op`, which subtracts `min_delta` from the best.
    fn is_off_plateau(&self, value: f64, min_delta: f64) -> bool {
        let best = self.best_or_worst();
        if self.is_maximised() { value > best + min_delta } else { value < best - min_delta }
    }

    fn improve(&mut self, value: f64, step: u64) {
        (self.best, self.best_step) = (Some(value), step);
    }

    /// Whether the run ends after this epoch, and whether the epoch is the best so far.
    fn stops(&mut self, config: &EarlyStopping, report: &EpochReport, value: f64) -> (bool, bool) {
        let epoch = report.epoch - 1;
        if epoch < u64::from(config.start_from_epoch) {
            return (false, false);
        }
        // If no value ever improves, because it is NaN for example, the first state is restored.
        let is_first = self.best_step == 0;
        self.wait += 1;
        if self.is_better(value, self.best_or_worst(), config.min_delta) {
            self.improve(value, report.step);
            if config.baseline.is_none_or(|baseline| self.is_better(value, baseline, config.min_delta)) {
                self.wait = 0;
            }
            return (false, true);
        }
        if is_first {
            self.best_step = report.step;
        }
        (self.wait >= config.patience && epoch > 0, is_first)
    }

    /// Whether the rate is lowered after this epoch; `is_above_floor` says whether it can be.
    fn reduces(&mut self, config: &ReduceOnPlateau, report: &EpochReport, value: f64, is_above_floor: bool) -> bool {
        if self.cooldown > 0 {
            self.cooldown -= 1;
            self.wait = 0;
        }
        if self.is_off_plateau(value, config.min_delta) {
            self.improve(value, report.step);
            self.wait = 0;
            return false;
        }
        if self.cooldown > 0 {
            return false;
        }
        self.wait += 1;
        let reduces = self.wait >= config.patience && is_above_floor;
        if reduces {
            (self.cooldown, self.wait) = (config.cooldown, 0);
        }
        reduces
    }
}

impl CallbackState {
    /// Counters that continue those of a checkpoint after `n_epochs` whole epochs, or fresh ones. A counter whose
    /// monitor changed starts afresh.
    pub(crate) fn begin(callbacks: &Callbacks, before: Option<&CallbackState>, n_epochs: u64) -> CallbackState {
        let goes_on = |before: Option<&Followed>, monitor: &str, mode: Mode| {
            let same = before.filter(|before| before.monitor == monitor && before.mode == mode);
            Some(same.cloned().unwrap_or_else(|| Followed::new(monitor, mode)))
        };
        let followed = |pick: fn(&CallbackState) -> Option<&Followed>| before.and_then(pick);
        let Callbacks { early_stopping, reduce_on_plateau, keep_best } = callbacks;
        let mut state = CallbackState {
            n_epochs: before.map_or(n_epochs, |before| before.n_epochs),
            early_stopping: early_stopping
                .as_ref()
                .and_then(|it| goes_on(followed(|state| state.early_stopping.as_ref()), &it.monitor, it.mode)),
            reduce_on_plateau: reduce_on_plateau
                .as_ref()
                .and_then(|it| goes_on(followed(|state| state.reduce_on_plateau.as_ref()), &it.monitor, it.mode)),
            keep_best: keep_best
                .as_ref()
                .and_then(|it| goes_on(followed(|state| state.keep_best.as_ref()), &it.monitor, it.mode)),
            stopped: before.and_then(|before| before.stopped),
            sums: before.map(|before| before.sums.clone()).unwrap_or_default(),
            since_step: before.and_then(|before| before.since_step),
        };
        // A run that ended early stays ended until its patience is raised.
        let waits = state.early_stopping.as_ref().map(|followed| followed.wait);
        let patience = early_stopping.as_ref().map(|config| config.patience);
        if waits.is_none_or(|waits| waits < patience.unwrap_or(0)) {
            state.stopped = None;
        }
        // A restored state is of an earlier epoch than the counters.
        if state.stopped.is_none() && state.n_epochs > n_epochs {
            state.n_epochs = n_epochs;
            state.early_stopping.iter_mut().for_each(|followed| followed.wait = 0);
        }
        state
    }

    /// Decides after an epoch, from its report; `is_above_floor` says whether the learning rate can be lowered.
    pub(crate) fn look(&mut self, callbacks: &Callbacks, report: &EpochReport, is_above_floor: bool) -> Verdict {
        let mut verdict = Verdict::default();
        self.n_epochs = report.epoch;
        self.sums.clear();
        let both = |followed: &Followed| followed.value(report);
        if let (Some(config), Some(followed)) = (&callbacks.early_stopping, &mut self.early_stopping)
            && let Some(value) = both(followed)
        {
            (verdict.stop, verdict.is_to_restore) = followed.stops(config, report, value);
            verdict.is_to_restore &= config.restore_best;
        }
        if let (Some(config), Some(followed)) = (&callbacks.reduce_on_plateau, &mut self.reduce_on_plateau)
            && let Some(value) = both(followed)
        {
            verdict.reduce = followed.reduces(config, report, value, is_above_floor);
        }
        if let Some(followed) = &mut self.keep_best
            && let Some(value) = both(followed)
            && followed.is_better(value, followed.best_or_worst(), 0.0)
        {
            followed.improve(value, report.step);
            verdict.is_best = true;
        }
        if verdict.stop {
            self.stopped = Some(report.epoch);
        }
        verdict
    }
}

/// The factor of the rate after a reduction, from the present factor `reduced`; `None` where the rate of the next step
/// is at its floor. Computed in f64 and rounded to f32 once, as Keras sets its variable.
pub(crate) fn lowered(config: &ReduceOnPlateau, update: &Update, reduced: f32, step: u32) -> Option<f32> {
    let rate = update.reduced_rate_at(step, reduced);
    if rate as f32 <= config.min_rate as f32 {
        return None;
    }
    let lowered = (rate * config.factor).max(config.min_rate);
    // A schedule continues, scaled by the factor that the rate has fallen by.
    Some(if update.is_constant() { lowered as f32 } else { (f64::from(reduced) * (lowered / rate)) as f32 })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::callbacks::KeepBest;
    use bf16scope_model::optim::LearningRate;
    use serde::Deserialize;
    use std::path::Path;

    /// The decisions of Keras' own callbacks (`tests/data/callbacks`).
    #[derive(Deserialize)]
    struct Case {
        monitor: String,
        mode: Mode,
        values: Vec<Option<f64>>,
        patience: u32,
        min_delta: f64,
        #[serde(default)]
        baseline: Option<f64>,
        #[serde(default)]
        start_from_epoch: u32,
        n_epochs: Option<usize>,
        #[serde(default)]
        stopped: bool,
        restored: Option<u64>,
        factor: Option<f64>,
        #[serde(default)]
        cooldown: u32,
        #[serde(default)]
        min_rate: f64,
        #[serde(default)]
        rate: f64,
        #[serde(default)]
        rates: Vec<f64>,
    }

    impl Case {
        fn callbacks(&self) -> Callbacks {
            let Case { monitor, mode, patience, min_delta, .. } = self;
            let (monitor, mode, patience, min_delta) = (monitor.clone(), *mode, *patience, *min_delta);
            match self.factor {
                Some(factor) => {
                    let Case { cooldown, min_rate, .. } = *self;
                    let reducing = ReduceOnPlateau { monitor, mode, patience, min_delta, factor, cooldown, min_rate };
                    Callbacks { reduce_on_plateau: Some(reducing), ..Callbacks::default() }
                }
                None => {
                    let Case { baseline, start_from_epoch, .. } = *self;
                    let restore_best = true;
                    let stopping =
                        EarlyStopping { monitor, patience, mode, min_delta, baseline, start_from_epoch, restore_best };
                    Callbacks { early_stopping: Some(stopping), ..Callbacks::default() }
                }
            }
        }
    }

    fn report(epoch: u64, monitor: &str, value: f64) -> EpochReport {
        EpochReport {
            epoch,
            step: 10 * epoch,
            train: Vec::new(),
            train_since_step: None,
            test: vec![(split(monitor).1.to_string(), value)],
            examples_per_second: 0.0,
            waited_for_data: None,
            n_skipped: None,
            is_validated: false,
        }
    }

    /// All cases, with a resumption after every epoch: the counters go through JSON each time.
    #[test]
    fn decisions_are_those_of_keras_across_resumptions() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/callbacks/keras.json");
        let cases: Vec<Case> = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
        let (mut n_stopped, mut n_reduced) = (0, 0);
        for (number, case) in cases.iter().enumerate() {
            let callbacks = case.callbacks();
            let update = Update { learning_rate: LearningRate::from(case.rate), reducible: true, ..Update::default() };
            let mut state = CallbackState::begin(&callbacks, None, 0);
            let (mut rate, mut rates, mut stopped, mut to_restore) = (update.unreduced(), Vec::new(), false, None);
            for (epoch, value) in (1..).zip(&case.values) {
                let json = serde_json::to_string(&state).unwrap();
                state = CallbackState::begin(&callbacks, Some(&serde_json::from_str(&json).unwrap()), epoch - 1);
                let next = callbacks.reduce_on_plateau.as_ref().and_then(|config| lowered(config, &update, rate, 0));
                let verdict =
                    state.look(&callbacks, &report(epoch, &case.monitor, value.unwrap_or(f64::NAN)), next.is_some());
                if verdict.reduce {
                    rate = next.unwrap();
                    n_reduced += 1;
                }
                rates.push(f64::from(rate));
                if verdict.is_to_restore {
                    to_restore = Some(epoch - 1);
                }
                if verdict.stop {
                    (stopped, n_stopped) = (true, n_stopped + 1);
                    break;
                }
            }
            match case.n_epochs {
                None => assert_eq!(rates, case.rates, "case {number}"),
                Some(n_epochs) => {
                    assert_eq!((rates.len(), stopped), (n_epochs, case.stopped), "case {number}");
                    assert_eq!(to_restore.filter(|_| stopped), case.restored, "case {number}");
                    assert_eq!(state.stopped, stopped.then_some(n_epochs as u64));
                }
            }
        }
        assert!(n_stopped > 20 && n_reduced > 50, "{n_stopped} {n_reduced}");
    }

    #[test]
    fn the_best_is_strictly_better_and_other_monitors_begin_afresh() {
        let keep = |monitor: &str| KeepBest { monitor: monitor.to_string(), mode: Mode::Auto };
        let callbacks = Callbacks { keep_best: Some(keep("accuracy")), ..Callbacks::default() };
        let mut state = CallbackState::begin(&callbacks, None, 0);
        let best: Vec<bool> = [0.5, 0.5, 0.75, f64::NAN, 0.7]
            .into_iter()
            .zip(1..)
            .map(|(value, epoch)| state.look(&callbacks, &report(epoch, "accuracy", value), true).is_best)
            .collect();
        assert_eq!(best, [true, false, true, false, false]);
        let followed = state.keep_best.clone().unwrap();
        assert_eq!((followed.best, followed.best_step), (Some(0.75), 30));
        let other = Callbacks { keep_best: Some(keep("loss")), ..Callbacks::default() };
        assert_eq!(CallbackState::begin(&other, Some(&state), 5).keep_best.unwrap().best, None);
    }

    #[test]
    fn a_schedule_goes_on_under_the_factor_that_its_rate_has_fallen_by() {
        let update = Update { learning_rate: LearningRate::resnet(256, 10, 90), reducible: true, ..Update::default() };
        let config = ReduceOnPlateau { factor: 0.5, min_rate: 0.02, ..ReduceOnPlateau::default() };
        assert_eq!((update.unreduced(), update.reduced_rate_at(60, 0.5)), (1.0, 0.05));
        assert_eq!(lowered(&config, &update, 1.0, 60), Some(0.5));
        // Not below the floor: 0.05 · 0.5 is 0.025, and half of that is 0.02.
        assert_eq!(lowered(&config, &update, 0.25, 60), Some(0.2));
        assert_eq!(lowered(&config, &update, 0.2, 60), None);
    }
}
