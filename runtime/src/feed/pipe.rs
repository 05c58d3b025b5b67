//! Pipes. A thread of its own opens and reads each, so that an interrupt ends the wait for data.

use std::{
    io::{self, ErrorKind, Read},
    path::Path,
    sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel},
    thread,
    time::Duration,
};

use memc_support::is_interrupted;

use crate::Error;

/// Bytes that are read at once.
const CHUNK: usize = 1 << 16;
/// Chunks that wait, at most.
const CHUNKS: usize = 4;
/// Time between two looks for an interrupt.
const PATIENCE: Duration = Duration::from_millis(50);

/// A pipe that is being read.
#[derive(Debug)]
pub(super) struct Pipe {
    chunks: Receiver<io::Result<Vec<u8>>>,
    chunk: Vec<u8>,
    /// First byte of the chunk that was not taken yet.
    next: usize,
}

impl Pipe {
    /// Begins to read what `open` opens. Its errors come with the first read.
    pub(super) fn open<R: Read>(open: impl FnOnce() -> io::Result<R> + Send + 'static) -> io::Result<Pipe> {
        let (sender, chunks) = sync_channel(CHUNKS);
        thread::Builder::new().name("pipe".to_owned()).spawn(move || send(open, &sender))?;
        Ok(Pipe { chunks, chunk: Vec::new(), next: 0 })
    }
}

/// Sends all chunks until the pipe ends or fails, or nobody takes them.
fn send<R: Read>(open: impl FnOnce() -> io::Result<R>, sender: &SyncSender<io::Result<Vec<u8>>>) {
    let mut from = match open() {
        Ok(from) => from,
        Err(error) => return drop(sender.send(Err(error))),
    };
    loop {
        let mut chunk = vec![0; CHUNK];
        let sent = match from.read(&mut chunk) {
            Ok(0) => return,
            Ok(length) => {
                chunk.truncate(length);
                sender.send(Ok(chunk))
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(error) => return drop(sender.send(Err(error))),
        };
        if sent.is_err() {
            return;
        }
    }
}

impl Read for Pipe {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        while self.next >= self.chunk.len() {
            match self.chunks.recv_timeout(PATIENCE) {
                Ok(chunk) => (self.chunk, self.next) = (chunk?, 0),
                Err(RecvTimeoutError::Disconnected) => return Ok(0),
                Err(RecvTimeoutError::Timeout) if is_interrupted() => {
                    return Err(io::Error::other("interrupted while it waited for data"));
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
        let length = self.chunk.get(self.next..).unwrap_or_default().read(out)?;
        self.next += length;
        Ok(length)
    }
}

/// The error of a read that failed: after a signal, that the wait has ended.
pub(super) fn failed(path: &Path, error: io::Error) -> Error {
    if is_interrupted() {
        return Error::Interrupted(format!("{}: {error}", path.display()));
    }
    Error::io(path, error)
}
