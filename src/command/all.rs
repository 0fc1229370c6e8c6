//! RL.ALL: decides on several keys, and counts in all of them or in none.

use arrayvec::ArrayVec;

use super::commit::{self, DecidedRequest};
use super::reply;
use crate::keyspace::{OpenKey, ToWrite};
use crate::limiter::{Decision, Limiter, MAX_TIERS, Outcome, Quota, QuotaList, Time, UnixMs, Verdict, Wait};
use crate::request::{List, ROW_WORDS, Refusal, Row, Rows};
use crate::server::{self, Arg, Call, Command, Keys};
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
    let (verdict, outcome) = limiter.take(row.algorithm, &[row.quota], row.cost, false, time)?;
    let closed = conclude(call, key, fresh, row, &tier_words(call.args()), time, outcome)?;
    let verdict = verdict.within(closed.longest_wait_ms);
    stats::all_taken(verdict.limited, outcome.changed());
    commit::publish_if_limited(call, closed.name, verdict.limited);
    reply::all(call, verdict.limited, verdict.retry_after_ms, closed.counted_at, &[verdict]);
    Ok(())
}

fn run_rows<'a>(call: &'a Call<'a>, keys: Keys<'a>, words: &[Arg<'a>]) -> Result<(), Refusal> {
    let rows = words.chunks_exact(ROW_WORDS).take(Rows::count(words.len())?);
    let (keys, key_of_row) = keys.distinct(rows.map(|row| row[0]));
    let all = Rows::parse(words, &key_of_row)?;
    let time = Time { clock: server::now(), at: all.at };

    let mut keys = keys.map(OpenKey::to_write).collect::<Result<List<_>, _>>()?;
    let mut fresh: List<Option<Limiter>> = keys.iter().map(|_| None).collect();
    let mut decisions: List<KeyDecision> = List::new();
    for (i, (key, fresh)) in keys.iter_mut().zip(&mut fresh).enumerate() {
        decisions.push(KeyDecision::of(key, fresh, all.of_key(i), time)?);
    }
    // From here on nothing fails, except by an internal error.
    let limited = decisions.iter().any(KeyDecision::limited);
    if all.force || !limited {
        decisions.iter_mut().for_each(KeyDecision::commit);
    }
    let verdict_of = |row: &Row| decisions[row.key].verdict_of(row.tier);
    let mut verdicts: List<Verdict> = all.rows.iter().filter_map(verdict_of).collect();
    let outcomes: List<KeyOutcome> = decisions.iter().map(KeyDecision::key_outcome).collect();
    drop(decisions);

    let (mut at, mut retry_after, mut changed) = (time.now(), Wait::Ms(0), false);
    for (i, ((mut key, fresh), decided)) in keys.drain(..).zip(fresh.drain(..)).zip(&outcomes).enumerate() {
        let mut rows = words.chunks_exact(ROW_WORDS).zip(&all.rows).filter(|(_, row)| row.key == i);
        let Some((first, row)) = rows.next() else { continue };
        if decided.outcome.changed() {
            key.limiter_mut().map(Limiter::shorten);
        }
        let mut tiers: ArrayVec<Arg, { 2 * MAX_TIERS }> = ArrayVec::from_iter(tier_words(first));
        for (other, _) in rows {
            tiers.extend(tier_words(other));
        }
        let closed = conclude(call, key, fresh, row, &tiers, time, decided.outcome)?;
        commit::publish_if_limited(call, closed.name, decided.limited);
        for (verdict, _) in verdicts.iter_mut().zip(&all.rows).filter(|(_, row)| row.key == i) {
            *verdict = verdict.within(closed.longest_wait_ms);
        }
        retry_after = retry_after.max(decided.retry_after.within(closed.longest_wait_ms));
        at = at.max(closed.counted_at);
        changed |= decided.outcome.changed();
    }
    stats::all_taken(limited, changed);
    reply::all(call, limited, retry_after.ms().filter(|_| limited), at, &verdicts);
    Ok(())
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
    /// The time the units were counted at: for a key ahead of the clock, its own newest time.
    counted_at: UnixMs,
}

/// Applies the outcome to one key and closes it. `row` is the key's first, `tiers` the `limit window ...`
/// of all its rows.
#[inline(always)]
fn conclude<'a>(
    call: &Call,
    key: OpenKey<'a, ToWrite>,
    fresh: Option<Limiter>,
    row: &Row,
    tiers: &[Arg],
    time: Time,
    outcome: Outcome,
) -> Result<ClosedKey<'a>, Refusal> {
    let name = key.name();
    let counted = outcome.changed() && row.cost.taken() > 0;
    let newest = key.limiter().filter(|_| counted && outcome.outlook.ahead).map(Limiter::newest);
    let decided = DecidedRequest { algorithm: row.algorithm, tiers, cost: row.cost, time, outcome };
    let longest_wait_ms = commit::conclude(call, key, fresh, &decided, false)?;
    stats::units(row.cost, outcome.change);
    Ok(ClosedKey { name, longest_wait_ms, counted_at: newest.unwrap_or(time.now()) })
}

/// A decision on one key. Nearly all have one tier, which takes a fifth of the memory.
enum KeyDecision<'a> {
    OneTier(Decision<'a, [Quota; 1]>),
    Tiers(Box<Decision<'a, QuotaList>>),
}

/// The outcome for one key.
struct KeyOutcome {
    limited: bool,
    /// How long until all its tiers allow the same request.
    retry_after: Wait,
    outcome: Outcome,
}

/// Evaluates `$then` for either shape of a decision.
macro_rules! for_each_shape {
    ($decision:expr, $shaped:ident => $then:expr) => {
        match $decision {
            KeyDecision::OneTier($shaped) => $then,
            KeyDecision::Tiers($shaped) => $then,
        }
    };
}

impl<'a> KeyDecision<'a> {
    fn of<'r>(
        key: &'a mut OpenKey<ToWrite>,
        fresh: &'a mut Option<Limiter>,
        mut rows: impl Iterator<Item = &'r Row>,
        time: Time,
    ) -> Result<Self, Refusal> {
        let Some(&Row { algorithm, quota, cost, .. }) = rows.next() else { return Err(Refusal::Arity) };
        let limiter = key.limiter_or(fresh, algorithm);
        let mut others = rows.map(|row| row.quota).peekable();
        Ok(if others.peek().is_none() {
            KeyDecision::OneTier(limiter.decide(algorithm, &[quota], cost, time)?)
        } else {
            let quotas: QuotaList = std::iter::once(quota).chain(others).collect();
            KeyDecision::Tiers(Box::new(limiter.decide(algorithm, &quotas, cost, time)?))
        })
    }

    fn limited(&self) -> bool {
        for_each_shape!(self, decision => decision.limited())
    }

    fn commit(&mut self) {
        for_each_shape!(self, decision => decision.commit())
    }

    fn verdict_of(&self, tier: usize) -> Option<Verdict> {
        for_each_shape!(self, decision => decision.verdict_of(tier))
    }

    fn key_outcome(&self) -> KeyOutcome {
        for_each_shape!(self, decision => KeyOutcome {
            limited: decision.limited(),
            retry_after: decision.retry_after(),
            outcome: decision.outcome(),
        })
    }
}
