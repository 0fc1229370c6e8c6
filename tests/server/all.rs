//! RL.ALL: several keys in one step, all or nothing.

use crate::helpers::hosts::{Host, Hosts};
use harness::{COMMANDS, Figures, Random, ReplicationStream, Server, command, pipeline};

use crate::helpers::errors::{
    ALGORITHM, AT, LIMIT, LIVE_WINDOWS, MONTHS, ROW, ROW_COST, ROWS, ROWS_DIFFER, ROWS_OF_A_KEY,
    ROWS_OF_A_WINDOW, SYNTAX, WINDOW, WRONGTYPE,
};
use crate::helpers::requests::{ALGORITHMS, AllReply, all};

#[test]
fn every_row_is_counted_or_none_is() {
    let server = Hosts::start();
    let line = "RL.ALL user fixed 5 1m 2 team SLIDING 9 1m 3 model Log 4 1m 1 AT 60000";
    assert_eq!(
        all(&server, line),
        AllReply {
            limited: 0,
            retry_after: -1,
            at: 60_000,
            rows: vec![[0, 5, 3, -1, 60_000], [0, 9, 6, -1, 100_001], [0, 4, 3, -1, 60_000]],
        }
    );
    assert_eq!(all(&server, line).limited, 0);
    let before = server.digest();
    let limited = all(&server, line);
    assert_eq!((limited.limited, limited.retry_after, limited.at), (1, 60_000, 60_000));
    assert_eq!(limited.rows[0], [1, 5, 1, 60_000, 60_000], "used 4 of 5");
    assert_eq!(limited.rows[1][..4], [0, 9, 3, -1], "would have been allowed");
    assert_eq!(limited.rows[2][..4], [0, 4, 2, -1], "would have been allowed");
    assert_eq!(server.digest(), before, "nothing is counted in any key");
    assert_eq!(server.integer("DBSIZE"), 3);
}

#[test]
fn force_counts_every_row_even_if_some_refuse() {
    let server = Hosts::start();
    let line = "RL.ALL full FIXED 1 1m 2 free FIXED 9 1m 1 edge LOG 1 1m 1 force AT 0";
    let reply = all(&server, line);
    assert_eq!((reply.limited, reply.retry_after), (1, -1), "a cost over the limit never fits");
    assert_eq!(
        reply.rows,
        [[1, 1, 0, -1, 60_000], [0, 9, 8, -1, 60_000], [0, 1, 0, -1, 60_000]],
        "each row says whether it refuses"
    );
    assert_eq!(server.integer("DBSIZE"), 3);
}

#[test]
fn a_row_of_cost_zero_counts_nothing_and_never_refuses() {
    let server = Hosts::start();
    server.value("RL.LOG full 1 1m AT 0");
    let before = server.digest();
    let reply = all(&server, "RL.ALL full LOG 1 1m 0 none FIXED 5 1m 0 never SLIDING 0 1m 0 FORCE AT 10");
    assert_eq!((reply.limited, reply.retry_after, reply.at), (0, -1, 10));
    assert_eq!(reply.rows, [[0, 1, 0, -1, 59_990], [0, 5, 5, -1, 0], [0, 0, 0, -1, 0]]);
    assert_eq!(server.digest(), before);

    let reply = all(&server, "RL.ALL full LOG 1 1m 0 counted FIXED 5 1m 2 AT 10");
    assert_eq!(reply.limited, 0, "a row of cost 0 does not refuse");
    assert_eq!(server.figures("RL.PEEK counted 5 1m AT 10")[2], 3);
    assert_eq!(server.integer("DBSIZE"), 2);
}

