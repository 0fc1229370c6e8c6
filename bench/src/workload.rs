//! The workloads: requests as users send them, to keys in use.

use anyhow::{Result, bail, ensure};
use redis::{Connection, Value};

use crate::server::{clock_ms, flush, pipeline};

/// Number of keys that requests are spread over.
pub const KEYS: usize = 100;

/// Placeholder for the 12 digits of a key, which redis-benchmark replaces by random ones.
pub const NUMBER: &str = "__rand_int__";

/// The key of a request: 15 bytes.
pub const KEY: &str = "ip:__rand_int__";

/// The keys of a request with several keys: as many as it has.
const SEVERAL_KEYS: [&str; 8] = [
    "id:__rand_int__",
    "co:__rand_int__",
    "ai:__rand_int__",
    "db:__rand_int__",
    "eu:__rand_int__",
    "fn:__rand_int__",
    "gw:__rand_int__",
    "os:__rand_int__",
];

/// Numbers of keys in words, from zero.
const IN_WORDS: [&str; 9] = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight"];

/// A limit and a window.
pub struct Tier {
    limit: u64,
    window: &'static str,
    window_ms: u64,
}

const MINUTE: Tier = Tier { limit: 1_000_000, window: "60s", window_ms: 60_000 };
const HOUR: Tier = Tier { limit: 10_000_000, window: "1h", window_ms: 3_600_000 };
const DAY: Tier = Tier { limit: 100_000_000, window: "1d", window_ms: 86_400_000 };

/// One limit, which is not reached.
const ONE_TIER: &[Tier] = &[MINUTE];
/// Three limits, none of which is reached.
const THREE_TIERS: &[Tier] = &[MINUTE, HOUR, DAY];

/// The arguments of RL.ALL: a row for each key.
fn rows(keys: &[&str], algorithm: Algorithm) -> String {
    let row = |key| format!("{key} {} {} 1", algorithm.word(), words(ONE_TIER));
    keys.iter().map(row).collect::<Vec<_>>().join(" ")
}

fn words(tiers: &[Tier]) -> String {
    let pairs: Vec<String> = tiers.iter().map(|tier| format!("{} {}", tier.limit, tier.window)).collect();
    pairs.join(" ")
}

/// An algorithm of redis-rl.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Algorithm {
    /// The name of its command.
    pub command: &'static str,
}

impl Algorithm {
    /// The one in rows that show only one.
    pub const FIXED: Algorithm = Algorithm { command: "RL.FIXED" };

    /// The counter that slides.
    pub const SLIDING: Algorithm = Algorithm { command: "RL.SLIDING" };

    /// The one that refills.
    pub const BUCKET: Algorithm = Algorithm { command: "RL.BUCKET" };

    /// The one that keeps every unit.
    pub const LOG: Algorithm = Algorithm { command: "RL.LOG" };

    /// All of them.
    pub const ALL: [Algorithm; 4] = [Algorithm::FIXED, Algorithm::SLIDING, Algorithm::LOG, Algorithm::BUCKET];

    /// Its name in a row of RL.ALL.
    fn word(self) -> &'static str {
        self.command.trim_start_matches("RL.")
    }

    /// Requests that come first, so that no shortcut for a new key is measured: some units in the previous window
    /// of every tier, or for a log in the first half of the current one. The last is by the clock, as most keys are
    /// written; after an effect, it alone decides when a log expires.
    fn history(self, key: &str, tiers: &[Tier], now_ms: u64) -> Vec<String> {
        let take = |tier: &Tier| {
            let ago = if self == Algorithm::LOG { tier.window_ms / 2 } else { tier.window_ms };
            format!("{} {key} {} COST 1000 AT {}", self.command, words(tiers), now_ms - ago)
        };
        let effect = (self == Algorithm::LOG).then(|| format!("RL.APPLY {key} L:{now_ms}/1m"));
        let by_clock = format!("{} {key} {}", self.command, words(tiers));
        tiers.iter().rev().map(take).chain(effect).chain([by_clock]).collect()
    }

    /// The same for one tier of several keys.
    fn histories(self, keys: &[&str], now_ms: u64) -> Vec<String> {
        keys.iter().flat_map(|key| self.history(key, ONE_TIER, now_ms)).collect()
    }
}

/// The required reply to a request.
#[derive(Clone, Copy, Debug)]
pub enum Answer {
    /// Anything but an error.
    Any,
    /// Allowed.
    Allowed,
    /// Limited.
    Limited,
    /// The integer 1, a script's reply for true.
    True,
}

