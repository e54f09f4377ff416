//! What the TPU compiler says of programs side by side, and which to choose: f32 beside bf16, a module beside its lowered
//! forms; or of one alone.

use serde::Serialize;

use super::StudyError;
use super::ask::{Asking, Compiling, Event};
use super::subject::{Programs, Subject};
use bf16scope_hlo::Module;
use bf16scope_hlo::devices::Devices;
use bf16scope_hlo::proto::decode;
use bf16scope_hlo::verify::verify_ids;
use bf16scope_model::graph::Storage;
use bf16scope_passes::tuning::Tuning;
use bf16scope_tpu::explain::explain;
use bf16scope_tpu::verdict::{self, Candidate, Evidence, Verdict, verdict};
use bf16scope_tpu::{Answer, CompileReport, Compiled, Compiler, Links, Target, TpuError, fit};

/// What the compiler said of programs side by side.
#[derive(Debug, Serialize)]
pub struct Comparison {
    /// For what they were compiled.
    pub target: Target,
    /// Examples in a batch, which only a model says.
    pub batch: Option<u32>,
    /// What a model's variables are stored in.
    pub variables: Option<Storage>,
    /// How a model's programs are tuned.
    pub tune: Option<Tuning>,
    /// The compiler.
    pub libtpu: String,
    /// Whether it might keep more precision than the programs say.
    pub excess_precision: bool,
    /// The devices that they are for.
    pub devices: Devices,
    /// How fast their links are, where there are several.
    pub links: Option<Links>,
    /// What it said of each.
    pub reports: Vec<CompiledSubject>,
    /// Which to choose; `None` of a single program.
    pub verdict: Option<Judged>,
}

/// The compiler's answer for one program.
#[derive(Debug, Serialize)]
pub struct CompiledSubject {
    /// The model's precision, [`AS_GIVEN`](super::AS_GIVEN), or a policy.
    #[serde(rename = "precision")]
    pub label: String,
    /// Whether it was compiled before; `compile_seconds` is what it took then.
    pub cached: bool,
    /// The compiler's answer.
    #[serde(flatten)]
    pub outcome: SubjectOutcome,
}

/// What the compiler said.
#[derive(Debug, Serialize)]
#[serde(untagged)]
pub enum SubjectOutcome {
    /// It fits.
    Fits(CompileReport),
    /// It does not.
    DoesNotFit {
        /// By how much.
        out_of_memory: OutOfMemory,
    },
}

/// Bytes, where the compiler says so.
#[derive(Debug, Serialize)]
pub struct OutOfMemory {
    /// Those that are needed.
    pub needed: Option<u64>,
    /// Those that there are.
    pub available: Option<u64>,
    /// The same in a sentence.
    pub message: String,
}

/// The verdict on what was compared.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Judged {
    /// Which to choose, by its label; `null` if none fits.
    pub choice: Option<String>,
    /// The reason.
    pub sentences: Vec<String>,
}

impl SubjectOutcome {
    fn of(answer: Answer, target: &Target) -> Result<SubjectOutcome, TpuError> {
        match answer.report(target) {
            Ok(report) => Ok(SubjectOutcome::Fits(report)),
            Err(error @ TpuError::OutOfMemory { needed, available, .. }) => {
                let message = error.to_string();
                Ok(SubjectOutcome::DoesNotFit { out_of_memory: OutOfMemory { needed, available, message } })
            }
            Err(error) => Err(error),
        }
    }

    /// The figures, if it fits.
    pub fn report(&self) -> Option<&CompileReport> {
        match self {
            SubjectOutcome::Fits(report) => Some(report),
            SubjectOutcome::DoesNotFit { .. } => None,
        }
    }

    fn for_verdict(&self) -> verdict::Outcome {
        match self {
            SubjectOutcome::Fits(report) => verdict::Outcome::Fits(report.clone()),
            SubjectOutcome::DoesNotFit { out_of_memory: OutOfMemory { needed, available, .. } } => {
                verdict::Outcome::DoesNotFit { needed: *needed, available: *available }
            }
        }
    }

    fn for_event(&self) -> fit::Outcome {
        match self {
            SubjectOutcome::Fits(report) => fit::Outcome::Fits(report.clone()),
            SubjectOutcome::DoesNotFit { out_of_memory: OutOfMemory { needed, available, .. } } => {
                fit::Outcome::OutOfMemory { needed: *needed, available: *available }
            }
        }
    }
}

