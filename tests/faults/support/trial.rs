//! One scenario: tidegate processes under a steady load, a fault put in and taken out, and a judgement of the run.

use super::eventually;
use super::load::{Check, Load, Outcome, Pace, Records, users};
use super::report::{self, Row};
use super::service::Tidegate;
use std::time::Duration;
use tidegate::ext_authz::proto::CheckRequest;

/// `redis.timeout`. Where times are recorded it is what production has; else it is long, as the suite must hold on a
/// machine that does much else.
pub fn timeout() -> Duration {
    if report::is_wanted() { Duration::from_millis(50) } else { Duration::from_millis(500) }
}
/// A failover is looked at for so long, if its errors do not last longer.
const AFTERMATH: Duration = Duration::from_secs(2);
/// What a check may take beyond that.
pub const ALLOWANCE: Duration = Duration::from_millis(5);
/// How much longer than a fault its errors may last: generous, as the machine may be busy.
pub const SLACK: Duration = Duration::from_secs(5);
/// A control that takes this long says that the machine stood still, and that an error may be due to that.
const STALL: Duration = Duration::from_millis(20);
/// How long an error may outlast a stall: a breaker that it opened closes by a probe.
const AFTER_STALL: Duration = Duration::from_secs(1);
/// After so many checks without an error, tidegate has recovered.
const CALM: usize = 50;

/// What each caller may spend.
#[derive(Clone, Copy, Debug)]
pub struct Quota {
    pub max_tokens: f64,
    pub refill_rate: f64,
}

/// How a scenario is run.
pub struct Setup {
    /// What stands in `redis: {...}`, without the timeout.
    pub redis: String,
    pub environment: Vec<(&'static str, &'static str)>,
    /// Further lines of the configuration.
    pub more: String,
    pub on_store_error: &'static str,
    pub processes: usize,
    pub callers: Vec<CheckRequest>,
    pub quota: Quota,
    /// Checks per second, of all callers.
    pub rate: f64,
    /// Checks sent at once.
    pub burst: usize,
}

impl Setup {
    /// 500 checks per second of 20 users, each of whom may have 10 of their 25; or fewer where no times are recorded.
    pub fn new(redis: String) -> Self {
        let rate = if report::is_wanted() { 500.0 } else { 200.0 };
        Self {
            redis,
            environment: Vec::new(),
            more: String::new(),
            on_store_error: "deny",
            processes: 1,
            callers: users(20),
            quota: Quota { max_tokens: 20.0, refill_rate: rate / 50.0 },
            rate,
            burst: 1,
        }
    }

    /// One server at this URL.
    pub fn standalone(url: &str) -> Self {
        Self::new(format!("urls: ['{url}']"))
    }

    pub fn sentinel(urls: &str) -> Self {
        Self {
            environment: super::sentinel::Trio::environment().to_vec(),
            ..Self::new(format!(
                "topology: sentinel, sentinel_master: {}, urls: [{urls}]",
                super::sentinel::MASTER_NAME
            ))
        }
    }

    pub fn cluster(urls: &str) -> Self {
        Self::new(format!("topology: cluster, urls: [{urls}]"))
    }

    fn config(&self, redis: &str) -> String {
        let Quota { max_tokens, refill_rate } = self.quota;
        let tiers =
            format!("tiers: {{free: {{per_user: {{max_tokens: {max_tokens}, refill_rate: {refill_rate}}}}}}}\n");
        let tiers = if self.more.contains("tiers:") { "" } else { &tiers };
        let identity = "identity: {user: [{header: x-user}], tier: [{header: x-tier}]}\n";
        format!("default_tier: free\n{identity}{tiers}on_store_error: {}\n{}{redis}", self.on_store_error, self.more)
    }

    /// The configuration of the processes.
    pub fn with_redis(&self) -> String {
        self.config(&format!("redis: {{{}, timeout: {}ms}}\n", self.redis, timeout().as_millis()))
    }
}

/// A scenario while it runs.
pub struct Trial {
    pub load: Load,
    pub processes: Vec<Tidegate>,
    quota: Quota,
    _control: Tidegate,
}

impl Trial {
    /// Starts everything and returns when checks are decided without an error.
    pub fn start(setup: Setup) -> Self {
        Self::start_when(setup, |_| true)
    }

    /// As [`Trial::start`], where only some checks can be decided.
    pub fn start_when(setup: Setup, some: impl Fn(&Check) -> bool) -> Self {
        let config = setup.with_redis();
        let processes: Vec<Tidegate> =
            (0..setup.processes).map(|_| Tidegate::start_with(&config, &setup.environment)).collect();
        let control = Tidegate::start(
            "default_tier: free\nidentity: {user: [{header: x-user}], tier: [{header: x-tier}]}\n\
             tiers: {free: {per_user: {max_tokens: 20, refill_rate: 10}}}\n",
        );
        let pace = Pace { per_second: setup.rate, burst: setup.burst };
        let (callers, offered) = (setup.callers.len(), setup.rate / setup.callers.len() as f64);
        let load = Load::start(&processes, &control, setup.callers, pace);
        let trial = Self { load, processes, quota: setup.quota, _control: control };
        trial.until_decided(&some);
        trial.until_limited(callers, offered, some);
        trial
    }

