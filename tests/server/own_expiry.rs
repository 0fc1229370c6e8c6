//! A time to live that a user sets: EXPIRE, PERSIST, RESTORE.

use harness::{APPEND_ONLY, COMMANDS, ReplicationStream, Server, command, pipeline, wait_for};
use redis::Value;

use crate::helpers::expiries::{assert_copy, expiries, keys, restore};

/// Ten seconds before the end of an hour, and of an eighth of one.
const BEFORE_THE_HOUR: i64 = 1_700_002_800_000 - 10_000;

/// How long a key lives, at least, that counts a unit in an hour's window a second after the hour has begun. A
/// bucket lives until it is full, in steps of an eighth of its window.
fn next_end_ms(name: &str) -> i64 {
    if name == "RL.BUCKET" { 448_000 } else { 3_598_000 }
}

#[test]
fn a_shorter_expire_holds_until_a_request_needs_the_key_longer() {
    for name in COMMANDS {
        let server = Server::with_clock_at(BEFORE_THE_HOUR, &[]);
        server.value(&format!("{name} k 1000 1h"));
        server.value("EXPIRE k 20");
        server.value(&format!("{name} k 1000 1h"));
        assert_eq!(
            server.integer("PTTL k"),
            20_000,
            "{name}: nothing in the key counts for longer than before"
        );
        server.step_clock(11_000);
        server.value(&format!("{name} k 1000 1h COST 0"));
        assert_eq!(server.integer("PTTL k"), 9_000, "{name}: only what is counted needs the key");
        server.value(&format!("{name} k 1000 1h"));
        assert!(server.integer("PTTL k") >= next_end_ms(name), "{name}: the next unit needs it longer");
    }
}

#[test]
fn a_longer_expire_is_never_shortened() {
    for name in COMMANDS {
        let server = Server::with_clock_at(BEFORE_THE_HOUR, &[]);
        server.value(&format!("{name} k 9 1h"));
        server.value("EXPIRE k 100000");
        for options in ["", "AT 1700002790000", "COST -1", "COST 9 FORCE"] {
            server.value(&format!("{name} k 9 1h {options}"));
            assert_eq!(server.integer("PTTL k"), 100_000_000, "{name} {options}");
        }
    }
}

/// What happens to a master and its replica.
type Happens = fn(&mut Server, &mut Server);

/// What may happen to a master, after which it does not know where the time to live of its keys came from.
const PASTS: [(&str, Happens); 4] = [
    ("nothing", |_, _| {}),
    ("it loads a snapshot", |master, _| _ = master.value("DEBUG RELOAD")),
    ("it restarts, and the replica resumes", |master, replica| {
        replica.wait_to_catch_up(master);
        replica.freeze();
        master.restart();
        replica.thaw();
        wait_for("the replica to be back", || master.info("connected_slaves") == "1");
        assert_eq!(master.info("sync_partial_ok"), "1", "only what it missed was sent");
    }),
    ("it was the replica, and took over", |master, replica| {
        replica.wait_to_catch_up(master);
        wait_for("the master to hand over", || {
            let _ = master.call("FAILOVER TIMEOUT 5000");
            replica.info("role") == "master"
        });
        std::mem::swap(master, replica);
        wait_for("the old master to follow", || replica.info("master_link_status") == "up");
    }),
];

/// A master that saves a snapshot when it shuts down, its replica, and the replica's replica.
fn chain() -> [Server; 3] {
    let settings = [("save", "3600 1"), ("shutdown-timeout", "0"), ("repl-ping-replica-period", "3600")];
    let master = Server::with_clock_at(BEFORE_THE_HOUR, &settings);
    let replica = Server::replica_of(&master, &settings);
    let last = Server::replica_of(&replica, &settings);
    [master, replica, last]
}

#[test]
fn a_key_ends_at_the_same_millisecond_on_every_copy_whatever_its_masters_past() {
    for (past, happens) in PASTS {
        let [mut master, mut replica, last] = chain();
        for name in COMMANDS {
            master.value(&format!("{name} {name} 100 1d COST 50"));
        }
        happens(&mut master, &mut replica);
        for name in COMMANDS {
            master.value(&format!("EXPIRE {name} 2"));
            master.value(&format!("{name} {name} 100 1d"));
        }
        assert_copy(&master, &replica, past);
        assert_copy(&master, &last, past);
        // Where the key is still there, all its units are.
        replica.value("REPLICAOF NO ONE");
        for server in [&master, &replica] {
            server.step_clock(2_300);
        }
        for name in COMMANDS {
            let peek = format!("RL.PEEK {name} 100 1d");
            assert_eq!(replica.figures(&peek), master.figures(&peek), "{name}, {past}");
        }
    }
}

