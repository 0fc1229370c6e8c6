//! Hostile input: random commands, stored payloads, append-only files and replication streams. Nothing
//! crashes, and valid requests still get the right replies.
//!
//! Every run has the same input; `SEED=n cargo test hostile` tries another.

mod answers;
mod generator;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::OpenOptions;
use std::io::Write;

use harness::{COMMANDS, Random, Server, command, newest_part, pipeline, wait_for};
use redis::{Cmd, Connection, ConnectionLike, Value};

use crate::helpers::hosts::{Host, Hosts};
use crate::helpers::payload::{Payload, credulous_server};
use crate::helpers::requests::REQUESTS;
use answers::{assert_answered, fields, is_info};
use generator::{COMMANDS_IN_A_PIPELINE, Hostile, Kind, MOST, PERSISTENT, Words, words};

const RANDOM_COMMANDS: usize = 100_000;
const COMMANDS_OF_BOTH_HOSTS: usize = 30_000;
const PAYLOADS: usize = 10_000;

fn random() -> Random {
    let seed = std::env::var("SEED").map_or(1, |seed| seed.parse().expect("SEED is a number"));
    Random::new(seed)
}

/// The replies to a pipeline.
fn replies(server: &Server, connection: &mut Connection, commands: &[Words]) -> Vec<Value> {
    let mut packed = Vec::new();
    for words in commands {
        let mut command = Cmd::new();
        command.arg(words);
        packed.extend(command.get_packed_command());
    }
    let replies = connection.req_packed_commands(&packed, 0, commands.len());
    replies.unwrap_or_else(|error| panic!("the server is gone: {error}\n{}", server.log()))
}

/// Asserts that the server is sound: commands of all kinds get exact replies, and nothing has panicked.
fn assert_sound(server: &Server) {
    server.value("DEL sound:f sound:s sound:l");
    for (line, figures) in [
        ("RL.FIXED sound:f 3 1m AT 90000", [0, 3, 2, -1, 30_000]),
        ("RL.FIXED sound:f 3 1m COST 2 AT 90001", [0, 3, 0, -1, 29_999]),
        ("RL.FIXED sound:f 3 1m AT 90002", [1, 3, 0, 29_998, 29_998]),
        ("RL.PEEK sound:f 3 1m AT 120000", [0, 3, 3, -1, 0]),
        ("RL.SLIDING sound:s 4 1m COST 4 AT 0", [0, 4, 0, -1, 105_001]),
        ("RL.SLIDING sound:s 4 1m AT 0", [1, 4, 0, 60_001, 105_001]),
        ("RL.SLIDING sound:s 4 1m COST -3 AT 0", [0, 4, 3, -1, 60_001]),
        ("RL.LOG sound:l 2 1s 9 1h COST 2 AT 1000", [0, 2, 0, -1, 1_000]),
        ("RL.LOG sound:l 2 1s 9 1h COST 1 AT 1999", [1, 2, 0, 1, 1]),
        ("RL.LOG sound:l 2 1s 9 1h COST 1 AT 1999 FORCE", [1, 2, 0, 1, 1_000]),
        ("RL.LOG sound:l 2 1s 9 1h COST 1 AT 2000", [0, 2, 0, -1, 1_000]),
    ] {
        assert_eq!(server.figures(line), figures, "{line}");
    }
    for (key, windows) in [("sound:f", 0), ("sound:s", 0), ("sound:l", 1)] {
        let reply = server.value(&format!("RL.INFO {key}"));
        assert!(is_info(&reply), "{reply:?}");
        let fields = fields(&reply).expect("fields");
        assert!(matches!(&fields[1].1, Value::Array(items) if items.len() == windows), "{reply:?}");
    }
    assert_eq!(server.value("PING"), Value::SimpleString("PONG".into()));
    assert_eq!(server.info("loading"), "0");
    server.assert_nothing_panicked();
}

