//! RL.LOAD: creates a key from the bytes that a snapshot stores.

use std::collections::BTreeMap;

use harness::{
    APPEND_ONLY, COMMANDS, ReplicationStream, Server, command, commands_in_aof, error_text, pipeline,
};
use redis::{Connection, RedisResult, Value};

use crate::helpers::errors::WRONGTYPE;
use crate::helpers::payload::{Payload, credulous_server};

const NOW: i64 = 4_000_000_000_001;

pub const PAYLOAD: &str = "ERR payload is not valid";
pub const BUSY_KEY: &str = "BUSYKEY Target key name already exists.";

/// The bytes that are stored of each key.
fn stored(server: &Server) -> BTreeMap<String, Vec<u8>> {
    let mut connection = server.connect();
    let keys: Vec<String> = command("KEYS *").query(&mut connection).expect("KEYS");
    let stored = |key: String| {
        let dump: Vec<u8> = redis::cmd("DUMP").arg(&key).query(&mut connection).expect("DUMP");
        (key, Payload::of(&dump).body)
    };
    keys.into_iter().map(stored).collect()
}

/// A server that rewrites its append-only file as commands, and compresses nothing.
fn server() -> Server {
    let settings = [("aof-use-rdb-preamble", "no"), ("rdbcompression", "no")];
    Server::with(&[&APPEND_ONLY[..], &settings].concat())
}

fn load(connection: &mut Connection, key: &str, payload: &[u8]) -> RedisResult<Value> {
    redis::cmd("RL.LOAD").arg(key).arg(payload).query(connection)
}

fn fill(server: &Server) {
    let mut lines = Vec::new();
    for name in COMMANDS {
        lines.push(format!("{name} {name}:one 5 10s COST 3 AT {NOW}"));
        lines.push(format!("{name} {name}:tiers 9 1s 9 1m 9 1h 9 1d AT {}", NOW - 60_000));
        lines.push(format!("{name} {name}:tiers 9 1s 9 1m 9 1h 9 1d COST 2 AT {NOW}"));
        for step in 0..300 {
            lines.push(format!("{name} {name}:many 900 1h COST {} AT {}", 1 + step % 3, NOW + 977 * step));
        }
    }
    pipeline(lines).exec(&mut server.connect()).expect("all of them are counted");
}

#[test]
fn a_payload_restores_the_key_that_it_was_made_from() {
    let server = server();
    fill(&server);
    let mut connection = server.connect();
    let stored = stored(&server);
    assert_eq!(stored.len(), 3 * COMMANDS.len());
    for (name, payload) in &stored {
        let copy = format!("{name}:copy");
        assert_eq!(load(&mut connection, &copy, payload).expect("RL.LOAD"), Value::Okay);
        assert_eq!(server.integer(&format!("PTTL {name}:copy")), -1, "{name}");
        // Whether there is a time to live is part of the digest.
        server.value(&format!("EXPIRE {name}:copy 1000"));
        let digest = |end| server.value(&format!("DEBUG DIGEST-VALUE {name}{end}"));
        assert_eq!(digest(":copy"), digest(""), "{name}");
        server.value(&format!("PERSIST {name}:copy"));
        for peek in ["5 10s", "9 1m", "900 1h COST 900"] {
            let [original, copied] =
                ["", ":copy"].map(|end| server.figures(&format!("RL.PEEK {name}{end} {peek} AT {NOW}")));
            assert_eq!(copied, original, "{name} {peek}");
        }
        // It gets a time to live when it counts for longer.
        let algorithm = name.split(':').next().expect("a command");
        server.value(&format!("{algorithm} {name}:copy 900 2d AT {NOW}"));
        assert!(server.integer(&format!("PTTL {name}:copy")) > 0, "{name}");
    }
}

#[test]
fn an_existing_key_of_any_type_is_left_unchanged() {
    let server = server();
    server.value("RL.FIXED k 5 1h AT 0");
    let payload = stored(&server).remove("k").expect("a payload");
    pipeline(["SET string 1", "RPUSH list 1", "HSET hash f 1", "RL.LOG log 5 1h", "RL.SLIDING sliding 5 1h"])
        .exec(&mut server.connect())
        .expect("keys");
    let before = server.digest();
    for key in ["k", "string", "list", "hash", "log", "sliding"] {
        for payload in [payload.as_slice(), b"", b"nonsense"] {
            let error = load(&mut server.connect(), key, payload).expect_err("it exists");
            assert_eq!(error_text(&error), BUSY_KEY, "{key}");
        }
    }
    assert_eq!(server.digest(), before);
}

