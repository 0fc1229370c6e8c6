//! A master and its replica through random events: restarts, failovers, lost connections, snapshots, and
//! append-only files turned on and off. After each of them, both hold the same, and so do their files.
//!
//! `ROUNDS` is the number of such series, each of other events and requests.

use harness::{Random, Server, wait_for};

use crate::helpers::histories::rounds;
use crate::helpers::traffic::{LATER, NOW, Traffic, assert_same, send};

/// Something that can happen to the two between requests, and its name.
type Event = (&'static str, fn(&mut Pair));

const EVENTS: [Event; 12] = [
    ("the master restarts", |pair| pair.master.restart()),
    ("the replica restarts", |pair| {
        pair.replica.restart();
        pair.replica.follow(&pair.master);
    }),
    ("the master restarts while the replica is frozen", |pair| {
        pair.replica.freeze();
        pair.master.restart();
        pair.send();
        pair.replica.thaw();
    }),
    ("the replica takes over", |pair| {
        pair.replica.wait_to_catch_up(&pair.master);
        pair.replica.value("REPLICAOF NO ONE");
        std::mem::swap(&mut pair.master, &mut pair.replica);
        pair.master.set_clock(NOW);
        pair.replica.set_clock(LATER);
        // What it counts before anyone follows it must reach the old master too.
        pair.send();
        pair.replica.follow(&pair.master);
    }),
    ("the replica leaves and returns", |pair| {
        pair.replica.value("REPLICAOF NO ONE");
        pair.send();
        pair.replica.follow(&pair.master);
    }),
    ("the replica is frozen", |pair| {
        pair.replica.freeze();
        pair.send();
        pair.replica.thaw();
    }),
    ("the connection is lost", |pair| _ = pair.master.value("CLIENT KILL TYPE replica")),
    ("a snapshot is saved", |pair| {
        wait_for("the replica's snapshot", || pair.master.info("rdb_bgsave_in_progress") == "0");
        pair.master.value("SAVE");
    }),
    ("the file is rewritten", |pair| {
        pair.master.value("BGREWRITEAOF");
        pair.send();
        pair.master.wait_for_rewrite();
    }),
    ("the file is turned on or off", |pair| toggle_file(&pair.master)),
    ("the replica's file is turned on or off", |pair| toggle_file(&pair.replica)),
    ("a setting changes", |pair| _ = pair.master.value("CONFIG SET maxmemory-samples 6")),
];

/// Each saves a snapshot when it shuts down, and does not wait for a frozen replica.
const SETTINGS: [(&str, &str); 2] = [("save", "3600 1"), ("shutdown-timeout", "0")];

struct Pair {
    master: Server,
    replica: Server,
    traffic: Traffic,
}

impl Pair {
    fn new(seed: u64) -> Pair {
        let master = Server::with_clock_at(NOW, &SETTINGS);
        let replica = Server::replica_of(&master, &SETTINGS);
        Pair { master, replica, traffic: Traffic::of(seed) }
    }

    /// Sends requests to the master.
    fn send(&mut self) {
        send(&mut self.master.connect(), &self.traffic.lines(60));
    }

    #[track_caller]
    fn assert_equal(&self) {
        wait_for("the replica to be online", || self.replica.info("master_link_status") == "up");
        assert_same(&self.master, &self.replica);
        for server in [&self.master, &self.replica] {
            if server.info("aof_enabled") == "1" {
                server.wait_for_rewrite();
                let before = server.digest();
                server.value("DEBUG LOADAOF");
                assert_eq!(server.digest(), before, "its append-only file");
            }
        }
    }
}

fn toggle_file(server: &Server) {
    let turned = if server.info("aof_enabled") == "1" { "no" } else { "yes" };
    server.value(&format!("CONFIG SET appendonly {turned}"));
}

#[test]
fn whatever_happens_to_master_and_replica_both_and_their_files_hold_the_same() {
    for seed in 0..rounds() as u64 {
        let mut random = Random::new(seed);
        let mut pair = Pair::new(1_000 * seed);
        for _ in 0..20 {
            let (what, happens) = random.of(&EVENTS);
            // Shown if the test fails.
            println!("{seed}: {what}");
            pair.send();
            happens(&mut pair);
            pair.send();
            pair.assert_equal();
        }
    }
}
