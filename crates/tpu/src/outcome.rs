//! The outcome of a compile, one type for every question.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::{CompileReport, Target, TpuError};

/// The outcome of a compile. Serializes in the form of the cache's records, which contain no refusals.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CompileOutcome {
    /// The program fits: its figures.
    Fits(CompileReport),
    /// It does not fit in device memory.
    OutOfMemory(Need),
    /// The compiler refused it for another reason, with its text.
    #[serde(skip)]
    Failed(String),
}

/// The device memory that a program needs if it does not fit.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Need {
    /// Bytes needed, if the compiler's text has them. It rounds to hundredths of its unit.
    pub needed: Option<u64>,
    /// Bytes available for the program.
    pub available: Option<u64>,
    /// First line of the compiler's text.
    pub text: String,
}

impl Need {
    /// The corresponding error.
    pub fn error(&self, target: &Target) -> TpuError {
        let Need { needed, available, text } = self.clone();
        TpuError::OutOfMemory { target: target.clone(), needed, available, text }
    }
}

impl CompileOutcome {
    /// The outcome in an error, if it is that a program does not fit.
    ///
    /// # Errors
    /// Any other error, unchanged.
    pub fn of_error(error: TpuError) -> Result<CompileOutcome, TpuError> {
        match error {
            TpuError::OutOfMemory { needed, available, text, .. } => {
                Ok(CompileOutcome::OutOfMemory(Need { needed, available, text }))
            }
            other => Err(other),
        }
    }

    /// The figures, if it fits.
    pub fn report(&self) -> Option<&CompileReport> {
        match self {
            CompileOutcome::Fits(report) => Some(report),
            CompileOutcome::OutOfMemory(_) | CompileOutcome::Failed(_) => None,
        }
    }

    /// The figures, or why there are none.
    ///
    /// # Errors
    /// [`TpuError::OutOfMemory`], [`TpuError::Refused`].
    pub fn into_report(self, target: &Target) -> Result<CompileReport, TpuError> {
        match self {
            CompileOutcome::Fits(report) => Ok(report),
            CompileOutcome::OutOfMemory(need) => Err(need.error(target)),
            CompileOutcome::Failed(text) => Err(TpuError::Refused { target: target.clone(), text }),
        }
    }

    /// The same with another number of examples in a run. The times of collectives come from our model, so the cache
    /// does not contain them.
    pub(super) fn of_batch(self, batch: usize, target: &Target) -> CompileOutcome {
        match self {
            CompileOutcome::Fits(report) => CompileOutcome::Fits(report.timed(target, batch)),
            CompileOutcome::OutOfMemory(_) | CompileOutcome::Failed(_) => self,
        }
    }
}

impl fmt::Display for CompileOutcome {
    /// In a line: `fits, 123.4 MiB of HBM, 5678 examples/s`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mib = |n_bytes: f64| format!("{:.1} MiB", n_bytes / f64::from(1 << 20));
        match self {
            CompileOutcome::Fits(report) => {
                write!(f, "fits, {} of HBM", mib(report.hbm.total as f64))?;
                match report.examples_per_second {
                    Some(rate) => write!(f, ", {rate:.0} examples/s"),
                    None => f.write_str(", examples/s unknown"),
                }
            }
            CompileOutcome::OutOfMemory(Need { needed: Some(needed), available: Some(available), .. }) => {
                write!(f, "does not fit: needs {} of {}", mib(*needed as f64), mib(*available as f64))
            }
            CompileOutcome::OutOfMemory(_) => f.write_str("does not fit"),
            CompileOutcome::Failed(text) => write!(f, "refused: {}", text.lines().next().unwrap_or_default()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fit::CompiledBatch;

    fn report() -> CompileReport {
        let mut report = CompileReport::default();
        report.hbm.total = 3 << 19;
        report.examples_per_second = Some(1234.6);
        report
    }

    fn need() -> Need {
        Need { needed: Some(3 << 20), available: Some(1 << 20), text: "Ran out of memory".to_string() }
    }

    fn outcomes() -> [CompileOutcome; 3] {
        let failed = CompileOutcome::Failed("INTERNAL: no\nmore".to_string());
        [CompileOutcome::Fits(report()), CompileOutcome::OutOfMemory(need()), failed]
    }

    #[test]
    fn an_outcome_is_a_line() {
        let lines = outcomes().map(|outcome| outcome.to_string());
        let expected = [
            "fits, 1.5 MiB of HBM, 1235 examples/s",
            "does not fit: needs 3.0 MiB of 1.0 MiB",
            "refused: INTERNAL: no",
        ];
        assert_eq!(lines, expected);
        assert_eq!(CompileOutcome::OutOfMemory(Need::default()).to_string(), "does not fit");
        // For a TPU with an unknown clock.
        let unknown = CompileOutcome::Fits(CompileReport::default());
        assert_eq!(unknown.to_string(), "fits, 0.0 MiB of HBM, examples/s unknown");
        assert_eq!(serde_json::to_value(&unknown).unwrap()["fits"]["examples_per_second"], serde_json::Value::Null);
    }

    /// The cache's records had this form before this type existed, and the output of `fit --json` has no compiler's
    /// text.
    #[test]
    fn records_and_rows_keep_their_names() {
        let json = |outcome: &CompileOutcome| serde_json::to_string(outcome).unwrap();
        let [fits, too_large, failed] = outcomes();
        let record = r#"{"out_of_memory":{"needed":3145728,"available":1048576,"text":"Ran out of memory"}}"#;
        assert_eq!(json(&too_large), record);
        assert_eq!(serde_json::from_str::<CompileOutcome>(record).unwrap(), too_large);
        assert_eq!(serde_json::from_str::<CompileOutcome>(&json(&fits)).unwrap(), fits);
        // A refusal is not cached, so it cannot be serialized.
        assert!(serde_json::to_string(&failed).is_err());
        assert!(serde_json::from_str::<CompileOutcome>(r#"{"failed":"no"}"#).is_err());

        let row = |outcome| serde_json::to_string(&CompiledBatch { batch: 8, cached: true, outcome }).unwrap();
        assert_eq!(
            row(too_large),
            r#"{"batch":8,"cached":true,"out_of_memory":{"needed":3145728,"available":1048576}}"#
        );
        assert_eq!(row(failed), r#"{"batch":8,"cached":true,"failed":{"message":"INTERNAL: no\nmore"}}"#);
        assert!(row(fits).starts_with(r#"{"batch":8,"cached":true,"fits":{"hbm":{"arguments":0,"#));
    }

    #[test]
    fn an_outcome_without_figures_is_an_error() {
        let target: Target = "tpu-v2".parse().unwrap();
        let [fits, too_large, failed] = outcomes();
        assert_eq!(fits.into_report(&target).unwrap(), report());
        assert_eq!(
            too_large.clone().into_report(&target).unwrap_err().to_string(),
            "tpu-v2: out of device memory: needs 3145728 bytes (0.00 GiB), has 1048576 bytes (0.00 GiB)\nhelp: use a smaller batch, or bf16 if the program is \
             f32\ncompiler: Ran out of memory"
        );
        assert_eq!(CompileOutcome::of_error(need().error(&target)).unwrap(), too_large);
        let refused = failed.into_report(&target).unwrap_err();
        assert_eq!(refused.to_string(), "tpu-v2: the compiler refused the program: INTERNAL: no\nmore");
        assert!(CompileOutcome::of_error(refused).is_err());
    }
}
