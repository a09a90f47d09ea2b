//! `lua/take.lua`, `lua/peek.lua`, `lua/refund.lua`, the memory store and `bucket` are one arithmetic: on random histories
//! they agree bit for bit, in what they answer and in what they store.

use crate::support::{Hands, redis, unique_prefix, user};
use ::redis::{Connection, Value};
use futures_util::FutureExt;
use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use std::cell::{Cell, RefCell};
use tidegate::bucket::{Charge, Key, Level, Quota, Source, State, Taken, Timestamp, refund, take};
use tidegate::store::Store;
use tidegate::store::memory::MemoryStore;

const HISTORIES: u32 = 200;
const STEPS_PER_HISTORY: usize = 500;
const LEAST_STEPS: usize = 100_000;
const BUCKETS: usize = 5;

/// Longer than a test runs, so that no bucket expires by the server's own clock, which these histories do not follow.
const TIME_TO_LIVE: u64 = 100_000;

/// The latest time whose six decimals a double holds: see `lua/take.lua`.
const LATEST: u64 = (1 << 32) * 1_000_000 - 1;

/// One take, in terms of what its history gives it. Kept small: a history has many, and what they are made from is
/// what takes the time.
#[derive(Clone, Copy, Debug)]
struct Step {
    /// What the clock does first, in microseconds.
    clock: i64,
    /// Decides all else.
    dice: Dice,
}

/// Numbers that follow from a seed (splitmix64).
#[derive(Clone, Copy, Debug)]
struct Dice(u64);

