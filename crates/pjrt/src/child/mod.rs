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
mod convert;
mod error;
pub(super) mod memory;
mod message;
mod process;
mod said;
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
    /// A client of this platform in a child process. A plugin is found, and installed on first use, as `setup` says.
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
