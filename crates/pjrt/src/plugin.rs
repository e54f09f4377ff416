//! A plugin: a shared library that exports `GetPjrtApi`, loaded once per process and never unloaded.
//!
//! Contains loading, the checks before it (the file is a complete ELF library for this machine) and after it (symbol,
//! API version), the table lookup with its `struct_size` check, and the reading of errors. A plugin's name and
//! requirements are in `spec`, finding and installing it in `locate` and `install`.

use std::collections::BTreeMap;
use std::ffi::CStr;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use super::live::{HandleKind, Live};
use super::locate::locate;
use super::{
    Code, PjrtError, PjrtErrorKind, PjrtPlace, PluginSpec, Purpose, Setup, Value, elf, environment, ffi, value,
};

/// Reads a table entry, with its type: see [`Plugin::entry`], whose `unsafe` it passes on.
macro_rules! entry {
    ($plugin:expr, $function:ident) => {
        $plugin.entry(
            stringify!($function),
            std::mem::offset_of!($crate::ffi::PJRT_Api, $function),
            |table: &$crate::ffi::PJRT_Api| table.$function,
        )
    };
}

/// Calls a table entry that may fail: `call!(plugin, PJRT_Function, args)` is a `Result<(), PjrtError>`. It must stand
/// in an `unsafe` block that says why every handle in `args` is live and belongs to the plugin.
macro_rules! call {
    ($plugin:expr, $function:ident, $args:expr) => {{
        let plugin: &'static $crate::Plugin = $plugin;
        match $crate::plugin::entry!(plugin, $function) {
            Ok(function) => plugin.check(stringify!($function), function(&raw mut $args)),
            Err(unsupported) => Err(unsupported),
        }
    }};
}

pub(super) use {call, entry};

/// Checks a handle that a call should return: null is an error of a plugin that reports success.
pub(super) fn returned<T>(call: &'static str, what: &'static str, raw: *mut T) -> Result<*mut T, PjrtError> {
    if raw.is_null() { Err(PjrtError::nothing(call, what)) } else { Ok(raw) }
}

/// A loaded plugin. Lives as long as the process, so references to it are `'static`.
#[derive(Debug)]
pub struct Plugin {
    api: *const ffi::PJRT_Api,
    table_size: usize,
    version: (i32, i32),
    path: PathBuf,
}

// SAFETY: the table is written before `GetPjrtApi` returns and never after; the library is never unloaded. The C API
// lets any thread call through it.
unsafe impl Send for Plugin {}
// SAFETY: as above.
unsafe impl Sync for Plugin {}

impl PluginSpec {
    /// Ok, or an error if programs cannot run here on this plugin.
    pub(super) fn check_hardware(&self, purpose: Purpose) -> Result<(), PjrtError> {
        match &self.hardware {
            Some(hardware) if purpose == Purpose::Run && !hardware.is_here() => {
                let text = format!("this machine has no {}: none of its PCI devices is one", hardware.name);
                let error = PjrtError::new(PjrtErrorKind::Device, PjrtPlace::Device(self.name.to_string()), text);
                let help =
                    format!("run where there is one, or set {}=1 for the plugin to look for itself", hardware.variable);
                Err(error.with_help(help))
            }
            _ => Ok(()),
        }
    }
}

/// Plugins loaded so far, by canonical path.
static LOADED: Mutex<BTreeMap<PathBuf, &'static Plugin>> = Mutex::new(BTreeMap::new());

