//! The audit for the terminal: tables, and conclusions in sentences.

use std::path::Path;

use super::cycles::AuditCycles;
use super::step::AtStep;
use super::{AuditOutcome, F32As, InputsFrom};
use crate::{Column, Screen, Table};
use bf16scope_audit::{Audit, AuditRow, F32Failure, FirstBeyond, Judgement, ResultRow, Search, SearchEnd, ShardRow};
use bf16scope_hlo::numerics::compare::Errors;

/// An error for people.
pub fn number(value: f64) -> String {
    match value {
        0.0 => "0".to_string(),
        v if v.is_infinite() => "inf".to_string(),
        v => format!("{v:.2e}"),
    }
}

/// An error in ulp for people.
pub(super) fn ulps(value: f64) -> String {
    if value < 1e4 { format!("{value:.1}") } else { format!("{value:.1e}") }
}

/// The dtype in a printed shape; the whole text for a tuple.
fn dtype(shape: &str) -> &str {
    if shape.starts_with('(') { shape } else { shape.split('[').next().unwrap_or(shape) }
}

/// `bf16`, or `f32 → bf16` where lowering changed it.
pub(super) fn dtypes(row: &AuditRow) -> String {
    let (before, now) = (dtype(&row.reference), dtype(&row.lowered));
    match (before == now, before.starts_with('(')) {
        (true, false) => now.to_string(),
        (true, true) => "tuple".to_string(),
        (false, false) => format!("{before} → {now}"),
        (false, true) => "tuple, changed".to_string(),
    }
}

/// Other changes to values: usually empty.
pub(super) fn remarks(errors: &Errors) -> String {
    let share = |share: f64, what: &str| {
        (share > 0.0).then(|| {
            format!("{} {what}", if share < 1e-3 { "< 0.1 %".to_string() } else { format!("{:.1} %", 100.0 * share) })
        })
    };
    let introduced = errors.n_introduced as f64 / errors.n_elements.max(1) as f64;
    let all = [
        share(introduced, "not finite"),
        share(errors.overflowed, "overflowed"),
        share(errors.subnormal, "subnormal"),
        share(errors.flushed, "became 0"),
    ];
    all.into_iter().flatten().collect::<Vec<_>>().join(", ")
}

/// The tables and the conclusions.
pub fn render(outcome: &AuditOutcome, n_rows: usize, screen: Screen) -> String {
    let audit = &outcome.audit;
    let mut text = String::new();
    let first_beyond = outcome.first_beyond.iter().map(first_beyond_line);
    let lines: Vec<String> = first_beyond.chain(outcome.at.iter().map(AtStep::line)).collect();
    text += &lines.into_iter().map(|line| line + "\n").collect::<String>();
    let rows = audit.worst_first();
    let shown: Vec<&AuditRow> = rows.iter().take(n_rows).copied().collect();
    let has_lines = shown.iter().any(|row| !row.source.is_empty());
    let has_layers = has_lines || shown.iter().any(|row| !row.op_name.is_empty());
    // A person's name for a layer comes before the compiler's.
    let mut columns: Vec<Column> = Vec::new();
    columns.extend(has_layers.then(|| Column::name("layer")));
    columns.extend(has_lines.then(|| Column::name("line")));
    let instruction = Column::name("instruction");
    columns.push(if has_lines { instruction.extra(1) } else { instruction });
    columns.extend([
        Column::name("op").extra(5),
        if has_layers { Column::text("dtype").extra(2) } else { Column::text("dtype") },
        Column::number("born"),
        Column::number("born ulp").extra(6),
        Column::number("grown"),
        Column::number("error"),
    ]);
    // Beside the error of the lowered form.
    columns.extend(outcome.f32_as.iter().map(|f32_as| Column::number(f32_title(f32_as))));
    let values = Column::text("values");
    let values = if has_layers { values.extra(3) } else { values };
    columns.extend([Column::number("ulp").extra(8), Column::number("cosine").extra(7), values]);
    let mut table = Table::new(columns);
    for row in shown {
        let mut cells: Vec<String> = has_layers.then(|| layer(row)).into_iter().collect();
        cells.extend(has_lines.then(|| line(row)));
        cells.extend([
            row.instruction.clone(),
            row.opcode.clone(),
            dtypes(row),
            number(row.born.scaled),
            ulps(row.born.max_ulp),
            number(row.grown),
            number(row.errors.scaled),
        ]);
        let f32_error =
            |f32_as: &F32As| f32_as.instruction(&row.instruction).map_or("-".into(), |row| number(row.errors.scaled));
        cells.extend(outcome.f32_as.iter().map(f32_error));
        cells.extend([ulps(row.errors.max_ulp), format!("{:.6}", row.errors.cosine), remarks(&row.errors)]);
        table.row(cells);
    }
    text += &table.render(screen);
    if rows.len() > n_rows {
        text += &format!("{} more instructions that lose less (--all shows them)\n", rows.len() - n_rows);
    }
    text += &results(&audit.results, outcome.f32_as.as_ref(), n_rows, screen);
    text += &summary(outcome);
    text
}

