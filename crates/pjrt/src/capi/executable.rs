//! Executables of a plugin: its information on a program, and a loaded program.

use std::collections::BTreeMap;
use std::sync::Arc;

use prost::Message;

use super::array::PluginArray;
use super::client::PluginClient;
use crate::array_type::{OutputSpec, dtype_of};
use crate::backend::{Array, Given, Loaded, MemoryStats, Program, Runner, array};
use crate::event::Event;
use crate::live::{HandleKind, Live};
use crate::plugin::{call, log_drop, returned};
use crate::{PjrtError, PjrtErrorKind, PjrtPlace, Plugin, Value, ffi, value};

/// A plugin's information on a program.
#[derive(Debug)]
struct PluginProgram {
    plugin: &'static Plugin,
    raw: *mut ffi::PJRT_Executable,
    /// Keeps the client alive, if the program is loaded on one.
    _client: Option<Arc<PluginClient>>,
    _live: Live,
}

// SAFETY: a `PJRT_Executable` is only read; any thread may do so.
unsafe impl Send for PluginProgram {}
// SAFETY: as above.
unsafe impl Sync for PluginProgram {}

impl Drop for PluginProgram {
    fn drop(&mut self) {
        let mut args = ffi::PJRT_Executable_Destroy_Args::zeroed();
        args.executable = self.raw;
        // SAFETY: `raw` is live and not used again.
        log_drop(unsafe { call!(self.plugin, PJRT_Executable_Destroy, args) });
    }
}

/// A plugin's information on a program that it compiled.
///
/// # Safety
/// `raw` is a live executable of this plugin that is freed nowhere else; `client` is the one it is loaded on, if it is.
pub(crate) unsafe fn compiled(
    plugin: &'static Plugin,
    raw: *mut ffi::PJRT_Executable,
    client: Option<Arc<PluginClient>>,
) -> Box<dyn Program> {
    Box::new(PluginProgram { plugin, raw, _client: client, _live: Live::new(HandleKind::Executable) })
}

impl Program for PluginProgram {
    fn name(&self) -> Result<String, PjrtError> {
        let mut args = ffi::PJRT_Executable_Name_Args::zeroed();
        args.executable = self.raw;
        // SAFETY: a live executable; the text lives as long as it, and is copied.
        unsafe {
            call!(self.plugin, PJRT_Executable_Name, args)?;
            Ok(value::text(args.executable_name, args.executable_name_size))
        }
    }

    fn n_outputs(&self) -> Result<usize, PjrtError> {
        let mut args = ffi::PJRT_Executable_NumOutputs_Args::zeroed();
        args.executable = self.raw;
        // SAFETY: a live executable.
        unsafe { call!(self.plugin, PJRT_Executable_NumOutputs, args)? };
        let n_outputs = args.num_outputs;
        if n_outputs > MOST {
            return Err(PjrtError::impossible("PJRT_Executable_NumOutputs", format!("{n_outputs} outputs")));
        }
        // An execution writes this many handles into our memory, so the number is checked twice.
        let mut types = ffi::PJRT_Executable_OutputElementTypes_Args::zeroed();
        types.executable = self.raw;
        // SAFETY: a live executable. Only the count is used.
        let counted = unsafe { call!(self.plugin, PJRT_Executable_OutputElementTypes, types) };
        match counted.is_ok() && types.num_output_types != n_outputs {
            true => Err(unlike(types.num_output_types, n_outputs)),
            false => Ok(n_outputs),
        }
    }

    fn outputs(&self) -> Result<Vec<OutputSpec>, PjrtError> {
        let mut types = ffi::PJRT_Executable_OutputElementTypes_Args::zeroed();
        types.executable = self.raw;
        let mut sizes = ffi::PJRT_Executable_OutputDimensions_Args::zeroed();
        sizes.executable = self.raw;
        // SAFETY: a live executable; the lists live as long as it. `dims` has as many elements as the ranks add up to.
        let (types, ranks, dims) = unsafe {
            call!(self.plugin, PJRT_Executable_OutputElementTypes, types)?;
            call!(self.plugin, PJRT_Executable_OutputDimensions, sizes)?;
            const DIMS: &str = "PJRT_Executable_OutputDimensions";
            let ranks = value::whole_list(DIMS, sizes.dim_sizes, sizes.num_outputs)?;
            let n_dims = ranks.iter().fold(0usize, |sum, &rank| sum.saturating_add(rank));
            if n_dims > MOST {
                return Err(PjrtError::impossible(DIMS, format!("{n_dims} dimensions")));
            }
            if types.num_output_types != ranks.len() {
                return Err(unlike(types.num_output_types, ranks.len()));
            }
            let types = value::whole_list(TYPES, types.output_types, types.num_output_types)?;
            (types, ranks, value::whole_list(DIMS, sizes.dims, n_dims)?)
        };
        let mut rest = dims;
        let mut outputs = Vec::with_capacity(types.len());
        for (&number, &rank) in types.iter().zip(ranks) {
            let (dims, after) = rest.split_at(rank);
            rest = after;
            outputs.push(OutputSpec { dtype: dtype_of(number)?, dims: dims.to_vec() });
        }
        Ok(outputs)
    }

