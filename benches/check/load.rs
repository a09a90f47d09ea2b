//! The load generator: gRPC calls with prepared bodies, in a closed loop, at a fixed rate, or each once.

use bytes::Bytes;
use h2::client::SendRequest;
use hdrhistogram::Histogram;
use http::{Request, Version};
use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{Duration, Instant};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

/// How requests follow one another.
#[derive(Clone, Copy)]
pub(crate) enum Shape {
    /// Each of `connections` x `streams` sends its next request when the last is answered.
    Closed { connections: usize, streams: usize },
    /// Requests start at a rate, whatever the answers do.
    Open { connections: usize, per_second: f64 },
    /// As `Closed`, until each request was sent once.
    Once { connections: usize, streams: usize },
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

/// What all streams of one run share; they run on one thread.
struct Shared {
    requests: Vec<Bytes>,
    next: Cell<usize>,
    until: Option<Instant>,
    once: bool,
    latencies: RefCell<Histogram<u64>>,
    call: http::Uri,
}

impl Shared {
    /// The next request to send; none when the run is over.
    fn take(&self) -> Option<Bytes> {
        let place = self.next.get();
        let over = self.until.is_some_and(|until| Instant::now() >= until);
        if over || (self.once && place >= self.requests.len()) {
            return None;
        }
        self.next.set(place + 1);
        Some(self.requests[place % self.requests.len()].clone())
    }

    fn record(&self, started: Instant) {
        let nanoseconds = u64::try_from(started.elapsed().as_nanos()).unwrap();
        self.latencies.borrow_mut().saturating_record(nanoseconds);
    }
}

impl Load<'_> {
    /// Runs for `length`, or until all is sent, and waits for every answer.
    pub(crate) fn run(&self, length: Duration) -> Outcome {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        tokio::task::LocalSet::new().block_on(&runtime, self.drive(length))
    }

    async fn drive(&self, length: Duration) -> Outcome {
        let start = Instant::now();
        let shared = Rc::new(Shared {
            requests: self.requests.to_vec(),
            next: Cell::new(0),
            until: start.checked_add(length),
            once: matches!(self.shape, Shape::Once { .. }),
            latencies: RefCell::new(Histogram::new(3).unwrap()),
            call: format!("http://{}/envoy.service.auth.v3.Authorization/Check", self.address).parse().unwrap(),
        });
        match self.shape {
            Shape::Closed { connections, streams } | Shape::Once { connections, streams } => {
                self.closed(&shared, connections, streams).await;
            }
            Shape::Open { connections, per_second } => self.open(&shared, connections, per_second).await,
        }
        let elapsed = start.elapsed();
        let latencies = shared.latencies.borrow().clone();
        Outcome { answered: latencies.len(), elapsed, latencies }
    }

    async fn closed(&self, shared: &Rc<Shared>, connections: usize, streams: usize) {
        let mut tasks = JoinSet::new();
        for _ in 0..connections {
            let connection = self.connect().await;
            for _ in 0..streams {
                let (mut connection, shared) = (connection.clone(), shared.clone());
                tasks.spawn_local(async move {
                    while let Some(body) = shared.take() {
                        let started = Instant::now();
                        connection = call(connection, &shared.call, body).await;
                        shared.record(started);
                    }
                });
            }
        }
        tasks.join_all().await;
    }

    async fn open(&self, shared: &Rc<Shared>, connections: usize, per_second: f64) {
        let mut senders = Vec::new();
        for _ in 0..connections {
            senders.push(self.connect().await);
        }
        let mut tasks = JoinSet::new();
        let start = Instant::now();
        let mut tick = tokio::time::interval(Duration::from_millis(1));
        'run: loop {
            tick.tick().await;
            let due = (start.elapsed().as_secs_f64() * per_second) as usize;
            for place in shared.next.get()..due {
                let Some(body) = shared.take() else { break 'run };
                let intended = start + Duration::from_secs_f64(place as f64 / per_second);
                let (connection, shared) = (senders[place % senders.len()].clone(), shared.clone());
                tasks.spawn_local(async move {
                    call(connection, &shared.call, body).await;
                    shared.record(intended);
                });
            }
            while tasks.try_join_next().is_some() {}
        }
        tasks.join_all().await;
    }

    async fn connect(&self) -> SendRequest<Bytes> {
        let socket = TcpStream::connect(self.address).await.unwrap();
        socket.set_nodelay(true).unwrap();
        let (sender, connection) = h2::client::Builder::new()
            .initial_window_size(1 << 20)
            .initial_connection_window_size(1 << 30)
            .handshake(socket)
            .await
            .unwrap();
        tokio::task::spawn_local(connection);
        sender
    }
}

/// One Check. Panics unless it is answered with gRPC status OK and a message.
async fn call(sender: SendRequest<Bytes>, uri: &http::Uri, body: Bytes) -> SendRequest<Bytes> {
    let mut sender = sender.ready().await.unwrap();
    let request = Request::post(uri.clone())
        .version(Version::HTTP_2)
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .body(())
        .unwrap();
    let (response, mut stream) = sender.send_request(request, false).unwrap();
    stream.send_data(body, true).unwrap();
    let mut body = response.await.unwrap().into_body();
    let mut length = 0;
    while let Some(chunk) = body.data().await {
        length += chunk.unwrap().len();
    }
    let trailers = body.trailers().await.unwrap().expect("no trailers, so no message");
    assert_eq!(trailers["grpc-status"], "0");
    assert!(length > 5, "an empty answer");
    sender
}
