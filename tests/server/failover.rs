//! A promoted replica has every request it received, each once, and keeps limiting as its master would have.

use std::collections::BTreeMap;

use harness::{APPEND_ONLY, COMMANDS, Random, Server, command, wait_for};

use crate::helpers::expiries::assert_copy;
use crate::helpers::histories::{Histories, Sent, kill_amid_traffic, rounds};
use crate::helpers::traffic::{LATER, NOW, Traffic, assert_same, peeks_with_at, send};

const HOUR: i64 = 3_600_000;
const DAY: i64 = 24 * HOUR;

/// Batches of requests. After each, clients wait until it has reached this many replicas.
fn replicated<'a>(
    batches: impl Iterator<Item = impl FnMut() -> Vec<String> + Send + 'a>,
    replicas: usize,
) -> Vec<impl FnMut() -> Vec<String> + Send + 'a> {
    batches.map(|mut batch| move || [batch(), vec![format!("WAIT {replicas} 0")]].concat()).collect()
}

/// The lines sent, without WAIT, and the least number of them that all replicas have.
fn received(sent: Vec<Sent>) -> (Vec<Sent>, Vec<usize>) {
    let received = sent.into_iter().map(|Sent { lines, replies }| {
        let mut answered = lines[..replies.len()].iter();
        let at_least = match answered.rposition(|line| line.starts_with("WAIT")) {
            Some(last) => lines[..last].iter().filter(|line| !line.starts_with("WAIT")).count(),
            None => 0,
        };
        let lines = lines.into_iter().filter(|line| !line.starts_with("WAIT")).collect();
        (Sent { lines, replies: Vec::new() }, at_least)
    });
    received.unzip()
}

/// Kills a master under traffic, promotes one of its replicas, and compares that with a server that was sent
/// the same and never killed.
fn kill_and_replace(
    histories: &mut Histories,
    master: &mut Server,
    replicas: usize,
    answers: usize,
    promoted: impl FnOnce() -> Server,
) -> Server {
    let sources = replicated(histories.batches(), replicas);
    let sent = kill_amid_traffic(master, sources, |clients| clients.wait_for_answers(answers));
    let (sent, at_least) = received(sent);
    let new_master = promoted();
    new_master.set_clock(NOW);
    let counts = sent.iter().zip(at_least).map(|(sent, at_least)| at_least..=sent.lines.len());
    histories.assert_carried_out(&new_master, &sent, counts);
    histories.assert_goes_on(&new_master);
    new_master
}

#[test]
fn a_replica_promoted_after_a_crash_has_what_it_received_and_the_old_master_follows_it() {
    let mut random = Random::new(1);
    let mut histories = Histories::of(3_000);
    let mut master = Server::with_clock_at(NOW, &APPEND_ONLY);
    let mut replica = Server::replica_of(&master, &APPEND_ONLY);
    for _ in 0..rounds() {
        replica = kill_and_replace(&mut histories, &mut master, 1, random.below(1_500), || {
            // Once it sees the closed connection, it has applied everything it received.
            wait_for("the master to be gone", || replica.info("master_link_status") == "down");
            replica.value("REPLICAOF NO ONE");
            replica
        });
        master.relaunch_at(LATER);
        master.follow(&replica);
        assert_same(&replica, &master);
        (master, replica) = (replica, master);
    }
}

/// Whether all Sentinels list an instance with these fields.
fn all_know(sentinels: &[Server], instances: &str, fields: &[(&str, &str)]) -> bool {
    sentinels.iter().all(|sentinel| {
        let known: Vec<BTreeMap<String, String>> =
            command(&format!("SENTINEL {instances}")).query(&mut sentinel.connect()).expect("instances");
        let has = |instance: &BTreeMap<String, String>, field, value| {
            instance.get(field).is_some_and(|known| known == value)
        };
        known.iter().any(|instance| fields.iter().all(|(field, value)| has(instance, *field, value)))
    })
}