#[test]
fn a_negative_cost_gives_back_and_never_refuses() {
    let server = Hosts::start();
    for name in COMMANDS {
        server.value(&format!("{name} {name} 5 1m COST 9 FORCE AT 0"));
    }
    let reply = all(
        &server,
        "RL.ALL RL.FIXED FIXED 5 1m -5 RL.SLIDING SLIDING 5 1m -9 RL.LOG LOG 0 1m -1 none LOG 5 1m -3 AT 1",
    );
    assert_eq!((reply.limited, reply.retry_after), (0, -1));
    let remaining: Vec<i64> = reply.rows.iter().map(|row| row[2]).collect();
    assert_eq!(remaining, [1, 5, 0, 5]);
    assert_eq!(server.integer("EXISTS RL.SLIDING none"), 0, "an emptied key is deleted");
    assert_eq!(server.figures("RL.PEEK RL.LOG 9 1m AT 1")[2], 1);

    // A request that gives back in one row and is refused in another gives nothing back.
    let before = server.digest();
    assert_eq!(all(&server, "RL.ALL RL.FIXED FIXED 5 1m -1 RL.LOG LOG 8 1m 1 AT 1").limited, 1);
    assert_eq!(server.digest(), before);
    assert_eq!(all(&server, "RL.ALL RL.FIXED FIXED 5 1m -1 RL.LOG LOG 9 1m 1 AT 1").limited, 0);
    assert_eq!(server.figures("RL.PEEK RL.FIXED 5 1m AT 1")[2], 2);
}

#[test]
fn both_protocols_get_the_same_arrays_of_integers() {
    let server = Server::start();
    let line = "RL.ALL a FIXED 1 10s 1 b LOG 2 10s 1 AT 5000";
    let open = [0, 2, 1, -1, 10_000];
    let allowed = AllReply { limited: 0, retry_after: -1, at: 5_000, rows: vec![[0, 1, 0, -1, 5_000], open] };
    let refused =
        AllReply { limited: 1, retry_after: 5_000, rows: vec![[1, 1, 0, 5_000, 5_000], open], ..allowed };
    for mut connection in [server.connect(), server.connect_resp3()] {
        let mut eval = redis::cmd("EVAL");
        eval.arg("return redis.call(unpack(ARGV))").arg(&["2", "a", "b"]);
        eval.arg(line.split(' ').collect::<Vec<_>>());
        for (command, expected) in [(&command(line), &allowed), (&command(line), &refused), (&eval, &refused)]
        {
            assert_eq!(AllReply::of(&command.query(&mut connection).expect("a reply")), *expected);
        }
        server.value("FLUSHALL");
    }
}

#[test]
fn at_in_the_reply_is_the_time_of_the_decision() {
    let now = 1_900_000_000_123;
    let server = Server::with_clock_at(now, &[]);
    assert_eq!(all(&server, "RL.ALL a FIXED 1 1h 1 b LOG 1 1h 1").at, now);
    assert_eq!(all(&server, "RL.ALL a FIXED 1 1h 1 b LOG 1 1h 1").at, now, "limited too");
    assert_eq!(all(&server, "RL.ALL a FIXED 1 1h 1 AT 7").at, 7);
    // A key written with a later time counts as of that time.
    server.value(&format!("RL.LOG ahead 9 1h AT {}", now + 5_000));
    assert_eq!(all(&server, "RL.ALL ahead LOG 9 1h 1 c LOG 9 1h 1").at, now + 5_000);
}

#[test]
fn up_to_64_rows_and_up_to_8_of_one_key_are_accepted() {
    let server = Server::start();
    let rows = |count: usize| -> String {
        (0..count).map(|i| format!(" k{} {} 5 1m 1", i, ["FIXED", "sliding", "LoG"][i % 3])).collect()
    };
    let reply = all(&server, &format!("RL.ALL{} AT 0", rows(64)));
    assert_eq!(reply.rows.len(), 64);
    assert_eq!(server.integer("DBSIZE"), 64);
    // 8 keys of 8 tiers, interleaved.
    let tiers: String = (1..=8)
        .flat_map(|tier| (0..8).map(move |key| format!(" key{key} FIXED {} {tier}s 1", 10 * tier + key)))
        .collect();
    let reply = all(&server, &format!("RL.ALL{tiers} AT 0 FORCE"));
    for (i, row) in reply.rows.iter().enumerate() {
        let (tier, key) = (1 + i as i64 / 8, i as i64 % 8);
        let limit = 10 * tier + key;
        assert_eq!(*row, [0, limit, limit - 1, -1, tier * 1_000], "row {i}");
    }
    assert_eq!(server.integer("DBSIZE"), 72);
}

