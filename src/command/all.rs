//! RL.ALL: decides on several keys, and counts in all of them or in none.

use smallvec::SmallVec;

use super::commit::{self, DecidedRequest};
use super::reply;
use crate::keyspace::{OpenKey, ToWrite};
use crate::limiter::{
    Algorithm, Cost, Decision, Limiter, Outcome, Quota, QuotaList, Time, UnixMs, Verdict, Wait,
};
use crate::request::{List, ROW_WORDS, Refusal, Row, Rows};
use crate::server::{self, Arg, Call, Command, Key, Keys};
use crate::stats;

/// RL.ALL.
pub struct All;

impl Command for All {
    fn run<'a>(call: &'a Call<'a>, keys: Keys<'a>) -> Result<(), Refusal> {
        match call.args() {
            row if row.len() == ROW_WORDS => run_one_row(call, keys, &Row::parse(row, 0)?),
            words => run_rows(call, keys, words),
        }
    }
}

/// One row without options. As fast as the single command: clients use it to learn the time of the decision.
#[inline(always)]
fn run_one_row<'a>(call: &'a Call<'a>, keys: Keys<'a>, row: &Row) -> Result<(), Refusal> {
    let time = Time { clock: server::now(), at: None };
    let mut key = OpenKey::to_write(keys.first())?;
    let mut fresh = None;
    let limiter = key.limiter_or(&mut fresh, row.algorithm);
    let Decision { verdict, outcome } = limiter.take(row.algorithm, &[row.quota], row.cost, false, time)?;
    let tiers = &tier_words(call.args());
    let decided = DecidedRequest { algorithm: row.algorithm, tiers, cost: row.cost, time, outcome };
    let closed = conclude(call, key, fresh, &[row.quota], &decided)?;
    let verdict = verdict.within(closed.longest_wait_ms);
    stats::all_taken(verdict.limited, outcome.changed());
    commit::publish_if_limited(call, closed.name, verdict.limited);
    reply::all(call, verdict.limited, verdict.retry_after_ms, closed.counted_at, &[verdict]);
    Ok(())
}

fn run_rows<'a>(call: &'a Call<'a>, keys: Keys<'a>, words: &[Arg<'a>]) -> Result<(), Refusal> {
    let rows = words.chunks_exact(ROW_WORDS).take(Rows::count(words.len())?);
    let (mut keys, key_of_row) = keys.distinct(rows.clone().map(|row| row[0]));
    let all = Rows::parse(words, &key_of_row)?;
    let time = Time { clock: server::now(), at: all.at };

    let mut requests: List<KeyRequest> = List::new();
    for (row, words) in all.rows.iter().zip(rows) {
        match requests.get_mut(row.key) {
            Some(request) => request.add_tier(row, words),
            None => {
                let Some(key) = keys.next() else { return Err(Refusal::INTERNAL) };
                requests.push(KeyRequest::open(key, row, words)?);
            }
        }
    }
    let mut limited = false;
    for request in &mut requests {
        limited |= request.decide(time)?;
    }
    // From here on nothing fails, except by an internal error.
    let refuses = |row: &Row| limited && requests[row.key].verdict_on(row, time).limited;
    let refuses: List<bool> = all.rows.iter().map(refuses).collect();
    if all.force || !limited {
        requests.iter_mut().for_each(|request| request.commit(time));
    }
    let verdict = |row: &Row| requests[row.key].verdict_on(row, time);
    let mut verdicts: List<Verdict> = all.rows.iter().map(verdict).collect();

    let (mut at, mut changed) = (time.now(), false);
    let mut longest_waits_ms: List<u64> = List::new();
    for request in requests.drain(..) {
        changed |= request.outcome.changed();
        let closed = request.conclude(call, time)?;
        longest_waits_ms.push(closed.longest_wait_ms);
        at = at.max(closed.counted_at);
    }
    let mut retry_after = Wait::Ms(0);
    for ((row, verdict), refuses) in all.rows.iter().zip(&mut verdicts).zip(refuses) {
        let again = verdict.within(longest_waits_ms[row.key]);
        // After FORCE, a row may refuse the same request although it allowed this one.
        retry_after = retry_after.max(again.retry_after());
        *verdict = if refuses { again } else { again.allowed() };
    }
    stats::all_taken(limited, changed);
    reply::all(call, limited, retry_after.ms().filter(|_| limited), at, &verdicts);
    Ok(())
}

