//! Exiting from a signal handler. Nothing here may block, even where nobody reads standard error any more.

use std::{
    io::Write,
    sync::mpsc::{Receiver, channel},
    thread,
    time::Duration,
};

use crate::replace::{abandon, has_replaced};

/// Longest wait for the last message to be taken.
const PATIENCE: Duration = Duration::from_millis(100);

/// Writes to standard error from a thread of its own. The receiver gets a message once the text is written.
pub fn write_stderr(text: String) -> Receiver<()> {
    let (done, written) = channel();
    let write = move || {
        // Neither a closed standard error nor a caller that no longer listens is an error.
        let _ = std::io::stderr().write_all(text.as_bytes());
        let _ = done.send(());
    };
    // Without a thread the text is lost.
    let _ = thread::Builder::new().spawn(write);
    written
}

/// Ends the process at once. Files under replacement keep their old contents. `message` gets whether any file
/// has been replaced so far, and goes to standard error.
pub fn exit_now(code: u8, message: impl FnOnce(bool) -> String) -> ! {
    abandon();
    let _ = write_stderr(message(has_replaced())).recv_timeout(PATIENCE);
    #[allow(clippy::exit, reason = "an interrupt must not wait for the command")]
    std::process::exit(i32::from(code))
}
