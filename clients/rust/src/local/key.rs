//! What a process knows of one key.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use super::request::{RequestId, Rules, longest_wait};
use crate::{Decision, Verdict};

/// Units that are counted and not yet used.
#[derive(Clone, Debug)]
pub struct Lease {
    pub(super) left: u64,
    /// Units that it had at first.
    pub(super) granted: u64,
    pub(super) at: SystemTime,
    pub(super) ends: Duration,
    /// As of the reply, when all of it is used.
    verdict: Verdict,
    replied: Duration,
}

impl Lease {
    /// Of the reply to `PARTIAL`.
    pub(super) fn new(reply: Verdict, at: SystemTime, left: u64, now: Duration, lasting: Duration) -> Lease {
        let verdict = Verdict { limited: false, retry_after: None, ..reply };
        Lease { left, granted: left, at, ends: now + lasting, verdict, replied: now }
    }

    /// Takes units of it.
    pub(super) fn serve(&mut self, now: Duration, cost: i64) -> Verdict {
        self.left -= cost.unsigned_abs();
        Verdict {
            remaining: self.verdict.remaining + self.left,
            reset_after: less(self.verdict.reset_after, now, self.replied),
            taken: Some(cost),
            ..self.verdict
        }
    }
}

/// A refusal that is repeated.
#[derive(Clone, Debug)]
pub struct Refusal {
    /// Requests of this cost and more are refused.
    cost: i64,
    rows: Vec<Verdict>,
    replied: Duration,
    until: Duration,
}

impl Refusal {
    pub(super) fn new(cost: i64, rows: Vec<Verdict>, now: Duration, remember: Duration) -> Refusal {
        let wait = longest_wait(&rows).flatten().unwrap_or(Duration::MAX);
        Refusal { cost, rows, replied: now, until: now.saturating_add(remember.min(wait)) }
    }

    pub(super) fn holds(&self, now: Duration) -> bool {
        now < self.until
    }

    /// Whether a request of this cost is refused likewise: one that no wait helps is another.
    pub(super) fn holds_for(&self, rules: &Rules, cost: i64) -> bool {
        let is_hopeless = longest_wait(&self.rows) == Some(None);
        cost >= self.cost && rules.is_hopeless(cost) == is_hopeless
    }

    /// With the waits that are left.
    pub(super) fn told(&self, now: Duration) -> Vec<Verdict> {
        let later = |row: &Verdict| Verdict {
            retry_after: row.retry_after.map(|wait| less(wait, now, self.replied)),
            reset_after: less(row.reset_after, now, self.replied),
            ..*row
        };
        self.rows.iter().map(later).collect()
    }

    pub(super) fn verdict(&self, now: Duration) -> Option<Verdict> {
        let rows = self.told(now);
        Decision { limited: true, retry_after: None, at: SystemTime::UNIX_EPOCH, rows }.tightest()
    }
}

/// A key by its rules: its lease, its refusal, and the requests that wait for its command in flight.
#[derive(Clone, Debug)]
pub struct Key {
    pub(super) name: Arc<[u8]>,
    pub(super) rules: Arc<Rules>,
    pub(super) lease: Option<Lease>,
    pub(super) refusal: Option<Refusal>,
    pub(super) is_in_flight: bool,
    /// Shares of requests, by their place.
    pub(super) waiting: VecDeque<(RequestId, usize)>,
    /// Units that were asked for since this span of time began, and in such a span before it.
    since: Duration,
    pub(super) asked: u64,
    before: u64,
}

impl Key {
    /// A key of which nothing is known.
    pub(super) fn new(name: Arc<[u8]>, rules: Arc<Rules>, now: Duration) -> Key {
        Key {
            name,
            rules,
            lease: None,
            refusal: None,
            is_in_flight: false,
            waiting: VecDeque::new(),
            since: now,
            asked: 0,
            before: 0,
        }
    }

    /// Takes units of the lease, if it has them.
    pub(super) fn serve(&mut self, now: Duration, cost: i64) -> Option<Verdict> {
        self.serves(now, cost).then(|| self.lease.as_mut().map(|lease| lease.serve(now, cost))).flatten()
    }

    pub(super) fn serves(&self, now: Duration, cost: i64) -> bool {
        let lease = self.lease.as_ref();
        lease.is_some_and(|lease| cost > 0 && cost.unsigned_abs() <= lease.left && now < lease.ends)
    }

    /// The refusal that is remembered, if it holds.
    pub(super) fn refused(&self, now: Duration, cost: i64) -> Option<&Refusal> {
        self.refusal.as_ref().filter(|refusal| refusal.holds(now) && refusal.holds_for(&self.rules, cost))
    }

    /// The units of the next lease: those that were asked for in as long as it lasts.
    pub(super) fn size(&mut self, now: Duration) -> u64 {
        let (lasting, gone) = (self.rules.lease, now.saturating_sub(self.since));
        if gone >= lasting {
            let share = u128::from(self.asked) * lasting.as_nanos() / gone.as_nanos().max(1);
            (self.since, self.before, self.asked) = (now, share as u64, 0);
        }
        self.asked.max(self.before).min(self.rules.units)
    }
}

/// What is left of a wait. Whole milliseconds are taken from it, rounded down, so that it is never too short.
fn less(wait: Duration, now: Duration, since: Duration) -> Duration {
    let gone = Duration::from_millis(now.saturating_sub(since).as_millis() as u64);
    wait.saturating_sub(gone)
}
