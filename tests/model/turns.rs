//! WITHIN: who waits is not overtaken, and who stands last and leaves is as if it had never come.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;
use proptest::test_runner::TestCaseResult;
use redis_rl_core::limiter::{Algorithm, Limiter, Quota, WindowMs};

use crate::calls::{Act, Answer, Call, answer, quota};
use crate::cases;

/// Requests in the order in which they come, with the milliseconds before each.
type Steps = Vec<(u64, Act, i64)>;

fn steps() -> impl Strategy<Value = Steps> {
    let pass = prop_oneof![6 => Just(0), 3 => 1..=10u64, 1 => 1..=200u64];
    let act = prop_oneof![
        6 => (1..=400u64).prop_map(Act::Within),
        2 => Just(Act::Take),
        1 => Just(Act::Partial),
        1 => Just(Act::Peek),
    ];
    vec((pass, act, 1..=8i64), 1..40)
}

fn quotas() -> impl Strategy<Value = Vec<Quota>> {
    vec((1..=12u64, 1..=120u64), 1..=3).prop_map(|pairs| {
        let mut quotas: Vec<Quota> = Vec::new();
        for (limit, window) in pairs {
            let window = WindowMs::new(window).expect("a window");
            if quotas.iter().all(|other| other.window() != window) {
                quotas.push(quota(limit, window));
            }
        }
        quotas
    })
}

const START: u64 = 1_000_000;

fn ask(limiter: &mut Limiter, quotas: &[Quota], act: Act, cost: i64, now: u64) -> Answer {
    let call = Call { act, quotas: quotas.to_vec(), cost, now, at: false };
    answer(limiter, &call).expect("the windows fit")
}

/// The last in the line cancels at once, after `later` ms, or at its turn: whoever comes later gets the reply that it would get if the
/// request had never come.
fn leaves_no_trace(
    quotas: &[Quota],
    before: &Steps,
    cost: i64,
    wait: u64,
    later: u64,
    after: &Steps,
) -> TestCaseResult {
    let (mut with, mut now) = (Limiter::new(Algorithm::Bucket), START);
    for (pass, act, cost) in before {
        now += pass;
        ask(&mut with, quotas, *act, *cost, now);
    }
    let mut without = with.clone();
    let told = ask(&mut with, quotas, Act::Within(wait), cost, now);
    let (Some(wait_ms), Some(at), false) = (told.verdict.retry_after_ms, told.at, told.verdict.limited)
    else {
        return Ok(());
    };
    now += later.min(wait_ms);
    let cancel = Call { act: Act::Partial, quotas: quotas.to_vec(), cost: -cost, now: at, at: true };
    let given_back = answer(&mut with, &cancel).expect("it is always allowed");
    prop_assert!(given_back.changed.is_some(), "all of {cost} goes back");
    if with.is_empty() {
        with = Limiter::new(Algorithm::Bucket);
    }
    for (pass, act, cost) in after {
        now += pass;
        let (is, was) =
            (ask(&mut with, quotas, *act, *cost, now), ask(&mut without, quotas, *act, *cost, now));
        prop_assert_eq!(
            (is.verdict, is.granted, is.at),
            (was.verdict, was.granted, was.at),
            "{:?} at {}",
            act,
            now
        );
    }
    Ok(())
}

/// Whoever is not the last in the line gives nothing back, and everyone uses units no earlier than those who asked before.
fn nobody_overtakes(quotas: &[Quota], steps: &Steps, whose: &[Index]) -> TestCaseResult {
    let (mut limiter, mut now, mut latest) = (Limiter::new(Algorithm::Bucket), START, 0);
    // Who waits: the cost, and the time of the turn.
    let (mut line, mut cancels): (Vec<(i64, u64)>, _) = (Vec::new(), whose.iter());
    for (pass, act, cost) in steps {
        now += pass;
        let reply = ask(&mut limiter, quotas, *act, *cost, now);
        if reply.changed.is_some() {
            let turn = reply.at.unwrap_or(now).max(now);
            prop_assert!(turn >= latest, "{:?} of {} at {} overtakes {}", act, cost, turn, latest);
            latest = turn;
            match reply.verdict.retry_after_ms {
                Some(_) if !reply.verdict.limited => line.push((*cost, turn)),
                _ => line.clear(),
            }
        }
        let Some((index, true)) = cancels.next().map(|whose| (whose, !line.is_empty())) else { continue };
        let place = index.index(line.len());
        let (cost, turn) = line[place];
        if place + 1 < line.len() && turn < line[line.len() - 1].1 {
            let before = limiter.buckets();
            let cancel = Call { act: Act::Take, quotas: quotas.to_vec(), cost: -cost, now: turn, at: true };
            let reply = answer(&mut limiter, &cancel).expect("it is always allowed");
            prop_assert!(reply.changed.is_none(), "others stand behind");
            prop_assert_eq!(limiter.buckets(), before);
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(cases(4000))]

    #[test]
    fn after_the_last_in_the_line_has_left_all_get_the_replies_as_if_it_had_never_come(
        quotas in quotas(),
        before in steps(),
        cost in 1..=12i64,
        wait in 1..=800u64,
        later in prop_oneof![Just(0), 0..=800u64],
        after in steps(),
    ) {
        leaves_no_trace(&quotas, &before, cost, wait, later, &after)?;
    }

    #[test]
    fn nobody_is_overtaken_and_only_the_last_gives_its_turn_back(
        quotas in quotas(),
        steps in steps(),
        whose in vec(any::<Index>(), 40),
    ) {
        nobody_overtakes(&quotas, &steps, &whose)?;
    }
}
