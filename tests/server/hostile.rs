//! Hostile input: random commands, stored payloads, append-only files and replication streams. Nothing
//! crashes, and valid requests still get the right replies.
//!
//! Every run has the same input; `SEED=n cargo test hostile` tries another.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::OpenOptions;
use std::io::Write;

use harness::{COMMANDS, Random, Server, command, figures, newest_part, pipeline, wait_for};
use redis::{Cmd, Connection, ConnectionLike, Value};

use crate::helpers::errors::{
    ALGORITHM, AT, COST, EFFECT, FORCE_AND_PARTIAL, LIMIT, LIVE_WINDOWS, PAIRS, PARTIAL, ROW, ROW_COST, ROWS,
    ROWS_DIFFER, ROWS_OF_A_KEY, ROWS_OF_A_WINDOW, SAME_WINDOW, SYNTAX, WINDOW, WRONGTYPE,
};
use crate::helpers::hosts::{Host, Hosts};
use crate::helpers::payload::{Payload, credulous_server};
use crate::helpers::requests::{REQUESTS, effect};
use crate::load;

const RANDOM_COMMANDS: usize = 100_000;
const COMMANDS_OF_BOTH_HOSTS: usize = 30_000;
const COMMANDS_IN_A_PIPELINE: usize = 500;
const PAYLOADS: usize = 10_000;

/// The largest limit, cost and time.
const MOST: i64 = 9_007_199_254_740_991;

/// The longest possible wait: up to the largest time, plus two of the longest windows.
const LONGEST_WAIT: i64 = MOST + 2 * 3650 * 86_400_000;

/// The prefix of keys that may be left without a time to live: by PERSIST, or by RESTORE with 0.
const PERSISTENT: &[u8] = b"persistent:";

/// Prefixes of the errors that commands of the module get, from the module or the server.
const REFUSALS: [&str; 25] = [
    LIMIT,
    WINDOW,
    SAME_WINDOW,
    PAIRS,
    COST,
    AT,
    SYNTAX,
    FORCE_AND_PARTIAL,
    PARTIAL,
    WRONGTYPE,
    "WRONGTYPE key is counted by RL.",
    LIVE_WINDOWS,
    ALGORITHM,
    ROW,
    ROW_COST,
    ROWS,
    ROWS_OF_A_KEY,
    ROWS_DIFFER,
    ROWS_OF_A_WINDOW,
    load::PAYLOAD,
    load::BUSY_KEY,
    EFFECT,
    "ERR wrong number of arguments for 'rl.",
    "ERR wrong number of arguments for 'RL.",
    // In a script.
    "ERR Wrong number of args calling",
];

fn random() -> Random {
    let seed = std::env::var("SEED").map_or(1, |seed| seed.parse().expect("SEED is a number"));
    Random::new(seed)
}

/// A command and its arguments.
type Words = Vec<Vec<u8>>;

fn words(line: &str) -> Words {
    line.split(' ').map(|word| word.as_bytes().to_vec()).collect()
}

/// The form of a command's reply.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    /// Five figures; with PARTIAL, two more.
    Figures,
    /// The map of RL.INFO.
    Info,
    /// The reply of RL.ALL.
    All,
    /// The OK of RL.LOAD and RL.APPLY.
    Ok,
    Multi,
    Exec,
    Discard,
    /// Anything.
    Other,
}

/// Generates commands.
struct Hostile {
    random: Random,
    /// Replies of DUMP so far.
    payloads: Vec<Vec<u8>>,
}

impl Hostile {
    fn chance(&mut self, one_in: usize) -> bool {
        self.random.below(one_in) == 0
    }

    fn bytes(&mut self, most: usize) -> Vec<u8> {
        let len = self.random.below(most + 1);
        (0..len).map(|_| self.random.below(256) as u8).collect()
    }

    /// One of the few keys that all commands share.
    fn key(&mut self) -> Vec<u8> {
        // One that no command prefers, too.
        let name = COMMANDS.get(self.random.below(COMMANDS.len() + 1)).unwrap_or(&"");
        self.key_of(name)
    }

    /// One of the keys that usually hold what this command counts.
    fn key_of(&mut self, name: &str) -> Vec<u8> {
        let long = [b'k'; 300];
        let names: [&[u8]; 6] = [b"", b"\0", b"\xff\r\n\0", b"key", "schl\u{fc}ssel".as_bytes(), &long];
        let head: &[u8] = if self.chance(3) { PERSISTENT } else { b"" };
        [head, self.random.of(&names), name.as_bytes()].concat()
    }

    /// Another key, persistent only if this one is.
    fn like(&mut self, key: &[u8]) -> Vec<u8> {
        loop {
            let other = self.key();
            if other.starts_with(PERSISTENT) == key.starts_with(PERSISTENT) {
                return other;
            }
        }
    }

    fn limit(&mut self) -> String {
        let most = MOST.to_string();
        self.random.of(&["0", "1", "2", "5", "10", "100", "1000", &most]).to_owned()
    }

