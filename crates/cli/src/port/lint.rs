//! `port SCRIPT.py`: the lint of a script, and its Keras `Sequential` as an experiment.

use std::fmt::Write as _;
use std::path::Path;

use anyhow::{Context as _, bail};
use serde::Serialize;

use super::super::{Context, Status, emit, terminal};
use super::Args;
use bf16scope_files as files;
use bf16scope_tensorflow as tensorflow;

/// The largest size of a script, in bytes.
const MAX_SCRIPT: u64 = 16 << 20;

/// Lints a script. Its findings are not certain, so the exit status is 0.
pub(super) fn lint(args: &Args, context: &Context) -> anyhow::Result<Status> {
    let (path, shown) = (&args.graph, args.graph.display());
    let bytes = files::read(path, MAX_SCRIPT).with_context(|| format!("cannot read {shown}"))?;
    // Bytes of another encoding occur only in comments and strings, which do not matter.
    let reading = tensorflow::read_script(&String::from_utf8_lossy(&bytes));
    let traced = traced(&reading, &shown.to_string());
    let named = terminal::visible(&shown.to_string()).into_owned();
    let header = format!("# Keras' Sequential of {named}, by `bf16scope port`: read from the source, and not run.\n");
    let model = reading.sequential.as_ref();
    let experiment = model.and_then(|model| model.experiment.as_ref()).map(|text| header + text);
    let is_folder_without = args.output.is_some() && experiment.is_none();
    if let Some(flag) =
        [("-o", is_folder_without), ("--checkpoint", args.checkpoint.is_some()), ("--html", args.html.is_some())]
            .iter()
            .find_map(|(flag, is_there)| is_there.then_some(*flag))
    {
        let left = model.and_then(|model| model.not_followed.last());
        let left = left.map(|(line, left)| format!(" (of its Sequential, line {line} is not followed: {left})"));
        bail!(
            "{flag} is for a graph, and {shown} is a script{}\nhelp: make its graph, \
             `{traced} …`, or take the .meta of a run",
            left.unwrap_or_default()
        );
    }
    let written = match (&args.output, &experiment) {
        (Some(folder), Some(text)) => Some(write(folder, text)?),
        _ => None,
    };
    if args.json {
        let finding = |finding: &tensorflow::Finding| LintRow {
            line: finding.line,
            what: finding.what,
            why: finding.why,
            mend: finding.mend,
            is_slip: finding.is_slip,
            certainty: "read from the source",
        };
        let findings = reading.findings.iter().map(finding).collect();
        let not_read = reading.not_read.into_iter().map(|(construct, lines)| NotRead { construct, lines }).collect();
        let (script, not_followed) = (shown.to_string(), reading.not_followed);
        let of_model = |(line, text): (u32, String)| NotFollowed { line, text };
        let model = reading.sequential.map(|model| model.not_followed).unwrap_or_default();
        let not_followed_of_model = model.into_iter().map(of_model).collect();
        let report = LintReport { script, findings, not_followed, not_read, experiment, not_followed_of_model };
        context.print_json(&report)?;
        return Ok(Status::Ok);
    }
    let mut text = in_words(&reading, path);
    match (written, &experiment) {
        (Some(written), _) => drop(writeln!(text, "wrote {written}")),
        (None, Some(experiment)) => {
            // YAML is copied: no width folds it.
            context.print(&text)?;
            context.print_data(&format!("\n{experiment}\n"))?;
            text.clear();
        }
        (None, None) => {}
    }
    text.push_str("Read from the source, and not run.");
    if reading.is_tensorflow {
        let _ = write!(text, " Dtypes are in its graph: a run's .meta, or `{traced}`.");
    }
    text.push('\n');
    context.print(&text)?;
    Ok(Status::Ok)
}

/// The tracer's command line for a script, with the name to trace; `NAME` where the script shows none.
fn traced(reading: &tensorflow::ScriptReading, shown: &str) -> String {
    format!("python -m bf16scope.tf {shown}:{}", reading.entry.as_deref().unwrap_or("NAME"))
}

/// The findings in a script, and a note of what was not read.
fn in_words(reading: &tensorflow::ScriptReading, path: &Path) -> String {
    let shown = path.display();
    let mut text = String::new();
    for finding in &reading.findings {
        let _ = writeln!(text, "{shown}:{}: {}: {}\n  help: {}", finding.line, finding.what, finding.why, finding.mend);
    }
    if reading.findings.is_empty() {
        let _ = writeln!(text, "{shown}: its words show no slip.");
    }
    if !reading.not_followed.is_empty() {
        let _ = writeln!(text, "Not followed: {}.", reading.not_followed.join(", "));
    }
    if !reading.not_read.is_empty() {
        let listed: Vec<String> = reading.not_read.iter().map(|(name, lines)| listed_lines(name, lines)).collect();
        let _ = writeln!(text, "Not read: {}.", listed.join(", "));
    }
    for (line, left) in reading.sequential.iter().flat_map(|model| &model.not_followed) {
        let _ = writeln!(text, "{shown}:{line}: not followed in Keras' Sequential: {left}");
    }
    text
}

/// A construct and its first lines: `` `getattr` (lines 3, 9, 12 and 4 more) ``.
fn listed_lines(name: &str, lines: &[u32]) -> String {
    const SHOWN: usize = 3;
    let shown: Vec<String> = lines.iter().take(SHOWN).map(u32::to_string).collect();
    let more = match lines.len().saturating_sub(SHOWN) {
        0 => String::new(),
        n => format!(" and {n} more"),
    };
    let noun = if lines.len() == 1 { "line" } else { "lines" };
    format!("`{name}` ({noun} {}{more})", shown.join(", "))
}

#[derive(Debug, Serialize)]
struct LintReport {
    script: String,
    findings: Vec<LintRow>,
    not_followed: Vec<String>,
    not_read: Vec<NotRead>,
    /// Keras' `Sequential` in YAML.
    #[serde(skip_serializing_if = "Option::is_none")]
    experiment: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    not_followed_of_model: Vec<NotFollowed>,
}

#[derive(Debug, Serialize)]
struct NotFollowed {
    line: u32,
    text: String,
}

/// Writes the experiment into a folder; returns its path.
fn write(folder: &Path, text: &str) -> anyhow::Result<String> {
    std::fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let path = folder.join("experiment.yaml");
    emit::write_anew(&path, text.as_bytes())?;
    Ok(path.display().to_string())
}

#[derive(Debug, Serialize)]
struct NotRead {
    construct: &'static str,
    lines: Vec<u32>,
}

#[derive(Debug, Serialize)]
struct LintRow {
    line: u32,
    what: &'static str,
    why: &'static str,
    mend: &'static str,
    is_slip: bool,
    certainty: &'static str,
}
