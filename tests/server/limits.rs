//! What counts as used, and for how long.

use crate::helpers::hosts::{Host, Hosts};
use harness::COMMANDS;

use crate::helpers::errors::LIVE_WINDOWS;

/// The units that `k` counts in this window. Not of a bucket: another limit keeps the share that is missing.
fn used(server: &impl Host, window: &str, at: u64) -> i64 {
    1_000_000 - server.figures(&format!("RL.PEEK k 1000000 {window} AT {at}"))[2]
}

#[test]
fn fixed_windows_are_aligned_to_the_epoch() {
    let server = Hosts::start();
    server.value("RL.FIXED k 9 10s AT 19999");
    assert_eq!(used(&server, "10s", 19_999), 1);
    assert_eq!(used(&server, "10s", 20_000), 0);
    assert_eq!(server.figures("RL.FIXED k 9 10s AT 20000"), [0, 9, 8, -1, 10_000]);
}

#[test]
fn a_sliding_counter_weights_the_previous_window_by_its_overlap() {
    let server = Hosts::start();
    server.value("RL.SLIDING k 100 10s COST 7 AT 15000");
    for (at, counted) in
        [(15_000, 7), (19_999, 7), (20_000, 7), (20_001, 6), (25_000, 3), (28_571, 1), (28_572, 0)]
    {
        assert_eq!(used(&server, "10s", at), counted, "at {at}");
    }
    server.value("RL.SLIDING k 100 10s COST 2 AT 25000");
    assert_eq!(used(&server, "10s", 25_000), 2 + 3);
    assert_eq!(used(&server, "10s", 30_000), 2);
    assert_eq!(used(&server, "10s", 40_000), 0);
}

#[test]
fn a_unit_in_a_log_is_free_again_exactly_one_window_later() {
    let server = Hosts::start();
    server.value("RL.LOG k 3 10s AT 12345");
    server.value("RL.LOG k 3 10s COST 2 AT 15000");
    assert_eq!(used(&server, "10s", 22_344), 3);
    assert_eq!(used(&server, "10s", 22_345), 2);
    assert_eq!(used(&server, "10s", 24_999), 2);
    assert_eq!(used(&server, "10s", 25_000), 0);
}

#[test]
fn reset_after_is_the_wait_of_a_request_for_the_whole_limit() {
    let server = Hosts::start();
    for name in COMMANDS {
        server.value(&format!("{name} {name} 5 10s COST 2 AT 1000"));
        server.value(&format!("{name} {name} 5 10s COST 2 AT 11000"));
        let reset_after = server.figures(&format!("RL.PEEK {name} 5 10s AT 12000"))[4];
        let whole = server.figures(&format!("RL.PEEK {name} 5 10s COST 5 AT 12000"));
        assert_eq!((whole[0], whole[3]), (1, reset_after), "{name}");
        let at = 12_000 + reset_after;
        assert_eq!(server.figures(&format!("RL.PEEK {name} 5 10s COST 5 AT {at}"))[0], 0, "{name}");
        assert_eq!(server.figures(&format!("RL.PEEK {name} 5 10s COST 5 AT {}", at - 1))[0], 1, "{name}");
    }
}

#[test]
fn all_tiers_allow_a_request_or_nothing_is_counted_in_any() {
    let server = Hosts::start();
    for name in COMMANDS {
        server.value("DEL k");
        assert_eq!(server.figures(&format!("{name} k 10 10s 2 100s COST 2 AT 0"))[0], 0);
        let before = server.digest();
        assert_eq!(server.figures(&format!("{name} k 10 10s 2 100s AT 0"))[0], 1);
        assert_eq!(server.digest(), before, "{name}");
        let remaining = |pair: &str| server.figures(&format!("RL.PEEK k {pair} AT 0"))[2];
        assert_eq!((remaining("10 10s"), remaining("2 100s")), (8, 0), "{name}");
    }
}

#[test]
fn force_counts_over_the_limit_and_says_so() {
    let server = Hosts::start();
    for name in COMMANDS {
        server.value("DEL k");
        assert_eq!(
            server.figures(&format!("{name} k 2 10s FORCE COST 2 AT 0"))[..4],
            [0, 2, 0, -1],
            "{name}"
        );
        let [limited, limit, remaining, retry_after, _] =
            server.figures(&format!("{name} k 2 10s FORCE COST 2 AT 0"));
        assert_eq!((limited, limit, remaining), (1, 2, 0), "{name}");
        // The wait includes the units that were just forced.
        let peek = |at: i64| server.figures(&format!("RL.PEEK k 2 10s COST 2 AT {at}"))[0];
        assert_eq!((peek(retry_after - 1), peek(retry_after)), (1, 0), "{name}");
        assert_eq!(server.figures(&format!("{name} k 2 10s COST -3 AT 0"))[2], 1, "{name}: 4 were counted");
    }
}

