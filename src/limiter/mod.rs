//! The limiters: quotas, a cost and a time go in, a verdict comes out.
//!
//! Pure: no clock, no server, no unsafe code. `W` is a window's length and `now` the time, both
//! in milliseconds.

pub mod counters;
mod fixed;
pub mod log;
mod run;
mod sliding;
pub mod varint;

use std::ffi::CStr;
use std::num::NonZeroU64;
use std::ops::Add;

use arrayvec::ArrayVec;
use counters::{Counters, Method};
use log::Log;

/// The largest limit, cost and time: 2^53 - 1, exact in every client language.
pub const MAX_SAFE_INTEGER: u64 = (1 << 53) - 1;

/// Counts saturate here: 2^63 - 1.
pub const MAX_COUNT: u64 = i64::MAX as u64;

/// Tiers in a call, and windows in a key.
pub const MAX_TIERS: usize = 8;

/// A time in milliseconds since the Unix epoch, at most [`MAX_SAFE_INTEGER`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct UnixMs(pub u64);

impl UnixMs {
    /// The last time that there is.
    pub const MAX: UnixMs = UnixMs(MAX_SAFE_INTEGER);

    /// Milliseconds from `earlier` to this time; 0 if it is not earlier.
    #[inline(always)]
    pub fn since(self, earlier: UnixMs) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

impl Add<WindowMs> for UnixMs {
    type Output = UnixMs;

    #[inline]
    fn add(self, window: WindowMs) -> UnixMs {
        UnixMs(self.0 + window.get())
    }
}

/// The length of a window: 1 ms to 3650 days.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct WindowMs(NonZeroU64);

impl WindowMs {
    /// 1 ms.
    pub const MIN: WindowMs = WindowMs(NonZeroU64::MIN);

    /// 3650 days.
    pub const MAX: WindowMs = WindowMs(NonZeroU64::new(3650 * 24 * 60 * 60 * 1000).expect("not zero"));

    /// A window of `ms` milliseconds; `None` if that is 0 or more than [`WindowMs::MAX`].
    #[inline]
    pub fn new(ms: u64) -> Option<WindowMs> {
        NonZeroU64::new(ms).map(WindowMs).filter(|window| *window <= WindowMs::MAX)
    }

    /// In milliseconds.
    #[inline]
    pub fn get(self) -> u64 {
        self.0.get()
    }
}

/// What one tier allows: `limit` units, at most [`MAX_SAFE_INTEGER`], in each window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quota {
    /// Units.
    pub limit: u64,
    /// The length of the window.
    pub window: WindowMs,
}

/// Units that a request takes, or gives back if negative: within ±[`MAX_SAFE_INTEGER`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cost(pub i64);

impl Cost {
    /// Units to take; 0 for a cost that takes none.
    #[inline]
    pub fn taken(self) -> u64 {
        u64::try_from(self.0).unwrap_or(0)
    }
}

/// How long until a request fits. `Never` is the longest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Wait {
    /// Milliseconds.
    Ms(u64),
    /// The request costs more than the limit.
    Never,
}

/// What a caller is told, about one tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// Whether the request was over a limit.
    pub limited: bool,
    /// The limit of the tier that the other figures speak of.
    pub limit: u64,
    /// Units left in it.
    pub remaining: u64,
    /// Milliseconds after which the same request is allowed; `None` when it was, or never is.
    pub retry_after_ms: Option<u64>,
    /// Milliseconds until the whole limit is available again.
    pub reset_after_ms: u64,
}

impl Verdict {
    /// The same verdict where the key itself goes `ms` milliseconds from now.
    #[inline(always)]
    pub fn within(self, ms: u64) -> Verdict {
        Verdict {
            retry_after_ms: self.retry_after_ms.map(|wait| wait.min(ms)),
            reset_after_ms: self.reset_after_ms.min(ms),
            ..self
        }
    }
}

/// How a window is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Algorithm {
    /// One count in each window, aligned to the Unix epoch.
    Fixed,
    /// This window's count, plus the last one's by how much of it still overlaps.
    Sliding,
    /// Each unit's own time.
    Log,
}

impl Algorithm {
    /// The command that counts by it.
    pub fn command(self) -> &'static CStr {
        match self {
            Algorithm::Fixed => c"RL.FIXED",
            Algorithm::Sliding => c"RL.SLIDING",
            Algorithm::Log => c"RL.LOG",
        }
    }
}

