//! A cluster of six nodes under traffic: clients are redirected, slots move, masters hand over and fail.
//! No unit is lost or counted twice.

use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::thread;

use redis::cluster::ClusterConnection;
use redis::{ConnectionLike, RedisResult, Value};

use crate::helpers::errors::ROW;
use crate::helpers::nodes::{Cluster, cluster_client};
use crate::helpers::requests::{AllReply, used};
use harness::{COMMANDS, Random, Server, command, figures, not_tested, pipeline, wait_for};

/// A window that does not end while a test runs.
const WINDOW: &str = "3650d";

/// A limit that the traffic does not reach. A bucket of so many units refills by less than one while a test runs.
const MANY: i64 = 500_000;

/// A limit that the traffic reaches.
const FEW: i64 = 300;

/// The most units that a request takes.
const MOST_AT_ONCE: usize = 3;

const CLIENTS: u64 = 4;

/// A key under traffic, and what its clients know about it.
struct Key {
    command: &'static str,
    name: String,
    slot: u16,
    limit: i64,
    /// Units granted to clients.
    granted: AtomicI64,
    /// Granted units that had reached a replica when WAIT returned.
    replicated: AtomicI64,
    /// Units requested without a reply, which may or may not have been granted.
    unanswered: AtomicI64,
}

/// Keys of each algorithm: half in one slot, by their hash tag, and half in any. The first ones have a limit
/// that the traffic reaches.
fn keys(cluster: &Cluster) -> Vec<Key> {
    let mut keys = Vec::new();
    for command in COMMANDS {
        for number in 0..4 {
            for name in [format!("{{tenant}}:{command}:{number}"), format!("{command}:{number}")] {
                keys.push(Key {
                    command,
                    slot: cluster.slot(&name),
                    name,
                    limit: if number == 0 { FEW } else { MANY },
                    granted: AtomicI64::new(0),
                    replicated: AtomicI64::new(0),
                    unanswered: AtomicI64::new(0),
                });
            }
        }
    }
    keys
}

impl Key {
    /// Whether so few units are left that some requests are limited.
    fn is_almost_full(&self) -> bool {
        get(&self.granted) > self.limit - MOST_AT_ONCE as i64
    }

    /// The units that the cluster has counted.
    fn used(&self, client: &mut impl ConnectionLike) -> i64 {
        let info: Value = command(&format!("RL.INFO {}", self.name)).query(client).expect("RL.INFO");
        used(&info).into_iter().sum()
    }
}

fn get(units: &AtomicI64) -> i64 {
    units.load(Ordering::SeqCst)
}

fn add(units: &AtomicI64, more: i64) {
    units.fetch_add(more, Ordering::SeqCst);
}

/// Stops the clients even if the test fails.
struct StopAtTheEnd<'a>(&'a AtomicBool);

impl Drop for StopAtTheEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// Clients that request units of random keys until they are stopped.
struct Traffic<'a> {
    keys: &'a [Key],
    masters_fail: bool,
    stopped: AtomicBool,
}

