//! The devices a user can name: what `--device` takes, and the client behind each.

use std::fmt;
use std::str::FromStr;

use super::{Client, Kind, PjrtError, Plugin, Setup};

/// A kind of device that programs run on, by the name users give it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Platform {
    /// `cpu`: the CPU plugin.
    #[default]
    Cpu,
    /// `tpu`: the TPU plugin, on a machine that has a TPU.
    Tpu,
    /// `xla-cpu`: xla-rs's client in this process, in builds with the feature `xla`.
    XlaCpu,
}

impl Platform {
    /// Every platform.
    pub const ALL: [Platform; 3] = [Platform::Cpu, Platform::Tpu, Platform::XlaCpu];

    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Platform::Cpu => "cpu",
            Platform::Tpu => "tpu",
            Platform::XlaCpu => "xla-cpu",
        }
    }

    /// Every name.
    pub(super) fn names() -> Vec<&'static str> {
        Platform::ALL.map(Platform::name).to_vec()
    }
}

impl fmt::Display for Platform {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Platform {
    type Err = PjrtError;

    fn from_str(name: &str) -> Result<Platform, PjrtError> {
        let found = Platform::ALL.into_iter().find(|platform| platform.name() == name);
        found.ok_or_else(|| PjrtError::NoPlatform { name: name.to_string() })
    }
}

impl Client {
    /// A client of this platform. A plugin is found, and installed on first use, as `setup` says.
    pub fn of(platform: Platform, setup: &Setup) -> Result<Client, PjrtError> {
        match platform {
            Platform::Cpu => Client::new(Plugin::of(Kind::Cpu, setup)?),
            Platform::Tpu => Client::new(Plugin::of(Kind::Tpu, setup)?),
            #[cfg(feature = "xla")]
            Platform::XlaCpu => Client::xla_cpu(),
            #[cfg(not(feature = "xla"))]
            Platform::XlaCpu => Err(PjrtError::NoXlaRs),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn platforms_are_named_and_near_misses_suggested() {
        for platform in Platform::ALL {
            assert_eq!(platform.to_string().parse::<Platform>().unwrap(), platform);
        }
        let error = |name: &str| name.parse::<Platform>().unwrap_err().to_string();
        assert_eq!(
            error("xla_cpu"),
            "no device is named `xla_cpu`; did you mean `xla-cpu`?\nhelp: one of cpu, tpu, xla-cpu"
        );
        assert_eq!(error("cuda:0"), "no device is named `cuda:0`\nhelp: one of cpu, tpu, xla-cpu");
    }

    #[cfg(not(feature = "xla"))]
    #[test]
    fn a_build_without_xla_rs_says_how_to_make_one_with_it() {
        let error = Client::of(Platform::XlaCpu, &Setup::default()).unwrap_err();
        assert_eq!(
            error.to_string(),
            "device xla-cpu: this bf16scope was built without xla-rs\nhelp: eval \"$(ci/xla-extension)\" && cargo build \
             --features xla"
        );
    }
}
