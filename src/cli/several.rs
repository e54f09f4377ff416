//! Programs over several cores: one core's share in words and as a table.

use anyhow::bail;

use crate::hlo::devices::Devices;
use crate::report::{self, Column, Screen, Table};
use crate::tpu::{Collective, CompileReport, Links, NarrowSum, Target};

/// `one core of tpu-v2`, or what of several cores is one core's.
pub(super) fn cores(devices: Devices, target: &Target) -> String {
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

/// What is said below the figures of a program over several cores; nothing for one core.
pub(super) fn notes(reports: &[(&str, &CompileReport)], target: &Target, screen: Screen) -> String {
    let Some((_, first)) = reports.iter().find(|(_, report)| !report.devices.is_one()) else { return String::new() };
    let n = first.devices.n();
    let mut text = format!("A run is of {n} cores at once. Arguments and outputs are one core's shards.\n");
    for (name, report) in reports {
        let of = if reports.len() > 1 { format!("{name}: ") } else { String::new() };
        text += &communication(&of, report, Links::of(target), screen);
    }
    text
}

fn communication(of: &str, report: &CompileReport, links: Option<Links>, screen: Screen) -> String {
    let collectives = &report.collectives;
    if collectives.is_empty() {
        return format!("\n{of}no collectives: the cores say nothing to each other\n");
    }
    let n_bytes = |n_bytes: u64| i64::try_from(n_bytes).unwrap_or(i64::MAX);
    let total: u64 = collectives.iter().map(|it| it.n_bytes).sum();
    let total = if total < 1024 { format!("{total} bytes") } else { report::mib(n_bytes(total)) };
    let time: Option<f64> = collectives.iter().map(|it| it.seconds).sum();
    let takes = time.map_or(String::new(), |time| format!(", {}", report::seconds(time)));
    let mut text = format!("\n{of}collectives of one run, {total} a core{takes}\n");
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
            report::grouped(n_bytes(it.n_bytes)),
            it.participants.to_string(),
            it.seconds.map_or("-".to_string(), report::seconds),
            it.origin.clone(),
        ]);
    }
    text += &table.render(screen);
    if collectives.iter().all(|it| it.cycles == 0) {
        text += "The compiler gives collectives no cycles: those above are of computing alone.\n";
        if let Some(links) = links {
            text += &format!("Their time is a model's: {}.\n", links.said());
        }
    }
    text + &narrow(report, screen)
}

/// Sums that lose digits, in words, and where they come from; nothing where there are none.
fn narrow(report: &CompileReport, screen: Screen) -> String {
    /// Lines of a narrow screen.
    const MOST: usize = 8;
    let narrow: Vec<&Collective> = report.collectives.iter().filter(|it| it.is_narrow_sum()).collect();
    let mut said: Vec<(&str, &str)> = narrow.iter().map(|it| (it.op.as_str(), it.dtype.as_str())).collect();
    said.sort_unstable();
    said.dedup();
    let mut text = String::new();
    for &(op, dtype) in &said {
        let of_this = narrow.iter().filter(|it| (it.op.as_str(), it.dtype.as_str()) == (op, dtype));
        let n: u64 = of_this.map(|it| it.n).sum();
        let sums = if n == 1 { format!("1 {op} sums") } else { format!("{n} {op}s sum") };
        text += &format!("warning: {sums} in {dtype}: what goes from core to core is rounded\n");
        let of_this: Vec<&NarrowSum> =
            report.narrow_sums.iter().filter(|it| (it.op.as_str(), it.dtype.as_str()) == (op, dtype)).collect();
        let n_shown = if screen.table.is_none() { of_this.len() } else { MOST };
        of_this.iter().take(n_shown).for_each(|sum| text += &format!("  {}\n", of_what(sum)));
        if of_this.len() > n_shown {
            text += &format!("  and {} more: --wide shows them\n", of_this.len() - n_shown);
        }
    }
    if !said.is_empty() {
        text += "help: the partitioner sums in the dtype of the op whose result it sums: let that\n  op give f32, as a dot \
                 does with preferred_element_type=f32; TensorFlow summed\n  gradients in f32\n";
    }
    text
}