/// What an algorithm remembers of one key.
trait Memory {
    /// What counts in one window at one time: found once, asked several times.
    type Standing;

    /// What counts in a window of this length at `now`.
    fn standing(&self, window: WindowMs, now: UnixMs) -> Self::Standing;

    /// Units that count.
    fn used(&self, standing: &Self::Standing) -> u64;

    /// Milliseconds until at most `room` units count, where more do now.
    fn wait_beyond(&self, standing: &Self::Standing, room: u64) -> u64;

    /// See [`Limiter::is_ahead_of`].
    fn is_ahead_of(&self, now: UnixMs) -> bool;

    /// See [`Limiter::is_settled`].
    fn is_settled(&self) -> bool;

    /// Whether a wait in `quota` can be longer than what was counted is kept.
    fn keeps_too_little_for(&self, quota: &Quota) -> bool;

    /// The exact time until `units` more fit `quota`, if nothing else is counted: the retry after
    /// of a request of that cost, and for the whole limit the reset after.
    #[inline(always)]
    fn wait_for(&self, standing: &Self::Standing, units: u64, quota: Quota) -> Wait {
        match quota.limit.checked_sub(units) {
            None => Wait::Never,
            Some(room) if units == 0 || self.used(standing) <= room => Wait::Ms(0),
            Some(room) => Wait::Ms(self.wait_beyond(standing, room)),
        }
    }

    #[inline(always)]
    fn tier(&self, quota: &Quota, now: UnixMs) -> Tier<Self::Standing> {
        Tier { quota: *quota, standing: self.standing(quota.window, now) }
    }
}

/// A memory that is to be changed. Each change brings the standing of its tiers up to date.
trait Recording: Memory {
    /// Counts `units`, more than none, in all tiers; `over` tells that the request was refused and
    /// is counted all the same. Returns how many were counted, as counts do not grow for ever. On
    /// an error nothing changed.
    fn add(
        &mut self,
        tiers: &mut [Tier<Self::Standing>],
        units: u64,
        now: UnixMs,
        over: bool,
    ) -> Result<u64, TooManyWindows>;

    /// Takes away up to `units` in all tiers, the most recently counted first. Returns how many
    /// went: of the tier that had the most.
    fn give_back(&mut self, tiers: &mut [Tier<Self::Standing>], units: u64, now: UnixMs) -> u64;

    /// See [`Limiter::is_empty`].
    fn is_empty(&self) -> bool;
}

/// A quota and what counts in its window.
struct Tier<S> {
    quota: Quota,
    standing: S,
}

impl<S> Tier<S> {
    #[inline(always)]
    fn refuses(&self, memory: &impl Memory<Standing = S>, cost: Cost) -> bool {
        let units = cost.taken();
        units > 0 && memory.used(&self.standing) + units > self.quota.limit
    }

    #[inline(always)]
    fn remaining(&self, memory: &impl Memory<Standing = S>) -> u64 {
        self.quota.limit.saturating_sub(memory.used(&self.standing))
    }

    /// How long until `units` more fit: 0 ms if they do now.
    #[inline(always)]
    fn wait_for(&self, memory: &impl Memory<Standing = S>, units: u64) -> Wait {
        memory.wait_for(&self.standing, units, self.quota)
    }

    #[inline(always)]
    fn verdict(&self, memory: &impl Memory<Standing = S>, cost: Cost, limited: bool) -> Verdict {
        let ms = |wait| match wait {
            Wait::Ms(ms) => Some(ms),
            Wait::Never => None,
        };
        let Quota { limit, .. } = self.quota;
        Verdict {
            limited,
            limit,
            remaining: self.remaining(memory),
            retry_after_ms: if limited { ms(self.wait_for(memory, cost.taken())) } else { None },
            reset_after_ms: ms(self.wait_for(memory, limit)).unwrap_or(0),
        }
    }
}

