//! Memory: all of it is freed, and running out of it does no harm.

use harness::{
    COMMANDS, Random, ReplicationStream, Server, command, figures, not_tested, pipeline, wait_for,
};
use redis::Value;

use crate::helpers::traffic::send;

/// No window of more than 1 ms begins here.
const NOW: i64 = 1_900_000_000_123;

/// Turns off latency statistics and the slow log, since they take memory too.
const KEEPING_NO_RECORDS: [(&str, &str); 2] = [("latency-tracking", "no"), ("slowlog-log-slower-than", "-1")];

fn used_memory(server: &Server) -> i64 {
    server.info("used_memory").parse().expect("bytes")
}

/// Waits until at most `left` bytes more are in use than at first.
fn wait_for_memory(server: &Server, what: &str, at_first: i64, left: i64) {
    wait_for(&format!("the memory of {what}"), || used_memory(server) <= at_first + left);
}

/// Makes ARGV[1] keys of all kinds; ARGV[2], the round, is part of their names. The commands follow.
const FILL: &str = "
    local names = {unpack(ARGV, 3)}
    for i = 0, ARGV[1] - 1 do
        local call, kind = names[i % #names + 1], math.floor(i / #names) % 3
        local key = ARGV[2] .. ':' .. i
        if kind == 0 then redis.call(call, key, 5, '1ms')
        elseif kind == 1 then redis.call(call, key, 5, '10s')
        else redis.call(call, key, 5, '1m', 50, '1h') end
    end";

#[test]
fn a_million_expired_keys_leave_no_memory_behind() {
    // The server expires keys as actively as it can.
    let settings = [("active-expire-effort", "10"), ("hz", "500")];
    let server = Server::with_clock_at(NOW, &[&KEEPING_NO_RECORDS[..], &settings].concat());
    server.expire_actively();
    let round = |keys: i64, round: i64| {
        command("EVAL")
            .arg(FILL)
            .arg(0)
            .arg(keys)
            .arg(round)
            .arg(&COMMANDS)
            .exec(&mut server.connect())
            .expect("all are counted");
        assert_eq!(server.integer("DBSIZE"), keys);
        server.step_clock(2 * 3_600_000);
        wait_for("the keys to expire", || server.integer("DBSIZE") == 0);
    };
    // The server keeps what it allocates for the first key or script.
    round(1_000, 0);
    let at_first = used_memory(&server);
    (1..=20).for_each(|i| round(50_000, i));
    assert_eq!(server.info("expired_keys"), "1001000");
    // A tenth of a byte a key.
    wait_for_memory(&server, "a million keys", at_first, 100_000);
}

/// Makes keys of all kinds and sizes, named `key` and a number.
fn fill(server: &Server, key: &str, keys: usize) {
    let mut lines = Vec::new();
    for i in 0..keys {
        let request = match i % 8 {
            0 | 1 => "RL.FIXED KEY 9 1h",
            2 | 3 => "RL.SLIDING KEY 9 1m 9 1h 9 1d",
            4 => "RL.BUCKET KEY 9 1h",
            5 => "RL.BUCKET KEY 9 1h 9 1d",
            6 => "RL.LOG KEY 9 1h COST 3",
            _ => "RL.LOG KEY 900 1m 900 1h",
        };
        let request = request.replace("KEY", &format!("{key}{i}"));
        let entries = if i % 8 == 7 { 100 } else { 1 };
        lines.extend((0..entries).map(|j| format!("{request} AT {}", NOW + 200 * j)));
    }
    pipeline(lines).exec(&mut server.connect()).expect("all of them are counted");
}

#[test]
fn however_a_key_is_removed_its_memory_is_freed() {
    const KEYS: usize = 1_400;
    let server = Server::with(&KEEPING_NO_RECORDS);
    let each = |line: &str| {
        let lines = (0..KEYS).map(|i| line.replace("KEY", &format!("k{i}")));
        pipeline(lines).ignore_errors().exec(&mut server.connect()).expect("replies");
    };
    let dumps = || -> Vec<Vec<u8>> {
        let mut dumps = redis::pipe();
        (0..KEYS).for_each(|i| _ = dumps.cmd("DUMP").arg(format!("k{i}")));
        dumps.query(&mut server.connect()).expect("DUMP")
    };
    let restore = |payloads: &[Vec<u8>]| {
        let mut restores = redis::pipe();
        for (i, payload) in payloads.iter().enumerate() {
            restores.cmd("RESTORE").arg(format!("k{i}")).arg(60_000).arg(payload).arg("REPLACE");
        }
        restores.ignore_errors().exec(&mut server.connect()).expect("replies");
    };
    server.value("DEBUG SET-SKIP-CHECKSUM-VALIDATION 1");
    let mut at_first = None;
    // In the first round the server allocates memory that it keeps.
    for way in [
        "DEL",
        "DEL",
        "UNLINK",
        "PEXPIRE",
        "SET",
        "refund",
        "RENAME",
        "COPY",
        "MOVE",
        "RESTORE",
        "bad RESTORE",
        "FLUSHDB SYNC",
        "FLUSHALL ASYNC",
        "SWAPDB",
        "DEBUG RELOAD",
    ] {
        fill(&server, "k", KEYS);
        let full = used_memory(&server);
        match way {
            "PEXPIRE" => each("PEXPIRE KEY 1"),
            "SET" => each("SET KEY x PX 1"),
            "refund" => {
                for name in COMMANDS {
                    each(&format!("{name} KEY 9 1m 9 1h 9 1d COST -1000 AT {}", NOW + 40_000));
                }
            }
            "RENAME" => {
                fill(&server, "other", 1);
                each("RENAME KEY other0");
                server.value("DEL other0");
            }
            "COPY" => {
                each("COPY KEY other");
                each("COPY KEY other REPLACE");
                each("DEL KEY");
                server.value("DEL other");
            }
            "MOVE" => {
                each("MOVE KEY 1");
                server.value("FLUSHALL");
            }
            "RESTORE" => {
                restore(&dumps());
                each("DEL KEY");
            }
            "bad RESTORE" => {
                let mut dumps = dumps();
                // The module's last number is no longer valid.
                dumps.iter_mut().for_each(|dump| _ = dump.splice(dump.len() - 12..dump.len() - 11, [0xff]));
                restore(&dumps);
                each("DEL KEY");
            }
            "SWAPDB" => {
                server.value("SWAPDB 0 1");
                server.value("FLUSHALL");
            }
            "DEBUG RELOAD" => {
                server.value("DEBUG RELOAD");
                each("UNLINK KEY");
            }
            "DEL" | "UNLINK" => each(&format!("{way} KEY")),
            _ => _ = server.value(way),
        }
        wait_for("the keys to be removed", || server.integer("DBSIZE") == 0);
        // Frees the server's own tables too.
        server.value("FLUSHALL SYNC");
        let at_first = *at_first.get_or_insert_with(|| used_memory(&server));
        assert!(full - at_first > 200_000, "{way}: they took {} bytes", full - at_first);
        // A key takes at least 16 bytes.
        wait_for_memory(&server, way, at_first, 12_000);
    }
}

#[test]
fn no_kind_of_request_leaks_memory() {
    let server = Server::with(&[&KEEPING_NO_RECORDS[..], &[("repl-backlog-size", "16384")]].concat());
    let _stream = ReplicationStream::of(&server);
    server.value("SET text x");
    let mut at_first = 0;
    for round in 0..5 {
        let mut connection = server.connect();
        for _ in 0..200 {
            let mut lines = Vec::new();
            for name in COMMANDS {
                for request in [
                    "9 1h",
                    "9 1h 99 1d",
                    "9 1h FORCE",
                    "9 1h COST 3 FORCE",
                    "9 1h COST -9",
                    "9 1h COST 0",
                    "0 1h",
                    "9 1h AT 5",
                    "9 1x",
                    "9 1h COST",
                    "9 1h COST 1 COST 2",
                    "9",
                ] {
                    lines.push(format!("{name} {name} {request}"));
                    lines.push(format!("RL.PEEK {name} {request}"));
                }
                lines.extend([format!("RL.INFO {name}"), format!("{name} text 9 1h"), format!("DEL {name}")]);
            }
            let seventy: String = (0..70).map(|key| format!(" k{key} LOG 9 1h 1")).collect();
            for request in [
                "f FIXED 9 1h 1 s SLIDING 9 1h 2 l LOG 9 1h 3 t BUCKET 9 1h 3",
                "f FIXED 9 1h 1 f FIXED 9 2h 1 f FIXED 9 3h 1 l LOG 0 1h 1",
                "f FIXED 9 1h 1 f FIXED 9 2h 1 a LOG 9 1h 1 b LOG 9 1h 1 c LOG 9 1h 1 d LOG 0 1h 1 FORCE",
                "f FIXED 9 1h 1 new LOG 9 1h 1 text LOG 9 1h 1",
                "new LOG 9 1h 1 f LOG 9 1h 1",
                "f FIXED 9 1h 1 g FIXED 9 1h 1 AT",
                "f FIXED 9 1h -99 s SLIDING 9 1h -99 l LOG 9 1h -99 t BUCKET 9 1h -99 a LOG 9 1h -9",
                &seventy,
            ] {
                lines.push(format!("RL.ALL {request}"));
            }
            lines.extend(["RL.LOAD load x", "RL.LOAD text x", "DEL f s l t a b c d"].map(str::to_owned));
            pipeline(lines).ignore_errors().exec(&mut connection).expect("replies");
        }
        drop(connection);
        if round == 0 {
            at_first = used_memory(&server);
        }
    }
    // A fifth of a byte a request.
    wait_for_memory(&server, "the requests", at_first, 15_000);
}

/// The units in each of the keys `k0`, `k1`, ... that were counted with this limit and window; 0 for a missing one.
fn used(server: &Server, keys: usize, pair: &str) -> Vec<i64> {
    let peeks = (0..keys).map(|i| format!("RL.PEEK k{i} {pair} AT {NOW}"));
    let replies: Vec<[i64; 5]> = pipeline(peeks).query(&mut server.connect()).expect("figures");
    replies.iter().map(|[_, limit, remaining, ..]| limit - remaining).collect()
}

fn eviction_policies(server: &Server) -> Vec<String> {
    let refusal = server.error("CONFIG SET maxmemory-policy any");
    let (_, policies) = refusal.split_once("one of the following: ").expect("a list");
    policies.split(", ").map(|policy| policy.trim().to_owned()).collect()
}

#[test]
fn every_eviction_policy_removes_whole_keys_and_leaves_the_others_whole() {
    const KEYS: usize = 3_000;
    let policies = eviction_policies(&Server::start());
    assert!(policies.len() >= 8, "{policies:?}");
    for policy in policies.iter().filter(|policy| *policy != "noeviction") {
        // The backlog would need more memory than the keys.
        let master = Server::with(&[
            ("maxmemory-policy", policy),
            ("appendonly", "yes"),
            ("repl-backlog-size", "16384"),
        ]);
        let replica = Server::replica_of(&master, &[]);
        let mut connection = master.connect();
        let units = |i: usize| 1 + i as i64 % 7;
        let take = |i: usize| {
            let (name, pairs) =
                (COMMANDS[i % COMMANDS.len()], ["9 1h", "9 1h 99 10d"][i / COMMANDS.len() % 2]);
            format!("{name} k{i} {pairs} COST {} AT {NOW}", units(i))
        };
        // Returns how many the server refused, as it may while it cannot evict fast enough.
        let mut take_all = |keys: std::ops::Range<usize>| {
            let mut refused = 0;
            // Not all at once: waiting requests take memory too.
            for some in keys.collect::<Vec<_>>().chunks(50) {
                let lines: Vec<String> = some.iter().map(|i| take(*i)).collect();
                for reply in send(&mut connection, &lines) {
                    match reply {
                        Value::ServerError(error) if error.code() == "OOM" => refused += 1,
                        reply => assert_eq!(figures(&reply)[0], 0, "{policy}"),
                    }
                }
            }
            refused
        };
        let empty = used_memory(&master);
        assert_eq!(take_all(0..KEYS), 0);
        assert!(used(&master, KEYS, "9 1h").iter().enumerate().all(|(i, used)| *used == units(i)));
        // Room for half of them, then for fewer: the server's own tables take memory too.
        let keys = used_memory(&master) - empty;
        let mut room = empty + keys / 2;
        wait_for("keys to be evicted", || {
            master.value(&format!("CONFIG SET maxmemory {room}"));
            room -= keys / 100;
            master.integer("DBSIZE") < KEYS as i64 * 3 / 4
        });
        // More requests while memory is full.
        let evicted = || master.info("evicted_keys").parse::<i64>().expect("keys");
        let before = evicted();
        let refused = take_all(KEYS..2 * KEYS);
        wait_for("more to be evicted", || evicted() > before);
        master.value("CONFIG SET maxmemory 0");

        let left = used(&master, 2 * KEYS, "9 1h");
        let whole = |(i, used): (usize, &i64)| *used == 0 || *used == units(i);
        assert!(left.iter().enumerate().all(whole), "{policy}: a part of a key");
        let there = left.iter().filter(|used| **used > 0).count();
        assert!((1..2 * KEYS).contains(&there), "{policy}");
        assert_eq!(master.integer("DBSIZE"), there as i64, "{policy}");
        assert_eq!(evicted(), (2 * KEYS - there - refused) as i64, "{policy}");
        replica.wait_to_catch_up(&master);
        assert_eq!(used(&replica, 2 * KEYS, "9 1h"), left, "{policy}");
        assert_eq!(replica.digest(), master.digest(), "{policy}");
        master.value("DEBUG LOADAOF");
        assert_eq!(used(&master, 2 * KEYS, "9 1h"), left, "{policy}, from the append-only file");

        // An evicted key starts over.
        let gone = left.iter().position(|used| *used == 0).expect("an evicted key");
        assert_eq!(master.figures(&take(gone))[..3], [0, 9, 9 - units(gone)], "{policy}");
    }
}

const OUT_OF_MEMORY: &str = "OOM command not allowed when used memory > 'maxmemory'.";

#[test]
fn out_of_memory_the_server_refuses_requests_and_nothing_is_counted() {
    let server = Server::start();
    for name in COMMANDS {
        server.value(&format!("{name} {name} 5 1h 9 1d COST 3 AT {NOW}"));
    }
    let mut stream = ReplicationStream::of(&server);
    let state = || {
        let peek = |name: &str| server.figures(&format!("RL.PEEK {name} 5 1h 9 1d COST 3 AT {NOW}"));
        (server.digest(), server.integer("DBSIZE"), COMMANDS.map(peek))
    };
    let before = state();
    server.value("CONFIG SET maxmemory 1");
    for name in COMMANDS {
        for key in [name, "new"] {
            for options in ["", "COST 9", "COST 9 FORCE", "COST -1", "COST 0"] {
                let request = format!("{name} {key} 5 1h 9 1d {options} AT {NOW}");
                assert_eq!(server.error(&request), OUT_OF_MEMORY, "{request}");
                let script =
                    format!("return redis.call('{}')", request.replace(' ', "','").replace("'',", ""));
                let error = command("EVAL").arg(script).arg(0).query::<Value>(&mut server.connect());
                assert!(error.is_err_and(|error| error.to_string().contains("OOM")), "{request}");
            }
        }
        // A transaction is refused as a whole.
        let mut connection = server.connect();
        command("MULTI").exec(&mut connection).expect("MULTI");
        command(&format!("{name} {name} 5 1h AT {NOW}")).exec(&mut connection).unwrap_err();
        let outcome = command("EXEC").exec(&mut connection).unwrap_err();
        assert!(outcome.to_string().contains("Transaction discarded"), "{outcome}");
    }
    assert_eq!(server.error("RL.ALL RL.LOG LOG 5 1h 1 new FIXED 5 1h 1 FORCE"), OUT_OF_MEMORY);
    // Reading still works.
    assert_eq!(state(), before);
    assert_eq!(stream.commands(&server), [""; 0]);
    server.value("CONFIG SET maxmemory 0");
    assert_eq!(state(), before);
    for name in COMMANDS {
        assert_eq!(
            server.figures(&format!("{name} {name} 5 1h 9 1d COST 2 AT {NOW}"))[..3],
            [0, 5, 0],
            "{name}"
        );
    }
}

#[test]
fn when_memory_runs_out_under_traffic_exactly_the_acknowledged_units_are_counted() {
    // In which less than one unit comes back to a bucket meanwhile.
    const PAIR: &str = "1000000 3650d";
    let server = Server::start();
    server.value(&format!("CONFIG SET maxmemory {}", used_memory(&server) + 1_000_000));
    let mut random = Random::new(4);
    let mut acknowledged = vec![0; 20_000];
    let mut refused = 0;
    let mut connection = server.connect();
    let mut latest = NOW;
    // About 20,000 requests fill the megabyte.
    for _ in 0..200 {
        if refused > 1_000 {
            break;
        }
        let keys: Vec<usize> = (0..500).map(|_| random.below(acknowledged.len())).collect();
        let lines = keys.iter().map(|i| {
            // Logs grow with each request, the others only with the first.
            latest += 1;
            format!("{} k{i} {PAIR} AT {latest}", COMMANDS.get(i % (COMMANDS.len() + 1)).unwrap_or(&"RL.LOG"))
        });
        for (key, reply) in keys.iter().zip(send(&mut connection, &lines.collect::<Vec<_>>())) {
            match reply {
                Value::Array(_) => acknowledged[*key] += 1,
                Value::ServerError(error) => {
                    assert_eq!(error.code(), "OOM");
                    refused += 1;
                }
                other => panic!("{other:?}"),
            }
        }
    }
    assert!(refused > 0, "the memory does not run out");
    assert_eq!(used(&server, acknowledged.len(), PAIR), acknowledged);
    let keys = acknowledged.iter().filter(|units| **units > 0).count();
    assert_eq!(server.integer("DBSIZE"), keys as i64);
}

#[test]
fn active_defrag_moves_every_allocation_of_a_key() {
    let server = Server::start();
    if server.call("CONFIG SET activedefrag yes").is_err() {
        return not_tested("this build of the server has no active defrag");
    }
    for setting in ["ignore-bytes 1", "threshold-lower 1", "cycle-min 90", "cycle-max 95"] {
        server.value(&format!("CONFIG SET active-defrag-{setting}"));
    }
    for name in COMMANDS {
        server.value("CONFIG SET activedefrag no");
        // Nine keys of ten are deleted and leave holes.
        let script = format!(
            "for i = 1, 30000 do
                 for j = 1, 3 do redis.call('{name}', i, 9, '1h', 9, '1m', 'AT', {NOW} + 1000 * j) end
             end
             for i = 1, 30000 do if i % 10 > 0 then redis.call('DEL', i) end end"
        );
        command("EVAL").arg(script).arg(0).exec(&mut server.connect()).expect("EVAL");
        let holes = || server.info("allocator_frag_bytes").parse::<u64>().expect("bytes");
        let before = holes();
        server.value("CONFIG SET activedefrag yes");
        wait_for("most of the holes to be gone", || holes() < before / 2);
        server.value("FLUSHALL SYNC");
    }
}
