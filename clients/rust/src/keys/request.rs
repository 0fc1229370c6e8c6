//! What is asked, what is sent for it, and what is answered.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use redis::{Cmd, FromRedisValue, RedisError, RedisResult, Value};

use super::key::Key;
use crate::{Algorithm, All, Decision, Quota, Take, Verdict, cmd};

/// How a key is counted, and how many units of it are leased.
#[derive(Debug)]
pub struct Rules {
    pub(crate) algorithm: Algorithm,
    pub(crate) quotas: Vec<Quota>,
    smallest_limit: u64,
    /// How long a lease lasts.
    pub(super) lease: Duration,
    /// The largest lease.
    pub(crate) units: u64,
    /// Algorithm and quotas: a key is remembered by them and its name.
    pub(super) tag: Vec<u8>,
}

impl Rules {
    /// Leases of at most `units` last for `lease`, or for a twentieth of the shortest window if that is less.
    #[must_use]
    pub fn new(algorithm: Algorithm, quotas: &[Quota], lease: Duration, units: u64) -> Rules {
        let longest = quotas.iter().map(|quota| quota.window / 20).min().unwrap_or_default();
        let words = quotas.iter().map(|quota| format!("{algorithm:?}{quota}")).collect::<Vec<_>>();
        Rules {
            algorithm,
            quotas: quotas.to_vec(),
            smallest_limit: quotas.iter().map(|quota| quota.limit).min().unwrap_or_default(),
            lease: Duration::from_millis(lease.min(longest).as_millis() as u64),
            units,
            tag: [words.join(","), " ".into()].concat().into_bytes(),
        }
    }

    /// Whether no wait helps a request of this cost.
    pub(super) fn is_hopeless(&self, cost: i64) -> bool {
        cost > 0 && cost.unsigned_abs() > self.smallest_limit
    }
}

/// What a request asks of one key.
#[derive(Clone, Debug)]
pub struct Share {
    /// The key.
    pub key: Arc<[u8]>,
    /// How it is counted.
    pub rules: Arc<Rules>,
    /// Units.
    pub cost: i64,
}

/// Names a request of this process.
pub type RequestId = u64;

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

/// A request: shares that are taken together, all or nothing.
#[derive(Debug)]
pub(super) struct Request {
    pub shares: Vec<Noted>,
    pub at: Option<SystemTime>,
    /// Shares that are not answered yet.
    pub missing: usize,
    pub error: Option<RedisError>,
    /// Whether what it took goes back, and what comes.
    pub gives_back: bool,
    /// Replies that are to come of its settling, and what is to be settled after that.
    pub settling: usize,
    pub then: Vec<(usize, i64)>,
    /// Whether nobody settles it any more.
    pub is_left: bool,
}

/// What is noted of one share of a request.
#[derive(Debug)]
pub(super) struct Noted {
    pub share: Share,
    pub rows: Option<Vec<Verdict>>,
    /// The units that are counted, by when they were, the newest last.
    pub counted: Vec<(SystemTime, i64)>,
    /// Whether they are of the lease that was counted then.
    pub is_leased: bool,
}

impl Noted {
    pub fn units(&self) -> i64 {
        self.counted.iter().map(|(_, units)| units).sum()
    }
}

impl Request {
    pub fn new(shares: Vec<Share>) -> Request {
        let missing = shares.len();
        let noted = |share| Noted { share, rows: None, counted: Vec::new(), is_leased: false };
        let shares = shares.into_iter().map(noted).collect();
        Request {
            shares,
            at: None,
            missing,
            error: None,
            gives_back: false,
            settling: 0,
            then: Vec::new(),
            is_left: false,
        }
    }

    /// A share is answered, and so many units of it are counted.
    pub fn note(&mut self, place: usize, rows: Vec<Verdict>, units: i64, at: Option<SystemTime>) {
        let noted = &mut self.shares[place];
        noted.rows = Some(rows);
        noted.counted.extend(at.filter(|_| units != 0).map(|at| (at, units)));
        self.at = self.at.or(at);
        self.missing -= 1;
    }

    /// Whether the lease of the key serves a share.
    pub fn is_served(&mut self, now: Duration, place: usize, key: &mut Key) -> bool {
        key.serves(now, self.shares[place].share.cost) && self.serve(now, place, key)
    }

    pub fn serve(&mut self, now: Duration, place: usize, key: &mut Key) -> bool {
        let noted = &mut self.shares[place];
        let Some(lease) = &mut key.lease else { return false };
        let verdict = lease.serve(now, noted.share.cost);
        noted.is_leased = true;
        self.note(place, vec![verdict], verdict.taken.unwrap_or_default(), verdict.at);
        true
    }

    /// Of the shares that are answered. A refused request costs nothing: the figures are those without it.
    pub fn answer(&self) -> Answer {
        let waits: Vec<_> =
            self.shares.iter().filter_map(|noted| longest_wait(noted.rows.as_deref()?)).collect();
        let limited = !waits.is_empty();
        let rows = |noted: &Noted| {
            let back = if limited { noted.units().max(0).unsigned_abs() } else { 0 };
            let row = |row: &Verdict| Verdict { remaining: row.remaining + back, ..*row };
            noted.rows.as_ref().map(|rows| rows.iter().map(row).collect())
        };
        let retry_after =
            waits.into_iter().collect::<Option<Vec<_>>>().and_then(|waits| waits.into_iter().max());
        let taken = self.shares.iter().map(|noted| if limited { 0 } else { noted.units() }).collect();
        Answer { limited, retry_after, at: self.at, rows: self.shares.iter().map(rows).collect(), taken }
    }
}

/// Of rows that refuse; some none if no wait helps, none if none refuses.
pub(super) fn longest_wait(rows: &[Verdict]) -> Option<Option<Duration>> {
    let waits = rows.iter().filter(|row| row.limited).map(|row| row.retry_after.unwrap_or(Duration::MAX));
    waits.max().map(|wait| Some(wait).filter(|wait| *wait < Duration::MAX))
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

/// The slot of a key on a cluster: the CRC16 of its hash tag, or of all of it.
#[must_use]
pub fn slot(key: &[u8]) -> u16 {
    let tag = key.iter().position(|byte| *byte == b'{').and_then(|start| {
        let rest = &key[start + 1..];
        rest.iter().position(|byte| *byte == b'}').filter(|length| *length > 0).map(|length| &rest[..length])
    });
    let crc = tag.unwrap_or(key).iter().fold(0u16, |crc, byte| {
        (0..8).fold(
            crc ^ u16::from(*byte) << 8,
            |crc, _| if crc & 0x8000 == 0 { crc << 1 } else { crc << 1 ^ 0x1021 },
        )
    });
    crc % 16_384
}