    /// Different windows.
    fn windows(&mut self, count: usize) -> impl Iterator<Item = &'static str> + use<> {
        const WINDOWS: [&str; 13] =
            ["1ms", "3ms", "100MS", "1", "7S", "1m", "1h", "2h", "1d", "30D", "365d", "3649d", "3650d"];
        // Their number is prime: every step reaches all of them.
        let (first, step) = (self.random.below(13), 1 + self.random.below(12));
        (0..count).map(move |i| WINDOWS[(first + i * step) % 13])
    }

    fn cost(&mut self) -> String {
        let (most, least) = (MOST.to_string(), (-MOST).to_string());
        self.random.of(&["0", "1", "2", "3", "7", "100", "-1", "-2", "-50", &most, &least]).to_owned()
    }

    fn at(&mut self) -> String {
        let most = MOST.to_string();
        let times = ["0", "1", "999", "60000", "1700000000000", "4000000000000", &most];
        self.random.of(&times).to_owned()
    }

    /// An argument that is almost valid, or not at all.
    fn nonsense(&mut self) -> Vec<u8> {
        let words = [
            "", "\0", "-", "+1", "-0", "00", "01", "1.5", "1e3", "0x10", " 1", "1 ", "1\0", "nan", "-1",
            "0s", "s", "ms", "1w", "1sm", "3651d", "COST", "cost", "AT", "FORCE", "force", "FORC", "PARTIAL",
            "COSTS", "%s%n", "\u{661}", "1\r\n",
        ];
        // Just too large for an argument, for 64 bits and for 128.
        let numbers = [
            "315360000001ms",
            "9007199254740992",
            "-9007199254740992",
            "9223372036854775808",
            "-9223372036854775809",
            "18446744073709551616",
            "340282366920938463463374607431768211456",
        ];
        match self.random.below(200) {
            0..120 => self.random.of(&words).as_bytes().to_vec(),
            120..150 => self.random.of(&numbers).as_bytes().to_vec(),
            150..199 => self.bytes(40),
            _ => vec![self.random.of(b"0179s\0"); self.random.of(&[1 << 10, 1 << 16])],
        }
    }

    /// The arguments after the key: usually a valid request.
    fn arguments(&mut self) -> Words {
        let mut args = Words::new();
        let tiers = self.random.of(&[1, 1, 1, 1, 1, 1, 2, 2, 2, 3, 3, 8, 9]);
        for window in self.windows(tiers) {
            args.extend([self.limit().into_bytes(), window.as_bytes().to_vec()]);
        }
        if self.chance(2) {
            args.extend([b"COST".to_vec(), self.cost().into_bytes()]);
        }
        let modes: [&[&[u8]]; 6] =
            [&[], &[], &[b"Force"], &[b"Force"], &[b"Partial"], &[b"Force", b"Partial"]];
        args.extend(self.random.of(&modes).iter().map(|mode| mode.to_vec()));
        if self.chance(3) {
            args.extend([b"at".to_vec(), self.at().into_bytes()]);
        }
        if self.chance(4) {
            self.spoil(&mut args);
        }
        args
    }

    /// Puts nonsense among the words, or leaves some out, or changes their order.
    fn spoil(&mut self, words: &mut Words) {
        for _ in 0..self.random.of(&[1, 1, 2, 5]) {
            let place = self.random.below(words.len() + 1);
            match self.random.below(4) {
                0 => words.insert(place, self.nonsense()),
                1 => words.truncate(place),
                2 => words.rotate_left(place),
                _ if place < words.len() => words[place] = self.nonsense(),
                _ => {}
            }
        }
    }

    /// A command of the module.
    fn ours(&mut self) -> (Kind, Words) {
        if self.chance(10) {
            let extra = self.chance(10).then(|| self.nonsense());
            return (Kind::Info, [b"RL.INFO".to_vec(), self.key()].into_iter().chain(extra).collect());
        }
        if self.chance(5) {
            return (Kind::All, self.all());
        }
        if self.chance(20) {
            return (Kind::Ok, self.load());
        }
        if self.chance(10) {
            return (Kind::Ok, self.apply());
        }
        let name = self.random.of(&REQUESTS);
        let any = name == "RL.PEEK" || self.chance(10);
        let key = if any { self.key() } else { self.key_of(name) };
        let written = if self.chance(3) { name.to_ascii_lowercase() } else { name.to_owned() };
        let mut words: Words = [written.into_bytes(), key].into_iter().chain(self.arguments()).collect();
        if self.chance(100) {
            // Perhaps without a key.
            words.truncate(1 + self.random.below(words.len()));
        }
        (Kind::Figures, words)
    }

    /// A command that a server and a map in memory have, or neither.
    fn of_both_hosts(&mut self) -> Words {
        if self.chance(8) {
            let name = self.random.of(&[
                "DEL",
                "exists",
                "PTTL",
                "PEXPIRETIME",
                "PEXPIRETIME",
                "GETT",
                "FLUSHALL x",
            ]);
            let words = name.split(' ').map(|word| word.as_bytes().to_vec());
            let keys = self.random.of(&[0, 1, 1, 1, 1, 1, 2]);
            return words.chain((0..keys).map(|_| self.key())).collect();
        }
        loop {
            let (kind, words) = self.ours();
            if kind != Kind::Ok {
                return words;
            }
        }
    }

    /// RL.ALL: usually valid rows about a few keys.
    fn all(&mut self) -> Words {
        let mut all = Words::new();
        for _ in 0..self.random.of(&[1, 1, 2, 2, 3, 4, 9, 64]) {
            let name = self.random.of(&COMMANDS);
            let (key, cost) = (self.key_of(name), self.cost().into_bytes());
            let tiers = self.random.of(&[1, 1, 1, 1, 1, 2, 3, 8, 9]);
            for window in self.windows(tiers) {
                let algorithm = if self.chance(200) { self.nonsense() } else { name[3..].into() };
                let limit = self.limit().into_bytes();
                all.extend([key.clone(), algorithm, limit, window.into(), cost.clone()]);
            }
        }
        if self.chance(2) {
            all.push(b"Force".to_vec());
        }
        if self.chance(3) {
            all.extend([b"at".to_vec(), self.at().into_bytes()]);
        }
        if self.chance(6) {
            self.spoil(&mut all);
        }
        [vec![self.random.of(&["RL.ALL", "rl.all"]).as_bytes().to_vec()], all].concat()
    }

    /// RL.LOAD. The key may be left without a time to live.
    fn load(&mut self) -> Words {
        let key = [PERSISTENT, &self.key()].concat();
        let mut payload = match self.payloads.len() {
            0 => self.bytes(40),
            len => self.payloads[self.random.below(len)].clone(),
        };
        if payload.len() > Payload::HEAD + Payload::FOOT && self.chance(2) {
            // For a short dump, the bytes that the module stored.
            payload = payload[Payload::HEAD + 1..payload.len() - Payload::FOOT].to_vec();
        }
        self.random.damage(&mut payload);
        vec![b"RL.LOAD".to_vec(), key, payload]
    }

    /// RL.APPLY: usually valid effects on a few keys.
    fn apply(&mut self) -> Words {
        let mut apply = vec![b"RL.APPLY".to_vec()];
        for _ in 0..self.random.of(&[1, 1, 1, 2, 3, 9, 64]) {
            let name = self.random.of(&COMMANDS);
            let units =
                self.random.of(&["", "", "2", "50", "-1", "-9", "9007199254740991", "-9007199254740991"]);
            let (at, until) = (self.at(), self.at());
            let expiry = if self.random.below(3) == 0 { String::new() } else { format!(">{until}") };
            let windows =
                self.random.of(&["1s", "1m/1h", "100ms", "7s/3650d", "1s/2s/3s/4s/5s/6s/7s/8s", "1s/forget"]);
            let mut word = match self.random.below(10) {
                0 => b"DEL".to_vec(),
                1 => format!(">{until}").into_bytes(),
                _ => {
                    let limit = self.random.of(&[0, 1, 50, MOST as u64]);
                    effect(name, limit, &format!("{units}:{at}/{windows}{expiry}")).into_bytes()
                }
            };
            if self.chance(6) {
                self.random.damage(&mut word);
            }
            apply.extend([self.key_of(name), word]);
        }
        if self.chance(10) {
            let place = 1 + self.random.below(apply.len());
            apply.insert(place, self.nonsense());
        }
        apply
    }

    /// A command of the server on the module's keys.
    fn others(&mut self) -> Words {
        let key = self.key();
        let other = self.like(&key);
        let short = (1 + self.random.below(20)).to_string();
        let words: Vec<&[u8]> = match self.random.below(34) {
            0..3 => vec![b"DEL", &key],
            3 => vec![b"UNLINK", &key, &other],
            4 => vec![b"SET", &key, b"1", b"PX", b"30000"],
            5 => vec![b"RPUSH", &key, b"a", b"b"],
            6 => vec![b"PEXPIRE", &key, short.as_bytes()],
            7 => vec![b"EXPIRE", &key, b"100"],
            8..10 if key.starts_with(PERSISTENT) => vec![b"PERSIST", &key],
            8..10 => vec![b"PTTL", &key],
            10..12 => vec![b"RENAME", &key, &other],
            12..15 => vec![b"COPY", &key, &other, b"REPLACE"],
            15..18 => vec![b"DUMP", &key],
            18..23 => return self.restore(&key),
            23 => vec![b"OBJECT", b"ENCODING", &key],
            24 => vec![b"OBJECT", b"IDLETIME", &key],
            25 => vec![b"MEMORY", b"USAGE", &key, b"SAMPLES", b"0"],
            26 => vec![b"TYPE", &key],
            27 => vec![b"TOUCH", &key, &other],
            28 => vec![b"GET", &key],
            29 => vec![b"INCR", &key],
            30 => vec![b"DEBUG", b"DIGEST-VALUE", &key],
            31 => vec![b"WATCH", &key],
            32 => vec![b"SCAN", b"0", b"TYPE", b"ratelimit"],
            _ => vec![b"RANDOMKEY"],
        };
        words.into_iter().map(<[u8]>::to_vec).collect()
    }

    fn restore(&mut self, key: &[u8]) -> Words {
        let mut payload = match self.payloads.len() {
            0 => Vec::new(),
            len => self.payloads[self.random.below(len)].clone(),
        };
        if self.chance(3) {
            self.random.damage(&mut payload);
        }
        let persists = key.starts_with(PERSISTENT) && self.chance(2);
        let ttl = if persists { "0" } else { "20000" };
        [b"RESTORE", key, ttl.as_bytes(), &payload, b"REPLACE"].map(<[u8]>::to_vec).into()
    }

    /// A command of the module in a script, in both protocols.
    fn in_script(&mut self) -> (Kind, Words) {
        let (kind, words) = self.ours();
        let script: &[u8] = match self.random.below(2) {
            0 => b"return redis.pcall(unpack(ARGV))",
            _ => b"redis.setresp(3); return redis.pcall(unpack(ARGV))",
        };
        let key = words.get(1).cloned().unwrap_or_default();
        let head = [b"EVAL".to_vec(), script.to_vec(), b"1".to_vec(), key];
        // A script may return a map as a flat array, so that is not checked.
        let kind = if kind == Kind::Info { Kind::Other } else { kind };
        (kind, head.into_iter().chain(words).collect())
    }

    fn command(&mut self, in_transaction: bool) -> (Kind, Words) {
        match self.random.below(1000) {
            0..700 => self.ours(),
            700..940 => (Kind::Other, self.others()),
            940..980 => self.in_script(),
            980..985 if in_transaction => (Kind::Discard, words("DISCARD")),
            980..1000 if in_transaction => (Kind::Exec, words("EXEC")),
            980..985 => (Kind::Multi, words("MULTI")),
            _ => self.ours(),
        }
    }

    /// A few megabytes where a number or a word should be.
    fn giant(&mut self) -> (Kind, Words) {
        let (_, mut words) = self.ours();
        let place = 1 + self.random.below(words.len());
        words.insert(place, vec![self.random.of(b"19 sC\0\xff"); self.random.of(&[1 << 20, 4 << 20])]);
        let name = self.random.of(&REQUESTS);
        words[0] = name.as_bytes().to_vec();
        // Only peeked at: a key with a name of megabytes would stay.
        if place == 1 {
            words[0] = b"RL.PEEK".to_vec();
        }
        (Kind::Figures, words)
    }

    /// A pipeline in which every transaction is completed.
    fn pipeline(&mut self) -> Vec<(Kind, Words)> {
        let mut commands = Vec::new();
        let mut in_transaction = false;
        while commands.len() < COMMANDS_IN_A_PIPELINE - 1 {
            let command = if self.chance(10_000) { self.giant() } else { self.command(in_transaction) };
            in_transaction = match command.0 {
                Kind::Multi => true,
                Kind::Exec | Kind::Discard => false,
                _ => in_transaction,
            };
            commands.push(command);
        }
        let end = if in_transaction { (Kind::Exec, words("EXEC")) } else { (Kind::Other, words("PING")) };
        commands.push(end);
        commands
    }
}

