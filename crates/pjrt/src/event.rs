//! A `PJRT_Event`: something the plugin finishes later. Awaited, then destroyed.

use super::live::{HandleKind, Live};
use super::plugin::{Plugin, call};
use super::{PjrtError, ffi};

/// Pending work in the plugin. Dropping it abandons the wait, not the work.
pub(super) struct Event {
    plugin: &'static Plugin,
    raw: *mut ffi::PJRT_Event,
    _live: Live,
}

impl Event {
    /// Takes over an event that a call returned. Null means that there is nothing to wait for.
    pub(super) fn new(plugin: &'static Plugin, raw: *mut ffi::PJRT_Event) -> Option<Event> {
        (!raw.is_null()).then(|| Event { plugin, raw, _live: Live::new(HandleKind::Event) })
    }

    /// Blocks until the work is done, and returns its result.
    pub(super) fn wait(self) -> Result<(), PjrtError> {
        let mut args = ffi::PJRT_Event_Await_Args::zeroed();
        args.event = self.raw;
        // SAFETY: `raw` is a live event of this plugin, owned by `self`.
        unsafe { call!(self.plugin, PJRT_Event_Await, args) }
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        let mut args = ffi::PJRT_Event_Destroy_Args::zeroed();
        args.event = self.raw;
        // SAFETY: `raw` is a live event of this plugin; it is not used again.
        let freed = unsafe { call!(self.plugin, PJRT_Event_Destroy, args) };
        super::plugin::log_drop(freed);
    }
}
