//! What a fixed or sliding window counter remembers: for each window length, the number of the
//! window it is in and the units of that window and the one before.

use std::ops::Deref;

use arrayvec::ArrayVec;

use super::{
    Algorithm, Lifetime, MAX_COUNT, MAX_TIERS, Memory, Mover, Quota, Recording, Tier, TooManyWindows, UnixMs,
    WindowMs, fixed, sliding,
};

/// How the counters of a key are read. [`Algorithm`] without the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// See [`fixed`].
    Fixed,
    /// See [`sliding`].
    Sliding,
}

impl From<Method> for Algorithm {
    fn from(method: Method) -> Algorithm {
        match method {
            Method::Fixed => Algorithm::Fixed,
            Method::Sliding => Algorithm::Sliding,
        }
    }
}

/// The counter of one window length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counter {
    /// The length of its windows, which are aligned to the Unix epoch.
    pub window: WindowMs,
    /// Number of the window it is in: `floor(now / window)` when it last counted.
    pub number: u64,
    /// Units counted in that window.
    pub current: u64,
    /// Units counted in the window before; always 0 in a fixed window.
    pub previous: u64,
}

impl Counter {
    /// An empty counter in the window of `now`.
    #[inline(always)]
    pub fn new(window: WindowMs, now: UnixMs) -> Counter {
        Counter { window, number: now.0 / window.get(), current: 0, previous: 0 }
    }

    /// The first millisecond of the window it is in.
    #[inline(always)]
    pub fn start(&self) -> UnixMs {
        UnixMs(self.number * self.window.get())
    }

    /// The first millisecond after the window it is in.
    #[inline(always)]
    pub fn end(&self) -> UnixMs {
        self.start() + self.window
    }

    /// Adds `units` to the current window, up to [`MAX_COUNT`]. Returns how many that took.
    #[inline(always)]
    fn add(&mut self, units: u64) -> u64 {
        let units = units.min(MAX_COUNT - self.current);
        self.current += units;
        units
    }

    /// Takes up to `units` from the current window, then from the one before. Returns how many
    /// there were.
    fn give_back(&mut self, units: u64) -> u64 {
        let from_current = units.min(self.current);
        let from_previous = (units - from_current).min(self.previous);
        self.current -= from_current;
        self.previous -= from_previous;
        from_current + from_previous
    }

    fn is_zero(&self) -> bool {
        self.current == 0 && self.previous == 0
    }

    /// The same as it stands at `now`, which may be in a later window.
    #[inline(always)]
    fn advance(self, method: Method, now: UnixMs) -> Counter {
        let number = now.0 / self.window.get();
        if number <= self.number {
            return self;
        }
        let previous = match method {
            Method::Sliding if number == self.number + 1 => self.current,
            _ => 0,
        };
        Counter { number, current: 0, previous, ..self }
    }
}

/// A counter as it stands at one time.
pub(super) struct AtTime {
    counter: Counter,
    now: UnixMs,
    used: u64,
}

/// Counters and how they are read: known once, not looked up at every step.
pub(super) struct ByMethod<C> {
    counters: C,
    method: Method,
}

impl<C: Deref<Target = Counters>> Memory for ByMethod<C> {
    type Standing = AtTime;

    #[inline(always)]
    fn standing(&self, window: WindowMs, now: UnixMs) -> AtTime {
        let counter = self.counters.at(self.method, window, now);
        let used = match self.method {
            Method::Fixed => fixed::used(&counter),
            Method::Sliding => sliding::used(&counter, now),
        };
        AtTime { counter, now, used }
    }

    #[inline(always)]
    fn used(&self, standing: &AtTime) -> u64 {
        standing.used
    }

    #[inline(always)]
    fn wait_beyond(&self, standing: &AtTime, room: u64) -> u64 {
        match self.method {
            Method::Fixed => fixed::wait(&standing.counter, standing.now),
            Method::Sliding => sliding::wait_until(&standing.counter, room, standing.now),
        }
    }

    #[inline(always)]
    fn is_ahead_of(&self, now: UnixMs) -> bool {
        self.counters.are_ahead_of(now)
    }

    #[inline(always)]
    fn is_settled(&self) -> bool {
        self.counters.are_settled()
    }

    /// The lifetime of a counter is exact.
    #[inline(always)]
    fn keeps_too_little_for(&self, _quota: &Quota) -> bool {
        false
    }
}

