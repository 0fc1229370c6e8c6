//! A command about several keys: all of them allow it, or nothing is counted in any.

use std::hash::{BuildHasher, RandomState};
use std::ops::{Deref, DerefMut};

use arrayvec::ArrayVec;

use super::algorithm::Algorithm;
use super::decision::{Mismatch, Mode, Request, RowVerdict, Verdict, Wait};
use super::effect::{Effect, Pending, Recorded};
use super::key::{self, Key};
use super::lifetime::Outcome;
use super::quota::{Cost, MAX_TIERS, Quota, QuotaList, Time, UnixMs};
use super::state::Limiter;

/// The most rows, and so keys, of a command.
pub const MAX_ROWS: usize = 64;

/// One of several keys, and what is to be done to it. Only [`Parts::add`] makes one.
pub struct Part<N, K, T> {
    /// The name of the key.
    pub name: N,
    /// A number that differs for most names that differ.
    fingerprint: u64,
    /// The index of the first part with the same key.
    first: usize,
    /// The key while it is open. Of several parts with one key, the first has it.
    pub key: Option<K>,
    /// The limiter to store if the key is empty.
    pub fresh: Option<Limiter>,
    /// What is still to be done once `task` is decided.
    pub pending: Pending,
    /// The row that is decided about the key, or the effect that is applied to it.
    pub task: T,
}

impl<N, K, T> Part<N, K, T> {
    /// The index of the first part with the same key: what concerns the whole key stands there.
    #[inline(always)]
    pub fn first(&self) -> usize {
        self.first
    }
}