#[test]
fn a_replica_promoted_by_sentinel_keeps_counting_and_the_others_follow_it() {
    let mut histories = Histories::of(4_000);
    let mut old_master = Server::with_clock_at(NOW, &[]);
    let mut replicas: Vec<Server> = (0..2).map(|_| Server::replica_of(&old_master, &[])).collect();
    let sentinels = [(); 3].map(|()| {
        let sentinel =
            Server::sentinel(&format!("sentinel monitor limits 127.0.0.1 {} 2", old_master.port()));
        // Exchange news more often, and do not mistake a slow machine for a clock step.
        sentinel.value("SENTINEL DEBUG info-period 500 publish-period 100 ask-period 100 tilt-trigger 60000");
        sentinel.value("SENTINEL SET limits failover-timeout 5000");
        sentinel
    });
    wait_for("the Sentinels to know all instances", || {
        all_know(&sentinels, "MASTERS", &[("num-slaves", "2"), ("num-other-sentinels", "2")])
    });

    let give_up_after = |ms| {
        for sentinel in &sentinels {
            sentinel.value(&format!("SENTINEL SET limits down-after-milliseconds {ms}"));
        }
    };
    let new_master = kill_and_replace(&mut histories, &mut old_master, 2, 1_000, || {
        give_up_after(1_000);
        let promoted =
            |replica: &Server| all_know(&sentinels, "MASTERS", &[("port", &replica.port().to_string())]);
        let mut new_master = None;
        wait_for("a new master", || {
            new_master = replicas.iter().position(promoted);
            new_master.is_some()
        });
        // From now on, a slow server is not considered down.
        give_up_after(60_000);
        replicas.swap_remove(new_master.expect("a new master"))
    });
    assert_eq!(new_master.info("role"), "master");
    old_master.relaunch_at(LATER);
    for follower in [&replicas[0], &old_master] {
        let [port, master_port] = [follower, &new_master].map(|server| server.port().to_string());
        let follows = [("port", &*port), ("master-port", &*master_port), ("master-link-status", "ok")];
        wait_for("the others to follow", || all_know(&sentinels, "REPLICAS limits", &follows));
        assert_same(&new_master, follower);
    }
}

/// A replica whose clock is off by this much.
fn replica_with_clock_wrong_by(ms: i64, master: &Server) -> Server {
    let replica = Server::with_clock_at(master.clock_ms() + ms, &[]);
    replica.follow(master);
    replica
}

/// The keys of a master, once it has deleted the expired ones.
fn keys(master: &Server) -> Vec<String> {
    master.delete_expired_keys();
    command("KEYS *").query(&mut master.connect()).expect("KEYS")
}

#[test]
fn a_replica_whose_clock_is_wrong_holds_what_its_master_counted() {
    let master = Server::with_clock_at(NOW, &[]);
    let mut replicas = Vec::from([-NOW, 5_000 * DAY, 0].map(|off| replica_with_clock_wrong_by(off, &master)));
    let mut random = Random::new(5);
    let mut traffic = Traffic::of(5_000);
    for _ in 0..40 {
        send(&mut master.connect(), &traffic.lines(50));
        master.step_clock(random.of(&[0, 1, 7, 999, 20_000]));
        // The last replica's clock steps too, forward and back.
        replicas[2].step_clock(random.of(&[0, 1_000, -1_000, HOUR, -HOUR]));
    }
    let peeks: Vec<String> = keys(&master).iter().flat_map(|key| peeks_with_at(key)).collect();
    let expected = send(&mut master.connect(), &peeks);
    for replica in &replicas[..2] {
        // By its own clock all keys may have expired, or none.
        assert_copy(&master, replica, "with a wrong clock");
        let replies = send(&mut replica.connect(), &peeks);
        for ((peek, expected), reply) in peeks.iter().zip(&expected).zip(replies) {
            assert_eq!(reply, *expected, "{peek}");
        }
    }

    // One more replica, with a snapshot to load. Keys expire when their master says so.
    replicas.push(replica_with_clock_wrong_by(DAY, &master));
    let before = master.integer("DBSIZE");
    master.step_clock(2 * DAY);
    assert!((1..before).contains(&(keys(&master).len() as i64)), "some keys expired");
    for replica in &replicas {
        replica.wait_to_catch_up(&master);
        assert_eq!(replica.digest(), master.digest());
        assert_copy(&master, replica, "with a wrong clock");
    }
}

#[test]
fn a_promoted_replica_whose_clock_is_behind_frees_nothing_early_and_replies_exact_waits() {
    for name in COMMANDS {
        let master = Server::with_clock_at(NOW, &[]);
        let replica = replica_with_clock_wrong_by(-HOUR, &master);
        let request = format!("{name} k 5 10m COST 5");
        assert_eq!(master.figures(&request)[0], 0);
        let [.., on_master, _] = master.figures(&request);
        replica.wait_to_catch_up(&master);
        replica.value("REPLICAOF NO ONE");
        let [limited, _, _, wait, _] = replica.figures(&request);
        assert_eq!(limited, 1);
        assert!(wait >= on_master, "{name}: {wait} ms instead of {on_master}");
        replica.step_clock(wait - 1);
        assert_eq!(replica.figures(&request)[0], 1, "{name}");
        replica.step_clock(1);
        assert_eq!(replica.figures(&request)[0], 0, "{name}");
    }
}
