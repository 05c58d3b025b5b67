//! What an interrupt's handler may do: it must end the process whoever else waits for what, as a reader that has stopped
//! reading.

use std::{
    io::Write,
    sync::mpsc::{Receiver, channel},
    thread,
    time::Duration,
};

use crate::replace::{abandon, has_replaced};

/// How long an ending process waits for its last words to be taken.
const PATIENCE: Duration = Duration::from_millis(100);

/// Writes to standard error, on a thread of its own; sends when that is done.
pub fn tell(text: String) -> Receiver<()> {
    let (done, told) = channel();
    let write = move || {
        // Without a standard error there is nobody to tell, and who has left does not ask.
        let _ = std::io::stderr().write_all(text.as_bytes());
        let _ = done.send(());
    };
    // Without a thread nothing is said.
    let _ = thread::Builder::new().spawn(write);
    told
}

/// Ends the process at once: files that are being written stay what they were. `words` are told, by whether any file has
/// been replaced before.
pub fn leave(code: u8, words: impl FnOnce(bool) -> String) -> ! {
    abandon();
    let _ = tell(words(has_replaced())).recv_timeout(PATIENCE);
    #[allow(clippy::exit, reason = "an interrupt must not wait for the command")]
    std::process::exit(i32::from(code))
}
