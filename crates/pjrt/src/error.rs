//! What can go wrong between this crate and a plugin. Installation has its own errors, [`InstallError`].

use std::fmt;
use std::path::PathBuf;

use super::child::ChildError;
use super::install::InstallError;
use super::spec::{MAX_CPU_DEVICES, platform_names};
use super::{Hardware, Purpose, Setting};
use bf16scope_hlo::proto::WireError;
use bf16scope_hlo::{ArrayError, DType};

/// Status code of a failed plugin call: the gRPC codes, numbered as `PJRT_Error_Code`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Code {
    /// 1: the operation was cancelled.
    Cancelled,
    /// 2: the plugin did not say.
    Unknown,
    /// 3: an argument is wrong whatever the state.
    InvalidArgument,
    /// 4: too late.
    DeadlineExceeded,
    /// 5: something named does not exist.
    NotFound,
    /// 6: something to be made exists.
    AlreadyExists,
    /// 7: not allowed.
    PermissionDenied,
    /// 8: out of memory, at compile time or at run time.
    ResourceExhausted,
    /// 9: the state is wrong for this call.
    FailedPrecondition,
    /// 10: given up, for instance after a conflict.
    Aborted,
    /// 11: an index or offset is outside.
    OutOfRange,
    /// 12: this plugin does not do that.
    Unimplemented,
    /// 13: a bug, in the plugin or in what it was given.
    Internal,
    /// 14: not available now.
    Unavailable,
    /// 15: data are lost or corrupt.
    DataLoss,
    /// 16: no valid credentials.
    Unauthenticated,
    /// A number outside the table, kept.
    Other(i32),
}

impl Code {
    const NAMED: [(Code, i32, &'static str); 16] = [
        (Code::Cancelled, 1, "CANCELLED"),
        (Code::Unknown, 2, "UNKNOWN"),
        (Code::InvalidArgument, 3, "INVALID_ARGUMENT"),
        (Code::DeadlineExceeded, 4, "DEADLINE_EXCEEDED"),
        (Code::NotFound, 5, "NOT_FOUND"),
        (Code::AlreadyExists, 6, "ALREADY_EXISTS"),
        (Code::PermissionDenied, 7, "PERMISSION_DENIED"),
        (Code::ResourceExhausted, 8, "RESOURCE_EXHAUSTED"),
        (Code::FailedPrecondition, 9, "FAILED_PRECONDITION"),
        (Code::Aborted, 10, "ABORTED"),
        (Code::OutOfRange, 11, "OUT_OF_RANGE"),
        (Code::Unimplemented, 12, "UNIMPLEMENTED"),
        (Code::Internal, 13, "INTERNAL"),
        (Code::Unavailable, 14, "UNAVAILABLE"),
        (Code::DataLoss, 15, "DATA_LOSS"),
        (Code::Unauthenticated, 16, "UNAUTHENTICATED"),
    ];

    /// The code with this `PJRT_Error_Code` number.
    pub fn from_number(number: i32) -> Code {
        Code::NAMED.iter().find(|row| row.1 == number).map_or(Code::Other(number), |row| row.0)
    }

    /// Its `PJRT_Error_Code` number.
    pub fn number(self) -> i32 {
        match (self, Code::NAMED.iter().find(|row| row.0 == self)) {
            (_, Some(row)) => row.1,
            (Code::Other(number), None) => number,
            (named, None) => unreachable!("{named:?} is in the table of all that are named"),
        }
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self, Code::NAMED.iter().find(|row| row.0 == *self)) {
            (_, Some(row)) => f.write_str(row.2),
            (Code::Other(number), None) => write!(f, "code {number}"),
            (named, None) => write!(f, "{named:?}"),
        }
    }
}

const PLUGIN_BUG: &str = "this is a bug of the plugin";

/// A plugin's text, where it gave one.
/// What to do where the loader may have had no room.
fn load_help(address_space: Option<u64>) -> String {
    address_space.map_or(String::new(), |limit| {
        format!("\nhelp: processes may have {limit} bytes of address space here; raise that limit (`ulimit -v`)")
    })
}

fn or_none(message: &str) -> &str {
    if message.is_empty() { "the plugin gave no text" } else { message }
}

