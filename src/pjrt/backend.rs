//! What a client is made of, whichever library runs the programs: the traits behind [`Client`](super::Client),
//! [`Buffer`](super::Buffer), [`Executable`](super::Executable) and [`Compiled`](super::Compiled).
//!
//! [`Backend`] is the door; the objects it makes answer for themselves. Plugins implement them over the C API (in
//! `client`, `buffer`, `executable`), xla-rs over its own objects (in `xla`, with the feature of that name). What
//! holds for all of them is checked above, once: sizes of host arrays, device numbers, counts and types of arguments.

use std::any::Any;
use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::Arc;

use super::{Arg, Buffer, CompileOptions, Compiled, Device, MemoryStats, OutputSpec, PjrtError, Plugin};
use crate::hlo::DType;

/// A client of some library.
pub(super) trait Backend: Debug + Send + Sync {
    /// Such as `cpu`.
    fn platform_name(&self) -> Result<String, PjrtError>;
    /// What the library says of its version.
    fn platform_version(&self) -> Result<String, PjrtError>;
    /// The plugin, where there is one.
    fn plugin(&self) -> Option<&'static Plugin>;
    /// The devices this process can use.
    fn devices(&self) -> &[Device];
    /// Compiles a program, which decodes as an `HloModuleProto`, and loads it.
    fn compile(self: Arc<Self>, program: &[u8], options: &CompileOptions) -> Result<Loaded, PjrtError>;
    /// Copies a dense row-major array, which `bytes` holds whole, to a device that exists.
    fn upload(
        self: Arc<Self>,
        bytes: &[u8],
        dtype: DType,
        dims: &[i64],
        device_idx: usize,
    ) -> Result<Box<dyn Array>, PjrtError>;
}

/// A loaded program, as it comes out of [`Backend::compile`].
pub(super) struct Loaded {
    pub(super) compiled: Compiled,
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
    /// Where it is on its device.
    fn address(&self) -> Result<usize, PjrtError>;
    /// Copies its elements, dense and row-major, into `bytes`, which they fill: `dims` are its dimensions.
    fn copy_to_host(&self, bytes: &mut [u8], dims: &[i64]) -> Result<(), PjrtError>;
}

/// Runs a loaded program.
pub(super) trait Runner: Debug + Send + Sync {
    /// Runs it once on each device; returns when the outputs are there. Counts and types of the arguments are right,
    /// and they are of the program's client.
    fn execute(&self, args: &[Vec<Arg<'_>>], n_outputs: usize) -> Result<Vec<Vec<Box<dyn Array>>>, PjrtError>;
}

/// What a compiler says of a program.
pub(super) trait Program: Debug + Send + Sync {
    /// The module's name.
    fn name(&self) -> Result<String, PjrtError>;
    /// Types of the outputs for each device.
    fn outputs(&self) -> Result<Vec<OutputSpec>, PjrtError>;
    /// How many outputs there are for each device.
    fn n_outputs(&self) -> Result<usize, PjrtError>;
    /// Memory it needs.
    fn memory_stats(&self) -> Result<MemoryStats, PjrtError>;
    /// The compiler's estimates.
    fn cost_analysis(&self) -> Result<BTreeMap<String, f64>, PjrtError>;
    /// The program after the compiler's passes.
    fn optimized_program(&self) -> Result<Vec<u8>, PjrtError>;
    /// The same for the same program, options and compiler.
    fn fingerprint(&self) -> Result<Vec<u8>, PjrtError>;
}

/// The array behind a buffer, as its own back end made it.
pub(super) fn array<T: Array>(buffer: &Buffer) -> &T {
    let array: &dyn Any = &*buffer.array;
    array.downcast_ref().expect("buffers of one client are made by its back end, and arguments are of one client")
}
