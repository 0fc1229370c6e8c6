//! The counters of an RL.FIXED or RL.SLIDING key, one for each window length.

mod counter;
mod packed;

use std::ops::Deref;

pub use counter::{ByCalendar, CALENDAR_APART, Counter, Method, Numbering};

use super::algorithm::{Algorithm, Mover, SlidingCounts, WindowUsage};
use super::decision::{Refund, Refunded, State, StateMut, Tier, Usage, fit_beside};
use super::lifetime::{Change, MoveBack, TimeSource, moved_back};
use super::quota::{MAX_COUNT, MAX_TIERS, Quota, UnixMs, WindowMs};
use packed::PackedCounter;

/// The counters of one key, at most [`MAX_TIERS`], shortest window first.
///
/// Nearly every key has one counter with small numbers. That is packed into 15 bytes, without an allocation:
/// with the enum's tag, which also tells the method, it fills the 16 bytes of a [`Limiter`](super::Limiter).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Counters(Store);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Store {
    /// One small counter of RL.FIXED.
    Fixed(PackedCounter),
    /// One small counter of RL.SLIDING.
    Sliding(PackedCounter),
    /// Several counters, or one with large numbers.
    Many(Box<Many>),
    /// One or several counters of RL.FIXED, of which some are of the calendar.
    Calendar(Box<Many>),
    /// No counter yet.
    Empty(Method),
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Many {
    method: Method,
    source: TimeSource,
    counters: Vec<Counter>,
}

impl Counters {
    pub const fn new(method: Method) -> Counters {
        Counters(Store::Empty(method))
    }

    /// How the counters are read.
    pub fn method(&self) -> Method {
        match &self.0 {
            Store::Fixed(_) => Method::Fixed,
            Store::Sliding(_) => Method::Sliding,
            Store::Many(many) | Store::Calendar(many) => many.method,
            Store::Empty(method) => *method,
        }
    }

    /// Whether some of its windows may be of the calendar. Then it must be read [by that](ByCalendar).
    #[inline(always)]
    pub fn is_of_calendar(&self) -> bool {
        CALENDAR_APART && matches!(self.0, Store::Calendar(_))
    }

    pub fn algorithm(&self) -> Algorithm {
        match self.method() {
            Method::Fixed => Algorithm::Fixed,
            Method::Sliding => Algorithm::Sliding,
        }
    }

    /// The packed counter, if there is only one and it is small.
    fn packed(&self) -> Option<&PackedCounter> {
        match &self.0 {
            Store::Fixed(packed) | Store::Sliding(packed) => Some(packed),
            Store::Many(_) | Store::Calendar(_) | Store::Empty(_) => None,
        }
    }