/// Rows that are refused beside any other, and the error.
const REFUSED_ROWS: [(&str, &str); 20] = [
    ("new fixe 5 10s 1", ALGORITHM),
    ("new RL.FIXED 5 10s 1", ALGORITHM),
    ("new 5 10s 1 FIXED", ALGORITHM),
    ("new FIXED -1 10s 1", LIMIT),
    ("new FIXED 9007199254740992 10s 1", LIMIT),
    ("new FIXED 5 1y 1", WINDOW),
    ("new FIXED 5 121mo 1", WINDOW),
    ("new LOG 5 1mo 1", MONTHS),
    ("new FIXED 5 10s COST", ROW_COST),
    ("new FIXED 5 10s one", ROW_COST),
    ("new FIXED 5 10s 9007199254740992", ROW_COST),
    ("new FIXED 5 10s -9007199254740992", ROW_COST),
    ("text LOG 5 10s 1", WRONGTYPE),
    ("text LOG 5 10s -1", WRONGTYPE),
    ("other:fixed LOG 5 10s 1", "WRONGTYPE key is counted by RL.FIXED"),
    ("other:sliding LOG 5 10s 0", "WRONGTYPE key is counted by RL.SLIDING"),
    ("other:log FIXED 5 10s -1", "WRONGTYPE key is counted by RL.LOG"),
    ("other:log SLIDING 5 10s 1", "WRONGTYPE key is counted by RL.LOG"),
    ("eight FIXED 5 9s 1", LIVE_WINDOWS),
    ("both SLIDING 5 9s 1", LIVE_WINDOWS),
];

/// Options after a valid row, and the error.
const REFUSED_OPTIONS: [(&str, &str); 21] = [
    ("BOGUS", ROW),
    ("a FIXED", ROW),
    ("a FIXED 5", ROW),
    ("a FIXED 5 10s", ROW),
    ("a b c d", ROW),
    ("FORCE AT 0 FORCE", ROW),
    ("AT 0 AT 0", ROW),
    ("AT", SYNTAX),
    ("COST 1", ROW),
    ("FORCE FORCE", SYNTAX),
    ("FORCE AT", SYNTAX),
    ("AT now", AT),
    ("AT -1", AT),
    ("AT 9007199254740992", AT),
    ("AT 0 AT", SYNTAX),
    ("AT 0 BOGUS", SYNTAX),
    ("AT FORCE 0", AT),
    ("FORCE AT now", AT),
    ("FORCE FORCE FORCE", SYNTAX),
    // Five words would be another row.
    ("FORCE AT 0 AT 0", ALGORITHM),
    ("FORCE FIXED 5 10s AT", ROW_COST),
];

