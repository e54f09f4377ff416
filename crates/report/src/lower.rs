//! The report of a lowering: totals by op, every decision, and the value of a compiler's answers.

use std::path::Path;

use crate::outcome::excess_note;
use crate::{Column, Screen, Table, grouped, mib, percent};
use bf16scope_passes::amp::{LoweringReport, TakenLoss};
use bf16scope_study::{LowerAnswer, LowerTrial, LoweredCost, TrialEnd};

/// The hint that a compiler could be asked about this many regions.
pub fn in_doubt(n_regions: usize) -> String {
    let regions = match n_regions {
        0 => return String::new(),
        1 => "1 region".to_string(),
        n => format!("{n} regions"),
    };
    format!(
        "{regions} could be in another form, no less exact: `--target tpu-v2` compiles both, and keeps the cheaper\n"
    )
}

/// The value of the compiler's answers, in sentences.
pub fn figures(answer: &LowerAnswer, decisions: &Path, screen: Screen) -> String {
    let LowerAnswer { target, libtpu, before, after, trials, n_left, policy, .. } = answer;
    let note = excess_note(answer.excess_precision);
    let n_kept = trials.iter().filter(|trial| trial.end == TrialEnd::Kept).count();
    let cycles = |cost: &LoweredCost| i64::try_from(cost.cycles).unwrap_or(i64::MAX);
    let described = |cost: &LoweredCost| format!("{} and {} cycles", mib(cost.n_bytes), grouped(cycles(cost)));
    let mut table = Table::new([
        Column::text("in another form"),
        Column::number("HBM"),
        Column::number("cycles"),
        Column::text(""),
    ]);
    for LowerTrial { what, cost, end, .. } in trials {
        let (hbm, n_cycles) = match cost {
            Some(cost) => (mib(cost.n_bytes), grouped(cycles(cost))),
            None => ("does not fit".to_string(), String::new()),
        };
        table.row([what.clone(), hbm, n_cycles, end.words().to_string()]);
    }
    let mut text = if trials.is_empty() { String::new() } else { table.render(screen) };
    text += &match (before, after) {
        (Some(before), Some(after)) => format!(
            "{target}, libtpu {libtpu}{note}: {} by the policy alone, {} as decided ({} of the HBM without code, {} of the cycles)\n",
            described(before),
            described(after),
            percent(after.n_bytes, before.n_bytes),
            percent(cycles(after), cycles(before)),
        ),
        (None, Some(after)) => format!(
            "{target}, libtpu {libtpu}{note}: it does not fit by the policy alone, and takes {} as decided\n",
            described(after)
        ),
        (_, None) => format!("{target}, libtpu {libtpu}{note}: it does not fit, in any form that was compiled\n"),
    };
    text += &format!(
        "{} of {} regions that were compiled in another form are kept so: {} instructions, in {}\n",
        n_kept,
        trials.len(),
        policy.decided.len(),
        decisions.display()
    );
    if *n_left > 0 {
        text += &format!("{n_left} more may be worth a compile; the same with more --compiles goes on from here\n");
    }
    text
}

/// A row for each op, with totals.
pub fn totals(report: &LoweringReport, screen: Screen) -> String {
    let low = report.policy.dtype.dtype();
    let mut table = Table::new([Column::name("op"), Column::number(format!("now {low}")), Column::number("as before")]);
    for (opcode, total) in &report.totals {
        table.row([opcode.clone(), total.lowered.to_string(), total.kept.to_string()]);
    }
    let (before, after) = (report.n_activation_bytes_before, report.n_activation_bytes_after);
    format!(
        "{}{} of {} instructions with f32 give {low} now; {} casts inserted ({})\nresults computed: {} before, {} \
         after ({})\n",
        table.render(screen),
        report.n_lowered(),
        report.totals.values().map(|total| total.lowered + total.kept).sum::<usize>(),
        report.casts.len(),
        n_bytes(report.n_cast_bytes),
        n_bytes(before),
        n_bytes(after),
        percent(after, before),
    )
}

/// More losses are counted; `--json` names all.
const MAX_NAMED_LOSSES: usize = 12;

/// The results that were taken for losses, and how to choose others.
pub fn losses(report: &LoweringReport) -> String {
    let named = |loss: &TakenLoss| format!("result {} (%{})", loss.result, loss.instruction);
    let mut all: Vec<String> = report.losses.iter().take(MAX_NAMED_LOSSES).map(named).collect();
    let n_more = report.losses.len() - all.len();
    if n_more > 0 {
        all.push(format!("and {n_more} more"));
    }
    let all = all.join(", ");
    match report.losses.first() {
        None => String::new(),
        Some(TakenLoss { is_given: true, .. }) => format!("losses: {all}, as given\n"),
        Some(_) => format!("taken for a loss: {all}; if that is wrong, --loss names its number\n"),
    }
}

/// Bytes in a readable unit.
fn n_bytes(n: i64) -> String {
    if n < 1 << 20 { format!("{} bytes", grouped(n)) } else { mib(n) }
}

/// A row for each instruction.
pub fn list(report: &LoweringReport, screen: Screen) -> String {
    let mut table = Table::new([
        Column::name("instruction"),
        Column::name("op").extra(1),
        Column::text("class").extra(2),
        Column::text("was"),
        Column::text("is"),
        Column::text("because"),
        Column::name("from").extra(3),
    ]);
    for decision in &report.decisions {
        table.row([
            &format!("{}/%{}", decision.computation, decision.instruction),
            &decision.opcode,
            decision.class,
            &decision.old,
            &decision.new,
            &decision.rule,
            &decision.from.as_ref().map(|from| format!("%{from}")).unwrap_or_default(),
        ]);
    }
    table.render(screen)
}
