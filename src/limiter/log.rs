//! RL.LOG: every unit carries the time it was taken at, and is free again one window later. This is the log
//! of many units; `short` is that of few.

use std::ops::{Deref, DerefMut};

use super::Mover;
use super::decision::{Change, State, StateMut, Tier, TooManyWindows, Usage};
use super::lifetime::{Lifetime, TimeSource};
use super::quota::{MAX_COUNT, Quota, UnixMs, WindowMs};
use super::run::{Mark, Place};
use super::starts::RunWithStarts;

/// A log with more entries than this drops old units that FORCE counted beyond the limit. Small logs stay whole,
/// and a flood of forced requests takes only a few kilobytes.
const FORGET_ABOVE_ENTRIES: u64 = 1024;

/// The units of one key, each with its own time.
///
/// All entries but the newest are in a compact [`Run`](super::run::Run). The newest is kept apart, since
/// units of the same millisecond are added to it.
#[derive(Clone, Debug, Default)]
pub struct Log {
    /// How long units are kept: the longest window that has counted anything.
    retention: Option<WindowMs>,
    older: RunWithStarts,
    pub(super) newest: Entry,
    source: TimeSource,
}

/// The units of one millisecond. The newest entry of an empty log has none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Entry {
    /// When they were taken.
    pub at: UnixMs,
    /// How many.
    pub units: u64,
}

impl<L: Deref<Target = Log>> State for L {
    /// The place where the window begins.
    type Found = Place;

    #[inline(always)]
    fn usage(&self, window: WindowMs, now: UnixMs) -> Usage<Place> {
        self.in_window(window, now)
    }

    #[inline(always)]
    fn wait_until(&self, usage: &Usage<Place>, room: u64) -> u64 {
        (self.last_to_expire(usage.found, room) + usage.window).since(usage.now)
    }

    /// A log serves any number of windows: it keeps its units for the longest.
    #[inline(always)]
    fn check_windows_fit(&self, _quotas: &[Quota], _now: UnixMs) -> Result<(), TooManyWindows> {
        Ok(())
    }

    #[inline(always)]
    fn is_ahead_of(&self, now: UnixMs) -> bool {
        self.newest.at > now && !self.holds_nothing()
    }

    fn newest_of(&self, _quotas: &[Quota]) -> UnixMs {
        self.newest.at
    }

    #[inline(always)]
    fn source(&self) -> TimeSource {
        self.source
    }

    #[inline(always)]
    fn is_empty(&self) -> bool {
        self.holds_nothing()
    }

    fn counts_nothing(&self, quotas: &[Quota], now: UnixMs) -> bool {
        self.in_window(retention_with(self.retention, longest_of(quotas)), now).used == 0
    }

    /// How long from `now` until the last unit has left the longest window. That end is rounded up to a multiple
    /// of an eighth of the window, so that it moves eight times a window, not at every request.
    fn lifetime(&self, now: UnixMs, slack_ms: u64) -> Lifetime {
        lifetime(self.newest.at, self.end(), now, slack_ms)
    }

    #[inline(always)]
    fn retention_too_short_for(&self, quota: Quota) -> bool {
        self.retention.is_some_and(|retention| retention < quota.window())
    }
}

impl<L: DerefMut<Target = Log>> StateMut for L {
    #[inline(always)]
    fn add(&mut self, tiers: &mut [Tier<Place>], units: u64, now: UnixMs) -> Change {
        let now = now.max(self.newest.at);
        let longest = longest(tiers);
        let named = longest.quota.window();
        let retention = retention_with(self.retention, named);
        // Later requests are decided as of `now` or later, so what has expired stays expired.
        let Usage { found: from, used, .. } =
            if retention == named { longest.usage } else { self.in_window(retention, now) };
        let units = units.min(MAX_COUNT - used);
        if units == 0 {
            return Change::default();
        }
        let end_moved = used == 0
            || self.retention != Some(retention)
            || now + retention > end(self.newest.at, retention);
        // Whether shorter windows must be looked up again.
        let mut moved = used == 0;
        if moved {
            **self = Log { retention: Some(named), source: self.source, ..Log::default() };
        } else {
            self.older.drop_before(from);
            self.retention = Some(retention);
        }
        self.push(Entry { at: now, units });
        if self.retention == Some(named) {
            let largest = tiers.iter().map(|tier| tier.quota.limit()).max().unwrap_or(0);
            // Twice the limit, so that a whole limit can be given back and the units before it still count.
            moved |= self.forget_oldest_beyond(2 * largest);
        }
        for Tier { quota, usage, .. } in tiers {
            if self.retention == Some(quota.window()) {
                // All units held.
                usage.found = self.older.front();
                usage.used = self.units();
            } else {
                if moved {
                    *usage = self.in_window(quota.window(), usage.now);
                } else {
                    usage.used += units;
                }
                self.older.remember(quota.window(), usage.found);
            }
        }
        Change { units, end_moved }
    }

