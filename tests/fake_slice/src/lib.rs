//! A PJRT plugin that is one host of a slice. Behind it is the CPU plugin with the devices of all hosts; this host may use its
//! own of them. A program of all devices runs in every process: hosts hand each other their arguments through files, each runs
//! the whole, and keeps what its own devices give. So the numbers are those of one process, and hosts that run different
//! programs, or one more than another, are found out: the process ends.
//!
//! | variable | what it says |
//! | --- | --- |
//! | `FAKE_SLICE_PLUGIN` | the CPU plugin's file |
//! | `FAKE_SLICE_HOSTS`, `FAKE_SLICE_CORES` | how many hosts, and devices on each |
//! | `FAKE_SLICE_HOST` | which host this process is |
//! | `FAKE_SLICE_MEET` | the folder in which they meet |
//!
//! Device `id` is of host `id % hosts`: as in a real slice, numbers of devices do not go host by host.

#[allow(dead_code)]
#[path = "../../../crates/pjrt/src/ffi.rs"]
mod ffi;

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::path::PathBuf;
use std::ptr::{null, null_mut};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

unsafe extern "C" {
    fn dlopen(path: *const c_char, flags: c_int) -> *mut c_void;
    fn dlsym(library: *mut c_void, name: *const c_char) -> *mut c_void;
    fn dlerror() -> *const c_char;
}

const RTLD_NOW: c_int = 2;
/// Longer than any step of a test, on a machine that does other things too.
const PATIENCE: Duration = Duration::from_secs(120);

fn variable(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| panic!("{name} is not set"))
}

fn number(name: &str) -> usize {
    variable(name).parse().unwrap_or_else(|_| panic!("{name} is no number"))
}

/// This host.
struct Host {
    number: usize,
    n_hosts: usize,
    n_devices: usize,
    meet: PathBuf,
}

fn host() -> &'static Host {
    static HOST: OnceLock<Host> = OnceLock::new();
    HOST.get_or_init(|| {
        let n_hosts = number("FAKE_SLICE_HOSTS");
        Host {
            number: number("FAKE_SLICE_HOST"),
            n_hosts,
            n_devices: n_hosts * number("FAKE_SLICE_CORES"),
            meet: variable("FAKE_SLICE_MEET").into(),
        }
    })
}

/// The CPU plugin's table.
fn real() -> &'static ffi::PJRT_Api {
    static REAL: OnceLock<usize> = OnceLock::new();
    let table = *REAL.get_or_init(|| {
        let path = CString::new(variable("FAKE_SLICE_PLUGIN")).expect("a path");
        // SAFETY: the test names a plugin, whose one symbol has this type.
        unsafe {
            let library = dlopen(path.as_ptr(), RTLD_NOW);
            assert!(!library.is_null(), "{}", CStr::from_ptr(dlerror()).to_string_lossy());
            let symbol = dlsym(library, c"GetPjrtApi".as_ptr());
            assert!(!symbol.is_null(), "no GetPjrtApi");
            let get: ffi::GetPjrtApi = std::mem::transmute(symbol);
            get() as usize
        }
    });
    // SAFETY: it lives as long as the process.
    unsafe { &*(table as *const ffi::PJRT_Api) }
}

/// Calls the CPU plugin, which must succeed.
macro_rules! ask {
    ($function:ident, $args:expr) => {{
        let error = (real().$function.expect("the CPU plugin has it"))(&raw mut $args);
        assert!(error.is_null(), concat!(stringify!($function), " failed"));
    }};
}

unsafe fn id_of_description(description: *mut ffi::PJRT_DeviceDescription) -> usize {
    let mut args = ffi::PJRT_DeviceDescription_Id_Args::zeroed();
    args.device_description = description;
    unsafe { ask!(PJRT_DeviceDescription_Id, args) };
    args.id as usize
}

unsafe fn id_of(device: *mut ffi::PJRT_Device) -> usize {
    let mut args = ffi::PJRT_Device_GetDescription_Args::zeroed();
    args.device = device;
    unsafe { ask!(PJRT_Device_GetDescription, args) };
    unsafe { id_of_description(args.device_description) }
}

