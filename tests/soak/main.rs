//! A soak test: requests of all kinds on many connections, while keys expire and are evicted, snapshots are
//! made, append-only files are rewritten, and replicas come and go. It runs for `SOAK_SECONDS`, by default 2.

mod checked;
#[path = "../model/naive.rs"]
#[expect(dead_code, reason = "not all of it is needed here")]
mod naive;

use std::env;
use std::sync::atomic::{AtomicI64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use harness::{COMMANDS, Random, ReplicationStream, Server, command, figures, pipeline, wait_for};
use redis::{Cmd, Value};

use checked::Key;

/// Each client is a thread.
const CLIENTS: u64 = 8;
/// Connections of a client.
const CONNECTIONS: usize = 6;
/// Requests that a client sends at once.
const AT_ONCE: usize = 16;

#[test]
fn under_constant_disturbance_clients_get_what_the_limits_allow_and_no_unit_is_lost() {
    // The reader of the replication stream acknowledges nothing and may fall far behind.
    let mut server = Server::with(&[("appendonly", "yes"), ("repl-timeout", "86400")]);
    let unlimited = ["SET", "client-output-buffer-limit", "replica 0 0 0"];
    redis::cmd("CONFIG").arg(&unlimited).exec(&mut server.connect()).expect("CONFIG SET");
    let mut effects = ReplicationStream::of(&server);
    let keys = checked::keys();
    let end = end();

    // The AT of requests.
    let time = AtomicI64::new(1_000_000_000_000);
    let (granted, accounts) = thread::scope(|scope| {
        let (server, keys, time) = (&server, keys.as_slice(), &time);
        let client = |seed| scope.spawn(move || be_a_client(server, seed, keys, time, end));
        let clients: Vec<_> = (0..CLIENTS).map(client).collect();
        let follower = scope.spawn(|| checked::follow(&mut effects, keys, "PUBLISH soak over"));
        disturb_until(end, server, || ());
        let granted: Granted = clients.into_iter().map(|client| client.join().expect("no surprise")).sum();
        server.value("PUBLISH soak over");
        (granted, follower.join().expect("all within the limits"))
    });

    println!("{} requests, {} units granted", granted.requests, granted.units.iter().sum::<i64>());
    let taken: Vec<i64> = accounts.iter().map(|account| account.taken).collect();
    assert_eq!(granted.units, taken, "units granted to clients, and units counted");
    assert!(taken.iter().all(|units| *units > 0), "nothing was granted in one of {taken:?}");
    checked::assert_agrees(&server, &keys, &accounts);
    let replica = Server::replica_of(&server, &[]);
    replica.wait_to_catch_up(&server);
    checked::assert_agrees(&replica, &keys, &accounts);
    server.restart();
    checked::assert_agrees(&server, &keys, &accounts);
    server.assert_nothing_panicked();
}

#[test]
fn a_server_that_evicts_constantly_stays_sound_and_equal_to_its_replica() {
    let server = Server::with(&[("appendonly", "yes"), ("repl-backlog-size", "16384")]);
    let memory: u64 = server.info("used_memory").parse().expect("bytes");
    server.value(&format!("CONFIG SET maxmemory {}", memory + 3_000_000));
    let mut policies = ["allkeys-lru", "volatile-ttl", "allkeys-random", "volatile-lfu"].into_iter().cycle();
    let end = end();
    let time = AtomicI64::new(1_000_000_000_000);
    let granted: Granted = thread::scope(|scope| {
        let (server, time) = (&server, &time);
        let client = |seed| scope.spawn(move || be_a_client(server, seed, &[], time, end));
        let clients: Vec<_> = (100..100 + CLIENTS).map(client).collect();
        let change_policy = || {
            let policy = policies.next().expect("one after the other");
            server.value(&format!("CONFIG SET maxmemory-policy {policy}"));
        };
        disturb_until(end, server, change_policy);
        clients.into_iter().map(|client| client.join().expect("no surprise")).sum()
    });

    println!("{} requests, {} keys evicted", granted.requests, server.info("evicted_keys"));
    assert_ne!(server.info("evicted_keys"), "0");
    server.value("CONFIG SET maxmemory 0");
    server.value("DEBUG SET-ACTIVE-EXPIRE 0");
    let replica = Server::replica_of(&server, &[]);
    let mut connection = server.connect();
    let keys: Vec<String> = command("KEYS *").query(&mut connection).expect("KEYS");
    let times: Vec<i64> =
        pipeline(keys.iter().map(|key| format!("PTTL {key}"))).query(&mut connection).expect("PTTL");
    assert!(times.iter().all(|time| *time != -1), "a key has no time to live");
    let infos = pipeline(keys.iter().map(|key| format!("RL.INFO {key}")));
    infos.query::<Vec<Value>>(&mut connection).expect("sound keys");
    replica.wait_to_catch_up(&server);
    assert_eq!(replica.digest(), server.digest());
    server.assert_nothing_panicked();
}

fn end() -> Instant {
    let seconds = env::var("SOAK_SECONDS").map_or(2, |seconds| seconds.parse().expect("a number of seconds"));
    Instant::now() + Duration::from_secs(seconds)
}

/// The units that clients were granted.
#[derive(Default)]
struct Granted {
    requests: usize,
    /// Units of each checked key.
    units: Vec<i64>,
}

impl std::iter::Sum for Granted {
    fn sum<I: Iterator<Item = Granted>>(all: I) -> Granted {
        let add = |a: Granted, b: Granted| Granted {
            requests: a.requests + b.requests,
            units: a.units.iter().zip(b.units).map(|(a, b)| a + b).collect(),
        };
        all.reduce(add).unwrap_or_default()
    }
}

/// A request. For checked keys, with the index and the cost of each.
struct Request {
    command: Cmd,
    checked: Vec<(usize, i64)>,
}

/// Sends requests to the checked keys and to others on several connections until the end.
fn be_a_client(server: &Server, seed: u64, keys: &[Key], time: &AtomicI64, end: Instant) -> Granted {
    let mut random = Random::new(seed);
    let mut connections: Vec<_> = (0..CONNECTIONS).map(|_| server.connect()).collect();
    let mut granted = Granted { requests: 0, units: vec![0; keys.len()] };
    while Instant::now() < end {
        let all_checked = !keys.is_empty() && random.below(3) == 0;
        let requests: Vec<Request> = (0..AT_ONCE)
            .map(|_| {
                if all_checked || (!keys.is_empty() && random.below(3) > 0) {
                    match random.below(4) {
                        0 => to_checked_keys(keys, &mut random, time),
                        _ => to_checked_key(keys, &mut random, time),
                    }
                } else {
                    Request { command: command(&to_any_key(&mut random, time)), checked: Vec::new() }
                }
            })
            .collect();
        let mut pipeline = redis::pipe();
        requests.iter().for_each(|request| _ = pipeline.add_command(request.command.clone()));
        if all_checked {
            pipeline.atomic();
        } else {
            pipeline.ignore_errors();
        }
        let connection = &mut connections[random.below(CONNECTIONS)];
        let replies: Vec<Value> = pipeline.query(connection).expect("replies");
        for (Request { checked, .. }, reply) in requests.iter().zip(&replies) {
            if checked.is_empty() {
                assert_expected(reply);
            } else if let Some(taken) = taken_in_part(reply) {
                checked.iter().for_each(|(key, _)| granted.units[*key] += taken.max(0));
            } else if !is_limited(reply) {
                // Limited requests are granted nothing, and refunds are not added up.
                checked.iter().for_each(|(key, cost)| granted.units[*key] += cost.max(&0));
            }
        }
        granted.requests += requests.len();
    }
    granted
}

fn to_checked_key(keys: &[Key], random: &mut Random, time: &AtomicI64) -> Request {
    let index = random.below(keys.len());
    let Key { name, command: take, pairs, with_at, .. } = &keys[index];
    let cost = random.of(&[1, 1, 1, 1, 2, 3, 0, -1, -4]);
    let at = if *with_at { later(random, time) } else { String::new() };
    let (command, counted) = match random.below(20) {
        0 => (command(&format!("RL.PEEK {name} {pairs} COST {cost} {at}")), 0),
        1 => {
            let mut eval = redis::cmd("EVAL");
            eval.arg("return redis.call(unpack(ARGV))").arg(0).arg(take).arg(name);
            eval.arg(format!("{pairs} COST {cost} {at}").split_whitespace().collect::<Vec<_>>());
            (eval, cost)
        }
        2..5 => (command(&format!("{take} {name} {pairs} COST {} PARTIAL {at}", 3 * cost)), 3 * cost),
        _ => (command(&format!("{take} {name} {pairs} COST {cost} {at}")), cost),
    };
    Request { command, checked: vec![(index, counted)] }
}

/// A request of RL.ALL to some checked keys, all with AT or all without.
fn to_checked_keys(keys: &[Key], random: &mut Random, time: &AtomicI64) -> Request {
    let with_at = random.below(2) == 0;
    let mut checked: Vec<(usize, i64)> = Vec::new();
    let mut all = redis::cmd("RL.ALL");
    for _ in 0..1 + random.below(4) {
        let index = random.below(keys.len());
        let Key { name, command: take, pairs, with_at: its_own, .. } = &keys[index];
        if *its_own != with_at || checked.iter().any(|(other, _)| *other == index) {
            continue;
        }
        let cost = random.of(&[1, 1, 1, 1, 2, 3, 0, -1, -4]);
        for pair in pairs.split_whitespace().collect::<Vec<_>>().chunks(2) {
            all.arg(name).arg(&take[3..]).arg(pair).arg(cost);
        }
        checked.push((index, cost));
    }
    if checked.is_empty() {
        return to_checked_key(keys, random, time);
    }
    if with_at {
        all.arg(later(random, time).split(' ').collect::<Vec<_>>());
    }
    Request { command: all, checked }
}

/// The units that a request with PARTIAL took.
fn taken_in_part(reply: &Value) -> Option<i64> {
    match reply.as_sequence() {
        Some([_, _, _, _, _, Value::Int(taken), _]) => Some(*taken),
        _ => None,
    }
}

/// Whether a limiter, or RL.ALL, replies that the request is limited.
fn is_limited(reply: &Value) -> bool {
    match reply.as_sequence() {
        Some([Value::Int(limited), _, Value::Int(_), Value::Array(_)]) => *limited == 1,
        _ => figures(reply)[0] == 1,
    }
}

/// The AT of a request, sometimes a late one.
fn later(random: &mut Random, time: &AtomicI64) -> String {
    let now = time.fetch_add(random.of(&[0, 0, 1, 3]), Ordering::Relaxed);
    format!("AT {}", now - random.of(&[0, 0, 0, 1, 70, 400]))
}

/// A request of any kind to one of many keys, most of which expire soon.
fn to_any_key(random: &mut Random, time: &AtomicI64) -> String {
    let name = random.of(&COMMANDS);
    let key = format!("any:{name}:{}", random.below(20_000));
    let pairs = random.of(&["5 1ms", "5 20ms 9 1s", "9 300ms", "20 2s 30 20s", "3 1s 9 1h", "900 30s"]);
    let options =
        random.of(&["", "", "", "FORCE", "COST 3", "COST 7 FORCE", "COST -2", "COST 0", "COST 9 PARTIAL"]);
    let at = if random.below(4) == 0 { later(random, time) } else { String::new() };
    match random.below(40) {
        0 => format!("DEL {key}"),
        1 => format!("UNLINK {key}"),
        2 => format!("RL.PEEK {key} {pairs} {at}"),
        3 => format!("RL.INFO {key}"),
        4 => format!("COPY {key} {key}:copy REPLACE"),
        5 => format!("RENAME {key} {key}:copy"),
        6 => format!("{} {key} {pairs} {at}", random.of(&COMMANDS)),
        7 => format!("{name} {key} {pairs} FORCE FORCE"),
        8..14 => {
            let cost = random.of(&[1, 1, 2, 0, -2]);
            let other = random.of(&COMMANDS);
            let another = format!("any:{other}:{}", random.below(20_000));
            let (algorithm, its) = (&name[3..], &other[3..]);
            let force = random.of(&["", "", "FORCE"]);
            format!(
                "RL.ALL {key} {algorithm} 5 20ms {cost} {another} {its} 20 2s 1 {key} {algorithm} 9 1s {cost} {force} {at}"
            )
        }
        _ => format!("{name} {key} {pairs} {options} {at}"),
    }
}

/// Asserts that an error is an expected one: a wrong type, a missing key, too little memory.
fn assert_expected(reply: &Value) {
    if let Value::ServerError(error) = reply {
        let text = format!("{} {}", error.code(), error.details().unwrap_or_default());
        let expected =
            ["WRONGTYPE", "no such key", "at most 8 in a key", "syntax error", "rows of one key", "OOM "];
        assert!(expected.iter().any(|part| text.contains(part)), "{text}");
    }
}

/// Disturbs a server in one way after the other, each at least once, with `each_time` in between.
fn disturb_until(end: Instant, server: &Server, mut each_time: impl FnMut()) {
    loop {
        each_time();
        // A snapshot or rewrite may have to wait for another, or for a replica's snapshot.
        let _ = server.call("BGSAVE SCHEDULE");
        let _ = server.call("BGREWRITEAOF");
        // Lost before it is in sync.
        let unlucky = Server::with(&[]);
        unlucky.value(&format!("REPLICAOF 127.0.0.1 {}", server.port()));
        drop(unlucky);
        // Lost after it was disconnected and came back.
        let replica = Server::replica_of(server, &[]);
        replica.value("REPLICAOF NO ONE");
        replica.follow(server);
        drop(replica);
        let children = ["rdb_bgsave_in_progress", "aof_rewrite_in_progress", "aof_rewrite_scheduled"];
        wait_for("snapshot and rewrite", || children.iter().all(|field| server.info(field) == "0"));
        assert_eq!(server.info("rdb_last_bgsave_status"), "ok");
        assert_eq!(server.info("aof_last_bgrewrite_status"), "ok");
        if Instant::now() >= end {
            return;
        }
    }
}
