//! Encodings round-trip, and bytes that no limiter encodes to are refused.

use harness::Random;
use proptest::collection::vec;
use proptest::prelude::*;
use redis_rl_core::encoding::{decode, encode};
use redis_rl_core::limiter::{Algorithm, MAX_COUNT, MAX_SAFE_INTEGER, WindowMs};

use crate::cases;
use crate::fuzzed::decoder::check;
use crate::history::{calendar, history, huge, small};

/// An integer in LEB128.
fn integer(mut value: u64) -> Vec<u8> {
    let mut bytes = vec![(value & 0x7f) as u8];
    while value > 0x7f {
        value >>= 7;
        *bytes.last_mut().expect("never empty") |= 0x80;
        bytes.push((value & 0x7f) as u8);
    }
    bytes
}

/// Added to the weeks and months of windows of the calendar.
const WEEKS: u64 = 1 << 40;
const MONTHS: u64 = 1 << 41;

/// Well-formed bytes, with figures that may or may not be possible.
fn plausible() -> impl Strategy<Value = Vec<u8>> {
    let edges = [
        0,
        1,
        WindowMs::MAX.get(),
        WEEKS,
        WEEKS + 521,
        MONTHS,
        MONTHS + 120,
        MAX_SAFE_INTEGER,
        MAX_COUNT,
        u64::MAX,
    ];
    let near = (prop::sample::select(edges.to_vec()), -2..=2i64)
        .prop_map(|(edge, off)| edge.saturating_add_signed(off));
    let figure = prop_oneof![
        1 => Just(0),
        30 => 1..40u64,
        2 => near,
        2 => 0..=MAX_SAFE_INTEGER,
        1 => any::<u64>(),
    ];
    (1..=Algorithm::ALL.len() as u8, vec(figure, 1..10)).prop_map(|(tag, figures)| {
        let figures = figures.into_iter().flat_map(integer);
        [1, tag].into_iter().chain(figures).collect()
    })
}

proptest! {
    #![proptest_config(cases(2000))]

    #[test]
    fn random_bytes_are_refused_or_round_trip(
        head in prop_oneof![Just(vec![]), (0..=1 + Algorithm::ALL.len() as u8).prop_map(|tag| vec![1, tag])],
        rest in vec(any::<u8>(), 0..40),
    ) {
        check(&[head, rest].concat());
    }

    #[test]
    fn bytes_with_extreme_figures_are_refused_or_round_trip(bytes in plausible()) {
        check(&bytes);
    }

    #[test]
    fn damaged_bytes_are_refused_or_round_trip(
        history in prop_oneof![history(small()).boxed(), history(huge()).boxed(), history(calendar()).boxed()],
        seed: u64,
    ) {
        let mut bytes = encode(&history.limiter());
        Random::new(seed).damage(&mut bytes);
        check(&bytes);
    }
}

const FIXED: u8 = 1;
const SLIDING: u8 = 2;
const LOG: u8 = 3;
const BUCKET: u8 = 4;
/// Added to the limit of a bucket if whoever counted last was told to wait.
const AWAITED: u64 = 1 << 53;

fn encoded(tag: u8, figures: &[u64]) -> Vec<u8> {
    [1, tag].into_iter().chain(figures.iter().copied().flat_map(integer)).collect()
}

/// Counters of `count` windows, one unit each.
fn many(count: u64) -> Vec<u64> {
    (1..=count).flat_map(|window| [window, 0, 1]).collect()
}