/// Of a list of devices those of this host, in a list that lives as long as the process.
unsafe fn own(devices: *const *mut ffi::PJRT_Device, n: usize) -> (*const *mut ffi::PJRT_Device, usize) {
    let all = unsafe { std::slice::from_raw_parts(devices, n) };
    let is_own = |device: &&*mut ffi::PJRT_Device| unsafe { id_of(**device) } % host().n_hosts == host().number;
    let own: Vec<_> = all.iter().filter(is_own).copied().collect();
    let n_own = own.len();
    (Box::leak(own.into_boxed_slice()).as_ptr(), n_own)
}

unsafe extern "C" fn client_create(raw: *mut ffi::PJRT_Client_Create_Args) -> *mut ffi::PJRT_Error {
    let name = "cpu_device_count";
    let option = ffi::PJRT_NamedValue {
        struct_size: size_of::<ffi::PJRT_NamedValue>(),
        extension_start: null_mut(),
        name: name.as_ptr().cast(),
        name_size: name.len(),
        value_type: ffi::NAMED_INT64,
        value: ffi::NamedValue { int64: host().n_devices as i64 },
        value_size: 1,
    };
    let args = unsafe { &mut *raw };
    (args.create_options, args.num_options) = (&raw const option, 1);
    unsafe { (real().PJRT_Client_Create.expect("it is there"))(raw) }
}

unsafe extern "C" fn process_index(raw: *mut ffi::PJRT_Client_ProcessIndex_Args) -> *mut ffi::PJRT_Error {
    unsafe { (*raw).process_index = host().number as c_int };
    null_mut()
}

unsafe extern "C" fn process_of(raw: *mut ffi::PJRT_DeviceDescription_ProcessIndex_Args) -> *mut ffi::PJRT_Error {
    let args = unsafe { &mut *raw };
    args.process_index = (unsafe { id_of_description(args.device_description) } % host().n_hosts) as c_int;
    null_mut()
}

unsafe extern "C" fn addressable(raw: *mut ffi::PJRT_Client_AddressableDevices_Args) -> *mut ffi::PJRT_Error {
    let error = unsafe { (real().PJRT_Client_AddressableDevices.expect("it is there"))(raw) };
    let args = unsafe { &mut *raw };
    (args.addressable_devices, args.num_addressable_devices) =
        unsafe { own(args.addressable_devices, args.num_addressable_devices) };
    error
}

unsafe extern "C" fn addressable_of_program(
    raw: *mut ffi::PJRT_LoadedExecutable_AddressableDevices_Args,
) -> *mut ffi::PJRT_Error {
    let error = unsafe { (real().PJRT_LoadedExecutable_AddressableDevices.expect("it is there"))(raw) };
    let args = unsafe { &mut *raw };
    (args.addressable_devices, args.num_addressable_devices) =
        unsafe { own(args.addressable_devices, args.num_addressable_devices) };
    error
}

/// An array on its way to another host.
struct Array {
    dtype: c_int,
    dims: Vec<i64>,
    bytes: Vec<u8>,
}

unsafe fn wait(event: *mut ffi::PJRT_Event) {
    if event.is_null() {
        return;
    }
    let mut args = ffi::PJRT_Event_Await_Args::zeroed();
    args.event = event;
    unsafe { ask!(PJRT_Event_Await, args) };
    let mut args = ffi::PJRT_Event_Destroy_Args::zeroed();
    args.event = event;
    unsafe { ask!(PJRT_Event_Destroy, args) };
}

unsafe fn destroy(buffer: *mut ffi::PJRT_Buffer) {
    let mut args = ffi::PJRT_Buffer_Destroy_Args::zeroed();
    args.buffer = buffer;
    unsafe { ask!(PJRT_Buffer_Destroy, args) };
}

