//! Where the memory and the time of compiled programs go, by layer and by the user's source line.

use std::path::PathBuf;

use serde::Serialize;

use super::ask::{Asking, Event};
use super::compare::{Judged, compiling, judge, of_subject, read_back, warn_of_wide};
use super::module_file::compiled_already;
use super::subject::{Programs, Subject};
use super::{AS_GIVEN, StudyError};
use bf16scope_hlo::Module;
use bf16scope_hlo::devices::{Devices, devices_of_compiled};
use bf16scope_tpu::explain::backend::BackEnd;
use bf16scope_tpu::explain::{self as explanation, Explanation, Moment, Rates, moments};
use bf16scope_tpu::verdict::{Candidate, Evidence};
use bf16scope_tpu::{CompileOutcome, CompileReport, Target};

/// A question about where memory and time go.
#[derive(Clone, Debug)]
pub struct ExplainQuestion {
    /// The programs to explain.
    pub source: ExplainSource,
    /// The TPU; for a program that is already optimized, it only gives the speed of a core.
    pub target: Target,
    /// If set, also returns the schedule in this many stretches, with this many buffers in each.
    pub stretches: Option<Stretches>,
}

/// The programs to explain.
#[derive(Clone, Debug)]
pub enum ExplainSource {
    /// Programs, to be compiled first.
    Programs(Programs),
    /// A module that the TPU compiler has optimized, with valid ids
    /// ([`verify_ids`](bf16scope_hlo::verify::verify_ids)): nothing is compiled.
    Scheduled {
        /// The module.
        module: Box<Module>,
        /// Its file, for messages.
        path: PathBuf,
    },
}

/// The numbers of stretches of the schedule, and of buffers in each.
pub type Stretches = (usize, usize);

/// A program, compiled and explained.
#[derive(Debug, Serialize)]
pub struct Explained {
    /// The model's precision, [`AS_GIVEN`], or a policy.
    #[serde(rename = "precision")]
    pub label: String,
    /// The devices it runs on: all figures are per device.
    pub devices: Devices,
    /// The compiler's figures; `None` for a module that was already optimized.
    pub report: Option<CompileReport>,
    /// Where memory and time go.
    #[serde(flatten)]
    pub explanation: Explanation,
    /// The schedule in stretches, if requested.
    #[serde(skip)]
    pub moments: Vec<Moment>,
}

/// Programs explained side by side.
#[derive(Debug, Serialize)]
pub struct Explanations {
    /// The target they were compiled for.
    pub target: Target,
    /// Examples per batch, known only for a model.
    pub batch: Option<u32>,
    /// Whether the compiler was allowed to keep more precision than the programs specify; `None` for a module that was
    /// already optimized.
    pub excess_precision: Option<bool>,
    /// The speed of a core.
    pub core: Option<Rates>,
    /// Each program.
    pub programs: Vec<Explained>,
    /// The verdict; `None` for a single program.
    pub verdict: Option<Judged>,
}

/// Compiles each program, parses the optimized program, and explains it.
///
/// # Errors
/// A program that does not fit, because then there is no optimized program, or that is refused; a missing compiler; a
/// module scheduled by another compiler.
pub fn explain(
    question: &ExplainQuestion,
    asking: &Asking,
    on: &mut dyn FnMut(&Event<'_>),
) -> Result<Explanations, StudyError> {
    let ExplainQuestion { source, target, stretches } = question;
    match source {
        ExplainSource::Programs(programs) => compiled(programs, target, *stretches, asking, on),
        ExplainSource::Scheduled { module, .. } if BackEnd::detect(module) == BackEnd::Tpu => {
            let one = explain_one(AS_GIVEN, devices_of_compiled(module), None, module, target, *stretches)?;
            Ok(Explanations {
                target: target.clone(),
                batch: None,
                excess_precision: None,
                core: Rates::for_target(target),
                programs: vec![one],
                verdict: None,
            })
        }
        ExplainSource::Scheduled { module, path } => Err(compiled_already(module, path)),
    }
}

fn compiled(
    programs: &Programs,
    target: &Target,
    stretches: Option<Stretches>,
    asking: &Asking,
    on: &mut dyn FnMut(&Event<'_>),
) -> Result<Explanations, StudyError> {
    let compiler = asking.compiler(programs.placement.clone());
    let is_compared = programs.subjects.len() > 1;
    let (mut explained, mut candidates) = (Vec::new(), Vec::new());
    for (nth, Subject { label, name, bytes, changes_interface }) in programs.subjects.iter().enumerate() {
        let compiling = compiling(programs, nth, target);
        on(&Event::Begins(&compiling));
        let _span = tracing::info_span!("compile", precision = %label, target = %target).entered();
        let read = || -> Result<(bool, CompileReport, Module), StudyError> {
            let (compiled, optimized) =
                compiler.compile_and_read(target, bytes, programs.batch.unwrap_or(1) as usize)?;
            let is_cached = compiled.is_cached;
            Ok((is_cached, compiled.report(target)?, read_back(&optimized)?))
        };
        let (is_cached, report, optimized) = read().map_err(|error| of_subject(error, bytes, name, is_compared))?;
        warn_of_wide(bytes, nth);
        on(&Event::Ends { compiling: &compiling, is_cached, outcome: &CompileOutcome::Fits(report.clone()) });
        let devices = programs.placement.devices;
        let one = explain_one(label, devices, Some(report.clone()), &optimized, target, stretches)?;
        candidates.push(Candidate {
            name: name.clone(),
            outcome: CompileOutcome::Fits(report),
            evidence: Some(Evidence::from_explanation(&one.explanation)),
            changes_interface: *changes_interface,
        });
        explained.push(one);
    }
    let labels: Vec<&str> = explained.iter().map(|one| one.label.as_str()).collect();
    Ok(Explanations {
        target: target.clone(),
        batch: programs.batch,
        excess_precision: Some(asking.excess_precision),
        core: Rates::for_target(target),
        verdict: judge(&candidates, &labels),
        programs: explained,
    })
}

fn explain_one(
    label: &str,
    devices: Devices,
    report: Option<CompileReport>,
    module: &Module,
    target: &Target,
    stretches: Option<Stretches>,
) -> Result<Explained, StudyError> {
    let explanation = explanation::explain(module, Rates::for_target(target).as_ref())?;
    let moments = match stretches {
        Some((n, n_buffers)) => moments(module, n, n_buffers)?,
        None => Vec::new(),
    };
    Ok(Explained { label: label.to_string(), devices, report, explanation, moments })
}
