//! Another module that writes to any key while the server tells it about one: see `neighbor.c` of the harness.
//!
//! Two things it does not do, because no server survives them: to remove a key while it is told that this key is new, and to
//! create another in the same database while one is about to be removed, if both are in one bucket of the server's table.

use harness::{
    APPEND_ONLY, COMMANDS, Random, ReplicationStream, Server, command, not_tested, without_expiry,
};
use redis::{RedisResult, Value};

use crate::helpers::expiries::{assert_copy, keys};
use crate::helpers::requests::{ALGORITHMS, AllReply, used};

const NOW: i64 = 1_900_000_000_123;

/// Units that a key holds before the request, and units that the request takes.
const HELD: i64 = 5;
const TAKEN: i64 = 2;

/// Servers that survive an expiry for a key that is told to be new. Since Redis 8.2 it moves the key in memory.
const SURVIVES_EXPIRY_OF_NEW_KEY: [&str; 2] = ["redis_version:7.", "redis_version:8.0."];

/// What the other module does to a key.
const WRITES: [&str; 6] = [
    "DEL KEY",
    "UNLINK KEY",
    "SET KEY x",
    "RENAME KEY KEY:moved",
    "COPY KEY KEY:copied REPLACE",
    "RL.LOG KEY 100 1h COST 3",
];

/// A server with the other module, and its replica.
struct Neighborhood {
    server: Server,
    replica: Server,
    cases: usize,
}

impl Neighborhood {
    fn new() -> Neighborhood {
        Neighborhood::with("neighbor")
    }

    /// The other module has this name.
    fn with(name: &str) -> Neighborhood {
        let server = Server::with_neighbor_named(name, false, NOW, &APPEND_ONLY);
        let replica = Server::replica_of(&server, &[]);
        Neighborhood { server, replica, cases: 0 }
    }

    /// Whether the server's own version begins with one of these.
    fn is_version(&self, names: &[&str]) -> bool {
        let info = self.server.text("INFO server");
        names.iter().any(|name| info.contains(name))
    }

    /// The number of the next case, a prefix for its keys.
    fn next_case(&mut self) -> usize {
        self.cases += 1;
        self.cases
    }

    /// The reply to a request during which the other module reacts to an event about a key, and whether it did.
    fn call(&self, event: &str, key: &str, write: &str, line: &str) -> (RedisResult<Value>, bool) {
        let before = self.server.integer("NEIGHBOR.RAN");
        self.server.value(&format!("NEIGHBOR.ON {event} {key} {write}"));
        let reply = self.server.call(line);
        self.server.value("NEIGHBOR.OFF");
        (reply, self.server.integer("NEIGHBOR.RAN") > before)
    }

    /// Deletes a key that the other module wrote to when it was told of that key: if it had expired, the server sends
    /// its deletion to copies after that; if it was new, a copy of it has no time to live yet.
    fn delete_with_copies(&self, key: &str) {
        self.server.value(&format!("DEL {key} {key}:moved {key}:copied"));
    }

    /// Units in a key; `None` if it is missing or holds something else.
    fn used(&self, key: &str) -> Option<i64> {
        if self.server.text(&format!("TYPE {key}")) != "ratelimit" {
            return None;
        }
        assert!(self.server.integer(&format!("PTTL {key}")) > 0, "{key} has no time to live");
        let windows = used(&self.server.value(&format!("RL.INFO {key}")));
        Some(*windows.last().expect("a window that counts"))
    }

    /// Asserts that the replica and the append-only file hold what the server holds.
    fn assert_copies_are_equal(mut self) {
        self.server.assert_nothing_panicked();
        assert_copy(&self.server, &self.replica, "on the replica");
        let before = keys(&self.server);
        self.server.restart();
        assert!(keys(&self.server) == before, "after a restart");
    }
}

/// A key of a request, and what happens to it.
struct Key {
    name: String,
    algorithm: &'static str,
    /// Units before the request.
    held: i64,
    limit: i64,
    cost: i64,
    /// Units if the request is counted; `None` if the key is deleted.
    counted: Option<i64>,
}

impl Key {
    /// A key that the request creates, or that exists.
    fn counting(name: String, algorithm: &'static str, held: i64) -> Key {
        Key { name, algorithm, held, limit: 100, cost: TAKEN, counted: Some(held + TAKEN) }
    }

    fn row(&self) -> String {
        let Key { name, algorithm, limit, cost, .. } = self;
        format!(" {name} {algorithm} {limit} 1h {cost}")
    }
}