    /// Waits until every caller has been denied, if each is offered more than its bucket can give: only an empty bucket
    /// shows whether something is given twice.
    fn until_limited(&self, callers: usize, offered: f64, some: impl Fn(&Check) -> bool) {
        if offered <= self.quota.refill_rate {
            return;
        }
        self.until("every caller has been denied", |records| {
            let mut denied = vec![false; callers];
            for check in &records.checks {
                denied[check.caller] |= check.outcome == Outcome::Denied || !some(check);
            }
            denied.into_iter().all(|denied| denied).then_some(())
        });
    }

    pub fn now(&self) -> Duration {
        self.load.now()
    }

    /// Lets the load go on for so long.
    pub fn hold(&self, length: Duration) {
        let end = self.now() + length;
        self.until("the load has gone on", |_| (self.now() >= end).then_some(()));
    }

    /// Waits until so many checks in a row were not decided by the store, and gives the time.
    pub fn until_failing(&self) -> Duration {
        let from = self.now();
        self.until("checks fail", |records| {
            let mut since = records.checks.iter().rev().take_while(|check| check.sent >= from);
            since.any(Check::is_error).then(|| self.now())
        })
    }

    /// Waits until the store has decided every check for a while.
    pub fn until_recovered(&self) {
        self.until_decided(|_| true);
    }

    /// As [`Trial::until_recovered`], of some checks.
    pub fn until_decided(&self, some: impl Fn(&Check) -> bool) {
        let from = self.now();
        self.until("checks are decided again", |records| {
            let mut recent = records.checks.iter().rev().filter(|check| some(check)).take(CALM);
            let count = recent.clone().filter(|check| check.sent >= from).count();
            (count == CALM && !recent.any(Check::is_error)).then_some(())
        });
    }

    /// Waits until the records hold what is looked for.
    pub fn until<T>(&self, what: &str, mut found: impl FnMut(&Records) -> Option<T>) -> T {
        eventually(what, || {
            assert!(self.load.goes_on(), "the load broke down");
            self.load.look(&mut found)
        })
    }

    /// Ends the load and gives what there is to judge. The processes end too, their logs remain.
    pub fn end(self) -> Run {
        let records = self.load.end();
        let logs = self.processes.iter().map(Tidegate::log).collect();
        Run { records, quota: self.quota, logs }
    }
}

/// What came of a scenario.
pub struct Run {
    pub records: Records,
    pub quota: Quota,
    pub logs: Vec<String>,
}

/// When a fault was put in and taken out, since the start of the load. Of a failover both are the same.
#[derive(Clone, Copy, Debug)]
pub struct Window {
    pub injected: Duration,
    pub cleared: Duration,
}

impl Window {
    /// A fault that nobody takes out: the system has to get over it.
    pub fn since(injected: Duration) -> Self {
        Self { injected, cleared: injected }
    }
}

impl Run {
    /// Judges a run in which nothing is lost, and reports it: every check is answered, no bucket gives more than it
    /// has, and all errors lie within the fault, `slack` included.
    pub fn judge(&self, fault: &'static str, topology: &'static str, window: Window, slack: Duration) -> Row {
        let row = self.row(fault, topology, window);
        row.publish();
        self.assert_answered();
        assert!(row.over_admission <= 0.0, "{fault}: {} admitted beyond the limit", row.over_admission);
        self.assert_errors_within(window, slack);
        row
    }

    pub fn assert_answered(&self) {
        let failed: Vec<&Check> = self.records.checks.iter().filter(|check| check.outcome == Outcome::Failed).collect();
        assert!(failed.is_empty(), "{} checks were not answered: {:?}", failed.len(), failed.first());
    }

    /// No errors before the fault, nor later than `slack` after it, but for those that a stall of the machine explains.
    pub fn assert_errors_within(&self, window: Window, slack: Duration) {
        let allowed = window.injected.saturating_sub(timeout() * 2)..=window.cleared + slack;
        let outside: Vec<&Check> = self.errors().filter(|check| !allowed.contains(&check.answered)).collect();
        let strange: Vec<&&Check> = outside.iter().filter(|check| !self.stalled_around(check)).collect();
        assert!(
            strange.is_empty(),
            "{} errors outside of {allowed:?}, such as {:?}; log:\n{}",
            strange.len(),
            strange[0],
            self.logs.concat()
        );
    }

    /// No errors of some checks at all, but for those that a stall of the machine explains.
    pub fn assert_no_errors(&self, some: impl Fn(&Check) -> bool) {
        let strange = self.errors().find(|check| some(check) && !self.stalled_around(check));
        assert!(strange.is_none(), "{strange:?}; log:\n{}", self.logs.concat());
    }

    pub fn errors(&self) -> impl Iterator<Item = &Check> {
        self.records.checks.iter().filter(|check| check.is_error())
    }