#[test]
fn the_largest_valid_figures_round_trip() {
    let longest = WindowMs::MAX.get();
    for (tag, figures) in [
        (FIXED, vec![longest, MAX_SAFE_INTEGER / longest, MAX_COUNT]),
        (FIXED, vec![1, MAX_SAFE_INTEGER, 1]),
        (FIXED, many(8)),
        (
            FIXED,
            vec![86_400_000, 0, 1, WEEKS + 1, 0, 1, WEEKS + 521, 0, 1, MONTHS + 1, 0, 1, MONTHS + 120, 0, 1],
        ),
        (FIXED, vec![MONTHS + 1, (287_396 - 1970) * 12 + 9, MAX_COUNT]),
        (SLIDING, vec![10, 0, 1, 0]),
        (SLIDING, vec![10, 1, 0, MAX_COUNT]),
        (LOG, vec![10, 0, MAX_COUNT]),
        (LOG, vec![10, 0, MAX_COUNT - 1, 9]),
        (LOG, vec![10, 0, MAX_COUNT - 2, 0, 2, 9]),
        (LOG, vec![10, MAX_SAFE_INTEGER - 1, 1, 1]),
        (BUCKET, vec![longest, MAX_SAFE_INTEGER, MAX_SAFE_INTEGER, 2 * MAX_SAFE_INTEGER, 0]),
        (BUCKET, vec![longest, 0, MAX_SAFE_INTEGER, 2 * MAX_SAFE_INTEGER - 1, longest - 1]),
        (BUCKET, vec![10, 0, 1, 0, 1]),
        (BUCKET, vec![1, 0, AWAITED + MAX_SAFE_INTEGER, longest, MAX_SAFE_INTEGER - 1]),
        (BUCKET, vec![longest, 0, AWAITED + 1, 2 * longest, 0]),
        (BUCKET, vec![10, 0, AWAITED + 5, 0, 1]),
        (BUCKET, (1..=8).flat_map(|window| [window, 0, 1, 2, 0]).collect()),
    ] {
        let bytes = encoded(tag, &figures);
        let limiter = decode(&bytes).unwrap_or_else(|invalid| panic!("{tag} {figures:?}: {invalid}"));
        assert_eq!(encode(&limiter), bytes);
    }
}