/// What happens to a key, so that the server tells other modules.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Cause {
    /// It is created, as are all others.
    CreatedAmongNew,
    /// It is created, and the others exist.
    Created,
    /// It refuses.
    Limited,
    /// It refuses, and is counted.
    Forced,
    /// It gives back its last unit.
    Emptied,
    /// It has expired.
    Expired,
}

impl Cause {
    /// Each with the event that it publishes.
    const EVENTS: [(Cause, &str); 6] = [
        (Cause::CreatedAmongNew, "new"),
        (Cause::Created, "new"),
        (Cause::Limited, "rl.limited"),
        (Cause::Forced, "rl.limited"),
        (Cause::Emptied, "del"),
        (Cause::Expired, "expired"),
    ];

    /// The key that it happens to.
    fn key(self, name: String, algorithm: &'static str) -> Key {
        match self {
            Cause::CreatedAmongNew | Cause::Created => Key::counting(name, algorithm, 0),
            Cause::Limited | Cause::Forced => Key { limit: HELD, ..Key::counting(name, algorithm, HELD) },
            Cause::Emptied => Key { cost: -HELD, counted: None, ..Key::counting(name, algorithm, HELD) },
            Cause::Expired => Key { counted: Some(TAKEN), ..Key::counting(name, algorithm, HELD) },
        }
    }
}

/// Whether the other module may do that: of a key that it is told is new it can only make a copy.
fn is_allowed(event: &str, write: &str, is_same_key: bool) -> bool {
    event != "new" || !is_same_key || write.starts_with("COPY")
}

#[test]
fn rl_all_counts_in_every_key_that_another_module_leaves_alone() {
    count_in_every_key_that_is_left_alone(Neighborhood::new(), &Cause::EVENTS);
}

#[test]
fn no_name_of_another_module_lets_rl_all_read_what_it_has_freed() {
    // It is known to write to no key; this one does, while the keys are opened.
    count_in_every_key_that_is_left_alone(Neighborhood::with("search"), &[(Cause::Expired, "expired")]);
}

fn count_in_every_key_that_is_left_alone(mut town: Neighborhood, causes: &[(Cause, &str)]) {
    for &(cause, event) in causes {
        for (teller, target, write) in (0..3)
            .flat_map(|teller| (0..3).flat_map(move |target| WRITES.map(|write| (teller, target, write))))
        {
            if !is_allowed(event, write, teller == target) {
                continue;
            }
            let case = town.next_case();
            let keys = [0, 1, 2].map(|key| {
                let (name, algorithm) =
                    (format!("{case}:{key}"), ALGORITHMS[(case + key) % ALGORITHMS.len()]);
                let held = if cause == Cause::CreatedAmongNew { 0 } else { HELD };
                if key == teller { cause.key(name, algorithm) } else { Key::counting(name, algorithm, held) }
            });
            for Key { name, algorithm, held, limit, .. } in keys.iter().filter(|key| key.held > 0) {
                town.server.value(&format!("RL.{algorithm} {name} {limit} 1h COST {held}"));
            }
            if cause == Cause::Expired {
                town.server.value(&format!("PEXPIRE {} 1", keys[teller].name));
                town.server.step_clock(2);
            }
            let rows: String = keys.iter().map(Key::row).collect();
            let line = format!("RL.ALL{rows}{}", if cause == Cause::Forced { " FORCE" } else { "" });
            let about = format!("{line}, where on {event} {} does {write} {target}", keys[teller].name);
            let (reply, reacted) =
                town.call(event, &keys[teller].name, &write.replace("KEY", &keys[target].name), &line);
            assert!(reacted, "{about}");
            let counted = match reply {
                Ok(reply) => {
                    let limited = AllReply::of(&reply).limited;
                    assert_eq!(
                        limited,
                        i64::from([Cause::Limited, Cause::Forced].contains(&cause)),
                        "{about}"
                    );
                    cause != Cause::Limited
                }
                // It replaced a key that was not decided on yet, as Redis 7.0 allows.
                Err(error) => {
                    assert!(cause == Cause::Expired && error.code() == Some("WRONGTYPE"), "{about}: {error}");
                    false
                }
            };
            for (nth, key) in keys.iter().enumerate() {
                let expected = match counted {
                    true => key.counted,
                    false if cause == Cause::Expired && nth == teller => None,
                    false => Some(key.held).filter(|held| *held > 0),
                };
                let used = town.used(&key.name);
                if nth != target || write.starts_with("COPY") {
                    assert_eq!(used, expected, "{about}: {}", key.name);
                } else if write.starts_with("RL.LOG") && key.algorithm == "LOG" && nth != teller {
                    assert_eq!(used, expected.map(|units| units + 3), "{about}: both count");
                } else {
                    // Deleted, replaced, or created after that.
                    assert!(
                        [None, Some(3), Some(TAKEN), expected, expected.map(|units| units + 3)]
                            .contains(&used),
                        "{about}: {used:?}"
                    );
                }
            }
            if ["new", "expired"].contains(&event) && teller == target {
                town.delete_with_copies(&keys[target].name);
            }
        }
    }
    town.assert_copies_are_equal();
}

