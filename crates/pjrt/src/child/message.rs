//! The messages between a parent and its child. Programs and arrays are sent beside them, in a file: see `wire`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::error::{ChildError, Doing};
use crate::{
    Code, CompileOptions, DeviceDescription, DeviceMemory, MemoryStats, OutputSpec, PjrtError, Processes, Value, ffi,
};
use bf16scope_hlo::DType;

/// Identifies an object of the child: arrays and programs are numbered separately, by the child.
pub(super) type Id = u64;

/// A request, and the objects that the parent no longer needs.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Envelope {
    pub(super) free_arrays: Vec<Id>,
    pub(super) free_programs: Vec<Id>,
    pub(super) request: Request,
}

/// A request from the parent. One answer follows each.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Request {
    /// The first request: does this process serve?
    Hello { version: String },
    /// Opens a client; a child has only one.
    Client { platform: String, library: Option<Vec<u8>>, create_options: BTreeMap<String, Value> },
    /// Describes devices that are not present, and makes the child the compiler for them.
    Topology { library: Vec<u8>, name: String, options: BTreeMap<String, Value> },
    /// Compiles the program in the file, for the client or for the topology with this number.
    Compile { topology: Option<Id>, options: CompileOptions },
    /// Loads the executable in the file on the client.
    Load,
    /// Compiles the StableHLO in the file, only for the compiler's dumps: for the plugin's devices, or for the topology
    /// with this name.
    Convert { library: Vec<u8>, topology: Option<String>, options: CompileOptions },
    /// Copies the array in the file to a device.
    Upload { dtype: i32, dims: Vec<i64>, device_idx: usize },
    /// Copies an array into a file.
    Download { array: Id },
    /// Runs a program: for each device its arguments, and whether each is donated.
    Execute { program: Id, args: Vec<Vec<(Id, bool)>> },
    /// Asks about a device.
    DeviceMemory { idx: usize },
    /// Asks about an array.
    Array { array: Id, ask: AskArray },
    /// Asks about a program.
    Program { program: Id, ask: AskProgram },
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) enum AskArray {
    DeviceBytes,
    IsDeleted,
    Address,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) enum AskProgram {
    Name,
    Outputs,
    CountOutputs,
    MemoryStats,
    CostAnalysis,
    Optimized,
    Fingerprint,
    Serialized,
}

/// A child's answer.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Reply {
    Failed(Failure),
    Hello {
        version: String,
    },
    Opened {
        id: Id,
        platform_name: String,
        platform_version: String,
        devices: Vec<DeviceDescription>,
        /// For a client.
        processes: Option<Processes>,
    },
    Compiled {
        id: Id,
        n_devices: usize,
    },
    Uploaded {
        id: Id,
    },
    Converted,
    /// The answer is in the file.
    Bytes,
    Ran {
        outputs: Vec<Vec<Output>>,
    },
    DeviceMemory(DeviceMemory),
    Number(usize),
    Flag(bool),
    Text(String),
    Raw(Vec<u8>),
    Outputs(Vec<(i32, Vec<i64>)>),
    MemoryStats(MemoryStats),
    /// Bits of f64s, because JSON has neither infinities nor NaN.
    Costs(BTreeMap<String, u64>),
}

/// An output of a run.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Output {
    pub(super) id: Id,
    pub(super) dtype: i32,
    pub(super) dims: Vec<i64>,
}

/// An error, serialized.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Failure {
    /// Errors that callers distinguish keep their fields.
    Call { call: String, code: i32, message: String },
    /// Any other error is its text.
    Other { text: String },
}

impl From<&PjrtError> for Failure {
    fn from(error: &PjrtError) -> Failure {
        match (error.call(), error.code(), error.message()) {
            (Some(call), Some(code), Some(message)) => {
                Failure::Call { call: call.to_string(), code: code.number(), message: message.to_string() }
            }
            _ => Failure::Other { text: error.to_string() },
        }
    }
}

impl From<Failure> for PjrtError {
    fn from(failure: Failure) -> PjrtError {
        match failure {
            Failure::Call { call, code, message } => match ffi::function_named(&call) {
                Some(call) => PjrtError::refused(call, Code::from_number(code), message),
                None => ChildError::Failed { text: format!("{call}: {}: {message}", Code::from_number(code)) }.into(),
            },
            Failure::Other { text } => ChildError::Failed { text }.into(),
        }
    }
}

/// A dtype, from XLA's number for it.
pub(super) fn dtype(number: i32) -> Result<DType, PjrtError> {
    DType::from_xla(number).ok_or_else(|| PjrtError::buffer_type(number))
}

/// Output types, from XLA's numbers.
pub(super) fn output_specs(outputs: Vec<(i32, Vec<i64>)>) -> Result<Vec<OutputSpec>, PjrtError> {
    outputs.into_iter().map(|(number, dims)| Ok(OutputSpec { dtype: dtype(number)?, dims })).collect()
}

/// The error for an answer that does not match the request.
pub(super) fn unexpected(doing: Doing, reply: &Reply) -> PjrtError {
    let measured: String = format!("{reply:?}").chars().take(100).collect();
    ChildError::Answer { doing, measured }.into()
}
