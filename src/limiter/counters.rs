//! What a fixed or sliding window counter remembers: for each window length, the number of the
//! window it is in and the units of that window and the one before.

use super::{Algorithm, MAX_COUNT, MAX_TIERS, Memory, Quota, Standing, UnixMs, WindowMs, fixed, sliding};

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
    pub fn new(window: WindowMs, now: UnixMs) -> Counter {
        Counter { window, number: now.0 / window.get(), current: 0, previous: 0 }
    }

    /// The first millisecond of the window it is in.
    pub fn start(&self) -> UnixMs {
        UnixMs(self.number * self.window.get())
    }

    /// The first millisecond after the window it is in.
    pub fn end(&self) -> UnixMs {
        self.start() + self.window
    }

    /// Adds `units` to the current window, up to [`MAX_COUNT`]. Returns whether that took any.
    fn add(&mut self, units: u64) -> bool {
        let units = units.min(MAX_COUNT - self.current);
        self.current += units;
        units > 0
    }

    /// Takes up to `units` from the current window, then from the one before. Returns whether
    /// there were any.
    fn give_back(&mut self, units: u64) -> bool {
        let from_current = units.min(self.current);
        let from_previous = (units - from_current).min(self.previous);
        self.current -= from_current;
        self.previous -= from_previous;
        from_current + from_previous > 0
    }

    fn is_zero(&self) -> bool {
        self.current == 0 && self.previous == 0
    }
}

/// A counter as it stands at one time.
pub(super) struct AtTime {
    method: Method,
    counter: Counter,
    now: UnixMs,
    used: u64,
}

impl Standing for AtTime {
    #[inline]
    fn used(&self) -> u64 {
        self.used
    }

    #[inline]
    fn wait_beyond(&self, room: u64) -> u64 {
        match self.method {
            Method::Fixed => fixed::wait(&self.counter, self.now),
            Method::Sliding => sliding::wait_until(&self.counter, room, self.now),
        }
    }
}

/// The counters of one key, at most [`MAX_TIERS`] of them, shortest window first.
///
/// Nearly every key has a single counter with modest numbers, so that one is kept in 15 bytes
/// without a further allocation: with the rest of a [`Limiter`](super::Limiter) it fills 16.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Counters(Store);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Store {
    One { method: Method, settled: bool, current: [u8; 3], previous: [u8; 3], window: u32, number: u32 },
    Many(Box<Many>),
    None { method: Method },
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Many {
    method: Method,
    settled: bool,
    counters: Vec<Counter>,
}

impl Memory for Counters {
    type Standing<'a> = AtTime;

    #[inline]
    fn standing(&self, window: WindowMs, now: UnixMs) -> AtTime {
        let counter = self.at(window, now);
        let method = self.method();
        let used = match method {
            Method::Fixed => fixed::used(&counter),
            Method::Sliding => sliding::used(&counter, now),
        };
        AtTime { method, counter, now, used }
    }
}

impl Counters {
    /// No counters.
    pub fn new(method: Method) -> Counters {
        Counters(Store::None { method })
    }

    /// How they are read.
    #[inline]
    pub fn method(&self) -> Method {
        match &self.0 {
            Store::One { method, .. } | Store::None { method } => *method,
            Store::Many(many) => many.method,
        }
    }

    /// The counters as they were last written, shortest window first.
    pub fn iter(&self) -> impl Iterator<Item = Counter> + '_ {
        let (one, many) = match &self.0 {
            Store::One { .. } => (self.one(), [].as_slice()),
            Store::Many(many) => (None, many.counters.as_slice()),
            Store::None { .. } => (None, [].as_slice()),
        };
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

    /// The counter of `window` as it stands at `now`, or an empty one.
    #[inline]
    fn at(&self, window: WindowMs, now: UnixMs) -> Counter {
        match self.find(window) {
            Some(counter) => self.advance(counter, now),
            None => Counter::new(window, now),
        }
    }

    /// Whether counters of `quotas` fit beside the others that can still count at `now`.
    #[inline]
    pub fn have_room_for(&self, quotas: &[Quota], now: UnixMs) -> bool {
        if quotas.len() + self.len() <= MAX_TIERS {
            return true;
        }
        let named = |window| quotas.iter().any(|quota| quota.window == window);
        quotas.len() + self.live_windows(now).filter(|window| !named(*window)).count() <= MAX_TIERS
    }

    /// Counts `units` in the window of `now`, up to [`MAX_COUNT`]. There must be room for it.
    /// Returns whether that counted any.
    #[inline]
    pub fn add(&mut self, window: WindowMs, units: u64, now: UnixMs) -> bool {
        let mut counter = self.at(window, now);
        let counted = counter.add(units);
        if counted {
            self.put(counter, now);
        }
        counted
    }

    /// Takes away up to `units`, the most recently counted first. Returns whether there were any.
    pub fn give_back(&mut self, window: WindowMs, units: u64, now: UnixMs) -> bool {
        let mut counter = self.at(window, now);
        let given = counter.give_back(units);
        if given && counter.is_zero() {
            self.replace(self.iter().filter(|other| other.window != window).collect());
        } else if given {
            self.put(counter, now);
        }
        given
    }

    /// How many there are.
    #[inline]
    fn len(&self) -> usize {
        match &self.0 {
            Store::One { .. } => 1,
            Store::Many(many) => many.counters.len(),
            Store::None { .. } => 0,
        }
    }