    /// The counters as they were last written, shortest window first.
    pub fn iter(&self) -> impl Iterator<Item = Counter> + '_ {
        let one = self.packed().and_then(PackedCounter::unpack);
        let many: &[Counter] = match &self.0 {
            Store::Many(many) | Store::Calendar(many) => &many.counters,
            Store::Fixed(_) | Store::Sliding(_) | Store::Empty(_) => &[],
        };
        one.into_iter().chain(many.iter().copied())
    }

    /// Restores counters. `None` if there are none or too many, if windows are equal or out of order, or if a
    /// count is impossible.
    pub fn restore(method: Method, counters: Vec<Counter>) -> Option<Counters> {
        let is_valid = |c: &Counter| {
            let previous = if method == Method::Fixed { 0 } else { MAX_COUNT };
            // Window 0 has no window before it.
            let previous = if c.number == 0 { 0 } else { previous };
            !c.is_zero() && c.current <= MAX_COUNT && c.previous <= previous
        };
        let sorted = counters.is_sorted_by(|a, b| a.window < b.window);
        if counters.is_empty() || counters.len() > MAX_TIERS || !sorted || !counters.iter().all(is_valid) {
            return None;
        }
        let mut all = Counters::new(method);
        all.replace(counters);
        Some(all)
    }

    fn len(&self) -> usize {
        match &self.0 {
            Store::Fixed(_) | Store::Sliding(_) => 1,
            Store::Many(many) | Store::Calendar(many) => many.counters.len(),
            Store::Empty(_) => 0,
        }
    }

    fn source(&self) -> TimeSource {
        match &self.0 {
            Store::Fixed(packed) | Store::Sliding(packed) => packed.source,
            Store::Many(many) | Store::Calendar(many) => many.source,
            Store::Empty(_) => TimeSource::Unknown,
        }
    }

    pub fn set_source(&mut self, source: TimeSource) {
        match &mut self.0 {
            Store::Fixed(packed) | Store::Sliding(packed) => packed.source = source,
            Store::Many(many) | Store::Calendar(many) => many.source = source,
            Store::Empty(_) => {}
        }
    }

    /// Returns the same counters, with every allocation passed through `mover`.
    pub fn relocate(self, mover: &mut impl Mover) -> Counters {
        let mut moved = |many| {
            let mut many: Box<Many> = mover.move_box(many);
            many.counters = mover.move_vec(std::mem::take(&mut many.counters));
            many
        };
        Counters(match self.0 {
            Store::Many(many) => Store::Many(moved(many)),
            Store::Calendar(many) => Store::Calendar(moved(many)),
            store @ (Store::Fixed(_) | Store::Sliding(_) | Store::Empty(_)) => store,
        })
    }

    /// Bytes on the heap.
    pub fn heap_bytes(&self) -> usize {
        match &self.0 {
            Store::Many(many) | Store::Calendar(many) => {
                size_of::<Many>() + many.counters.capacity() * size_of::<Counter>()
            }
            Store::Fixed(_) | Store::Sliding(_) | Store::Empty(_) => 0,
        }
    }

    #[inline(always)]
    fn find(&self, window: WindowMs) -> Option<Counter> {
        match &self.0 {
            Store::Fixed(packed) | Store::Sliding(packed) => packed.if_window(window),
            Store::Many(many) | Store::Calendar(many) => {
                many.counters.iter().find(|counter| counter.window == window).copied()
            }
            Store::Empty(_) => None,
        }
    }

    /// Replaces the counter of the same window, or inserts `counter` and drops those that no longer count at
    /// `now`. Returns whether the end of what counts moved.
    #[inline(always)]
    fn put(&mut self, counter: Counter, by: impl Numbering, now: UnixMs) -> bool {
        // The end does not move if the counter already had units in this window.
        let end_moved = |old: &Counter| old.number != counter.number || old.current == 0;
        match &mut self.0 {
            Store::Fixed(packed) | Store::Sliding(packed) => {
                if let Some(old) = packed.if_window(counter.window)
                    && let Some(new) = PackedCounter::pack(&counter, packed.source)
                {
                    *packed = new;
                    return end_moved(&old);
                }
            }
            Store::Many(many) | Store::Calendar(many) => {
                if let Some(old) = many.counters.iter_mut().find(|old| old.window == counter.window) {
                    let end_moved = end_moved(old);
                    *old = counter;
                    return end_moved;
                }
            }
            Store::Empty(_) => {}
        }
        self.insert(counter, by, now);
        true
    }

    /// What [`put`](Self::put) does if the counter is new, or does not fit where it is.
    fn insert(&mut self, counter: Counter, by: impl Numbering, now: UnixMs) {
        let stays = |old: &Counter| old.window != counter.window && old.ends(by) > now;
        let mut all: Vec<Counter> = self.iter().filter(stays).collect();
        let place = all.partition_point(|old| old.window < counter.window);
        all.insert(place, counter);
        self.replace(all);
    }

    #[cold]
    #[inline(never)]
    fn move_back(&mut self, by: impl Numbering, to: MoveBack) -> bool {
        let moved = moved_back(self.iter(), |counter| counter.move_back(by, to));
        moved.map(|counters| self.replace(counters)).is_some()
    }

    /// Replaces all counters, of which there is at least one.
    fn replace(&mut self, mut counters: Vec<Counter>) {
        let (method, source) = (self.method(), self.source());
        let packed = match counters.as_slice() {
            [only] => PackedCounter::pack(only, source),
            _ => None,
        };
        self.0 = match (packed, method) {
            (Some(packed), Method::Fixed) => Store::Fixed(packed),
            (Some(packed), Method::Sliding) => Store::Sliding(packed),
            (None, _) => {
                counters.shrink_to_fit();
                let of_calendar =
                    CALENDAR_APART && counters.iter().any(|counter| counter.window.is_of_calendar());
                let many = Box::new(Many { method, source, counters });
                if of_calendar { Store::Calendar(many) } else { Store::Many(many) }
            }
        };
    }

    /// Makes room for counters of the calendar, which are added next.
    #[cold]
    #[inline(never)]
    pub fn make_room_for_calendar(&mut self) {
        let (method, source, counters) = (self.method(), self.source(), self.iter().collect());
        self.0 = Store::Calendar(Box::new(Many { method, source, counters }));
    }
}

/// Counters with the numbering of their windows, which is looked up once for a request.
pub struct Numbered<C, N> {
    counters: C,
    by: N,
}

impl<C: Deref<Target = Counters>> Numbered<C, Method> {
    /// Counters that [have no windows of the calendar](Counters::is_of_calendar).
    #[inline(always)]
    pub fn by_method(counters: C) -> Numbered<C, Method> {
        Numbered { by: counters.method(), counters }
    }
}

impl<C: Deref<Target = Counters>> Numbered<C, ByCalendar> {
    pub fn by_calendar(counters: C) -> Numbered<C, ByCalendar> {
        Numbered { by: ByCalendar, counters }
    }
}