impl Traffic<'_> {
    /// Runs `meanwhile` under traffic in which every request gets a reply, unless `masters_fail`: then connections break, and
    /// each client waits briefly for a replica to have what it was granted.
    fn run(addresses: &[String], keys: &[Key], masters_fail: bool, meanwhile: impl FnOnce()) {
        let traffic = &Traffic { keys, masters_fail, stopped: AtomicBool::new(false) };
        thread::scope(|scope| {
            let _stop = StopAtTheEnd(&traffic.stopped);
            for seed in 0..CLIENTS {
                scope.spawn(move || traffic.request_until_stopped(addresses, Random::new(seed)));
            }
            scope.spawn(|| traffic.request_of_several_until_stopped(addresses, Random::new(CLIENTS)));
            meanwhile();
        });
    }

    fn request_until_stopped(&self, addresses: &[String], mut random: Random) {
        let mut client = cluster_client(addresses).expect("the cluster answers");
        while !self.stopped.load(Ordering::SeqCst) {
            let key = &self.keys[random.below(self.keys.len())];
            let cost = 1 + random.below(MOST_AT_ONCE) as i64;
            if let Err(error) = self.request(&mut client, key, cost) {
                assert!(self.masters_fail, "{}: {error}", key.name);
                add(&key.unanswered, cost);
                client = self.client_when_served_again(addresses, key);
            }
        }
    }

    fn request(&self, client: &mut ClusterConnection, key: &Key, cost: i64) -> RedisResult<()> {
        let request = format!("{} {} {} {WINDOW} COST {cost}", key.command, key.name, key.limit);
        // On the same connection, to wait for a replica of the node that counted.
        let mut lines = vec![request.as_str()];
        lines.extend(self.masters_fail.then_some("WAIT 1 100"));
        let packed = pipeline(&lines).get_packed_pipeline();
        let replies = client.req_packed_commands(&packed, 0, lines.len())?;
        let [limited, ..] = figures(&replies[0]);
        if limited == 0 {
            add(&key.granted, cost);
            if replies.get(1) == Some(&Value::Int(1)) {
                add(&key.replicated, cost);
            }
        }
        Ok(())
    }

    /// Requests units of several keys at once, all in the slot of the hash tag.
    fn request_of_several_until_stopped(&self, addresses: &[String], mut random: Random) {
        let mut client = cluster_client(addresses).expect("the cluster answers");
        let tagged: Vec<&Key> = self.keys.iter().filter(|key| key.name.starts_with("{tenant}")).collect();
        while !self.stopped.load(Ordering::SeqCst) {
            let first = random.below(tagged.len());
            let asked: Vec<(&Key, i64)> = (0..2 + random.below(3))
                .map(|nth| (tagged[(first + 5 * nth) % tagged.len()], 1 + random.below(MOST_AT_ONCE) as i64))
                .collect();
            let row = |(key, cost): &(&Key, i64)| {
                format!(" {} {} {} {WINDOW} {cost}", key.name, &key.command[3..], key.limit)
            };
            let line: String = std::iter::once("RL.ALL".to_owned()).chain(asked.iter().map(row)).collect();
            match command(&line).query::<Value>(&mut client) {
                Ok(reply) if AllReply::of(&reply).limited == 0 => {
                    asked.iter().for_each(|(key, cost)| add(&key.granted, *cost));
                }
                Ok(_) => {}
                // Only some of the keys have moved.
                Err(error) if error.code() == Some("TRYAGAIN") => {}
                Err(error) => {
                    assert!(self.masters_fail, "{line}: {error}");
                    asked.iter().for_each(|(key, cost)| add(&key.unanswered, *cost));
                    client = self.client_when_served_again(addresses, asked[0].0);
                }
            }
        }
    }

    /// A new client, once it can reach the key.
    fn client_when_served_again(&self, addresses: &[String], key: &Key) -> ClusterConnection {
        let mut found = None;
        wait_for("the key to be served again", || {
            found = cluster_client(addresses).ok();
            let info = command(&format!("RL.INFO {}", key.name));
            found.as_mut().is_some_and(|client| info.exec(client).is_ok())
        });
        found.expect("a client")
    }
}

/// Asserts that every granted unit is counted exactly once, on masters and replicas.
fn assert_every_unit_counts_once(cluster: &Cluster, keys: &[Key]) {
    let mut client = cluster_client(&cluster.addresses()).expect("the cluster answers");
    for key in keys {
        assert_eq!(key.used(&mut client), get(&key.granted), "{}", key.name);
        assert!(get(&key.granted) <= key.limit, "{}", key.name);
    }
    wait_for("each key to be on one master", || {
        let names = |master| command("KEYS *").query::<Vec<String>>(&mut cluster.node(master).connect());
        let all: Vec<String> =
            cluster.masters().into_iter().flat_map(|master| names(master).expect("keys")).collect();
        all.len() == all.iter().collect::<BTreeSet<_>>().len()
    });
    for master in cluster.masters() {
        let its_keys = keys.iter().filter(|key| cluster.owner(key.slot) == master);
        let [master, replica] = [master, cluster.replica_of(master)].map(|node| cluster.node(node));
        wait_for("the replica to hold the same", || master.digest() == replica.digest());
        let mut reader = replica.connect();
        command("READONLY").exec(&mut reader).expect("READONLY");
        for key in its_keys {
            assert_eq!(key.used(&mut reader), get(&key.granted), "{} on a replica", key.name);
        }
    }
}

