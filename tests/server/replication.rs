//! What replicas and the append-only file are sent, and that they hold the same as the master.

use std::collections::BTreeMap;
use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use crate::helpers::expiries::restore;
use crate::helpers::requests::{effect, letter};
use crate::helpers::traffic::{LATER, NOW, Traffic, assert_same, send};
use harness::{
    APPEND_ONLY, COMMANDS, PATIENCE, ReplicationStream, Server, command, commands_in_aof, newest_part,
    pipeline, wait_for, without_expiry,
};

/// Commands in order, and what each sends to replicas. X stands for an algorithm, A for its letter, Y for another one.
const SENT: &[(&str, &str)] = &[
    // Counted: with its time, and its cost if that is not 1.
    ("RL.X k 5 10s AT 15000", "RL.APPLY k A:15000/10s"),
    ("rl.x k 5 10S cost 1 at 15000", "RL.APPLY k A:15000/10s"),
    ("RL.X k 5 10s 50 1M AT 15001 COST 2", "RL.APPLY k A2:15001/10s/1m"),
    ("RL.X {any}:key! 5 10 AT 0", "RL.APPLY {any}:key! A:0/10s"),
    // Before the newest time: as of the time given.
    ("RL.X k 5 10s AT 3", "RL.APPLY k A:3/10s"),
    // Limited, by any tier.
    ("RL.X k 5 10s AT 15002", ""),
    ("RL.X k 5 10s 1 1m 99 1h AT 15002", ""),
    ("RL.X k 5 10s COST 9007199254740991 AT 15002", ""),
    ("RL.X new 0 10s AT 15002", ""),
    // Limited, but counted.
    ("RL.X k 5 10s FORCE AT 15002", "RL.APPLY k A:15002/10s"),
    ("RL.X k 5 10s AT 15002 FORCE COST 5", "RL.APPLY k A5:15002/10s"),
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
    // Refunded: with what was there to give back.
    ("RL.X k 5 10s COST -2 AT 15004", "RL.APPLY k A-2:15004/10s"),
    ("RL.X k 5 10s COST -1 FORCE AT 15004", "RL.APPLY k A-1:15004/10s"),
    ("RL.X new 5 10s COST -1 AT 15004", ""),
    ("RL.X k 5 10s COST -1 AT 99000", ""),
    // The last unit that counted.
    ("RL.X {any}:key! 5 10 COST -99 AT 0", "RL.APPLY {any}:key! DEL"),
    ("RL.X {any}:key! 5 10 COST -99 AT 0", ""),
];

/// The calls of `SENT` for an algorithm.
fn calls(name: &str) -> impl Iterator<Item = (String, String)> {
    let other = COMMANDS[usize::from(name == COMMANDS[0])];
    SENT.iter().map(move |row| {
        let call = row.0.replace("RL.X", name).replace("RL.Y", other).replace("rl.x", &name.to_lowercase());
        let sent = row.1.replace(" A", &format!(" {}", letter(name)));
        // Each window of the calls has one limit.
        let with_limits = || sent.replace("/10s", "/5/10s").replace("/1m", "/50/1m");
        (call, if name == "RL.BUCKET" { with_limits() } else { sent })
    })
}

/// When each limiter expires.
fn expiries(server: &Server) -> BTreeMap<String, i64> {
    let keys: Vec<String> = command("KEYS *").query(&mut server.connect()).expect("KEYS");
    let expiry = |key: String| {
        let expires_at = server.integer(&format!("PEXPIRETIME {key}"));
        (key, expires_at)
    };
    keys.into_iter().filter(|key| key != "text").map(expiry).collect()
}