/// Asserts that every key of the type has a time to live, except those that may have lost it. Returns the
/// number of keys.
fn assert_keys_expire(server: &Server) -> usize {
    let mut connection = server.connect();
    let keys: Vec<Vec<u8>> = command("KEYS *").query(&mut connection).expect("KEYS");
    let mut pipeline = redis::pipe();
    for key in &keys {
        pipeline.cmd("TYPE").arg(key).cmd("PTTL").arg(key);
    }
    let seen: Vec<(String, i64)> = pipeline.query(&mut connection).expect("types and times");
    let ours = keys.iter().zip(&seen).filter(|(_, (kind, _))| kind == "ratelimit");
    for (key, (_, ttl)) in ours.clone() {
        // -1 means no time to live, -2 that the key has just expired.
        assert!(*ttl != -1 || key.starts_with(PERSISTENT), "no time to live: {}", key.escape_ascii());
    }
    ours.count()
}

#[test]
fn random_commands_get_the_same_replies_from_a_server_and_in_memory() {
    let hosts = Hosts::with_clock_at(1_700_000_000_000);
    let mut hostile = Hostile { random: random(), payloads: Vec::new() };
    let (mut known, mut most_keys) = (BTreeSet::new(), 0);
    for _ in 0..COMMANDS_OF_BOTH_HOSTS {
        let words = hostile.of_both_hosts();
        hosts.bytes(&words.iter().map(Vec::as_slice).collect::<Vec<_>>());
        known.extend(words[1..].iter().filter(|word| word.len() < 400).cloned());
        if hostile.chance(20) {
            let steps =
                [0, 1, 1, 2, 3, 5, 40, 99, 100, 1_000, 7_000, 60_000, 3_600_000, 86_400_000, 31_536_000_000];
            let step = hostile.random.of(&steps);
            hosts.step_clock(step);
            // Before the clock steps back: whatever has expired is deleted by both as it is looked up.
            let all = [b"EXISTS".as_slice()].into_iter().chain(known.iter().map(Vec::as_slice));
            hosts.bytes(&all.collect::<Vec<_>>());
            most_keys = most_keys.max(hosts.integer("DBSIZE"));
            if hostile.chance(2) {
                hosts.step_clock(-hostile.random.of(&steps).min(hosts.clock_ms()));
            }
        }
    }
    assert!(most_keys > 10, "only {most_keys} keys were in use");
}

/// The payload of each key; it does not include the time to live.
fn contents(server: &Server) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let mut connection = server.connect();
    let keys: Vec<Vec<u8>> = command("KEYS *").query(&mut connection).expect("KEYS");
    let mut pipeline = redis::pipe();
    for key in &keys {
        pipeline.cmd("DUMP").arg(key);
    }
    let dumps: Vec<Option<Vec<u8>>> = pipeline.query(&mut connection).expect("payloads");
    keys.into_iter().zip(dumps).filter_map(|(key, dump)| Some((key, dump?))).collect()
}

#[test]
fn random_commands_get_valid_replies_and_leave_the_server_sound() {
    let mut server = Server::with(&[("appendonly", "yes"), ("appendfsync", "no")]);
    let replica = Server::replica_of(&server, &[]);
    let mut hostile = Hostile { random: random(), payloads: Vec::new() };
    let mut connections = [server.connect(), server.connect_resp3()];
    let mut most_keys = 0;
    for round in 0..RANDOM_COMMANDS / COMMANDS_IN_A_PIPELINE {
        let commands = hostile.pipeline();
        let words: Vec<_> = commands.iter().map(|(_, words)| words.clone()).collect();
        let replies = replies(&server, &mut connections[round % 2], &words);
        assert_answered(&commands, &replies);
        for (words, reply) in words.iter().zip(replies) {
            if let (b"DUMP", Value::BulkString(payload)) = (words[0].as_slice(), reply) {
                hostile.payloads.push(payload);
            }
        }
        let surplus = hostile.payloads.len().saturating_sub(200);
        hostile.payloads.drain(..surplus);
        if round % 40 == 39 {
            most_keys = most_keys.max(assert_keys_expire(&server));
            assert_sound(&server);
        }
    }
    assert!(most_keys > 10, "only {most_keys} keys were in use");

    // The replica and the append-only file got the same commands.
    replica.wait_to_catch_up(&server);
    let (ours, copies) = (contents(&server), contents(&replica));
    let both = ours.keys().filter(|key| copies.contains_key(*key)).count();
    assert!(both > 5, "{both} keys on both");
    for (key, dump) in &ours {
        assert!(copies.get(key).is_none_or(|copy| copy == dump), "{}", key.escape_ascii());
    }
    server.crash_and_restart();
    assert_sound(&server);
    replica.assert_nothing_panicked();
}

