//! Generates commands: mostly valid ones of the module, nonsense, and the server's own on the same keys.

use harness::{COMMANDS, Random};

use crate::helpers::payload::Payload;
use crate::helpers::requests::{REQUESTS, effect};

pub const COMMANDS_IN_A_PIPELINE: usize = 500;

/// The largest limit, cost and time.
pub const MOST: i64 = 9_007_199_254_740_991;

/// The prefix of keys that may be left without a time to live: by PERSIST, or by RESTORE with 0.
pub const PERSISTENT: &[u8] = b"persistent:";

/// A command and its arguments.
pub type Words = Vec<Vec<u8>>;

pub fn words(line: &str) -> Words {
    line.split(' ').map(|word| word.as_bytes().to_vec()).collect()
}

/// The form of a command's reply.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kind {
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
pub struct Hostile {
    pub random: Random,
    /// Replies of DUMP so far.
    pub payloads: Vec<Vec<u8>>,
}

impl Hostile {
    pub fn chance(&mut self, one_in: usize) -> bool {
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
        // Months are refused, but of RL.FIXED.
        const WINDOWS: [&str; 17] = [
            "1ms", "3ms", "100MS", "1", "7S", "1m", "1h", "2h", "1d", "1w", "1mo", "30D", "3MO", "52W",
            "365d", "3649d", "3650d",
        ];
        // Their number is prime: every step reaches all of them.
        let (first, step) = (self.random.below(17), 1 + self.random.below(16));
        (0..count).map(move |i| WINDOWS[(first + i * step) % 17])
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
            "0s", "s", "ms", "121mo", "522w", "1sm", "3651d", "COST", "cost", "AT", "FORCE", "force", "FORC",
            "PARTIAL", "WITHIN", "COSTS", "%s%n", "\u{661}", "1\r\n",
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
        let within: [&[&[u8]]; 2] = [&[b"Within", b"90s"], &[b"within", b"3650d"]];
        let modes: [&[&[u8]]; 8] = [
            &[],
            &[],
            &[b"Force"],
            &[b"Force"],
            &[b"Partial"],
            &[b"Force", b"Partial"],
            within[0],
            within[1],
        ];
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
    pub fn ours(&mut self) -> (Kind, Words) {
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
    pub fn of_both_hosts(&mut self) -> Words {
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
    pub fn pipeline(&mut self) -> Vec<(Kind, Words)> {
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
