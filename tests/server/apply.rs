//! RL.APPLY: does to keys what requests did elsewhere.

use harness::{APPEND_ONLY, COMMANDS, Random, ReplicationStream, Server, command, pipeline};
use redis::Value;

use crate::helpers::errors::{EFFECT, LIVE_WINDOWS, WRONGTYPE};
use crate::helpers::requests::effect;
use crate::helpers::traffic::{NOW, Traffic, assert_same, send};

/// Words that are no effects.
const NOT_VALID: [&str; 7] = [
    ": F F: F:5 F:5/ F:5/1 F:5/s F:/1s :5/1s X:5/1s f:5/1s FIXED:5/1s F5/1s F:5:5/1s F:5/1s/ F:5//1s",
    "F:5/1S F:5/1W F:5/0w F:5/522w F:5/0mo F:5/121mo F:5/1mo/1mo L:5/1w S:5/1mo B:5/9/1w F:5/0s F:5/3651d F:5/315360000001ms",
    // Forms that are never written.
    "F:5/60s F:5/24h F:5/01s F:05/1s F1:5/1s F+2:5/1s F02:5/1s F0:5/1s F-0:5/1s F-:5/1s F--1:5/1s F:-5/1s",
    "FAT:5/1s Fat5/1s FAT5/1s F@5/1s F5@5/1s F:AT5/1s FAT5/1s>6 del",
    // A window twice, nine of them, and what is out of range.
    "F:5/1s/1s F:5/1s/2s/3s/4s/5s/6s/7s/8s/9s F9007199254740992:5/1s F:9007199254740992/1s",
    // Only a log forgets, and only what it counts.
    "F:5/1s/forget L-2:5/1s/forget",
    // Times at which the key expires.
    "> >-1 >05 >5>6 >9007199254740992 F:5>6 F:5/1s> F:5/1s>6/2s L:5/1s>6/forget",
];

/// Pairs of requests and effects that do the same.
fn pairs(name: &str) -> Vec<(String, String)> {
    let pair = |request: &str, told: &str| {
        // RL.BUCKET: the limit of the shortest window is that of each.
        let request = if name == "RL.BUCKET" { request.replace("90 1h", "9 1h") } else { request.to_owned() };
        let limit = request.split(' ').next().and_then(|limit| limit.parse().ok()).expect("a limit");
        (format!("{name} {name} {request}"), format!("RL.APPLY {name} {}", effect(name, limit, told)))
    };
    vec![
        pair(&format!("9 1m AT {NOW}"), &format!(":{NOW}/1m")),
        pair("9 1m 90 1h COST 3", &format!("3:{NOW}/1m/1h")),
        // Before the key's newest time, and far ahead of it.
        pair(&format!("9 1m AT {}", NOW - 90_000), &format!(":{}/1m", NOW - 90_000)),
        pair(&format!("9 1m COST -2 AT {NOW}"), &format!("-2:{NOW}/1m")),
        pair(&format!("99 1h FORCE AT {}", NOW + 9_000_000), &format!(":{}/1h", NOW + 9_000_000)),
        // By the clock, which the key is too far ahead of.
        pair("99 1ms FORCE", &format!(":{NOW}/1ms<{NOW}+1m")),
    ]
}

#[test]
fn an_effect_does_what_the_request_did() {
    let [requests, effects] = [Server::with_clock_at(NOW, &[]), Server::with_clock_at(NOW, &[])];
    for name in COMMANDS {
        for (request, effect) in pairs(name) {
            requests.value(&request);
            assert_eq!(effects.value(&effect), Value::Okay, "{effect}");
            assert_eq!(effects.digest(), requests.digest(), "{effect} does as {request}");
            assert!(effects.integer(&format!("PTTL {name}")) > 0, "{effect}");
        }
    }
    let all = "RL.ALL RL.FIXED FIXED 9 1d 1 RL.LOG LOG 9 1m 2 new SLIDING 9 1h 1 FORCE";
    requests.value(all);
    effects.value(&format!("RL.APPLY RL.FIXED F:{NOW}/1d RL.LOG L2:{NOW}/1m new S:{NOW}/1h"));
    assert_eq!(effects.digest(), requests.digest());
}

