//! Clients and compilers in a child process, so that a module which makes XLA abort, hang or exhaust memory gives an
//! error.
//!
//! XLA checks some of its rules by aborting the process, and runs endless loops forever. So modules that bf16scope did
//! not build are compiled and run in a child: [`Client::in_child`] and [`Topology::in_child`] are used like any other
//! client and topology. A child that dies gives a [`ChildError`] with XLA's output, and one that exceeds the time or
//! memory of its [`Limits`] is killed. Its objects are lost then, and every further call reports it; a new client
//! starts a new child.
//!
//! The child is a program that calls [`serve`]: bf16scope itself does for `bf16scope __child`. It is a new process
//! (never forked without `exec`), communicates over a socket that is its standard input, and exits when the parent
//! closes that socket or dies, even in the middle of a computation. Programs and arrays are passed through anonymous
//! shared memory. `process` has the parent's guarantees, `message` and `wire` the protocol, `serve` the child's side.

mod both_ends;
mod client;
mod convert;
mod error;
pub(super) mod memory;
mod message;
mod process;
mod serve;
mod spec;
mod topology;
mod wire;

use std::collections::BTreeMap;

pub use convert::{hlo_of_stablehlo, text_of_stablehlo};
pub use error::{ChildError, Doing};
pub use serve::serve;
pub use spec::{ChildSpec, Limits, SERVE, Stop};
pub use topology::ChildCompiler;

use super::{Client, PjrtError, Platform, Setup, Topology, Value};

impl Client {
    /// A client of this platform in a child process. A plugin is found, and installed on first use, according to
    /// `setup`.
    ///
    /// ```no_run
    /// use bf16scope_pjrt::{ChildSpec, Client, Limits, Platform, Setup};
    /// use std::time::Duration;
    ///
    /// let spec = ChildSpec {
    ///     limits: Limits { timeout: Some(Duration::from_secs(60)), memory: Some(8 << 30) },
    ///     ..ChildSpec::new("/usr/local/bin/bf16scope")
    /// };
    /// let client = Client::in_child(&Platform::cpu(), &Setup::from_env(), &spec)?;
    /// # Ok::<(), bf16scope_pjrt::PjrtError>(())
    /// ```
    pub fn in_child(platform: &Platform, setup: &Setup, spec: &ChildSpec) -> Result<Client, PjrtError> {
        client::open(platform, setup, spec)
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
