//! Plugins as data: the name of one, its source, its requirements on the process, and its clients' options.
//! [`PluginSpec::cpu`] and [`PluginSpec::tpu`] are two values, [`PluginSpec::at`] makes a third.
//!
//! `locate` finds a plugin, `environment` sets its variables, `plugin` loads it.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// A plugin: everything that is known of it before it is loaded.
///
/// All fields are public, so a plugin unknown to this crate is simply another value:
///
/// ```
/// use bf16scope_pjrt::{PluginSpec, Value};
///
/// let mut spec = PluginSpec::at("/opt/vendor/pjrt_plugin.so");
/// spec.create_options.insert("max_inflight_computations".to_string(), Value::Int(1));
/// assert_eq!(spec.name, "plugin:/opt/vendor/pjrt_plugin.so");
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct PluginSpec {
    /// Its name for users: `cpu`, `tpu`, `plugin:PATH`.
    pub name: Cow<'static, str>,
    /// The library's file. If set, nothing else is tried.
    pub path: Option<PathBuf>,
    /// The environment variable that names a file instead of the pinned one.
    pub variable: Option<&'static str>,
    /// The wheel that is installed on first use.
    pub artifact: Option<Pinned>,
    /// Variables that it wants to be set when it is loaded.
    pub settings: Cow<'static, [Setting]>,
    /// Environment variables to set before it is loaded.
    pub create_options: BTreeMap<String, Value>,
    /// The hardware that it needs to run programs, though maybe not to compile them.
    pub hardware: Option<Hardware>,
    /// Variables that must hold a grid's sizes, such as `2,2,1`, if they are set: the plugin aborts the process on any
    /// other value.
    pub grids: &'static [&'static str],
}

/// The purpose for which a plugin is loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Purpose {
    /// To compile for devices that are only described.
    Compile,
    /// To run on devices that are present.
    Run,
}

/// An environment variable for a plugin. One that is already set keeps its value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Setting {
    /// Its name.
    pub variable: &'static str,
    /// Its value.
    pub value: &'static str,
    /// The purpose that needs it. `None`: it only keeps the plugin quiet, and may be omitted where setting it is not
    /// safe.
    pub purpose: Option<Purpose>,
}

/// The hardware that a plugin needs to run anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hardware {
    /// Its name for users.
    pub name: &'static str,
    /// PCI vendor and device of each form of it.
    pub pci: &'static [(u16, u16)],
    /// Setting this variable vouches for the hardware: no search is made.
    pub variable: &'static str,
}

/// A pinned library: a wheel on the Python package index, and a file in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pinned {
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
    pub platform: &'static str,
}

