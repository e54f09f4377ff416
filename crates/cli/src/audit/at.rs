//! `audit EXPERIMENT --at STEP`: repeats a recorded run up to a step, and audits that step's module with its state and
//! batch.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};

use super::made::{Asked, Maker};
use super::{Args, Subject, default_stem, first};
use crate::tune::TuneArg;
use crate::whole::whole;
use crate::{Context, Status, again};
use bf16scope_model::graph::Precision;
use bf16scope_passes::amp::Policy;
use bf16scope_study::module_file;
use bf16scope_train::StepInF32;

/// Arguments that choose a step of a run.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "A step of a training run")]
pub(super) struct AtArgs {
    /// Audit this step of the experiment's run, counted from 1: the run is replayed from its newest checkpoint before the step,
    /// or from its beginning, and the step in f32 gets the same state and batch
    #[arg(long, value_name = "STEP", value_parser = whole(1..=u64::MAX), allow_negative_numbers = true,
          conflicts_with_all = ["inputs", "random", "steps"])]
    at: Option<u64>,
    /// Bisect for the first step whose error exceeds RATIO times that of step 1, and audit it. The error of a step is the
    /// largest scaled error of a judged result
    #[arg(long, value_name = "RATIO", value_parser = ratio, allow_negative_numbers = true,
          conflicts_with_all = ["at", "inputs", "random", "steps"])]
    first_beyond: Option<f64>,
    /// Judge each variable's gradient too, and show its cosine with f32's: results named gradient/VARIABLE
    #[arg(long)]
    pub(super) gradients: bool,
    /// The folder that the run is recorded in [default: the newest run of the experiment in runs/EXPERIMENT-PRECISION]
    #[arg(long, value_name = "DIR")]
    pub(super) run: Option<PathBuf>,
    /// The run's checkpoint [default: the one that its folder names]
    #[arg(long, value_name = "FILE")]
    pub(super) checkpoint: Option<PathBuf>,
    /// Precision of the network, if the run's folder does not record it [default: bf16]
    #[arg(long, value_name = "PRECISION")]
    pub(super) precision: Option<Precision>,
    #[command(flatten)]
    pub(super) tune: TuneArg,
}

fn ratio(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(ratio) if ratio >= 1.0 && ratio.is_finite() => Ok(ratio),
        Ok(_) | Err(_) => Err("expected a number of 1 or more, such as 10".to_string()),
    }
}

/// The question about a run.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Question {
    At(u64),
    FirstBeyond(f64),
}

impl AtArgs {
    fn question(&self) -> Option<Question> {
        self.at.map(Question::At).or(self.first_beyond.map(Question::FirstBeyond))
    }

    /// Whether a step of a run is to be audited.
    ///
    /// # Errors
    /// A model or a folder of a run without a step; a step of a module; arguments about runs for a module.
    pub(super) fn is_asked(&self, file: &Path) -> anyhow::Result<bool> {
        let is_run = file.is_dir() || module_file::is_model(file);
        match (self.question(), is_run) {
            (Some(_), true) => Ok(true),
            (Some(_), false) => bail!(
                "{} is a module, and --at and --first-beyond are about steps of a training run\nhelp: name the experiment \
                 (YAML) or the folder of its run; of a module, --steps N audits the Nth step",
                file.display()
            ),
            (None, true) => {
                let (word, what) = (again::word(file), if file.is_dir() { "a folder" } else { "a model in YAML" });
                let module = match file.is_dir() {
                    true => String::new(),
                    false => format!(
                        "; or audit its program as a module: `bf16scope emit {word} --precision f32 -o {stem}.hlo.pb`, then \
                         audit {stem}.hlo.pb",
                        stem = default_stem(file)
                    ),
                };
                bail!(
                    "{} is {what}, and of a run `audit` takes a step\nhelp: `bf16scope audit {word} --at STEP`{module}",
                    file.display()
                )
            }
            (None, false) => {
                let flags = [("--run", self.run.is_some()), ("--checkpoint", self.checkpoint.is_some())];
                let more = [
                    ("--precision", self.precision.is_some()),
                    ("--tune", self.tune.is_some()),
                    ("--gradients", self.gradients),
                ];
                match flags.into_iter().chain(more).find(|(_, is_given)| *is_given) {
                    Some((flag, _)) => bail!(
                        "{flag} is about a step of a training run, and {} is a module\nhelp: leave {flag} out, or name an \
                         experiment and --at STEP",
                        file.display()
                    ),
                    None => Ok(false),
                }
            }
        }
    }
}

/// Runs the command for a step of a run.
pub(super) fn run(args: &Args, policy: &Policy, context: &Context) -> anyhow::Result<Status> {
    let asked = Asked {
        file: &args.module,
        run: args.at.run.as_deref(),
        checkpoint: args.at.checkpoint.as_deref(),
        precision: args.at.precision,
        tune: &args.at.tune,
        device: &args.device,
        limits: Some(&args.limits),
        gives_gradients: args.at.gradients,
    };
    let mut maker = Maker::new(&asked, context)?;
    let (in_f32, at, first_beyond) = match args.at.question().context("a step is asked for")? {
        Question::At(step) => {
            let (in_f32, at) = maker.make(step)?;
            (in_f32, at, None)
        }
        Question::FirstBeyond(ratio) => {
            let result = first::first_beyond(args, policy, &mut maker, ratio, context)?;
            match result.step {
                Some(step) => {
                    let (in_f32, at) = maker.make(step)?;
                    (in_f32, at, Some(result))
                }
                None => return first::say_none(args, &result, context),
            }
        }
    };
    let StepInF32 { module, inputs, results, .. } = in_f32;
    let client = maker.client().clone();
    drop(maker);
    let subject = Subject { module: &module, inputs, names: results, at: Some(at), first_beyond };
    super::judge(args, policy, subject, None, &client, context)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_are_1_or_more() {
        assert_eq!(ratio("10"), Ok(10.0));
        for text in ["0.5", "-1", "nan", "inf", "much"] {
            assert!(ratio(text).is_err(), "{text}");
        }
    }
}
