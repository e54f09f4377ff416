//! Declarations of the PJRT C API that this crate calls, and nothing else: no logic, no safety.
//!
//! They follow `pjrt_c_api.h` of PJRT C API version 0.81 (the header inside the `xla-cpu-pjrt` 0.0.1 wheel). The API
//! grows by appending fields to structs and entries to the table, so a newer plugin reads these structs by their
//! `struct_size`. Names are the header's. Entries this crate does not call keep their place as [`Unused`]; enums are
//! `c_int`, so that a value unknown to this header is not undefined behaviour.

#![allow(non_camel_case_types, non_snake_case, missing_docs)]

use std::ffi::{c_char, c_int, c_void};
use std::mem::{offset_of, size_of};

/// `PJRT_API_MAJOR` in that header.
pub const API_MAJOR: c_int = 0;
/// `PJRT_API_MINOR` in that header.
pub const API_MINOR: c_int = 81;

/// `PJRT_HostBufferSemantics_kImmutableOnlyDuringCall`: the plugin has copied the data when the call returns.
pub const IMMUTABLE_ONLY_DURING_CALL: c_int = 0;
/// `PJRT_Buffer_MemoryLayout_Type_Tiled`.
pub const LAYOUT_TILED: c_int = 0;

/// `PJRT_NamedValue_kString`.
pub const NAMED_STRING: c_int = 0;
/// `PJRT_NamedValue_kInt64`.
pub const NAMED_INT64: c_int = 1;
/// `PJRT_NamedValue_kInt64List`.
pub const NAMED_INT64_LIST: c_int = 2;
/// `PJRT_NamedValue_kFloat`.
pub const NAMED_FLOAT: c_int = 3;
/// `PJRT_NamedValue_kBool`.
pub const NAMED_BOOL: c_int = 4;

macro_rules! opaque {
    ($($name:ident),* $(,)?) => {
        $(
            #[doc = concat!("`", stringify!($name), "`: owned by the plugin, seen only by address.")]
            #[repr(C)]
            pub struct $name {
                _private: [u8; 0],
            }
        )*
    };
}

opaque! {
    PJRT_Error, PJRT_Event, PJRT_Client, PJRT_Device, PJRT_DeviceDescription, PJRT_TopologyDescription,
    PJRT_Executable, PJRT_LoadedExecutable, PJRT_SerializedExecutable, PJRT_Buffer,
}

