//! Where the memory and the time of compiled programs go, by layer and by line of the user's.

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

/// Where memory and time go.
#[derive(Clone, Debug)]
pub struct ExplainQuestion {
    /// What is explained.
    pub source: ExplainSource,
    /// For which TPU; of a program that its compiler made, it only says how fast a core is.
    pub target: Target,
    /// In how many stretches the schedule is wanted too, and how many buffers of each.
    pub stretches: Option<Stretches>,
}

/// What is explained.
#[derive(Clone, Debug)]
pub enum ExplainSource {
    /// Programs, which are compiled first.
    Programs(Programs),
    /// A module that the TPU compiler made, whose ids hold ([`verify_ids`](bf16scope_hlo::verify::verify_ids)): nothing is
    /// compiled.
    Scheduled {
        /// The module.
        module: Box<Module>,
        /// Its file, for messages.
        path: PathBuf,
    },
}

/// Stretches of the schedule, and buffers of each.
pub type Stretches = (usize, usize);

/// A program, compiled and explained.
#[derive(Debug, Serialize)]
pub struct Explained {
    /// The model's precision, [`AS_GIVEN`], or a policy.
    #[serde(rename = "precision")]
    pub label: String,
    /// The devices that it is for: all figures are of one.
    pub devices: Devices,
    /// The compiler's figures; a module that came optimized has none.
    pub report: Option<CompileReport>,
    /// Where memory and time go.
    #[serde(flatten)]
    pub explanation: Explanation,
    /// The schedule in stretches, where they are asked for.
    #[serde(skip)]
    pub moments: Vec<Moment>,
}

/// Programs explained side by side.
#[derive(Debug, Serialize)]
pub struct Explanations {
    /// For what they were compiled.
    pub target: Target,
    /// Examples in a batch, which only a model says.
    pub batch: Option<u32>,
    /// Whether the compiler might keep more precision than the programs say; `None` of a module that came optimized.
    pub excess_precision: Option<bool>,
    /// How fast a core is.
    pub core: Option<Rates>,
    /// Each program.
    pub programs: Vec<Explained>,
    /// Which to choose; `None` of a single program.
    pub verdict: Option<Judged>,
}

/// Compiles each program, reads back what the compiler made of it, and explains that.
///
/// # Errors
/// A program that does not fit, for then there is no optimized program to explain, or that is refused; a compiler that cannot
/// be had; a scheduled module of another compiler's.
pub fn explain(
    question: &ExplainQuestion,
    asking: &Asking,
    on: &mut dyn FnMut(&Event<'_>),
) -> Result<Explanations, StudyError> {
    let ExplainQuestion { source, target, stretches } = question;
    match source {
        ExplainSource::Programs(programs) => compiled(programs, target, *stretches, asking, on),
        ExplainSource::Scheduled { module, .. } if BackEnd::of(module) == BackEnd::Tpu => {
            let one = explain_one(AS_GIVEN, devices_of_compiled(module), None, module, target, *stretches)?;
            Ok(Explanations {
                target: target.clone(),
                batch: None,
                excess_precision: None,
                core: Rates::of(target),
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
            evidence: Some(Evidence::of(&one.explanation)),
            changes_interface: *changes_interface,
        });
        explained.push(one);
    }
    let labels: Vec<&str> = explained.iter().map(|one| one.label.as_str()).collect();
    Ok(Explanations {
        target: target.clone(),
        batch: programs.batch,
        excess_precision: Some(asking.excess_precision),
        core: Rates::of(target),
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
    let explanation = explanation::explain(module, Rates::of(target).as_ref())?;
    let moments = match stretches {
        Some((n, n_buffers)) => moments(module, n, n_buffers)?,
        None => Vec::new(),
    };
    Ok(Explained { label: label.to_string(), devices, report, explanation, moments })
}