/// A payload that is damaged in its body, or around it.
fn damaged(random: &mut Random, payload: &Payload) -> Vec<u8> {
    let mut bytes = payload.with(&payload.body);
    match random.below(10) {
        0..7 => {
            let mut body = payload.body.clone();
            random.damage(&mut body);
            return payload.with(&body);
        }
        // How the server stores the body.
        7..9 => {
            let end = bytes.len() - Payload::FOOT;
            let mut value = bytes[Payload::MODULE..end].to_vec();
            random.damage(&mut value);
            bytes.splice(Payload::MODULE..end, value);
        }
        // The module and its version, but not the type.
        _ => bytes[1 + random.below(Payload::MODULE - 1)] ^= 1 << random.below(8),
    }
    bytes
}

/// Payloads of keys of all kinds and sizes.
fn payloads(server: &Server) -> Vec<Payload> {
    let mut lines = Vec::new();
    for (i, name) in COMMANDS.into_iter().enumerate() {
        lines.push(format!("{name} {i}:one 5 10s AT 1700000000000"));
        lines.push(format!("{name} {i}:first 5 10s FORCE COST 7 AT 0"));
        lines.push(format!("{name} {i}:last {MOST} 3650d FORCE COST {MOST} AT {MOST}"));
        lines.push(format!("{name} {i}:tiers 9 1s 9 2s 9 3s 9 4s 9 5s 9 6s 9 7s 9 8s AT 1700000000000"));
        for step in 0..60 {
            let (at, cost) = (1_700_000_000_000_i64 + step * step * 37, 1 + step % 3);
            lines.push(format!("{name} {i}:several 9000 1h 90 1m COST {cost} FORCE AT {at}"));
        }
        // Almost 2^63 - 1 units, in two parts.
        for (calls, at) in [(1_000, 0), (23, 5)] {
            let line = format!("{name} {i}:many 5 10ms FORCE COST {MOST} AT {at}");
            lines.extend(vec![line; calls]);
        }
    }
    for step in 0..1_500 {
        lines.push(format!("RL.LOG 2:long 9000 1h AT {}", 1_700_000_000_000_i64 + 150 * step));
    }
    pipeline(lines).exec(&mut server.connect()).expect("all of them are counted");
    contents(server).values().map(|dump| Payload::of(dump)).collect()
}

#[test]
fn a_damaged_payload_that_passes_the_checksum_is_refused_or_makes_a_working_key() {
    let server = credulous_server();
    let payloads = payloads(&server);
    for payload in &payloads {
        let whole = payload.with(&payload.body);
        redis::cmd("RESTORE")
            .arg("whole")
            .arg(0)
            .arg(whole)
            .arg("REPLACE")
            .exec(&mut server.connect())
            .unwrap();
    }
    server.value("FLUSHALL");

    let mut random = random();
    let mut connections = [server.connect(), server.connect_resp3()];
    let (mut made, mut refused) = (0, 0);
    for batch in 0..PAYLOADS / 100 {
        let mut commands = Vec::new();
        for i in 0..100 {
            let mut restore = words(&format!("RESTORE key:{i} 0"));
            let payload = &payloads[random.below(payloads.len())];
            restore.push(damaged(&mut random, payload));
            commands.push((Kind::Other, restore));
            let mut push = |kind, line: String| commands.push((kind, words(&line)));
            for name in REQUESTS.iter().copied() {
                let pairs = random.of(&["2 1h", "9 10s", "9007199254740991 3650d", "1 1ms 50 2h"]);
                let cost = random.of(&["", " COST 3", " COST -1", " COST 9007199254740991"]);
                let force = if name == "RL.PEEK" { "" } else { random.of(&["", " FORCE"]) };
                let at = random.of(&["", " AT 0", " AT 1700000000000", " AT 9007199254740991"]);
                push(Kind::Figures, format!("{name} key:{i} {pairs}{cost}{force}{at}"));
            }
            push(Kind::Info, format!("RL.INFO key:{i}"));
            for line in ["MEMORY USAGE", "DEBUG DIGEST-VALUE", "DUMP"] {
                push(Kind::Other, format!("{line} key:{i}"));
            }
            push(Kind::Other, format!("COPY key:{i} copy"));
            push(Kind::Figures, "RL.PEEK copy 9 10s".into());
            push(Kind::Other, format!("DEL key:{i} copy"));
        }
        let words: Vec<_> = commands.iter().map(|(_, words)| words.clone()).collect();
        let replies = replies(&server, &mut connections[batch % 2], &words);
        assert_answered(&commands, &replies);
        for (words, reply) in words.iter().zip(&replies).filter(|(words, _)| words[0] == b"RESTORE") {
            match reply {
                Value::Okay => made += 1,
                Value::ServerError(error) => {
                    assert_eq!(error.details(), Some("Bad data format"), "{words:?}");
                    refused += 1;
                }
                other => panic!("{other:?}"),
            }
        }
    }
    assert!(made > PAYLOADS / 20 && refused > PAYLOADS / 20, "{made} made, {refused} refused");
    assert_eq!(server.integer("DBSIZE"), 0);
    assert_sound(&server);
}

