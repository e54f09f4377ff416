//! Devices: what a plugin says of them. Plain data, copied out of the plugin when the client or topology is made.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::child;
#[cfg(feature = "xla")]
use super::error::USE_THE_PLUGIN;
use super::plugin::{Plugin, call, given};
use super::{PjrtError, Value, ffi, value};

/// What a device is, whether it is here or only described.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DeviceDescription {
    /// Unique among the devices of its client or topology.
    pub id: i32,
    /// The process it belongs to.
    pub process_idx: i32,
    /// Its kind, such as `cpu` or `TPU v2`.
    pub kind: String,
    /// Its short name, for people.
    pub name: String,
    /// Its long name, for bug reports.
    pub debug_name: String,
    /// What else the plugin says, such as `device_memory_bytes_limit`.
    pub attributes: BTreeMap<String, Value>,
}

impl DeviceDescription {
    /// Copies a description out of the plugin.
    ///
    /// # Safety
    /// `raw` is a live description of this plugin.
    pub(super) unsafe fn read(
        plugin: &'static Plugin,
        raw: *mut ffi::PJRT_DeviceDescription,
    ) -> Result<DeviceDescription, PjrtError> {
        let mut id = ffi::PJRT_DeviceDescription_Id_Args::zeroed();
        id.device_description = raw;
        let mut process = ffi::PJRT_DeviceDescription_ProcessIndex_Args::zeroed();
        process.device_description = raw;
        let mut kind = ffi::PJRT_DeviceDescription_Kind_Args::zeroed();
        kind.device_description = raw;
        let mut name = ffi::PJRT_DeviceDescription_ToString_Args::zeroed();
        name.device_description = raw;
        let mut debug_name = ffi::PJRT_DeviceDescription_DebugString_Args::zeroed();
        debug_name.device_description = raw;
        let mut attributes = ffi::PJRT_DeviceDescription_Attributes_Args::zeroed();
        attributes.device_description = raw;
        // SAFETY: `raw` is live by the caller's promise; texts and attributes live as long as it, and are copied.
        unsafe {
            call!(plugin, PJRT_DeviceDescription_Id, id)?;
            call!(plugin, PJRT_DeviceDescription_ProcessIndex, process)?;
            call!(plugin, PJRT_DeviceDescription_Kind, kind)?;
            call!(plugin, PJRT_DeviceDescription_ToString, name)?;
            call!(plugin, PJRT_DeviceDescription_DebugString, debug_name)?;
            call!(plugin, PJRT_DeviceDescription_Attributes, attributes)?;
            Ok(DeviceDescription {
                id: id.id,
                process_idx: process.process_index,
                kind: value::text(kind.device_kind, kind.device_kind_size),
                name: value::text(name.to_string, name.to_string_size),
                debug_name: value::text(debug_name.debug_string, debug_name.debug_string_size),
                attributes: value::decode(
                    "PJRT_DeviceDescription_Attributes",
                    attributes.attributes,
                    attributes.num_attributes,
                )?,
            })
        }
    }
}

/// Memory of a device as its allocator counts it, in bytes. `None`: the plugin does not say.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceMemory {
    /// Bytes in use now.
    pub in_use: i64,
    /// The most bytes that were in use at once.
    pub peak_in_use: Option<i64>,
    /// Bytes that a user can allocate.
    pub limit: Option<i64>,
}

/// A device that this process can use. Belongs to its [`Client`](super::Client).
#[derive(Debug)]
pub struct Device {
    owner: Owner,
    description: DeviceDescription,
}

/// Who knows more of a device.
#[derive(Debug)]
enum Owner {
    Plugin(Handle),
    Child {
        child: Arc<child::Child>,
        idx: usize,
    },
    #[cfg(feature = "xla")]
    XlaRs,
}

/// What a plugin knows a device by.
#[derive(Debug)]
struct Handle {
    raw: *mut ffi::PJRT_Device,
    plugin: &'static Plugin,
}

// SAFETY: the C API lets any thread ask a device; the device lives as long as its client, which owns this struct.
unsafe impl Send for Handle {}
// SAFETY: as above.
unsafe impl Sync for Handle {}

impl Device {
    /// # Safety
    /// `raw` is a live device of this plugin, and the struct is dropped before its client.
    pub(super) unsafe fn read(plugin: &'static Plugin, raw: *mut ffi::PJRT_Device) -> Result<Device, PjrtError> {
        let mut args = ffi::PJRT_Device_GetDescription_Args::zeroed();
        args.device = raw;
        // SAFETY: `raw` is live by the caller's promise, and the description lives as long as it.
        let description = unsafe {
            call!(plugin, PJRT_Device_GetDescription, args)?;
            let raw = given("PJRT_Device_GetDescription", "description", args.device_description)?;
            DeviceDescription::read(plugin, raw)?
        };
        Ok(Device { owner: Owner::Plugin(Handle { raw, plugin }), description })
    }

    /// A device of a child's client, by its position there.
    pub(super) fn of_child(child: &Arc<child::Child>, idx: usize, description: DeviceDescription) -> Device {
        Device { owner: Owner::Child { child: Arc::clone(child), idx }, description }
    }

    /// A device of xla-rs.
    #[cfg(feature = "xla")]
    pub(super) fn without_plugin(description: DeviceDescription) -> Device {
        Device { owner: Owner::XlaRs, description }
    }

    /// The plugin's own pointer; null where no plugin has it.
    pub(super) fn raw(&self) -> *mut ffi::PJRT_Device {
        match &self.owner {
            Owner::Plugin(handle) => handle.raw,
            Owner::Child { .. } => std::ptr::null_mut(),
            #[cfg(feature = "xla")]
            Owner::XlaRs => std::ptr::null_mut(),
        }
    }

    /// What the device is.
    pub fn description(&self) -> &DeviceDescription {
        &self.description
    }

    /// What its allocator counts. A plugin that does not count answers with `UNIMPLEMENTED`.
    pub fn memory(&self) -> Result<DeviceMemory, PjrtError> {
        let handle = match &self.owner {
            Owner::Plugin(handle) => handle,
            Owner::Child { child, idx } => return child::device_memory(child, *idx),
            #[cfg(feature = "xla")]
            Owner::XlaRs => {
                return Err(PjrtError::NotInXlaRs { what: "memory statistics of a device", help: USE_THE_PLUGIN });
            }
        };
        let mut args = ffi::PJRT_Device_MemoryStats_Args::zeroed();
        args.device = handle.raw;
        // SAFETY: `raw` is a live device: the client that owns `self` is alive.
        unsafe { call!(handle.plugin, PJRT_Device_MemoryStats, args)? };
        Ok(DeviceMemory {
            in_use: args.bytes_in_use,
            peak_in_use: args.peak_bytes_in_use_is_set.then_some(args.peak_bytes_in_use),
            limit: args.bytes_limit_is_set.then_some(args.bytes_limit),
        })
    }
}