    /// Whether there are none.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Milliseconds from `now` until none of them can count any more.
    #[inline]
    pub fn lifetime(&self, now: UnixMs) -> u64 {
        self.iter().map(|c| self.dies(&c).since(now.max(c.start()))).max().unwrap_or(0)
    }

    /// Whether one of them is in a window that begins later than `now`.
    #[inline]
    pub fn are_ahead_of(&self, now: UnixMs) -> bool {
        match &self.0 {
            Store::One { window, number, .. } => u64::from(*window) * u64::from(*number) > now.0,
            Store::Many(many) => many.counters.iter().any(|counter| counter.start() > now),
            Store::None { .. } => false,
        }
    }

    /// Whether the key's time to live was settled since it last had to move.
    #[inline]
    pub fn are_settled(&self) -> bool {
        match &self.0 {
            Store::One { settled, .. } => *settled,
            Store::Many(many) => many.settled,
            Store::None { .. } => false,
        }
    }

    /// Notes whether the key's time to live has been settled.
    pub fn set_settled(&mut self, now_settled: bool) {
        match &mut self.0 {
            Store::One { settled, .. } => *settled = now_settled,
            Store::Many(many) => many.settled = now_settled,
            Store::None { .. } => {}
        }
    }

    /// The windows that can still count at `now`, shortest first.
    pub fn live_windows(&self, now: UnixMs) -> impl Iterator<Item = WindowMs> + '_ {
        self.iter().filter(move |counter| self.lives(counter, now)).map(|counter| counter.window)
    }

    /// Bytes on the heap.
    pub fn heap_bytes(&self) -> usize {
        match &self.0 {
            Store::Many(many) => size_of::<Many>() + many.counters.capacity() * size_of::<Counter>(),
            _ => 0,
        }
    }

    #[inline]
    fn advance(&self, counter: Counter, now: UnixMs) -> Counter {
        let number = now.0 / counter.window.get();
        if number <= counter.number {
            return counter;
        }
        let previous = match self.method() {
            Method::Sliding if number == counter.number + 1 => counter.current,
            _ => 0,
        };
        Counter { number, current: 0, previous, ..counter }
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

    #[inline]
    fn find(&self, window: WindowMs) -> Option<Counter> {
        match &self.0 {
            Store::One { .. } => self.one().filter(|counter| counter.window == window),
            Store::Many(many) => many.counters.iter().find(|counter| counter.window == window).copied(),
            Store::None { .. } => None,
        }
    }

    /// Writes `counter` in place of the one of its window; a new one takes the place of those
    /// that are dead at `now`.
    #[inline(always)]
    fn put(&mut self, counter: Counter, now: UnixMs) {
        let method = self.method();
        // A counter that had units in this window already dies no later than before.
        let same_end = |old: &Counter| old.number == counter.number && old.current > 0;
        match &mut self.0 {
            Store::One { settled, window, .. } if u64::from(*window) == counter.window.get() => {
                let settled = *settled && self.one().is_some_and(|old| same_end(&old));
                if let Some(one) = pack(method, settled, &counter) {
                    self.0 = one;
                    return;
                }
            }
            Store::Many(many) => {
                if let Some(old) = many.counters.iter_mut().find(|old| old.window == counter.window) {
                    many.settled &= same_end(old);
                    *old = counter;
                    return;
                }
            }
            Store::One { .. } | Store::None { .. } => {}
        }
        self.insert(counter, now);
    }

    /// As `put`, where other counters are moved or made.
    #[cold]
    fn insert(&mut self, counter: Counter, now: UnixMs) {
        let mut all: Vec<Counter> =
            self.iter().filter(|old| old.window != counter.window && self.lives(old, now)).collect();
        let place = all.partition_point(|old| old.window < counter.window);
        all.insert(place, counter);
        self.replace(all);
    }

    /// Puts these in the place of all; the time to live is to be settled anew.
    fn replace(&mut self, mut all: Vec<Counter>) {
        let method = self.method();
        self.0 = match all.as_slice() {
            [] => Store::None { method },
            [only] if let Some(one) = pack(method, false, only) => one,
            _ => {
                all.shrink_to_fit();
                Store::Many(Box::new(Many { method, settled: false, counters: all }))
            }
        };
    }

    #[inline]
    fn one(&self) -> Option<Counter> {
        let Store::One { current, previous, window, number, .. } = self.0 else {
            return None;
        };
        Some(Counter {
            window: WindowMs::new(u64::from(window))?,
            number: u64::from(number),
            current: u64::from(u32::from_le_bytes([current[0], current[1], current[2], 0])),
            previous: u64::from(u32::from_le_bytes([previous[0], previous[1], previous[2], 0])),
        })
    }
}

/// `counter` in the small form, if its numbers are small enough: a window of less than 50 days, a
/// window number of less than 2^32 (until the year 2106 for all windows of a second or more) and
/// counts of less than 2^24.
#[inline]
fn pack(method: Method, settled: bool, counter: &Counter) -> Option<Store> {
    let small = |units: u64| {
        let [a, b, c, 0, 0, 0, 0, 0] = units.to_le_bytes() else {
            return None;
        };
        Some([a, b, c])
    };
    Some(Store::One {
        method,
        settled,
        current: small(counter.current)?,
        previous: small(counter.previous)?,
        window: u32::try_from(counter.window.get()).ok()?,
        number: u32::try_from(counter.number).ok()?,
    })
}
