//! What a command does to a key, wherever that is stored: on a server, or in the memory of a process.
//!
//! The store opens the key, and lends it as a [`Key`]. A function below decides, changes the limiter, and returns what is still
//! to be done: [`Pending`]. The store sends the effect to copies, if there are any, then deletes the key if it was emptied; else
//! it stores a fresh limiter that has changed, and sets an expiry that moved. Copies learn of a deletion after it.

use super::algorithm::{Algorithm, WindowUsage};
use super::decision::{Decision, Mismatch, Mode, Request, Verdict};
use super::effect::{Effect, Moved, Pending};
use super::lifetime::{MoveBack, Outcome, TimeSource};
use super::quota::{Cost, Quota, QuotaList, Time, UnixMs};
use super::state::Limiter;

/// An open key.
pub trait Key {
    /// The limiter in it; `None` if it is empty.
    fn limiter(&self) -> Option<&Limiter>;

    /// The limiter in it, mutably; `None` if it is empty.
    fn limiter_mut(&mut self) -> Option<&mut Limiter>;

    /// When it expires by the store's clock; `None` if it is empty or never expires.
    fn expires_at(&self) -> Option<UnixMs>;

    /// The limiter in it. If it is empty, a new one of `algorithm`, placed in `fresh`.
    #[inline(always)]
    fn limiter_or<'s>(&'s mut self, fresh: &'s mut Option<Limiter>, algorithm: Algorithm) -> &'s mut Limiter {
        match self.limiter_mut() {
            Some(limiter) => limiter,
            None => fresh.get_or_insert_with(|| Limiter::new(algorithm)),
        }
    }
}

/// A key that is not open counts as empty.
impl<K: Key> Key for Option<K> {
    #[inline(always)]
    fn limiter(&self) -> Option<&Limiter> {
        self.as_ref()?.limiter()
    }

    #[inline(always)]
    fn limiter_mut(&mut self) -> Option<&mut Limiter> {
        self.as_mut()?.limiter_mut()
    }

    fn expires_at(&self) -> Option<UnixMs> {
        self.as_ref()?.expires_at()
    }
}

/// What became of a request about one key.
#[derive(Clone, Copy, Debug)]
pub struct Answer {
    /// The verdict on the state alone. To reply, use [`Answer::reply`].
    pub verdict: Verdict,
    /// What it changed.
    pub outcome: Outcome,
    /// What is still to be done.
    pub pending: Pending,
    /// What the reply to PARTIAL and WITHIN tells besides the verdict.
    pub granted: Option<Granted>,
    /// An upper bound on the waits in the reply.
    longest_wait_ms: u64,
}

impl Answer {
    /// The verdict to reply with: no wait is longer than the key lives.
    #[inline(always)]
    pub fn reply(&self) -> Verdict {
        self.verdict.at_most(self.longest_wait_ms)
    }
}

/// The units that PARTIAL or WITHIN granted.
#[derive(Clone, Copy, Debug)]
pub struct Granted {
    /// How many; negative if they were given back.
    pub units: Cost,
    /// The time to name in AT when they are given back: that at which they were counted or, after a wait, will be there. If the key
    /// is ahead of the clock, its own newest time.
    pub at: UnixMs,
}

impl Request<'_> {
    /// Decides, and counts the units or gives them back. If the key is empty, in a `fresh` limiter.
    ///
    /// # Errors
    ///
    /// The key is counted by another algorithm, or cannot hold the windows. An error changes nothing.
    #[inline(always)]
    pub fn run(self, key: &mut impl Key, fresh: &mut Option<Limiter>) -> Result<Answer, Mismatch> {
        let Request { algorithm, cost, mode, time, .. } = self;
        let limiter = key.limiter_or(fresh, algorithm);
        let Decision { verdict, outcome } = match mode {
            Mode::Partial => limiter.decide_and_commit_part(self)?,
            Mode::Within(most) if cost.to_take() > 0 => limiter.decide_and_commit_within(self, most.get())?,
            Mode::AllOrNothing | Mode::Force | Mode::Within(_) => limiter.decide_and_commit(self)?,
        };
        let pending = pending(key, fresh.as_mut(), time, &outcome);
        let longest_wait_ms = longest_wait_ms(key, time, &outcome, pending.moved.expires);
        let granted = match mode {
            Mode::AllOrNothing | Mode::Force => None,
            Mode::Partial | Mode::Within(_) => {
                let mut at = counted_at(key.limiter().or(fresh.as_ref()), self, &outcome);
                if let (false, Some(wait_ms)) = (verdict.limited, verdict.retry_after_ms) {
                    at = at.max(time.as_of().plus_up_to_max(wait_ms));
                }
                Some(Granted { units: cost.at_most(outcome.change.units), at })
            }
        };
        Ok(Answer { verdict, outcome, pending, granted, longest_wait_ms })
    }
}

/// Decides on a request that will not be counted. A missing key counts nothing, whatever the algorithm.
///
/// # Errors
///
/// The key cannot hold the windows.
#[inline]
pub fn peek(key: &impl Key, quotas: &[Quota], cost: Cost, time: Time) -> Result<Verdict, Mismatch> {
    static NOTHING: Limiter = Limiter::NOTHING;
    let limiter = key.limiter().unwrap_or(&NOTHING);
    let algorithm = limiter.algorithm();
    let lengths;
    let quotas =
        match algorithm != Algorithm::Fixed && quotas.iter().any(|quota| quota.window().is_of_calendar()) {
            true => {
                lengths = in_lengths(quotas)?;
                &lengths
            }
            false => quotas,
        };
    let request = Request { algorithm, quotas, cost, mode: Mode::AllOrNothing, time };
    let Decision { verdict, outcome } = if time.at.is_none() && limiter.is_ahead_of(time.clock) {
        peek_moved_back(limiter, request)?
    } else {
        limiter.peek(request)?
    };
    Ok(verdict.at_most(longest_wait_ms(key, time, &outcome, None)))
}

