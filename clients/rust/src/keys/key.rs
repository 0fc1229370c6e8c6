//! The state of one key in this process: its lease, its remembered refusal, who waits.

use std::collections::{HashMap, VecDeque};
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use lru::LruCache;

use super::share::{RequestId, Rules, Share, longest_wait};
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

/// A key under its rules.
#[derive(Clone, Debug)]
pub(super) struct Key {
    pub name: Arc<[u8]>,
    pub rules: Arc<Rules>,
    pub lease: Option<Lease>,
    pub refusal: Option<Refusal>,
    pub is_in_flight: bool,
    /// Shares of requests, by index, that wait for the command in flight.
    pub waiting: VecDeque<(RequestId, usize)>,
    /// When the span began in which units are added to `asked`.
    since: Duration,
    pub asked: u64,
    /// Units that were asked for in the span before.
    before: u64,
}

impl Key {
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

    fn share(&self) -> Share {
        Share { key: self.name.clone(), rules: self.rules.clone(), cost: 0 }
    }

    /// Hands out units of the lease, if it has enough.
    pub fn serve(&mut self, now: Duration, cost: i64) -> Option<Verdict> {
        self.serves(now, cost).then(|| self.lease.as_mut().map(|lease| lease.serve(now, cost))).flatten()
    }

    pub fn serves(&self, now: Duration, cost: i64) -> bool {
        let lease = self.lease.as_ref();
        lease.is_some_and(|lease| cost > 0 && cost.unsigned_abs() <= lease.left && now < lease.ends)
    }

    /// The remembered refusal, if it refuses this cost now.
    pub fn refused(&self, now: Duration, cost: i64) -> Option<&Refusal> {
        self.refusal.as_ref().filter(|refusal| refusal.holds(now) && refusal.holds_for(&self.rules, cost))
    }

    /// The size of the next lease: the units that were asked for in a span as long as a lease lasts.
    pub fn size(&mut self, now: Duration) -> u64 {
        let (ttl, gone) = (self.rules.ttl(), now.saturating_sub(self.since));
        if gone >= ttl {
            let share = u128::from(self.asked) * ttl.as_nanos() / gone.as_nanos().max(1);
            (self.since, self.before, self.asked) = (now, share as u64, 0);
        }
        self.asked.max(self.before).min(self.rules.units)
    }
}

/// The keys that were used last, by their rules and name.
#[derive(Debug)]
pub(super) struct Known {
    keys: LruCache<Arc<[u8]>, Key>,
    /// Keys that are no longer remembered, until the reply to their command in flight.
    leaving: HashMap<Arc<[u8]>, Key>,
    /// A buffer for the rules and name that are looked up.
    name: Vec<u8>,
}

impl Known {
    pub fn new(max: NonZeroUsize) -> Known {
        Known { keys: LruCache::sparse(max), leaving: HashMap::new(), name: Vec::new() }
    }

    /// The bytes by which a key is remembered: its algorithm, its quotas and its name.
    pub fn name(&mut self, rules: &Rules, key: &[u8]) -> &[u8] {
        self.name.clear();
        self.name.extend([rules.algorithm as u8, rules.quotas.len() as u8]);
        for quota in &rules.quotas {
            self.name.extend(quota.limit.to_le_bytes());
            self.name.extend((quota.window.as_nanos() as u64).to_le_bytes());
            self.name.push(quota.calendar.map_or(0, |calendar| calendar as u8));
        }
        self.name.extend_from_slice(key);
        &self.name
    }

    /// Looks up a key, and notes that it is used now.
    pub fn used(&mut self, rules: &Rules, key: &[u8]) -> Option<&mut Key> {
        self.name(rules, key);
        self.keys.get_mut(&self.name[..])
    }

    pub fn get(&mut self, share: &Share) -> Option<&mut Key> {
        self.name(&share.rules, &share.key);
        self.keys.peek_mut(&self.name[..]).or_else(|| self.leaving.get_mut(&self.name[..]))
    }

    /// Remembers a key. Returns the one that is no longer remembered for it.
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

    /// Whether a key is no longer remembered.
    pub fn is_leaving(&mut self, share: &Share) -> bool {
        self.name(&share.rules, &share.key);
        self.leaving.contains_key(&self.name[..])
    }

    /// Lets go of a key that is no longer remembered, unless a command is in flight for it.
    pub fn leave(&mut self, share: &Share) {
        self.name(&share.rules, &share.key);
        if self.leaving.get(&self.name[..]).is_some_and(|key| !key.is_in_flight) {
            self.leaving.remove(&self.name[..]);
        }
    }

    /// The key that is remembered by these bytes, if its lease ends at this time.
    pub fn leased_until(&self, name: &[u8], ends: Duration) -> Option<Share> {
        let key = self.keys.peek(name).or_else(|| self.leaving.get(name))?;
        (key.lease.as_ref()?.ends == ends).then(|| key.share())
    }

    /// The remembered keys, the least recently used first.
    pub fn all(&self) -> Vec<Share> {
        self.keys.iter().rev().map(|(_, key)| key.share()).collect()
    }
}

/// The rest of a wait. The time that has passed is rounded down to milliseconds, so the rest is never too short.
fn less(wait: Duration, now: Duration, since: Duration) -> Duration {
    let gone = Duration::from_millis(now.saturating_sub(since).as_millis() as u64);
    wait.saturating_sub(gone)
}
