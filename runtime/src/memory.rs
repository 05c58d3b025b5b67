//! Memory that the process may still take.
//!
//! Linux promises memory that it does not have and kills the process that uses it, so that the arenas are
//! compared with what is available before they are touched. Other systems are not asked.

use std::{fs, path::Path};

use memc_ir::Bytes;

use crate::Error;

/// Bytes that the process may still take, where the system tells.
pub fn available() -> Option<u64> {
    least().map(|(bytes, _)| bytes)
}

/// Compares what arenas take of this machine's memory with what is available: of a device with memory of its
/// own the host arena alone.
pub(crate) fn check(dev_bytes: usize, host_bytes: usize) -> Result<(), Error> {
    let (dev, host) = (dev_bytes as u64, host_bytes as u64);
    let Some((bytes, limit)) = least().filter(|(bytes, _)| dev.saturating_add(host) > *bytes) else {
        return Ok(());
    };
    let remedy = if dev == 0 { "larger --gpu-mem, which swaps less" } else { "smaller --gpu-mem" };
    Err(Error::Memory(format!(
        "the plan takes {} of this machine's memory as device arena and {} as host arena, but {limit} is {}; \
         compile for a {remedy}, or free memory",
        Bytes(dev),
        Bytes(host),
        Bytes(bytes),
    )))
}

/// Compares what a plan takes as host arena with what the caller lets it have; `None`: any size.
pub(crate) fn limit(host_bytes: usize, limit: Option<u64>) -> Result<(), Error> {
    match limit.filter(|limit| host_bytes as u64 > *limit) {
        None => Ok(()),
        Some(limit) => Err(Error::Memory(format!(
            "the plan takes {} of host memory as its host arena, more than --host-mem {}; compile with that \
             --host-mem, or pass a larger one here",
            Bytes(host_bytes as u64),
            Bytes(limit),
        ))),
    }
}

/// [`limit`] of the planned step and of the unplanned one, which `--verify` runs beside it.
pub(crate) fn limit_both(planned: usize, unplanned: usize, limit: Option<u64>) -> Result<(), Error> {
    let both = planned.saturating_add(unplanned) as u64;
    match limit.filter(|limit| both > *limit) {
        None => Ok(()),
        Some(limit) => Err(Error::Memory(format!(
            "the plan takes {} of host memory as its host arena and the unplanned step {}, together more \
             than --host-mem {}; pass a larger one",
            Bytes(planned as u64),
            Bytes(unplanned as u64),
            Bytes(limit),
        ))),
    }
}

/// Advice for a system that did not lock so many bytes of host memory: the limit, where it is known, and how
/// to raise it.
pub(crate) fn lock_remedy(host_bytes: usize) -> String {
    let read = |name| fs::read_to_string(name).unwrap_or_default();
    remedy(host_bytes, lock_limit(&read("/proc/self/limits"), &read("/proc/self/status")))
}

fn remedy(host_bytes: usize, limit: Option<u64>) -> String {
    let limit = limit.filter(|limit| host_bytes as u64 > *limit).map(|limit| {
        format!(
            "raise what the process may lock, which is {}, with `ulimit -l unlimited` or the container's \
             memlock limit, ",
            Bytes(limit)
        )
    });
    format!(
        "{}free host memory, or compile for a larger --gpu-mem, which swaps less",
        limit.unwrap_or_default()
    )
}

/// Bytes that the process may lock, where that is limited. `limits` and `status` are those of `/proc/self`.
fn lock_limit(limits: &str, status: &str) -> Option<u64> {
    /// The bit of `CAP_IPC_LOCK`, which lifts the limit.
    const IPC_LOCK: u64 = 1 << 14;
    let held = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let held = held.and_then(|held| u64::from_str_radix(held.trim(), 16).ok()).unwrap_or(0);
    let limit = limits.lines().find_map(|line| line.strip_prefix("Max locked memory"))?;
    limit.split_whitespace().next()?.parse().ok().filter(|_| held & IPC_LOCK == 0)
}

/// Bytes that the process may still take, and what limits them.
fn least() -> Option<(u64, &'static str)> {
    let machine = fs::read_to_string("/proc/meminfo").ok().and_then(|text| mem_available(&text));
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let group = group_available(&groups, Path::new("/sys/fs/cgroup"));
    let machine = machine.map(|bytes| (bytes, "the memory that the machine has available"));
    let group = group.map(|bytes| (bytes, "the memory limit of the control group (container)"));
    machine.into_iter().chain(group).min_by_key(|(bytes, _)| *bytes)
}