/// Commands of the module with random arguments.
fn nonsense() -> Vec<Words> {
    let mut hostile = Hostile { random: random(), payloads: Vec::new() };
    let mut commands: Vec<Words> = (0..3_000).map(|_| hostile.ours().1).collect();
    for name in REQUESTS.iter().copied().chain(["RL.INFO", "RL.ALL", "RL.LOAD", "RL.APPLY"]) {
        for arguments in ["", " ", " key", " key 1", " key 1 1s 1", " key key"] {
            commands.push(words(&format!("{name}{arguments}")));
        }
    }
    commands
}

/// Whether the server passes commands of an append-only file to the module without checking the number of
/// their arguments. Valkey 8.1 and newer check it, and exit if it is wrong.
fn passes_any_number_of_arguments(server: &Server) -> bool {
    let info = server.text("INFO server");
    let valkey = info.lines().find_map(|line| line.strip_prefix("valkey_version:"));
    valkey.is_none_or(|version| version.starts_with("8.0."))
}

/// Checks the arity as registered for each command.
fn has_the_right_number_of_arguments(words: &Words) -> bool {
    match words[0].to_ascii_uppercase().as_slice() {
        b"RL.INFO" => words.len() == 2,
        b"RL.LOAD" => words.len() == 3,
        b"RL.APPLY" => words.len() >= 3,
        b"RL.ALL" => words.len() >= 6,
        _ => words.len() >= 4,
    }
}

#[test]
fn an_append_only_file_of_nonsense_loads_and_its_valid_commands_count() {
    let mut server = Server::with(&[("appendonly", "yes")]);
    server.value("RL.FIXED before 5 1h AT 4000000000000");
    let mut commands = nonsense();
    if !passes_any_number_of_arguments(&server) {
        commands.retain(has_the_right_number_of_arguments);
    }
    commands.push(words("RL.FIXED after 5 1h FORCE AT 4000000000000"));
    server.restart_after(|folder| {
        let mut file = OpenOptions::new().append(true).open(newest_part(folder)).expect("the file");
        for words in commands {
            file.write_all(&Cmd::new().arg(words).get_packed_command()).expect("a file to write to");
        }
    });
    for key in ["before", "after"] {
        assert_eq!(server.figures(&format!("RL.PEEK {key} 5 1h AT 4000000000000"))[2], 4, "{key}");
    }
    assert!(assert_keys_expire(&server) > 2);
    assert_sound(&server);
}

#[test]
fn a_replica_that_is_sent_nonsense_keeps_working() {
    let master = Server::start();
    let replica = Server::replica_of(&master, &[]);
    let to_replicas = |command: Words| [words("DEBUG REPLICATE"), command].concat();
    let sent: Vec<Words> = nonsense().into_iter().map(to_replicas).collect();
    for reply in replies(&master, &mut master.connect(), &sent) {
        assert_eq!(reply, Value::Okay);
    }
    master.value("RL.FIXED after 5 1h AT 4000000000000");
    wait_for("the replica to get there", || replica.integer("EXISTS after") == 1);
    assert_eq!(replica.info("master_link_status"), "up");
    assert_eq!(replica.figures("RL.PEEK after 5 1h AT 4000000000000")[2], 4);
    assert!(assert_keys_expire(&replica) > 2);
    replica.value("REPLICAOF NO ONE");
    assert_sound(&replica);
}