unsafe fn read(buffer: *mut ffi::PJRT_Buffer) -> Array {
    let mut dtype = ffi::PJRT_Buffer_ElementType_Args::zeroed();
    dtype.buffer = buffer;
    let mut dims = ffi::PJRT_Buffer_Dimensions_Args::zeroed();
    dims.buffer = buffer;
    let mut copy = ffi::PJRT_Buffer_ToHostBuffer_Args::zeroed();
    copy.src = buffer;
    unsafe {
        ask!(PJRT_Buffer_ElementType, dtype);
        ask!(PJRT_Buffer_Dimensions, dims);
        // Without a place for them the plugin says how many bytes there are.
        ask!(PJRT_Buffer_ToHostBuffer, copy);
        let mut bytes = vec![0u8; copy.dst_size];
        copy.dst = bytes.as_mut_ptr().cast();
        ask!(PJRT_Buffer_ToHostBuffer, copy);
        wait(copy.event);
        let dims = if dims.num_dims == 0 { Vec::new() } else { std::slice::from_raw_parts(dims.dims, dims.num_dims).to_vec() };
        Array { dtype: dtype.buffer_type, dims, bytes }
    }
}

unsafe fn put(client: *mut ffi::PJRT_Client, array: &Array, device: *mut ffi::PJRT_Device) -> *mut ffi::PJRT_Buffer {
    let mut args = ffi::PJRT_Client_BufferFromHostBuffer_Args::zeroed();
    args.client = client;
    args.data = array.bytes.as_ptr().cast();
    args.buffer_type = array.dtype;
    (args.dims, args.num_dims) = (array.dims.as_ptr(), array.dims.len());
    args.host_buffer_semantics = ffi::IMMUTABLE_ONLY_DURING_CALL;
    args.device = device;
    unsafe { ask!(PJRT_Client_BufferFromHostBuffer, args) };
    unsafe { wait(args.done_with_host_buffer) };
    args.buffer
}

fn write(text: &mut Vec<u8>, words: &[i64]) {
    text.extend(words.iter().flat_map(|word| word.to_le_bytes()));
}

/// What a host hands to the others: the program's name, and for each of its devices the arguments.
fn message(name: &str, lists: &[Vec<Array>]) -> Vec<u8> {
    let mut bytes = Vec::new();
    write(&mut bytes, &[name.len() as i64]);
    bytes.extend(name.as_bytes());
    write(&mut bytes, &[lists.len() as i64, lists.first().map_or(0, Vec::len) as i64]);
    for array in lists.iter().flatten() {
        write(&mut bytes, &[i64::from(array.dtype), array.dims.len() as i64, array.bytes.len() as i64]);
        write(&mut bytes, &array.dims);
        bytes.extend(&array.bytes);
    }
    bytes
}

/// Reads what `message` wrote.
struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn take(&mut self, n: i64) -> Vec<u8> {
        let (start, rest) = self.0.split_at(n as usize);
        self.0 = rest;
        start.to_vec()
    }

    fn words(&mut self, n: i64) -> Vec<i64> {
        self.take(8 * n).as_chunks().0.iter().map(|word| i64::from_le_bytes(*word)).collect()
    }
}

fn parsed(bytes: &[u8]) -> (String, Vec<Vec<Array>>) {
    let mut reader = Reader(bytes);
    let length = reader.words(1)[0];
    let name = String::from_utf8_lossy(&reader.take(length)).into_owned();
    let counts = reader.words(2);
    let mut array = |_| {
        let head = reader.words(3);
        Array { dtype: head[0] as c_int, dims: reader.words(head[1]), bytes: reader.take(head[2]) }
    };
    (name, (0..counts[0]).map(|_| (0..counts[1]).map(&mut array).collect()).collect())
}

