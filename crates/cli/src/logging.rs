//! Logging to standard error while a command runs: warnings always, more with `-v` or `RUST_LOG`.
//!
//! Lines look like `bf16scope: warning: text key=value`, as errors do; no colours, no clock. The trace of `--trace`
//! uses the same subscriber with its own filter: see [`super::trace`].

use std::fmt;
use std::io;

use anyhow::Context as _;
use tracing::level_filters::LevelFilter;
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::layer::{Layer, SubscriberExt};
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt;

use super::trace::TraceLayer;
use super::{progress, terminal};

/// The verbosity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verbosity {
    /// `-q`: errors only.
    Quiet,
    /// Warnings.
    Normal,
    /// `-v`: major actions.
    Verbose,
    /// `-vv`: details for developers.
    Debug,
    /// `-vvv`: everything.
    Trace,
}

impl Verbosity {
    /// From the number of `-v` and the presence of `-q`.
    pub fn new(n_verbose: u8, quiet: bool) -> Verbosity {
        match (quiet, n_verbose) {
            (true, _) => Verbosity::Quiet,
            (false, 0) => Verbosity::Normal,
            (false, 1) => Verbosity::Verbose,
            (false, 2) => Verbosity::Debug,
            (false, _) => Verbosity::Trace,
        }
    }

    /// Directives for our crates; other crates are limited to warnings.
    fn directives(self) -> &'static str {
        match self {
            Verbosity::Quiet => "error",
            Verbosity::Normal => "warn",
            Verbosity::Verbose => "warn,bf16scope=info",
            Verbosity::Debug => "warn,bf16scope=debug",
            Verbosity::Trace => "warn,bf16scope=trace",
        }
    }
}

/// Installs the process's subscriber. `RUST_LOG` is added to the flags, and takes precedence if both name a target.
pub fn init(verbosity: Verbosity, trace: Option<TraceLayer>) -> anyhow::Result<()> {
    let env = std::env::var_os("RUST_LOG").unwrap_or_default();
    let filter = filter(verbosity, &env.to_string_lossy())?;
    let lines = tracing_subscriber::fmt::layer()
        .event_format(Lines)
        .with_ansi(false)
        .with_writer(|| Apart)
        .log_internal_errors(false)
        .with_filter(filter);
    let spans = Targets::new().with_target("bf16scope", LevelFilter::DEBUG);
    tracing_subscriber::registry()
        .with(lines)
        .with(trace.map(|layer| layer.with_filter(spans)))
        .try_init()
        .context("cannot install the log")
}

fn filter(verbosity: Verbosity, env: &str) -> anyhow::Result<Targets> {
    let directives = env.split(',').map(str::trim).filter(|directive| !directive.is_empty());
    let all: Vec<&str> = [verbosity.directives()].into_iter().chain(directives).collect();
    all.join(",")
        .parse()
        .with_context(|| format!("RUST_LOG: cannot read `{env}`; expected directives such as bf16scope=debug"))
}

/// A writer to standard error that hides progress bars meanwhile.
struct Apart;

impl io::Write for Apart {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut written = Ok(0);
        progress::apart(|| written = io::stderr().write(bytes));
        written
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().flush()
    }
}

/// Formats one event per line.
struct Lines;

impl<S, N> FormatEvent<S, N> for Lines
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(&self, context: &FmtContext<'_, S, N>, mut writer: Writer<'_>, event: &Event<'_>) -> fmt::Result {
        write!(writer, "bf16scope: {}: ", word(*event.metadata().level()))?;
        let mut line = String::new();
        context.format_fields(Writer::new(&mut line), event)?;
        writeln!(writer, "{}", terminal::message(&line))
    }
}

fn word(level: Level) -> &'static str {
    match level {
        Level::ERROR => "error",
        Level::WARN => "warning",
        Level::INFO => "info",
        Level::DEBUG => "debug",
        Level::TRACE => "trace",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::sync::{Arc, Mutex};

    #[derive(Clone, Default)]
    struct Sink(Arc<Mutex<Vec<u8>>>);

    impl Write for Sink {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn lines(verbosity: Verbosity, env: &str) -> String {
        let sink = Sink::default();
        let writer = sink.clone();
        let layer = tracing_subscriber::fmt::layer()
            .event_format(Lines)
            .with_ansi(false)
            .with_writer(move || writer.clone())
            .with_filter(filter(verbosity, env).unwrap());
        tracing::subscriber::with_default(tracing_subscriber::registry().with(layer), || {
            tracing::warn!(scope = "net", "the scope ends up f32");
            tracing::info!("installing {}", "a plugin");
            tracing::debug!(n_instrs = 3, "built");
            tracing::info!(target: "elsewhere", "noise");
        });
        let bytes = sink.0.lock().unwrap().clone();
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn lines_by_verbosity() {
        let warning = "bf16scope: warning: the scope ends up f32 scope=\"net\"\n";
        let info = "bf16scope: info: installing a plugin\n";
        let debug = "bf16scope: debug: built n_instrs=3\n";
        assert_eq!(lines(Verbosity::new(0, true), ""), "");
        assert_eq!(lines(Verbosity::new(0, false), ""), warning);
        assert_eq!(lines(Verbosity::new(1, false), ""), format!("{warning}{info}"));
        assert_eq!(lines(Verbosity::new(2, false), ""), format!("{warning}{info}{debug}"));
        assert_eq!(lines(Verbosity::new(9, false), ""), format!("{warning}{info}{debug}"));
    }

    #[test]
    fn rust_log_has_the_last_word() {
        let normal = Verbosity::new(0, false);
        assert_eq!(lines(normal, "off"), "");
        assert_eq!(lines(Verbosity::new(1, false), "bf16scope=off"), "");
        let elsewhere = "bf16scope: info: noise\n";
        assert!(lines(normal, "elsewhere=info").ends_with(elsewhere));
        assert!(!lines(normal, "").ends_with(elsewhere));
        assert!(lines(normal, " bf16scope=debug,").contains("bf16scope: debug: built n_instrs=3\n"));
    }
}
