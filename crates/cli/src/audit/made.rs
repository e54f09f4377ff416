//! Repeats any step of a recorded run, or of the run that an experiment describes.

use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context as _, bail, ensure};

use super::SAYS_EVERY;
use crate::Context;
use crate::as_tpu::AsArg;
use crate::checkpoints;
use crate::child::{LimitArgs, client_of_all};
use crate::progress::{bar, say};
use crate::report::audit::{AtStep, is_same};
use crate::train::record::plugin;
use crate::trained::seen_from_elsewhere;
use crate::tune::{TuneArg, target_of};
use bf16scope_model::graph::Precision;
use bf16scope_passes::tuning::Tuning;
use bf16scope_pjrt::{Client, Platform};
use bf16scope_study::MeshChoice;
use bf16scope_train::experiment::{Examples, Experiment};
use bf16scope_train::replay::{ReplayFrom, newest_before, state_at};
use bf16scope_train::run_folder::{self, ABOUT, About, CHECKPOINT, EXPERIMENT, Run, RunFolder, Start};
use bf16scope_train::watch::WatchRecord;
use bf16scope_train::{
    Narrowed, Session, StepInF32, StepsPerCall, interval_of, narrow, step_in_f32, step_with_gradients_in_f32,
};

/// A run, from its folder or from its experiment.
struct Recorded {
    experiment: Experiment,
    /// The base of its relative paths.
    path: PathBuf,
    run: Option<Run>,
    precision: Precision,
    checkpoint: PathBuf,
    arithmetic: AsArg,
}

impl Recorded {
    fn read(asked: &Asked<'_>) -> anyhow::Result<Recorded> {
        let folder = match (asked.file.is_dir(), asked.run) {
            (true, Some(run)) => bail!(
                "{} is the folder of a run, and --run names {}\nhelp: name one of them",
                asked.file.display(),
                run.display()
            ),
            (true, None) => Some(asked.file.to_path_buf()),
            (false, Some(run)) => Some(run.to_path_buf()),
            (false, None) => {
                let precision = asked.precision.unwrap_or(Precision::Bf16);
                RunFolder::newest(asked.file, precision.name(), |folder| folder.join(ABOUT).exists())
            }
        };
        let Some(folder) = folder else { return Recorded::of_experiment(asked) };
        let run = run_folder::read(&folder)?;
        run.remarks.iter().for_each(|remark| tracing::warn!("{}: {remark}", folder.display()));
        let Some(about) = &run.about else {
            bail!(
                "{} does not say what was trained: there is no run.json\nhelp: name the experiment, or a folder that \
                 `bf16scope train` made",
                folder.display()
            );
        };
        let precision: Precision = about.precision.parse().map_err(|error| {
            anyhow::anyhow!("{}: run.json: precision is `{}`: {error}", folder.display(), about.precision)
        })?;
        ensure!(
            asked.precision.is_none_or(|wanted| wanted == precision),
            "the run in {} computed in {precision}, and --precision is another\nhelp: leave --precision out",
            folder.display()
        );
        let mut experiment = Experiment::read(folder.join(EXPERIMENT))?;
        if let Some(n) = n_devices(about).and_then(NonZeroU32::new) {
            experiment.mesh.mesh = MeshChoice::Devices(n).over(experiment.mesh.mesh)?;
        }
        let path = PathBuf::from(&about.experiment);
        let checkpoint = match (asked.checkpoint, &about.saved) {
            (Some(path), _) => path.to_path_buf(),
            // Without its checkpoint a run is repeated from its beginning.
            (None, Some(saved)) => checkpoints::of_run(&folder, about, saved).unwrap_or_else(|error| {
                tracing::warn!("{error}");
                folder.join(CHECKPOINT)
            }),
            (None, None) => folder.join(CHECKPOINT),
        };
        let device = about.starts.last().map_or("", |start| start.device.as_str());
        let arithmetic =
            match device.split_once(" --as ") {
                Some((_, arithmetic)) => AsArg::new(Some(arithmetic.trim().parse().map_err(|error| {
                    anyhow::anyhow!("{}: run.json: device is `{device}`: {error}", folder.display())
                })?)),
                None => AsArg::new(None),
            };
        Ok(Recorded { experiment, path, run: Some(run), precision, checkpoint, arithmetic })
    }

