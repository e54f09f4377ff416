//! `bf16scope schedule`: an experiment's learning rate, as a drawing and at the steps where it changes.

use std::path::{Path, PathBuf};

use anyhow::{bail, ensure};
use serde::Serialize;

use super::child::client;
use super::whole::whole;
use super::{Context, Status, emit};
use crate::report::html::Page;
use crate::report::plot::lines::{Axis, Line, lines};
use crate::report::{Canvas, Column, Screen, Table, grouped, html};
use bf16scope_model::optim::{LearningRate, Update, WarmUp};
use bf16scope_pjrt::Platform;
use bf16scope_train::experiment::Experiment;
use bf16scope_train::rates;

const EXAMPLES: &str = "\
Examples:
  bf16scope schedule examples/digits.yaml
          the rate over all steps, and at the start, the drops and the end
  bf16scope schedule examples/bert_base.yaml --steps 10000
          for an experiment without data, which does not determine the number of steps
  bf16scope schedule examples/recipes/resnet50.yaml --html schedule.html --json
          a page for the browser, and the rates as JSON

Rates are those that the training program computes: its instructions run on the CPU, in f32. An epoch has as many steps as
whole batches fit in the training examples; without files, `n_train` under `data` says how many there are.";

/// Arguments of `schedule`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The experiment: a YAML file with `train`
    #[arg(value_name = "EXPERIMENT")]
    experiment: PathBuf,
    /// The number of steps, instead of the experiment's
    #[arg(long, value_name = "N", value_parser = whole(1..=i32::MAX as u32), allow_negative_numbers = true)]
    steps: Option<u32>,
    /// Show the rate every N steps in --json and on the page [default: at a thousand steps]
    #[arg(long, value_name = "N", value_parser = whole(1..=u32::MAX), allow_negative_numbers = true)]
    every: Option<u32>,
    /// Write a page for the browser
    #[arg(short = 'o', long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Where rates are computed: cpu, tpu, plugin:PATH (any PJRT plugin), or xla-cpu (in builds with the feature xla)
    #[arg(long, value_name = "DEVICE", default_value_t)]
    device: Platform,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// A step at which the rate changes, or training starts or ends.
#[derive(Debug, Serialize)]
struct Moment {
    step: u32,
    /// Epochs before it.
    #[serde(skip_serializing_if = "Option::is_none")]
    epoch: Option<f64>,
    rate: f32,
    what: String,
}

/// The rate at a step.
#[derive(Clone, Copy, Debug, Serialize)]
struct Rate {
    step: u32,
    rate: f32,
}

/// The content of the report.
#[derive(Debug, Serialize)]
struct Drawn<'a> {
    experiment: &'a Path,
    /// The number of training steps.
    n_steps: u32,
    steps_per_epoch: Option<u32>,
    moments: Vec<Moment>,
    /// The interval in steps between `rates`.
    every: u32,
    rates: Vec<Rate>,
    /// The points of the terminal's drawing.
    #[serde(skip)]
    curve: Vec<f32>,
}

/// Runs the command.
pub fn run(args: &Args, context: &Context) -> anyhow::Result<Status> {
    emit::check_names(&[("--html", args.html.as_deref())], &[Some(&args.experiment)])?;
    let mut experiment = Experiment::read(&args.experiment)?;
    let train = &experiment.train;
    if train.n_train.is_none() && experiment.data.is_some() && (args.steps.is_none() || train.is_by_epoch()) {
        let n_examples = experiment.read_data(&args.experiment, &context.setup())?.training.n_examples();
        experiment.train.n_train = Some(n_examples);
    }
    experiment.check_schedule(&args.experiment)?;
    // With --steps, training may well end before the schedule does.
    if let Some(remark) = experiment.schedule_remark(&args.experiment).filter(|_| args.steps.is_none()) {
        tracing::warn!("{remark}");
    }
    let update = experiment.train.update()?;
    let steps_per_epoch = experiment.train.steps_per_epoch();
    let of_epochs = steps_per_epoch.map(|steps| u64::from(steps) * u64::from(experiment.train.epochs));
    let Some(n_steps) = args.steps.or(of_epochs.map(|steps| steps.min(i32::MAX as u64) as u32)) else {
        bail!(
            "{}: nothing says how many steps training takes\nhelp: give --steps N, or add `n_train: N` under `data`, the \
             number of training examples",
            args.experiment.display()
        );
    };
    ensure!(
        n_steps > 0,
        "{}: the training has 0 steps, and no rate to draw\nhelp: give --steps N, or write `epochs: 1` or more under `train`",
        args.experiment.display()
    );
    let canvas = Canvas::new(context.screen, MARGIN);
    let points = spread(n_steps, canvas.n_points());
    let every = args.every.unwrap_or(n_steps.div_ceil(1000)).min(n_steps);
    let sampled = args.json || args.html.is_some();
    let all: Vec<u32> = if sampled { (0..n_steps).step_by(every as usize).collect() } else { Vec::new() };
    let happens = moments(&update, n_steps);
    // One program, called once for all steps.
    let steps: Vec<u32> =
        happens.iter().map(|(step, _)| *step).chain(points.iter().copied()).chain(all.clone()).collect();
    let values = rates(&client(&args.device, &context.setup())?, &update, &steps)?;
    let (of_moments, rest) = values.split_at(happens.len());
    let (curve, of_all) = rest.split_at(points.len());
    let epoch = |step: u32| steps_per_epoch.map(|steps| f64::from(step) / f64::from(steps));
    let moments = happens.into_iter().zip(of_moments);
    let drawn = Drawn {
        experiment: &args.experiment,
        n_steps,
        steps_per_epoch,
        moments: moments.map(|((step, what), rate)| Moment { step, epoch: epoch(step), rate: *rate, what }).collect(),
        every,
        rates: all.into_iter().zip(of_all).map(|(step, rate)| Rate { step, rate: *rate }).collect(),
        curve: curve.to_vec(),
    };
    if let Some(path) = &args.html {
        emit::replace(path, page(&drawn).render().as_bytes())?;
    }
    match args.json {
        true => context.print_json(&drawn)?,
        false => context.print(&render(&drawn, &canvas, context.screen))?,
    }
    Ok(Status::Ok)
}

/// Columns for the values beside the drawing.
const MARGIN: usize = 10;
/// The largest number of stairs in the table; if there are more, some are left out evenly.
const MAX_STAIRS: u32 = 12;

/// `n_points` steps, from the first to the last.
fn spread(n_steps: u32, n_points: usize) -> Vec<u32> {
    let last = u64::from(n_steps - 1);
    let between = n_points.saturating_sub(1).max(1) as u64;
    (0..n_points as u64).map(|point| (point * last / between) as u32).collect()
}

/// The steps at which the rate changes, in ascending order, with descriptions.
fn moments(update: &Update, n_steps: u32) -> Vec<(u32, String)> {
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

fn title(drawn: &Drawn<'_>) -> String {
    let of_epoch = drawn.steps_per_epoch.map(|steps| format!(", {} an epoch", grouped(steps.into())));
    format!(
        "{}: the learning rate over {} steps{}",
        drawn.experiment.display(),
        grouped(drawn.n_steps.into()),
        of_epoch.unwrap_or_default()
    )
}

fn render(drawn: &Drawn<'_>, canvas: &Canvas, screen: Screen) -> String {
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

fn page(drawn: &Drawn<'_>) -> Page {
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
