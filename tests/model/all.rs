//! RL.ALL: several keys are decided one by one, then counted in all or in none. Compared with the plain models,
//! and with every millisecond tried.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;
use proptest::test_runner::TestCaseResult;
use redis_rl_core::encoding::encode;
use redis_rl_core::limiter::several::{self, Part, Parts, Row, Rows, RowsOfKey};
use redis_rl_core::limiter::{Cost, Limiter, MAX_SAFE_INTEGER, Quota, Time, TimeSource, UnixMs, Verdict};

use crate::calls::{Call, History, MemoryKey, answer, expected};
use crate::cases;
use crate::history::{Shape, history, huge, small};
use crate::naive::{Model, Search};

/// A request about one key: its tiers and its cost.
#[derive(Clone, Debug)]
struct Request {
    quotas: Vec<Quota>,
    cost: i64,
}

/// Some keys with their histories, and the request about each.
#[derive(Clone, Debug)]
struct Keys {
    histories: Vec<History>,
    requests: Vec<Request>,
    force: bool,
    at: bool,
    now: u64,
}

impl Keys {
    /// The last call of each history becomes the request about its key, all at the time of one of them.
    fn of(mut histories: Vec<History>, force: bool, at: bool, whose_time: Index) -> Keys {
        let last = histories.iter_mut().map(|history| history.calls.pop().expect("a history has a call"));
        let last: Vec<Call> = last.collect();
        let now = whose_time.get(&last).now;
        // Waits without AT end when a key expires: at the last time of all.
        let at = at || now > MAX_SAFE_INTEGER / 2;
        let requests = last.into_iter().map(|Call { quotas, cost, .. }| Request { quotas, cost }).collect();
        Keys { histories, requests, force, at, now }
    }

    fn limiters(&self) -> Vec<Limiter> {
        self.histories.iter().map(History::limiter).collect()
    }

    fn models(&self, search: Search) -> Vec<Model> {
        let model = |history: &History| {
            let mut model = Model::new(history.algorithm, search);
            let mut limiter = Limiter::new(history.algorithm);
            for call in &history.calls {
                model.with_at = limiter.source() == TimeSource::At;
                let _ = expected(&mut model, call);
                let _ = answer(&mut limiter, call);
            }
            model.with_at = limiter.source() == TimeSource::At;
            model
        };
        self.histories.iter().map(model).collect()
    }
}

/// The reply to RL.ALL, and which keys it changed.
#[derive(Clone, Debug, PartialEq)]
struct Answer {
    limited: bool,
    retry_after: Option<u64>,
    rows: Vec<Verdict>,
    changed: Vec<bool>,
    /// Which keys were moved back.
    moved: Vec<bool>,
}

/// Does what the command does; `None` if the windows do not fit one of the keys.
fn answer_all(limiters: &mut [Limiter], keys: &Keys, now: u64, force: bool) -> Option<Answer> {
    let now = UnixMs::saturating(now);
    let time = Time { clock: now, at: keys.at.then_some(now) };
    let mut expiries = vec![None; limiters.len()];
    let (mut parts, mut rows) = (Parts::default(), Rows::new());
    let keys = limiters.iter_mut().zip(&mut expiries).zip(&keys.requests).enumerate();
    for (name, ((limiter, expires_at), Request { quotas, cost })) in keys {
        let (algorithm, cost) = (limiter.algorithm(), Cost::new(*cost).expect("a cost"));
        let asked = RowsOfKey {
            quotas: quotas.iter().copied().collect(),
            ..RowsOfKey::new(algorithm, quotas[0], cost)
        };
        let key = parts.add(vec![name as u8], asked);
        parts[key].key = Some(MemoryKey { limiter, expires_at });
        rows.extend(quotas.iter().map(|_| Row { key, verdict: Verdict::default() }));
    }
    let answer = several::run(&mut parts, &mut rows, force, time).ok()?;
    let verdicts = rows.iter().map(|row| row.verdict).collect();
    let (mut changed, mut moved) = (Vec::new(), Vec::new());
    for Part { key, fresh, pending, .. } in parts.iter_mut() {
        changed.push(pending.changed);
        moved.push(pending.moved.back.is_some());
        key.as_mut().expect("it is open").carry_out(fresh.take(), *pending);
    }
    Some(Answer {
        limited: answer.limited,
        retry_after: answer.retry_after_ms,
        rows: verdicts,
        changed,
        moved,
    })
}

