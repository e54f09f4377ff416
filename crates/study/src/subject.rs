//! Programs to compile, and their forms: a model in one precision or several, a module as it is given or lowered by
//! policies. Every program that a question is about is made here or in [`super::model`].

use std::path::Path;

use super::module_file::check_uncompiled;
use super::{ModelSubject, StudyError};
use bf16scope_hlo::alone::{NotAlone, collective_of_all, runs_alone, several_devices};
use bf16scope_hlo::devices::Placement;
use bf16scope_hlo::proto::encode;
use bf16scope_hlo::{DType, Module};
use bf16scope_model::graph::{Precision, Storage};
use bf16scope_passes::amp::{self, Boundary, LowDType, LoweringReport, Policy, Reach, presets};
use bf16scope_passes::tuning::Tuning;
use bf16scope_tpu::Target;

/// A module has whatever precision it has.
pub const AS_GIVEN: &str = "as given";

/// A form of a module.
#[derive(Clone, Debug)]
pub struct Form {
    /// What it is called in a table: [`AS_GIVEN`], or a policy's name.
    pub label: String,
    /// By which policy it is lowered; `None`: it is as in its file.
    pub policy: Option<Policy>,
    /// What lowers it without a question about forms, such as a variable, which a warning then names.
    pub by: Option<&'static str>,
}

impl Form {
    /// As it is in its file.
    pub fn as_given() -> Form {
        Form { label: AS_GIVEN.to_string(), policy: None, by: None }
    }

    /// Lowered by a policy, which is called so.
    pub fn lowered(name: impl Into<String>, policy: Policy) -> Form {
        Form { label: name.into(), policy: Some(policy), by: None }
    }

    /// Lowered wherever it is used, because `by` says so.
    pub fn lowered_by(by: &'static str, policy: Policy) -> Form {
        Form { label: AS_GIVEN.to_string(), policy: Some(policy), by: Some(by) }
    }

    /// Every preset that lowers to bf16 and leaves the types of parameters and results, so that what calls the program need
    /// not change; of those that are the same policy, one.
    pub fn all() -> Vec<Form> {
        let mut all: Vec<(&str, Policy)> = Vec::new();
        for name in presets::NAMES {
            let Ok(policy) = Policy::preset(name) else { continue };
            let keeps_types = (policy.parameters, policy.results) == (Boundary::Keep, Boundary::Keep);
            let is_one = keeps_types && policy.dtype == LowDType::Bf16 && policy.reach != Reach::None;
            if is_one && !all.iter().any(|(_, other)| *other == policy) {
                all.push((name, policy));
            }
        }
        all.into_iter().map(|(name, policy)| Form::lowered(name, policy)).collect()
    }

    /// The same in a sentence.
    fn name(&self) -> String {
        match (&self.policy, self.by) {
            (Some(_), None) => format!("policy {}", self.label),
            (Some(_), Some(_)) | (None, _) => "the module as given".to_string(),
        }
    }

    /// Whether a question asks for a policy.
    pub(super) fn is_asked(&self) -> bool {
        self.asked().is_some()
    }

    /// The policy that a question asks for.
    fn asked(&self) -> Option<&Policy> {
        self.policy.as_ref().filter(|_| self.by.is_none())
    }

    /// A module in this form.
    ///
    /// # Errors
    /// A module that cannot be lowered.
    pub fn of(&self, module: Module, path: &Path) -> Result<Module, StudyError> {
        let Some(policy) = &self.policy else { return Ok(module) };
        let (lowered, report) = lowered(&module, policy, path)?;
        if let Some(by) = self.by {
            let (n, dtype) = (report.n_lowered(), policy.dtype.dtype());
            tracing::warn!("{by} is set: {n} instructions of {} compute in {dtype} now", path.display());
            report.notes.iter().for_each(|note| tracing::warn!("{note}"));
        }
        Ok(lowered)
    }
}

/// A module by a policy, and every decision on it.
pub(super) fn lowered(module: &Module, policy: &Policy, path: &Path) -> Result<(Module, LoweringReport), StudyError> {
    amp::run(module, policy).map_err(|source| StudyError::lower(path, source))
}

/// A program to compile, and what to call it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subject {
    /// The model's precision, [`AS_GIVEN`], or a policy.
    pub label: String,
    /// The same in a sentence.
    pub name: String,
    /// The program, serialized and verified.
    pub bytes: Vec<u8>,
    /// Whether it takes or gives other dtypes than the first subject.
    pub changes_interface: bool,
}

/// Programs side by side.
#[derive(Clone, Debug)]
pub struct Programs {
    /// The programs.
    pub subjects: Vec<Subject>,
    /// Examples in a batch, which only a model says.
    pub batch: Option<u32>,
    /// What a second does some of.
    pub unit: &'static str,
    /// How a model's programs are tuned.
    pub tuning: Option<Tuning>,
    /// What a model's variables are stored in.
    pub variables: Option<Storage>,
    /// How they lie over cores.
    pub placement: Placement,
    /// Whether one device can run them by itself, on a CPU too.
    pub runs_alone: bool,
    /// What a model's replicas are asked to sum gradients in.
    pub sums: Option<DType>,
}

