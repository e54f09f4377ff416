//! A PJRT plugin that does what real ones never do. Without a fault it is a small, correct one: a device that holds
//! arrays, and programs that give back their first argument.
//!
//! Its faults are the name of its file: `KIND.FUNCTION`, several joined with `+`, so that copies of one library fail
//! differently in one process. `table` says which kinds there are. Every handle is counted and never reused: what it
//! holds is in the attribute `live`, and a handle that is null, of another kind or freed before ends the process.

#[allow(dead_code)]
#[path = "../../../crates/pjrt/src/ffi.rs"]
mod ffi;
mod object;
mod table;

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr::null_mut;

use ffi::{NamedValue, PJRT_NamedValue};
use object::{Kind, Object, free, make, object};
use table::{faulty, faulty_with};

/// `PJRT_Buffer_Type_F32`.
const F32: c_int = 11;
const INTERNAL: c_int = 13;

/// Something that lives as long as the process.
fn forever<T>(value: T) -> *mut T {
    Box::leak(Box::new(value))
}

/// A list that does, or null for a function that forgets its lists.
fn list<T>(function: &str, items: Vec<T>) -> *mut T {
    if faulty("headless", function) { null_mut() } else { Box::leak(items.into_boxed_slice()).as_mut_ptr() }
}

/// A text, and its size; one size that no text has for a function that says so.
fn text(function: &str, text: &'static str) -> (*const c_char, usize) {
    let size = if faulty("huge", function) { usize::MAX } else { text.len() };
    (if faulty("headless", function) { null_mut() } else { text.as_ptr().cast_mut().cast() }, size)
}

fn named(name: &'static str, value_type: c_int, value: NamedValue, value_size: usize) -> PJRT_NamedValue {
    PJRT_NamedValue {
        struct_size: size_of::<PJRT_NamedValue>(),
        extension_start: null_mut(),
        name: name.as_ptr().cast(),
        name_size: name.len(),
        value_type,
        value,
        value_size,
    }
}

/// Attributes; strange ones for a function that gives such.
fn attributes(function: &str, mut items: Vec<PJRT_NamedValue>) -> (*mut PJRT_NamedValue, usize) {
    if faulty("strange", function) {
        items.push(named("of_no_type", 77, NamedValue { int64: 1 }, 1));
        items.push(named("null_text", ffi::NAMED_STRING, NamedValue { string: std::ptr::null() }, 5));
        items.push(named("null_list", ffi::NAMED_INT64_LIST, NamedValue { int64_array: std::ptr::null() }, 5));
        let mut nameless = named("", ffi::NAMED_BOOL, NamedValue { boolean: true }, 1);
        (nameless.name, nameless.name_size) = (std::ptr::null(), 3);
        items.push(nameless);
    }
    let n_items = items.len();
    (list(function, items), n_items)
}

/// An error, with the text that the fault wants.
fn error(kind: &str, function: &str) -> *mut ffi::PJRT_Error {
    let bytes = match kind {
        "latin" => b"caf\xe9 \xff\xfe".to_vec(),
        "mute" | "null" => Vec::new(),
        _ => format!("fake: {function} fails").into_bytes(),
    };
    let code = if kind == "code" { -7 } else { INTERNAL };
    make(Object { bytes, number: i64::from(code), ..Object::new(Kind::Error) })
}

fn event() -> *mut ffi::PJRT_Event {
    make(Object::new(Kind::Event))
}

fn buffer(of: &Object) -> *mut ffi::PJRT_Buffer {
    make(Object { bytes: of.bytes.clone(), dims: of.dims.clone(), number: of.number, ..Object::new(Kind::Buffer) })
}

fn executable() -> *mut ffi::PJRT_Executable {
    make(Object::new(Kind::Executable))
}

/// So many pointers to what is not counted; null ones for a function that leaves holes.
fn pointers<T>(function: &str, n_pointers: usize) -> *const *mut T {
    let pointer = |_| if faulty("holes", function) { null_mut() } else { make(Object::new(Kind::Uncounted)) };
    list(function, (0..n_pointers).map(pointer).collect())
}

fn n_devices() -> usize {
    ["0", "2"].iter().position(|n| faulty_with("devices", n)).map_or(1, |found| [0, 2][found])
}

/// # Safety
/// `function` is not called with arguments of another type than its own: `ffi` says which.
unsafe extern "C" fn error_destroy(args: *mut ffi::PJRT_Error_Destroy_Args) {
    unsafe { free((*args).error, Kind::Error) }
}