impl Recording for ByMethod<&mut Counters> {
    #[inline(always)]
    fn add(
        &mut self,
        tiers: &mut [Tier<AtTime>],
        units: u64,
        now: UnixMs,
        _over: bool,
    ) -> Result<u64, TooManyWindows> {
        if tiers.len() + self.counters.len() > MAX_TIERS {
            let windows: ArrayVec<_, MAX_TIERS> = tiers.iter().map(|tier| tier.quota.window).collect();
            self.counters.make_sure_of_room_for(&windows, now)?;
        }
        let mut counted = 0;
        for Tier { standing, .. } in tiers {
            let units = standing.counter.add(units);
            if units > 0 {
                standing.used = (standing.used + units).min(MAX_COUNT);
                self.counters.put(standing.counter, now);
                counted = counted.max(units);
            }
        }
        Ok(counted)
    }

    fn give_back(&mut self, tiers: &mut [Tier<AtTime>], units: u64, now: UnixMs) -> u64 {
        let mut most = 0;
        for Tier { quota, standing } in tiers {
            let given = standing.counter.give_back(units);
            if given > 0 {
                self.counters.put_or_remove(standing.counter, now);
                most = most.max(given);
            }
            *standing = self.standing(quota.window, now);
        }
        most
    }

    #[inline(always)]
    fn is_empty(&self) -> bool {
        self.counters.is_empty()
    }
}

/// The counters of one key, at most [`MAX_TIERS`] of them, shortest window first.
///
/// Nearly every key has a single counter with modest numbers, so that one is kept in 15 bytes
/// without a further allocation: with its tag, which tells its method too, it fills the 16 of a
/// [`Limiter`](super::Limiter).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Counters(Store);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Store {
    Fixed(Small),
    Sliding(Small),
    Many(Box<Many>),
    None(Method),
}

/// Whether a key is known to live as long as its counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Settled {
    No,
    Yes,
    /// By the server's clock alone.
    ByClock,
}

impl Settled {
    /// This while `still`.
    #[inline(always)]
    fn while_still(self, still: bool) -> Settled {
        if still { self } else { Settled::No }
    }
}

/// A counter whose numbers are small: a window of less than 50 days, a window number of less than
/// 2^32 (until the year 2106 for all windows of a second or more) and counts of less than 2^24.
///
/// In bytes, lowest first: nothing but bytes leaves room for a tag beside it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Small {
    window: [u8; 4],
    number: [u8; 4],
    current: Count24,
    previous: Count24,
    settled: Settled,
}

/// A count of less than 2^24.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Count24([u8; 2], u8);

impl Count24 {
    #[inline(always)]
    fn new(units: u64) -> Count24 {
        Count24((units as u16).to_le_bytes(), (units >> 16) as u8)
    }

    #[inline(always)]
    fn get(self) -> u64 {
        u64::from(u16::from_le_bytes(self.0)) | u64::from(self.1) << 16
    }
}

impl Small {
    /// `None` if a number is too large.
    #[inline(always)]
    fn pack(counter: &Counter, settled: Settled) -> Option<Small> {
        let Counter { window, number, current, previous } = *counter;
        if (current | previous) >> 24 != 0 || (window.get() | number) >> 32 != 0 {
            return None;
        }
        Some(Small {
            window: (window.get() as u32).to_le_bytes(),
            number: (number as u32).to_le_bytes(),
            current: Count24::new(current),
            previous: Count24::new(previous),
            settled,
        })
    }

    #[inline(always)]
    fn window_ms(&self) -> u64 {
        u64::from(u32::from_le_bytes(self.window))
    }

    #[inline(always)]
    fn number(&self) -> u64 {
        u64::from(u32::from_le_bytes(self.number))
    }

    /// The counter of this `window`, if it is.
    #[inline(always)]
    fn of(&self, window: WindowMs) -> Option<Counter> {
        let counter = Counter {
            window,
            number: self.number(),
            current: self.current.get(),
            previous: self.previous.get(),
        };
        (self.window_ms() == window.get()).then_some(counter)
    }

