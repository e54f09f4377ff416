//! Converts StableHLO to HLO with XLA's own converter, which is part of every plugin's compiler.
//!
//! The C API has no call for it, but a compiler with dumps enabled writes the program before its first pass, which is
//! the result of the conversion, with names, locations and shardings. A child compiles, and is killed as soon as that
//! file is complete.
//!
//! The CPU plugin is tried first. If it is older than the program's writer, it does not know the newest operations, and
//! says so; then the TPU compiler is tried, if it is installed.
//!
//! A program with symbolic sizes has no HLO, but a plugin dumps its input as text before it converts it: this is how
//! bytecode is read.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::inotify;

use super::error::{ChildError, Doing};
use super::message::Request;
use super::process::Child;
use super::spec::ChildSpec;
use super::wire;
use crate::locate::{installed, locate, named};
use crate::{CompileOptions, Installed, OptionValue, PjrtError, PluginSpec, Purpose, Setup, environment};
use bf16scope_files as files;

/// The suffix of the file with the program before XLA's first pass.
const DUMP: &str = ".before_optimizations.hlo.pb";
/// The largest size to read: the limit of protocol buffers.
const MAX_BYTES: u64 = 2 << 30;
/// The default timeout of a conversion. A program of 5 MB takes under two seconds.
const TIMEOUT: Duration = Duration::from_secs(600);
/// Any topology works; this is the smallest that every version of the TPU compiler knows.
const TOPOLOGY: &str = "v2:2x2";

/// The HLO of a StableHLO program (MLIR as text or bytecode, including portable artifacts): a serialized `HloProto`. It
/// comes from XLA's converter, and has yet to be decoded and verified.
///
/// ```no_run
/// use bf16scope_pjrt::{ChildSpec, Setup, hlo_of_stablehlo};
///
/// let stablehlo = std::fs::read("step.mlir")?;
/// let hlo = hlo_of_stablehlo(&stablehlo, &Setup::from_env(), &ChildSpec::new("/usr/local/bin/bf16scope"))?;
/// let module = bf16scope_hlo::proto::decode::from_bytes(&hlo)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// The converter's message on a program that it rejects, with the line and the operation; a missing plugin; a child
/// that dies or reaches a limit.
pub fn hlo_of_stablehlo(program: &[u8], setup: &Setup, spec: &ChildSpec) -> Result<Vec<u8>, PjrtError> {
    let first = convert(PluginSpec::cpu(), None, program, setup, spec);
    match first {
        Err(error) if is_too_new(&error, program) && has_tpu_compiler(setup) => {
            tracing::info!("the CPU plugin does not know all of this StableHLO; asking the TPU compiler");
            convert(PluginSpec::tpu(), Some(TOPOLOGY), program, setup, spec)
        }
        first => first,
    }
}

/// Whether the program may use a newer StableHLO than this plugin's.
fn is_too_new(error: &PjrtError, program: &[u8]) -> bool {
    let is_refused = error.message().is_some_and(|message| message.contains("forward incompatibility"));
    is_refused && !program.is_ascii()
}

fn has_tpu_compiler(setup: &Setup) -> bool {
    let spec = PluginSpec::tpu();
    let pinned = || {
        let (artifact, cache_dir) = spec.artifact.as_ref().zip(setup.cache_dir.as_deref())?;
        Some(installed(artifact, cache_dir) == Installed::Whole)
    };
    named(spec, setup).is_some() || pinned().unwrap_or(false)
}

/// The name of a plugin's dump of its input, in a folder of its own.
const INPUT: &str = "module.mlir";

/// A StableHLO program in MLIR bytecode as text, with locations; for a portable artifact, in StableHLO's ops. With
/// symbolic sizes, it is available at once; any other program is compiled first.
///
/// # Errors
/// The plugin's message on bytes that are not a known program; a missing plugin; a child that dies or reaches a limit.
pub fn text_of_stablehlo(program: &[u8], setup: &Setup, spec: &ChildSpec) -> Result<String, PjrtError> {
    let doing = Doing { what: "reading", of: Some("StableHLO".to_string()) };
    let failed = |source| ChildError::Io { doing: doing.clone(), source };
    let folder = folder().map_err(failed)?;
    let options = CompileOptions { inputs_to: folder.path().display().to_string(), ..CompileOptions::default() };
    let (child, request) = started(PluginSpec::cpu(), None, options, setup, spec)?;
    let file = wire::file_of(program).map_err(failed)?;
    let answer = child.request_until(doing.clone(), request, &file, &mut || false);
    drop(child);
    let folders = std::fs::read_dir(folder.path()).map_err(failed)?;
    let written = folders.flatten().map(|entry| entry.path().join(INPUT)).find(|path| path.exists());
    match (written, answer) {
        // It has no HLO, as expected.
        (Some(path), _) => Ok(files::read_text(&path, MAX_BYTES).map_err(failed)?),
        (None, Err(error)) => Err(error),
        (None, Ok(())) => Err(ChildError::Answer { doing, measured: format!("no file {INPUT}") }.into()),
    }
}

