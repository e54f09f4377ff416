//! What `compile`, `explain` and `fit` compile: a model in one precision or two, a module as it is given or lowered by
//! policies. Every such program is made here; `--compare` puts them side by side.

use std::path::Path;

use anyhow::{Context as _, bail, ensure};
use serde::Serialize;

use super::again;
use super::policy::{self, AUTO, lower_if_asked};
use super::program::Choice;
use super::several;
use crate::graph::{Precision, Storage};
use crate::hlo::devices::Placement;
use crate::hlo::proto::encode;
use crate::hlo::{DType, Module};
use crate::passes::amp::{self, Boundary, LowDType, LoweringReport, Policy, Reach, presets};
use crate::tpu::Target;
use crate::tpu::verdict::{Candidate, Verdict, verdict};
use crate::tuning::Tuning;

/// Arguments that say what stands side by side.
#[derive(Debug, clap::Args)]
pub(super) struct CompareArgs {
    /// Side by side: a model in f32 and bf16; a module as given and lowered
    #[arg(long, conflicts_with = "precision")]
    pub(super) compare: bool,
    /// Lower a module first: a preset or a YAML file, as `lower` takes them. With --compare it may be repeated, `all` is
    /// every preset that lowers to bf16 and keeps the types of parameters and results [default with --compare: default]
    #[arg(long, value_name = "POLICY")]
    pub(super) policy: Vec<String>,
}

/// A module has whatever precision it has.
pub(super) const AS_GIVEN: &str = "as given";

/// A form of a module.
#[derive(Clone, Debug)]
pub(super) enum Form {
    /// As it is in the file, unless `BF16SCOPE_AUTO` says otherwise.
    Plain,
    /// As it is in the file.
    AsGiven,
    /// Lowered by a policy, which is called so.
    Lowered(String, Box<Policy>),
}

/// A program to compile, and what to call it.
#[derive(Debug)]
pub(super) struct Subject {
    /// The model's precision, [`AS_GIVEN`], or a policy.
    pub(super) label: String,
    /// The same in a sentence.
    pub(super) name: String,
    /// The program, serialized and verified.
    pub(super) bytes: Vec<u8>,
    /// Whether it takes or gives other dtypes than the first subject.
    pub(super) changes_interface: bool,
}

/// What to compile.
#[derive(Debug)]
pub(super) struct Programs {
    pub(super) subjects: Vec<Subject>,
    /// Examples in a batch, which only a model says.
    pub(super) batch: Option<u32>,
    /// What a second does some of.
    pub(super) unit: &'static str,
    /// How a model's programs are tuned.
    pub(super) tuning: Option<Tuning>,
    /// What a model's variables are stored in.
    pub(super) variables: Option<Storage>,
    /// How they lie over cores.
    pub(super) placement: Placement,
    /// What a model's replicas are asked to sum gradients in.
    pub(super) sums: Option<DType>,
}

impl Form {
    /// What it is called in a table.
    pub(super) fn label(&self) -> &str {
        match self {
            Form::Plain | Form::AsGiven => AS_GIVEN,
            Form::Lowered(name, _) => name,
        }
    }

    fn name(&self) -> String {
        match self {
            Form::Plain | Form::AsGiven => "the module as given".to_string(),
            Form::Lowered(name, _) => format!("policy {name}"),
        }
    }

    /// A module in this form.
    pub(super) fn of(&self, module: Module, path: &Path) -> anyhow::Result<Module> {
        match self {
            Form::Plain => lower_if_asked(module, path),
            Form::AsGiven => Ok(module),
            Form::Lowered(_, policy) => Ok(lowered(&module, policy, path)?.0),
        }
    }
}

fn lowered(module: &Module, policy: &Policy, path: &Path) -> anyhow::Result<(Module, LoweringReport)> {
    amp::run(module, policy).with_context(|| format!("{} cannot be lowered", path.display()))
}

impl CompareArgs {
    /// Whether anything is lowered or put side by side.
    pub(super) fn is_asked(&self) -> bool {
        self.compare || !self.policy.is_empty()
    }

    /// Whether a model may be compiled with these.
    ///
    /// # Errors
    /// A policy, which is for modules.
    pub(super) fn check_model(&self, path: &Path) -> anyhow::Result<()> {
        let Some(policy) = self.policy.first() else { return Ok(()) };
        let model = again::word(path);
        bail!(
            "--policy {policy} lowers a module, and {} is a model, whose precision is --precision\nhelp: leave --policy out, \
             or lower its f32 program: `bf16scope emit {model} --precision f32 -o step.pb`, then give step.pb",
            path.display()
        );
    }

