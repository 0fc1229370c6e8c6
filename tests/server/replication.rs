//! What is sent to replicas and to the append-only file, and that they hold the same.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use harness::{
    APPEND_ONLY, COMMANDS, ReplicationStream, Server, command, commands_in_aof, pipeline, wait_for,
};

use crate::traffic::{LATER, NOW, Traffic, assert_same, send};

/// Commands in order, and what each sends to replicas; X stands for an algorithm, Y for another one.
const SENT: &[(&str, &str)] = &[
    // Counted: with its time, and its cost if that is not 1.
    ("RL.X k 5 10s AT 15000", "RL.X k 5 10s FORCE AT 15000"),
    ("rl.x k 5 10S cost 1 at 15000", "RL.X k 5 10S FORCE AT 15000"),
    ("RL.X k 5 10s 50 1M AT 15001 COST 2", "RL.X k 5 10s 50 1M COST 2 FORCE AT 15001"),
    ("RL.X {any}:key! 5 10 AT 0", "RL.X {any}:key! 5 10 FORCE AT 0"),
    // Before the newest time: as of the time given.
    ("RL.X k 5 10s AT 3", "RL.X k 5 10s FORCE AT 3"),
    // Limited, by any tier.
    ("RL.X k 5 10s AT 15002", ""),
    ("RL.X k 5 10s 1 1m 99 1h AT 15002", ""),
    ("RL.X k 5 10s COST 9007199254740991 AT 15002", ""),
    ("RL.X new 0 10s AT 15002", ""),
    // Limited, but counted.
    ("RL.X k 5 10s FORCE AT 15002", "RL.X k 5 10s FORCE AT 15002"),
    ("RL.X k 5 10s AT 15002 FORCE COST 7", "RL.X k 5 10s COST 7 FORCE AT 15002"),
    // Nothing to count.
    ("RL.X k 5 10s COST 0 AT 15003", ""),
    ("RL.X k 5 10s COST 0 FORCE AT 15003", ""),
    ("RL.X new 5 10s COST 0 FORCE AT 15003", ""),
    ("RL.PEEK k 5 10s AT 15003", ""),
    ("RL.PEEK k 5 10s COST -9 AT 15003", ""),
    ("RL.PEEK new 5 10s AT 15003", ""),
    ("RL.INFO k", ""),
    ("RL.INFO new", ""),
    // Errors.
    ("RL.X k 5 10s COST 1 FORCE AT -1", ""),
    ("RL.X k 5 10s 5 10000ms FORCE", ""),
    ("RL.X k 5 10s FORCE FORCE", ""),
    ("RL.X k 5", ""),
    ("RL.X text 5 10s FORCE", ""),
    ("RL.Y k 5 10s FORCE", ""),
    // Refunded.
    ("RL.X k 5 10s COST -2 AT 15004", "RL.X k 5 10s COST -2 FORCE AT 15004"),
    ("RL.X k 5 10s COST -1 FORCE AT 15004", "RL.X k 5 10s COST -1 FORCE AT 15004"),
    ("RL.X new 5 10s COST -1 AT 15004", ""),
    ("RL.X k 5 10s COST -1 AT 99000", ""),
    ("RL.X {any}:key! 5 10 COST -99 AT 0", "RL.X {any}:key! 5 10 COST -99 FORCE AT 0"),
    ("RL.X {any}:key! 5 10 COST -99 AT 0", ""),
];

/// The calls of `SENT` for an algorithm.
fn calls(name: &str) -> impl Iterator<Item = (String, String)> {
    let other = COMMANDS[usize::from(name == COMMANDS[0])];
    SENT.iter().map(move |row| {
        let [call, sent] = [row.0, row.1].map(|line| line.replace("RL.X", name).replace("RL.Y", other));
        (call.replace("rl.x", &name.to_lowercase()), sent)
    })
}

#[test]
fn counted_requests_are_replicated_with_their_time_and_others_are_not() {
    for name in COMMANDS {
        let server = Server::with(&APPEND_ONLY);
        let mut stream = ReplicationStream::of(&server);
        server.value("SET text 1");
        let mut all = vec!["SET text 1".to_owned()];
        assert_eq!(stream.commands(&server), all);
        for (call, sent) in calls(name) {
            let _ = server.call(&call);
            let sent: Vec<String> = Some(sent).filter(|sent| !sent.is_empty()).into_iter().collect();
            assert_eq!(stream.commands(&server), sent, "{call}");
            all.extend(sent);
        }
        assert_eq!(commands_in_aof(&server), all);
    }
}