/// The replies to a pipeline.
fn replies(server: &Server, connection: &mut Connection, commands: &[Words]) -> Vec<Value> {
    let mut packed = Vec::new();
    for words in commands {
        let mut command = Cmd::new();
        command.arg(words);
        packed.extend(command.get_packed_command());
    }
    let replies = connection.req_packed_commands(&packed, 0, commands.len());
    replies.unwrap_or_else(|error| panic!("the server is gone: {error}\n{}", server.log()))
}

/// Asserts that every reply to a command of the module has the documented form and range.
fn assert_answered(commands: &[(Kind, Words)], replies: &[Value]) {
    let mut queued: Vec<&(Kind, Words)> = Vec::new();
    for (command, reply) in commands.iter().zip(replies) {
        let is_queued = *reply == Value::SimpleString("QUEUED".into());
        match (command.0, reply) {
            (Kind::Multi | Kind::Discard, _) => queued.clear(),
            (Kind::Exec, Value::Array(replies)) => {
                assert_eq!(queued.len(), replies.len());
                for (command, reply) in queued.iter().zip(replies) {
                    assert_is_answer(command.0, &command.1, reply);
                }
            }
            (_, _) if is_queued => queued.push(command),
            (kind, reply) => assert_is_answer(kind, &command.1, reply),
        }
    }
}

