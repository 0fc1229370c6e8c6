//! What is sent for requests, and what they are told.

use std::time::{Duration, SystemTime};

use redis::{Cmd, FromRedisValue, RedisResult, Value};

use super::share::{RequestId, Share};
use crate::commands::{All, Decision, Take, Verdict, cmd};

/// What a request is told.
#[derive(Clone, Debug, PartialEq)]
pub struct Answer {
    /// Whether any share refuses.
    pub limited: bool,
    /// The longest wait of the shares that refuse. None also if no wait helps.
    pub retry_after: Option<Duration>,
    /// As of when it was decided; of several commands, by the first reply.
    pub at: Option<SystemTime>,
    /// Of each share those of its quotas, of a lease its tightest; none where nothing is known.
    pub rows: Vec<Option<Vec<Verdict>>>,
    /// Units that are counted of each share.
    pub taken: Vec<i64>,
}

impl Answer {
    /// As one of all shares.
    pub(crate) fn decision(&self) -> Decision {
        let rows = self.rows.iter().flatten().flatten().copied().collect();
        let at = self.at.unwrap_or(SystemTime::UNIX_EPOCH);
        Decision { limited: self.limited, retry_after: self.retry_after, at, rows }
    }
}

/// A command to send.
#[derive(Clone, Debug)]
pub struct Command {
    pub(super) shares: Vec<Share>,
    /// Whose shares they are, by their place; none if units go back of which nobody awaits anything.
    pub(super) request: Option<(RequestId, Vec<usize>)>,
    /// Whether it is the one in flight of its key, and the units that it asks for beyond the cost.
    pub(super) in_flight: Option<u64>,
    /// As of when units go back.
    pub(super) at: Option<SystemTime>,
    /// Whether units are counted that were used.
    pub(super) force: bool,
}

impl Command {
    /// Asks for shares of a request; in flight of its key, for so many units beyond the cost.
    pub(super) fn ask(
        shares: Vec<Share>,
        id: RequestId,
        places: Vec<usize>,
        in_flight: Option<u64>,
    ) -> Command {
        Command { shares, request: Some((id, places)), in_flight, at: None, force: false }
    }

    /// Gives units back.
    pub(super) fn back(shares: Vec<Share>, at: SystemTime) -> Command {
        Command { shares, request: None, in_flight: None, at: Some(at), force: false }
    }

    /// Whether the reply is to be told.
    #[must_use]
    pub fn awaits_reply(&self) -> bool {
        self.request.is_some()
    }

    /// Whether it corrects what is counted of its request.
    pub(super) fn settles(&self) -> bool {
        self.request.is_some() && (self.force || self.at.is_some())
    }

    /// One of its keys, all of which are in one slot.
    #[must_use]
    pub fn first_key(&self) -> &[u8] {
        self.shares.first().map_or(&[], |share| &share.key)
    }

    /// The units that it asks for beyond the cost.
    pub(super) fn size(&self) -> u64 {
        self.in_flight.unwrap_or_default()
    }

    /// Of one unit by one quota the single command tells all, and is cheaper.
    fn single(&self) -> Option<&Share> {
        let [share] = &self.shares[..] else { return None };
        let tells_all = share.cost == 1 && share.rules.quotas.len() == 1 && !self.settles();
        (self.size() > 0 || !self.awaits_reply() || tells_all).then_some(share)
    }

    /// The command in words, to decide as of `at` unless it gives back.
    #[must_use]
    pub fn cmd(&self, at: Option<SystemTime>) -> Cmd {
        let at = self.at.or(at);
        if let Some(share) = self.single() {
            let mut take = Take::cost(share.cost + self.size() as i64);
            if self.awaits_reply() {
                take = take.partial();
            }
            if let Some(at) = at {
                take = take.at(at);
            }
            return cmd::by(share.rules.algorithm, &share.key[..], &share.rules.quotas, take);
        }
        let mut all = self.shares.iter().fold(All::new(), |all, share| {
            all.key(&share.key[..], share.rules.algorithm, &share.rules.quotas, share.cost)
        });
        if self.force {
            all = all.force();
        }
        if let Some(at) = at {
            all = all.at(at);
        }
        cmd::all(&all)
    }

    /// The same that takes nothing, and needs the same rights.
    #[must_use]
    pub fn at_no_cost(&self) -> Command {
        let shares = self.shares.iter().map(|share| Share { cost: 0, ..share.clone() }).collect();
        let in_flight = self.in_flight.map(|_| 0);
        Command { shares, in_flight, at: None, force: false, ..self.clone() }
    }

    /// What the reply says.
    ///
    /// # Errors
    ///
    /// If it is none of this command.
    pub fn read(&self, reply: Value) -> RedisResult<Decision> {
        if self.single().is_none() {
            return Ok(Decision::from_redis_value(reply)?);
        }
        let row = Verdict::from_redis_value(reply)?;
        let at = row.at.unwrap_or(SystemTime::UNIX_EPOCH);
        Ok(Decision { limited: row.limited, retry_after: row.retry_after, at, rows: vec![row] })
    }
}

/// What follows from an event: commands, in the order in which they are to be sent, and answers.
#[derive(Debug, Default)]
pub struct Step {
    /// Commands to send.
    pub commands: Vec<Command>,
    /// Answers to requests, to their settling too.
    pub answers: Vec<(RequestId, RedisResult<Answer>)>,
}
