//! Where a plugin comes from: a path, an environment variable, the cache directory, or [`install`].
//!
//! Holds what is pinned, what the user may say about it, and the search. Nothing is linked at build time.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use super::PjrtError;
use super::install::{InstallError, install};
use super::whole::{self, Installed};

/// Which plugin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    /// XLA's CPU client.
    Cpu,
    /// Google's TPU compiler, `libtpu`.
    Tpu,
}

/// A plugin as pinned: which wheel, which file in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Artifact {
    /// Which plugin it is.
    pub kind: Kind,
    /// Project on the Python package index.
    pub package: &'static str,
    /// Version of the project.
    pub version: &'static str,
    /// File name of the wheel.
    pub wheel: &'static str,
    /// SHA-256 of the wheel.
    pub wheel_sha256: &'static str,
    /// Bytes of the wheel.
    pub wheel_bytes: u64,
    /// The library inside the wheel.
    pub member: &'static str,
    /// Bytes of the library.
    pub library_bytes: u64,
    /// SHA-256 of the library.
    pub library_sha256: &'static str,
    /// pip's `--platform` for the wheel.
    pub(super) platform: &'static str,
}

const CPU: Artifact = Artifact {
    kind: Kind::Cpu,
    package: "xla-cpu-pjrt",
    version: "0.0.1",
    wheel: "xla_cpu_pjrt-0.0.1-py3-none-manylinux_2_27_x86_64.whl",
    wheel_sha256: "55837b6b7b47daa717f2d9a5a03563ea0ceaa338d06a81a1e2d3f060d960decc",
    wheel_bytes: 63_461_052,
    member: "xla_plugins/xla_cpu_pjrt/xla_cpu_pjrt.so",
    library_bytes: 259_284_552,
    library_sha256: "88c3f28c5900f48ad4a82cab9e79bba9537809743395e341485f8794268820dc",
    platform: "manylinux_2_27_x86_64",
};

const TPU: Artifact = Artifact {
    kind: Kind::Tpu,
    package: "libtpu",
    version: "0.0.51",
    wheel: "libtpu-0.0.51-cp311-cp311-manylinux_2_31_x86_64.whl",
    wheel_sha256: "ba67ddbfdbac61c8da1fafc26cd51b93e9fe4d298016e2882eb986b1718cba34",
    wheel_bytes: 204_805_508,
    member: "libtpu/libtpu.so",
    library_bytes: 574_812_664,
    library_sha256: "ad0b2a3bc5d4de96f653b3701aaed8769a691776ca0e14c791dcdca785d43e42",
    platform: "manylinux_2_31_x86_64",
};

impl Kind {
    /// Every kind.
    pub const ALL: [Kind; 2] = [Kind::Cpu, Kind::Tpu];

    /// The pinned wheel.
    pub const fn artifact(self) -> &'static Artifact {
        match self {
            Kind::Cpu => &CPU,
            Kind::Tpu => &TPU,
        }
    }

    /// The environment variable that names another file.
    pub const fn variable(self) -> &'static str {
        match self {
            Kind::Cpu => "BF16SCOPE_CPU_PLUGIN",
            Kind::Tpu => "TPU_LIBRARY_PATH",
        }
    }
}

impl Artifact {
    /// Where it is in a cache directory.
    pub fn path_in(&self, cache_dir: &Path) -> PathBuf {
        let file = self.member.rsplit('/').next().expect("rsplit yields at least one part");
        cache_dir.join("plugins").join(format!("{}-{}", self.package, self.version)).join(file)
    }
}

/// What decides where plugins come from. [`Setup::from_env`] reads it from the environment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Setup {
    /// A CPU plugin named by the user.
    pub cpu_plugin: Option<PathBuf>,
    /// A TPU compiler named by the user.
    pub tpu_plugin: Option<PathBuf>,
    /// Where plugins are installed; `None` where no variable says.
    pub cache_dir: Option<PathBuf>,
    /// Whether installing is refused.
    pub offline: bool,
    /// Where `python3` and `pip` are looked for, in the form of `PATH`; `None`: in `PATH`.
    pub search_path: Option<OsString>,
}

impl Setup {
    /// From `BF16SCOPE_CPU_PLUGIN`, `TPU_LIBRARY_PATH`, `BF16SCOPE_CACHE` (else `XDG_CACHE_HOME`, else `HOME`) and
    /// `BF16SCOPE_OFFLINE`. An empty variable counts as unset.
    pub fn from_env() -> Setup {
        Setup::from_variables(|name| std::env::var_os(name))
    }

    fn from_variables(variable: impl Fn(&str) -> Option<OsString>) -> Setup {
        let set = |name: &str| variable(name).filter(|value| !value.is_empty());
        let path = |name: &str| set(name).map(PathBuf::from);
        Setup {
            cpu_plugin: path(Kind::Cpu.variable()),
            tpu_plugin: path(Kind::Tpu.variable()),
            cache_dir: path("BF16SCOPE_CACHE")
                .or_else(|| path("XDG_CACHE_HOME").map(|dir| dir.join("bf16scope")))
                .or_else(|| path("HOME").map(|dir| dir.join(".cache").join("bf16scope"))),
            offline: set("BF16SCOPE_OFFLINE").is_some_and(|value| value != "0"),
            search_path: None,
        }
    }

    fn named(&self, kind: Kind) -> Option<&PathBuf> {
        match kind {
            Kind::Cpu => self.cpu_plugin.as_ref(),
            Kind::Tpu => self.tpu_plugin.as_ref(),
        }
    }
}

/// How a plugin was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// Named by the user.
    Named,
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

/// Finds a plugin, and installs it if it is nowhere.
pub fn locate(kind: Kind, setup: &Setup) -> Result<Located, PjrtError> {
    if let Some(path) = setup.named(kind) {
        if !path.exists() {
            return Err(PjrtError::Missing { path: path.clone(), named_by: kind.variable() });
        }
        return Ok(Located { path: path.clone(), source: Source::Named });
    }
    let cache_dir = setup.cache_dir.as_deref().ok_or(InstallError::NoCacheDir)?;
    let path = kind.artifact().path_in(cache_dir);
    if whole::installed(kind.artifact(), &path) == Installed::Whole {
        return Ok(Located { path, source: Source::Cache });
    }
    Ok(install(kind, setup)?)
}

/// What there is of a plugin in a cache directory. Nothing is installed.
pub fn installed(kind: Kind, cache_dir: &Path) -> Installed {
    whole::installed(kind.artifact(), &kind.artifact().path_in(cache_dir))
}