fn assert_is_answer(kind: Kind, words: &Words, reply: &Value) {
    let sound = match (kind, reply) {
        (Kind::Figures | Kind::Info | Kind::All | Kind::Ok, Value::ServerError(error)) => {
            let text = format!("{} {}", error.code(), error.details().unwrap_or_default());
            REFUSALS.iter().any(|refusal| text.starts_with(refusal))
        }
        (Kind::Figures, Value::Array(items)) if items.len() == 7 => {
            let is_partial = |word: &Vec<u8>| word.eq_ignore_ascii_case(b"PARTIAL");
            words.iter().any(is_partial) && are_seven(items)
        }
        (Kind::Figures, Value::Array(_)) => are_figures(reply),
        (Kind::Info, reply) => is_info(reply),
        (Kind::All, reply) => is_reply_to_all(reply),
        (Kind::Ok, reply) => *reply == Value::Okay,
        (Kind::Figures, _) => false,
        _ => true,
    };
    let shown: Vec<_> =
        words.iter().map(|word| word[..word.len().min(60)].escape_ascii().to_string()).collect();
    assert!(sound, "{} answers {reply:?}", shown.join(" "));
}

fn are_figures(reply: &Value) -> bool {
    let Value::Array(items) = reply else { return false };
    let [
        Value::Int(limited),
        Value::Int(limit),
        Value::Int(remaining),
        Value::Int(retry_after),
        Value::Int(reset_after),
    ] = items[..]
    else {
        return false;
    };
    let waits = 0..=LONGEST_WAIT;
    (0..=1).contains(&limited)
        && (0..=MOST).contains(&limit)
        && (0..=limit).contains(&remaining)
        && (retry_after == -1 || limited == 1 && retry_after > 0 && waits.contains(&retry_after))
        && waits.contains(&reset_after)
}

/// The reply to PARTIAL: the five figures, the units taken and their time.
fn are_seven(items: &[Value]) -> bool {
    let (five, rest) = items.split_at(5);
    let [Value::Int(taken), Value::Int(at)] = rest else { return false };
    are_figures(&Value::Array(five.to_vec())) && (-MOST..=MOST).contains(taken) && (0..=MOST).contains(at)
}

