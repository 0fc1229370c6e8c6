//! Keys as the rest of the server sees them: time to live, events, WATCH, client-side caching.

use std::collections::BTreeSet;
use std::time::Duration;

use harness::{COMMANDS, Server, command, pipeline};
use redis::{PushKind, Value};

#[test]
fn every_key_has_a_time_to_live() {
    let server = Server::start();
    for name in COMMANDS {
        for arguments in
            ["5 10s", "5 1ms AT 0", "5 3650d", "5 10s 6 1d", "0 10s FORCE", "5 10s AT 9007199254740991"]
        {
            // A limit of 0 changes no bucket.
            let arguments =
                if name == "RL.BUCKET" { arguments.replace("0 10s F", "1 10s F") } else { arguments.into() };
            server.value("DEL k");
            server.value(&format!("{name} k {arguments}"));
            assert!(server.integer("PTTL k") > 0, "{name} {arguments}");
            server.value(&format!("{name} k {arguments} COST 2"));
            server.value(&format!("{name} k {arguments} COST -1"));
            assert!(server.integer("PTTL k") > 0, "{name} {arguments}");
        }
    }
}

#[test]
fn a_key_expires_when_nothing_in_it_counts_any_more() {
    let server = Server::start();
    let day = 86_400_000;
    for name in COMMANDS {
        // A window may end while the request is made.
        let before = server.clock_ms();
        server.value(&format!("{name} {name} 5 1d 5 10s"));
        let expires = server.integer(&format!("PEXPIRETIME {name}"));
        let after = server.clock_ms();
        let latest = match name {
            "RL.FIXED" => (after / day + 1) * day,
            "RL.SLIDING" => (after / day + 2) * day,
            _ => after + day + day / 8,
        };
        assert!((before..=latest).contains(&expires), "{name}: {expires}");
        let now = server.clock_ms();
        let [_, _, _, _, reset_after] = server.figures(&format!("RL.PEEK {name} 5 1d"));
        assert!(expires >= now + reset_after, "{name} expires before it is reset");
    }
}

#[test]
fn the_time_to_live_changes_only_when_it_has_to() {
    let server = Server::start();
    for name in COMMANDS {
        // So many that these units refill a bucket in no time.
        server.value(&format!("{name} {name} 100000000 100d"));
        let expires = server.integer(&format!("PEXPIRETIME {name}"));
        for _ in 0..20 {
            server.value(&format!("{name} {name} 100000000 100d COST 2"));
        }
        assert_eq!(server.integer(&format!("PEXPIRETIME {name}")), expires, "{name}");
        // A longer tier extends it.
        server.value(&format!("{name} {name} 100000000 100d 100 3650d"));
        assert!(server.integer(&format!("PEXPIRETIME {name}")) > expires, "{name}");
    }
}

#[test]
fn a_key_written_with_at_lives_at_least_a_minute_on_the_servers_clock() {
    let server = Server::with_clock_at(1_900_000_000_123, &[]);
    let (minute, day) = (60_000, 86_400_000);
    for name in COMMANDS {
        for at in ["0", "9007199254740991"] {
            for (window, longest) in [("1ms", 2), ("10d", 20 * day)] {
                server.value(&format!("{name} k 5 {window} AT {at}"));
                let ttl = server.integer("PTTL k");
                assert!((minute + 1..=minute + longest).contains(&ttl), "{name} {window} AT {at}: {ttl}");
                server.value("DEL k");
            }
        }
    }
}

#[test]
fn a_wait_ends_when_the_key_expires() {
    let server = Server::start();
    server.value("RL.LOG k 1 10s");
    // A longer window counts only what is still held, which lives no longer than the key.
    for line in ["RL.LOG k 1 1h", "RL.PEEK k 1 1h"] {
        let [limited, _, _, retry_after, reset_after] = server.figures(line);
        assert_eq!((limited, retry_after), (1, reset_after), "{line}");
        assert!((1..=10_000 + 10_000 / 8 + 1).contains(&retry_after), "{line}: {retry_after}");
    }
}

#[test]
fn a_limited_request_publishes_an_event_and_nothing_else_does() {
    let server = Server::with(&[("notify-keyspace-events", "KEA")]);
    let mut listener = server.connect();
    let mut events = listener.as_pubsub();
    events.psubscribe("__key*__:*").unwrap();
    events.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    for name in COMMANDS {
        server.value(&format!("{name} k 1 10s AT 0"));
        server.value("RL.PEEK k 1 10s AT 0");
        server.value(&format!("{name} k 1 10s COST 0 AT 0"));
        server.value(&format!("{name} k 1 10s AT 0"));
        server.value(&format!("{name} k 1 10s AT 0 FORCE"));
        server.value(&format!("{name} k 1 10s AT 0 COST -2"));
        server.value("SET end 1");
        let mut seen = Vec::new();
        while seen.last().is_none_or(|last: &String| last != "__keyevent@0__:set end") {
            let message = events.get_message().unwrap();
            let payload: String = message.get_payload().unwrap();
            seen.push(format!("{} {payload}", message.get_channel_name()));
        }
        let about = |what: &str| seen.iter().filter(|event| event.contains(what)).count();
        assert_eq!(about("__keyevent@0__:rl.limited k"), 2, "{name}: {seen:?}");
        assert_eq!(about("__keyspace@0__:k rl.limited"), 2, "{name}: {seen:?}");
        assert_eq!(about("__keyevent@0__:del k"), 1, "{name}: everything was refunded: {seen:?}");
        assert_eq!(about("rl.") + about("del"), 6, "{name}: {seen:?}");
    }
}