/// CPU time that the server took for each of two commands, the least of a few turns. Unlike time by the clock, it hardly
/// depends on what else the machine does.
fn cpu_seconds(server: &Server, commands: [&Cmd; 2]) -> [f64; 2] {
    let mut connection = server.connect();
    let mut least = [f64::MAX; 2];
    for _ in 0..7 {
        for (command, least) in commands.into_iter().zip(&mut least) {
            let before = server.cpu_seconds();
            command.exec(&mut connection).expect("a reply");
            *least = least.min(server.cpu_seconds() - before);
        }
    }
    least
}

#[test]
fn rl_all_takes_no_longer_for_long_names_that_differ_only_in_their_last_byte() {
    let server = Server::start();
    let long = vec![b'k'; 1 << 20];
    let all = |name: &dyn Fn(u8) -> Vec<u8>| {
        let mut all = redis::cmd("RL.ALL");
        (0..64).for_each(|nth| _ = all.arg(name(nth)).arg(&["LOG", "5", "1h", "0"]));
        all
    };
    let by_last = |nth: u8| [&long[..], &[nth]].concat();
    let in_first = all(&|nth| [&[nth], &long[..]].concat());
    let in_last = all(&by_last);
    let [first, last] = cpu_seconds(&server, [&in_first, &in_last]);
    assert!(last < 2.0 * first, "{last} s if they differ in their last byte, {first} s if in their first");

    // Once counted, and once refused for its options.
    let mut counted = redis::cmd("RL.ALL");
    (0..64).for_each(|nth| _ = counted.arg(by_last(nth)).arg(&["FIXED", "5", "1h", "1"]));
    let mut connection = server.connect();
    counted.arg("FORCE").exec(&mut connection).expect("counted");
    assert_eq!(server.integer("DBSIZE"), 64);
    let before = server.digest();
    counted.arg("FORCE").exec(&mut connection).expect_err("FORCE twice");
    assert_eq!(server.digest(), before);
    server.value("FLUSHALL");
    assert_sound(&server);
}

#[test]
fn a_number_that_is_too_long_is_refused_by_its_length() {
    let server = Server::start();
    let mut connection = server.connect();
    let digits = "1".repeat(8 << 20);
    for line in [
        "RL.FIXED k # 1s",
        "RL.SLIDING k 5 #",
        "RL.LOG k 5 #ms",
        "RL.BUCKET k 5 1s COST #",
        "RL.BUCKET k 5 1s COST -#",
        "RL.PEEK k 5 1s AT #",
        "RL.PEEK k 5 1s #",
        "RL.ALL k LOG # 1s 1",
        "RL.ALL k LOG 5 # 1",
        "RL.ALL k LOG 5 1s -#",
        "RL.ALL k LOG 5 1s 1 AT #",
        "RL.APPLY k F#:1/1s",
        "RL.APPLY k B:1/#/1s",
    ] {
        let words: Vec<String> = line.split(' ').map(|word| word.replace('#', &digits)).collect();
        let mut command = redis::cmd(&words[0]);
        command.arg(&words[1..]);
        let mut took_us = || {
            server.value("CONFIG RESETSTAT");
            let error = command.exec(&mut connection).expect_err(line);
            assert!(error.to_string().len() < 300, "{line}");
            let statistics = server.text("INFO commandstats").to_ascii_lowercase();
            let of_command = format!("cmdstat_{}:calls=1,usec=", words[0].to_ascii_lowercase());
            let (_, figures) = statistics.split_once(&of_command).expect("its statistics");
            figures.split(',').next().and_then(|us| us.parse::<u64>().ok()).expect("microseconds")
        };
        // To walk over the digits takes at least five times as long.
        let least = (0..7).map(|_| took_us()).min();
        assert!(least < Some(1_000), "{line}: {least:?} microseconds");
    }
}