fn is_reply_to_all(reply: &Value) -> bool {
    let Value::Array(items) = reply else { return false };
    let [Value::Int(limited), Value::Int(retry_after), Value::Int(at), Value::Array(rows)] = &items[..]
    else {
        return false;
    };
    let sound = (1..=64).contains(&rows.len()) && rows.iter().all(are_figures);
    sound
        && *limited == rows.iter().map(|row| figures(row)[0]).max().unwrap_or(0)
        && (0..=MOST).contains(at)
        && (*retry_after == -1 || *limited == 1 && (1..=LONGEST_WAIT).contains(retry_after))
}

/// Fields and values, from a map or from a flat array.
fn fields(reply: &Value) -> Option<Vec<(Value, Value)>> {
    match reply {
        Value::Map(fields) => Some(fields.clone()),
        Value::Array(items) if items.len().is_multiple_of(2) => {
            Some(items.chunks(2).map(|pair| (pair[0].clone(), pair[1].clone())).collect())
        }
        _ => None,
    }
}

fn is_info(reply: &Value) -> bool {
    if *reply == Value::Nil {
        return true;
    }
    let text = |text: &str| Value::BulkString(text.as_bytes().to_vec());
    let is_count = |value: &Value| matches!(value, Value::Int(0..));
    let Some(fields_) = fields(reply) else { return false };
    let [(algorithm, name), (windows, Value::Array(each)), entries @ ..] = fields_.as_slice() else {
        return false;
    };
    let is_window = |window: &Value| {
        fields(window).is_some_and(|window| {
            let names: Vec<_> = window.iter().map(|field| field.0.clone()).collect();
            let parts: &[&str] = if *name == text("sliding") { &["current", "previous"] } else { &[] };
            let limit: &[&str] = if *name == text("bucket") { &["limit"] } else { &[] };
            let expected = [&["window_ms"], limit, &["used", "reset_after_ms"], parts].concat();
            names == expected.into_iter().map(text).collect::<Vec<_>>()
                && window.iter().all(|field| is_count(&field.1))
        })
    };
    *algorithm == text("algorithm")
        && *windows == text("windows")
        && each.len() <= 8
        && each.iter().all(is_window)
        && match entries {
            [] => ["fixed", "sliding", "bucket"].iter().any(|other| *name == text(other)),
            [(field, count)] => *field == text("entries") && *name == text("log") && is_count(count),
            _ => false,
        }
}

/// Asserts that the server is sound: commands of all kinds get exact replies, and nothing has panicked.
fn assert_sound(server: &Server) {
    server.value("DEL sound:f sound:s sound:l");
    for (line, figures) in [
        ("RL.FIXED sound:f 3 1m AT 90000", [0, 3, 2, -1, 30_000]),
        ("RL.FIXED sound:f 3 1m COST 2 AT 90001", [0, 3, 0, -1, 29_999]),
        ("RL.FIXED sound:f 3 1m AT 90002", [1, 3, 0, 29_998, 29_998]),
        ("RL.PEEK sound:f 3 1m AT 120000", [0, 3, 3, -1, 0]),
        ("RL.SLIDING sound:s 4 1m COST 4 AT 0", [0, 4, 0, -1, 105_001]),
        ("RL.SLIDING sound:s 4 1m AT 0", [1, 4, 0, 60_001, 105_001]),
        ("RL.SLIDING sound:s 4 1m COST -3 AT 0", [0, 4, 3, -1, 60_001]),
        ("RL.LOG sound:l 2 1s 9 1h COST 2 AT 1000", [0, 2, 0, -1, 1_000]),
        ("RL.LOG sound:l 2 1s 9 1h COST 1 AT 1999", [1, 2, 0, 1, 1]),
        ("RL.LOG sound:l 2 1s 9 1h COST 1 AT 1999 FORCE", [1, 2, 0, 1, 1_000]),
        ("RL.LOG sound:l 2 1s 9 1h COST 1 AT 2000", [0, 2, 0, -1, 1_000]),
    ] {
        assert_eq!(server.figures(line), figures, "{line}");
    }
    for (key, windows) in [("sound:f", 0), ("sound:s", 0), ("sound:l", 1)] {
        let reply = server.value(&format!("RL.INFO {key}"));
        assert!(is_info(&reply), "{reply:?}");
        let fields = fields(&reply).expect("fields");
        assert!(matches!(&fields[1].1, Value::Array(items) if items.len() == windows), "{reply:?}");
    }
    assert_eq!(server.value("PING"), Value::SimpleString("PONG".into()));
    assert_eq!(server.info("loading"), "0");
    server.assert_nothing_panicked();
}

/// Asserts that every key of the type has a time to live, except those that may have lost it. Returns the
/// number of keys.
fn assert_keys_expire(server: &Server) -> usize {
    let mut connection = server.connect();
    let keys: Vec<Vec<u8>> = command("KEYS *").query(&mut connection).expect("KEYS");
    let mut pipeline = redis::pipe();
    for key in &keys {
        pipeline.cmd("TYPE").arg(key).cmd("PTTL").arg(key);
    }
    let seen: Vec<(String, i64)> = pipeline.query(&mut connection).expect("types and times");
    let ours = keys.iter().zip(&seen).filter(|(_, (kind, _))| kind == "ratelimit");
    for (key, (_, ttl)) in ours.clone() {
        // -1 means no time to live, -2 that the key has just expired.
        assert!(*ttl != -1 || key.starts_with(PERSISTENT), "no time to live: {}", key.escape_ascii());
    }
    ours.count()
}