impl Plugin {
    /// The CPU plugin: located, installed on first use, loaded once.
    pub fn cpu() -> Result<&'static Plugin, PjrtError> {
        Plugin::for_spec(PluginSpec::cpu(), &Setup::from_env(), Purpose::Run)
    }

    /// The TPU compiler, for machines without a TPU: located, installed on first use, loaded once.
    pub fn tpu() -> Result<&'static Plugin, PjrtError> {
        Plugin::for_spec(PluginSpec::tpu(), &Setup::from_env(), Purpose::Compile)
    }

    /// A plugin, found according to `setup`, and loaded for a purpose, which determines the variables set before
    /// loading. A plugin that is already loaded is unchanged.
    ///
    /// # Errors
    /// A plugin that cannot be found, installed or loaded; one that `setup` does not permit to load; missing hardware;
    /// variables that cannot be set (see [`prepare_environment`](super::prepare_environment)).
    pub fn for_spec(spec: &PluginSpec, setup: &Setup, purpose: Purpose) -> Result<&'static Plugin, PjrtError> {
        let located = locate(spec, setup)?;
        if !spec.is_pinned() && setup.foreign.is_none() {
            let text = "not loaded into this process: it is not a pinned plugin, and nobody vouches for what it does";
            let help = "use it in a child process (Client::in_child), or give a ForeignCode in the Setup";
            let error = PjrtError::new(PjrtErrorKind::ForeignCode, PjrtPlace::File(located.path), text);
            return Err(error.with_help(help));
        }
        // SAFETY: a library whose sha256 is that of a tested plugin, or one that the user of this process named in an
        // environment variable of his own (as he might in `LD_PRELOAD`), or one that the caller vouches for, by
        // `ForeignCode::allow`.
        unsafe { Plugin::load(&located.path, spec, purpose) }
    }

    /// Loads the plugin in this file, or returns it if it is loaded.
    ///
    /// # Safety
    /// Those of [`ForeignCode::allow`](super::ForeignCode::allow), for this file.
    pub(super) unsafe fn load(path: &Path, spec: &PluginSpec, purpose: Purpose) -> Result<&'static Plugin, PjrtError> {
        let canonical = path.canonicalize().map_err(|error| match error.kind() {
            std::io::ErrorKind::NotFound => PjrtError::missing(path, "the caller"),
            _ => PjrtError::not_a_library(path, &error.to_string()),
        })?;
        // The lock is held while loading: two threads must not run a plugin's one-time setup twice.
        let mut loaded = LOADED.lock().unwrap_or_else(PoisonError::into_inner);
        environment::check(spec, purpose)?;
        if let Some(plugin) = loaded.get(&canonical) {
            return Ok(plugin);
        }
        elf::check(&canonical).map_err(|why| PjrtError::not_a_library(&canonical, &why))?;
        spec.check_hardware(purpose)?;
        environment::check_grids(spec)?;
        environment::prepare(spec, purpose)?;
        environment::prepare_others(spec)?;
        // SAFETY: the caller's promise.
        let plugin = unsafe { open(&canonical) }?;
        loaded.insert(canonical, plugin);
        Ok(plugin)
    }

    /// PJRT C API version of the plugin: major, minor.
    pub fn api_version(&self) -> (i32, i32) {
        self.version
    }

    /// The plugin's file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The plugin's description of itself, such as `xla_version`.
    pub fn attributes(&'static self) -> Result<BTreeMap<String, Value>, PjrtError> {
        let mut args = ffi::PJRT_Plugin_Attributes_Args::zeroed();
        // SAFETY: no handles; the attributes returned live as long as the process.
        unsafe {
            call!(self, PJRT_Plugin_Attributes, args)?;
            value::decode("PJRT_Plugin_Attributes", args.attributes, args.num_attributes)
        }
    }

    /// A table entry: `Unsupported` if the table ends before it, or holds null there. `_type` only names the type.
    ///
    /// # Safety
    /// `offset` is the offset of the field that `_type` reads.
    pub(super) unsafe fn entry<F: Copy>(
        &self,
        function: &'static str,
        offset: usize,
        _type: fn(&ffi::PJRT_Api) -> Option<F>,
    ) -> Result<F, PjrtError> {
        let end = offset + size_of::<Option<F>>();
        let entry = match end <= self.table_size {
            // SAFETY: the table's own size says that it reaches the end of this field, whose type is the caller's
            // promise. It is read through a raw pointer, since a shorter table must not be borrowed whole.
            true => unsafe { self.api.byte_add(offset).cast::<Option<F>>().read() },
            false => None,
        };
        entry.ok_or_else(|| self.unsupported(function))
    }

    /// Checks the entries that are always needed: to read and free errors, and to wait for work that still writes to
    /// our memory.
    fn check_needed(&self) -> Result<(), PjrtError> {
        // SAFETY: each entry's offset and type are those of one field; the macro takes both from its name.
        unsafe {
            entry!(self, PJRT_Error_Destroy)?;
            entry!(self, PJRT_Error_Message)?;
            entry!(self, PJRT_Error_GetCode)?;
            entry!(self, PJRT_Event_Destroy)?;
            entry!(self, PJRT_Event_Await)?;
        }
        Ok(())
    }

    fn unsupported(&self, function: &'static str) -> PjrtError {
        let (major, minor) = self.version;
        let text = format!("no function {function}: it has PJRT C API {major}.{minor}");
        PjrtError::new(PjrtErrorKind::Unsupported, PjrtPlace::File(self.path.clone()), text)
            .with_help("use a newer plugin (`bf16scope plugins list` names the pinned ones)")
    }

    /// Turns a call's return value into a result: reads the error, then frees it.
    ///
    /// # Safety
    /// `error` is null, or an error of this plugin that is freed nowhere else.
    pub(super) unsafe fn check(
        &'static self,
        call: &'static str,
        error: *mut ffi::PJRT_Error,
    ) -> Result<(), PjrtError> {
        if error.is_null() {
            return Ok(());
        }
        let _live = Live::new(HandleKind::Error);
        let mut message_args = ffi::PJRT_Error_Message_Args::zeroed();
        message_args.error = error;
        let mut code_args = ffi::PJRT_Error_GetCode_Args::zeroed();
        code_args.error = error;
        let mut destroy_args = ffi::PJRT_Error_Destroy_Args::zeroed();
        destroy_args.error = error;
        // SAFETY: `error` is live by the caller's promise, and freed last. The text is copied before that. So is the error
        // that `PJRT_Error_GetCode` may return of itself.
        unsafe {
            let message = match entry!(self, PJRT_Error_Message) {
                Ok(function) => {
                    function(&raw mut message_args);
                    value::text(message_args.message, message_args.message_size)
                }
                Err(_) => String::new(),
            };
            let no_code = match entry!(self, PJRT_Error_GetCode) {
                Ok(function) => function(&raw mut code_args),
                Err(_) => std::ptr::null_mut(),
            };
            if let Ok(function) = entry!(self, PJRT_Error_Destroy) {
                function(&raw mut destroy_args);
                if !no_code.is_null() {
                    code_args.code = Code::Unknown.number();
                    destroy_args.error = no_code;
                    function(&raw mut destroy_args);
                }
            }
            Err(PjrtError::refused(call, Code::from_number(code_args.code), message))
        }
    }
}