#[test]
fn a_single_command_survives_whatever_another_module_does_to_its_key() {
    let mut town = Neighborhood::new();
    for (cause, event) in Cause::EVENTS {
        for write in WRITES {
            if !is_allowed(event, write, true) {
                continue;
            }
            for (algorithm, as_row) in ALGORITHMS.into_iter().flat_map(|name| [(name, false), (name, true)]) {
                let key = cause.key(town.next_case().to_string(), algorithm);
                let Key { name, held, limit, cost, .. } = &key;
                if *held > 0 {
                    town.server.value(&format!("RL.{algorithm} {name} {limit} 1h COST {held}"));
                }
                if cause == Cause::Expired {
                    town.server.value(&format!("PEXPIRE {name} 1"));
                    town.server.step_clock(2);
                }
                let force = if cause == Cause::Forced { " FORCE" } else { "" };
                let line = match as_row {
                    true => format!("RL.ALL{}{force}", key.row()),
                    false => format!("RL.{algorithm} {name} {limit} 1h COST {cost}{force}"),
                };
                let about = format!("{line}, where on {event} does {write}");
                let (reply, reacted) = town.call(event, name, &write.replace("KEY", name), &line);
                assert!(reacted, "{about}");
                let used = town.used(name);
                if event == "expired" && write.starts_with("SET") {
                    // It is there before the request is decided.
                    assert_eq!(reply.expect_err(&about).code(), Some("WRONGTYPE"), "{about}");
                } else if write.starts_with("COPY") && cause != Cause::Limited {
                    assert_eq!(used, key.counted, "{about}");
                } else if write.starts_with("COPY") {
                    assert_eq!(used, Some(*held), "{about}");
                }
                if ["new", "expired"].contains(&event) {
                    town.delete_with_copies(name);
                }
            }
        }
    }
    town.assert_copies_are_equal();
}

#[test]
fn another_module_may_let_one_key_expire_when_it_is_told_of_another() {
    let mut town = Neighborhood::new();
    for order in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
        let case = town.next_case();
        let keys = [0, 1, 2].map(|key| {
            let (name, algorithm) = (format!("{case}:{key}"), ALGORITHMS[(case + key) % ALGORITHMS.len()]);
            Key::counting(name, algorithm, HELD)
        });
        for Key { name, algorithm, held, .. } in &keys {
            town.server.value(&format!("RL.{algorithm} {name} 100 1h COST {held}"));
        }
        let [first, second, third] = order.map(|nth| &keys[nth]);
        town.server.value(&format!("PEXPIRE {} 1", first.name));
        town.server.step_clock(2);
        town.server.value(&format!("NEIGHBOR.ON expired {} SET {} x PXAT 1", first.name, second.name));
        let rows: String = keys.iter().map(Key::row).collect();
        let (reply, _) =
            town.call("expired", &second.name, &format!("DEL {}", third.name), &format!("RL.ALL{rows}"));
        assert_eq!(AllReply::of(&reply.expect("a reply")).limited, 0, "{order:?}");
        assert_eq!(town.used(&first.name), Some(TAKEN), "{order:?}");
        for Key { name, .. } in [second, third] {
            // Deleted before or after it was counted, or not at all.
            assert!([None, Some(TAKEN), Some(HELD + TAKEN)].contains(&town.used(name)), "{order:?}: {name}");
        }
    }
    town.assert_copies_are_equal();
}

