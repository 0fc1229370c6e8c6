//! RL.LOG: every unit carries the time it was counted at, and is free again one window later.
//!
//! A log of few units is [`short`]: one small allocation. A log of many is [`large`]: blocks with totals, and
//! remembered places. What both do alike is here, in terms of [`Entries`].

pub mod entry;
pub mod large;
pub mod run;
pub mod short;
mod starts;
pub mod varint;

pub use entry::{Cursor, Entry};

use super::algorithm::WindowUsage;
use super::decision::{Refund, Refunded, State, Tier, Usage};
use super::lifetime::{MoveBack, TimeSource};
use super::quota::{Quota, UnixMs, WindowMs};
use entry::Mark;

/// The entries of a log, whether it is short or large.
pub trait Entries {
    /// How long units are kept: the longest window that has counted anything; `None` if none ever did.
    fn retention(&self) -> Option<WindowMs>;

    /// The time of the newest entry.
    fn newest(&self) -> UnixMs;

    /// Where the time that set the key's expiry came from.
    fn time_source(&self) -> TimeSource;

    /// The place before the oldest entry.
    fn front(&self) -> Cursor;

    /// Units of the entries after a place.
    fn units_after(&self, mark: &Mark) -> u64;

    /// The number of entries after a place.
    fn entries_after(&self, mark: &Mark) -> u64;

    /// The units with a timestamp above `now - window`, and the place where they begin. A time before the newest
    /// timestamp is read as that timestamp.
    fn in_window(&self, window: WindowMs, now: UnixMs) -> Usage<Cursor>;

    /// The places before and after the first entry, from `from` on, that `passes` rejects; the end and `None` if it
    /// rejects none.
    ///
    /// `passes` gets the totals after an entry. It must accept the entries up to some place and reject the rest.
    fn seek(&self, from: Cursor, passes: impl Fn(&Mark) -> bool) -> (Cursor, Option<Cursor>);

    /// The bytes of the entries held, in pieces, oldest first.
    fn pieces(&self) -> impl Iterator<Item = &[u8]>;

    /// The entries held, oldest first.
    fn iter(&self) -> impl Iterator<Item = Entry> {
        let mut at_ms = self.front().mark.at_ms;
        self.pieces().flat_map(entry::iter).map(move |(since, units)| {
            at_ms = at_ms.wrapping_add(since);
            Entry { at: UnixMs::saturating(at_ms), units }
        })
    }

    /// Units held, expired ones included.
    fn units(&self) -> u64 {
        self.units_after(&self.front().mark)
    }

    /// The number of distinct timestamps in the longest window at `now`.
    fn count(&self, now: UnixMs) -> u64 {
        let Some(retention) = self.retention() else { return 0 };
        self.entries_after(&self.in_window(retention, now).place.mark)
    }

    /// Milliseconds by which a log that is too far ahead of the clock is moved back, so that its newest entry is as of the clock;
    /// 0 if it is not. No entry is moved before 1970.
    fn ms_to_move_back(&self, to: MoveBack) -> u64 {
        match (self.retention(), self.iter().next()) {
            (Some(retention), Some(oldest)) if to.applies(self.newest(), retention.get()) => {
                self.newest().since(to.clock).min(oldest.at.get())
            }
            _ => 0,
        }
    }

    /// The longest window so far, that of `quotas` included.
    fn retention_with(&self, quotas: &[Quota]) -> Option<WindowMs> {
        self.retention().max(quotas.iter().map(|quota| quota.window()).max())
    }
}

/// The entries of a log, for changing.
pub trait EntriesMut: Entries {
    /// Replaces all entries from `from` to `to` by `kept`, or by none. The time of `kept` lies between those of its neighbors.
    fn replace(&mut self, from: Cursor, to: Cursor, kept: Option<Entry>);

