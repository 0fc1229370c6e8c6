//! Clock steps forward and back, and times at the edges of windows, days and years.

use crate::helpers::hosts::{Host, Hosts};
use harness::{COMMANDS, Random, Server, wait_for};

const SECOND: i64 = 1_000;
const HOUR: i64 = 3_600_000;
const DAY: i64 = 24 * HOUR;

/// No window of more than 1 ms begins here.
const NOW: i64 = 1_900_000_000_123;

/// The longest time to live of a key written now, also if it was moved back.
fn longest_lifetime(name: &str, window: i64) -> i64 {
    match name {
        "RL.FIXED" | "RL.BUCKET" => 2 * window,
        "RL.SLIDING" => 3 * window,
        _ => window + window / 8,
    }
}

#[test]
fn a_clock_that_steps_forward_counts_like_the_same_times_given_by_at() {
    let by_clock = Hosts::with_clock_at(NOW);
    let by_at = Hosts::start();
    let mut random = Random::new(1);
    for _ in 0..500 {
        by_clock.step_clock(random.of(&[0, 0, 1, 7, 250, 999, 1_000, 60_000, HOUR, DAY]));
        let now = by_clock.clock_ms();
        let name = random.of(&COMMANDS);
        let pairs = random.of(&["2 7ms", "3 1s", "5 1s 9 1m", "9 1h", "9 1h 20 1d", "50 30d 4 10s"]);
        let cost = random.of(&["", "", "COST 2", "COST -1", "FORCE"]);
        // A key for each set of windows: for a window longer than its retention, a log's waits depend on its
        // time to live, which AT extends.
        let request = format!("{name} {name}:{} {pairs} {cost}", pairs.replace(' ', ":"));
        let given = by_at.figures(&format!("{request} AT {now}"));
        assert_eq!(by_clock.figures(&request), given, "{request} at {now}");
    }
}

#[test]
fn after_a_step_back_no_unit_is_free_early_and_every_wait_is_exact() {
    let server = Hosts::with_clock_at(NOW);
    for name in COMMANDS {
        for window in [10 * SECOND, HOUR, 30 * DAY] {
            for step in [1, SECOND, 7 * SECOND, HOUR, DAY] {
                // One unit, and the whole limit.
                for cost in [1, 5] {
                    let about = format!("{name} {window} ms, {step} ms back, {cost} units");
                    server.set_clock(NOW);
                    server.value("DEL k");
                    let request = format!("{name} k 5 {window}ms COST");
                    assert_eq!(server.figures(&format!("{request} 5"))[0], 0);
                    let [_, _, _, rightful, _] = server.figures(&format!("{request} {cost}"));
                    server.step_clock(-step);
                    let [limited, _, remaining, retry_after, reset_after] =
                        server.figures(&format!("{request} {cost}"));
                    assert_eq!((limited, remaining), (1, 0), "{about}");
                    assert!(retry_after >= rightful, "{about}: {retry_after}, not {rightful}");
                    if step <= window {
                        assert_eq!(retry_after, rightful + step, "{about}");
                    } else if matches!(name, "RL.LOG" | "RL.BUCKET") {
                        assert_eq!(retry_after, rightful, "{about}");
                    } else {
                        assert!(retry_after <= rightful + window, "{about}: {retry_after}");
                    }
                    if cost == 5 {
                        assert_eq!(reset_after, retry_after, "{about}");
                    }
                    server.step_clock(retry_after - 1);
                    let [limited, _, _, rest, _] = server.figures(&format!("{request} {cost}"));
                    assert_eq!((limited, rest), (1, 1), "{about}");
                    server.step_clock(1);
                    assert_eq!(server.figures(&format!("{request} {cost}"))[0], 0, "{about}");
                }
            }
        }
    }
}

/// The drawing in DESIGN.md.
#[test]
fn a_small_step_back_is_waited_for_and_a_large_one_moves_the_key() {
    const REQUEST: &str = "RL.LOG k 2 10s";
    for (step, wait) in [(0, 2), (5, 7), (3_600, 4)] {
        let server = Hosts::with_clock_at(NOW);
        server.value(REQUEST);
        server.step_clock(6 * SECOND);
        server.value(REQUEST);
        server.step_clock((2 - step) * SECOND);
        assert_eq!(server.figures(REQUEST)[3], wait * SECOND, "{step} s back");
        server.step_clock(wait * SECOND - 1);
        assert_eq!(server.figures(REQUEST)[3], 1, "{step} s back");
        server.step_clock(1);
        assert_eq!(server.figures(REQUEST)[0], 0, "{step} s back");
    }
}

