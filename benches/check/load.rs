//! The load: calls in a closed loop, at a fixed rate, or each once.

use crate::http2::{Connection, Inbox, Outbox};
use bytes::Bytes;
use hdrhistogram::Histogram;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

const PATH: &str = "/envoy.service.auth.v3.Authorization/Check";

/// How long the sender of an open loop sleeps when nothing is due.
const BREATH: Duration = Duration::from_micros(50);

/// How requests follow one another.
#[derive(Clone, Copy)]
pub(crate) enum Shape {
    /// Each of `connections` x `streams` sends its next request when the last is answered.
    Closed { connections: usize, streams: usize },
    /// As `Closed`, until each request was sent once.
    Once { connections: usize, streams: usize },
    /// Requests start at a rate, whatever the answers do. Latency counts from when they were to start.
    Open { connections: usize, per_second: f64 },
}

pub(crate) struct Load<'a> {
    pub(crate) address: SocketAddr,
    pub(crate) requests: &'a [Bytes],
    pub(crate) shape: Shape,
}

pub(crate) struct Outcome {
    pub(crate) answered: u64,
    pub(crate) elapsed: Duration,
    /// Nanoseconds.
    pub(crate) latencies: Histogram<u64>,
}

fn histogram() -> Histogram<u64> {
    Histogram::new_with_max(60_000_000_000, 3).unwrap()
}

impl Load<'_> {
    /// Runs for `length`, or until all is sent, and waits for every answer.
    pub(crate) fn run(&self, length: Duration) -> Outcome {
        let start = Instant::now();
        let latencies = match self.shape {
            Shape::Closed { connections, streams } => self.closed(connections, |next| Closed {
                streams,
                next,
                last: usize::MAX,
                until: start.checked_add(length),
            }),
            Shape::Once { connections, streams } => {
                self.closed(connections, |next| Closed { streams, next, last: self.requests.len(), until: None })
            }
            Shape::Open { connections, per_second } => self.open(connections, per_second, length),
        };
        Outcome { answered: latencies.len(), elapsed: start.elapsed(), latencies }
    }

    fn closed<'s>(&'s self, connections: usize, plan: impl Fn(&'s AtomicUsize) -> Closed<'s>) -> Histogram<u64> {
        // One for each run: leaked so that the plan can hold it, and small.
        let next: &'static AtomicUsize = Box::leak(Box::default());
        let epoch = Instant::now();
        let mut all = histogram();
        thread::scope(|scope| {
            let threads: Vec<_> = (0..connections)
                .map(|_| {
                    let plan = plan(next);
                    scope.spawn(move || plan.drive(&Connection::open(self.address, PATH, epoch), self.requests))
                })
                .collect();
            for thread in threads {
                all += thread.join().unwrap();
            }
        });
        all
    }

    fn open(&self, connections: usize, per_second: f64, length: Duration) -> Histogram<u64> {
        let epoch = Instant::now();
        let connections: Vec<Connection> =
            (0..connections).map(|_| Connection::open(self.address, PATH, epoch)).collect();
        let answered = AtomicU64::new(0);
        let mut all = histogram();
        thread::scope(|scope| {
            let receivers: Vec<_> =
                connections.iter().map(|connection| scope.spawn(|| listen(connection, &answered))).collect();
            let sent = self.pace(&connections, per_second, length);
            while answered.load(Ordering::Relaxed) < sent {
                thread::sleep(BREATH);
            }
            connections.iter().for_each(Connection::shut);
            for receiver in receivers {
                all += receiver.join().unwrap();
            }
        });
        all
    }

    /// Sends each request when it is due, and says how many there were.
    fn pace(&self, connections: &[Connection], per_second: f64, length: Duration) -> u64 {
        let mut outboxes: Vec<Outbox> = connections.iter().map(|_| Outbox::default()).collect();
        let start = Instant::now();
        let mut sent = 0;
        while start.elapsed() < length {
            let due = (start.elapsed().as_secs_f64() * per_second) as usize;
            while sent < due {
                let intended = start + Duration::from_secs_f64(sent as f64 / per_second);
                let lane = sent % connections.len();
                if !connections[lane].call(&mut outboxes[lane], &self.requests[sent % self.requests.len()], intended) {
                    break;
                }
                sent += 1;
            }
            for (connection, outbox) in connections.iter().zip(&mut outboxes) {
                connection.send(outbox);
            }
            thread::sleep(BREATH);
        }
        sent as u64
    }
}

fn listen(connection: &Connection, answered: &AtomicU64) -> Histogram<u64> {
    let (mut inbox, mut replies, mut latencies) = (Inbox::default(), Vec::new(), histogram());
    loop {
        let open = connection.receive(&mut inbox, &mut replies, |nanoseconds| {
            latencies.saturating_record(nanoseconds);
            answered.fetch_add(1, Ordering::Relaxed);
        });
        if !open {
            return latencies;
        }
        connection.write_raw(&mut replies);
    }
}

/// A closed loop over one connection.
struct Closed<'a> {
    streams: usize,
    /// The next request to send, for all connections.
    next: &'a AtomicUsize,
    last: usize,
    until: Option<Instant>,
}

impl Closed<'_> {
    fn drive(&self, connection: &Connection, requests: &[Bytes]) -> Histogram<u64> {
        let (mut inbox, mut outbox, mut replies) = (Inbox::default(), Outbox::default(), Vec::new());
        let mut latencies = histogram();
        let (mut idle, mut open) = (self.streams, 0);
        loop {
            let now = Instant::now();
            while idle > 0 && self.until.is_none_or(|until| now < until) {
                let place = self.next.fetch_add(1, Ordering::Relaxed);
                if place >= self.last {
                    break;
                }
                let body = &requests[place % requests.len()];
                assert!(connection.call(&mut outbox, body, now), "the server's window is too small for this load");
                idle -= 1;
                open += 1;
            }
            if open == 0 {
                return latencies;
            }
            connection.write_raw(&mut replies);
            connection.send(&mut outbox);
            connection.receive(&mut inbox, &mut replies, |nanoseconds| {
                latencies.saturating_record(nanoseconds);
                idle += 1;
                open -= 1;
            });
        }
    }
}