#[test]
fn random_commands_get_the_same_replies_from_a_server_and_in_memory() {
    let hosts = Hosts::with_clock_at(1_700_000_000_000);
    let mut hostile = Hostile { random: random(), payloads: Vec::new() };
    let (mut known, mut most_keys) = (BTreeSet::new(), 0);
    for _ in 0..COMMANDS_OF_BOTH_HOSTS {
        let words = hostile.of_both_hosts();
        hosts.bytes(&words.iter().map(Vec::as_slice).collect::<Vec<_>>());
        known.extend(words[1..].iter().filter(|word| word.len() < 400).cloned());
        if hostile.chance(20) {
            let steps =
                [0, 1, 1, 2, 3, 5, 40, 99, 100, 1_000, 7_000, 60_000, 3_600_000, 86_400_000, 31_536_000_000];
            let step = hostile.random.of(&steps);
            hosts.step_clock(step);
            // Before the clock steps back: whatever has expired is deleted by both as it is looked up.
            let all = [b"EXISTS".as_slice()].into_iter().chain(known.iter().map(Vec::as_slice));
            hosts.bytes(&all.collect::<Vec<_>>());
            most_keys = most_keys.max(hosts.integer("DBSIZE"));
            if hostile.chance(2) {
                hosts.step_clock(-hostile.random.of(&steps).min(hosts.clock_ms()));
            }
        }
    }
    assert!(most_keys > 10, "only {most_keys} keys were in use");
}

/// The payload of each key; it does not include the time to live.
fn contents(server: &Server) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let mut connection = server.connect();
    let keys: Vec<Vec<u8>> = command("KEYS *").query(&mut connection).expect("KEYS");
    let mut pipeline = redis::pipe();
    for key in &keys {
        pipeline.cmd("DUMP").arg(key);
    }
    let dumps: Vec<Option<Vec<u8>>> = pipeline.query(&mut connection).expect("payloads");
    keys.into_iter().zip(dumps).filter_map(|(key, dump)| Some((key, dump?))).collect()
}

#[test]
fn random_commands_get_valid_replies_and_leave_the_server_sound() {
    let mut server = Server::with(&[("appendonly", "yes"), ("appendfsync", "no")]);
    let replica = Server::replica_of(&server, &[]);
    let mut hostile = Hostile { random: random(), payloads: Vec::new() };
    let mut connections = [server.connect(), server.connect_resp3()];
    let mut most_keys = 0;
    for round in 0..RANDOM_COMMANDS / COMMANDS_IN_A_PIPELINE {
        let commands = hostile.pipeline();
        let words: Vec<_> = commands.iter().map(|(_, words)| words.clone()).collect();
        let replies = replies(&server, &mut connections[round % 2], &words);
        assert_answered(&commands, &replies);
        for (words, reply) in words.iter().zip(replies) {
            if let (b"DUMP", Value::BulkString(payload)) = (words[0].as_slice(), reply) {
                hostile.payloads.push(payload);
            }
        }
        let surplus = hostile.payloads.len().saturating_sub(200);
        hostile.payloads.drain(..surplus);
        if round % 40 == 39 {
            most_keys = most_keys.max(assert_keys_expire(&server));
            assert_sound(&server);
        }
    }
    assert!(most_keys > 10, "only {most_keys} keys were in use");

    // The replica and the append-only file got the same commands.
    replica.wait_to_catch_up(&server);
    let (ours, copies) = (contents(&server), contents(&replica));
    let both = ours.keys().filter(|key| copies.contains_key(*key)).count();
    assert!(both > 5, "{both} keys on both");
    for (key, dump) in &ours {
        assert!(copies.get(key).is_none_or(|copy| copy == dump), "{}", key.escape_ascii());
    }
    server.crash_and_restart();
    assert_sound(&server);
    replica.assert_nothing_panicked();
}

/// A payload that is damaged in its body, or around it.
fn damaged(random: &mut Random, payload: &Payload) -> Vec<u8> {
    let mut bytes = payload.with(&payload.body);
    match random.below(10) {
        0..7 => {
            let mut body = payload.body.clone();
            random.damage(&mut body);
            return payload.with(&body);
        }
        // How the server stores the body.
        7..9 => {
            let end = bytes.len() - Payload::FOOT;
            let mut value = bytes[Payload::MODULE..end].to_vec();
            random.damage(&mut value);
            bytes.splice(Payload::MODULE..end, value);
        }
        // The module and its version, but not the type.
        _ => bytes[1 + random.below(Payload::MODULE - 1)] ^= 1 << random.below(8),
    }
    bytes
}