/// Hands over what this host has, and waits for what the others have: by host, nothing of its own.
fn meet(name: &str, lists: &[Vec<Array>]) -> Vec<Vec<Vec<Array>>> {
    static N_MET: AtomicU64 = AtomicU64::new(0);
    let (host, n) = (host(), N_MET.fetch_add(1, Ordering::SeqCst));
    let place = |number: usize, n: u64| host.meet.join(format!("{n}-{number}"));
    let unfinished = host.meet.join(format!("unfinished-{}", host.number));
    std::fs::write(&unfinished, message(name, lists)).expect("the folder is there");
    std::fs::rename(&unfinished, place(host.number, n)).expect("the folder is there");
    let began = Instant::now();
    let others = (0..host.n_hosts).map(|number| {
        if number == host.number {
            return Vec::new();
        }
        let bytes = loop {
            match std::fs::read(place(number, n)) {
                Ok(bytes) => break bytes,
                Err(_) if began.elapsed() < PATIENCE => std::thread::sleep(Duration::from_millis(1)),
                Err(_) => panic!("host {} runs {name} as its call {n}, and host {number} does not come", host.number),
            }
        };
        let (other, lists) = parsed(&bytes);
        assert_eq!(other, name, "call {n} of host {number}, and of host {}", host.number);
        lists
    });
    let others = others.collect();
    // All have read what came before this.
    if let Some(before) = n.checked_sub(1) {
        let _ = std::fs::remove_file(place(host.number, before));
    }
    others
}

unsafe fn name_of(executable: *mut ffi::PJRT_LoadedExecutable) -> String {
    let mut get = ffi::PJRT_LoadedExecutable_GetExecutable_Args::zeroed();
    get.loaded_executable = executable;
    unsafe { ask!(PJRT_LoadedExecutable_GetExecutable, get) };
    let mut name = ffi::PJRT_Executable_Name_Args::zeroed();
    name.executable = get.executable;
    unsafe { ask!(PJRT_Executable_Name, name) };
    let bytes = unsafe { std::slice::from_raw_parts(name.executable_name.cast::<u8>(), name.executable_name_size) };
    let text = String::from_utf8_lossy(bytes).into_owned();
    let mut destroy = ffi::PJRT_Executable_Destroy_Args::zeroed();
    destroy.executable = get.executable;
    unsafe { ask!(PJRT_Executable_Destroy, destroy) };
    text
}

/// The one client of this process.
static CLIENT: OnceLock<usize> = OnceLock::new();

unsafe extern "C" fn compile(raw: *mut ffi::PJRT_Client_Compile_Args) -> *mut ffi::PJRT_Error {
    CLIENT.get_or_init(|| unsafe { (*raw).client } as usize);
    unsafe { (real().PJRT_Client_Compile.expect("it is there"))(raw) }
}

