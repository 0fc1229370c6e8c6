//! What a request changed in a key, and when the key must expire: the whole rule, including clock steps and AT.
//!
//! A key lives until nothing in it counts any more, so that a clock that steps back frees nothing early. The time to
//! live is looked up only when a request may have to move it, and then only extended, with one exception: a key whose
//! own time is ahead of the clock by more than its whole lifetime, after a large step back, would live too long. It
//! expires one lifetime from now. Only what moves the end of what counts extends that: a unit taken from a bucket, but
//! nothing in a window or a log, since their time stands still. Giving back extends nothing: its AT only tells which units.
//!
//! This runs where a request is decided. Copies are told the time at which the key expires: see
//! [`Counted::expires`](super::Counted::expires).

use super::quota::{Time, UnixMs};

/// Extra time to live of a key written with AT: event time may run slower than the server's clock.
const EXTRA_WITH_AT_MS: u64 = 60_000;

/// Where the time that set a key's expiry came from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TimeSource {
    /// Unknown: the key was loaded, or changed by an effect, and may have any time to live.
    #[default]
    Loaded,
    /// The server's clock: the key lives no longer than it counts.
    Clock,
    /// A caller's AT, or perhaps one: the key may live a minute longer.
    Given,
    /// The server's clock, far behind the key: the key may expire before a wait is over.
    SteppedBack,
}

impl TimeSource {
    /// The source whose number the two lowest bits are.
    #[inline(always)]
    pub(super) fn from_bits(bits: u8) -> TimeSource {
        const SOURCES: [TimeSource; 4] =
            [TimeSource::Loaded, TimeSource::Clock, TimeSource::Given, TimeSource::SteppedBack];
        SOURCES[usize::from(bits & 3)]
    }
}

/// How long a key still counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lifetime {
    /// Milliseconds, with the slack, and rounded up so that few requests move the expiry.
    pub ms: u64,
    /// Milliseconds after which nothing counts.
    pub exact_ms: u64,
    /// Whether it is cut short because the key is too far ahead of the clock.
    pub expires_early: bool,
}

impl Lifetime {
    pub(super) const NONE: Lifetime = Lifetime { ms: 0, exact_ms: 0, expires_early: false };

    /// The lifetime from `now` of what was counted at `own` and counts until `ends`, which is rounded up to `rounded`.
    /// `most_ms` is the longest time from `own` until then, plus the slack.
    pub(super) fn ending(own: UnixMs, ends: UnixMs, rounded: UnixMs, now: UnixMs, most_ms: u64) -> Lifetime {
        if own.since(now) > most_ms {
            Lifetime { ms: most_ms, exact_ms: ends.since(own), expires_early: true }
        } else {
            Lifetime { ms: rounded.since(now), exact_ms: ends.since(now), expires_early: false }
        }
    }

    /// The lifetime of a key in which two windows count for so long.
    pub(super) fn of_both(self, other: Lifetime) -> Lifetime {
        let longer = if self.ms > other.ms { self } else { other };
        Lifetime { exact_ms: self.exact_ms.max(other.exact_ms), ..longer }
    }
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
    /// Whether a log forgot its oldest entry: see [`Counted::forgets`](super::Counted::forgets).
    pub forgot: bool,
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
    /// Whether the key is in a window, or has a timestamp, later than the request's time.
    pub ahead: bool,
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
        self.ahead | self.retention_too_short | (self.source != TimeSource::Clock)
    }

    /// Whether the time to live must be looked up. It need not be for nearly every request.
    pub fn may_move_expiry(&self, time: Time) -> bool {
        self.needs_end(time) || (self.ahead && time.at.is_none())
    }

    /// Whether the key must live until what was just counted ends.
    fn needs_end(&self, time: Time) -> bool {
        let Change { end_moved, given_back, .. } = self.change;
        let may_end_later = || time.at.is_some() || self.source == TimeSource::Loaded;
        self.changed() && (end_moved || (may_end_later() && !given_back))
    }

    /// Returns the key's new expiry, given the `current` one. `lifetime` maps a time and a slack in milliseconds
    /// to how long the key still counts.
    pub fn expiry(
        &self,
        time: Time,
        current: Option<UnixMs>,
        lifetime: impl Fn(UnixMs, u64) -> Lifetime,
    ) -> Expiry {
        let (lifetime, extra_ms) = match time.at {
            Some(at) => (lifetime(at, 0), EXTRA_WITH_AT_MS),
            None if matches!(self.source, TimeSource::Clock | TimeSource::SteppedBack) => {
                (lifetime(time.clock, 0), 0)
            }
            // A key that was written with AT may be ahead by the extra time too.
            None => (lifetime(time.clock, EXTRA_WITH_AT_MS), 0),
        };
        let early = lifetime.expires_early && time.at.is_none();
        let after = |ms| time.clock.plus_up_to_max(ms + extra_ms);
        let end = after(lifetime.ms);
        let moves = match current {
            Some(current) if early => {
                end < current || (self.needs_end(time) && after(lifetime.exact_ms) > current)
            }
            Some(current) => self.needs_end(time) && end > current,
            // After PERSIST the key has no expiry, and gets one only when the end of what counts moves.
            None => self.changed() && self.change.end_moved,
        };
        let source = match time.at {
            _ if early => match self.source {
                TimeSource::Clock => TimeSource::SteppedBack,
                TimeSource::Loaded if self.needs_end(time) => TimeSource::Given,
                known => known,
            },
            _ if !self.needs_end(time) => self.source,
            Some(_) => TimeSource::Given,
            None if self.ahead => self.source,
            None => TimeSource::Clock,
        };
        Expiry { moves_to: moves.then_some(end), source }
    }
}

/// A key's expiry after a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Expiry {
    /// The new expiry by the server's clock; `None` if it does not change.
    pub moves_to: Option<UnixMs>,
    /// Where the time that sets the expiry comes from, after this request.
    pub source: TimeSource,
}