/// What to tell about a request: of the tiers that refuse it the one with the longest wait, or,
/// if it was not `limited`, the tier with the fewest units left; the earlier named on a tie.
#[inline(always)]
fn verdict<M: Memory>(memory: &M, tiers: &[Tier<M::Standing>], cost: Cost, limited: bool) -> Verdict {
    let [first, rest @ ..] = tiers else { unreachable!("a request names at least one tier") };
    let mut shown = first;
    for other in rest {
        let more_telling = if limited {
            other.wait_for(memory, cost.taken()) > shown.wait_for(memory, cost.taken())
        } else {
            other.remaining(memory) < shown.remaining(memory)
        };
        if more_telling {
            shown = other;
        }
    }
    shown.verdict(memory, cost, limited)
}

/// See [`Limiter::take`].
#[inline(always)]
fn take<M: Recording>(
    memory: &mut M,
    quotas: &[Quota],
    cost: Cost,
    force: bool,
    now: UnixMs,
) -> Result<Taken, TooManyWindows> {
    match quotas {
        // Nearly every request: the walks over the tiers fall away.
        [quota] => take_from(memory, &mut [memory.tier(quota, now)], cost, force, now),
        _ => take_from_all(memory, quotas, cost, force, now),
    }
}

#[inline(never)]
fn take_from_all<M: Recording>(
    memory: &mut M,
    quotas: &[Quota],
    cost: Cost,
    force: bool,
    now: UnixMs,
) -> Result<Taken, TooManyWindows> {
    let mut tiers: ArrayVec<_, MAX_TIERS> = quotas.iter().map(|quota| memory.tier(quota, now)).collect();
    take_from(memory, &mut tiers, cost, force, now)
}

#[inline(always)]
fn take_from<M: Recording>(
    memory: &mut M,
    tiers: &mut [Tier<M::Standing>],
    cost: Cost,
    force: bool,
    now: UnixMs,
) -> Result<Taken, TooManyWindows> {
    let limited = tiers.iter().any(|tier| tier.refuses(memory, cost));
    let units = match cost.0 {
        0 => 0,
        1.. if limited && !force => 0,
        1.. => memory.add(tiers, cost.taken(), now, limited)?,
        ..0 => memory.give_back(tiers, cost.0.unsigned_abs(), now),
    };
    let changed = units > 0;
    Ok(Taken {
        units,
        emptied: changed && memory.is_empty(),
        settled: !changed || memory.is_settled(),
        outlook: outlook(memory, tiers, now),
        verdict: verdict(memory, tiers, cost, limited),
    })
}

/// See [`Limiter::peek`].
#[inline(always)]
fn peek<M: Memory>(memory: &M, quotas: &[Quota], cost: Cost, now: UnixMs) -> (Verdict, Outlook) {
    let look = |tiers: &[Tier<M::Standing>]| {
        let limited = tiers.iter().any(|tier| tier.refuses(memory, cost));
        (verdict(memory, tiers, cost, limited), outlook(memory, tiers, now))
    };
    match quotas {
        [quota] => look(&[memory.tier(quota, now)]),
        _ => look(&quotas.iter().map(|quota| memory.tier(quota, now)).collect::<ArrayVec<_, MAX_TIERS>>()),
    }
}

#[inline(always)]
fn outlook<M: Memory>(memory: &M, tiers: &[Tier<M::Standing>], now: UnixMs) -> Outlook {
    if memory.is_ahead_of(now) {
        Outlook::Ahead
    } else if !memory.is_settled() || tiers.iter().any(|tier| memory.keeps_too_little_for(&tier.quota)) {
        Outlook::KeepsTooLittle
    } else {
        Outlook::Plain
    }
}

/// What came of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Taken {
    /// What its caller is told.
    pub verdict: Verdict,
    /// Units counted, or given back: of the tier that had the most.
    pub units: u64,
    /// Whether that left nothing.
    pub emptied: bool,
    /// Whether the key's time to live is known to be right: see [`Limiter::is_settled`].
    pub settled: bool,
    /// How what was counted stands to the time.
    pub outlook: Outlook,
}

impl Taken {
    /// Whether anything was counted or given back.
    #[inline(always)]
    pub fn changed(&self) -> bool {
        self.units > 0
    }
}

/// How a key stands to the time that it was asked at: nearly always `Plain`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outlook {
    /// Its waits can be relied on as they are.
    Plain,
    /// See [`Limiter::is_ahead_of`].
    Ahead,
    /// A wait can be longer than what was counted is kept, or the key is not known to live so long.
    KeepsTooLittle,
}

fn used<M: Memory>(memory: &M, window: WindowMs, now: UnixMs) -> u64 {
    memory.used(&memory.standing(window, now))
}