#[test]
fn a_cost_of_zero_or_less_takes_nothing_and_creates_no_key() {
    let server = Hosts::start();
    for name in COMMANDS {
        for cost in ["0", "0 FORCE", "-3"] {
            let reply = server.figures(&format!("{name} k 5 10s COST {cost} AT 0"));
            assert_eq!(reply, [0, 5, 5, -1, 0], "{name} {cost}");
            assert_eq!(server.integer("EXISTS k"), 0, "{name} {cost}");
        }
        server.value(&format!("{name} k 1 10s AT 0"));
        assert_eq!(server.figures(&format!("{name} k 1 10s COST 0 AT 0"))[..4], [0, 1, 0, -1], "{name}");
        server.value("DEL k");
    }
}

#[test]
fn a_refund_takes_the_newest_units_first_and_stops_at_zero() {
    let server = Hosts::start();
    server.value("RL.FIXED k 9 10s COST 5 AT 1000");
    server.value("RL.FIXED k 9 10s COST 3 AT 12000");
    assert_eq!(server.figures("RL.FIXED k 9 10s COST -2 AT 12000"), [0, 9, 8, -1, 8_000]);
    assert_eq!(server.figures("RL.FIXED k 9 10s COST -7 AT 12000"), [0, 9, 9, -1, 0]);
    assert_eq!(server.integer("EXISTS k"), 0, "nothing is left to count");

    server.value("RL.SLIDING k 9 10s COST 5 AT 1000");
    server.value("RL.SLIDING k 9 10s COST 3 AT 12000");
    server.value("RL.SLIDING k 9 10s COST -4 AT 12000");
    assert_eq!(used(&server, "10s", 12_000), 3, "none in this window, 4 * 0.8 of the previous one");
    server.value("RL.SLIDING k 9 10s COST -9 AT 12000");
    assert_eq!(server.integer("EXISTS k"), 0);

    for at in [1_000, 2_000, 2_000, 3_000] {
        server.value(&format!("RL.LOG k 9 10s AT {at}"));
    }
    server.value("RL.LOG k 9 10s COST -2 AT 4000");
    assert_eq!(
        (used(&server, "10s", 4_000), used(&server, "10s", 11_000)),
        (2, 1),
        "one of 1000 and one of 2000 remain"
    );
    server.value("RL.LOG k 9 10s COST -9 AT 4000");
    assert_eq!(server.integer("EXISTS k"), 0);
}

#[test]
fn units_that_have_left_the_window_are_not_refunded() {
    let server = Hosts::start();
    server.value("RL.FIXED k 9 10s COST 5 AT 1000");
    assert_eq!(server.figures("RL.FIXED k 9 10s COST -5 AT 10000"), [0, 9, 9, -1, 0]);
    assert_eq!(used(&server, "10s", 9_999), 5, "only the current fixed window is refunded");
    server.value("DEL k");
    server.value("RL.LOG k 9 10s AT 1000");
    server.value("RL.LOG k 9 10s AT 5000");
    server.value("RL.LOG k 9 10s COST -5 AT 11000");
    assert_eq!(used(&server, "10s", 11_000), 0);
}

#[test]
fn changing_the_limit_takes_effect_at_once_and_counts_stay() {
    let server = Hosts::start();
    for name in COMMANDS {
        server.value("DEL k");
        server.value(&format!("{name} k 5 10s COST 4 AT 0"));
        assert_eq!(server.figures(&format!("{name} k 3 10s AT 0"))[..3], [1, 3, 0], "{name}");
        assert_eq!(server.figures(&format!("{name} k 3 10s COST 0 AT 0"))[..3], [0, 3, 0], "{name}");
        // A bucket keeps the share: 4 of 5 are 6.4 of 8.
        let remaining = if name == "RL.BUCKET" { 0 } else { 3 };
        assert_eq!(server.figures(&format!("{name} k 8 10s AT 0"))[..3], [0, 8, remaining], "{name}");
    }
}

#[test]
fn each_window_length_has_its_own_counter() {
    let server = Hosts::start();
    for name in ["RL.FIXED", "RL.SLIDING"] {
        server.value("DEL k");
        server.value(&format!("{name} k 5 10s COST 4 AT 0"));
        assert_eq!(
            server.figures(&format!("{name} k 5 20s AT 0"))[..3],
            [0, 5, 4],
            "{name}: a new one is empty"
        );
        assert_eq!((used(&server, "10s", 0), used(&server, "20s", 0)), (4, 1), "{name}");
    }
}

