//! A steady load: each check is sent at its time, whatever became of the earlier ones, and all of it is recorded.
//!
//! A control goes with it: a tidegate on its own memory, asked at the same times from the same thread. What its answers
//! take is what this machine takes, whatever Redis does.

use super::service::{Tidegate, check};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tidegate::ext_authz::headers::{DEGRADED, RETRY_AFTER};
use tidegate::ext_authz::proto::authorization_client::AuthorizationClient;
use tidegate::ext_authz::proto::{CheckRequest, CheckResponse, HeaderValueOption, check_response::HttpResponse};
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};

/// How long an answer is waited for: far longer than any policy allows.
const NO_ANSWER: Duration = Duration::from_secs(10);
/// Connections to each process.
const CONNECTIONS: usize = 2;
/// Of so many checks, one goes to the control as well.
const CONTROL_SHARE: usize = 4;

/// What became of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Let pass, and counted in Redis.
    Admitted,
    /// 429.
    Denied,
    /// Let pass by the failure policy.
    Degraded,
    /// 503 by the failure policy.
    Unavailable,
    /// No such answer at all.
    Failed,
}

/// One check. Times are since the start of the load.
#[derive(Clone, Copy, Debug)]
pub struct Check {
    pub caller: usize,
    /// When it was to be sent.
    pub due: Duration,
    pub sent: Duration,
    pub answered: Duration,
    pub outcome: Outcome,
}

impl Check {
    pub fn latency(&self) -> Duration {
        self.answered - self.sent
    }

    /// Whether the store did not decide.
    pub fn is_error(&self) -> bool {
        matches!(self.outcome, Outcome::Degraded | Outcome::Unavailable | Outcome::Failed)
    }
}

/// All that was sent and answered.
#[derive(Clone, Debug, Default)]
pub struct Records {
    pub checks: Vec<Check>,
    pub control: Vec<Check>,
}

/// How checks follow one another.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    pub per_second: f64,
    /// So many are sent at once.
    pub burst: usize,
}

impl Pace {
    fn due(self, turn: usize) -> Duration {
        Duration::from_secs_f64((turn - turn % self.burst) as f64 / self.per_second)
    }
}

/// A load that runs until it is ended.
pub struct Load {
    start: Instant,
    stop: Arc<AtomicBool>,
    records: Arc<Mutex<Records>>,
    thread: JoinHandle<()>,
}

impl Load {
    /// Sends checks, of each caller in turn and to each process in turn.
    pub fn start(processes: &[Tidegate], control: &Tidegate, callers: Vec<CheckRequest>, pace: Pace) -> Self {
        let (stop, records) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(Records::default())));
        let addresses = processes.iter().map(|process| process.address.to_string()).collect();
        let start = Instant::now();
        let sender = Sender { start, stop: stop.clone(), records: records.clone(), callers, pace };
        let control = control.address.to_string();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(sender.run(addresses, control));
        });
        Self { start, stop, records, thread }
    }

    /// The time since its start.
    pub fn now(&self) -> Duration {
        self.start.elapsed()
    }

    /// Looks at the records so far.
    pub fn look<T>(&self, look: impl FnOnce(&Records) -> T) -> T {
        look(&self.records.lock().unwrap())
    }

    /// Whether it still sends.
    pub fn goes_on(&self) -> bool {
        !self.thread.is_finished()
    }

    /// Ends it, waits for all answers, and gives the records in the order of sending.
    pub fn end(self) -> Records {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap();
        let mut records = std::mem::take(&mut *self.records.lock().unwrap());
        records.checks.sort_by_key(|check| check.sent);
        records.control.sort_by_key(|check| check.sent);
        records
    }
}

struct Sender {
    start: Instant,
    stop: Arc<AtomicBool>,
    records: Arc<Mutex<Records>>,
    callers: Vec<CheckRequest>,
    pace: Pace,
}

impl Sender {
    async fn run(self, addresses: Vec<String>, control: String) {
        let mut channels = Vec::new();
        for turn in 0..CONNECTIONS * addresses.len() {
            channels.push(connect(&addresses[turn % addresses.len()]).await);
        }
        let control = connect(&control).await;
        let mut open = tokio::task::JoinSet::new();
        let begun = self.start.elapsed();
        for turn in 0.. {
            let due = begun + self.pace.due(turn);
            tokio::time::sleep_until((self.start + due).into()).await;
            if self.stop.load(Ordering::Relaxed) {
                break;
            }
            // Every caller comes to every process.
            let caller = turn / channels.len() % self.callers.len();
            let channel = channels[turn % channels.len()].clone();
            let one = One { start: self.start, due, caller, request: self.callers[caller].clone() };
            if turn % CONTROL_SHARE == 0 {
                let (records, one, control) = (self.records.clone(), one.clone(), control.clone());
                open.spawn(async move {
                    let check = one.ask(control).await;
                    records.lock().unwrap().control.push(check);
                });
            }
            let records = self.records.clone();
            open.spawn(async move {
                let check = one.ask(channel).await;
                records.lock().unwrap().checks.push(check);
            });
            while open.try_join_next().is_some() {}
        }
        open.join_all().await;
    }
}

async fn connect(address: &str) -> Channel {
    let endpoint = Endpoint::from_shared(format!("http://{address}")).unwrap();
    endpoint.tcp_nodelay(true).connect().await.unwrap()
}

#[derive(Clone)]
struct One {
    start: Instant,
    due: Duration,
    caller: usize,
    request: CheckRequest,
}

impl One {
    async fn ask(self, channel: Channel) -> Check {
        let mut client = AuthorizationClient::new(channel);
        let sent = self.start.elapsed();
        let answer = tokio::time::timeout(NO_ANSWER, client.check(self.request)).await;
        let answered = self.start.elapsed();
        let answer = answer.unwrap_or_else(|_elapsed| Err(Status::deadline_exceeded("no answer")));
        let (outcome, _) = understand(answer.map(tonic::Response::into_inner));
        Check { caller: self.caller, due: self.due, sent, answered, outcome }
    }
}

/// What an answer says, and the seconds in which to come again.
pub fn understand(answer: Result<CheckResponse, Status>) -> (Outcome, Option<u64>) {
    let Ok(answer) = answer else { return (Outcome::Failed, None) };
    let code = Code::from(answer.status.map_or(0, |status| status.code));
    match (code, answer.http_response) {
        (Code::Ok, Some(HttpResponse::OkResponse(ok))) => {
            let degraded = value(&ok.headers, DEGRADED).is_some();
            (if degraded { Outcome::Degraded } else { Outcome::Admitted }, None)
        }
        (Code::ResourceExhausted, Some(HttpResponse::DeniedResponse(denied))) => {
            (Outcome::Denied, value(&denied.headers, RETRY_AFTER).and_then(|seconds| seconds.parse().ok()))
        }
        (Code::Unavailable, Some(HttpResponse::ErrorResponse(_))) => (Outcome::Unavailable, None),
        _ => (Outcome::Failed, None),
    }
}

fn value(headers: &[HeaderValueOption], name: &str) -> Option<String> {
    let mut headers = headers.iter().filter_map(|option| option.header.as_ref());
    let header = headers.find(|header| header.key == name)?;
    Some(String::from_utf8_lossy(&header.value).into_owned())
}

/// Callers told apart by `x-user`: `user-0` and so on.
pub fn users(count: usize) -> Vec<CheckRequest> {
    (0..count).map(|caller| check(&[("x-user", &format!("user-{caller}"))])).collect()
}

/// Where the bucket of one of [`users`] is.
pub fn bucket(caller: usize) -> String {
    format!("rl:user:user-{caller}")
}
