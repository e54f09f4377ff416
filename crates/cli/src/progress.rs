//! Progress on standard error: plugin installations, downloads and tokenizing, and bars for work over a second.

use std::io::{IsTerminal, Write};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle, WeakProgressBar};

use super::terminal;
use bf16scope_files::{BytesDone, OnBytes};
use bf16scope_pjrt::{OnInstall, Progress};

/// Reports plugin installations on standard error: a bar for the download on a terminal, lines elsewhere. Errors are
/// returned by the installation itself, so `quiet` hides nothing that matters.
pub(super) fn installations(quiet: bool) -> OnInstall {
    let bar: Mutex<Option<ProgressBar>> = Mutex::new(None);
    OnInstall::new(move |progress| {
        if quiet {
            return;
        }
        let mut bar = bar.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        match progress {
            Progress::Starting(artifact) => {
                say(&progress.to_string());
                if std::io::stderr().is_terminal() {
                    clear_all();
                    *bar = Some(download_bar(artifact.wheel_bytes));
                }
            }
            Progress::Downloading { n_bytes, .. } => {
                if let Some(bar) = &*bar {
                    bar.set_position(*n_bytes);
                }
            }
            Progress::Damaged { .. } | Progress::Unpacking(_) | Progress::Installed(_) => {
                if let Some(bar) = bar.take() {
                    bar.finish_and_clear();
                }
                say(&progress.to_string());
            }
        }
    })
}

/// A bar of bytes on a terminal, for work that has taken a second.
pub(super) fn bytes(quiet: bool) -> OnBytes {
    let bar: Mutex<Option<(Instant, ProgressBar)>> = Mutex::new(None);
    OnBytes::new(move |BytesDone { n_bytes, n_total }| {
        if quiet || !std::io::stderr().is_terminal() {
            return;
        }
        let mut bar = bar.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let (began, drawn) = bar.get_or_insert_with(|| (Instant::now(), ProgressBar::hidden()));
        if n_bytes == n_total {
            drawn.finish_and_clear();
            *bar = None;
        } else if drawn.is_hidden() && began.elapsed().as_secs() >= 1 {
            clear_all();
            *drawn = download_bar(n_total);
        } else {
            drawn.set_position(n_bytes);
        }
    })
}

/// Prints a line on standard error. If it is closed, there is no other way to report.
pub(super) fn say(line: &str) {
    apart(|| drop(writeln!(std::io::stderr(), "bf16scope: {}", terminal::message(line))));
}

/// Bars and spinners that are or were visible: other output must not end up in their line.
static SHOWN: Mutex<Vec<WeakProgressBar>> = Mutex::new(Vec::new());

/// Registers a visible bar.
fn shown(bar: ProgressBar) -> ProgressBar {
    if !bar.is_hidden() {
        let mut shown = SHOWN.lock().unwrap_or_else(PoisonError::into_inner);
        shown.retain(|bar| bar.upgrade().is_some_and(|bar| !bar.is_finished()));
        shown.push(bar.downgrade());
    }
    bar
}

fn all_shown() -> Vec<ProgressBar> {
    let shown = SHOWN.lock().unwrap_or_else(PoisonError::into_inner);
    shown.iter().filter_map(WeakProgressBar::upgrade).filter(|bar| !bar.is_finished()).collect()
}

/// Writes to standard error with every bar hidden, and draws them again below.
pub(super) fn apart(write: impl FnOnce()) {
    fn within(bars: &[ProgressBar], write: Box<dyn FnOnce() + '_>) {
        match bars {
            [] => write(),
            [bar, rest @ ..] => bar.suspend(|| within(rest, write)),
        }
    }
    within(&all_shown(), Box::new(write));
}

/// Removes every bar, before the process ends or prints its last message.
pub(super) fn clear_all() {
    all_shown().iter().for_each(ProgressBar::finish_and_clear);
}

