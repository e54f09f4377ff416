//! Compiles programs side by side, such as f32 beside bf16 or a module beside its lowered forms, and chooses one; or
//! compiles a single program.

use serde::{Serialize, Serializer};

use super::StudyError;
use super::ask::{Asking, Compiling, Event};
use super::subject::{Programs, Subject};
use super::wide;
use bf16scope_hlo::Module;
use bf16scope_hlo::devices::Devices;
use bf16scope_hlo::proto::decode;
use bf16scope_hlo::verify::verify_ids;
use bf16scope_model::graph::Storage;
use bf16scope_passes::tuning::Tuning;
use bf16scope_tpu::explain::explain;
use bf16scope_tpu::verdict::{Candidate, Evidence, Verdict, verdict};
use bf16scope_tpu::{CompileOutcome, CompileReport, Compiled, Compiler, Links, Need, Target, TpuError};

/// The compiler's figures for programs side by side.
#[derive(Debug, Serialize)]
pub struct Comparison {
    /// The target they were compiled for.
    pub target: Target,
    /// Examples per batch, known only for a model.
    pub batch: Option<u32>,
    /// The storage of a model's variables.
    pub variables: Option<Storage>,
    /// The tuning of a model's programs.
    pub tune: Option<Tuning>,
    /// The compiler.
    pub libtpu: String,
    /// Whether the compiler was allowed to keep more precision than the programs specify.
    pub excess_precision: bool,
    /// The devices they run on.
    pub devices: Devices,
    /// The speed of the links, if there are several devices.
    pub links: Option<Links>,
    /// The figures of each program.
    pub reports: Vec<CompiledSubject>,
    /// The verdict; `None` for a single program.
    pub verdict: Option<Judged>,
}

/// The compiler's figures for one program. Serializes as the figures, or as an out-of-memory error.
#[derive(Clone, Debug)]
pub struct CompiledSubject {
    /// The model's precision, [`AS_GIVEN`](super::AS_GIVEN), or a policy.
    pub label: String,
    /// The target it was compiled for.
    pub target: Target,
    /// Whether the outcome was cached; `compile_seconds` is then the time of the original compile.
    pub cached: bool,
    /// The outcome.
    pub outcome: CompileOutcome,
}

impl CompiledSubject {
    /// Why there are no figures, in a sentence; `None` if the program fits.
    pub fn problem(&self) -> Option<String> {
        self.outcome.clone().into_report(&self.target).err().map(|error| error.to_string())
    }
}

impl Serialize for CompiledSubject {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Printed<'r> {
            precision: &'r str,
            cached: bool,
            #[serde(flatten)]
            report: Option<&'r CompileReport>,
            #[serde(skip_serializing_if = "Option::is_none")]
            out_of_memory: Option<OutOfMemory>,
            #[serde(skip_serializing_if = "Option::is_none")]
            failed: Option<String>,
        }
        /// The required bytes, if the compiler reports them, and its sentence.
        #[derive(Serialize)]
        struct OutOfMemory {
            needed: Option<u64>,
            available: Option<u64>,
            message: String,
        }
        let mut printed =
            Printed { precision: &self.label, cached: self.cached, report: None, out_of_memory: None, failed: None };
        let message = self.problem().unwrap_or_default();
        match &self.outcome {
            CompileOutcome::Fits(report) => printed.report = Some(report),
            CompileOutcome::OutOfMemory(Need { needed, available, .. }) => {
                printed.out_of_memory = Some(OutOfMemory { needed: *needed, available: *available, message });
            }
            CompileOutcome::Failed(_) => printed.failed = Some(message),
        }
        printed.serialize(serializer)
    }
}

/// The verdict of a comparison.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Judged {
    /// The label of the chosen program; `null` if none fits.
    pub choice: Option<String>,
    /// The reason.
    pub sentences: Vec<String>,
}

/// The verdict on candidates with these labels; `None` for a single program.
pub fn judge(candidates: &[Candidate], labels: &[&str]) -> Option<Judged> {
    labels.get(1)?;
    let Verdict { choice, sentences } = verdict(candidates);
    Some(Judged { choice: choice.map(|at| labels[at].to_string()), sentences })
}

