//! A command about several keys: all of them allow it, or nothing is counted in any.

use std::hash::{BuildHasher, RandomState};
use std::ops::{Deref, DerefMut};

use arrayvec::ArrayVec;

use super::algorithm::Algorithm;
use super::decision::{Mismatch, Mode, Request, Verdict, Wait};
use super::effect::{Effect, Pending, Recorded};
use super::key::{self, Key};
use super::lifetime::Outcome;
use super::quota::{Cost, Quota, QuotaList, Time, UnixMs};
use super::state::Limiter;

/// The most rows, and so keys, of a command.
pub const MAX_ROWS: usize = 64;

/// One of the keys of a command, and what is to be done to it. Only [`Parts::add`] makes one.
pub struct Part<N, K, T> {
    /// The name of the key.
    pub name: N,
    /// A number that differs for most names that differ.
    fingerprint: u64,
    /// The key while it is open.
    pub key: Option<K>,
    /// The limiter to store if the key is empty.
    pub fresh: Option<Limiter>,
    /// What is still to be done once `task` is decided.
    pub pending: Pending,
    /// What rows ask of the key, or the effect that is applied to it.
    pub task: T,
}

/// The keys of a command, in the order in which it first names them; at most [`MAX_ROWS`], without an allocation.
pub struct Parts<N, K, T> {
    parts: ArrayVec<Part<N, K, T>, MAX_ROWS>,
    hasher: Option<RandomState>,
}

impl<N, K, T> Default for Parts<N, K, T> {
    #[inline(always)]
    fn default() -> Self {
        Parts { parts: ArrayVec::new(), hasher: None }
    }
}

impl<N: AsRef<[u8]>, K, T> Parts<N, K, T> {
    /// Adds a key that is not open, unless there is one of this name. Returns its index.
    ///
    /// # Panics
    ///
    /// If there are [`MAX_ROWS`] already.
    #[inline]
    pub fn add(&mut self, name: N, task: T) -> usize {
        let fingerprint = self.fingerprint(name.as_ref());
        let is_equal =
            |part: &Part<N, K, T>| part.fingerprint == fingerprint && part.name.as_ref() == name.as_ref();
        let known = self.parts.iter().position(is_equal);
        known.unwrap_or_else(|| {
            let (key, fresh, pending) = (None, None, Pending::default());
            self.parts.push(Part { name, fingerprint, key, fresh, pending, task });
            self.parts.len() - 1
        })
    }

    /// A number that differs for most names that differ, so that few names are compared byte by byte: the first and the last eight
    /// bytes, or a keyed hash of a long name. Without the hash, 64 long names that begin and end alike would be compared in full, each
    /// with each.
    #[inline]
    fn fingerprint(&mut self, name: &[u8]) -> u64 {
        match (name.first_chunk(), name.last_chunk()) {
            (Some(first), Some(last)) if name.len() <= 64 => {
                u64::from_le_bytes(*first).rotate_left(1) ^ u64::from_le_bytes(*last)
            }
            (Some(_), _) => self.hasher.get_or_insert_default().hash_one(name),
            (None, _) => name.iter().fold(0, |number, byte| number << 8 | u64::from(*byte)),
        }
    }
}

impl<N, K, T> Deref for Parts<N, K, T> {
    type Target = [Part<N, K, T>];

    #[inline(always)]
    fn deref(&self) -> &[Part<N, K, T>] {
        &self.parts
    }
}

impl<N, K, T> DerefMut for Parts<N, K, T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut [Part<N, K, T>] {
        &mut self.parts
    }
}

/// A row of RL.ALL: one tier of one key.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// The index of its key.
    pub key: usize,
    /// The reply of a request about this tier alone, once it is decided.
    pub verdict: Verdict,
}

/// The rows of RL.ALL, in the caller's order.
pub type Rows = ArrayVec<Row, MAX_ROWS>;

/// What the rows of one key ask of it.
#[derive(Clone, Debug)]
pub struct RowsOfKey {
    /// The algorithm of the key.
    pub algorithm: Algorithm,
    /// Units to take, or to give back if negative.
    pub cost: Cost,
    /// The limit and window of each row.
    pub quotas: QuotaList,
    /// What they have changed.
    pub outcome: Outcome,
}

impl RowsOfKey {
    /// What the first row asks.
    #[inline(always)]
    pub fn new(algorithm: Algorithm, quota: Quota, cost: Cost) -> RowsOfKey {
        RowsOfKey { algorithm, cost, quotas: QuotaList::from_iter([quota]), outcome: Outcome::default() }
    }

    /// The request that they are together, of which these are the quotas.
    #[inline(always)]
    fn request<'q>(&self, quotas: &'q [Quota], time: Time) -> Request<'q> {
        Request { algorithm: self.algorithm, quotas, cost: self.cost, mode: Mode::AllOrNothing, time }
    }
}

