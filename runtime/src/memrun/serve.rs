//! `memrun serve`: answers requests until a signal.

use std::sync::mpsc::channel;

use crate::{Error, INTERRUPTED, serve::Server};

use crate::memrun::cli::Serve;
use crate::memrun::terminal::{Line, note, print};

/// Serves until the first interrupt, and then answers the requests in flight; returns the exit code.
pub(crate) fn execute(args: &Serve, line: &Line) -> Result<u8, Error> {
    let options = args.options()?;
    let (sender, asked) = channel();
    let mut interrupts = 0u32;
    let caught = memc_support::on_interrupt(move || {
        interrupts += 1;
        if interrupts > 1 {
            memc_support::exit_now(INTERRUPTED, |_| "memrun: interrupted: requests are left\n".to_owned());
        }
        // Nobody is asked twice, and before the server is there it ends at its start.
        let _ = sender.send(());
    });
    if let Err(error) = caught {
        note(&format!("signals cannot be caught ({error}); an interrupt will leave requests unanswered"));
    }
    line.stage("loading the plans");
    let server = Server::start(&options)?;
    line.close();
    let mut text: String = server.models().iter().map(|model| format!("{model}\n")).collect();
    if let Some(address) = server.address() {
        text += &format!("memrun: listening on http://{address}\n");
    }
    if let Some(path) = &options.socket {
        text += &format!("memrun: listening on {}\n", path.display());
    }
    let printed = print(&text);
    // Without a handler the sender is gone, and the default action of a signal ends the process.
    while asked.recv().is_err() {
        std::thread::park();
    }
    note("ending: requests in flight are answered; once more ends at once");
    server.end();
    Ok(printed.max(print("memrun: ENDED\n")))
}