/// Logs a handle that could not be freed: a `drop` cannot do more.
pub(super) fn log_drop(freed: Result<(), PjrtError>) {
    if let Err(error) = freed {
        tracing::warn!(%error, "a plugin handle could not be freed");
    }
}

/// Opens a file that was checked, and reads its table.
///
/// # Safety
/// Those of [`Plugin::load`].
unsafe fn open(path: &Path) -> Result<&'static Plugin, PjrtError> {
    let not_pjrt = |why: String| {
        PjrtError::plugin(path, format!("not a PJRT plugin: {why}"))
            .with_help("name a PJRT plugin, such as the one in the xla-cpu-pjrt wheel")
    };
    // SAFETY: loading runs the library's initialisers, which the caller promises may run here.
    let library = unsafe { libloading::Library::new(path) }
        .map_err(|error| not_loaded(path, &error.to_string(), super::address_space()))?;
    // SAFETY: `GetPjrtApi` has this type in every version of the C API.
    let api = match unsafe { library.get::<ffi::GetPjrtApi>(GET_PJRT_API.to_bytes_with_nul()) } {
        // SAFETY: takes nothing, returns the table or null.
        Ok(get_pjrt_api) => unsafe { get_pjrt_api() },
        Err(_) => return Err(not_pjrt("it exports no GetPjrtApi".to_string())),
    };
    if api.is_null() {
        return Err(not_pjrt("its GetPjrtApi gives no table".to_string()));
    }
    // The table points into the library, so it is never unloaded.
    std::mem::forget(library);
    // SAFETY: the size is at the start of the table in every version.
    let table_size = unsafe { (&raw const (*api).struct_size).read() };
    if table_size < HEAD_BYTES {
        return Err(not_pjrt(format!("its table has {table_size} bytes, less than its head's {HEAD_BYTES}")));
    }
    // SAFETY: the version follows the size in every version, and the table reaches its end, as just checked.
    let version = unsafe {
        let version = &raw const (*api).pjrt_api_version;
        ((*version).major_version, (*version).minor_version)
    };
    let plugin = Plugin { api, table_size, version, path: path.to_path_buf() };
    if version.0 != ffi::API_MAJOR {
        return Err(other_api(&plugin.path, version));
    }
    let plugin: &'static Plugin = Box::leak(Box::new(plugin));
    plugin.check_needed()?;
    let mut args = ffi::PJRT_Plugin_Initialize_Args::zeroed();
    // SAFETY: no handles; called once for each library, under the lock of `LOADED`.
    unsafe { call!(plugin, PJRT_Plugin_Initialize, args)? };
    tracing::debug!(path = %path.display(), version = ?version, "plugin loaded");
    Ok(plugin)
}

/// The dynamic loader refused the file, with its own text. It may have had too little address space, if that is
/// limited.
fn not_loaded(path: &Path, text: &str, address_space: Option<u64>) -> PjrtError {
    let help = address_space.map_or(String::new(), |limit| {
        format!("processes may have {limit} bytes of address space here; raise that limit (`ulimit -v`)")
    });
    PjrtError::plugin(path, format!("cannot be loaded: {text}")).with_help(help)
}

/// A plugin with another ABI.
fn other_api(path: &Path, (major, minor): (i32, i32)) -> PjrtError {
    let (known, since) = (ffi::API_MAJOR, ffi::API_MINOR);
    let text = format!("PJRT C API {major}.{minor}, this build knows {known}.x (since {known}.{since})");
    PjrtError::plugin(path, text).with_help("use a plugin of that major version")
}

const GET_PJRT_API: &CStr = c"GetPjrtApi";
/// The offset of the first function in the table, after size and version.
const HEAD_BYTES: usize = std::mem::offset_of!(ffi::PJRT_Api, PJRT_Error_Destroy);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loader_without_room_says_how_much_it_may_have() {
        let error = |limit| not_loaded(Path::new("a.so"), "a.so: cannot map", limit).to_string();
        assert_eq!(error(None), "plugin a.so: cannot be loaded: a.so: cannot map");
        assert_eq!(
            error(Some(1 << 20)),
            "plugin a.so: cannot be loaded: a.so: cannot map\nhelp: processes may have 1048576 bytes of address space here; \
             raise that limit (`ulimit -v`)"
        );
    }
}
