//! Errors between this crate and a plugin: a kind, a place, a sentence with measured and expected values, and a remedy.
//!
//! The sentence is written where the error is found. Programs can act on the kind, the place and, if the plugin refused
//! a call, its code. Installation has its own errors, [`InstallError`], and so have children, [`ChildError`]: this
//! error passes them on.

use std::error::Error;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use super::Code;
use super::child::ChildError;
use super::install::InstallError;
use bf16scope_hlo::proto::WireError;
use bf16scope_hlo::{ArrayError, DType};

/// A failure in loading or driving a plugin: where, what was measured, what was expected, and what to do.
///
/// ```
/// use bf16scope_pjrt::{PjrtErrorKind, Platform};
///
/// let error = "tpuu".parse::<Platform>().unwrap_err();
/// assert_eq!(error.kind(), PjrtErrorKind::Device);
/// assert_eq!(error.text(), "no device is named `tpuu`; did you mean `tpu`?");
/// assert_eq!(error.help(), Some("one of cpu, tpu, xla-cpu, plugin:PATH"));
/// ```
#[derive(Debug)]
pub struct PjrtError(Box<Parts>);

#[derive(Debug)]
struct Parts {
    kind: PjrtErrorKind,
    place: PjrtPlace,
    text: String,
    /// Empty if there is no advice.
    help: String,
    cause: Cause,
}

#[derive(Debug)]
enum Cause {
    None,
    /// The plugin refused a call; the text is the plugin's.
    Refusal {
        call: &'static str,
        code: Code,
        message: String,
    },
    /// A cause, added to the sentence.
    Other(Box<dyn Error + Send + Sync>),
    /// A child's error that is passed on.
    Child(Box<ChildError>),
    /// Another error that is passed on, with its text.
    PassedOn(Box<dyn Error + Send + Sync>),
}

/// The kind of an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PjrtErrorKind {
    /// The plugin, or XLA behind xla-rs, refused a call.
    Refused,
    /// The plugin refused a call because of memory, when compiling or running.
    OutOfMemory,
    /// This plugin, the C API or xla-rs does not support it.
    Unsupported,
    /// The name of a device is unknown, or the device is not present.
    Device,
    /// A plugin cannot be found, installed, or loaded into this process with its environment.
    Plugin,
    /// Machine code that nobody vouches for.
    ForeignCode,
    /// An array has another size than its shape, or the program does not accept an argument.
    Argument,
    /// A program that cannot be compiled.
    Program,
    /// A plugin reports success with an impossible result.
    PluginBug,
    /// A child process did not answer, or answered with an error: see [`PjrtError::child`].
    Child,
}