impl<C: Deref<Target = Counters>, N: Numbering> Numbered<C, N> {
    /// The counters that can still count at `now`, shortest window first.
    fn live(&self, now: UnixMs) -> impl Iterator<Item = Counter> + '_ {
        self.counters.iter().filter(move |counter| counter.ends(self.by) > now)
    }
}

impl<C: Deref<Target = Counters>, N: Numbering> State for Numbered<C, N> {
    /// The counter of the window, advanced to the time.
    type Place = Counter;

    #[inline(always)]
    fn usage(&self, quota: Quota, now: UnixMs) -> Usage<Counter> {
        let window = quota.window();
        let counter = match self.counters.find(window) {
            Some(counter) => counter.advance(self.by, now),
            None => Counter::new(window, self.by, now),
        };
        Usage { used: counter.used(now), place: counter }
    }

    #[inline(always)]
    fn wait_until(&self, _quota: Quota, counter: &Counter, most: u64, now: UnixMs) -> u64 {
        counter.wait_until(self.by, most, now)
    }

    #[inline(always)]
    fn windows_fit(&self, quotas: &[Quota], now: UnixMs) -> bool {
        let live = || self.live(now).map(|counter| counter.window);
        quotas.len() + self.counters.len() <= MAX_TIERS || fit_beside(quotas, live())
    }

    #[inline(always)]
    fn is_ahead_of(&self, now: UnixMs) -> bool {
        match &self.counters.0 {
            Store::Fixed(packed) | Store::Sliding(packed) => packed.start_ms() > now.get(),
            Store::Many(many) | Store::Calendar(many) => {
                many.counters.iter().any(|counter| counter.start(self.by) > now)
            }
            Store::Empty(_) => false,
        }
    }

    fn newest_in(&self, quotas: &[Quota]) -> UnixMs {
        let named = quotas.iter().filter_map(|quota| self.counters.find(quota.window()));
        named.map(|counter| counter.start(self.by)).max().unwrap_or_default()
    }

    #[inline(always)]
    fn source(&self) -> TimeSource {
        self.counters.source()
    }

    fn is_empty(&self) -> bool {
        self.counters.len() == 0
    }

    /// The lifetime of the counter that counts longest.
    fn lifetime_ms(&self, now: UnixMs) -> u64 {
        self.counters.iter().map(|counter| counter.ends(self.by).since(now)).max().unwrap_or(0)
    }

    /// Counters live exactly as long as they count.
    fn retention_too_short_for(&self, _quota: Quota) -> bool {
        false
    }

    fn windows(&self, now: UnixMs) -> Vec<WindowUsage> {
        let shown = |counter: Counter| {
            let counter = counter.advance(self.by, now);
            let Counter { window, current, previous, .. } = counter;
            let used = counter.used(now);
            WindowUsage {
                window,
                window_ms: counter.length_ms(self.by),
                limit: None,
                used,
                reset_after_ms: if used == 0 { 0 } else { counter.wait_until(self.by, 0, now) },
                counts: (self.by.method() == Method::Sliding).then_some(SlidingCounts { current, previous }),
            }
        };
        let mut windows: Vec<WindowUsage> = Vec::new();
        // In a list first: else optimized code tests bytes that an absent counter leaves unset, and `make memcheck` complains.
        let live: Vec<Counter> = self.live(now).collect();
        for shown in live.into_iter().map(shown) {
            let place = windows.partition_point(|other| other.window_ms <= shown.window_ms);
            windows.insert(place, shown);
        }
        windows
    }
}

impl<N: Numbering> StateMut for Numbered<&mut Counters, N> {
    #[inline(always)]
    fn move_back(&mut self, to: MoveBack) -> bool {
        self.counters.move_back(self.by, to)
    }

    #[inline(always)]
    fn add(&mut self, tiers: &mut [Tier<Counter>], units: u64, now: UnixMs) -> Change {
        let mut change = Change::default();
        for tier in tiers {
            let units = tier.usage.place.add(units);
            if units > 0 {
                tier.usage.used = (tier.usage.used + units).min(MAX_COUNT);
                change.end_moved |= self.counters.put(tier.usage.place, self.by, now);
                change.units = change.units.max(units);
            }
        }
        change
    }

    fn refund(&mut self, quotas: &[Quota], refund: Refund) -> Refunded {
        let (mut left, mut units): (Vec<Counter>, _) = (self.counters.iter().collect(), 0);
        for quota in quotas {
            if let Some(counter) = left.iter_mut().find(|counter| counter.window == quota.window()) {
                units = units.max(counter.refund(self.by, refund.units, refund.as_of));
            }
        }
        left.retain(|counter| !counter.is_zero());
        let emptied = units > 0 && !left.iter().any(|counter| counter.ends(self.by) > refund.ended_by);
        if units > 0 && !emptied {
            self.counters.replace(left);
        }
        Refunded { units, emptied }
    }
}
