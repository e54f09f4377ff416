//! Chooses a form of a program, and explains the choice in sentences, from the compiler's figures for each form.
//!
//! [`verdict`] is a pure function from candidates to sentences. A sentence states measurements. A reason is given only
//! if it is a figure too: the components of HBM, and, if the optimized program was read ([`Evidence`]), the copies that
//! are alive at its peak and the kinds of op that its cycles are spent on. The sentences say that accuracy and the time
//! on a real TPU are not covered.

use std::collections::BTreeMap;

use serde::Serialize;

use super::explain::{Copies, Explanation};
use super::{CompileOutcome, CompileReport, Need};

/// A form of a program, and the compiler's outcome.
#[derive(Clone, Debug, PartialEq)]
pub struct Candidate {
    /// Its name in a sentence: `bf16`, `the module as given`, `policy tf_amp`.
    pub name: String,
    /// Its figures, or that it does not fit.
    pub outcome: CompileOutcome,
    /// The evidence in its optimized program, if that was read.
    pub evidence: Option<Evidence>,
    /// Whether its parameters or results have other dtypes than the first candidate's, so that its caller must change
    /// too.
    pub changes_interface: bool,
}

/// Facts about memory and cycles from an optimized program.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Evidence {
    /// Copies in another dtype that are alive at the peak together with their source.
    pub copies: Copies,
    /// The copies of arguments among them.
    pub copies_of_arguments: Copies,
    /// Estimated cycles by kind of op.
    pub cycles_by_kind: BTreeMap<String, u64>,
}

impl Evidence {
    /// Extracts the evidence from an explanation.
    pub fn from_explanation(explanation: &Explanation) -> Evidence {
        let kinds = explanation.kinds.iter().map(|kind| (kind.op.clone(), kind.cost.cycles));
        Evidence {
            copies: explanation.memory.copies_at_the_peak,
            copies_of_arguments: explanation.memory.copies_of_arguments,
            cycles_by_kind: kinds.collect(),
        }
    }
}

/// The choice.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Verdict {
    /// The chosen candidate, counted from 0; `None` if none fits.
    pub choice: Option<usize>,
    /// The reasons, each a sentence or two.
    pub sentences: Vec<String>,
}

/// Figures this close count as equal, as a share of the lesser: small errors of an estimate should not decide.
const TIE: f64 = 0.01;

/// The rule, in words for users.
const RULE: &str = "The rule: what fits, then the fewest cycles and the compiler's least optimum (their geometric mean, as they \
                    are two estimates and no TPU has run either), then the least HBM; within 1 % is a tie, and of what ties in \
                    both the first.";

