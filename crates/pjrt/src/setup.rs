//! The user's settings: where plugins come from, and which libraries may be loaded.

use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::Pinned;
use super::whole::Damage;
use bf16scope_files::{Cache, OnBytes};

/// Determines where plugins come from. [`Setup::from_env`] reads it from the environment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Setup {
    /// Whether a plugin's variable ([`PluginSpec::variable`](super::PluginSpec::variable)) may name another file.
    pub variables: bool,
    /// Where plugins are installed; `None` if no variable names a directory.
    pub cache_dir: Option<PathBuf>,
    /// Whether installation is forbidden.
    pub offline: bool,
    /// Where to search for `python3` and `pip`, in the form of `PATH`; `None`: in `PATH`.
    pub search_path: Option<OsString>,
    /// The caller's permission for files unknown to this crate. Without it only pinned plugins are loaded into this
    /// process, and those that the user named in their variables.
    pub foreign: Option<ForeignCode>,
    /// Progress callback for installations; by default, lines on stderr.
    pub on_install: OnInstall,
    /// Progress callback for other one-time work, such as tokenizing text.
    pub on_bytes: OnBytes,
}

/// Permission to load any library into this process: its creator vouches for what the libraries do.
///
/// Loading a library runs unknown code, at once and at every call, with all the rights of the process. A pinned plugin
/// is verified by checksum, and a file that the user of the process named in an environment variable is the user's own
/// responsibility, like `LD_PRELOAD`. For any other file the caller must vouch, which only an `unsafe` block can express:
///
/// ```no_run
/// use bf16scope_pjrt::{Client, ForeignCode, Platform, PluginSpec, Setup};
///
/// // SAFETY: the vendor's plugin, which this program ships.
/// let foreign = Some(unsafe { ForeignCode::allow() });
/// let platform = Platform::from(PluginSpec::at("/opt/vendor/pjrt_plugin.so"));
/// let client = Client::for_platform(&platform, &Setup { foreign, ..Setup::from_env() })?;
/// # Ok::<(), bf16scope_pjrt::PjrtError>(())
/// ```
///
/// A child process needs no permission ([`Client::in_child`](super::Client::in_child)): a library cannot harm this
/// process from there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ForeignCode(());

impl ForeignCode {
    /// Grants permission.
    ///
    /// # Safety
    /// Every library that is loaded with it is a PJRT plugin for this machine that conforms to the C API: its
    /// initialisers and functions may run in this process, on any thread, and its table is correct. Every executable
    /// that is loaded with it was written by the client's plugin, for the program and the options given beside it.
    pub const unsafe fn allow() -> ForeignCode {
        ForeignCode(())
    }
}

impl Setup {
    /// With the plugins' own variables (`BF16SCOPE_CPU_PLUGIN`, `TPU_LIBRARY_PATH`), `BF16SCOPE_CACHE` (else
    /// `XDG_CACHE_HOME`, else `HOME`) and `BF16SCOPE_OFFLINE`. An empty variable counts as unset.
    pub fn from_env() -> Setup {
        let path = |name: &str| variable(name).map(PathBuf::from);
        Setup {
            variables: true,
            cache_dir: path("BF16SCOPE_CACHE")
                .or_else(|| path("XDG_CACHE_HOME").map(|dir| dir.join("bf16scope")))
                .or_else(|| path("HOME").map(|dir| dir.join(".cache").join("bf16scope"))),
            offline: bf16scope_files::is_offline(),
            ..Setup::default()
        }
    }

    /// The caller's set-up, or [`Setup::from_env`]: for calls that must work without one, such as
    /// [`Client::cpu`](super::Client::cpu).
    pub fn or_from_env(chosen: Option<Setup>) -> Setup {
        chosen.unwrap_or_else(Setup::from_env)
    }

    /// The cache for data derived from files.
    pub fn cache(&self) -> Cache {
        Cache { dir: self.cache_dir.clone(), on_bytes: self.on_bytes.clone() }
    }
}

/// Progress callback for installations, instead of lines on stderr. Two are equal if they share the function.
#[derive(Clone, Default)]
pub struct OnInstall(Option<Arc<TellsProgress>>);

type TellsProgress = dyn Fn(&Progress<'_>) + Send + Sync;

impl OnInstall {
    /// Calls this function.
    pub fn new(tell: impl Fn(&Progress<'_>) + Send + Sync + 'static) -> OnInstall {
        OnInstall(Some(Arc::new(tell)))
    }

    /// Calls the function, if there is one; returns whether there is.
    pub(super) fn tell(&self, progress: &Progress<'_>) -> bool {
        self.0.as_ref().inspect(|tell| tell(progress)).is_some()
    }
}

impl PartialEq for OnInstall {
    fn eq(&self, other: &OnInstall) -> bool {
        match (&self.0, &other.0) {
            (Some(own), Some(others)) => Arc::ptr_eq(own, others),
            (own, others) => own.is_none() && others.is_none(),
        }
    }
}

impl Eq for OnInstall {}

impl fmt::Debug for OnInstall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "OnInstall(…)" } else { "OnInstall(stderr)" })
    }
}

/// The progress of an installation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Progress<'a> {
    /// An installed file is not the pinned library, and is replaced.
    Damaged {
        /// The file.
        path: &'a Path,
        /// The difference.
        damage: &'a Damage,
    },
    /// The download starts.
    Starting(&'a Pinned),
    /// The downloaded bytes of the wheel so far.
    Downloading {
        /// The wheel that is downloaded.
        artifact: &'a Pinned,
        /// Bytes so far.
        n_bytes: u64,
    },
    /// The wheel is complete and its checksum is right; the library is being unpacked.
    Unpacking(&'a Pinned),
    /// The library is installed.
    Installed(&'a Path),
}

impl fmt::Display for Progress<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Progress::Damaged { path, damage } => write!(f, "{}: {damage}: installing again", path.display()),
            Progress::Starting(artifact) => write!(
                f,
                "installing {} {} with pip ({} MB, once; sha256 {})",
                artifact.package,
                artifact.version,
                artifact.wheel_bytes / 1_000_000,
                artifact.wheel_sha256
            ),
            Progress::Downloading { artifact, n_bytes } => {
                write!(f, "{}: {} of {} MB", artifact.package, n_bytes / 1_000_000, artifact.wheel_bytes / 1_000_000)
            }
            Progress::Unpacking(artifact) => {
                write!(f, "{}: checksum is right, unpacking", artifact.package)
            }
            Progress::Installed(path) => write!(f, "installed {}", path.display()),
        }
    }
}

/// How a plugin was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// Named by the user, in the plugin's variable.
    Named,
    /// Named by the caller, in [`PluginSpec::path`](super::PluginSpec::path).
    Given,
    /// In the cache directory, intact.
    Cache,
    /// Installed just now.
    Installed,
}

/// A plugin's file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Located {
    /// The file.
    pub path: PathBuf,
    /// Its source.
    pub source: Source,
}

/// The value of an environment variable that is set and not empty.
pub(super) fn variable(name: &str) -> Option<OsString> {
    std::env::var_os(name).filter(|value| !value.is_empty())
}