#[test]
fn effects_are_counted_nowhere_and_published_nowhere_but_mark_their_keys() {
    let server = Server::with_clock_at(NOW, &[]);
    server.value("CONFIG SET notify-keyspace-events KEA");
    server.value("RL.FIXED full 1 1h");
    let mut connection = server.connect();
    let mut events = connection.as_pubsub();
    events.psubscribe("__keyspace@0__:*").expect("PSUBSCRIBE");
    let before = server.text("INFO rl_stats");
    for key in ["full", "other"] {
        let mut watcher = server.connect();
        command(&format!("WATCH {key}")).exec(&mut watcher).expect("WATCH");
        server.value(&format!("RL.APPLY full F:{NOW}/1h other L:{NOW}/1h"));
        pipeline(["MULTI", "PING"]).exec(&mut watcher).expect("MULTI");
        let outcome: Value = command("EXEC").query(&mut watcher).expect("EXEC");
        assert_eq!(outcome, Value::Nil, "{key} is marked as modified");
    }
    assert_eq!(server.figures("RL.PEEK full 1 1h")[..3], [1, 1, 0]);
    let figures = |text: &str| -> Vec<String> {
        text.lines()
            .filter(|line| !line.contains("peek") && !line.contains("memory"))
            .map(str::to_owned)
            .collect()
    };
    assert_eq!(figures(&server.text("INFO rl_stats")), figures(&before));
    server.value("RL.APPLY full DEL");
    let mut seen = Vec::new();
    while seen.last().is_none_or(|seen: &String| seen != "del") {
        seen.push(events.get_message().expect("an event").get_payload::<String>().expect("its name"));
    }
    assert!(!seen.contains(&"rl.limited".to_owned()), "{seen:?}");
}

#[test]
fn an_effect_that_is_not_valid_is_an_error_and_changes_no_key() {
    let server = Server::with_clock_at(NOW, &APPEND_ONLY);
    let mut stream = ReplicationStream::of(&server);
    server.value(&format!("RL.APPLY a F:{NOW}/3650d b L:{NOW}/3650d"));
    stream.commands(&server);
    let before = server.digest();
    let mut connection = server.connect();
    let other: [&[u8]; 7] = [b"", b"F:5/1s\0", b"\xff", b"F\0:5/1s", b"F:5/1s ", b" F:5/1s", b"> 5"];
    for word in NOT_VALID.iter().flat_map(|words| words.split(' ')).map(str::as_bytes).chain(other) {
        let valid = b"F:6/3650d";
        for place in 0..4 {
            let mut apply = redis::cmd("RL.APPLY");
            for (nth, key) in ["a", "new:1", "new:2", "new:3"].into_iter().enumerate() {
                apply.arg(key).arg(if nth == place { word } else { valid });
            }
            let error = apply.exec(&mut connection).expect_err("an error");
            assert_eq!(harness::error_text(&error), EFFECT, "{}", word.escape_ascii());
        }
        let error = redis::cmd("RL.APPLY").arg("a").arg(word).exec(&mut connection).expect_err("an error");
        assert_eq!(harness::error_text(&error), EFFECT, "{}", word.escape_ascii());
    }
    assert_eq!(server.digest(), before);
    assert_eq!(stream.commands(&server), [""; 0]);
    server.assert_nothing_panicked();
}