    /// The run that the experiment describes, if none is recorded.
    fn of_experiment(asked: &Asked<'_>) -> anyhow::Result<Recorded> {
        let experiment = Experiment::read(asked.file)?;
        let precision = asked.precision.unwrap_or(Precision::Bf16);
        let newest = || checkpoints::newest(asked.file, precision);
        let checkpoint = asked.checkpoint.map_or_else(newest, Path::to_path_buf);
        let (path, arithmetic) = (asked.file.to_path_buf(), AsArg::new(None));
        Ok(Recorded { experiment, path, run: None, precision, checkpoint, arithmetic })
    }

    /// A recorded scalar at a step.
    fn recorded(&self, name: &str, step: u64) -> Option<f64> {
        let curve = self.run.as_ref()?.curves.iter().find(|curve| curve.name == name)?;
        let place = curve.points.binary_search_by_key(&step, |point| point.step).ok()?;
        Some(curve.points[place].value)
    }

    /// The last recorded step.
    fn last_recorded(&self) -> Option<u64> {
        let curve = self.run.as_ref()?.curves.iter().find(|curve| curve.name == "loss")?;
        curve.points.last().map(|point| point.step)
    }
}

/// The number of devices in a run's settings, if recorded.
fn n_devices(about: &About) -> Option<u32> {
    let settings: serde_json::Value = serde_json::from_str(&about.settings).ok()?;
    let axis = |name: &str| settings["mesh"][name].as_u64();
    u32::try_from(axis("data")?.checked_mul(axis("model").unwrap_or(1))?).ok()
}

/// The run to repeat, and how.
pub(crate) struct Asked<'a> {
    /// The experiment, or the folder of its run.
    pub file: &'a Path,
    /// The folder of the run, if `file` is the experiment.
    pub run: Option<&'a Path>,
    pub checkpoint: Option<&'a Path>,
    pub precision: Option<Precision>,
    pub tune: &'a TuneArg,
    pub device: &'a Platform,
    pub limits: Option<&'a LimitArgs>,
    pub gives_gradients: bool,
}

/// Repeats steps of a run.
pub(crate) struct Maker<'a> {
    recorded: Recorded,
    examples: Examples,
    client: Client,
    session: Session,
    n_steps: u64,
    gives_gradients: bool,
    context: &'a Context,
}