/// Chooses among candidates; the first is the baseline.
///
/// The rule: candidates that fit; among them, the least geometric mean of cycles and the compiler's optimal seconds;
/// among those within 1 % of it, the least HBM; among those within 1 % of that, the first.
pub fn verdict(candidates: &[Candidate]) -> Verdict {
    let fitting: Vec<(usize, &CompileReport)> =
        candidates.iter().enumerate().filter_map(|(at, candidate)| Some((at, candidate.report()?))).collect();
    let mut sentences = Vec::new();
    let Some(choice) = best(&fitting) else {
        sentences.push(format!("None of them fits: {}.", list(candidates.iter().map(no_room))));
        return Verdict { choice: None, sentences };
    };
    let (first, chosen) = (&candidates[0], &candidates[choice]);
    let too_large: Vec<&Candidate> = candidates.iter().filter(|candidate| candidate.report().is_none()).collect();
    sentences.push(match (first.report(), chosen.report()) {
        (Some(base), Some(own)) if choice > 0 => {
            format!("Choose {}: {}, beside {}.", chosen.name, changes(own, base), first.name)
        }
        (Some(_), _) => format!("Keep {}.", first.name),
        (None, _) => format!("Choose {}: it fits.", chosen.name),
    });
    // The choice is compared with the baseline, or if it is the baseline, with the best of the others.
    let others: Vec<(usize, &CompileReport)> = fitting.iter().copied().filter(|(at, _)| *at > 0).collect();
    let other = if choice == 0 { best(&others) } else { Some(choice) };
    if choice == 0
        && let Some(other) = other
        && let (Some(base), Some(own)) = (first.report(), candidates[other].report())
    {
        let of_several = if others.len() > 1 { ", the best of the others," } else { "" };
        sentences.push(format!("{}{of_several} has {}.", sentence_start(&candidates[other].name), changes(own, base)));
    }
    if !too_large.is_empty() {
        sentences.push(format!("Too large: {}.", list(too_large.into_iter().map(no_room))));
    }
    if let Some(other) = other {
        sentences.extend(disagreement(first, &candidates[other]));
        sentences.extend(why_cycles(first, &candidates[other]));
        sentences.extend(why_memory(first, &candidates[other]));
    }
    sentences.extend(other_aims(candidates, &fitting, choice));
    if chosen.changes_interface {
        sentences.push(format!(
            "{} takes or gives other dtypes than {}: what calls the program must change with it.",
            sentence_start(&chosen.name),
            first.name
        ));
    }
    sentences.push(RULE.to_string());
    if let Some((at, _)) = fitting.iter().find(|(_, report)| report.cycles == 0) {
        sentences.push(format!("Cycles were left out: the compiler estimates none for {}.", candidates[*at].name));
    }
    if let Some((at, report)) = fitting.iter().find(|(_, report)| report.n_without_cycles > 0) {
        sentences.push(format!(
            "Of {} the compiler has no estimate for {} kernels, which cycles are without.",
            candidates[*at].name, report.n_without_cycles
        ));
    }
    Verdict { choice: Some(choice), sentences }
}

impl Candidate {
    fn report(&self) -> Option<&CompileReport> {
        self.outcome.report()
    }
}

/// The best fitting candidate. A program without cycles would win by a factor of 0: then only the time counts.
fn best(fitting: &[(usize, &CompileReport)]) -> Option<usize> {
    let known = |report: &CompileReport| (report.cycles > 0).then_some(report.n_without_cycles);
    let first = fitting.first().and_then(|(_, report)| known(report));
    // Kernels without an estimate in one form and not in the other would look like a gain.
    let has_cycles = first.is_some() && fitting.iter().all(|(_, report)| known(report) == first);
    let cycles = |report: &CompileReport| if has_cycles { report.cycles as f64 } else { report.optimal_seconds };
    let fast = ties(fitting, |report| (cycles(report) * report.optimal_seconds).sqrt());
    ties(&fast, |report| report.hbm.total as f64).first().map(|(at, _)| *at)
}