    /// The same run as some callers saw it.
    pub fn only(&self, some: impl Fn(&Check) -> bool) -> Self {
        let checks = self.records.checks.iter().filter(|check| some(check)).copied().collect();
        let records = Records { checks, control: self.records.control.clone() };
        Self { records, quota: self.quota, logs: self.logs.clone() }
    }

    /// Checks sent within a span of time.
    pub fn between(&self, from: Duration, to: Duration) -> impl Iterator<Item = &Check> {
        self.records.checks.iter().filter(move |check| (from..=to).contains(&check.sent))
    }

    fn stalled_around(&self, check: &Check) -> bool {
        let span = check.sent.saturating_sub(AFTER_STALL)..=check.answered;
        let near = |check: &&Check| span.contains(&check.sent) || span.contains(&check.answered);
        self.records.control.iter().filter(near).any(|control| control.answered - control.due > STALL)
    }

    /// How much longer a check took than it may, the time that the machine stood still taken off.
    fn lateness(&self, check: &Check) -> Duration {
        let over = check.latency().saturating_sub(timeout() + ALLOWANCE);
        if over.is_zero() {
            return over;
        }
        let overlaps = |control: &&Check| control.due <= check.answered && control.answered >= check.sent;
        let stall = self.records.control.iter().filter(overlaps).map(|control| control.answered - control.due).max();
        over.saturating_sub(stall.unwrap_or_default())
    }

    /// The figures of a run.
    pub fn row(&self, fault: &'static str, topology: &'static str, window: Window) -> Row {
        let last_error = self.errors().map(|check| check.answered).filter(|at| *at >= window.injected).max();
        let first_error = self.errors().map(|check| check.answered).filter(|at| *at >= window.injected).min();
        let end = last_error.unwrap_or_default().max(window.cleared).max(window.injected + AFTERMATH);
        let within: Vec<&Check> = self.records.checks.iter().filter(|c| overlap(c, window.injected, end)).collect();
        let control = self.records.control.iter().filter(|c| overlap(c, window.injected, end));
        let count = |outcome| within.iter().filter(|check| check.outcome == outcome).count();
        Row {
            fault,
            topology,
            admitted: count(Outcome::Admitted),
            denied: count(Outcome::Denied),
            degraded: count(Outcome::Degraded) + count(Outcome::Unavailable),
            longest: within.iter().map(|check| check.latency()).max().unwrap_or_default(),
            control: control.map(Check::latency).max().unwrap_or_default(),
            late: within.iter().filter(|check| !self.lateness(check).is_zero()).count(),
            first_error: first_error.map(|at| at - window.injected),
            last_error: last_error.map(|at| at.saturating_sub(window.cleared)),
            over_admission: self.over_admission(),
        }
    }

    /// How many checks of one caller were admitted beyond what its bucket can give, at worst.
    pub fn over_admission(&self) -> f64 {
        let callers = self.records.checks.iter().map(|check| check.caller).max().map_or(0, |last| last + 1);
        (0..callers).map(|caller| self.over_admission_of(caller)).fold(0.0, f64::max)
    }

    pub fn over_admission_of(&self, caller: usize) -> f64 {
        let admitted = |check: &&Check| check.caller == caller && check.outcome == Outcome::Admitted;
        let spans = self.records.checks.iter().filter(admitted).map(|check| (check.sent, check.answered));
        excess(&spans.collect::<Vec<_>>(), self.quota)
    }
}

/// Whether a check was open at any time between.
fn overlap(check: &Check, from: Duration, to: Duration) -> bool {
    check.answered >= from && check.sent <= to
}

/// How much was taken beyond `max_tokens + refill_rate * t`, in the span of time of length t where that is the most.
///
/// A take happened somewhen between its sending and its answer, so only what lies wholly within a span is counted
/// there: what this finds is surely too much.
pub fn excess(takes: &[(Duration, Duration)], quota: Quota) -> f64 {
    let mut by_end = takes.to_vec();
    by_end.sort_by_key(|(_, end)| *end);
    let mut worst = 0.0_f64;
    for (from, _) in takes {
        let mut count = 0.0;
        for (_, end) in by_end.iter().filter(|(start, _)| start >= from) {
            count += 1.0;
            let most = quota.max_tokens + quota.refill_rate * (*end - *from).as_secs_f64();
            worst = worst.max(count - most);
        }
    }
    // Less than a token is what the ends of the span are uncertain by.
    worst.floor()
}

#[test]
fn what_a_bucket_gives_at_most_is_known() {
    let quota = Quota { max_tokens: 2.0, refill_rate: 1.0 };
    let at = |millis: &[u64]| -> Vec<_> {
        millis.iter().map(|ms| (Duration::from_millis(*ms), Duration::from_millis(*ms + 1))).collect()
    };
    assert_eq!(excess(&at(&[0, 10, 1020, 2030]), quota), 0.0);
    assert_eq!(excess(&at(&[0, 5000, 5010, 5020, 5030]), quota), 1.0, "the last four in 31 ms");
}
