//! The arguments that choose which forms to compare, and hints on accuracy, which no figure covers.

use std::path::Path;

use anyhow::{bail, ensure};

use super::again;
use super::policy::{self, AUTO};
use super::program::Choice;
use bf16scope_model::graph::Precision;
use bf16scope_study::{Form, Judged};

/// Arguments that choose the forms to compare.
#[derive(Debug, clap::Args)]
pub(super) struct CompareArgs {
    /// Compare side by side: a model in f32 and bf16; a module as it is and lowered
    #[arg(long, conflicts_with = "precision")]
    pub(super) compare: bool,
    /// Lower a module first: a preset or a YAML file, as `lower` takes them. With --compare it may be repeated, `all` is
    /// every preset that lowers to bf16 and keeps the types of parameters and results [default with --compare: default]
    #[arg(long, value_name = "POLICY")]
    pub(super) policy: Vec<String>,
}

/// Stands for every preset of [`Form::all`].
const ALL: &str = "all";

impl CompareArgs {
    /// Whether anything is lowered or compared.
    pub(super) fn is_asked(&self) -> bool {
        self.compare || !self.policy.is_empty()
    }

    /// Checks that these arguments fit a model.
    ///
    /// # Errors
    /// There is a policy, which is for modules.
    pub(super) fn check_model(&self, path: &Path) -> anyhow::Result<()> {
        let Some(policy) = self.policy.first() else { return Ok(()) };
        let model = again::word(path);
        bail!(
            "--policy {policy} lowers a module, and {} is a model, whose precision is --precision\nhelp: leave --policy out, \
             or lower its f32 program: `bf16scope emit {model} --precision f32 -o step.pb`, then give step.pb",
            path.display()
        );
    }

    /// The requested precisions of a model.
    pub(super) fn precisions(&self, choice: &Choice) -> Vec<Precision> {
        match self.compare {
            true => vec![Precision::F32, Precision::Bf16],
            false => vec![choice.precision()],
        }
    }

    /// The requested forms of a module, before it is known which of them differ.
    pub(super) fn forms(&self) -> anyhow::Result<Vec<Form>> {
        let auto = policy::auto()?;
        if !self.is_asked() {
            return Ok(vec![auto.map_or_else(Form::as_given, |policy| Form::lowered_by(AUTO, policy))]);
        }
        let is_several = self.policy.len() > 1 || self.policy.iter().any(|name| name == ALL);
        ensure!(
            self.compare || !is_several,
            "several policies make several programs\nhelp: add --compare, which puts them side by side, or name one policy"
        );
        if auto.is_some() {
            let flag = if self.policy.is_empty() { "--compare" } else { "--policy" };
            tracing::warn!("{AUTO} is set, and says nothing here: {flag} says what is lowered");
        }
        let mut forms = if self.compare { vec![Form::as_given()] } else { Vec::new() };
        let names: Vec<&str> = match self.policy.is_empty() {
            true => vec!["default"],
            false => self.policy.iter().map(String::as_str).collect(),
        };
        for name in names {
            match name {
                ALL => forms.extend(Form::all()),
                name => forms.push(Form::lowered(name, bf16scope_study::policy(name)?)),
            }
        }
        Ok(forms)
    }
}

/// The hint that more may be gained by asking the compiler.
const ASK: &str = "Where rules are in doubt, `bf16scope lower --target` compiles both forms and keeps the cheaper.";

/// The verdict, with a hint on where to check accuracy, which the figures do not cover. `labels` are the candidates';
/// `audit` is suggested only for a program that one device runs alone.
pub(super) fn with_accuracy(judged: Judged, labels: &[&str], choice: &Choice, runs_alone: bool) -> Judged {
    let Judged { choice: chosen, mut sentences } = judged;
    let file = again::word(&choice.model);
    if let (Some(chosen), Some(second)) = (&chosen, labels.get(1)) {
        let is_first = labels.first() == Some(&chosen.as_str());
        if choice.is_module() && !is_first {
            sentences.push(ASK.to_string());
        }
        let check = if !runs_alone {
            "`bf16scope audit` runs a module on one device alone, which cannot run this one; audit the step that one device does"
                .to_string()
        } else if choice.is_module() {
            let policy = again::word(Path::new(if is_first { *second } else { chosen.as_str() }));
            format!(
                "`bf16scope audit {file} --random 1 --policy {policy}` compares the results with f32's; of an experiment, \
                 `bf16scope audit EXPERIMENT --at STEP`"
            )
        } else {
            format!("train in both, or compare a step of a run with f32's: `bf16scope audit {file} --at STEP`")
        };
        sentences.push(format!("Accuracy was not measured: {check}."));
    }
    Judged { choice: chosen, sentences }
}