#[test]
fn a_payload_that_is_not_valid_is_refused() {
    let server = server();
    fill(&server);
    let mut connection = server.connect();
    let stored: Vec<Vec<u8>> = stored(&server).into_values().collect();
    server.value("FLUSHALL");
    let mut refused_outright: Vec<Vec<u8>> =
        vec![vec![], vec![0], vec![1], vec![0xff; 9], vec![2, 1, 60, 5, 1], b"payload".to_vec()];
    for payload in &stored {
        // Truncated before its first counter or entry is complete.
        refused_outright.extend((0..payload.len().min(6)).map(|end| payload[..end].to_vec()));
    }
    for payload in refused_outright {
        let error = load(&mut connection, "k", &payload).expect_err("it is no payload");
        assert_eq!(error_text(&error), PAYLOAD, "{payload:?}");
        assert_eq!(server.integer("DBSIZE"), 0);
    }
    server.assert_nothing_panicked();
}

#[test]
fn rl_load_is_replicated_verbatim_and_not_at_all_when_refused() {
    let master = server();
    fill(&master);
    let stored = stored(&master);
    master.value("FLUSHALL");
    let replica = Server::replica_of(&master, &[]);
    let mut stream = ReplicationStream::of(&master);
    let mut connection = master.connect();
    for (key, payload) in &stored {
        load(&mut connection, key, payload).expect("RL.LOAD");
        load(&mut connection, key, payload).expect_err("it exists");
        load(&mut connection, "other", &payload[..1]).expect_err("it is cut short");
        let sent = [b"RL.LOAD ", key.as_bytes(), b" ", payload].concat();
        assert_eq!(stream.commands(&master), [String::from_utf8_lossy(&sent)]);
    }
    replica.wait_to_catch_up(&master);
    assert_eq!(replica.digest(), master.digest());
    assert_eq!(replica.integer("DBSIZE"), 3 * COMMANDS.len() as i64);
    let error = load(&mut replica.connect(), "new", &stored.values().next().expect("one")[..]);
    assert_eq!(error.expect_err("a replica").code(), Some("READONLY"));
}

/// The units of the log below.
const ENTRIES: usize = 200_000;

#[test]
fn a_large_log_is_rewritten_and_loaded_as_one_command() {
    let mut server = server();
    server.value("CONFIG SET appendfsync no");
    let mut connection = server.connect();
    for from in (0..ENTRIES).step_by(50_000) {
        let lines = (from..from + 50_000).map(|ms| format!("RL.LOG log {ENTRIES} 1d AT {}", NOW + ms as i64));
        pipeline(lines).exec(&mut connection).expect("all of them are counted");
    }
    let digest = server.digest();
    let bytes = stored(&server)["log"].len();
    assert!(bytes < 2 * ENTRIES, "{bytes} bytes");
    server.value("BGREWRITEAOF");
    server.wait_for_rewrite();
    assert_eq!(commands_in_aof(&server).len(), 2, "RL.LOAD and PEXPIREAT");
    let base = server.info("aof_base_size").parse::<usize>().expect("bytes");
    assert!(base < bytes + 1_000, "{base} bytes, with {bytes} bytes for the payload");
    server.crash_and_restart();
    assert_eq!(server.digest(), digest);
    let peek = format!("RL.PEEK log {ENTRIES} 1d AT {}", NOW + ENTRIES as i64);
    assert_eq!(server.figures(&peek)[2], 0, "{peek}");
}

#[test]
fn the_log_says_why_a_payload_is_refused() {
    let server = credulous_server();
    server.value("RL.FIXED k 5 1h");
    let mut connection = server.connect();
    let dump: Vec<u8> = redis::cmd("DUMP").arg("k").query(&mut connection).expect("DUMP");
    let payload = Payload::of(&dump);
    let mut why = Vec::new();
    for body in [&b""[..], &[9, 1, 60, 5, 1], &[1, 9, 60, 5, 1], &[1, 1, 60, 5], &[1, 1, 0, 5, 1]] {
        let mut restore = redis::cmd("RESTORE");
        restore.arg("k").arg(0).arg(payload.with(body)).arg("REPLACE");
        assert_eq!(restore.exec(&mut connection).expect_err("it is refused").code(), Some("ERR"));
        let log = server.log();
        let lines = log.lines().filter(|line| line.contains("rl: cannot load a limiter: "));
        let lines: Vec<String> = lines.map(str::to_owned).collect();
        assert_eq!(lines.len(), why.len() + 1, "{log}");
        why.push(lines.last().expect("a line").clone());
    }
    assert_eq!(server.error("GET k"), WRONGTYPE, "the key is unchanged");
}
