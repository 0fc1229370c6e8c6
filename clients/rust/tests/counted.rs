//! Random histories of requests by several policies, against an exact server of two slots.
//!
//! Two processes run the real machine. Commands and replies overtake one another, requests are cancelled, settled and
//! refused further in, commands fail before they arrive or after. In the end the server counts what passed: nothing that
//! did not, and nothing of others has been given back.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use redis::{ErrorKind, RedisError};
use redis_rl_client::keys::{Command, Keys, Request, Rules, Share, Step, slot};
use redis_rl_client::{Algorithm, Quota, Verdict, Verdicts};

use crate::histories::Random;
use crate::server::words::words;

const LIMIT: u64 = 12;
/// The first two are leased, and no two are in one slot but the last.
const KEYS: [&str; 5] = ["everybody", "team", "plan", "{a}route", "{a}tokens"];

/// Units by key and time. Windows are longer than any history.
#[derive(Default)]
struct Server(BTreeMap<Vec<u8>, BTreeMap<u64, u64>>);

impl Server {
    fn used(&self, key: &[u8]) -> u64 {
        self.0.get(key).map_or(0, |log| log.values().sum())
    }

    fn take(&mut self, key: &[u8], units: u64, now_ms: u64) {
        *self.0.entry(key.to_vec()).or_default().entry(now_ms).or_default() += units;
    }

    fn give_back(&mut self, key: &[u8], mut units: u64, at: SystemTime) {
        let log = self.0.entry(key.to_vec()).or_default();
        for (_, counted) in log.range_mut(..=ms(at)).rev() {
            let back = units.min(*counted);
            *counted -= back;
            units -= back;
        }
        assert_eq!(units, 0, "units are given back that nobody has taken");
    }

    /// By its words.
    fn carry_out(&mut self, command: &Command, now_ms: u64) -> Verdicts {
        let words = words(&command.cmd(None));
        let has = |word: &str| words.iter().any(|other| other == word);
        let after = |word: &str| words.iter().position(|other| other == word).map(|place| &words[place + 1]);
        let number = |word: &String| word.parse::<i64>().expect("a number");
        let at = after("AT").map(|at| time(number(at) as u64));
        let shares: Vec<(&[u8], i64)> = if words[0] == "RL.ALL" {
            let rows = words[1..].chunks_exact(5).filter(|row| row[1] == "LOG");
            rows.map(|row| (row[0].as_bytes(), number(&row[4]))).collect()
        } else {
            vec![(words[1].as_bytes(), after("COST").map_or(1, number))]
        };
        let limit = |key: &[u8]| LIMIT.saturating_sub(self.used(key)) as i64;
        let refuses: Vec<bool> = shares.iter().map(|(key, cost)| *cost > 0 && *cost > limit(key)).collect();
        let limited = refuses.contains(&true);
        let is_taken = !limited || has("FORCE");
        let taken: Vec<i64> = shares
            .iter()
            .map(|(key, cost)| match is_taken {
                true => *cost,
                false if has("PARTIAL") => (*cost).min(limit(key)),
                false => 0,
            })
            .collect();
        let mut rows = Vec::new();
        for (((key, _), refuses), taken) in shares.iter().zip(refuses).zip(taken) {
            match at {
                Some(at) if taken < 0 => self.give_back(key, taken.unsigned_abs(), at),
                _ => self.take(key, taken.unsigned_abs(), now_ms),
            }
            rows.push(Verdict {
                limited: refuses,
                limit: LIMIT,
                remaining: LIMIT.saturating_sub(self.used(key)),
                retry_after: refuses.then(|| Duration::from_secs(60)),
                reset_after: Duration::from_secs(3_600),
                taken: has("PARTIAL").then_some(taken),
                at: has("PARTIAL").then(|| time(now_ms)),
            });
        }
        let retry_after = limited.then(|| Duration::from_secs(60));
        Verdicts { limited, retry_after, at: time(now_ms), rows }
    }
}

fn ms(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).expect("after 1970").as_millis() as u64
}

fn time(ms: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_millis(ms)
}

enum Message {
    Command(Command),
    Reply(Command, Option<Verdicts>),
}

struct Process {
    keys: Keys,
    network: Vec<Message>,
    requests: BTreeMap<u64, Request>,
    /// Requests that are not answered.
    open: Vec<u64>,
    /// Requests that passed.
    passed: Vec<u64>,
    /// What is counted of each share.
    taken: BTreeMap<u64, Vec<i64>>,
}

impl Process {
    fn carry_out(&mut self, step: Step) {
        self.network.extend(step.commands.into_iter().map(Message::Command));
        for (request, answer) in step.answers {
            let of = |(_, other): &(&u64, &Request)| **other == request;
            let id = *self.requests.iter().find(of).expect("a request").0;
            let was_open = self.open.contains(&id);
            self.open.retain(|open| *open != id);
            if was_open && answer.as_ref().is_ok_and(|answer| !answer.limited) {
                self.passed.push(id);
            }
            match answer {
                Ok(answer) => {
                    self.taken.insert(id, answer.taken);
                }
                // It fails closed.
                Err(_) if was_open => {
                    let step = self.keys.give_back(Duration::ZERO, &request);
                    self.carry_out(step);
                }
                Err(_) => {}
            }
        }
    }
}

