//! RL.LOG: every unit carries the time it was taken at, and is free again one window later.

use super::run::{Mark, Place, Run};
use super::{
    Lifetime, MAX_COUNT, MAX_TIERS, Memory, Mover, Quota, Recording, Tier, TooManyWindows, UnixMs, WindowMs,
};

/// Only a log of more entries than this forgets units for what FORCE puts beyond the limit: enough
/// to keep small logs whole, few enough that a flood of forced requests takes a few kilobytes.
const FORGETFUL_ABOVE: u64 = 1024;

/// The units of one key, each with its own time.
///
/// All but the newest entry lie in a compact [`Run`]; the newest stays open here, since more
/// units of the same millisecond join it.
#[derive(Clone, Debug, Default)]
pub struct Log {
    /// How long units are kept: the longest window that counted anything so far.
    keep: Option<WindowMs>,
    older: Run,
    newest: Entry,
    /// Until when the key is known to live.
    settled_until: UnixMs,
    /// Whether the server's clock alone says so.
    settled_by_clock: bool,
    /// Where shorter windows began when they last counted: saves walking there from the front.
    starts: Vec<Start>,
}

/// Units of one millisecond; none at all in an empty log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Entry {
    /// When they were taken.
    pub at: UnixMs,
    /// How many.
    pub units: u64,
}

#[derive(Clone, Copy, Debug)]
struct Start {
    window: WindowMs,
    place: Place,
}

/// What of a log counts in one window at one time.
pub(super) struct InWindow {
    window: WindowMs,
    now: UnixMs,
    /// Where the window begins in the older entries.
    from: Place,
    /// Units from there to the newest.
    used: u64,
}

impl Memory for Log {
    type Standing = InWindow;

    /// The units held with a timestamp greater than `now - window`; a time before the newest
    /// timestamp is read as that timestamp.
    #[inline(always)]
    fn standing(&self, window: WindowMs, now: UnixMs) -> InWindow {
        let as_of = now.max(self.newest.at);
        let start = self.starts.iter().find(|start| start.window == window);
        let from = match start {
            // Nearly every request but of a log that is full: all still count.
            None if self.older.oldest_at_ms() > as_of.0.saturating_sub(window.get()) => self.older.front(),
            None => self.start_of(self.older.front(), window, as_of),
            Some(start) => self.start_of(start.place, window, as_of),
        };
        let open = if self.newest.at + window > as_of { self.newest.units } else { 0 };
        let used = self.older.end().units_since(&from.mark) + open;
        InWindow { window, now, from, used }
    }

    #[inline(always)]
    fn used(&self, standing: &InWindow) -> u64 {
        standing.used
    }

    #[inline(always)]
    fn wait_beyond(&self, standing: &InWindow, room: u64) -> u64 {
        // The request fits when the entry that leaves too many units after it has left.
        let Log { older, newest, .. } = self;
        let last_to_leave = if room < newest.units {
            newest.at
        } else {
            let end = older.end();
            let leaves_too_many = |mark: &Mark| end.units_since(mark) + newest.units > room;
            let (_, after) = older.around_refused(standing.from, leaves_too_many);
            after.map_or(newest.at, |after| UnixMs(after.mark.at_ms))
        };
        (last_to_leave + standing.window).since(standing.now)
    }

    #[inline(always)]
    fn is_ahead_of(&self, now: UnixMs) -> bool {
        self.newest.at > now && !Log::is_empty(self)
    }

    #[inline(always)]
    fn is_settled(&self) -> bool {
        Log::is_settled(self)
    }

    /// A log keeps its units for the longest window that counted anything.
    #[inline(always)]
    fn keeps_too_little_for(&self, quota: &Quota) -> bool {
        self.keep.is_some_and(|keep| keep < quota.window)
    }
}