/// Asserts that these commands tell of each expiry that has moved since `before`, and of no other.
#[track_caller]
fn assert_told(before: &BTreeMap<String, i64>, commands: &[String], after: &BTreeMap<String, i64>) {
    let mut told = before.clone();
    for command in commands {
        let words: Vec<&str> = command.split(' ').collect();
        for pair in words[1..].chunks_exact(2) {
            if pair[1] == "DEL" {
                told.remove(pair[0]);
            } else if let Some((_, at)) = pair[1].split_once('>') {
                let before = told.insert(pair[0].to_owned(), at.parse().expect("a time"));
                assert_ne!(before, told.get(pair[0]).copied(), "{command}: it has moved");
            }
        }
    }
    assert_eq!(told, *after, "{commands:?}");
}

#[test]
fn counted_requests_are_replicated_with_their_time_and_others_are_not() {
    for name in COMMANDS {
        let server = Server::with(&APPEND_ONLY);
        let mut stream = ReplicationStream::of(&server);
        server.value("SET text 1");
        let mut all = vec!["SET text 1".to_owned()];
        assert_eq!(stream.commands(&server), all);
        for (call, expected) in calls(name) {
            let before = expiries(&server);
            let _ = server.call(&call);
            let expected: Vec<String> =
                Some(expected).filter(|expected| !expected.is_empty()).into_iter().collect();
            let sent = stream.commands(&server);
            assert_eq!(without_expiry(&sent), expected, "{call}");
            assert_told(&before, &sent, &expiries(&server));
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
    let server = master(&[]);
    let mut stream = ReplicationStream::of(&server);
    for name in COMMANDS {
        for units in ["", "3", "-2"] {
            let cost = if units.is_empty() { "1" } else { units };
            server.value(&format!("{name} {name} 5 3650d COST {cost}"));
            let told = effect(name, 5, &format!("{units}:{NOW}/3650d"));
            assert_eq!(without_expiry(&stream.commands(&server)), [format!("RL.APPLY {name} {told}")]);
        }
    }
}

#[test]
fn a_request_to_a_saturated_count_replicates_nothing() {
    let server = Server::start();
    let mut stream = ReplicationStream::of(&server);
    for name in COMMANDS {
        let fill = format!("{name} {name} 5 10s COST 9007199254740991 FORCE AT 15000");
        // 2^63 - 1 is 1024 times 2^53 - 1, plus 1023.
        pipeline(vec![&fill; 1_030]).exec(&mut server.connect()).expect("replies");
        let effect =
            |units: i64| format!("RL.APPLY {name} {}", effect(name, 5, &format!("{units}:15000/10s")));
        // Of a bucket, two are missing.
        let filled = match name {
            "RL.BUCKET" => vec![effect(10)],
            _ => [vec![effect(9_007_199_254_740_991); 1_024], vec![effect(1_023)]].concat(),
        };
        assert!(without_expiry(&stream.commands(&server)) == filled, "{name}");
        server.value(&format!("{name} {name} 5 10s FORCE AT 15000"));
        assert_eq!(stream.commands(&server), [""; 0]);
        let refund = format!("{name} {name} 5 10s COST -1 FORCE AT 15000");
        pipeline([&refund, &fill, &fill]).exec(&mut server.connect()).expect("replies");
        let filled = effect(1).replace("1:", ":");
        assert_eq!(without_expiry(&stream.commands(&server)), [effect(-1), filled]);
    }
}

#[test]
fn transactions_scripts_and_functions_send_what_their_commands_count_in_one_transaction() {
    let server = Server::with(&APPEND_ONLY);
    let (mut stream, mut connection) = (ReplicationStream::of(&server), server.connect());
    let mut all = Vec::new();
    for name in COMMANDS {
        let kind = &name[3..];
        let limited = [
            format!("{name} a 5 10s COST 4 AT 15000"),
            "RL.PEEK a 5 10s AT 15000".to_owned(),
            format!("RL.ALL a {kind} 1 10s 1 b {kind} 5 10s 2 AT 15000"),
        ];
        let counted = [
            format!("{name} a 5 10s COST 1 AT 15000"),
            format!("{name} a 5 10s COST -2 AT 15000"),
            format!("RL.ALL a {kind} 5 10s 1 b {kind} 5 10s 2 AT 15000"),
        ];
        let calls = [&limited[..1], &limited, &counted, &limited[2..]].concat();
        let effect = |told| effect(name, 5, told);
        let sent = [
            "MULTI".to_owned(),
            format!("RL.APPLY a {}", effect("4:15000/10s")),
            format!("RL.APPLY a {}", effect(":15000/10s")),
            format!("RL.APPLY a {}", effect("-2:15000/10s")),
            format!("RL.APPLY a {} b {}", effect(":15000/10s"), effect("2:15000/10s")),
            "EXEC".to_owned(),
        ];
        let script: String =
            calls.iter().map(|call| format!("redis.call('{}')\n", call.replace(' ', "','"))).collect();
        let library = format!("#!lua name=calls\nredis.register_function('calls', function() {script} end)");
        command("FUNCTION LOAD REPLACE").arg(library).exec(&mut connection).expect("FUNCTION LOAD");
        let (mut transaction, mut eval, mut function) = (pipeline(&calls), redis::pipe(), redis::pipe());
        transaction.atomic();
        eval.cmd("EVAL").arg(script).arg(0);
        function.cmd("FCALL").arg("calls").arg(0);
        for way in [transaction, eval, function] {
            all.extend(stream.commands(&server));
            way.exec(&mut connection).expect("all are called");
            let commands = stream.commands(&server);
            assert_eq!(without_expiry(&commands), sent);
            all.extend(commands);
            server.value("DEL a b");
        }
        all.extend(stream.commands(&server));
        // A transaction of limited requests sends nothing.
        pipeline(["RL.LOG none 0 10s", "RL.PEEK none 5 10s"]).atomic().exec(&mut connection).expect("EXEC");
        assert_eq!(stream.commands(&server), [""; 0]);
    }
    assert_eq!(commands_in_aof(&server), all);
}

/// Calls of RL.ALL in order, and what each sends.
const SENT_BY_ALL: &[(&str, &str)] = &[
    ("RL.ALL a FIXED 5 10s 1 AT 15000", "RL.APPLY a F:15000/10s"),
    ("rl.all a fixed 5 10S 2 b LOG 9 1M 1 at 15000", "RL.APPLY a F2:15000/10s b L:15000/1m"),
    // Rows of one key go together.
    (
        "RL.ALL s SLIDING 9 1m 3 b LOG 9 1M 1 s SLIDING 50 1h 3 AT 15001",
        "RL.APPLY s S3:15001/1m/1h b L:15001/1m",
    ),
    // Only what changed.
    ("RL.ALL a FIXED 9 10s 0 b LOG 9 1M 1 new LOG 9 1m -1 AT 15002", "RL.APPLY b L:15002/1m"),
    ("RL.ALL a FIXED 9 10s 0 b LOG 9 1M 0 new LOG 9 1m -1 AT 15002", ""),
    // Limited by one of them, or an error.
    ("RL.ALL a FIXED 3 10s 1 b LOG 9 1M 1 AT 15002", ""),
    ("RL.ALL b LOG 9 1M 1 new FIXED 0 10s 1 AT 15002", ""),
    ("RL.ALL b LOG 9 1M 1 a SLIDING 9 10s 1 FORCE AT 15002", ""),
    ("RL.ALL b LOG 9 1M 1 text LOG 9 10s 1 FORCE AT 15002", ""),
    ("RL.ALL b LOG 9 1M 1 a FIXED 9 10s 1 FORCE FORCE", ""),
    ("RL.ALL b LOG 9 1M 1 a FIXED 9 10s", ""),
    // Limited, but counted.
    ("RL.ALL a FIXED 3 10s 1 b LOG 9 1M 1 FORCE AT 15002", "RL.APPLY a F:15002/10s b L:15002/1m"),
    // Refunded, which empties one of them.
    ("RL.ALL a FIXED 3 10s -99 b LOG 9 1M -1 AT 15002", "RL.APPLY a DEL b L-1:15002/1m"),
];

#[test]
fn rl_all_replicates_one_command_for_all_keys_that_changed() {
    let mut server = master(&APPEND_ONLY);
    let mut stream = ReplicationStream::of(&server);
    let replica = Server::replica_of(&server, &[]);
    server.value("SET text 1");
    let mut all = vec!["SET text 1".to_owned()];
    assert_eq!(stream.commands(&server), all);
    for (call, expected) in SENT_BY_ALL {
        let (before, written) = (server.digest(), server.info("aof_current_size"));
        let expiries_before = expiries(&server);
        let _ = server.call(call);
        assert_eq!(server.digest() == before, expected.is_empty(), "{call}");
        assert_eq!(server.info("aof_current_size") == written, expected.is_empty(), "{call}");
        let sent = stream.commands(&server);
        assert_eq!(without_expiry(&sent).join(" "), *expected, "{call}");
        assert_told(&expiries_before, &sent, &expiries(&server));
        all.extend(sent);
        server.step_clock(1);
    }
    assert_eq!(commands_in_aof(&server), all);
    replica.wait_to_catch_up(&server);
    let digest = server.digest();
    assert_eq!(replica.digest(), digest);
    server.crash_and_restart();
    assert_eq!(server.digest(), digest);
}

#[test]
fn without_at_rl_all_replicates_its_one_time() {
    let server = master(&[]);
    let mut stream = ReplicationStream::of(&server);
    server.value("RL.ALL f FIXED 9 3650d 1 s SLIDING 9 3650d 2 l LOG 9 3650d 1");
    server.step_clock(1);
    server.value("RL.ALL f FIXED 9 3650d -1 s SLIDING 9 3650d 0 l LOG 9 3650d -1");
    assert_eq!(
        without_expiry(&stream.commands(&server)),
        [
            format!("RL.APPLY f F:{NOW}/3650d s S2:{NOW}/3650d l L:{NOW}/3650d"),
            "RL.APPLY f DEL l DEL".to_owned(),
        ]
    );
}

#[test]
fn an_append_only_file_cut_at_any_byte_never_holds_half_of_rl_all_not_even_after_a_second_crash() {
    const CALL: &str = "RL.ALL a FIXED 9 1h 1 b LOG 9 1h 1 c SLIDING 9 1h 1 c SLIDING 20 1d 1";
    let mut server = master(&[&APPEND_ONLY[..], &[("aof-load-truncated", "yes")]].concat());
    let mut digests = vec![server.digest()];
    for _ in 0..3 {
        server.value(CALL);
        digests.push(server.digest());
    }
    server.kill();
    let whole = fs::read(newest_part(server.folder())).expect("the file");
    let begins: Vec<usize> =
        (0..whole.len()).filter(|at| whole[*at..].starts_with(b"*7\r\n$8\r\nRL.APPLY")).collect();
    let [_, second, third] = begins[..] else { panic!("{begins:?} are not three commands") };
    for end in second..=third {
        fs::write(newest_part(server.folder()), &whole[..end]).expect("a file to write to");
        server.relaunch();
        let loaded = 1 + usize::from(end == third);
        assert_eq!(server.digest(), digests[loaded], "{end} of {second} to {third} bytes");
        server.value(CALL);
        server.crash_and_restart();
        assert_eq!(server.digest(), digests[loaded + 1], "{end} of {second} to {third} bytes, after a crash");
        server.kill();
    }
}

#[test]
fn what_is_counted_after_a_cut_transaction_was_loaded_and_the_file_rewritten_survives_a_crash() {
    let transaction = |server: &Server| {
        pipeline(["RL.LOG a 9 1h", "RL.LOG b 9 1h"]).atomic().exec(&mut server.connect()).expect("EXEC");
    };
    // The server writes the deletion of the key and the effect as a transaction of its own.
    let request_that_finds_its_key_expired = |server: &Server| {
        server.value("RL.LOG a 9 1h");
        server.value("PEXPIRE a 1");
        server.step_clock(2);
        server.value("RL.LOG a 9 1h");
    };
    survives_a_cut_and_a_crash(transaction);
    survives_a_cut_and_a_crash(request_that_finds_its_key_expired);
}

/// Cuts the append-only file inside the transaction that `write` ends it with.
#[track_caller]
fn survives_a_cut_and_a_crash(write: impl Fn(&Server)) {
    let mut server = master(&APPEND_ONLY);
    write(&server);
    server.kill();
    assert!(commands_in_aof(&server).last().is_some_and(|last| last == "EXEC"), "no transaction at its end");
    let whole = fs::read(newest_part(server.folder())).expect("the file");
    // In the middle of a command: at its edge, every server drops the whole transaction from the file.
    let last = whole.windows(8).rposition(|bytes| bytes == b"RL.APPLY").expect("its last command");
    fs::write(newest_part(server.folder()), &whole[..last]).expect("a file to write to");
    server.relaunch();
    server.rewrite_if_cut();
    server.value("RL.ALL c FIXED 9 1h 1 d LOG 9 1h 1");
    server.value("RL.SLIDING e 9 1h");
    let before = server.digest();
    server.crash_and_restart();
    assert_eq!(server.digest(), before);
}

#[test]
fn each_refusing_key_publishes_one_event_and_replicas_publish_and_decide_nothing() {
    let settings = [("notify-keyspace-events", "KEA")];
    let master = Server::with(&settings);
    let replica = Server::replica_of(&master, &settings);
    for cost in [1, 0, -1] {
        let error = replica.error(&format!("RL.ALL a FIXED 1 1h {cost} b LOG 1 1h {cost}"));
        assert!(error.starts_with("READONLY "), "{error}");
    }
    let [mut to_master, mut to_replica] = [master.connect(), replica.connect()];
    let [mut of_master, mut of_replica] = [to_master.as_pubsub(), to_replica.as_pubsub()];
    for events in [&mut of_master, &mut of_replica] {
        events.psubscribe("__keyevent*__:*").expect("a subscription");
        events.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    }
    let until_end = |events: &mut redis::PubSub| {
        let mut seen = Vec::new();
        loop {
            let message = events.get_message().expect("an event");
            let event = message.get_channel_name().split_once(':').expect("an event").1;
            let key: String = message.get_payload().expect("a key");
            if key == "end" {
                return seen;
            }
            if event.starts_with("rl.") || event == "del" {
                seen.push(format!("{event} {key}"));
            }
        }
    };
    for (call, of_master_, of_replica_) in [
        ("RL.ALL a FIXED 1 1h 1 b LOG 1 1h 1 c SLIDING 9 1h 1 AT 0", &[][..], &[][..]),
        (
            "RL.ALL a FIXED 1 1h 1 a FIXED 1 2h 1 b LOG 1 1h 1 c SLIDING 9 1h 1 AT 0",
            &["rl.limited a", "rl.limited b"],
            &[],
        ),
        (
            "RL.ALL c SLIDING 9 1h 1 b LOG 1 1h 1 a FIXED 1 1h 1 FORCE AT 0",
            &["rl.limited b", "rl.limited a"],
            &[],
        ),
        ("RL.FIXED a 1 1h FORCE AT 0", &["rl.limited a"], &[]),
        ("RL.ALL a FIXED 9 1h 0 b LOG 0 1h 0 AT 0", &[], &[]),
        ("RL.ALL c SLIDING 0 1h 1 new LOG 0 1h 1 AT 0", &["rl.limited c", "rl.limited new"], &[]),
        ("RL.ALL a FIXED 0 1h -1 c SLIDING 0 1h -99 AT 0", &["del c"], &["del c"]),
    ] {
        master.value(call);
        master.value("SET end 1");
        assert_eq!(until_end(&mut of_master), of_master_, "{call}");
        assert_eq!(until_end(&mut of_replica), of_replica_, "{call} on a replica");
    }
}

/// A master with a clock that stands still, so that nothing expires during a comparison.
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

/// Runs `meanwhile` under random traffic on other connections, which ends a little later.
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
fn a_replica_that_resumes_after_its_master_was_restarted_from_a_snapshot_ends_up_equal() {
    // Each saves a snapshot when it shuts down, and does not wait for the frozen replica.
    let settings = [("save", "3600 1"), ("shutdown-timeout", "0"), ("repl-ping-replica-period", "3600")];
    let mut master = master(&settings);
    let replica = Server::replica_of(&master, &[]);
    let mut traffic = Traffic::of(800);
    send(&mut master.connect(), &traffic.lines(500));
    replica.wait_to_catch_up(&master);
    replica.freeze();
    master.restart();
    // Nobody is connected, but the snapshot brought a backlog that the replica will resume from.
    assert_eq!(["connected_slaves", "repl_backlog_active"].map(|field| master.info(field)), ["0", "1"]);
    send(&mut master.connect(), &traffic.lines(500));
    replica.thaw();
    wait_for("the replica to be back", || master.info("connected_slaves") == "1");
    assert_eq!(master.info("sync_partial_ok"), "1", "only what it missed was sent");
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
fn an_append_only_file_stays_exact_if_the_configuration_is_changed_while_it_is_loaded() {
    // Microseconds for each command in the file; the server accepts others after every 1,024.
    let slowly = ("key-load-delay", "500");
    let mut server = Server::with_clock_at(NOW, &[&APPEND_ONLY[..], &[slowly]].concat());
    send(&mut server.connect(), &vec!["RL.FIXED loaded 9 1m FORCE".to_owned(); 3_000]);
    let port = server.port();
    let changes = thread::spawn(move || {
        let client = redis::Client::open(("127.0.0.1", port)).expect("an address");
        let mut loading = None;
        wait_for("the server to load", || {
            let Ok(mut connection) = client.get_connection() else { return false };
            loading = harness::info(&mut connection, "loading").ok().flatten();
            loading.as_deref() == Some("1")
                && command("CONFIG SET key-load-delay 0").exec(&mut connection).is_ok()
        });
    });
    server.crash_and_restart();
    changes.join().expect("the setting is changed while the server loads");
    for name in COMMANDS {
        server.value(&format!("{name} {name} 9 1h"));
    }
    let before = server.digest();
    // The file holds the time of each decision: nothing is decided again.
    server.step_clock(3_600_000);
    server.value("DEBUG LOADAOF");
    assert_eq!(server.digest(), before);
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
fn a_replica_refuses_to_count() {
    let master = master(&[]);
    let replica = Server::replica_of(&master, &[]);
    for name in COMMANDS {
        master.value(&format!("{name} {name} 5 10s"));
        for key in [name, "new"] {
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
fn a_key_restored_without_a_time_to_live_gets_one_on_every_copy_at_once() {
    let mut master = Server::with(&APPEND_ONLY);
    let replica = Server::replica_of(&master, &[]);
    for name in COMMANDS {
        master.value(&format!("{name} {name} 1000000 3649d"));
        restore(&master, name, 0);
    }
    for (request, has_time_to_live) in [("1000000 3649d", false), ("1000000 3650d", true)] {
        for name in COMMANDS {
            master.value(&format!("{name} {name} {request}"));
        }
        wait_for("the requests", || replica.digest() == master.digest());
        for restarted in [false, true] {
            if restarted {
                master.restart();
            }
            for name in COMMANDS {
                for server in [&master, &replica] {
                    let expires = server.integer(&format!("PTTL {name}")) > 0;
                    assert_eq!(expires, has_time_to_live, "{name} {request}");
                }
            }
        }
    }
}