/// One window of a limiter, as RL.INFO shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowState {
    /// Its length.
    pub window: WindowMs,
    /// Units that count now.
    pub used: u64,
    /// Milliseconds until none do.
    pub reset_after_ms: u64,
}

/// How long a limiter can matter.
///
/// Up to its last millisecond, so that a clock that steps back, or a replica with a slower one,
/// frees nothing early. But a limiter further ahead of the time than its own whole life and a
/// slack would stay too long: it matters for that much, and heals by going then.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Lifetime {
    /// Milliseconds.
    pub ms: u64,
    /// Whether it goes before its last millisecond.
    pub heals: bool,
}

impl Lifetime {
    const NONE: Lifetime = Lifetime { ms: 0, heals: false };

    /// From `now` on, of what was counted at `own` and matters until it `dies`; `most_ms` is the
    /// whole life that it can have, and the slack.
    fn of(own: UnixMs, dies: UnixMs, now: UnixMs, most_ms: u64) -> Lifetime {
        let heals = own.since(now) > most_ms;
        Lifetime { ms: if heals { most_ms } else { dies.since(now) }, heals }
    }
}

/// A call names more windows than fit into the key beside those that still count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooManyWindows;

/// Puts pieces of memory elsewhere, with the same content: what active defrag does.
pub trait Mover {
    /// Moves what is boxed, if that is of use.
    fn move_box<T>(&mut self, piece: &mut Box<T>);
    /// Moves what a vector holds, if that is of use.
    fn move_vec<T>(&mut self, piece: &mut Vec<T>);
}

/// All that is remembered of one key. 16 bytes: there may be millions of them.
#[derive(Clone, Debug)]
pub enum Limiter {
    /// RL.FIXED or RL.SLIDING.
    Counters(Counters),
    /// RL.LOG.
    Log(Box<Log>),
}

const _: () = assert!(size_of::<Limiter>() == 16);

impl Limiter {
    /// One that has counted nothing yet.
    #[inline]
    pub fn new(algorithm: Algorithm) -> Limiter {
        match algorithm {
            Algorithm::Fixed => Limiter::Counters(Counters::new(Method::Fixed)),
            Algorithm::Sliding => Limiter::Counters(Counters::new(Method::Sliding)),
            Algorithm::Log => Limiter::Log(Box::default()),
        }
    }

    /// The algorithm it counts by.
    #[inline]
    pub fn algorithm(&self) -> Algorithm {
        match self {
            Limiter::Counters(counters) => counters.method().into(),
            Limiter::Log(_) => Algorithm::Log,
        }
    }

    /// Units that count in a window of this length at `now`.
    pub fn used(&self, window: WindowMs, now: UnixMs) -> u64 {
        match self {
            Limiter::Counters(counters) => used(&counters.to_read(), window, now),
            Limiter::Log(log) => used(log.as_ref(), window, now),
        }
    }

    /// The exact time from `now` until `units` more fit `quota`, if nothing else is counted.
    pub fn wait_for(&self, units: u64, quota: Quota, now: UnixMs) -> Wait {
        match self {
            Limiter::Counters(counters) => {
                counters.to_read().tier(&quota, now).wait_for(&counters.to_read(), units)
            }
            Limiter::Log(log) => log.tier(&quota, now).wait_for(log.as_ref(), units),
        }
    }

    /// Decides on a request, and counts it or gives back, in all tiers or in none: as one that is
    /// limited by `algorithm`; `None` if this counts by another.
    ///
    /// `force` counts the units even if the request is over a limit. On an error nothing has changed.
    #[inline(always)]
    pub fn take(
        &mut self,
        algorithm: Algorithm,
        quotas: &[Quota],
        cost: Cost,
        force: bool,
        now: UnixMs,
    ) -> Option<Result<Taken, TooManyWindows>> {
        match (algorithm, self) {
            (Algorithm::Fixed, Limiter::Counters(counters)) => {
                let mut memory = counters.by(Method::Fixed)?;
                Some(take(&mut memory, quotas, cost, force, now))
            }
            (Algorithm::Sliding, Limiter::Counters(counters)) => {
                let mut memory = counters.by(Method::Sliding)?;
                Some(take(&mut memory, quotas, cost, force, now))
            }
            (Algorithm::Log, Limiter::Log(log)) => Some(take(log.as_mut(), quotas, cost, force, now)),
            _ => None,
        }
    }