    fn memory_stats(&self) -> Result<MemoryStats, PjrtError> {
        let mut args = ffi::PJRT_Executable_GetCompiledMemoryStats_Args::zeroed();
        args.executable = self.raw;
        // SAFETY: a live executable.
        unsafe { call!(self.plugin, PJRT_Executable_GetCompiledMemoryStats, args)? };
        Ok(MemoryStats {
            arguments: args.argument_size_in_bytes,
            outputs: args.output_size_in_bytes,
            aliased: args.alias_size_in_bytes,
            temporaries: args.temp_size_in_bytes,
            code: args.generated_code_size_in_bytes,
            peak: args.peak_memory_in_bytes,
        })
    }

    fn cost_analysis(&self) -> Result<BTreeMap<String, f64>, PjrtError> {
        let mut args = ffi::PJRT_Executable_GetCostAnalysis_Args::zeroed();
        args.executable = self.raw;
        // SAFETY: a live executable; the properties live as long as it, and are copied.
        let properties = unsafe {
            call!(self.plugin, PJRT_Executable_GetCostAnalysis, args)?;
            value::decode("PJRT_Executable_GetCostAnalysis", args.properties, args.num_properties)?
        };
        let number = |value| match value {
            Value::Int(int) => Some(int as f64),
            Value::Float(float) => Some(f64::from(float)),
            Value::Str(_) | Value::Ints(_) | Value::Bool(_) => None,
        };
        Ok(properties.into_iter().filter_map(|(name, value)| Some((name, number(value)?))).collect())
    }

    fn optimized_program(&self) -> Result<Vec<u8>, PjrtError> {
        let mut program = ffi::PJRT_Program::zeroed();
        let mut args = ffi::PJRT_Executable_OptimizedProgram_Args::zeroed();
        args.executable = self.raw;
        args.program = &raw mut program;
        // SAFETY: a live executable; a null `code` asks for the size.
        unsafe { call!(self.plugin, PJRT_Executable_OptimizedProgram, args)? };
        const CALL: &str = "PJRT_Executable_OptimizedProgram";
        let n_bytes = program.code_size;
        let mut code = Vec::new();
        if code.try_reserve_exact(n_bytes).is_err() {
            return Err(PjrtError::impossible(CALL, format!("a program of {n_bytes} bytes")));
        }
        code.resize(n_bytes, 0u8);
        program.code = code.as_mut_ptr().cast();
        // SAFETY: as above; `code` has the size that the plugin asked for. The format's name is the plugin's own.
        let format = unsafe {
            call!(self.plugin, PJRT_Executable_OptimizedProgram, args)?;
            value::text(program.format, program.format_size)
        };
        if program.code_size > n_bytes {
            return Err(PjrtError::impossible(
                CALL,
                format!("a program of {} bytes in place of {n_bytes}", program.code_size),
            ));
        }
        code.truncate(program.code_size);
        match format.as_str() {
            "hlo" => Ok(code),
            "hlo_with_config" => HloModuleProtoWithConfig::decode(code.as_slice())
                .map(|with| with.hlo_module)
                .map_err(PjrtError::program),
            _ => {
                let text = format!(
                    "the plugin returned an optimized program in format `{format}`, expected `hlo` or `hlo_with_config`"
                );
                Err(PjrtError::new(PjrtErrorKind::Unsupported, PjrtPlace::Nowhere, text))
            }
        }
    }

