//! Restarts, copies and dumps keep every count, and the time to live.

use std::collections::{BTreeMap, BTreeSet};

use harness::{APPEND_ONLY, COMMANDS, Server, command, commands_in_aof, not_tested, pipeline, wait_for};
use redis::{Cmd, Connection, Value};
use redis_rl_core::encoding::spent;
use redis_rl_core::limiter::Algorithm;

use crate::helpers::payload::{Payload, credulous_server};

/// Later than any clock, so that counts do not change while a test runs. No window of more than 1 ms begins
/// here.
const NOW: i64 = 4_000_000_000_001;
const HOUR: i64 = 3_600_000;

/// The largest limit, cost and time.
const MOST: i64 = 9_007_199_254_740_991;

/// Calls, and when to make each, in milliseconds before `NOW`.
const CONTENT: &[(&str, &[i64])] = &[
    ("RL.FIXED fixed:one 5 60s COST 3", &[0]),
    ("RL.FIXED fixed:two 5 60s", &[0, 0]),
    ("RL.FIXED fixed:long 5 3650d COST 20000000 FORCE", &[0]),
    ("RL.FIXED fixed:tiers 9 1s 50 1m 500 1h COST 2", &[5_000, 100, 0]),
    ("RL.FIXED fixed:eight 9 1ms 9 7ms 9 1s 9 1m 9 1h 9 1d 9 365d 9 3650d", &[2, 0]),
    // The shorter windows have ended and are still stored.
    ("RL.FIXED fixed:over 9 1ms 9 1s 9 1m", &[HOUR]),
    ("RL.FIXED fixed:over 9 1m", &[0]),
    ("RL.SLIDING sliding:one 9 1h COST 2", &[0]),
    ("RL.SLIDING sliding:both 9 1h COST 3", &[HOUR, 0]),
    ("RL.SLIDING sliding:refunded 9 1h COST 3", &[HOUR, 0]),
    ("RL.SLIDING sliding:refunded 9 1h COST -4", &[0]),
    ("RL.SLIDING sliding:eight 9 1ms 9 7ms 9 1s 9 1m 9 1h 9 1d 9 365d 9 3650d", &[HOUR, 1, 0]),
    ("RL.SLIDING sliding:over 9 1ms 9 1s 9 1m COST 3", &[HOUR]),
    ("RL.SLIDING sliding:over 9 1m", &[60_000, 0]),
    ("RL.LOG log:one 9 1h", &[0]),
    ("RL.LOG log:instant 9 1ms COST 4", &[0, 0]),
    ("RL.LOG log:bursts 900 1h COST 7", &[10, 10, 9, 0, 0]),
    ("RL.LOG log:gaps 900 1d", &[20 * HOUR, 7 * HOUR, 16_384, 128, 127, 1, 0]),
    ("RL.LOG log:tiers 9 1ms 90 1s 900 3650d", &[99 * HOUR, 1_000, 999, 1, 0]),
    ("RL.LOG log:refunded 99 1h COST 5", &[5_000, 4_000, 0]),
    ("RL.LOG log:refunded 99 1h COST -7", &[0]),
    ("RL.BUCKET bucket:one 5 1h COST 3", &[0]),
    ("RL.BUCKET bucket:forced 7 1h COST 20 FORCE", &[HOUR, 1, 0]),
    ("RL.BUCKET bucket:most 9007199254740991 3650d COST 9007199254740991 FORCE", &[0, 0]),
    ("RL.BUCKET bucket:refunded 9 1h COST 5", &[5_000, 0]),
    ("RL.BUCKET bucket:refunded 90 1h COST -7", &[0]),
    ("RL.BUCKET bucket:eight 9 1ms 9 7ms 9 1s 9 1m 9 1h 9 1d 9 365d 9 3650d", &[HOUR, 1, 0]),
    // The shorter windows are full and still stored.
    ("RL.BUCKET bucket:over 9 1ms 9 1s 9 1m", &[HOUR]),
    ("RL.BUCKET bucket:over 9 1m", &[0]),
];

/// Calls that together bring counts to 2^63 - 1, how often to make each, and how long before `NOW`.
const SATURATING: &[(&str, usize, i64)] = &[
    ("RL.FIXED saturated:fixed 9 1h", 1_025, 0),
    ("RL.SLIDING saturated:sliding 9 1h", 1_025, HOUR),
    ("RL.SLIDING saturated:sliding 9 1h", 1_025, 0),
    ("RL.LOG saturated:log 9 2h", 500, HOUR),
    ("RL.LOG saturated:log 9 2h", 525, 0),
];