/// A spinner on a terminal, for work before a command has anything to show. Dropping it ends it.
pub(super) struct Phase(ProgressBar);

impl Phase {
    /// Begins a phase; `message` says what is being done.
    pub(super) fn begin(message: String, quiet: bool) -> Phase {
        Phase(spinner(message, quiet))
    }

    /// Says what is being done now.
    pub(super) fn says(&self, message: &str) {
        self.0.set_message(terminal::message(message));
    }
}

impl Drop for Phase {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

fn download_bar(n_bytes: u64) -> ProgressBar {
    let bar = shown(ProgressBar::with_draw_target(Some(n_bytes), ProgressDrawTarget::stderr()));
    let style = ProgressStyle::with_template("{wide_bar} {bytes}/{total_bytes} {bytes_per_sec} {eta}")
        .expect("the template is a constant that a test renders");
    bar.set_style(drawable(style));
    bar
}

/// The style in characters that the terminal can show. A dumb one shows nothing.
fn drawable(style: ProgressStyle) -> ProgressStyle {
    match terminal::is_ascii() {
        true => style.progress_chars("#>-").tick_chars("|/-\\ "),
        false => style,
    }
}

/// A bar on standard error that counts `n` things, with a message; hidden if `quiet` or not on a terminal.
pub(super) fn bar(n: u64, quiet: bool) -> ProgressBar {
    let target = if quiet { ProgressDrawTarget::hidden() } else { ProgressDrawTarget::stderr() };
    let bar = shown(ProgressBar::with_draw_target(Some(n), target));
    let style = ProgressStyle::with_template("{prefix} {bar:30} {pos}/{len} {msg} {eta}")
        .expect("the template is a constant that a test renders");
    bar.set_style(drawable(style));
    bar
}

/// A bar on standard error that shows the finished part of some work and the remaining time, with the caller's message;
/// hidden if `quiet` or not on a terminal. It is drawn once its length is set.
pub(super) fn part(quiet: bool) -> ProgressBar {
    let target = if quiet { ProgressDrawTarget::hidden() } else { ProgressDrawTarget::stderr() };
    let bar = shown(ProgressBar::with_draw_target(None, target));
    let style = ProgressStyle::with_template("{msg} {bar:30} {percent}% {eta} left")
        .expect("the template is a constant that a test renders");
    bar.set_style(drawable(style));
    bar
}

/// A spinner on standard error with a message and the elapsed time; hidden if `quiet` or not on a terminal.
pub(super) fn spinner(message: String, quiet: bool) -> ProgressBar {
    let target = if quiet { ProgressDrawTarget::hidden() } else { ProgressDrawTarget::stderr() };
    let spinner = shown(ProgressBar::with_draw_target(None, target));
    let style = ProgressStyle::with_template("{spinner} {msg} {elapsed}")
        .expect("the template is a constant that a test renders");
    spinner.set_style(drawable(style));
    spinner.set_message(terminal::message(&message));
    spinner.enable_steady_tick(std::time::Duration::from_millis(100));
    spinner
}

/// A bar on standard error that counts steps of minutes, with the caller's message and the time of this step; hidden if
/// `quiet` or not on a terminal.
pub(super) fn steps(quiet: bool) -> ProgressBar {
    let target = if quiet { ProgressDrawTarget::hidden() } else { ProgressDrawTarget::stderr() };
    let bar = shown(ProgressBar::with_draw_target(Some(1), target));
    let style = ProgressStyle::with_template("{bar:20} {pos}/{len} {wide_msg} {elapsed}")
        .expect("the template is a constant that a test renders");
    bar.set_style(drawable(style));
    bar.enable_steady_tick(std::time::Duration::from_millis(500));
    bar
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn templates_render() {
        download_bar(10).finish_and_clear();
        bar(3, true).finish_and_clear();
        steps(true).finish_and_clear();
        part(true).finish_and_clear();
        spinner("compiling".to_string(), true).finish_and_clear();
    }
}
