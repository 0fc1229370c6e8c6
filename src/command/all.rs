//! RL.ALL: decides on several keys, and counts in all of them or in none.

use smallvec::SmallVec;

use super::commit::{self, DecidedRequest};
use super::reply;
use crate::keyspace::{OpenKey, ToWrite};
use crate::limiter::{
    Algorithm, Cost, Decision, Limiter, Outcome, Quota, QuotaList, Time, UnixMs, Verdict, Wait,
};
use crate::request::{self, List, ROW_WORDS, Refusal, Row, Rows};
use crate::server::{self, Arg, Call, Command};
use crate::stats;

/// RL.ALL.
pub struct All;

impl Command for All {
    fn run(call: &mut Call) -> Result<(), Refusal> {
        match call.args() {
            row if row.len() == ROW_WORDS => run_one_row(call, &Row::parse(row, 0)?),
            words => run_rows(call, words),
        }
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
    let mut fresh = None;
    let limiter = key.limiter_or(&mut fresh, row.algorithm);
    let Decision { verdict, outcome } = limiter.take(row.algorithm, &[row.quota], row.cost, false, time)?;
    let at = counted_at(&key, &[row.quota], row.cost, time, &outcome);
    let tiers = &tier_words(key.call().args());
    let decided =
        DecidedRequest { algorithm: row.algorithm, tiers, cost: row.cost, time, outcome, replayed: false };
    let (call, longest_wait_ms) = commit::close_and_tell(key, fresh, &decided);
    let verdict = verdict.within(longest_wait_ms);
    stats::units(row.cost, outcome.change);
    stats::all_taken(verdict.limited, outcome.changed());
    commit::publish_if_limited(call, name, verdict.limited);
    reply::all(call, verdict.limited, verdict.retry_after_ms, at, &[verdict]);
    Ok(())
}

fn run_rows<'a>(call: &mut Call<'a>, words: &'a [Arg<'a>]) -> Result<(), Refusal> {
    let rows = words.chunks_exact(ROW_WORDS).take(Rows::count(words.len())?);
    let (names, key_of_row) = request::distinct(rows.clone().map(|row| row[0]));
    let all = Rows::parse(words, &key_of_row)?;
    let time = Time { clock: server::now(), at: all.at };

    let mut requests: List<KeyRequest> = List::new();
    for (row, words) in all.rows.iter().zip(rows) {
        match requests.get_mut(row.key) {
            Some(request) => request.add_tier(row, words),
            None => requests.push(KeyRequest::new(names[row.key], row, words)),
        }
    }
    for request in &mut requests {
        request.decide(call, time)?;
    }
    // From here on nothing fails.
    let limited = requests.iter().any(|request| request.limited);
    if all.force || !limited {
        // Other modules are told of keys that are created or deleted, so these come last.
        for tells in [false, true] {
            for request in requests.iter_mut().filter(|request| request.tells() == tells) {
                request.count(call, time);
            }
        }
    } else {
        requests.iter_mut().for_each(|request| request.count_nothing(call, time));
    }
    let changed = requests.iter().any(|request| request.outcome.changed());
    stats::all_taken(limited, changed);
    requests.iter().for_each(|request| commit::publish_if_limited(call, request.name, request.limited));
    reply(call, &requests, &all.rows, limited);
    Ok(())
}

fn reply(call: &Call, requests: &[KeyRequest], rows: &[Row], limited: bool) {
    let mut verdicts: List<_> = requests.iter().map(KeyRequest::verdicts).collect();
    let verdicts: List<RowVerdict> = rows.iter().filter_map(|row| verdicts[row.key].next()).collect();
    let at = requests.iter().map(|request| request.at).max().unwrap_or_default();
    let waits = verdicts.iter().map(|row| row.again.retry_after());
    let retry_after = if limited { waits.max().and_then(Wait::ms) } else { None };
    let shown = |row: &RowVerdict| if row.refuses { row.again } else { row.again.allowed() };
    let shown: List<Verdict> = verdicts.iter().map(shown).collect();
    reply::all(call, limited, retry_after, at, &shown);
}

/// A request about one key: all its rows.
struct KeyRequest<'a> {
    name: Arg<'a>,
    algorithm: Algorithm,
    quotas: QuotaList,
    /// `limit window ...`, as the caller wrote them.
    tiers: SmallVec<[Arg<'a>; 2]>,
    cost: Cost,
    /// Whether the key was empty.
    is_new: bool,
    /// Whether one of its rows refuses.
    limited: bool,
    outcome: Outcome,
    /// One for each of its rows.
    verdicts: SmallVec<[RowVerdict; 1]>,
    /// See [`commit::close_and_tell`].
    longest_wait_ms: u64,
    /// The time the units were counted at.
    at: UnixMs,
}

#[derive(Clone, Copy)]
struct RowVerdict {
    /// Whether the row refuses the request.
    refuses: bool,
    /// The verdict on the same request if it came next. After FORCE, a row may refuse it although it allowed this one.
    again: Verdict,
}

