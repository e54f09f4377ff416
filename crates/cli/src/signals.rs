//! Signals: those that ask a command to stop (Ctrl-C, `kill`, and a closed terminal), and SIGXFSZ.

use std::sync::Arc;
use std::thread;

use anyhow::Context as _;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGXFSZ};
use signal_hook::iterator::Signals;

/// Calls `stop` with the number of each signal that asks the process to stop: SIGINT, SIGTERM, and SIGHUP unless it was
/// ignored when the process began. `nohup` ignores it so that a program outlives its terminal, and that must not
/// change.
pub(super) fn on_stop(mut stop: impl FnMut(i32) + Send + 'static) -> anyhow::Result<()> {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mut watched = vec![SIGINT, SIGTERM];
    // If the system does not say, SIGHUP keeps its default.
    if is_ignored(&status, SIGHUP) == Some(false) {
        watched.push(SIGHUP);
    }
    let mut signals = Signals::new(watched).context("cannot watch for Ctrl-C")?;
    thread::spawn(move || signals.forever().for_each(&mut stop));
    Ok(())
}

/// Makes a write beyond the limit on file sizes (`ulimit -f`) fail like a full disk, with an error that says so,
/// instead of ending the process.
pub(super) fn survive_file_limit() {
    // If the handler cannot be installed, the default remains.
    drop(signal_hook::flag::register(SIGXFSZ, Arc::default()));
}

/// The exit status of a process that a signal stopped, by the shells' convention.
pub(super) fn exit_code(signal: i32) -> u8 {
    // Signals are numbered up to 64.
    128 + signal as u8
}

/// Ends the process at once, as stopped by this signal. Nothing is cleaned up: other threads, such as a compiler's, are
/// still using what cleaning up would free.
pub(super) fn leave(signal: i32) -> ! {
    signal_hook::low_level::exit(i32::from(exit_code(signal)))
}

/// A command that ended in good order after a signal: its remaining message.
#[derive(Debug, thiserror::Error)]
#[error("{text}")]
pub(super) struct Stopped {
    pub signal: i32,
    pub text: String,
}

/// Whether Linux's `/proc/PID/status` says that the process ignores a signal: bit `signal - 1` of `SigIgn`.
fn is_ignored(status: &str, signal: i32) -> Option<bool> {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"))?;
    let mask = u64::from_str_radix(mask.trim(), 16).ok()?;
    Some(mask >> (signal - 1) & 1 == 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exit_codes_are_those_of_shells() {
        assert_eq!([SIGHUP, SIGINT, SIGTERM].map(exit_code), [129, 130, 143]);
    }

    #[test]
    fn the_mask_of_ignored_signals_is_read() {
        // SIGPIPE, as in every Rust program; then SIGHUP and SIGPIPE, as under nohup.
        assert_eq!(is_ignored("Name:\tx\nSigBlk:\tffff\nSigIgn:\t0000000000001000\n", SIGHUP), Some(false));
        assert_eq!(is_ignored("SigIgn:\t0000000000001001\n", SIGHUP), Some(true));
        assert_eq!(is_ignored("SigIgn:\t0000000000001001\n", SIGINT), Some(false));
        assert_eq!(is_ignored("SigIgn:\tnone\n", SIGHUP), None);
        assert_eq!(is_ignored("", SIGHUP), None);
    }
}