impl Answer {
    fn fits(self, value: &Value) -> bool {
        let first =
            |wanted| matches!(value, Value::Array(items) if items.first() == Some(&Value::Int(wanted)));
        match self {
            Answer::Any => true,
            Answer::Allowed => first(0),
            Answer::Limited => first(1),
            Answer::True => *value == Value::Int(1),
        }
    }
}

/// A request, and the preparation of its keys.
pub struct Workload {
    /// Its name in the table.
    pub name: String,
    /// Its commands, arguments separated by spaces.
    commands: Vec<String>,
    answer: Answer,
    /// Commands to each key before the first request, given the time in ms.
    history: Box<dyn Fn(u64) -> Vec<String>>,
}

impl Workload {
    /// A request of one command to a key that it creates itself.
    pub fn new(name: impl Into<String>, command: impl Into<String>, answer: Answer) -> Workload {
        let history = Box::new(|_| Vec::new());
        Workload { name: name.into(), commands: vec![command.into()], answer, history }
    }

    /// Adds commands to each key before the first request, given the time in ms.
    pub fn after(mut self, history: impl Fn(u64) -> Vec<String> + 'static) -> Workload {
        self.history = Box::new(history);
        self
    }

    /// The no-op command that touches no key.
    pub fn no_op() -> Workload {
        Workload::floor("no-op module command", "FLOOR")
    }

    /// The no-op that opens its key for writing, reads the value, and marks the key as modified.
    pub fn key_marked() -> Workload {
        Workload::floor("no-op, key opened to write and marked", "FLOOR.MARK")
    }

    /// The no-op that opens its key for writing and reads the value.
    pub fn key_opened() -> Workload {
        Workload::floor("no-op, key opened to write", "FLOOR.OPEN")
    }

    /// The no-op that opens its key for reading and reads the value.
    pub fn key_read() -> Workload {
        Workload::floor("no-op, key opened to read", "FLOOR.READ")
            .after(|_| vec![format!("FLOOR.MARK {KEY}")])
    }

    /// A no-op command, with the arguments of a command with one tier.
    fn floor(name: &str, command: &str) -> Workload {
        Workload::new(name, format!("{command} {KEY} {}", words(ONE_TIER)), Answer::Allowed)
    }

    /// The no-op that reads its words, opens so many keys and marks them, with the arguments and the reply of RL.ALL.
    pub fn keys_marked(number: usize) -> Workload {
        let (name, keys) = (IN_WORDS[number], &SEVERAL_KEYS[..number]);
        let name = format!("no-op, {name} keys opened to write and marked");
        Workload::new(name, format!("FLOOR.ALL {}", rows(keys, Algorithm::FIXED)), Answer::Allowed)
    }

    /// An allowed request with one tier.
    pub fn allowed(algorithm: Algorithm) -> Workload {
        Workload::take(algorithm, "allowed", ONE_TIER)
    }

    /// An allowed request with three tiers.
    pub fn three_tiers(algorithm: Algorithm) -> Workload {
        Workload::take(algorithm, "three limits", THREE_TIERS)
    }

    fn take(algorithm: Algorithm, name: &str, tiers: &'static [Tier]) -> Workload {
        let command = format!("{} {KEY} {}", algorithm.command, words(tiers));
        Workload::new(format!("{}, {name}", algorithm.command), command, Answer::Allowed)
            .after(move |now_ms| algorithm.history(KEY, tiers, now_ms))
    }

    /// A limited request: the limit is used up.
    pub fn limited(algorithm: Algorithm) -> Workload {
        let command = format!("{} {KEY} {}", algorithm.command, words(ONE_TIER));
        let name = format!("{}, limited", algorithm.command);
        Workload::new(name, command.clone(), Answer::Limited).after(move |now_ms| {
            let exhaust = format!("{command} COST {} FORCE", MINUTE.limit);
            [algorithm.history(KEY, ONE_TIER, now_ms), vec![exhaust]].concat()
        })
    }

    /// RL.PEEK at a key in use.
    pub fn peek(algorithm: Algorithm) -> Workload {
        let name = format!("RL.PEEK, {}", algorithm.word());
        Workload::new(name, format!("RL.PEEK {KEY} {}", words(ONE_TIER)), Answer::Allowed)
            .after(move |now_ms| algorithm.history(KEY, ONE_TIER, now_ms))
    }

    /// Three allowed requests to one key each, one after the other.
    pub fn three_commands(algorithm: Algorithm) -> Workload {
        let command = |key| format!("{} {key} {}", algorithm.command, words(ONE_TIER));
        let name = format!("{} three times, in a pipeline", algorithm.command);
        Workload {
            commands: SEVERAL_KEYS[..3].iter().map(command).collect(),
            ..Workload::new(name, "", Answer::Allowed)
        }
        .after(move |now_ms| algorithm.histories(&SEVERAL_KEYS[..3], now_ms))
    }