#[test]
fn bytes_that_no_limiter_encodes_to_are_refused() {
    let longest = WindowMs::MAX.get();
    for (why, tag, figures) in [
        ("nothing", FIXED, vec![]),
        ("nothing", SLIDING, vec![]),
        ("nothing", LOG, vec![]),
        ("a tag before the first", 0, vec![10, 0, 1]),
        ("a tag after the last", 1 + Algorithm::ALL.len() as u8, vec![10, 0, 1]),
        ("an empty counter", FIXED, vec![10, 0, 0]),
        ("an empty counter", SLIDING, vec![10, 5, 0, 0]),
        ("an empty counter after another", FIXED, vec![10, 0, 1, 11, 0, 0]),
        ("half a counter", FIXED, vec![10, 0]),
        ("half a counter after another", SLIDING, vec![10, 0, 1, 0, 11, 0]),
        ("a window of 0", FIXED, vec![0, 0, 1]),
        ("a window of 0", LOG, vec![0, 0, 1]),
        ("a window too long", FIXED, vec![longest + 1, 0, 1]),
        ("a window too long", LOG, vec![longest + 1, 0, 1]),
        ("a window after the last time", FIXED, vec![longest, MAX_SAFE_INTEGER / longest + 1, 1]),
        ("a window after the last time", SLIDING, vec![1, MAX_SAFE_INTEGER + 1, 1, 0]),
        ("a window number that overflows", FIXED, vec![longest, u64::MAX, 1]),
        ("units before the first window", SLIDING, vec![10, 0, 1, 1]),
        ("too many units", FIXED, vec![10, 0, MAX_COUNT + 1]),
        ("too many units", SLIDING, vec![10, 1, MAX_COUNT + 1, 0]),
        ("too many units", SLIDING, vec![10, 1, 0, MAX_COUNT + 1]),
        ("equal windows", FIXED, vec![10, 0, 1, 10, 0, 1]),
        ("windows out of order", FIXED, vec![11, 0, 1, 10, 0, 1]),
        ("too many windows", FIXED, many(9)),
        ("no entry", LOG, vec![10]),
        ("half an entry", LOG, vec![10, 0]),
        ("an empty entry", LOG, vec![10, 0, 0]),
        ("an entry after the last time", LOG, vec![10, MAX_SAFE_INTEGER + 1, 1]),
        ("a later entry after the last time", LOG, vec![10, MAX_SAFE_INTEGER, 1, 1]),
        ("a time that overflows", LOG, vec![10, 5, 1, u64::MAX]),
        ("units follow, but none do", LOG, vec![10, 0, 1, 0]),
        ("units follow, but no time", LOG, vec![10, 0, 1, 0, 2]),
        ("0 units follow", LOG, vec![10, 0, 1, 0, 0, 1]),
        ("1 unit follows", LOG, vec![10, 0, 1, 0, 1, 1]),
        ("two entries of one time", LOG, vec![10, 0, 1, 0, 2, 0]),
        ("too many units", LOG, vec![10, 0, MAX_COUNT + 1]),
        ("too many units in all", LOG, vec![10, 0, MAX_COUNT, 1]),
        ("units that overflow", LOG, vec![10, 0, 1, 0, u64::MAX, 1]),
        ("an entry that has left the window", LOG, vec![10, 0, 1, 10]),
        ("nothing", BUCKET, vec![]),
        ("half a bucket", BUCKET, vec![10, 0, 1]),
        ("half a bucket after another", BUCKET, vec![10, 0, 1, 1, 0, 11, 0]),
        ("a full bucket", BUCKET, vec![10, 0, 1, 0, 0]),
        ("a full bucket after another", BUCKET, vec![10, 0, 1, 1, 0, 11, 0, 1, 0, 0]),
        ("a window of 0", BUCKET, vec![0, 0, 1, 1, 0]),
        ("a window too long", BUCKET, vec![longest + 1, 0, 1, 1, 0]),
        ("a time after the last", BUCKET, vec![10, MAX_SAFE_INTEGER + 1, 1, 1, 0]),
        ("a limit of 0", BUCKET, vec![10, 0, 0, 0, 1]),
        ("a limit too large", BUCKET, vec![10, 0, MAX_SAFE_INTEGER + 1, 1, 0]),
        ("a wait beyond the longest", BUCKET, vec![10, 0, AWAITED + 5, longest + 10, 1]),
        ("somebody waits for nothing", BUCKET, vec![10, 0, AWAITED, 20, 0]),
        ("a whole millisecond in the rest", BUCKET, vec![10, 0, AWAITED + 5, 20, 5]),
        ("a whole unit in the rest", BUCKET, vec![10, 0, 5, 1, 10]),
        ("more than two buckets missing", BUCKET, vec![10, 0, 5, 10, 1]),
        ("units that overflow", BUCKET, vec![longest, 0, 5, u64::MAX, 1]),
        ("equal windows", BUCKET, vec![10, 0, 1, 1, 0, 10, 0, 1, 1, 0]),
        ("windows out of order", BUCKET, vec![11, 0, 1, 1, 0, 10, 0, 1, 1, 0]),
        ("too many windows", BUCKET, (1..=9).flat_map(|window| [window, 0, 1, 1, 0]).collect()),
    ] {
        assert!(decode(&encoded(tag, &figures)).is_err(), "{why}: {tag} {figures:?}");
    }
    for (why, bytes) in [
        ("nothing", [].as_slice()),
        ("no tag", &[1]),
        ("another version", &[0, FIXED, 10, 0, 1]),
        ("another version", &[2, FIXED, 10, 0, 1]),
        ("a padded number", &[1, FIXED, 10, 0x80, 0, 1]),
        ("a truncated number", &[1, FIXED, 10, 0, 0x81]),
        ("a number of 65 bits", &[1, FIXED, 10, 0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2]),
    ] {
        assert!(decode(bytes).is_err(), "{why}");
    }
}
