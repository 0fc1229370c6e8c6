//! A time to live that a user sets: EXPIRE, PERSIST, RESTORE.

use harness::{APPEND_ONLY, COMMANDS, Server, wait_for};

/// Ten seconds before the end of an hour, and of an eighth of one.
const BEFORE_THE_HOUR: i64 = 1_700_002_800_000 - 10_000;

#[test]
fn a_shorter_expire_holds_until_a_request_needs_the_key_longer() {
    for name in COMMANDS {
        let server = Server::with_clock_at(BEFORE_THE_HOUR, &[]);
        server.value(&format!("{name} k 9 1h"));
        server.value("EXPIRE k 20");
        server.value(&format!("{name} k 9 1h"));
        assert_eq!(
            server.integer("PTTL k"),
            20_000,
            "{name}: nothing in the key counts for longer than before"
        );
        server.step_clock(11_000);
        server.value(&format!("{name} k 9 1h COST 0"));
        assert_eq!(server.integer("PTTL k"), 9_000, "{name}: only what is counted needs the key");
        server.value(&format!("{name} k 9 1h"));
        assert!(server.integer("PTTL k") >= 3_598_000, "{name}: the next window needs it longer");
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

#[test]
fn giving_back_moves_no_time_to_live() {
    for name in COMMANDS {
        let server = Server::with_clock_at(BEFORE_THE_HOUR, &[]);
        server.value(&format!("{name} k 9 1h COST 3"));
        server.value("PERSIST k");
        server.value(&format!("{name} k 9 1h COST -1"));
        assert_eq!(server.integer("PTTL k"), -1, "{name}: it stays after PERSIST");
        server.value("PEXPIRE k 5000");
        server.value(&format!("{name} k 9 1h COST -1"));
        assert_eq!(server.integer("PTTL k"), 5_000, "{name}: shorter than its units count");
    }
}

#[test]
fn a_copy_keeps_a_key_no_shorter_than_its_master_does() {
    let mut master = Server::with(&APPEND_ONLY);
    let replica = Server::replica_of(&master, &[]);
    for name in COMMANDS {
        master.value(&format!("{name} {name} 9 3650d"));
        master.value(&format!("EXPIRE {name} 1000"));
        master.value(&format!("{name} {name} 9 3650d"));
        assert!(master.integer(&format!("TTL {name}")) <= 1000, "{name}");
    }
    replica.wait_to_catch_up(&master);
    for name in COMMANDS {
        let expiry = format!("PEXPIRETIME {name}");
        assert!(replica.integer(&expiry) >= master.integer(&expiry), "{name}");
    }
    let before = COMMANDS.map(|name| master.integer(&format!("PEXPIRETIME {name}")));
    master.restart();
    for (name, before) in COMMANDS.iter().zip(before) {
        assert!(master.integer(&format!("PEXPIRETIME {name}")) >= before, "{name} after a restart");
    }
}

#[test]
fn persist_holds_on_every_copy_until_the_end_of_what_counts_moves() {
    let mut master = Server::with(&APPEND_ONLY);
    let replica = Server::replica_of(&master, &[]);
    for name in COMMANDS {
        master.value(&format!("{name} {name} 9 3650d"));
        master.value(&format!("PERSIST {name}"));
        master.value(&format!("{name} {name} 9 3650d"));
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
        server.value(&format!("{name} k 9 1h"));
        server.value("PERSIST k");
        server.step_clock(11_000);
        server.value(&format!("{name} k 9 1h"));
        assert!(server.integer("PTTL k") >= 3_598_000, "{name}: the next window");
    }
}

#[test]
fn persist_also_holds_on_copies_that_are_made_later() {
    for preamble in ["yes", "no"] {
        let mut master = Server::with(&[&APPEND_ONLY[..], &[("aof-use-rdb-preamble", preamble)]].concat());
        let request_and_check = |servers: &[&Server], when: &str| {
            for name in COMMANDS {
                servers[0].value(&format!("{name} {name} 9 3650d"));
            }
            for server in servers {
                wait_for("the requests", || server.digest() == servers[0].digest());
                for name in COMMANDS {
                    assert_eq!(server.integer(&format!("PTTL {name}")), -1, "{name} {when}, {preamble}");
                }
            }
        };
        for name in COMMANDS {
            master.value(&format!("{name} {name} 9 3650d"));
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
            master.value(&format!("{name} {name}:copied 9 3650d"));
            assert_eq!(master.integer(&format!("PTTL {name}:copied")), -1, "{name} copied, {preamble}");
        }
    }
}

#[test]
fn a_restored_time_to_live_is_lengthened_by_the_next_counted_request_on_every_copy() {
    let master = Server::start();
    let replica = Server::replica_of(&master, &[]);
    let mut connection = master.connect();
    for name in COMMANDS {
        master.value(&format!("{name} {name} 9 3650d"));
        let payload: Vec<u8> = redis::cmd("DUMP").arg(name).query(&mut connection).expect("a payload");
        let restore =
            redis::cmd("RESTORE").arg(name).arg(20_000).arg(payload).arg("REPLACE").exec(&mut connection);
        restore.expect("RESTORE");
        let peek = master.figures(&format!("RL.PEEK {name} 9 3650d"));
        assert!(peek[4] <= 20_001, "{name}: no wait is longer than the key lives");
        master.value(&format!("{name} {name} 9 3650d"));
        replica.wait_to_catch_up(&master);
        for server in [&master, &replica] {
            assert!(server.integer(&format!("TTL {name}")) > 20, "{name}");
        }
    }
}
