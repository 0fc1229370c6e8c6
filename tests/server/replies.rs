//! What the commands reply.

use crate::helpers::hosts::{Host, Hosts};
use harness::{COMMANDS, Server, command, figures};
use redis::Value;

#[test]
fn a_reply_is_five_integers_in_resp2_and_resp3() {
    let server = Server::start();
    for mut connection in [server.connect(), server.connect_resp3()] {
        for name in COMMANDS {
            server.value("DEL k");
            let reset_after = match name {
                "RL.SLIDING" => 10_001,
                "RL.BUCKET" => 2_000,
                _ => 10_000,
            };
            let reply: Value = command(&format!("{name} k 5 10s AT 20000")).query(&mut connection).unwrap();
            assert_eq!(figures(&reply), [0, 5, 4, -1, reset_after], "{name}");
            let reply: Value = command("RL.PEEK k 5 10s AT 20000").query(&mut connection).unwrap();
            assert_eq!(figures(&reply), [0, 5, 4, -1, reset_after], "{name}");
        }
    }
}

#[test]
fn a_limited_reply_says_what_remains_and_how_long_to_wait() {
    let server = Hosts::start();
    for name in COMMANDS {
        server.value(&format!("{name} {name} 5 10s COST 4 AT 20000"));
        let [limited, limit, remaining, retry_after, reset_after] = server.figures(&format!(
            "{name} {name} 5 10s COST 2 AT {}",
            if name == "RL.BUCKET" { 20_000 } else { 23_000 }
        ));
        assert_eq!((limited, limit, remaining), (1, 5, 1), "{name}");
        let (retry, reset) = match name {
            "RL.FIXED" => (7_000, 7_000),
            // 4 units weigh 3 one ms into the next window, and 0 after three quarters of it.
            "RL.SLIDING" => (7_001, 7_000 + 7_501),
            // A unit comes back every two seconds.
            "RL.BUCKET" => (2_000, 8_000),
            _ => (7_000, 7_000),
        };
        assert_eq!((retry_after, reset_after), (retry, reset), "{name}");
    }
}

#[test]
fn no_wait_helps_a_cost_over_the_limit() {
    let server = Hosts::start();
    for name in COMMANDS {
        assert_eq!(server.figures(&format!("{name} k 5 10s COST 6 AT 20000")), [1, 5, 5, -1, 0]);
        assert_eq!(server.figures("RL.PEEK k 5 10s COST 6 AT 20000"), [1, 5, 5, -1, 0]);
        assert_eq!(server.integer("EXISTS k"), 0, "a limited request creates no key");
    }
}

#[test]
fn a_limit_of_zero_limits_everything_except_a_cost_of_zero_or_less() {
    let server = Hosts::start();
    for name in COMMANDS {
        assert_eq!(server.figures(&format!("{name} k 0 10s AT 0")), [1, 0, 0, -1, 0]);
        assert_eq!(server.figures(&format!("{name} k 0 10s COST 0 AT 0")), [0, 0, 0, -1, 0]);
        assert_eq!(server.figures(&format!("{name} k 0 10s COST -1 AT 0")), [0, 0, 0, -1, 0]);
        assert_eq!(server.integer("EXISTS k"), 0);
    }
}

#[test]
fn the_largest_arguments_are_exact() {
    let server = Hosts::start();
    let max = 9_007_199_254_740_991i64;
    for name in COMMANDS {
        server.value("DEL k");
        let all = format!("{name} k {max} 3650d COST {max} AT {max}");
        let [limited, limit, remaining, retry_after, reset_after] = server.figures(&all);
        assert_eq!((limited, limit, remaining, retry_after), (0, max, 0, -1), "{name}");
        let [limited, _, _, retry_after, again] = server.figures(&format!("{name} k {max} 3650d AT {max}"));
        assert_eq!((limited, again), (1, reset_after), "{name}");
        assert!(retry_after > 0 && retry_after <= reset_after && reset_after <= 2 * 315_360_000_000);
        assert_eq!(server.figures(&format!("{name} k {max} 3650d COST -{max} AT {max}"))[2], max, "{name}");
        assert_eq!(server.integer("EXISTS k"), 0, "everything was refunded");
    }
}

