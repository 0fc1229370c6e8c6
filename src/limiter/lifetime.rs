//! When a key must expire: the whole rule, clock steps and AT included.
//!
//! A key lives to the last millisecond at which anything in it counts, so that a clock that steps
//! back, or a replica with a slower one, frees nothing early. Its time to live is only looked up
//! when a request may have to move it, and then only lengthened, with one exception: a key further
//! ahead of the clock than its whole lifetime, after a large step back, would stay too long. It
//! expires one lifetime from now, and nothing puts that off.

use super::quota::{Time, UnixMs};

/// A key written with AT lives so much longer than it can matter: event time may run slower than
/// the server's clock, and the clock of a replica may be behind its master's.
const EXTRA_WITH_AT_MS: u64 = 60_000;

/// Whose time set the end of a key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TimeSource {
    /// Nobody's since it was loaded: its time to live may be anything.
    #[default]
    Loaded,
    /// The server's clock: the key lives no longer than it can matter.
    Clock,
    /// A caller's AT: the key may live a minute longer.
    Given,
}

/// How long what a key counts can matter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Lifetime {
    /// Milliseconds.
    pub ms: u64,
    /// Whether it ends before what is counted does: the key is too far ahead of the clock.
    pub expires_early: bool,
}

impl Lifetime {
    /// Of what counts nothing.
    pub(super) const NONE: Lifetime = Lifetime { ms: 0, expires_early: false };

    /// From `now` on, of what was counted at `own` and matters until it `ends`; `most_ms` is the
    /// longest time for which it can matter, and the slack.
    pub(super) fn of(own: UnixMs, ends: UnixMs, now: UnixMs, most_ms: u64) -> Lifetime {
        let expires_early = own.since(now) > most_ms;
        Lifetime { ms: if expires_early { most_ms } else { ends.since(now) }, expires_early }
    }
}

/// What a request did to a key, as far as the key's time to live goes.
#[derive(Clone, Copy, Debug)]
pub struct Touch {
    /// When it was decided.
    pub time: Time,
    /// Whether it counted or gave back anything.
    pub changed: bool,
    /// Whether that moved the end of what counts, or may have.
    pub end_moved: bool,
    /// Whether the key is ahead of the request's time.
    pub ahead: bool,
    /// Whose time set the end of the key before.
    pub source: TimeSource,
}

impl Touch {
    /// Whether the time to live has to be looked up. Nearly every request spares that.
    #[inline(always)]
    pub fn may_move_expiry(&self) -> bool {
        self.needs_end() || self.is_ahead_of_clock()
    }

    /// Whether the key must live on for what was counted just now.
    #[inline(always)]
    fn needs_end(&self) -> bool {
        self.changed && (self.end_moved || self.time.at.is_some() || self.source == TimeSource::Loaded)
    }

    #[inline(always)]
    fn is_ahead_of_clock(&self) -> bool {
        self.ahead && self.time.at.is_none()
    }

    /// When the key must expire from now on. `lifetime` tells how long it can matter from a time on,
    /// with a slack in milliseconds.
    pub fn expiry(&self, current: Option<UnixMs>, lifetime: impl Fn(UnixMs, u64) -> Lifetime) -> Expiry {
        let (lifetime, extra_ms) = match self.time.at {
            Some(at) => (lifetime(at, 0), EXTRA_WITH_AT_MS),
            None if self.source == TimeSource::Clock => (lifetime(self.time.clock, 0), 0),
            // It may have been written with AT, and then may be ahead by the extra time too.
            None => (lifetime(self.time.clock, EXTRA_WITH_AT_MS), 0),
        };
        let early = lifetime.expires_early && self.time.at.is_none();
        let end = self.time.clock + (lifetime.ms + extra_ms);
        let moves = match current {
            Some(current) if early => end < current,
            Some(current) => self.needs_end() && end > current,
            // After PERSIST: that holds until the end of what counts moves.
            None => self.needs_end() && (self.end_moved || self.source == TimeSource::Loaded),
        };
        let source = match self.time.at {
            _ if early || !self.needs_end() => self.source,
            None if !self.ahead => TimeSource::Clock,
            _ => TimeSource::Given,
        };
        Expiry { moves_to: moves.then_some(end), source }
    }
}

/// When a key must expire, and who says so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Expiry {
    /// By the server's clock; `None` if it stays as it is.
    pub moves_to: Option<UnixMs>,
    /// Whose time sets the end of the key from now on.
    pub source: TimeSource,
}
