//! Clients and compilers in a child process, so that a module which makes XLA abort, hang or take all memory is an error.
//!
//! XLA checks some of its rules by ending the process, and runs loops without an end for as long as they take. So whatever
//! runs or compiles a module that bf16scope did not build does it in a child: [`Client::in_child`] and
//! [`Topology::in_child`] are used as any other client and topology are. A child that ends is a [`ChildError`] with what
//! XLA wrote, and one that takes longer or more memory than its [`Limits`] is ended. What was on it is gone then, and every
//! further call says so; another client is another child.
//!
//! The child is a program that calls [`serve`]: bf16scope itself does for `bf16scope __child`. It is started afresh (never
//! forked without `exec`), speaks over a socket that is its standard input, and ends when the parent closes that socket or
//! dies, also in the middle of a computation. Programs and arrays go through shared memory without a name. What the parent
//! must be sure of is in `process`, what is sent in `message` and `wire`, the child's side in `serve`.

mod client;
mod error;
pub(super) mod memory;
mod message;
mod process;
mod said;
mod serve;
mod topology;
mod wire;

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

pub(super) use client::device_memory;
pub use error::{ChildError, Doing};
pub(super) use process::Child;
pub use serve::serve;

use super::{Client, PjrtError, Platform, Setup, Topology};
use crate::pjrt::Value;
use std::collections::BTreeMap;

/// What bf16scope is called with to be a child.
pub const SERVE: &str = "__child";

/// Which program is the child, and what it may take.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChildSpec {
    /// A bf16scope program of this version, or one that calls [`serve`] when it is given `arguments`.
    pub program: PathBuf,
    /// What it is called with.
    pub arguments: Vec<OsString>,
    /// What it may take.
    pub limits: Limits,
}

/// What a child may take before it is ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Longest that one call may take: a compile, a run, a copy. `None`: as long as it takes.
    pub timeout: Option<Duration>,
    /// Most bytes it may have in memory (resident: what is only reserved does not count). `None`: all but a sixteenth of
    /// what the machine, or the container, has available when the child starts.
    pub memory: Option<u64>,
}

impl ChildSpec {
    /// A bf16scope program, with no limits but the machine's.
    pub fn new(program: impl Into<PathBuf>) -> ChildSpec {
        ChildSpec { program: program.into(), arguments: vec![SERVE.into()], limits: Limits::default() }
    }
}

impl Client {
    /// A client of this platform in a child process. A plugin is found, and installed on first use, as `setup` says.
    ///
    /// ```no_run
    /// use bf16scope::pjrt::{ChildSpec, Client, Limits, Platform, Setup};
    /// use std::time::Duration;
    ///
    /// let spec = ChildSpec {
    ///     limits: Limits { timeout: Some(Duration::from_secs(60)), memory: Some(8 << 30) },
    ///     ..ChildSpec::new("/usr/local/bin/bf16scope")
    /// };
    /// let client = Client::in_child(&Platform::cpu(), &Setup::from_env(), &spec)?;
    /// # Ok::<(), bf16scope::pjrt::PjrtError>(())
    /// ```
    pub fn in_child(platform: &Platform, setup: &Setup, spec: &ChildSpec) -> Result<Client, PjrtError> {
        client::open(platform, setup, spec)
    }
}

/// A child that compiles for devices which are not here. It is started when it is first asked, and again after it ended.
#[derive(Debug)]
pub struct ChildCompiler {
    spec: ChildSpec,
    child: std::sync::Mutex<Option<Arc<process::Child>>>,
}

impl ChildCompiler {
    /// A compiler in a child; nothing is started yet.
    pub fn new(spec: &ChildSpec) -> ChildCompiler {
        ChildCompiler { spec: spec.clone(), child: std::sync::Mutex::default() }
    }
}

impl Topology {
    /// A topology of the TPU compiler in a child.
    pub fn in_child(
        compiler: &ChildCompiler,
        setup: &Setup,
        name: &str,
        options: &BTreeMap<String, Value>,
    ) -> Result<Topology, PjrtError> {
        topology::open(compiler, setup, name, options)
    }
}
