//! Just enough of an HTTP/2 client to send the same call with different bodies and to see the answers end.
//!
//! A generator must cost far less than what it measures on the same two cores, and a general client does not: with the
//! h2 crate it took more CPU time than an empty service. So headers are sent uncompressed and answers' headers are not
//! decoded; an answer counts when it carried a message and ended.

use bytes::{BufMut as _, Bytes, BytesMut};
use prost::Message;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Instant;

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const WINDOW_UPDATE: u8 = 8;
const ACK: u8 = 1;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const FIRST_WINDOW: i64 = 65_535;
const LARGEST_WINDOW: u32 = (1 << 31) - 1;

/// More streams than are ever open at once.
const REMEMBERED: usize = 1 << 16;

/// A message of gRPC in its five-byte frame.
pub(crate) fn framed(message: &impl Message) -> Bytes {
    let length = message.encoded_len();
    let mut frame = BytesMut::with_capacity(5 + length);
    frame.put_u8(0);
    frame.put_u32(u32::try_from(length).unwrap());
    message.encode(&mut frame).unwrap();
    frame.freeze()
}

/// One connection, on which any number of calls are open at once. One thread sends, one receives; they may be the same.
pub(crate) struct Connection {
    socket: TcpStream,
    /// Bytes of DATA that the server still allows.
    window: AtomicI64,
    epoch: Instant,
    /// When the call of each stream was to start, in nanoseconds after `epoch`, by stream number.
    started: Box<[AtomicU64]>,
    header_block: Vec<u8>,
}

/// What is being sent: frames that go out together.
#[derive(Default)]
pub(crate) struct Outbox {
    bytes: Vec<u8>,
    calls: u32,
}

/// What was received and not yet understood.
#[derive(Default)]
pub(crate) struct Inbox {
    bytes: Vec<u8>,
    received: u32,
}

impl Connection {
    pub(crate) fn open(address: SocketAddr, path: &str, epoch: Instant) -> Self {
        let mut socket = TcpStream::connect(address).unwrap();
        socket.set_nodelay(true).unwrap();
        let mut hello = PREFACE.to_vec();
        frame(&mut hello, SETTINGS, 0, 0, &[0, 4, 0, 0x10, 0, 0]);
        let more = LARGEST_WINDOW - u32::try_from(FIRST_WINDOW).unwrap();
        frame(&mut hello, WINDOW_UPDATE, 0, 0, &more.to_be_bytes());
        socket.write_all(&hello).unwrap();
        Self {
            socket,
            window: AtomicI64::new(FIRST_WINDOW),
            epoch,
            started: (0..REMEMBERED).map(|_| AtomicU64::new(0)).collect(),
            header_block: header_block(path),
        }
    }

    /// Adds a call to what is to be sent. False when the server's window has no room for it yet.
    pub(crate) fn call(&self, outbox: &mut Outbox, body: &[u8], start: Instant) -> bool {
        let length = i64::try_from(body.len()).unwrap();
        if self.window.load(Ordering::Relaxed) < length {
            return false;
        }
        self.window.fetch_sub(length, Ordering::Relaxed);
        let stream = 2 * outbox.calls + 1;
        outbox.calls += 1;
        let nanoseconds = u64::try_from((start - self.epoch).as_nanos()).unwrap();
        self.started[place(stream)].store(nanoseconds, Ordering::Relaxed);
        frame(&mut outbox.bytes, HEADERS, END_HEADERS, stream, &self.header_block);
        frame(&mut outbox.bytes, DATA, END_STREAM, stream, body);
        true
    }

    pub(crate) fn send(&self, outbox: &mut Outbox) {
        (&self.socket).write_all(&outbox.bytes).unwrap();
        outbox.bytes.clear();
    }