/// What became of a request about several keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AnswerAll {
    /// Whether a key refused.
    pub limited: bool,
    /// Milliseconds until all keys allow the same request; `None` if it was allowed or never will be.
    pub retry_after_ms: Option<u64>,
    /// The time that units were counted at: for keys ahead of the clock, their own newest time.
    pub at: UnixMs,
}

/// Decides on all rows, and counts the units of all or gives them back if no key refuses or if `force` is set.
///
/// # Errors
///
/// A key is counted by another algorithm, or cannot hold the windows. An error changes nothing.
#[inline]
pub fn run<N, K: Key>(
    keys: &mut [Part<N, K, RowsOfKey>],
    rows: &mut [Row],
    force: bool,
    time: Time,
) -> Result<AnswerAll, Mismatch> {
    let mut limited = false;
    for Part { key, fresh, task, .. } in &mut *keys {
        let limiter = key.limiter_or(fresh, task.algorithm);
        limited |= match task.quotas[..] {
            [only] => limiter.is_limited(task.request(&[only], time))?,
            _ => limiter.is_limited(task.request(&task.quotas, time))?,
        };
    }
    // From here on nothing fails.
    let (mut retry_after, mut at) = (Wait::Ms(0), UnixMs::default());
    for (index, part) in keys.iter_mut().enumerate() {
        // A key with one row, as nearly every one has, needs no list. That spares an RL.ALL nearly 3 % of its instructions
        // (`make check-instructions`).
        let (wait, counted_at) = match part.task.quotas[..] {
            [only] => commit_if(part, &[only], index, rows, force || !limited, time),
            _ => commit_several_if(part, index, rows, force || !limited, time),
        };
        retry_after = retry_after.max(wait);
        at = at.max(counted_at);
    }
    let retry_after_ms = if limited { retry_after.ms() } else { None };
    Ok(AnswerAll { limited, retry_after_ms, at })
}

/// Commits the rows of the key at `index`, of which these are the quotas, if it `counts`. Returns their longest wait, and the time that
/// they were counted at.
#[inline(always)]
fn commit_if<N, K: Key>(
    Part { key, fresh, pending, task, .. }: &mut Part<N, K, RowsOfKey>,
    quotas: &[Quota],
    index: usize,
    rows: &mut [Row],
    counts: bool,
    time: Time,
) -> (Wait, UnixMs) {
    let (limiter, request) = (key.limiter_or(fresh, task.algorithm), task.request(quotas, time));
    let mut longest = Wait::Ms(0);
    let outcome = {
        let mut of_key = rows_of(index, rows);
        limiter.commit_if(request, counts, |verdict, retry_after| {
            if let Some(row) = of_key.next() {
                row.verdict = verdict;
            }
            longest = longest.max(retry_after);
        })
    };
    let at = key::counted_at(Some(limiter), request, &outcome);
    *pending = key::pending(key, fresh.as_mut(), time, &outcome);
    task.outcome = outcome;
    let longest_wait_ms = key::longest_wait_ms(key, time, &outcome, pending.moved.expires);
    if longest_wait_ms < u64::MAX {
        rows_of(index, rows).for_each(|row| row.verdict = row.verdict.at_most(longest_wait_ms));
    }
    (longest.at_most(longest_wait_ms), at)
}

#[cold]
fn commit_several_if<N, K: Key>(
    part: &mut Part<N, K, RowsOfKey>,
    index: usize,
    rows: &mut [Row],
    counts: bool,
    time: Time,
) -> (Wait, UnixMs) {
    commit_if(part, &part.task.quotas.clone(), index, rows, counts, time)
}

/// The rows of the key at `index`.
#[inline(always)]
fn rows_of(index: usize, rows: &mut [Row]) -> impl Iterator<Item = &mut Row> {
    // No earlier row names it first.
    rows[index..].iter_mut().filter(move |row| row.key == index)
}

/// Returns what copies are told of a key.
#[inline]
pub fn effect<N, K>(Part { pending, task, .. }: &Part<N, K, RowsOfKey>) -> Effect {
    pending.effect(|| Recorded::of(task.algorithm, &task.quotas, task.cost, &task.outcome))
}

/// Does to several keys what a request did to those of which they are copies.
///
/// # Errors
///
/// A key is counted by another algorithm, or cannot hold the windows. An error changes nothing.
#[inline]
pub fn apply<N, K: Key>(parts: &mut [Part<N, K, Effect>]) -> Result<(), Mismatch> {
    for Part { key, task, .. } in &*parts {
        if let (Some(limiter), Effect::Recorded(recorded)) = (key.limiter(), task) {
            recorded.check(limiter)?;
        }
    }
    // From here on nothing fails.
    for Part { key, fresh, pending, task, .. } in parts {
        *pending = key::apply(task, key, fresh)?;
    }
    Ok(())
}