    /// An allowed request by RL.ALL with so many keys.
    pub fn keys(number: usize, algorithm: Algorithm) -> Workload {
        let keys = &SEVERAL_KEYS[..number];
        let name = format!("RL.ALL, {} keys, {}", IN_WORDS[number], algorithm.word());
        Workload::new(name, format!("RL.ALL {}", rows(keys, algorithm)), Answer::Allowed)
            .after(move |now_ms| algorithm.histories(keys, now_ms))
    }

    /// INCR.
    pub fn incr() -> Workload {
        Workload::new("INCR", format!("INCR {KEY}"), Answer::Any)
    }

    /// The usual fixed window without a script.
    pub fn incr_expire() -> Workload {
        let commands = ["MULTI".into(), format!("INCR {KEY}"), format!("EXPIRE {KEY} 60 NX"), "EXEC".into()];
        Workload {
            commands: commands.into(),
            ..Workload::new("MULTI, INCR, EXPIRE NX, EXEC", "", Answer::Any)
        }
    }

    /// INCREX, with a window from the first request and a limit that is not reached.
    pub fn increx() -> Workload {
        let command =
            format!("INCREX {KEY} BYINT 1 UBOUND {} EX {} ENX", MINUTE.limit, MINUTE.window_ms / 1_000);
        Workload::new("INCREX UBOUND, EX and ENX, allowed", command, Answer::Any)
    }

    /// The same, with a limit of 1: keys in use have reached it.
    pub fn increx_limited() -> Workload {
        let command = format!("INCREX {KEY} BYINT 1 UBOUND 1 EX {} ENX", MINUTE.window_ms / 1_000);
        Workload::new("INCREX UBOUND, EX and ENX, refused", command, Answer::Any)
    }

    /// CL.THROTTLE of redis-cell.
    pub fn cell() -> Workload {
        Workload::new("CL.THROTTLE", format!("CL.THROTTLE {KEY} 1000000 1000000 60"), Answer::Allowed)
    }

    /// Whether another module has its command. The rest is measured without other modules.
    pub fn is_of_another_module(&self) -> bool {
        self.commands.iter().any(|command| command.starts_with("FLOOR") || command.starts_with("CL."))
    }

    /// Whether the server has its command.
    pub fn is_known_to(&self, connection: &mut Connection) -> Result<bool> {
        let name = self.commands[0].split(' ').next();
        let known: Vec<Value> = redis::cmd("COMMAND").arg("INFO").arg(name).query(connection)?;
        Ok(known != [Value::Nil])
    }

    /// Its command, for redis-benchmark; `None` if it has several.
    pub fn only_command(&self) -> Option<&str> {
        if let [command] = &self.commands[..] { Some(command) } else { None }
    }

    /// Runs `measure` on keys that have had two requests each. Tries up to three times if a reply is not as required,
    /// since a window may end on the way.
    pub fn measure<T>(
        &self,
        connection: &mut Connection,
        mut measure: impl FnMut(&mut Connection) -> Result<T>,
    ) -> Result<T> {
        let mut attempt = || {
            self.prepare(connection)?;
            let measured = measure(connection)?;
            self.send(connection, 1)?;
            Ok(measured)
        };
        attempt().or_else(|_| attempt()).or_else(|_| attempt())
    }

    fn prepare(&self, connection: &mut Connection) -> Result<()> {
        flush(connection)?;
        let history = (self.history)(clock_ms(connection)?);
        if !history.is_empty() {
            let lines = (0..KEYS).flat_map(|key| history.iter().map(move |line| for_key(line, key)));
            pipeline(lines).exec(connection)?;
        }
        self.send(connection, 2 * KEYS)
    }

    /// Sends requests in a pipeline, and checks their replies.
    pub fn send(&self, connection: &mut Connection, requests: usize) -> Result<()> {
        let lines = (0..requests).flat_map(|i| self.commands.iter().map(move |line| for_key(line, i % KEYS)));
        let answers: Vec<Value> = pipeline(lines).query(connection)?;
        ensure!(answers.len() == requests * self.commands.len(), "{}: answers are missing", self.name);
        for answer in answers.iter().skip(self.commands.len() - 1).step_by(self.commands.len()) {
            if !self.answer.fits(answer) {
                bail!("{}: {answer:?} is not {:?}", self.name, self.answer);
            }
        }
        Ok(())
    }
}

fn for_key(line: &str, key: usize) -> String {
    line.replace(NUMBER, &format!("{key:012}"))
}