/// Makes keys of all kinds.
fn fill(server: &Server) {
    let mut lines = Vec::new();
    for (call, times) in CONTENT {
        lines.extend(times.iter().map(|before| format!("{call} AT {}", NOW - before)));
    }
    for (call, calls, before) in SATURATING {
        let line = format!("{call} COST {MOST} FORCE AT {}", NOW - before);
        lines.extend(vec![line; *calls]);
    }
    lines.extend(long_log("log:long", 5_000));
    // More units, in more entries, than a call with the longest window would keep.
    let half = MOST / 2;
    lines.push(format!("RL.LOG log:vast 9 2h AT {}", NOW - 2_000));
    lines
        .extend((0..1_500).map(|i| format!("RL.LOG log:vast {MOST} 1ms COST {half} AT {}", NOW - 1_500 + i)));
    let mut pipeline = pipeline(lines);
    pipeline.cmd("RL.LOG").arg(b"any bytes \0\r\n\xff").arg(&["9", "1h", "AT"]).arg(NOW);
    pipeline.exec(&mut server.connect()).expect("all of them are counted");
}

/// Calls that make a log with this number of entries, from 1 ms to an hour apart.
fn long_log(key: &str, entries: usize) -> impl Iterator<Item = String> {
    let gaps = [1, 2, 127, 128, 129, 16_383, 16_384, HOUR];
    let costs = [1, 1, 1, 2, 127, 128, 1_i64 << 40];
    let mut at = NOW - entries as i64 * HOUR / 4;
    (0..entries).map(move |i| {
        at += gaps[i % gaps.len()];
        format!("RL.LOG {key} {MOST} 3650d COST {} AT {at}", costs[i % costs.len()])
    })
}

/// Everything visible about a key.
#[derive(Clone, Debug, PartialEq)]
struct Seen {
    figures: Vec<Value>,
    expires_at: i64,
}

/// Every key of the connection's database.
fn all(connection: &mut Connection) -> BTreeMap<Vec<u8>, Seen> {
    let keys: Vec<Vec<u8>> = command("KEYS *").query(connection).expect("KEYS");
    keys.into_iter().map(|key| (key.clone(), seen(connection, &key))).collect()
}

fn seen(connection: &mut Connection, key: &[u8]) -> Seen {
    let mut pipeline = redis::pipe();
    pipeline.cmd("PEXPIRETIME").arg(key);
    pipeline.cmd("DEBUG").arg("DIGEST-VALUE").arg(key);
    pipeline.cmd("RL.INFO").arg(key);
    for window in ["1ms", "7ms", "1s", "60s", "1h", "1d", "3650d"] {
        for after in [-1_000, 0, 1, 999, HOUR, 30 * HOUR] {
            let peek = pipeline.cmd("RL.PEEK").arg(key).arg(MOST).arg(window);
            peek.arg("COST").arg(MOST).arg("AT").arg(NOW + after);
        }
    }
    let mut figures: Vec<Value> = pipeline.query(connection).expect("readable keys");
    let Value::Int(expires_at) = figures.remove(0) else { panic!("no time") };
    assert!(expires_at > 0, "a key without a time to live: {}", key.escape_ascii());
    without_waits(&mut figures[1]);
    Seen { figures, expires_at }
}

/// Removes the waits from RL.INFO: they get shorter while a test runs.
fn without_waits(info: &mut Value) {
    let Value::Array(fields) = info else { panic!("no map") };
    let Value::Array(windows) = &mut fields[3] else { panic!("no windows") };
    for window in windows {
        let Value::Array(fields) = window else { panic!("no map") };
        let named = |field: &Value| matches!(field, Value::BulkString(name) if name == b"reset_after_ms");
        let place = fields.iter().position(named).expect("a wait");
        fields.drain(place..place + 2);
    }
}

/// Asserts that nothing is lost or changed, except that keys may expire up to `later_ms` later.
#[track_caller]
fn assert_kept(before: &BTreeMap<Vec<u8>, Seen>, after: &BTreeMap<Vec<u8>, Seen>, later_ms: i64) {
    assert!(before.keys().eq(after.keys()), "{:?} {:?}", before.keys(), after.keys());
    for ((key, old), new) in before.iter().zip(after.values()) {
        assert_eq!(old.figures, new.figures, "{}", key.escape_ascii());
        let later = new.expires_at - old.expires_at;
        assert!((0..=later_ms).contains(&later), "{} expires {later} ms later", key.escape_ascii());
    }
}