    fn fingerprint(&self) -> Result<Vec<u8>, PjrtError> {
        let mut args = ffi::PJRT_Executable_Fingerprint_Args::zeroed();
        args.executable = self.raw;
        // SAFETY: a live executable; the bytes live as long as it, and are copied.
        unsafe {
            call!(self.plugin, PJRT_Executable_Fingerprint, args)?;
            let (start, len) = (args.executable_fingerprint.cast::<u8>(), args.executable_fingerprint_size);
            Ok(value::whole_list("PJRT_Executable_Fingerprint", start, len)?.to_vec())
        }
    }

    fn serialize(&self) -> Result<Vec<u8>, PjrtError> {
        const CALL: &str = "PJRT_Executable_Serialize";
        let mut args = ffi::PJRT_Executable_Serialize_Args::zeroed();
        args.executable = self.raw;
        // SAFETY: a live executable. The bytes live until the deleter is called, and are copied before it is; it is called
        // once, with what the plugin gave it for.
        unsafe {
            call!(self.plugin, PJRT_Executable_Serialize, args)?;
            let (start, len) = (args.serialized_bytes.cast::<u8>(), args.serialized_bytes_size);
            let bytes = value::whole_list(CALL, start, len).map(<[u8]>::to_vec);
            if let Some(delete) = args.serialized_executable_deleter {
                delete(args.serialized_executable);
            }
            bytes
        }
    }
}

/// A program that a plugin loaded. Owns the handle.
#[derive(Debug)]
struct PluginRunner {
    client: Arc<PluginClient>,
    raw: *mut ffi::PJRT_LoadedExecutable,
    n_devices: usize,
    _live: Live,
}

// SAFETY: a `PJRT_LoadedExecutable` may be used by many threads at once (XLA documents `PjRtLoadedExecutable` as
// thread-safe).
unsafe impl Send for PluginRunner {}
// SAFETY: as above.
unsafe impl Sync for PluginRunner {}

impl Drop for PluginRunner {
    fn drop(&mut self) {
        let mut args = ffi::PJRT_LoadedExecutable_Destroy_Args::zeroed();
        args.executable = self.raw;
        // SAFETY: `raw` is live and not used again. The client outlives it.
        log_drop(unsafe { call!(self.client.plugin, PJRT_LoadedExecutable_Destroy, args) });
    }
}

/// A program that a plugin loaded, with the plugin's information on it. If `device_ids` names devices, those of this
/// process among them must be the ones that it runs on, in that order, which is the order of argument lists.
///
/// # Safety
/// `raw` is a live loaded executable of this client that is freed nowhere else.
pub(super) unsafe fn loaded(
    client: &Arc<PluginClient>,
    raw: *mut ffi::PJRT_LoadedExecutable,
    device_ids: &[i32],
) -> Result<Loaded, PjrtError> {
    const DEVICES: &str = "PJRT_LoadedExecutable_AddressableDevices";
    let plugin = client.plugin;
    // Owns the handle from here on, so that it is freed on later errors too.
    let _live = Live::new(HandleKind::LoadedExecutable);
    let mut runner = PluginRunner { client: Arc::clone(client), raw, n_devices: 0, _live };
    let mut args = ffi::PJRT_LoadedExecutable_GetExecutable_Args::zeroed();
    args.loaded_executable = raw;
    // SAFETY: a live loaded executable; the call returns an executable that we own.
    let program = unsafe {
        call!(plugin, PJRT_LoadedExecutable_GetExecutable, args)?;
        let raw = returned("PJRT_LoadedExecutable_GetExecutable", "executable", args.executable)?;
        compiled(plugin, raw, Some(Arc::clone(client)))
    };
    let mut devices = ffi::PJRT_LoadedExecutable_AddressableDevices_Args::zeroed();
    devices.executable = raw;
    // SAFETY: a live loaded executable.
    unsafe { call!(plugin, PJRT_LoadedExecutable_AddressableDevices, devices)? };
    runner.n_devices = match devices.num_addressable_devices {
        n_devices @ 1..=MOST => n_devices,
        n_devices => return Err(PjrtError::impossible(DEVICES, format!("{n_devices} devices"))),
    };
    if !device_ids.is_empty() {
        // SAFETY: the list has the length that the plugin states; the devices live as long as the client, and are only
        // compared.
        let list = unsafe { value::whole_list(DEVICES, devices.addressable_devices, devices.num_addressable_devices)? };
        let id_of = |raw: &*mut ffi::PJRT_Device| {
            let position = client.handles.iter().position(|device| std::ptr::eq(device.raw, *raw));
            position.map(|position| client.devices[position].description().id)
        };
        let measured: Vec<Option<i32>> = list.iter().map(id_of).collect();
        let is_own = |id: &&i32| client.devices.iter().any(|device| device.description().id == **id);
        let expected: Vec<Option<i32>> = device_ids.iter().filter(is_own).map(|&id| Some(id)).collect();
        if measured != expected {
            return Err(PjrtError::impossible(
                DEVICES,
                format!("devices {measured:?} where {expected:?} were asked for"),
            ));
        }
    }
    Ok(Loaded { program, n_devices: runner.n_devices, runner: Box::new(runner) })
}

