//! RL.BUCKET: a bucket that refills evenly, to the integer.

use crate::helpers::hosts::{Host, Hosts};
use harness::{APPEND_ONLY, ReplicationStream, Server, commands_in_aof, without_expiry};
use redis::Value;

/// The most units and the last time of all.
const MOST: i64 = 9_007_199_254_740_991;

const NOW: i64 = 1_900_000_000_000;

/// The test of redis-cell's own decisions: a burst of 4 on top of the rate of one a second, so 5 in 5 seconds. Times in
/// milliseconds since the start, the quantity, and what is required: limited, remaining, retry_after, reset_after.
const CELL: [(i64, i64, [i64; 4]); 15] = [
    // Never more than the maximum.
    (0, 6, [1, 5, -1, 0]),
    // One after the other.
    (0, 1, [0, 4, -1, 1_000]),
    (0, 1, [0, 3, -1, 2_000]),
    (0, 1, [0, 2, -1, 3_000]),
    (0, 1, [0, 1, -1, 4_000]),
    (0, 1, [0, 0, -1, 5_000]),
    (0, 1, [1, 0, 1_000, 5_000]),
    // As time passes.
    (3_000, 1, [0, 2, -1, 3_000]),
    (3_100, 1, [0, 1, -1, 3_900]),
    (4_000, 1, [0, 1, -1, 4_000]),
    (8_000, 1, [0, 4, -1, 1_000]),
    (9_500, 1, [0, 4, -1, 1_000]),
    // A quantity of 0 only looks.
    (9_500, 0, [0, 4, -1, 1_000]),
    // Several at once.
    (9_500, 2, [0, 2, -1, 3_000]),
    (9_500, 5, [1, 2, 3_000, 3_000]),
];

#[test]
fn redis_cells_own_cases_pass_in_translation() {
    let server = Hosts::start();
    for (ms, quantity, [limited, remaining, retry_after, reset_after]) in CELL {
        let line = format!("RL.BUCKET k 5 5s COST {quantity} AT {}", NOW + ms);
        assert_eq!(server.figures(&line), [limited, 5, remaining, retry_after, reset_after], "{line}");
    }
}

/// Each limiter of docs/migrating.md as a burst, units and a period in ms, and the call that replaces it.
#[test]
fn the_calls_on_the_page_of_migrating_have_the_burst_and_the_rate_of_what_they_replace() {
    let server = Hosts::start();
    let page = include_str!("../../docs/migrating.md");
    for (before, burst, (units, period), call) in [
        ("CL.THROTTLE user123 15 30 60", 16, (30, 60_000), "RL.BUCKET cell:user123 16 32s"),
        ("Ratelimit.tokenBucket(5, \"10 s\", 20)", 20, (5, 10_000), "RL.BUCKET search:bob 20 40s"),
        ("redis_rate.PerMinute(30)", 30, (30, 60_000), "RL.BUCKET mail:bob 30 1m"),
        ("capacity(50).refillGreedy(10, Duration.ofSeconds(1))", 50, (10, 1_000), "RL.BUCKET api:bob 50 5s"),
        ("rate=10r/s", 21, (10, 1_000), "RL.BUCKET page:bob 21 2100ms"),
    ] {
        assert!(page.contains(before), "{before}");
        assert!(page.contains(&format!("`{call}`")), "{call}");
        server.value("FLUSHALL");
        // The burst passes at once, and no more.
        for unit in 0..burst {
            let [limited, limit, remaining, ..] = server.figures(&format!("{call} AT {NOW}"));
            assert_eq!([limited, limit, remaining], [0, burst, burst - unit - 1], "{call}");
        }
        // Then units come one by one at the rate.
        for unit in 1..=3 * units {
            let free = NOW + (unit * period + units - 1) / units;
            let early = server.figures(&format!("{call} AT {}", free - 1));
            assert_eq!([early[0], early[3]], [1, 1], "{call}: unit {unit}");
            assert_eq!(server.figures(&format!("{call} AT {free}"))[0], 0, "{call}: unit {unit}");
        }
    }
}

#[test]
fn units_come_back_one_by_one_and_nothing_is_rounded_between_requests() {
    let server = Hosts::start();
    // One unit each third of a millisecond, over seven.
    assert_eq!(server.figures("RL.BUCKET k 3 7ms COST 3 AT 0"), [0, 3, 0, -1, 7]);
    for (at, expected) in [
        (2, [1, 3, 0, 1, 5]),
        (3, [0, 3, 0, -1, 7]),
        (4, [1, 3, 0, 1, 6]),
        (5, [0, 3, 0, -1, 7]),
        (6, [1, 3, 0, 1, 6]),
        (7, [0, 3, 0, -1, 7]),
        (8, [1, 3, 0, 2, 6]),
        (9, [1, 3, 0, 1, 5]),
        (10, [0, 3, 0, -1, 7]),
    ] {
        assert_eq!(server.figures(&format!("RL.BUCKET k 3 7ms AT {at}")), expected, "at {at}");
    }
}

