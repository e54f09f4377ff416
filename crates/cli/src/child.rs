//! Runs and compiles modules from files in a child process, with limits on time and memory.
//!
//! Programs that bf16scope built itself (models from YAML) stay in this process, unless there is a limit, or the device
//! is a plugin from a user's file.

use std::io::Write as _;
use std::process::ExitCode;
use std::time::Duration;

use super::Context;
use bf16scope_pjrt::{ChildSpec, Client, Limits, PjrtError, Platform, SERVE, Setup, address_space, serve};
use bf16scope_study::Asking;

/// Arguments that limit what a module may take.
#[derive(Default, Clone, Debug, clap::Args)]
#[command(next_help_heading = "Limits")]
pub(super) struct LimitArgs {
    /// Stop when a compile or a run takes longer than this [default: as long as it takes]
    #[arg(long, value_name = "SECONDS", value_parser = seconds, allow_negative_numbers = true)]
    timeout: Option<Duration>,
    /// Stop when compiling or running takes more memory than this: bytes, or 8GiB [default: 15/16 of the free memory]
    #[arg(long, value_name = "BYTES", value_parser = bytes)]
    memory: Option<u64>,
}

impl LimitArgs {
    /// Whether any limit was given.
    pub(super) fn is_some(&self) -> bool {
        self.timeout.is_some() || self.memory.is_some()
    }

    /// A child process of this program, with these limits.
    pub(super) fn spec(&self) -> ChildSpec {
        let limits = Limits { timeout: self.timeout, memory: self.memory };
        ChildSpec { limits, ..ChildSpec::new(THIS_PROGRAM) }
    }

    /// How to call the TPU compiler within these limits. Modules that bf16scope did not build are compiled in a child,
    /// and so is everything under a limit.
    pub(super) fn asking(&self, fresh: bool, is_foreign: bool, context: &Context) -> Asking {
        let child = (is_foreign || self.is_some() || address_space().is_some()).then(|| self.spec());
        Asking { setup: context.setup(), fresh, child, ..Asking::default() }
    }

    /// A client for a module from a file, of as many devices as the platform has.
    pub(super) fn client_of_all(&self, platform: &Platform, context: &Context) -> Result<Client, PjrtError> {
        Client::in_child(platform, &context.setup(), &self.spec())
    }
}

/// A client for a single-device program that bf16scope built: in this process; in a child for an unknown plugin, and if
/// address space is limited, because XLA ends its process at that limit.
pub(super) fn client(platform: &Platform, setup: &Setup) -> Result<Client, PjrtError> {
    client_of_all(platform.one_device()?, setup)
}

/// The same for programs of any number of devices.
pub(super) fn client_of_all(platform: &Platform, setup: &Setup) -> Result<Client, PjrtError> {
    let is_unknown = platform.spec().is_some_and(|spec| spec.path.is_some());
    match is_unknown || platform.spec().is_some() && address_space().is_some() {
        true => Client::in_child(platform, setup, &ChildSpec::new(THIS_PROGRAM)),
        false => Client::for_platform(platform, setup),
    }
}

/// A child process of this program, without limits.
pub(super) fn this_program() -> ChildSpec {
    ChildSpec::new(THIS_PROGRAM)
}

/// The running executable, even if its file was replaced since it started.
const THIS_PROGRAM: &str = "/proc/self/exe";

/// Serves as a child, if this process was started as one.
pub(super) fn serve_if_asked() -> Option<ExitCode> {
    if std::env::args_os().nth(1)? != SERVE {
        return None;
    }
    Some(match serve() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let text = format!("bf16scope: {SERVE} is what bf16scope starts for itself: {error}\n");
            // Standard error may be closed, and then there is no other way to report.
            let _ = std::io::stderr().write_all(text.as_bytes());
            ExitCode::from(2)
        }
    })
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse::<f64>().ok().filter(|seconds| *seconds > 0.0);
    let duration = seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    duration
        .filter(|duration| !duration.is_zero())
        .ok_or_else(|| "expected seconds over 0, such as 60 or 0.5".to_string())
}

/// Units of bytes: those of 1024 as memory is counted, those of 1000 as disks are.
const UNITS: [(&str, u64); 9] = [
    ("", 1),
    ("B", 1),
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("TiB", 1 << 40),
    ("kB", 1_000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
];

pub(super) fn bytes(text: &str) -> Result<u64, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = UNITS.iter().find(|(name, _)| *name == &text[digits.len()..]).map(|(_, unit)| *unit);
    let count = digits.trim_end().parse::<f64>().ok().filter(|count| *count > 0.0 && count.is_finite());
    match (count, unit) {
        // Rounded down; less than a byte is an error.
        (Some(count), Some(unit)) if count * unit as f64 >= 1.0 && count * (unit as f64) < u64::MAX as f64 => {
            Ok((count * unit as f64) as u64)
        }
        _ => {
            let names: Vec<&str> = UNITS.iter().map(|(name, _)| *name).filter(|name| !name.is_empty()).collect();
            Err(format!("expected bytes, such as 8GiB or 8000000000; units are {}", names.join(", ")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_read_with_their_units() {
        assert_eq!(seconds("60"), Ok(Duration::from_secs(60)));
        assert_eq!(seconds("0.25"), Ok(Duration::from_millis(250)));
        for text in ["0", "-1", "nan", "inf", "1e300", "1e-300", "soon", ""] {
            assert_eq!(seconds(text).unwrap_err(), "expected seconds over 0, such as 60 or 0.5", "{text}");
        }
        let read =
            [("1", 1), ("8GiB", 8 << 30), ("8 GiB", 8 << 30), ("1.5KiB", 1536), ("2GB", 2_000_000_000), ("7B", 7)];
        for (text, expected) in read {
            assert_eq!(bytes(text), Ok(expected), "{text}");
        }
        for text in ["0", "-1GiB", "nan", "inf", "GiB", "8 gib", "8G", "1e30", "0.1", ""] {
            assert_eq!(
                bytes(text).unwrap_err(),
                "expected bytes, such as 8GiB or 8000000000; units are B, KiB, MiB, GiB, TiB, kB, MB, GB",
                "{text}"
            );
        }
    }
}
