//! Errors of calls into xla-rs.

use crate::{PjrtError, PjrtErrorKind, PjrtPlace};

/// The error of a call into xla-rs. Its backtrace, which xla-rs appends to the text, is removed.
pub(crate) fn failed(call: &'static str) -> impl Fn(xla::Error) -> PjrtError {
    move |error| {
        let text = match error {
            xla::Error::XlaError { msg, .. } => msg,
            other => other.to_string(),
        };
        refused(call, text)
    }
}

/// xla-rs refused a call; the text is XLA's.
pub(crate) fn refused(call: &'static str, text: impl Into<String>) -> PjrtError {
    PjrtError::new(PjrtErrorKind::Refused, PjrtPlace::XlaRs(Some(call)), text)
}

/// xla-rs, behind the device `xla-cpu`, does not support this.
pub(crate) fn not_in_xla_rs(what: &str) -> PjrtError {
    unsupported(format!("unsupported: xla-rs 0.4.3 has no {what}"))
        .with_help("use the device cpu, the plugin, which has it")
}

/// XLA's process-wide flags, which are read once, contradict the options. `measured` is the result of a probe.
pub(crate) fn excess_precision(measured: bool, wanted: bool) -> PjrtError {
    let name = |on| if on { "on" } else { "off" };
    let text = format!(
        "excess precision is {} in this process, the options want it {}, and xla-rs 0.4.3 sets it for whole processes only",
        name(measured),
        name(wanted)
    );
    unsupported(text).with_help(match measured {
        true => {
            "unset XLA_FLAGS, or set it to --xla_allow_excess_precision=false; a program that makes xla-rs clients of \
             its own calls pjrt::prepare_environment first in main"
        }
        false => "start the process with XLA_FLAGS=--xla_allow_excess_precision=true",
    })
}

fn unsupported(text: String) -> PjrtError {
    PjrtError::new(PjrtErrorKind::Unsupported, PjrtPlace::XlaRs(None), text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_with_excess_precision_cannot_go_without() {
        assert_eq!(
            excess_precision(true, false).to_string(),
            "xla-cpu: excess precision is on in this process, the options want it off, and xla-rs 0.4.3 sets it for whole \
             processes only\nhelp: unset XLA_FLAGS, or set it to --xla_allow_excess_precision=false; a program that makes \
             xla-rs clients of its own calls pjrt::prepare_environment first in main"
        );
    }
}
