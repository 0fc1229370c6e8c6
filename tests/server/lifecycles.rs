//! A master, its replica and the replica's replica through random events: restarts, failovers, lost connections, snapshots,
//! append-only files turned on and off, clocks that step, and commands that change when keys expire and where they are.
//! After each of them, all three hold the same to the byte and the millisecond, and so do their files.
//!
//! `ROUNDS` is the number of such series, each of other events and requests.

use harness::{Random, Server, command, wait_for};

use crate::helpers::expiries::{assert_copy, disturb, keys};
use crate::helpers::histories::rounds;
use crate::helpers::traffic::{NOW, Traffic, send};

/// Something that can happen between requests, and its name.
type Event = (&'static str, fn(&mut Chain));

const EVENTS: [Event; 18] = [
    ("the master restarts", |chain| chain.master.restart()),
    ("the replica restarts", |chain| {
        chain.replica.restart();
        chain.replica.follow(&chain.master);
    }),
    ("the last restarts", |chain| {
        chain.last.restart();
        chain.last.follow(&chain.replica);
    }),
    ("the master restarts while the replica is frozen", |chain| {
        chain.replica.freeze();
        chain.master.restart();
        chain.send();
        chain.replica.thaw();
    }),
    ("the replica takes over", |chain| {
        chain.wait_to_catch_up();
        chain.replica.value("REPLICAOF NO ONE");
        std::mem::swap(&mut chain.master, &mut chain.replica);
        // What it counts before anyone follows it must reach the old master too.
        chain.send();
        chain.replica.follow(&chain.master);
        chain.last.follow(&chain.replica);
    }),
    ("the master hands over", |chain| {
        chain.wait_to_catch_up();
        wait_for("the master to hand over", || {
            // It refuses while one is under way, and gives one up on a busy machine.
            let _ = chain.master.call("FAILOVER TIMEOUT 5000");
            chain.replica.info("role") == "master"
        });
        wait_for("the old master to follow", || chain.master.info("master_link_status") == "up");
        std::mem::swap(&mut chain.master, &mut chain.replica);
        chain.last.follow(&chain.replica);
    }),
    ("the replica leaves and returns", |chain| {
        chain.replica.value("REPLICAOF NO ONE");
        chain.send();
        chain.replica.follow(&chain.master);
    }),
    ("the replica is frozen", |chain| {
        chain.replica.freeze();
        chain.send();
        chain.replica.thaw();
    }),
    ("the connection is lost", |chain| _ = chain.master.value("CLIENT KILL TYPE replica")),
    ("a snapshot is saved", |chain| {
        wait_for("the replica's snapshot", || chain.master.info("rdb_bgsave_in_progress") == "0");
        chain.master.value("SAVE");
    }),
    ("the master loads a snapshot", |chain| {
        wait_for("the replica's snapshot", || chain.master.info("rdb_bgsave_in_progress") == "0");
        chain.master.value("DEBUG RELOAD");
    }),
    ("the file is rewritten", |chain| {
        chain.master.value("BGREWRITEAOF");
        chain.send();
        chain.master.wait_for_rewrite();
    }),
    ("the file gets another preamble", |chain| {
        let preamble = if chain.random.below(2) == 0 { "yes" } else { "no" };
        for server in [&chain.master, &chain.replica] {
            server.value(&format!("CONFIG SET aof-use-rdb-preamble {preamble}"));
        }
    }),
    ("the file is turned on or off", |chain| toggle_file(&chain.master)),
    ("the replica's file is turned on or off", |chain| toggle_file(&chain.replica)),
    ("a setting changes", |chain| _ = chain.master.value("CONFIG SET maxmemory-samples 6")),
    ("time passes", |chain| {
        let ms = chain.random.of(&[1, 999, 20_000, 3_600_000]);
        chain.master.step_clock(ms);
    }),
    ("clocks step back", |chain| {
        for server in [&chain.master, &chain.replica, &chain.last] {
            server.step_clock(-chain.random.of(&[0, 1, 999, 20_000, 3_600_000, 100_000_000]));
        }
    }),
];

/// Each saves a snapshot when it shuts down, and does not wait for a frozen replica.
const SETTINGS: [(&str, &str); 2] = [("save", "3600 1"), ("shutdown-timeout", "0")];

struct Chain {
    master: Server,
    replica: Server,
    last: Server,
    traffic: Traffic,
    random: Random,
}

impl Chain {
    fn new(seed: u64) -> Chain {
        let master = Server::with_clock_at(NOW, &SETTINGS);
        let replica = Server::replica_of(&master, &SETTINGS);
        let last = Server::replica_of(&replica, &SETTINGS);
        Chain { master, replica, last, traffic: Traffic::of(seed), random: Random::new(seed) }
    }

    /// Sends requests to the master, among commands that change when keys expire and where they are.
    fn send(&mut self) {
        let mut connection = self.master.connect();
        for _ in 0..4 {
            let select = self.random.of(&["SELECT 0", "SELECT 0", "SELECT 1"]);
            command(select).exec(&mut connection).expect("SELECT");
            let mut lines = self.traffic.lines(12);
            if self.random.below(3) == 0 {
                lines = [vec!["MULTI".to_owned()], lines, vec!["EXEC".to_owned()]].concat();
            }
            send(&mut connection, &lines);
            disturb(&self.master, &mut self.random, 4);
        }
    }

    fn wait_to_catch_up(&self) {
        self.replica.wait_to_catch_up(&self.master);
        self.last.wait_to_catch_up(&self.master);
    }

    #[track_caller]
    fn assert_equal(&self, about: &str) {
        wait_for("the replicas to be online", || {
            [&self.replica, &self.last].iter().all(|server| server.info("master_link_status") == "up")
        });
        self.replica.wait_to_catch_up(&self.master);
        assert_copy(&self.master, &self.replica, &format!("the replica, {about}"));
        assert_copy(&self.master, &self.last, &format!("the replica's replica, {about}"));
        for server in [&self.master, &self.replica] {
            if server.info("aof_enabled") == "1" {
                server.wait_for_rewrite();
                let before = keys(server);
                server.value("DEBUG LOADAOF");
                assert!(keys(server) == before, "its append-only file, {about}");
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
        let mut chain = Chain::new(1_000 * seed);
        for _ in 0..20 {
            let (what, happens) = random.of(&EVENTS);
            let about = format!("{seed}: {what}");
            // Shown if the test fails.
            println!("{about}");
            chain.send();
            happens(&mut chain);
            chain.send();
            chain.assert_equal(&about);
        }
    }
}
