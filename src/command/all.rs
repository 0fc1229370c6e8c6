//! RL.ALL: decides on several keys, and counts in all of them or in none.

use super::commit::{self, Change};
use super::reply;
use crate::keyspace::{Handle, OpenKey, OpenKeys};
use crate::limiter::several::{self, Finished};
use crate::limiter::{
    Algorithm, Cost, Counted, Decision, Limiter, Outcome, QuotaList, Tiers, Time, UnixMs, Verdict, Wait,
};
use crate::request::{self, ROW_WORDS, Refusal, Row, Rows, SmallList};
use crate::server::{self, Call, Command};
use crate::stats;

/// RL.ALL.
pub struct All;

impl Command for All {
    fn run(call: &mut Call) -> Result<(), Refusal> {
        let words = call.args();
        if words.len() == ROW_WORDS {
            return run_one_row(call, &Row::parse(words, 0)?);
        }
        let rows = words.chunks_exact(ROW_WORDS).take(Rows::count(words.len())?);
        let (names, key_of_row) = request::distinct(rows.map(|row| row[0]));
        let all = Rows::parse(words, &key_of_row)?;
        let time = Time { clock: server::now(), at: all.at };
        let mut requests: SmallList<KeyRequest> = SmallList::new();
        for row in &all.rows {
            match requests.get_mut(row.key) {
                Some(request) => request.quotas.push(row.quota),
                None => requests.push(KeyRequest::new(row)),
            }
        }

        let mut keys = OpenKeys::to_write(call, &names)?;
        let mut looked_up: SmallList<Tiers> = requests.iter().map(|_| Tiers::default()).collect();
        let limiters = keys.handles().iter_mut().zip(&mut requests).zip(&mut looked_up);
        let decided = several::decide(limiters.map(|((key, request), tiers)| request.on(key, tiers)), time)?;
        let limited = decided.is_limited();
        // From here on nothing fails.
        let finished = decided.settle(all.force);

        let mut changes = SmallList::new();
        for (index, (key, request)) in keys.handles().iter_mut().zip(&mut requests).enumerate() {
            let outcome = &finished.keys[index].outcome;
            changes.extend(request.update(key, index, outcome, time));
            stats::units(request.cost, outcome.change);
        }
        let call = keys.close();
        commit::tell(call, changes, false, |Change { index, done, .. }| {
            done.effect(|| requests[*index].counted(&finished.keys[*index].outcome))
        });
        stats::all_taken(limited, finished.keys.iter().any(|key| key.outcome.changed()));
        for (name, _) in names.iter().zip(&finished.keys).filter(|(_, key)| key.limited) {
            commit::publish_if_limited(call, *name, true);
        }
        reply(call, &requests, &all.rows, &finished, limited);
        Ok(())
    }
}

/// One row without options, as clients send it to learn the time of the decision. It takes 9,200 instructions on Redis 7.0,
/// and 11,100 by the way of several keys (`make bench`).
fn run_one_row(call: &mut Call, row: &Row) -> Result<(), Refusal> {
    let time = Time { clock: server::now(), at: None };
    let name = call.key();
    let mut key = OpenKey::to_change(call, name)?;
    let quotas = [row.quota];
    let mut fresh = None;
    let limiter = key.handle_mut().limiter_or(&mut fresh, row.algorithm);
    let Decision { verdict, outcome } =
        limiter.decide_and_commit(row.algorithm, &quotas, row.cost, false, time)?;
    let at = commit::counted_at(limiter, &quotas, row.cost, time, &outcome);
    let asked = (row.algorithm, quotas.as_slice(), row.cost);
    let (call, longest_wait_ms) = commit::close_decided(key, fresh, asked, time, &outcome);
    let verdict = verdict.within(longest_wait_ms);
    stats::units(row.cost, outcome.change);
    stats::all_taken(verdict.limited, outcome.changed());
    commit::publish_if_limited(call, name, verdict.limited);
    reply::all(call, verdict.limited, verdict.retry_after_ms, at, &[verdict]);
    Ok(())
}

/// Replies with the verdict on each row, in the order of the rows.
fn reply(call: &Call, requests: &[KeyRequest], rows: &[Row], finished: &Finished, limited: bool) {
    let mut next: SmallList<usize> = finished.keys.iter().map(|key| key.first_row).collect();
    let (mut verdicts, mut retry_after): (SmallList<Verdict>, _) = (SmallList::new(), Wait::Ms(0));
    for row in rows {
        let verdict = finished.rows[next[row.key]].within(requests[row.key].longest_wait_ms);
        next[row.key] += 1;
        retry_after = retry_after.max(verdict.retry_after);
        verdicts.push(verdict.verdict);
    }
    let retry_after_ms = if limited { retry_after.ms() } else { None };
    let at = requests.iter().map(|request| request.at).max().unwrap_or_default();
    reply::all(call, limited, retry_after_ms, at, &verdicts);
}

/// A request about one key: all its rows.
struct KeyRequest {
    algorithm: Algorithm,
    quotas: QuotaList,
    cost: Cost,
    /// The limiter to store if the key is empty.
    fresh: Option<Limiter>,
    /// See [`commit::longest_wait_ms`].
    longest_wait_ms: u64,
    /// The time the units were counted at.
    at: UnixMs,
}

impl KeyRequest {
    /// A request of one row.
    fn new(row: &Row) -> Self {
        KeyRequest {
            algorithm: row.algorithm,
            quotas: QuotaList::from_iter([row.quota]),
            cost: row.cost,
            fresh: None,
            longest_wait_ms: u64::MAX,
            at: UnixMs::default(),
        }
    }

    /// What is requested of the limiter in the key.
    fn on<'s>(&'s mut self, key: &'s mut Handle, tiers: &'s mut Tiers) -> several::KeyRequest<'s> {
        let limiter = key.limiter_or(&mut self.fresh, self.algorithm);
        several::KeyRequest {
            limiter,
            algorithm: self.algorithm,
            quotas: &self.quotas,
            cost: self.cost,
            tiers,
        }
    }

    /// Notes what the reply needs to know of the key. Returns what happened to it, if anything.
    fn update<'a>(
        &mut self,
        key: &mut Handle<'a>,
        index: usize,
        outcome: &Outcome,
        time: Time,
    ) -> Option<Change<'a>> {
        let limiter = key.limiter_or(&mut self.fresh, self.algorithm);
        self.at = commit::counted_at(limiter, &self.quotas, self.cost, time, outcome);
        let done = commit::applied(key, self.fresh.as_mut(), time, outcome);
        let change = commit::change(key, index, done, self.fresh.take());
        self.longest_wait_ms = commit::longest_wait_ms(key, time, outcome);
        change
    }

    /// What copies are to count.
    fn counted(&self, outcome: &Outcome) -> Counted {
        Counted::of(self.algorithm, &self.quotas, self.cost, outcome)
    }
}
