//! What a user may say of where plugins come from, and who may load which library.

use std::ffi::OsString;
use std::path::PathBuf;

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
}

/// Leave to load any library into this process: whoever makes one answers for what the libraries do.
///
/// Loading a library runs code that Rust knows nothing of, at once and at every call, with all that the process may do.
/// A pinned plugin is checked to the last bit, and a file that the user of the process named in an environment variable
/// is the user's own affair, as `LD_PRELOAD` is. For any other file somebody must give his word, which only an `unsafe`
/// block can do:
///
/// ```no_run
/// use bf16scope::pjrt::{Client, ForeignCode, Platform, PluginSpec, Setup};
///
/// // SAFETY: the vendor's plugin, which this program ships.
/// let foreign = Some(unsafe { ForeignCode::allow() });
/// let platform = Platform::from(PluginSpec::at("/opt/vendor/pjrt_plugin.so"));
/// let client = Client::of(&platform, &Setup { foreign, ..Setup::from_env() })?;
/// # Ok::<(), bf16scope::pjrt::PjrtError>(())
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
            offline: crate::files::is_offline(),
            search_path: None,
            foreign: None,
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