    fn refund(&mut self, quotas: &[Quota], units: u64, as_of: UnixMs) -> u64 {
        let retention = retention_with(self.retention, longest_of(quotas));
        let Usage { found: from, used, .. } = self.in_window(retention, as_of);
        if as_of < self.newest.at {
            self.refund_until(as_of, from, units)
        } else {
            self.refund_newest(units.min(used))
        }
    }
}

impl Log {
    /// A log of these entries, oldest first, all within `retention`.
    pub(super) fn of(
        retention: Option<WindowMs>,
        source: TimeSource,
        entries: impl Iterator<Item = Entry>,
    ) -> Log {
        let mut log = Log { retention, source, ..Log::default() };
        entries.for_each(|entry| log.push(entry));
        log
    }

    /// Bytes of the older entries, or any number above `most` if there are more than `most`.
    #[inline(always)]
    pub(super) fn bytes_up_to(&self, most: usize) -> usize {
        self.older.bytes_up_to(most)
    }

    /// How long units are kept; `None` if it never held any.
    pub fn retention(&self) -> Option<WindowMs> {
        self.retention
    }

    /// The number of distinct timestamps in the longest window at `now`.
    pub fn entries(&self, now: UnixMs) -> u64 {
        let Some(retention) = self.retention else { return 0 };
        let usage = self.in_window(retention, now);
        if usage.used == 0 { 0 } else { self.older.end().entries_since(&usage.found.mark) + 1 }
    }

    #[inline(always)]
    pub(super) fn holds_nothing(&self) -> bool {
        self.newest.units == 0
    }

    /// Records where the time that set the key's expiry came from.
    pub fn set_source(&mut self, source: TimeSource) {
        self.source = source;
    }