/// The scoped name of an instruction, or its own if it has none.
pub(super) fn layer(row: &AuditRow) -> String {
    if row.op_name.is_empty() { format!("%{}", row.instruction) } else { row.op_name.clone() }
}

/// The file, without its folders, and the line.
fn line(row: &AuditRow) -> String {
    match row.source.rsplit(['/', '\\']).next() {
        Some(line) if !line.is_empty() => line.to_string(),
        _ => "-".to_string(),
    }
}

/// The results; if there are many, those with the largest error.
fn results(rows: &[ResultRow], f32_as: Option<&F32As>, n_rows: usize, screen: Screen) -> String {
    let mut shown: Vec<&ResultRow> = rows.iter().collect();
    if rows.len() > n_rows {
        let error = |row: &ResultRow| row.judged.unwrap_or(-1.0).max(row.n_differing as f64 - 1.0);
        shown.sort_by(|a, b| error(b).total_cmp(&error(a)));
        shown.truncate(n_rows);
    }
    let mut columns =
        vec![Column::name("result"), Column::name("made by"), Column::name("shape"), Column::number("error")];
    columns.extend(f32_as.map(|f32_as| Column::number(f32_title(f32_as))));
    columns.extend([
        Column::number("max abs").extra(1),
        Column::number("mean rel").extra(2),
        Column::number("cosine").extra(3),
    ]);
    let mut table = Table::new(columns);
    for row in shown {
        let mut cells = vec![name(row), row.instruction.clone(), shape(row)];
        let f32_error = f32_as.map(|f32_as| f32_as.result(row).map_or("-".to_string(), |errors| number(errors.scaled)));
        match &row.errors {
            // Nothing was compared, so there is no figure.
            Some(errors) if errors.n_elements > 0 && errors.n_not_finite == errors.n_elements => {
                cells.push("not finite in f32".to_string());
                cells.extend(f32_error);
                cells.extend(["-", "-", "-"].map(str::to_string));
            }
            Some(errors) => cells.extend(std::iter::once(judged(row)).chain(f32_error).chain([
                number(errors.max_abs),
                number(errors.mean_rel),
                format!("{:.6}", errors.cosine),
            ])),
            None => cells.push(format!("{} of {} differ", row.n_differing, row.n_elements)),
        }
        table.row(cells);
    }
    let mut text = format!("\n{}", table.render(screen));
    if rows.len() > n_rows {
        text += &format!("{} more results with less error (--all shows them)\n", rows.len() - n_rows);
    }
    text
}

/// A result's name, or `outN`.
pub(super) fn name(row: &ResultRow) -> String {
    if row.name.is_empty() { format!("out{}", row.index) } else { row.name.clone() }
}

/// The shape of a result; if several devices hold it, their number, and the one with the largest error.
pub(super) fn shape(row: &ResultRow) -> String {
    let error = |shard: &ShardRow| shard.errors.map_or(shard.n_differing as f64, |errors| errors.max_abs);
    let worst = row.shards.iter().rev().max_by(|a, b| error(a).total_cmp(&error(b)));
    match (row.shards.len(), worst.filter(|worst| error(worst) > 0.0)) {
        (0 | 1, _) => row.shape.clone(),
        (n, None) => format!("{} on {n} devices", row.shape),
        (n, Some(worst)) => format!("{} on {n} devices, worst on {}", row.shape, worst.device),
    }
}

