//! `bf16scope schedule`: an experiment's learning rate, as a drawing and at the steps where it changes.

use std::path::PathBuf;

use anyhow::{bail, ensure};

use super::child::client;
use super::whole::whole;
use super::{Context, Status, emit};
use crate::report::Canvas;
use crate::report::schedule::{self, DrawnRates, MARGIN, Moment, Rate, moments, spread};
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
    let drawn = DrawnRates {
        experiment: &args.experiment,
        n_steps,
        steps_per_epoch,
        moments: moments.map(|((step, what), rate)| Moment { step, epoch: epoch(step), rate: *rate, what }).collect(),
        every,
        rates: all.into_iter().zip(of_all).map(|(step, rate)| Rate { step, rate: *rate }).collect(),
        curve: curve.to_vec(),
    };
    if let Some(path) = &args.html {
        emit::replace(path, schedule::page(&drawn).render().as_bytes())?;
    }
    match args.json {
        true => context.print_json(&drawn)?,
        false => context.print(&schedule::render(&drawn, &canvas, context.screen))?,
    }
    Ok(Status::Ok)
}