#[test]
fn what_is_given_back_as_of_a_time_before_a_step_back_may_be_units_of_others() {
    let server = Hosts::with_clock_at(NOW);
    let request = "RL.LOG k 10 1m COST";
    assert_eq!(server.figures(&format!("{request} 5"))[0], 0);
    server.step_clock(-65 * SECOND);
    assert_eq!(server.figures(&format!("{request} 10"))[3], 60 * SECOND);
    server.step_clock(60 * SECOND);
    assert_eq!(server.figures(&format!("{request} 10"))[0], 0);
    server.value(&format!("{request} -5 AT {NOW}"));
    assert_eq!(server.figures(&format!("{request} 5"))[0], 0, "15 within a minute");
}

#[test]
fn a_step_back_of_less_than_a_window_changes_no_time_to_live() {
    let server = Hosts::with_clock_at(NOW);
    for name in COMMANDS {
        // The first milliseconds of a window: a step back crosses its edge.
        for into in [0, 2] {
            server.set_clock(NOW / 10_000 * 10_000 + into);
            server.value("DEL k");
            let request = format!("{name} k 1 10s");
            assert_eq!(server.figures(&request)[0], 0);
            let [_, _, _, rightful, _] = server.figures(&request);
            let expires = server.integer("PEXPIRETIME k");
            for step in [20, SECOND, 9 * SECOND] {
                let wait = rightful + step;
                server.step_clock(-step);
                for cost in ["", "COST 0", "COST 2"] {
                    server.value(&format!("{request} {cost}"));
                }
                assert_eq!(server.figures(&request), [1, 1, 0, wait, wait], "{name}");
                assert_eq!(server.figures("RL.PEEK k 1 10s"), [1, 1, 0, wait, wait], "{name}");
                assert_eq!(server.integer("PEXPIRETIME k"), expires, "{name}, {step} ms back");
                server.step_clock(step);
            }
            server.step_clock(rightful - 1);
            assert_eq!(server.figures(&request)[0], 1, "{name}");
            server.step_clock(1);
            assert_eq!(server.figures(&request)[0], 0, "{name}");
        }
    }
}

/// Time passes, and sometimes the clock is set back, by less or more than a window.
#[test]
fn a_request_that_counts_nothing_changes_a_time_to_live_only_if_it_moves_the_key_back() {
    const WINDOW: i64 = 10 * SECOND;
    for name in COMMANDS {
        for with_at in [false, true] {
            let server = Hosts::with_clock_at(NOW);
            let mut random = Random::new(5);
            let mut shortened = 0;
            let more = if with_at { 60 * SECOND } else { 0 };
            for _ in 0..1_000 {
                let pass = random.of(&[0, 1, 90, 900, 4_000]);
                let back =
                    if random.below(15) == 0 { random.of(&[5, SECOND, 9_999, 90 * SECOND, HOUR]) } else { 0 };
                server.step_clock(pass - back);
                let now = server.clock_ms();
                let before = server.integer("PEXPIRETIME k");
                let cost = random.of(&["COST 0", "COST 21", "COST 3"]);
                let at = if with_at && cost == "COST 3" { format!("AT {now}") } else { String::new() };
                let [limited, _, remaining, ..] =
                    server.figures(&format!("{name} k 20 {WINDOW}ms {cost} {at}"));
                let after = server.integer("PEXPIRETIME k");
                let about = format!("{name} {cost} {at}, {back} ms back: {before} to {after} at {now}");
                assert_ne!(after, -1, "{about}: no time to live");
                let longest = now + 2 * (longest_lifetime(name, WINDOW) + more);
                assert!(after <= longest || !at.is_empty(), "{about}: too long");
                if cost == "COST 3" && limited == 0 {
                    assert!(after > now + more, "{about}");
                } else if after != before {
                    shortened += 1;
                    let expected = if name == "RL.BUCKET" {
                        // Until what was missing by its own time has refilled, or an eighth of the window longer.
                        let full = now + (20 - remaining) * WINDOW / 20;
                        full - WINDOW / 20 + 1..=full + WINDOW / 8
                    } else {
                        now + WINDOW..=now + longest_lifetime(name, WINDOW)
                    };
                    assert!(after < before && expected.contains(&after), "{about}");
                }
            }
            assert!(shortened > 3, "{name}: {shortened}");
        }
    }
}