/// The error of a judged result, or the reason why it is not judged.
fn judged(row: &ResultRow) -> String {
    match (row.judged, row.judgement) {
        (Some(error), _) => number(error),
        (None, Judgement::Noise) => "noise".to_string(),
        (None, Judgement::NoScale) => "no scale".to_string(),
        (None, Judgement::SignLike) => "signs".to_string(),
        (None, _) => "ignored".to_string(),
    }
}

/// The results that are not judged, in lines.
fn unjudged(audit: &Audit, inputs: InputsFrom) -> Vec<String> {
    let count = |judgement| audit.results.iter().filter(|row| row.judgement == judgement).count();
    let n_noise_of = |is_floating: bool| -> u64 {
        audit.results.iter().filter(|row| row.errors.is_some() == is_floating).map(|row| row.n_noise).sum()
    };
    let n_noise = n_noise_of(true);
    let n_elements: u64 = audit.results.iter().filter_map(|row| row.errors).map(|errors| errors.n_elements).sum();
    let mut lines = Vec::new();
    if n_noise > 0 {
        lines.push(format!(
            "noise: of {n_noise} of the results' {n_elements} elements f32's own error, beside f64, is over 2^-9 of the scale \
             ({} nothing else); they are not judged",
            counted_are(count(Judgement::Noise), "result")
        ));
    }
    if n_noise_of(false) > 0 {
        lines.push(format!(
            "noise: {} integers or predicates of the results are decided otherwise in f64 than in f32; they are not judged",
            n_noise_of(false)
        ));
    }
    if count(Judgement::SignLike) > 0 {
        lines.push(format!(
            "signs: {} an optimizer's first update, the gradient divided by its own size: only its sign means anything; the \
             other results judge it ({} audits a later step)",
            counted_are(count(Judgement::SignLike), "result"),
            option_of_later_steps(inputs)
        ));
    }
    for row in audit.results.iter().filter(|row| row.judgement == Judgement::NoScale) {
        let max_abs = number(row.errors.map_or(0.0, |errors| errors.max_abs));
        lines.push(format!(
            "no scale: {} is 0 in f32 and in f64, and up to {max_abs} lowered: nothing says whether that is much, and it is not \
             judged",
            name(row)
        ));
    }
    if let Some(why) = &audit.no_f64 {
        lines.push(format!("f32's own error is not known, for the module does not run in f64: {}", first_line(why)));
    }
    lines
}

/// `1 result`, `2 results`.
fn counted(n: usize, noun: &str) -> String {
    format!("{n} {noun}{}", if n == 1 { "" } else { "s" })
}

/// `1 result is`, `2 results are`.
fn counted_are(n: usize, noun: &str) -> String {
    format!("{} {}", counted(n, noun), if n == 1 { "is" } else { "are" })
}

fn first_line(text: &str) -> &str {
    text.lines().next().unwrap_or_default()
}