#[test]
fn a_restart_on_a_snapshot_keeps_every_count() {
    let mut server = Server::start();
    fill(&server);
    let before = all(&mut server.connect());
    server.value("SAVE");
    server.restart();
    assert_kept(&before, &all(&mut server.connect()), 0);
    server.value("DEBUG RELOAD");
    assert_kept(&before, &all(&mut server.connect()), 0);
}

#[test]
fn a_restart_on_an_append_only_file_keeps_every_count() {
    for preamble in ["yes", "no"] {
        let mut server = Server::with(&[&APPEND_ONLY[..], &[("aof-use-rdb-preamble", preamble)]].concat());
        fill(&server);
        let before = all(&mut server.connect());
        // Loading counts again: a key written with AT gets its time to live anew.
        server.crash_and_restart();
        assert_kept(&before, &all(&mut server.connect()), 20_000);
        server.restart();
        let before = all(&mut server.connect());

        server.value("BGREWRITEAOF");
        server.wait_for_rewrite();
        assert_eq!(server.info("aof_last_bgrewrite_status"), "ok");
        assert_kept(&before, &all(&mut server.connect()), 0);
        let rewritten = commands_in_aof(&server);
        if preamble == "yes" {
            assert_eq!(rewritten, [""; 0], "everything is in the base file, a snapshot");
        } else {
            let expires = rewritten.iter().filter(|command| command.starts_with("PEXPIREAT ")).count();
            let loads = rewritten.iter().filter(|command| command.starts_with("RL.LOAD ")).count();
            assert_eq!((expires, loads), (before.len(), before.len()), "two commands a key");
            assert_eq!(expires + loads, rewritten.len());
        }
        server.crash_and_restart();
        assert_kept(&before, &all(&mut server.connect()), 0);

        // Later requests are appended to the rewritten file.
        let mut connection = server.connect();
        before.keys().for_each(|key| change(&mut connection, key));
        let changed = all(&mut connection);
        server.restart();
        assert_kept(&changed, &all(&mut server.connect()), 20_000);
    }
}

/// Refunds and takes units, so that the key's content changes, whatever it was.
fn change(connection: &mut Connection, key: &[u8]) {
    let info: Vec<Value> = redis::cmd("RL.INFO").arg(key).query(connection).expect("RL.INFO");
    let algorithm: String = redis::from_redis_value(info[1].clone()).expect("its algorithm");
    for cost in [-2, 1] {
        let mut take = redis::cmd(&format!("RL.{algorithm}"));
        take.arg(key).arg(&["9", "3650d", "FORCE", "COST"]).arg(cost).arg("AT").arg(NOW);
        take.exec(connection).expect("a change");
    }
}

#[test]
fn a_dump_restores_every_count() {
    let server = Server::start();
    fill(&server);
    let mut connection = server.connect();
    for (key, before) in all(&mut connection) {
        let dump = dump(&mut connection, &key);
        for replace in [&[][..], &["REPLACE"]] {
            let mut restore = redis::cmd("RESTORE");
            restore.arg("restored").arg(before.expires_at).arg(&dump).arg("ABSTTL").arg(replace);
            restore.exec(&mut connection).expect("RESTORE");
            assert_eq!(seen(&mut connection, b"restored"), before, "{}", key.escape_ascii());
            assert_eq!(self::dump(&mut connection, b"restored"), dump, "{}", key.escape_ascii());
            change(&mut connection, b"restored");
        }
        server.value("DEL restored");
    }
}

fn dump(connection: &mut Connection, key: &[u8]) -> Vec<u8> {
    redis::cmd("DUMP").arg(key).query(connection).expect("DUMP")
}

/// Restores `k` without a time to live.
fn restore(payload: &[u8]) -> Cmd {
    let mut restore = redis::cmd("RESTORE");
    restore.arg("k").arg(0).arg(payload).arg("REPLACE");
    restore
}

#[test]
fn a_copy_is_equal_and_then_independent() {
    let server = Server::start();
    fill(&server);
    let mut connection = server.connect();
    for (key, before) in all(&mut connection) {
        redis::cmd("COPY").arg(&key).arg("copy").exec(&mut connection).expect("COPY");
        assert_eq!(seen(&mut connection, b"copy"), before, "{}", key.escape_ascii());
        change(&mut connection, b"copy");
        assert_ne!(seen(&mut connection, b"copy").figures, before.figures, "{}", key.escape_ascii());
        assert_eq!(seen(&mut connection, &key), before, "{}", key.escape_ascii());
        server.value("DEL copy");
        assert_eq!(seen(&mut connection, &key), before, "{}", key.escape_ascii());
    }
}