    /// Gives back the newest units that count, as every [state](super::decision::StateMut::refund) does.
    fn refund(&mut self, quotas: &[Quota], Refund { units, as_of, ended_by }: Refund) -> Refunded {
        let Some(retention) = self.retention_with(quotas) else { return Refunded::default() };
        let from = self.in_window(retention, as_of).place;
        let (to, _) = self.seek(from, |mark| mark.at_ms <= as_of.get());
        let counted = to.mark.units_since(&from.mark);
        let units = units.min(counted);
        // The window that ends at `ended_by` begins no later than that of `as_of`, so all that is given back is in it.
        let emptied = units > 0 && self.in_window(retention, ended_by).used == units;
        if units > 0 && !emptied {
            // Of the oldest entry that gives units back, some may stay.
            let kept = counted - units;
            let (place, after) = self.seek(from, |mark| mark.units_since(&from.mark) < kept);
            let partly = after.filter(|_| kept > 0).map(|after| Entry {
                at: UnixMs::saturating(after.mark.at_ms),
                units: kept - place.mark.units_since(&from.mark),
            });
            self.replace(place, to, partly);
        }
        Refunded { units, emptied }
    }
}

impl<L: Entries> State for L {
    /// The place where the window begins.
    type Place = Cursor;

    #[inline(always)]
    fn usage(&self, quota: Quota, now: UnixMs) -> Usage<Cursor> {
        self.in_window(quota.window(), now)
    }

    /// Finds the newest entry that must expire before the units fit.
    #[inline(always)]
    fn wait_until(&self, quota: Quota, place: &Cursor, most: u64, now: UnixMs) -> u64 {
        let last_to_expire = if most == 0 {
            self.newest()
        } else {
            let (_, after) = self.seek(*place, |mark| self.units_after(mark) > most);
            after.map_or(self.newest(), |after| UnixMs::saturating(after.mark.at_ms))
        };
        (last_to_expire + quota.window()).since(now)
    }

    /// A log has a window of any length, since it keeps its units for the longest.
    fn windows_fit(&self, _quotas: &[Quota], _now: UnixMs) -> bool {
        true
    }

    fn is_ahead_of(&self, now: UnixMs) -> bool {
        self.newest() > now && self.units() > 0
    }

    fn newest_in(&self, _quotas: &[Quota]) -> UnixMs {
        self.newest()
    }

    fn source(&self) -> TimeSource {
        self.time_source()
    }

    fn is_empty(&self) -> bool {
        self.units() == 0
    }

    /// How long from `now` until the last unit has left the longest window. That end is rounded up to a multiple of an eighth of the
    /// window, so that it moves at most eight times a window.
    fn lifetime_ms(&self, now: UnixMs) -> u64 {
        let retention = self.retention().filter(|_| !self.is_empty());
        retention.map_or(0, |retention| rounded_end(self.newest(), retention).since(now))
    }

    fn retention_too_short_for(&self, quota: Quota) -> bool {
        self.retention().is_some_and(|retention| retention < quota.window())
    }

    fn windows(&self, now: UnixMs) -> Vec<WindowUsage> {
        let shown = |window| {
            let used = self.in_window(window, now).used;
            let reset_after_ms = if used == 0 { 0 } else { (self.newest() + window).since(now) };
            WindowUsage { window, window_ms: window.get(), limit: None, used, reset_after_ms, counts: None }
        };
        self.retention().map(shown).into_iter().collect()
    }
}

/// When nothing counts any more, rounded up to a multiple of an eighth of the longest window.
fn rounded_end(newest: UnixMs, retention: WindowMs) -> UnixMs {
    (newest + retention).rounded_up_to((retention.get() / 8).max(1))
}

/// The tier with the longest window; `tiers` must not be empty.
#[inline(always)]
fn longest<P>(tiers: &[Tier<P>]) -> &Tier<P> {
    tiers.iter().max_by_key(|tier| tier.quota.window()).expect("a request has at least one tier")
}
