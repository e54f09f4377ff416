//! The learning rate finder: a short training whose rate grows step by step, and its losses.
//!
//! Source: Smith 2017, "Cyclical learning rates", section 3.3; the smoothing and the end are fastai's `lr_find`.

use super::batches::loader;
use super::error::{TrainError, TrainErrorKind, TrainPlace};
use super::session::Session;
use super::spec::Spec;
use bf16scope_data::Source;
use bf16scope_model::optim::LearningRate;
use bf16scope_pjrt::Client;
use serde::Serialize;
use std::num::NonZeroU32;

/// A step of the trial.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct RateTrial {
    /// Its learning rate.
    pub rate: f64,
    /// The loss of its batch, before the update.
    pub loss: f64,
    /// Exponential mean of the losses so far; each step has a weight of one twentieth.
    pub smoothed: f64,
}

/// The result of a search.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RateSearch {
    /// The steps, up to a loss that is not finite or four times the best.
    pub trials: Vec<RateTrial>,
    /// The rate where the smoothed loss falls fastest over the logarithm of the rate; `None` if it never falls.
    pub steepest: Option<f64>,
    /// A tenth of the rate with the least smoothed loss.
    pub below_least: Option<f64>,
}

/// The decay of the moving average of losses.
const KEPT: f64 = 0.95;
/// The trial ends where the smoothed loss is this many times its best.
const DIVERGED: f64 = 4.0;

/// Trains from scratch for `n_steps` steps with rates from `rates.0` to `rates.1`, in geometric progression. Warm-up,
/// floor and groups of the spec are ignored; nothing is saved.
///
/// # Errors
/// Rates that do not rise; as [`Session::new`] and [`Session::train`].
pub fn find_rate(
    client: &Client,
    spec: &Spec,
    training: &dyn Source,
    rates: (f64, f64),
    n_steps: u32,
    mut observe: impl FnMut(&RateTrial),
) -> Result<RateSearch, TrainError> {
    let (least, most) = rates;
    let is_rising = least > 0.0 && least < most && most.is_finite() && least as f32 > 0.0 && (most as f32).is_finite();
    let (Some(decay_steps), true) = (NonZeroU32::new(n_steps.saturating_sub(1)), is_rising) else {
        let text = format!(
            "rates from {least} to {most} in {n_steps} steps, expected two that rise, above 0, in 2 steps or more"
        );
        return Err(TrainError::new(TrainErrorKind::Experiment, TrainPlace::Nowhere, text));
    };
    let mut spec = spec.clone();
    let update = &mut spec.objective.update;
    update.learning_rate =
        LearningRate::Exponential { value: least, decay_steps, decay_rate: most / least, staircase: false };
    (update.warm_up, update.floor, update.reducible) = (None, 0.0, false);
    update.groups.clear();
    spec.steps_per_call = Default::default();
    let loader = loader(&spec, training)?;
    loader.check()?;
    let mut session = Session::new(client, spec)?;
    let (mut trials, mut mean, mut best): (Vec<RateTrial>, f64, f64) = (Vec::new(), 0.0, f64::INFINITY);
    for step in 0..u64::from(n_steps) {
        let (epoch, within) = (step / loader.n_steps(), step % loader.n_steps());
        let rate = session.learning_rate();
        let loss = session.train(&loader.steps(epoch, within, 1)?)?.loss().unwrap_or(f64::NAN);
        mean = KEPT * mean + (1.0 - KEPT) * loss;
        // Corrects the bias of a mean that starts at 0.
        let smoothed = mean / (1.0 - KEPT.powf(step as f64 + 1.0));
        let trial = RateTrial { rate, loss, smoothed };
        observe(&trial);
        if !loss.is_finite() || smoothed > DIVERGED * best && best > 0.0 {
            break;
        }
        best = best.min(smoothed);
        trials.push(trial);
    }
    Ok(judged(trials))
}

fn judged(trials: Vec<RateTrial>) -> RateSearch {
    let slope = |two: &[RateTrial]| (two[1].smoothed - two[0].smoothed) / (two[1].rate / two[0].rate).ln();
    // The mean of a few losses says little.
    let falls = trials
        .windows(2)
        .skip(trials.len() / 10)
        .map(|two| (slope(two), two[0].rate))
        .filter(|(slope, _)| *slope < 0.0);
    let steepest = falls.min_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, rate)| rate);
    let least = trials.iter().min_by(|a, b| a.smoothed.total_cmp(&b.smoothed)).map(|trial| trial.rate / 10.0);
    RateSearch { below_least: least.filter(|_| steepest.is_some()), steepest, trials }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_steepest_fall_is_over_the_logarithm_of_the_rate() {
        let trial = |(rate, smoothed): (f64, f64)| RateTrial { rate, loss: smoothed, smoothed };
        let search = judged([(1e-4, 2.0), (1e-3, 1.9), (1e-2, 1.2), (1e-1, 1.0), (1.0, 3.0)].map(trial).to_vec());
        assert_eq!((search.steepest, search.below_least), (Some(1e-3), Some(1e-2)));
        let rising = judged([(1e-4, 2.0), (1e-3, 2.1)].map(trial).to_vec());
        assert_eq!((rising.steepest, rising.below_least), (None, None));
    }
}
