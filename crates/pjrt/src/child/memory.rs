//! The available memory, and the memory of a process.
//!
//! Source: `proc(5)` (`meminfo`, `statm`), the kernel's `cgroup-v2.rst` and `cgroup-v1/memory.rst`.

use std::fs;

/// Bytes that new processes can use without pushing others out: the system's figure, or the rest of the container's
/// limit if that is less. `None` if the system does not say.
pub fn available() -> Option<u64> {
    let meminfo = fs::read_to_string("/proc/meminfo").ok()?;
    let machine = kib(&meminfo, "MemAvailable:")?;
    Some(machine.min(left_in_container().unwrap_or(u64::MAX)))
}

/// The limit of address space for a process started here (`ulimit -v`), in bytes; `None` if unlimited.
///
/// XLA aborts its process when it gets no more memory, so under such a limit it runs only in a child.
///
/// Source: `getrlimit(2)`, `RLIMIT_AS`.
pub fn address_space() -> Option<u64> {
    rustix::process::getrlimit(rustix::process::Resource::As).current
}

/// The share of that for one process: the rest keeps the machine responsive.
pub(super) fn most(available: u64) -> u64 {
    available - available / 16
}

/// A figure in KiB, as bytes.
fn kib(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1 << 10)
}

/// The rest of the memory limit of this process's control group. Page cache counts as used and is reclaimed when
/// needed.
fn left_in_container() -> Option<u64> {
    let number = |path: &str| fs::read_to_string(path).ok()?.trim().parse::<u64>().ok();
    let inactive = |path: &str, name: &str| {
        let stat = fs::read_to_string(path).ok()?;
        stat.lines().find_map(|line| line.strip_prefix(name)?.trim().parse::<u64>().ok())
    };
    let v2 = "/sys/fs/cgroup/memory";
    let v1 = "/sys/fs/cgroup/memory/memory";
    let (max, taken, free) = match number(&format!("{v2}.max")) {
        Some(max) => (max, number(&format!("{v2}.current"))?, inactive(&format!("{v2}.stat"), "inactive_file ")),
        None => (
            number(&format!("{v1}.limit_in_bytes"))?,
            number(&format!("{v1}.usage_in_bytes"))?,
            inactive(&format!("{v1}.stat"), "total_inactive_file "),
        ),
    };
    Some(max.saturating_sub(taken.saturating_sub(free.unwrap_or(0))))
}

/// Resident bytes of a process; `None` if it is gone.
pub(super) fn resident(process: u32) -> Option<u64> {
    let statm = fs::read_to_string(format!("/proc/{process}/statm")).ok()?;
    let n_pages: u64 = statm.split_whitespace().nth(1)?.parse().ok()?;
    Some(n_pages * rustix::param::page_size() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_and_this_process_have_memory() {
        let total = kib(&fs::read_to_string("/proc/meminfo").unwrap(), "MemTotal:").unwrap();
        let available = available().unwrap();
        assert!(available > 1 << 20 && available <= total, "{available} of {total}");
        assert!(most(available) < available);
        let resident = resident(std::process::id()).unwrap();
        assert!(resident > 1 << 20 && resident < total, "{resident} of {total}");
        assert_eq!(kib("MemTotal: 3 kB\nMemAvailable:       2 kB\n", "MemAvailable:"), Some(2048));
        assert_eq!(kib("MemAvailable: many kB", "MemAvailable:"), None);
    }
}