impl Recording for Log {
    /// As far as the count does not saturate.
    #[inline(always)]
    fn add(
        &mut self,
        tiers: &mut [Tier<InWindow>],
        units: u64,
        now: UnixMs,
        over: bool,
    ) -> Result<u64, TooManyWindows> {
        let now = now.max(self.newest.at);
        let longest = longest(tiers);
        let keep = self.longest_with(longest.quota.window);
        // No later request is read as of a time before this one: what is out now stays out.
        let (from, used) = if keep == longest.quota.window {
            (longest.standing.from, longest.standing.used)
        } else {
            let InWindow { from, used, .. } = self.standing(keep, now);
            (from, used)
        };
        let units = units.min(MAX_COUNT - used);
        if units == 0 {
            return Ok(0);
        }
        let named = longest.quota.window;
        // Whether a shorter window may begin at another place than it did.
        let mut moved = used == 0;
        if moved {
            *self = Log { keep: Some(named), ..Log::default() };
        } else {
            self.older.drop_before(from);
            self.keep = Some(keep);
        }
        let grew = self.push(Entry { at: now, units });
        if grew && over && self.keep == Some(named) {
            let largest = tiers.iter().map(|tier| tier.quota.limit).max().unwrap_or(0);
            // Twice: so a whole limit can be given back, and what it was counted on top of is still there.
            self.forget_oldest_beyond(2 * largest);
            moved = true;
        }
        for Tier { quota, standing } in tiers {
            if self.keep == Some(quota.window) {
                // All that is still held.
                standing.from = self.older.front();
                standing.used = self.older.units() + self.newest.units;
            } else {
                if moved {
                    *standing = self.standing(quota.window, standing.now);
                } else {
                    standing.used += units;
                }
                self.remember_start(quota.window, standing.from);
            }
        }
        Ok(units)
    }

    fn give_back(&mut self, tiers: &mut [Tier<InWindow>], units: u64, now: UnixMs) -> u64 {
        let keep = self.longest_with(longest(tiers).quota.window);
        let units = units.min(self.standing(keep, now).used);
        self.take_away(units);
        for Tier { quota, standing } in tiers {
            *standing = self.standing(quota.window, now);
        }
        units
    }

    #[inline(always)]
    fn is_empty(&self) -> bool {
        Log::is_empty(self)
    }
}

impl Log {
    /// How long units are kept; `None` while it never held any.
    pub fn keep(&self) -> Option<WindowMs> {
        self.keep
    }

    /// Distinct timestamps that are still in the longest window.
    pub fn entries(&self, now: UnixMs) -> u64 {
        let Some(keep) = self.keep else { return 0 };
        let standing = self.standing(keep, now);
        if standing.used == 0 { 0 } else { self.older.end().entries_since(&standing.from.mark) + 1 }
    }

    /// Takes away the newest `units`, which are no more than it holds.
    fn take_away(&mut self, units: u64) {
        if units == 0 {
            return;
        }
        if units < self.newest.units {
            self.newest.units -= units;
            return;
        }
        // The places of windows may lie in what goes now.
        self.starts = Vec::new();
        // Without it the log may be behind the clock again, and the key have healed meanwhile.
        self.settled_until = UnixMs(0);
        let rest = self.older.units() + self.newest.units - units;
        let front = self.older.front();
        let (last, after) = self.older.around_refused(front, |mark| mark.units_since(&front.mark) < rest);
        self.newest = match after {
            Some(after) if rest > 0 => {
                Entry { at: UnixMs(after.mark.at_ms), units: rest - last.mark.units_since(&front.mark) }
            }
            _ => Entry { units: 0, ..self.newest },
        };
        self.older.truncate(last);
    }

    /// Whether it holds no unit at all.
    pub fn is_empty(&self) -> bool {
        self.newest.units == 0
    }

    /// Until the last unit has left the longest window, rounded up to an eighth of that window in
    /// absolute time: so the end moves eight times a window, not at every request.
    pub fn lifetime(&self, now: UnixMs, slack_ms: u64) -> Lifetime {
        let Some(keep) = self.keep.filter(|_| !self.is_empty()) else { return Lifetime::NONE };
        let end = (self.newest.at + keep).0.next_multiple_of((keep.get() / 8).max(1));
        Lifetime::of(self.newest.at, UnixMs(end), now, UnixMs(end).since(self.newest.at) + slack_ms)
    }

    /// Whether the key is known to live as long as its units do.
    #[inline]
    pub fn is_settled(&self) -> bool {
        self.keep.is_some_and(|keep| self.newest.at + keep <= self.settled_until)
    }

