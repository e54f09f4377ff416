//! The output of `train`: what is trained, the progress, how it ended and how to continue.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::{Duration, Instant};

use indicatif::ProgressBar;

use super::Args;
use super::record::Recorder;
use crate::progress::{bar, say};
use crate::report::grouped;
use crate::{Context, StdoutClosed, again, checkpoints, values};
use bf16scope_hlo::DType;
use bf16scope_model::graph::{Precision, Storage};
use bf16scope_pjrt::Platform;
use bf16scope_train::checkpoint::Checkpoint;
use bf16scope_train::experiment::{Examples, Experiment, TrainConfig};
use bf16scope_train::run_folder::CHECKPOINT;
use bf16scope_train::watch::{Anomaly, WatchRecord, anomalies, anomalies_of_last, telling_steps};
use bf16scope_train::{EpochReport, Event, Session, StateOf, Summary, TOTAL_LOSS};

/// Progress: a bar on a terminal, a line for each epoch everywhere.
pub(super) struct Show<'a> {
    context: &'a Context,
    json: bool,
    /// Whether this host is the one that reports.
    is_first: bool,
    n_epochs: u64,
    bar: Option<ProgressBar>,
    /// The error that ended output to standard output.
    pub(super) unwritten: Option<anyhow::Error>,
    /// The recorder that also receives the events.
    pub(super) record: Option<Recorder>,
    /// The error that ended recording.
    pub(super) unrecorded: Option<anyhow::Error>,
    /// The first look at a watched run and the last two, and the anomalies reported so far.
    watched: Option<Vec<WatchRecord>>,
    alarms: BTreeSet<(&'static str, String)>,
    /// While steps are repeated: the bar, the time since when, and the time of the last line.
    again: Option<(ProgressBar, Instant, Instant)>,
}

/// Without a visible bar, print a line now and then.
const SAYS_EVERY: Duration = Duration::from_secs(10);