fn processes() -> [Process; 2] {
    [(), ()].map(|()| {
        let max = NonZeroUsize::new(3).expect("some keys");
        let keys = Keys::new(Duration::from_millis(5), max, true);
        let requests = BTreeMap::new();
        Process { keys, network: vec![], requests, open: vec![], passed: vec![], taken: BTreeMap::new() }
    })
}

/// `loses` tells whether commands may fail. One that fails after it was counted leaves its units counted.
fn history(seed: u64, loses: bool) {
    let (mut random, mut server, mut now_ms, mut lost) = (Random::new(seed), Server::default(), 1_000, false);
    let mut processes = processes();
    let hour = Quota::new(LIMIT, Duration::from_secs(3_600));
    let rules = |key| {
        let units = if key < 2 { 4 } else { 0 };
        let ttl = Duration::from_millis(20);
        Arc::new(Rules { algorithm: Algorithm::Log, quotas: vec![hour], ttl, units })
    };
    let rules: Vec<Arc<Rules>> = (0..KEYS.len()).map(rules).collect();
    let mut keys_of = BTreeMap::new();
    let mut last_id = 0;
    for turn in 0..400 {
        let is_ending = turn >= 300;
        let now = Duration::from_millis(now_ms);
        let process = &mut processes[random.below(2)];
        let step = match random.below(11) {
            0..=2 if !is_ending => {
                last_id += 1;
                let mut left: Vec<usize> = (0..KEYS.len()).collect();
                let places: Vec<usize> =
                    (0..=random.below(KEYS.len())).filter_map(|_| random.pick(&mut left)).collect();
                let share = |key: &usize| {
                    let cost = 1 + random.below(2) as i64;
                    Share { key: KEYS[*key].as_bytes().into(), rules: rules[*key].clone(), cost }
                };
                let shares = places.iter().map(share).collect();
                keys_of.insert(last_id, places);
                process.open.push(last_id);
                let request = Request::new(shares);
                process.requests.insert(last_id, request.clone());
                process.keys.take(now, &request)
            }
            3 if !is_ending => {
                let cancelled = random.pick(&mut process.open);
                cancelled.map_or_else(Step::default, |id| process.keys.give_back(now, &process.requests[&id]))
            }
            4 if !is_ending => {
                let refused = random.pick(&mut process.passed);
                refused.map_or_else(Step::default, |id| process.keys.give_back(now, &process.requests[&id]))
            }
            5 if !is_ending && !process.passed.is_empty() => {
                let id = process.passed[random.below(process.passed.len())];
                process.keys.settle(&process.requests[&id], [(0, random.below(4) as i64)])
            }
            6 => {
                now_ms += random.below(6) as u64;
                Step::default()
            }
            7 => process.keys.tick(now),
            _ => {
                let fails = loses && random.below(10) == 0;
                match random.pick(&mut process.network) {
                    Some(Message::Command(command)) => {
                        let reply = (!fails).then(|| server.carry_out(&command, now_ms));
                        lost |= fails;
                        if command.awaits_reply() {
                            process.network.push(Message::Reply(command, reply));
                        }
                        Step::default()
                    }
                    Some(Message::Reply(command, reply)) => {
                        lost |= fails;
                        process.keys.reply(now, &command, reply.filter(|_| !fails).ok_or_else(away))
                    }
                    None => Step::default(),
                }
            }
        };
        process.carry_out(step);
    }
    // All arrives, and all leases go back.
    now_ms += 100;
    let now = Duration::from_millis(now_ms);
    for process in &mut processes {
        let step = process.keys.close();
        process.carry_out(step);
        while let Some(message) = random.pick(&mut process.network) {
            match message {
                Message::Command(command) => {
                    let reply = server.carry_out(&command, now_ms);
                    if command.awaits_reply() {
                        process.network.push(Message::Reply(command, Some(reply)));
                    }
                }
                Message::Reply(command, reply) => {
                    let step = process.keys.reply(now, &command, reply.ok_or_else(away));
                    process.carry_out(step);
                }
            }
        }
        assert!(process.open.is_empty(), "every request is answered: seed {seed}");
    }
    for (place, key) in KEYS.iter().enumerate() {
        let units = |process: &Process| {
            let of = |id: &u64| {
                let share = keys_of[id].iter().position(|key| *key == place);
                share.map_or(0, |share| process.taken[id][share])
            };
            process.passed.iter().map(of).sum::<i64>()
        };
        let (passed, used) = (processes.iter().map(units).sum::<i64>() as u64, server.used(key.as_bytes()));
        let holds = if lost { passed <= used } else { passed == used };
        assert!(holds, "{passed} units of {key} passed and {used} are counted: seed {seed}");
    }
}

fn away() -> RedisError {
    (ErrorKind::Io, "away").into()
}

#[test]
fn in_the_end_the_server_counts_what_passed() {
    assert!(slot(b"everybody") != slot(b"plan") && slot(b"plan") != slot(b"{a}"));
    (1..=500).for_each(|seed| history(seed, false));
}

#[test]
fn when_commands_and_replies_are_lost_it_counts_no_less() {
    (1..=500).for_each(|seed| history(seed, true));
}