#[test]
fn a_request_that_counts_nothing_replicates_and_writes_nothing() {
    for name in COMMANDS {
        let server = Server::with(&[&APPEND_ONLY[..], &[("repl-ping-replica-period", "3600")]].concat());
        let mut stream = ReplicationStream::of(&server);
        server.value("SET text 1");
        assert_eq!(stream.commands(&server), ["SET text 1"]);
        let offsets = || ["master_repl_offset", "aof_current_size"].map(|field| server.info(field));
        for (call, sent) in calls(name) {
            let before = offsets();
            let _ = server.call(&call);
            for (before, after) in before.iter().zip(offsets()) {
                assert_eq!(*before == after, sent.is_empty(), "{call}");
            }
        }
    }
}

#[test]
fn without_at_the_servers_time_of_the_request_is_replicated() {
    let server = Server::start();
    let mut stream = ReplicationStream::of(&server);
    for name in COMMANDS {
        for cost in ["", " COST 3", " COST -2"] {
            let earliest = server.clock_ms();
            server.value(&format!("{name} {name} 5 3650d{cost}"));
            let latest = server.clock_ms();
            let sent = stream.commands(&server);
            let [sent] = sent.as_slice() else { panic!("{sent:?} is not one command") };
            let at = sent.strip_prefix(&format!("{name} {name} 5 3650d{cost} FORCE AT ")).expect("its time");
            assert!((earliest..=latest).contains(&at.parse().expect("a time")), "{sent}");
        }
    }
}

#[test]
fn a_request_to_a_saturated_count_replicates_nothing() {
    let server = Server::start();
    let mut stream = ReplicationStream::of(&server);
    for name in COMMANDS {
        let fill = format!("{name} {name} 5 10s COST 9007199254740991 FORCE AT 15000");
        // 2^63 - 1 is 1024 times 2^53 - 1 and 1023.
        pipeline(vec![&fill; 1_030]).exec(&mut server.connect()).expect("replies");
        assert_eq!(stream.commands(&server), vec![fill.clone(); 1_025]);
        server.value(&format!("{name} {name} 5 10s FORCE AT 15000"));
        assert_eq!(stream.commands(&server), [""; 0]);
        let refund = format!("{name} {name} 5 10s COST -1 FORCE AT 15000");
        pipeline([&refund, &fill, &fill]).exec(&mut server.connect()).expect("replies");
        assert_eq!(stream.commands(&server), [refund, fill]);
    }
}

#[test]
fn transactions_and_scripts_replicate_what_their_commands_count() {
    let server = Server::with(&APPEND_ONLY);
    let mut stream = ReplicationStream::of(&server);
    let mut all = Vec::new();
    for name in COMMANDS {
        let calls = [
            format!("{name} {name} 5 10s COST 4 AT 15000"),
            format!("{name} {name} 5 10s COST 4 AT 15000"),
            format!("RL.PEEK {name} 5 10s AT 15000"),
            format!("{name} {name} 5 10s COST 1 AT 15000"),
            format!("{name} {name} 5 10s COST -2 AT 15000"),
        ];
        let sent = [
            "MULTI".to_owned(),
            format!("{name} {name} 5 10s COST 4 FORCE AT 15000"),
            format!("{name} {name} 5 10s FORCE AT 15000"),
            format!("{name} {name} 5 10s COST -2 FORCE AT 15000"),
            "EXEC".to_owned(),
        ];
        pipeline(&calls).atomic().exec(&mut server.connect()).expect("EXEC");
        assert_eq!(stream.commands(&server), sent);
        all.extend(sent.clone());

        server.value(&format!("DEL {name}"));
        all.extend(stream.commands(&server));
        let script: String =
            calls.iter().map(|call| format!("redis.call('{}')\n", call.replace(' ', "','"))).collect();
        command("EVAL").arg(script).arg(0).exec(&mut server.connect()).expect("EVAL");
        assert_eq!(stream.commands(&server), sent);
        all.extend(sent);

        // A transaction of limited requests sends nothing.
        pipeline(&calls[1..3]).atomic().exec(&mut server.connect()).expect("EXEC");
        assert_eq!(stream.commands(&server), [""; 0]);
    }
    assert_eq!(commands_in_aof(&server), all);
}

/// A master whose clock stands still, so that nothing expires during a comparison.
fn master(settings: &[(&str, &str)]) -> Server {
    Server::with_clock_at(NOW, settings)
}

#[test]
fn replicas_and_their_replicas_hold_what_the_master_holds() {
    let master = master(&[]);
    let replica = Server::replica_of(&master, &[]);
    let replicas_replica = Server::replica_of(&replica, &[]);
    let mut connection = master.connect();
    for seed in 1..=5 {
        send(&mut connection, &Traffic::of(seed).lines(2_000));
        assert_same(&master, &replica);
        assert_same(&master, &replicas_replica);
    }
    redis::cmd("RL.LOG")
        .arg(b"any bytes \0\r\n\xff")
        .arg("9")
        .arg("1h")
        .exec(&mut connection)
        .expect("counted");
    wait_for("the key", || replicas_replica.digest() == master.digest());
}