#[test]
fn an_allowed_reply_shows_the_tier_with_the_fewest_units_remaining() {
    let server = Hosts::start();
    for name in COMMANDS {
        server.value("DEL k");
        assert_eq!(server.figures(&format!("{name} k 10 1s 8 10s 9 100s AT 0"))[..3], [0, 8, 7], "{name}");
        // On a tie, the first tier.
        assert_eq!(
            server.figures(&format!("{name} k 8 10s 8 100s AT 0 COST 0"))[..4],
            [0, 8, 7, -1],
            "{name}"
        );
        assert_eq!(server.figures(&format!("{name} k 8 1s 8 10s AT 0 COST 0"))[..3], [0, 8, 7], "{name}");
    }
    // reset_after shows which of the two it is.
    server.value("DEL k");
    assert_eq!(server.figures("RL.FIXED k 5 100s 5 10s AT 0"), [0, 5, 4, -1, 100_000]);
    assert_eq!(server.figures("RL.FIXED k 5 10s 5 100s COST 0 AT 0"), [0, 5, 4, -1, 10_000]);
}

#[test]
fn a_limited_reply_shows_the_refusing_tier_with_the_longest_wait() {
    let server = Hosts::start();
    server.value("RL.FIXED k 2 10s 2 100s 9 1000s COST 2 AT 0");
    // Both refuse; the longer window has the longer wait, in either order.
    assert_eq!(server.figures("RL.FIXED k 2 10s 2 100s 9 1000s AT 0"), [1, 2, 0, 100_000, 100_000]);
    assert_eq!(server.figures("RL.FIXED k 2 100s 2 10s 9 1000s AT 0"), [1, 2, 0, 100_000, 100_000]);
    // A tier that allows is never shown, even with fewer units remaining.
    assert_eq!(server.figures("RL.FIXED k 4 10s 2 100s 3 1000s COST 1 AT 0"), [1, 2, 0, 100_000, 100_000]);
    // -1 is the longest wait of all.
    assert_eq!(server.figures("RL.FIXED k 7 10s 2 100s COST 8 AT 0"), [1, 7, 5, -1, 10_000]);
    // On a tie, the first tier.
    server.value("RL.FIXED t 3 10s 4 5s COST 3 AT 5000");
    assert_eq!(server.figures("RL.FIXED t 3 10s 4 5s COST 2 AT 5000"), [1, 3, 0, 5_000, 5_000]);
    assert_eq!(server.figures("RL.FIXED t 4 5s 3 10s COST 2 AT 5000"), [1, 4, 1, 5_000, 5_000]);
}

#[test]
fn a_peek_replies_what_a_request_would_get_and_changes_nothing() {
    let server = Hosts::start();
    for name in COMMANDS {
        server.value("DEL k");
        assert_eq!(server.figures("RL.PEEK k 3 10s AT 0"), [0, 3, 3, -1, 0], "a missing key");
        server.value(&format!("{name} k 3 10s COST 2 AT 0"));
        let before = server.digest();
        let now = server.figures("RL.PEEK k 3 10s AT 0");
        assert_eq!(now[..4], [0, 3, 1, -1], "{name}: remaining is as of now");
        assert_eq!(server.figures("RL.PEEK k 3 10s COST 0 AT 0"), now);
        assert_eq!(server.figures("RL.PEEK k 3 10s COST -2 AT 0"), now, "nothing is refunded");
        let refused = server.figures("RL.PEEK k 3 10s COST 2 AT 0");
        assert_eq!((refused[0], refused[2], refused[4]), (1, 1, now[4]), "{name}");
        // The request itself gets the same reply.
        assert_eq!(server.figures(&format!("{name} k 3 10s COST 2 AT 0")), refused);
        assert_eq!(server.digest(), before, "{name}");
    }
}