/// The verdict, in lines.
fn summary(outcome: &AuditOutcome) -> String {
    let audit = &outcome.audit;
    let (n_not_finite, n_elements) = audit.n_not_finite();
    let mut lines = vec![format!(
        "{}: {} compared{}{}",
        outcome.file.display(),
        counted(audit.rows.len(), "instruction"),
        if audit.n_slices > 1 { format!(" in {} slices", audit.n_slices) } else { String::new() },
        match (n_not_finite == n_elements, audit.differing().is_empty()) {
            (true, true) if n_elements == 0 => "; no result is floating, and all of them are as in f32".to_string(),
            (true, _) => String::new(),
            (false, _) if !audit.results.iter().any(|row| row.judged.is_some()) => "; no result is judged".to_string(),
            (false, _) => format!("; the results are within {} of f32", number(outcome.error)),
        }
    )];
    lines.extend(unjudged(audit, outcome.inputs));
    lines.extend(outcome.f32_as.as_ref().map(|f32_as| beyond(outcome.error, f32_as)));
    match (n_not_finite, n_elements) {
        (0, _) => {}
        (n, n_elements) if n == n_elements => lines.push(
            "FAILS: every element of the results is a NaN or an infinity in f32 itself, so nothing was compared; give \
             inputs that the module computes numbers from"
                .to_string(),
        ),
        (n, n_elements) => lines.push(format!(
            "{n} of the results' {n_elements} elements are a NaN or an infinity in f32 itself{}: the figures are of the others{}",
            audit.first_not_finite_in_f32().map_or(String::new(), |first| format!(", the first of them made at %{first}")),
            // Where f32 is no reference, the help follows below.
            match outcome.f32_fails {
                Some(_) => String::new(),
                None => format!("\nhelp: {}", about_inputs(outcome.inputs)),
            }
        )),
    }
    // If nothing was compared, that is said already.
    let fails = outcome.f32_fails.as_ref().filter(|_| n_not_finite < n_elements);
    lines.extend(fails.map(|failure| f32_fails(failure, outcome)));
    if !audit.skipped.is_empty() {
        let first = &audit.skipped[0];
        lines.push(format!("{} not compared, such as %{}: {}", audit.skipped.len(), first.instruction, first.why));
    }
    if let Some(first) = &audit.first_not_finite {
        lines.push(format!("FAILS: %{first} is the first with a NaN or infinity that f32 does not have"));
    }
    lines.extend(differing(audit));
    match (outcome.budget, &outcome.search) {
        (None, _) if outcome.is_right.is_none() && outcome.f32_fails.is_none() => {
            lines.push("not judged: --budget says how far off a result may be".to_string());
        }
        (None, _) => {}
        (Some(_), None) if outcome.f32_fails.is_some() => {}
        (Some(_), None) if outcome.is_right.is_none() => {
            lines.push("not judged: no result is left that f32 knows and that is asked about".to_string());
        }
        (Some(budget), None) if outcome.error > budget && audit.n_nan() > 0 => lines.push(format!(
            "FAILS: over the budget of {}; f32 itself gives {} NaNs, and nothing is recommended",
            number(budget),
            audit.n_nan()
        )),
        (Some(budget), None) if outcome.error > budget => lines.push(format!(
            "FAILS: over the budget of {}; what to keep in f32 is searched for where the module runs on one device",
            number(budget)
        )),
        (Some(budget), None) if audit.n_not_finite().0 == 0 || outcome.is_right == Some(true) => {
            lines.push(format!("within the budget of {}", number(budget)));
        }
        (Some(_), None) => {}
        (Some(budget), Some(search)) => {
            lines.push(format!("FAILS: over the budget of {}", number(budget)));
            lines.extend(over(audit, budget));
            lines.push(search_result(search, outcome.saved_policy.as_deref()));
            lines.extend(outcome.cycles.as_ref().map(AuditCycles::line));
        }
    }
    lines.join("\n") + "\n"
}

/// The option that audits a later step.
fn option_of_later_steps(inputs: InputsFrom) -> &'static str {
    match inputs {
        InputsFrom::Run => "--at STEP",
        InputsFrom::File | InputsFrom::Drawn => "--steps N",
    }
}

/// Advice on inputs for which f32's own results are not reliable.
fn about_inputs(inputs: InputsFrom) -> &'static str {
    match inputs {
        InputsFrom::Run => "audit another step of the run (--at), or look at what this one computes in f32",
        InputsFrom::File => "look at the inputs, and at what the module computes of them in f32",
        InputsFrom::Drawn => {
            "drawn numbers may be none that the module is called with: give its arrays with --inputs; of an experiment, `bf16scope \
             audit EXPERIMENT --at STEP` has those of a step"
        }
    }
}

/// Why f32's own results are not a reliable reference, and what to do.
pub(super) fn f32_fails(failure: &F32Failure, outcome: &AuditOutcome) -> String {
    let F32Failure { n_nan, n_noise, n_elements, .. } = failure;
    format!(
        "FAILS: of the results' {n_elements} elements f32 itself makes {n_nan} NaN and {n_noise} noise: the lowered form has no \
         measure, and nothing is recommended\nhelp: {}",
        about_inputs(outcome.inputs)
    )
}

