//! Buckets on a Cluster, where no script may touch two slots: each is asked by a script of its own, all at once, and what
//! was taken is given back where another bucket denied or failed.
//!
//! So nothing is ever admitted that not every bucket covered. For as long as the giving back takes, another request may
//! find less in a bucket than there should be. What one bucket gave and did not say in time, or what could not be given
//! back, it stays short of until it is refilled; so do all of them if this process dies in between.

use super::cluster::Cluster;
use super::node::Request;
use super::script::{self, Run, Script};
use crate::bucket::{Charge, Charges, Level, Levels, Source, Taken, Timestamp};
use crate::complaint::Complaint;
use crate::store::StoreError;
use futures_util::future::join_all;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// How long giving tokens back may take. Nobody waits for it.
const REFUND_TIMEOUT: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(super) struct Shards {
    pub(super) cluster: Cluster,
    take: Script,
    peek: Script,
    refund: Script,
    lost_refunds: Complaint,
}

impl Shards {
    pub(super) fn of(cluster: Cluster) -> Self {
        let (take, peek, refund) = (Script::take(), Script::peek(), Script::refund());
        Self { cluster, take, peek, refund, lost_refunds: Complaint::default() }
    }

    pub(super) async fn peek(
        &self,
        charges: &[Charge],
        now: Option<Timestamp>,
        deadline: Instant,
    ) -> Result<Taken, StoreError> {
        let answers = self.run_each(&self.peek, charges, now, deadline).await;
        let answers: Vec<Taken> = answers.into_iter().collect::<Result<_, _>>()?;
        Ok(whole(answers.iter().all(|found| found.admitted), answers.into_iter().flat_map(|found| found.levels)))
    }

    /// Several buckets are taken from in a task of its own: if the caller gives up, what was taken is given back all the
    /// same.
    pub(super) async fn take(
        self: &Arc<Self>,
        charges: &[Charge],
        now: Option<Timestamp>,
        deadline: Instant,
    ) -> Result<Taken, StoreError> {
        if let [charge] = charges {
            return self.run_one(&self.take, charge, now, deadline).await;
        }
        let (shards, charges) = (self.clone(), charges.iter().cloned().collect::<Charges>());
        let task = tokio::spawn(async move {
            let sent = Instant::now();
            let answers = shards.run_each(&shards.take, &charges, now, deadline).await;
            shards.settle(charges, answers, sent, now)
        });
        // A task is lost only with the runtime.
        task.await.unwrap_or_else(|lost| Err(StoreError::Connection(lost.to_string())))
    }

    async fn run_each(
        &self,
        script: &Script,
        charges: &[Charge],
        now: Option<Timestamp>,
        deadline: Instant,
    ) -> Vec<Result<Taken, StoreError>> {
        join_all(charges.iter().map(|charge| self.run_one(script, charge, now, deadline))).await
    }

    async fn run_one(
        &self,
        script: &Script,
        charge: &Charge,
        now: Option<Timestamp>,
        deadline: Instant,
    ) -> Result<Taken, StoreError> {
        let run = Run { script, charges: std::slice::from_ref(charge), now };
        let reply = self.cluster.call(script::slot_of(&charge.key), Request::Script(&run), deadline).await?;
        script::parse(&reply, 1)
    }

    /// Puts the answers together, and gives back what was taken unless all was: as much as cannot have flowed in since it
    /// was sent for.
    ///
    /// A denial stands, whatever befell the other buckets: one that failed is then told as full.
    fn settle(
        self: Arc<Self>,
        charges: Charges,
        answers: Vec<Result<Taken, StoreError>>,
        sent: Instant,
        now: Option<Timestamp>,
    ) -> Result<Taken, StoreError> {
        let all = answers.iter().all(|answer| answer.as_ref().is_ok_and(|taken| taken.admitted));
        let denied = answers.iter().any(|answer| answer.as_ref().is_ok_and(|taken| !taken.admitted));
        let (mut levels, mut failure) = (Levels::new(), None);
        for (charge, answer) in charges.into_iter().zip(answers) {
            match answer {
                Ok(taken) => {
                    let given_back = taken.admitted && !all;
                    let back = if given_back { charge.cost } else { 0.0 };
                    levels.extend(taken.levels.iter().map(|level| Level { tokens: level.tokens + back, ..*level }));
                    if let Some(charge) = charge.refundable(sent.elapsed()).filter(|_| given_back) {
                        self.clone().give_back(charge, now);
                    }
                }
                Err(error) => {
                    levels.push(Level { tokens: charge.quota.max_tokens(), elapsed: 0.0 });
                    // That something may have been charged must not be hidden by a failure that charged nothing.
                    failure = failure.filter(StoreError::may_have_charged).or(Some(error));
                }
            }
        }
        match failure {
            Some(error) if !denied => Err(error),
            _ => Ok(whole(all, levels)),
        }
    }

    /// Gives tokens back, without anybody waiting.
    fn give_back(self: Arc<Self>, charge: Charge, now: Option<Timestamp>) {
        tokio::spawn(async move {
            let run = Run { script: &self.refund, charges: std::slice::from_ref(&charge), now };
            let (slot, deadline) = (script::slot_of(&charge.key), Instant::now() + REFUND_TIMEOUT);
            if let Err(error) = self.cluster.call(slot, Request::Script(&run), deadline).await {
                self.lost_refunds.say(|more| {
                    tracing::warn!(%error, more, "tokens of a denied request could not be given back");
                });
            }
        });
    }
}

fn whole(admitted: bool, levels: impl IntoIterator<Item = Level>) -> Taken {
    Taken { admitted, levels: levels.into_iter().collect(), source: Source::Store }
}