/// Takes a unit of a place, and returns as of when.
fn take_place(server: &Hosts, limit: u64) -> Option<i64> {
    let reply = server.value(&format!("RL.LOG c {limit} 1500ms PARTIAL"));
    let reply: Vec<i64> = redis::from_redis_value(reply).expect("integers");
    (reply[0] == 0).then_some(reply[6])
}

/// Places in flight: each is a unit that its holder renews every half a second, a third of the window.
#[test]
fn five_places_that_are_renewed_in_time_are_five_however_far_the_clock_steps_back() {
    let server = Hosts::with_clock_at(NOW);
    for step in [1, SECOND, 3 * SECOND, 75 * SECOND, HOUR] {
        server.value("DEL c");
        let mut holders = Vec::new();
        for _ in 0..5 {
            holders.push(take_place(&server, 5).expect("a place"));
            server.step_clock(100);
        }
        server.step_clock(-step);
        for turn in 0..40 {
            assert_eq!(take_place(&server, 5), None, "{step} ms back: a sixth place");
            // Takes a new unit first. If it is as of an earlier time, the old one leaves by itself.
            let holder = &mut holders[turn % 5];
            let at = take_place(&server, 1_000_000).expect("a unit");
            if at >= *holder {
                server.value(&format!("RL.LOG c 1000000 1500ms COST -1 AT {holder}"));
            }
            *holder = at;
            server.step_clock(100);
        }
    }
}

#[test]
fn after_a_step_back_nothing_is_forgotten_that_was_counted_since() {
    let server = Hosts::with_clock_at(NOW);
    for name in COMMANDS {
        server.set_clock(NOW);
        server.value("DEL c");
        assert_eq!(server.figures(&format!("{name} c 5 3s COST 2"))[0], 0);
        server.step_clock(-10 * SECOND);
        assert_eq!(server.figures(&format!("{name} c 5 3s"))[0], 0);
        server.step_clock(1_950);
        assert_eq!(server.figures(&format!("{name} c 5 3s COST 2"))[0], 0);
        // Of what passed at most 3 s ago, nothing is free; the key once ended here with all of it.
        server.step_clock(990);
        let [limited, _, _, _, reset_after] = server.figures(&format!("{name} c 5 3s COST 5"));
        assert_eq!(limited, 1, "{name}");
        assert!(server.integer("PTTL c") >= reset_after, "{name}");
    }
}

#[test]
fn a_peek_sees_a_key_as_the_next_request_moves_it_and_changes_nothing() {
    let server = Hosts::with_clock_at(NOW);
    for name in COMMANDS {
        for units in [3, 400] {
            server.set_clock(NOW);
            server.value("DEL k");
            for _ in 0..units {
                server.value(&format!("{name} k 400 10s 900 1m"));
                server.step_clock(3);
            }
            server.step_clock(-HOUR);
            let digest = server.digest();
            let peek = server.value("RL.PEEK k 400 10s 900 1m COST 400");
            let info = server.value("RL.INFO k");
            assert_eq!(server.digest(), digest, "{name}");
            assert_eq!(server.value(&format!("{name} k 400 10s 900 1m COST 400")), peek, "{name}");
            assert_ne!(server.digest(), digest, "{name}: it was moved");
            assert_eq!(server.value("RL.INFO k"), info, "{name}");
        }
    }
}

/// What passed of a limit of RL.BUCKET: units by the time that has truly passed, however the clock was set.
struct Passed {
    limit: i64,
    window: i64,
    true_ms: i64,
    units: Vec<(i64, i64)>,
}

impl Passed {
    /// Asks for units after `pass` milliseconds, in which the clock is also set back. Returns the wait.
    fn ask(&mut self, server: &Hosts, pass: i64, back: i64, cost: &str) -> i64 {
        self.true_ms += pass;
        server.step_clock(pass - back);
        let units = cost.trim_end_matches(" FORCE").parse().expect("units");
        let line = format!("RL.BUCKET k {} {}ms COST {cost}", self.limit, self.window);
        let [limited, _, _, retry_after, _] = server.figures(&line);
        if limited == 0 || cost.ends_with("FORCE") {
            self.units.push((self.true_ms, units));
        }
        retry_after
    }

    /// Asks for units that must be refused until the wait is over, and pass then.
    #[track_caller]
    fn waits(&mut self, server: &Hosts, cost: &str, wait: i64) {
        assert!(wait > 0);
        assert_eq!(self.ask(server, wait - 1, 0, cost), 1, "1 ms before the wait is over");
        assert_eq!(self.ask(server, 1, 0, cost), -1, "the wait is over");
    }