    fn unpack(&self) -> Option<Counter> {
        WindowMs::new(self.window_ms()).and_then(|window| self.of(window))
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Many {
    method: Method,
    settled: Settled,
    counters: Vec<Counter>,
}

impl Counters {
    /// No counters.
    pub fn new(method: Method) -> Counters {
        Counters(Store::None(method))
    }

    /// How they are read.
    #[inline(always)]
    pub fn method(&self) -> Method {
        match &self.0 {
            Store::Fixed(_) => Method::Fixed,
            Store::Sliding(_) => Method::Sliding,
            Store::Many(many) => many.method,
            Store::None(method) => *method,
        }
    }

    /// The only counter, if it is small.
    #[inline(always)]
    fn small(&self) -> Option<&Small> {
        match &self.0 {
            Store::Fixed(small) | Store::Sliding(small) => Some(small),
            Store::Many(_) | Store::None(_) => None,
        }
    }

    /// The counters as they were last written, shortest window first.
    pub fn iter(&self) -> impl Iterator<Item = Counter> + '_ {
        let one = self.small().and_then(Small::unpack);
        let many = if let Store::Many(many) = &self.0 { many.counters.as_slice() } else { &[] };
        one.into_iter().chain(many.iter().copied())
    }

    /// Counters with this content: `None` if they are too many, out of order, equal in window or
    /// empty, or hold counts that no counter can have.
    pub fn restore(method: Method, counters: Vec<Counter>) -> Option<Counters> {
        let sound = |c: &Counter| {
            let previous = if method == Method::Fixed { 0 } else { MAX_COUNT };
            // The very first window has none before it.
            let previous = if c.number == 0 { 0 } else { previous };
            !c.is_zero() && c.current <= MAX_COUNT && c.previous <= previous
        };
        let sorted = counters.is_sorted_by(|a, b| a.window < b.window);
        if counters.is_empty() || counters.len() > MAX_TIERS || !sorted || !counters.iter().all(sound) {
            return None;
        }
        let mut all = Counters::new(method);
        all.replace(counters);
        Some(all)
    }

    /// These, to be changed, if they are read by `method`.
    #[inline(always)]
    pub(super) fn by(&mut self, method: Method) -> Option<ByMethod<&mut Counters>> {
        (self.method() == method).then_some(ByMethod { counters: self, method })
    }

    /// These, to be read.
    #[inline(always)]
    pub(super) fn to_read(&self) -> ByMethod<&Counters> {
        ByMethod { counters: self, method: self.method() }
    }

    /// The counter of `window` as it stands at `now`, or an empty one.
    #[inline(always)]
    fn at(&self, method: Method, window: WindowMs, now: UnixMs) -> Counter {
        match self.find(window) {
            Some(counter) => counter.advance(method, now),
            None => Counter::new(window, now),
        }
    }

    /// Writes `counter`, or removes the one of its window if there is nothing left in it.
    fn put_or_remove(&mut self, counter: Counter, now: UnixMs) {
        if counter.is_zero() {
            self.replace(self.iter().filter(|other| other.window != counter.window).collect());
        } else {
            self.put(counter, now);
        }
    }

    /// Whether counters of these windows fit beside the others that can still count at `now`.
    #[cold]
    fn make_sure_of_room_for(&self, windows: &[WindowMs], now: UnixMs) -> Result<(), TooManyWindows> {
        let others = self.live_windows(now).filter(|window| !windows.contains(window)).count();
        if windows.len() + others <= MAX_TIERS { Ok(()) } else { Err(TooManyWindows) }
    }

    /// How many there are.
    #[inline(always)]
    fn len(&self) -> usize {
        match &self.0 {
            Store::Fixed(_) | Store::Sliding(_) => 1,
            Store::Many(many) => many.counters.len(),
            Store::None(_) => 0,
        }
    }

    /// Whether there are none.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// That of the one that matters longest from `now` on.
    #[inline]
    pub fn lifetime(&self, now: UnixMs, slack_ms: u64) -> Lifetime {
        let windows = match self.method() {
            Method::Fixed => 1,
            Method::Sliding => 2,
        };
        let lifetime = |counter: Counter| {
            let most_ms = windows * counter.window.get() + slack_ms;
            Lifetime::of(counter.start(), self.dies(&counter), now, most_ms)
        };
        self.iter().map(lifetime).max().unwrap_or(Lifetime::NONE)
    }

    /// Whether one of them is in a window that begins later than `now`.
    #[inline(always)]
    pub fn are_ahead_of(&self, now: UnixMs) -> bool {
        match &self.0 {
            Store::Fixed(small) | Store::Sliding(small) => small.window_ms() * small.number() > now.0,
            Store::Many(many) => many.counters.iter().any(|counter| counter.start() > now),
            Store::None(_) => false,
        }
    }

    #[inline(always)]
    fn settled(&self) -> Settled {
        match &self.0 {
            Store::Fixed(small) | Store::Sliding(small) => small.settled,
            Store::Many(many) => many.settled,
            // Nothing has to live.
            Store::None(_) => Settled::Yes,
        }
    }

    /// Whether the key is known to live as long as they do.
    #[inline(always)]
    pub fn are_settled(&self) -> bool {
        self.settled() != Settled::No
    }

    /// See [`Limiter::is_settled_by_clock`](super::Limiter::is_settled_by_clock).
    pub fn are_settled_by_clock(&self) -> bool {
        self.settled() == Settled::ByClock
    }

    /// See [`Limiter::settle`](super::Limiter::settle).
    pub fn settle(&mut self, until: UnixMs, by_clock: bool) {
        let settled = match self.iter().all(|counter| self.dies(&counter) <= until) {
            false => Settled::No,
            true if by_clock => Settled::ByClock,
            true => Settled::Yes,
        };
        match &mut self.0 {
            Store::Fixed(small) | Store::Sliding(small) => small.settled = settled,
            Store::Many(many) => many.settled = settled,
            Store::None(_) => {}
        }
    }

    /// The windows that can still count at `now`, shortest first.
    pub fn live_windows(&self, now: UnixMs) -> impl Iterator<Item = WindowMs> + '_ {
        self.iter().filter(move |counter| self.lives(counter, now)).map(|counter| counter.window)
    }

