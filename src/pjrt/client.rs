//! A client: devices, and what can be done with them. [`Client`] is one of any kind, `Shared` a plugin's.

use std::collections::BTreeMap;
use std::ffi::c_int;
use std::sync::Arc;

use super::backend::{Array, Backend, Loaded};
use super::buffer::{Buffer, PluginArray, type_number};
use super::event::Event;
use super::executable::{self, Executable};
use super::live::{HandleKind, Live};
use super::plugin::{Plugin, call, given, log_drop};
use super::{CompileOptions, Device, PjrtError, Value, ffi, program, value};
use crate::hlo::DType;

/// Devices of one library. Cloning shares it; buffers and executables keep it alive.
#[derive(Clone, Debug)]
pub struct Client {
    pub(super) backend: Arc<dyn Backend>,
}

/// What a plugin's client, its buffers and its executables share.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) plugin: &'static Plugin,
    pub(super) raw: *mut ffi::PJRT_Client,
    devices: Vec<Device>,
    _live: Live,
}

// SAFETY: a `PJRT_Client` may be used by many threads at once (XLA documents `PjRtClient` as thread-safe); the struct
// itself is never mutated after it is made.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

impl Drop for Shared {
    fn drop(&mut self) {
        let mut args = ffi::PJRT_Client_Destroy_Args::zeroed();
        args.client = self.raw;
        // SAFETY: `raw` is live and not used again: whatever refers to it holds this struct in an `Arc`.
        log_drop(unsafe { call!(self.plugin, PJRT_Client_Destroy, args) });
    }
}

impl Client {
    /// A client of the CPU plugin, which is installed on first use.
    pub fn cpu() -> Result<Client, PjrtError> {
        Client::new(Plugin::cpu()?)
    }

    /// A client of this plugin, made without options.
    pub fn new(plugin: &'static Plugin) -> Result<Client, PjrtError> {
        Client::with_options(plugin, &BTreeMap::new())
    }

    /// A client of this plugin, made with options of the plugin's own, such as `cpu_device_count`.
    pub fn with_options(plugin: &'static Plugin, options: &BTreeMap<String, Value>) -> Result<Client, PjrtError> {
        let options = value::encode(options);
        let mut args = ffi::PJRT_Client_Create_Args::zeroed();
        args.create_options = options.as_ptr();
        args.num_options = options.len();
        // SAFETY: no handles; the options are alive during the call; the key-value callbacks may be null in a single
        // process.
        unsafe { call!(plugin, PJRT_Client_Create, args)? };
        let raw = given("PJRT_Client_Create", "client", args.client)?;
        let mut shared = Shared { plugin, raw, devices: Vec::new(), _live: Live::new(HandleKind::Client) };
        shared.devices = read_devices(&shared)?;
        if shared.devices.is_empty() {
            return Err(PjrtError::NoDevices);
        }
        Ok(Client { backend: Arc::new(shared) })
    }

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

    /// Compiles a program (serialized `HloModuleProto`) and loads it on the first devices.
    ///
    /// The program must have passed `hlo::verify`: XLA aborts the process over some of what the verifier rejects.
    pub fn compile(&self, program: &[u8], options: &CompileOptions) -> Result<Executable, PjrtError> {
        let arguments = program::argument_specs(program, options)?;
        let program = program::without_schedule(program)?;
        Executable::new(self, Arc::clone(&self.backend).compile(&program, options)?, arguments)
    }

    /// Copies a dense row-major array to a device. The bytes may be reused when this returns.
    ///
    /// A type under a byte takes one byte per element here (see [`DType::n_bytes`]).
    pub fn buffer_from_host(
        &self,
        bytes: &[u8],
        dtype: DType,
        dims: &[i64],
        device_idx: usize,
    ) -> Result<Buffer, PjrtError> {
        let expected = n_host_bytes(dtype, dims)?;
        if bytes.len() != expected {
            return Err(PjrtError::HostBytes { dtype, dims: dims.to_vec(), measured: bytes.len(), expected });
        }
        let n_devices = self.devices().len();
        if device_idx >= n_devices {
            return Err(PjrtError::NoDevice { idx: device_idx, n_devices });
        }
        Ok(self.buffer(Arc::clone(&self.backend).upload(bytes, dtype, dims, device_idx)?))
    }

    /// An array that this client's back end made.
    pub(super) fn buffer(&self, array: Box<dyn Array>) -> Buffer {
        Buffer { client: self.clone(), array }
    }

    /// Whether both are one client.
    pub(super) fn is(&self, other: &Client) -> bool {
        std::ptr::addr_eq(Arc::as_ptr(&self.backend), Arc::as_ptr(&other.backend))
    }
}