fn wait_until_limits_are_reached(keys: &[Key]) {
    wait_for("the limits to be reached", || {
        keys.iter().filter(|key| key.limit == FEW).all(Key::is_almost_full)
    });
}

/// Keys without traffic in a slot that moves: with several windows, a previous window, many entries.
struct KeysAtRest {
    /// Each with its digest and the Unix time in milliseconds at which it expires.
    states: Vec<(String, Value, i64)>,
}

impl KeysAtRest {
    /// In the slot of the keys with a hash tag.
    fn in_the_slot_of_the_tag(cluster: &Cluster) -> KeysAtRest {
        let node = cluster.node(cluster.owner(cluster.slot("{tenant}")));
        let now = node.clock_ms();
        let month = 30 * 24 * 3_600_000;
        let mut lines = vec![
            "RL.FIXED {tenant}:at-rest:fixed 50 1d 500 30d 5000 3650d COST 7".to_owned(),
            format!("RL.SLIDING {{tenant}}:at-rest:sliding 50 30d 500 365d COST 7 AT {}", now - month),
            "RL.SLIDING {tenant}:at-rest:sliding 50 30d 500 365d COST 3".to_owned(),
            "RL.BUCKET {tenant}:at-rest:bucket 50 1d 500 30d 5000 3650d COST 7".to_owned(),
        ];
        lines.extend((0..300).map(|nth| {
            let (units, at) = (1 + nth % 3, now - 300_000 + nth * 997);
            format!("RL.LOG {{tenant}}:at-rest:log 1000 30d COST {units} AT {at}")
        }));
        pipeline(lines).exec(&mut node.connect()).expect("replies");
        let names = ["fixed", "sliding", "log", "bucket"].map(|name| format!("{{tenant}}:at-rest:{name}"));
        KeysAtRest { states: names.into_iter().map(|name| KeysAtRest::state(node, name)).collect() }
    }

    fn state(node: &Server, name: String) -> (String, Value, i64) {
        let digest = node.value(&format!("DEBUG DIGEST-VALUE {name}"));
        let expires_at = node.integer(&format!("PEXPIRETIME {name}"));
        (name, digest, expires_at)
    }

    /// Asserts that their values are equal, and their expiry nearly so: MIGRATE sends the remaining time.
    fn assert_unchanged(&self, cluster: &Cluster) {
        let node = cluster.node(cluster.owner(cluster.slot("{tenant}")));
        for (name, digest, expires_at) in &self.states {
            let (_, digest_now, expires_at_now) = KeysAtRest::state(node, name.clone());
            assert_eq!(digest_now, *digest, "{name}");
            assert!(
                expires_at_now.abs_diff(*expires_at) < 60_000,
                "{name}: {expires_at}, then {expires_at_now}"
            );
        }
    }
}

/// Moves a slot to another master key by key, and waits until each has redirected a client.
fn move_key_by_key(cluster: &Cluster, slot: u16, to: usize, keys: &[Key]) {
    let from = cluster.owner(slot);
    let (source, target) = (cluster.node(from), cluster.node(to));
    set_slot(target, slot, &format!("IMPORTING {}", cluster.id(from)));
    set_slot(source, slot, &format!("MIGRATING {}", cluster.id(to)));
    while let Some(key) = one_key_of(source, slot) {
        let before = times_asked(target);
        source.value(&format!("MIGRATE 127.0.0.1 {} {key} 0 20000", target.port()));
        let is_in_use = keys.iter().any(|in_use| in_use.name == key);
        wait_for("a client to follow the key by ASK", || !is_in_use || times_asked(target) > before);
    }
    for node in [target, source] {
        set_slot(node, slot, &format!("NODE {}", cluster.id(to)));
    }
    cluster.wait_for_owner(slot, to);
}

