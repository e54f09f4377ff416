//! Clients of plugins: the back end over the PJRT C API. One file per C object; `plugin` loads the library.

mod array;
mod client;
mod device;
pub(super) mod executable;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use self::array::PluginArray;
use self::client::PluginClient;
use super::array_type::type_number;
use super::backend::{Array, Backend, Loaded};
use super::event::Event;
use super::plugin::{call, returned};
use super::program::Format;
use super::{
    Client, CompileOptions, Device, ForeignCode, PjrtError, PjrtErrorKind, PjrtPlace, Plugin, Processes, Value, cpu,
    ffi, program, value,
};
use bf16scope_hlo::DType;

impl Client {
    /// A client of the CPU plugin, which is installed on first use.
    pub fn cpu() -> Result<Client, PjrtError> {
        Client::new(Plugin::cpu()?)
    }

    /// A client of this plugin, made without options.
    pub fn new(plugin: &'static Plugin) -> Result<Client, PjrtError> {
        Client::with_options(plugin, &BTreeMap::new())
    }

    /// A client of this plugin, made with the plugin's options, such as `cpu_device_count`.
    pub fn with_options(plugin: &'static Plugin, options: &BTreeMap<String, Value>) -> Result<Client, PjrtError> {
        Ok(Client::over(PluginClient::new(plugin, options)?))
    }
}

/// Compiles StableHLO on a new client, and discards the result: only the compiler's dumps are needed.
pub(super) fn compile_stablehlo(
    plugin: &'static Plugin,
    program: &[u8],
    options: &CompileOptions,
) -> Result<(), PjrtError> {
    let client = Arc::new(PluginClient::new(plugin, &BTreeMap::new())?);
    compile(&client, program, Format::Mlir, options).map(drop)
}

fn compile(
    client: &Arc<PluginClient>,
    program: &[u8],
    format: Format,
    options: &CompileOptions,
) -> Result<Loaded, PjrtError> {
    let device_ids = &options.device_ids;
    let options = options.encode();
    let mut program = program::program(program, format);
    let mut args = ffi::PJRT_Client_Compile_Args::zeroed();
    args.client = client.raw;
    args.program = &raw mut program;
    args.compile_options = options.as_ptr().cast();
    args.compile_options_size = options.len();
    // SAFETY: a live client; program and options are alive during the call, which is as long as they are needed.
    unsafe { call!(client.plugin, PJRT_Client_Compile, args)? };
    let raw = returned("PJRT_Client_Compile", "executable", args.executable)?;
    // SAFETY: the call returned an executable of this client, which we own.
    unsafe { executable::loaded(client, raw, device_ids) }
}

impl Backend for PluginClient {
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

    fn processes(&self) -> &Processes {
        &self.processes
    }

    fn compile(self: Arc<Self>, program: &[u8], options: &CompileOptions) -> Result<Loaded, PjrtError> {
        // It folds some constants into another order, and leaves some products without an implementation.
        let options = match self.platform_name()?.as_str() {
            "cpu" => cpu::options(program, options)?,
            _ => Cow::Borrowed(options),
        };
        compile(&self, program, Format::Hlo, &options)
    }

    fn load(self: Arc<Self>, executable: &[u8], foreign: Option<ForeignCode>) -> Result<Loaded, PjrtError> {
        const CALL: &str = "PJRT_Executable_DeserializeAndLoad";
        let Some(ForeignCode { .. }) = foreign else { return Err(foreign_executable()) };
        let mut args = ffi::PJRT_Executable_DeserializeAndLoad_Args::zeroed();
        args.client = self.raw;
        args.serialized_executable = executable.as_ptr().cast();
        args.serialized_executable_size = executable.len();
        // SAFETY: a live client; the bytes are alive during the call, and the permission's creator vouches for what
        // they do. Null options: the executable's own.
        unsafe { call!(self.plugin, PJRT_Executable_DeserializeAndLoad, args)? };
        let raw = returned(CALL, "executable", args.loaded_executable)?;
        // SAFETY: the call returned an executable of this client, which we own.
        unsafe { executable::loaded(&self, raw, &[]) }
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
        args.device = self.handles[device_idx].raw;
        // SAFETY: a live client and one of its devices; `bytes` holds the whole dense array, as the caller checked, and
        // the plugin may not keep a reference to it after the call under these semantics.
        unsafe { call!(self.plugin, PJRT_Client_BufferFromHostBuffer, args)? };
        let done = Event::new(self.plugin, args.done_with_host_buffer);
        let raw = returned("PJRT_Client_BufferFromHostBuffer", "buffer", args.buffer);
        // SAFETY: the call returned a buffer of this client, which we own.
        let array = raw.map(|raw| unsafe { PluginArray::new(&self, raw) });
        if let Some(done) = done {
            done.wait()?;
        }
        Ok(Box::new(array?))
    }
}

/// The error for loading an executable, which is machine code, without permission.
fn foreign_executable() -> PjrtError {
    let text = "an executable is not loaded into this process: it is machine code, and nobody vouches for what it does";
    PjrtError::new(PjrtErrorKind::ForeignCode, PjrtPlace::Nowhere, text)
        .with_help("load it in a child process (Client::in_child), or give a ForeignCode")
}