/// A server with keys of every kind, and valid rows that all of them allow.
fn server_and_valid_rows() -> (Server, [&'static str; 4]) {
    let server = Server::start();
    let eight = "9 1s 9 2s 9 3s 9 4s 9 5s 9 6s 9 7s 9 8s";
    pipeline([
        "SET text 1".to_owned(),
        "RL.FIXED fixed 9 1h COST 2 AT 0".to_owned(),
        "RL.SLIDING sliding 9 1h COST 2 AT 0".to_owned(),
        "RL.LOG log 9 1h COST 2 AT 0".to_owned(),
        "RL.FIXED other:fixed 9 1h AT 0".to_owned(),
        "RL.SLIDING other:sliding 9 1h AT 0".to_owned(),
        "RL.LOG other:log 9 1h AT 0".to_owned(),
        format!("RL.FIXED eight {eight} AT 0"),
        format!("RL.SLIDING both {eight} AT 0"),
    ])
    .exec(&mut server.connect())
    .expect("all of them are counted");
    let rows = ["fixed FIXED 9 1h 1", "sliding SLIDING 9 1h 3", "log LOG 9 1h 2", "missing LOG 9 1h 1"];
    (server, rows)
}

/// Asserts that a line gets this error and changes nothing.
#[track_caller]
fn assert_refused(server: &impl Host, line: &str, error: &str) {
    let before = (server.digest(), server.server().info("rdb_changes_since_last_save"));
    assert_eq!(server.error(line), error, "{line}");
    assert_eq!((server.digest(), server.server().info("rdb_changes_since_last_save")), before, "{line}");
}

#[test]
fn an_error_changes_nothing_in_any_key_whichever_row_causes_it() {
    let (server, sound) = server_and_valid_rows();
    for (row, error) in REFUSED_ROWS {
        for place in [0, 2, 4] {
            let mut rows = sound.to_vec();
            rows.insert(place, row);
            for options in ["AT 0", "AT 0 FORCE"] {
                assert_refused(&server, &format!("RL.ALL {} {options}", rows.join(" ")), error);
            }
        }
    }
    for (options, error) in REFUSED_OPTIONS {
        assert_refused(&server, &format!("RL.ALL {} {options}", sound.join(" ")), error);
    }
    // The rows themselves are valid.
    assert_eq!(all(&server, &format!("RL.ALL {} AT 0", sound.join(" "))).limited, 0);
}

#[test]
fn rows_of_one_key_that_contradict_each_other_are_refused() {
    let (server, sound) = server_and_valid_rows();
    let nine: String = (1..=9).map(|window| format!(" nine LOG 9 {window}s 1")).collect();
    let sixty_five: String = (0..65).map(|key| format!(" k{key} FIXED 9 1h 1")).collect();
    for (rows, error) in [
        ("other:log LOG 9 1h 2 other:log LOG 8 60m 2", ROWS_OF_A_WINDOW),
        ("other:log LOG 9 1h 2 other:fixed FIXED 9 1h 1 other:log LOG 9 3600 2", ROWS_OF_A_WINDOW),
        ("other:log LOG 9 1h 2 other:log LOG 9 2h 1", ROWS_DIFFER),
        ("other:log LOG 9 1h 2 other:log FIXED 9 2h 2", ROWS_DIFFER),
        ("other:log LOG 9 1h 0 other:log LOG 9 2h 1", ROWS_DIFFER),
        ("other:log LOG 9 1h 1 other:log LOG 9 2h -1", ROWS_DIFFER),
        (nine.trim(), ROWS_OF_A_KEY),
        (sixty_five.trim(), ROWS),
    ] {
        for options in ["", " FORCE", " FORCE AT 0"] {
            assert_refused(&server, &format!("RL.ALL {rows}{options}"), error);
            if error != ROWS {
                assert_refused(&server, &format!("RL.ALL {} {rows}{options}", sound.join(" ")), error);
            }
        }
    }
}

/// A row of a random request.
#[derive(Clone, Debug)]
struct Row {
    key: usize,
    algorithm: &'static str,
    limit: u64,
    window_ms: u64,
    cost: i64,
}

impl Row {
    fn words(&self) -> String {
        let Row { key, algorithm, limit, window_ms, cost } = self;
        format!("k{key} {algorithm} {limit} {window_ms}ms {cost}")
    }

    fn peek(&self, at: i64) -> String {
        let Row { key, limit, window_ms, cost, .. } = self;
        format!("RL.PEEK k{key} {limit} {window_ms}ms COST {cost} AT {at}")
    }
}

/// Rows of one to five keys, one to three of each, in any order.
fn rows(random: &mut Random) -> Vec<Row> {
    let mut rows = Vec::new();
    for _ in 0..1 + random.below(5) {
        let key = random.below(6);
        if rows.iter().any(|row: &Row| row.key == key) {
            continue;
        }
        let cost = random.of(&[1, 1, 2, 3, 4, 7, 0, -1, -4]);
        let mut windows = vec![10, 70, 300, 1_000];
        for _ in 0..random.of(&[1, 1, 1, 2, 3]) {
            let window_ms = windows.remove(random.below(windows.len()));
            let algorithm = ["FIXED", "sliding", "Log", "BUCKET"][key % 4];
            let row = Row { key, algorithm, limit: 4 + random.below(8) as u64, window_ms, cost };
            rows.insert(random.below(rows.len() + 1), row);
        }
    }
    rows
}

fn peeks(server: &impl Host, rows: &[Row], at: i64) -> Vec<Figures> {
    rows.iter().map(|row| server.figures(&row.peek(at))).collect()
}

#[test]
fn each_row_replies_what_its_tier_alone_would_and_the_total_wait_is_exact() {
    let [server, single] = [Hosts::start(), Hosts::start()];
    let mut random = Random::new(7);
    let (mut at, mut waited) = (1_000_000, 0);
    for _ in 0..1_000 {
        let rows = rows(&mut random);
        at += random.of(&[0, 0, 1, 3, 20, 150, 2_000]);
        // Sometimes late.
        let now = at - random.of(&[0, 0, 0, 0, 9, 200]);
        let words: Vec<String> = rows.iter().map(Row::words).collect();
        let words = words.join(" ");
        let force = random.below(4) == 0;

        let before = peeks(&server, &rows, now);
        let digest = server.digest();
        let options = random.of(if force { &["FORCE AT ", "force at "] } else { &["AT ", "at "] });
        let line = format!("RL.ALL {words} {options}{now}");
        let reply = all(&server, &line);
        let after = peeks(&server, &rows, now);

        // A key ahead of this time counts as of its own time.
        let latest = if reply.limited == 0 || force { at } else { now };
        assert!((now..=latest).contains(&reply.at), "{line}: {reply:?}");
        assert_eq!(reply.limited, before.iter().map(|row| row[0]).max().unwrap_or(0), "{line}");
        for ((row, before), after) in reply.rows.iter().zip(&before).zip(&after) {
            let retry_after = if before[0] == 1 { after[3] } else { -1 };
            assert_eq!(*row, [before[0], after[1], after[2], retry_after, after[4]], "{line}");
        }
        if reply.limited == 1 && !force {
            assert_eq!(server.digest(), digest, "{line}");
        }

        // The same effect on each key alone.
        if reply.limited == 0 || force {
            let mut keys: Vec<usize> = rows.iter().map(|row| row.key).collect();
            keys.dedup();
            keys.sort();
            keys.dedup();
            for key in keys {
                let its: Vec<&Row> = rows.iter().filter(|row| row.key == key).collect();
                let tiers: String =
                    its.iter().map(|row| format!("{} {}ms ", row.limit, row.window_ms)).collect();
                let (algorithm, cost) = (its[0].algorithm, its[0].cost);
                single.value(&format!("RL.{algorithm} k{key} {tiers} COST {cost} FORCE AT {now}"));
            }
        }
        assert_eq!(server.digest(), single.digest(), "{line}");

        if reply.limited == 1 {
            let hopeless = rows.iter().any(|row| row.cost > row.limit as i64);
            assert_eq!(reply.retry_after == -1, hopeless, "{line}: {reply:?}");
            if !hopeless {
                waited += 1;
                for (ms, refuses) in [(0, 1), (reply.retry_after - 1, 1), (reply.retry_after, 0)] {
                    let refused = peeks(&server, &rows, now + ms).iter().any(|row| row[0] == 1);
                    assert_eq!(i64::from(refused), refuses, "{line}: {ms} ms after {reply:?}");
                }
                let early = format!("RL.ALL {words} AT {}", now + reply.retry_after - 1);
                assert_eq!(all(&server, &early).limited, 1, "{early}");
            }
        } else {
            assert_eq!(reply.retry_after, -1, "{line}");
        }
    }
    assert!(waited > 100, "{waited} waits");
}

#[test]
fn no_wait_is_longer_than_its_keys_time_to_live() {
    let now = 1_900_000_000_123;
    let server = Server::with_clock_at(now, &[]);
    // Two hours ahead of the clock: it expires one lifetime from now.
    server.value(&format!("RL.LOG ahead 1 1h AT {}", now + 7_200_000));
    let line = "RL.ALL ahead LOG 1 1h 1 other FIXED 9 1h 1";
    let reply = all(&server, line);
    assert_eq!(reply.limited, 1);
    assert_eq!(reply.retry_after, reply.rows[0][3]);
    server.step_clock(reply.retry_after - 1);
    assert_eq!(all(&server, line).limited, 1, "{reply:?}");
    server.step_clock(1);
    assert_eq!(all(&server, line).limited, 0, "{reply:?}");
}

#[test]
fn one_row_does_what_the_single_command_and_several_rows_do() {
    const CALLS: i64 = 300;
    let mut random = Random::new(11);
    let [one, single, several] = [(); 3].map(|()| Server::with_clock_at(1_900_000_000_123, &[]));
    let servers = [&one, &single, &several];
    let mut streams = servers.map(ReplicationStream::of);
    let (mut limited, mut ahead) = (0, 0);
    for _ in 0..CALLS {
        let algorithm = random.of(&*ALGORITHMS);
        let key = format!("{algorithm}:{}", random.below(3));
        let (limit, window) = (random.of(&[0, 3, 8]), random.of(&["100ms", "2s", "1h"]));
        let cost = random.of(&[-9, -1, 0, 1, 1, 2, 3]);
        let row = format!("{key} {algorithm} {limit} {window} {cost}");
        let expected = single.figures(&format!("RL.{algorithm} {key} {limit} {window} COST {cost}"));
        let reply = all(&one, &format!("RL.ALL {row}"));
        let others = all(&several, &format!("RL.ALL {row} other LOG 1 1h 0"));
        let now = one.clock_ms();
        assert_eq!(
            (reply.limited, reply.retry_after, &reply.rows[..]),
            (expected[0], expected[3], &[expected][..])
        );
        assert_eq!((others.at, others.retry_after, others.rows[0]), (reply.at, reply.retry_after, expected));
        limited += reply.limited;
        ahead += i64::from(reply.at > now);

        if random.below(8) == 0 {
            let line = format!(
                "RL.{algorithm} {key} 9 {window} FORCE AT {}",
                now + random.of(&[50, 3_000, 9_999_999])
            );
            servers.iter().for_each(|server| _ = server.value(&line));
        }
        let keys = servers.map(|server| {
            // An expired key may still be there for DEBUG.
            match server.integer(&format!("PEXPIRETIME {key}")) {
                -2 => (-2, None),
                end => (end, Some(server.value(&format!("DEBUG DIGEST-VALUE {key}")))),
            }
        });
        assert!(keys[0] == keys[1] && keys[0] == keys[2], "{row}: {keys:?}");
        let step = random.of(&[0, 0, 1, 40, 700]);
        servers.iter().for_each(|server| server.step_clock(step));
    }
    assert!(limited > 20 && ahead > 2, "{limited} {ahead}");
    let [one_row, command, rows] = [0, 1, 2].map(|i| {
        let mut sent = streams[i].commands(servers[i]);
        // Each server deletes expired keys at a different time.
        sent.retain(|command| command.starts_with("RL."));
        sent
    });
    assert!(one_row == command && one_row == rows);
    let [allowed, forced] = ["rl_all_allowed", "rl_all_forced"].map(|figure| one.info(figure));
    assert_eq!((allowed, forced), ((CALLS - limited).to_string(), "0".to_owned()));
    for figure in ["rl_units_counted", "rl_units_given_back"] {
        assert_eq!(one.info(figure), single.info(figure), "{figure}");
        assert_eq!(one.info(figure), several.info(figure), "{figure}");
    }
}