impl Pinned {
    /// XLA's CPU client.
    pub const CPU: Pinned = Pinned {
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

    /// Google's TPU compiler, `libtpu`.
    pub const TPU: Pinned = Pinned {
        package: "libtpu",
        version: "0.0.52",
        wheel: "libtpu-0.0.52-cp311-cp311-manylinux_2_31_x86_64.whl",
        wheel_sha256: "f5e2e596eaea9357fbb5a6755a7a9007c6ab75bfde4a55191b03eff402971140",
        wheel_bytes: 137_064_406,
        member: "libtpu/libtpu.so",
        library_bytes: 467_479_448,
        library_sha256: "f86de4d04a058e6b5101f73e0824b95f27e2cec996d2b9191d9cffda75c03077",
        platform: "manylinux_2_31_x86_64",
    };

    /// Its path in a cache directory.
    pub fn path_in(&self, cache_dir: &Path) -> PathBuf {
        let file = self.member.rsplit('/').next().expect("rsplit yields at least one part");
        cache_dir.join("plugins").join(format!("{}-{}", self.package, self.version)).join(file)
    }
}

/// Errors are returned through the API; XLA's own logging is only noise on stderr.
const QUIET: Setting = Setting { variable: "TF_CPP_MIN_LOG_LEVEL", value: "3", purpose: None };

const TO_COMPILE: Option<Purpose> = Some(Purpose::Compile);

/// Variables for `libtpu`. A TPU VM describes itself, by variables or by its metadata server, and a description of
/// another machine would interfere: these are for compiling only.
const TPU_SETTINGS: &[Setting] = &[
    // Without a TPU there is no metadata server; querying it for several values takes minutes.
    Setting { variable: "TPU_SKIP_MDS_QUERY", value: "1", purpose: TO_COMPILE },
    // Otherwise a second process that loads libtpu aborts on its lock file. That file keeps processes from sharing a
    // TPU.
    Setting { variable: "ALLOW_MULTIPLE_LIBTPU_LOAD", value: "1", purpose: TO_COMPILE },
    // libtpu looks for both when it loads, and complains on stderr if they are missing. They describe a host, not the
    // compiler's target: device limits and memory figures of every target are the same with and without them.
    Setting { variable: "TPU_ACCELERATOR_TYPE", value: "v2-8", purpose: TO_COMPILE },
    Setting { variable: "TPU_WORKER_HOSTNAMES", value: "localhost", purpose: TO_COMPILE },
    Setting { variable: "TPU_STDERR_LOG_LEVEL", value: "3", purpose: None },
    Setting { variable: "TPU_MIN_LOG_LEVEL", value: "3", purpose: None },
    QUIET,
];

static CPU: PluginSpec = PluginSpec {
    name: Cow::Borrowed("cpu"),
    path: None,
    variable: Some("BF16SCOPE_CPU_PLUGIN"),
    artifact: Some(Pinned::CPU),
    settings: Cow::Borrowed(&[QUIET]),
    create_options: BTreeMap::new(),
    hardware: None,
    grids: &[],
};

static TPU: PluginSpec = PluginSpec {
    name: Cow::Borrowed("tpu"),
    path: None,
    variable: Some("TPU_LIBRARY_PATH"),
    artifact: Some(Pinned::TPU),
    settings: Cow::Borrowed(TPU_SETTINGS),
    create_options: BTreeMap::new(),
    hardware: Some(Hardware {
        name: "TPU",
        // Google's v2 and v3 (one number), v4, v5p, v5e, v6e, 7x. Source: JAX's table of chips.
        pci: &[
            (0x1ae0, 0x0027),
            (0x1ae0, 0x005e),
            (0x1ae0, 0x0062),
            (0x1ae0, 0x0063),
            (0x1ae0, 0x006f),
            (0x1ae0, 0x0076),
        ],
        variable: "TPU_SKIP_MDS_QUERY",
    }),
    grids: &["TPU_PROCESS_BOUNDS", "TPU_CHIPS_PER_PROCESS_BOUNDS"],
};

impl PluginSpec {
    /// XLA's CPU client.
    pub fn cpu() -> &'static PluginSpec {
        &CPU
    }

    /// Google's TPU plugin, `libtpu`: runs on a TPU VM, and compiles for TPUs anywhere.
    pub fn tpu() -> &'static PluginSpec {
        &TPU
    }

    /// The plugins that this crate pins.
    pub fn pinned() -> [&'static PluginSpec; 2] {
        [&CPU, &TPU]
    }

    /// The plugin in this file, without variables and options.
    pub fn at(path: impl Into<PathBuf>) -> PluginSpec {
        let path = path.into();
        PluginSpec {
            name: Cow::Owned(format!("{PLUGIN}{}", path.display())),
            path: Some(path),
            variable: None,
            artifact: None,
            settings: Cow::Borrowed(&[]),
            create_options: BTreeMap::new(),
            hardware: None,
            grids: &[],
        }
    }

    /// The environment variables for this purpose.
    pub fn environment(&self, purpose: Purpose) -> impl Iterator<Item = &Setting> {
        self.settings.iter().filter(move |setting| setting.purpose.is_none_or(|wanted| wanted == purpose))
    }

    /// Whether its library is trusted: the pinned one, or the one that the user of this process named in its variable.
    pub(super) fn is_pinned(&self) -> bool {
        let is = |pinned: &PluginSpec| self.artifact == pinned.artifact && self.variable == pinned.variable;
        self.path.is_none() && PluginSpec::pinned().into_iter().any(is)
    }

    /// The variable that names another library, for messages.
    pub(super) fn variable_or_path(&self) -> &'static str {
        self.variable.unwrap_or("PluginSpec::path")
    }
}

/// The value of an option or attribute.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Value {
    /// Text.
    Str(String),
    /// An integer.
    Int(i64),
    /// Integers.
    Ints(Vec<i64>),
    /// A float.
    Float(f32),
    /// A boolean.
    Bool(bool),
}

