//! Commands that are sent for requests.

use std::time::{Duration, SystemTime};

use redis::{Cmd, FromRedisValue, RedisResult, Value};

use super::request::{Answer, Request};
use super::share::Share;
use crate::commands::{All, Take, Verdict, Verdicts, cmd};

/// A command to send.
#[derive(Clone, Debug)]
pub struct Command {
    pub(super) shares: Vec<Share>,
    /// The request, and the indices of the shares in it. `None` if units go back and nobody waits for the reply.
    pub(super) request: Option<(Request, Vec<usize>)>,
    /// Of a lease, the units that it asks for beyond the cost, and others wait for it; 0 if it gives back what is left.
    pub(super) in_flight: Option<u64>,
    /// As of when units go back.
    pub(super) at: Option<SystemTime>,
    pub(super) how: How,
}

/// How a command takes units.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum How {
    /// All or none, or what it gives back.
    Whole,
    /// Even over the limit, since they were used.
    Force,
    /// It takes none: it looks at one key and one quota.
    Peek,
    /// Of a bucket, also if they are there only after a wait of at most this.
    Ahead(Duration),
}

impl Command {
    pub(super) fn ask(
        shares: Vec<Share>,
        request: &Request,
        indices: Vec<usize>,
        in_flight: Option<u64>,
    ) -> Command {
        let request = Some((request.clone(), indices));
        Command { shares, request, in_flight, at: None, how: How::Whole }
    }

    pub(super) fn back(shares: Vec<Share>, at: SystemTime) -> Command {
        Command { shares, request: None, in_flight: None, at: Some(at), how: How::Whole }
    }

    /// Shows what one quota of a key would decide. Nothing is counted.
    #[must_use]
    pub fn peek(share: Share) -> Command {
        Command { shares: vec![share], request: None, in_flight: None, at: None, how: How::Peek }
    }

    /// Takes units of a bucket that are there within this time.
    pub(crate) fn ahead(share: Share, within: Duration) -> Command {
        Command { how: How::Ahead(within), ..Command::peek(share) }
    }

    /// Gives back units that were taken ahead, unless others stand behind them. The reply tells how many.
    pub(crate) fn not_ahead(share: Share, at: SystemTime) -> Command {
        Command { at: Some(at), ..Command::ahead(share, Duration::ZERO) }
    }

    /// Whether somebody waits for the reply.
    #[must_use]
    pub fn awaits_reply(&self) -> bool {
        self.request.is_some()
    }

    /// Whether it is about a lease, for which others wait.
    #[must_use]
    pub fn is_of_lease(&self) -> bool {
        self.in_flight.is_some()
    }

    /// Whether it settles its request.
    pub(super) fn settles(&self) -> bool {
        self.request.is_some() && (self.how == How::Force || self.at.is_some())
    }

    /// One of its keys, all of which are in one slot.
    #[must_use]
    pub fn first_key(&self) -> &[u8] {
        self.shares.first().map_or(&[], |share| &share.key)
    }

    pub(super) fn size(&self) -> u64 {
        self.in_flight.unwrap_or_default()
    }

    /// The share, if the command for a single key can be used instead of `RL.ALL`. For one unit by one quota its reply says as
    /// much, and it is cheaper.
    fn single(&self) -> Option<&Share> {
        let [share] = &self.shares[..] else { return None };
        let tells_all = share.cost == 1 && share.rules.quotas.len() == 1 && !self.settles();
        (self.size() > 0 || !self.awaits_reply() || tells_all).then_some(share)
    }

    /// The command for redis-rs. Unless it gives back, it decides as of `at`.
    #[must_use]
    pub fn cmd(&self, at: Option<SystemTime>) -> Cmd {
        let at = self.at.or(at);
        if let Some(share) = self.single() {
            let mut take = Take::cost(share.cost + self.size() as i64);
            match self.how {
                How::Ahead(within) if self.at.is_none() => take = take.within(within),
                How::Ahead(_) => take = take.partial(),
                _ if self.awaits_reply() => take = take.partial(),
                _ => {}
            }
            if let Some(at) = at {
                take = take.at(at);
            }
            let (key, quotas) = (&share.key[..], &share.rules.quotas);
            return match self.how {
                How::Peek => cmd::peek(key, quotas, take),
                _ => cmd::by(share.rules.algorithm, key, quotas, take),
            };
        }
        let mut all = self.shares.iter().fold(All::new(), |all, share| {
            all.key(&share.key[..], share.rules.algorithm, &share.rules.quotas, share.cost)
        });
        if self.how == How::Force {
            all = all.force();
        }
        if let Some(at) = at {
            all = all.at(at);
        }
        cmd::all(&all)
    }

    /// A command for a probe: it takes nothing, and needs the same rights.
    #[must_use]
    pub fn at_no_cost(&self) -> Command {
        let shares = self.shares.iter().map(|share| Share { cost: 0, ..share.clone() }).collect();
        let in_flight = self.in_flight.map(|_| 0);
        let how = if self.how == How::Peek { How::Peek } else { How::Whole };
        Command { shares, in_flight, at: None, how, ..self.clone() }
    }

    pub fn read(&self, reply: Value) -> RedisResult<Verdicts> {
        if self.single().is_none() {
            return Ok(Verdicts::from_redis_value(reply)?);
        }
        let row = Verdict::from_redis_value(reply)?;
        let at = row.at.unwrap_or(SystemTime::UNIX_EPOCH);
        Ok(Verdicts { limited: row.limited, retry_after: row.retry_after, at, rows: vec![row] })
    }
}

/// What follows from an event.
#[derive(Debug, Default)]
pub struct Step {
    /// Commands to send, in this order.
    pub commands: Vec<Command>,
    /// Answers to requests, and to their settling.
    pub answers: Vec<(Request, RedisResult<Answer>)>,
}
