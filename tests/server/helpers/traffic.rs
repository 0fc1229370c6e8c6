//! Random requests of all kinds, and a check that two servers hold the same.

use std::collections::BTreeMap;

use harness::{COMMANDS, Random, Server, command, pipeline};
use redis::{Connection, Value};

/// The largest cost.
const MOST: i64 = 9_007_199_254_740_991;

/// The time by the servers' clocks. No window of more than 1 ms begins here.
pub const NOW: i64 = 1_700_000_000_123;

/// The time by their replicas' clocks. No key of this traffic expires so soon.
pub const LATER: i64 = NOW + 500;

/// The AT of the first request.
const START: i64 = 1_000_000_000_000;

/// An hour after it.
const HOUR_AFTER: i64 = START + 3_600_000;

/// Turns a time in the past into one in the future.
const AHEAD: i64 = 3_000_000_000_000;

/// Requests of all kinds, the same for the same seed.
pub struct Traffic {
    random: Random,
    keys: String,
    /// The approximate AT of the next request.
    pub now: i64,
}

/// Limits and windows.
const PAIRS: [&str; 6] = [
    "5 10s",
    "9 1m 7 10s",
    "3 1ms 50 1h 400 1d",
    "1000 3650d",
    "0 7s",
    "9 100ms 30 1s 99 10s 200 1m 300 1h 400 6h 500 1d 600 30d",
];

/// Where the times of the requests to a key come from.
#[derive(Clone, Copy, Debug)]
enum Time {
    Given,
    Servers,
    Both,
}

impl Traffic {
    pub fn of(seed: u64) -> Traffic {
        Traffic { random: Random::new(seed), keys: String::new(), now: START }
    }

    /// The same, to keys with this prefix.
    pub fn to_keys(keys: &str, seed: u64) -> Traffic {
        Traffic { keys: keys.to_owned(), ..Traffic::of(seed) }
    }

    /// Requests with and without AT.
    pub fn lines(&mut self, count: usize) -> Vec<String> {
        (0..count).map(|_| self.line(&[Time::Given, Time::Servers, Time::Both])).collect()
    }

    /// Requests with AT, to which every server replies the same.
    pub fn lines_with_at(&mut self, count: usize) -> Vec<String> {
        (0..count).map(|_| self.line(&[Time::Given])).collect()
    }

    fn line(&mut self, times: &[Time]) -> String {
        let random = &mut self.random;
        let name = random.of(&COMMANDS);
        let time = random.of(times);
        let key = format!("{}{time:?}:{name}:{}", self.keys, random.below(3));
        self.now += random.of(&[0, 0, 1, 7, 100, 999, 60_000]);
        let at = self.now - random.of(&[0, 0, 0, 0, 0, 0, 1, 50, 2_000, 90_000]);
        let at = match (time, random.below(3)) {
            (Time::Servers, _) | (Time::Both, 0) => String::new(),
            (Time::Both, 1) => format!("AT {}", at + AHEAD),
            _ => format!("AT {at}"),
        };
        let pairs = random.of(&PAIRS);
        let cost = random.of(&["", "", "", "COST 1", "COST 2", "COST 40", "COST 0", "COST -1", "COST -9"]);
        let within = if name == "RL.BUCKET" { ["WITHIN 900ms", "WITHIN 1h"] } else { [""; 2] };
        let mode = random.of(&["", "", "", "FORCE", "PARTIAL", within[0], within[1]]);
        let force = if mode == "FORCE" { mode } else { "" };
        match random.below(60) {
            6..20 => format!("RL.ALL {} {force} {at}", rows(random, &self.keys, time)),
            0 => format!("DEL {key}"),
            1 => format!("RL.PEEK {key} {pairs} {cost} {at}"),
            2 => format!("RL.INFO {key}"),
            3 => format!("{name} {key} {pairs} COST {MOST} FORCE {at}"),
            4 => format!("{name} {key} {pairs} COST -{MOST} {at}"),
            // Sometimes the wrong algorithm.
            5 => format!("{} {key} {pairs} {at}", random.of(&COMMANDS)),
            _ => format!("{name} {key} {pairs} {cost} {mode} {at}"),
        }
    }

    /// A batch that a client sends at once: a request, several, or a transaction.
    pub fn batch(&mut self) -> Vec<String> {
        let count = 1 + self.random.below(16);
        match self.random.below(3) {
            0 => self.lines(1),
            1 => self.lines(count),
            _ => [vec!["MULTI".to_owned()], self.lines(count), vec!["EXEC".to_owned()]].concat(),
        }
    }
}

/// Rows of RL.ALL about one to four keys, of several tiers each, in any order.
fn rows(random: &mut Random, keys: &str, time: Time) -> String {
    let mut rows = Vec::new();
    for (name, number) in COMMANDS.into_iter().flat_map(|name| [(name, 0), (name, 1), (name, 2)]) {
        if random.below(4) > 0 {
            continue;
        }
        let (pairs, cost) = (random.of(&PAIRS), random.of(&[1, 1, 1, 2, 7, 0, -1, -9]));
        for pair in pairs.split(' ').collect::<Vec<_>>().chunks(2) {
            let row = format!("{keys}{time:?}:{name}:{number} {} {} {cost}", &name[3..], pair.join(" "));
            rows.insert(random.below(rows.len() + 1), row);
        }
    }
    if rows.is_empty() { format!("{keys}{time:?}:RL.LOG:0 LOG 5 10s 1") } else { rows.join(" ") }
}

/// The replies, including errors.
pub fn send(connection: &mut Connection, lines: &[String]) -> Vec<Value> {
    if lines.is_empty() {
        return Vec::new();
    }
    pipeline(lines).ignore_errors().query(connection).expect("replies")
}

/// Waits until a replica has received everything its master sent, then compares their content, and their replies
/// at the same time.
#[track_caller]
pub fn assert_same(master: &Server, replica: &Server) {
    replica.wait_to_catch_up(master);
    assert_eq!(replica.digest(), master.digest());
    let its_time = replica.clock_ms();
    replica.set_clock(master.clock_ms());
    let [expected, replies] = [master, replica].map(seen);
    replica.set_clock(its_time);
    assert!(replies.keys().eq(expected.keys()));
    for ((key, expected), replies) in expected.iter().zip(replies.values()) {
        assert_eq!(replies, expected, "{key}");
    }
}

/// Peeks that get equal replies from servers with equal content.
pub fn peeks_with_at(key: &str) -> Vec<String> {
    let pairs = ["5 10s", "9 1m COST 9", "50 1h 400 1d COST 30", "1 3650d", "3 1ms"];
    let times = [0, HOUR_AFTER, HOUR_AFTER + AHEAD];
    let peeks = pairs.iter().flat_map(|pairs| times.map(|at| format!("RL.PEEK {key} {pairs} AT {at}")));
    peeks.collect()
}

/// Everything visible about every key.
fn seen(server: &Server) -> BTreeMap<String, Vec<Value>> {
    let mut connection = server.connect();
    let keys: Vec<String> = command("KEYS *").query(&mut connection).expect("KEYS");
    let replies = keys.into_iter().map(|key| {
        let mut lines = vec![format!("PEXPIRETIME {key}"), format!("DEBUG DIGEST-VALUE {key}")];
        lines.extend(peeks_with_at(&key));
        lines.extend([format!("RL.INFO {key}"), format!("RL.PEEK {key} 2 7s")]);
        let replies = send(&mut connection, &lines);
        assert_ne!(replies[0], Value::Int(-1), "{key} has no time to live");
        (key, replies)
    });
    replies.collect()
}