    /// At most the limit and what refills meanwhile, whenever one begins to look.
    #[track_caller]
    fn assert_bounded(&self) {
        for (i, (from, _)) in self.units.iter().enumerate() {
            let mut sum = 0;
            for (until, units) in &self.units[i..] {
                sum += units;
                let most = self.limit * self.window + self.limit * (until - from);
                assert!(sum * self.window <= most, "{sum} units in {} ms: {:?}", until - from, self.units);
            }
        }
    }
}

/// Three histories in which a bucket once ended before it was full.
#[test]
fn a_bucket_stays_until_it_is_full_wherever_the_clock_has_been() {
    const EIGHTH: i64 = 1_900_000_000_000;
    let start = |limit| {
        let passed = Passed { limit, window: 8 * SECOND, true_ms: 0, units: Vec::new() };
        (Hosts::with_clock_at(EIGHTH + 1), passed)
    };

    let (server, mut passed) = start(100);
    assert_eq!(passed.ask(&server, 0, 0, "96"), -1);
    // The units of 96 take 7680 ms to refill, whatever the clock shows; the key ends up to an eighth later.
    assert_eq!(passed.ask(&server, 0, 9_601, "100"), 7_680);
    assert_eq!(passed.ask(&server, 9_700, 0, "2"), -1);
    let wait = passed.ask(&server, 1, 0, "100");
    passed.waits(&server, "100", wait);
    passed.assert_bounded();

    // A debt of one more bucket is not forgotten.
    let (server, mut passed) = start(10);
    assert_eq!(passed.ask(&server, 0, 0, "1"), -1);
    passed.ask(&server, 0, 1, "19 FORCE");
    assert_eq!(passed.ask(&server, 1_001, 0, "10"), 15_000);
    passed.waits(&server, "10", 15_000);

    let (server, mut passed) = start(10);
    passed.ask(&server, 0, 0, "20 FORCE");
    assert_eq!(passed.ask(&server, 0, 1, "1"), 8_801);
    passed.ask(&server, 900, 0, "10 FORCE");
    assert_eq!(passed.ask(&server, 1, 0, "10"), 15_999);
    passed.waits(&server, "10", 15_999);
}

#[test]
fn a_bucket_lets_no_more_than_its_bound_pass_in_true_time_however_often_the_clock_is_set_back() {
    let server = Hosts::with_clock_at(NOW);
    let mut random = Random::new(7);
    let mut passed = Passed { limit: 20, window: 10 * SECOND, true_ms: 0, units: Vec::new() };
    for _ in 0..2_000 {
        let pass = random.of(&[0, 1, 90, 900, 1_500, 4_000]);
        let steps = [1, SECOND, 9_999, 29_999, HOUR];
        let back = if random.below(10) == 0 { random.of(&steps) } else { 0 };
        let cost = random.of(&["1", "1", "3", "20"]);
        // After the step the wait of a refusal is at most the lifetime of a bucket without a debt.
        let wait = passed.ask(&server, pass, back, cost);
        assert!(wait <= 20 * SECOND + 1, "{wait}");
    }
    passed.assert_bounded();
}

#[test]
fn a_clock_that_starts_in_1970_and_is_then_corrected_keeps_counting() {
    let mut server = Server::with_clock_at(0, &[("appendonly", "yes")]);
    for name in COMMANDS {
        let request = format!("{name} {name} 2 10s COST 2");
        assert_eq!(server.figures(&request)[0], 0, "{name}");
        assert_eq!(server.figures(&request)[0], 1, "{name}");
    }
    server.set_clock(NOW);
    for name in COMMANDS {
        assert_eq!(server.integer(&format!("EXISTS {name}")), 0, "{name}");
        assert_eq!(server.figures(&format!("{name} {name} 2 10s COST 2"))[0], 0, "{name}");
    }
    // A server that starts in 1970 with today's files behaves as after any step back.
    server.set_clock(5);
    server.restart();
    for name in COMMANDS {
        let [limited, _, _, retry_after, _] = server.figures(&format!("{name} {name} 2 10s COST 2"));
        assert_eq!(limited, 1, "{name}");
        let most = longest_lifetime(name, 10 * SECOND) + 1;
        assert!(retry_after <= most, "{name}: {retry_after}");
    }
}