/// The parts of a command about several keys, in the caller's order; at most [`MAX_ROWS`], without an allocation.
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
    /// Adds a part whose key is not open. Returns the index of the first part with the same key, which may be this one.
    ///
    /// # Panics
    ///
    /// If there are [`MAX_ROWS`] already.
    #[inline]
    pub fn add(&mut self, name: N, task: T) -> usize {
        let fingerprint = self.fingerprint(name.as_ref());
        let is_equal =
            |part: &Part<N, K, T>| part.fingerprint == fingerprint && part.name.as_ref() == name.as_ref();
        let first = self.parts.iter().position(is_equal).unwrap_or(self.parts.len());
        let (key, fresh, pending) = (None, None, Pending::default());
        self.parts.push(Part { name, fingerprint, first, key, fresh, pending, task });
        first
    }

    /// A number that differs for most names that differ, so that few names are compared byte by byte: the last eight bytes, or a
    /// keyed hash of a long name. Without the hash, 64 long names that end alike would be compared in full, each with each.
    #[inline]
    fn fingerprint(&mut self, name: &[u8]) -> u64 {
        match name.last_chunk() {
            Some(_) if name.len() > 64 => self.hasher.get_or_insert_default().hash_one(name),
            Some(last) => u64::from_le_bytes(*last),
            None => name.iter().fold(0, |number, byte| number << 8 | u64::from(*byte)),
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
    /// The algorithm of the key.
    pub algorithm: Algorithm,
    /// The limit and window.
    pub quota: Quota,
    /// Units to take, or to give back if negative.
    pub cost: Cost,
    /// The reply of a request about this tier alone.
    pub verdict: Verdict,
    /// What concerns all rows of the key, in the first of them.
    pub of_key: Option<KeyOfRows>,
}

/// One key of RL.ALL: what its rows have in common.
#[derive(Clone, Copy, Debug, Default)]
pub struct KeyOfRows {
    /// The number of rows.
    pub tiers: usize,
    /// Whether the key refuses.
    pub limited: bool,
    /// What was changed in the key.
    pub outcome: Outcome,
}

impl Row {
    /// A row that is not decided yet, and whose key has no other.
    #[inline(always)]
    pub fn new(algorithm: Algorithm, quota: Quota, cost: Cost) -> Row {
        let of_key = Some(KeyOfRows { tiers: 1, ..KeyOfRows::default() });
        Row { algorithm, quota, cost, verdict: Verdict::default(), of_key }
    }

    /// The request about the rows of its key, of which these are the quotas.
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
pub fn run<N, K: Key>(rows: &mut [Part<N, K, Row>], force: bool, time: Time) -> Result<AnswerAll, Mismatch> {
    let mut limited = false;
    for index in 0..rows.len() {
        if let Some(KeyOfRows { tiers, .. }) = rows[index].task.of_key {
            limited |= decide(rows, index, tiers, time)?;
        }
    }
    // From here on nothing fails.
    let (mut retry_after, mut at) = (Wait::Ms(0), UnixMs::default());
    for index in 0..rows.len() {
        if let Some(KeyOfRows { tiers, .. }) = rows[index].task.of_key {
            let (wait, counted_at) = commit_if(rows, index, tiers, force || !limited, time);
            retry_after = retry_after.max(wait);
            at = at.max(counted_at);
        }
    }
    let retry_after_ms = if limited { retry_after.ms() } else { None };
    Ok(AnswerAll { limited, retry_after_ms, at })
}

/// The quotas of all rows of the key that has this first row.
#[cold]
fn quotas<N, K>(rows: &[Part<N, K, Row>], first: usize) -> QuotaList {
    rows[first..].iter().filter(|part| part.first == first).map(|part| part.task.quota).collect()
}

#[inline(always)]
fn decide<N, K: Key>(
    rows: &mut [Part<N, K, Row>],
    first: usize,
    tiers: usize,
    time: Time,
) -> Result<bool, Mismatch> {
    let several = if tiers > 1 { quotas(rows, first) } else { QuotaList::new() };
    let Part { key, fresh, task, .. } = &mut rows[first];
    let limiter = key.limiter_or(fresh, task.algorithm);
    let limited = match tiers {
        1 => limiter.is_limited(task.request(&[task.quota], time))?,
        _ => limiter.is_limited(task.request(&several, time))?,
    };
    task.of_key = Some(KeyOfRows { tiers, limited, outcome: Outcome::default() });
    Ok(limited)
}

/// Commits the rows of one key, if `counts` is set. Returns their longest wait, and the time that they were counted at.
#[inline(always)]
fn commit_if<N, K: Key>(
    rows: &mut [Part<N, K, Row>],
    first: usize,
    tiers: usize,
    counts: bool,
    time: Time,
) -> (Wait, UnixMs) {
    // A key with one row, as nearly every one has, needs no lists. That spares an RL.ALL nearly 3 % of its instructions
    // (`make check-instructions`).
    if tiers > 1 {
        return commit_tiers_if(rows, first, counts, time);
    }
    let (part, mut verdict) = (&mut rows[first], None);
    let quota = part.task.quota;
    let (longest_wait_ms, at) = commit_key_if(part, &[quota], counts, time, |row| verdict = Some(row));
    let Some(row) = verdict else { unreachable!("there is a tier") };
    let RowVerdict { verdict, retry_after } = row.at_most(longest_wait_ms);
    part.task.verdict = verdict;
    (retry_after, at)
}

#[cold]
fn commit_tiers_if<N, K: Key>(
    rows: &mut [Part<N, K, Row>],
    first: usize,
    counts: bool,
    time: Time,
) -> (Wait, UnixMs) {
    let (quotas, mut verdicts) = (quotas(rows, first), ArrayVec::<_, MAX_TIERS>::new());
    let (longest_wait_ms, at) =
        commit_key_if(&mut rows[first], &quotas, counts, time, |row| verdicts.push(row));
    let mut longest = Wait::Ms(0);
    let of_key = rows[first..].iter_mut().filter(|part| part.first == first);
    for (row, part) in verdicts.iter().zip(of_key) {
        let RowVerdict { verdict, retry_after } = row.at_most(longest_wait_ms);
        part.task.verdict = verdict;
        longest = longest.max(retry_after);
    }
    (longest, at)
}

/// Passes on the verdicts. Returns an upper bound on their waits, and the time that units were counted at.
#[inline(always)]
fn commit_key_if<N, K: Key>(
    Part { key, fresh, pending, task, .. }: &mut Part<N, K, Row>,
    quotas: &[Quota],
    counts: bool,
    time: Time,
    verdicts: impl FnMut(RowVerdict),
) -> (u64, UnixMs) {
    let (limiter, request) = (key.limiter_or(fresh, task.algorithm), task.request(quotas, time));
    let outcome = limiter.commit_if(request, counts, verdicts);
    let at = key::counted_at(Some(limiter), request, &outcome);
    *pending = key::pending(key, fresh.as_mut(), time, &outcome);
    if let Some(of_key) = &mut task.of_key {
        of_key.outcome = outcome;
    }
    (key::longest_wait_ms(key, time, &outcome, pending.expires), at)
}

/// Returns what copies are told of the key that has this first row.
#[inline]
pub fn effect<N, K>(rows: &[Part<N, K, Row>], first: usize) -> Effect {
    let Part { pending, task: Row { algorithm, quota, cost, of_key, .. }, .. } = &rows[first];
    let Some(KeyOfRows { tiers, outcome, .. }) = of_key else { unreachable!("it is the first row") };
    pending.effect(|| match tiers {
        1 => Recorded::of(*algorithm, &[*quota], *cost, outcome),
        _ => Recorded::of(*algorithm, &quotas(rows, first), *cost, outcome),
    })
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
