//! Giving back as of a time: a reservation made at `t` is settled exactly, however late.

use crate::helpers::hosts::{Host, Hosts};
use harness::{APPEND_ONLY, COMMANDS, ReplicationStream, Server, without_expiry};

use crate::helpers::requests::{self, all};

const MINUTE: i64 = 60_000;

/// The time by the servers' clocks, in the middle of a minute.
const NOW: i64 = 1_900_000_005_000 / MINUTE * MINUTE + 30_000;

/// How to give back: by the command of the algorithm, and by RL.ALL.
fn settle(by_all: bool, name: &str, cost: i64, at: i64) -> String {
    match name.strip_prefix("RL.").filter(|_| by_all) {
        Some(algorithm) => format!("RL.ALL {name} {algorithm} 1000 1m {cost} AT {at}"),
        None => format!("{name} {name} 1000 1m COST {cost} AT {at}"),
    }
}

/// What copies get of units counted or given back.
fn effect(name: &str, units: i64, at: i64) -> String {
    format!("RL.APPLY {name} {}", requests::effect(name, 1_000, &format!("{units}:{at}/1m")))
}

/// The units that the key of this algorithm counts.
fn used(server: &impl Host, name: &str, at: i64) -> i64 {
    1_000 - server.figures(&format!("RL.PEEK {name} 1000 1m AT {at}"))[2]
}

#[test]
fn an_estimate_settled_after_its_window_has_ended_refunds_nobody_elses_units() {
    let server = Hosts::start();
    for by_all in [false, true] {
        for (name, before, after) in [("RL.FIXED", 300, 300), ("RL.SLIDING", 308, 301), ("RL.LOG", 300, 300)]
        {
            // Reserved, and in the next minute another 300.
            let next = NOW + MINUTE + 29_500;
            server.value(&format!("{name} {name} 1000 1m COST 1000 AT {NOW}"));
            server.value(&format!("{name} {name} 1000 1m COST 300 AT {next}"));
            assert_eq!(used(&server, name, next), before, "{name}");
            server.value(&settle(by_all, name, -800, NOW));
            assert_eq!(used(&server, name, next), after, "{name}: what others took still counts");
            // Two windows later nothing of it is left.
            let digest = server.digest();
            server.value(&settle(by_all, name, -800, NOW - MINUTE));
            assert_eq!(server.digest(), digest, "{name}");
            server.value(&format!("DEL {name}"));
        }
    }
}

#[test]
fn a_log_gives_back_the_units_of_that_time_and_not_the_newest() {
    let server = Hosts::start();
    for by_all in [false, true] {
        server.value("RL.LOG RL.LOG 1000 1m COST 500 AT 0");
        server.value("RL.LOG RL.LOG 1000 1m COST 300 AT 50000");
        server.value(&settle(by_all, "RL.LOG", -400, 0));
        for (at, units) in
            [(55_000, 400), (59_999, 400), (60_000, 300), (60_001, 300), (109_999, 300), (110_000, 0)]
        {
            assert_eq!(used(&server, "RL.LOG", at), units, "at {at}");
        }
        server.value("DEL RL.LOG");
    }
}

#[test]
fn a_refund_as_of_a_time_leaves_later_units_alone_and_gets_nothing_from_ended_windows() {
    let server = Server::start();
    let mut stream = ReplicationStream::of(&server);
    for by_all in [false, true] {
        for name in COMMANDS {
            server.value(&format!("{name} {name} 1000 1m COST 10 AT {NOW}"));
            assert_eq!(without_expiry(&stream.commands(&server)), [effect(name, 10, NOW)]);
            let before = server.digest();
            // Before its window or its units.
            server.value(&settle(by_all, name, -5, NOW - MINUTE));
            // After it has ended: of a sliding counter, two windows later.
            server.value(&settle(by_all, name, -5, NOW + 2 * MINUTE));
            assert_eq!(server.digest(), before, "{name}");
            assert_eq!(stream.commands(&server), [""; 0], "{name}");
            server.value(&format!("DEL {name}"));
            stream.commands(&server);
        }
    }
}

#[test]
fn units_ahead_of_the_clock_can_be_given_back_without_at_and_replicas_agree() {
    let master = Server::with_clock_at(NOW, &APPEND_ONLY);
    let mut stream = ReplicationStream::of(&master);
    let replica = Server::replica_of(&master, &[]);
    for name in COMMANDS {
        for by_all in [false, true] {
            let ahead = NOW + MINUTE;
            master.value(&format!("{name} {name} 1000 1m COST 10 AT {ahead}"));
            let line = settle(by_all, name, -4, 0).replace(" AT 0", "");
            master.value(&line);
            assert_eq!(used(&master, name, ahead), 6, "{line}");
            let sent = stream.commands(&master);
            let newest = if matches!(name, "RL.LOG" | "RL.BUCKET") { ahead } else { ahead / MINUTE * MINUTE };
            assert_eq!(sent[1..], [effect(name, -4, newest)]);
            replica.wait_to_catch_up(&master);
            assert_eq!(replica.digest(), master.digest(), "{line}");
            master.value(&settle(by_all, name, -99, 0).replace(" AT 0", ""));
            assert_eq!(master.integer(&format!("EXISTS {name}")), 0, "{line}");
            replica.wait_to_catch_up(&master);
            assert_eq!(replica.digest(), master.digest(), "{line}");
            stream.commands(&master);
        }
    }
}

/// Limits of the three kinds, in which 500 units are reserved.
const RESERVE: &str = "RL.ALL f FIXED 1000 1h 500 s SLIDING 1000 1h 500 l LOG 1000 1h 500";

