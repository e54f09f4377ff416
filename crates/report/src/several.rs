//! Programs over several cores: one core's share, in words and as a table.

use crate::{Column, Screen, Table, grouped, mib, seconds};
use bf16scope_hlo::devices::Devices;
use bf16scope_study::sum_in_words;
use bf16scope_tpu::{Collective, CompileReport, Links, NarrowSum, Target};

/// `one core of tpu-v2`, or a core's share in a program over several.
pub fn cores(devices: Devices, target: &Target) -> String {
    if devices.is_one() {
        return format!("one core of {target}");
    }
    let n = devices.n();
    match target.n_cores() {
        Some(n_cores) if n_cores > n as u64 => {
            format!("one core's share of {devices}, on {n} of the {n_cores} cores of {target}")
        }
        _ => format!("one core's share of {devices}, on the {n} cores of {target}"),
    }
}

/// Notes below the figures of a program over several cores; empty for one core.
pub fn notes(reports: &[(&str, &CompileReport)], target: &Target, screen: Screen) -> String {
    let Some((_, first)) = reports.iter().find(|(_, report)| !report.devices.is_one()) else { return String::new() };
    let n = first.devices.n();
    let mut text = format!("A run is of {n} cores at once. Arguments and outputs are one core's shards.\n");
    for (name, report) in reports {
        let prefix = if reports.len() > 1 { format!("{name}: ") } else { String::new() };
        text += &communication(&prefix, report, Links::for_target(target), screen);
    }
    text
}

fn communication(prefix: &str, report: &CompileReport, links: Option<Links>, screen: Screen) -> String {
    let collectives = &report.collectives;
    if collectives.is_empty() {
        return format!("\n{prefix}no collectives: the cores say nothing to each other\n");
    }
    let n_bytes = |n_bytes: u64| i64::try_from(n_bytes).unwrap_or(i64::MAX);
    let total: u64 = collectives.iter().map(|it| it.n_bytes).sum();
    let total = if total < 1024 { format!("{total} bytes") } else { mib(n_bytes(total)) };
    let time = report.collective_seconds();
    let takes = time.map_or(String::new(), |time| format!(", {}", seconds(time)));
    let mut text = format!("\n{prefix}collectives of one run, {total} a core{takes}\n");
    let mut table = Table::new([
        Column::name("op"),
        Column::name("of"),
        Column::name("dtype"),
        Column::number("how many"),
        Column::number("bytes"),
        Column::number("cores"),
        Column::number("time"),
        Column::name("largest of").extra(1),
    ]);
    for it in collectives {
        table.row([
            it.op.clone(),
            it.reduction.clone().unwrap_or_default(),
            it.dtype.clone(),
            it.n.to_string(),
            grouped(n_bytes(it.n_bytes)),
            it.participants.to_string(),
            it.seconds.map_or("-".to_string(), seconds),
            it.origin.clone(),
        ]);
    }
    text += &table.render(screen);
    if collectives.iter().all(|it| it.cycles == 0) {
        text += "The compiler gives collectives no cycles: those above are of computing alone.\n";
        if let Some(links) = links {
            text += &format!("Their time is a model's: {}.\n", links.in_words());
        }
    }
    text + &narrow(report, screen)
}

/// Sums that lose precision, in words, and their sources; empty without such sums.
fn narrow(report: &CompileReport, screen: Screen) -> String {
    /// The largest number of lines.
    const MOST: usize = 8;
    let narrow: Vec<&Collective> = report.collectives.iter().filter(|it| it.is_narrow_sum()).collect();
    let mut kinds: Vec<(&str, &str)> = narrow.iter().map(|it| (it.op.as_str(), it.dtype.as_str())).collect();
    kinds.sort_unstable();
    kinds.dedup();
    let mut text = String::new();
    for &(op, dtype) in &kinds {
        let of_this = narrow.iter().filter(|it| (it.op.as_str(), it.dtype.as_str()) == (op, dtype));
        let n: u64 = of_this.map(|it| it.n).sum();
        let sums = if n == 1 { format!("1 {op} sums") } else { format!("{n} {op}s sum") };
        text += &format!("warning: {sums} in {dtype}: what goes from core to core is rounded\n");
        let of_this: Vec<&NarrowSum> =
            report.narrow_sums.iter().filter(|it| (it.op.as_str(), it.dtype.as_str()) == (op, dtype)).collect();
        let n_shown = if screen.table.is_none() { of_this.len() } else { MOST };
        of_this.iter().take(n_shown).for_each(|sum| text += &format!("  {}\n", sum_in_words(sum)));
        if of_this.len() > n_shown {
            text += &format!("  and {} more: --wide shows them\n", of_this.len() - n_shown);
        }
    }
    if !kinds.is_empty() {
        text += "help: the partitioner sums in the dtype of the op whose result it sums: let that\n  op give f32, as a dot \
                 does with preferred_element_type=f32; TensorFlow summed\n  gradients in f32\n";
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_core_and_its_share_are_told_apart() {
        let target: Target = "tpu-v3:4x4".parse().unwrap();
        let cores = |replicas, partitions| cores(Devices { replicas, partitions }, &target);
        assert_eq!(cores(1, 1), "one core of tpu-v3:4x4");
        assert_eq!(cores(1, 8), "one core's share of 8 partitions, on 8 of the 32 cores of tpu-v3:4x4");
        assert_eq!(cores(4, 8), "one core's share of 4 replicas of 8 partitions, on the 32 cores of tpu-v3:4x4");
    }
}