/// Valkey refuses to change the state of a slot while its replica lags behind.
fn set_slot(node: &Server, slot: u16, state: &str) {
    wait_for("the state of the slot to change", || {
        match node.call(&format!("CLUSTER SETSLOT {slot} {state}")) {
            Ok(_) => true,
            Err(error) => {
                assert_eq!(error.code(), Some("NOREPLICAS"), "{error}");
                false
            }
        }
    });
}

/// A master other than this one.
fn another_master(cluster: &Cluster, than: usize) -> usize {
    cluster.masters().into_iter().find(|master| *master != than).expect("another master")
}

/// How a server moves whole slots atomically.
enum AtomicMove {
    /// The source sends them (Valkey 9.0).
    Export,
    /// The target fetches them (Redis 8.4).
    Import,
}

impl AtomicMove {
    /// Starts a cluster; `None` if its servers move slots key by key only.
    fn on_a_cluster() -> Option<(Cluster, AtomicMove)> {
        let cluster = Cluster::start();
        let how = AtomicMove::of(cluster.node(0));
        if how.is_none() {
            not_tested("this server moves slots key by key only");
        }
        how.map(|how| (cluster, how))
    }

    /// What this server supports, if anything.
    fn of(server: &Server) -> Option<AtomicMove> {
        let has = |name: &str| {
            server.value(&format!("COMMAND INFO cluster|{name}")) != Value::Array(vec![Value::Nil])
        };
        match (has("migrateslots"), has("migration")) {
            (true, _) => Some(AtomicMove::Export),
            (_, true) => Some(AtomicMove::Import),
            _ => None,
        }
    }

    /// Moves all slots of one master to another.
    fn run(&self, cluster: &Cluster, from: usize, to: usize, slots: &BTreeSet<u16>) {
        let moving: Vec<u16> = slots.iter().copied().filter(|slot| cluster.owner(*slot) == from).collect();
        let ranges: String = moving.iter().map(|slot| format!("{slot} {slot} ")).collect();
        let (source, target) = (cluster.node(from), cluster.node(to));
        let (asked, status) = match self {
            AtomicMove::Export => {
                source.value(&format!("CLUSTER MIGRATESLOTS SLOTSRANGE {ranges} NODE {}", cluster.id(to)));
                (source, "CLUSTER GETSLOTMIGRATIONS")
            }
            AtomicMove::Import => {
                target.value(&format!("CLUSTER MIGRATION IMPORT {ranges}"));
                (target, "CLUSTER MIGRATION STATUS ALL")
            }
        };
        wait_for("the slots to have moved", || {
            let moves: Vec<HashMap<String, String>> =
                command(status).query(&mut asked.connect()).expect("moves");
            assert!(moves.iter().all(|one| one["state"] != "failed"), "{moves:?}");
            moves.iter().all(|one| ["success", "completed"].contains(&one["state"].as_str()))
        });
        for slot in moving {
            cluster.wait_for_owner(slot, to);
        }
    }
}

/// A key in this slot on this node.
fn one_key_of(node: &Server, slot: u16) -> Option<String> {
    let keys: Vec<String> =
        command(&format!("CLUSTER GETKEYSINSLOT {slot} 1")).query(&mut node.connect()).expect("keys");
    keys.into_iter().next()
}

/// How many commands this node has served after an ASK redirection.
fn times_asked(node: &Server) -> u64 {
    let statistics: String = command("INFO commandstats").query(&mut node.connect()).expect("INFO");
    let calls = statistics.lines().find_map(|line| line.strip_prefix("cmdstat_asking:calls="));
    calls.and_then(|calls| calls.split(',').next()?.parse().ok()).unwrap_or(0)
}

/// The distinct slots of the keys.
fn slots_of(keys: &[Key]) -> BTreeSet<u16> {
    keys.iter().map(|key| key.slot).collect()
}

