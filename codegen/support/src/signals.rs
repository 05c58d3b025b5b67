//! Signals that ask a process to end.

use std::{
    io,
    sync::atomic::{AtomicBool, Ordering},
    thread,
};

use signal_hook::{
    consts::{SIGHUP, SIGINT, SIGTERM},
    iterator::Signals,
};

static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// Whether a signal has come to [`on_interrupt`]: a wait without end then ends.
pub fn is_interrupted() -> bool {
    INTERRUPTED.load(Ordering::Relaxed)
}

/// Calls `handler` on a thread of its own at every SIGINT, SIGTERM and SIGHUP. A signal that the caller of
/// the process had it ignore, as `nohup` and a shell's `&` do, stays ignored.
///
/// # Errors
/// The system refuses the handler or its thread; signals then end the process.
pub fn on_interrupt(mut handler: impl FnMut() + Send + 'static) -> io::Result<()> {
    let ignored = ignored();
    let wanted = [SIGINT, SIGTERM, SIGHUP].into_iter().filter(|signal| !is_in(ignored, *signal));
    let mut signals = Signals::new(wanted)?;
    let run = move || {
        signals.forever().for_each(|_| {
            INTERRUPTED.store(true, Ordering::Relaxed);
            handler();
        });
    };
    thread::Builder::new().name("signals".to_owned()).spawn(run).map(drop)
}

/// Set of ignored signals, as Linux tells it; empty where it does not.
fn ignored() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}

fn is_in(set: u64, signal: i32) -> bool {
    u32::try_from(signal - 1).ok().and_then(|bit| set.checked_shr(bit)).is_some_and(|bits| bits & 1 == 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Signals are numbered from 1 in the set.
    #[test]
    fn signals_of_a_set() {
        assert!(is_in(0b10, SIGINT) && !is_in(0b10, SIGHUP) && is_in(0b1, SIGHUP) && is_in(1 << 14, SIGTERM));
    }
}
