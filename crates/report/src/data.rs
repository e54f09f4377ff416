//! The content of data sets: a table of features, how classes are balanced, broken records, and a page of examples.

mod sheet;

use std::collections::BTreeMap;

use crate::{Column, Screen, Table, grouped, percent};
use bf16scope_data::Census;
use bf16scope_data::records::{Held, Survey};

pub use sheet::{Extent, of_experiment as page_of_experiment, of_records as page_of_records};

/// The number of classes to list.
const MAX_CLASSES: usize = 12;

/// Records: each feature, how classes are balanced, and broken ones.
pub fn survey_text(survey: &Survey, class_names: &[String], screen: Screen) -> String {
    let read = looked_at(survey.n_read, survey.n_records);
    let mut text = format!("{} records, {read}\n", grouped(survey.n_records as i64));
    let mut table = Table::new([
        Column::name("feature"),
        Column::number("kind"),
        Column::number("records"),
        Column::number("values").extra(1),
        Column::text("what"),
    ]);
    for (name, held) in &survey.features {
        let kinds: Vec<&str> = held.kinds.keys().copied().collect();
        let n: u64 = held.kinds.values().sum();
        let n_values = held.n_values.map(range).unwrap_or_default();
        table.row([name.clone(), kinds.join(", "), grouped(n as i64), n_values, words(held)]);
    }
    text += &table.render(screen);
    for (name, held) in survey.features.iter().filter(|(_, held)| held.counts.len() > 1) {
        text += &classes(name, &held.counts, class_names, "records");
    }
    if survey.n_broken > 0 {
        text += &broken(survey.n_broken, &survey.broken);
    }
    text
}

/// A part of an experiment's examples: each feature, class balance, and broken examples.
pub fn census_text(part: &str, census: &Census, is_stop: bool, screen: Screen) -> String {
    let read = looked_at(census.n_read, census.n_examples);
    let mut text = format!("{part}: {} examples, {read}\n", grouped(census.n_examples as i64));
    let mut table = Table::new([
        Column::name("feature"),
        Column::name("in the batch"),
        Column::number("min"),
        Column::number("max"),
        Column::number("mean").extra(1),
        Column::number("deviation").extra(2),
    ]);
    for figures in &census.features {
        let [least, greatest] = figures.range.map_or([String::new(), String::new()], |range| range.map(short));
        let (mean, deviation) = match figures.range {
            Some(_) if figures.counts.is_empty() => (short(figures.mean), short(figures.deviation)),
            _ => (String::new(), String::new()),
        };
        let cast = format!("{} {:?}", figures.dtype, figures.dims);
        table.row([figures.name.clone(), cast, least, greatest, mean, deviation]);
    }
    text += &table.render(screen);
    for figures in census.features.iter().filter(|figures| figures.counts.len() > 1) {
        text += &classes(&figures.name, &figures.counts, &[], "examples");
    }
    if census.n_broken > 0 {
        text += &broken(census.n_broken, &census.broken);
        if is_stop {
            text += "help: `on_error: {skip: N}` under `data` leaves such examples out; without it the first ends the run\n";
        }
    }
    text
}

/// A number with few digits.
fn short(value: f64) -> String {
    if value == value.trunc() && value.abs() < 1e9 { format!("{value}") } else { format!("{value:.4}") }
}

fn looked_at(n_read: u64, n: u64) -> String {
    format!("{} of them looked at", if n_read == n { "all".to_string() } else { grouped(n_read as i64) })
}

fn broken(n: u64, messages: &[String]) -> String {
    let mut text = format!("{} broken:\n", grouped(n as i64));
    for message in messages {
        text += &format!("  {}\n", message.replace('\n', "\n  "));
    }
    match usize::try_from(n).unwrap_or(usize::MAX).saturating_sub(messages.len()) {
        0 => text,
        more => text + &format!("  and {} more\n", grouped(more as i64)),
    }
}

fn range<T: PartialEq + ToString>([least, greatest]: [T; 2]) -> String {
    match least == greatest {
        true => least.to_string(),
        false => format!("{} to {}", least.to_string(), greatest.to_string()),
    }
}

/// A description of values.
fn words(held: &Held) -> String {
    let mut parts: Vec<String> = held.images.iter().map(|(format, n)| format!("{n} {format}")).collect();
    if held.n_no_image > 0 {
        parts.push(format!("{} neither", held.n_no_image));
    }
    if let (Some(heights), Some(widths)) = (held.heights, held.widths) {
        parts.push(format!("{} × {} pixels", range(heights), range(widths)));
    }
    parts.extend(held.tensors.iter().map(|(tensor, n)| format!("{n} tensors {tensor}")));
    if let Some(n_bytes) = held.n_bytes {
        parts.push(format!("{} bytes", range(n_bytes)));
    }
    parts.extend(held.range.map(range));
    parts.join(", ")
}

/// The frequency of each class: the first of them, and how balanced they are.
fn classes(name: &str, counts: &BTreeMap<i64, u64>, names: &[String], what: &str) -> String {
    let total: u64 = counts.values().sum();
    let class = |label: &i64| match usize::try_from(*label).ok().and_then(|label| names.get(label)) {
        Some(name) => format!("{label} ({name})"),
        None => label.to_string(),
    };
    let shown = counts.iter().take(MAX_CLASSES);
    let shown: Vec<String> =
        shown.map(|(label, n)| format!("{}: {}", class(label), percent(*n as i64, total as i64))).collect();
    let more = counts.len().saturating_sub(MAX_CLASSES);
    let more = if more > 0 { format!(", and {more} more") } else { String::new() };
    let (least, greatest) = (counts.values().min(), counts.values().max());
    let each = least.zip(greatest).map(|(least, greatest)| range([*least, *greatest])).unwrap_or_default();
    format!("{name}: {} values, {each} {what} each: {}{more}\n", counts.len(), shown.join(", "))
}