#[test]
fn slots_that_move_key_by_key_under_traffic_lose_no_unit_and_count_none_twice() {
    let cluster = Cluster::start();
    let keys = keys(&cluster);
    let at_rest = KeysAtRest::in_the_slot_of_the_tag(&cluster);
    let masters = cluster.masters();
    Traffic::run(&cluster.addresses(), &keys, false, || {
        // To the next master, and back.
        for direction in [1, 2] {
            for slot in slots_of(&keys) {
                let from = masters.iter().position(|master| *master == cluster.owner(slot));
                let to = masters[(from.expect("a master") + direction) % masters.len()];
                move_key_by_key(&cluster, slot, to, &keys);
            }
        }
        wait_until_limits_are_reached(&keys);
    });
    assert_every_unit_counts_once(&cluster, &keys);
    at_rest.assert_unchanged(&cluster);
}

#[test]
fn slots_that_move_atomically_under_traffic_lose_no_unit_and_count_none_twice() {
    let Some((cluster, how)) = AtomicMove::on_a_cluster() else { return };
    let keys = keys(&cluster);
    let at_rest = KeysAtRest::in_the_slot_of_the_tag(&cluster);
    let from = cluster.owner(cluster.slot("{tenant}"));
    // Enough keys that there is traffic while they move.
    let more = COMMANDS.iter().flat_map(|name| {
        (0..3_000).map(move |number| format!("{name} {{tenant}}:more:{name}:{number} 5 {WINDOW}"))
    });
    pipeline(more).exec(&mut cluster.node(from).connect()).expect("replies");
    let to = another_master(&cluster, from);
    Traffic::run(&cluster.addresses(), &keys, false, || {
        for (from, to) in [(from, to), (to, from), (from, to)] {
            how.run(&cluster, from, to, &slots_of(&keys));
            at_rest.assert_unchanged(&cluster);
        }
        wait_until_limits_are_reached(&keys);
    });
    assert_every_unit_counts_once(&cluster, &keys);
}

#[test]
fn a_large_log_moves_atomically_with_its_slot() {
    const ENTRIES: i64 = 200_000;
    let Some((cluster, how)) = AtomicMove::on_a_cluster() else { return };
    let slot = cluster.slot("{tenant}");
    let from = cluster.owner(slot);
    let to = another_master(&cluster, from);
    let (source, target) = (cluster.node(from), cluster.node(to));
    let (mut connection, now) = (source.connect(), source.clock_ms());
    for first in (0..ENTRIES).step_by(50_000) {
        let at = (first..first + 50_000).map(|nth| now - ENTRIES + nth);
        let lines = at.map(|at| format!("RL.LOG {{tenant}}:log {ENTRIES} 30d AT {at}"));
        pipeline(lines).exec(&mut connection).expect("all of them are counted");
    }
    // A key that lost its time to live, and one that keeps it.
    source.value("RL.FIXED {tenant}:persisted 5 30d");
    source.value("PERSIST {tenant}:persisted");
    source.value("RL.FIXED {tenant}:kept 5 30d");
    let names = ["{tenant}:log", "{tenant}:persisted", "{tenant}:kept"];
    let digests = |node: &Server| names.map(|name| node.value(&format!("DEBUG DIGEST-VALUE {name}")));
    let before = digests(source);
    how.run(&cluster, from, to, &BTreeSet::from([slot]));
    assert_eq!(digests(target), before);
    assert_eq!(target.integer("PTTL {tenant}:persisted"), -1);
    assert!(names.iter().filter(|name| target.integer(&format!("PTTL {name}")) > 0).count() == 2);
    let replica = cluster.node(cluster.replica_of(to));
    wait_for("the replica to hold the same", || replica.digest() == target.digest());
    // It is still full.
    let peek = target.figures(&format!("RL.PEEK {{tenant}}:log {ENTRIES} 30d"));
    assert_eq!(peek[..3], [1, ENTRIES, 0]);
}

