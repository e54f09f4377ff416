//! PJRT: loads a plugin, compiles HLO, runs it, and reads the compiler's information. A thin, safe layer over the C
//! API.
//!
//! A [`Plugin`] is a shared library, described by a [`PluginSpec`], found by [`locate`], loaded once per process and
//! never unloaded. Loading one runs unknown code: pinned plugins are checked, and for any other file the caller
//! supplies a [`ForeignCode`]. A [`Client`] owns its devices; an [`Executable`] and a [`Buffer`] keep their client
//! alive. A [`Topology`] describes devices that are not present, and compiles for them. [`Client::in_child`] does all
//! of that in another process. Every handle frees itself, errors are read and freed on every path, events are awaited,
//! and donation is explicit ([`Arg`]). [`live_handles`] counts the live handles.
//!
//! ```
//! use bf16scope_pjrt::hlo::{proto::encode, text, verify};
//! use bf16scope_pjrt::{Arg, Client, CompileOptions};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let module = text::parse("HloModule double\nENTRY main { x = f32[2] parameter(0) ROOT y = f32[2] add(x, x) }", "double.hlo")?;
//! verify(&module)?; // XLA aborts the process over some of what this refuses
//! let client = Client::cpu()?; // installs the plugin on first use (63 MB, pinned by sha256)
//! let executable = client.compile(&encode::to_bytes(&module)?, &CompileOptions::default())?;
//! let x = client.buffer(&[1.5_f32, 2.0], [2])?;
//! assert_eq!(executable.execute(vec![Arg::Keep(&x)])?[0].to_vec::<f32>()?, [3.0, 4.0]);
//! # Ok(())
//! # }
//! ```
//!
//! `backend` is the trait behind a client. Three folders implement it: `capi` over a plugin, one file per C object;
//! `child` over another process; `xla` over xla-rs.
//!
//! This crate does not build programs (`graph`), does not verify them (`hlo::verify`, which must come first, because
//! XLA checks some rules by aborting the process), and does not print. It is the only crate with `unsafe`.
//!
//! Source: `pjrt_c_api.h`, PJRT C API 0.81; see [`ffi`].

/// The crate of the modules to compile.
pub use bf16scope_hlo as hlo;

pub mod ffi;
pub mod interop;

mod array_type;
mod backend;
mod buffer;
mod capi;
mod child;
mod client;
mod code;
mod compiled;
mod cpu;
mod device;
mod elf;
mod environment;
mod error;
mod event;
mod executable;
mod folding;
mod install;
mod kept;
mod live;
mod locate;
mod options;
mod platform;
mod plugin;
mod program;
mod setup;
mod skimmed;
mod spec;
mod topology;
mod value;
mod whole;
#[cfg(feature = "xla")]
pub mod xla;

pub use array_type::OutputSpec;
pub use backend::MemoryStats;
pub use buffer::Buffer;
pub use child::memory::{address_space, available as available_memory};
pub use child::{
    ChildCompiler, ChildError, ChildSpec, Doing, Limits, SERVE, Stop, hlo_of_stablehlo, serve, text_of_stablehlo,
};
pub use client::Client;
pub use code::Code;
pub use compiled::Compiled;
pub use device::{Device, DeviceDescription, DeviceMemory, Processes};
pub use environment::prepare_environment;
pub use error::{PjrtError, PjrtErrorKind, PjrtPlace};
pub use executable::{Arg, Executable};
pub use install::InstallError;
pub use live::{LiveHandles, live_handles};
pub use locate::{installed, locate, named};
pub use options::{CompileOptions, OptionValue};
pub use platform::{HAS_XLA_RS, Platform};
pub use plugin::Plugin;
pub use setup::{ForeignCode, Located, OnInstall, Progress, Setup, Source};
pub use spec::{Hardware, MAX_CPU_DEVICES, Pinned, PluginSpec, Purpose, Setting, Value};
pub use topology::Topology;
pub use whole::{Damage, Installed};