    /// What a request would be told, and as of when.
    #[inline(always)]
    pub fn peek(&self, quotas: &[Quota], cost: Cost, now: UnixMs) -> (Verdict, Outlook) {
        match self {
            Limiter::Counters(counters) => peek(&counters.to_read(), quotas, cost, now),
            Limiter::Log(log) => peek(log.as_ref(), quotas, cost, now),
        }
    }

    /// Whether nothing is counted in it any more.
    #[inline]
    pub fn is_empty(&self) -> bool {
        match self {
            Limiter::Counters(counters) => counters.is_empty(),
            Limiter::Log(log) => log.is_empty(),
        }
    }

    /// How long it can matter from `now` on: counters exactly, a log up to an eighth of its window
    /// more. `slack_ms`: see [`Lifetime`].
    #[inline]
    pub fn lifetime(&self, now: UnixMs, slack_ms: u64) -> Lifetime {
        match self {
            Limiter::Counters(counters) => counters.lifetime(now, slack_ms),
            Limiter::Log(log) => log.lifetime(now, slack_ms),
        }
    }

    /// Whether the key is known to live as long as it has to: spares nearly every request a look
    /// at its time to live.
    #[inline]
    pub fn is_settled(&self) -> bool {
        match self {
            Limiter::Counters(counters) => counters.are_settled(),
            Limiter::Log(log) => log.is_settled(),
        }
    }

    /// Whether the server's clock alone settled it: no call with a time of its own.
    pub fn is_settled_by_clock(&self) -> bool {
        match self {
            Limiter::Counters(counters) => counters.are_settled_by_clock(),
            Limiter::Log(log) => log.is_settled_by_clock(),
        }
    }

    /// Notes until when the key lives, and whether the server's clock alone says so.
    pub fn settle(&mut self, until: UnixMs, by_clock: bool) {
        match self {
            Limiter::Counters(counters) => counters.settle(until, by_clock),
            Limiter::Log(log) => log.settle(until, by_clock),
        }
    }

    /// Whether `now` is before its own time: a clock stepped back, or it was written with a
    /// later one.
    #[inline]
    pub fn is_ahead_of(&self, now: UnixMs) -> bool {
        match self {
            Limiter::Counters(counters) => counters.are_ahead_of(now),
            Limiter::Log(log) => log.is_ahead_of(now),
        }
    }

    /// The windows that can still count at `now`, shortest first; of a log its longest.
    pub fn windows(&self, now: UnixMs) -> Vec<WindowState> {
        let windows: Vec<WindowMs> = match self {
            Limiter::Counters(counters) => counters.live_windows(now).collect(),
            Limiter::Log(log) => log.keep().into_iter().collect(),
        };
        let reset_after = |window| match self.wait_for(1, Quota { limit: 1, window }, now) {
            Wait::Ms(ms) => ms,
            Wait::Never => unreachable!("1 is not more than 1"),
        };
        let state = |window| WindowState {
            window,
            used: self.used(window, now),
            reset_after_ms: reset_after(window),
        };
        windows.into_iter().map(state).collect()
    }

    /// Of a log, the distinct timestamps that count at `now`.
    pub fn entries(&self, now: UnixMs) -> Option<u64> {
        match self {
            Limiter::Counters(_) => None,
            Limiter::Log(log) => Some(log.entries(now)),
        }
    }

    /// Bytes on the heap, apart from itself.
    pub fn heap_bytes(&self) -> usize {
        match self {
            Limiter::Counters(counters) => counters.heap_bytes(),
            Limiter::Log(log) => log.heap_bytes(),
        }
    }

    /// How many separate pieces of memory it holds: what freeing it takes.
    pub fn allocations(&self) -> usize {
        match self {
            Limiter::Counters(_) => 1,
            Limiter::Log(log) => 1 + log.allocations(),
        }
    }

    /// Hands every piece of memory that it holds to `mover`.
    pub fn relocate(&mut self, mover: &mut impl Mover) {
        match self {
            Limiter::Counters(counters) => counters.relocate(mover),
            Limiter::Log(log) => {
                mover.move_box(log);
                log.relocate(mover);
            }
        }
    }
}