/// `MemAvailable` of `/proc/meminfo`, in bytes.
fn mem_available(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// The least that any control group of the process leaves, version 1 or 2. `groups` is `/proc/self/cgroup`.
fn group_available(groups: &str, root: &Path) -> Option<u64> {
    let mut least: Option<u64> = None;
    for line in groups.lines() {
        let mut fields = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else { continue };
        let (root, max, now, cache) = if controllers.is_empty() {
            (root.to_owned(), "memory.max", "memory.current", "inactive_file ")
        } else if controllers.split(',').any(|c| c == "memory") {
            (root.join("memory"), "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file ")
        } else {
            continue;
        };
        let folder = root.join(path.trim_start_matches('/'));
        for folder in folder.ancestors().take_while(|folder| folder.starts_with(&root)) {
            let number = |name: &str| fs::read_to_string(folder.join(name)).ok()?.trim().parse::<u64>().ok();
            let Some(limit) = number(max) else { continue };
            // Pages of files that nobody uses count as taken, but are given up under pressure.
            let stat = fs::read_to_string(folder.join("memory.stat")).unwrap_or_default();
            let cached = stat.lines().find_map(|line| line.strip_prefix(cache)?.trim().parse::<u64>().ok());
            let taken = number(now).unwrap_or(0).saturating_sub(cached.unwrap_or(0));
            let left = limit.saturating_sub(taken);
            least = Some(least.map_or(left, |l| l.min(left)));
        }
    }
    least
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The available memory is read from the line that names it.
    #[test]
    fn meminfo_is_read() {
        let text = "MemTotal:       24543232 kB\nMemFree: 1 kB\nMemAvailable:   23985220 kB\n";
        assert_eq!(mem_available(text), Some(23_985_220 * 1024));
        assert_eq!(mem_available("MemFree: 1 kB\n"), None);
    }

    /// The soft limit of locked memory is named where it is less than what was to be locked, and binds the
    /// process at all.
    #[test]
    fn what_limits_locking_is_named() {
        let limits = "Limit                     Soft Limit           Hard Limit           Units     \n\
                      Max locked memory         65536                8388608              bytes     \n";
        let unlimited = "Max locked memory         unlimited            unlimited            bytes     \n";
        let (user, may_lock) = ("Name:\tmemrun\nCapEff:\t0000000000000000\n", "CapEff:\t000001fffeffffff\n");
        assert_eq!(lock_limit(limits, user), Some(65536));
        for (limits, status) in [(limits, may_lock), (unlimited, user), ("", user)] {
            assert_eq!(lock_limit(limits, status), None);
        }
        let text = remedy(65537, Some(65536));
        assert!(text.contains("64.00 KiB") && text.contains("ulimit -l"), "{text}");
        for limit in [None, Some(65537)] {
            assert!(remedy(65537, limit).starts_with("free host memory"));
        }
    }

    /// The tightest of a version 2 group and its parents counts, without its reclaimable pages.
    #[test]
    fn the_tightest_group_counts() {
        let root = tempfile::tempdir().unwrap();
        let inner = root.path().join("a/b");
        fs::create_dir_all(&inner).unwrap();
        fs::write(inner.join("memory.max"), "max\n").unwrap();
        fs::write(root.path().join("a/memory.max"), "1000\n").unwrap();
        fs::write(root.path().join("a/memory.current"), "700\n").unwrap();
        fs::write(root.path().join("a/memory.stat"), "anon 5\ninactive_file 300\n").unwrap();
        assert_eq!(group_available("0::/a/b\n", root.path()), Some(600));
        assert_eq!(group_available("0::/\n", root.path()), None);
    }

    /// A version 1 group is found under its controller.
    #[test]
    fn version_1_groups_count() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("memory/x");
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("memory.limit_in_bytes"), "500\n").unwrap();
        fs::write(folder.join("memory.usage_in_bytes"), "100\n").unwrap();
        assert_eq!(group_available("4:cpu,cpuacct:/x\n7:memory:/x\n", root.path()), Some(400));
    }
}
