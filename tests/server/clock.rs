//! The clock that decides when a request has no AT.

use harness::{COMMANDS, Server};
use redis::Value;

#[test]
fn waiting_exactly_retry_after_is_enough_and_one_ms_less_is_not() {
    let mut server = Server::with_clock_at(1_000_000_000_123, &[("appendonly", "yes")]);
    for name in COMMANDS {
        let take = format!("{name} {name} 5 1h COST 4");
        assert_eq!(server.figures(&take)[0], 0, "{name}");
        let [limited, _, _, retry_after, _] = server.figures(&take);
        assert_eq!(limited, 1, "{name}");
        server.step_clock(retry_after - 1);
        // The restarted server has the same clock.
        server.restart();
        let [limited, _, _, retry_after, _] = server.figures(&take);
        assert_eq!([limited, retry_after], [1, 1], "{name}");
        server.step_clock(1);
        assert_eq!(server.figures(&take)[0], 0, "{name}");
    }
}

/// Whether this server's clock stands still during a transaction.
fn has_cached_clock(server: &Server) -> bool {
    !server.info("redis_version").starts_with("7.0")
}

#[test]
fn the_clock_stands_still_inside_multi_where_the_server_supports_it() {
    let server = Server::start();
    let mut connection = server.connect();
    let mut pipeline = redis::pipe();
    pipeline.atomic();
    for _ in 0..5_000 {
        pipeline.cmd("RL.LOG").arg(&["k", "10000", "1h"]);
    }
    let replies: Vec<Vec<i64>> = pipeline.query(&mut connection).unwrap();
    assert!(replies.iter().all(|reply| reply[0] == 0));
    let Value::Array(info) = server.value("RL.INFO k") else { panic!("not an array") };
    if has_cached_clock(&server) {
        assert_eq!(info[5], Value::Int(1), "all in one millisecond");
    }
    assert_eq!(replies[4_999][2], 5_000);
}

#[test]
fn a_key_ahead_of_the_clock_expires_on_time_and_no_request_extends_it() {
    let server = Server::start();
    for name in COMMANDS {
        for ahead in [5, 2_000, 25_000] {
            let earliest = server.clock_ms();
            server.value(&format!("{name} k 100 30s AT {}", earliest + ahead));
            let latest = server.clock_ms();
            let longest = if name == "RL.SLIDING" { 60_000 } else { 30_000 + 30_000 / 8 };
            let expires = server.integer("PEXPIRETIME k");
            let about = format!("{name}: {expires}, written from {earliest} to {latest}");
            assert!((earliest + 60_000..=latest + longest + 60_000).contains(&expires), "{about}");
            for cost in ["", "COST 100", "COST 0", "COST -1", "COST 2 FORCE"] {
                let earliest = server.clock_ms();
                let [_, _, remaining, _, reset_after] = server.figures(&format!("{name} k 100 30s {cost}"));
                assert!(remaining < 100, "{name}: {remaining}");
                // Every wait ends when the key has expired.
                assert!(earliest + reset_after <= expires + 1, "{name}: {reset_after} from {earliest}");
                assert_eq!(server.integer("PEXPIRETIME k"), expires, "{name} {ahead} ms ahead, {cost}");
            }
            server.value("DEL k");
        }
    }
}

#[test]
fn what_is_counted_by_the_clock_outlives_an_earlier_at_near_the_end_of_its_window() {
    const HOUR: i64 = 1_700_002_800_000;
    for name in COMMANDS {
        let server = Server::with_clock_at(HOUR, &[]);
        server.value(&format!("{name} k 100 1h AT {}", HOUR + 3_600_000 - 1));
        // A log lives a minute longer than it counts by AT: this is after that minute.
        let later = if name == "RL.LOG" { 120_000 } else { 30_000 };
        server.step_clock(later);
        server.value(&format!("{name} k 100 1h COST 50"));
        let counts_for = match name {
            "RL.FIXED" => 3_600_000 - later,
            "RL.SLIDING" => 7_200_000 - later,
            "RL.LOG" => 3_600_000,
            _ => 1_800_000,
        };
        let lives = server.integer("PTTL k");
        assert!(lives >= counts_for, "{name}: {lives} ms for units that count for {counts_for}");
    }
}
