//! RL.ALL: decides over several keys, and counts in all of them or in none.

use arrayvec::ArrayVec;

use super::commit::{self, Done};
use super::reply::{self, integer};
use crate::keyspace::OpenKey;
use crate::limiter::{Decision, Limiter, MAX_TIERS, Outcome, Quota, QuotaList, Time, UnixMs, Verdict, Wait};
use crate::request::{KeyRequest, List, Place, ROW_WORDS, Refusal, Rows};
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
    /// The latest time that anything was counted at.
    newest: UnixMs,
}

impl Command for All {
    fn run<'a>(call: &'a Call<'a>, keys: Keys<'a>) -> Result<(), Refusal> {
        let args = call.args();
        let rows = args.chunks_exact(ROW_WORDS).take(Rows::count(args.len())?);
        let (keys, key_of_row) = keys.distinct(rows.map(|row| row[0]));
        let all = Rows::parse(args, &key_of_row)?;
        let time = Time { clock: server::now(), at: all.at };

        let mut keys = keys.map(OpenKey::to_write).collect::<Result<List<_>, _>>()?;
        let mut fresh: List<Option<Limiter>> = keys.iter().map(|_| None).collect();
        let mut decisions: List<KeyDecision> = List::new();
        for ((key, fresh), request) in keys.iter_mut().zip(&mut fresh).zip(&all.keys) {
            let limiter = key.limiter_or(fresh, request.algorithm);
            decisions.push(KeyDecision::of(limiter, request, time)?);
        }
        // From here on nothing is refused any more.
        let limited = decisions.iter().any(KeyDecision::limited);
        if all.force || !limited {
            decisions.iter_mut().for_each(KeyDecision::commit);
        }

        let verdict_of = |place: &Place| decisions[place.key].verdict_of(place.tier);
        let mut verdicts: List<Verdict> = all.places.iter().filter_map(verdict_of).collect();
        let decided: List<Decided> = decisions.iter().map(KeyDecision::decided).collect();
        drop(decisions);

        let (mut at, mut retry_after, mut changed) = (time.now(), Wait::Ms(0), false);
        let each = keys.into_iter().zip(fresh).zip(&all.keys).zip(&decided).enumerate();
        for (i, (((mut key, fresh), request), decided)) in each {
            let (name, outcome) = (key.name(), decided.outcome);
            let tiers = tiers_of(args, &all.places, i);
            let done =
                Done { algorithm: request.algorithm, tiers: &tiers, cost: request.cost, time, outcome };
            if outcome.changed()
                && let Some(limiter) = key.limiter_mut()
            {
                limiter.shorten();
            }
            let longest_wait_ms = commit::conclude(call, key, fresh, &done, false)?;
            for (verdict, _) in verdicts.iter_mut().zip(&all.places).filter(|(_, place)| place.key == i) {
                *verdict = verdict.within(longest_wait_ms);
            }
            retry_after = retry_after.max(decided.retry_after.within(longest_wait_ms));
            if outcome.changed() {
                changed = true;
                if request.cost.taken() > 0 {
                    // A key that is ahead of this time counts as of its own.
                    at = at.max(decided.newest);
                }
                stats::units(request.cost, outcome.change);
            }
            commit::publish_if_limited(call, name, decided.limited);
        }
        stats::all_taken(limited, changed);

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

/// A decision about one key: nearly always of one tier, which takes a fifth of the memory.
enum KeyDecision<'a> {
    OneTier(Decision<'a, [Quota; 1]>),
    Tiers(Box<Decision<'a, QuotaList>>),
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
    fn of(limiter: &'a mut Limiter, request: &KeyRequest, time: Time) -> Result<Self, Refusal> {
        let KeyRequest { algorithm, quotas, cost } = request;
        Ok(match quotas[..] {
            [quota] => KeyDecision::OneTier(limiter.decide(*algorithm, &[quota], *cost, time)?),
            _ => KeyDecision::Tiers(Box::new(limiter.decide(*algorithm, quotas, *cost, time)?)),
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
            newest: decision.newest(),
        })
    }
}

/// The `limit window ...` of the rows about one key, as the caller wrote them.
fn tiers_of<'a>(args: &[Arg<'a>], places: &[Place], key: usize) -> ArrayVec<Arg<'a>, { 2 * MAX_TIERS }> {
    let rows = args.chunks_exact(ROW_WORDS).zip(places).filter(|(_, place)| place.key == key);
    rows.flat_map(|(row, _)| row[2..4].iter().copied()).collect()
}
