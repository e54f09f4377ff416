//! `--trace FILE`: the run's spans as a Chrome trace, for ui.perfetto.dev or chrome://tracing.
//!
//! Holds a `tracing` layer that records when each of our spans is entered and left, and the file for them, which
//! appears complete at the end of the run or not at all. It measures nothing itself: the trace contains the spans that
//! the crates define.
//!
//! Written by hand instead of using `tracing-chrome`: docs/DEPENDENCIES.md says why.
//!
//! Source: "Trace Event Format" of the Chromium project: JSON array form, complete events (`X`) and instants (`i`).

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::io::{BufWriter, Write};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Instant;

use anyhow::Context as _;
use serde::Serialize;
use serde_json::Value;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Subscriber};
use tracing_subscriber::layer::{Context, Layer};
use tracing_subscriber::registry::LookupSpan;

use super::emit;
use bf16scope_files::Replacement;

/// The largest number of events: some 100 MB. A trace viewer cannot use more, and a long training run must not grow.
const MAX_EVENTS: usize = 500_000;

/// One line of the trace. Field names are the format's.
#[derive(Debug, Serialize)]
struct TraceEvent {
    name: &'static str,
    cat: &'static str,
    /// `X` (complete: has a duration) or `i` (instant).
    ph: char,
    /// Start, in microseconds since the trace began.
    ts: f64,
    /// Duration, in microseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    dur: Option<f64>,
    pid: u32,
    tid: u64,
    args: Args,
}

type Args = BTreeMap<&'static str, Value>;

#[derive(Debug, Default)]
struct Events {
    recorded: Vec<TraceEvent>,
    n_dropped: usize,
}

/// Records spans and events; see [`create`].
#[derive(Debug)]
pub struct TraceLayer {
    began: Instant,
    events: Arc<Mutex<Events>>,
}

/// The file that the recorded events go to.
#[derive(Debug)]
pub struct TraceFile {
    file: Replacement,
    events: Arc<Mutex<Events>>,
}

/// A layer, and the file that it will fill. The file is created now (beside `path`, under another name), so that an
/// unwritable path fails before hours of work.
pub fn create(path: &Path) -> anyhow::Result<(TraceLayer, TraceFile)> {
    let is_special = fs::metadata(path).is_ok_and(|metadata| !metadata.is_file() && !metadata.is_dir());
    anyhow::ensure!(!is_special, "--trace: `{}` is not a regular file; name a file to write", path.display());
    anyhow::ensure!(!path.is_dir(), "--trace: `{}` is a folder; expected a file name", path.display());
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty() && !folder.is_dir());
    if let Some(folder) = folder {
        anyhow::bail!("--trace: there is no folder `{}`; make it, or name another file", folder.display());
    }
    emit::check_kind(path, b"[", "trace").context("--trace")?;
    let file = Replacement::begin(path).with_context(|| format!("--trace: cannot write `{}`", path.display()))?;
    let events = Arc::<Mutex<Events>>::default();
    let layer = TraceLayer { began: Instant::now(), events: Arc::clone(&events) };
    Ok((layer, TraceFile { file, events }))
}

impl TraceFile {
    /// Writes all recorded events and moves the file into place.
    pub fn finish(self) -> anyhow::Result<()> {
        let TraceFile { mut file, events } = self;
        let path = file.place().to_path_buf();
        let events = lock(&events);
        if events.n_dropped > 0 {
            tracing::warn!("the trace is full: its last {} events are missing", events.n_dropped);
        }
        write_events(&mut file, &events.recorded)
            .and_then(|()| file.finish())
            .with_context(|| format!("--trace: cannot write `{}`", path.display()))
    }
}

/// A JSON array with one event per line.
fn write_events(file: &mut Replacement, events: &[TraceEvent]) -> std::io::Result<()> {
    let mut out = BufWriter::new(file);
    out.write_all(b"[")?;
    for (idx, event) in events.iter().enumerate() {
        out.write_all(if idx == 0 { b"\n" } else { b",\n" })?;
        serde_json::to_writer(&mut out, event)?;
    }
    out.write_all(b"\n]\n")?;
    out.flush()
}

impl TraceLayer {
    fn micros(&self, at: Instant) -> f64 {
        at.duration_since(self.began).as_nanos() as f64 / 1e3
    }

    fn push(&self, event: TraceEvent) {
        let mut events = lock(&self.events);
        if events.recorded.len() < MAX_EVENTS {
            events.recorded.push(event);
        } else {
            events.n_dropped += 1;
        }
    }
}