impl<'a> KeyRequest<'a> {
    /// A request of one row.
    fn new(name: Arg<'a>, row: &Row, words: &[Arg<'a>]) -> Self {
        let &Row { algorithm, quota, cost, .. } = row;
        KeyRequest {
            name,
            algorithm,
            quotas: QuotaList::from_iter([quota]),
            tiers: SmallVec::from_buf(tier_words(words)),
            cost,
            is_new: false,
            limited: false,
            outcome: Outcome::default(),
            verdicts: SmallVec::new(),
            longest_wait_ms: u64::MAX,
            at: UnixMs::default(),
        }
    }

    /// Adds another row of the key.
    fn add_tier(&mut self, row: &Row, words: &[Arg<'a>]) {
        self.quotas.push(row.quota);
        self.tiers.extend(tier_words(words));
    }

    /// Decides whether all its rows allow the request, and closes the key. Otherwise it would be open while the next
    /// one is opened: if that has expired, the server deletes it and tells other modules.
    fn decide(&mut self, call: &mut Call<'a>, time: Time) -> Result<(), Refusal> {
        let mut key = OpenKey::to_write(call, self.name)?;
        self.is_new = key.limiter().is_none();
        let mut fresh = None;
        let limiter = key.limiter_or(&mut fresh, self.algorithm);
        let Decision { verdict, outcome } = limiter.decide(self.algorithm, &self.quotas, self.cost, time)?;
        let row = |verdict: Verdict| RowVerdict { refuses: verdict.limited, again: verdict };
        match self.quotas.as_slice() {
            [_] => self.verdicts.push(row(verdict)),
            quotas => {
                let each = quotas.iter().map(|quota| limiter.verdict_on(*quota, self.cost, time));
                self.verdicts.extend(each.map(row));
            }
        }
        (self.limited, self.outcome, self.at) = (verdict.limited, outcome, time.now());
        self.longest_wait_ms = commit::longest_wait_ms(&key, time, &outcome);
        Ok(())
    }

    /// Whether the server tells other modules if the request is counted: the key may be created or deleted.
    fn tells(&self) -> bool {
        self.is_new || self.cost.get() < 0
    }

    /// Counts the request, whether or not it is over a limit.
    ///
    /// Since it was decided, another module may have changed the key: then it is counted in what is there. If it
    /// cannot be, nothing is counted in this key, as if the other module had replaced it afterwards.
    fn count(&mut self, call: &mut Call<'a>, time: Time) {
        if self.cost.get() == 0 {
            return self.count_nothing(call, time);
        }
        let Ok(mut key) = OpenKey::to_write(call, self.name) else { return };
        let mut fresh = None;
        let limiter = key.limiter_or(&mut fresh, self.algorithm);
        let force = true;
        let Ok(Decision { outcome, .. }) = limiter.take(self.algorithm, &self.quotas, self.cost, force, time)
        else {
            return;
        };
        for (row, quota) in self.verdicts.iter_mut().zip(&self.quotas) {
            row.again = limiter.verdict_on(*quota, self.cost, time);
        }
        self.outcome = outcome;
        self.at = counted_at(&key, &self.quotas, self.cost, time, &outcome);
        stats::units(self.cost, outcome.change);
        self.close_and_tell(key, fresh, time);
    }

    /// Counts nothing; but a key that is far ahead of the clock expires early.
    fn count_nothing(&mut self, call: &mut Call<'a>, time: Time) {
        if self.outcome.expiry_facts(time).may_move_expiry()
            && let Ok(key) = OpenKey::to_write(call, self.name)
        {
            self.close_and_tell(key, None, time);
        }
    }

    fn close_and_tell(&mut self, key: OpenKey<ToWrite>, fresh: Option<Limiter>, time: Time) {
        let KeyRequest { algorithm, cost, outcome, .. } = *self;
        let decided = DecidedRequest { algorithm, tiers: &self.tiers, cost, time, outcome, replayed: false };
        (_, self.longest_wait_ms) = commit::close_and_tell(key, fresh, &decided);
    }

    fn verdicts(&self) -> impl Iterator<Item = RowVerdict> {
        let within = |row: &RowVerdict| RowVerdict { again: row.again.within(self.longest_wait_ms), ..*row };
        self.verdicts.iter().map(within)
    }
}

/// The `limit window` of a row.
#[inline(always)]
fn tier_words<'a>(row: &[Arg<'a>]) -> [Arg<'a>; 2] {
    [row[2], row[3]]
}

/// The time the units were counted at: for windows ahead of the clock, their own newest time.
#[inline(always)]
fn counted_at(key: &OpenKey<ToWrite>, quotas: &[Quota], cost: Cost, time: Time, outcome: &Outcome) -> UnixMs {
    let counted = outcome.changed() && cost.taken() > 0;
    let ahead = key.limiter().filter(|_| counted && outcome.ahead);
    ahead.map_or(time.now(), |limiter| limiter.newest_of(quotas).max(time.now()))
}
