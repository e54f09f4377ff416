//! The outcome of a compile as one line of text.

use crate::{mib, seconds};
use bf16scope_tpu::{CompileOutcome, Need};

/// The outcome of one compile, for a line.
pub fn one_line(outcome: &CompileOutcome) -> String {
    match outcome {
        CompileOutcome::Fits(report) => {
            format!("fits, {} in {}", mib(report.hbm.total), seconds(report.compile_seconds))
        }
        CompileOutcome::OutOfMemory(need) => no_room(need),
        CompileOutcome::Failed(text) => text.lines().next().unwrap_or_default().to_string(),
    }
}

/// The message for a program that does not fit.
pub fn no_room(Need { needed, available, .. }: &Need) -> String {
    let gib = |n_bytes: &u64| format!("{:.2} GiB", *n_bytes as f64 / f64::from(1u32 << 30));
    match (needed, available) {
        (Some(needed), Some(available)) => format!("does not fit: needs {} of {}", gib(needed), gib(available)),
        _ => "does not fit".to_string(),
    }
}

/// A note beside figures if the compiled program may have dropped roundings.
pub fn excess_note(excess_precision: bool) -> &'static str {
    if excess_precision { ", with excess precision" } else { "" }
}