/// Reserves at the server's time, while others take units before and after. Returns `at` of the reply.
fn reserve(server: &impl Host) -> i64 {
    let others = |cost| {
        server.value(&format!("RL.ALL f FIXED 9999 1h {cost} s SLIDING 9999 1h {cost} l LOG 9999 1h {cost}"))
    };
    others(100);
    server.step_clock(1_000);
    let at = all(server, RESERVE).at;
    assert_eq!(at, server.clock_ms());
    server.step_clock(1_000);
    others(30);
    at
}

/// Settles the reservation by giving 480 units back, and asserts that exactly those are gone.
#[track_caller]
fn assert_settles(server: &impl Host, at: i64) {
    let remaining = || -> Vec<i64> {
        let looking = all(server, &RESERVE.replace(" 500", " 0"));
        looking.rows.iter().map(|row| row[2]).collect()
    };
    assert_eq!(remaining(), [370; 3], "100, 500 and 30 are counted");
    let line = format!("{} AT {at}", RESERVE.replace(" 500", " -480"));
    assert_eq!(all(server, &line).limited, 0);
    assert_eq!(remaining(), [850; 3], "480 are given back");
    // The 30 later units remain when all units counted until `at` are gone.
    let line = format!("{} AT {at}", RESERVE.replace(" 500", " -9999"));
    assert_eq!(all(server, &line).limited, 0);
    assert_eq!(remaining()[2], 970, "units that a log counted later stay");
}

#[test]
fn a_reservation_by_rl_all_is_settled_with_the_at_of_its_reply() {
    let server = Hosts::with_clock_at(NOW);
    let at = reserve(&server);
    server.step_clock(5_000);
    assert_settles(&server, at);
}

#[test]
fn a_promoted_replica_settles_what_its_master_reserved() {
    let master = Server::with_clock_at(NOW, &[]);
    let replica = Server::replica_of(&master, &[]);
    let at = reserve(&master);
    replica.wait_to_catch_up(&master);
    drop(master);
    replica.value("REPLICAOF NO ONE");
    replica.set_clock(at + 7_000);
    assert_settles(&replica, at);
}

#[test]
fn a_reservation_is_settled_after_a_restart() {
    for settings in [
        &[][..],
        &[("appendonly", "yes"), ("appendfsync", "always"), ("aof-use-rdb-preamble", "no")],
        &[("appendonly", "yes"), ("appendfsync", "always"), ("aof-use-rdb-preamble", "yes")],
    ] {
        for rewritten in [false, true] {
            let mut server = Server::with_clock_at(NOW, settings);
            let at = reserve(&server);
            if settings.is_empty() {
                server.value("SAVE");
            } else if rewritten {
                server.value("BGREWRITEAOF");
                server.wait_for_rewrite();
            }
            server.kill();
            server.relaunch_at(at + 7_000);
            assert_settles(&server, at);
        }
    }
}

#[test]
fn a_reservation_in_keys_ahead_of_the_clock_is_settled_with_the_at_of_the_reply() {
    let server = Server::with_clock_at(NOW, &[]);
    let replica = Server::replica_of(&server, &[]);
    let ahead = NOW + MINUTE;
    server.value(&format!("RL.ALL f FIXED 1000 1m 100 s SLIDING 1000 1m 100 l LOG 1000 1m 100 AT {ahead}"));
    let reserve = RESERVE.replace("1h", "1m");
    let reply = all(&server, &reserve);
    assert!((NOW..=ahead).contains(&reply.at), "{reply:?}");
    let settled = all(&server, &format!("{} AT {}", reserve.replace(" 500", " -480"), reply.at));
    assert_eq!(settled.rows.iter().map(|row| row[2]).collect::<Vec<_>>(), [880; 3]);
    replica.wait_to_catch_up(&server);
    assert_eq!(replica.digest(), server.digest());
}

#[test]
fn a_reservation_that_expired_is_settled_without_an_error_and_creates_nothing() {
    let server = Server::with_clock_at(NOW, &[]);
    let at = all(&server, RESERVE).at;
    server.step_clock(3 * 60 * MINUTE);
    server.delete_expired_keys();
    assert_eq!(server.integer("DBSIZE"), 0);
    let reply = all(&server, &format!("{} AT {at}", RESERVE.replace(" 500", " -480")));
    assert_eq!(reply.rows.iter().map(|row| row[2]).collect::<Vec<_>>(), [1_000; 3]);
    assert_eq!(server.integer("DBSIZE"), 0);
}

#[test]
fn a_key_that_gives_back_the_last_unit_that_counts_is_deleted_although_it_held_an_ended_window() {
    let mut server = Server::with_clock_at(NOW, &APPEND_ONLY);
    // To a copy whose clock is behind, the other window has not ended yet.
    let replica = Server::with_clock_at(NOW, &[]);
    replica.follow(&server);
    for by_all in [false, true] {
        for name in COMMANDS {
            server.set_clock(NOW);
            let algorithm = name.trim_start_matches("RL.");
            server.value(&format!("{name} {name} 9 1s 9 30d"));
            server.set_clock(NOW + 2_000);
            let line = match by_all {
                true => format!("RL.ALL {name} {algorithm} 9 30d -1"),
                false => format!("{name} {name} 9 30d COST -1"),
            };
            server.value(&line);
            replica.wait_to_catch_up(&server);
            for server in [&server, &replica] {
                assert_eq!(server.integer(&format!("EXISTS {name}")), 0, "{line}");
            }
        }
    }
    server.kill();
    server.relaunch_at(NOW);
    assert_eq!(server.integer("DBSIZE"), 0);
}