/// The quotas with weeks of seven days, as all algorithms but RL.FIXED have them.
#[cold]
fn in_lengths(quotas: &[Quota]) -> Result<QuotaList, Mismatch> {
    let mut lengths = QuotaList::new();
    for quota in quotas {
        let window = quota.window().length().ok_or(Mismatch::Months)?;
        if lengths.iter().any(|other: &Quota| other.window() == window) {
            return Err(Mismatch::SameWindow);
        }
        lengths.extend(Quota::new(quota.limit(), window));
    }
    Ok(lengths)
}

/// As a request that counts would first move back a key ahead of the clock.
#[cold]
#[inline(never)]
fn peek_moved_back(limiter: &Limiter, request: Request) -> Result<Decision, Mismatch> {
    let (limiter, clock) = limiter.as_moved_back(request.time.clock);
    limiter.peek(Request { time: Time { clock, at: None }, ..request })
}

/// What RL.INFO shows of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Info {
    /// How it counts.
    pub algorithm: Algorithm,
    /// The windows that can still count, shortest first.
    pub windows: Vec<WindowUsage>,
    /// Of a log, the number of distinct timestamps.
    pub entries: Option<u64>,
}

/// Returns what RL.INFO shows of a key; `None` if it is empty.
pub fn info(key: &impl Key, clock: UnixMs) -> Option<Info> {
    let limiter = key.limiter()?;
    let longest_wait_ms = match limiter.source() {
        TimeSource::Clock => u64::MAX,
        TimeSource::At | TimeSource::Unknown => ms_until(key.expires_at(), clock),
    };
    let (limiter, now) = limiter.as_moved_back(clock);
    let mut windows = limiter.windows(now);
    for window in &mut windows {
        window.reset_after_ms = window.reset_after_ms.min(longest_wait_ms);
    }
    Some(Info { algorithm: limiter.algorithm(), windows, entries: limiter.entries(now) })
}

/// Does to a key what a request did to the key of which it is a copy.
///
/// # Errors
///
/// The key is counted by another algorithm, or cannot hold the windows. An error changes nothing.
#[inline(always)]
pub fn apply(effect: &Effect, key: &mut impl Key, fresh: &mut Option<Limiter>) -> Result<Pending, Mismatch> {
    let is_new = key.limiter().is_none();
    match effect {
        Effect::Recorded(recorded) => recorded.apply(key.limiter_or(fresh, recorded.algorithm), is_new),
        Effect::Moved(moved) => Ok(match key.limiter_mut() {
            Some(limiter) => {
                if let Some(to) = moved.back {
                    limiter.move_back(to);
                }
                Pending { moved: *moved, ..Pending::default() }
            }
            None => Pending::default(),
        }),
        Effect::Deleted => Ok(Pending { changed: !is_new, emptied: !is_new, ..Pending::default() }),
    }
}

/// What is still to be done after a request that was decided, in an open key or, if that is empty, in the `fresh` limiter.
#[inline(always)]
pub(super) fn pending(
    key: &mut impl Key,
    fresh: Option<&mut Limiter>,
    time: Time,
    outcome: &Outcome,
) -> Pending {
    let may_move = !outcome.emptied && outcome.may_move_expiry(time);
    Pending {
        changed: outcome.changed(),
        emptied: outcome.emptied,
        moved: Moved {
            back: outcome.own_time.moved_back.map(|most| MoveBack { clock: time.clock, most }),
            expires: if may_move { new_expiry(key, fresh, time, *outcome) } else { None },
        },
    }
}

/// The time that the expiry moves to; `None` if it does not.
#[cold]
#[inline(never)]
fn new_expiry(
    key: &mut impl Key,
    fresh: Option<&mut Limiter>,
    time: Time,
    outcome: Outcome,
) -> Option<UnixMs> {
    let current = key.expires_at();
    let limiter = key.limiter_mut().or(fresh)?;
    limiter.set_source(outcome.source_after(time));
    outcome.expiry(time, current, limiter.lifetime_ms(time.as_of()))
}

/// The time that units were counted at: in a key ahead of the clock, its own newest time.
#[inline(always)]
pub(super) fn counted_at(limiter: Option<&Limiter>, request: Request, outcome: &Outcome) -> UnixMs {
    let Request { quotas, cost, time, .. } = request;
    match limiter {
        Some(limiter) if outcome.changed() && cost.to_take() > 0 && outcome.own_time.ahead => {
            limiter.newest_in(quotas).max(time.as_of())
        }
        _ => time.as_of(),
    }
}

/// An upper bound on every wait, in milliseconds: the key's time to live if it may expire before a wait is over,
/// `u64::MAX` otherwise. A request with AT is not bounded, since its time is not that of the store's clock. If the
/// expiry has `moved`, that is the new one.
#[inline(always)]
pub(super) fn longest_wait_ms(key: &impl Key, time: Time, outcome: &Outcome, moved: Option<UnixMs>) -> u64 {
    if time.at.is_none() && outcome.may_expire_early() {
        ms_until(moved.or_else(|| key.expires_at()), time.clock)
    } else {
        u64::MAX
    }
}

/// Milliseconds until a key has expired by the store's clock; `u64::MAX` if it never does.
#[cold]
#[inline(never)]
fn ms_until(expires_at: Option<UnixMs>, clock: UnixMs) -> u64 {
    // It is still served in the millisecond it expires at.
    expires_at.map_or(u64::MAX, |end| end.since(clock) + 1)
}