unsafe extern "C" fn error_message(args: *mut ffi::PJRT_Error_Message_Args) {
    let (args, no_text) = unsafe { (&mut *args, faulty("null", "text")) };
    let error = unsafe { object(args.error.cast_mut(), Kind::Error) };
    (args.message, args.message_size) = (error.bytes.as_ptr().cast(), error.bytes.len());
    if no_text {
        (args.message, args.message_size) = (std::ptr::null(), 7);
    }
}

unsafe extern "C" fn serialized_delete(serialized: *mut ffi::PJRT_SerializedExecutable) {
    unsafe { free(serialized, Kind::Serialized) }
}

table::entries! {
    PJRT_Error_GetCode(PJRT_Error_GetCode_Args) |args| {
        args.code = unsafe { object(args.error.cast_mut(), Kind::Error) }.number as c_int;
    }
    PJRT_Plugin_Initialize(PJRT_Plugin_Initialize_Args) |_args| {}
    PJRT_Plugin_Attributes(PJRT_Plugin_Attributes_Args) |args| {
        let live = NamedValue { int64: object::live() };
        let text = NamedValue { string: c"fake".as_ptr() };
        let items = vec![named("live", ffi::NAMED_INT64, live, 1), named("kind", ffi::NAMED_STRING, text, 4)];
        let (start, len) = attributes("PJRT_Plugin_Attributes", items);
        (args.attributes, args.num_attributes) = (start, len);
    }
    PJRT_Event_Destroy(PJRT_Event_Destroy_Args) |args| {
        unsafe { free(args.event, Kind::Event) };
    }
    // What an event stands for is done here and not before: who does not wait has not got it.
    PJRT_Event_Await(PJRT_Event_Await_Args) |args| {
        let event = unsafe { object(args.event, Kind::Event) };
        unsafe { event.bytes.as_ptr().copy_to(event.target as *mut u8, event.bytes.len()) };
    }
    PJRT_Client_Create(PJRT_Client_Create_Args) |args| {
        args.client = make(Object::new(Kind::Client));
    }
    PJRT_Client_Destroy(PJRT_Client_Destroy_Args) |args| {
        unsafe { free(args.client, Kind::Client) };
    }
    PJRT_Client_PlatformName(PJRT_Client_PlatformName_Args) |args| {
        unsafe { object(args.client, Kind::Client) };
        (args.platform_name, args.platform_name_size) = text("PJRT_Client_PlatformName", "fake");
    }
    PJRT_Client_PlatformVersion(PJRT_Client_PlatformVersion_Args) |args| {
        unsafe { object(args.client, Kind::Client) };
        (args.platform_version, args.platform_version_size) = text("PJRT_Client_PlatformVersion", "version 0");
    }
    PJRT_Client_ProcessIndex(PJRT_Client_ProcessIndex_Args) |args| {
        unsafe { object(args.client, Kind::Client) };
    }
    PJRT_Client_Devices(PJRT_Client_Devices_Args) |args| {
        unsafe { object(args.client, Kind::Client) };
        args.devices = pointers("PJRT_Client_Devices", n_devices());
        args.num_devices = n_devices();
    }
    PJRT_Client_AddressableDevices(PJRT_Client_AddressableDevices_Args) |args| {
        unsafe { object(args.client, Kind::Client) };
        args.addressable_devices = pointers("PJRT_Client_AddressableDevices", n_devices());
        args.num_addressable_devices = n_devices();
    }
    PJRT_Client_Compile(PJRT_Client_Compile_Args) |args| {
        unsafe { object(args.client, Kind::Client) };
        args.executable = make(Object::new(Kind::LoadedExecutable));
    }
    PJRT_Client_BufferFromHostBuffer(PJRT_Client_BufferFromHostBuffer_Args) |args| {
        unsafe { object(args.client, Kind::Client) };
        unsafe { object(args.device, Kind::Uncounted) };
        let dims = match args.num_dims {
            0 => Vec::new(),
            n => unsafe { std::slice::from_raw_parts(args.dims, n) }.to_vec(),
        };
        let n_bytes = 4 * dims.iter().product::<i64>() as usize;
        let bytes = unsafe { std::slice::from_raw_parts(args.data.cast::<u8>(), n_bytes) }.to_vec();
        args.done_with_host_buffer = event();
        args.buffer = match faulty("holes", "PJRT_Client_BufferFromHostBuffer") {
            true => null_mut(),
            false => buffer(&Object { bytes, dims, number: i64::from(args.buffer_type), ..Object::new(Kind::Uncounted) }),
        };
    }
    PJRT_DeviceDescription_Id(PJRT_DeviceDescription_Id_Args) |args| {
        unsafe { object(args.device_description, Kind::Uncounted) };
        args.id = 5;
    }
    PJRT_DeviceDescription_ProcessIndex(PJRT_DeviceDescription_ProcessIndex_Args) |args| {
        unsafe { object(args.device_description, Kind::Uncounted) };
    }
    PJRT_DeviceDescription_Attributes(PJRT_DeviceDescription_Attributes_Args) |args| {
        unsafe { object(args.device_description, Kind::Uncounted) };
        let limit = named("device_memory_bytes_limit", ffi::NAMED_INT64, NamedValue { int64: 1 << 30 }, 1);
        let (start, len) = attributes("PJRT_DeviceDescription_Attributes", vec![limit]);
        (args.attributes, args.num_attributes) = (start, len);
    }
    PJRT_DeviceDescription_Kind(PJRT_DeviceDescription_Kind_Args) |args| {
        unsafe { object(args.device_description, Kind::Uncounted) };
        (args.device_kind, args.device_kind_size) = text("PJRT_DeviceDescription_Kind", "fake");
    }
    PJRT_DeviceDescription_DebugString(PJRT_DeviceDescription_DebugString_Args) |args| {
        unsafe { object(args.device_description, Kind::Uncounted) };
        (args.debug_string, args.debug_string_size) = text("PJRT_DeviceDescription_DebugString", "fake device 5");
    }
    PJRT_DeviceDescription_ToString(PJRT_DeviceDescription_ToString_Args) |args| {
        unsafe { object(args.device_description, Kind::Uncounted) };
        (args.to_string, args.to_string_size) = text("PJRT_DeviceDescription_ToString", "fake:5");
    }
    PJRT_Device_GetDescription(PJRT_Device_GetDescription_Args) |args| {
        unsafe { object(args.device, Kind::Uncounted) };
        args.device_description = make(Object::new(Kind::Uncounted));
    }
    PJRT_Device_MemoryStats(PJRT_Device_MemoryStats_Args) |args| {
        unsafe { object(args.device, Kind::Uncounted) };
        (args.bytes_in_use, args.bytes_limit, args.bytes_limit_is_set) = (1, 1 << 30, true);
    }
    PJRT_Executable_Destroy(PJRT_Executable_Destroy_Args) |args| {
        unsafe { free(args.executable, Kind::Executable) };
    }
    PJRT_LoadedExecutable_Destroy(PJRT_LoadedExecutable_Destroy_Args) |args| {
        unsafe { free(args.executable, Kind::LoadedExecutable) };
    }
    PJRT_LoadedExecutable_GetExecutable(PJRT_LoadedExecutable_GetExecutable_Args) |args| {
        unsafe { object(args.loaded_executable, Kind::LoadedExecutable) };
        args.executable = executable();
    }
    PJRT_LoadedExecutable_AddressableDevices(PJRT_LoadedExecutable_AddressableDevices_Args) |args| {
        unsafe { object(args.executable, Kind::LoadedExecutable) };
        let n = if faulty("wrong", "PJRT_LoadedExecutable_AddressableDevices") { usize::MAX } else { 1 };
        args.addressable_devices = pointers("PJRT_LoadedExecutable_AddressableDevices", 1);
        args.num_addressable_devices = n;
    }
    PJRT_Executable_Name(PJRT_Executable_Name_Args) |args| {
        unsafe { object(args.executable, Kind::Executable) };
        (args.executable_name, args.executable_name_size) = text("PJRT_Executable_Name", "first_argument");
    }
    PJRT_Executable_NumOutputs(PJRT_Executable_NumOutputs_Args) |args| {
        unsafe { object(args.executable, Kind::Executable) };
        args.num_outputs = if faulty("wrong", "PJRT_Executable_NumOutputs") { usize::MAX } else { 1 };
    }
    PJRT_Executable_OptimizedProgram(PJRT_Executable_OptimizedProgram_Args) |args| {
        unsafe { object(args.executable, Kind::Executable) };
        let program = unsafe { &mut *args.program };
        let format = if faulty("format", "PJRT_Executable_OptimizedProgram") { "mlir" } else { "hlo" };
        (program.format, program.format_size) = text("PJRT_Executable_OptimizedProgram", format);
        if faulty("wrong", "PJRT_Executable_OptimizedProgram") {
            program.code_size = usize::MAX / 4;
        } else if program.code.is_null() {
            program.code_size = 4;
        } else if faulty("grows", "PJRT_Executable_OptimizedProgram") {
            program.code_size = 5;
        } else {
            unsafe { b"\x0a\x02hi".as_ptr().copy_to(program.code.cast(), 4) };
        }
    }
    PJRT_Executable_Serialize(PJRT_Executable_Serialize_Args) |args| {
        unsafe { object(args.executable.cast_mut(), Kind::Executable) };
        (args.serialized_bytes, args.serialized_bytes_size) = text("PJRT_Executable_Serialize", "bytes");
        args.serialized_executable = make(Object::new(Kind::Serialized));
        args.serialized_executable_deleter = Some(serialized_delete);
    }
    PJRT_Executable_DeserializeAndLoad(PJRT_Executable_DeserializeAndLoad_Args) |args| {
        unsafe { object(args.client, Kind::Client) };
        args.loaded_executable = make(Object::new(Kind::LoadedExecutable));
    }
    PJRT_Executable_Fingerprint(PJRT_Executable_Fingerprint_Args) |args| {
        unsafe { object(args.executable, Kind::Executable) };
        let (start, len) = text("PJRT_Executable_Fingerprint", "print");
        (args.executable_fingerprint, args.executable_fingerprint_size) = (start, len);
    }
    PJRT_Executable_GetCostAnalysis(PJRT_Executable_GetCostAnalysis_Args) |args| {
        unsafe { object(args.executable, Kind::Executable) };
        let flops = named("flops", ffi::NAMED_FLOAT, NamedValue { float: 2.5 }, 1);
        (args.properties, args.num_properties) = {
            let (start, len) = attributes("PJRT_Executable_GetCostAnalysis", vec![flops]);
            (start.cast_const(), len)
        };
    }
    PJRT_Executable_GetCompiledMemoryStats(PJRT_Executable_GetCompiledMemoryStats_Args) |args| {
        unsafe { object(args.executable, Kind::Executable) };
        args.argument_size_in_bytes = 16;
    }
    PJRT_Executable_OutputElementTypes(PJRT_Executable_OutputElementTypes_Args) |args| {
        unsafe { object(args.executable, Kind::Executable) };
        let n = if faulty("wrong", "PJRT_Executable_OutputElementTypes") { 2 } else { 1 };
        args.output_types = list("PJRT_Executable_OutputElementTypes", vec![F32; n]);
        args.num_output_types = n;
    }
    PJRT_Executable_OutputDimensions(PJRT_Executable_OutputDimensions_Args) |args| {
        unsafe { object(args.executable, Kind::Executable) };
        let rank = if faulty("wrong", "PJRT_Executable_OutputDimensions") { usize::MAX } else { 2 };
        args.num_outputs = 1;
        args.dims = list("PJRT_Executable_OutputDimensions", vec![2, 2]);
        args.dim_sizes = forever([rank]).cast();
    }
    PJRT_LoadedExecutable_Execute(PJRT_LoadedExecutable_Execute_Args) |args| {
        unsafe { object(args.executable, Kind::LoadedExecutable) };
        for device in 0..args.num_devices {
            let argument = unsafe { object(**args.argument_lists.add(device), Kind::Buffer) };
            let output = unsafe { *args.output_lists.add(device) };
            let leaves_hole = faulty("holes", "PJRT_LoadedExecutable_Execute");
            unsafe { *output = if leaves_hole { null_mut() } else { buffer(argument) } };
            unsafe { *args.device_complete_events.add(device) = event() };
        }
    }
    PJRT_Buffer_Destroy(PJRT_Buffer_Destroy_Args) |args| {
        unsafe { free(args.buffer, Kind::Buffer) };
    }
    PJRT_Buffer_ElementType(PJRT_Buffer_ElementType_Args) |args| {
        let buffer = unsafe { object(args.buffer, Kind::Buffer) };
        args.buffer_type = if faulty("wrong", "PJRT_Buffer_ElementType") { 9999 } else { buffer.number as c_int };
    }
    PJRT_Buffer_Dimensions(PJRT_Buffer_Dimensions_Args) |args| {
        let buffer = unsafe { object(args.buffer, Kind::Buffer) };
        let dims = match faulty("wrong", "PJRT_Buffer_Dimensions") {
            true => vec![-1, i64::MAX],
            false => buffer.dims.clone(),
        };
        args.num_dims = dims.len();
        args.dims = list("PJRT_Buffer_Dimensions", dims);
    }
    PJRT_Buffer_OnDeviceSizeInBytes(PJRT_Buffer_OnDeviceSizeInBytes_Args) |args| {
        args.on_device_size_in_bytes = unsafe { object(args.buffer, Kind::Buffer) }.bytes.len();
    }
    PJRT_Buffer_IsDeleted(PJRT_Buffer_IsDeleted_Args) |args| {
        unsafe { object(args.buffer, Kind::Buffer) };
    }
    PJRT_Buffer_ToHostBuffer(PJRT_Buffer_ToHostBuffer_Args) |args| {
        let source = unsafe { object(args.src, Kind::Buffer) };
        let n_bytes = source.bytes.len().min(args.dst_size);
        let bytes = source.bytes[..n_bytes].to_vec();
        args.event = make(Object { bytes, target: args.dst as usize, ..Object::new(Kind::Event) });
    }
    PJRT_Buffer_UnsafePointer(PJRT_Buffer_UnsafePointer_Args) |args| {
        args.buffer_pointer = unsafe { object(args.buffer, Kind::Buffer) }.bytes.as_ptr() as usize;
    }
    PJRT_TopologyDescription_Create(PJRT_TopologyDescription_Create_Args) |args| {
        args.topology = make(Object::new(Kind::Topology));
    }
    PJRT_TopologyDescription_Destroy(PJRT_TopologyDescription_Destroy_Args) |args| {
        unsafe { free(args.topology, Kind::Topology) };
    }
    PJRT_TopologyDescription_PlatformName(PJRT_TopologyDescription_PlatformName_Args) |args| {
        unsafe { object(args.topology.cast_mut(), Kind::Topology) };
        (args.platform_name, args.platform_name_size) = text("PJRT_TopologyDescription_PlatformName", "fake");
    }
    PJRT_TopologyDescription_PlatformVersion(PJRT_TopologyDescription_PlatformVersion_Args) |args| {
        unsafe { object(args.topology, Kind::Topology) };
        (args.platform_version, args.platform_version_size) = text("PJRT_TopologyDescription_PlatformVersion", "version 0");
    }
    PJRT_TopologyDescription_GetDeviceDescriptions(PJRT_TopologyDescription_GetDeviceDescriptions_Args) |args| {
        unsafe { object(args.topology.cast_mut(), Kind::Topology) };
        args.descriptions = pointers("PJRT_TopologyDescription_GetDeviceDescriptions", 1);
        args.num_descriptions = 1;
    }
    PJRT_Compile(PJRT_Compile_Args) |args| {
        unsafe { object(args.topology.cast_mut(), Kind::Topology) };
        args.executable = executable();
    }
}