#[test]
fn the_append_only_file_gets_the_commands_that_replicas_get() {
    let mut server = master(&APPEND_ONLY);
    let mut stream = ReplicationStream::of(&server);
    send(&mut server.connect(), &Traffic::of(6).lines(3_000));
    let digest = server.digest();
    assert_eq!(commands_in_aof(&server), stream.commands(&server));
    server.crash_and_restart();
    assert_eq!(server.digest(), digest);
}

#[test]
fn a_rewritten_append_only_file_holds_everything_that_was_counted() {
    let mut server = Server::with(&[("appendonly", "yes"), ("aof-use-rdb-preamble", "no")]);
    for seed in 11..=15 {
        send(&mut server.connect(), &Traffic::of(seed).lines_with_at(1_000));
        let digest = server.digest();
        server.value("BGREWRITEAOF");
        server.wait_for_rewrite();
        server.restart();
        assert_eq!(server.digest(), digest);
    }
}

#[test]
fn the_append_only_file_of_a_replica_holds_the_same_effects() {
    let master = master(&[]);
    let mut stream = ReplicationStream::of(&master);
    let mut replica = Server::replica_of(&master, &APPEND_ONLY);
    replica.wait_for_rewrite();
    send(&mut master.connect(), &Traffic::of(7).lines_with_at(3_000));
    assert_same(&master, &replica);
    assert_eq!(commands_in_aof(&replica), stream.commands(&master));
    replica.crash_and_restart();
    assert_eq!(replica.digest(), master.digest());
}

/// Runs `meanwhile` under random traffic on other connections, which goes on a little after it.
fn amid_traffic<T>(server: &Server, seed: u64, meanwhile: impl FnOnce() -> T) -> T {
    /// Ends the traffic even if `meanwhile` panics.
    struct Over<'a>(&'a AtomicBool);
    impl Drop for Over<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        for connection in 0..2 {
            let over = &over;
            scope.spawn(move || {
                let (mut connection, mut traffic) = (server.connect(), Traffic::of(seed + connection));
                while !over.load(Ordering::Relaxed) {
                    send(&mut connection, &traffic.lines(50));
                }
                send(&mut connection, &traffic.lines(500));
            });
        }
        wait_for("some keys", || server.integer("DBSIZE") > 10);
        let _over = Over(&over);
        meanwhile()
    })
}

#[test]
fn a_first_replica_that_joins_under_traffic_ends_up_equal() {
    // Whether the snapshot is sent without a file, how it is loaded, and whether it comes on its own
    // connection, where the server supports that.
    let ways = [
        ("no", "disabled", "no"),
        ("yes", "disabled", "no"),
        ("yes", "swapdb", "no"),
        ("yes", "disabled", "yes"),
    ];
    for (seed, (diskless, load, own_connection)) in (100..).zip([ways, ways].concat()) {
        // This master has had no replica before.
        let master = master(&[("repl-diskless-sync", diskless)]);
        let replica = Server::with_clock_at(LATER, &[("repl-diskless-load", load)]);
        for setting in ["repl-rdb-channel", "dual-channel-replication-enabled"] {
            for server in [&master, &replica] {
                let _ = server.call(&format!("CONFIG SET {setting} {own_connection}"));
            }
        }
        amid_traffic(&master, seed, || replica.follow(&master));
        assert_same(&master, &replica);
    }
}

#[test]
fn a_replica_that_is_disconnected_under_traffic_catches_up() {
    let master = master(&[("repl-backlog-size", "100mb")]);
    let replica = Server::replica_of(&master, &[]);
    amid_traffic(&master, 200, || {
        for times in 1..=5 {
            master.value("CLIENT KILL TYPE replica");
            wait_for("the replica to be back", || master.info("sync_partial_ok") == times.to_string());
        }
    });
    assert_eq!(master.info("sync_full"), "1", "only what it missed was sent");
    assert_same(&master, &replica);
}

#[test]
fn a_replica_can_join_a_promoted_replica_under_traffic() {
    let master = master(&[]);
    let replica = Server::replica_of(&master, &[]);
    send(&mut master.connect(), &Traffic::of(300).lines(500));
    assert_same(&master, &replica);
    replica.value("REPLICAOF NO ONE");
    replica.set_clock(NOW);
    master.set_clock(LATER);
    amid_traffic(&replica, 301, || {
        master.follow(&replica);
    });
    assert_same(&replica, &master);
}

#[test]
fn an_append_only_file_turned_on_under_traffic_holds_everything() {
    for seed in [400, 500, 600] {
        let server = Server::with(&[("appendfsync", "always")]);
        amid_traffic(&server, seed, || {
            for setting in ["yes", "no", "yes"] {
                server.value(&format!("CONFIG SET appendonly {setting}"));
                server.wait_for_rewrite();
            }
        });
        server.value("DEBUG SET-ACTIVE-EXPIRE 0");
        let before = server.digest();
        server.value("DEBUG LOADAOF");
        assert_eq!(server.digest(), before);
    }
}

