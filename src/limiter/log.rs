//! RL.LOG: every unit carries the time it was taken at, and is free again one window later. Here is the
//! form for many units; see `short` for that of a few.

use std::ops::{Deref, DerefMut};

use super::Mover;
use super::decision::{Change, State, StateMut, Tier, TooManyWindows};
use super::lifetime::{Lifetime, TimeSource};
use super::quota::{MAX_COUNT, Quota, UnixMs, WindowMs};
use super::run::{Mark, Place};
use super::starts::RunWithStarts;

/// Only a log of more entries than this forgets units for what FORCE puts beyond the limit: enough
/// to keep small logs whole, few enough that a flood of forced requests takes a few kilobytes.
const FORGETFUL_ABOVE: u64 = 1024;

/// The units of one key, each with its own time.
///
/// All but the newest entry lie in a compact [`Run`](super::run::Run); the newest stays open here, since more
/// units of the same millisecond join it.
#[derive(Clone, Debug, Default)]
pub struct Log {
    /// How long units are kept: the longest window that counted anything so far.
    retention: Option<WindowMs>,
    older: RunWithStarts,
    pub(super) newest: Entry,
    source: TimeSource,
}

/// Units of one millisecond; none at all in an empty log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Entry {
    /// When they were taken.
    pub at: UnixMs,
    /// How many.
    pub units: u64,
}

/// What of a log counts in one window at one time.
#[derive(Clone, Copy)]
pub(super) struct InWindow {
    pub window: WindowMs,
    pub now: UnixMs,
    /// Where the window begins in the older entries.
    pub from: Place,
    /// Units from there to the newest.
    pub used: u64,
}

impl<L: Deref<Target = Log>> State for L {
    type Usage = InWindow;

    #[inline(always)]
    fn usage(&self, quota: Quota, now: UnixMs) -> InWindow {
        self.in_window(quota.window(), now)
    }

    #[inline(always)]
    fn used(&self, usage: &InWindow) -> u64 {
        usage.used
    }

    #[inline(always)]
    fn wait_until(&self, usage: &InWindow, room: u64) -> u64 {
        (self.last_to_expire(usage, room) + usage.window).since(usage.now)
    }

    /// Whatever windows are named, the log keeps its units for the longest.
    #[inline(always)]
    fn make_sure_of_room(&self, _quotas: &[Quota], _now: UnixMs) -> Result<(), TooManyWindows> {
        Ok(())
    }

    #[inline(always)]
    fn is_ahead_of(&self, now: UnixMs) -> bool {
        self.newest.at > now && !self.holds_nothing()
    }

    fn newest(&self) -> UnixMs {
        self.newest.at
    }

    #[inline(always)]
    fn source(&self) -> TimeSource {
        self.source
    }

    /// A log keeps its units for the longest window that counted anything.
    #[inline(always)]
    fn keeps_too_little_for(&self, quota: Quota) -> bool {
        self.retention.is_some_and(|retention| retention < quota.window())
    }
}

impl<L: DerefMut<Target = Log>> StateMut for L {
    #[inline(always)]
    fn add(&mut self, tiers: &mut [Tier<InWindow>], units: u64, now: UnixMs) -> Change {
        let now = now.max(self.newest.at);
        let longest = longest(tiers);
        let named = longest.quota.window();
        let retention = self.retention_with(named);
        // No later request is read as of a time before this one: what is out now stays out.
        let (from, used) = if retention == named {
            (longest.usage.from, longest.usage.used)
        } else {
            let InWindow { from, used, .. } = self.in_window(retention, now);
            (from, used)
        };
        let units = units.min(MAX_COUNT - used);
        if units == 0 {
            return Change::default();
        }
        let end = self.end();
        // Whether a shorter window may begin at another place than it did.
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
            // Twice: so a whole limit can be given back, and what it was counted on top of is still there.
            moved |= self.forget_oldest_beyond(2 * largest);
        }
        for Tier { quota, usage, .. } in tiers {
            if self.retention == Some(quota.window()) {
                // All that is still held.
                usage.from = self.older.front();
                usage.used = self.units();
            } else {
                if moved {
                    *usage = self.in_window(quota.window(), usage.now);
                } else {
                    usage.used += units;
                }
                self.older.remember(quota.window(), usage.from);
            }
        }
        Change { units, end_moved: self.end() != end }
    }

    fn refund(&mut self, tiers: &mut [Tier<InWindow>], units: u64, as_of: UnixMs) -> Change {
        let end = self.end();
        let retention = self.retention_with(longest(tiers).quota.window());
        let InWindow { from, used, .. } = self.in_window(retention, as_of);
        let units = if as_of < self.newest.at {
            self.take_away_until(as_of, from, units)
        } else {
            self.take_away(units.min(used))
        };
        for Tier { quota, usage, .. } in tiers {
            *usage = self.in_window(quota.window(), usage.now);
        }
        Change { units, end_moved: self.end() != end }
    }

    #[inline(always)]
    fn is_empty(&self) -> bool {
        self.holds_nothing()
    }
}