/// A module in each form that is asked for. What is the same program as one before it is left out, and said to be.
///
/// # Errors
/// A policy that changes nothing; a module that the compiler has optimized.
pub fn forms(module: Module, path: &Path, asked: &[Form]) -> Result<Vec<(Form, Subject)>, StudyError> {
    if asked.len() < 2 {
        check_uncompiled(&module, path)?;
    }
    if let [form] = asked
        && form.asked().is_none()
    {
        let module = form.of(module, path)?;
        return Ok(vec![(form.clone(), subject(form, &module, &module)?)]);
    }
    if module.is_scheduled {
        return Err(StudyError::scheduled(path));
    }
    let mut forms: Vec<(Form, Subject)> = Vec::new();
    let mut idle = Vec::new();
    for form in asked {
        let Some(policy) = form.asked() else {
            forms.push((form.clone(), subject(form, &module, &module)?));
            continue;
        };
        let (lowered, report) = lowered(&module, policy, path)?;
        if lowered == module || changes_nothing(&report) {
            idle.push((form.label.clone(), report));
            continue;
        }
        report.notes.iter().for_each(|note| tracing::warn!("{note}"));
        let subject = subject(form, &module, &lowered)?;
        match forms.iter().find(|(_, other)| other.bytes == subject.bytes) {
            Some((other, _)) => tracing::warn!("policy {} gives the same program as {}", form.label, other.name()),
            None => forms.push((form.clone(), subject)),
        }
    }
    if !forms.iter().any(|(form, _)| form.asked().is_some()) {
        return Err(nothing_to_lower(path, &idle));
    }
    for (name, _) in &idle {
        tracing::warn!("policy {name} changes nothing in {}, and is left out", path.display());
    }
    Ok(forms)
}

fn changes_nothing(report: &LoweringReport) -> bool {
    report.decisions.iter().all(|decision| decision.old == decision.new && !decision.is_lowered)
}

/// Why there is nothing to put beside a module.
fn nothing_to_lower(path: &Path, idle: &[(String, LoweringReport)]) -> StudyError {
    let Some((policy, report)) = idle.first() else { return StudyError::no_policy(path) };
    let n = report.totals.values().map(|total| total.lowered + total.kept).sum::<usize>();
    match n {
        _ if report.decisions.is_empty() => StudyError::nothing_in_f32(path),
        0 => StudyError::nothing_lowered(path),
        n => StudyError::all_kept(path, policy, idle.len(), n),
    }
}

fn subject(form: &Form, given: &Module, module: &Module) -> Result<Subject, StudyError> {
    let doors = |module: &Module| {
        let entry = module.entry();
        let parameters = entry.parameters().into_iter().map(|id| entry.instr(id).shape.clone());
        parameters.chain([entry.instr(entry.root).shape.clone()]).collect::<Vec<_>>()
    };
    Ok(Subject {
        label: form.label.clone(),
        name: form.name(),
        bytes: encode::to_bytes(module).map_err(StudyError::encode)?,
        changes_interface: doors(given) != doors(module),
    })
}

impl Programs {
    /// What is made of a module.
    ///
    /// # Errors
    /// As [`forms`].
    pub fn of_module(module: Module, path: &Path, asked: &[Form]) -> Result<Programs, StudyError> {
        // Lowering leaves what is said of devices as it is.
        let placement = placement(&module, path)?;
        let runs_alone = runs_alone(&module).is_ok();
        let subjects = forms(module, path, asked)?.into_iter().map(|(_, subject)| subject).collect();
        Ok(Programs {
            subjects,
            batch: None,
            unit: "runs",
            tuning: None,
            variables: None,
            placement,
            runs_alone,
            sums: None,
        })
    }

    /// What is made of a model, for a target, in each of these precisions.
    ///
    /// # Errors
    /// A program that cannot be built.
    pub fn of_model(
        model: &ModelSubject<'_>,
        precisions: &[Precision],
        target: &Target,
    ) -> Result<Programs, StudyError> {
        let mut placement = Placement::default();
        let mut subjects = Vec::new();
        for precision in precisions {
            let module = model.build(*precision, target)?.module;
            placement = self::placement(&module, Path::new(&model.name))?;
            let label = precision.to_string();
            let bytes = encode::to_bytes(&module).map_err(StudyError::encode)?;
            // Who calls a model's program is bf16scope, which casts what it feeds.
            subjects.push(Subject { name: label.clone(), label, bytes, changes_interface: false });
        }
        Ok(Programs {
            subjects,
            batch: Some(model.batch),
            unit: model.unit(),
            tuning: Some(model.tuning(target)),
            variables: Some(model.variables),
            placement,
            // Its f32 program of one device is what is audited.
            runs_alone: true,
            sums: Some(model.objective.mesh.sum.dtype()),
        })
    }
}

/// How a module lies over cores.
pub(super) fn placement(module: &Module, path: &Path) -> Result<Placement, StudyError> {
    let placement = Placement::from_module(module).map_err(|source| StudyError::placement(path, source))?;
    if placement.devices.is_one()
        && let Some(collective) = collective_of_all(module)
    {
        tracing::warn!(
            "{}: {collective} is over all devices, and nothing says how many there are: it is compiled for one core\nhelp: \
             write replica_count=N in the first line of the module's text",
            path.display()
        );
    }
    Ok(placement)
}

/// Refuses a module for several devices, where one program stands for others.
pub(super) fn refuse_several(module: &Module, path: &Path) -> Result<(), StudyError> {
    match several_devices(module) {
        Some(NotAlone::Devices { wants, by }) => Err(StudyError::several_devices(path, &by, wants)),
        _ => Ok(()),
    }
}
