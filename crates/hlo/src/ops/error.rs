//! The error of a shape rule: why an op does not fit its operands.

use std::fmt;

/// A broken rule of an op: its name, measured and expected values, and what to do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub struct RuleError {
    /// A stable name of the rule: `dot/contracting-sizes`.
    pub rule: &'static str,
    /// Measured and expected values in one sentence, lower case, no final stop.
    pub message: String,
    /// Advice on how to fix it, if the message does not make that plain.
    pub help: Option<String>,
}

impl RuleError {
    /// A broken rule without help.
    pub fn new(rule: &'static str, message: impl Into<String>) -> RuleError {
        RuleError { rule, message: message.into(), help: None }
    }

    /// The same error with a help text.
    pub fn with_help(self, help: impl Into<String>) -> RuleError {
        RuleError { help: Some(help.into()), ..self }
    }
}

impl fmt::Display for RuleError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        match &self.help {
            Some(help) => write!(f, "\n  help: {help}"),
            None => Ok(()),
        }
    }
}