impl Log {
    /// A log of these entries, oldest first, of which all count.
    pub(super) fn of(
        retention: Option<WindowMs>,
        source: TimeSource,
        entries: impl Iterator<Item = Entry>,
    ) -> Log {
        let mut log = Log { retention, source, ..Log::default() };
        entries.for_each(|entry| log.push(entry));
        log
    }

    /// Bytes of the older entries; some number above `most` if they are more.
    #[inline(always)]
    pub(super) fn bytes_of_up_to(&self, most: usize) -> usize {
        self.older.bytes_of_up_to(most)
    }

    /// How long units are kept; `None` while it never held any.
    pub fn retention(&self) -> Option<WindowMs> {
        self.retention
    }

    /// Distinct timestamps that are still in the longest window.
    pub fn entries(&self, now: UnixMs) -> u64 {
        let Some(retention) = self.retention else { return 0 };
        let usage = self.in_window(retention, now);
        if usage.used == 0 { 0 } else { self.older.end().entries_since(&usage.from.mark) + 1 }
    }

    /// Whether it holds no unit at all.
    pub fn holds_nothing(&self) -> bool {
        self.newest.units == 0
    }

    /// Until the last unit has left the longest window, rounded up to an eighth of that window in
    /// absolute time: so the end moves eight times a window, not at every request.
    pub fn lifetime(&self, now: UnixMs, slack_ms: u64) -> Lifetime {
        lifetime(self.newest.at, self.end(), now, slack_ms)
    }

    /// Whose time set the end of the key.
    pub fn source(&self) -> TimeSource {
        self.source
    }

    /// Notes whose time set the end of the key.
    pub fn set_source(&mut self, source: TimeSource) {
        self.source = source;
    }