#[test]
fn renaming_and_moving_between_databases_keep_every_count() {
    let server = Server::start();
    fill(&server);
    let mut connection = server.connect();
    let before = all(&mut connection);
    for key in before.keys() {
        redis::cmd("RENAME").arg(key).arg("renamed").exec(&mut connection).expect("RENAME");
        redis::cmd("RENAME").arg("renamed").arg(key).exec(&mut connection).expect("RENAME");
    }
    assert_kept(&before, &all(&mut connection), 0);
    for key in before.keys() {
        redis::cmd("MOVE").arg(key).arg(1).exec(&mut connection).expect("MOVE");
    }
    assert!(all(&mut connection).is_empty());
    command("SELECT 1").exec(&mut connection).expect("SELECT");
    assert_kept(&before, &all(&mut connection), 0);
    command("SWAPDB 0 1").exec(&mut connection).expect("SWAPDB");
    assert!(all(&mut connection).is_empty());
    assert_kept(&before, &all(&mut server.connect()), 0);
}

#[test]
fn migrating_to_another_server_keeps_every_count() {
    let [from, to] = [Server::start(), Server::start()];
    fill(&from);
    let before = all(&mut from.connect());
    migrate(&from, &to, before.keys());
    assert_eq!(from.integer("DBSIZE"), 0);
    assert_kept(&before, &all(&mut to.connect()), SENDING_MS);
}

/// MIGRATE sends the remaining time, which then runs from its arrival.
const SENDING_MS: i64 = 5_000;

fn migrate<'a>(from: &Server, to: &Server, keys: impl Iterator<Item = &'a Vec<u8>>) {
    let mut migrate = redis::cmd("MIGRATE");
    migrate.arg("127.0.0.1").arg(to.port()).arg("").arg(0).arg(10_000).arg("KEYS");
    migrate.arg(keys.collect::<Vec<_>>()).exec(&mut from.connect()).expect("MIGRATE");
}

#[test]
fn a_large_log_is_freed_in_the_background() {
    let server = Server::start();
    for free in ["UNLINK k", "FLUSHALL ASYNC"] {
        let freed: usize = server.info("lazyfreed_objects").parse().expect("a number");
        pipeline(long_log("k", 40_000)).exec(&mut server.connect()).expect("all of them are counted");
        let size = server.integer("MEMORY USAGE k");
        let used = || server.info("used_memory").parse::<i64>().expect("a number");
        let full = used();
        server.value(free);
        wait_for("the log to be freed", || {
            server.info("lazyfreed_objects").parse::<usize>().expect("a number") > freed
                && server.info("lazyfree_pending_objects") == "0"
                && full - used() > size / 2
        });
        assert_eq!(server.integer("DBSIZE"), 0);
    }
}

#[test]
fn active_defrag_keeps_every_count() {
    let server = Server::start();
    if server.call("CONFIG SET activedefrag yes").is_err() {
        return not_tested("this build of the server has no active defrag");
    }
    fill(&server);
    let mut connection = server.connect();
    let keys: Vec<Vec<u8>> = all(&mut connection).into_keys().collect();
    let copy = |key: &[u8], i: usize| [key, i.to_string().as_bytes()].concat();
    let mut pipeline = redis::pipe();
    for i in 0..300 {
        keys.iter().for_each(|key| _ = pipeline.cmd("COPY").arg(key).arg(copy(key, i)));
    }
    // Nine copies of ten are deleted and leave holes.
    for i in (0..300).filter(|i| i % 10 > 0) {
        keys.iter().for_each(|key| _ = pipeline.cmd("DEL").arg(copy(key, i)));
    }
    pipeline.exec(&mut connection).expect("copies");
    let before = all(&mut connection);
    for setting in ["ignore-bytes 1", "threshold-lower 1", "cycle-min 90", "cycle-max 95"] {
        server.value(&format!("CONFIG SET active-defrag-{setting}"));
    }
    let moved = || server.info("active_defrag_key_hits").parse::<u64>().expect("a number");
    wait_for("keys to be moved", || moved() > 100);
    assert_kept(&before, &all(&mut connection), 0);
}

