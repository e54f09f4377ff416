//! A device of a plugin.

use crate::device::CountsMemory;
use crate::plugin::{call, returned};
use crate::{Device, DeviceDescription, DeviceMemory, PjrtError, Plugin, ffi};

/// The plugin's handle of a device.
#[derive(Clone, Copy, Debug)]
pub(super) struct PluginDevice {
    pub(super) raw: *mut ffi::PJRT_Device,
    plugin: &'static Plugin,
}

// SAFETY: the C API lets any thread ask a device; the device lives as long as its client, which owns this struct.
unsafe impl Send for PluginDevice {}
// SAFETY: as above.
unsafe impl Sync for PluginDevice {}

impl PluginDevice {
    /// # Safety
    /// `raw` is a live device of this plugin, and both results are dropped before its client.
    pub(super) unsafe fn read(
        plugin: &'static Plugin,
        raw: *mut ffi::PJRT_Device,
    ) -> Result<(PluginDevice, Device), PjrtError> {
        let mut args = ffi::PJRT_Device_GetDescription_Args::zeroed();
        args.device = raw;
        // SAFETY: `raw` is live by the caller's promise, and the description lives as long as it.
        let description = unsafe {
            call!(plugin, PJRT_Device_GetDescription, args)?;
            let raw = returned("PJRT_Device_GetDescription", "description", args.device_description)?;
            DeviceDescription::read(plugin, raw)?
        };
        let device = PluginDevice { raw, plugin };
        Ok((device, Device::new(description, Box::new(device))))
    }
}

impl CountsMemory for PluginDevice {
    fn memory(&self) -> Result<DeviceMemory, PjrtError> {
        let mut args = ffi::PJRT_Device_MemoryStats_Args::zeroed();
        args.device = self.raw;
        // SAFETY: `raw` is a live device: the client that owns `self` is alive.
        unsafe { call!(self.plugin, PJRT_Device_MemoryStats, args)? };
        Ok(DeviceMemory {
            in_use: args.bytes_in_use,
            peak_in_use: args.peak_bytes_in_use_is_set.then_some(args.peak_bytes_in_use),
            limit: args.bytes_limit_is_set.then_some(args.bytes_limit),
        })
    }
}