/// Compiles each program, and chooses one.
///
/// # Errors
/// A program that is refused for a reason other than memory; a missing compiler.
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
        let (Compiled { outcome, is_cached }, evidence) =
            compiled.map_err(|error| of_subject(error, bytes, name, is_compared))?;
        warn_of_wide(bytes, nth);
        on(&Event::Ends { compiling: &compiling, is_cached, outcome: &outcome });
        candidates.push(Candidate {
            name: name.clone(),
            outcome: outcome.clone(),
            evidence,
            changes_interface: *changes_interface,
        });
        reports.push(CompiledSubject { label: label.clone(), target: target.clone(), cached: is_cached, outcome });
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
        links: Links::for_target(target).filter(|_| !devices.is_one()),
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

/// Adds to an error the name of its program among several, and remarks that the compiler's refusal lacks.
pub(super) fn of_subject(error: StudyError, program: &[u8], name: &str, is_compared: bool) -> StudyError {
    let refusal = match error.inner().and_then(|inner| inner.downcast_ref::<TpuError>()) {
        Some(TpuError::Pjrt(refused)) if refused.call() == Some("PJRT_Compile") => refused.message(),
        _ => None,
    };
    let remark = refusal.and_then(|refusal| wide::remark(program, refusal));
    let error = match remark {
        Some(remark) => error.with_remark(&remark),
        None => error,
    };
    match is_compared {
        true => StudyError::subject(name, error),
        false => error,
    }
}

/// Warns of 64-bit floats in the first of several forms of a program.
pub(super) fn warn_of_wide(program: &[u8], nth: usize) {
    if let Some(warning) = Some(program).filter(|_| nth == 0).and_then(wide::warning) {
        tracing::warn!("{warning}");
    }
}

/// The outcome for a program, and, if it `is_compared`, the evidence in its optimized form.
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
        // Not fitting is an outcome too, without an optimized program.
        Err(error) => Ok((Compiled { outcome: CompileOutcome::of_error(error)?, is_cached }, None)),
    }
}

/// The evidence in an optimized program; `None` if it cannot be explained, because the figures are valid without it.
fn evidence(optimized: &[u8]) -> Option<Evidence> {
    let explained =
        || -> Result<Evidence, StudyError> { Ok(Evidence::from_explanation(&explain(&read_back(optimized)?, None)?)) };
    explained().inspect_err(|error| tracing::debug!("the optimized program is not explained: {}", error.chain())).ok()
}

/// Parses the compiler's optimized program.
pub(super) fn read_back(optimized: &[u8]) -> Result<Module, StudyError> {
    let optimized = decode::from_bytes(optimized).map_err(StudyError::optimized)?;
    verify_ids(&optimized).map_err(StudyError::optimized_broken)?;
    Ok(optimized)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The names in the output of `compile --json` before [`CompileOutcome`] existed.
    #[test]
    fn what_is_printed_of_a_program_keeps_its_names() {
        let json = |outcome| {
            let target = "tpu-v2".parse().unwrap();
            let subject = CompiledSubject { label: "f32".to_string(), target, cached: true, outcome };
            serde_json::to_string(&subject).unwrap()
        };
        let need = Need { needed: Some(3 << 30), available: None, text: "Ran out of memory".to_string() };
        let message = "tpu-v2: out of device memory: needs 3221225472 bytes (3.00 GiB), has an amount the compiler did not say\\nhelp: use a smaller batch, or bf16 if \
                       the program is f32\\ncompiler: Ran out of memory";
        assert_eq!(
            json(CompileOutcome::OutOfMemory(need)),
            format!(
                r#"{{"precision":"f32","cached":true,"out_of_memory":{{"needed":3221225472,"available":null,"message":"{message}"}}}}"#
            )
        );
        let fits = json(CompileOutcome::Fits(CompileReport::default()));
        assert!(fits.starts_with(r#"{"precision":"f32","cached":true,"hbm":{"arguments":0,"#), "{fits}");
        assert!(!fits.contains("out_of_memory") && !fits.contains("failed"), "{fits}");
        let refused =
            r#"{"precision":"f32","cached":true,"failed":"tpu-v2: the compiler refused the program: INTERNAL"}"#;
        assert_eq!(json(CompileOutcome::Failed("INTERNAL".to_string())), refused);
    }
}