macro_rules! structs {
    ($($(#[$doc:meta])* $name:ident { $($field:ident: $ty:ty,)* })*) => {
        $(
            $(#[$doc])*
            #[repr(C)]
            pub struct $name {
                pub struct_size: usize,
                pub extension_start: *mut c_void,
                $(pub $field: $ty,)*
            }

            impl $name {
                /// `PJRT_STRUCT_SIZE`: the end of the last field, without padding after it.
                pub const STRUCT_SIZE: usize = {
                    #[allow(unused_mut)]
                    let mut size = offset_of!($name, extension_start) + size_of::<*mut c_void>();
                    $(
                        let end = offset_of!($name, $field) + size_of::<$ty>();
                        if end > size {
                            size = end;
                        }
                    )*
                    size
                };

                /// All zero except for the size.
                pub fn zeroed() -> Self {
                    // SAFETY: every field is an integer, a bool, a raw pointer, an optional function or a struct of
                    // those, for which zero bytes are a valid value.
                    let zeroed: Self = unsafe { std::mem::zeroed() };
                    Self { struct_size: Self::STRUCT_SIZE, ..zeroed }
                }
            }
        )*

        const STRUCT_SIZES: &[(&str, usize)] = &[$((stringify!($name), $name::STRUCT_SIZE),)*];
    };
}

/// Names of the functions of the C API that this crate calls. Each has a struct for its arguments.
pub fn functions() -> impl Iterator<Item = &'static str> {
    STRUCT_SIZES.iter().filter_map(|(row, _)| row.strip_suffix("_Args"))
}

/// A function of the C API by its name; `None` if it is not called here.
pub(super) fn function_named(name: &str) -> Option<&'static str> {
    functions().find(|function| *function == name)
}

structs! {
    /// Frees an error.
    PJRT_Error_Destroy_Args {
        error: *mut PJRT_Error,
    }
    /// Text of an error; lives as long as the error.
    PJRT_Error_Message_Args {
        error: *const PJRT_Error,
        message: *const c_char,
        message_size: usize,
    }
    /// Code of an error.
    PJRT_Error_GetCode_Args {
        error: *const PJRT_Error,
        code: c_int,
    }
    /// One-time setup of a plugin.
    PJRT_Plugin_Initialize_Args {
    }
    /// Attributes of a plugin; live as long as the process.
    PJRT_Plugin_Attributes_Args {
        attributes: *const PJRT_NamedValue,
        num_attributes: usize,
    }
    /// Frees an event.
    PJRT_Event_Destroy_Args {
        event: *mut PJRT_Event,
    }
    /// Blocks until an event is ready.
    PJRT_Event_Await_Args {
        event: *mut PJRT_Event,
    }
    /// Makes a client. The key-value callbacks (for several processes) stay null.
    PJRT_Client_Create_Args {
        create_options: *const PJRT_NamedValue,
        num_options: usize,
        kv_get_callback: *const c_void,
        kv_get_user_arg: *mut c_void,
        kv_put_callback: *const c_void,
        kv_put_user_arg: *mut c_void,
        client: *mut PJRT_Client,
        kv_try_get_callback: *const c_void,
        kv_try_get_user_arg: *mut c_void,
    }
    /// Shuts a client down and frees it.
    PJRT_Client_Destroy_Args {
        client: *mut PJRT_Client,
    }
    /// Such as `cpu`; lives as long as the client.
    PJRT_Client_PlatformName_Args {
        client: *mut PJRT_Client,
        platform_name: *const c_char,
        platform_name_size: usize,
    }
    /// Version text; lives as long as the client.
    PJRT_Client_PlatformVersion_Args {
        client: *mut PJRT_Client,
        platform_version: *const c_char,
        platform_version_size: usize,
    }
    /// This process's index among the processes that share a platform's devices.
    PJRT_Client_ProcessIndex_Args {
        client: *mut PJRT_Client,
        process_index: c_int,
    }
    /// Devices of all processes; live as long as the client.
    PJRT_Client_Devices_Args {
        client: *mut PJRT_Client,
        devices: *const *mut PJRT_Device,
        num_devices: usize,
    }
    /// Devices this process can use; live as long as the client.
    PJRT_Client_AddressableDevices_Args {
        client: *mut PJRT_Client,
        addressable_devices: *const *mut PJRT_Device,
        num_addressable_devices: usize,
    }
    /// A program and the name of its format.
    PJRT_Program {
        code: *mut c_char,
        code_size: usize,
        format: *const c_char,
        format_size: usize,
    }
    /// Compiles and loads a program.
    PJRT_Client_Compile_Args {
        client: *mut PJRT_Client,
        program: *const PJRT_Program,
        compile_options: *const c_char,
        compile_options_size: usize,
        executable: *mut PJRT_LoadedExecutable,
    }
    /// Order of dimensions in memory, most minor first.
    PJRT_Buffer_MemoryLayout_Tiled {
        minor_to_major: *const i64,
        minor_to_major_size: usize,
        tile_dims: *const i64,
        tile_dim_sizes: *const usize,
        num_tiles: usize,
    }
    /// A layout. The header holds a union of a tiled and a (smaller) strided layout here; only the tiled one is used.
    PJRT_Buffer_MemoryLayout {
        tiled: PJRT_Buffer_MemoryLayout_Tiled,
        layout_type: c_int,
    }
    /// Copies host data into a new device buffer.
    PJRT_Client_BufferFromHostBuffer_Args {
        client: *mut PJRT_Client,
        data: *const c_void,
        buffer_type: c_int,
        dims: *const i64,
        num_dims: usize,
        byte_strides: *const i64,
        num_byte_strides: usize,
        host_buffer_semantics: c_int,
        device: *mut PJRT_Device,
        memory: *mut c_void,
        device_layout: *mut PJRT_Buffer_MemoryLayout,
        done_with_host_buffer: *mut PJRT_Event,
        buffer: *mut PJRT_Buffer,
    }
    /// Id of a device, unique among its kind.
    PJRT_DeviceDescription_Id_Args {
        device_description: *mut PJRT_DeviceDescription,
        id: c_int,
    }
    /// Process a device belongs to.
    PJRT_DeviceDescription_ProcessIndex_Args {
        device_description: *mut PJRT_DeviceDescription,
        process_index: c_int,
    }
    /// Attributes of a device.
    PJRT_DeviceDescription_Attributes_Args {
        device_description: *mut PJRT_DeviceDescription,
        num_attributes: usize,
        attributes: *const PJRT_NamedValue,
    }
    /// Kind of a device, such as `TPU v2`.
    PJRT_DeviceDescription_Kind_Args {
        device_description: *mut PJRT_DeviceDescription,
        device_kind: *const c_char,
        device_kind_size: usize,
    }
    /// Long name of a device.
    PJRT_DeviceDescription_DebugString_Args {
        device_description: *mut PJRT_DeviceDescription,
        debug_string: *const c_char,
        debug_string_size: usize,
    }
    /// Short name of a device.
    PJRT_DeviceDescription_ToString_Args {
        device_description: *mut PJRT_DeviceDescription,
        to_string: *const c_char,
        to_string_size: usize,
    }
    /// Description of a live device.
    PJRT_Device_GetDescription_Args {
        device: *mut PJRT_Device,
        device_description: *mut PJRT_DeviceDescription,
    }
    /// Allocator statistics of a device; every figure but the first is optional.
    PJRT_Device_MemoryStats_Args {
        device: *mut PJRT_Device,
        bytes_in_use: i64,
        peak_bytes_in_use: i64,
        peak_bytes_in_use_is_set: bool,
        num_allocs: i64,
        num_allocs_is_set: bool,
        largest_alloc_size: i64,
        largest_alloc_size_is_set: bool,
        bytes_limit: i64,
        bytes_limit_is_set: bool,
        bytes_reserved: i64,
        bytes_reserved_is_set: bool,
        peak_bytes_reserved: i64,
        peak_bytes_reserved_is_set: bool,
        bytes_reservable_limit: i64,
        bytes_reservable_limit_is_set: bool,
        largest_free_block_bytes: i64,
        largest_free_block_bytes_is_set: bool,
        pool_bytes: i64,
        pool_bytes_is_set: bool,
        peak_pool_bytes: i64,
        peak_pool_bytes_is_set: bool,
    }
    /// Frees an executable.
    PJRT_Executable_Destroy_Args {
        executable: *mut PJRT_Executable,
    }
    /// Frees a loaded executable.
    PJRT_LoadedExecutable_Destroy_Args {
        executable: *mut PJRT_LoadedExecutable,
    }
    /// The executable behind a loaded one; the caller frees it.
    PJRT_LoadedExecutable_GetExecutable_Args {
        loaded_executable: *mut PJRT_LoadedExecutable,
        executable: *mut PJRT_Executable,
    }
    /// Devices a loaded executable runs on.
    PJRT_LoadedExecutable_AddressableDevices_Args {
        executable: *mut PJRT_LoadedExecutable,
        addressable_devices: *const *mut PJRT_Device,
        num_addressable_devices: usize,
    }
    /// Name of an executable.
    PJRT_Executable_Name_Args {
        executable: *mut PJRT_Executable,
        executable_name: *const c_char,
        executable_name_size: usize,
    }
    /// Outputs for each device.
    PJRT_Executable_NumOutputs_Args {
        executable: *mut PJRT_Executable,
        num_outputs: usize,
    }
    /// The program after the compiler's passes.
    PJRT_Executable_OptimizedProgram_Args {
        executable: *mut PJRT_Executable,
        program: *mut PJRT_Program,
    }
    /// An executable as bytes, which are valid until the deleter is called on their owner.
    PJRT_Executable_Serialize_Args {
        executable: *const PJRT_Executable,
        serialized_bytes: *const c_char,
        serialized_bytes_size: usize,
        serialized_executable: *mut PJRT_SerializedExecutable,
        serialized_executable_deleter: Option<unsafe extern "C" fn(*mut PJRT_SerializedExecutable)>,
    }
    /// Loads such bytes on a client, optionally with compile options that override their own.
    PJRT_Executable_DeserializeAndLoad_Args {
        client: *mut PJRT_Client,
        serialized_executable: *const c_char,
        serialized_executable_size: usize,
        loaded_executable: *mut PJRT_LoadedExecutable,
        overridden_serialized_compile_options: *const c_char,
        overridden_serialized_compile_options_size: usize,
    }
    /// Fingerprint of an executable.
    PJRT_Executable_Fingerprint_Args {
        executable: *mut PJRT_Executable,
        executable_fingerprint: *const c_char,
        executable_fingerprint_size: usize,
    }
    /// The compiler's cost estimates.
    PJRT_Executable_GetCostAnalysis_Args {
        executable: *mut PJRT_Executable,
        num_properties: usize,
        properties: *const PJRT_NamedValue,
    }
    /// Memory an executable needs, in bytes.
    PJRT_Executable_GetCompiledMemoryStats_Args {
        executable: *mut PJRT_Executable,
        generated_code_size_in_bytes: i64,
        argument_size_in_bytes: i64,
        output_size_in_bytes: i64,
        alias_size_in_bytes: i64,
        temp_size_in_bytes: i64,
        host_generated_code_size_in_bytes: i64,
        host_argument_size_in_bytes: i64,
        host_output_size_in_bytes: i64,
        host_alias_size_in_bytes: i64,
        host_temp_size_in_bytes: i64,
        peak_memory_in_bytes: i64,
    }
    /// Element types of the outputs.
    PJRT_Executable_OutputElementTypes_Args {
        executable: *mut PJRT_Executable,
        output_types: *const c_int,
        num_output_types: usize,
    }
    /// Dimensions of the outputs, end to end, and the rank of each.
    PJRT_Executable_OutputDimensions_Args {
        executable: *mut PJRT_Executable,
        num_outputs: usize,
        dims: *const i64,
        dim_sizes: *const usize,
    }
    /// Options of one execution. Send and receive callbacks stay null.
    PJRT_ExecuteOptions {
        send_callbacks: *mut c_void,
        recv_callbacks: *mut c_void,
        num_send_ops: usize,
        num_recv_ops: usize,
        launch_id: c_int,
        non_donatable_input_indices: *const i64,
        num_non_donatable_input_indices: usize,
        context: *mut c_void,
        call_location: *const c_char,
        num_tasks: usize,
        task_ids: *mut c_int,
        incarnation_ids: *mut i64,
    }
    /// Runs a loaded executable.
    PJRT_LoadedExecutable_Execute_Args {
        executable: *mut PJRT_LoadedExecutable,
        options: *mut PJRT_ExecuteOptions,
        argument_lists: *const *const *mut PJRT_Buffer,
        num_devices: usize,
        num_args: usize,
        output_lists: *const *mut *mut PJRT_Buffer,
        device_complete_events: *mut *mut PJRT_Event,
        execute_device: *mut PJRT_Device,
    }
    /// Frees a buffer.
    PJRT_Buffer_Destroy_Args {
        buffer: *mut PJRT_Buffer,
    }
    /// Element type of a buffer.
    PJRT_Buffer_ElementType_Args {
        buffer: *mut PJRT_Buffer,
        buffer_type: c_int,
    }
    /// Dimensions of a buffer.
    PJRT_Buffer_Dimensions_Args {
        buffer: *mut PJRT_Buffer,
        dims: *const i64,
        num_dims: usize,
    }
    /// Bytes a buffer takes on its device.
    PJRT_Buffer_OnDeviceSizeInBytes_Args {
        buffer: *mut PJRT_Buffer,
        on_device_size_in_bytes: usize,
    }
    /// Whether a buffer's memory has been given up.
    PJRT_Buffer_IsDeleted_Args {
        buffer: *mut PJRT_Buffer,
        is_deleted: bool,
    }
    /// Copies a buffer to the host, or asks for the bytes needed.
    PJRT_Buffer_ToHostBuffer_Args {
        src: *mut PJRT_Buffer,
        host_layout: *mut PJRT_Buffer_MemoryLayout,
        dst: *mut c_void,
        dst_size: usize,
        event: *mut PJRT_Event,
    }
    /// Address of a buffer, platform dependent.
    PJRT_Buffer_UnsafePointer_Args {
        buffer: *mut PJRT_Buffer,
        buffer_pointer: usize,
    }
    /// Describes devices by the name of their topology.
    PJRT_TopologyDescription_Create_Args {
        topology_name: *const c_char,
        topology_name_size: usize,
        create_options: *const PJRT_NamedValue,
        num_options: usize,
        topology: *mut PJRT_TopologyDescription,
    }
    /// Frees a topology.
    PJRT_TopologyDescription_Destroy_Args {
        topology: *mut PJRT_TopologyDescription,
    }
    /// Platform of a topology.
    PJRT_TopologyDescription_PlatformName_Args {
        topology: *const PJRT_TopologyDescription,
        platform_name: *const c_char,
        platform_name_size: usize,
    }
    /// Compiler version of a topology.
    PJRT_TopologyDescription_PlatformVersion_Args {
        topology: *mut PJRT_TopologyDescription,
        platform_version: *const c_char,
        platform_version_size: usize,
    }
    /// Devices of a topology.
    PJRT_TopologyDescription_GetDeviceDescriptions_Args {
        topology: *const PJRT_TopologyDescription,
        descriptions: *const *mut PJRT_DeviceDescription,
        num_descriptions: usize,
    }
    /// Compiles for a topology, without a device.
    PJRT_Compile_Args {
        topology: *const PJRT_TopologyDescription,
        program: *const PJRT_Program,
        compile_options: *const c_char,
        compile_options_size: usize,
        client: *mut PJRT_Client,
        executable: *mut PJRT_Executable,
    }
}

/// The value of a [`PJRT_NamedValue`]; its `value_type` selects the member.
#[repr(C)]
pub union NamedValue {
    pub string: *const c_char,
    pub int64: i64,
    pub int64_array: *const i64,
    pub float: f32,
    pub boolean: bool,
}

/// A named value: an option for the plugin, or an attribute from it.
#[repr(C)]
pub struct PJRT_NamedValue {
    pub struct_size: usize,
    pub extension_start: *mut c_void,
    pub name: *const c_char,
    pub name_size: usize,
    pub value_type: c_int,
    pub value: NamedValue,
    /// Elements of a string or an array, 1 for a scalar.
    pub value_size: usize,
}

/// Version of the header a plugin was built with.
#[repr(C)]
pub struct PJRT_Api_Version {
    pub struct_size: usize,
    pub extension_start: *mut c_void,
    pub major_version: c_int,
    pub minor_version: c_int,
}

/// A table entry this crate does not call.
pub type Unused = *const c_void;
/// A table entry that may fail.
pub type Entry<Args> = Option<unsafe extern "C" fn(*mut Args) -> *mut PJRT_Error>;
/// A table entry that cannot fail.
pub type VoidEntry<Args> = Option<unsafe extern "C" fn(*mut Args)>;

/// The table that `GetPjrtApi` returns. A plugin may have a shorter or a longer one: read an entry only through
/// [`Plugin`](super::Plugin), which first compares its offset with `struct_size`.
#[repr(C)]
pub struct PJRT_Api {
    pub struct_size: usize,
    pub extension_start: *mut c_void,
    pub pjrt_api_version: PJRT_Api_Version,
    pub PJRT_Error_Destroy: VoidEntry<PJRT_Error_Destroy_Args>,
    pub PJRT_Error_Message: VoidEntry<PJRT_Error_Message_Args>,
    pub PJRT_Error_GetCode: Entry<PJRT_Error_GetCode_Args>,
    pub PJRT_Plugin_Initialize: Entry<PJRT_Plugin_Initialize_Args>,
    pub PJRT_Plugin_Attributes: Entry<PJRT_Plugin_Attributes_Args>,
    pub PJRT_Event_Destroy: Entry<PJRT_Event_Destroy_Args>,
    pub PJRT_Event_IsReady: Unused,
    pub PJRT_Event_Error: Unused,
    pub PJRT_Event_Await: Entry<PJRT_Event_Await_Args>,
    pub PJRT_Event_OnReady: Unused,
    pub PJRT_Client_Create: Entry<PJRT_Client_Create_Args>,
    pub PJRT_Client_Destroy: Entry<PJRT_Client_Destroy_Args>,
    pub PJRT_Client_PlatformName: Entry<PJRT_Client_PlatformName_Args>,
    pub PJRT_Client_ProcessIndex: Entry<PJRT_Client_ProcessIndex_Args>,
    pub PJRT_Client_PlatformVersion: Entry<PJRT_Client_PlatformVersion_Args>,
    pub PJRT_Client_Devices: Entry<PJRT_Client_Devices_Args>,
    pub PJRT_Client_AddressableDevices: Entry<PJRT_Client_AddressableDevices_Args>,
    pub PJRT_Client_LookupDevice: Unused,
    pub PJRT_Client_LookupAddressableDevice: Unused,
    pub PJRT_Client_AddressableMemories: Unused,
    pub PJRT_Client_Compile: Entry<PJRT_Client_Compile_Args>,
    pub PJRT_Client_DefaultDeviceAssignment: Unused,
    pub PJRT_Client_BufferFromHostBuffer: Entry<PJRT_Client_BufferFromHostBuffer_Args>,
    pub PJRT_DeviceDescription_Id: Entry<PJRT_DeviceDescription_Id_Args>,
    pub PJRT_DeviceDescription_ProcessIndex: Entry<PJRT_DeviceDescription_ProcessIndex_Args>,
    pub PJRT_DeviceDescription_Attributes: Entry<PJRT_DeviceDescription_Attributes_Args>,
    pub PJRT_DeviceDescription_Kind: Entry<PJRT_DeviceDescription_Kind_Args>,
    pub PJRT_DeviceDescription_DebugString: Entry<PJRT_DeviceDescription_DebugString_Args>,
    pub PJRT_DeviceDescription_ToString: Entry<PJRT_DeviceDescription_ToString_Args>,
    pub PJRT_Device_GetDescription: Entry<PJRT_Device_GetDescription_Args>,
    pub PJRT_Device_IsAddressable: Unused,
    pub PJRT_Device_LocalHardwareId: Unused,
    pub PJRT_Device_AddressableMemories: Unused,
    pub PJRT_Device_DefaultMemory: Unused,
    pub PJRT_Device_MemoryStats: Entry<PJRT_Device_MemoryStats_Args>,
    pub PJRT_Memory_Id: Unused,
    pub PJRT_Memory_Kind: Unused,
    pub PJRT_Memory_DebugString: Unused,
    pub PJRT_Memory_ToString: Unused,
    pub PJRT_Memory_AddressableByDevices: Unused,
    pub PJRT_Executable_Destroy: Entry<PJRT_Executable_Destroy_Args>,
    pub PJRT_Executable_Name: Entry<PJRT_Executable_Name_Args>,
    pub PJRT_Executable_NumReplicas: Unused,
    pub PJRT_Executable_NumPartitions: Unused,
    pub PJRT_Executable_NumOutputs: Entry<PJRT_Executable_NumOutputs_Args>,
    pub PJRT_Executable_SizeOfGeneratedCodeInBytes: Unused,
    pub PJRT_Executable_GetCostAnalysis: Entry<PJRT_Executable_GetCostAnalysis_Args>,
    pub PJRT_Executable_OutputMemoryKinds: Unused,
    pub PJRT_Executable_OptimizedProgram: Entry<PJRT_Executable_OptimizedProgram_Args>,
    pub PJRT_Executable_Serialize: Entry<PJRT_Executable_Serialize_Args>,
    pub PJRT_LoadedExecutable_Destroy: Entry<PJRT_LoadedExecutable_Destroy_Args>,
    pub PJRT_LoadedExecutable_GetExecutable: Entry<PJRT_LoadedExecutable_GetExecutable_Args>,
    pub PJRT_LoadedExecutable_AddressableDevices: Entry<PJRT_LoadedExecutable_AddressableDevices_Args>,
    pub PJRT_LoadedExecutable_Delete: Unused,
    pub PJRT_LoadedExecutable_IsDeleted: Unused,
    pub PJRT_LoadedExecutable_Execute: Entry<PJRT_LoadedExecutable_Execute_Args>,
    pub PJRT_Executable_DeserializeAndLoad: Entry<PJRT_Executable_DeserializeAndLoad_Args>,
    pub PJRT_LoadedExecutable_Fingerprint: Unused,
    pub PJRT_Buffer_Destroy: Entry<PJRT_Buffer_Destroy_Args>,
    pub PJRT_Buffer_ElementType: Entry<PJRT_Buffer_ElementType_Args>,
    pub PJRT_Buffer_Dimensions: Entry<PJRT_Buffer_Dimensions_Args>,
    pub PJRT_Buffer_UnpaddedDimensions: Unused,
    pub PJRT_Buffer_DynamicDimensionIndices: Unused,
    pub PJRT_Buffer_GetMemoryLayout: Unused,
    pub PJRT_Buffer_OnDeviceSizeInBytes: Entry<PJRT_Buffer_OnDeviceSizeInBytes_Args>,
    pub PJRT_Buffer_Device: Unused,
    pub PJRT_Buffer_Memory: Unused,
    pub PJRT_Buffer_Delete: Unused,
    pub PJRT_Buffer_IsDeleted: Entry<PJRT_Buffer_IsDeleted_Args>,
    pub PJRT_Buffer_CopyToDevice: Unused,
    pub PJRT_Buffer_ToHostBuffer: Entry<PJRT_Buffer_ToHostBuffer_Args>,
    pub PJRT_Buffer_IsOnCpu: Unused,
    pub PJRT_Buffer_ReadyEvent: Unused,
    pub PJRT_Buffer_UnsafePointer: Entry<PJRT_Buffer_UnsafePointer_Args>,
    pub PJRT_Buffer_IncreaseExternalReferenceCount: Unused,
    pub PJRT_Buffer_DecreaseExternalReferenceCount: Unused,
    pub PJRT_Buffer_OpaqueDeviceMemoryDataPointer: Unused,
    pub PJRT_CopyToDeviceStream_Destroy: Unused,
    pub PJRT_CopyToDeviceStream_AddChunk: Unused,
    pub PJRT_CopyToDeviceStream_TotalBytes: Unused,
    pub PJRT_CopyToDeviceStream_GranuleSize: Unused,
    pub PJRT_CopyToDeviceStream_CurrentBytes: Unused,
    pub PJRT_TopologyDescription_Create: Entry<PJRT_TopologyDescription_Create_Args>,
    pub PJRT_TopologyDescription_Destroy: Entry<PJRT_TopologyDescription_Destroy_Args>,
    pub PJRT_TopologyDescription_PlatformName: Entry<PJRT_TopologyDescription_PlatformName_Args>,
    pub PJRT_TopologyDescription_PlatformVersion: Entry<PJRT_TopologyDescription_PlatformVersion_Args>,
    pub PJRT_TopologyDescription_GetDeviceDescriptions: Entry<PJRT_TopologyDescription_GetDeviceDescriptions_Args>,
    pub PJRT_TopologyDescription_Serialize: Unused,
    pub PJRT_TopologyDescription_Attributes: Unused,
    pub PJRT_Compile: Entry<PJRT_Compile_Args>,
    pub PJRT_Executable_OutputElementTypes: Entry<PJRT_Executable_OutputElementTypes_Args>,
    pub PJRT_Executable_OutputDimensions: Entry<PJRT_Executable_OutputDimensions_Args>,
    pub PJRT_Buffer_CopyToMemory: Unused,
    pub PJRT_Client_CreateViewOfDeviceBuffer: Unused,
    pub PJRT_Executable_Fingerprint: Entry<PJRT_Executable_Fingerprint_Args>,
    pub PJRT_Client_TopologyDescription: Unused,
    pub PJRT_Executable_GetCompiledMemoryStats: Entry<PJRT_Executable_GetCompiledMemoryStats_Args>,
    pub PJRT_Memory_Kind_Id: Unused,
    pub PJRT_ExecuteContext_Create: Unused,
    pub PJRT_ExecuteContext_Destroy: Unused,
    pub PJRT_Buffer_CopyRawToHost: Unused,
    pub PJRT_AsyncHostToDeviceTransferManager_Destroy: Unused,
    pub PJRT_AsyncHostToDeviceTransferManager_TransferData: Unused,
    pub PJRT_Client_CreateBuffersForAsyncHostToDevice: Unused,
    pub PJRT_AsyncHostToDeviceTransferManager_RetrieveBuffer: Unused,
    pub PJRT_AsyncHostToDeviceTransferManager_Device: Unused,
    pub PJRT_AsyncHostToDeviceTransferManager_BufferCount: Unused,
    pub PJRT_AsyncHostToDeviceTransferManager_BufferSize: Unused,
    pub PJRT_AsyncHostToDeviceTransferManager_SetBufferError: Unused,
    pub PJRT_AsyncHostToDeviceTransferManager_AddMetadata: Unused,
    pub PJRT_Client_DmaMap: Unused,
    pub PJRT_Client_DmaUnmap: Unused,
    pub PJRT_Client_CreateUninitializedBuffer: Unused,
    pub PJRT_Client_UpdateGlobalProcessInfo: Unused,
    pub PJRT_TopologyDescription_Deserialize: Unused,
    pub PJRT_Client_CreateAliasBuffer: Unused,
    pub PJRT_Client_FulfillAliasBuffer: Unused,
    pub PJRT_LoadedExecutable_GetDeviceAssignment: Unused,
}

/// `GetPjrtApi`, the one symbol a plugin exports.
pub type GetPjrtApi = unsafe extern "C" fn() -> *const PJRT_Api;

#[cfg(test)]
mod tests {
    use super::*;

    /// `PJRT_STRUCT_SIZE` of each struct, as a C++ compiler computes it from the header of API 0.81 on x86-64.
    const HEADER_SIZES: &[(&str, usize)] = &[
        ("PJRT_Error_Destroy_Args", 24),
        ("PJRT_Error_Message_Args", 40),
        ("PJRT_Error_GetCode_Args", 28),
        ("PJRT_Plugin_Initialize_Args", 16),
        ("PJRT_Plugin_Attributes_Args", 32),
        ("PJRT_Event_Destroy_Args", 24),
        ("PJRT_Event_Await_Args", 24),
        ("PJRT_Client_Create_Args", 88),
        ("PJRT_Client_Destroy_Args", 24),
        ("PJRT_Client_PlatformName_Args", 40),
        ("PJRT_Client_PlatformVersion_Args", 40),
        ("PJRT_Client_ProcessIndex_Args", 28),
        ("PJRT_Client_Devices_Args", 40),
        ("PJRT_Client_AddressableDevices_Args", 40),
        ("PJRT_Program", 48),
        ("PJRT_Client_Compile_Args", 56),
        ("PJRT_Buffer_MemoryLayout_Tiled", 56),
        ("PJRT_Buffer_MemoryLayout", 76),
        ("PJRT_Client_BufferFromHostBuffer_Args", 120),
        ("PJRT_DeviceDescription_Id_Args", 28),
        ("PJRT_DeviceDescription_ProcessIndex_Args", 28),
        ("PJRT_DeviceDescription_Attributes_Args", 40),
        ("PJRT_DeviceDescription_Kind_Args", 40),
        ("PJRT_DeviceDescription_DebugString_Args", 40),
        ("PJRT_DeviceDescription_ToString_Args", 40),
        ("PJRT_Device_GetDescription_Args", 32),
        ("PJRT_Device_MemoryStats_Args", 185),
        ("PJRT_Executable_Destroy_Args", 24),
        ("PJRT_LoadedExecutable_Destroy_Args", 24),
        ("PJRT_LoadedExecutable_GetExecutable_Args", 32),
        ("PJRT_LoadedExecutable_AddressableDevices_Args", 40),
        ("PJRT_Executable_Name_Args", 40),
        ("PJRT_Executable_NumOutputs_Args", 32),
        ("PJRT_Executable_OptimizedProgram_Args", 32),
        ("PJRT_Executable_Serialize_Args", 56),
        ("PJRT_Executable_DeserializeAndLoad_Args", 64),
        ("PJRT_Executable_Fingerprint_Args", 40),
        ("PJRT_Executable_GetCostAnalysis_Args", 40),
        ("PJRT_Executable_GetCompiledMemoryStats_Args", 112),
        ("PJRT_Executable_OutputElementTypes_Args", 40),
        ("PJRT_Executable_OutputDimensions_Args", 48),
        ("PJRT_ExecuteOptions", 112),
        ("PJRT_LoadedExecutable_Execute_Args", 80),
        ("PJRT_Buffer_Destroy_Args", 24),
        ("PJRT_Buffer_ElementType_Args", 28),
        ("PJRT_Buffer_Dimensions_Args", 40),
        ("PJRT_Buffer_OnDeviceSizeInBytes_Args", 32),
        ("PJRT_Buffer_IsDeleted_Args", 25),
        ("PJRT_Buffer_ToHostBuffer_Args", 56),
        ("PJRT_Buffer_UnsafePointer_Args", 32),
        ("PJRT_TopologyDescription_Create_Args", 56),
        ("PJRT_TopologyDescription_Destroy_Args", 24),
        ("PJRT_TopologyDescription_PlatformName_Args", 40),
        ("PJRT_TopologyDescription_PlatformVersion_Args", 40),
        ("PJRT_TopologyDescription_GetDeviceDescriptions_Args", 40),
        ("PJRT_Compile_Args", 64),
    ];

    #[test]
    fn structs_have_the_sizes_of_the_header() {
        assert_eq!(STRUCT_SIZES, HEADER_SIZES);
        assert_eq!(size_of::<PJRT_NamedValue>(), 56);
        assert_eq!(size_of::<PJRT_Api_Version>(), 24);
    }

    #[test]
    fn the_table_has_the_size_of_the_header() {
        assert_eq!(size_of::<PJRT_Api>(), 984);
        // The first entry, and one from the part that keeps growing.
        assert_eq!(offset_of!(PJRT_Api, PJRT_Error_Destroy), 40);
        assert_eq!(offset_of!(PJRT_Api, PJRT_Compile), 752);
    }
}
