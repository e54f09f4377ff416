//! The error of a pass: a kind, a place, a sentence and a help text.
//!
//! The sentence is written where the fault is detected. A program acts on the kind and the place.

use bf16scope_hlo::{CompId, EmitError, InstrId, Metadata, Module, VerifyErrors};
use std::error::Error;
use std::fmt;

/// The error of a pass: where it is, what was measured, what was expected, and what to do.
///
/// ```
/// use bf16scope_hlo::Module;
/// use bf16scope_passes::{PassErrorKind, partition};
///
/// let error = partition::run(&Module::new("step"), &partition::Config::new(2, [])).unwrap_err();
/// assert_eq!(error.kind(), &PassErrorKind::NoRules);
/// assert_eq!(error.help(), Some("say what is, such as --split '*/query/kernel=1'"));
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct PassError(Box<Parts>);

#[derive(Clone, Debug, PartialEq)]
struct Parts {
    kind: PassErrorKind,
    place: Option<Place>,
    /// Whether the message begins with the place; otherwise the sentence names it.
    is_placed: bool,
    text: String,
    /// Empty if there is no advice.
    help: String,
    cause: Option<EmitError>,
}

/// The kinds of errors of passes.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PassErrorKind {
    /// The module does not verify.
    Invalid,
    /// The rewritten module does not verify: a bug of the pass.
    Broken,
    /// The configuration contradicts itself.
    Config,
    /// A pattern of the configuration matches nothing in the module.
    NoMatch(String),
    /// The configuration asks for several partitions, but has no rule that splits anything over them.
    NoRules,
    /// An axis cannot be split as a rule says.
    Split,
    /// A gradient was requested of an output that is not a floating-point scalar, with respect to a variable that is
    /// not a floating-point array, or for an instruction that does not exist.
    Request,
    /// An instruction between the variable and the output has no gradient.
    NoGradient,
    /// An instruction has no form in the dtype that the pass writes.
    NoForm,
    /// An instruction broke a rule when it was written, or the emitter had failed before.
    Emit,
}

/// The place of an instruction in a module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The name of its computation.
    pub computation: String,
    /// Its name.
    pub instruction: String,
    /// Its opcode.
    pub opcode: String,
    /// Its metadata: scoped name, and the user's file and line.
    pub metadata: Metadata,
}

impl Place {
    /// Describes an instruction of a module.
    pub fn new(module: &Module, comp: CompId, id: InstrId) -> Place {
        let computation = module.comp(comp);
        let instr = computation.instr(id);
        let mut metadata = instr.metadata.clone();
        if let Some((file, line)) = module.source(&instr.metadata) {
            (metadata.source_file, metadata.source_line) = (file.to_string(), line);
        }
        Place {
            computation: computation.name.clone(),
            instruction: instr.name.clone(),
            opcode: instr.op.opcode().into_owned(),
            metadata,
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/%{}", self.computation, self.instruction)?;
        let Metadata { op_name, source_file, source_line, .. } = &self.metadata;
        match (op_name.is_empty(), source_file.is_empty()) {
            (true, true) => Ok(()),
            (false, true) => write!(f, " ({op_name})"),
            (true, false) => write!(f, " (at {source_file}:{source_line})"),
            (false, false) => write!(f, " ({op_name}, at {source_file}:{source_line})"),
        }
    }
}

impl PassError {
    pub(crate) fn new(kind: PassErrorKind, text: impl Into<String>) -> PassError {
        let (text, help) = (text.into(), String::new());
        PassError(Box::new(Parts { kind, place: None, is_placed: false, text, help, cause: None }))
    }

    /// The rewritten module does not verify. `what` was done to it: `lowering`.
    pub(crate) fn broken(what: &str, errors: &VerifyErrors) -> PassError {
        let text = format!(
            "{what} broke the module, which is a bug of bf16scope; please report it with the module:\n{errors}"
        );
        PassError::new(PassErrorKind::Broken, text)
    }

    /// The same error with a place; the message begins with it.
    pub(crate) fn at(mut self, place: Place) -> PassError {
        self.0.is_placed = true;
        self.about(place)
    }

    /// The same error with a place that its sentence names already.
    pub(crate) fn about(mut self, place: Place) -> PassError {
        self.0.place = Some(place);
        self
    }

    /// The same error with a help text.
    pub(crate) fn with_help(mut self, help: impl Into<String>) -> PassError {
        self.0.help = help.into();
        self
    }

    /// Corrects the place of the error.
    pub(crate) fn correct_place(&mut self, correct: impl FnOnce(&mut Place)) {
        self.0.place.as_mut().map(correct);
    }

    /// The kind.
    pub fn kind(&self) -> &PassErrorKind {
        &self.0.kind
    }

    /// The instruction that the error is about, if there is one.
    pub fn place(&self) -> Option<&Place> {
        self.0.place.as_ref()
    }

    /// The sentence: measured and expected values.
    pub fn text(&self) -> &str {
        &self.0.text
    }

    /// Advice on how to fix it, if there is any.
    pub fn help(&self) -> Option<&str> {
        Some(self.0.help.as_str()).filter(|help| !help.is_empty())
    }
}

/// A copy broke a rule of the emitter, or the emitter had failed before.
impl From<Box<EmitError>> for PassError {
    fn from(error: Box<EmitError>) -> PassError {
        let mut placed = PassError::new(PassErrorKind::Emit, error.to_string());
        placed.0.cause = Some(*error);
        placed
    }
}

impl fmt::Display for PassError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Parts { kind, place, is_placed, text, help, .. } = &*self.0;
        if let Some(place) = place.as_ref().filter(|_| *is_placed) {
            write!(f, "{place}: ")?;
        }
        f.write_str(text)?;
        match kind {
            _ if help.is_empty() => Ok(()),
            // Indented as the builder's errors, among which these are shown.
            PassErrorKind::Request | PassErrorKind::NoGradient => write!(f, "\n  help: {help}"),
            _ => write!(f, "\nhelp: {help}"),
        }
    }
}

impl Error for PassError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.0.cause.as_ref().map(|cause| cause as &(dyn Error + 'static))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::amp::Policy;
    use bf16scope_hlo::{text, verify};

    /// No module is known that a pass breaks, so one is broken here.
    #[test]
    fn a_bug_of_a_pass_says_so_and_what_is_broken() {
        let source = "HloModule m\n\nENTRY m {\n  ROOT x = f32[2] parameter(0)\n}\n";
        let mut module = text::parse(source, "m.txt").unwrap();
        module.computations[0].instructions[0].name.clear();
        let errors = verify(&module).unwrap_err();
        for what in ["lowering", "rewriting products as a TPU's"] {
            let error = PassError::broken(what, &errors);
            assert_eq!(error.kind(), &PassErrorKind::Broken);
            let text = "broke the module, which is a bug of bf16scope; please report it with the module:";
            assert_eq!(error.to_string(), format!("{what} {text}\n{errors}"));
        }
    }

    #[test]
    fn a_policy_of_jmp_that_is_none_says_how_one_is_written() {
        let error = Policy::preset("jmp:params=f8").unwrap_err().to_string();
        assert_eq!(
            error,
            "`jmp:params=f8`: `f8` is none of f32, bf16, f16, expected such as `jmp:params=f32,compute=bf16,output=f32`"
        );
    }
}
