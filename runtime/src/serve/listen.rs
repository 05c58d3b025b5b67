//! Listeners and connections.
//!
//! Contract: at most [`CONNECTIONS`] clients are connected, each with a thread of its own; others are told to
//! come back. Once the server ends, no request begins, and those in flight are answered.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use memc_support::owner_socket;

use super::http::{End, Requests, Response};
use super::room::Room;
use super::routes::App;
use crate::Error;

/// Bodies of the largest size that have room at once.
const BODIES: usize = 16;
/// Most clients at a time.
const CONNECTIONS: usize = 1024;
/// Time after which a thread that reads looks whether the server ends.
const TICK: Duration = Duration::from_millis(100);
/// Time that a client may take to take an answer.
const SLOW: Duration = Duration::from_secs(30);

/// A connection of either kind.
trait Stream: Read + Write + Send {
    /// Bounds the time of reading and writing.
    fn prepare(&self) -> io::Result<()>;
}

impl Stream for TcpStream {
    fn prepare(&self) -> io::Result<()> {
        self.set_nodelay(true)?;
        self.set_read_timeout(Some(TICK))?;
        self.set_write_timeout(Some(SLOW))
    }
}

impl Stream for UnixStream {
    fn prepare(&self) -> io::Result<()> {
        self.set_read_timeout(Some(TICK))?;
        self.set_write_timeout(Some(SLOW))
    }
}

/// A place where clients connect.
pub(super) enum Listener {
    Tcp(TcpListener),
    /// A socket file, which goes with the listener.
    Unix(UnixListener, PathBuf),
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Listener::Unix(_, path) = self {
            // Without its file there is nothing to take away.
            let _ = std::fs::remove_file(path);
        }
    }
}

impl Listener {
    /// # Errors
    /// [`Error::Usage`] for an address other than loopback without permission, and [`Error::Io`].
    pub(super) fn tcp(address: SocketAddr, allow_remote: bool) -> Result<Listener, Error> {
        if !address.ip().is_loopback() && !allow_remote {
            return Err(Error::Usage(format!(
                "--http {address} lets other machines connect, and the server knows no passwords; add \
                 --allow-remote if that is wanted"
            )));
        }
        let name = || format!("--http {address}");
        TcpListener::bind(address).map(Listener::Tcp).map_err(|error| Error::io(name(), error))
    }

    /// # Errors
    /// [`Error::Usage`] where there is a file already, and [`Error::Io`].
    pub(super) fn unix(path: &Path) -> Result<Listener, Error> {
        if path.symlink_metadata().is_ok() {
            return Err(Error::Usage(format!(
                "--socket {}: there is a file already; if no server listens there, remove it",
                path.display()
            )));
        }
        let made = owner_socket(path).map_err(|error| Error::io(path, error))?;
        Ok(Listener::Unix(made, path.to_owned()))
    }

    /// The address, with the port that the system chose for port 0.
    pub(super) fn address(&self) -> Option<SocketAddr> {
        if let Listener::Tcp(listener) = self { listener.local_addr().ok() } else { None }
    }

    /// Waits for a client.
    fn accept(&self) -> io::Result<Box<dyn Stream>> {
        Ok(match self {
            Listener::Tcp(listener) => Box::new(listener.accept()?.0),
            Listener::Unix(listener, _) => Box::new(listener.accept()?.0),
        })
    }

    /// Connects once, so that a thread that waits for a client wakes up; whether that worked. It does not
    /// where the socket's file is gone.
    pub(super) fn wake(&self) -> bool {
        match self {
            Listener::Tcp(_) => self.address().is_some_and(|mut address| {
                if address.ip().is_unspecified() {
                    address.set_ip(std::net::Ipv4Addr::LOCALHOST.into());
                }
                TcpStream::connect_timeout(&address, TICK).is_ok()
            }),
            Listener::Unix(_, path) => UnixStream::connect(path).is_ok(),
        }
    }
}

/// Number of clients.
#[derive(Debug, Default)]
pub(super) struct Clients {
    count: AtomicUsize,
    left: Mutex<()>,
    changed: Condvar,
}

impl Clients {
    /// Waits until there is none.
    pub(super) fn wait(&self) {
        let mut guard = self.left.lock().unwrap_or_else(PoisonError::into_inner);
        while self.count.load(Ordering::SeqCst) > 0 {
            guard = self.changed.wait_timeout(guard, TICK).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

/// One client, counted while it lives.
struct Client(Arc<Clients>);

impl Client {
    fn new(clients: &Arc<Clients>) -> Option<Client> {
        let before = clients.count.fetch_add(1, Ordering::SeqCst);
        let client = Client(clients.clone());
        (before < CONNECTIONS).then_some(client)
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.0.count.fetch_sub(1, Ordering::SeqCst);
        self.0.changed.notify_all();
    }
}

/// Bounds on the memory of requests.
#[derive(Clone, Debug)]
pub(super) struct Limits {
    /// Most bytes of a body.
    max_body: usize,
    /// Room for all bodies.
    room: Arc<Room>,
}

impl Limits {
    /// Bodies of at most so many bytes each.
    pub(super) fn new(max_body: usize) -> Limits {
        Limits { max_body, room: Room::new(max_body.saturating_mul(BODIES)) }
    }
}

/// Takes clients until the server ends.
pub(super) fn accept(listener: &Listener, app: &Arc<App>, clients: &Arc<Clients>, limits: &Limits) {
    while !app.is_ending.load(Ordering::SeqCst) {
        let Ok(mut stream) = listener.accept() else {
            // No more files may be open: others must close theirs first.
            thread::sleep(TICK);
            continue;
        };
        if app.is_ending.load(Ordering::SeqCst) || stream.prepare().is_err() {
            continue;
        }
        let client = Client::new(clients);
        let (app, limits) = (app.clone(), limits.clone());
        let serve = move || {
            let Some(client) = client else {
                let busy = Response::error(503, "as many clients are connected as may be");
                let _ = busy.write(&mut *stream, false, false);
                return;
            };
            serve(&mut *stream, &app, &limits);
            drop(client);
        };
        // Where no thread can be had, the client is told nothing, and its stream closes.
        let _ = thread::Builder::new().name("connection".to_owned()).spawn(serve);
    }
}

/// Answers the requests of a connection.
fn serve(mut stream: &mut dyn Stream, app: &App, limits: &Limits) {
    let stop = || app.is_ending.load(Ordering::SeqCst);
    let mut rest = Vec::new();
    loop {
        let Limits { max_body, ref room } = *limits;
        let rest_before = std::mem::take(&mut rest);
        let mut requests = Requests { stream: &mut stream, rest: rest_before, max_body, room, stop: &stop };
        match requests.next() {
            Ok(request) => {
                rest = requests.rest;
                let response = app.answer(&request);
                let keeps = request.keeps && !stop();
                if response.write(stream, keeps, request.is_head()).is_err() || !keeps {
                    return;
                }
            }
            Err(End::Answer(response)) => {
                if response.write(stream, false, false).is_ok() {
                    drain(stream);
                }
                return;
            }
            Err(End::Silent) => return,
        }
    }
}

/// Reads for a moment what a client still sends: a connection that closes with unread bytes takes the answer
/// with it.
fn drain(stream: &mut dyn Stream) {
    let mut piece = [0; 1 << 16];
    for _ in 0..64 {
        match stream.read(&mut piece) {
            Ok(n) if n > 0 => {}
            _ => return,
        }
    }
}