/// What to do where xla-rs cannot.
pub(super) const USE_THE_PLUGIN: &str = "use the device cpu, the plugin, which has it";

fn excess_precision_remedy(measured: &str) -> &'static str {
    match measured {
        "on" => {
            "unset XLA_FLAGS, or set it to --xla_allow_excess_precision=false; a program that makes xla-rs clients of \
             its own calls pjrt::prepare_environment first in main"
        }
        _ => "start the process with XLA_FLAGS=--xla_allow_excess_precision=true",
    }
}

/// What to do about a refusal whose text does not say it.
fn help_for(message: &str) -> &'static str {
    let calls_outside = ["No FFI handler registered for ", "No registered implementation for "];
    if message.starts_with("Failed to materialize symbols") {
        // XLA's CPU plugin lacks the functions that round to f16 where no instruction does.
        "\nhelp: XLA's code for this processor calls a function that its CPU plugin lacks. Rounding to f16, and f8 by way \
         of f16, needs F16C, which comes with AVX (`bf16scope doctor` shows it; an --xla_cpu_max_isa in XLA_FLAGS hides \
         it): use bf16 or f32"
    } else if !calls_outside.iter().any(|words| message.starts_with(words)) {
        ""
    } else if message.contains("_python_") {
        "\nhelp: this is a callback of JAX (`jax.pure_callback`, `jax.debug.print`), which runs in the Python process that \
         made it: export the function without it"
    } else if message.contains("LuDecomposition") || message.contains("LuPivots") {
        // What JAX lowers `solve` and `lu` to for a TPU, whose compiler has them.
        "\nhelp: XLA has this call for TPUs alone (JAX writes it for `lu`, `solve`, `det` and `inv`), and no CPU runs it here: \
         `bf16scope compile` takes the module; of a matrix that is symmetric, `cho_solve`, of any other `qr` and \
         `solve_triangular`, run on both"
    } else {
        // jaxlib registers LAPACK's functions in its own process; of `Qr` and the like XLA has its own.
        "\nhelp: the custom call is to a library that this plugin lacks. JAX writes calls of LAPACK where it lowers for a \
         CPU: lower it with `jax.jit(f).trace(*args).lower(lowering_platforms=(\"tpu\",))`, and XLA computes `qr` and \
         `eigh` itself, here too"
    }
}

fn did_you_mean(name: &str) -> String {
    let near = |candidate: &&str| strsim::damerau_levenshtein(&name.to_lowercase(), candidate) <= 2;
    platform_names().into_iter().find(near).map_or(String::new(), |name| format!("; did you mean `{name}`?"))
}