#[test]
fn beside_another_module_a_request_sends_a_transaction_only_if_it_creates_several_keys_or_empties_one() {
    let server = Server::with_neighbor(NOW, &[]);
    let mut stream = ReplicationStream::of(&server);
    let [a, b, c] = ["a F", "b L", "c S"].map(|start| format!("{start}:{NOW}/1h"));
    for (line, sent) in [
        // Each before the server tells of it.
        ("RL.ALL a FIXED 9 1h 1 b LOG 9 1h 1", vec![&a, &b]),
        ("RL.ALL a FIXED 9 1h 1 c SLIDING 9 1h 1", vec![&format!("{a} {c}")]),
        // The deletion after it.
        ("RL.ALL a FIXED 9 1h 1 b LOG 9 1h 1 c SLIDING 9 1h -1", vec![&a, &b, &"c DEL".to_owned()]),
        ("RL.ALL a FIXED 9 1h 1 b LOG 9 1h 1", vec![&format!("{a} {b}")]),
    ] {
        server.value(line);
        let mut sent: Vec<String> = sent.into_iter().map(|words| format!("RL.APPLY {words}")).collect();
        if sent.len() > 1 {
            sent = [vec!["MULTI".to_owned()], sent, vec!["EXEC".to_owned()]].concat();
        }
        assert_eq!(without_expiry(&stream.commands(&server)), sent, "{line}");
    }
}

#[test]
fn rl_load_tells_of_a_new_key_when_it_is_closed() {
    let mut town = Neighborhood::new();
    for name in COMMANDS {
        town.server.value(&format!("{name} source 100 1h COST 7"));
        let dump: Vec<u8> = command("DUMP source").query(&mut town.server.connect()).expect("a payload");
        let payload = crate::helpers::payload::Payload::of(&dump).body;
        let key = town.next_case().to_string();
        town.server.value(&format!("NEIGHBOR.ON new {key} COPY {key} {key}:copied"));
        town.server.value(&format!("NEIGHBOR.ON new {key} DEL source"));
        let mut load = redis::cmd("RL.LOAD");
        load.arg(&key).arg(payload).exec(&mut town.server.connect()).expect("it is loaded");
        let [loaded, copied] = [key.clone(), format!("{key}:copied")]
            .map(|key| town.server.figures(&format!("RL.PEEK {key} 100 1h"))[2]);
        assert_eq!((loaded, copied), (93, 93));
        assert_eq!(town.server.integer("EXISTS source"), 0);
        town.server.value("NEIGHBOR.OFF");
    }
    town.assert_copies_are_equal();
}

#[test]
fn a_module_that_is_known_to_be_harmless_counts_as_a_part_of_the_server_whenever_it_is_loaded() {
    for (name, is_harmless) in
        [("search", true), ("ReJSON", true), ("timeseries", true), ("bf", true), ("rejson", false)]
    {
        for comes_first in [true, false] {
            let server = Server::with_neighbor_named(name, comes_first, NOW, &[]);
            let mut stream = ReplicationStream::of(&server);
            server.value("RL.ALL a FIXED 9 1h 1 b LOG 9 1h 1");
            // Beside any other, each new key is sent before the server tells of it: MULTI, two commands, EXEC.
            let sent = stream.commands(&server).len();
            assert_eq!(sent == 1, is_harmless, "{name}, first: {comes_first}: {sent} commands");
        }
    }
}

#[test]
fn copies_agree_whatever_another_module_does_to_a_key_that_is_about_to_be_removed() {
    let mut town = Neighborhood::new();
    for (algorithm, request) in ALGORITHMS.into_iter().flat_map(|name| [0, 1, 2].map(|nth| (name, nth))) {
        for write in 0..2 {
            let case = town.next_case();
            let [a, b] = ["a", "b"].map(|key| format!("{case}:{key}"));
            town.server.value(&format!("RL.{algorithm} {a} 100 1h COST 5"));
            if request == 2 {
                town.server.value(&format!("RL.{algorithm} {b} 100 1h COST 5"));
            }
            let line = &[
                format!("RL.{algorithm} {a} 100 1h COST -5"),
                format!("RL.ALL {a} {algorithm} 100 1h -5 {b} {algorithm} 100 1h 2"),
                format!("RL.APPLY {a} DEL {b} DEL"),
            ][request];
            // Valkey 8.1 sends copies that COPY in the other database.
            let write = if town.is_version(&["valkey_version:8.1."]) { 1 } else { write };
            let write = &[format!("COPY {a} {a} DB 1"), format!("RL.{algorithm} {a} 100 1h COST 3")][write];
            let (reply, reacted) = town.call("removed", &a, write, line);
            let about = format!("{line}, where {write}");
            assert!(reply.is_ok(), "{about}");
            assert!(reacted || town.is_version(&["redis_version:7.0."]), "{about}");
            assert_eq!(town.used(&a), None, "{about}");
            assert_copy(&town.server, &town.replica, &about);
        }
    }
    town.assert_copies_are_equal();
}

