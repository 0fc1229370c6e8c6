//! What a process decides by itself: refusals that it remembers, and units that it has leased.
//!
//! A pure state machine: it is told the time and what happens, and says which commands to send and what to answer.
//! [`Key`] is the machine of one key, [`Decider`] a bounded map of them, [`Refusals`] the memory of decisions over
//! several keys. `clients/README.md` has the rules, `clients/local.json` the cases.

mod decider;
mod joint;
mod key;
mod refusals;

use std::borrow::Cow;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use redis::Cmd;

use crate::{Algorithm, All, Decision, Quota, Take, Verdict, cmd};

pub use decider::Decider;
pub use joint::{Fate, Group, Joint, JointAnswer, JointStep, Outcome, Share, Taken, slot};
pub use key::Key;
pub use refusals::Refusals;

/// Keys at rest that a process remembers, and keys in flight that it leases units of.
pub const MAX_KEYS: usize = 10_000;

/// Longer names are never leased, and remembered by their digest.
const MAX_NAME: usize = 256;

/// The largest cost that the commands accept.
const MAX_COST: u64 = (1 << 53) - 1;

/// How a key is counted, and how long its leases last.
#[derive(Debug, Eq, Hash, PartialEq)]
pub struct Rules {
    algorithm: Algorithm,
    quotas: Vec<Quota>,
    smallest_limit: u64,
    lease: Duration,
    /// The largest lease.
    units: u64,
}

impl Rules {
    /// Leases last for `lease`, but never more than a twentieth of the shortest window.
    #[must_use]
    pub fn new(algorithm: Algorithm, quotas: &[Quota], lease: Duration) -> Rules {
        let longest_lease = quotas.iter().map(|quota| quota.window / 20).min().unwrap_or_default();
        Rules {
            algorithm,
            quotas: quotas.to_vec(),
            smallest_limit: quotas.iter().map(|quota| quota.limit).min().unwrap_or_default(),
            lease: whole_ms(lease.min(longest_lease)),
            units: u64::MAX,
        }
    }

    /// The same with leases of at most so many units.
    #[must_use]
    pub fn units(self, units: u64) -> Rules {
        Rules { units, ..self }
    }

    /// Whether a request for a key of this name may be served by a lease.
    fn is_leased(&self, name: &[u8], cost: i64) -> bool {
        self.units > 0 && cost > 0 && !self.is_hopeless(cost) && name.len() <= MAX_NAME
    }

    /// Whether no wait helps a request of this cost.
    fn is_hopeless(&self, cost: i64) -> bool {
        cost > 0 && cost.unsigned_abs() > self.smallest_limit
    }
}

/// Remembers long names by 128 bits that only this process can tell, so nobody can make two that are alike.
#[derive(Debug, Default)]
struct Digests([RandomState; 2]);

impl Digests {
    fn name<'a>(&self, name: &'a [u8]) -> Cow<'a, [u8]> {
        if name.len() <= MAX_NAME {
            return name.into();
        }
        self.0.iter().flat_map(|keyed| keyed.hash_one(name).to_ne_bytes()).collect::<Vec<u8>>().into()
    }
}

/// Rounded down: a wait that is less by it is never too short.
fn whole_ms(duration: Duration) -> Duration {
    Duration::from_millis(duration.as_millis() as u64)
}

/// What is the same for all keys of a process.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct Settings {
    /// The largest lease of any key; with 0, requests are asked one by one.
    pub units: u64,
    /// How old a refusal may be that is repeated.
    pub remember: Duration,
}

/// Names a request of this process.
pub type RequestId = u64;

/// A command to send.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
pub struct Command {
    /// The key.
    pub key: Arc<[u8]>,
    /// How it is counted.
    pub rules: Arc<Rules>,
    /// Units to take, or if negative to give back.
    pub cost: i64,
    /// Whether as many units are taken as fit.
    pub partial: bool,
    /// The time as of which units are given back, or of a clock of the application's own.
    pub at: Option<SystemTime>,
    /// Whom the reply is for.
    pub purpose: Purpose,
}

/// Whom a reply is for.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum Purpose {
    /// The requests in flight for the key.
    Flight,
    /// One request, which was sent by itself.
    Alone(RequestId),
    /// Requests of one cost that were refused without their wait, by the name of the first.
    Asked(RequestId),
    /// Nobody: units of a lease go back.
    GiveBack,
}

impl Command {
    /// Whether it gives units of a lease back, so that nobody waits for its reply.
    #[must_use]
    pub fn gives_back(&self) -> bool {
        self.purpose == Purpose::GiveBack
    }

    /// The command in words, answered by a [`Verdict`].
    #[must_use]
    pub fn cmd(&self) -> Cmd {
        let mut take = Take::cost(self.cost);
        if self.partial {
            take = take.partial();
        }
        if let Some(at) = self.at {
            take = take.at(at);
        }
        cmd::by(self.rules.algorithm, &self.key[..], &self.rules.quotas, take)
    }

    /// What such a decision says of the one key.
    #[must_use]
    pub fn verdict(decision: &Decision) -> Option<Verdict> {
        decision.tightest()
    }

    /// The same as a request for several keys, answered by a [`Decision`].
    #[must_use]
    pub fn all(&self) -> Cmd {
        let all = All::new().key(&self.key[..], self.rules.algorithm, &self.rules.quotas, self.cost);
        cmd::all(&match self.at {
            Some(at) => all.at(at),
            None => all,
        })
    }
}

/// What a request is told.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum Answer {
    /// What was decided.
    Verdict(Verdict),
    /// The command that asked for it has failed.
    Failed,
}

/// What follows from an event: commands, in the order in which they are to be sent, and answers.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Step {
    /// Commands to send.
    pub commands: Vec<Command>,
    /// Answers to requests.
    pub answers: Vec<(RequestId, Answer)>,
}

impl Step {
    fn answer(&mut self, id: RequestId, verdict: Verdict) {
        self.answers.push((id, Answer::Verdict(verdict)));
    }

    /// Gives back what a command took that nobody awaits any more, if its time is known.
    fn give_back(&mut self, command: &Command, at: Option<SystemTime>) {
        if at.is_some() {
            let cost = -command.cost;
            self.commands.push(Command { cost, at, purpose: Purpose::GiveBack, ..command.clone() });
        }
    }
}
