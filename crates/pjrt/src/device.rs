//! Devices as the library describes them. Descriptions are plain data, copied when the client or topology is created.

use std::collections::BTreeMap;
use std::fmt::Debug;

use serde::{Deserialize, Serialize};

use super::plugin::{Plugin, call};
use super::{PjrtError, Value, ffi, value};

/// The description of a device, present or not.
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
    /// Further information from the plugin, such as `device_memory_bytes_limit`.
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

/// The processes that share a platform's devices, one on each host of a slice, and which of them this is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Processes {
    /// This process.
    pub own_idx: i32,
    /// The devices of all processes, including this one's.
    pub devices: Vec<DeviceDescription>,
}

impl Processes {
    /// This process's rank among the processes with devices, from 0, and their number.
    pub fn rank(&self) -> (usize, usize) {
        let processes: std::collections::BTreeSet<i32> = self.devices.iter().map(|device| device.process_idx).collect();
        (processes.iter().filter(|&&process| process < self.own_idx).count(), processes.len().max(1))
    }

    /// A single process with these devices.
    pub(super) fn one(devices: &[Device]) -> Processes {
        let devices: Vec<DeviceDescription> = devices.iter().map(|device| device.description().clone()).collect();
        Processes { own_idx: devices.first().map_or(0, |device| device.process_idx), devices }
    }
}

/// A device's memory by its allocator's count, in bytes. `None`: unknown to the plugin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceMemory {
    /// Bytes in use now.
    pub in_use: i64,
    /// The peak of bytes in use.
    pub peak_in_use: Option<i64>,
    /// Bytes available to users.
    pub limit: Option<i64>,
}

/// A device that this process can use. Belongs to its [`Client`](super::Client).
#[derive(Debug)]
pub struct Device {
    counter: Box<dyn CountsMemory>,
    description: DeviceDescription,
}

/// Counts a device's memory: implemented by the back end.
pub(super) trait CountsMemory: Debug + Send + Sync {
    /// The allocator's counts.
    fn memory(&self) -> Result<DeviceMemory, PjrtError>;
}

impl Device {
    pub(super) fn new(description: DeviceDescription, counter: Box<dyn CountsMemory>) -> Device {
        Device { counter, description }
    }

    /// The device's description.
    pub fn description(&self) -> &DeviceDescription {
        &self.description
    }

    /// The allocator's counts. A plugin without them returns `UNIMPLEMENTED`.
    pub fn memory(&self) -> Result<DeviceMemory, PjrtError> {
        self.counter.memory()
    }
}