/// The place of an error.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PjrtPlace {
    /// The request itself.
    Nowhere,
    /// A function of the C API.
    Call(&'static str),
    /// A plugin, by its name.
    Plugin(String),
    /// A plugin's file.
    File(PathBuf),
    /// A device, by its name for users.
    Device(String),
    /// A compiled program, by its name.
    Executable(String),
    /// An array on the host.
    Array(DType, Vec<i64>),
    /// xla-rs, with the name of the call if there is one.
    XlaRs(Option<&'static str>),
}

impl PjrtError {
    pub(crate) fn new(kind: PjrtErrorKind, place: PjrtPlace, text: impl Into<String>) -> PjrtError {
        let (text, help) = (text.into(), String::new());
        PjrtError(Box::new(Parts { kind, place, text, help, cause: Cause::None }))
    }

    /// The same error with a remedy.
    pub(crate) fn with_help(mut self, help: impl Into<String>) -> PjrtError {
        self.0.help = help.into();
        self
    }

    /// The same error with its cause.
    pub(crate) fn because(mut self, cause: impl Into<Box<dyn Error + Send + Sync>>) -> PjrtError {
        self.0.cause = Cause::Other(cause.into());
        self
    }

    fn passed_on(kind: PjrtErrorKind, error: impl Error + Send + Sync + 'static) -> PjrtError {
        let mut passed_on = PjrtError::new(kind, PjrtPlace::Nowhere, error.to_string());
        passed_on.0.cause = Cause::PassedOn(Box::new(error));
        passed_on
    }

    /// The kind.
    pub fn kind(&self) -> PjrtErrorKind {
        self.0.kind
    }

    /// The place.
    pub fn place(&self) -> &PjrtPlace {
        &self.0.place
    }

    /// The measured and the expected values.
    pub fn text(&self) -> &str {
        &self.0.text
    }

    /// The remedy, if there is one.
    pub fn help(&self) -> Option<&str> {
        Some(self.0.help.as_str()).filter(|help| !help.is_empty())
    }

    /// The function of the C API, if the plugin refused a call.
    pub fn call(&self) -> Option<&'static str> {
        self.refusal().map(|(call, _, _)| call)
    }

    /// The plugin's code, if it refused a call.
    pub fn code(&self) -> Option<Code> {
        self.refusal().map(|(_, code, _)| code)
    }

    /// The plugin's unchanged text, if it refused a call.
    pub fn message(&self) -> Option<&str> {
        self.refusal().map(|(_, _, message)| message)
    }

    fn refusal(&self) -> Option<(&'static str, Code, &str)> {
        match &self.0.cause {
            Cause::Refusal { call, code, message } => Some((call, *code, message)),
            Cause::None | Cause::Other(_) | Cause::Child(_) | Cause::PassedOn(_) => None,
        }
    }

    /// The error of a child process, if it is one.
    pub fn child(&self) -> Option<&ChildError> {
        match &self.0.cause {
            Cause::Child(error) => Some(error),
            Cause::None | Cause::Other(_) | Cause::Refusal { .. } | Cause::PassedOn(_) => None,
        }
    }

    /// Whether the plugin ran out of memory, compiling or running.
    pub fn is_resource_exhausted(&self) -> bool {
        self.kind() == PjrtErrorKind::OutOfMemory
    }
}

// Errors that many callers share.
impl PjrtError {
    /// The plugin refused a call. Code and text are the plugin's.
    pub(crate) fn refused(call: &'static str, code: Code, message: String) -> PjrtError {
        let kind = match code {
            Code::ResourceExhausted => PjrtErrorKind::OutOfMemory,
            _ => PjrtErrorKind::Refused,
        };
        let text = if message.is_empty() { "the plugin gave no text" } else { &message };
        let mut error = PjrtError::new(kind, PjrtPlace::Call(call), format!("{code}: {text}"));
        error.0.help = help_for(&message).to_string();
        error.0.cause = Cause::Refusal { call, code, message };
        error
    }

    /// A call reported success and returned `what`, which is impossible.
    pub(crate) fn impossible(call: &'static str, what: impl fmt::Display) -> PjrtError {
        let text = format!("the plugin gives {what}, which cannot be");
        PjrtError::new(PjrtErrorKind::PluginBug, PjrtPlace::Call(call), text).with_help(PLUGIN_BUG)
    }

    /// A call reported success and did not return `what`.
    pub(crate) fn nothing(call: &'static str, what: &str) -> PjrtError {
        let text = format!("the plugin reports success and gives no {what}");
        PjrtError::new(PjrtErrorKind::PluginBug, PjrtPlace::Call(call), text).with_help(PLUGIN_BUG)
    }

    /// A named file does not exist.
    pub(crate) fn missing(path: &Path, named_by: &str) -> PjrtError {
        PjrtError::plugin(path, format!("no such file (named by {named_by})"))
            .with_help(format!("correct the path, or leave {named_by} out to use the pinned plugin"))
    }

    /// A file that must not be passed to the dynamic loader.
    pub(crate) fn not_a_library(path: &Path, why: &str) -> PjrtError {
        PjrtError::plugin(path, format!("not a usable shared library: {why}")).with_help(
            "name a PJRT plugin (.so, Linux x86-64), or reinstall the pinned one with `bf16scope plugins install`",
        )
    }

    /// A file that cannot be loaded as a plugin.
    pub(crate) fn plugin(path: &Path, text: impl Into<String>) -> PjrtError {
        PjrtError::new(PjrtErrorKind::Plugin, PjrtPlace::File(path.to_path_buf()), text)
    }