impl Backend for Shared {
    fn platform_name(&self) -> Result<String, PjrtError> {
        let mut args = ffi::PJRT_Client_PlatformName_Args::zeroed();
        args.client = self.raw;
        // SAFETY: a live client; the text lives as long as it, and is copied.
        unsafe {
            call!(self.plugin, PJRT_Client_PlatformName, args)?;
            Ok(value::text(args.platform_name, args.platform_name_size))
        }
    }

    fn platform_version(&self) -> Result<String, PjrtError> {
        let mut args = ffi::PJRT_Client_PlatformVersion_Args::zeroed();
        args.client = self.raw;
        // SAFETY: a live client; the text lives as long as it, and is copied.
        unsafe {
            call!(self.plugin, PJRT_Client_PlatformVersion, args)?;
            Ok(value::text(args.platform_version, args.platform_version_size))
        }
    }

    fn plugin(&self) -> Option<&'static Plugin> {
        Some(self.plugin)
    }

    fn devices(&self) -> &[Device] {
        &self.devices
    }

    fn compile(self: Arc<Self>, program: &[u8], options: &CompileOptions) -> Result<Loaded, PjrtError> {
        let options = options.encode();
        let mut program = program::program(program);
        let mut args = ffi::PJRT_Client_Compile_Args::zeroed();
        args.client = self.raw;
        args.program = &raw mut program;
        args.compile_options = options.as_ptr().cast();
        args.compile_options_size = options.len();
        // SAFETY: a live client; program and options are alive during the call, which is as long as they are needed.
        unsafe { call!(self.plugin, PJRT_Client_Compile, args)? };
        let raw = given("PJRT_Client_Compile", "executable", args.executable)?;
        // SAFETY: the call returned an executable of this client, which we own.
        unsafe { executable::loaded(&self, raw) }
    }

    fn upload(
        self: Arc<Self>,
        bytes: &[u8],
        dtype: DType,
        dims: &[i64],
        device_idx: usize,
    ) -> Result<Box<dyn Array>, PjrtError> {
        let mut args = ffi::PJRT_Client_BufferFromHostBuffer_Args::zeroed();
        args.client = self.raw;
        args.data = bytes.as_ptr().cast();
        args.buffer_type = type_number(dtype)?;
        args.dims = dims.as_ptr();
        args.num_dims = dims.len();
        args.host_buffer_semantics = ffi::IMMUTABLE_ONLY_DURING_CALL;
        args.device = self.devices[device_idx].raw();
        // SAFETY: a live client and one of its devices; `bytes` holds the whole dense array, as the caller checked, and
        // the plugin may not keep a reference to it after the call under these semantics.
        unsafe { call!(self.plugin, PJRT_Client_BufferFromHostBuffer, args)? };
        let done = Event::new(self.plugin, args.done_with_host_buffer);
        let raw = given("PJRT_Client_BufferFromHostBuffer", "buffer", args.buffer);
        // SAFETY: the call returned a buffer of this client, which we own.
        let array = raw.map(|raw| unsafe { PluginArray::new(&self, raw) });
        if let Some(done) = done {
            done.wait()?;
        }
        Ok(Box::new(array?))
    }
}

/// Copies the devices out of a new client.
fn read_devices(shared: &Shared) -> Result<Vec<Device>, PjrtError> {
    let mut args = ffi::PJRT_Client_AddressableDevices_Args::zeroed();
    args.client = shared.raw;
    // SAFETY: a live client; its devices live as long as it, and `Shared` drops them before it frees the client.
    unsafe {
        call!(shared.plugin, PJRT_Client_AddressableDevices, args)?;
        value::whole_list("PJRT_Client_AddressableDevices", args.addressable_devices, args.num_addressable_devices)?
            .iter()
            .map(|&raw| Device::read(shared.plugin, given("PJRT_Client_AddressableDevices", "device", raw)?))
            .collect()
    }
}

/// Bytes of a dense array on the host.
pub(super) fn n_host_bytes(dtype: DType, dims: &[i64]) -> Result<usize, PjrtError> {
    let sizes = dims.iter().map(|&dim| usize::try_from(dim).ok());
    sizes
        .into_iter()
        .try_fold(dtype.n_bytes(), |product, dim| product.checked_mul(dim?))
        .filter(|&product| product <= isize::MAX as usize)
        .ok_or_else(|| PjrtError::Dims { dtype, dims: dims.to_vec() })
}

/// `PJRT_Buffer_Type` numbers travel as C ints.
pub(super) type BufferType = c_int;
