//! RL.ALL: decides over several keys, and counts in all of them or in none.

use arrayvec::ArrayVec;

use super::commit::{self, Done};
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

/// One row and no option, as from a client that is to know the time of the decision: as quick as the command
/// of its algorithm.
#[inline(always)]
fn run_one_row<'a>(call: &'a Call<'a>, keys: Keys<'a>, row: &Row) -> Result<(), Refusal> {
    let time = Time { clock: server::now(), at: None };
    let mut key = OpenKey::to_write(keys.first())?;
    let mut fresh = None;
    let limiter = key.limiter_or(&mut fresh, row.algorithm);
    let (verdict, outcome) = limiter.take(row.algorithm, &[row.quota], row.cost, false, time)?;
    let concluded = conclude(call, key, fresh, row, &tier_words(call.args()), time, outcome)?;
    let verdict = verdict.within(concluded.longest_wait_ms);
    stats::all_taken(verdict.limited, outcome.changed());
    commit::publish_if_limited(call, concluded.name, verdict.limited);
    reply::all(call, verdict.limited, verdict.retry_after_ms, concluded.counted_at, &[verdict]);
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
    // From here on nothing is refused any more.
    let limited = decisions.iter().any(KeyDecision::limited);
    if all.force || !limited {
        decisions.iter_mut().for_each(KeyDecision::commit);
    }
    let verdict_of = |row: &Row| decisions[row.key].verdict_of(row.tier);
    let mut verdicts: List<Verdict> = all.rows.iter().filter_map(verdict_of).collect();
    let decided: List<Decided> = decisions.iter().map(KeyDecision::decided).collect();
    drop(decisions);

    let (mut at, mut retry_after, mut changed) = (time.now(), Wait::Ms(0), false);
    for (i, ((mut key, fresh), decided)) in keys.drain(..).zip(fresh.drain(..)).zip(&decided).enumerate() {
        let Some(row) = all.of_key(i).next() else { continue };
        if decided.outcome.changed() {
            key.limiter_mut().map(Limiter::shorten);
        }
        let tiers = words.chunks_exact(ROW_WORDS).zip(&all.rows).filter(|(_, row)| row.key == i);
        let tiers: ArrayVec<Arg, { 2 * MAX_TIERS }> =
            tiers.flat_map(|(words, _)| tier_words(words)).collect();
        let concluded = conclude(call, key, fresh, row, &tiers, time, decided.outcome)?;
        commit::publish_if_limited(call, concluded.name, decided.limited);
        for (verdict, _) in verdicts.iter_mut().zip(&all.rows).filter(|(_, row)| row.key == i) {
            *verdict = verdict.within(concluded.longest_wait_ms);
        }
        retry_after = retry_after.max(decided.retry_after.within(concluded.longest_wait_ms));
        at = at.max(concluded.counted_at);
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

/// What is told of a key that is closed.
struct Concluded<'a> {
    name: Arg<'a>,
    /// See [`commit::conclude`].
    longest_wait_ms: u64,
    /// As of when it counted: of a key that is ahead of the clock, its own newest time.
    counted_at: UnixMs,
}

/// What follows from the decision on one key, with its first row and the `limit window ...` of all.
#[inline(always)]
fn conclude<'a>(
    call: &Call,
    key: OpenKey<'a, ToWrite>,
    fresh: Option<Limiter>,
    row: &Row,
    tiers: &[Arg],
    time: Time,
    outcome: Outcome,
) -> Result<Concluded<'a>, Refusal> {
    let name = key.name();
    let counted = outcome.changed() && row.cost.taken() > 0;
    let newest = key.limiter().filter(|_| counted && outcome.outlook.ahead).map(Limiter::newest);
    let done = Done { algorithm: row.algorithm, tiers, cost: row.cost, time, outcome };
    let longest_wait_ms = commit::conclude(call, key, fresh, &done, false)?;
    stats::units(row.cost, outcome.change);
    Ok(Concluded { name, longest_wait_ms, counted_at: newest.unwrap_or(time.now()) })
}

/// A decision about one key: nearly always of one tier, which takes a fifth of the memory.
enum KeyDecision<'a> {
    OneTier(Decision<'a, [Quota; 1]>),
    Tiers(Box<Decision<'a, QuotaList>>),
}

/// What came of it.
struct Decided {
    limited: bool,
    /// How long until all its tiers allow the same request.
    retry_after: Wait,
    outcome: Outcome,
}

/// Does the same for one tier and for several.
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

    fn decided(&self) -> Decided {
        for_each_shape!(self, decision => Decided {
            limited: decision.limited(),
            retry_after: decision.retry_after(),
            outcome: decision.outcome(),
        })
    }
}