/// The verdict on candidates that are labelled so; none of a single program.
pub fn judge(candidates: &[Candidate], labels: &[&str]) -> Option<Judged> {
    labels.get(1)?;
    let Verdict { choice, sentences } = verdict(candidates);
    Some(Judged { choice: choice.map(|at| labels[at].to_string()), sentences })
}

/// Compiles each program, and says which to choose.
///
/// # Errors
/// A program that is refused for another reason than memory; a compiler that cannot be had.
pub fn compare(
    programs: &Programs,
    target: &Target,
    asking: &Asking,
    on: &mut dyn FnMut(&Event<'_>),
) -> Result<Comparison, StudyError> {
    let devices = programs.placement.devices;
    let compiler = asking.compiler(programs.placement.clone());
    let is_compared = programs.subjects.len() > 1;
    let (mut reports, mut candidates) = (Vec::new(), Vec::new());
    for (nth, Subject { label, name, bytes, changes_interface }) in programs.subjects.iter().enumerate() {
        let compiling = compiling(programs, nth, target);
        on(&Event::Begins(&compiling));
        let _span = tracing::info_span!("compile", precision = %label, target = %target).entered();
        let compiled = compiled(&compiler, target, bytes, programs.batch.unwrap_or(1), is_compared);
        let (Compiled { answer, is_cached }, evidence) =
            compiled.map_err(|error| of_subject(error, name, is_compared))?;
        let outcome = SubjectOutcome::of(answer, target)?;
        on(&Event::Ends { compiling: &compiling, is_cached, outcome: &outcome.for_event() });
        candidates.push(Candidate {
            name: name.clone(),
            outcome: outcome.for_verdict(),
            evidence,
            changes_interface: *changes_interface,
        });
        reports.push(CompiledSubject { label: label.clone(), cached: is_cached, outcome });
    }
    let labels: Vec<&str> = reports.iter().map(|report| report.label.as_str()).collect();
    Ok(Comparison {
        target: target.clone(),
        batch: programs.batch,
        variables: programs.variables,
        tune: programs.tuning.clone(),
        libtpu: compiler.libtpu()?,
        excess_precision: asking.excess_precision,
        devices,
        links: Links::of(target).filter(|_| !devices.is_one()),
        verdict: judge(&candidates, &labels),
        reports,
    })
}

pub(super) fn compiling(programs: &Programs, nth: usize, target: &Target) -> Compiling {
    Compiling {
        target: target.clone(),
        what: programs.subjects[nth].label.clone(),
        batch: programs.batch,
        n_more: (programs.subjects.len() - nth - 1) as u32,
    }
}

/// Which of several programs an error is of.
pub(super) fn of_subject(error: StudyError, name: &str, is_compared: bool) -> StudyError {
    match is_compared {
        true => StudyError::Subject { name: name.to_string(), source: Box::new(error) },
        false => error,
    }
}

/// What the compiler says of a program, and, if it `is_compared`, what its optimized form shows.
fn compiled(
    compiler: &Compiler,
    target: &Target,
    program: &[u8],
    batch: u32,
    is_compared: bool,
) -> Result<(Compiled, Option<Evidence>), StudyError> {
    if !is_compared {
        return Ok((compiler.compile(target, program, batch as usize)?, None));
    }
    let is_cached = compiler.remembers(target, program)?;
    match compiler.compile_and_read(target, program, batch as usize) {
        Ok((compiled, optimized)) => Ok((compiled, evidence(&optimized))),
        // That it does not fit is an answer too, without an optimized program.
        Err(TpuError::OutOfMemory { needed, available, text, .. }) => {
            Ok((Compiled { answer: Answer::OutOfMemory { needed, available, text }, is_cached }, None))
        }
        Err(error) => Err(error.into()),
    }
}

/// What an optimized program shows; `None` if it cannot be explained, for the figures stand without it.
fn evidence(optimized: &[u8]) -> Option<Evidence> {
    let explained = || -> Result<Evidence, StudyError> { Ok(Evidence::of(&explain(&read_back(optimized)?, None)?)) };
    explained().inspect_err(|error| tracing::debug!("the optimized program is not explained: {}", error.chain())).ok()
}

/// What the compiler made of a program.
pub(super) fn read_back(optimized: &[u8]) -> Result<Module, StudyError> {
    let optimized = decode::from_bytes(optimized).map_err(StudyError::Optimized)?;
    verify_ids(&optimized).map_err(StudyError::OptimizedBroken)?;
    Ok(optimized)
}
