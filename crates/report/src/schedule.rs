//! A learning rate over the steps of a training: a drawing, the steps at which it changes, and a page.

use std::path::Path;

use serde::Serialize;

use crate::html::{self, Page};
use crate::plot::lines::{Axis, Line, lines};
use crate::{Canvas, Column, Screen, Table, grouped};
use bf16scope_model::optim::{LearningRate, Update, WarmUp};

/// A step at which the rate changes, or training starts or ends.
#[derive(Debug, Serialize)]
pub struct Moment {
    /// The step, counted from 0.
    pub step: u32,
    /// Epochs before it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub epoch: Option<f64>,
    /// The rate there.
    pub rate: f32,
    /// The event at this step, such as `warm-up ends`.
    pub what: String,
}

/// The rate at a step.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Rate {
    /// The step, counted from 0.
    pub step: u32,
    /// Its rate.
    pub rate: f32,
}

/// The content of the report.
#[derive(Debug, Serialize)]
pub struct DrawnRates<'a> {
    /// The experiment's file.
    pub experiment: &'a Path,
    /// The number of training steps.
    pub n_steps: u32,
    /// Steps of an epoch, if they are known.
    pub steps_per_epoch: Option<u32>,
    /// The steps at which the rate changes.
    pub moments: Vec<Moment>,
    /// The interval in steps between `rates`.
    pub every: u32,
    /// The rate every so many steps.
    pub rates: Vec<Rate>,
    /// The points of the terminal's drawing.
    #[serde(skip)]
    pub curve: Vec<f32>,
}

/// Columns for the values beside the drawing.
pub const MARGIN: usize = 10;
/// The largest number of stairs in the table; if there are more, some are left out evenly.
const MAX_STAIRS: u32 = 12;

/// `n_points` steps, from the first to the last.
pub fn spread(n_steps: u32, n_points: usize) -> Vec<u32> {
    let last = u64::from(n_steps - 1);
    let between = n_points.saturating_sub(1).max(1) as u64;
    (0..n_points as u64).map(|point| (point * last / between) as u32).collect()
}

/// The steps at which the rate changes, in ascending order, with descriptions.
pub fn moments(update: &Update, n_steps: u32) -> Vec<(u32, String)> {
    let mut all = vec![(0, "start".to_string())];
    let mut before = 0;
    if let Some(WarmUp { steps, overlap, .. }) = update.warm_up {
        all.push((steps.get(), "warm-up ends".to_string()));
        before = if overlap { 0 } else { steps.get() };
    }
    let mut at = |step: u32, what: String| all.push((step.saturating_add(before), what));
    match &update.learning_rate {
        LearningRate::Constant { .. } => {}
        LearningRate::Exponential { decay_steps, staircase: true, .. } => {
            let n_stairs = n_steps.saturating_sub(before + 1) / decay_steps.get();
            let every = n_stairs.div_ceil(MAX_STAIRS).max(1);
            for stair in (every..=n_stairs).step_by(every as usize) {
                at(stair * decay_steps.get(), format!("stair {stair}"));
            }
        }
        LearningRate::Exponential { decay_steps, .. } => at(decay_steps.get(), "decayed once".to_string()),
        LearningRate::Cosine { decay_steps, .. }
        | LearningRate::Polynomial { decay_steps, .. }
        | LearningRate::Linear { decay_steps, .. } => {
            at(decay_steps.get() / 2, "half of the decay".to_string());
            at(decay_steps.get(), "decay ends".to_string());
        }
        &LearningRate::OneCycle { decay_steps, pct_start, .. } => {
            at((pct_start * f64::from(decay_steps.get())) as u32, "the rate falls".to_string());
            at(decay_steps.get(), "cycle ends".to_string());
        }
        LearningRate::Piecewise { changes, .. } => {
            changes.iter().for_each(|change| at(change.step, "change".to_string()));
        }
        LearningRate::InverseSqrt { constant_until, .. } => at(constant_until.get(), "decay begins".to_string()),
        LearningRate::WarmUpStep { warm_up, drops, .. } => {
            if *warm_up > 0 {
                at(*warm_up, "warm-up ends".to_string());
            }
            drops.iter().for_each(|drop| at(drop.step, "drop".to_string()));
        }
    }
    all.retain(|(step, _)| *step < n_steps);
    all.push((n_steps - 1, "last step".to_string()));
    all.sort_by_key(|(step, _)| *step);
    // Merges the descriptions of one step into one row.
    all.dedup_by(|(step, what), (before, whats)| {
        let same = step == before;
        if same {
            *whats = format!("{whats}, {what}");
        }
        same
    });
    all
}

/// The shortest decimal that identifies the f32.
fn shown(rate: f32) -> String {
    match rate {
        0.0 => "0".to_string(),
        rate if (1e-4..1e6).contains(&rate) => rate.to_string(),
        rate => format!("{rate:e}"),
    }
}

/// With as few digits as a drawing needs.
fn short(rate: f32) -> String {
    let rounded: f32 = format!("{rate:.2e}").parse().unwrap_or(rate);
    shown(rounded)
}

