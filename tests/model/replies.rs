//! Every reply in a history equals the model's, and so does what RL.INFO shows afterwards.

use proptest::prelude::*;
use proptest::test_runner::TestCaseResult;
use redis_rl_core::encoding::{decode, encode};
use redis_rl_core::limiter::{Algorithm, Limiter, UnixMs};

use crate::calls::{Act, Call, History, answer, answer_and_send, apply, assert_agree, quota};
use crate::cases;
use crate::fuzzed::operations::check_history;
use crate::history::{Shape, calendar, crowded, history, huge, pace, small};
use crate::naive::{Model, Search};

proptest! {
    #![proptest_config(cases(800))]

    #[test]
    fn every_reply_equals_that_of_a_model_which_tries_every_millisecond(history in history(small())) {
        check_history(&history, Search::EveryMs);
    }

    #[test]
    fn every_reply_is_exact_over_the_whole_range_of_the_arguments(history in history(huge())) {
        check_history(&history, Search::Halving);
    }

    #[test]
    fn every_reply_about_weeks_and_months_is_exact_in_every_year(history in history(calendar())) {
        check_history(&history, Search::Halving);
    }

    #[test]
    fn a_key_has_up_to_8_live_windows_and_refuses_to_take_more(history in history(crowded())) {
        check_history(&history, Search::EveryMs);
        let (_, end) = history.windows_and_end();
        prop_assert!(history.limiter().windows(UnixMs::saturating(end)).len() <= 8);
    }

    #[test]
    fn a_copy_that_applies_each_effect_holds_the_same(
        history in prop_oneof![
            4 => history(Shape { windows: 1..=10, tiers: 1..=4, ..small() }),
            1 => history(Shape { windows: 1..=10, tiers: 1..=4, ..calendar() }),
        ],
    ) {
        copies_agree(&history);
    }
}

fn copies_agree(history: &History) {
    let mut limiter = Limiter::new(history.algorithm);
    let (mut expires_at, mut copy, mut copy_expires_at) = (None, limiter.clone(), None);
    for call in &history.calls {
        let _ = answer_and_send(&mut limiter, &mut expires_at, call, |effect| {
            apply(&mut copy, &mut copy_expires_at, &effect);
        });
        assert_eq!(encode(&copy), encode(&limiter), "after {call:?}");
        assert_eq!(copy_expires_at, expires_at, "after {call:?}");
    }
}

/// A log of thousands of entries in one to three windows of some seconds.
fn long_log() -> Shape {
    Shape {
        algorithms: &[Algorithm::Log],
        window: (500..4_000u64).boxed(),
        windows: 1..=3,
        limit: prop_oneof![1_000..10_000u64, 2..1_000u64].boxed(),
        cost: prop_oneof![20 => Just(1), 10 => 1..=8i64, 1 => 100..300i64].boxed(),
        act: Just(Act::Take).boxed(),
        pace: pace(Just(0), prop_oneof![40 => 0..=3i64, 1 => -20..0i64]),
        calls: 4_000..6_000,
        ..small()
    }
}

/// The same with FORCE and refunds. Mostly FORCE, so that the log grows long enough to drop units.
fn long_log_of_all_kinds() -> Shape {
    Shape {
        window: (3_000..8_000u64).boxed(),
        limit: (50..3_000u64).boxed(),
        cost: prop_oneof![
            400 => Just(1),
            200 => 1..=8i64,
            10 => 100..300i64,
            30 => -8..0i64,
            1 => -1_000..-100i64,
        ]
        .boxed(),
        act: prop_oneof![1 => Just(Act::Take), 3 => Just(Act::Force)].boxed(),
        pace: pace(
            Just(0),
            prop_oneof![4_000 => 0..=4i64, 20 => -20..0i64, 2 => 100..1_500i64, 1 => 5_000..8_000i64],
        ),
        ..long_log()
    }
}