/// The platform without a plugin: xla-rs's client.
pub(super) const XLA_CPU: &str = "xla-cpu";

/// Every platform with a fixed name, for messages.
pub(super) fn platform_names() -> Vec<&'static str> {
    PluginSpec::pinned().into_iter().map(|spec| spec.name.as_ref()).chain([XLA_CPU]).collect()
}

/// The prefix of a name for a plugin in a file.
pub(super) const PLUGIN: &str = "plugin:";

/// Where Linux lists PCI devices.
const PCI: &str = "/sys/bus/pci/devices";

impl Hardware {
    /// Whether this machine has it, or it is vouched for.
    pub(super) fn is_here(&self) -> bool {
        self.is_among(Path::new(PCI))
    }

    /// Whether it is among the listed devices, or vouched for.
    fn is_among(&self, devices: &Path) -> bool {
        if std::env::var_os(self.variable).is_some() {
            return true;
        }
        let number = |path: PathBuf| {
            let text = std::fs::read_to_string(path).ok()?;
            u16::from_str_radix(text.trim().trim_start_matches("0x"), 16).ok()
        };
        let is_it = |device: PathBuf| {
            let ids = number(device.join("vendor")).zip(number(device.join("device")));
            ids.is_some_and(|ids| self.pci.contains(&ids))
        };
        std::fs::read_dir(devices).into_iter().flatten().flatten().any(|entry| is_it(entry.path()))
    }
}

/// The largest number that was tested.
pub const MAX_CPU_DEVICES: u32 = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tpu_that_runs_keeps_what_its_machine_set() {
        let names = |purpose| PluginSpec::tpu().environment(purpose).map(|it| it.variable).collect::<Vec<_>>();
        let quiet = ["TPU_STDERR_LOG_LEVEL", "TPU_MIN_LOG_LEVEL", "TF_CPP_MIN_LOG_LEVEL"];
        assert_eq!(names(Purpose::Run), quiet);
        let to_compile =
            ["TPU_SKIP_MDS_QUERY", "ALLOW_MULTIPLE_LIBTPU_LOAD", "TPU_ACCELERATOR_TYPE", "TPU_WORKER_HOSTNAMES"];
        assert_eq!(names(Purpose::Compile), [&to_compile[..], &quiet].concat());
    }

    #[test]
    fn only_our_own_plugins_are_pinned() {
        assert!(PluginSpec::pinned().into_iter().all(PluginSpec::is_pinned));
        let eight = BTreeMap::from([("cpu_device_count".to_string(), Value::Int(8))]);
        assert!(PluginSpec { create_options: eight, ..CPU.clone() }.is_pinned());
        assert!(!PluginSpec { path: Some("/p.so".into()), ..CPU.clone() }.is_pinned());
        assert!(!PluginSpec { variable: Some("LD_PRELOAD"), ..CPU.clone() }.is_pinned());
        assert!(
            !PluginSpec { artifact: Some(Pinned { library_sha256: "0", ..Pinned::CPU }), ..CPU.clone() }.is_pinned()
        );
        assert!(!PluginSpec::at("/p.so").is_pinned());
    }

    #[test]
    fn a_tpu_is_looked_for_among_pci_devices() {
        let folder = tempfile::tempdir().unwrap();
        let hardware = Hardware { variable: "BF16SCOPE_NOBODY_SETS_THIS", ..TPU.hardware.unwrap() };
        let add = |slot: &str, vendor: &str, device: &str| {
            let path = folder.path().join(slot);
            std::fs::create_dir(&path).unwrap();
            std::fs::write(path.join("vendor"), vendor).unwrap();
            std::fs::write(path.join("device"), device).unwrap();
        };
        assert!(!hardware.is_among(&folder.path().join("nowhere")));
        // Google's network card, which every one of its virtual machines has; a file that is not a device.
        add("0000:00:04.0", "0x1ae0\n", "0x0042\n");
        std::fs::write(folder.path().join("file"), "0x1ae0").unwrap();
        assert!(!hardware.is_among(folder.path()));
        add("0000:00:05.0", "0x1ae0\n", "0x0027\n");
        assert!(hardware.is_among(folder.path()));
        // PATH is always set.
        assert!(Hardware { pci: &[], variable: "PATH", ..hardware }.is_among(folder.path()));
    }
}