/// The candidates whose figure is the least, or within [`TIE`] of it.
fn ties<'r>(
    candidates: &[(usize, &'r CompileReport)],
    figure: impl Fn(&CompileReport) -> f64,
) -> Vec<(usize, &'r CompileReport)> {
    let least = candidates.iter().map(|(_, report)| figure(report)).fold(f64::INFINITY, f64::min);
    candidates.iter().copied().filter(|(_, report)| figure(report) <= least * (1.0 + TIE)).collect()
}

/// `cycles −18.1 %, optimum −33.8 %, HBM −45.9 %`.
fn changes(other: &CompileReport, base: &CompileReport) -> String {
    format!(
        "cycles {}, optimum {}, HBM {}",
        change(other.cycles as f64, base.cycles as f64),
        change(other.optimal_seconds, base.optimal_seconds),
        change(other.hbm.total as f64, base.hbm.total as f64)
    )
}

/// The difference of a figure, in percent of the base: `+2.9 %`, `−16.8 %`, `±0.0 %`.
fn change(figure: f64, base: f64) -> String {
    if base == 0.0 {
        return if figure == 0.0 { "±0.0 %".to_string() } else { format!("{figure} against 0") };
    }
    match (1000.0 * (figure / base - 1.0)).round() as i64 {
        0 => "±0.0 %".to_string(),
        n => format!("{}{:.1} %", if n < 0 { "−" } else { "+" }, n.unsigned_abs() as f64 / 10.0),
    }
}

/// Whether a figure exceeds the base's by more than [`TIE`].
fn is_more(figure: f64, base: f64) -> bool {
    figure > base * (1.0 + TIE)
}

/// If the compiler's two estimates of speed disagree: what each of them measures.
fn disagreement(base: &Candidate, other: &Candidate) -> Option<String> {
    let (own, base) = (other.report()?, base.report()?);
    let ([cycles, before], [time, time_before]) =
        ([own.cycles as f64, base.cycles as f64], [own.optimal_seconds, base.optimal_seconds]);
    let disagree = (is_more(cycles, before) && is_more(time_before, time))
        || (is_more(before, cycles) && is_more(time, time_before));
    disagree.then(|| {
        format!(
            "Cycles and the optimum disagree (their geometric mean: {}). They are different models of the compiler: cycles are \
             summed over the instructions that it scheduled, the optimum is its cost analysis of flops ({}) and bytes accessed ({}).",
            change((cycles * time).sqrt(), (before * time_before).sqrt()),
            change(own.flops, base.flops),
            change(own.bytes_accessed, base.bytes_accessed)
        )
    })
}

/// If there are more cycles: the kind of op with the largest increase.
fn why_cycles(base: &Candidate, other: &Candidate) -> Option<String> {
    let (own, before) = (other.report()?, base.report()?);
    if !is_more(own.cycles as f64, before.cycles as f64) {
        return None;
    }
    let (kinds, kinds_before) = (&other.evidence.as_ref()?.cycles_by_kind, &base.evidence.as_ref()?.cycles_by_kind);
    let gained = |(kind, &cycles): (&String, &u64)| {
        let before = kinds_before.get(kind).copied().unwrap_or(0);
        (cycles > before).then(|| (cycles - before, kind.clone(), before, cycles))
    };
    // The first by name among equals.
    let (_, kind, before, cycles) =
        kinds.iter().filter_map(gained).max_by(|a, b| a.0.cmp(&b.0).then_with(|| b.1.cmp(&a.1)))?;
    Some(format!(
        "Of the kinds of op, `{kind}` gained the most cycles: {} in {}, {} in {}.",
        grouped(cycles),
        other.name,
        grouped(before),
        base.name
    ))
}

/// If HBM is larger: the components that grew, and the copies that are alive at the peak.
fn why_memory(base: &Candidate, other: &Candidate) -> Option<String> {
    let (own, before) = (other.report()?.hbm, base.report()?.hbm);
    if !is_more(own.total as f64, before.total as f64) {
        return None;
    }
    // HBM is their sum; outputs that reuse an argument's memory take none.
    let mut parts = [
        ("arguments", own.arguments - before.arguments),
        ("outputs of their own", (own.outputs - own.aliased) - (before.outputs - before.aliased)),
        ("temporaries", own.temporaries - before.temporaries),
        ("code", own.code - before.code),
    ];
    parts.sort_by_key(|(_, n_bytes)| std::cmp::Reverse(n_bytes.abs()));
    let parts = parts.iter().filter(|(_, n_bytes)| *n_bytes != 0).map(|(part, n_bytes)| {
        format!("{part} {}{}", if *n_bytes < 0 { "−" } else { "+" }, amount(n_bytes.unsigned_abs()))
    });
    let mut text = format!(
        "{} takes {} more HBM than {}: {}.",
        sentence_start(&other.name),
        amount((own.total - before.total).unsigned_abs()),
        base.name,
        list(parts)
    );
    let temporaries = u64::try_from(own.temporaries - before.temporaries).unwrap_or(0);
    if let (1.., Some(evidence), Some(evidence_before)) = (temporaries, &other.evidence, &base.evidence) {
        let (copies, of_arguments) = (evidence.copies, evidence.copies_of_arguments.n_bytes);
        let before = evidence_before.copies.n_bytes;
        if let Some(more) = copies.n_bytes.checked_sub(before).filter(|more| *more > 0) {
            text += &format!(
                " At its peak {} of temporaries are copies, in another dtype, of arrays that are alive beside them ({} in \
                 all, {} of them of arguments; {} in {})",
                amount(copies.n_bytes),
                copies.n,
                amount(of_arguments),
                amount(before),
                base.name
            );
            text += if more >= temporaries { ": no less than temporaries grew by." } else { "." };
        }
    }
    Some(text)
}

/// The choices for users with other aims than the rule's, if they differ.
fn other_aims(candidates: &[Candidate], fitting: &[(usize, &CompileReport)], choice: usize) -> Vec<String> {
    let chosen = fitting.iter().find(|(at, _)| *at == choice).map(|(_, report)| *report);
    let Some(chosen) = chosen else { return Vec::new() };
    let better = |figure: fn(&CompileReport) -> f64| {
        let least = fitting.iter().min_by(|a, b| figure(a.1).total_cmp(&figure(b.1)))?;
        is_more(figure(chosen), figure(least.1)).then_some(*least)
    };
    let mut sentences = Vec::new();
    let memory: fn(&CompileReport) -> f64 = |report| report.hbm.total as f64;
    if let Some((at, report)) = better(memory) {
        sentences.push(format!(
            "Where memory is short, {} takes the least: {} against {}.",
            candidates[at].name,
            amount(report.hbm.total.unsigned_abs()),
            amount(chosen.hbm.total.unsigned_abs())
        ));
    }
    if let Some((at, _)) = better(|report| report.cycles as f64) {
        sentences.push(format!("By cycles alone it would be {}.", candidates[at].name));
    }
    if let Some((at, _)) = better(|report| report.optimal_seconds) {
        sentences.push(format!("By the optimum alone it would be {}.", candidates[at].name));
    }
    sentences
}

/// `policy O2 needs 10.65 GiB of 7.48 GiB`.
fn no_room(candidate: &Candidate) -> String {
    match &candidate.outcome {
        CompileOutcome::Fits(_) => format!("{} fits", candidate.name),
        CompileOutcome::OutOfMemory(Need { needed: Some(needed), available: Some(available), .. }) => {
            let gib = |n_bytes: u64| n_bytes as f64 / f64::from(1u32 << 30);
            format!("{} needs {:.2} GiB of {:.2} GiB", candidate.name, gib(*needed), gib(*available))
        }
        CompileOutcome::Failed(_) => format!("{} was refused", candidate.name),
        CompileOutcome::OutOfMemory(_) => format!("{} does not fit", candidate.name),
    }
}

/// `a`, `a and b`, `a, b and c`.
fn list(items: impl IntoIterator<Item = String>) -> String {
    let items: Vec<String> = items.into_iter().collect();
    match items.split_last() {
        Some((last, [])) => last.clone(),
        Some((last, others)) => format!("{} and {last}", others.join(", ")),
        None => String::new(),
    }
}

/// `The module as given`; names of dtypes and presets stay as they are written.
fn sentence_start(name: &str) -> String {
    match name.split_once(' ') {
        Some((first @ ("the" | "policy"), rest)) => {
            let (letter, others) = first.split_at(1);
            format!("{}{others} {rest}", letter.to_uppercase())
        }
        _ => name.to_string(),
    }
}

/// Bytes in a suitable unit: `512 bytes`, `1.5 KiB`, `12.0 MiB`, `10.65 GiB`.
fn amount(n_bytes: u64) -> String {
    let in_units = |shift: u32| n_bytes as f64 / (1u64 << shift) as f64;
    match n_bytes {
        n if n < 1 << 10 => format!("{n} bytes"),
        n if n < 1 << 20 => format!("{:.1} KiB", in_units(10)),
        n if n < 10 << 30 => format!("{:.1} MiB", in_units(20)),
        _ => format!("{:.2} GiB", in_units(30)),
    }
}

/// A whole number with thousands separated.
fn grouped(count: u64) -> String {
    let digits = count.to_string();
    let groups: Vec<&str> = (digits.as_bytes().rchunks(3).rev())
        .map(|group| std::str::from_utf8(group).expect("digits are ASCII"))
        .collect();
    groups.join(",")
}

#[cfg(test)]
mod tests;
