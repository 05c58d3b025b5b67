//! Interrupts of a command that a test has started.

use std::process::Command;

/// Sends SIGINT; or SIGTERM where this process and so its children ignore SIGINT, as after a shell's `&`.
/// Returns whether there was a process to send it to.
pub(crate) fn interrupt(id: u32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = ignored.and_then(|set| u64::from_str_radix(set.trim(), 16).ok()).unwrap_or(0);
    let signal = if ignored & 0b10 != 0 { "-TERM" } else { "-INT" };
    Command::new("kill").args([signal, &id.to_string()]).status().expect("kill starts").success()
}