#[test]
fn info_shows_a_map_of_the_live_windows() {
    let server = Server::start();
    let window =
        |ms: i64, used: i64, reset: i64| vec![("window_ms", ms), ("used", used), ("reset_after_ms", reset)];
    // Without AT, so windows that do not end during the test.
    server.value("RL.FIXED f 10 3650d 20 3649d COST 3");
    server.value("RL.SLIDING s 10 3650d COST 3");
    server.value("RL.LOG l 10 3649d 10 3650d COST 3");
    for (key, algorithm, windows) in [("f", "fixed", 2), ("s", "sliding", 1), ("l", "log", 1)] {
        let Value::Map(fields) =
            command(&format!("RL.INFO {key}")).query(&mut server.connect_resp3()).unwrap()
        else {
            panic!("not a map");
        };
        let names: Vec<String> =
            fields.iter().map(|(name, _)| redis::from_redis_value_ref(name).unwrap()).collect();
        let expected: &[&str] =
            if key == "l" { &["algorithm", "windows", "entries"] } else { &["algorithm", "windows"] };
        assert_eq!(names, expected, "{key}");
        assert_eq!(fields[0].1, Value::BulkString(algorithm.into()));
        let Value::Array(live) = &fields[1].1 else { panic!("not an array") };
        assert_eq!(live.len(), windows, "{key}");
        for (state, days) in live.iter().zip(if windows == 2 { [3649, 3650] } else { [3650, 0] }) {
            let state: Vec<(String, i64)> = redis::from_redis_value_ref(state).unwrap();
            let ms = days * 86_400_000;
            let reset = state[2].1;
            assert!(reset > 0 && reset <= 2 * ms, "{state:?}");
            let state: Vec<(&str, i64)> = state.iter().map(|(name, value)| (name.as_str(), *value)).collect();
            let parts = [("current", 3), ("previous", 0)];
            let parts = if key == "s" { &parts[..] } else { &[] };
            assert_eq!(state, [window(ms, 3, reset), parts.to_vec()].concat(), "{key}");
        }
        if key == "l" {
            assert_eq!(fields[2].1, Value::Int(1));
        }
    }
}

#[test]
fn info_is_a_flat_array_in_resp2_and_null_for_a_missing_key() {
    let server = Server::start();
    server.value("RL.LOG k 10 3650d COST 3");
    let Value::Array(fields) = server.value("RL.INFO k") else { panic!("not an array") };
    assert_eq!(fields.len(), 6);
    assert_eq!(fields[0], Value::BulkString(b"algorithm".into()));
    assert_eq!(fields[4], Value::BulkString(b"entries".into()));
    let Value::Array(windows) = &fields[3] else { panic!("not an array") };
    assert!(matches!(&windows[0], Value::Array(state) if state.len() == 6));
    assert_eq!(server.value("RL.INFO missing"), Value::Nil);
    let null: Value = command("RL.INFO missing").query(&mut server.connect_resp3()).unwrap();
    assert_eq!(null, Value::Nil);
}

#[test]
fn info_counts_the_distinct_timestamps_of_a_log_that_still_count() {
    let server = Hosts::start();
    let now: i64 = server.clock_ms();
    let day = 86_400_000;
    for age in [3 * day, 2 * day, 2 * day, 1] {
        server.value(&format!("RL.LOG k 10 2d AT {}", now - age));
    }
    let Value::Array(fields) = server.value("RL.INFO k") else { panic!("not an array") };
    assert_eq!(fields[5], Value::Int(1), "those of two days ago have left the window");
}

#[test]
fn a_key_may_be_any_bytes() {
    let server = Server::start();
    let mut connection = server.connect();
    for key in [b"".as_slice(), b"\0", b"\xff\xfe", b"a b\r\n", "schlüssel".as_bytes(), &[b'k'; 10_000]] {
        for name in COMMANDS {
            let mut take = redis::cmd(name);
            take.arg(key).arg("5").arg("10s").arg("AT").arg("0");
            let reply: Value = take.query(&mut connection).unwrap();
            assert_eq!(figures(&reply)[..3], [0, 5, 4]);
            let deleted: i64 = redis::cmd("DEL").arg(key).query(&mut connection).unwrap();
            assert_eq!(deleted, 1);
        }
    }
}

#[test]
fn deleting_the_key_resets_the_limiter() {
    let server = Hosts::start();
    for name in COMMANDS {
        let take = format!("{name} k 1 10s AT 0");
        assert_eq!(server.figures(&take)[0], 0);
        assert_eq!(server.figures(&take)[0], 1);
        server.value("DEL k");
        assert_eq!(server.figures(&take)[0], 0);
        server.value("DEL k");
    }
}

#[test]
fn info_shows_both_counts_of_a_sliding_window() {
    let server = Hosts::start();
    let day = 86_400_000;
    let start = server.clock_ms() / day * day;
    server.value(&format!("RL.SLIDING k 100 1d COST 8 AT {}", start - 1));
    server.value(&format!("RL.SLIDING k 100 1d COST 3 AT {start}"));
    let Value::Array(fields) = server.value("RL.INFO k") else { panic!("not an array") };
    let Value::Array(windows) = &fields[3] else { panic!("no windows") };
    let window: Vec<(String, i64)> = redis::from_redis_value_ref(&windows[0]).unwrap();
    assert_eq!(window[3..], [("current".to_owned(), 3), ("previous".to_owned(), 8)]);
    assert!((3..=11).contains(&window[1].1), "{window:?}");
}
