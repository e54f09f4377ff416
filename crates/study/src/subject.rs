//! Programs to compile, and their forms: a model in one precision or several, a module unchanged or lowered by
//! policies. Every program of a question is made here or in [`super::model`].

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

/// The label of an unchanged module, whose precision is its own.
pub const AS_GIVEN: &str = "as given";

/// A form of a module.
#[derive(Clone, Debug)]
pub struct Form {
    /// Its label in a table: [`AS_GIVEN`], or a policy's name.
    pub label: String,
    /// The policy that lowers it; `None`: unchanged from its file.
    pub policy: Option<Policy>,
    /// The cause if it is lowered outside of the question, such as an environment variable; for a warning.
    pub by: Option<&'static str>,
}

impl Form {
    /// Unchanged from its file.
    pub fn as_given() -> Form {
        Form { label: AS_GIVEN.to_string(), policy: None, by: None }
    }

    /// Lowered by a policy, with its label.
    pub fn lowered(name: impl Into<String>, policy: Policy) -> Form {
        Form { label: name.into(), policy: Some(policy), by: None }
    }

    /// Lowered everywhere, because `by` says so.
    pub fn lowered_by(by: &'static str, policy: Policy) -> Form {
        Form { label: AS_GIVEN.to_string(), policy: Some(policy), by: Some(by) }
    }

    /// Every preset that lowers to bf16 and keeps the types of parameters and results, so that the calling program need
    /// not change; without duplicates.
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

    /// Whether the question requests a policy.
    pub(super) fn is_asked(&self) -> bool {
        self.asked().is_some()
    }

    /// The policy that the question requests.
    fn asked(&self) -> Option<&Policy> {
        self.policy.as_ref().filter(|_| self.by.is_none())
    }

    /// Brings a module into this form.
    ///
    /// # Errors
    /// The module cannot be lowered.
    pub fn apply(&self, module: Module, path: &Path) -> Result<Module, StudyError> {
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

/// A module lowered by a policy, and every decision on it.
pub(super) fn lowered(module: &Module, policy: &Policy, path: &Path) -> Result<(Module, LoweringReport), StudyError> {
    amp::run(module, policy).map_err(|source| StudyError::lower(path, source))
}

/// A program to compile, and its label.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subject {
    /// The model's precision, [`AS_GIVEN`], or a policy.
    pub label: String,
    /// The same in a sentence.
    pub name: String,
    /// The program, serialized and verified.
    pub bytes: Vec<u8>,
    /// Whether its parameters or results have other dtypes than the first subject's.
    pub changes_interface: bool,
}

/// Programs side by side.
#[derive(Clone, Debug)]
pub struct Programs {
    /// The programs.
    pub subjects: Vec<Subject>,
    /// Examples per batch, known only for a model.
    pub batch: Option<u32>,
    /// The unit of throughput per second.
    pub unit: &'static str,
    /// The tuning of a model's programs.
    pub tuning: Option<Tuning>,
    /// The storage of a model's variables.
    pub variables: Option<Storage>,
    /// Their placement on cores.
    pub placement: Placement,
    /// Whether a single device, also a CPU, can run them.
    pub runs_alone: bool,
    /// The dtype in which a model's replicas should sum gradients.
    pub sums: Option<DType>,
}

/// A module in each requested form. A form that equals an earlier one is left out, with a warning.
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
        let module = form.apply(module, path)?;
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

/// Why no form of a module differs from it.
fn nothing_to_lower(path: &Path, idle: &[(String, LoweringReport)]) -> StudyError {
    let Some((policy, report)) = idle.first() else { return StudyError::no_policy(path) };
    let n = report.totals.values().map(|total| total.lowered + total.kept).sum::<usize>();
    match n {
        _ if report.decisions.is_empty() => StudyError::nothing_in_f32(path),
        0 => StudyError::nothing_lowered(path),
        n => StudyError::all_kept(path, policy, idle.len(), n),
    }
}

fn subject(form: &Form, unchanged: &Module, module: &Module) -> Result<Subject, StudyError> {
    let doors = |module: &Module| {
        let entry = module.entry();
        let parameters = entry.parameters().into_iter().map(|id| entry.instr(id).shape.clone());
        parameters.chain([entry.instr(entry.root).shape.clone()]).collect::<Vec<_>>()
    };
    Ok(Subject {
        label: form.label.clone(),
        name: form.name(),
        bytes: encode::to_bytes(module).map_err(StudyError::encode)?,
        changes_interface: doors(unchanged) != doors(module),
    })
}

impl Programs {
    /// The programs of a module.
    ///
    /// # Errors
    /// Those of [`forms`].
    pub fn of_module(module: Module, path: &Path, asked: &[Form]) -> Result<Programs, StudyError> {
        // Lowering does not change the devices.
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

    /// The programs of a model, for a target, in each of these precisions.
    ///
    /// # Errors
    /// A program cannot be built.
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
            // bf16scope calls a model's program itself, and casts its inputs.
            subjects.push(Subject { name: label.clone(), label, bytes, changes_interface: false });
        }
        Ok(Programs {
            subjects,
            batch: Some(model.batch),
            unit: model.unit(),
            tuning: Some(model.tuning(target)),
            variables: Some(model.variables),
            placement,
            // An audit uses its f32 program for one device.
            runs_alone: true,
            sums: Some(model.objective.mesh.sum.dtype()),
        })
    }
}

/// A module's placement on cores.
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

/// Refuses a module for several devices, for comparisons of single-device programs.
pub(super) fn refuse_several(module: &Module, path: &Path) -> Result<(), StudyError> {
    match several_devices(module) {
        Some(NotAlone::Devices { wants, by }) => Err(StudyError::several_devices(path, &by, wants)),
        _ => Ok(()),
    }
}