#[test]
fn a_key_holds_at_most_8_live_window_lengths_and_drops_ended_ones() {
    let server = Hosts::start();
    for name in ["RL.FIXED", "RL.SLIDING"] {
        server.value("DEL k");
        for seconds in 1..=8 {
            server.value(&format!("{name} k 5 {seconds}h AT 0"));
        }
        let before = server.digest();
        assert_eq!(server.error(&format!("{name} k 5 9h AT 0")), LIVE_WINDOWS);
        assert_eq!(server.digest(), before, "{name}: the error changed nothing");
        assert_eq!(
            server.figures(&format!("{name} k 5 8h AT 0"))[..3],
            [0, 5, 3],
            "{name}: a known one keeps counting"
        );
        // The window of an hour has ended, which makes room for a new one.
        let over = if name == "RL.FIXED" { 3_600_000 } else { 7_200_000 };
        assert_eq!(server.figures(&format!("{name} k 5 9h AT {over}"))[..3], [0, 5, 4], "{name}");
    }
}

#[test]
fn a_log_is_exact_for_a_shorter_window_at_once_and_keeps_units_for_the_longest() {
    let server = Hosts::start();
    for at in [0, 4_000, 8_000] {
        server.value(&format!("RL.LOG k 9 10s AT {at}"));
    }
    assert_eq!((used(&server, "5s", 8_000), used(&server, "1s", 8_000)), (2, 1));
    // A longer window counts what is still held, and from now on the log keeps units that long.
    server.value("RL.LOG k 9 1m AT 9000");
    assert_eq!((used(&server, "1m", 9_000), used(&server, "10s", 9_000)), (4, 4));
    assert_eq!((used(&server, "1m", 59_999), used(&server, "1m", 60_000)), (4, 3));
    // A shorter window does not change that.
    server.value("RL.LOG k 9 1s AT 20000");
    assert_eq!((used(&server, "1m", 20_000), used(&server, "1s", 20_000)), (5, 1));
}

#[test]
fn a_log_holds_more_than_the_largest_limit_only_if_its_calls_name_windows_of_different_lengths() {
    let server = Hosts::start();
    let held = |lines: [&str; 2]| {
        server.value("DEL k");
        for at in 1..=10 {
            server.value(&format!("{} AT {at}", lines[usize::from(at > 1)]));
        }
        used(&server, "1h", 10)
    };
    assert_eq!(held(["RL.LOG k 5 1h", "RL.LOG k 5 1h"]), 5);
    assert_eq!(held(["RL.LOG k 1 1h", "RL.LOG k 5 1ms COST 5"]), 1 + 9 * 5, "it keeps them for an hour");
}

#[test]
fn time_never_runs_back_for_a_key() {
    let server = Hosts::start();
    // A time before a counter's window is read as the start of that window.
    server.value("RL.FIXED k 3 10s COST 2 AT 25000");
    assert_eq!(server.figures("RL.FIXED k 3 10s AT 5000"), [0, 3, 0, -1, 25_000]);
    assert_eq!(used(&server, "10s", 25_000), 3);
    let [limited, _, _, retry_after, _] = server.figures("RL.FIXED k 3 10s AT 5000");
    assert_eq!((limited, retry_after), (1, 25_000), "the wait is still exact");

    server.value("DEL k");
    server.value("RL.SLIDING k 8 10s COST 4 AT 15000");
    server.value("RL.SLIDING k 8 10s COST 2 AT 25000");
    assert_eq!(used(&server, "10s", 1_000), 2 + 4);
    assert_eq!(server.figures("RL.SLIDING k 8 10s COST 2 AT 1000")[..3], [0, 8, 0]);
    assert_eq!(used(&server, "10s", 25_000), 4 + 2);

    // A time before a log's newest timestamp is read as that timestamp.
    server.value("DEL k");
    server.value("RL.LOG k 3 10s AT 1000");
    server.value("RL.LOG k 3 10s AT 9000");
    server.value("RL.LOG k 3 10s AT 2000");
    assert_eq!((used(&server, "10s", 11_000), used(&server, "10s", 18_999)), (2, 2));
    assert_eq!(used(&server, "10s", 19_000), 0);
    assert_eq!(
        server.figures("RL.LOG k 2 10s AT 500")[..4],
        [1, 2, 0, 18_500],
        "1000 and two of 9000 still count"
    );
}
