//! The memory available to this process.

/// The machine's memory or the limit of this process's control group, in bytes; `None` on systems that report neither
/// the way Linux does.
pub(super) fn memory_of_machine() -> Option<u128> {
    let meminfo = std::fs::read_to_string("/proc/meminfo").ok();
    // The control group as a container sees it: its own group is the root.
    let limits = ["/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"];
    let limits = limits.iter().filter_map(|path| std::fs::read_to_string(path).ok());
    // `max`, for no limit, does not parse.
    let limits = limits.filter_map(|text| text.trim().parse::<u128>().ok());
    limits.chain(meminfo.as_deref().and_then(total)).min()
}

/// `MemTotal` of `/proc/meminfo`.
fn total(meminfo: &str) -> Option<u128> {
    let kibibytes = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:")?.trim().strip_suffix(" kB"))?;
    Some(kibibytes.trim().parse::<u128>().ok()? * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_total_is_read() {
        assert_eq!(total("MemTotal:       49375256 kB\nMemFree:  1 kB\n"), Some(49_375_256 * 1024));
        assert_eq!(total("MemFree: 1 kB\n"), None);
        assert!(memory_of_machine().is_some_and(|n_bytes| n_bytes > 1 << 20));
    }
}
