//! RL.ALL: decides on several keys, and counts in all of them or in none.

use smallvec::SmallVec;

use super::commit::{self, DecidedRequest};
use super::reply;
use crate::keyspace::{Handle, OpenKey, OpenKeys};
use crate::limiter::several::{self, Finished, FinishedKey};
use crate::limiter::{
    Algorithm, Cost, Decision, Limiter, Outcome, QuotaList, Tiers, Time, UnixMs, Verdict, Wait,
};
use crate::request::{self, List, ROW_WORDS, Refusal, Row, Rows};
use crate::server::{self, Arg, Call, Command};
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
        let (names, key_of_row) = request::distinct(rows.clone().map(|row| row[0]));
        let all = Rows::parse(words, &key_of_row)?;
        let time = Time { clock: server::now(), at: all.at };
        let mut requests: List<KeyRequest> = List::new();
        for (row, words) in all.rows.iter().zip(rows) {
            match requests.get_mut(row.key) {
                Some(request) => request.add_tier(row, words),
                None => requests.push(KeyRequest::new(row, words)),
            }
        }

        let mut keys = OpenKeys::to_write(call, &names)?;
        let mut looked_up: List<Tiers> = requests.iter().map(|_| Tiers::default()).collect();
        let limiters = keys.handles().iter_mut().zip(&mut requests).zip(&mut looked_up);
        let decided = several::decide(limiters.map(|((key, request), tiers)| request.on(key, tiers)), time)?;
        let limited = decided.is_limited();
        // From here on nothing fails.
        let finished = if all.force || !limited { decided.commit() } else { decided.leave() };

        for ((key, request), finished) in keys.handles().iter_mut().zip(&mut requests).zip(&finished.keys) {
            request.update(key, finished, time);
        }
        let call = keys.close();
        tell(call, &names, &mut requests, &finished.keys, time);
        stats::all_taken(limited, finished.keys.iter().any(|key| key.outcome.changed()));
        for (name, _) in names.iter().zip(&finished.keys).filter(|(_, key)| key.limited) {
            commit::publish_if_limited(call, *name, true);
        }
        reply(call, &requests, &all.rows, &finished, limited);
        Ok(())
    }
}

/// One row without options. As fast as the single command: clients use it to learn the time of the decision.
#[inline(always)]
fn run_one_row(call: &mut Call, row: &Row) -> Result<(), Refusal> {
    let time = Time { clock: server::now(), at: None };
    let name = call.key();
    let mut key = OpenKey::to_write(call, name)?;
    if key.limiter().is_none() {
        key = key.open_again()?;
    }
    let quotas = [row.quota];
    let mut fresh = None;
    let limiter = key.handle_mut().limiter_or(&mut fresh, row.algorithm);
    let Decision { verdict, outcome } = limiter.take(row.algorithm, &quotas, row.cost, false, time)?;
    let at = commit::counted_at(limiter, &quotas, row.cost, time, &outcome);
    let words = key.call().args();
    let decided = DecidedRequest {
        algorithm: row.algorithm,
        tiers: &[words[2], words[3]],
        cost: row.cost,
        time,
        outcome,
        replayed: false,
    };
    let (call, longest_wait_ms) = commit::close_and_tell(key, fresh, &decided);
    let verdict = verdict.within(longest_wait_ms);
    stats::units(row.cost, outcome.change);
    stats::all_taken(verdict.limited, outcome.changed());
    commit::publish_if_limited(call, name, verdict.limited);
    reply::all(call, verdict.limited, verdict.retry_after_ms, at, &[verdict]);
    Ok(())
}

