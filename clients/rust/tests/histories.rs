//! Random histories of requests by several policies, against an exact server of two slots.
//!
//! Two processes run the real decider. Commands and replies overtake one another, requests are cancelled, given up and
//! refused further in, commands fail before they arrive or after. In the end the server counts what passed: nothing that
//! did not, and nothing of others has been given back.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use redis_rl_client::local::{
    Command, Decider, Fate, Group, Joint, JointStep, Outcome, Refusals, Rules, Settings, Share, Taken, slot,
};
use redis_rl_client::{Algorithm, Decision, Quota, Verdict};

const LIMIT: u64 = 12;
/// The first two are leased, and no two are in one slot but the last.
const KEYS: [&str; 5] = ["everybody", "team", "plan", "{a}route", "{a}tokens"];

/// A generator of numbers.
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % end as u64) as usize
    }

    /// Takes any of these.
    fn pick<T>(&mut self, from: &mut Vec<T>) -> Option<T> {
        if from.is_empty() { None } else { Some(from.swap_remove(self.below(from.len()))) }
    }
}

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

    fn verdict(&self, key: &[u8], limited: bool) -> Verdict {
        Verdict {
            limited,
            limit: LIMIT,
            remaining: LIMIT - self.used(key),
            retry_after: limited.then(|| Duration::from_secs(60)),
            reset_after: Duration::from_secs(3_600),
            taken: None,
            at: None,
        }
    }

    fn one(&mut self, command: &Command, now_ms: u64) -> Verdict {
        let (key, cost) = (&command.key, command.cost.unsigned_abs());
        if command.gives_back() {
            self.give_back(key, cost, command.at.expect("a time"));
            return self.verdict(key, false);
        }
        let room = LIMIT - self.used(key);
        let taken = if command.partial || cost <= room { cost.min(room) } else { 0 };
        self.take(key, taken, now_ms);
        // One that is decided as a whole is asked by `RL.ALL`, which tells the time alone.
        let taken_told = command.partial.then_some(taken as i64);
        Verdict { taken: taken_told, at: Some(time(now_ms)), ..self.verdict(key, taken < cost) }
    }

    fn all(&mut self, group: &Group, now_ms: u64) -> Decision {
        if let Some(at) = group.at {
            group.shares.iter().for_each(|share| self.give_back(&share.key, share.cost.unsigned_abs(), at));
        }
        let cost = |share: &Share| share.cost.max(0).unsigned_abs();
        let refuses = |server: &Server, share: &Share| server.used(&share.key) + cost(share) > LIMIT;
        let limited = group.shares.iter().any(|share| refuses(self, share));
        let rows = group.shares.iter().map(|share| (share, refuses(self, share))).collect::<Vec<_>>();
        if !limited {
            group.shares.iter().for_each(|share| self.take(&share.key, cost(share), now_ms));
        }
        let rows = rows.into_iter().map(|(share, refuses)| self.verdict(&share.key, refuses)).collect();
        let retry_after = limited.then(|| Duration::from_secs(60));
        Decision { limited, retry_after, at: time(now_ms), rows }
    }
}

fn ms(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).expect("after 1970").as_millis() as u64
}

fn time(ms: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_millis(ms)
}

enum Message {
    Key(Command),
    Group(Group),
    KeyReply(Command, Option<Verdict>),
    GroupReply(Group, Option<Decision>),
}

struct Process {
    joint: Joint,
    network: Vec<Message>,
    /// Requests that are not answered.
    open: Vec<u64>,
    /// What requests have taken that passed.
    passed: Vec<Vec<Taken>>,
}

impl Process {
    fn carry_out(&mut self, step: JointStep) {
        self.network.extend(step.keys.into_iter().map(Message::Key));
        self.network.extend(step.groups.into_iter().map(Message::Group));
        for (id, answer) in step.answers {
            self.open.retain(|open| *open != id);
            if answer.outcome == Outcome::Allowed {
                self.passed.push(answer.taken);
            } else {
                assert!(answer.taken.is_empty(), "what does not pass keeps nothing");
            }
        }
    }
}

fn processes() -> [Process; 2] {
    [(), ()].map(|()| {
        let max = NonZeroUsize::new(3).expect("some keys");
        let remember = Duration::from_millis(5);
        let decider = Decider::new(Settings { units: u64::MAX, remember }, max);
        let joint = Joint::new(decider, Refusals::new(remember, max), true, Fate::Fails);
        Process { joint, network: Vec::new(), open: Vec::new(), passed: Vec::new() }
    })
}