impl Dice {
    fn roll(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.roll() % bound as u64) as usize
    }

    /// From 0 to 1, and not 1.
    fn share(&mut self) -> f64 {
        (self.roll() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Some of the buckets, at least one, in any order.
    fn buckets(&mut self) -> Vec<usize> {
        let mut all: Vec<usize> = (0..BUCKETS).collect();
        (0..=self.below(BUCKETS)).map(|_| all.swap_remove(self.below(all.len()))).collect()
    }

    fn cost(&mut self, quota: &Quota) -> f64 {
        match self.below(12) {
            0..4 => 1.0,
            4 => 0.0,
            5..7 => 5.0 * self.share(),
            7..10 => 0.7 * self.share() * quota.max_tokens(),
            10 => quota.max_tokens(),
            _ => 1.5 * quota.max_tokens(),
        }
    }
}

#[derive(Clone, Debug)]
struct History {
    start: u64,
    quotas: Vec<Quota>,
    /// Whether quotas change underway. The memory store then expires buckets at other times than Redis.
    shifting: bool,
    steps: Vec<Step>,
}

fn quotas() -> impl Strategy<Value = Quota> {
    let tokens =
        prop_oneof![(1..=2000_u32).prop_map(f64::from), 0.001..10.0, 1.0..1e9, Just(f64::MIN_POSITIVE), Just(9e15),];
    let seconds_to_fill = prop_oneof![0.001..1.0, 1.0..200.0, 200.0..3e8, (1..=600_u32).prop_map(f64::from)];
    (tokens, seconds_to_fill)
        .prop_map(|(tokens, seconds)| Quota::parse(tokens, tokens / seconds))
        .prop_filter_map("a quota's rate is above 0", Result::ok)
}

fn clock_steps() -> impl Strategy<Value = i64> {
    const SECOND: i64 = 1_000_000;
    prop_oneof![
        3 => Just(0),
        6 => 1..100_000_i64,
        6 => 1..5 * SECOND,
        2 => (0..100_i64).prop_map(|seconds| seconds * SECOND),
        2 => -3 * SECOND..0,
        1 => -10_000 * SECOND..10_000 * SECOND,
        1 => -1_000_000_000 * SECOND..1_000_000_000 * SECOND,
    ]
}

fn steps() -> impl Strategy<Value = Step> {
    (clock_steps(), any::<u64>()).prop_map(|(clock, seed)| Step { clock, dice: Dice(seed) })
}

fn histories() -> impl Strategy<Value = History> {
    (
        prop_oneof![Just(0), Just(1_700_000_000_000_000), 0..LATEST],
        prop::collection::vec(quotas(), BUCKETS),
        any::<bool>(),
        prop::collection::vec(steps(), STEPS_PER_HISTORY),
    )
        .prop_map(|(start, quotas, shifting, steps)| History { start, quotas, shifting, steps })
}

/// A step made concrete: what is taken, and when.
#[derive(Debug)]
struct Take {
    now: Timestamp,
    buckets: Vec<usize>,
    charges: Vec<Charge>,
}

impl History {
    fn takes(&self, keys: &[Key]) -> Vec<Take> {
        let mut takes = vec![self.opening(keys)];
        let mut micros = self.start;
        for step in &self.steps {
            micros = micros.saturating_add_signed(step.clock).min(LATEST);
            let mut dice = step.dice;
            let buckets = dice.buckets();
            let charges = buckets.iter().map(|&bucket| self.charge(&mut dice, bucket, &keys[bucket])).collect();
            takes.push(Take { now: Timestamp { micros }, buckets, charges });
        }
        takes
    }

    /// Takes nothing from every bucket, so that all of them are stored. The memory store sweeps what has expired when
    /// it stores a new one, and a clock that then steps back would tell a bucket that was swept from one that was not.
    fn opening(&self, keys: &[Key]) -> Take {
        let charge = |(key, quota): (&Key, &Quota)| Charge { key: key.clone(), quota: *quota, cost: 0.0 };
        let charges = keys.iter().zip(&self.quotas).map(charge).collect();
        Take { now: Timestamp { micros: self.start }, buckets: (0..BUCKETS).collect(), charges }
    }

    fn charge(&self, dice: &mut Dice, bucket: usize, key: &Key) -> Charge {
        let shifts = self.shifting && dice.below(5) == 0;
        let quota = self.quotas[if shifts { dice.below(BUCKETS) } else { bucket }];
        Charge { key: key.clone(), quota, cost: dice.cost(&quota) }
    }
}

/// What a take answered, and what is stored of its buckets afterwards. Compared by bits.
#[derive(Debug, PartialEq)]
struct Outcome {
    admitted: bool,
    tokens: Vec<u64>,
    waits: Vec<u64>,
    stored: Vec<Option<(u64, u64)>>,
}

fn outcome(taken: &Taken, charges: &[Charge], stored: impl Iterator<Item = Option<State>>) -> Outcome {
    Outcome {
        admitted: taken.admitted,
        tokens: taken.tokens(charges).map(f64::to_bits).collect(),
        waits: taken.levels.iter().zip(charges).map(|(level, c)| level.wait(&c.quota, c.cost)).collect(),
        stored: stored.map(|state| state.map(bits)).collect(),
    }
}

fn bits(state: State) -> (u64, u64) {
    (state.tokens.to_bits(), state.last_refill.micros)
}

fn by_definition(takes: &[Take]) -> Vec<Outcome> {
    let mut states = [None; BUCKETS];
    let run = |step: &Take| {
        let mut own: Vec<Option<State>> = step.buckets.iter().map(|&bucket| states[bucket]).collect();
        let taken = take(&step.charges, &mut own, step.now);
        step.buckets.iter().zip(&own).for_each(|(&bucket, state)| states[bucket] = *state);
        outcome(&taken, &step.charges, own.into_iter())
    };
    takes.iter().map(run).collect()
}

fn by_memory(takes: &[Take]) -> Vec<Outcome> {
    let clock = Hands::new();
    let store = MemoryStore::new(clock.0.clone(), 1000);
    let run = |step: &Take| {
        clock.0.set(step.now);
        let peeked = store.peek(&step.charges).now_or_never().unwrap().unwrap();
        let taken = store.take(&step.charges).now_or_never().unwrap().unwrap();
        assert_eq!(peeked.admitted, taken.admitted);
        // What has expired is not shown, and is compared through the tokens of later takes.
        let inspect = |charge: &Charge| store.inspect(&charge.key).now_or_never().unwrap().unwrap();
        outcome(&taken, &step.charges, step.charges.iter().map(inspect))
    };
    takes.iter().map(run).collect()
}

/// The scripts, on a server of their own: other tests make theirs forget its scripts.
struct Scripts {
    connection: Connection,
    take: String,
    peek: String,
    refund: String,
}

impl Scripts {
    fn load(server: &redis::Server) -> Self {
        let mut connection = server.connection();
        let mut load = |text: &str| ::redis::cmd("SCRIPT").arg("LOAD").arg(text).query(&mut connection).unwrap();
        let take = load(include_str!("../../lua/take.lua"));
        let peek = load(include_str!("../../lua/peek.lua"));
        let refund = load(include_str!("../../lua/refund.lua"));
        Self { connection, take, peek, refund }
    }

    /// Runs a history in one pipeline: each take between a peek and a look at what is stored.
    fn run(&mut self, takes: &[Take]) -> Vec<Outcome> {
        let mut pipeline = ::redis::pipe();
        for step in takes {
            call(&mut pipeline, &self.peek, &step.charges, step.now);
            call(&mut pipeline, &self.take, &step.charges, step.now);
            for charge in &step.charges {
                pipeline.cmd("HMGET").arg(charge.key.as_str()).arg("tokens").arg("last_refill");
            }
        }
        let replies: Vec<Value> = pipeline.query(&mut self.connection).unwrap();
        let mut replies = replies.into_iter();
        takes.iter().map(|step| read(step, &mut replies)).collect()
    }
}

fn call(pipeline: &mut ::redis::Pipeline, digest: &str, charges: &[Charge], now: Timestamp) {
    pipeline.cmd("EVALSHA").arg(digest).arg(charges.len());
    for charge in charges {
        pipeline.arg(charge.key.as_str());
    }
    pipeline.arg(now.micros);
    for Charge { quota, cost, .. } in charges {
        pipeline.arg(quota.max_tokens()).arg(quota.refill_rate()).arg(*cost).arg(TIME_TO_LIVE);
    }
}

fn read(step: &Take, replies: &mut impl Iterator<Item = Value>) -> Outcome {
    let peeked = reply(replies.next().unwrap());
    let taken = reply(replies.next().unwrap());
    let after = peeked.tokens(&step.charges).zip(&step.charges).map(|(tokens, charge)| tokens - charge.cost);
    assert_eq!(peeked.admitted, taken.admitted);
    assert!(if taken.admitted { after.eq(taken.tokens(&step.charges)) } else { peeked.levels == taken.levels });
    let stored: Vec<_> = replies.take(step.charges.len()).map(stored).collect();
    outcome(&taken, &step.charges, stored.into_iter())
}

fn reply(value: Value) -> Taken {
    let text: String = ::redis::from_redis_value(value).unwrap();
    let (flag, levels) = text.split_once(' ').unwrap();
    let words: Vec<f64> = levels.split(' ').map(|word| word.parse().unwrap()).collect();
    let levels = words.chunks_exact(2).map(|pair| Level { tokens: pair[0], elapsed: pair[1] }).collect();
    Taken { admitted: flag == "1", levels, source: Source::Store }
}

fn stored(value: Value) -> Option<State> {
    let [tokens, last_refill]: [Option<f64>; 2] = ::redis::from_redis_value(value).unwrap();
    let micros = (last_refill? * 1e6 + 0.5).floor() as u64;
    Some(State { tokens: tokens?, last_refill: Timestamp { micros } })
}

/// The first step at which `seen` is not as defined, in words.
fn difference(takes: &[Take], seen: &[Outcome], same: impl Fn(&Outcome, &Outcome) -> bool) -> Option<String> {
    let defined = by_definition(takes);
    assert_eq!(seen.len(), defined.len());
    let at = (0..seen.len()).find(|&at| !same(&defined[at], &seen[at]))?;
    Some(format!("step {at}: {:?}\ndefined: {:x?}\n   seen: {:x?}", takes[at], defined[at], seen[at]))
}

/// Equal, except that an expired bucket need not be shown.
fn same_but_for_expiry(defined: &Outcome, seen: &Outcome) -> bool {
    let mut stored = defined.stored.iter().zip(&seen.stored);
    let answer = |it: &Outcome| (it.admitted, it.tokens.clone(), it.waits.clone());
    answer(defined) == answer(seen) && stored.all(|(d, s)| s.is_none() || d == s)
}

#[test]
fn script_memory_and_definition_agree_bit_for_bit() {
    let server = redis::Server::start(&[]);
    let scripts = RefCell::new(Scripts::load(&server));
    let steps = Cell::new(0);
    let mut runner = TestRunner::new(ProptestConfig { cases: HISTORIES, ..ProptestConfig::with_source_file(file!()) });
    let result = runner.run(&histories(), |history| {
        let prefix = unique_prefix();
        let keys: Vec<Key> = (0..BUCKETS).map(|bucket| user(&prefix, &bucket.to_string())).collect();
        let takes = history.takes(&keys);
        let by_script = scripts.borrow_mut().run(&takes);
        prop_assert_eq!(difference(&takes, &by_script, Outcome::eq), None);
        if !history.shifting {
            prop_assert_eq!(difference(&takes, &by_memory(&takes), same_but_for_expiry), None);
        }
        steps.set(steps.get() + takes.len());
        Ok(())
    });
    if let Err(error) = result {
        panic!("{error}");
    }
    assert!(steps.get() >= LEAST_STEPS, "{}", steps.get());
}

/// What is stored of a step's first bucket, after its take and then a refund of what it cost there.
fn refunded_by_definition(takes: &[Take]) -> Vec<Option<(u64, u64)>> {
    let mut states = [None; BUCKETS];
    let run = |step: &Take| {
        let mut own: Vec<Option<State>> = step.buckets.iter().map(|&bucket| states[bucket]).collect();
        take(&step.charges, &mut own, step.now);
        own[0] = refund(&step.charges[0], own[0], step.now).or(own[0]);
        step.buckets.iter().zip(&own).for_each(|(&bucket, state)| states[bucket] = *state);
        own[0].map(bits)
    };
    takes.iter().map(run).collect()
}

fn refunded_by_script(scripts: &mut Scripts, takes: &[Take]) -> Vec<Option<(u64, u64)>> {
    let mut pipeline = ::redis::pipe();
    for step in takes {
        call(&mut pipeline, &scripts.take, &step.charges, step.now);
        call(&mut pipeline, &scripts.refund, &step.charges[..1], step.now);
        pipeline.cmd("HMGET").arg(step.charges[0].key.as_str()).arg("tokens").arg("last_refill");
    }
    let replies: Vec<Value> = pipeline.query(&mut scripts.connection).unwrap();
    replies.chunks_exact(3).map(|of_step| stored(of_step[2].clone()).map(bits)).collect()
}

#[test]
fn what_a_refund_leaves_is_what_it_leaves_by_definition_bit_for_bit() {
    let server = redis::Server::start(&[]);
    let scripts = RefCell::new(Scripts::load(&server));
    let mut runner = TestRunner::new(ProptestConfig { cases: 40, ..ProptestConfig::with_source_file(file!()) });
    let result = runner.run(&histories(), |history| {
        let prefix = unique_prefix();
        let keys: Vec<Key> = (0..BUCKETS).map(|bucket| user(&prefix, &bucket.to_string())).collect();
        // Without the opening, so that buckets that are not stored are refunded too.
        let takes = history.takes(&keys).split_off(1);
        let seen = refunded_by_script(&mut scripts.borrow_mut(), &takes);
        prop_assert_eq!(seen, refunded_by_definition(&takes));
        Ok(())
    });
    if let Err(error) = result {
        panic!("{error}");
    }
}