/// Payloads of keys of all kinds and sizes.
fn payloads(server: &Server) -> Vec<Payload> {
    let mut lines = Vec::new();
    for (i, name) in COMMANDS.into_iter().enumerate() {
        lines.push(format!("{name} {i}:one 5 10s AT 1700000000000"));
        lines.push(format!("{name} {i}:first 5 10s FORCE COST 7 AT 0"));
        lines.push(format!("{name} {i}:last {MOST} 3650d FORCE COST {MOST} AT {MOST}"));
        lines.push(format!("{name} {i}:tiers 9 1s 9 2s 9 3s 9 4s 9 5s 9 6s 9 7s 9 8s AT 1700000000000"));
        for step in 0..60 {
            let (at, cost) = (1_700_000_000_000_i64 + step * step * 37, 1 + step % 3);
            lines.push(format!("{name} {i}:several 9000 1h 90 1m COST {cost} FORCE AT {at}"));
        }
        // Almost 2^63 - 1 units, in two parts.
        for (calls, at) in [(1_000, 0), (23, 5)] {
            let line = format!("{name} {i}:many 5 10ms FORCE COST {MOST} AT {at}");
            lines.extend(vec![line; calls]);
        }
    }
    for step in 0..1_500 {
        lines.push(format!("RL.LOG 2:long 9000 1h AT {}", 1_700_000_000_000_i64 + 150 * step));
    }
    pipeline(lines).exec(&mut server.connect()).expect("all of them are counted");
    contents(server).values().map(|dump| Payload::of(dump)).collect()
}

#[test]
fn a_damaged_payload_that_passes_the_checksum_is_refused_or_makes_a_working_key() {
    let server = credulous_server();
    let payloads = payloads(&server);
    for payload in &payloads {
        let whole = payload.with(&payload.body);
        redis::cmd("RESTORE")
            .arg("whole")
            .arg(0)
            .arg(whole)
            .arg("REPLACE")
            .exec(&mut server.connect())
            .unwrap();
    }
    server.value("FLUSHALL");

    let mut random = random();
    let mut connections = [server.connect(), server.connect_resp3()];
    let (mut made, mut refused) = (0, 0);
    for batch in 0..PAYLOADS / 100 {
        let mut commands = Vec::new();
        for i in 0..100 {
            let mut restore = words(&format!("RESTORE key:{i} 0"));
            let payload = &payloads[random.below(payloads.len())];
            restore.push(damaged(&mut random, payload));
            commands.push((Kind::Other, restore));
            let mut push = |kind, line: String| commands.push((kind, words(&line)));
            for name in REQUESTS.iter().copied() {
                let pairs = random.of(&["2 1h", "9 10s", "9007199254740991 3650d", "1 1ms 50 2h"]);
                let cost = random.of(&["", " COST 3", " COST -1", " COST 9007199254740991"]);
                let force = if name == "RL.PEEK" { "" } else { random.of(&["", " FORCE"]) };
                let at = random.of(&["", " AT 0", " AT 1700000000000", " AT 9007199254740991"]);
                push(Kind::Figures, format!("{name} key:{i} {pairs}{cost}{force}{at}"));
            }
            push(Kind::Info, format!("RL.INFO key:{i}"));
            for line in ["MEMORY USAGE", "DEBUG DIGEST-VALUE", "DUMP"] {
                push(Kind::Other, format!("{line} key:{i}"));
            }
            push(Kind::Other, format!("COPY key:{i} copy"));
            push(Kind::Figures, "RL.PEEK copy 9 10s".into());
            push(Kind::Other, format!("DEL key:{i} copy"));
        }
        let words: Vec<_> = commands.iter().map(|(_, words)| words.clone()).collect();
        let replies = replies(&server, &mut connections[batch % 2], &words);
        assert_answered(&commands, &replies);
        for (words, reply) in words.iter().zip(&replies).filter(|(words, _)| words[0] == b"RESTORE") {
            match reply {
                Value::Okay => made += 1,
                Value::ServerError(error) => {
                    assert_eq!(error.details(), Some("Bad data format"), "{words:?}");
                    refused += 1;
                }
                other => panic!("{other:?}"),
            }
        }
    }
    assert!(made > PAYLOADS / 20 && refused > PAYLOADS / 20, "{made} made, {refused} refused");
    assert_eq!(server.integer("DBSIZE"), 0);
    assert_sound(&server);
}

/// Commands of the module with random arguments.
fn nonsense() -> Vec<Words> {
    let mut hostile = Hostile { random: random(), payloads: Vec::new() };
    let mut commands: Vec<Words> = (0..3_000).map(|_| hostile.ours().1).collect();
    for name in REQUESTS.iter().copied().chain(["RL.INFO", "RL.ALL", "RL.LOAD", "RL.APPLY"]) {
        for arguments in ["", " ", " key", " key 1", " key 1 1s 1", " key key"] {
            commands.push(words(&format!("{name}{arguments}")));
        }
    }
    commands
}

/// Whether the server passes commands of an append-only file to the module without checking the number of
/// their arguments. Valkey 8.1 and newer check it, and exit if it is wrong.
fn passes_any_number_of_arguments(server: &Server) -> bool {
    let info = server.text("INFO server");
    let valkey = info.lines().find_map(|line| line.strip_prefix("valkey_version:"));
    valkey.is_none_or(|version| version.starts_with("8.0."))
}

/// Checks the arity as registered for each command.
fn has_the_right_number_of_arguments(words: &Words) -> bool {
    match words[0].to_ascii_uppercase().as_slice() {
        b"RL.INFO" => words.len() == 2,
        b"RL.LOAD" => words.len() == 3,
        b"RL.APPLY" => words.len() >= 3,
        b"RL.ALL" => words.len() >= 6,
        _ => words.len() >= 4,
    }
}

