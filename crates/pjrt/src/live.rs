//! How many plugin handles are alive, by kind: what lets a test prove that every one is freed, on error paths too.

use std::sync::atomic::{AtomicUsize, Ordering};

/// Plugin handles alive in this process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LiveHandles {
    /// `PJRT_Client`s.
    pub clients: usize,
    /// `PJRT_LoadedExecutable`s.
    pub loaded_executables: usize,
    /// `PJRT_Executable`s.
    pub executables: usize,
    /// `PJRT_Buffer`s.
    pub buffers: usize,
    /// `PJRT_Event`s.
    pub events: usize,
    /// `PJRT_TopologyDescription`s.
    pub topologies: usize,
    /// `PJRT_Error`s.
    pub errors: usize,
}

/// What kind of handle is counted.
#[derive(Clone, Copy, Debug)]
pub(super) enum HandleKind {
    Client,
    LoadedExecutable,
    Executable,
    Buffer,
    Event,
    Topology,
    Error,
}

static COUNTS: [AtomicUsize; 7] = [const { AtomicUsize::new(0) }; 7];

/// Counts one handle for as long as it lives; a field of whatever owns the handle.
#[derive(Debug)]
pub(super) struct Live(HandleKind);

impl Live {
    pub(super) fn new(kind: HandleKind) -> Live {
        COUNTS[kind as usize].fetch_add(1, Ordering::Relaxed);
        Live(kind)
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        COUNTS[self.0 as usize].fetch_sub(1, Ordering::Relaxed);
    }
}

/// Counts of the handles alive now.
pub fn live_handles() -> LiveHandles {
    let count = |kind: HandleKind| COUNTS[kind as usize].load(Ordering::Relaxed);
    LiveHandles {
        clients: count(HandleKind::Client),
        loaded_executables: count(HandleKind::LoadedExecutable),
        executables: count(HandleKind::Executable),
        buffers: count(HandleKind::Buffer),
        events: count(HandleKind::Event),
        topologies: count(HandleKind::Topology),
        errors: count(HandleKind::Error),
    }
}
