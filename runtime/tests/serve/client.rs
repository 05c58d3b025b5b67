//! An HTTP client for tests.
#![allow(dead_code, reason = "several tests share it")]

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use serde_json::Value;

pub(crate) trait Stream: Read + Write {}
impl<T: Read + Write> Stream for T {}

/// A connection that is kept.
pub(crate) struct Client {
    stream: Box<dyn Stream>,
    rest: Vec<u8>,
}

#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    head: String,
    pub(crate) body: Vec<u8>,
}

impl Reply {
    pub(crate) fn text(&self) -> String {
        String::from_utf8(self.body.clone()).unwrap()
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|e| panic!("{e}: {}", self.text()))
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
    }
}

impl Client {
    pub(crate) fn new(address: &str) -> Client {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        Client { stream: Box::new(stream), rest: Vec::new() }
    }

    pub(crate) fn unix(path: &Path) -> Client {
        Client { stream: Box::new(UnixStream::connect(path).unwrap()), rest: Vec::new() }
    }

    pub(crate) fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).unwrap();
    }

    pub(crate) fn reply(&mut self) -> Reply {
        let mut piece = [0; 4096];
        loop {
            let end = self.rest.windows(4).position(|four| four == b"\r\n\r\n");
            if let Some(end) = end {
                let head = String::from_utf8(self.rest[..end].to_vec()).unwrap();
                let length = head.lines().find_map(|line| line.strip_prefix("Content-Length: "));
                let length = length.map_or(0, |n| n.parse().unwrap());
                if self.rest.len() >= end + 4 + length {
                    let mut body = self.rest.split_off(end + 4);
                    self.rest = body.split_off(length);
                    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
                    return Reply { status, head, body };
                }
            }
            let n = self.stream.read(&mut piece).unwrap();
            assert!(n > 0, "the server has closed the connection");
            self.rest.extend(&piece[..n]);
        }
    }

    pub(crate) fn post(&mut self, path: &str, body: &str) -> Reply {
        self.send(format!("POST {path} HTTP/1.1\r\nContent-Length: {}\r\n\r\n{body}", body.len()).as_bytes());
        self.reply()
    }

    /// A request whose tensors follow the JSON.
    pub(crate) fn binary(&mut self, path: &str, json: &str, tensors: &[u8]) -> Reply {
        let (length, all) = (json.len(), json.len() + tensors.len());
        let head = format!(
            "POST {path} HTTP/1.1\r\ninference-header-content-length: {length}\r\n\
             Content-Length: {all}\r\n\r\n"
        );
        self.send(&[head.as_bytes(), json.as_bytes(), tensors].concat());
        self.reply()
    }
}

pub(crate) fn get(address: &str, path: &str) -> Reply {
    let mut client = Client::new(address);
    client.send(format!("GET {path} HTTP/1.1\r\nConnection: close\r\n\r\n").as_bytes());
    client.reply()
}

pub(crate) fn post(address: &str, path: &str, body: &str) -> Reply {
    Client::new(address).post(path, body)
}