    /// The forms that are asked for, before it is known which of them differ.
    fn asked(&self) -> anyhow::Result<Vec<Form>> {
        if !self.is_asked() {
            return Ok(vec![Form::Plain]);
        }
        let is_several = self.policy.len() > 1 || self.policy.iter().any(|name| name == ALL);
        ensure!(
            self.compare || !is_several,
            "several policies make several programs\nhelp: add --compare, which puts them side by side, or name one policy"
        );
        if policy::auto()?.is_some() {
            let flag = if self.policy.is_empty() { "--compare" } else { "--policy" };
            tracing::warn!("{AUTO} is set, and says nothing here: {flag} says what is lowered");
        }
        let mut forms = if self.compare { vec![Form::AsGiven] } else { Vec::new() };
        let names: Vec<&str> = match self.policy.is_empty() {
            true => vec!["default"],
            false => self.policy.iter().map(String::as_str).collect(),
        };
        for name in names {
            let named = match name {
                ALL => all()?,
                name => vec![(name.to_string(), policy::read(name)?)],
            };
            forms.extend(named.into_iter().map(|(name, policy)| Form::Lowered(name, Box::new(policy))));
        }
        Ok(forms)
    }

    /// A module in each form that is asked for. What is the same program as one before it is left out, and said to be.
    ///
    /// # Errors
    /// A policy that cannot be read or changes nothing; a module that the compiler has optimized.
    pub(super) fn forms(&self, module: Module, path: &Path) -> anyhow::Result<Vec<(Form, Subject)>> {
        let asked = self.asked()?;
        if let [form @ Form::Plain] = asked.as_slice() {
            let module = form.of(module, path)?;
            return Ok(vec![(form.clone(), subject(form, &module, &module)?)]);
        }
        let shown = path.display();
        ensure!(
            !module.is_scheduled,
            "{shown} is what a compiler has made (is_scheduled=true), and lowering comes before compiling\nhelp: give the \
             module before optimization"
        );
        let mut forms: Vec<(Form, Subject)> = Vec::new();
        let mut idle = Vec::new();
        for form in asked {
            let Form::Lowered(name, policy) = &form else {
                forms.push((form.clone(), subject(&form, &module, &module)?));
                continue;
            };
            let (lowered, report) = lowered(&module, policy, path)?;
            if lowered == module || changes_nothing(&report) {
                idle.push((name.clone(), report));
                continue;
            }
            report.notes.iter().for_each(|note| tracing::warn!("{note}"));
            let subject = subject(&form, &module, &lowered)?;
            match forms.iter().find(|(_, other)| other.bytes == subject.bytes) {
                Some((other, _)) => tracing::warn!("policy {name} gives the same program as {}", other.name()),
                None => forms.push((form, subject)),
            }
        }
        if !forms.iter().any(|(form, _)| matches!(form, Form::Lowered(..))) {
            bail!(nothing_to_lower(path, &idle));
        }
        for (name, _) in &idle {
            tracing::warn!("policy {name} changes nothing in {shown}, and is left out");
        }
        Ok(forms)
    }
}

/// Stands for every preset that [`all`] gives.
const ALL: &str = "all";

/// The presets that lower to bf16 and leave the types of parameters and results, so that what calls the program need not
/// change; of those that are the same policy, one.
fn all() -> anyhow::Result<Vec<(String, Policy)>> {
    let mut all: Vec<(String, Policy)> = Vec::new();
    for name in presets::NAMES {
        let policy = Policy::preset(name)?;
        let keeps_types = (policy.parameters, policy.results) == (Boundary::Keep, Boundary::Keep);
        let is_one = keeps_types && policy.dtype == LowDType::Bf16 && policy.reach != Reach::None;
        if is_one && !all.iter().any(|(_, other)| *other == policy) {
            all.push((name.to_string(), policy));
        }
    }
    Ok(all)
}

fn changes_nothing(report: &LoweringReport) -> bool {
    report.decisions.iter().all(|decision| decision.old == decision.new)
}

