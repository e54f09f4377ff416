//! The devices a user can name: the values of `--device`, and the client for each.

use std::fmt;
use std::str::FromStr;

use super::spec::{PLUGIN, XLA_CPU, platform_names};
use super::{Client, MAX_CPU_DEVICES, PjrtError, PjrtErrorKind, PjrtPlace, Plugin, PluginSpec, Purpose, Setup, Value};

/// The devices that programs run on, by their name for users: `cpu`, `cpu:8`, `tpu`, `plugin:PATH`, `xla-cpu`.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Platform {
    /// The devices of a plugin.
    Plugin(Box<PluginSpec>),
    /// `xla-cpu`: xla-rs's client in this process, in builds with the feature `xla`.
    XlaCpu,
}

impl Platform {
    /// `cpu`: the CPU plugin.
    pub fn cpu() -> Platform {
        PluginSpec::cpu().clone().into()
    }

    /// `cpu:N`: the CPU plugin, with N devices in this process; they share its cores and its memory.
    ///
    /// # Errors
    /// 0 or more than [`MAX_CPU_DEVICES`].
    pub fn cpu_devices(n: u32) -> Result<Platform, PjrtError> {
        let name = format!("{CPU}{n}");
        if !(1..=MAX_CPU_DEVICES).contains(&n) {
            return Err(device_count(&name));
        }
        let mut spec = PluginSpec { name: name.into(), ..PluginSpec::cpu().clone() };
        spec.create_options.insert(CPU_DEVICE_COUNT.to_string(), Value::Int(i64::from(n)));
        Ok(spec.into())
    }

    /// The number of devices in its name, if any: N for `cpu:N`.
    pub fn n_devices(&self) -> Option<u32> {
        match self.spec()?.create_options.get(CPU_DEVICE_COUNT) {
            Some(Value::Int(n)) => u32::try_from(*n).ok(),
            _ => None,
        }
    }

    /// Whether all its devices belong to this process on any machine: true for a CPU.
    pub fn is_of_one_process(&self) -> bool {
        self.n_devices().is_some() || *self == Platform::cpu() || *self == Platform::XlaCpu
    }

    /// Checks that a single-device program can run on it.
    ///
    /// # Errors
    /// Its name asks for several devices.
    pub fn one_device(&self) -> Result<&Platform, PjrtError> {
        match self.n_devices() {
            Some(n_devices @ 2..) => {
                let text = format!("this runs a program of one device, not of {n_devices}");
                Err(device_error(self.name(), text).with_help("use cpu; `train` runs on several"))
            }
            Some(_) | None => Ok(self),
        }
    }

    /// `tpu`: the TPU plugin, on a machine with a TPU.
    pub fn tpu() -> Platform {
        PluginSpec::tpu().clone().into()
    }

    /// Every platform with a fixed name.
    pub fn named() -> [Platform; 3] {
        [Platform::cpu(), Platform::tpu(), Platform::XlaCpu]
    }

    /// Its name.
    pub fn name(&self) -> &str {
        match self {
            Platform::Plugin(spec) => &spec.name,
            Platform::XlaCpu => XLA_CPU,
        }
    }

    /// Its plugin, if it has one.
    pub fn spec(&self) -> Option<&PluginSpec> {
        match self {
            Platform::Plugin(spec) => Some(spec),
            Platform::XlaCpu => None,
        }
    }
}

impl Default for Platform {
    fn default() -> Platform {
        Platform::cpu()
    }
}

impl From<PluginSpec> for Platform {
    fn from(spec: PluginSpec) -> Platform {
        Platform::Plugin(Box::new(spec))
    }
}

impl fmt::Display for Platform {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// `cpu:N`: the CPU plugin, with N devices.
const CPU: &str = "cpu:";
/// The CPU plugin's option for that number.
const CPU_DEVICE_COUNT: &str = "cpu_device_count";

impl FromStr for Platform {
    type Err = PjrtError;

