//! HTTP/1.1 as far as the server needs it: requests with a known length, responses with one.
//!
//! Contract: whatever a client sends, at most [`MAX_HEAD`] bytes of head and `max_body` bytes of body are
//! kept, all bodies together in a bounded room, and a request that takes longer than [`PATIENCE`] ends the
//! connection. So does a client that takes an answer too slowly. A head that is no HTTP is answered with 400,
//! a body of unknown length with 411, a larger one with 413, and one without room with 503.

use std::io::{self, Read, Write};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::room::{Room, Taken};
use crate::clock::now;

/// Most bytes of a request's line and headers.
const MAX_HEAD: usize = 16 << 10;
/// Most headers of a request.
const MAX_HEADERS: usize = 64;
/// Time in which a request that has begun must be there.
const PATIENCE: Duration = Duration::from_secs(30);
/// Time that a connection may wait for its next request.
const IDLE: Duration = Duration::from_secs(60);
/// Least bytes of an answer that a client takes in a second, beyond [`PATIENCE`].
const SLOWEST: u64 = 64 << 10;
/// Bytes that are read at once.
const PIECE: usize = 64 << 10;

/// Name of the header with the length of the JSON in front of binary tensors.
pub(super) const JSON_LENGTH: &str = "Inference-Header-Content-Length";

/// A request.
#[derive(Debug)]
pub(super) struct Request {
    pub(super) method: String,
    /// Path without the query.
    pub(super) path: String,
    pub(super) body: Vec<u8>,
    /// Value of [`JSON_LENGTH`].
    pub(super) json_length: Option<String>,
    /// Whether the client keeps the connection.
    pub(super) keeps: bool,
    /// Room of the body.
    room: Option<Taken>,
}

impl Request {
    /// Whether the answer has no body.
    pub(super) fn is_head(&self) -> bool {
        self.method == "HEAD"
    }
}

/// A response.
#[derive(Debug)]
pub(super) struct Response {
    pub(super) status: u16,
    pub(super) kind: &'static str,
    /// Value of [`JSON_LENGTH`].
    pub(super) json_length: Option<usize>,
    pub(super) body: Vec<u8>,
}

impl Response {
    /// A JSON text.
    pub(super) fn json(status: u16, text: String) -> Response {
        Response { status, kind: "application/json", json_length: None, body: text.into_bytes() }
    }

    /// An error, as one sentence.
    pub(super) fn error(status: u16, sentence: &str) -> Response {
        Response::json(status, format!("{}\n", serde_json::json!({ "error": sentence })))
    }

    /// Writes the response, without its body where `is_head`; the connection stays open where `keeps`.
    ///
    /// # Errors
    /// Those of the stream, and [`io::ErrorKind::TimedOut`] where the client takes it too slowly.
    pub(super) fn write(&self, stream: &mut dyn Write, keeps: bool, is_head: bool) -> io::Result<()> {
        let Response { status, kind, body, .. } = self;
        let mut out = format!(
            "HTTP/1.1 {status} {}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\n",
            reason(*status),
            body.len()
        );
        if let Some(length) = self.json_length {
            out.push_str(&format!("{JSON_LENGTH}: {length}\r\n"));
        }
        match status {
            429 | 503 => out.push_str("Retry-After: 1\r\n"),
            405 => out.push_str("Allow: GET, POST\r\n"),
            _ => {}
        }
        out.push_str(if keeps { "\r\n" } else { "Connection: close\r\n\r\n" });
        let mut bytes = out.into_bytes();
        if !is_head {
            bytes.extend_from_slice(body);
        }
        let begun = now();
        let most = PATIENCE.saturating_add(Duration::from_secs(bytes.len() as u64 / SLOWEST));
        let mut left = bytes.as_slice();
        while !left.is_empty() {
            if begun.elapsed() > most {
                return Err(io::ErrorKind::TimedOut.into());
            }
            match stream.write(left) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(n) => left = left.get(n..).unwrap_or_default(),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        stream.flush()
    }
}

fn reason(status: u16) -> &'static str {
    match status {
        200 => "OK",
        400 => "Bad Request",
        404 => "Not Found",
        405 => "Method Not Allowed",
        411 => "Length Required",
        413 => "Content Too Large",
        429 => "Too Many Requests",
        503 => "Service Unavailable",
        _ => "Internal Server Error",
    }
}

/// End of a connection.
#[derive(Debug)]
pub(super) enum End {
    /// Without a word: the client has gone, or sends nothing.
    Silent,
    /// After this response.
    Answer(Response),
}

impl From<io::Error> for End {
    fn from(_: io::Error) -> End {
        End::Silent
    }
}

fn refuse(status: u16, sentence: &str) -> End {
    End::Answer(Response::error(status, sentence))
}

