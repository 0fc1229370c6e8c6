//! The state of a request: what is decided and counted of each of its shares.

use std::time::{Duration, SystemTime};

use redis::RedisError;

use super::command::Answer;
use super::key::Key;
use super::share::{Share, longest_wait};
use crate::commands::Verdict;

/// A request: shares of which all are taken, or none.
#[derive(Debug, Default)]
pub(super) struct Request {
    pub shares: Vec<Noted>,
    pub at: Option<SystemTime>,
    /// The number of shares that are not decided yet.
    pub missing: usize,
    pub error: Option<RedisError>,
    /// Whether all that it took and will take goes back.
    pub gives_back: bool,
    /// The number of replies that are due to commands that settle it.
    pub settling: usize,
    /// What is settled after those replies: indices of shares, and units that were used.
    pub then: Vec<(usize, i64)>,
    /// Whether it is forgotten as soon as all replies are in.
    pub is_left: bool,
}

/// A share, and what is known of it.
#[derive(Debug)]
pub(super) struct Noted {
    pub share: Share,
    pub rows: Option<Vec<Verdict>>,
    /// The units that are counted, each with its time, the newest last.
    pub counted: Vec<(SystemTime, i64)>,
    /// Whether a lease handed them out.
    pub is_leased: bool,
}

impl Noted {
    pub fn units(&self) -> i64 {
        self.counted.iter().map(|(_, units)| units).sum()
    }

    /// Counts this many units less, the newest first. Returns what goes back, as of when it was counted: once for each time, as
    /// a command names a key once.
    pub fn reduce(&mut self, mut units: i64) -> Vec<(SystemTime, Share)> {
        let mut back: Vec<(SystemTime, Share)> = Vec::new();
        while units > 0
            && let Some((at, counted)) = self.counted.pop()
        {
            let part = counted.min(units);
            self.counted.extend((counted > part).then_some((at, counted - part)));
            units -= part;
            match back.last_mut().filter(|(last, _)| *last == at) {
                Some((_, share)) => share.cost -= part,
                None => back.push((at, Share { cost: -part, ..self.share.clone() })),
            }
        }
        back
    }
}

impl Request {
    pub fn new(shares: Vec<Share>) -> Request {
        let missing = shares.len();
        let noted = |share| Noted { share, rows: None, counted: Vec::new(), is_leased: false };
        Request { shares: shares.into_iter().map(noted).collect(), missing, ..Request::default() }
    }

    /// Notes the decision on a share, and the units that are counted as of `at`.
    pub fn note(&mut self, index: usize, rows: Vec<Verdict>, units: i64, at: Option<SystemTime>) {
        let noted = &mut self.shares[index];
        noted.rows = Some(rows);
        noted.counted.extend(at.filter(|_| units != 0).map(|at| (at, units)));
        self.at = self.at.or(at);
        self.missing -= 1;
    }

    /// Serves a share from the lease of its key, if that has enough.
    pub fn is_served(&mut self, now: Duration, index: usize, key: &mut Key) -> bool {
        key.serves(now, self.shares[index].share.cost) && self.serve(now, index, key)
    }

    pub fn serve(&mut self, now: Duration, index: usize, key: &mut Key) -> bool {
        let noted = &mut self.shares[index];
        let Some(lease) = &mut key.lease else { return false };
        let verdict = lease.serve(now, noted.share.cost);
        noted.is_leased = true;
        self.note(index, vec![verdict], verdict.taken.unwrap_or_default(), verdict.at);
        true
    }

    /// The answer by the shares that are decided. A refused request costs nothing, and its figures are those without it.
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