fn title(drawn: &DrawnRates<'_>) -> String {
    let of_epoch = drawn.steps_per_epoch.map(|steps| format!(", {} an epoch", grouped(steps.into())));
    format!(
        "{}: the learning rate over {} steps{}",
        drawn.experiment.display(),
        grouped(drawn.n_steps.into()),
        of_epoch.unwrap_or_default()
    )
}

/// The drawing, and the steps at which the rate changes.
pub fn render(drawn: &DrawnRates<'_>, canvas: &Canvas, screen: Screen) -> String {
    let high = drawn.curve.iter().copied().fold(0.0, f32::max);
    let values: Vec<f64> = drawn.curve.iter().map(|rate| f64::from(*rate)).collect();
    let last = grouped(i64::from(drawn.n_steps) - 1);
    let curve = canvas.draw(&values, (0.0, high.into()), [&short(high), "0"], ["0", &last]);
    let mut columns = vec![Column::number("step"), Column::number("learning rate"), Column::text("what happens")];
    if drawn.steps_per_epoch.is_some() {
        columns.insert(1, Column::number("epoch"));
    }
    let mut table = Table::new(columns);
    for Moment { step, epoch, rate, what } in &drawn.moments {
        let mut cells = vec![grouped(i64::from(*step))];
        cells.extend(epoch.map(|epoch| format!("{epoch:.2}")));
        cells.extend([shown(*rate), what.clone()]);
        table.row(cells);
    }
    format!("{}\n\n{curve}\n{}", title(drawn), table.render(screen))
}

/// The page.
pub fn page(drawn: &DrawnRates<'_>) -> Page {
    let points = drawn.rates.iter().map(|rate| (u64::from(rate.step), f64::from(rate.rate))).collect();
    let line = Line { name: "learning rate".to_string(), look: 0, points };
    let plot = lines("learning rate over steps", &[line], Axis::Linear, |rate| short(rate as f32));
    let number = |value: f64, shown: String| html::Cell::Number(value, shown);
    let row = |Moment { step, epoch, rate, what }: &Moment| {
        let epoch = epoch.map_or(html::Cell::Text("-".to_string()), |epoch| number(epoch, format!("{epoch:.2}")));
        let (step, rate) = (number((*step).into(), grouped(i64::from(*step))), number((*rate).into(), shown(*rate)));
        vec![step, epoch, rate, html::Cell::Text(what.clone())]
    };
    let column = |title, help| html::Column { title, help };
    Page {
        title: title(drawn),
        lead: format!(
            "As the training program computes it, in f32, at every {} steps. Hovering says the values.",
            drawn.every
        ),
        figures: vec![("Learning rate".to_string(), plot)],
        tables: vec![html::Table {
            heading: "Where the rate changes".to_string(),
            lead: "Step 0 is the first update.".to_string(),
            columns: vec![
                column("step", "updates made before"),
                column("epoch", "epochs before"),
                column("learning rate", "as f32 has it"),
                column("what happens", "of the schedule"),
            ],
            rows: drawn.moments.iter().map(row).collect(),
        }],
        ..Page::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bf16scope_model::optim::RateChange;
    use std::num::NonZeroU32;

    #[test]
    fn moments_ascend_and_end_with_the_last_step() {
        let n = |n: u32| NonZeroU32::new(n).unwrap();
        let described = |learning_rate: LearningRate, warm_up: Option<u32>, n_steps| {
            let warm_up = warm_up.map(|steps| WarmUp { steps: n(steps), start: 0.0, overlap: false });
            let all = moments(&Update { learning_rate, warm_up, ..Update::default() }, n_steps);
            all.into_iter().map(|(step, what)| format!("{step} {what}")).collect::<Vec<_>>()
        };
        let changes = vec![RateChange { step: 40, value: 0.1 }, RateChange { step: 90, value: 0.01 }];
        let pieces = LearningRate::Piecewise { value: 1.0, changes };
        assert_eq!(
            described(pieces, Some(10), 101),
            ["0 start", "10 warm-up ends", "50 change", "100 change, last step"]
        );
        let cosine = LearningRate::Cosine { value: 1.0, decay_steps: n(100), alpha: 0.0 };
        assert_eq!(described(cosine, None, 100), ["0 start", "50 half of the decay", "99 last step"]);
        let stairs = LearningRate::Exponential { value: 1.0, decay_steps: n(10), decay_rate: 0.5, staircase: true };
        assert_eq!(described(stairs.clone(), None, 25), ["0 start", "10 stair 1", "20 stair 2", "24 last step"]);
        assert_eq!(described(stairs, None, 10_000).len(), 13);
        assert_eq!(described(LearningRate::default(), None, 1), ["0 start, last step"]);
        assert_eq!(spread(5, 9), [0, 0, 1, 1, 2, 2, 3, 3, 4]);
        assert_eq!(
            (shown(0.1), shown(1e-5), shown(0.0), short(0.123_456)),
            ("0.1".into(), "1e-5".into(), "0".into(), "0.123".into())
        );
    }
}
