//! What docs/recipes.md promises beyond the replies that it shows.

use crate::helpers::hosts::{Host, Hosts};
use harness::Random;

const HOUR: i64 = 3_600_000;
const DAY: i64 = 24 * HOUR;

/// The call of the page for a period from `start` to `end`.
fn in_period(start: i64, end: i64, now: i64) -> String {
    let window = end - start;
    format!("{window}ms AT {}", (start / window + 1) * window + now - start)
}

#[test]
fn a_period_of_the_calendar_counts_apart_and_waits_for_its_own_end() {
    let (server, mut random) = (Hosts::start(), Random::new(51));
    for _ in 0..200 {
        server.value("FLUSHALL");
        // Months and days, some with a change of daylight saving time.
        let length =
            |random: &mut Random| random.of(&[1, 28, 30, 31, 31]) * DAY + random.of(&[0, 0, -HOUR, HOUR]);
        let start = 1_700_000_000_000 + random.below(1000) as i64 * HOUR / 2;
        let end = start + length(&mut random);
        let next_end = end + length(&mut random);
        let first = start + random.below((end - start) as usize) as i64;
        let take = |now: i64, start: i64, end: i64| {
            server.set_clock(now);
            server.figures(&format!("RL.FIXED quota 5 {} COST 5", in_period(start, end, now)))
        };
        assert_eq!(take(first, start, end), [0, 5, 0, -1, end - first]);
        // Until the last millisecond the key is there and refuses.
        for now in [first + (end - first) / 2, end - 1] {
            let [limited, _, _, retry_after, _] = take(now, start, end);
            assert_eq!([limited, retry_after], [1, end - now], "from {start} to {end}, at {now}");
        }
        assert_eq!(take(end, end, next_end)[0], 0, "from {end} to {next_end}");
        assert_eq!(take(next_end - 1, end, next_end)[..1], [1], "from {end} to {next_end}");
    }
}

#[test]
fn a_ban_lasts_for_exactly_ten_minutes_is_not_extended_and_can_be_lifted() {
    let server = Hosts::with_clock_at(1_900_000_000_000);
    let tries = |line: &str| server.figures(&format!("RL.LOG login:42 3 1m 1000 10m {line}"));
    for lifted in [false, true] {
        server.value("DEL login:42");
        for _ in 0..3 {
            assert_eq!(tries("")[0], 0);
            server.step_clock(7_000);
        }
        assert_eq!(tries("")[..2], [1, 3], "the first tier refuses");
        tries("COST 1000 FORCE");
        let begun = server.clock_ms();
        if lifted {
            tries("COST -1000");
            assert_eq!(tries("")[..4], [1, 3, 0, 60_000 - 21_000], "as before the ban");
            continue;
        }
        for after in [0, 60_000, 599_999] {
            server.set_clock(begun + after);
            assert_eq!(tries("")[..4], [1, 1000, 0, 600_000 - after], "{after} ms later");
        }
        server.set_clock(begun + 600_000);
        assert_eq!(tries("")[0], 0);
    }
}

#[test]
fn two_regions_that_look_at_each_other_let_one_limit_through() {
    let server = Hosts::with_clock_at(1_900_000_000_000);
    let (mut random, mut passed) = (Random::new(51), Vec::new());
    for _ in 0..2_000 {
        server.step_clock(random.below(200) as i64);
        let (own, other) = random.of(&[("eu", "us"), ("us", "eu")]);
        let left = server.figures(&format!("RL.PEEK user:42:{other} 100 1m"))[2];
        if server.figures(&format!("RL.LOG user:42:{own} {left} 1m"))[0] == 0 {
            passed.push(server.clock_ms());
        }
    }
    for (nth, at) in passed.iter().enumerate() {
        let within = passed[nth..].iter().take_while(|later| **later < at + 60_000).count();
        assert!(within <= 100, "{within} in a minute from {at}");
    }
    assert!(passed.len() > 150, "{} passed", passed.len());
}
