//! `bf16scope data --bench`: the speed of an experiment's input pipeline, by stage and by number of workers, beside the
//! consumption of a TPU.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use serde_json::{Value as Json, json};

use crate::report::{Column, Table, grouped, percent};
use crate::{Context, progress};
use bf16scope_data::{Ask, Draw, Loader, Source, Spent};
use bf16scope_hlo::DType;
use bf16scope_hlo::devices::Placement;
use bf16scope_hlo::proto::encode;
use bf16scope_model::graph::Precision;
use bf16scope_pjrt::Purpose;
use bf16scope_study::{Asking, ModelSubject, unit};
use bf16scope_tpu::{Target, TpuError};
use bf16scope_train::experiment::Experiment;

/// Arguments of a measurement.
#[derive(Debug, clap::Args)]
#[group(skip)]
pub(super) struct Args {
    /// Measure an experiment's examples a second, by stage and by the number of workers
    #[arg(long)]
    pub(super) bench: bool,
    /// With --bench: compare with the examples a second that a board of this TPU consumes, by `compile`'s estimate
    #[arg(long, value_name = "TARGET", requires = "bench")]
    target: Option<Target>,
}

impl Args {
    /// The purpose for which a plugin is loaded, if one is.
    pub(super) fn purpose(&self) -> Purpose {
        if self.target.is_some() { Purpose::Compile } else { Purpose::Run }
    }

    /// Refuses a target that is no TPU.
    fn check(&self) -> Result<(), TpuError> {
        match &self.target {
            Some(target @ Target::Cpu) => Err(TpuError::NotATpu(target.clone())),
            _ => Ok(()),
        }
    }
}

/// The least measuring time for each number of workers, in seconds.
const BENCH_SECS: f64 = 2.0;
/// The number of examples whose stages are measured, and of rounds over them; the fastest round counts.
const N_STAGED: u64 = 32;
const ROUNDS: usize = 3;

/// The measurements.
struct Measured {
    /// The time of an example's stages in one thread, if the source measures it.
    stages: Option<Spent>,
    /// Examples per second by number of workers.
    rates: Vec<(usize, f64)>,
}

/// Measures the training examples of an experiment: the text to print, and the same as JSON.
pub(super) fn run(
    args: &Args,
    source: &dyn Source,
    (experiment, path): (&Experiment, &Path),
    context: &Context,
) -> anyhow::Result<(String, Json)> {
    args.check()?;
    let Measured { stages, rates } = measure(source, experiment)?;
    let mut text = String::new();
    let mut object = json!({});
    if let Some(spent) = &stages {
        let rows = [("read", spent.read), ("decode", spent.decode), ("transform", spent.transform)];
        let whole: Duration = rows.iter().map(|(_, time)| *time).sum();
        let mut table = Table::new([Column::name("stage"), Column::number("ms an example"), Column::number("share")]);
        for (name, time) in rows {
            let share = percent(time.as_nanos() as i64, whole.as_nanos().max(1) as i64);
            table.row([name.to_string(), format!("{:.3}", time.as_secs_f64() * 1e3), share]);
        }
        text += &table.render(context.screen);
        let secs = rows.map(|(name, time)| (name.to_string(), json!(time.as_secs_f64())));
        object["seconds_by_stage"] = Json::Object(secs.into_iter().collect());
    }
    let mut table = Table::new([Column::number("workers"), Column::number("examples/s"), Column::number("per worker")]);
    for (n_workers, rate) in &rates {
        let per_worker = rate / (*n_workers).max(1) as f64;
        table.row([n_workers.to_string(), grouped(*rate as i64), grouped(per_worker as i64)]);
    }
    text += &table.render(context.screen);
    object["workers"] = rates.iter().map(|(n, rate)| json!({ "n_workers": n, "examples_per_second": rate })).collect();
    if let Some(target) = &args.target {
        let eaten = eaten(target, (experiment, path), context)?;
        let &(n_workers, made) = rates.last().context("there is one number of workers at least")?;
        text += &beside(target, unit(&*experiment.task()), eaten, made, n_workers);
        object["target"] = json!({ "name": target.to_string(), "examples_per_second": eaten });
    }
    Ok((text, object))
}

/// A board's consumption compared with this machine's speed, in a sentence.
fn beside(target: &Target, unit: &str, consumed: Option<f64>, produced: f64, n_workers: usize) -> String {
    let Some(consumed) = consumed else {
        return format!("how many {unit}/s one board of {target} consumes is unknown, as its clock is\n");
    };
    let per_worker = produced / n_workers as f64;
    let begin = format!(
        "one board of {target} consumes {} {unit}/s; this machine makes {} with {}",
        grouped(consumed as i64),
        grouped(produced as i64),
        if n_workers == 1 { "1 worker".to_string() } else { format!("{n_workers} workers") },
    );
    match ((consumed - produced) / per_worker).ceil() {
        more if more <= 0.0 => format!("{begin}: it is fed\n"),
        more => {
            let more = more as i64;
            let cores = if more == 1 {
                "1 more core like these".to_string()
            } else {
                format!("{} more cores like these", grouped(more))
            };
            format!(
                "{begin}; {cores}, or it waits {} of the time\n",
                percent((consumed - produced) as i64, consumed as i64)
            )
        }
    }
}