    /// Every entry held, oldest first.
    pub fn iter(&self) -> impl Iterator<Item = Entry> + '_ {
        let older = self.older.iter().map(|(at_ms, units)| Entry { at: UnixMs::saturating(at_ms), units });
        older.chain(std::iter::once(self.newest).filter(|entry| entry.units > 0))
    }

    /// A log of `entries`, later ones later, that keeps them for `retention`. `None` if an entry is
    /// out of order, empty, older than `retention` or beyond the largest count: no log can be so.
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

    /// How many separate pieces of memory it holds.
    pub fn allocations(&self) -> usize {
        self.older.allocations()
    }

    /// See [`Limiter::relocate`](super::Limiter::relocate).
    pub fn relocate(&mut self, mover: &mut impl Mover) {
        self.older.relocate(mover);
    }

    /// The units held with a timestamp greater than `now - window`; a time before the newest
    /// timestamp is read as that timestamp.
    #[inline(always)]
    fn in_window(&self, window: WindowMs, now: UnixMs) -> InWindow {
        let as_of = now.max(self.newest.at);
        let from = match self.older.start_of(window) {
            // Nearly every request but of a log that is full: all still count.
            None if self.older.oldest_at_ms() + window.get() > as_of.get() => self.older.front(),
            None => self.start_of(self.older.front(), window, as_of),
            Some(start) => self.start_of(start, window, as_of),
        };
        let open = if self.newest.at + window > as_of { self.newest.units } else { 0 };
        let used = self.older.end().units_since(&from.mark) + open;
        InWindow { window, now, from, used }
    }

    /// The newest entry that must expire before only `room` units are left.
    #[inline(always)]
    pub(super) fn last_to_expire(&self, usage: &InWindow, room: u64) -> UnixMs {
        let Log { older, newest, .. } = self;
        if room < newest.units {
            return newest.at;
        }
        let end = older.end();
        let leaves_too_many = |mark: &Mark| end.units_since(mark) + newest.units > room;
        let (_, after) = older.around_refused(usage.from, leaves_too_many);
        after.map_or(newest.at, |after| UnixMs::saturating(after.mark.at_ms))
    }

    /// Where a window that ends at `now` begins, at `from` or later.
    fn start_of(&self, from: Place, window: WindowMs, now: UnixMs) -> Place {
        self.older.seek(from, |mark| mark.at_ms + window.get() <= now.get())
    }

    /// Units held.
    #[inline(always)]
    pub(super) fn units(&self) -> u64 {
        self.older.units() + self.newest.units
    }

    /// The longest window so far, `named` among them.
    #[inline(always)]
    fn retention_with(&self, named: WindowMs) -> WindowMs {
        self.retention.map_or(named, |retention| retention.max(named))
    }

    /// When nothing counts any more, rounded up, see [`Log::lifetime`]; `None` if nothing counts.
    #[inline(always)]
    fn end(&self) -> Option<UnixMs> {
        end(self.newest.at, self.retention.filter(|_| !self.holds_nothing()))
    }

    /// Appends units no older than the newest.
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

    /// Takes away the newest `units`, which are no more than it holds. Returns how many.
    fn take_away(&mut self, units: u64) -> u64 {
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

    /// Takes away up to `units` that are older than the newest and not later than `as_of`: of those from
    /// `from` on the newest, what was counted later stays. Returns how many.
    fn take_away_until(&mut self, as_of: UnixMs, from: Place, units: u64) -> u64 {
        let to = self.older.seek(from, |mark| mark.at_ms <= as_of.get());
        let counted = to.mark.units_since(&from.mark);
        let units = units.min(counted);
        if units > 0 {
            let (place, partly) = self.keep_from(from, counted - units);
            self.older.replace(place, to, partly.map(|entry| (entry.at.get(), entry.units)));
        }
        units
    }

    /// Of the older entries from `from` on, the first that does not fit whole into `units`: the place
    /// before it, and what of it, at least a unit, does.
    fn keep_from(&self, from: Place, units: u64) -> (Place, Option<Entry>) {
        let (place, after) = self.older.around_refused(from, |mark| mark.units_since(&from.mark) < units);
        let partly = after.filter(|_| units > 0).map(|after| Entry {
            at: UnixMs::saturating(after.mark.at_ms),
            units: units - place.mark.units_since(&from.mark),
        });
        (place, partly)
    }

    /// Forgets the oldest entry of a large log if `enough` units remain without it, which only FORCE
    /// can bring about: so that forced requests do not make it grow for ever. Returns whether it did.
    #[inline(always)]
    fn forget_oldest_beyond(&mut self, enough: u64) -> bool {
        let front = self.older.front();
        let end = self.older.end();
        if self.units() > enough
            && end.entries_since(&front.mark) > FORGETFUL_ABOVE
            && let Some(second) = self.older.after(&front)
            && end.units_since(&second.mark) + self.newest.units >= enough
        {
            self.older.drop_before(second);
            return true;
        }
        false
    }
}

/// When nothing counts any more, see [`Log::lifetime`].
#[inline(always)]
pub(super) fn end(newest: UnixMs, retention: Option<WindowMs>) -> Option<UnixMs> {
    let retention = retention?;
    Some((newest + retention).rounded_up_to((retention.get() / 8).max(1)))
}

/// The lifetime of a log that ends so.
pub(super) fn lifetime(newest: UnixMs, end: Option<UnixMs>, now: UnixMs, slack_ms: u64) -> Lifetime {
    match end {
        Some(end) => Lifetime::of(newest, end, now, end.since(newest) + slack_ms),
        None => Lifetime::NONE,
    }
}

/// The tier with the longest window of `tiers`, which are at least one.
#[inline(always)]
pub(super) fn longest(tiers: &[Tier<InWindow>]) -> &Tier<InWindow> {
    tiers.iter().max_by_key(|tier| tier.quota.window()).expect("a request names at least one window")
}