unsafe extern "C" fn execute(raw: *mut ffi::PJRT_LoadedExecutable_Execute_Args) -> *mut ffi::PJRT_Error {
    let run = real().PJRT_LoadedExecutable_Execute.expect("it is there");
    let args = unsafe { &mut *raw };
    let mut devices = ffi::PJRT_LoadedExecutable_AddressableDevices_Args::zeroed();
    devices.executable = args.executable;
    unsafe { ask!(PJRT_LoadedExecutable_AddressableDevices, devices) };
    let n_all = devices.num_addressable_devices;
    if n_all == args.num_devices {
        // Of this host alone.
        return unsafe { run(raw) };
    }
    let all = unsafe { std::slice::from_raw_parts(devices.addressable_devices, n_all) };
    let lists = unsafe { std::slice::from_raw_parts(args.argument_lists, args.num_devices) };
    let own: Vec<Vec<*mut ffi::PJRT_Buffer>> = lists
        .iter()
        .map(|&list| if args.num_args == 0 { Vec::new() } else { unsafe { std::slice::from_raw_parts(list, args.num_args) }.to_vec() })
        .collect();
    let arrays: Vec<Vec<Array>> =
        own.iter().map(|list| list.iter().map(|&buffer| unsafe { read(buffer) }).collect()).collect();
    let mut others: Vec<_> = meet(&unsafe { name_of(args.executable) }, &arrays).into_iter().map(Vec::into_iter).collect();
    let client = *CLIENT.get().expect("a program was compiled") as *mut ffi::PJRT_Client;
    let mut own = own.into_iter();
    let mut is_own = Vec::new();
    let mut whole: Vec<Vec<*mut ffi::PJRT_Buffer>> = Vec::new();
    for &device in all {
        let of = unsafe { id_of(device) } % host().n_hosts;
        is_own.push(of == host().number);
        whole.push(match of == host().number {
            true => own.next().expect("as many lists as devices"),
            false => {
                let list = others[of].next().expect("as many lists as the other host has devices");
                list.iter().map(|array| unsafe { put(client, array, device) }).collect()
            }
        });
    }
    let argument_lists: Vec<*const *mut ffi::PJRT_Buffer> = whole.iter().map(|list| list.as_ptr()).collect();
    let n_outputs = {
        let mut get = ffi::PJRT_LoadedExecutable_GetExecutable_Args::zeroed();
        get.loaded_executable = args.executable;
        unsafe { ask!(PJRT_LoadedExecutable_GetExecutable, get) };
        let mut count = ffi::PJRT_Executable_NumOutputs_Args::zeroed();
        count.executable = get.executable;
        unsafe { ask!(PJRT_Executable_NumOutputs, count) };
        let mut destroy = ffi::PJRT_Executable_Destroy_Args::zeroed();
        destroy.executable = get.executable;
        unsafe { ask!(PJRT_Executable_Destroy, destroy) };
        count.num_outputs
    };
    let mut outputs = vec![vec![null_mut(); n_outputs]; n_all];
    let output_lists: Vec<*mut *mut ffi::PJRT_Buffer> = outputs.iter_mut().map(|list| list.as_mut_ptr()).collect();
    let mut events = vec![null_mut(); n_all];
    let (own_outputs, own_events) = (args.output_lists, args.device_complete_events);
    (args.argument_lists, args.num_devices) = (argument_lists.as_ptr(), n_all);
    (args.output_lists, args.device_complete_events) = (output_lists.as_ptr(), events.as_mut_ptr());
    let error = unsafe { run(raw) };
    assert!(error.is_null(), "the CPU plugin did not run it");
    let mut here = 0;
    for (position, is_own) in is_own.into_iter().enumerate() {
        if is_own {
            let list = unsafe { std::slice::from_raw_parts_mut(*own_outputs.add(here), n_outputs) };
            list.copy_from_slice(&outputs[position]);
            unsafe { *own_events.add(here) = events[position] };
            here += 1;
        } else {
            unsafe { wait(events[position]) };
            outputs[position].iter().chain(&whole[position]).for_each(|&buffer| unsafe { destroy(buffer) });
        }
    }
    (args.argument_lists, args.num_devices) = (null(), here);
    (args.output_lists, args.device_complete_events) = (own_outputs, own_events);
    null_mut()
}

/// The one symbol that a plugin exports.
#[unsafe(no_mangle)]
pub extern "C" fn GetPjrtApi() -> *const ffi::PJRT_Api {
    static TABLE: OnceLock<usize> = OnceLock::new();
    *TABLE.get_or_init(|| {
        let n_bytes = size_of::<ffi::PJRT_Api>().min(real().struct_size);
        let table = Box::leak(Box::new(std::mem::MaybeUninit::<ffi::PJRT_Api>::zeroed()));
        // SAFETY: both are tables of at least so many bytes; what is behind them stays zero, which is no function.
        let table = unsafe {
            std::ptr::from_ref(real()).cast::<u8>().copy_to_nonoverlapping(table.as_mut_ptr().cast(), n_bytes);
            table.assume_init_mut()
        };
        table.struct_size = n_bytes;
        table.PJRT_Client_Create = Some(client_create);
        table.PJRT_Client_ProcessIndex = Some(process_index);
        table.PJRT_Client_AddressableDevices = Some(addressable);
        table.PJRT_DeviceDescription_ProcessIndex = Some(process_of);
        table.PJRT_Client_Compile = Some(compile);
        table.PJRT_LoadedExecutable_AddressableDevices = Some(addressable_of_program);
        table.PJRT_LoadedExecutable_Execute = Some(execute);
        std::ptr::from_mut(table) as usize
    }) as *const ffi::PJRT_Api
}
