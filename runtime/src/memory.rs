//! Memory that the process may still take.
//!
//! Linux promises memory that it does not have and kills the process that uses it, so that the arenas are
//! compared with what is available before they are touched. Other systems are not asked.

use std::{fs, path::Path};

use memc_ir::Bytes;

use crate::Error;

/// Bytes that the process may still take, where the system tells.
pub fn available() -> Option<u64> {
    least([machine(), group()]).map(|(bytes, _)| bytes)
}

/// Compares what arenas take of this machine's memory with what is available: of a device with memory of its
/// own the host arena alone.
///
/// The system's own figure counts for nothing where the caller has granted the memory: virtual machines may
/// get memory as they use it. A control group's limit counts always, since the group is killed beyond it.
pub(crate) fn check(dev_bytes: usize, host_bytes: usize, is_granted: bool) -> Result<(), Error> {
    let machine = if is_granted { None } else { machine() };
    fits([dev_bytes as u64, host_bytes as u64], [machine, group()])
}

/// [`check`], where the machine and the control group have so much left.
fn fits([dev, host]: [u64; 2], left: [Option<u64>; 2]) -> Result<(), Error> {
    let Some((bytes, limit)) = least(left).filter(|(bytes, _)| dev.saturating_add(host) > *bytes) else {
        return Ok(());
    };
    let remedy = match (dev, limit) {
        (0, MACHINE) => "larger --gpu-mem, which swaps less, pass a --host-mem that the machine can give",
        (0, _) => "larger --gpu-mem, which swaps less, raise the limit",
        _ => "smaller --gpu-mem",
    };
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

/// Advice where the driver did not page-lock the host arena. The limit of locked memory (`ulimit -l`) has no
/// part in it: NVIDIA's kernel module pins pages without asking for it.
pub(crate) fn lock_remedy() -> String {
    let is_wsl = fs::read_to_string("/proc/version").is_ok_and(|text| text.contains("microsoft"));
    let windows = "run without Windows, which locks a part of the memory alone, ";
    format!(
        "free host memory, {}or compile for a larger --gpu-mem, which swaps less",
        if is_wsl { windows } else { "" }
    )
}

/// Name of the machine's memory in messages.
const MACHINE: &str = "the memory that the machine has available";
/// Name of a control group's limit in messages.
const GROUP: &str = "the memory limit of the control group (container)";

/// The smaller of what the machine and the control group have left.
fn least([machine, group]: [Option<u64>; 2]) -> Option<(u64, &'static str)> {
    let both = [machine.map(|bytes| (bytes, MACHINE)), group.map(|bytes| (bytes, GROUP))];
    both.into_iter().flatten().min_by_key(|(bytes, _)| *bytes)
}

/// Bytes that the machine has available.
fn machine() -> Option<u64> {
    fs::read_to_string("/proc/meminfo").ok().and_then(|text| mem_available(&text))
}

/// Bytes that the control group of the process has left.
fn group() -> Option<u64> {
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    group_available(&groups, Path::new("/sys/fs/cgroup"))
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

    /// The tighter of both limits is named, with what helps against it.
    #[test]
    fn what_is_short_is_named() {
        let said = |arenas, left| fits(arenas, left).map_err(|error| error.to_string());
        assert_eq!(said([0, 100], [Some(100), Some(200)]), Ok(()));
        assert_eq!(said([0, 100], [None, None]), Ok(()));
        let text = said([0, 101], [Some(100), Some(200)]).unwrap_err();
        assert!(text.contains(MACHINE) && text.contains("--host-mem"), "{text}");
        let text = said([0, 101], [Some(300), Some(100)]).unwrap_err();
        assert!(text.contains(GROUP) && text.contains("raise the limit"), "{text}");
        let text = said([100, 1], [Some(100), None]).unwrap_err();
        assert!(text.contains("smaller --gpu-mem"), "{text}");
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