impl<'a> Maker<'a> {
    /// Reads the run, its experiment and its data, and compiles its step.
    ///
    /// # Errors
    /// A folder without a run; a run with another tuning; errors of data and plugin.
    pub(crate) fn new(asked: &Asked<'_>, context: &'a Context) -> anyhow::Result<Maker<'a>> {
        let mut recorded = Recorded::read(asked)?;
        let experiment = &mut recorded.experiment;
        let examples = experiment.read_data(&recorded.path, &context.setup());
        let examples = examples.map_err(|error| seen_from_elsewhere(error, &recorded.path))?;
        experiment.train.n_train = Some(examples.training.n_examples());
        let n = experiment.mesh.mesh.n_devices();
        let platform = match n > 1 && *asked.device == Platform::cpu() {
            true => Platform::cpu_devices(n)?,
            false => asked.device.clone(),
        };
        ensure!(
            platform.is_of_one_process() || platform.spec().is_some_and(|spec| spec.path.is_some()),
            "a step is made again on devices of one host, and --device is {platform}\nhelp: leave --device out"
        );
        let client = match asked.limits.filter(|limits| limits.is_some()) {
            Some(limits) => limits.client_of_all(&platform, context)?,
            None => client_of_all(&platform, &context.setup())?,
        };
        let mut spec =
            experiment.spec(recorded.precision, &Tuning::none()).map_err(|error| experiment.with_its_line(error))?;
        spec.objective.tuning = asked.tune.tuning(experiment, &target_of(&platform));
        let session = Session::new(&recorded.arithmetic.client(client.clone()), spec);
        let session = session.map_err(|error| recorded.experiment.with_its_line(error))?;
        let config = &recorded.experiment.train;
        let n_steps = u64::from(config.steps_per_epoch().unwrap_or(1)) * u64::from(config.epochs);
        check_tuning(&recorded, &session)?;
        let gives_gradients = asked.gives_gradients;
        Ok(Maker { recorded, examples, client, session, n_steps, gives_gradients, context })
    }

    /// The last step of the run.
    pub(super) fn last(&self) -> u64 {
        self.recorded.last_recorded().unwrap_or(self.n_steps)
    }

    /// The client on which steps are audited.
    pub(super) fn client(&self) -> &Client {
        &self.client
    }

    /// Repeats the run up to a step, builds the step in f32, and executes the step.
    ///
    /// # Errors
    /// A step beyond the run; a loss that differs from the recorded one; errors of repeating it.
    pub(super) fn make(&mut self, step: u64) -> anyhow::Result<(StepInF32, AtStep)> {
        let n_steps = self.n_steps.max(self.last());
        // A run that has saved only its initial state can be repeated for its first step.
        ensure!(
            step <= n_steps.max(1),
            "--at {step} is beyond the run, which has {n_steps} steps\nhelp: {}",
            match n_steps {
                0 => "--at 1 audits the step that training begins with".to_string(),
                _ => format!("name a step from 1 to {n_steps}"),
            }
        );
        let (from, from_step) = self.newest_before(step)?;
        let bar = bar(step - from_step, self.context.quiet);
        let (mut last_line, began) = (Instant::now(), Instant::now());
        let is_loop = matches!(self.session.spec().steps_per_call, StepsPerCall::While(_));
        let (recorded, client, is_quiet) = (&self.recorded, &self.client, self.context.quiet);
        let replayed = state_at(&mut self.session, self.examples.data(), &from, step, |replayed, totals| {
            bar.set_prefix("making the run again: step");
            bar.set_length(step);
            bar.set_position(replayed);
            if bar.is_hidden() && !is_quiet && last_line.elapsed() >= SAYS_EVERY {
                last_line = Instant::now();
                let left = began.elapsed().as_secs_f64() / (replayed - from_step) as f64 * (step - replayed) as f64;
                say(&format!("made step {replayed} of {step} again, about {left:.0} s left"));
            }
            match is_loop {
                // A loop may add in another order than single steps, which are used before the requested step.
                true => Ok(()),
                false => check(recorded, client, replayed, totals.to_values()),
            }
        })?;
        bar.finish_and_clear();
        let in_f32 = match self.gives_gradients {
            true => step_with_gradients_in_f32(&self.session, self.examples.data())?,
            false => step_in_f32(&self.session, self.examples.data())?,
        };
        let totals = self.session.train(&replayed.batch)?;
        if !is_loop {
            check(&self.recorded, &self.client, step, totals.to_values())?;
        }
        let at = AtStep {
            step,
            epoch: replayed.epoch,
            precision: self.recorded.precision,
            run: self.recorded.run.as_ref().map(|run| run.path.clone()),
            from: match from {
                ReplayFrom::Start => None,
                ReplayFrom::Checkpoint(path) => Some(path),
            },
            from_step: replayed.from_step,
            loss: totals.loss(),
            recorded_loss: self.recorded.recorded("loss", step),
            is_exact: replayed.is_exact,
        };
        Ok((in_f32, at))
    }

    /// The checkpoint from which to repeat the run up to a step, with its step.
    fn newest_before(&mut self, step: u64) -> anyhow::Result<(ReplayFrom, u64)> {
        let (from, from_step) = newest_before(&self.recorded.checkpoint, step);
        if from == ReplayFrom::Start {
            self.initialize()?;
        }
        Ok((from, from_step))
    }

    /// Looks at the steps of the run between the looks that first show an anomaly.
    ///
    /// # Errors
    /// A run that cannot be repeated or watched; errors of repeating it.
    pub(crate) fn narrow(&mut self, records: &[WatchRecord]) -> anyhow::Result<Option<Narrowed>> {
        let Some(first) = interval_of(records) else { return Ok(None) };
        let (from, from_step) = self.newest_before(first)?;
        let bar = bar(0, self.context.quiet);
        let (mut said, is_quiet) = (Instant::now(), self.context.quiet);
        let narrowed = narrow(&mut self.session, self.examples.data(), &from, records, |made, last| {
            bar.set_prefix("making the run again: step");
            bar.set_length(last.saturating_sub(from_step));
            bar.set_position(made.saturating_sub(from_step));
            if bar.is_hidden() && !is_quiet && said.elapsed() >= SAYS_EVERY {
                said = Instant::now();
                say(&format!("made step {made} again, of {last} at most"));
            }
            Ok::<(), anyhow::Error>(())
        })?;
        bar.finish_and_clear();
        Ok(narrowed)
    }

    /// Loads the run's initial weights into the session, if they are not the session's own.
    fn initialize(&mut self) -> anyhow::Result<()> {
        let Recorded { experiment, path, .. } = &self.recorded;
        if let Some(from) = experiment.initialize_from(path, None)? {
            let read = from.read(self.session.spec()).map_err(|error| experiment.with_its_line(error))?;
            self.session.restart()?;
            self.session.initialize(read)?;
        }
        Ok(())
    }
}