    /// See [`Limiter::is_settled_by_clock`](super::Limiter::is_settled_by_clock).
    pub fn is_settled_by_clock(&self) -> bool {
        self.settled_by_clock && self.is_settled()
    }

    /// See [`Limiter::settle`](super::Limiter::settle).
    pub fn settle(&mut self, until: UnixMs, by_clock: bool) {
        self.settled_until = until;
        self.settled_by_clock = by_clock;
    }

    /// Every entry held, oldest first.
    pub fn iter(&self) -> impl Iterator<Item = Entry> + '_ {
        let older = self.older.iter().map(|(at_ms, units)| Entry { at: UnixMs(at_ms), units });
        older.chain(std::iter::once(self.newest).filter(|entry| entry.units > 0))
    }

    /// A log of `entries`, later ones later, that keeps them for `keep`. `None` if an entry is
    /// out of order, empty, older than `keep` or beyond the largest count: no log can be so.
    pub fn restore(keep: WindowMs, entries: impl Iterator<Item = Option<Entry>>) -> Option<Log> {
        let mut log = Log { keep: Some(keep), ..Log::default() };
        let mut oldest = None;
        for entry in entries {
            let entry = entry?;
            let held = log.older.units() + log.newest.units;
            let later = log.is_empty() || entry.at > log.newest.at;
            if entry.units == 0 || entry.units > MAX_COUNT - held || !later {
                return None;
            }
            oldest = oldest.or(Some(entry.at));
            log.push(entry);
        }
        (oldest? + keep > log.newest.at).then_some(log)
    }

    /// Bytes on the heap.
    pub fn heap_bytes(&self) -> usize {
        size_of::<Log>() + self.older.heap_bytes() + self.starts.capacity() * size_of::<Start>()
    }

    /// How many separate pieces of memory it holds.
    pub fn allocations(&self) -> usize {
        self.older.allocations()
    }

    /// See [`Limiter::relocate`](super::Limiter::relocate).
    pub fn relocate(&mut self, mover: &mut impl Mover) {
        mover.move_vec(&mut self.starts);
        self.older.relocate(mover);
    }

    /// Where a window that ends at `now` begins, at `from` or later.
    fn start_of(&self, from: Place, window: WindowMs, now: UnixMs) -> Place {
        self.older.seek(from, |mark| UnixMs(mark.at_ms) + window <= now)
    }

    /// The longest window so far, `named` among them.
    #[inline(always)]
    fn longest_with(&self, named: WindowMs) -> WindowMs {
        self.keep.map_or(named, |keep| keep.max(named))
    }

    /// Appends units no older than the newest; returns whether that made an entry of its own.
    #[inline(always)]
    fn push(&mut self, entry: Entry) -> bool {
        if self.newest.units > 0 && self.newest.at == entry.at {
            self.newest.units += entry.units;
            return false;
        }
        if self.newest.units > 0 {
            self.older.push(self.newest.at.0, self.newest.units);
        }
        self.newest = entry;
        true
    }

    /// Forgets the oldest entry of a large log if `enough` units remain without it: so that forced
    /// requests do not make it grow, and cost what others have counted as little as can be.
    fn forget_oldest_beyond(&mut self, enough: u64) {
        let front = self.older.front();
        let (end, open) = (self.older.end(), self.newest.units);
        if end.entries_since(&front.mark) > FORGETFUL_ABOVE
            && let Some(second) = self.older.after(&front)
            && end.units_since(&second.mark) + open >= enough
        {
            self.older.drop_before(second);
        }
    }

    fn remember_start(&mut self, window: WindowMs, place: Place) {
        if let Some(start) = self.starts.iter_mut().find(|start| start.window == window) {
            start.place = place;
            return;
        }
        if self.starts.len() == MAX_TIERS {
            self.starts.remove(0);
        }
        self.starts.push(Start { window, place });
    }
}

/// The tier with the longest window of `tiers`, which are at least one.
#[inline(always)]
fn longest(tiers: &[Tier<InWindow>]) -> &Tier<InWindow> {
    tiers.iter().max_by_key(|tier| tier.quota.window).expect("a request names at least one window")
}
