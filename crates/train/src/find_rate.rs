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
    /// The steps, up to a loss that is not finite or four times the best; if losses are negative, above the best by
    /// three times its magnitude or the fall to it.
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
    let (mut trials, mut mean): (Vec<RateTrial>, f64) = (Vec::new(), 0.0);
    for step in 0..u64::from(n_steps) {
        let (epoch, within) = (step / loader.n_steps(), step % loader.n_steps());
        let rate = session.learning_rate();
        let loss = session.train(&loader.steps(epoch, within, 1)?)?.loss().unwrap_or(f64::NAN);
        mean = KEPT * mean + (1.0 - KEPT) * loss;
        // Corrects the bias of a mean that starts at 0.
        let smoothed = mean / (1.0 - KEPT.powf(step as f64 + 1.0));
        let trial = RateTrial { rate, loss, smoothed };
        observe(&trial);
        if !loss.is_finite() || has_diverged(&trials, smoothed) {
            break;
        }
        trials.push(trial);
    }
    Ok(judged(trials))
}

/// Whether a smoothed loss is too far above the best one so far. A loss that may be negative has no multiples: its unit
/// is the fall so far, or the best's magnitude.
fn has_diverged(trials: &[RateTrial], smoothed: f64) -> bool {
    let best = trials.iter().map(|trial| trial.smoothed).fold(f64::INFINITY, f64::min);
    let fall = trials.first().map_or(0.0, |first| first.smoothed - best);
    let is_signed = trials.iter().any(|trial| trial.loss < 0.0);
    let unit = if is_signed { fall.max(best.abs()) } else { best };
    unit > 0.0 && smoothed - best > (DIVERGED - 1.0) * unit
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

    #[test]
    fn a_loss_diverges_from_its_best_by_multiples_or_by_its_fall_if_it_is_negative() {
        let trials = |losses: &[f64]| -> Vec<RateTrial> {
            losses.iter().map(|&loss| RateTrial { rate: 1e-3, loss, smoothed: loss }).collect()
        };
        for (losses, last, expected) in [
            (&[2.0, 0.5][..], 2.1, true),
            (&[2.0, 0.5], 1.9, false),
            (&[0.0], 5.0, false),
            (&[], 5.0, false),
            // From 1 to -4: a fall of 5.
            (&[1.0, -4.0], 11.1, true),
            (&[1.0, -4.0], 10.9, false),
            // It has not fallen: three times 2 above -2.
            (&[-2.0, -1.5], 4.1, true),
            (&[-2.0, -1.5], 3.9, false),
            // A fall through 0, where multiples of the best would say nothing.
            (&[2.0, -0.5, 0.01], 0.5, false),
        ] {
            assert_eq!(has_diverged(&trials(losses), last), expected, "{losses:?}, then {last}");
        }
        // A log-likelihood: the search has its least loss and its fastest fall.
        let trial = |(rate, smoothed): (f64, f64)| RateTrial { rate, loss: smoothed, smoothed };
        let fallen = judged([(1e-4, -1.0), (1e-3, -1.1), (1e-2, -3.0), (1e-1, -3.1)].map(trial).to_vec());
        assert_eq!((fallen.steepest, fallen.below_least), (Some(1e-3), Some(1e-2)));
    }
}