    /// Host bytes whose size does not match the array's.
    pub(crate) fn host_bytes(dtype: DType, dims: &[i64], measured: usize, expected: usize) -> PjrtError {
        let text = format!("{dtype}{dims:?} on the host: measured {measured} bytes, expected {expected}");
        PjrtError::new(PjrtErrorKind::Argument, PjrtPlace::Nowhere, text)
    }

    /// A file with an array that cannot be read.
    pub(crate) fn host_file(dtype: DType, dims: &[i64], cause: io::Error) -> PjrtError {
        PjrtError::new(PjrtErrorKind::Argument, PjrtPlace::Nowhere, format!("{dtype}{dims:?} in a file: {cause}"))
            .because(cause)
    }

    /// A wrong number of arguments of an executable, or of lists of them.
    pub(crate) fn count(executable: &str, what: &str, measured: usize, expected: usize) -> PjrtError {
        let text = format!("{what}: measured {measured}, expected {expected}");
        PjrtError::new(PjrtErrorKind::Argument, PjrtPlace::Executable(executable.to_string()), text)
    }

    /// A buffer type without a dtype in this crate.
    pub(crate) fn buffer_type(number: i32) -> PjrtError {
        let text = format!("output of PJRT buffer type {number}: not a dtype of this crate");
        PjrtError::new(PjrtErrorKind::Unsupported, PjrtPlace::Nowhere, text)
    }

    /// Bytes that are not an `HloModuleProto`.
    pub(crate) fn program(error: prost::DecodeError) -> PjrtError {
        let error = WireError::new(error);
        let text = format!("the program is not an HloModuleProto: {error}");
        PjrtError::new(PjrtErrorKind::Program, PjrtPlace::Nowhere, text).because(error)
    }
}

const PLUGIN_BUG: &str = "this is a bug of the plugin";

/// A remedy for a refusal whose text has none.
fn help_for(message: &str) -> &'static str {
    let calls_outside = ["No FFI handler registered for ", "No registered implementation for "];
    if message.starts_with("Failed to materialize symbols") {
        // XLA's CPU plugin lacks the functions that round to f16 where no instruction does.
        "XLA's code for this processor calls a function that its CPU plugin lacks. Rounding to f16, and f8 by way \
         of f16, needs F16C, which comes with AVX (`bf16scope doctor` shows it; an --xla_cpu_max_isa in XLA_FLAGS hides \
         it): use bf16 or f32"
    } else if !calls_outside.iter().any(|words| message.starts_with(words)) {
        ""
    } else if message.contains("_python_") {
        "this is a callback of JAX (`jax.pure_callback`, `jax.debug.print`), which runs in the Python process that \
         made it: export the function without it"
    } else if message.contains("LuDecomposition") || message.contains("LuPivots") {
        // JAX lowers `solve` and `lu` to this call for a TPU, whose compiler supports it.
        "XLA has this call for TPUs alone (JAX writes it for `lu`, `solve`, `det` and `inv`), and no CPU runs it here: \
         `bf16scope compile` takes the module; of a matrix that is symmetric, `cho_solve`, of any other `qr` and \
         `solve_triangular`, run on both"
    } else {
        // jaxlib registers LAPACK's functions in its own process; XLA has its own for `Qr` and the like.
        "the custom call is to a library that this plugin lacks. JAX writes calls of LAPACK where it lowers for a \
         CPU: lower it with `jax.jit(f).trace(*args).lower(lowering_platforms=(\"tpu\",))`, and XLA computes `qr` and \
         `eigh` itself, here too"
    }
}

impl From<ChildError> for PjrtError {
    fn from(error: ChildError) -> PjrtError {
        let mut passed_on = PjrtError::new(PjrtErrorKind::Child, PjrtPlace::Nowhere, error.to_string());
        passed_on.0.cause = Cause::Child(Box::new(error));
        passed_on
    }
}

