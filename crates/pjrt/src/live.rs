//! Counts live plugin handles, by kind, so that a test can prove that every one is freed, on error paths too.

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

/// The kind of a counted handle.
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

/// Counts one handle while it is alive; a field of the handle's owner.
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

/// The numbers of live handles.
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
