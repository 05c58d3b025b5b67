//! The local socket: one thread for each client, one line for each request and each answer.

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Sender, channel};

use memc::Error;
use memc_support::owner_socket;
use serde_json::{Value, json};

use crate::controller::Message;
use crate::request::Request;

/// Time until the next client is looked for where one could not be taken.
const PAUSE: std::time::Duration = std::time::Duration::from_millis(100);

/// Longest line of a request in bytes.
const LONGEST: u64 = 1 << 20;

/// A socket that clients can open; dropping it takes its path away.
pub(crate) struct Listener(PathBuf);

impl Drop for Listener {
    fn drop(&mut self) {
        // Whoever removed it before did the same.
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Opens a socket. One that a killed controller has left is replaced.
pub(crate) fn listen(path: &Path, to: Sender<Message>) -> Result<Listener, Error> {
    let shown = path.display();
    let failed = |e: std::io::Error| Error::Io(format!("cannot open the socket {shown}: {e}"));
    match UnixStream::connect(path) {
        Ok(_) => {
            let text =
                format!("{shown}: another controller answers there; give another --socket, or stop it");
            return Err(Error::Usage(text));
        }
        Err(e) if matches!(e.kind(), ErrorKind::ConnectionRefused | ErrorKind::NotFound) => {}
        Err(e) => return Err(failed(e)),
    }
    match std::fs::symlink_metadata(path) {
        Ok(found) if !std::os::unix::fs::FileTypeExt::is_socket(&found.file_type()) => {
            return Err(Error::Usage(format!("{shown} is there and is no socket; give another --socket")));
        }
        Ok(_) => std::fs::remove_file(path).map_err(failed)?,
        Err(_) => {}
    }
    let listener = owner_socket(path).map_err(failed)?;
    let spawned = std::thread::Builder::new().name("socket".into()).spawn(move || {
        for client in listener.incoming() {
            let Ok(client) = client else {
                // Too many files are open.
                std::thread::sleep(PAUSE);
                continue;
            };
            let to = to.clone();
            // A client without a thread finds its connection closed.
            let _ = std::thread::Builder::new().name("client".into()).spawn(move || answer(client, &to));
        }
    });
    spawned.map_err(failed)?;
    Ok(Listener(path.to_owned()))
}

/// Answers the requests of a client until it goes away.
fn answer(client: UnixStream, to: &Sender<Message>) {
    let Ok(mut out) = client.try_clone() else { return };
    let mut from = BufReader::new(client);
    loop {
        let mut line = String::new();
        match (&mut from).take(LONGEST).read_line(&mut line) {
            Ok(0) | Err(_) => return,
            Ok(_) => {}
        }
        let reply = match serde_json::from_str::<Request>(&line) {
            Ok(request) => {
                let (reply, replied) = channel();
                if to.send(Message::Request(request, reply)).is_err() {
                    return;
                }
                replied.recv().unwrap_or_else(|_| refusal("the controller is ending"))
            }
            Err(why) => refusal(&format!("not a request: {why}")),
        };
        if out.write_all(format!("{reply}\n").as_bytes()).is_err() || !line.ends_with('\n') {
            return;
        }
    }
}

/// An answer that refuses.
pub(crate) fn refusal(why: &str) -> Value {
    json!({"ok": false, "error": why})
}

/// Sends a request to a controller and waits for the answer.
///
/// # Errors
///
/// [`Error::Io`] where no controller answers, [`Error::Usage`] where it refuses.
pub fn ask(socket: &Path, request: &Request) -> Result<Value, Error> {
    let shown = socket.display();
    let failed = |e: std::io::Error| {
        Error::Io(format!(
            "no controller answers on {shown}: {e}; start one with memc serve --socket {shown}"
        ))
    };
    let mut to = UnixStream::connect(socket).map_err(failed)?;
    let text = serde_json::to_string(request).map_err(|e| Error::Internal(e.to_string()))?;
    to.write_all(format!("{text}\n").as_bytes()).map_err(failed)?;
    let mut line = String::new();
    BufReader::new(to).read_line(&mut line).map_err(failed)?;
    let answer: Value = serde_json::from_str(&line)
        .map_err(|_| Error::Io(format!("the controller on {shown} ended before it answered")))?;
    if answer["ok"] == true {
        return Ok(answer);
    }
    Err(Error::Usage(answer["error"].as_str().unwrap_or("the controller refused").to_owned()))
}
