//! RL.ALL: decides over several keys, and counts in all of them or in none.

use super::reply::{self, integer};
use super::{commit, commit::Done};
use crate::keyspace::OpenKey;
use crate::limiter::{Decision, Limiter, Outcome, Time, Verdict, Wait};
use crate::request::{Place, ROW_WORDS, Refusal, Rows};
use crate::server::{self, Arg, Call, Command, Keys};
use crate::stats;

/// RL.ALL.
pub struct All;

/// What was decided about one key.
struct Decided {
    limited: bool,
    /// How long until all its tiers allow the same request.
    retry_after: Wait,
    outcome: Outcome,
}

impl Command for All {
    fn run<'a>(call: &'a Call<'a>, keys: Keys<'a>) -> Result<(), Refusal> {
        let words: Vec<&[u8]> = call.args().iter().map(|arg| arg.bytes()).collect();
        let all = Rows::parse(&words)?;
        let rows = call.args().chunks_exact(ROW_WORDS);
        let (keys, key_of_row) = keys.distinct(rows.map(|row| &row[0]));
        let (requests, places) = all.by_key(&key_of_row)?;
        let time = Time { clock: server::now(), at: all.at };

        let mut keys = keys.into_iter().map(OpenKey::to_write).collect::<Result<Vec<_>, _>>()?;
        let mut fresh: Vec<Option<Limiter>> = requests.iter().map(|_| None).collect();
        let mut decisions = Vec::with_capacity(keys.len());
        for ((key, fresh), request) in keys.iter_mut().zip(&mut fresh).zip(&requests) {
            let limiter = key.limiter_or(fresh, request.algorithm);
            decisions.push(limiter.decide(request.algorithm, &request.quotas, request.cost, time)?);
        }
        // From here on nothing can be refused any more.
        let limited = decisions.iter().any(Decision::limited);
        if all.force || !limited {
            decisions.iter_mut().for_each(Decision::commit);
        }

        let verdict_of = |place: &Place| decisions[place.key].verdict_of(place.tier);
        let mut verdicts: Vec<Verdict> = places.iter().filter_map(verdict_of).collect();
        // What is counted in a key that is ahead of this time is counted as of the key's own time.
        let counted = decisions.iter().filter(|decision| decision.outcome().changed());
        let at = counted.map(Decision::newest).fold(time.now(), Ord::max);
        let decided: Vec<Decided> = decisions.iter().map(Decided::of).collect();
        drop(decisions);

        let mut retry_after = Wait::Ms(0);
        for (i, key) in keys.into_iter().enumerate() {
            let (request, decided, name) = (&requests[i], &decided[i], key.name());
            let tiers = tiers_of(call, &places, i);
            let Decided { outcome, .. } = *decided;
            let done =
                Done { algorithm: request.algorithm, tiers: &tiers, cost: request.cost, time, outcome };
            let longest_wait_ms = commit::conclude(call, key, fresh[i].take(), &done, false)?;
            retry_after = retry_after.max(decided.retry_after.within(longest_wait_ms));
            for (verdict, _) in verdicts.iter_mut().zip(&places).filter(|(_, place)| place.key == i) {
                *verdict = verdict.within(longest_wait_ms);
            }
            stats::units(request.cost, outcome.change);
            commit::publish_if_limited(call, name, decided.limited);
        }
        stats::all_taken(limited, decided.iter().any(|decided| decided.outcome.changed()));

        call.reply_array(4);
        call.reply_integer(i64::from(limited));
        call.reply_integer(retry_after.ms().filter(|_| limited).map_or(-1, integer));
        call.reply_integer(integer(at.get()));
        call.reply_array(verdicts.len());
        for verdict in &verdicts {
            reply::verdict(call, verdict);
        }
        Ok(())
    }
}

impl Decided {
    fn of<Q: crate::limiter::Quotas>(decision: &Decision<Q>) -> Decided {
        Decided {
            limited: decision.limited(),
            retry_after: decision.retry_after(),
            outcome: decision.outcome(),
        }
    }
}

/// The `limit window ...` of the rows about one key, as the caller wrote them.
fn tiers_of<'a>(call: &Call<'a>, places: &[Place], key: usize) -> Vec<Arg<'a>> {
    let rows = call.args().chunks_exact(ROW_WORDS).zip(places).filter(|(_, place)| place.key == key);
    rows.flat_map(|(row, _)| row[2..4].iter().copied()).collect()
}