fn folder() -> std::io::Result<tempfile::TempDir> {
    tempfile::Builder::new().prefix("bf16scope-stablehlo-").tempdir()
}

/// A child with the plugin, and its request.
fn started(
    plugin: &PluginSpec,
    topology: Option<&str>,
    options: CompileOptions,
    setup: &Setup,
    spec: &ChildSpec,
) -> Result<(Child, Request), PjrtError> {
    let library = locate(plugin, setup)?.path.as_os_str().as_bytes().to_vec();
    let purpose = if topology.is_some() { Purpose::Compile } else { Purpose::Run };
    let mut spec = spec.clone();
    spec.limits.timeout.get_or_insert(TIMEOUT);
    let child = Child::start(&spec, &environment::of_child(plugin, purpose))?;
    Ok((child, Request::Convert { library, topology: topology.map(str::to_string), options }))
}

fn convert(
    plugin: &PluginSpec,
    topology: Option<&str>,
    program: &[u8],
    setup: &Setup,
    spec: &ChildSpec,
) -> Result<Vec<u8>, PjrtError> {
    let doing = Doing { what: "converting", of: Some("StableHLO".to_string()) };
    let failed = |source| ChildError::Io { doing: doing.clone(), source };
    let folder = folder().map_err(failed)?;
    let mut dumped = Dumped::watch(folder.path()).map_err(failed)?;
    let (child, request) = started(plugin, topology, options(folder.path()), setup, spec)?;
    let file = wire::file_of(program).map_err(failed)?;
    let answer = child.request_until(doing.clone(), request, &file, &mut || dumped.is_whole());
    // The child has died, or has answered, before the dump is read.
    drop(child);
    match (dumped.is_whole().then_some(dumped.path).flatten(), answer) {
        // Any later result does not matter.
        (Some(path), _) => Ok(files::read(&path, MAX_BYTES).map_err(failed)?),
        (None, Err(error)) => Err(error),
        (None, Ok(())) => {
            let measured = format!("no file *{DUMP}");
            Err(ChildError::Answer { doing, measured }.into())
        }
    }
}

/// Options for a compile that dumps the program before its first pass, and does little else.
fn options(folder: &Path) -> CompileOptions {
    let flags = [
        ("xla_dump_to", OptionValue::Str(folder.display().to_string())),
        ("xla_dump_hlo_as_proto", OptionValue::Bool(true)),
        ("xla_dump_hlo_as_text", OptionValue::Bool(false)),
    ];
    let flags: BTreeMap<String, OptionValue> = flags.map(|(name, value)| (name.to_string(), value)).into();
    CompileOptions { flags, ..CompileOptions::default() }
}

/// The dump, and whether its writer has closed it.
struct Dumped {
    folder: PathBuf,
    watch: OwnedFd,
    path: Option<PathBuf>,
}

impl Dumped {
    fn watch(folder: &Path) -> std::io::Result<Dumped> {
        let watch = inotify::init(inotify::CreateFlags::NONBLOCK | inotify::CreateFlags::CLOEXEC)?;
        inotify::add_watch(&watch, folder, inotify::WatchFlags::CLOSE_WRITE | inotify::WatchFlags::MOVED_TO)?;
        Ok(Dumped { folder: folder.to_path_buf(), watch, path: None })
    }

    fn is_whole(&mut self) -> bool {
        let mut space = [MaybeUninit::uninit(); 4096];
        let mut events = inotify::Reader::new(&self.watch, &mut space);
        // An error ends the search.
        while self.path.is_none()
            && let Ok(event) = events.next()
        {
            let name = event.file_name().map(|name| OsStr::from_bytes(name.to_bytes()));
            self.path =
                name.filter(|name| name.as_bytes().ends_with(DUMP.as_bytes())).map(|name| self.folder.join(name));
        }
        self.path.is_some()
    }
}