#[test]
fn an_append_only_file_of_nonsense_loads_and_its_valid_commands_count() {
    let mut server = Server::with(&[("appendonly", "yes")]);
    server.value("RL.FIXED before 5 1h AT 4000000000000");
    let mut commands = nonsense();
    if !passes_any_number_of_arguments(&server) {
        commands.retain(has_the_right_number_of_arguments);
    }
    commands.push(words("RL.FIXED after 5 1h FORCE AT 4000000000000"));
    server.restart_after(|folder| {
        let mut file = OpenOptions::new().append(true).open(newest_part(folder)).expect("the file");
        for words in commands {
            file.write_all(&Cmd::new().arg(words).get_packed_command()).expect("a file to write to");
        }
    });
    for key in ["before", "after"] {
        assert_eq!(server.figures(&format!("RL.PEEK {key} 5 1h AT 4000000000000"))[2], 4, "{key}");
    }
    assert!(assert_keys_expire(&server) > 2);
    assert_sound(&server);
}

#[test]
fn a_replica_that_is_sent_nonsense_keeps_working() {
    let master = Server::start();
    let replica = Server::replica_of(&master, &[]);
    let to_replicas = |command: Words| [words("DEBUG REPLICATE"), command].concat();
    let sent: Vec<Words> = nonsense().into_iter().map(to_replicas).collect();
    for reply in replies(&master, &mut master.connect(), &sent) {
        assert_eq!(reply, Value::Okay);
    }
    master.value("RL.FIXED after 5 1h AT 4000000000000");
    wait_for("the replica to get there", || replica.integer("EXISTS after") == 1);
    assert_eq!(replica.info("master_link_status"), "up");
    assert_eq!(replica.figures("RL.PEEK after 5 1h AT 4000000000000")[2], 4);
    assert!(assert_keys_expire(&replica) > 2);
    replica.value("REPLICAOF NO ONE");
    assert_sound(&replica);
}

/// CPU time that the server took for each of two commands, the least of a few turns. Unlike time by the clock, it hardly
/// depends on what else the machine does.
fn cpu_seconds(server: &Server, commands: [&Cmd; 2]) -> [f64; 2] {
    let mut connection = server.connect();
    let mut least = [f64::MAX; 2];
    for _ in 0..7 {
        for (command, least) in commands.into_iter().zip(&mut least) {
            let before = server.cpu_seconds();
            command.exec(&mut connection).expect("a reply");
            *least = least.min(server.cpu_seconds() - before);
        }
    }
    least
}

#[test]
fn rl_all_takes_no_longer_for_long_names_that_differ_only_in_their_last_byte() {
    let server = Server::start();
    let long = vec![b'k'; 1 << 20];
    let all = |name: &dyn Fn(u8) -> Vec<u8>| {
        let mut all = redis::cmd("RL.ALL");
        (0..64).for_each(|nth| _ = all.arg(name(nth)).arg(&["LOG", "5", "1h", "0"]));
        all
    };
    let by_last = |nth: u8| [&long[..], &[nth]].concat();
    let in_first = all(&|nth| [&[nth], &long[..]].concat());
    let in_last = all(&by_last);
    let [first, last] = cpu_seconds(&server, [&in_first, &in_last]);
    assert!(last < 2.0 * first, "{last} s if they differ in their last byte, {first} s if in their first");

    // Once counted, and once refused for its options.
    let mut counted = redis::cmd("RL.ALL");
    (0..64).for_each(|nth| _ = counted.arg(by_last(nth)).arg(&["FIXED", "5", "1h", "1"]));
    let mut connection = server.connect();
    counted.arg("FORCE").exec(&mut connection).expect("counted");
    assert_eq!(server.integer("DBSIZE"), 64);
    let before = server.digest();
    counted.arg("FORCE").exec(&mut connection).expect_err("FORCE twice");
    assert_eq!(server.digest(), before);
    server.value("FLUSHALL");
    assert_sound(&server);
}

#[test]
fn a_number_that_is_too_long_is_refused_by_its_length() {
    let server = Server::start();
    let mut connection = server.connect();
    let digits = "1".repeat(8 << 20);
    for line in [
        "RL.FIXED k # 1s",
        "RL.SLIDING k 5 #",
        "RL.LOG k 5 #ms",
        "RL.BUCKET k 5 1s COST #",
        "RL.BUCKET k 5 1s COST -#",
        "RL.PEEK k 5 1s AT #",
        "RL.PEEK k 5 1s #",
        "RL.ALL k LOG # 1s 1",
        "RL.ALL k LOG 5 # 1",
        "RL.ALL k LOG 5 1s -#",
        "RL.ALL k LOG 5 1s 1 AT #",
        "RL.APPLY k F#:1/1s",
        "RL.APPLY k B:1/#/1s",
    ] {
        let words: Vec<String> = line.split(' ').map(|word| word.replace('#', &digits)).collect();
        let mut command = redis::cmd(&words[0]);
        command.arg(&words[1..]);
        let mut took_us = || {
            server.value("CONFIG RESETSTAT");
            let error = command.exec(&mut connection).expect_err(line);
            assert!(error.to_string().len() < 300, "{line}");
            let statistics = server.text("INFO commandstats").to_ascii_lowercase();
            let of_command = format!("cmdstat_{}:calls=1,usec=", words[0].to_ascii_lowercase());
            let (_, figures) = statistics.split_once(&of_command).expect("its statistics");
            figures.split(',').next().and_then(|us| us.parse::<u64>().ok()).expect("microseconds")
        };
        // To walk over the digits takes at least five times as long.
        let least = (0..7).map(|_| took_us()).min();
        assert!(least < Some(1_000), "{line}: {least:?} microseconds");
    }
}