/// The results with differing integers or predicates, the numbers of elements, and what to keep in f32.
fn differing(audit: &Audit) -> Option<String> {
    /// This many results are named; the rest are counted.
    const N_NAMED: usize = 8;
    let rows = audit.differing();
    let first = rows.first()?.index;
    let named = |row: &&ResultRow| {
        format!("{} (%{}) in {} of {} elements", name(row), row.instruction, row.n_differing, row.n_elements)
    };
    let mut named: Vec<String> = rows.iter().take(N_NAMED).map(named).collect();
    named.extend((rows.len() > N_NAMED).then(|| format!("and {} more", rows.len() - N_NAMED)));
    let named = named.join(", ");
    let born = audit.by_born().into_iter().find(|row| row.born.scaled > 0.0);
    let keep = born.map_or(String::new(), |row| {
        format!("most error is born at %{0}, which --keep '{0}' leaves in f32; ", row.instruction)
    });
    let (fails, judging) = match audit.is_judged_by_integers() {
        true => ("FAILS: ", format!("--ignore out{first} does not judge that result")),
        false => ("", format!("they are not judged beside floats; --results out{first} judges by that result alone")),
    };
    Some(format!("{fails}integers or predicates differ from f32's: {named}\nhelp: {keep}{judging}"))
}

/// How many results are over a budget, and the worst of them with its largest error and its direction.
fn over(audit: &Audit, budget: f64) -> Option<String> {
    let error = |row: &ResultRow| row.judged.unwrap_or(0.0);
    let rows: Vec<&ResultRow> = audit.results.iter().filter(|row| error(row) > budget).collect();
    let worst = rows.iter().max_by(|a, b| error(a).total_cmp(&error(b)))?;
    let names = [&worst.name, &worst.op_name].into_iter().find(|name| !name.is_empty());
    let name = names.map_or(String::new(), |name| format!(" ({name})"));
    let cosine = worst.errors.map_or(String::new(), |errors| format!(", at a cosine of {:.6}", errors.cosine));
    let n = rows.len();
    let are = if n == 1 { "result is" } else { "results are" };
    Some(format!("{n} {are} over it, most of all out{}{name} by {}{cosine}", worst.index, number(error(worst))))
}

/// The column for the error of f32 on a TPU.
pub(super) fn f32_title(f32_as: &F32As) -> String {
    format!("f32 on {}", f32_as.arithmetic)
}

/// The error of the lowered form beyond f32's on a TPU.
pub(super) fn beyond(error: f64, f32_as: &F32As) -> String {
    let (arithmetic, f32_error) = (f32_as.arithmetic, f32_as.error);
    let compared = match error / f32_error {
        _ if f32_error == 0.0 => "there f32 loses nothing".to_string(),
        ratio if ratio <= 1.0 => "no further off than f32 is there".to_string(),
        ratio => format!("{ratio:.1} times as far off as f32 is there"),
    };
    format!(
        "f32 as {arithmetic} multiplies is within {} of f32 here; the lowered form is {compared}",
        number(f32_error)
    )
}

/// Why a search kept nothing: discrete choices that bf16 changes.
fn decided_otherwise(search: &Search) -> String {
    const N_NAMED: usize = 3;
    let rows = search.decisions.as_ref().map_or(&[][..], |decisions| &decisions.rows);
    let named = rows.iter().take(N_NAMED).map(|row| {
        let place = [&row.op_name, &row.source].into_iter().filter(|text| !text.is_empty()).map(String::as_str);
        let place = place.collect::<Vec<&str>>().join(", ");
        let place = if place.is_empty() { String::new() } else { format!(" ({place})") };
        format!("{} of {} at {}{place}", row.n_differing, row.n_elements, row.instruction)
    });
    let more = match rows.len().saturating_sub(N_NAMED) {
        0 => String::new(),
        n => format!(" and at {n} comparisons more"),
    };
    format!(
        "bf16 decides otherwise than f32: {}{more}. With f32's decisions the results are {} off, with its own {}. What is compared \
         there is closer than bf16 tells apart, as is the input of a ReLU near 0: keeping a few instructions only draws other \
         decisions, so nothing is kept\nhelp: a larger --budget, or --results with what matters",
        named.collect::<Vec<String>>().join(", "),
        search.decisions.as_ref().map_or("nothing".to_string(), |decisions| number(decisions.error)),
        number(search.error)
    )
}

