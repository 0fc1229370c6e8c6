//! What a request changed in a key, and when the key must expire.
//!
//! A key lives until nothing in it counts any more. Nearly every request leaves the expiry where it is, and does not look at it:
//!
//! | the request                                      | moves the expiry                            | source afterwards |
//! |--------------------------------------------------|---------------------------------------------|-------------------|
//! | counts by the clock, and the end moved           | to the end, if that is later                | `Clock`           |
//! | counts by the clock, and the source is another   | to the end, if that is later                | `Clock`           |
//! | either of these, in a key ahead of the clock     | to the end, if that is later                | as it was         |
//! | counts with AT                                   | to the end plus a minute, if that is later  | `At`              |
//! | moves the key back, which is not ahead then      | to the end, also if that is earlier         | `Clock`           |
//! | moves the key back, which stays ahead            | to the end, also if that is earlier         | as it was         |
//! | any other, and every one that gives units back   | never                                       | as it was         |
//!
//! The end is when nothing in the key counts any more. A key without an expiry, after PERSIST, gets one only when the end moves.
//!
//! This runs where a request is decided. Copies are told the time at which the key expires: see
//! [`Moved::expires`](super::Moved::expires).

use super::quota::{Time, UnixMs};

/// Extra time of a key written with AT, since event time may run slower than the server's clock: it lives longer, and may be
/// further ahead of the clock.
const EXTRA_WITH_AT_MS: u64 = 60_000;

/// Where the time that set a key's expiry came from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TimeSource {
    /// Unknown: the key was loaded, or changed by an effect, and may have any time to live.
    #[default]
    Unknown,
    /// The server's clock: the key lives as long as it counts.
    Clock,
    /// A caller's AT.
    At,
}

impl TimeSource {
    /// How far ahead of the clock a key may be.
    pub fn most_ahead(self) -> MostAhead {
        match self {
            TimeSource::At => MostAhead::WindowAndMinute,
            TimeSource::Clock | TimeSource::Unknown => MostAhead::Window,
        }
    }

    /// The source of this number, as it is stored: in the two lowest bits, whatever the others are.
    #[inline(always)]
    pub(super) fn from_bits(bits: u8) -> TimeSource {
        match bits & 3 {
            1 => TimeSource::Clock,
            2 => TimeSource::At,
            _ => TimeSource::Unknown,
        }
    }
}

/// How to move a key back that is too far ahead of the clock. After a large step back of the clock, no wait should last as long as
/// the step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MoveBack {
    /// The time of the clock.
    pub clock: UnixMs,
    /// How far ahead it may be.
    pub most: MostAhead,
}

/// How far a key may be ahead of the clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MostAhead {
    /// As long as its units count.
    Window,
    /// A minute longer, since it was written with AT.
    WindowAndMinute,
    /// Not at all. `WITHIN` tells when the units are there, which must not move afterwards.
    Nothing,
}

impl MoveBack {
    /// Whether a state whose own time is `own` is too far ahead. Its units count for `window_ms`.
    pub(super) fn applies(self, own: UnixMs, window_ms: u64) -> bool {
        let most_ms = match self.most {
            MostAhead::Window => window_ms,
            MostAhead::WindowAndMinute => window_ms + EXTRA_WITH_AT_MS,
            MostAhead::Nothing => 0,
        };
        own.since(self.clock) > most_ms
    }
}

/// The counters or buckets of a key after each was moved back, if it was too far ahead of the clock; `None` if none was.
pub(super) fn moved_back<T>(
    all: impl Iterator<Item = T>,
    move_back: impl Fn(&mut T) -> bool,
) -> Option<Vec<T>> {
    let (mut all, mut moved): (Vec<T>, _) = (all.collect(), false);
    all.iter_mut().for_each(|one| moved |= move_back(one));
    moved.then_some(all)
}

/// What a request counted or gave back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Change {
    /// Units counted or given back, in the tier with the most.
    pub units: u64,
    /// Whether the time at which nothing counts any more has moved, or may have.
    pub end_moved: bool,
    /// Whether the units were given back.
    pub given_back: bool,
    /// Whether a log forgot its oldest entry: see [`Recorded::forgot`](super::Recorded::forgot).
    pub forgot: bool,
    /// Whether somebody waits for the units: see [`Recorded::awaited`](super::Recorded::awaited).
    pub awaited: bool,
}

/// How the key's own time relates to that of a request. Of a counter, the own time is the start of its window; of a log or a bucket,
/// the time of its newest count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OwnTime {
    /// Whether it is later.
    pub ahead: bool,
    /// How far ahead of the clock the key could have been, if it was further ahead and moved back.
    pub moved_back: Option<MostAhead>,
}

/// What a request changed, apart from its reply.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// What was counted or given back.
    pub change: Change,
    /// The time it was applied as of. A copy that applies the effect as of this time ends up equal.
    pub as_of: UnixMs,
    /// Whether it gave back the last units that counted. Then the state still holds them: the key is to be deleted as it
    /// is, so that nobody sees a limiter that holds nothing.
    pub emptied: bool,
    /// How the key's own time relates to the request's.
    pub own_time: OwnTime,
    /// Where the time that set the key's expiry came from, as it was before this request.
    pub source: TimeSource,
    /// Whether the key keeps its units for less time than a window of the request.
    pub retention_too_short: bool,
}

impl Outcome {
    /// Whether anything was counted or given back.
    pub fn changed(&self) -> bool {
        self.change.units > 0
    }

    /// Whether the key may expire, by the server's clock, before a wait in the reply is over.
    pub fn may_expire_early(&self) -> bool {
        self.retention_too_short | (self.source != TimeSource::Clock)
    }

    /// Whether the time to live must be looked up. It need not be for nearly every request.
    pub fn may_move_expiry(&self, time: Time) -> bool {
        self.may_end_later(time) || self.own_time.moved_back.is_some()
    }

    /// Whether the key may have to live longer, until what was just counted ends.
    fn may_end_later(&self, time: Time) -> bool {
        let Change { end_moved, given_back, .. } = self.change;
        let may_end_later = || time.at.is_some() || self.source != TimeSource::Clock;
        self.changed() && (end_moved || (may_end_later() && !given_back))
    }

    /// The time by the server's clock that the key's expiry moves to, given the `current` one, and for how many milliseconds the key
    /// counts from the request's time; `None` if it does not move.
    pub fn expiry(&self, time: Time, current: Option<UnixMs>, lifetime_ms: u64) -> Option<UnixMs> {
        let extra_ms = if time.at.is_some() { EXTRA_WITH_AT_MS } else { 0 };
        let end = time.clock.plus_up_to_max(lifetime_ms + extra_ms);
        let moves = match current {
            Some(current) if self.own_time.moved_back.is_some() => end != current,
            Some(current) => self.may_end_later(time) && end > current,
            None => self.changed() && self.change.end_moved,
        };
        moves.then_some(end)
    }

    /// Where the time that sets the key's expiry comes from, after this request.
    pub fn source_after(&self, time: Time) -> TimeSource {
        match time.at {
            None if self.own_time.ahead => self.source,
            None if self.may_move_expiry(time) => TimeSource::Clock,
            Some(_) if self.may_end_later(time) => TimeSource::At,
            _ => self.source,
        }
    }
}