impl From<InstallError> for PjrtError {
    fn from(error: InstallError) -> PjrtError {
        PjrtError::passed_on(PjrtErrorKind::Plugin, error)
    }
}

/// The elements do not form an array with these dims, or are requested as another type.
impl From<ArrayError> for PjrtError {
    fn from(error: ArrayError) -> PjrtError {
        PjrtError::passed_on(PjrtErrorKind::Argument, error)
    }
}

impl fmt::Display for PjrtError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Parts { place, text, help, .. } = &*self.0;
        if *place != PjrtPlace::Nowhere {
            write!(f, "{place}: ")?;
        }
        f.write_str(text)?;
        if !help.is_empty() {
            write!(f, "\nhelp: {help}")?;
        }
        Ok(())
    }
}

impl Error for PjrtError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match &self.0.cause {
            Cause::None | Cause::Refusal { .. } => None,
            Cause::Other(cause) => Some(cause.as_ref()),
            // This error has the child error's text.
            Cause::Child(error) => error.source(),
            Cause::PassedOn(error) => error.source(),
        }
    }
}

impl fmt::Display for PjrtPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PjrtPlace::Nowhere => f.write_str("nowhere"),
            PjrtPlace::Call(call) => f.write_str(call),
            PjrtPlace::Plugin(name) => write!(f, "plugin {name}"),
            PjrtPlace::File(path) => write!(f, "plugin {}", path.display()),
            PjrtPlace::Device(name) => write!(f, "device {name}"),
            PjrtPlace::Executable(name) => f.write_str(name),
            PjrtPlace::Array(dtype, dims) => write!(f, "{dtype}{dims:?}"),
            PjrtPlace::XlaRs(Some(call)) => write!(f, "xla-rs: {call}"),
            PjrtPlace::XlaRs(None) => f.write_str("xla-cpu"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_out_of_a_program_say_what_to_do() {
        let help_for_call = |message: &str| {
            let error = PjrtError::refused("PJRT_Client_Compile", Code::NotFound, message.to_string());
            error.help().unwrap_or_default().to_string()
        };
        let callback = help_for_call("No FFI handler registered for xla_ffi_python_cpu_callback on a platform Host");
        assert!(callback.starts_with("this is a callback of JAX"), "{callback}");
        let lapack =
            help_for_call("No FFI handler registered for lapack_sgeqrf_ffi on a platform Host (canonical host)");
        assert!(lapack.starts_with("the custom call is to a library that this plugin lacks"), "{lapack}");
        // It was lowered for a TPU: lowering it again does not help.
        let of_tpus = help_for_call("No registered implementation for untyped custom call to LuDecomposition for Host");
        assert!(
            of_tpus.starts_with("XLA has this call for TPUs alone") && !of_tpus.contains("lowering_platforms"),
            "{of_tpus}"
        );
        assert_eq!(help_for_call("No such thing"), "");
    }

    /// Errors of xla-rs, which not every build has.
    #[test]
    fn outputs_are_counted() {
        assert_eq!(
            PjrtError::count("step", "outputs of xla-rs", 1, 2).to_string(),
            "step: outputs of xla-rs: measured 1, expected 2"
        );
    }

    #[test]
    fn a_refusal_keeps_the_plugins_code_and_text_and_others_have_none() {
        let refused = PjrtError::refused("PJRT_Client_Compile", Code::ResourceExhausted, String::new());
        assert_eq!(refused.to_string(), "PJRT_Client_Compile: RESOURCE_EXHAUSTED: the plugin gave no text");
        assert_eq!(refused.kind(), PjrtErrorKind::OutOfMemory);
        assert_eq!(
            (refused.call(), refused.code(), refused.message()),
            (Some("PJRT_Client_Compile"), Some(Code::ResourceExhausted), Some(""))
        );
        let failed = PjrtError::from(ChildError::Failed { text: "it failed".to_string() });
        assert_eq!((failed.kind(), failed.to_string().as_str()), (PjrtErrorKind::Child, "it failed"));
        assert!(failed.child().is_some() && failed.code().is_none() && failed.source().is_none());
    }
}