#[test]
fn giving_back_moves_no_time_to_live() {
    let [master, replica, last] = chain();
    for (name, at) in COMMANDS.into_iter().flat_map(|name| [(name, 0), (name, BEFORE_THE_HOUR)]) {
        let at = if at > 0 { format!("AT {at}") } else { String::new() };
        let kind = &name[3..];
        for back in [format!("{name} k 9 1h COST -1 {at}"), format!("RL.ALL k {kind} 9 1h -1 {at}")] {
            master.value("DEL k");
            master.value(&format!("{name} k 9 1h COST 5"));
            master.value("PERSIST k");
            master.value(&back);
            assert_eq!(master.integer("PTTL k"), -1, "{back}: it stays after PERSIST");
            master.value("PEXPIRE k 5000");
            master.value(&back);
            assert_eq!(master.integer("PTTL k"), 5_000, "{back}: shorter than its units count");
            restore(&master, "k", 4_000);
            master.value(&back);
            assert_eq!(master.integer("PTTL k"), 4_000, "{back}: restored");
            assert_copy(&master, &replica, &back);
            assert_copy(&master, &last, &back);
            master.value(&format!("{name} k 9 1h"));
            assert!(master.integer("PTTL k") > 4_000, "{back}: the next unit needs it longer");
        }
    }
}

#[test]
fn giving_back_ahead_of_the_clock_leaves_a_restored_key_the_same_time_on_every_copy() {
    let [master, replica, last] = chain();
    for name in COMMANDS {
        let ahead = master.clock_ms() + 3_600_000;
        master.value(&format!("{name} {name} 9 1h COST 5 AT {ahead}"));
        restore(&master, name, 5_000);
        master.value(&format!("{name} {name} 9 1h COST -1"));
        assert_eq!(master.integer(&format!("PTTL {name}")), 5_000, "{name}");
        assert_copy(&master, &replica, name);
        assert_copy(&master, &last, name);
    }
}

#[test]
fn loading_an_append_only_file_lengthens_no_time_to_live() {
    let mut master = Server::with_clock_at(BEFORE_THE_HOUR, &APPEND_ONLY);
    for name in COMMANDS {
        master.value(&format!("{name} {name}:hour 9 1h"));
        master.value(&format!("{name} {name}:year 9 365d"));
        master.value(&format!("{name} {name}:at 9 365d AT {BEFORE_THE_HOUR}"));
    }
    // Three times the hour, and most of the year.
    for ms in [3 * 3_600_000, 364 * 24 * 3_600_000] {
        master.step_clock(ms);
        let before = keys(&master);
        assert_eq!(before.len(), if ms < 24 * 3_600_000 { 2 * COMMANDS.len() } else { before.len() });
        master.restart();
        assert_eq!(expiries(&keys(&master)), expiries(&before), "after {ms} ms");
    }
}

#[test]
fn an_expiry_that_only_the_clock_moves_is_sent_and_marks_no_key_as_modified() {
    let [mut master, replica, last] = chain();
    master.value("CONFIG SET appendonly yes");
    master.wait_for_rewrite();
    let mut stream = ReplicationStream::of(&master);
    for name in COMMANDS {
        master.value(&format!("{name} {name} 1 10s"));
    }
    stream.commands(&master);
    master.step_clock(-3_600_000);
    for (name, as_row) in COMMANDS.into_iter().flat_map(|name| [(name, false), (name, true)]) {
        let mut watcher = master.connect();
        command(&format!("WATCH {name}")).exec(&mut watcher).expect("WATCH");
        let limited = match as_row {
            false => format!("{name} {name} 1 10s"),
            true => format!("RL.ALL {name} {} 1 10s 1 other FIXED 1 10s 0", &name[3..]),
        };
        master.value(&limited);
        pipeline(["MULTI", "PING"]).exec(&mut watcher).expect("MULTI");
        let outcome: Value = command("EXEC").query(&mut watcher).expect("EXEC");
        assert_ne!(outcome, Value::Nil, "{limited} changes nothing that counts");
        let sent = stream.commands(&master);
        if as_row {
            assert_eq!(sent, [""; 0], "{limited}: it has moved already");
        } else {
            let expires_at = master.integer(&format!("PEXPIRETIME {name}"));
            assert!(expires_at <= master.clock_ms() + 30_000, "{limited}");
            assert_eq!(sent, [format!("RL.APPLY {name} <{}>{expires_at}", master.clock_ms())], "{limited}");
        }
        assert_copy(&master, &replica, &limited);
        assert_copy(&master, &last, &limited);
    }
    // By RL.ALL too, of several keys at once.
    master.step_clock(-3_600_000);
    let rows = COMMANDS.map(|name| format!(" {name} {} 1 10s 1", &name[3..]));
    master.value(&format!("RL.ALL{}", rows.concat()));
    let clock = master.clock_ms();
    let sent =
        COMMANDS.map(|name| format!(" {name} <{clock}>{}", master.integer(&format!("PEXPIRETIME {name}"))));
    assert_eq!(stream.commands(&master), [format!("RL.APPLY{}", sent.concat())]);
    assert_copy(&master, &replica, "several keys");
    let before = keys(&master);
    master.restart();
    assert_eq!(expiries(&keys(&master)), expiries(&before), "after a restart");
}

