//! From the library's errors to `bf16scope.Error`.

use std::error::Error;

use pyo3::PyErr;
use pyo3::import_exception;

import_exception!(bf16scope._errors, ModuleError);

/// An error as a user reads it: the message, the remedy, and the causes, nearest first.
#[derive(Debug)]
pub(crate) struct Failure {
    message: String,
    help: Option<String>,
    causes: Vec<String>,
}

impl Failure {
    /// An error that is no other's.
    pub(crate) fn new(message: impl Into<String>, help: impl Into<String>) -> Failure {
        Failure { message: message.into(), help: Some(help.into()), causes: Vec::new() }
    }

    /// Puts the context before the error: `cannot read step.mlir`.
    pub(crate) fn within(mut self, message: impl Into<String>) -> Failure {
        self.causes.insert(0, std::mem::replace(&mut self.message, message.into()));
        self
    }
}

impl<E: Error> From<E> for Failure {
    fn from(error: E) -> Failure {
        let mut texts = vec![error.to_string()];
        let mut cause = error.source();
        while let Some(error) = cause {
            let text = error.to_string();
            // A transparent error says what its source says.
            if !texts.iter().any(|above| above.contains(&text)) {
                texts.push(text);
            }
            cause = error.source();
        }
        let mut helps = Vec::new();
        let mut said = texts.iter().map(|text| {
            let mut parts = text.split("\nhelp: ");
            let first = parts.next().unwrap_or_default().to_string();
            helps.extend(parts.map(str::to_string));
            first
        });
        let message = said.next().unwrap_or_default();
        let causes = said.collect();
        Failure { message, help: (!helps.is_empty()).then(|| helps.join("\n")), causes }
    }
}

impl From<Failure> for PyErr {
    fn from(failure: Failure) -> PyErr {
        let Failure { message, help, causes } = failure;
        ModuleError::new_err((message, help, causes))
    }
}