#[test]
fn effects_that_do_not_fit_their_keys_are_errors_and_change_no_key() {
    let mut server = Server::with_clock_at(NOW, &APPEND_ONLY);
    let replica = Server::replica_of(&server, &[]);
    server.value("SET text x");
    server.value(&format!("RL.APPLY fixed F:{NOW}/3650d log L:{NOW}/3650d"));
    let windows: Vec<String> = (1..=8).map(|days| format!("{days}d")).collect();
    server.value(&format!("RL.APPLY full S:{NOW}/{}", windows.join("/")));
    let mut stream = ReplicationStream::of(&server);
    let before = server.digest();
    let many = |keys: usize| -> String { (0..keys).map(|key| format!(" key:{key} F:{NOW}/1d")).collect() };
    for (effects, error) in [
        (" text F:5/1s".to_owned(), WRONGTYPE),
        (" text DEL".to_owned(), WRONGTYPE),
        (" fixed S:5/1s".to_owned(), "WRONGTYPE key is counted by RL.FIXED"),
        (" log F:5/1s".to_owned(), "WRONGTYPE key is counted by RL.LOG"),
        (format!(" full S:{NOW}/9d"), LIVE_WINDOWS),
        // The same key twice, also if it is new.
        (" fixed F:5/1s fixed F:6/1s".to_owned(), EFFECT),
        (" twice F:5/1s twice DEL".to_owned(), EFFECT),
        (many(65), EFFECT),
    ] {
        for line in [
            format!("RL.APPLY{effects}"),
            format!("RL.APPLY new F:{NOW}/1d{effects}"),
            format!("RL.APPLY{effects} new F:{NOW}/1d"),
        ] {
            assert_eq!(server.error(&line), error, "{line}");
        }
    }
    for line in ["RL.APPLY", "RL.APPLY a", "RL.APPLY a F:5/1s b", "RL.APPLY a F:5/1s b F:5/1s c"] {
        assert!(server.error(line).starts_with("ERR wrong number of arguments for '"), "{line}");
    }
    assert_eq!(server.digest(), before);
    assert_eq!(stream.commands(&server), [""; 0]);
    // As many as RL.ALL has rows.
    server.value(&format!("RL.APPLY{}", many(64)));
    assert_eq!(stream.commands(&server).len(), 1);
    replica.wait_to_catch_up(&server);
    assert_eq!(replica.digest(), server.digest());
    let digest = server.digest();
    server.crash_and_restart();
    assert_eq!(server.digest(), digest);
}

#[test]
fn effects_that_change_nothing_replicate_nothing() {
    let server = Server::with_clock_at(NOW, &APPEND_ONLY);
    let mut stream = ReplicationStream::of(&server);
    for line in
        ["RL.APPLY new F-5:5/1h", "RL.APPLY new DEL", "RL.APPLY new DEL other L-5:5/1h third S-5:9/1m"]
    {
        assert_eq!(server.value(line), Value::Okay);
        assert_eq!(server.integer("DBSIZE"), 0, "{line}");
    }
    assert_eq!(stream.commands(&server), [""; 0]);
    // What is left of a key that gives back everything is nothing.
    for (fixed, log) in [("5", "5"), ("-5", "-9")] {
        server.value(&format!("RL.APPLY a F{fixed}:{NOW}/3650d b L{log}:{NOW}/3650d"));
    }
    assert_eq!(server.integer("DBSIZE"), 0);
    assert_eq!(stream.commands(&server).len(), 2);
}

/// Random effects on a few keys: usually valid, often not the key's algorithm.
fn random_effects(random: &mut Random) -> String {
    let keys = random.below(4) + 1;
    let mut line = "RL.APPLY".to_owned();
    for key in 0..keys {
        let units = random.of(&["", "", "2", "40", "-1", "-9", "-9007199254740991", "9007199254740991"]);
        let until = match random.below(3) {
            0 => format!(">{}", NOW + random.of(&[700, 5_000, 60_000, 9_000_000])),
            _ => String::new(),
        };
        let at = NOW + random.of(&[0, 1, 7, 999, 60_000, -1, -90_000, -NOW, 9_000_000_000_000]);
        let windows = random.of(&["10s", "1m/10s", "1ms/1h/1d", "3650d", "100ms/1s/10s/1m/1h/6h/1d/30d"]);
        let letters = ["F", "S", "L", "B"];
        let algorithm = if random.below(9) == 0 { random.of(&letters) } else { letters[key] };
        let limit = random.of(&["0", "1", "9", "10", "9007199254740991"]);
        let windows = match algorithm {
            "B" => format!("{limit}/{}", windows.replace('/', &format!("/{limit}/"))),
            _ => windows.to_owned(),
        };
        let forget =
            if algorithm == "L" && !units.starts_with('-') && random.below(4) == 0 { "/forget" } else { "" };
        line += &match random.below(12) {
            0 => format!(" {key}:{} DEL", random.below(3)),
            1 => format!(" {key}:{} >{}", random.below(3), NOW + random.of(&[700, 5_000, 60_000])),
            _ => format!(" {key}:{} {algorithm}{units}:{at}/{windows}{forget}{until}", random.below(3)),
        };
    }
    line
}