/// Sends the effects to copies, and tells other modules, which may write to any key. So copies get first what was
/// changed in place, and each new key just before it is stored: everything in the order in which it happened.
fn tell<'a>(
    call: &mut Call<'a>,
    names: &[Arg<'a>],
    requests: &mut [KeyRequest<'a>],
    finished: &[FinishedKey],
    time: Time,
) {
    let changed = names.iter().zip(requests).zip(finished).filter(|(_, key)| key.outcome.changed());
    let mut changed: List<_> = changed.map(|((name, request), key)| (*name, request, key.outcome)).collect();
    for (name, request, outcome) in &changed {
        stats::units(request.cost, outcome.change);
        if request.fresh.is_none() {
            request.decided(time, *outcome).replicate(call, *name);
            call.signal_modified(*name);
        }
    }
    for (name, request, outcome) in &mut changed {
        if outcome.emptied {
            request.delete(call, *name, time);
        } else if let Some(fresh) = request.fresh.take() {
            request.create(call, *name, fresh, time, *outcome);
        }
    }
}

/// Replies with the verdict on each row, in the order of the rows.
fn reply(call: &Call, requests: &[KeyRequest], rows: &[Row], finished: &Finished, limited: bool) {
    let mut next: List<usize> = finished.keys.iter().map(|key| key.first_row).collect();
    let (mut verdicts, mut retry_after): (List<Verdict>, _) = (List::new(), Wait::Ms(0));
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
struct KeyRequest<'a> {
    algorithm: Algorithm,
    quotas: QuotaList,
    /// `limit window ...`, as the caller wrote them.
    tiers: SmallVec<[Arg<'a>; 2]>,
    cost: Cost,
    /// The limiter to store if the key is empty.
    fresh: Option<Limiter>,
    /// See [`commit::move_expiry`].
    longest_wait_ms: u64,
    /// The time the units were counted at.
    at: UnixMs,
}

impl<'a> KeyRequest<'a> {
    /// A request of one row.
    fn new(row: &Row, words: &[Arg<'a>]) -> Self {
        KeyRequest {
            algorithm: row.algorithm,
            quotas: QuotaList::from_iter([row.quota]),
            tiers: SmallVec::from_buf([words[2], words[3]]),
            cost: row.cost,
            fresh: None,
            longest_wait_ms: u64::MAX,
            at: UnixMs::default(),
        }
    }

    /// Adds another row of the key.
    fn add_tier(&mut self, row: &Row, words: &[Arg<'a>]) {
        self.quotas.push(row.quota);
        self.tiers.extend([words[2], words[3]]);
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

    fn decided(&self, time: Time, outcome: Outcome) -> DecidedRequest<'_> {
        let KeyRequest { algorithm, cost, .. } = *self;
        DecidedRequest { algorithm, tiers: &self.tiers, cost, time, outcome, replayed: false }
    }

    /// Notes what the reply needs to know of the key, and updates the time to live of what was there before.
    fn update(&mut self, key: &mut Handle, finished: &FinishedKey, time: Time) {
        let outcome = finished.outcome;
        let limiter = key.limiter_or(&mut self.fresh, self.algorithm);
        self.at = commit::counted_at(limiter, &self.quotas, self.cost, time, &outcome);
        if !outcome.changed() {
            self.fresh = None;
        }
        if self.fresh.is_none() && !outcome.emptied {
            self.longest_wait_ms = commit::move_expiry(key, &self.decided(time, outcome));
        }
    }

    /// Deletes the key if nothing counts in it. Another module may have replaced it meanwhile.
    fn delete(&self, call: &mut Call<'a>, name: Arg<'a>, time: Time) {
        if let Ok(key) = OpenKey::to_write(call, name)
            && key.limiter().is_some_and(|limiter| limiter.counts_nothing(&self.quotas, time.earlier()))
        {
            commit::delete(key);
        }
    }

    /// Stores a new limiter in the key.
    ///
    /// If another module has created the key meanwhile, the request is counted in what is there. If it cannot be,
    /// nothing is counted in this key, as if the other module had replaced it afterwards.
    fn create(&mut self, call: &mut Call<'a>, name: Arg<'a>, fresh: Limiter, time: Time, outcome: Outcome) {
        let key = OpenKey::to_write(call, name);
        let key = key.and_then(|key| if key.limiter().is_none() { key.open_again() } else { Ok(key) });
        let Ok(mut key) = key else { return };
        let decided = self.decided(time, outcome);
        self.longest_wait_ms = match key.handle_mut().limiter_mut() {
            None => {
                decided.replicate(key.call(), name);
                commit::create(key, fresh, &decided).1
            }
            Some(limiter) => {
                let taken = limiter.take(self.algorithm, &self.quotas, self.cost, true, time);
                let Ok(Decision { outcome, .. }) = taken else { return };
                commit::close_and_tell(key, None, &DecidedRequest { outcome, ..decided }).1
            }
        };
    }
}