/// A request about one key: all its rows.
struct KeyRequest<'a> {
    key: OpenKey<'a, ToWrite>,
    /// The limiter to store if the key is empty.
    fresh: Option<Limiter>,
    algorithm: Algorithm,
    quotas: QuotaList,
    /// `limit window ...`, as the caller wrote them.
    tiers: SmallVec<[Arg<'a>; 2]>,
    cost: Cost,
    limited: bool,
    outcome: Outcome,
}

impl<'a> KeyRequest<'a> {
    /// Opens the key of its first row.
    fn open(key: Key<'a>, row: &Row, words: &[Arg<'a>]) -> Result<Self, Refusal> {
        let &Row { algorithm, quota, cost, .. } = row;
        let mut quotas = QuotaList::new();
        quotas.push(quota);
        Ok(KeyRequest {
            key: OpenKey::to_write(key)?,
            fresh: None,
            algorithm,
            quotas,
            tiers: SmallVec::from_buf(tier_words(words)),
            cost,
            limited: false,
            outcome: Outcome::default(),
        })
    }

    /// Adds another row of the key.
    fn add_tier(&mut self, row: &Row, words: &[Arg<'a>]) {
        self.quotas.push(row.quota);
        self.tiers.extend(tier_words(words));
    }

    /// Decides whether all its rows allow the request. Returns whether one refuses.
    fn decide(&mut self, time: Time) -> Result<bool, Refusal> {
        let limiter = self.key.limiter_or(&mut self.fresh, self.algorithm);
        let decision = limiter.decide(self.algorithm, &self.quotas, self.cost, time)?;
        (self.limited, self.outcome) = (decision.verdict.limited, decision.outcome);
        Ok(self.limited)
    }

    /// Counts the request.
    fn commit(&mut self, time: Time) {
        let limiter = self.key.limiter_or(&mut self.fresh, self.algorithm);
        self.outcome = limiter.commit(&self.quotas, self.cost, time);
    }

    /// The verdict on one row, if the request came now.
    fn verdict_on(&mut self, row: &Row, time: Time) -> Verdict {
        let limiter = self.key.limiter_or(&mut self.fresh, self.algorithm);
        limiter.verdict_on(row.quota, self.cost, time)
    }

    /// Applies the outcome and closes the key.
    fn conclude(self, call: &Call, time: Time) -> Result<ClosedKey<'a>, Refusal> {
        let KeyRequest { key, fresh, algorithm, quotas, tiers, cost, limited, outcome } = self;
        let decided = DecidedRequest { algorithm, tiers: &tiers, cost, time, outcome };
        let closed = conclude(call, key, fresh, &quotas, &decided)?;
        commit::publish_if_limited(call, closed.name, limited);
        Ok(closed)
    }
}

/// The `limit window` of a row.
#[inline(always)]
fn tier_words<'a>(row: &[Arg<'a>]) -> [Arg<'a>; 2] {
    [row[2], row[3]]
}

/// What the reply needs to know about a key after it was closed.
struct ClosedKey<'a> {
    name: Arg<'a>,
    /// See [`commit::conclude`].
    longest_wait_ms: u64,
    /// The time the units were counted at: for windows ahead of the clock, their own newest time.
    counted_at: UnixMs,
}

#[inline(always)]
fn conclude<'a>(
    call: &Call,
    key: OpenKey<'a, ToWrite>,
    fresh: Option<Limiter>,
    quotas: &[Quota],
    decided: &DecidedRequest,
) -> Result<ClosedKey<'a>, Refusal> {
    let DecidedRequest { cost, time, outcome, .. } = *decided;
    let name = key.name();
    let counted = outcome.changed() && cost.taken() > 0;
    let ahead = key.limiter().filter(|_| counted && outcome.ahead);
    let counted_at = ahead.map_or(time.now(), |limiter| limiter.newest_of(quotas).max(time.now()));
    let longest_wait_ms = commit::conclude(call, key, fresh, decided, false)?;
    stats::units(cost, outcome.change);
    Ok(ClosedKey { name, longest_wait_ms, counted_at })
}
