//! The state of one key in this process: its lease, its remembered refusal, who waits.

use std::collections::{HashMap, VecDeque};
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use lru::LruCache;

use super::lease::{Lease, Refusal};
use super::request::{Request, State};
use super::share::{Rules, Share};
use crate::commands::Verdict;

/// A key under its rules.
#[derive(Clone, Debug)]
pub(super) struct Key {
    pub name: Arc<[u8]>,
    pub rules: Arc<Rules>,
    pub lease: Option<Lease>,
    pub refusal: Option<Refusal>,
    pub is_in_flight: bool,
    /// Shares of requests, by index, that wait for the command in flight.
    pub waiting: VecDeque<(Request, usize)>,
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

    /// Serves a share of a request, if the lease has enough.
    pub fn serves_share(&mut self, now: Duration, request: &mut State, index: usize) -> bool {
        let has_enough = self.serves(now, request.shares[index].share.cost);
        has_enough && self.lease.as_mut().is_some_and(|lease| request.serve(now, index, lease))
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
pub(super) struct Recent {
    keys: LruCache<Arc<[u8]>, Key>,
    /// Keys that are no longer remembered, until the reply to their command in flight.
    leaving: HashMap<Arc<[u8]>, Key>,
    /// A buffer for the rules and name that are looked up.
    name: Vec<u8>,
}

impl Recent {
    pub fn new(max: NonZeroUsize) -> Recent {
        Recent { keys: LruCache::sparse(max), leaving: HashMap::new(), name: Vec::new() }
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