#[test]
fn a_new_limit_is_missing_the_same_share_and_no_wait_grows_beyond_a_window() {
    let server = Hosts::start();
    server.value(&format!("RL.BUCKET k 100 1m COST 50 AT {NOW}"));
    for (limit, remaining) in [(100, 50), (10, 5), (1_000, 500), (3, 1), (MOST, MOST / 2)] {
        let reply = server.figures(&format!("RL.PEEK k {limit} 1m AT {NOW}"));
        assert_eq!(reply, [0, limit, remaining, -1, 30_000], "limit {limit}");
    }
    assert_eq!(server.figures(&format!("RL.BUCKET k 10 1m COST 5 AT {NOW}")), [0, 10, 0, -1, 60_000]);
    assert_eq!(server.figures(&format!("RL.BUCKET k 1000 1m AT {NOW}")), [1, 1_000, 0, 60, 60_000]);
}

#[test]
fn a_limit_of_0_refuses_everything_and_changes_nothing() {
    let server = Hosts::start();
    server.value(&format!("RL.BUCKET k 10 10s COST 4 AT {NOW}"));
    let digest = server.digest();
    for (options, limited) in
        [("", 1), ("FORCE", 1), ("COST 99 FORCE", 1), ("COST 0", 0), ("COST -3", 0), ("COST -99 FORCE", 0)]
    {
        let line = format!("RL.BUCKET k 0 10s {options} AT {}", NOW + 1_000);
        assert_eq!(server.figures(&line), [limited, 0, 0, -1, 3_000], "{options}");
        assert_eq!(server.digest(), digest, "{options}");
    }
    assert_eq!(server.figures(&format!("RL.PEEK k 0 10s AT {NOW}")), [1, 0, 0, -1, 4_000]);
    // Beside another tier, that one counts.
    server.value(&format!("RL.BUCKET k 0 10s 5 1m FORCE AT {NOW}"));
    assert_eq!(server.figures(&format!("RL.PEEK k 10 10s AT {NOW}"))[2], 6);
    assert_eq!(server.figures(&format!("RL.PEEK k 5 1m AT {NOW}"))[2], 4);
    server.value(&format!("RL.BUCKET new 0 10s FORCE AT {NOW}"));
    assert_eq!(server.integer("EXISTS new"), 0);
}

#[test]
fn force_empties_a_bucket_below_zero_by_one_more_bucket_at_most() {
    let server = Server::with(&APPEND_ONLY);
    let mut stream = ReplicationStream::of(&server);
    let force = |cost: i64| server.figures(&format!("RL.BUCKET k 10 10s COST {cost} FORCE AT {NOW}"));
    assert_eq!(force(12), [1, 10, 0, -1, 12_000]);
    assert_eq!(force(1), [1, 10, 0, 4_000, 13_000]);
    assert_eq!(force(MOST), [1, 10, 0, -1, 20_000]);
    assert_eq!(force(1), [1, 10, 0, 11_000, 20_000]);
    assert_eq!(server.figures(&format!("RL.PEEK k 10 10s AT {}", NOW + 10_999))[3], 1);
    assert_eq!(server.figures(&format!("RL.PEEK k 10 10s AT {}", NOW + 11_000))[0], 0);
    // Copies are told what was counted.
    let sent = ["12", "", "7"].map(|units| format!("RL.APPLY k B{units}:{NOW}/10/10s"));
    let commands = stream.commands(&server);
    assert_eq!(without_expiry(&commands), sent);
    assert_eq!(commands_in_aof(&server), commands);
}