    /// See [`Limiter::relocate`](super::Limiter::relocate).
    pub fn relocate(&mut self, mover: &mut impl Mover) {
        if let Store::Many(many) = &mut self.0 {
            mover.move_box(many);
            mover.move_vec(&mut many.counters);
        }
    }

    /// Bytes on the heap.
    pub fn heap_bytes(&self) -> usize {
        match &self.0 {
            Store::Many(many) => size_of::<Many>() + many.counters.capacity() * size_of::<Counter>(),
            _ => 0,
        }
    }

    /// The first millisecond at which `counter` cannot count any more.
    fn dies(&self, counter: &Counter) -> UnixMs {
        match self.method() {
            Method::Fixed => fixed::dies(counter),
            Method::Sliding => sliding::dies(counter),
        }
    }

    fn lives(&self, counter: &Counter, now: UnixMs) -> bool {
        self.dies(counter) > now
    }

    #[inline(always)]
    fn find(&self, window: WindowMs) -> Option<Counter> {
        match &self.0 {
            Store::Fixed(small) | Store::Sliding(small) => small.of(window),
            Store::Many(many) => many.counters.iter().find(|counter| counter.window == window).copied(),
            Store::None(_) => None,
        }
    }

    /// Writes `counter` in place of the one of its window; a new one takes the place of those
    /// that are dead at `now`.
    #[inline(always)]
    fn put(&mut self, counter: Counter, now: UnixMs) {
        // A counter that had units in this window already dies no later than before.
        let same_end = |old: &Counter| old.number == counter.number && old.current > 0;
        match &mut self.0 {
            Store::Fixed(small) | Store::Sliding(small) => {
                if let Some(old) = small.of(counter.window)
                    && let Some(new) = Small::pack(&counter, small.settled.while_still(same_end(&old)))
                {
                    *small = new;
                    return;
                }
            }
            Store::Many(many) => {
                if let Some(old) = many.counters.iter_mut().find(|old| old.window == counter.window) {
                    many.settled = many.settled.while_still(same_end(old));
                    *old = counter;
                    return;
                }
            }
            Store::None(_) => {}
        }
        let Counter { window, number, current, previous } = counter;
        self.insert(window, number, current, previous, now);
    }

    /// As `put`, where other counters are moved or made. Its arguments fit registers: a counter
    /// would have to be in memory at every request.
    #[cold]
    #[inline(never)]
    fn insert(&mut self, window: WindowMs, number: u64, current: u64, previous: u64, now: UnixMs) {
        let counter = Counter { window, number, current, previous };
        let mut all: Vec<Counter> =
            self.iter().filter(|old| old.window != counter.window && self.lives(old, now)).collect();
        let place = all.partition_point(|old| old.window < counter.window);
        all.insert(place, counter);
        self.replace(all);
    }

    /// Puts these in the place of all; whether the key lives as long as they do is to be seen anew.
    fn replace(&mut self, mut counters: Vec<Counter>) {
        let method = self.method();
        let small = match counters.as_slice() {
            [only] => Small::pack(only, Settled::No),
            _ => None,
        };
        self.0 = match (small, method) {
            _ if counters.is_empty() => Store::None(method),
            (Some(small), Method::Fixed) => Store::Fixed(small),
            (Some(small), Method::Sliding) => Store::Sliding(small),
            (None, _) => {
                counters.shrink_to_fit();
                Store::Many(Box::new(Many { method, settled: Settled::No, counters }))
            }
        };
    }
}