#[test]
fn random_effects_and_requests_are_equal_on_every_copy() {
    let mut master = Server::with_clock_at(NOW, &APPEND_ONLY);
    let replica = Server::replica_of(&master, &[]);
    let (mut random, mut traffic) = (Random::new(1), Traffic::of(1));
    for _ in 0..10 {
        let effects: Vec<String> = (0..300).map(|_| random_effects(&mut random)).collect();
        let replies = send(&mut master.connect(), &effects);
        assert!(replies.iter().filter(|reply| **reply == Value::Okay).count() > 50);
        send(&mut master.connect(), &traffic.lines(100));
        replica.wait_to_catch_up(&master);
        assert_eq!(replica.digest(), master.digest());
    }
    let digest = master.digest();
    master.crash_and_restart();
    assert_eq!(master.digest(), digest);
    master.assert_nothing_panicked();
    replica.assert_nothing_panicked();
}

#[test]
fn a_replica_without_memory_still_applies_what_its_master_counted() {
    let master = Server::with_clock_at(NOW, &[]);
    let settings =
        [("maxmemory", "1"), ("maxmemory-policy", "noeviction"), ("replica-ignore-maxmemory", "no")];
    let replica = Server::with_clock_at(NOW, &[]);
    replica.follow(&master);
    for (name, value) in settings {
        replica.value(&format!("CONFIG SET {name} {value}"));
    }
    for name in COMMANDS {
        master.value(&format!("{name} {name} 9 1h"));
    }
    master.value("RL.ALL RL.FIXED FIXED 9 1h 1 RL.LOG LOG 9 1h 1");
    assert_same(&master, &replica);
}

#[test]
fn an_effect_that_tells_no_expiry_creates_no_key_that_lives_forever_and_moves_no_other() {
    let server = Server::with_clock_at(NOW, &[]);
    for name in COMMANDS {
        let pttl = || server.integer("PTTL k");
        let effect = |told: String| effect(name, 9, &told);
        let create = || {
            server.value(&format!("RL.APPLY k {}", effect(format!("5:{NOW}/1h"))));
            server.integer("PEXPIRETIME k")
        };
        let expires_at = create();
        server.value("DEL k");
        server.step_clock(5_000);
        assert_eq!(create(), expires_at, "{name}: by its own time");
        server.set_clock(NOW);
        for own in ["PEXPIRE k 5000", "PEXPIRE k 100000000", "PERSIST k"] {
            server.value(own);
            let before = pttl();
            for effect in [effect(format!(":{NOW}/1h")), effect(format!(":{}/1d", NOW + 9_000_000))] {
                server.value(&format!("RL.APPLY k {effect}"));
                server.value(&format!("RL.APPLY k {effect} other L:{NOW}/1h"));
                assert_eq!(pttl(), before, "{name}, {effect} after {own}");
            }
        }
        // One that tells it is obeyed, and in the past too.
        for at in [NOW + 70, NOW + 7_000_000, NOW - 5] {
            server.value(&format!("RL.APPLY k {}", effect(format!(":{NOW}/1h>{at}"))));
            assert_eq!(server.integer("EXISTS k"), i64::from(at > NOW), "{name}");
            if at > NOW {
                assert_eq!(server.integer("PEXPIRETIME k"), at, "{name}");
            }
        }
        server.value("DEL k other");
    }
}