#[test]
fn persist_holds_on_every_copy_until_the_end_of_what_counts_moves() {
    let mut master = Server::with(&APPEND_ONLY);
    let replica = Server::replica_of(&master, &[]);
    for name in COMMANDS {
        master.value(&format!("{name} {name} 1000000 3650d"));
        master.value(&format!("PERSIST {name}"));
        master.value(&format!("{name} {name} 1000000 3650d"));
    }
    wait_for("the requests", || replica.digest() == master.digest());
    let digest = master.digest();
    for name in COMMANDS {
        for server in [&master, &replica] {
            assert_eq!(server.integer(&format!("PTTL {name}")), -1, "{name}");
        }
    }
    master.restart();
    assert_eq!(master.digest(), digest, "after a restart from the append-only file");

    for name in COMMANDS {
        let server = Server::with_clock_at(BEFORE_THE_HOUR, &[]);
        server.value(&format!("{name} k 1000 1h"));
        server.value("PERSIST k");
        server.step_clock(11_000);
        server.value(&format!("{name} k 1000 1h"));
        assert!(server.integer("PTTL k") >= next_end_ms(name), "{name}: the next unit needs it longer");
    }
}

#[test]
fn persist_also_holds_on_copies_that_are_made_later() {
    for preamble in ["yes", "no"] {
        let mut master = Server::with(&[&APPEND_ONLY[..], &[("aof-use-rdb-preamble", preamble)]].concat());
        let request_and_check = |servers: &[&Server], when: &str| {
            for name in COMMANDS {
                servers[0].value(&format!("{name} {name} 1000000 3650d"));
            }
            for server in servers {
                wait_for("the requests", || server.digest() == servers[0].digest());
                for name in COMMANDS {
                    assert_eq!(server.integer(&format!("PTTL {name}")), -1, "{name} {when}, {preamble}");
                }
            }
        };
        for name in COMMANDS {
            master.value(&format!("{name} {name} 1000000 3650d"));
            master.value(&format!("PERSIST {name}"));
        }
        let replica = Server::replica_of(&master, &[]);
        request_and_check(&[&master, &replica], "on a replica that was attached later");
        master.value("BGREWRITEAOF");
        master.wait_for_rewrite();
        request_and_check(&[&master, &replica], "after a rewrite");
        master.restart();
        request_and_check(&[&master], "after a restart from the rewritten file");
        master.value("DEBUG RELOAD");
        request_and_check(&[&master], "after loading a snapshot");
        for name in COMMANDS {
            master.value(&format!("COPY {name} {name}:copied"));
            master.value(&format!("{name} {name}:copied 1000000 3650d"));
            assert_eq!(master.integer(&format!("PTTL {name}:copied")), -1, "{name} copied, {preamble}");
        }
    }
}

#[test]
fn a_restored_time_to_live_is_lengthened_by_the_next_counted_request_on_every_copy() {
    let master = Server::start();
    let replica = Server::replica_of(&master, &[]);
    for name in COMMANDS {
        master.value(&format!("{name} {name} 9 3650d"));
        restore(&master, name, 20_000);
        let peek = master.figures(&format!("RL.PEEK {name} 9 3650d"));
        assert!(peek[4] <= 20_001, "{name}: no wait is longer than the key lives");
        master.value(&format!("{name} {name} 9 3650d"));
        replica.wait_to_catch_up(&master);
        for server in [&master, &replica] {
            assert!(server.integer(&format!("TTL {name}")) > 20, "{name}");
        }
    }
}
