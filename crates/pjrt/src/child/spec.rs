//! The child's program, and its limits.

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// The argument that makes bf16scope a child.
pub const SERVE: &str = "__child";

/// The child's program, and its limits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChildSpec {
    /// A bf16scope program of this version, or one that calls [`serve`](super::serve()) when it is given `arguments`.
    pub program: PathBuf,
    /// Its arguments.
    pub arguments: Vec<OsString>,
    /// Its limits.
    pub limits: Limits,
    /// Stops it in the middle of a call.
    pub stop: Stop,
}

/// Kills all children that share it, from any thread: for Ctrl-C in a process that goes on.
#[derive(Clone, Debug, Default)]
pub struct Stop(Arc<AtomicBool>);

impl Stop {
    /// Kills the children, within some 20 milliseconds; their requests return a
    /// [`ChildError::Gone`](super::ChildError).
    pub fn ask(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Whether it was requested.
    pub fn is_asked(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// Equal if it is the same flag.
impl PartialEq for Stop {
    fn eq(&self, other: &Stop) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Stop {}

/// The limits of a child before it is killed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// The time limit of one call: a compile, a run, a copy. `None`: unlimited.
    pub timeout: Option<Duration>,
    /// The limit of resident bytes (reserved address space does not count). `None`: all but a sixteenth of what the
    /// machine, or the container, has available when the child starts.
    pub memory: Option<u64>,
}

impl ChildSpec {
    /// A bf16scope program, limited only by the machine.
    pub fn new(program: impl Into<PathBuf>) -> ChildSpec {
        ChildSpec {
            program: program.into(),
            arguments: vec![SERVE.into()],
            limits: Limits::default(),
            stop: Stop::default(),
        }
    }
}
