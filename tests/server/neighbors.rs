//! Another module that writes to any key while the server tells it about one: see `neighbor.c` of the harness.
//!
//! Two things it does not do, because no server survives them, whatever the command: to remove a key while it is told
//! that this key is new, and to write while the server is about to remove a key (the server event `Key`), which leaves the
//! server with a freed entry of its table if both keys are in one bucket.

use harness::{APPEND_ONLY, COMMANDS, ReplicationStream, Server, command, without_expiry};
use redis::{RedisResult, Value};

use crate::helpers::expiries::assert_copy;
use crate::helpers::requests::{ALGORITHMS, AllReply, effect};

const NOW: i64 = 1_900_000_000_123;

/// Units that a key holds before the request, and units that the request takes.
const HELD: i64 = 5;
const TAKEN: i64 = 2;

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
        let server = Server::with_neighbor(NOW, &APPEND_ONLY);
        let replica = Server::replica_of(&server, &[]);
        Neighborhood { server, replica, cases: 0 }
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
        Some(1_000 - self.server.figures(&format!("RL.PEEK {key} 1000 1h"))[2])
    }

    /// Asserts that the replica and the append-only file hold what the server holds.
    fn assert_copies_are_equal(mut self) {
        self.server.assert_nothing_panicked();
        self.replica.wait_to_catch_up(&self.server);
        let digest = self.server.digest();
        if self.replica.digest() != digest {
            let keys: Vec<String> = command("KEYS *").query(&mut self.server.connect()).expect("keys");
            for key in keys {
                let [own, copy] = [&self.server, &self.replica]
                    .map(|server| server.call(&format!("DEBUG DIGEST-VALUE {key}")).ok());
                assert_eq!(copy, own, "{key} on the replica");
            }
        }
        assert_eq!(self.replica.digest(), digest, "on the replica");
        assert_copy(&self.server, &self.replica, "on the replica");
        self.server.restart();
        assert_eq!(self.server.digest(), digest, "after a restart");
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
    let mut town = Neighborhood::new();
    for (cause, event) in Cause::EVENTS {
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
            for Key { name, algorithm, held, .. } in keys.iter().filter(|key| key.held > 0) {
                town.server.value(&format!("RL.{algorithm} {name} 100 1h COST {held}"));
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
            for (algorithm, as_row) in
                COMMANDS.iter().flat_map(|name| [(&name[3..], false), (&name[3..], true)])
            {
                let key = cause.key(town.next_case().to_string(), algorithm);
                let Key { name, held, limit, cost, .. } = &key;
                if *held > 0 {
                    town.server.value(&format!("RL.{algorithm} {name} 100 1h COST {held}"));
                }
                if cause == Cause::Expired {
                    town.server.value(&format!("PEXPIRE {name} 1"));
                    town.server.step_clock(2);
                }
                let line = match (as_row, cause) {
                    (true, Cause::Forced) => format!("RL.ALL{} FORCE", key.row()),
                    (true, _) => format!("RL.ALL{}", key.row()),
                    (false, Cause::Forced) => format!("RL.{algorithm} {name} {limit} 1h COST {cost} FORCE"),
                    (false, _) => format!("RL.{algorithm} {name} {limit} 1h COST {cost}"),
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
fn all_keys_may_be_flushed_while_another_module_is_told_of_one() {
    let mut town = Neighborhood::new();
    for (cause, event) in Cause::EVENTS {
        for teller in (0..3).filter(|_| event != "new") {
            let case = town.next_case();
            let keys = [0, 1, 2].map(|key| {
                let (name, algorithm) =
                    (format!("{case}:{key}"), ALGORITHMS[(case + key) % ALGORITHMS.len()]);
                if key == teller { cause.key(name, algorithm) } else { Key::counting(name, algorithm, HELD) }
            });
            for Key { name, algorithm, held, .. } in &keys {
                town.server.value(&format!("RL.{algorithm} {name} 100 1h COST {held}"));
            }
            if cause == Cause::Expired {
                town.server.value(&format!("PEXPIRE {} 1", keys[teller].name));
                town.server.step_clock(2);
            }
            let rows: String = keys.iter().map(Key::row).collect();
            let line = format!("RL.ALL{rows}{}", if cause == Cause::Forced { " FORCE" } else { "" });
            let (reply, reacted) = town.call(event, &keys[teller].name, "FLUSHALL", &line);
            assert!(reply.is_ok() && reacted, "{line}, {event}");
            for (nth, key) in keys.iter().enumerate() {
                let used = town.used(&key.name);
                match cause {
                    Cause::Expired if nth == teller => assert_eq!(used, Some(TAKEN), "{line}, {event}"),
                    // Redis 7.0 deletes the expired key before anything is counted, others do so afterwards.
                    Cause::Expired => {
                        assert!([None, Some(TAKEN)].contains(&used), "{line}, {event}: {used:?}")
                    }
                    _ => assert_eq!(used, None, "{line}, {event}"),
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
fn effects_count_in_every_key_that_another_module_leaves_alone_and_copies_agree() {
    let mut town = Neighborhood::new();
    for (cause, event) in Cause::EVENTS {
        if [Cause::Limited, Cause::Forced].contains(&cause) {
            continue;
        }
        for (teller, target, write) in (0..3)
            .flat_map(|teller| (0..3).flat_map(move |target| WRITES.map(|write| (teller, target, write))))
            .filter(|(teller, target, write)| is_allowed(event, write, teller == target))
        {
            let case = town.next_case();
            let names = [0, 1, 2].map(|key| format!("{case}:{key}"));
            let mut line = "RL.APPLY".to_owned();
            for (key, name) in names.iter().enumerate() {
                let algorithm = ALGORITHMS[(case + key) % ALGORITHMS.len()];
                if key != teller && cause != Cause::CreatedAmongNew
                    || key == teller && cause != Cause::Created
                {
                    town.server.value(&format!("RL.{algorithm} {name} 100 1h COST {HELD}"));
                }
                let effect = match cause {
                    Cause::Emptied if key == teller => "DEL".to_owned(),
                    _ => {
                        let told = format!("{TAKEN}:{NOW}/1h>{}", NOW + 7_200_000);
                        effect(&format!("RL.{algorithm}"), 100, &told)
                    }
                };
                line += &format!(" {name} {effect}");
            }
            if cause == Cause::Expired {
                town.server.value(&format!("PEXPIRE {} 1", names[teller]));
                town.server.step_clock(2);
            }
            let (reply, reacted) =
                town.call(event, &names[teller], &write.replace("KEY", &names[target]), &line);
            let about = format!("{line}, where on {event} {teller} does {write} {target}");
            let other =
                (0..3).find(|key| *key != teller && (*key != target || !reacted)).expect("another key");
            let held = if cause == Cause::CreatedAmongNew { 0 } else { HELD };
            let used = town.used(&names[other]);
            match reply {
                Ok(_) => assert_eq!(used, Some(held + TAKEN), "{about}"),
                // It replaced a key before the effects were applied.
                Err(error) => {
                    assert!(cause == Cause::Expired && error.code() == Some("WRONGTYPE"), "{about}: {error}");
                    assert_eq!(used, Some(held), "{about}");
                }
            }
            if ["new", "expired"].contains(&event) && teller == target {
                town.delete_with_copies(&names[target]);
            }
        }
    }
    town.assert_copies_are_equal();
}

#[test]
fn beside_another_module_a_request_that_creates_one_key_still_sends_one_command() {
    let server = Server::with_neighbor(NOW, &[]);
    let mut stream = ReplicationStream::of(&server);
    server.value("RL.ALL a FIXED 9 1h 1 b LOG 9 1h 1");
    let [first, second] = [format!("RL.APPLY a F:{NOW}/1h"), format!("RL.APPLY b L:{NOW}/1h")];
    assert_eq!(
        without_expiry(&stream.commands(&server)),
        ["MULTI", &first, &second, "EXEC"],
        "each before the server tells of it"
    );
    for (line, sent) in [
        ("RL.ALL a FIXED 9 1h 1 c SLIDING 9 1h 1", format!("RL.APPLY a F:{NOW}/1h c S:{NOW}/1h")),
        (
            "RL.ALL a FIXED 9 1h 1 b LOG 9 1h 1 c SLIDING 9 1h -1",
            format!("RL.APPLY a F:{NOW}/1h b L:{NOW}/1h c DEL"),
        ),
        ("RL.ALL a FIXED 9 1h 1 b LOG 9 1h 1", format!("RL.APPLY a F:{NOW}/1h b L:{NOW}/1h")),
    ] {
        server.value(line);
        assert_eq!(without_expiry(&stream.commands(&server)), [sent], "{line}");
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
            let server = Server::with_neighbor_named(name, comes_first, &[]);
            let mut stream = ReplicationStream::of(&server);
            server.value("RL.ALL a FIXED 9 1h 1 b LOG 9 1h 1");
            // Beside any other, each new key is sent before the server tells of it: MULTI, two commands, EXEC.
            let sent = stream.commands(&server).len();
            assert_eq!(sent == 1, is_harmless, "{name}, first: {comes_first}: {sent} commands");
        }
    }
}

#[test]
fn rl_all_opens_keys_that_exist_once_beside_another_module() {
    // With these settings the server counts how often a key is opened.
    let server = Server::with_neighbor(NOW, &[("maxmemory-policy", "allkeys-lfu"), ("lfu-log-factor", "0")]);
    let opened = |key: &str| server.integer(&format!("OBJECT FREQ {key}"));
    let lines = [
        "RL.ALL a FIXED 100 1h 1 b LOG 100 1h 1 c SLIDING 100 1h 1".to_owned(),
        format!("RL.APPLY a F:{NOW}/1h b L:{NOW}/1h c S:{NOW}/1h"),
    ];
    server.value(&lines[0]);
    // Redis 7.0 cannot open a key without deleting it if it has expired.
    let expected = if server.info("redis_version").starts_with("7.0") { 2 } else { 1 };
    for line in lines {
        for key in ["a", "b", "c"] {
            let before = opened(key);
            server.value(&line);
            assert_eq!(opened(key) - before, expected, "{line}: {key}");
        }
    }
}