#[test]
fn a_unit_in_a_log_takes_a_byte_or_two_and_counters_do_not_grow() {
    let server = Server::start();
    let usage = |lines: Vec<String>| {
        pipeline(lines).exec(&mut server.connect()).expect("all of them are counted");
        server.integer("MEMORY USAGE k SAMPLES 0")
    };
    for (gap, most) in [(60, 1.4), (1_000, 2.4), (16_000, 2.4)] {
        let log = |units: i64| (0..units).map(|i| format!("RL.LOG k 9000 10d AT {}", i * gap)).collect();
        let [some, more] = [1_000, 9_000].map(|units| {
            server.value("DEL k");
            usage(log(units))
        });
        let per_unit = (more - some) as f64 / 8_000.0;
        assert!((1.0..most).contains(&per_unit), "{per_unit} bytes a unit, {gap} ms apart");
    }
    for name in ["RL.FIXED", "RL.SLIDING"] {
        for pairs in ["9000 1d", "9000 1d 9000 2d"] {
            server.value("DEL k");
            let takes = |units: i64| (0..units).map(|i| format!("{name} k {pairs} AT {i}")).collect();
            assert_eq!(usage(takes(1)), usage(takes(5_000)), "{name} {pairs}");
        }
    }
}

#[test]
fn digests_are_equal_for_equal_content_and_different_otherwise() {
    let server = Server::start();
    let digest = |lines: &[&str]| {
        server.value("DEL k");
        pipeline(lines).exec(&mut server.connect()).expect("all of them are counted");
        format!("{:?}", server.value("DEBUG DIGEST-VALUE k"))
    };
    let mut all = BTreeSet::new();
    for name in COMMANDS {
        let digest = |lines: &[&str]| {
            let lines: Vec<String> = lines.iter().map(|line| format!("{name} k {line}")).collect();
            digest(&lines.iter().map(String::as_str).collect::<Vec<_>>())
        };
        let one = digest(&["5 10s AT 15000"]);
        assert_eq!(one, digest(&["5 10s FORCE COST 3 AT 15000", "5 10s COST -2 AT 15000"]), "{name}");
        assert_eq!(
            one,
            digest(&["5 10s AT 15000", "5 10s COST 5 AT 15000", "5 10s COST 0 AT 90000"]),
            "{name}"
        );
        // A bucket also holds its limit.
        assert_eq!(one == digest(&["9 10s AT 15000"]), name != "RL.BUCKET", "{name}");
        let different = [
            digest(&["5 10s COST 2 AT 15000"]),
            digest(&["5 10s AT 25000"]),
            digest(&["5 11s AT 15000"]),
            digest(&["5 10s AT 15000", "5 1d AT 15000"]),
            digest(&["5 10s AT 15000", "5 10s COST 2 AT 22000"]),
            one,
        ];
        all.extend(different);
    }
    assert_eq!(all.len(), 6 * COMMANDS.len());
}

#[test]
fn whatever_a_key_holds_can_be_loaded() {
    let server = Server::start();
    for name in ["RL.FIXED", "RL.SLIDING"] {
        server.value(&format!("{name} {name} 9 1ms 9 2s 9 3s 9 4s 9 5s 9 6s 9 7s 9 8s AT 1000000"));
        // The shortest window has ended. With a new one beside it, it would be the ninth.
        let _ = server.call(&format!("{name} {name} 9 1ms 9 9s AT 1000100"));
    }
    let before = all(&mut server.connect());
    server.value("DEBUG RELOAD");
    assert_kept(&before, &all(&mut server.connect()), 0);
}

#[test]
fn payloads_that_no_limiter_encodes_to_are_refused() {
    let server = credulous_server();
    let mut connection = server.connect();
    server.value("RL.FIXED k 5 10s");
    let dump = Payload::of(&self::dump(&mut connection, b"k"));
    for sound in Algorithm::ALL.map(spent) {
        restore(&dump.with(sound)).exec(&mut connection).unwrap_or_else(|_| panic!("{sound:?}"));
        assert_eq!(Payload::of(&self::dump(&mut connection, b"k")).body, sound);
    }
    server.value("DEL k");
    // A version, an algorithm and figures. For all that is refused, see tests/model/bytes.rs.
    for unsound in [
        &[][..],
        &[1, 1],
        &[2, 1, 1, 1, 1],
        &[1, 1 + COMMANDS.len() as u8, 60, 5, 1],
        // Nothing is held.
        &[1, 1, 60, 5, 0],
        &[1, 2, 60, 5, 0, 0],
        &[1, 3, 60, 5, 0],
        &[1, 4, 60, 5, 1, 0, 0],
        // A number longer than necessary, and one without an end.
        &[1, 1, 60, 5, 0x81, 0x00],
        &[1, 1, 60, 5, 0x80],
    ] {
        let refusal = restore(&dump.with(unsound)).exec(&mut connection);
        assert!(refusal.is_err_and(|error| error.to_string().contains("Bad data")), "{unsound:?}");
        assert_eq!(server.integer("EXISTS k"), 0);
    }
}