/// The outcome of a search.
pub(super) fn search_result(search: &Search, saved: Option<&Path>) -> String {
    let n = search.keep.len();
    let what = match n {
        1 => "1 instruction".to_string(),
        n => format!("{n} instructions"),
    };
    let (error, n_runs, left) = (number(search.error), search.n_runs, percent_of(search.saved_share));
    let mut text = match (search.is_reached, search.end) {
        (false, SearchEnd::OutOfRuns) => {
            return format!(
                "no list that holds the budget was found in {n_runs} runs: with the last one, of {what} before any were left out \
                 again, the results are {error} off\nhelp: --max-runs allows more"
            );
        }
        (false, SearchEnd::Decisions) => return decided_otherwise(search),
        (false, _) => {
            return format!(
                "with all {n} candidates kept the results are still {error} off: the policy's parameters, results or \
                 lists are the reason"
            );
        }
        (true, SearchEnd::NothingLeft) => {
            return format!(
                "this leaves nothing in bf16: only with everything in f32 are the results within the budget ({error}, \
                 {n_runs} runs)\nhelp: a larger --budget, or --results with what matters"
            );
        }
        (true, SearchEnd::TooMany) => {
            return format!(
                "the error is born at many instructions: no list short enough was found in {n_runs} runs, and the shortest that \
                 holds the budget keeps {n} in f32 ({error}; {left} of the bytes that lowering saves are still saved)\nhelp: a \
                 larger --budget, --results with what matters, --max-kept {n}, or more --max-runs"
            );
        }
        (true, SearchEnd::CostsMoreThanItBuys) => format!(
            "keeping {what} in f32 brings them to {error} ({n_runs} runs), and costs more than it buys ({left} of the bytes that \
             lowering saves are still saved):"
        ),
        (true, SearchEnd::OutOfRuns) => format!(
            "keeping {what} in f32 brings them to {error}; fewer may do, and --max-runs looks for longer than {n_runs} runs:"
        ),
        (true, _) => format!("keeping {what} in f32 brings them to {error} ({n_runs} runs):"),
    };
    for name in &search.keep {
        text += &format!("\n  {name}");
    }
    if let Some(path) = saved {
        text += &format!("\nthe policy is in {}: use it with --policy", path.display());
    }
    text
}

/// A share for people.
fn percent_of(share: f64) -> String {
    format!("{:.0} %", 100.0 * share.max(0.0))
}

/// The outcome of a search for the first step beyond, in a line.
pub fn first_beyond_line(result: &FirstBeyond) -> String {
    let error_at = |step: u64| number(result.error_at(step).unwrap_or(f64::NAN));
    let (n, ratio) = (result.measured.len(), result.ratio);
    match result.step {
        Some(step) => format!(
            "step {step} is over {ratio} times the error of step 1 ({} against {}), and step {} is not ({}): found in {n} audits, of \
             steps twice as late each and then by halving; where errors go up and down, an earlier one may be over it too",
            error_at(step),
            error_at(1),
            step - 1,
            error_at(step - 1),
        ),
        None => format!(
            "none of the {n} steps that were audited is over {ratio} times the error of step 1, which is {}; the largest is {}\n\
             help: --at STEP audits another one, a smaller RATIO asks for less",
            error_at(1),
            number(result.measured.iter().map(|measured| measured.error).fold(0.0, f64::max)),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_said_where_there_are_any() {
        let errors = Errors { n_elements: 10_000, overflowed: 0.125, flushed: 1e-4, ..Errors::default() };
        assert_eq!(remarks(&errors), "12.5 % overflowed, < 0.1 % became 0");
        assert_eq!(remarks(&Errors::default()), "");
        assert_eq!((number(0.0), number(f64::INFINITY), number(0.00123)), ("0".into(), "inf".into(), "1.23e-3".into()));
    }

    #[test]
    fn one_and_many_are_counted() {
        assert_eq!([0, 1, 2].map(|n| counted(n, "instruction")), ["0 instructions", "1 instruction", "2 instructions"]);
        assert_eq!([1, 2].map(|n| counted_are(n, "result")), ["1 result is", "2 results are"]);
    }

    /// `--at` and `--steps` exclude each other.
    #[test]
    fn later_steps_are_audited_by_the_option_that_the_inputs_allow() {
        assert_eq!([InputsFrom::Run, InputsFrom::File].map(option_of_later_steps), ["--at STEP", "--steps N"]);
    }
}
