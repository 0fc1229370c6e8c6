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
fn no_wait_helps_a_cost_over_the_limit() {
    let server = Hosts::start();
    for name in COMMANDS {
        assert_eq!(server.figures(&format!("{name} k 5 10s COST 6 AT 20000")), [1, 5, 5, -1, 0]);
        assert_eq!(server.figures("RL.PEEK k 5 10s COST 6 AT 20000"), [1, 5, 5, -1, 0]);
        assert_eq!(server.integer("EXISTS k"), 0, "a limited request creates no key");
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

/// The names and figures in a reply to RL.INFO, in order.
fn words(value: &Value) -> Vec<String> {
    match value {
        Value::Map(fields) => {
            fields.iter().flat_map(|(name, value)| [words(name), words(value)].concat()).collect()
        }
        Value::Array(items) => items.iter().flat_map(words).collect(),
        Value::Int(integer) => vec![integer.to_string()],
        Value::BulkString(text) => vec![String::from_utf8_lossy(text).into_owned()],
        other => panic!("{other:?}"),
    }
}

#[test]
fn info_shows_the_live_windows_as_a_map_shortest_first_and_in_resp2_as_a_flat_array() {
    // In the middle of a minute.
    let now = 31_666_667 * 60_000 + 30_000;
    let server = Server::with_clock_at(now, &[]);
    for line in [
        // Of the first window nothing counts any more.
        &format!("RL.FIXED fixed 9 1s AT {}", now - 1_000),
        "RL.FIXED fixed 9 2m 9 1m COST 3",
        &format!("RL.SLIDING sliding 99 1m COST 8 AT {}", now - 60_000),
        "RL.SLIDING sliding 99 1m COST 3",
        &format!("RL.LOG log 9 1h AT {}", now - 3_600_000),
        &format!("RL.LOG log 9 1h COST 2 AT {}", now - 1),
        "RL.LOG log 9 1m 9 1h",
        "RL.BUCKET bucket 100 1h 10 1m COST 3",
    ] {
        server.value(line);
    }
    for (key, expected) in [
        (
            "fixed",
            "windows window_ms 60000 used 3 reset_after_ms 30000 window_ms 120000 used 3 reset_after_ms 30000",
        ),
        ("sliding", "windows window_ms 60000 used 7 reset_after_ms 70001 current 3 previous 8"),
        ("log", "windows window_ms 3600000 used 3 reset_after_ms 3600000 entries 2"),
        (
            "bucket",
            "windows window_ms 60000 limit 10 used 3 reset_after_ms 18000 \
             window_ms 3600000 limit 100 used 3 reset_after_ms 108000",
        ),
    ] {
        let info = |mut connection| {
            command(&format!("RL.INFO {key}")).query::<Value>(&mut connection).expect("figures")
        };
        let [flat, map] = [server.connect(), server.connect_resp3()].map(info);
        assert!(matches!(flat, Value::Array(_)) && matches!(map, Value::Map(_)), "{key}");
        assert_eq!(words(&map).join(" "), format!("algorithm {key} {expected}"));
        assert_eq!(words(&flat), words(&map), "{key}");
    }
    for mut connection in [server.connect(), server.connect_resp3()] {
        assert_eq!(command("RL.INFO missing").query::<Value>(&mut connection).expect("null"), Value::Nil);
    }
}
