//! A client of the admin endpoint.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

/// Long enough for a busy machine; only a broken one waits that long.
const PATIENCE: Duration = Duration::from_secs(20);

/// An answer's status line and fields, and its body.
#[derive(Debug)]
pub struct Answer {
    pub head: String,
    pub body: String,
}

impl Answer {
    pub fn status(&self) -> u16 {
        self.head.split(' ').nth(1).unwrap().parse().unwrap()
    }

    /// A metric's value, by its name and labels as they are written.
    pub fn value(&self, series: &str) -> u64 {
        let line = self.body.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
        line.unwrap_or_else(|| panic!("{series} is not in\n{}", self.body)).parse().unwrap()
    }
}

pub fn open(address: SocketAddr) -> TcpStream {
    let socket = TcpStream::connect(address).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket
}

pub fn ask(address: SocketAddr, method: &str, target: &str) -> Answer {
    ask_with(address, method, target, &[], "")
}

/// With more header fields, and a body.
pub fn ask_with(address: SocketAddr, method: &str, target: &str, fields: &[(&str, &str)], body: &str) -> Answer {
    let mut socket = open(address);
    let fields: String = fields.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    let head =
        format!("{method} {target} HTTP/1.1\r\nhost: {address}\r\ncontent-length: {}\r\n{fields}\r\n", body.len());
    // Who is refused may be so before the whole body was read.
    let _ = socket.write_all(head.as_bytes()).and_then(|()| socket.write_all(body.as_bytes()));
    let mut text = String::new();
    let _ = socket.read_to_string(&mut text);
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
    Answer { head: head.into(), body: body.into() }
}

pub fn get(admin: SocketAddr, target: &str) -> Answer {
    ask(admin, "GET", target)
}

/// Asks until it is so. It happens in another process, which tells nobody.
pub fn until(admin: SocketAddr, target: &str, wanted: impl Fn(&Answer) -> bool) -> Answer {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let answer = get(admin, target);
        if wanted(&answer) {
            return answer;
        }
        assert!(Instant::now() < deadline, "{answer:?}");
    }
}