#[test]
fn a_new_key_in_which_another_module_counts_expires_alike_on_every_copy() {
    let mut town = Neighborhood::new();
    if !town.is_version(&SURVIVES_EXPIRY_OF_NEW_KEY) {
        return not_tested("this server does not survive an expiry for a key that is told to be new");
    }
    for (algorithm, window) in ALGORITHMS.into_iter().flat_map(|name| ["1s", "365d"].map(|ms| (name, ms))) {
        for request in 0..3 {
            let key = town.next_case().to_string();
            let line = &[
                format!("RL.{algorithm} {key} 9 1m COST 3"),
                format!("RL.ALL {key} {algorithm} 9 1m 3"),
                format!("RL.ALL {key} {algorithm} 9 1m 3 {key}:other {algorithm} 9 1m 1"),
            ][request];
            let write = format!("RL.{algorithm} {key} 9 {window} COST 3");
            let (reply, reacted) = town.call("new", &key, &write, line);
            let about = format!("{line}, where {write}");
            assert!(reply.is_ok() && reacted, "{about}");
            let least = if window == "1s" { 19_877 } else { 86_400_000 };
            assert!(town.server.integer(&format!("PTTL {key}")) >= least, "{about}");
            assert_copy(&town.server, &town.replica, &about);
        }
    }
    town.assert_copies_are_equal();
}

/// Keys of random requests. Each keeps its algorithm.
const KEYS: [&str; 5] = ["a", "b", "c", "d", "e"];

/// A row about one of these keys, by index. It gives nothing back if it `only_takes`.
fn random_row(random: &mut Random, key: usize, only_takes: bool) -> String {
    let (limit, window) = (random.of(&[2, 9, 1_000]), random.of(&["1s", "10s", "1m", "1h", "30d"]));
    let cost = random.of(if only_takes { &[1, 2, 5] } else { &[1, 2, 5, -1, -2, -1_000] });
    format!(" {} {} {limit} {window} {cost}", KEYS[key], ALGORITHMS[key % ALGORITHMS.len()])
}

/// What the other module does, and when.
fn random_rule(random: &mut Random, counts_in_new_key: bool) -> String {
    let (event, key) =
        (random.of(&["new", "del", "rl.limited", "expired", "removed"]), random.below(KEYS.len()));
    let mut target = random.below(KEYS.len());
    if event == "removed" {
        target = key;
    } else if target == key && (event == "expired" || event == "new" && !counts_in_new_key) {
        // The server sends the deletion of the expired key after that.
        target = (key + 1) % KEYS.len();
    }
    if random.below(30) == 0 && !["new", "removed"].contains(&event) {
        return format!("NEIGHBOR.ON {event} {} FLUSHALL", KEYS[key]);
    }
    let row = random_row(random, target, target == key);
    format!("NEIGHBOR.ON {event} {} RL.ALL{row}{}", KEYS[key], random.of(&["", " FORCE"]))
}

#[test]
fn random_requests_in_events_leave_every_copy_equal() {
    let town = Neighborhood::new();
    let (mut random, counts_in_new_key) = (Random::new(1), town.is_version(&SURVIVES_EXPIRY_OF_NEW_KEY));
    for round in 0..150 {
        let mut lines: Vec<String> = (0..4).map(|_| random_rule(&mut random, counts_in_new_key)).collect();
        for _ in 0..4 {
            let first = random.below(KEYS.len());
            let keys = (first..first + random.of(&[1, 2, 4])).map(|key| key % KEYS.len());
            let rows: String = keys.map(|key| random_row(&mut random, key, false)).collect();
            lines.push(format!("RL.ALL{rows}{}", random.of(&["", "", " FORCE"])));
        }
        lines.push("NEIGHBOR.OFF".to_owned());
        for line in &lines {
            // Some windows are one too many.
            let _ = town.server.call(line);
        }
        assert_copy(&town.server, &town.replica, &format!("round {round}: {lines:#?}"));
        town.server.step_clock(random.of(&[0, 1, 700, 20_000]));
    }
    town.assert_copies_are_equal();
}
