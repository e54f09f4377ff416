//! Finds sums across devices in less precision than the requested f32, in the compiled program.

use super::StudyError;
use bf16scope_tpu::NarrowSum;

/// `0.5 MiB of net/dense/dot, net.yaml:4`.
pub fn sum_in_words(NarrowSum { op_name, source, n_bytes, .. }: &NarrowSum) -> String {
    let name = if op_name.is_empty() { "an op without a name" } else { op_name };
    let place = if source.is_empty() { String::new() } else { format!(", {source}") };
    let (unit, size) = if *n_bytes >= 1 << 20 || *n_bytes == 0 { ("MiB", 1u32 << 20) } else { ("KiB", 1 << 10) };
    format!("{:.1} {unit} of {name}{place}", *n_bytes as f64 / f64::from(size))
}

/// Checks the sums across devices in a compiled training that should be in f32: between partitions of a replica they
/// give a warning, because the partitioner decides; between replicas they are an error.
///
/// # Errors
/// Replicas sum in less than f32.
pub fn check_sums(narrow: &[NarrowSum], n_partitions: u32) -> Result<Option<String>, StudyError> {
    /// Lines of a warning.
    const MOST: usize = 4;
    let Some(NarrowSum { op, dtype, .. }) = narrow.first() else { return Ok(None) };
    let shown: Vec<String> = narrow.iter().take(MOST).map(sum_in_words).collect();
    let more = match narrow.len().saturating_sub(MOST) {
        0 => String::new(),
        n => format!("; and {n} more"),
    };
    let sums = format!("{op} in {dtype}: {}{more}", shown.join("; "));
    if n_partitions == 1 {
        return Err(StudyError::rounded_sums(&sums));
    }
    Ok(Some(format!(
        "warning: the devices of a replica sum by {sums}: what goes from one to the other is rounded\nhelp: split another axis, \
         or `--precision f32`"
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The check of a training, on a TPU compiler's output for a partitioned network (the CPU's adds in f32).
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
        let end = "net/dense3/dot, net.yaml:7; and 2 more: what goes from one to the other is rounded\nhelp: split another axis, or \
                   `--precision f32`";
        assert!(warning.ends_with(end), "{warning}");
    }
}