/// Examples per second that a board of the target trains on, by its compiler's estimate; `None` if its clock is
/// unknown.
fn eaten(target: &Target, (experiment, path): (&Experiment, &Path), context: &Context) -> anyhow::Result<Option<f64>> {
    let Target::Tpu { version, .. } = target else { return Err(TpuError::NotATpu(target.clone()).into()) };
    let mut counted = experiment.clone();
    counted.count_examples(path, &context.setup())?;
    let subject = ModelSubject::of_experiment(path, counted)?;
    let (batch, mesh) = (subject.batch, subject.objective.mesh);
    let module = subject.program_with(Precision::Bf16, batch, mesh, subject.tuning(target))?.module;
    let placement = Placement::from_module(&module)?;
    let spinner = progress::spinner(format!("compiling {} for {target}", path.display()), context.quiet);
    let compiler = Asking::new(&context.setup()).compiler(placement);
    let compiled = compiler.compile(target, &encode::to_bytes(&module)?, batch as usize);
    spinner.finish_and_clear();
    let report = compiled?.report(target)?;
    let n_boards = report.devices.n() as f64 / f64::from(version.cores_per_board());
    Ok(report.examples_per_second.map(|all| all / n_boards))
}

fn measure(source: &dyn Source, experiment: &Experiment) -> anyhow::Result<Measured> {
    Ok(Measured { stages: stages(source, experiment)?, rates: rates(source, experiment)? })
}

/// The mean over some examples, each with the fastest of some rounds: this reduces the influence of other load.
fn stages(source: &dyn Source, experiment: &Experiment) -> anyhow::Result<Option<Spent>> {
    let n = source.n_examples().min(N_STAGED);
    let mut best: Option<Spent> = None;
    for _ in 0..ROUNDS {
        let mut sum = Spent::default();
        for index in 0..n {
            let draw = Draw::new(experiment.train.seed, 0, index);
            let Some(spent) = source.give(index, Some(draw), &mut |_, _| Ok(()))? else { return Ok(None) };
            sum.read += spent.read;
            sum.decode += spent.decode;
            sum.transform += spent.transform;
        }
        let whole = |spent: &Spent| spent.read + spent.decode + spent.transform;
        if best.as_ref().is_none_or(|best| whole(&sum) < whole(best)) {
            best = Some(sum);
        }
    }
    let n = n as u32;
    Ok(best.map(|sum| Spent { read: sum.read / n, decode: sum.decode / n, transform: sum.transform / n }))
}

/// Training examples per second, by one worker, two, four and so on, up to the number of cores.
fn rates(source: &dyn Source, experiment: &Experiment) -> anyhow::Result<Vec<(usize, f64)>> {
    let n_cores = std::thread::available_parallelism().map_or(1, |n| n.get());
    let mut counts: Vec<usize> = std::iter::successors(Some(1), |n| Some(n * 2)).take_while(|n| *n < n_cores).collect();
    counts.push(n_cores);
    let features = experiment.task().features();
    let batch = experiment.train.batch as usize;
    let mut rates = Vec::new();
    for n_workers in counts {
        let loader = Loader::new(source, &features, DType::BF16, batch, experiment.train.seed)?.with_workers(n_workers);
        let n_steps = loader.n_steps();
        let asks = (0u64..).map(move |step| Ask::Steps { epoch: step / n_steps, step: step % n_steps, n: 1 });
        let rate = loader.ahead(asks, |batches| -> anyhow::Result<f64> {
            // The first batch includes one-time costs.
            batches.next().context("an epoch has no batches")??;
            let (began, mut n_examples) = (Instant::now(), 0);
            while began.elapsed().as_secs_f64() < BENCH_SECS {
                n_examples += batches.next().context("an epoch has no batches")??.n_valid;
            }
            Ok(n_examples as f64 / began.elapsed().as_secs_f64())
        })?;
        rates.push((n_workers, rate));
    }
    Ok(rates)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_said_in_cores() {
        let v2: Target = "tpu-v2".parse().unwrap();
        let sentence = |eaten, made, n| beside(&v2, "images", Some(eaten), made, n);
        assert_eq!(
            sentence(5638.4, 1240.0, 2),
            "one board of tpu-v2 consumes 5,638 images/s; this machine makes 1,240 with 2 workers; 8 more cores like these, \
             or it waits 78.0 % of the time\n"
        );
        assert_eq!(
            sentence(1000.0, 1000.0, 1),
            "one board of tpu-v2 consumes 1,000 images/s; this machine makes 1,000 with 1 worker: it is fed\n"
        );
        assert_eq!(
            beside(&v2, "images", None, 1000.0, 1),
            "how many images/s one board of tpu-v2 consumes is unknown, as its clock is\n"
        );
    }
}