#[test]
fn what_counts_or_empties_a_key_misses_none() {
    let server = Server::start();
    for name in COMMANDS {
        let kind = &name[3..];
        for line in [
            format!("{name} a 5 1h COST 2"),
            format!("{name} a 5 1h COST -2"),
            format!("RL.ALL a {kind} 5 1h 1 b {kind} 5 1h 1"),
            format!("RL.ALL a {kind} 5 1h -1 b {kind} 5 1h -1"),
            format!("RL.ALL a {kind} 5 1h 1 b {kind} 5 1h 1"),
            "RL.APPLY a DEL".to_owned(),
            "RL.APPLY b DEL c DEL".to_owned(),
        ] {
            server.value(&line);
            assert_eq!(server.info("keyspace_misses"), "0", "{line}");
        }
        assert_eq!(server.integer("DBSIZE"), 0, "{name}");
    }
}

/// Commands on keys that have the names of their commands, and the keys that each changes.
fn watched() -> Vec<(String, String)> {
    let mut calls = Vec::new();
    for name in COMMANDS {
        for (options, changes) in [
            ("9 10s", true),
            ("1 10s", false),
            ("1 10s FORCE", true),
            ("9 10s COST 0", false),
            ("9 10s COST -1", true),
            ("9 10s COST 10", false),
        ] {
            let changed = if changes { name } else { "" };
            calls.push((format!("{name} {name} {options} AT 0"), changed.to_owned()));
        }
        calls.push((format!("RL.PEEK {name} 9 10s AT 0"), String::new()));
        calls.push((format!("RL.INFO {name}"), String::new()));
    }
    for (costs, options, changed) in [
        ([1, 0, 1], "", "FS"),
        ([9, 1, 1], "", ""),
        ([9, 0, 1], "FORCE", "FS"),
        ([-1, -1, 0], "", "FL"),
        ([0, 0, 0], "", ""),
    ] {
        let row = |(kind, cost)| format!("RL.{kind} {kind} 9 10s {cost} ");
        let rows: String = ["FIXED", "LOG", "SLIDING"].into_iter().zip(costs).map(row).collect();
        let changed =
            ["RL.FIXED", "RL.SLIDING", "RL.LOG"].into_iter().filter(|name| changed.contains(&name[3..4]));
        calls.push((format!("RL.ALL {rows}AT 0 {options}"), changed.collect()));
    }
    calls.push(("RL.ALL RL.FIXED FIXED 9 10s 1 RL.LOG FIXED 9 10s 1 AT 0".to_owned(), String::new()));
    calls
}

#[test]
fn only_a_change_to_what_is_counted_fails_a_watch_and_leaves_client_caches() {
    let server = Server::start();
    let (sender, invalidations) = std::sync::mpsc::channel();
    let mut cache = server.connect_resp3();
    cache.set_push_sender(sender);
    command("CLIENT TRACKING ON").exec(&mut cache).expect("CLIENT TRACKING");
    for (call, changed) in watched() {
        server.value("FLUSHALL");
        let watchers = COMMANDS.map(|name| {
            server.value(&format!("{name} {name} 9 10s AT 0"));
            command(&format!("RL.PEEK {name} 9 10s AT 0")).exec(&mut cache).expect("figures");
            let mut watcher = server.connect();
            command(&format!("WATCH {name}")).exec(&mut watcher).expect("WATCH");
            (name, watcher)
        });
        // Those of FLUSHALL.
        invalidations.try_iter().for_each(drop);
        let _ = server.call(&call);
        let failed = watchers.into_iter().filter_map(|(name, mut watcher)| {
            pipeline(["MULTI", "PING"]).exec(&mut watcher).expect("MULTI");
            let outcome: Value = command("EXEC").query(&mut watcher).expect("EXEC");
            (outcome == Value::Nil).then_some(name)
        });
        assert_eq!(failed.collect::<String>(), changed, "{call}: watched");
        // An invalidation would come before this reply.
        command("PING").exec(&mut cache).expect("PING");
        let invalidated = invalidations.try_iter().filter(|push| push.kind == PushKind::Invalidate);
        let invalidated: BTreeSet<String> = invalidated
            .flat_map(|push| redis::from_redis_value::<Vec<String>>(push.data[0].clone()).expect("keys"))
            .collect();
        let in_order = COMMANDS.into_iter().filter(|name| invalidated.contains(*name));
        assert_eq!(in_order.collect::<String>(), changed, "{call}: cached");
    }
}
