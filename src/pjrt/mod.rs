//! PJRT: load a plugin, compile HLO, run it, read back what the compiler says. Our own thin, safe layer over the C API.
//!
//! One file per C object. A [`Plugin`] is a shared library, described by a [`PluginSpec`], found by [`locate`], loaded once
//! per process and never unloaded. Loading one runs code that Rust knows nothing of: pinned plugins are checked, for any
//! other file the caller gives a [`ForeignCode`]. A [`Client`] owns its devices; an [`Executable`] and a [`Buffer`] keep their client alive. A [`Topology`]
//! describes devices that are not here, and compiles for them. [`Client::in_child`] is all of that in another process. Every handle frees itself, errors are read and freed
//! on every path, events are awaited, donation is explicit ([`Arg`]). [`live_handles`] counts what is alive.
//!
//! This room does not build programs (`graph`), judge them (`hlo::verify`, which must come first: XLA checks some
//! things by aborting the process) nor print. It is the only room with `unsafe`.
//!
//! Source: `pjrt_c_api.h`, PJRT C API 0.81; see [`ffi`].

pub mod ffi;

mod backend;
mod buffer;
mod child;
mod client;
mod device;
mod elf;
mod environment;
mod error;
mod event;
mod executable;
mod install;
mod live;
mod locate;
mod options;
mod platform;
mod plugin;
mod program;
mod spec;
mod topology;
mod value;
mod whole;
#[cfg(feature = "xla")]
pub mod xla;

pub use buffer::Buffer;
pub use child::memory::available as available_memory;
pub use child::{ChildCompiler, ChildError, ChildSpec, Doing, Limits, SERVE, serve};
pub use client::Client;
pub use device::{Device, DeviceDescription, DeviceMemory};
pub use environment::prepare_environment;
pub use error::{Code, PjrtError};
pub use executable::{Arg, Compiled, Executable, MemoryStats, OutputSpec};
pub use install::{InstallError, Progress, set_progress};
pub use live::{LiveHandles, live_handles};
pub use locate::{ForeignCode, Located, Setup, Source, installed, locate, named};
pub use options::{CompileOptions, OptionValue};
pub use platform::Platform;
pub use plugin::Plugin;
pub use spec::{Hardware, Pinned, PluginSpec, Purpose, Setting};
pub use topology::Topology;
pub use value::Value;
pub use whole::{Damage, Installed};
