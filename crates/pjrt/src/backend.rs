//! The traits behind [`Client`](super::Client), [`Buffer`](super::Buffer), [`Executable`](super::Executable) and
//! [`Compiled`](super::Compiled), whichever library runs the programs.
//!
//! [`Backend`] is the entry point; the objects it creates implement the other traits. `capi` implements them over a
//! plugin's C API, `child` over another process, `xla` over xla-rs's objects (with the feature of that name). `client`,
//! `buffer` and `executable` make the checks common to all back ends: sizes of host arrays, device numbers, counts and
//! types of arguments.

use std::any::Any;
use std::collections::BTreeMap;
use std::fmt::Debug;
use std::fs::File;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::array_type::{OutputSpec, n_host_bytes};
use super::{CompileOptions, Device, ForeignCode, PjrtError, Plugin, Processes};
use bf16scope_hlo::DType;

/// A client of a library.
pub(super) trait Backend: Debug + Send + Sync {
    /// The platform, such as `cpu`.
    fn platform_name(&self) -> Result<String, PjrtError>;
    /// The library's description of its version.
    fn platform_version(&self) -> Result<String, PjrtError>;
    /// The plugin, if there is one.
    fn plugin(&self) -> Option<&'static Plugin>;
    /// The devices this process can use.
    fn devices(&self) -> &[Device];
    /// The processes that share the platform's devices.
    fn processes(&self) -> &Processes;
    /// Compiles a program, which decodes as an `HloModuleProto`, and loads it.
    fn compile(self: Arc<Self>, program: &[u8], options: &CompileOptions) -> Result<Loaded, PjrtError>;
    /// Loads a program written by [`Program::serialize`]. It is machine code, so the caller must vouch for it, or a child
    /// must run it.
    fn load(self: Arc<Self>, executable: &[u8], foreign: Option<ForeignCode>) -> Result<Loaded, PjrtError>;
    /// Copies a dense row-major array to a device; `bytes` has the right size and the device exists.
    fn upload(
        self: Arc<Self>,
        bytes: &[u8],
        dtype: DType,
        dims: &[i64],
        device_idx: usize,
    ) -> Result<Box<dyn Array>, PjrtError>;
    /// The same for the content of a file.
    fn upload_file(
        self: Arc<Self>,
        file: &File,
        dtype: DType,
        dims: &[i64],
        device_idx: usize,
    ) -> Result<Box<dyn Array>, PjrtError> {
        self.upload(&array_in(file, dtype, dims)?, dtype, dims, device_idx)
    }
}

/// The array in a file.
pub(super) fn array_in(file: &File, dtype: DType, dims: &[i64]) -> Result<Vec<u8>, PjrtError> {
    use std::os::unix::fs::FileExt as _;
    let mut bytes = vec![0; n_host_bytes(dtype, dims)?];
    file.read_exact_at(&mut bytes, 0).map_err(|cause| PjrtError::host_file(dtype, dims, cause))?;
    Ok(bytes)
}

/// A loaded program, the result of [`Backend::compile`].
pub(super) struct Loaded {
    pub(super) program: Box<dyn Program>,
    pub(super) runner: Box<dyn Runner>,
    pub(super) n_devices: usize,
}

/// An array on a device.
pub(super) trait Array: Any + Debug + Send + Sync {
    /// Element type.
    fn dtype(&self) -> Result<DType, PjrtError>;
    /// Dimensions.
    fn dims(&self) -> Result<Vec<i64>, PjrtError>;
    /// Bytes it takes on its device.
    fn n_device_bytes(&self) -> Result<usize, PjrtError>;
    /// Whether its memory has been given up.
    fn is_deleted(&self) -> Result<bool, PjrtError>;
    /// The address of its memory on the device.
    fn address(&self) -> Result<usize, PjrtError>;
    /// Copies its elements, dense and row-major, into `bytes`, which has the right size: `dims` are its dimensions.
    fn copy_to_host(&self, bytes: &mut [u8], dims: &[i64]) -> Result<(), PjrtError>;
}

/// An argument of an execution, from the program's client.
#[derive(Clone, Copy, Debug)]
pub(super) struct Given<'a> {
    pub(super) array: &'a dyn Array,
    /// Whether its owner gives up the buffer.
    pub(super) is_donated: bool,
}

/// Runs a loaded program.
pub(super) trait Runner: Debug + Send + Sync {
    /// Runs it once on each device; returns when the outputs are ready. Counts and types of the arguments were checked,
    /// and they belong to the program's client.
    fn execute(&self, args: &[Vec<Given<'_>>], n_outputs: usize) -> Result<Vec<Vec<Box<dyn Array>>>, PjrtError>;
}

/// Memory that a compiled program needs on its device (HBM on a TPU), in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct MemoryStats {
    /// Arguments.
    pub arguments: i64,
    /// Outputs, including those that reuse an argument's memory.
    pub outputs: i64,
    /// Outputs that reuse an argument's memory.
    pub aliased: i64,
    /// Everything in between.
    pub temporaries: i64,
    /// The program.
    pub code: i64,
    /// The peak by the compiler's count; 0 if it does not count it.
    pub peak: i64,
}

impl MemoryStats {
    /// Bytes needed: arguments + outputs − aliased + temporaries + code.
    pub fn total(&self) -> i64 {
        self.arguments + self.outputs - self.aliased + self.temporaries + self.code
    }
}

/// The compiler's information on a program.
pub(super) trait Program: Debug + Send + Sync {
    /// The module's name.
    fn name(&self) -> Result<String, PjrtError>;
    /// Types of the outputs for each device.
    fn outputs(&self) -> Result<Vec<OutputSpec>, PjrtError>;
    /// The number of outputs per device.
    fn n_outputs(&self) -> Result<usize, PjrtError>;
    /// Memory it needs.
    fn memory_stats(&self) -> Result<MemoryStats, PjrtError>;
    /// The compiler's estimates.
    fn cost_analysis(&self) -> Result<BTreeMap<String, f64>, PjrtError>;
    /// The program after the compiler's passes.
    fn optimized_program(&self) -> Result<Vec<u8>, PjrtError>;
    /// Identical for the same program, options and compiler.
    fn fingerprint(&self) -> Result<Vec<u8>, PjrtError>;
    /// The compiled program as bytes, which a client of the same library and version loads.
    fn serialize(&self) -> Result<Vec<u8>, PjrtError>;
}

/// Downcasts an array to its back end's type.
pub(super) fn array<T: Array>(array: &dyn Array) -> &T {
    let array: &dyn Any = array;
    array.downcast_ref().expect("buffers of one client are made by its back end, and arguments are of one client")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_cannot_be_read_is_named_by_its_array() {
        let folder = tempfile::tempdir().unwrap();
        // Opened for writing only.
        let file = File::create(folder.path().join("array")).unwrap();
        file.set_len(8).unwrap();
        let error = array_in(&file, DType::F32, &[2]).unwrap_err();
        assert_eq!(error.to_string(), "f32[2] in a file: Bad file descriptor (os error 9)");
    }
}