    /// Waits for more from the server, and hands the latency of each answer that ended to `ended`, in nanoseconds.
    /// What the connection itself has to say goes into `outbox`. False when the connection was shut.
    pub(crate) fn receive(&self, inbox: &mut Inbox, outbox: &mut Vec<u8>, mut ended: impl FnMut(u64)) -> bool {
        let mut chunk = [0; 64 * 1024];
        let length = (&self.socket).read(&mut chunk).unwrap();
        inbox.bytes.extend_from_slice(&chunk[..length]);
        let now = u64::try_from(self.epoch.elapsed().as_nanos()).unwrap();
        let mut rest = &inbox.bytes[..];
        while let Some((frame, after)) = Frame::split(rest) {
            self.understand(&frame, &mut inbox.received, outbox, now, &mut ended);
            rest = after;
        }
        let used = inbox.bytes.len() - rest.len();
        inbox.bytes.drain(..used);
        length > 0
    }

    fn understand(&self, it: &Frame<'_>, received: &mut u32, out: &mut Vec<u8>, now: u64, ended: &mut impl FnMut(u64)) {
        match it.kind {
            DATA => {
                assert!(it.payload.len() > 5, "an empty answer");
                *received += u32::try_from(it.payload.len()).unwrap();
                if *received > 1 << 24 {
                    frame(out, WINDOW_UPDATE, 0, 0, &std::mem::take(received).to_be_bytes());
                }
            }
            HEADERS if it.flags & END_STREAM != 0 => {
                let start = self.started[place(it.stream)].load(Ordering::Relaxed);
                ended(now.saturating_sub(start));
            }
            HEADERS => {}
            SETTINGS if it.flags & ACK == 0 => frame(out, SETTINGS, ACK, 0, &[]),
            PING if it.flags & ACK == 0 => frame(out, PING, ACK, 0, it.payload),
            WINDOW_UPDATE if it.stream == 0 => {
                let more = u32::from_be_bytes(it.payload.try_into().unwrap());
                self.window.fetch_add(i64::from(more), Ordering::Relaxed);
            }
            SETTINGS | PING | WINDOW_UPDATE => {}
            other => panic!("the server sent a frame of type {other}"),
        }
    }

    pub(crate) fn write_raw(&self, bytes: &mut Vec<u8>) {
        if !bytes.is_empty() {
            (&self.socket).write_all(bytes).unwrap();
            bytes.clear();
        }
    }

    /// Ends the connection, and with it the wait of the thread that receives.
    pub(crate) fn shut(&self) {
        self.socket.shutdown(std::net::Shutdown::Both).unwrap();
    }
}

fn place(stream: u32) -> usize {
    (stream / 2) as usize % REMEMBERED
}

/// The call's headers: literals that no table has to remember.
fn header_block(path: &str) -> Vec<u8> {
    let mut block = vec![0x83, 0x86];
    let text = |block: &mut Vec<u8>, text: &str| {
        block.push(u8::try_from(text.len()).unwrap());
        block.extend_from_slice(text.as_bytes());
    };
    block.push(0x04);
    text(&mut block, path);
    block.push(0x01);
    text(&mut block, "tidegate");
    block.extend_from_slice(&[0x0f, 0x10]);
    text(&mut block, "application/grpc");
    block.push(0x00);
    text(&mut block, "te");
    text(&mut block, "trailers");
    block
}

fn frame(out: &mut Vec<u8>, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
    let [_, a, b, c] = u32::try_from(payload.len()).unwrap().to_be_bytes();
    out.extend_from_slice(&[a, b, c, kind, flags]);
    out.extend_from_slice(&stream.to_be_bytes());
    out.extend_from_slice(payload);
}

struct Frame<'a> {
    kind: u8,
    flags: u8,
    stream: u32,
    payload: &'a [u8],
}

impl<'a> Frame<'a> {
    fn split(bytes: &'a [u8]) -> Option<(Self, &'a [u8])> {
        let (head, rest) = bytes.split_at_checked(9)?;
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
        let (payload, rest) = rest.split_at_checked(length)?;
        let stream = u32::from_be_bytes([head[5], head[6], head[7], head[8]]) & 0x7fff_ffff;
        Some((Self { kind: head[3], flags: head[4], stream, payload }, rest))
    }
}