/// The first milliseconds of days and years, and the first seconds that overflow 31 and 32 bits.
const EDGES: [(&str, i64); 7] = [
    ("2000-01-01", 946_684_800_000),
    ("2024-02-29", 1_709_164_800_000),
    ("2024-03-01", 1_709_251_200_000),
    ("2027-01-01", 1_798_761_600_000),
    ("2038-01-19 03:14:08", 1 << 31),
    ("2100-03-01", 4_107_542_400_000),
    ("2106-02-07 06:28:16", 1 << 32),
];

#[test]
fn windows_end_to_the_millisecond_at_the_edges_of_days_and_years() {
    let server = Hosts::with_clock_at(NOW);
    for (date, edge) in EDGES {
        // Its two windows in seconds.
        let edge = if edge < 1 << 33 { edge * 1_000 } else { edge };
        for window in [1, 1_000, 4_000, HOUR, DAY].into_iter().filter(|window| edge % window == 0) {
            server.value("FLUSHALL");
            server.set_clock(edge - 1);
            for name in COMMANDS {
                let request = format!("{name} {name} 1 {window}ms");
                assert_eq!(server.figures(&request)[0], 0, "{name} before {date}");
                let wait = match name {
                    "RL.FIXED" => 1,
                    // At the start of the new window the old one still counts in full.
                    "RL.SLIDING" => 2,
                    _ => window,
                };
                assert_eq!(server.figures(&request), [1, 1, 0, wait, wait], "{name} before {date}");
            }
            server.set_clock(edge);
            let request = format!("RL.FIXED RL.FIXED 1 {window}ms");
            assert_eq!(server.figures(&request), [0, 1, 0, -1, window], "from {date}");
            // The time to live of the old window ends in this millisecond, and has been extended.
            assert_eq!(server.integer("PEXPIRETIME RL.FIXED"), edge + window, "from {date}");
        }
    }
}

#[test]
fn a_replica_whose_clock_was_up_to_a_minute_behind_frees_nothing_early_once_corrected() {
    let master = Server::with_clock_at(NOW, &[]);
    let replica = Server::with_clock_at(NOW - 59 * SECOND, &[]);
    replica.follow(&master);
    for name in COMMANDS {
        master.value(&format!("{name} {name} 1 1h"));
    }
    wait_for("the keys", || replica.digest() == master.digest());
    replica.value("REPLICAOF NO ONE");
    for name in COMMANDS {
        let [_, _, _, retry_after, _] = master.figures(&format!("{name} {name} 1 1h"));
        for server in [&master, &replica] {
            server.set_clock(NOW);
            assert_eq!(server.figures(&format!("RL.PEEK {name} 1 1h"))[3], retry_after, "{name}");
            server.step_clock(retry_after - 1);
            assert_eq!(server.figures(&format!("RL.PEEK {name} 1 1h"))[3], 1, "{name}");
            server.step_clock(1);
            assert_eq!(server.figures(&format!("RL.PEEK {name} 1 1h"))[0], 0, "{name}");
            server.set_clock(NOW);
        }
    }
}

#[test]
fn units_of_the_previous_sliding_window_are_not_free_early_either() {
    let server = Hosts::with_clock_at(NOW / 100_000 * 100_000 + 90 * SECOND);
    server.value("RL.SLIDING k 5 100s COST 5");
    server.step_clock(20 * SECOND);
    // Leaves units in the previous window only.
    server.value("RL.SLIDING k 50 100s");
    server.value("RL.SLIDING k 50 100s COST -1");
    let expires = server.integer("PEXPIRETIME k");
    server.step_clock(-105 * SECOND);
    assert_eq!(server.figures("RL.SLIDING k 5 100s"), [1, 5, 0, 95_001, 175_001]);
    assert_eq!(server.integer("PEXPIRETIME k"), expires);
}

#[test]
fn a_log_that_refunds_units_ahead_of_the_clock_lives_as_long_as_the_rest_counts() {
    let server = Hosts::with_clock_at(NOW);
    server.value("RL.LOG k 2 100s");
    server.step_clock(95 * SECOND);
    server.value("RL.LOG k 2 100s");
    server.step_clock(-99 * SECOND);
    assert_eq!(server.figures("RL.LOG k 2 100s")[0], 1);
    server.step_clock(30 * SECOND);
    server.value("RL.LOG k 2 100s COST -1");
    server.step_clock(10 * SECOND);
    assert_eq!(server.figures("RL.LOG k 2 100s"), [0, 2, 0, -1, 100_000]);
    assert!(server.integer("PTTL k") >= 100_000);
    assert_eq!(server.figures("RL.LOG k 2 100s"), [1, 2, 0, 64_000, 100_000]);
}