#[test]
fn units_given_back_as_of_a_time_are_nobody_elses() {
    let server = Hosts::start();
    let missing = |at: i64| server.figures(&format!("RL.PEEK k 10 10s AT {at}"))[4];
    let back = |units: i64, at: i64| server.value(&format!("RL.BUCKET k 10 10s COST -{units} AT {at}"));
    // Nothing was taken since: all go back.
    server.value(&format!("RL.BUCKET k 10 10s COST 6 AT {NOW}"));
    back(4, NOW);
    assert_eq!(missing(NOW), 2_000);
    // Others took 3 two seconds later: what has refilled meanwhile does not go back again.
    server.value(&format!("RL.BUCKET k 10 10s COST 3 AT {}", NOW + 2_000));
    back(2, NOW);
    assert_eq!(missing(NOW + 2_000), 3_000);
    back(3, NOW);
    assert_eq!(missing(NOW + 2_000), 2_000);
    // Without AT the newest go back, whoever took them, and an empty key is deleted.
    server.value(&format!("RL.BUCKET ahead 10 1h COST 3 AT {}", NOW + 900_000_000_000));
    assert_eq!(server.figures("RL.BUCKET ahead 10 1h COST -2")[2], 9);
    assert_eq!(server.figures("RL.BUCKET ahead 10 1h COST -9")[2], 10);
    assert_eq!(server.integer("EXISTS ahead"), 0);
}

/// A service whose plan changes while units are out gives them back under another limit than is stored.
#[test]
fn a_give_back_frees_no_more_than_it_names_in_the_larger_of_the_two_limits() {
    let server = Hosts::with_clock_at(NOW);
    for back in ["RL.BUCKET k 1 1s COST -1", "RL.BUCKET k 1 1s COST -1 PARTIAL", "RL.ALL k BUCKET 1 1s -1"] {
        for at in [String::new(), format!(" AT {NOW}")] {
            server.value(&format!("RL.BUCKET k 1000 1s COST 1000 AT {NOW}"));
            server.value(&format!("{back}{at}"));
            let reply = server.figures(&format!("RL.PEEK k 1000 1s COST 1000 AT {NOW}"));
            assert_eq!(reply, [1, 1_000, 1, 999, 999], "{back}{at}");
            server.value("DEL k");
        }
    }

    // A hundred of a thousand are one of ten, and the limit of ten stays.
    server.value(&format!("RL.BUCKET k 10 10s COST 10 AT {NOW}"));
    assert_eq!(server.figures(&format!("RL.BUCKET k 1000 10s COST -100 AT {NOW}"))[2], 100);
    assert_eq!(server.figures(&format!("RL.PEEK k 0 10s COST 0 AT {NOW}"))[4], 9_000);
    assert_eq!(server.figures(&format!("RL.PEEK k 10 10s AT {NOW}"))[2], 1);
    let stored = server.value(&format!("RL.BUCKET k 1000 10s COST -2000 PARTIAL AT {NOW}"));
    let Some([.., Value::Int(taken), _]) = stored.as_sequence() else { panic!("{stored:?}") };
    assert_eq!(*taken, -900, "units of the limit that was named, and no more than were missing");
    assert_eq!(server.integer("EXISTS k"), 0);

    // As of a time: less what has refilled since.
    server.value(&format!("RL.BUCKET k 10 10s COST 10 AT {NOW}"));
    server.value(&format!("RL.BUCKET k 10 10s COST 2 AT {}", NOW + 2_000));
    server.value(&format!("RL.BUCKET k 5 10s COST -2 AT {NOW}"));
    assert_eq!(server.figures(&format!("RL.PEEK k 10 10s AT {}", NOW + 2_000))[4], 10_000);
    server.value(&format!("RL.BUCKET k 5 10s COST -3 AT {NOW}"));
    assert_eq!(server.figures(&format!("RL.PEEK k 10 10s AT {}", NOW + 2_000))[4], 9_000);
}

#[test]
fn what_force_could_not_count_is_not_remembered() {
    let server = Hosts::start();
    server.value(&format!("RL.BUCKET k 10 10s COST 15 AT {NOW} FORCE"));
    // Five of these ten are counted; all ten go back, five of others among them.
    server.value(&format!("RL.BUCKET k 10 10s COST 10 AT {NOW} FORCE"));
    server.value(&format!("RL.BUCKET k 10 10s COST -10 AT {NOW}"));
    assert_eq!(server.figures(&format!("RL.PEEK k 10 10s AT {NOW}"))[4], 10_000);
}

#[test]
fn a_bucket_lives_until_it_is_full_and_few_requests_move_its_expiry() {
    let server = Server::with_clock_at(NOW, &[]);
    let (mut moved, mut end) = (0, -2);
    for _ in 0..1_000 {
        server.step_clock(8);
        server.value("RL.BUCKET k 1000 8s");
        let [full, now] = [server.figures("RL.PEEK k 1000 8s")[4], server.clock_ms()];
        let expires = server.integer("PEXPIRETIME k");
        assert!(
            (now + full..=now + full + 1_000).contains(&expires),
            "{expires}, full {full} ms after {now}"
        );
        moved += i32::from(expires != end);
        end = expires;
    }
    assert!(moved <= 9, "moved {moved} times in a window");
}
