//! A request: what is decided and counted of each of its shares.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, SystemTime};

use redis::{RedisError, RedisResult};
use tokio::sync::oneshot;

use super::lease::Lease;
use super::share::{Share, longest_wait};
use crate::commands::{Verdict, Verdicts};
use crate::locked;

/// The decision on a request.
#[derive(Clone, Debug, PartialEq)]
pub struct Answer {
    /// Whether any share refuses.
    pub limited: bool,
    /// The longest wait of the shares that refuse. `None` if it is allowed, and if no wait helps.
    pub retry_after: Option<Duration>,
    /// As of when it was decided. The first reply of several counts.
    pub at: Option<SystemTime>,
    /// For each share the figures of its quotas, or of the tightest if a lease served it. `None` if they are not known.
    pub rows: Vec<Option<Vec<Verdict>>>,
    /// For each share the units that are counted.
    pub taken: Vec<i64>,
}

impl Answer {
    /// The verdict that the command for a single key would reply.
    pub(crate) fn verdict(&self) -> Verdict {
        let rows = self.rows.iter().flatten().flatten().copied().collect();
        let at = self.at.unwrap_or(SystemTime::UNIX_EPOCH);
        let all = Verdicts { limited: self.limited, retry_after: self.retry_after, at, rows };
        let tightest = all.tightest().expect("a row for each quota");
        Verdict { taken: Some(self.taken[0]), at: self.at, ..tightest }
    }
}

/// Shares of which all are taken, or none. Clones are one request.
#[derive(Clone, Debug)]
pub struct Request(Arc<Mutex<State>>);

impl Request {
    #[must_use]
    pub fn new(shares: Vec<Share>) -> Request {
        let missing = shares.len();
        let noted = |share| Noted { share, rows: None, counted: Vec::new(), is_leased: false };
        let shares = shares.into_iter().map(noted).collect();
        Request(Arc::new(Mutex::new(State { shares, missing, ..State::default() })))
    }

    /// Nobody keeps this while another request is asked for it.
    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        locked(&self.0)
    }

    pub(crate) fn gives_back(&self) -> bool {
        self.state().gives_back
    }

    /// Its next answer.
    pub(crate) fn awaited(&self) -> oneshot::Receiver<RedisResult<Answer>> {
        let (sender, receiver) = oneshot::channel();
        self.state().told.push(sender);
        receiver
    }

    pub(crate) fn tell(&self, answer: &RedisResult<Answer>) {
        let told = std::mem::take(&mut self.state().told);
        told.into_iter().for_each(|sender| _ = sender.send(answer.clone()));
    }
}

impl PartialEq for Request {
    fn eq(&self, other: &Request) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

#[derive(Debug, Default)]
pub(super) struct State {
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
    /// Those who wait for its next answer.
    told: Vec<oneshot::Sender<RedisResult<Answer>>>,
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

impl State {
    /// Notes the decision on a share, and the units that are counted as of `at`.
    pub fn note(&mut self, index: usize, rows: Vec<Verdict>, units: i64, at: Option<SystemTime>) {
        let noted = &mut self.shares[index];
        noted.rows = Some(rows);
        noted.counted.extend(at.filter(|_| units != 0).map(|at| (at, units)));
        self.at = self.at.or(at);
        self.missing -= 1;
    }

    /// Serves a share from the lease of its key.
    pub fn serve(&mut self, now: Duration, index: usize, lease: &mut Lease) -> bool {
        let noted = &mut self.shares[index];
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