impl<'a> Show<'a> {
    /// The initial state, for this many epochs.
    pub(super) fn new(context: &'a Context, json: bool, is_first: bool, n_epochs: u64, is_watched: bool) -> Show<'a> {
        let (watched, alarms) = (is_watched.then(Vec::new), BTreeSet::new());
        Show {
            context,
            json,
            is_first,
            n_epochs,
            bar: None,
            unwritten: None,
            record: None,
            unrecorded: None,
            watched,
            alarms,
            again: None,
        }
    }

    /// Shows the experiment, its data and device, and which host this is.
    pub(super) fn start(
        &mut self,
        args: &Args,
        (experiment, platform): (&Experiment, &Platform),
        session: &Session,
        examples: &Examples,
        rounded: Option<&str>,
    ) {
        if !self.is_first {
            let ((host, n_hosts), replicas) = (session.host(), session.replicas());
            self.say(&format!(
                "host {host} of {n_hosts}: replicas {} to {}; host 0 reports and writes",
                replicas.start,
                replicas.end - 1
            ));
        }
        if !self.json {
            self.print(&headline(args, (experiment, platform), session, examples));
        }
        if let Some(rounded) = rounded {
            self.say(rounded);
        }
    }

    /// Where it resumes, and what has changed since.
    pub(super) fn resumed(&self, args: &Args, config: &TrainConfig, from: &Path, checkpoint: &Checkpoint, step: u64) {
        let before = checkpoint.callbacks.as_ref();
        if let Some((epoch, waited)) = before.and_then(|before| config.callbacks().ended(before)) {
            self.say(&format!(
                "early stopping ended the run of {} after epoch {epoch}: it trains no further\nhelp: to train on, write a \
                 `patience` above {waited} under `early_stopping` in {}, or leave `early_stopping` out",
                from.display(),
                args.experiment.display()
            ));
            return;
        }
        let (n_done, n_epochs) = (step / checkpoint.position.steps_per_epoch, self.n_epochs);
        self.say(&match n_done < n_epochs {
            true => format!("going on from {} after step {step}", from.display()),
            false => format!("{} has {n_done} epochs, --epochs {n_epochs} asks for no more", from.display()),
        });
    }

    /// Reports that an existing checkpoint will be replaced.
    pub(super) fn replaced(&self, path: &Path, config: &TrainConfig) {
        self.say(&format!(
            "{} will be replaced {}, as --overwrite says",
            path.display(),
            match config.save_checkpoints_steps.or(config.save_checkpoints_secs) {
                _ if config.epochs == 0 => "at once",
                None => "after the first epoch",
                Some(_) => "by the first checkpoint",
            }
        ));
    }

    /// How it ended, how to continue, and where it is recorded.
    pub(super) fn end(&mut self, args: &Args, experiment: &Experiment, summary: &Summary, run: Option<&Path>) {
        self.print(&closing(args, experiment, summary));
        if let Some(run) = run {
            let (word, run) = (again::word(run), run.display());
            let watch = match experiment.train.watch {
                Some(_) => format!("`bf16scope watch {word}`, "),
                None => String::new(),
            };
            self.print(&format!(
                "recorded in {run}: {watch}`bf16scope curves {word}`, or `tensorboard --logdir {word}`\n"
            ));
        }
    }

    pub(super) fn event(&mut self, event: Event<'_>) {
        if let Event::Watched(record) = event {
            self.judge(record);
        }
        if let Some(Err(error)) = self.record.as_mut().map(|record| record.event(&event)) {
            self.say(&format!("{error:#}; the training goes on, and is not recorded any more"));
            (self.record, self.unrecorded) = (None, Some(error));
        }
        match event {
            Event::Step { epoch, step, steps_per_epoch, totals, examples_per_second, .. } if self.is_first => {
                let (quiet, n_epochs) = (self.context.quiet, self.n_epochs);
                let bar = self.bar.get_or_insert_with(|| bar(steps_per_epoch, quiet));
                bar.set_prefix(format!("epoch {epoch}/{n_epochs}"));
                let loss = totals.loss().unwrap_or(f64::NAN);
                bar.set_message(format!("loss {loss:.4} {examples_per_second:.0} examples/s"));
                bar.set_position(step);
            }
            Event::Epoch(report) => {
                self.clear();
                if !self.json {
                    self.print(&epoch_line(report, self.n_epochs));
                }
            }
            Event::Best { path, step, monitor, value } if self.is_first => {
                tracing::info!("{} is the best after step {step}: {}", path.display(), values::named(monitor, value));
            }
            Event::Reduced { epoch, learning_rate } if !self.json => {
                self.print(&format!("learning rate {learning_rate:.4e} from epoch {} on\n", epoch + 1));
            }
            Event::Stopped { epoch, monitor, best, best_step, is_restored } if !self.json => {
                self.print(&stopped(epoch, monitor, best, best_step, is_restored));
            }
            Event::MadeAgain { step, from_step, until } if self.is_first => self.made_again(step, from_step, until),
            Event::Watched(_) | Event::Step { .. } | Event::MadeAgain { .. } => {}
            Event::Saved { path, step } => {
                tracing::info!("{} saved after step {step}", path.display());
            }
            _ => {}
        }
    }

    /// The progress of the search for the origin of a non-finite loss.
    fn made_again(&mut self, step: u64, from_step: u64, until: u64) {
        let n = until - from_step;
        let (bar, began, said) = self.again.get_or_insert_with(|| {
            if let Some(bar) = self.bar.take() {
                bar.finish_and_clear();
            }
            (bar(n, self.context.quiet), Instant::now(), Instant::now())
        });
        bar.set_prefix(format!("the loss of step {until} is not finite; looking for where it began: step"));
        bar.set_length(until);
        bar.set_position(step);
        if bar.is_hidden() && !self.context.quiet && said.elapsed() >= SAYS_EVERY {
            *said = Instant::now();
            let left = began.elapsed().as_secs_f64() / (step - from_step).max(1) as f64 * (until - step) as f64;
            say(&format!(
                "the loss of step {until} is not finite: made step {step} again to find where it began, about {left:.0} s \
                 left; Ctrl-C leaves that out"
            ));
        }
    }

    /// Looks of a resumed run: their anomalies are not reported again.
    pub(super) fn seen(&mut self, looks: Vec<WatchRecord>) {
        self.alarms = anomalies(&looks).iter().map(|anomaly| (anomaly.rule, anomaly.layer.clone())).collect();
        if let Some(record) = &mut self.record {
            telling_steps(&looks).into_iter().for_each(|step| record.mark(step));
        }
        let n_looks = looks.len();
        let ends = looks.into_iter().enumerate().filter(|(at, _)| *at == 0 || at + 1 == n_looks);
        self.watched = Some(ends.map(|(_, look)| look).collect());
    }

    /// Reports new anomalies of a watched run, and keeps the looks that show them.
    fn judge(&mut self, record: &WatchRecord) {
        let Some(watched) = self.watched.as_mut().filter(|_| self.is_first) else { return };
        // A repeated look may come before the last one.
        if watched.last().is_some_and(|last| last.step >= record.step) {
            return;
        }
        // A rule compares a record with the previous one and with the first.
        if watched.len() == 3 {
            watched.remove(1);
        }
        watched.push(record.clone());
        let looks: Vec<u64> = watched.iter().rev().take(2).map(|look| look.step).collect();
        // An anomaly in an earlier look may be the cause.
        let causes = self.alarms.iter().map(|(rule, _)| *rule).collect();
        for anomaly in anomalies_of_last(watched, causes) {
            if !self.alarms.insert((anomaly.rule, anomaly.layer.clone())) {
                continue;
            }
            if let Some(record) = &mut self.record {
                looks.iter().for_each(|step| record.mark(*step));
            }
            let Anomaly { step, rule, layer, quantity, found, remedy, .. } = &anomaly;
            self.say(&format!("watch: step {step}: {rule}: {quantity} of {layer}: {found}\n  help: {remedy}"));
        }
    }

    /// Prints lines to standard output until that fails. A closed reader (`| head`) or a full disk is no reason to end
    /// an hour's training: it continues, and its end reports the error.
    fn print(&mut self, text: &str) {
        if self.unwritten.is_some() || !self.is_first {
            return;
        }
        if let Err(error) = self.context.print(text) {
            if !error.is::<StdoutClosed>() {
                self.say(&format!("{error:#}; the training goes on"));
            }
            self.unwritten = Some(error);
        }
    }

    /// A remark on standard error.
    pub(super) fn say(&self, line: &str) {
        if !self.context.quiet {
            say(line);
        }
    }

    pub(super) fn clear(&mut self) {
        if let Some((bar, ..)) = self.again.take() {
            bar.finish_and_clear();
        }
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
    }
}

/// The message that a run ends early, and why.
fn stopped(epoch: u64, monitor: &str, best: Option<f64>, best_step: u64, is_restored: bool) -> String {
    let best = best.map_or("no value that is better than any other".to_string(), |best| values::named(monitor, best));
    let restored = if is_restored { ", whose weights are restored" } else { "" };
    let step = grouped(i64::try_from(best_step).unwrap_or(i64::MAX));
    format!("stopped early after epoch {epoch}: the best was {best}, after step {step}{restored}\n")
}

/// The loss and every metric in training and on the test data.
fn epoch_line(report: &EpochReport, n_epochs: u64) -> String {
    let width = n_epochs.to_string().len();
    let value = |values: &[(String, f64)], name: &str| values.iter().find(|(other, _)| other == name).map(|it| it.1);
    // The loss first; the total loss adds nothing to it.
    let names = report.test.iter().map(|(name, _)| name).filter(|name| *name != TOTAL_LOSS);
    let on = if report.is_validated { "val" } else { "test" };
    let mut of_values = String::new();
    for name in names {
        let of_test = value(&report.test, name).map(|test| format!("({on} {})", values::shown(name, test)));
        let of_train = value(&report.train, name).map(|train| values::shown(name, train));
        let both: Vec<String> = of_train.into_iter().chain(of_test).collect();
        of_values += &format!("  {} {}", name.replace('_', " "), both.join(" "));
    }
    let skipped =
        report.n_skipped.filter(|n| *n > 0).map_or(String::new(), |n| format!("  {n} updates left out so far"));
    let since = report.train_since_step.map_or(String::new(), |step| format!("  training since step {step}"));
    // A tenth is not a bottleneck.
    let waited = report.waited_for_data.filter(|share| *share > 0.1);
    let waited = waited.map_or(String::new(), |share| format!("  {:.0} % waiting for data", 100.0 * share));
    format!(
        "epoch {:>width$}/{n_epochs}{of_values}{since}  {} examples/s{waited}{skipped}\n",
        report.epoch,
        grouped(report.examples_per_second as i64)
    )
}

/// One line with the experiment, its data and device.
fn headline(
    args: &Args,
    (experiment, platform): (&Experiment, &Platform),
    session: &Session,
    examples: &Examples,
) -> String {
    let data = examples.data();
    let n_test = grouped(examples.test.n_examples() as i64);
    let evaluated = match &examples.validation {
        Some(validation) => format!("{} validation and {n_test} test", grouped(validation.n_examples() as i64)),
        None => format!("{n_test} test"),
    };
    let batch = session.spec().batch;
    let parts = match (experiment.mesh.mesh.data.get(), experiment.mesh.mesh.state) {
        (1, _) if experiment.mesh.mesh.model.get() > 1 => {
            format!(": split over {} devices", experiment.mesh.mesh.model)
        }
        (1, _) => String::new(),
        (n, state) => {
            let state = if state == StateOf::Sharded { ", sharded state" } else { "" };
            let unit = match experiment.mesh.mesh.model.get() {
                1 => "devices".to_string(),
                model => format!("replicas of {model} devices"),
            };
            let hosts = match session.host().1 {
                1 => String::new(),
                n_hosts => format!(" of {n_hosts} hosts"),
            };
            format!(
                ": {} on each of {n} {unit}{hosts}, gradients summed in {}{state}",
                batch / n,
                experiment.mesh.mesh.sum.dtype()
            )
        }
    };
    let masters = match experiment.train.variables {
        Storage::F32 if args.precision == Precision::F32 => String::new(),
        Storage::F32 => format!(", {} master weights", DType::F32),
        other => format!(", weights stored as {other}"),
    };
    let scope = match args.precision {
        Precision::F32 => format!("in f32{masters}"),
        Precision::F16 => format!("in an f16 scope{masters}"),
        low => format!("in a {low} scope{masters}"),
    };
    let frozen = match session.n_frozen() {
        0 => String::new(),
        n => format!(" that train, {} frozen", grouped(n as i64)),
    };
    format!(
        "{}: {} with {} parameters{frozen} ({} bytes of state), {scope}, on {}\n\
         {} training and {evaluated} examples, batches of {batch}{parts}\n",
        args.experiment.display(),
        experiment.model.kind(),
        grouped(session.n_parameters() as i64),
        grouped(session.n_state_bytes() as i64),
        platform,
        grouped(data.training.n_examples() as i64),
    )
}

/// How it ended, and how to continue.
fn closing(args: &Args, experiment: &Experiment, summary: &Summary) -> String {
    let mut text = format!("test {} after {} steps\n", values::list(&summary.test), grouped(summary.steps as i64));
    let monitor = experiment.train.keep_best.as_ref().map(|keep_best| keep_best.monitor.as_str());
    if let (Some((path, value)), Some(monitor)) = (&summary.best, monitor) {
        text += &format!("best {}: {}\n", values::named(monitor, *value), path.display());
    }
    if let Some(path) = &summary.checkpoint {
        let precision = match args.precision {
            Precision::Bf16 => String::new(),
            other => format!(" --precision {other}"),
        };
        let device = match args.device == Platform::default() {
            true => String::new(),
            false => format!(" --device {}", args.device),
        };
        // An evaluation runs on one device.
        let of_one = if args.device.n_devices().is_some() { "" } else { &device };
        let in_run = args.record.run().map(|run| run.join(CHECKPOINT));
        let is_default = *path == in_run.unwrap_or_else(|| checkpoints::newest(&args.experiment, args.precision));
        let place = again::option("--checkpoint", (!is_default).then_some(path));
        let (name, tune) = (again::word(&args.experiment), args.tune.again());
        let run = again::option("--run", args.record.run());
        let n_epochs = u64::from(experiment.train.epochs);
        // Only epochs beyond the file's need an argument.
        let more = match summary.stopped {
            Some(epoch) if epoch < n_epochs => args.epochs.map_or(String::new(), |n| format!(" --epochs {n}")),
            None if n_epochs == 0 && args.epochs.is_some() => String::new(),
            _ => format!(" --epochs {}", (2 * n_epochs).max(1)),
        };
        let number = |flag: &str, value: Option<u64>| value.map_or(String::new(), |value| format!(" {flag} {value}"));
        let (batch, seed) = (number("--batch", args.batch.map(u64::from)), number("--seed", args.seed));
        let devices = number("--devices", args.devices.map(u64::from));
        let watch = match args.watch {
            Some(Some(every)) => format!(" --watch={every}"),
            Some(None) => " --watch".to_string(),
            None => String::new(),
        };
        let variables = args.variables.map_or(String::new(), |variables| format!(" --variables {variables}"));
        let evaluated = match (args.record.run(), is_default) {
            (Some(run), true) => format!("{}{of_one}{tune}", again::word(run)),
            _ => format!("{name}{precision}{of_one}{tune}{place}"),
        };
        let train_on = match summary.stopped {
            Some(_) => "with a larger `patience` in `early_stopping`, or without it, train on with",
            None => "train on with",
        };
        text += &format!(
            "checkpoint {}\nnext: `bf16scope eval {evaluated}`, or {train_on} \
             `bf16scope train {name}{precision}{device}{devices}{tune}{batch}{seed}{variables}{watch}{place}{run} --resume{more}`\n",
            path.display()
        );
    }
    text
}