/// The largest plausible number of outputs, dimensions or devices; a plugin that returns more is not trusted.
const MOST: usize = 1 << 24;

const TYPES: &str = "PJRT_Executable_OutputElementTypes";

fn unlike(n_types: usize, n_outputs: usize) -> PjrtError {
    PjrtError::impossible(TYPES, format!("{n_types} types of {n_outputs} outputs"))
}

impl Runner for PluginRunner {
    fn execute(&self, args: &[Vec<Given<'_>>], n_outputs: usize) -> Result<Vec<Vec<Box<dyn Array>>>, PjrtError> {
        const CALL: &str = "PJRT_LoadedExecutable_Execute";
        let n_args = args[0].len();
        let stays = |idx: &i64| args.iter().any(|list| !list[*idx as usize].is_donated);
        let non_donatable: Vec<i64> = (0..n_args as i64).filter(stays).collect();
        let raw_args: Vec<Vec<*mut ffi::PJRT_Buffer>> =
            args.iter().map(|list| list.iter().map(|arg| array::<PluginArray>(arg.array).raw).collect()).collect();
        let arg_lists: Vec<*const *mut ffi::PJRT_Buffer> = raw_args.iter().map(|list| list.as_ptr()).collect();
        let mut raw_outputs = vec![vec![std::ptr::null_mut(); n_outputs]; self.n_devices];
        let output_lists: Vec<*mut *mut ffi::PJRT_Buffer> =
            raw_outputs.iter_mut().map(|list| list.as_mut_ptr()).collect();
        let mut events = vec![std::ptr::null_mut(); self.n_devices];
        let mut options = ffi::PJRT_ExecuteOptions::zeroed();
        options.non_donatable_input_indices = non_donatable.as_ptr();
        options.num_non_donatable_input_indices = non_donatable.len();
        let mut call_args = ffi::PJRT_LoadedExecutable_Execute_Args::zeroed();
        call_args.executable = self.raw;
        call_args.options = &raw mut options;
        call_args.argument_lists = arg_lists.as_ptr();
        call_args.num_devices = self.n_devices;
        call_args.num_args = n_args;
        call_args.output_lists = output_lists.as_ptr();
        call_args.device_complete_events = events.as_mut_ptr();
        let client = &self.client;
        // SAFETY: live handles of one client, as the caller made sure; every list has the length the call reads or
        // writes (`n_devices` lists of `n_args` and of `n_outputs`), and is alive during it. Arguments that are not
        // listed as non-donatable are owned by the caller, who gives them up, so nothing else can use them.
        unsafe { call!(client.plugin, PJRT_LoadedExecutable_Execute, call_args)? };
        let events: Vec<Event> = events.into_iter().filter_map(|raw| Event::new(client.plugin, raw)).collect();
        let wrap = |raw| -> Result<Box<dyn Array>, PjrtError> {
            let raw = returned(CALL, "output", raw)?;
            // SAFETY: the call succeeded and gave a buffer of this client, which we own.
            Ok(Box::new(unsafe { PluginArray::new(client, raw) }))
        };
        // All returned handles are wrapped before missing ones are reported, so that all of them are freed.
        let outputs: Vec<Vec<Result<Box<dyn Array>, PjrtError>>> =
            raw_outputs.into_iter().map(|list| list.into_iter().map(wrap).collect()).collect();
        // Every event is awaited, even after one failed: the devices run together.
        let done: Vec<Result<(), PjrtError>> = events.into_iter().map(Event::wait).collect();
        done.into_iter().collect::<Result<(), PjrtError>>()?;
        outputs.into_iter().map(|list| list.into_iter().collect()).collect()
    }
}

/// `HloModuleProtoWithConfig`, whose module stays bytes and whose configuration is ignored.
#[derive(Clone, PartialEq, Message)]
struct HloModuleProtoWithConfig {
    #[prost(bytes = "vec", tag = "1")]
    hlo_module: Vec<u8>,
}
