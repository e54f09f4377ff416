//! Reads the folder of a run: its curves, however the process or the machine that recorded them ended.

use super::about::About;
use super::events::{self, Content};
use super::metrics::{self, Record};
use super::{ABOUT, EVENTS, METRICS, RunError};
use bf16scope_files as files;
use serde::{Serialize, Serializer};
use std::collections::{BTreeSet, HashMap};
use std::fs;
use std::io::BufReader;
use std::path::{Path, PathBuf};

/// A run, read from its folder.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Run {
    /// The folder.
    pub path: PathBuf,
    /// Its description; other programs' runs have none.
    pub about: Option<About>,
    /// Its scalars, in the order in which they first appear.
    pub curves: Vec<Curve>,
    /// Messages about what could not be read.
    pub remarks: Vec<String>,
}

/// A scalar over steps.
#[derive(Clone, Debug, PartialEq)]
pub struct Curve {
    /// Its name.
    pub name: String,
    /// Its values by ascending step, one for each step.
    pub points: Vec<Point>,
}

/// A value of a scalar.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Point {
    /// Updates before it.
    pub step: u64,
    /// Seconds since 1970.
    #[serde(serialize_with = "as_json")]
    pub time: f64,
    /// The value, which may be NaN; JSON then has the string `"NaN"`, as `metrics.jsonl` does.
    #[serde(serialize_with = "as_json")]
    pub value: f64,
}

fn as_json<S: Serializer>(value: &f64, serializer: S) -> Result<S::Ok, S::Error> {
    metrics::number(*value).serialize(serializer)
}

/// Reads the folder of a run. If a step was recorded twice, the later record replaces the earlier one and the steps
/// after it. Without `metrics.jsonl`, TensorBoard's event files are read.
///
/// # Errors
/// [`RunError::NoRun`] for a path that is not a run; an invalid `run.json`; errors of the system.
pub fn read(path: impl AsRef<Path>) -> Result<Run, RunError> {
    let path = path.as_ref();
    let mut run = Run { path: path.to_path_buf(), about: None, curves: Vec::new(), remarks: Vec::new() };
    let mut curves = Curves::default();
    let jsonl = path.join(METRICS);
    if jsonl.is_file() {
        lines(&jsonl, &mut curves, &mut run.remarks)?;
    } else {
        let events = event_files(path);
        if events.is_empty() {
            return Err(no_run(path));
        }
        for file in events {
            let reader = BufReader::new(files::open(&file).map_err(RunError::io(&file, "open it"))?);
            let remark = events::read(reader, |content| match content {
                Content::Scalars(record) => curves.push(record),
                Content::Start(step) => curves.all.iter_mut().for_each(|curve| curve.drop_from(step)),
            });
            let name = file.file_name().unwrap_or_default().to_string_lossy();
            let remark = remark.map_err(RunError::io(&file, "read it"))?;
            run.remarks.extend(remark.map(|remark| format!("{name}: {remark}")));
        }
    }
    if path.join(ABOUT).exists() {
        run.about = Some(About::read(path)?);
    }
    run.curves = curves.all;
    run.curves.retain(|curve| !curve.points.is_empty());
    Ok(run)
}

#[derive(Default)]
struct Curves {
    all: Vec<Curve>,
    places: HashMap<String, usize>,
}

impl Curves {
    fn push(&mut self, Record { step, time, scalars }: Record) {
        for (name, value) in scalars {
            let place = *self.places.entry(name).or_insert_with_key(|name| {
                self.all.push(Curve { name: name.clone(), points: Vec::new() });
                self.all.len() - 1
            });
            self.all[place].drop_from(step);
            self.all[place].points.push(Point { step, time, value });
        }
    }
}

impl Curve {
    fn drop_from(&mut self, step: u64) {
        while self.points.last().is_some_and(|last| last.step >= step) {
            self.points.pop();
        }
    }
}

/// The most names of texts in a remark.
const MAX_TEXTS: usize = 8;

fn lines(path: &Path, curves: &mut Curves, remarks: &mut Vec<String>) -> Result<(), RunError> {
    let reader = BufReader::new(files::open(path).map_err(RunError::io(path, "open it"))?);
    let (mut number, mut n_damaged, mut first, mut is_cut) = (0, 0, 0, false);
    let mut texts = BTreeSet::new();
    let read = metrics::read(reader, |line| {
        number += 1;
        texts.extend(line.texts);
        match line.record {
            Some(record) => curves.push(record),
            None if !line.is_whole => is_cut = true,
            None => {
                n_damaged += 1;
                first = if n_damaged == 1 { number } else { first };
            }
        }
    });
    read.map_err(RunError::io(path, "read it"))?;
    match n_damaged {
        0 => {}
        1 => remarks.push(format!("{METRICS}: line {first} is not a record, and is left out")),
        n => remarks.push(format!("{METRICS}: {n} lines are not records, from line {first} on, and are left out")),
    }
    // A value that is now and then a text has its other records.
    texts.retain(|name| !curves.places.contains_key(name));
    if !texts.is_empty() {
        let more = if texts.len() > MAX_TEXTS { ", …" } else { "" };
        let names: Vec<String> = texts.iter().take(MAX_TEXTS).map(|name| format!("`{name}`")).collect();
        remarks.push(format!("{METRICS}: no number in {}{more}, only texts: left out", names.join(", ")));
    }
    if is_cut {
        remarks.push(format!("{METRICS}: the last line is cut short, and is left out"));
    }
    Ok(())
}

/// TensorBoard's files in a folder, in the order in which it reads them.
fn event_files(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let is_one =
        |path: &PathBuf| path.is_file() && path.file_name().is_some_and(|it| it.to_string_lossy().contains(EVENTS));
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.path()).filter(is_one).collect();
    files.sort();
    files
}

pub(super) fn no_run(path: &Path) -> RunError {
    let no_run_error =
        |found: &str, help: String| RunError::NoRun { path: path.to_path_buf(), found: found.to_string(), help };
    let is_run = |path: &Path| path.join(METRICS).is_file() || !event_files(path).is_empty();
    let name = "name the folder of a run, such as `train` makes: runs/EXPERIMENT-PRECISION".to_string();
    match fs::metadata(path) {
        Err(_) => no_run_error("no such folder", name),
        Ok(found) if !found.is_dir() => {
            let parent = path.parent().filter(|parent| is_run(parent));
            let help = parent.map_or(name, |parent| {
                let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
                format!("name the folder that it is in: {}", parent.display())
            });
            no_run_error("a file, expected the folder of a run", help)
        }
        Ok(_) => {
            let entries = fs::read_dir(path).into_iter().flatten().flatten();
            let mut runs: Vec<PathBuf> = entries.map(|entry| entry.path()).filter(|path| is_run(path)).collect();
            runs.sort();
            let shown: Vec<String> = runs.iter().take(3).map(|run| run.display().to_string()).collect();
            let more = if runs.len() > shown.len() { ", …" } else { "" };
            match runs.is_empty() {
                true => no_run_error(&format!("the folder of no run: it has no {METRICS} and no event files"), name),
                false => no_run_error(
                    "no run itself, but a folder of runs",
                    format!("name those: {}{more}", shown.join(", ")),
                ),
            }
        }
    }
}

#[cfg(test)]
mod tests;