/// The models' answer.
fn expected_of_all(models: &mut [Model], keys: &Keys, search: Search) -> Option<Answer> {
    let Keys { requests, force, at, now, .. } = keys;
    for (model, Request { quotas, cost }) in models.iter().zip(requests) {
        model.check_windows_fit(quotas, *cost, *now).ok()?;
    }
    let moved = models.iter_mut().map(|model| !at && model.move_back(*now)).collect();
    let refuses = |models: &[Model], ms: u64| {
        let mut requests = models.iter().zip(requests);
        requests.any(|(model, Request { quotas, cost })| model.refuses(quotas, *cost, now + ms))
    };
    let limited = refuses(models, 0);
    let (mut rows, mut changed) = (Vec::new(), Vec::new());
    for (model, Request { quotas, cost }) in models.iter_mut().zip(requests) {
        let refused: Vec<bool> = quotas.iter().map(|quota| model.refuses(&[*quota], *cost, *now)).collect();
        let counts = *cost != 0 && (*force || !limited);
        changed.push(counts && model.record(quotas, *cost, *now, *at, *force).is_some());
        let verdict = |(quota, refused): (&Quota, &bool)| model.verdict(&[*quota], *cost, *now, *refused);
        rows.extend(quotas.iter().zip(&refused).map(verdict));
    }
    let hopeless = |Request { quotas, cost }: &Request| {
        quotas.iter().any(|quota| i128::from(*cost) > i128::from(quota.limit()))
    };
    let retry_after =
        (limited && !requests.iter().any(hopeless)).then(|| search.first(|ms| !refuses(models, ms)));
    Some(Answer { limited, retry_after, rows, changed, moved })
}

fn agree(keys: &Keys, search: Search) -> TestCaseResult {
    let mut limiters = keys.limiters();
    let before: Vec<_> = limiters.iter().map(encode).collect();
    let reply = answer_all(&mut limiters, keys, keys.now, keys.force);
    let wanted = expected_of_all(&mut keys.models(search), keys, search);
    prop_assert_eq!(&reply, &wanted);
    let after: Vec<_> = limiters.iter().map(encode).collect();
    let Some(reply) = reply else {
        prop_assert_eq!(before, after, "an error changes nothing in any key");
        return Ok(());
    };
    for (key, changed) in reply.changed.iter().enumerate() {
        let (changes, moves) = (*changed, reply.moved[key]);
        prop_assert_eq!(changes || moves, before[key] != after[key], "key {}", key);
        prop_assert!(!*changed || keys.force || !reply.limited, "a limited request changes nothing");
    }

    // The same request again: limited until the wait is over, then allowed.
    let Some(wait) = reply.retry_after else { return Ok(()) };
    prop_assert!(wait > 0);
    let tried: Vec<u64> = match search {
        Search::EveryMs => (0..wait).collect(),
        Search::Halving => vec![0, wait / 2, wait - 1],
    };
    for (ms, limited) in tried.into_iter().map(|ms| (ms, true)).chain([(wait, false)]) {
        if keys.now + ms <= MAX_SAFE_INTEGER {
            let again = answer_all(&mut limiters.clone(), keys, keys.now + ms, false);
            prop_assert!(again.is_some_and(|again| again.limited == limited), "{} of {} ms after", ms, wait);
        }
    }
    Ok(())
}

fn keys(histories: impl Strategy<Value = History>) -> impl Strategy<Value = Keys> {
    (vec(histories, 1..=4), any::<bool>(), any::<bool>(), any::<Index>())
        .prop_map(|(histories, force, at, whose_time)| Keys::of(histories, force, at, whose_time))
}

/// Keys with small figures that begin at about the same time, so that every millisecond can be tried.
fn small_keys(shape: fn() -> Shape) -> impl Strategy<Value = Keys> {
    prop::sample::select(vec![0, 77, 1_700_000_000_000])
        .prop_flat_map(move |start: u64| keys(history(Shape { start: Just(start).boxed(), ..shape() })))
}

/// Requests about keys that are nearly full.
fn taking() -> Shape {
    Shape { cost: (1..=3i64).boxed(), limit: (1..=8u64).boxed(), calls: 1..20, ..small() }
}

proptest! {
    #![proptest_config(cases(3_000))]

    #[test]
    fn several_keys_are_counted_all_or_none_and_every_ms_confirms_their_wait(
        keys in small_keys(|| Shape { calls: 1..30, ..small() }),
    ) {
        agree(&keys, Search::EveryMs)?;
    }

    #[test]
    fn the_longest_wait_over_nearly_full_keys_is_exact(keys in small_keys(taking)) {
        agree(&keys, Search::EveryMs)?;
    }

    #[test]
    fn replies_about_several_keys_are_exact_over_the_whole_range_of_the_arguments(
        keys in keys(history(Shape { calls: 1..12, ..huge() })),
    ) {
        agree(&keys, Search::Halving)?;
    }
}
