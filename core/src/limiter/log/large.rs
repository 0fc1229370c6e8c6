//! A log of many units.

use super::super::algorithm::Mover;
use super::super::decision::{Refund, Refunded, StateMut, Tier, Usage};
use super::super::lifetime::{Change, MoveBack, TimeSource};
use super::super::quota::{MAX_COUNT, Quota, UnixMs, WindowMs};
use super::entry::{Cursor, Entry, Mark};
use super::run::Run;
use super::starts::Starts;
use super::{Entries, EntriesMut, longest, rounded_end};

/// A log with more entries than this drops old units that FORCE counted beyond the limit, so that a flood of forced requests
/// takes only a few kilobytes. With fewer entries it keeps them all.
const FORGET_ABOVE_ENTRIES: u64 = 1025;

/// The units of one key, each with its own time.
#[derive(Clone, Debug, Default)]
pub struct Large {
    retention: Option<WindowMs>,
    run: Run,
    starts: Starts,
    source: TimeSource,
}

impl Large {
    /// A log of these entries, oldest first, all within `retention`.
    pub fn with_entries(
        retention: Option<WindowMs>,
        source: TimeSource,
        entries: impl Iterator<Item = Entry>,
    ) -> Large {
        let mut log = Large { retention, source, ..Large::default() };
        entries.for_each(|entry| log.run.push(entry.at.get(), entry.units));
        log
    }

    /// Appends an entry that was stored. `None` if it is empty, not later than the others, later than the oldest of them by
    /// more than the log keeps its units, or exceeds [`MAX_COUNT`] with them.
    pub fn restore(&mut self, entry: Entry) -> Option<()> {
        let units = self.units();
        let oldest = if units == 0 { entry.at.get() } else { self.run.oldest_at_ms() };
        let is_valid = (1..=MAX_COUNT - units).contains(&entry.units)
            && (units == 0 || entry.at > self.newest())
            && oldest + self.retention?.get() > entry.at.get();
        is_valid.then(|| self.run.push(entry.at.get(), entry.units))
    }

    /// Bytes of its entries, or any number above `most` if there are more than `most`.
    pub fn bytes_up_to(&self, most: usize) -> usize {
        self.run.bytes_up_to(most)
    }

    pub fn set_source(&mut self, source: TimeSource) {
        self.source = source;
    }

    /// Bytes on the heap, itself included.
    pub fn heap_bytes(&self) -> usize {
        size_of::<Large>() + self.run.heap_bytes() + self.starts.heap_bytes()
    }

    pub fn allocations(&self) -> usize {
        self.run.allocations()
    }

    /// Passes every allocation through `mover`.
    pub fn relocate(&mut self, mover: &mut impl Mover) {
        self.starts.relocate(mover);
        self.run.relocate(mover);
    }

    /// Drops the oldest entry if there are very many and at least `enough` units remain. Only FORCE can cause that;
    /// without this, forced requests would make the log grow without bound. Returns whether it dropped one.
    fn forget_oldest_beyond(&mut self, enough: u64) -> bool {
        if self.units() > enough
            && self.entries_after(&self.front().mark) > FORGET_ABOVE_ENTRIES
            && let Some(second) = self.run.after(&self.front())
            && self.units_after(&second.mark) >= enough
        {
            self.run.drop_before(second);
            return true;
        }
        false
    }
}

impl Entries for Large {
    fn retention(&self) -> Option<WindowMs> {
        self.retention
    }

    fn newest(&self) -> UnixMs {
        UnixMs::saturating(self.run.end().at_ms)
    }

    fn time_source(&self) -> TimeSource {
        self.source
    }

    fn front(&self) -> Cursor {
        self.run.front()
    }

    fn units_after(&self, mark: &Mark) -> u64 {
        self.run.end().units_since(mark)
    }

    fn entries_after(&self, mark: &Mark) -> u64 {
        self.run.end().entries_since(mark)
    }

    fn in_window(&self, window: WindowMs, now: UnixMs) -> Usage<Cursor> {
        let as_of = now.max(self.newest());
        let has_expired = |mark: &Mark| mark.at_ms + window.get() <= as_of.get();
        let place = match self.starts.of(window) {
            // Every entry still counts, as is usual unless the log is full.
            None if self.run.oldest_at_ms() + window.get() > as_of.get() => self.front(),
            start => self.seek(start.unwrap_or(self.front()), has_expired).0,
        };
        Usage { used: self.units_after(&place.mark), place }
    }

    fn seek(&self, from: Cursor, passes: impl Fn(&Mark) -> bool) -> (Cursor, Option<Cursor>) {
        self.run.seek(from, passes)
    }

    fn pieces(&self) -> impl Iterator<Item = &[u8]> {
        self.run.pieces()
    }
}

impl EntriesMut for Large {
    fn replace(&mut self, from: Cursor, to: Cursor, kept: Option<Entry>) {
        self.starts.clear();
        self.run.replace(from, to, kept.map(|entry| (entry.at.get(), entry.units)));
    }
}

impl StateMut for Large {
    fn move_back(&mut self, to: MoveBack) -> bool {
        let by_ms = self.ms_to_move_back(to);
        if by_ms > 0 {
            self.starts.clear();
            self.run.move_back(by_ms);
        }
        by_ms > 0
    }

    fn add(&mut self, tiers: &mut [Tier<Cursor>], units: u64, now: UnixMs) -> Change {
        let as_of = now.max(self.newest());
        let longest = longest(tiers);
        let named = longest.quota.window();
        let retention = self.retention.map_or(named, |retention| retention.max(named));
        // Later requests are decided as of this time or later, so what has expired by now never counts again.
        let Usage { place: from, used } =
            if retention == named { longest.usage } else { self.in_window(retention, now) };
        let units = units.min(MAX_COUNT - used);
        if units == 0 {
            return Change::default();
        }
        let end_moved = used == 0
            || self.retention != Some(retention)
            || as_of + retention > rounded_end(self.newest(), retention);
        let mut starts_stale = used == 0;
        if starts_stale {
            *self = Large { retention: Some(named), source: self.source, ..Large::default() };
        } else {
            self.run.drop_before(from);
            self.retention = Some(retention);
        }
        self.run.push(as_of.get(), units);
        let mut forgot = false;
        if self.retention == Some(named) {
            let largest = tiers.iter().map(|tier| tier.quota.limit()).max().unwrap_or(0);
            // Twice the limit, so that the units before still count after a whole limit was given back.
            forgot = self.forget_oldest_beyond(2 * largest);
            starts_stale |= forgot;
        }
        for tier in tiers {
            let window = tier.quota.window();
            if self.retention == Some(window) {
                // This is the longest window, in which every unit held counts.
                tier.usage = Usage { used: self.units(), place: self.front() };
                continue;
            }
            if starts_stale {
                tier.usage = self.in_window(window, now);
            } else {
                tier.usage.used += units;
            }
            self.starts.remember(window, tier.usage.place);
        }
        Change { units, end_moved, forgot, ..Change::default() }
    }

    fn refund(&mut self, quotas: &[Quota], refund: Refund) -> Refunded {
        EntriesMut::refund(self, quotas, refund)
    }
}
