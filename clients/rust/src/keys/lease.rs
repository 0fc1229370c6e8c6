//! What a process was told of a key: units that it may hand out, and refusals that it may repeat.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::share::{Rules, longest_wait};
use crate::commands::{Verdict, Verdicts};

/// Units that are counted and not yet used.
#[derive(Clone, Debug)]
pub(super) struct Lease {
    pub left: u64,
    /// Units that it had after those who waited were served. It never takes back more.
    pub granted: u64,
    pub at: SystemTime,
    pub ends: Duration,
    /// The verdict on the request that uses the last unit, by the reply.
    verdict: Verdict,
    replied: Duration,
}

impl Lease {
    /// Makes a lease of the units that a reply to `PARTIAL` granted.
    pub fn new(reply: Verdict, now: Duration, ttl: Duration) -> Lease {
        let (left, at) = (reply.taken.unwrap_or(0).max(0).unsigned_abs(), reply.at.unwrap_or(UNIX_EPOCH));
        let verdict = Verdict { limited: false, retry_after: None, ..reply };
        Lease { left, granted: left, at, ends: now + ttl, verdict, replied: now }
    }

    /// Hands out units.
    pub fn serve(&mut self, now: Duration, cost: i64) -> Verdict {
        self.left -= cost.unsigned_abs();
        Verdict {
            remaining: self.verdict.remaining + self.left,
            reset_after: less(self.verdict.reset_after, now, self.replied),
            taken: Some(cost),
            ..self.verdict
        }
    }

    /// Takes back units that were handed out. Returns false if they belong to another lease, or this one is over.
    pub fn put_back(&mut self, now: Duration, at: SystemTime, units: i64) -> bool {
        let left = self.left + units.max(0).unsigned_abs();
        let is_its_own = at == self.at && now < self.ends && left <= self.granted;
        self.left = if is_its_own { left } else { self.left };
        is_its_own
    }
}

/// A remembered refusal, which is repeated without asking.
#[derive(Clone, Debug)]
pub(super) struct Refusal {
    /// It refuses requests of this cost and more.
    cost: i64,
    rows: Vec<Verdict>,
    replied: Duration,
    until: Duration,
}

impl Refusal {
    pub fn new(cost: i64, rows: Vec<Verdict>, now: Duration, remember: Duration) -> Refusal {
        let wait = longest_wait(&rows).flatten().unwrap_or(Duration::MAX);
        Refusal { cost, rows, replied: now, until: now.saturating_add(remember.min(wait)) }
    }

    pub fn holds(&self, now: Duration) -> bool {
        now < self.until
    }

    /// Whether it refuses a request of this cost. A refusal that no wait helps says nothing of smaller costs, and one with a
    /// wait nothing of costs that no wait helps.
    pub fn holds_for(&self, rules: &Rules, cost: i64) -> bool {
        let is_hopeless = longest_wait(&self.rows) == Some(None);
        cost >= self.cost && rules.is_hopeless(cost) == is_hopeless
    }

    /// The rows of the reply, with the waits that are left.
    pub fn told(&self, now: Duration) -> Vec<Verdict> {
        let later = |row: &Verdict| Verdict {
            retry_after: row.retry_after.map(|wait| less(wait, now, self.replied)),
            reset_after: less(row.reset_after, now, self.replied),
            ..*row
        };
        self.rows.iter().map(later).collect()
    }

    pub fn verdict(&self, now: Duration) -> Option<Verdict> {
        let rows = self.told(now);
        Verdicts { limited: true, retry_after: None, at: UNIX_EPOCH, rows }.tightest()
    }
}

/// The rest of a wait. The time that has passed is rounded down to milliseconds, so the rest is never too short.
fn less(wait: Duration, now: Duration, since: Duration) -> Duration {
    let gone = Duration::from_millis(now.saturating_sub(since).as_millis() as u64);
    wait.saturating_sub(gone)
}
