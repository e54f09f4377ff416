//! Devices: what a library says of them. Descriptions are plain data, made with the client or topology.

use std::collections::BTreeMap;
use std::fmt::Debug;

use serde::{Deserialize, Serialize};

use super::plugin::{Plugin, call};
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

/// The processes that share a platform's devices, one on each host of a slice, and which of them this is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Processes {
    /// This process.
    pub own_idx: i32,
    /// The devices of all processes, this one's among them.
    pub devices: Vec<DeviceDescription>,
}

impl Processes {
    /// Which of the processes that have devices this is, from 0, and how many they are.
    pub fn rank(&self) -> (usize, usize) {
        let of: std::collections::BTreeSet<i32> = self.devices.iter().map(|device| device.process_idx).collect();
        (of.iter().filter(|&&process| process < self.own_idx).count(), of.len().max(1))
    }

    /// One process, which has these devices to itself.
    pub(super) fn one(devices: &[Device]) -> Processes {
        let devices: Vec<DeviceDescription> = devices.iter().map(|device| device.description().clone()).collect();
        Processes { own_idx: devices.first().map_or(0, |device| device.process_idx), devices }
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
    counter: Box<dyn CountsMemory>,
    description: DeviceDescription,
}

/// What counts a device's memory: the back end that has it.
pub(super) trait CountsMemory: Debug + Send + Sync {
    /// What its allocator counts.
    fn memory(&self) -> Result<DeviceMemory, PjrtError>;
}

impl Device {
    pub(super) fn new(description: DeviceDescription, counter: Box<dyn CountsMemory>) -> Device {
        Device { counter, description }
    }

    /// What the device is.
    pub fn description(&self) -> &DeviceDescription {
        &self.description
    }

    /// What its allocator counts. A plugin that does not count answers with `UNIMPLEMENTED`.
    pub fn memory(&self) -> Result<DeviceMemory, PjrtError> {
        self.counter.memory()
    }
}