/// `0.5 MiB of net/dense/dot, net.yaml:4`.
fn of_what(NarrowSum { op_name, source, n_bytes, .. }: &NarrowSum) -> String {
    let name = if op_name.is_empty() { "an op without a name" } else { op_name };
    let place = if source.is_empty() { String::new() } else { format!(", {source}") };
    format!("{} of {name}{place}", report::mib(i64::try_from(*n_bytes).unwrap_or(i64::MAX)))
}

/// What the devices of a training that asked for f32 add up in less, by the program that their compiler made: of the parts of
/// a replica a warning, which is the partitioner's affair; of replicas alone an error.
///
/// # Errors
/// Replicas that sum in less than f32.
pub(super) fn check_sums(narrow: &[NarrowSum], n_partitions: u32) -> anyhow::Result<Option<String>> {
    /// Lines of a warning.
    const MOST: usize = 4;
    let Some(NarrowSum { op, dtype, .. }) = narrow.first() else { return Ok(None) };
    let shown: Vec<String> = narrow.iter().take(MOST).map(of_what).collect();
    let more = match narrow.len().saturating_sub(MOST) {
        0 => String::new(),
        n => format!("; and {n} more"),
    };
    let sums = format!("{op} in {dtype}: {}{more}", shown.join("; "));
    if n_partitions == 1 {
        bail!(
            "the replicas sum by {sums}, and f32 was asked for\nhelp: this is an error of bf16scope's, whose step keeps the cast \
             before the sum: report it; `mesh: {{sum: bf16}}` says that bf16 will do"
        );
    }
    Ok(Some(format!(
        "warning: the devices of a replica sum by {sums}: what goes from one to the other is rounded\nhelp: split another axis, \
         or `--precision f32`"
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The check of a training, with what a TPU's compiler makes of a split network (its CPU one adds in f32).
    #[test]
    fn what_devices_add_in_less_than_f32_is_said_before_a_training() {
        let sum = |layer: usize| NarrowSum {
            op: "all-reduce".to_string(),
            dtype: "bf16".to_string(),
            op_name: format!("net/dense{layer}/dot"),
            source: format!("net.yaml:{}", layer + 4),
            n_bytes: 3 << 19,
        };
        let sums = |n: usize| -> Vec<NarrowSum> { (0..n).map(sum).collect() };
        assert_eq!(check_sums(&sums(0), 1).unwrap(), None);
        let error = check_sums(&sums(1), 1).unwrap_err().to_string();
        assert!(
            error.starts_with(
                "the replicas sum by all-reduce in bf16: 1.5 MiB of net/dense0/dot, net.yaml:4, and f32 was asked"
            ),
            "{error}"
        );
        let warning = check_sums(&sums(6), 2).unwrap().unwrap();
        assert!(
            warning.starts_with("warning: the devices of a replica sum by all-reduce in bf16: 1.5 MiB of net/"),
            "{warning}"
        );
        assert!(warning.contains("net/dense3/dot, net.yaml:7; and 2 more: what goes"), "{warning}");
    }

    #[test]
    fn one_core_and_its_share_are_told_apart() {
        let target: Target = "tpu-v3:4x4".parse().unwrap();
        let cores = |replicas, partitions| cores(Devices { replicas, partitions }, &target);
        assert_eq!(cores(1, 1), "one core of tpu-v3:4x4");
        assert_eq!(cores(1, 8), "one core's share of 8 partitions, on 8 of the 32 cores of tpu-v3:4x4");
        assert_eq!(cores(4, 8), "one core's share of 4 replicas of 8 partitions, on the 32 cores of tpu-v3:4x4");
    }
}
