//! What a user may say of where plugins come from, and who may load which library.

use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::Pinned;
use super::whole::Damage;
use bf16scope_files::{Cache, OnBytes};

/// What decides where plugins come from. [`Setup::from_env`] reads it from the environment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Setup {
    /// Whether a plugin's variable ([`PluginSpec::variable`](super::PluginSpec::variable)) may name another file.
    pub variables: bool,
    /// Where plugins are installed; `None` where no variable says.
    pub cache_dir: Option<PathBuf>,
    /// Whether installing is refused.
    pub offline: bool,
    /// Where `python3` and `pip` are looked for, in the form of `PATH`; `None`: in `PATH`.
    pub search_path: Option<OsString>,
    /// The caller's word for files that this crate knows nothing of. Without it only pinned plugins are loaded into this
    /// process, and those that the user named in their variables.
    pub foreign: Option<ForeignCode>,
    /// Who is told what an installation does; nobody: it is said in lines on stderr.
    pub on_install: OnInstall,
    /// Who is told how far other work is that is done once, such as text that is tokenized.
    pub on_bytes: OnBytes,
}

/// Leave to load any library into this process: whoever makes one vouches for what the libraries do.
///
/// Loading a library runs code that Rust knows nothing of, at once and at every call, with all that the process may do.
/// A pinned plugin is checked to the last bit, and a file that the user of the process named in an environment variable
/// is the user's own affair, as `LD_PRELOAD` is. For any other file somebody must give his word, which only an `unsafe`
/// block can do:
///
/// ```no_run
/// use bf16scope_pjrt::{Client, ForeignCode, Platform, PluginSpec, Setup};
///
/// // SAFETY: the vendor's plugin, which this program ships.
/// let foreign = Some(unsafe { ForeignCode::allow() });
/// let platform = Platform::from(PluginSpec::at("/opt/vendor/pjrt_plugin.so"));
/// let client = Client::of(&platform, &Setup { foreign, ..Setup::from_env() })?;
/// # Ok::<(), bf16scope_pjrt::PjrtError>(())
/// ```
///
/// A child process needs none ([`Client::in_child`](super::Client::in_child)): what a library breaks there is not here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ForeignCode(());

impl ForeignCode {
    /// Gives leave.
    ///
    /// # Safety
    /// Every library that is loaded with it is a PJRT plugin for this machine that keeps to the C API: its initialisers
    /// and functions may run in this process, on any thread, and what its table says of itself is true. Every executable
    /// that is loaded with it is one that the client's plugin wrote, for the program and the options given beside it.
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

    /// What a caller chose, or else [`Setup::from_env`]: for calls that must work where nothing was chosen, as
    /// [`Client::cpu`](super::Client::cpu) does.
    pub fn or_from_env(chosen: Option<Setup>) -> Setup {
        chosen.unwrap_or_else(Setup::from_env)
    }

    /// Where what is made of files once is kept.
    pub fn cache(&self) -> Cache {
        Cache { dir: self.cache_dir.clone(), on_bytes: self.on_bytes.clone() }
    }
}

/// Who is told what an installation does, in place of lines on stderr. Two are equal that tell the same one.
#[derive(Clone, Default)]
pub struct OnInstall(Option<Arc<TellsProgress>>);

type TellsProgress = dyn Fn(&Progress<'_>) + Send + Sync;

impl OnInstall {
    /// Tells a function.
    pub fn new(tell: impl Fn(&Progress<'_>) + Send + Sync + 'static) -> OnInstall {
        OnInstall(Some(Arc::new(tell)))
    }

    /// Tells it, if there is one.
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

/// What installation is doing.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Progress<'a> {
    /// An installed file is not the pinned library, and is replaced.
    Damaged {
        /// The file.
        path: &'a Path,
        /// How it differs.
        damage: &'a Damage,
    },
    /// The download starts.
    Starting(&'a Pinned),
    /// Bytes of the wheel that are here.
    Downloading {
        /// What is downloaded.
        artifact: &'a Pinned,
        /// Bytes so far.
        n_bytes: u64,
    },
    /// The wheel is here and its checksum is right; the library is unpacked.
    Unpacking(&'a Pinned),
    /// The library is in its place.
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
    /// In the cache directory, whole.
    Cache,
    /// Installed just now.
    Installed,
}

/// A plugin's file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Located {
    /// The file.
    pub path: PathBuf,
    /// How it was found.
    pub source: Source,
}

/// An environment variable that is set, and not empty.
pub(super) fn variable(name: &str) -> Option<OsString> {
    std::env::var_os(name).filter(|value| !value.is_empty())
}
