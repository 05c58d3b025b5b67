//! Files, clock and free memory of this machine. No pass sees any of it.

use std::path::Path;
use std::time::Instant;

use crate::error::Error;

/// Reads a text file of the user's.
///
/// Fails with [`Error::Model`] where the text is not UTF-8, else with [`Error::Io`].
pub fn read_text(path: &Path) -> Result<String, Error> {
    std::fs::read_to_string(path).map_err(|e| match e.kind() {
        std::io::ErrorKind::InvalidData => Error::Model(format!("{}: not UTF-8 text", path.display())),
        _ => Error::Io(format!("cannot read `{}`: {e}", path.display())),
    })
}

/// The present. Limits searches and times them; searches count their steps.
#[allow(clippy::disallowed_methods, reason = "time limits are kept here; searches count their steps")]
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// Time since `then` in ns.
pub(crate) fn since(then: Instant) -> u64 {
    u64::try_from(then.elapsed().as_nanos()).unwrap_or(u64::MAX)
}

/// Memory in bytes that the embedded CPU device may use: the least of what is free and what the control group
/// allows.
pub(crate) fn host_memory() -> Option<u64> {
    let available = std::fs::read_to_string("/proc/meminfo").ok().and_then(|text| {
        let line = text.lines().find_map(|l| l.strip_prefix("MemAvailable:"))?.trim().to_string();
        line.strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
    });
    let limits = ["/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"];
    let group =
        limits.iter().filter_map(|f| std::fs::read_to_string(f).ok()?.trim().parse::<u64>().ok()).min();
    available.into_iter().chain(group).min()
}