/// Requests of a connection. Its stream must give up reading after a short time, so that `stop` is asked.
pub(super) struct Requests<'s, S> {
    pub(super) stream: &'s mut S,
    /// Bytes that were read and belong to no request yet.
    pub(super) rest: Vec<u8>,
    pub(super) max_body: usize,
    /// Room for all bodies.
    pub(super) room: &'s Arc<Room>,
    /// Whether the server ends: then no request begins.
    pub(super) stop: &'s dyn Fn() -> bool,
}

/// Facts of a request's head.
struct Head {
    request: Request,
    body_bytes: usize,
    /// Whether the client waits for permission to send the body.
    waits: bool,
}

impl<S: Read + Write> Requests<'_, S> {
    /// Waits for the next request.
    pub(super) fn next(&mut self) -> Result<Request, End> {
        let idle = now();
        while self.rest.is_empty() {
            if (self.stop)() || idle.elapsed() > IDLE {
                return Err(End::Silent);
            }
            self.more()?;
        }
        let begun = now();
        let (length, head) = loop {
            if let Some(found) = self.head()? {
                break found;
            }
            self.patiently(begun)?;
        };
        self.rest.drain(..length);
        let Head { mut request, body_bytes, waits } = head;
        if body_bytes > self.max_body {
            let text = format!(
                "the body has {body_bytes} bytes, and this server takes at most {}; see --max-body",
                self.max_body
            );
            return Err(refuse(413, &text));
        }
        request.room = self.room.take(body_bytes);
        if request.room.is_none() {
            return Err(refuse(503, "the bodies of other requests take all of the room for bodies"));
        }
        if waits {
            self.stream.write_all(b"HTTP/1.1 100 Continue\r\n\r\n")?;
        }
        while self.rest.len() < body_bytes {
            self.patiently(begun)?;
        }
        let rest = self.rest.split_off(body_bytes);
        request.body = std::mem::replace(&mut self.rest, rest);
        Ok(request)
    }

    fn patiently(&mut self, begun: Instant) -> Result<(), End> {
        if begun.elapsed() > PATIENCE {
            return Err(End::Silent);
        }
        self.more()
    }

    /// Reads what there is; nothing where the client sends nothing for a short time.
    fn more(&mut self) -> Result<(), End> {
        let mut piece = [0; PIECE];
        match self.stream.read(&mut piece) {
            Ok(0) => Err(End::Silent),
            Ok(n) => {
                self.rest.extend(piece.iter().take(n));
                Ok(())
            }
            Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => Ok(()),
            Err(e) if e.kind() == io::ErrorKind::Interrupted => Ok(()),
            Err(e) => Err(e.into()),
        }
    }

    /// The head of the next request and its length, once it is there.
    fn head(&self) -> Result<Option<(usize, Head)>, End> {
        let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
        let mut parsed = httparse::Request::new(&mut headers);
        match parsed.parse(&self.rest) {
            Ok(httparse::Status::Complete(length)) if length <= MAX_HEAD => {
                Ok(Some((length, head_of(&parsed)?)))
            }
            Ok(httparse::Status::Partial) if self.rest.len() <= MAX_HEAD => Ok(None),
            Ok(_) => Err(refuse(400, "the request's headers are too long")),
            Err(error) => Err(refuse(400, &format!("this is no HTTP request: {error}"))),
        }
    }
}

/// Facts of a head that the server needs.
fn head_of(parsed: &httparse::Request<'_, '_>) -> Result<Head, End> {
    let values = |name: &'static str| {
        let is_named = move |h: &&httparse::Header<'_>| h.name.eq_ignore_ascii_case(name);
        parsed.headers.iter().filter(is_named).map(|h| String::from_utf8_lossy(h.value).trim().to_owned())
    };
    let has = |name, word: &str| values(name).any(|value| value.eq_ignore_ascii_case(word));
    if values("Transfer-Encoding").next().is_some() {
        return Err(refuse(411, "the body's length must be known: send Content-Length, and no chunks"));
    }
    let mut lengths = values("Content-Length");
    let body_bytes = match (lengths.next(), lengths.next()) {
        (None, _) => 0,
        (Some(text), None) if text.bytes().all(|b| b.is_ascii_digit()) && !text.is_empty() => {
            text.parse().unwrap_or(usize::MAX)
        }
        _ => return Err(refuse(400, "Content-Length is not one number")),
    };
    let target = parsed.path.unwrap_or_default();
    let keeps = match parsed.version {
        Some(1) => !has("Connection", "close"),
        _ => has("Connection", "keep-alive"),
    };
    let request = Request {
        method: parsed.method.unwrap_or_default().to_owned(),
        path: target.split_once('?').map_or(target, |(path, _)| path).to_owned(),
        body: Vec::new(),
        json_length: values(JSON_LENGTH).next(),
        keeps,
        room: None,
    };
    Ok(Head { request, body_bytes, waits: has("Expect", "100-continue") })
}