    /// The entries held, oldest first.
    pub fn iter(&self) -> impl Iterator<Item = Entry> + '_ {
        let older = self.older.iter().map(|(at_ms, units)| Entry { at: UnixMs::saturating(at_ms), units });
        older.chain(std::iter::once(self.newest).filter(|entry| entry.units > 0))
    }

    /// Restores a log of `entries`, oldest first. `None` if there are none, or if one is empty, out of order,
    /// older than `retention`, or exceeds [`MAX_COUNT`] with those before it.
    pub fn restore(retention: WindowMs, entries: impl Iterator<Item = Entry>) -> Option<Log> {
        let mut log = Log { retention: Some(retention), ..Log::default() };
        let mut oldest = None;
        for entry in entries {
            let later = log.holds_nothing() || entry.at > log.newest.at;
            if entry.units == 0 || entry.units > MAX_COUNT - log.units() || !later {
                return None;
            }
            oldest = oldest.or(Some(entry.at));
            log.push(entry);
        }
        (oldest? + retention > log.newest.at).then_some(log)
    }

    /// Bytes on the heap.
    pub fn heap_bytes(&self) -> usize {
        size_of::<Log>() + self.older.heap_bytes()
    }

    /// The number of allocations it holds.
    pub fn allocations(&self) -> usize {
        self.older.allocations()
    }

    /// See [`Limiter::relocate`](super::Limiter::relocate).
    pub fn relocate(&mut self, mover: &mut impl Mover) {
        self.older.relocate(mover);
    }

    /// The units with a timestamp above `now - window`. A time before the newest timestamp is read as that
    /// timestamp.
    #[inline(always)]
    fn in_window(&self, window: WindowMs, now: UnixMs) -> Usage<Place> {
        let as_of = now.max(self.newest.at);
        let from = match self.older.start_of(window) {
            // The usual case, except when the log is full: every entry still counts.
            None if self.older.oldest_at_ms() + window.get() > as_of.get() => self.older.front(),
            None => self.start_of(self.older.front(), window, as_of),
            Some(start) => self.start_of(start, window, as_of),
        };
        let open = if self.newest.at + window > as_of { self.newest.units } else { 0 };
        let used = self.older.end().units_since(&from.mark) + open;
        Usage { window, now, used, found: from }
    }

    /// The time of the newest entry that must expire before at most `room` units count.
    #[inline(always)]
    pub(super) fn last_to_expire(&self, from: Place, room: u64) -> UnixMs {
        let Log { older, newest, .. } = self;
        if room < newest.units {
            return newest.at;
        }
        let end = older.end();
        let leaves_too_many = |mark: &Mark| end.units_since(mark) + newest.units > room;
        let (_, after) = older.seek_entry(from, leaves_too_many);
        after.map_or(newest.at, |after| UnixMs::saturating(after.mark.at_ms))
    }

    /// Where the window that ends at `now` begins, at `from` or later.
    fn start_of(&self, from: Place, window: WindowMs, now: UnixMs) -> Place {
        self.older.seek(from, |mark| mark.at_ms + window.get() <= now.get())
    }

    /// The place before the oldest entry.
    pub(super) fn front(&self) -> Place {
        self.older.front()
    }

    /// Units held.
    #[inline(always)]
    pub(super) fn units(&self) -> u64 {
        self.older.units() + self.newest.units
    }

    /// When nothing counts any more, rounded up as in [`Limiter::lifetime`](super::Limiter::lifetime); `None` if
    /// the log is empty.
    #[inline(always)]
    fn end(&self) -> Option<UnixMs> {
        let retention = self.retention.filter(|_| !self.holds_nothing())?;
        Some(end(self.newest.at, retention))
    }

    /// Appends units that are no older than the newest entry.
    #[inline(always)]
    fn push(&mut self, entry: Entry) {
        if self.newest.units > 0 {
            if self.newest.at == entry.at {
                self.newest.units += entry.units;
                return;
            }
            self.older.push(self.newest.at.get(), self.newest.units);
        }
        self.newest = entry;
    }

    /// Takes the newest `units`, no more than it holds. Returns how many were taken.
    fn refund_newest(&mut self, units: u64) -> u64 {
        if units < self.newest.units {
            self.newest.units -= units;
        } else if units > 0 {
            let rest = self.units() - units;
            let (place, partly) = self.keep_from(self.older.front(), rest);
            self.newest = partly.unwrap_or(Entry { units: 0, ..self.newest });
            self.older.truncate(place);
        }
        units
    }

    /// Takes up to `units` of the older entries from `from` to `as_of`, newest first, and leaves later ones.
    /// Returns how many were taken.
    fn refund_until(&mut self, as_of: UnixMs, from: Place, units: u64) -> u64 {
        let to = self.older.seek(from, |mark| mark.at_ms <= as_of.get());
        let counted = to.mark.units_since(&from.mark);
        let units = units.min(counted);
        if units > 0 {
            let (place, partly) = self.keep_from(from, counted - units);
            self.older.replace(place, to, partly.map(|entry| (entry.at.get(), entry.units)));
        }
        units
    }

    /// Finds where to cut so that `units` of the older entries from `from` on are kept. Returns the place before
    /// the last entry kept, and that entry with the units that are kept of it; `None` if `units` is 0.
    fn keep_from(&self, from: Place, units: u64) -> (Place, Option<Entry>) {
        let (place, after) = self.older.seek_entry(from, |mark| mark.units_since(&from.mark) < units);
        let partly = after.filter(|_| units > 0).map(|after| Entry {
            at: UnixMs::saturating(after.mark.at_ms),
            units: units - place.mark.units_since(&from.mark),
        });
        (place, partly)
    }

    /// Drops the oldest entry of a large log if at least `enough` units remain. Only FORCE can cause that; without
    /// this, forced requests would make the log grow without bound. Returns whether it dropped one.
    #[inline(always)]
    fn forget_oldest_beyond(&mut self, enough: u64) -> bool {
        let front = self.older.front();
        let end = self.older.end();
        if self.units() > enough
            && end.entries_since(&front.mark) > FORGET_ABOVE_ENTRIES
            && let Some(second) = self.older.after(&front)
            && end.units_since(&second.mark) + self.newest.units >= enough
        {
            self.older.drop_before(second);
            return true;
        }
        false
    }
}

/// When nothing counts any more, rounded up as in [`Limiter::lifetime`](super::Limiter::lifetime).
#[inline(always)]
pub(super) fn end(newest: UnixMs, retention: WindowMs) -> UnixMs {
    (newest + retention).rounded_up_to((retention.get() / 8).max(1))
}

/// The longest window of a log so far, `named` included.
#[inline(always)]
pub(super) fn retention_with(retention: Option<WindowMs>, named: WindowMs) -> WindowMs {
    retention.map_or(named, |retention| retention.max(named))
}

/// The lifetime of a log that ends at `end`.
pub(super) fn lifetime(newest: UnixMs, end: Option<UnixMs>, now: UnixMs, slack_ms: u64) -> Lifetime {
    match end {
        Some(end) => Lifetime::of(newest, end, now, end.since(newest) + slack_ms),
        None => Lifetime::NONE,
    }
}

/// The tier with the longest window; `tiers` must not be empty.
#[inline(always)]
pub(super) fn longest<F>(tiers: &[Tier<F>]) -> &Tier<F> {
    tiers.iter().max_by_key(|tier| tier.quota.window()).expect("a request has at least one tier")
}

/// The longest window; `quotas` must not be empty.
pub(super) fn longest_of(quotas: &[Quota]) -> WindowMs {
    quotas.iter().map(|quota| quota.window()).max().expect("a request has at least one quota")
}