/// Why there is nothing to put beside a module.
fn nothing_to_lower(path: &Path, idle: &[(String, LoweringReport)]) -> String {
    let shown = path.display();
    let (name, report) = match idle {
        [(name, report), ..] => (name.as_str(), report),
        [] => return format!("{shown}: no policy is named"),
    };
    let n = report.totals.values().map(|total| total.lowered + total.kept).sum::<usize>();
    if report.decisions.is_empty() {
        return format!(
            "{shown} has nothing in f32, so there is nothing to lower, and nothing to compare with\nhelp: compile it as it \
             is, without --compare and --policy; the f32 module that it came from can be compared"
        );
    }
    if n == 0 {
        return format!(
            "{shown} has no op that a policy lowers, so there is nothing to compare with\nhelp: compile it as it is, without \
             --compare and --policy"
        );
    }
    let those = if idle.len() > 1 { "the policies named".to_string() } else { format!("policy {name}") };
    let leave = if idle.len() > 1 { "leave" } else { "leaves" };
    format!(
        "{shown}: {those} {leave} all of its {n} instructions with f32 as they are, so there is nothing to compare\nhelp: \
         `bf16scope lower {} --policy {name} --list -o lowered.txt` says why, instruction by instruction",
        again::word(path)
    )
}

fn subject(form: &Form, given: &Module, module: &Module) -> anyhow::Result<Subject> {
    let doors = |module: &Module| {
        let entry = module.entry();
        let parameters = entry.parameters().into_iter().map(|id| entry.instr(id).shape.clone());
        parameters.chain([entry.instr(entry.root).shape.clone()]).collect::<Vec<_>>()
    };
    Ok(Subject {
        label: form.label().to_string(),
        name: form.name(),
        bytes: encode::to_bytes(module)?,
        changes_interface: doors(given) != doors(module),
    })
}

impl Programs {
    /// What is made of a module.
    ///
    /// # Errors
    /// As [`CompareArgs::forms`].
    pub(super) fn of_module(module: Module, path: &Path, compare: &CompareArgs) -> anyhow::Result<Programs> {
        // Lowering leaves what is said of devices as it is.
        let placement = several::placement(&module, path)?;
        let subjects = compare.forms(module, path)?.into_iter().map(|(_, subject)| subject).collect();
        Ok(Programs { subjects, batch: None, unit: "runs", tuning: None, variables: None, placement, sums: None })
    }

    /// What is made of a model, for a target.
    ///
    /// # Errors
    /// A file that is no model; a policy.
    pub(super) fn of_model(choice: &Choice, target: &Target, compare: &CompareArgs) -> anyhow::Result<Programs> {
        compare.check_model(&choice.model)?;
        let model = choice.subject()?;
        let precisions = match compare.compare {
            true => vec![Precision::F32, Precision::Bf16],
            false => vec![choice.precision()],
        };
        let mut placement = Placement::default();
        let subject = |precision: Precision| -> anyhow::Result<Subject> {
            let module = model.build(precision, target)?.module;
            placement = Placement::of(&module)?;
            let bytes = encode::to_bytes(&module)?;
            let label = precision.to_string();
            // Who calls a model's program is bf16scope, which casts what it feeds.
            Ok(Subject { name: label.clone(), label, bytes, changes_interface: false })
        };
        let subjects = precisions.into_iter().map(subject).collect::<anyhow::Result<Vec<Subject>>>()?;
        Ok(Programs {
            subjects,
            batch: Some(model.batch()),
            unit: model.unit(),
            tuning: Some(model.tuning(target)),
            variables: Some(model.variables()),
            placement,
            sums: Some(model.experiment.mesh.sum.dtype()),
        })
    }
}

/// The verdict on what was compared.
#[derive(Debug, Serialize)]
pub(super) struct Judged {
    /// Which to choose, by its label; `null` if none fits.
    choice: Option<String>,
    pub(super) sentences: Vec<String>,
}

/// The verdict, with where to look for what no figure is about; none of a single program. `labels` are those of the
/// candidates.
pub(super) fn judge(candidates: &[Candidate], labels: &[&str], choice: &Choice) -> Option<Judged> {
    let second = labels.get(1)?;
    let Verdict { choice: chosen, mut sentences } = verdict(candidates);
    let file = again::word(&choice.model);
    if chosen.is_some() {
        let check = if choice.is_module() {
            let policy = chosen.filter(|at| *at > 0).map_or(second, |at| &labels[at]);
            let policy = again::word(Path::new(policy));
            format!("`bf16scope audit {file} --random 1 --policy {policy}` compares the results with f32's")
        } else {
            format!("train in both, or audit the f32 program: `bf16scope emit {file} --precision f32 -o step.pb`")
        };
        sentences.push(format!("Accuracy was not measured: {check}."));
    }
    Some(Judged { choice: chosen.map(|at| labels[at].to_string()), sentences })
}
