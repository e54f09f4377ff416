//! A client: devices, and what can be done with them. The buffers that one makes are in `buffer`, the programs that it
//! compiles in `executable`.

use std::sync::Arc;

use super::backend::Backend;
use super::{Device, PjrtError, Plugin};

/// Devices of one library. Cloning shares it; buffers and executables keep it alive.
#[derive(Clone, Debug)]
pub struct Client {
    pub(super) backend: Arc<dyn Backend>,
}

impl Client {
    /// Such as `cpu`.
    pub fn platform_name(&self) -> Result<String, PjrtError> {
        self.backend.platform_name()
    }

    /// What the library says of its version.
    pub fn platform_version(&self) -> Result<String, PjrtError> {
        self.backend.platform_version()
    }

    /// The plugin; `None` for a client that is no plugin's.
    pub fn plugin(&self) -> Option<&'static Plugin> {
        self.backend.plugin()
    }

    /// The devices this process can use, in the library's order: other calls name a device by its position here.
    pub fn devices(&self) -> &[Device] {
        self.backend.devices()
    }

    /// Whether both are one client.
    pub(super) fn is(&self, other: &Client) -> bool {
        std::ptr::addr_eq(Arc::as_ptr(&self.backend), Arc::as_ptr(&other.backend))
    }
}
