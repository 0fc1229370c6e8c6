//! What a request takes of each key.

use std::time::{Duration, SystemTime};

use redis::RedisError;

use super::command::Answer;
use super::key::Key;
use super::share::{Share, longest_wait};
use crate::commands::Verdict;

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