#[test]
fn counting_is_a_change_for_the_next_snapshot_even_without_replicas() {
    let server = Server::start();
    for (line, changes) in [
        ("RL.FIXED k 2 10s AT 0", 1),
        ("RL.FIXED k 2 10s AT 0", 2),
        ("RL.FIXED k 2 10s AT 0", 2),
        ("RL.FIXED k 2 10s COST -1 AT 0", 3),
        ("RL.FIXED k 2 10s COST 0 AT 0", 3),
        ("RL.PEEK k 2 10s AT 0", 3),
    ] {
        server.value(line);
        assert_eq!(server.info("rdb_changes_since_last_save"), changes.to_string(), "{line}");
    }
}

#[test]
fn a_replica_replies_to_peeks_like_its_master_and_refuses_to_count() {
    let master = master(&[]);
    let replica = Server::replica_of(&master, &[]);
    let mut traffic = Traffic::of(9);
    send(&mut master.connect(), &traffic.lines_with_at(2_000));
    assert_same(&master, &replica);
    let keys: Vec<String> = command("KEYS *").query(&mut master.connect()).expect("KEYS");
    for key in &keys {
        for (pairs, after) in [("5 10s", 0), ("9 1m COST 9", 1), ("50 1h 400 1d", 5_000), ("1 3650d", 0)] {
            let peek = format!("RL.PEEK {key} {pairs} AT {}", traffic.now + after);
            assert_eq!(replica.figures(&peek), master.figures(&peek), "{peek}");
        }
    }
    for name in COMMANDS {
        let key = keys.iter().find(|key| key.contains(name)).expect("such a key");
        for key in [key, "new"] {
            for request in ["", "COST 0", "COST -1", "FORCE"] {
                let error = replica.error(&format!("{name} {key} 5 10s {request}"));
                assert!(error.starts_with("READONLY "), "{error}");
            }
        }
    }
    assert_same(&master, &replica);
}

#[test]
fn a_promoted_replica_keeps_counting_as_its_master_would_have() {
    let master = master(&[]);
    let replica = Server::replica_of(&master, &[]);
    let mut traffic = Traffic::of(10);
    send(&mut master.connect(), &traffic.lines(2_000));
    assert_same(&master, &replica);
    replica.value("REPLICAOF NO ONE");
    replica.set_clock(NOW);
    let lines = traffic.lines_with_at(3_000);
    let [by_master, by_replica] = [&master, &replica].map(|server| send(&mut server.connect(), &lines));
    for ((line, expected), reply) in lines.iter().zip(by_master).zip(by_replica) {
        assert_eq!(reply, expected, "{line}");
    }
    assert_eq!(replica.digest(), master.digest());
}

#[test]
fn the_master_deletes_an_expired_key_on_its_replica() {
    // By DEL on every server, even where the default is UNLINK.
    let master = Server::with(&[("lazyfree-lazy-expire", "no")]);
    let mut stream = ReplicationStream::of(&master);
    let replica = Server::replica_of(&master, &[]);
    for name in COMMANDS {
        master.value(&format!("{name} k 5 1ms"));
        wait_for("the key to expire", || master.integer("DBSIZE") == 0);
        // On its own the replica would have kept it for a minute.
        wait_for("the replica's key to be deleted", || replica.integer("DBSIZE") == 0);
        let sent = stream.commands(&master);
        assert!(sent[0].starts_with(&format!("{name} k 5 1ms FORCE AT ")), "{sent:?}");
        assert_eq!(sent[1..], ["DEL k"]);
    }
}

#[test]
fn a_key_restored_without_a_time_to_live_gets_one_on_every_copy_when_it_counts() {
    let mut master = Server::with(&APPEND_ONLY);
    let replica = Server::replica_of(&master, &[]);
    let mut connection = master.connect();
    for name in COMMANDS {
        master.value(&format!("{name} {name} 5 3650d"));
        let payload: Vec<u8> = redis::cmd("DUMP").arg(name).query(&mut connection).expect("a payload");
        let restore =
            redis::cmd("RESTORE").arg(name).arg(0).arg(payload).arg("REPLACE").exec(&mut connection);
        restore.expect("RESTORE");
        assert_eq!(master.integer(&format!("PTTL {name}")), -1);
        master.value(&format!("{name} {name} 5 3650d"));
    }
    wait_for("the requests", || replica.digest() == master.digest());
    master.restart();
    for name in COMMANDS {
        for server in [&master, &replica] {
            assert!(server.integer(&format!("PTTL {name}")) > 0, "{name}");
        }
    }
}
