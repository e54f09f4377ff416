//! Which program is the child, and what it may take.

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// What bf16scope is called with to be a child.
pub const SERVE: &str = "__child";

/// Which program is the child, and what it may take.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChildSpec {
    /// A bf16scope program of this version, or one that calls [`serve`](super::serve()) when it is given `arguments`.
    pub program: PathBuf,
    /// What it is called with.
    pub arguments: Vec<OsString>,
    /// What it may take.
    pub limits: Limits,
    /// What ends it in the middle of a call.
    pub stop: Stop,
}

/// A word that ends whatever child is told it, from any thread: for Ctrl-C where the process goes on.
#[derive(Clone, Debug, Default)]
pub struct Stop(Arc<AtomicBool>);

impl Stop {
    /// Ends the children, within some 20 milliseconds; what they were asked for is a [`ChildError::Gone`](super::ChildError).
    pub fn ask(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Whether it was said.
    pub fn is_asked(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// One word is equal to itself.
impl PartialEq for Stop {
    fn eq(&self, other: &Stop) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Stop {}

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
        ChildSpec {
            program: program.into(),
            arguments: vec![SERVE.into()],
            limits: Limits::default(),
            stop: Stop::default(),
        }
    }
}