/// A log that repeatedly outgrows the short form and returns to it, through expiry, refunds and large costs.
pub fn at_the_edge() -> Shape {
    Shape {
        window: (2_000..20_000u64).boxed(),
        limit: prop_oneof![4 => 40..400u64, 1 => Just(1 << 34)].boxed(),
        cost: prop_oneof![
            300 => Just(1),
            60 => 2..=3i64,
            10 => -30..0i64,
            4 => -300..-100i64,
            2 => (1 << 31)..(1i64 << 33),
            2 => Just(-(1i64 << 34)),
        ]
        .boxed(),
        act: prop_oneof![3 => Just(Act::Take), 1 => Just(Act::Force)].boxed(),
        pace: pace(
            prop_oneof![200 => Just(0), 1 => 1..=5i64],
            prop_oneof![300 => 0..=20i64, 100 => 100..=300i64, 10 => -20..0i64, 4 => 2_000..9_000i64],
        ),
        calls: 400..1_200,
        ..long_log()
    }
}

/// Compares the verdict and the number of entries after every call, and everything after some.
fn agree_on_a_long_log(history: &History) -> TestCaseResult {
    let mut limiter = Limiter::new(Algorithm::Log);
    let mut model = Model::new(Algorithm::Log, Search::Halving);
    let (windows, end) = history.windows_and_end();
    for (i, call) in history.calls.iter().enumerate() {
        let refuses = model.refuses(&call.quotas, call.cost, call.now);
        let reply = answer(&mut limiter, call).expect("the windows fit").verdict;
        prop_assert_eq!(reply.limited, refuses, "reply to call {}: {:?}", i, call);
        if call.counts(refuses) {
            model.record(&call.quotas, call.cost, call.now, call.at, call.act == Act::Force);
        }
        prop_assert_eq!(
            limiter.entries(UnixMs::saturating(call.now)),
            model.entries(call.now),
            "after {:?}",
            call
        );
        if i % 25 == 24 {
            let wanted = model.verdict(&call.quotas, call.cost, call.now, refuses);
            prop_assert_eq!(reply, wanted, "reply to call {}: {:?}", i, call);
            assert_agree(&limiter, &model, &windows, call.now);
        }
    }
    if !limiter.is_empty() {
        let copy = decode(&encode(&limiter)).expect("what was encoded is decoded");
        assert_agree(&copy, &model, &windows, end);
    }
    Ok(())
}

proptest! {
    #![proptest_config(cases(60))]

    #[test]
    fn a_log_that_changes_its_form_replies_like_the_model(history in history(at_the_edge())) {
        agree_on_a_long_log(&history)?;
    }
}

proptest! {
    #![proptest_config(cases(6))]

    #[test]
    fn a_long_log_replies_like_the_model(history in history(long_log())) {
        agree_on_a_long_log(&history)?;
    }

    #[test]
    fn a_long_log_drops_the_units_that_the_model_drops(history in history(long_log_of_all_kinds())) {
        agree_on_a_long_log(&history)?;
        copies_agree(&history);
    }

    /// Times before the newest one are read as that one.
    #[test]
    fn a_log_never_admits_more_than_its_limit_in_any_span_of_a_window(
        history in history(Shape { windows: 1..=1, tiers: 1..=1, ..long_log() }),
        limit in 10..3_000u64,
    ) {
        let window = history.calls[0].quotas[0].window();
        let mut limiter = Limiter::new(Algorithm::Log);
        let mut newest = 0;
        let mut granted: Vec<(u64, u64)> = Vec::new();
        for call in &history.calls {
            let call = Call { quotas: vec![quota(limit, window)], ..call.clone() };
            if !answer(&mut limiter, &call).unwrap().verdict.limited {
                newest = call.now.max(newest);
                granted.push((newest, call.cost as u64));
            }
        }
        prop_assert!(!granted.is_empty());
        for (i, last) in granted.iter().enumerate() {
            let span = granted[..=i].iter().rev().take_while(|(at, _)| at + window.get() > last.0);
            let units: u64 = span.map(|(_, units)| units).sum();
            prop_assert!(units <= limit, "{} units in the span that ends at {}", units, last.0);
        }
    }
}