/// Checks that a run was tuned like the session: tuning may reorder sums.
fn check_tuning(recorded: &Recorded, session: &Session) -> anyhow::Result<()> {
    let Some(run) = &recorded.run else { return Ok(()) };
    let settings = run.about.as_ref().map(|about| serde_json::from_str::<serde_json::Value>(&about.settings));
    let Some(Ok(settings)) = settings else { return Ok(()) };
    let now = &serde_json::to_value(session.settings()).context("settings without a JSON form")?["tune"];
    ensure!(
        settings["tune"].is_null() || settings["tune"] == *now,
        "{}: the run was tuned as {}, and is made again as {now}\nhelp: give --tune as the run was given it; its \
         experiment.yaml says so in the first line",
        run.path.display(),
        settings["tune"]
    );
    Ok(())
}

/// Checks that a step gives the recorded values, to the bit.
fn check(recorded: &Recorded, client: &Client, step: u64, values: Vec<(String, f64)>) -> anyhow::Result<()> {
    for (name, made) in values {
        let Some(before) = recorded.recorded(&name, step) else { continue };
        if !is_same(before, made) {
            let run = recorded.run.as_ref().expect("what is recorded is of a run");
            bail!(
                "step {step} of {}: {name} is {made} where it is made again, and was recorded as {before}\n{}",
                run.path.display(),
                what_differs(run.about.as_ref().and_then(|about| about.starts.last()), client)
            );
        }
    }
    Ok(())
}

/// The differences in a run's circumstances, as far as they are recorded, and what to do.
fn what_differs(start: Option<&Start>, client: &Client) -> String {
    let current = Start::now(0, client.platform_name().unwrap_or_default(), plugin(client));
    let start = start.cloned().unwrap_or_default();
    let pairs = [("bf16scope", &start.bf16scope, &current.bf16scope), ("the plugin", &start.plugin, &current.plugin)];
    let difference = |(what, before, now): &(&str, &String, &String)| {
        (before != now && !before.is_empty()).then(|| format!("{what} was {before} and is {now}"))
    };
    let mut known: Vec<String> = pairs.iter().filter_map(difference).collect();
    let device = start.device.split(" --as ").next().unwrap_or_default();
    if !device.is_empty() && !device.starts_with(&current.device) {
        known.push(format!("the device was {device} and is {}", current.device));
    }
    match known.is_empty() {
        false => format!("{}\nhelp: make it again with what the run had", known.join("; ")),
        true => "help: versions and device are those of the run; the processor, the data, the experiment before a --resume or \
                 the checkpoint may be others: --checkpoint names another one"
            .to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_those_of_the_settings() {
        let n_devices_in = |settings: &str| n_devices(&About { settings: settings.to_string(), ..About::default() });
        assert_eq!(n_devices_in(r#"{"mesh": {"data": 4, "model": 2}}"#), Some(8));
        assert_eq!(n_devices_in(r#"{"mesh": {"data": 4}}"#), Some(4));
        assert_eq!((n_devices_in("{}"), n_devices_in("no JSON")), (None, None));
    }
}
