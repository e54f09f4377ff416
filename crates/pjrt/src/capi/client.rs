//! A client of a plugin, with its devices.

use std::collections::BTreeMap;

use super::device::PluginDevice;
use crate::live::{HandleKind, Live};
use crate::plugin::{call, log_drop, returned};
use crate::{Device, PjrtError, PjrtErrorKind, PjrtPlace, Plugin, Processes, Value, ffi, value};

/// A plugin's client, shared by its buffers and executables.
#[derive(Debug)]
pub(crate) struct PluginClient {
    pub(super) plugin: &'static Plugin,
    pub(super) raw: *mut ffi::PJRT_Client,
    /// Parallel lists: the descriptions, and the plugin's handles.
    pub(super) devices: Vec<Device>,
    pub(super) handles: Vec<PluginDevice>,
    pub(super) processes: Processes,
    _live: Live,
}

// SAFETY: a `PJRT_Client` may be used by many threads at once (XLA documents `PjRtClient` as thread-safe); the struct
// itself is never mutated after it is made.
unsafe impl Send for PluginClient {}
// SAFETY: as above.
unsafe impl Sync for PluginClient {}

impl Drop for PluginClient {
    fn drop(&mut self) {
        let mut args = ffi::PJRT_Client_Destroy_Args::zeroed();
        args.client = self.raw;
        // SAFETY: `raw` is live and not used again: everything that refers to it holds this struct in an `Arc`.
        log_drop(unsafe { call!(self.plugin, PJRT_Client_Destroy, args) });
    }
}

impl PluginClient {
    /// A client made with options of the plugin's own.
    pub(super) fn new(plugin: &'static Plugin, options: &BTreeMap<String, Value>) -> Result<PluginClient, PjrtError> {
        let options = value::encode(options);
        let mut args = ffi::PJRT_Client_Create_Args::zeroed();
        args.create_options = options.as_ptr();
        args.num_options = options.len();
        // SAFETY: no handles; the options are alive during the call; the key-value callbacks may be null in a single
        // process.
        unsafe { call!(plugin, PJRT_Client_Create, args)? };
        let raw = returned("PJRT_Client_Create", "client", args.client)?;
        let mut client = PluginClient {
            plugin,
            raw,
            devices: Vec::new(),
            handles: Vec::new(),
            processes: Processes::one(&[]),
            _live: Live::new(HandleKind::Client),
        };
        (client.handles, client.devices) = read_devices(&client)?;
        if client.devices.is_empty() {
            let text = "the client has no devices that this process can use";
            let error = PjrtError::new(PjrtErrorKind::Device, PjrtPlace::Nowhere, text);
            return Err(error.with_help("name another device"));
        }
        client.processes = read_processes(&client)?;
        Ok(client)
    }
}

/// Copies the devices out of a new client.
fn read_devices(client: &PluginClient) -> Result<(Vec<PluginDevice>, Vec<Device>), PjrtError> {
    let mut args = ffi::PJRT_Client_AddressableDevices_Args::zeroed();
    args.client = client.raw;
    // SAFETY: a live client; its devices live as long as it, and `PluginClient` drops them before it frees the client.
    unsafe {
        call!(client.plugin, PJRT_Client_AddressableDevices, args)?;
        value::whole_list("PJRT_Client_AddressableDevices", args.addressable_devices, args.num_addressable_devices)?
            .iter()
            .map(|&raw| PluginDevice::read(client.plugin, returned("PJRT_Client_AddressableDevices", "device", raw)?))
            .collect()
    }
}

/// Copies a new client's information on all processes.
fn read_processes(client: &PluginClient) -> Result<Processes, PjrtError> {
    const CALL: &str = "PJRT_Client_Devices";
    let mut index = ffi::PJRT_Client_ProcessIndex_Args::zeroed();
    index.client = client.raw;
    let mut all = ffi::PJRT_Client_Devices_Args::zeroed();
    all.client = client.raw;
    // SAFETY: a live client; its devices live as long as it, and only their descriptions are kept, which are copies.
    let devices = unsafe {
        call!(client.plugin, PJRT_Client_ProcessIndex, index)?;
        call!(client.plugin, PJRT_Client_Devices, all)?;
        value::whole_list(CALL, all.devices, all.num_devices)?
            .iter()
            .map(|&raw| {
                let (_, device) = PluginDevice::read(client.plugin, returned(CALL, "device", raw)?)?;
                Ok(device.description().clone())
            })
            .collect::<Result<Vec<_>, PjrtError>>()?
    };
    // Numbering replicas by all devices requires that this process's are among them.
    let is_there = |own: &&Device| devices.iter().any(|device| device.id == own.description().id);
    match client.devices.iter().find(|device| !is_there(device)) {
        None => Ok(Processes { own_idx: index.process_index, devices }),
        Some(missing) => {
            let (n, id) = (devices.len(), missing.description().id);
            Err(PjrtError::impossible(CALL, format_args!("{n} devices without device {id} of this process")))
        }
    }
}