/// `loses` tells whether commands may fail. One that fails after it was counted leaves its units counted.
fn history(seed: u64, loses: bool) {
    let (mut random, mut server, mut now_ms, mut lost) = (Random(seed), Server::default(), 1_000, false);
    let mut processes = processes();
    let hour = Quota::new(LIMIT, Duration::from_secs(3_600));
    let rules: Vec<Arc<Rules>> = (0..KEYS.len())
        .map(|key| {
            let rules = Rules::new(Algorithm::Log, &[hour], Duration::from_millis(20));
            Arc::new(rules.units(if key < 2 { 4 } else { 0 }))
        })
        .collect();
    let mut last_id = 0;
    for turn in 0..400 {
        let is_ending = turn >= 300;
        let now = Duration::from_millis(now_ms);
        let process = &mut processes[random.below(2)];
        let mut step = JointStep::default();
        match random.below(10) {
            0..=2 if !is_ending => {
                last_id += 1;
                let mut keys: Vec<usize> = (0..KEYS.len()).collect();
                let shares = (0..=random.below(KEYS.len())).map(|_| {
                    let key = random.pick(&mut keys).expect("a key");
                    let cost = 1 + random.below(2) as i64;
                    Share { key: KEYS[key].as_bytes().into(), rules: rules[key].clone(), cost }
                });
                process.open.push(last_id);
                process.joint.take(now, last_id, shares.collect(), &mut step);
            }
            3 if !is_ending => {
                if let Some(id) = random.pick(&mut process.open) {
                    if random.below(2) == 0 {
                        process.joint.cancel(now, id, &mut step);
                    } else {
                        process.open.push(id);
                        process.joint.give_up(now, id, &mut step);
                    }
                }
            }
            4 if !is_ending => {
                if let Some(taken) = random.pick(&mut process.passed) {
                    process.joint.release(now, taken, &mut step);
                }
            }
            5 => now_ms += random.below(6) as u64,
            6 => process.joint.tick(now, &mut step),
            _ => {
                let fails = loses && random.below(10) == 0;
                match random.pick(&mut process.network) {
                    Some(Message::Key(command)) => {
                        let reply = (!fails).then(|| server.one(&command, now_ms));
                        lost |= fails && command.gives_back();
                        if !command.gives_back() {
                            process.network.push(Message::KeyReply(command, reply));
                        }
                    }
                    Some(Message::Group(group)) => {
                        let reply = (!fails).then(|| server.all(&group, now_ms));
                        lost |= fails && group.asked.is_none();
                        if group.asked.is_some() {
                            process.network.push(Message::GroupReply(group, reply));
                        }
                    }
                    Some(Message::KeyReply(command, reply)) => {
                        lost |= fails;
                        process.joint.reply_to_key(now, &command, reply.filter(|_| !fails), &mut step);
                    }
                    Some(Message::GroupReply(group, reply)) => {
                        lost |= fails;
                        process.joint.reply_to_group(now, &group, reply.filter(|_| !fails), &mut step);
                    }
                    None => {}
                }
            }
        }
        process.carry_out(step);
    }
    // All arrives, and all leases go back.
    now_ms += 100;
    let now = Duration::from_millis(now_ms);
    for process in &mut processes {
        let mut step = JointStep::default();
        process.joint.close(&mut step);
        process.carry_out(step);
        while let Some(message) = random.pick(&mut process.network) {
            let mut step = JointStep::default();
            match message {
                Message::Key(command) => {
                    let reply = server.one(&command, now_ms);
                    process.joint.reply_to_key(now, &command, Some(reply), &mut step);
                }
                Message::Group(group) => {
                    let reply = server.all(&group, now_ms);
                    process.joint.reply_to_group(now, &group, Some(reply), &mut step);
                }
                Message::KeyReply(command, reply) => {
                    process.joint.reply_to_key(now, &command, reply, &mut step)
                }
                Message::GroupReply(group, reply) => {
                    process.joint.reply_to_group(now, &group, reply, &mut step)
                }
            }
            process.carry_out(step);
        }
        assert!(process.open.is_empty(), "every request is answered: seed {seed}");
    }
    for key in KEYS {
        let taken = processes.iter().flat_map(|process| process.passed.iter().flatten());
        let passed = taken.filter(|taken| &*taken.share.key == key.as_bytes()).map(|taken| taken.share.cost);
        let (passed, used) = (passed.sum::<i64>() as u64, server.used(key.as_bytes()));
        let holds = if lost { passed <= used } else { passed == used };
        assert!(holds, "{passed} units of {key} passed and {used} are counted: seed {seed}");
    }
}

#[test]
fn in_the_end_the_server_counts_what_passed() {
    assert!(slot(b"everybody") != slot(b"plan") && slot(b"plan") != slot(b"{a}"));
    (1..=500).for_each(|seed| history(seed * 0x9e37_79b9, false));
}

#[test]
fn when_commands_and_replies_are_lost_it_counts_no_less() {
    (1..=500).for_each(|seed| history(seed * 0x9e37_79b9, true));
}
