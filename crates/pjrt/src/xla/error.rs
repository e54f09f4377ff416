//! Errors of calls into xla-rs.

use crate::PjrtError;

/// The error of a call into xla-rs. Its backtrace, which xla-rs puts behind the text, is left out.
pub(crate) fn failed(call: &'static str) -> impl Fn(xla::Error) -> PjrtError {
    move |error| {
        let text = match error {
            xla::Error::XlaError { msg, .. } => msg,
            other => other.to_string(),
        };
        PjrtError::XlaRs { call, text }
    }
}