unsafe extern "C" {
    /// The C library's: what is loaded at an address.
    fn dladdr(address: *const c_void, info: *mut DlInfo) -> c_int;
}

/// `Dl_info`.
#[repr(C)]
struct DlInfo {
    file: *const c_char,
    file_base: *mut c_void,
    symbol: *const c_char,
    symbol_address: *mut c_void,
}

/// The name of the file that this was loaded from, without its ending.
fn file_stem() -> String {
    let mut info: DlInfo = unsafe { std::mem::zeroed() };
    let is_found = unsafe { dladdr(GetPjrtApi as *const c_void, &raw mut info) } != 0;
    assert!(is_found && !info.file.is_null(), "this library is loaded from a file");
    let path = unsafe { CStr::from_ptr(info.file) }.to_string_lossy().into_owned();
    let name = path.rsplit('/').next().unwrap_or_default();
    name.trim_end_matches(".so").to_string()
}

/// The one symbol that a plugin exports.
#[unsafe(no_mangle)]
pub extern "C" fn GetPjrtApi() -> *const ffi::PJRT_Api {
    table::read_faults(&file_stem());
    if faulty("no", "table") {
        return std::ptr::null();
    }
    // SAFETY: zero bytes are null pointers and numbers.
    let mut api: ffi::PJRT_Api = unsafe { std::mem::zeroed() };
    api.struct_size = size_of::<ffi::PJRT_Api>();
    api.pjrt_api_version.struct_size = size_of::<ffi::PJRT_Api_Version>();
    api.pjrt_api_version.major_version = ffi::API_MAJOR + c_int::from(faulty("newer", "major"));
    api.pjrt_api_version.minor_version = ffi::API_MINOR;
    api.PJRT_Error_Destroy = Some(error_destroy);
    api.PJRT_Error_Message = Some(error_message);
    fill(&mut api);
    let table = forever(api);
    table::damage(table);
    table
}