#[test]
fn rl_all_is_redirected_by_its_keys_which_lie_in_one_slot() {
    let cluster = Cluster::start();
    let slot = cluster.slot("{tenant}");
    let owner = cluster.owner(slot);
    let (owner, other) = (cluster.node(owner), cluster.node(another_master(&cluster, owner)));
    let elsewhere = (0..).map(|nth| format!("{{other{nth}}}"));
    let elsewhere = elsewhere.into_iter().find(|name| cluster.slot(name) != slot).expect("another slot");
    for options in ["", " FORCE", " AT 5", " AT 5 FORCE"] {
        let in_one = format!("RL.ALL {{tenant}}a FIXED 99 1h 1 {{tenant}}b LOG 99 1h 1{options}");
        assert_eq!(AllReply::of(&owner.value(&in_one)).limited, 0, "{in_one}");
        let error = other.error(&in_one);
        assert!(error.starts_with(&format!("MOVED {slot} ")), "{in_one}: {error}");
        for rows in [
            format!("{{tenant}}a FIXED 99 1h 1 {elsewhere} FIXED 99 1h 1"),
            format!("{elsewhere} FIXED 99 1h 1 {{tenant}}a FIXED 99 1h 1"),
            format!("{{tenant}}a FIXED 99 1h 1 {{tenant}}b LOG 99 1h 1 {elsewhere} FIXED 99 1h 1"),
        ] {
            for node in [owner, other] {
                let line = format!("RL.ALL {rows}{options}");
                assert!(node.error(&line).starts_with("CROSSSLOT "), "{line}");
            }
        }
    }
    let line = format!("RL.APPLY {{tenant}}a F:5/1h {elsewhere} F:5/1h");
    assert!(owner.error(&line).starts_with("CROSSSLOT "), "{line}");
    // Words after the last complete row are never keys.
    for rest in [&elsewhere[..], "FORCE AT 1 FORCE", "BOGUS", "AT"] {
        let error = owner.error(&format!("RL.ALL {{tenant}}a FIXED 99 1h 1 {rest}"));
        assert!(error.starts_with("ERR "), "{rest}: {error}");
    }
    let error = owner.error(&format!("RL.ALL {{tenant}}a FIXED 99 1h 1 {elsewhere} FIXED 99 1h"));
    assert_eq!(error, ROW);
}

#[test]
fn a_master_that_hands_over_under_traffic_loses_no_unit_and_counts_none_twice() {
    let cluster = Cluster::start();
    let keys = keys(&cluster);
    Traffic::run(&cluster.addresses(), &keys, false, || {
        for master in cluster.masters() {
            cluster.hand_over(master);
        }
        wait_until_limits_are_reached(&keys);
    });
    assert_every_unit_counts_once(&cluster, &keys);
}

#[test]
fn when_a_master_fails_every_unit_that_was_acknowledged_and_replicated_is_kept() {
    let mut cluster = Cluster::start();
    let keys = keys(&cluster);
    let master = cluster.owner(keys[0].slot);
    let its: Vec<&Key> = keys.iter().filter(|key| cluster.owner(key.slot) == master).collect();
    let granted = || its.iter().map(|key| get(&key.granted)).sum::<i64>();
    let replicated = || its.iter().map(|key| get(&key.replicated)).sum::<i64>();
    Traffic::run(&cluster.addresses(), &keys, true, || {
        wait_for("units that its replica has", || replicated() > 500);
        cluster.fail_over(master);
        let before = granted();
        wait_for("units from the new master", || granted() > before + 50);
    });
    let mut client = cluster_client(&cluster.addresses()).expect("the cluster answers");
    for key in &keys {
        let used = key.used(&mut client);
        let [granted, replicated, unanswered] = [&key.granted, &key.replicated, &key.unanswered].map(get);
        assert!(replicated <= used, "{}: {replicated} units replicated, {used} counted", key.name);
        assert!(used <= granted + unanswered, "{}: {granted} + {unanswered} units, {used} counted", key.name);
        // From here on every unit is accounted for.
        key.granted.store(used, Ordering::SeqCst);
    }

    cluster.revive();
    Traffic::run(&cluster.addresses(), &keys, false, || wait_until_limits_are_reached(&keys));
    assert_every_unit_counts_once(&cluster, &keys);
}