/// Our data in a span: its fields, and which threads are inside since when.
#[derive(Default)]
struct SpanState {
    args: Args,
    entered: Vec<(u64, Instant)>,
}

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for TraceLayer {
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let mut state = SpanState::default();
        attributes.record(&mut ArgsVisitor(&mut state.args));
        if let Some(span) = context.span(id) {
            span.extensions_mut().insert(state);
        }
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, context: Context<'_, S>) {
        if let Some(span) = context.span(id)
            && let Some(state) = span.extensions_mut().get_mut::<SpanState>()
        {
            values.record(&mut ArgsVisitor(&mut state.args));
        }
    }

    fn on_enter(&self, id: &Id, context: Context<'_, S>) {
        if let Some(span) = context.span(id)
            && let Some(state) = span.extensions_mut().get_mut::<SpanState>()
        {
            state.entered.push((thread_id(), Instant::now()));
        }
    }

    fn on_exit(&self, id: &Id, context: Context<'_, S>) {
        let now = Instant::now();
        let tid = thread_id();
        let Some(span) = context.span(id) else { return };
        let mut extensions = span.extensions_mut();
        let Some(state) = extensions.get_mut::<SpanState>() else {
            return;
        };
        let Some(idx) = state.entered.iter().rposition(|(thread, _)| *thread == tid) else {
            return;
        };
        let (_, entered) = state.entered.remove(idx);
        self.push(TraceEvent {
            name: span.name(),
            cat: span.metadata().target(),
            ph: 'X',
            ts: self.micros(entered),
            dur: Some(now.duration_since(entered).as_nanos() as f64 / 1e3),
            pid: std::process::id(),
            tid,
            args: state.args.clone(),
        });
    }

    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let mut args = Args::new();
        event.record(&mut ArgsVisitor(&mut args));
        self.push(TraceEvent {
            name: "event",
            cat: event.metadata().target(),
            ph: 'i',
            ts: self.micros(Instant::now()),
            dur: None,
            pid: std::process::id(),
            tid: thread_id(),
            args,
        });
    }
}

/// Recording must continue even after a panic elsewhere; the events are plain data, valid at any time.
fn lock(events: &Mutex<Events>) -> MutexGuard<'_, Events> {
    events.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// Small numbers, from 1 in order of first use: the standard library's thread ids are opaque.
fn thread_id() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    thread_local!(static ID: u64 = NEXT.fetch_add(1, Ordering::Relaxed));
    ID.with(|id| *id)
}

struct ArgsVisitor<'a>(&'a mut Args);

impl Visit for ArgsVisitor<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.0.insert(field.name(), format!("{value:?}").into());
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.insert(field.name(), value.into());
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.0.insert(field.name(), value.into());
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.0.insert(field.name(), value.into());
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.0.insert(field.name(), value.into());
    }

    /// JSON has no NaN or infinity: they become text.
    fn record_f64(&mut self, field: &Field, value: f64) {
        let number = serde_json::Number::from_f64(value).map(Value::Number);
        self.0.insert(field.name(), number.unwrap_or_else(|| value.to_string().into()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tracing_subscriber::layer::SubscriberExt;

    #[test]
    fn spans_become_complete_events() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("out.json");
        let (layer, file) = create(&path).unwrap();
        tracing::subscriber::with_default(tracing_subscriber::registry().with(layer), || {
            let outer = tracing::info_span!("compile", target = "tpu-v2", batch = 64, late = tracing::field::Empty);
            outer.in_scope(|| {
                tracing::info_span!("verify", share = f64::NAN, ok = true).in_scope(|| {});
                tracing::warn!("close to the \"limit\"");
            });
            outer.record("late", -1);
            outer.in_scope(|| {});
        });
        assert!(!path.exists(), "the file appears only when it is whole");
        file.finish().unwrap();

        let text = fs::read_to_string(&path).unwrap();
        let events: Vec<serde_json::Value> = serde_json::from_str(&text).unwrap();
        let brief: Vec<String> =
            events.iter().map(|event| format!("{} {} {}", event["ph"], event["name"], event["args"])).collect();
        assert_eq!(
            brief,
            [
                r#""X" "verify" {"ok":true,"share":"NaN"}"#,
                r#""i" "event" {"message":"close to the \"limit\""}"#,
                r#""X" "compile" {"batch":64,"target":"tpu-v2"}"#,
                r#""X" "compile" {"batch":64,"late":-1,"target":"tpu-v2"}"#,
            ]
        );
        let (inner, outer) = (&events[0], &events[2]);
        assert_eq!(inner["tid"], outer["tid"]);
        let end = |event: &Value| event["ts"].as_f64().unwrap() + event["dur"].as_f64().unwrap();
        assert!(outer["ts"].as_f64() <= inner["ts"].as_f64() && end(inner) <= end(outer));
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "nothing is left beside it");
    }

    #[test]
    fn an_empty_trace_is_valid_json() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("out.json");
        let (_, file) = create(&path).unwrap();
        file.finish().unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "[\n]\n");
    }

    #[test]
    fn a_path_that_cannot_be_written_fails_at_once() {
        let error = create(Path::new("/nonexistent/out.json")).unwrap_err();
        assert_eq!(error.to_string(), "--trace: there is no folder `/nonexistent`; make it, or name another file");
        let folder = tempfile::tempdir().unwrap();
        let error = create(folder.path()).unwrap_err();
        assert_eq!(
            error.to_string(),
            format!("--trace: `{}` is a folder; expected a file name", folder.path().display())
        );
    }
}
