//! What a process knows of one key.

use std::collections::{HashMap, VecDeque};
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use lru::LruCache;

use super::share::{RequestId, Rules, Share, longest_wait};
use crate::commands::{Decision, Verdict};

/// Units that are counted and not yet used.
#[derive(Clone, Debug)]
pub(super) struct Lease {
    pub left: u64,
    /// Units that it had at first.
    pub granted: u64,
    pub at: SystemTime,
    pub ends: Duration,
    /// As of the reply, when all of it is used.
    verdict: Verdict,
    replied: Duration,
}

impl Lease {
    /// Of the reply to `PARTIAL`.
    pub fn new(reply: Verdict, now: Duration, lasting: Duration) -> Lease {
        let (left, at) = (reply.taken.unwrap_or(0).max(0).unsigned_abs(), reply.at.unwrap_or(UNIX_EPOCH));
        let verdict = Verdict { limited: false, retry_after: None, ..reply };
        Lease { left, granted: left, at, ends: now + lasting, verdict, replied: now }
    }

    /// Takes units of it.
    pub fn serve(&mut self, now: Duration, cost: i64) -> Verdict {
        self.left -= cost.unsigned_abs();
        Verdict {
            remaining: self.verdict.remaining + self.left,
            reset_after: less(self.verdict.reset_after, now, self.replied),
            taken: Some(cost),
            ..self.verdict
        }
    }

    /// Whether units that were counted then are back in it, as if they had not been handed out.
    pub fn put_back(&mut self, now: Duration, at: SystemTime, units: i64) -> bool {
        let left = self.left + units.max(0).unsigned_abs();
        let is_its_own = at == self.at && now < self.ends && left <= self.granted;
        self.left = if is_its_own { left } else { self.left };
        is_its_own
    }
}

/// A refusal that is repeated.
#[derive(Clone, Debug)]
pub(super) struct Refusal {
    /// Requests of this cost and more are refused.
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

    /// Whether a request of this cost is refused likewise: one that no wait helps is another.
    pub fn holds_for(&self, rules: &Rules, cost: i64) -> bool {
        let is_hopeless = longest_wait(&self.rows) == Some(None);
        cost >= self.cost && rules.is_hopeless(cost) == is_hopeless
    }

    /// With the waits that are left.
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
        Decision { limited: true, retry_after: None, at: UNIX_EPOCH, rows }.tightest()
    }
}

/// A key by its rules: its lease, its refusal, and the requests that wait for its command in flight.
#[derive(Clone, Debug)]
pub(super) struct Key {
    pub name: Arc<[u8]>,
    pub rules: Arc<Rules>,
    pub lease: Option<Lease>,
    pub refusal: Option<Refusal>,
    pub is_in_flight: bool,
    /// Shares of requests, by their place.
    pub waiting: VecDeque<(RequestId, usize)>,
    /// Units that were asked for since this span of time began, and in such a span before it.
    since: Duration,
    pub asked: u64,
    before: u64,
}

impl Key {
    /// A key of which nothing is known.
    pub fn new(name: Arc<[u8]>, rules: Arc<Rules>, now: Duration) -> Key {
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

    /// To give units back.
    fn share(&self) -> Share {
        Share { key: self.name.clone(), rules: self.rules.clone(), cost: 0 }
    }

    /// Takes units of the lease, if it has them.
    pub fn serve(&mut self, now: Duration, cost: i64) -> Option<Verdict> {
        self.serves(now, cost).then(|| self.lease.as_mut().map(|lease| lease.serve(now, cost))).flatten()
    }

    pub fn serves(&self, now: Duration, cost: i64) -> bool {
        let lease = self.lease.as_ref();
        lease.is_some_and(|lease| cost > 0 && cost.unsigned_abs() <= lease.left && now < lease.ends)
    }

    /// The refusal that is remembered, if it holds.
    pub fn refused(&self, now: Duration, cost: i64) -> Option<&Refusal> {
        self.refusal.as_ref().filter(|refusal| refusal.holds(now) && refusal.holds_for(&self.rules, cost))
    }

    /// The units of the next lease: those that were asked for in as long as it lasts.
    pub fn size(&mut self, now: Duration) -> u64 {
        let (lasting, gone) = (self.rules.lease, now.saturating_sub(self.since));
        if gone >= lasting {
            let share = u128::from(self.asked) * lasting.as_nanos() / gone.as_nanos().max(1);
            (self.since, self.before, self.asked) = (now, share as u64, 0);
        }
        self.asked.max(self.before).min(self.rules.units)
    }
}

/// The keys that were used last, by rules and name.
#[derive(Debug)]
pub(super) struct Known {
    /// The least recently used goes first.
    keys: LruCache<Arc<[u8]>, Key>,
    /// Those that went while a command of theirs was in flight.
    leaving: HashMap<Arc<[u8]>, Key>,
    /// The name that was looked up last.
    name: Vec<u8>,
}

impl Known {
    pub fn new(max: NonZeroUsize) -> Known {
        Known { keys: LruCache::sparse(max), leaving: HashMap::new(), name: Vec::new() }
    }

    /// By what a key is remembered.
    pub fn name(&mut self, rules: &Rules, key: &[u8]) -> &[u8] {
        self.name.clear();
        self.name.extend_from_slice(&rules.tag);
        self.name.extend_from_slice(key);
        &self.name
    }

    /// A key that is used now.
    pub fn used(&mut self, rules: &Rules, key: &[u8]) -> Option<&mut Key> {
        self.name(rules, key);
        self.keys.get_mut(&self.name[..])
    }

    pub fn get(&mut self, share: &Share) -> Option<&mut Key> {
        self.name(&share.rules, &share.key);
        self.keys.peek_mut(&self.name[..]).or_else(|| self.leaving.get_mut(&self.name[..]))
    }

    /// From now on. Tells which one left for it.
    pub fn remember(&mut self, share: &Share, now: Duration) -> Option<Share> {
        if self.used(&share.rules, &share.key).is_some() {
            return None;
        }
        let name: Arc<[u8]> = self.name[..].into();
        let key = self.leaving.remove(&name);
        let key = key.unwrap_or_else(|| Key::new(share.key.clone(), share.rules.clone(), now));
        let (name, oldest) = self.keys.push(name, key)?;
        let share = oldest.share();
        self.leaving.insert(name, oldest);
        Some(share)
    }

    /// Whether it is a key that waits for nothing, and is not remembered.
    pub fn is_leaving(&mut self, share: &Share) -> bool {
        self.name(&share.rules, &share.key);
        self.leaving.get(&self.name[..]).is_some_and(|key| !key.is_in_flight)
    }

    pub fn leave(&mut self, share: &Share) {
        self.name(&share.rules, &share.key);
        self.leaving.remove(&self.name[..]);
    }

    /// The key of this name, if it has a lease that ends then.
    pub fn leased_until(&self, name: &[u8], ends: Duration) -> Option<Share> {
        let key = self.keys.peek(name).or_else(|| self.leaving.get(name))?;
        (key.lease.as_ref()?.ends == ends).then(|| key.share())
    }

    /// The least recently used first.
    pub fn all(&self) -> Vec<Share> {
        self.keys.iter().rev().map(|(_, key)| key.share()).collect()
    }
}

/// What is left of a wait. Whole milliseconds are taken from it, rounded down, so that it is never too short.
fn less(wait: Duration, now: Duration, since: Duration) -> Duration {
    let gone = Duration::from_millis(now.saturating_sub(since).as_millis() as u64);
    wait.saturating_sub(gone)
}
