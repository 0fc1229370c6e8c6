//! A master and its replica through random events: restarts, failovers, lost connections, snapshots, and
//! append-only files turned on and off. After each of them, both hold the same, and so do their files.
//!
//! `ROUNDS` is the number of such series, each of other events and requests.

use harness::{Random, Server, wait_for};

use crate::histories::rounds;
use crate::traffic::{LATER, NOW, Traffic, assert_same, send};

/// What can happen to the two between requests.
#[derive(Clone, Copy, Debug)]
enum Event {
    MasterRestarts,
    ReplicaRestarts,
    MasterRestartsWhileReplicaIsFrozen,
    ReplicaTakesOver,
    ReplicaLeavesAndReturns,
    ReplicaIsFrozen,
    ConnectionIsLost,
    SnapshotIsSaved,
    FileIsRewritten,
    FileIsToggled,
    ReplicasFileIsToggled,
    SettingChanges,
}

const EVENTS: [Event; 12] = [
    Event::MasterRestarts,
    Event::ReplicaRestarts,
    Event::MasterRestartsWhileReplicaIsFrozen,
    Event::ReplicaTakesOver,
    Event::ReplicaLeavesAndReturns,
    Event::ReplicaIsFrozen,
    Event::ConnectionIsLost,
    Event::SnapshotIsSaved,
    Event::FileIsRewritten,
    Event::FileIsToggled,
    Event::ReplicasFileIsToggled,
    Event::SettingChanges,
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

    fn run(&mut self, event: Event) {
        match event {
            Event::MasterRestarts => self.master.restart(),
            Event::ReplicaRestarts => {
                self.replica.restart();
                self.replica.follow(&self.master);
            }
            Event::MasterRestartsWhileReplicaIsFrozen => {
                self.replica.freeze();
                self.master.restart();
                self.send();
                self.replica.thaw();
            }
            Event::ReplicaTakesOver => {
                self.replica.wait_to_catch_up(&self.master);
                self.replica.value("REPLICAOF NO ONE");
                std::mem::swap(&mut self.master, &mut self.replica);
                self.master.set_clock(NOW);
                self.replica.set_clock(LATER);
                // What it counts before anyone follows it must reach the old master too.
                self.send();
                self.replica.follow(&self.master);
            }
            Event::ReplicaLeavesAndReturns => {
                self.replica.value("REPLICAOF NO ONE");
                self.send();
                self.replica.follow(&self.master);
            }
            Event::ReplicaIsFrozen => {
                self.replica.freeze();
                self.send();
                self.replica.thaw();
            }
            Event::ConnectionIsLost => _ = self.master.value("CLIENT KILL TYPE replica"),
            Event::SnapshotIsSaved => {
                let saving = || self.master.info("rdb_bgsave_in_progress") == "1";
                wait_for("the snapshot for the replica", || !saving());
                self.master.value("SAVE");
            }
            Event::FileIsRewritten => {
                self.master.value("BGREWRITEAOF");
                self.send();
                self.master.wait_for_rewrite();
            }
            Event::FileIsToggled => toggle_file(&self.master),
            Event::ReplicasFileIsToggled => toggle_file(&self.replica),
            Event::SettingChanges => _ = self.master.value("CONFIG SET maxmemory-samples 6"),
        }
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
            let event = random.of(&EVENTS);
            // Shown if the test fails.
            println!("{seed}: {event:?}");
            pair.send();
            pair.run(event);
            pair.send();
            pair.assert_equal();
        }
    }
}