    fn from_str(name: &str) -> Result<Platform, PjrtError> {
        if let Some(path) = name.strip_prefix(PLUGIN) {
            return match path.is_empty() {
                true => {
                    let error = error_of_name(format!("device {name} names no file"));
                    Err(error.with_help("write plugin:/path/to/a_pjrt_plugin.so"))
                }
                false => Ok(PluginSpec::at(path).into()),
            };
        }
        if let Some(count) = name.strip_prefix(CPU) {
            let count = count.parse().map_err(|_| device_count(name));
            return Platform::cpu_devices(count?);
        }
        let platform = Platform::named().into_iter().find(|platform| platform.name() == name);
        platform.ok_or_else(|| {
            let text = format!("no device is named `{name}`{}", did_you_mean(name));
            error_of_name(text).with_help(format!("one of {}, plugin:PATH", platform_names().join(", ")))
        })
    }
}

fn error_of_name(text: String) -> PjrtError {
    PjrtError::new(PjrtErrorKind::Device, PjrtPlace::Nowhere, text)
}

fn device_error(name: &str, text: impl Into<String>) -> PjrtError {
    PjrtError::new(PjrtErrorKind::Device, PjrtPlace::Device(name.to_string()), text)
}

/// The error for `cpu:` without a valid number of devices.
fn device_count(name: &str) -> PjrtError {
    let text = format!("expected a number of devices from 1 to {MAX_CPU_DEVICES} after `cpu:`");
    device_error(name, text).with_help("use cpu or cpu:8")
}

fn did_you_mean(name: &str) -> String {
    let distance = |candidate: &&str| strsim::damerau_levenshtein(&name.to_lowercase(), candidate);
    let near = platform_names().into_iter().filter(|candidate| distance(candidate) <= 2).min_by_key(distance);
    near.map_or(String::new(), |name| format!("; did you mean `{name}`?"))
}

/// Whether this build has xla-rs's client (feature `xla`).
pub const HAS_XLA_RS: bool = cfg!(feature = "xla");

impl Client {
    /// A client of this platform, in this process. A plugin is found, and installed on first use, according to `setup`.
    ///
    /// # Errors
    /// [`PjrtErrorKind::ForeignCode`] for a file that `setup` does not permit to load; [`Client::in_child`] needs no
    /// permission.
    pub fn for_platform(platform: &Platform, setup: &Setup) -> Result<Client, PjrtError> {
        match platform {
            Platform::Plugin(spec) => {
                Client::with_options(Plugin::for_spec(spec, setup, Purpose::Run)?, &spec.create_options)
            }
            #[cfg(feature = "xla")]
            Platform::XlaCpu => Client::xla_cpu(),
            #[cfg(not(feature = "xla"))]
            Platform::XlaCpu => {
                let error = device_error(XLA_CPU, "this bf16scope was built without xla-rs");
                Err(error.with_help("eval \"$(ci/xla-extension)\" && cargo build --features xla"))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(name: &str) -> String {
        name.parse::<Platform>().unwrap_err().to_string()
    }

    #[test]
    fn platforms_are_named_and_near_misses_suggested() {
        for platform in Platform::named() {
            assert_eq!(platform.to_string().parse::<Platform>().unwrap(), platform);
        }
        assert_eq!(
            error("xla_cpu"),
            "no device is named `xla_cpu`; did you mean `xla-cpu`?\nhelp: one of cpu, tpu, xla-cpu, plugin:PATH"
        );
        assert_eq!(error("cuda:0"), "no device is named `cuda:0`\nhelp: one of cpu, tpu, xla-cpu, plugin:PATH");
    }

    #[test]
    fn a_plugin_is_named_by_its_file() {
        let platform = "plugin:/opt/some where/pjrt.so".parse::<Platform>().unwrap();
        assert_eq!(platform, PluginSpec::at("/opt/some where/pjrt.so").into());
        assert_eq!(platform.to_string(), "plugin:/opt/some where/pjrt.so");
        assert_eq!(error("plugin:"), "device plugin: names no file\nhelp: write plugin:/path/to/a_pjrt_plugin.so");
    }

    #[test]
    fn the_cpu_has_as_many_devices_as_its_name_says() {
        let one = "cpu:1".parse::<Platform>().unwrap();
        assert_eq!(one.to_string(), "cpu:1");
        assert_eq!(one.spec().unwrap().create_options[CPU_DEVICE_COUNT], Value::Int(1));
        assert!(one.one_device().is_ok());
        let eight = "cpu:8".parse::<Platform>().unwrap();
        assert_eq!((eight.n_devices(), Platform::cpu().n_devices()), (Some(8), None));
        assert_eq!(
            eight.one_device().unwrap_err().to_string(),
            "device cpu:8: this runs a program of one device, not of 8\nhelp: use cpu; `train` runs on several"
        );
        for name in ["cpu:", "cpu:0", "cpu:-1", "cpu:two", "cpu:1.5", "cpu:65", "cpu:99999999999999999999"] {
            assert_eq!(
                error(name),
                format!(
                    "device {name}: expected a number of devices from 1 to 64 after `cpu:`\nhelp: use cpu or cpu:8"
                )
            );
        }
    }

    #[cfg(not(feature = "xla"))]
    #[test]
    fn a_build_without_xla_rs_says_how_to_make_one_with_it() {
        let error = Client::for_platform(&Platform::XlaCpu, &Setup::default()).unwrap_err();
        assert_eq!(
            error.to_string(),
            "device xla-cpu: this bf16scope was built without xla-rs\nhelp: eval \"$(ci/xla-extension)\" && cargo build \
             --features xla"
        );
    }
}