/// A failure in loading or driving a plugin.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PjrtError {
    /// The plugin refused a call. Code and text are the plugin's own.
    #[error("{call}: {code}: {}{}", or_none(message), help_for(message))]
    Call {
        /// The C API function.
        call: &'static str,
        /// The plugin's code.
        code: Code,
        /// The plugin's text.
        message: String,
    },
    /// The plugin's table has no such function.
    #[error(
        "plugin {}: no function {function}: it has PJRT C API {major}.{minor}\nhelp: use a newer plugin (`bf16scope plugins list` names the pinned ones)",
        path.display()
    )]
    Unsupported {
        /// The C API function.
        function: &'static str,
        /// The plugin's file.
        path: PathBuf,
        /// Its API version, major part.
        major: i32,
        /// Its API version, minor part.
        minor: i32,
    },
    /// xla-rs, behind the device `xla-cpu`, has no way to say or do this.
    #[error("xla-cpu: unsupported: xla-rs 0.4.3 has no {what}\nhelp: {help}")]
    NotInXlaRs {
        /// What was asked for.
        what: &'static str,
        /// What to do instead.
        help: &'static str,
    },
    /// A dtype that xla-rs cannot put on its device.
    #[error("xla-cpu: unsupported: xla-rs 0.4.3 has no arrays of {dtype}\nhelp: {USE_THE_PLUGIN}")]
    XlaRsDType {
        /// Element type.
        dtype: DType,
    },
    /// xla-rs refused a call; the text is XLA's own.
    #[error("xla-rs: {call}: {text}")]
    XlaRs {
        /// What was called.
        call: &'static str,
        /// XLA's text.
        text: String,
    },
    /// XLA's process-wide flags are read once, and say otherwise than the options.
    #[error(
        "xla-cpu: excess precision is {measured} in this process, the options want it {wanted}, and xla-rs 0.4.3 sets it for whole processes only\nhelp: {}",
        excess_precision_remedy(measured)
    )]
    ExcessPrecision {
        /// What a probe found: `on` or `off`.
        measured: &'static str,
        /// What the compile options say.
        wanted: &'static str,
    },
    /// A device that this build has not.
    #[error(
        "device xla-cpu: this bf16scope was built without xla-rs\nhelp: eval \"$(ci/xla-extension)\" && cargo build --features xla"
    )]
    NoXlaRs,
    /// No device has this name.
    #[error("no device is named `{name}`{}\nhelp: one of {}, plugin:PATH", did_you_mean(.name), platform_names().join(", "))]
    NoPlatform {
        /// What was given.
        name: String,
    },
    /// `plugin:` without a file.
    #[error("device {name} names no file\nhelp: write plugin:/path/to/a_pjrt_plugin.so")]
    NoPath {
        /// What was given.
        name: String,
    },
    /// `cpu:` without a number of devices that could be.
    #[error(
        "device {name}: expected a number of devices from 1 to {} after `cpu:`\nhelp: use cpu or cpu:8",
        MAX_CPU_DEVICES
    )]
    DeviceCount {
        /// What was given.
        name: String,
    },
    /// More devices than a program uses.
    #[error(
        "device {name}: this runs a program of one device, not of {n_devices}\nhelp: use cpu; `train` runs on several"
    )]
    ManyDevices {
        /// What was given.
        name: String,
        /// Devices asked for.
        n_devices: u32,
    },
    /// Nothing says where a plugin is.
    #[error("plugin {plugin}: no file and no wheel is named for it\nhelp: name its library in {variable}")]
    Nowhere {
        /// The plugin's name.
        plugin: String,
        /// What could name a file.
        variable: &'static str,
    },
    /// A file that nobody vouches for.
    #[error(
        "plugin {}: not loaded into this process: it is not a pinned plugin, and nobody vouches for what it does\nhelp: use it in a child process (Client::in_child), or give a ForeignCode in the Setup",
        path.display()
    )]
    ForeignCode {
        /// The file.
        path: PathBuf,
    },
    /// An executable that nobody vouches for.
    #[error(
        "an executable is not loaded into this process: it is machine code, and nobody vouches for what it does\nhelp: load \
         it in a child process (Client::in_child), or give a ForeignCode"
    )]
    ForeignExecutable,
    /// Hardware that this machine has not.
    #[error(
        "device {device}: this machine has no {0}: none of its PCI devices is one\nhelp: run where there is one, or set {1}=1 for the plugin to look for itself",
        hardware.name, hardware.variable
    )]
    NoHardware {
        /// The device's name.
        device: String,
        /// What was looked for.
        hardware: Hardware,
    },
    /// A variable that is to hold a grid's sizes, and does not.
    #[error(
        "plugin {plugin}: {variable} is {value:?}, expected three whole numbers from 1 up, with commas, such as 2,2,1\nhelp: correct it, or unset it: the plugin would end the process over it"
    )]
    Grid {
        /// The plugin's name.
        plugin: String,
        /// The variable.
        variable: &'static str,
        /// Its value.
        value: String,
    },
    /// Variables that a plugin needs, which cannot be set while other threads may read the environment.
    #[error(
        "plugin {plugin}: {0} is unset, and cannot be set safely in a process of {1}\nhelp: call pjrt::prepare_environment(Purpose::{purpose:?}) first in main, or start the process with {0}={2}",
        needed.first().map_or("nothing", |setting| setting.variable),
        n_threads.map_or("threads that cannot be counted".to_string(), |n| format!("{n} threads")),
        needed.first().map_or("", |setting| setting.value)
    )]
    Environment {
        /// The plugin's name.
        plugin: String,
        /// What must be set.
        needed: Vec<Setting>,
        /// What the plugin is loaded for.
        purpose: Purpose,
        /// Threads of this process, where they can be counted.
        n_threads: Option<usize>,
    },
    /// Variables that this process set to compile, in the way of a plugin that is to run.
    #[error(
        "plugin {plugin}: it is to run on devices that are here, and this process set {} to compile for devices that are not\nhelp: run in another process, or in a child (Client::in_child)",
        variables.join(", ")
    )]
    SetToCompile {
        /// The plugin's name.
        plugin: String,
        /// The variables.
        variables: Vec<&'static str>,
    },
    /// No file where one was named.
    #[error("plugin {}: no such file (named by {named_by})\nhelp: correct the path, or leave {named_by} out to use the pinned plugin", path.display())]
    Missing {
        /// The file.
        path: PathBuf,
        /// What named it: an environment variable, or "the caller".
        named_by: &'static str,
    },
    /// A file that the dynamic loader must not be given.
    #[error("plugin {}: not a usable shared library: {why}\nhelp: name a PJRT plugin (.so, Linux x86-64), or reinstall the pinned one with `bf16scope plugins install`", path.display())]
    NotALibrary {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// The dynamic loader refused the file; the text is its own.
    #[error("plugin {}: cannot be loaded: {text}{}", path.display(), load_help(*address_space))]
    Load {
        /// The file.
        path: PathBuf,
        /// The loader's text.
        text: String,
        /// The address space that the process may have, where that is limited.
        address_space: Option<u64>,
    },
    /// A call that succeeded, by its own account, and has nothing to show for it.
    #[error("{call}: the plugin reports success and gives no {what}\nhelp: {PLUGIN_BUG}")]
    Nothing {
        /// The C API function.
        call: &'static str,
        /// What it should have given.
        what: &'static str,
    },
    /// A number from a plugin that cannot be.
    #[error("{call}: the plugin gives {measured}, which cannot be\nhelp: {PLUGIN_BUG}")]
    Impossible {
        /// The C API function.
        call: &'static str,
        /// What it gave.
        measured: String,
    },
    /// A client without a device.
    #[error("the client has no devices that this process can use\nhelp: name another device")]
    NoDevices,
    /// A shared library, but no plugin.
    #[error("plugin {}: not a PJRT plugin: {why}\nhelp: name a PJRT plugin, such as the one in the xla-cpu-pjrt wheel", path.display())]
    NotPjrt {
        /// The file.
        path: PathBuf,
        /// What it lacks.
        why: String,
    },
    /// A plugin whose ABI is another one.
    #[error("plugin {}: PJRT C API {major}.{minor}, this build knows {}.x (since {}.{})\nhelp: use a plugin of that major version", path.display(), super::ffi::API_MAJOR, super::ffi::API_MAJOR, super::ffi::API_MINOR)]
    ApiVersion {
        /// The file.
        path: PathBuf,
        /// Its API version, major part.
        major: i32,
        /// Its API version, minor part.
        minor: i32,
    },
    /// Host bytes that do not fill the array they are said to hold.
    #[error("{dtype}{dims:?} on the host: measured {measured} bytes, expected {expected}")]
    HostBytes {
        /// Element type.
        dtype: DType,
        /// Dimensions.
        dims: Vec<i64>,
        /// Bytes given.
        measured: usize,
        /// Bytes the array takes.
        expected: usize,
    },
    /// Elements that are no array of their dims, or that are asked for as another type.
    #[error(transparent)]
    Array(#[from] ArrayError),
    /// A file of an array that cannot be read.
    #[error("{dtype}{dims:?} in a file: {source}")]
    HostFile {
        /// Element type.
        dtype: DType,
        /// Dimensions.
        dims: Vec<i64>,
        /// The cause.
        #[source]
        source: std::io::Error,
    },
    /// Dimensions no array can have.
    #[error("{dtype}{dims:?}: dimensions must not be negative, nor their product exceed the address space")]
    Dims {
        /// Element type.
        dtype: DType,
        /// Dimensions.
        dims: Vec<i64>,
    },
    /// A dtype that the C API has no number for.
    #[error("{dtype}: the PJRT C API {}.{} has no buffer type for it", super::ffi::API_MAJOR, super::ffi::API_MINOR)]
    DType {
        /// Element type.
        dtype: DType,
    },
    /// A buffer type that this crate has no dtype for.
    #[error("output of PJRT buffer type {number}: not a dtype of this crate")]
    BufferType {
        /// `PJRT_Buffer_Type`.
        number: i32,
    },
    /// A device that the client does not have.
    #[error("device {idx}: the client has {n_devices} devices, numbered from 0")]
    NoDevice {
        /// Position asked for.
        idx: usize,
        /// Devices there are.
        n_devices: usize,
    },
    /// Too few or too many arguments, or lists of them.
    #[error("{name}: {what}: measured {measured}, expected {expected}")]
    Arguments {
        /// The executable.
        name: String,
        /// What was counted.
        what: &'static str,
        /// Measured count.
        measured: usize,
        /// Expected count.
        expected: usize,
    },
    /// Calls that stand for more instructions than XLA compiles.
    #[error(
        "the program has {n_inlined} instructions once its calls are inlined, as XLA inlines them, expected at most {max}\n\
         help: computations that call others several times multiply; say a repetition with a `while` loop"
    )]
    Calls {
        /// Instructions, once each call, loop and branch has its own copy of what it calls.
        n_inlined: u64,
        /// How many are compiled.
        max: u64,
    },
    /// An argument of another type than its parameter.
    #[error("{name}: argument {idx}: measured {measured}, expected {expected}")]
    ArgumentType {
        /// The executable.
        name: String,
        /// Position among the arguments.
        idx: usize,
        /// Type of the buffer, as HLO prints it.
        measured: String,
        /// Type of the parameter, as HLO prints it.
        expected: String,
    },
    /// A buffer of another client.
    #[error(
        "{name}: argument {idx} lives in another client\nhelp: upload it with the client that compiled the executable"
    )]
    ForeignBuffer {
        /// The executable.
        name: String,
        /// Position among the arguments.
        idx: usize,
    },
    /// A program that is no `HloModuleProto`.
    #[error("the program is not an HloModuleProto: {0}")]
    Program(#[source] WireError),
    /// A program that was to be rewritten before it was compiled, and could not be.
    #[error("the program cannot be rewritten before it is compiled: {0}")]
    Rewrite(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// An optimized program that is no HLO.
    #[error("the plugin returned an optimized program in format `{format}`, expected `hlo` or `hlo_with_config`")]
    ProgramFormat {
        /// The format's name.
        format: String,
    },
    /// A child process that did not answer.
    #[error(transparent)]
    Child(#[from] ChildError),
    /// The plugin could not be installed.
    #[error(transparent)]
    Install(#[from] InstallError),
}

impl PjrtError {
    /// Of bytes that are no program.
    pub(crate) fn program(error: prost::DecodeError) -> PjrtError {
        PjrtError::Program(WireError::new(error))
    }

    /// The plugin's code, where the plugin refused a call.
    pub fn code(&self) -> Option<Code> {
        match self {
            PjrtError::Call { code, .. } => Some(*code),
            _ => None,
        }
    }

    /// Whether the plugin ran out of memory, compiling or running.
    pub fn is_resource_exhausted(&self) -> bool {
        self.code() == Some(Code::ResourceExhausted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_out_of_a_program_say_what_to_do() {
        let said = |message: &str| {
            let error =
                PjrtError::Call { call: "PJRT_Client_Compile", code: Code::NotFound, message: message.to_string() };
            error.to_string().split_once("\nhelp: ").map(|(_, help)| help.to_string()).unwrap_or_default()
        };
        let callback = said("No FFI handler registered for xla_ffi_python_cpu_callback on a platform Host");
        assert!(callback.starts_with("this is a callback of JAX"), "{callback}");
        let lapack = said("No FFI handler registered for lapack_sgeqrf_ffi on a platform Host (canonical host)");
        assert!(lapack.starts_with("the custom call is to a library that this plugin lacks"), "{lapack}");
        // It was lowered for a TPU: to do so again does not help.
        let of_tpus = said("No registered implementation for untyped custom call to LuDecomposition for Host");
        assert!(
            of_tpus.starts_with("XLA has this call for TPUs alone") && !of_tpus.contains("lowering_platforms"),
            "{of_tpus}"
        );
        assert_eq!(said("No such thing"), "");
    }
}
