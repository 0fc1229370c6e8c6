//! The algorithms as docs/algorithms.md describes them: slow, and without a formula for any wait, which is
//! found by search.
//!
//! All figures are `i128`, so that nothing can overflow.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use redis_rl_core::limiter::{
    Algorithm, Bucket, Calendar, MAX_SAFE_INTEGER, Mismatch, Quota, SlidingCounts, Verdict, WindowMs,
    WindowUsage,
};

const MAX_COUNT: i128 = (1 << 63) - 1;
const MAX_LIVE_WINDOWS: usize = 8;

/// A log with more older timestamps than this drops what FORCE counted beyond the limit.
const FORGET_ABOVE_ENTRIES: usize = 1024;

/// How to find the first millisecond at which something fits.
#[derive(Clone, Copy, Debug)]
pub enum Search {
    /// One after the other: certain, but too slow for windows of years.
    EveryMs,
    /// By bisection, since counts only shrink between calls. The tests with `EveryMs` show that they do.
    Halving,
}

impl Search {
    /// The smallest number that `fits`.
    pub fn first(self, fits: impl Fn(u64) -> bool) -> u64 {
        match self {
            Search::EveryMs => (0..).find(|&ms| fits(ms)).expect("every window ends"),
            Search::Halving if fits(0) => 0,
            Search::Halving => {
                let (mut too_early, mut late_enough) = (0, 1);
                while !fits(late_enough) {
                    (too_early, late_enough) = (late_enough, late_enough * 2);
                }
                while late_enough - too_early > 1 {
                    let middle = too_early + (late_enough - too_early) / 2;
                    if fits(middle) { late_enough = middle } else { too_early = middle }
                }
                late_enough
            }
        }
    }
}

/// One key.
#[derive(Clone, Debug)]
pub struct Model {
    state: State,
    search: Search,
    /// Whether the key was written with AT, so that it may be a minute further ahead of the clock. The model keeps no expiries: who
    /// compares it reads this from the limiter.
    pub with_at: bool,
}

#[derive(Clone, Debug)]
enum State {
    Windows(Windows),
    Log(Log),
    Buckets(Buckets),
}

/// RL.FIXED and RL.SLIDING: the units in each window, for each window length.
#[derive(Clone, Debug)]
struct Windows {
    sliding: bool,
    lengths: BTreeMap<i128, Counted>,
}

#[derive(Clone, Debug)]
struct Counted {
    /// Number of the latest window counted in. Time never runs back from there.
    latest: i128,
    /// Units by window number.
    units: BTreeMap<i128, i128>,
}

/// RL.LOG: every timestamp with its units, oldest first.
#[derive(Clone, Debug, Default)]
struct Log {
    entries: Vec<(i128, i128)>,
    /// The longest window that counted anything since the log was last empty.
    keep: i128,
}

/// RL.BUCKET: what is missing from the bucket of each window length, in units times milliseconds.
#[derive(Clone, Debug, Default)]
struct Buckets {
    lengths: BTreeMap<i128, Level>,
}

#[derive(Clone, Copy, Debug)]
struct Level {
    missing: i128,
    /// When it was counted in last, and with which limit.
    last: i128,
    limit: i128,
    /// Whether whoever counted in it last was told to wait.
    awaited: bool,
}

impl Level {
    /// Each millisecond refills the limit. Time never runs back.
    fn at(self, now: i128) -> Level {
        let last = self.last.max(now);
        Level { missing: (self.missing - (last - self.last) * self.limit).max(0), last, ..self }
    }

    /// When the units that were counted last are there: once no more is missing than the limit. Who was told to wait was told at least a
    /// millisecond.
    fn newest_units(&self, window: i128) -> i128 {
        let wait = ceil((self.missing - self.limit * window).max(0), self.limit).max(1);
        (self.last + if self.awaited { wait } else { 0 }).min(MAX_SAFE_INTEGER.into())
    }

    /// As much missing in proportion, rounded up: in two parts, since the product may exceed 128 bits.
    fn with_limit(self, limit: i128) -> Level {
        let (whole, rest) = (self.missing / self.limit, self.missing % self.limit);
        Level { missing: whole * limit + ceil(rest * limit, self.limit), limit, ..self }
    }
}

fn ceil(figure: i128, by: i128) -> i128 {
    (figure + by - 1) / by
}

/// `figure * by / of`, rounded down: in two parts, since the product may exceed 128 bits.
fn share(figure: i128, by: i128, of: i128) -> i128 {
    figure / of * by + figure % of * by / of
}

impl Buckets {
    fn of(&self, quota: &Quota, now: i128) -> Level {
        let limit = i128::from(quota.limit());
        let full = Level { missing: 0, last: now, limit, awaited: false };
        self.lengths.get(&window_of(quota)).map_or(full, |level| level.at(now).with_limit(limit))
    }

    fn used(&self, quota: &Quota, now: i128) -> i128 {
        ceil(self.of(quota, now).missing, window_of(quota)).min(MAX_COUNT)
    }

    fn is_full(&self, window: i128, now: i128) -> bool {
        self.lengths.get(&window).is_none_or(|level| level.at(now).missing == 0)
    }

    fn live(&self, now: i128) -> impl Iterator<Item = i128> {
        self.lengths.keys().copied().filter(move |&window| !self.is_full(window, now))
    }

    /// Counts in all tiers, and returns how many units. If one of them has not enough, all are of a request that waits: FORCE makes
    /// nobody wait.
    fn take_in_all(&mut self, quotas: &[Quota], units: i128, now: i128, force: bool) -> i128 {
        let counted = quotas.iter().map(|quota| self.take(quota, units, now, force)).max().unwrap_or(0);
        let named = || quotas.iter().filter(|quota| quota.limit() > 0).map(window_of);
        if !force && named().any(|window| self.lengths[&window].awaited) {
            named().for_each(|window| self.lengths.get_mut(&window).expect("just counted").awaited = true);
        }
        counted
    }

    /// Returns how many were counted. FORCE counts nothing beyond two buckets that are missing.
    fn take(&mut self, quota: &Quota, units: i128, now: i128, force: bool) -> i128 {
        if quota.limit() == 0 {
            return 0;
        }
        let (window, level) = (window_of(quota), self.of(quota, now));
        let mut missing = level.missing + units * window;
        if force {
            missing = missing.min(level.missing.max(2 * level.limit * window));
        }
        if missing == level.missing {
            return 0;
        }
        if !self.lengths.contains_key(&window) {
            // A new length removes those that are full.
            let live: Vec<i128> = self.live(now).collect();
            self.lengths.retain(|window, _| live.contains(window));
        }
        // FORCE makes nobody wait, but others may have been told to.
        let full = level.limit * window;
        let awaited = if force { level.awaited && level.missing > full } else { missing > full };
        self.lengths.insert(window, Level { missing, awaited, ..level });
        ceil(missing - level.missing, window)
    }

    /// Gives back units counted at `as_of`, in each tier. If whoever counted last was told to wait, nobody else gives back anything. Returns
    /// how many of the units were missing at `now`.
    fn refund(&mut self, quotas: &[Quota], units: i128, as_of: i128, now: i128) -> i128 {
        let named = |quota: &Quota| Some((window_of(quota), *self.lengths.get(&window_of(quota))?));
        let levels: Vec<(i128, Level)> = quotas.iter().filter_map(named).collect();
        let newest = levels.iter().map(|(window, level)| level.newest_units(*window)).max();
        if levels.iter().any(|(_, level)| level.awaited) && newest.is_some_and(|newest| as_of < newest) {
            return 0;
        }
        let before = self.lengths.clone();
        let refunded = quotas.iter().map(|quota| self.refund_in(quota, units, as_of, now)).max().unwrap_or(0);
        if refunded == 0 {
            self.lengths = before;
        }
        refunded
    }

    /// What has refilled from `as_of` until the last units were there stays; a limit of 0 gives nothing back.
    fn refund_in(&mut self, quota: &Quota, units: i128, as_of: i128, now: i128) -> i128 {
        let (window, named) = (window_of(quota), i128::from(quota.limit()));
        let Some(level) = self.lengths.get_mut(&window).filter(|_| named > 0) else { return 0 };
        let (newest, larger) = (level.newest_units(window), named.max(level.limit));
        let refundable = (units * window - (newest - as_of).max(0) * larger).max(0);
        let back = share(refundable, level.limit, larger);
        let now = if as_of > newest { as_of } else { now };
        let missing = Level { missing: back.min(level.at(now).missing), ..*level };
        level.missing -= back;
        if level.missing <= 0 {
            self.lengths.remove(&window);
        }
        ceil(missing.with_limit(larger).missing, window)
    }
}

const DAY_MS: i128 = 24 * 60 * 60 * 1000;

/// The time at which each month begins, from January 1970 to ten years after the last time there is.
static MONTHS: LazyLock<Vec<i128>> = LazyLock::new(|| {
    let years = 1970..287_410;
    // In one allocation, of less than the fuzzer allows.
    let (mut starts, mut day) = (Vec::with_capacity(12 * years.len()), 0);
    for year in years {
        let is_leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
        for days in [31, if is_leap { 29 } else { 28 }, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31] {
            starts.push(day * DAY_MS);
            day += days;
        }
    }
    starts
});

/// The window of the calendar that has this number.
fn calendar(window: i128) -> Option<Calendar> {
    WindowMs::of_number(figure(window)).expect("a window").calendar()
}

/// The number of the window that `now` is in.
pub fn number_of(window: i128, now: i128) -> i128 {
    match calendar(window) {
        None => now / window,
        // From a Monday on, three days before 1970.
        Some(Calendar::Weeks(weeks)) => (now + 3 * DAY_MS) / (7 * DAY_MS) / i128::from(weeks),
        Some(Calendar::Months(months)) => {
            let month = MONTHS.partition_point(|start| *start <= now) - 1;
            month as i128 / i128::from(months)
        }
    }
}

/// When window `number` begins. There is no time before 1970.
pub fn start_of(window: i128, number: i128) -> i128 {
    match calendar(window) {
        None => number * window,
        Some(Calendar::Weeks(weeks)) => (number * i128::from(weeks) * 7 * DAY_MS - 3 * DAY_MS).max(0),
        Some(Calendar::Months(months)) => MONTHS[(number * i128::from(months)) as usize],
    }
}

/// The milliseconds of window `number`, from 1970 on.
pub fn length_of(window: i128, number: i128) -> i128 {
    start_of(window, number + 1) - start_of(window, number)
}

impl Windows {
    /// The number of the window that `now` is read as.
    fn number(&self, window: i128, now: i128) -> i128 {
        let latest = self.lengths.get(&window).map_or(0, |counted| counted.latest);
        latest.max(number_of(window, now))
    }

    fn units(&self, window: i128, number: i128) -> i128 {
        let counted = self.lengths.get(&window);
        counted.and_then(|counted| counted.units.get(&number)).copied().unwrap_or(0)
    }

    fn current(&self, window: i128, now: i128) -> i128 {
        self.units(window, self.number(window, now))
    }

    fn previous(&self, window: i128, now: i128) -> i128 {
        if self.sliding { self.units(window, self.number(window, now) - 1) } else { 0 }
    }

    fn used(&self, window: i128, now: i128) -> i128 {
        let start = start_of(window, self.number(window, now));
        let elapsed = (now - start).max(0);
        let share = self.previous(window, now) * (window - elapsed) / window;
        (self.current(window, now) + share).min(MAX_COUNT)
    }

    fn is_live(&self, window: i128, now: i128) -> bool {
        self.current(window, now) > 0 || self.previous(window, now) > 0
    }

    fn live(&self, now: i128) -> impl Iterator<Item = i128> {
        self.lengths.keys().copied().filter(move |&window| self.is_live(window, now))
    }

    /// Returns how many were counted: a saturated count takes no more.
    fn take(&mut self, window: i128, units: i128, now: i128) -> i128 {
        let number = self.number(window, now);
        let before = self.units(window, number);
        let after = (before + units).min(MAX_COUNT);
        if after == before {
            return 0;
        }
        if !self.lengths.contains_key(&window) {
            // A new length removes those that no longer count.
            let live: Vec<i128> = self.live(now).collect();
            self.lengths.retain(|window, _| live.contains(window));
        }
        self.put(window, number, after);
        after - before
    }

    /// Takes units from the window of `as_of` and, if sliding, from the one before, if they are still held.
    /// Time does not move. Returns how many there were.
    fn refund(&mut self, window: i128, units: i128, as_of: i128) -> i128 {
        let Some(counted) = self.lengths.get_mut(&window) else { return 0 };
        let (named, latest) = (number_of(window, as_of), counted.latest);
        let (meant, held) =
            if self.sliding { (named - 1..=named, latest - 1) } else { (named..=named, latest) };
        let mut left = units;
        for (number, units) in counted.units.range_mut(held..).rev() {
            if meant.contains(number) {
                let refunded = left.min(*units);
                *units -= refunded;
                left -= refunded;
            }
        }
        if counted.units.range(held..).all(|(_, units)| *units == 0) {
            self.lengths.remove(&window);
        }
        units - left
    }

    fn put(&mut self, window: i128, number: i128, units: i128) {
        let counted = self.lengths.entry(window).or_insert(Counted { latest: 0, units: BTreeMap::new() });
        counted.latest = number;
        counted.units.insert(number, units);
    }

    /// Whether one of its windows begins after `now`.
    fn is_ahead_of(&self, now: i128) -> bool {
        self.lengths.iter().any(|(window, counted)| start_of(*window, counted.latest) > now)
    }
}

impl Log {
    /// A time before the newest timestamp is read as that timestamp.
    fn read(&self, now: i128) -> i128 {
        self.entries.last().map_or(now, |newest| newest.0.max(now))
    }

    /// The entries in the window that ends at `now`.
    fn within(&self, window: i128, now: i128) -> impl Iterator<Item = &(i128, i128)> {
        let now = self.read(now);
        self.entries.iter().filter(move |(at, _)| *at > now - window)
    }

    fn used(&self, window: i128, now: i128) -> i128 {
        self.within(window, now).map(|(_, units)| units).sum()
    }

    /// The longest window so far, those in `quotas` included.
    fn keep_with(&self, quotas: &[Quota]) -> i128 {
        let keep = if self.entries.is_empty() { 0 } else { self.keep };
        keep.max(longest(quotas))
    }

    /// Returns how many were counted: a saturated log takes no more.
    fn take(&mut self, quotas: &[Quota], units: i128, now: i128) -> i128 {
        let keep = self.keep_with(quotas);
        let units = units.min(MAX_COUNT - self.used(keep, now));
        if units == 0 {
            return 0;
        }
        let now = self.read(now);
        self.entries.retain(|(at, _)| *at > now - keep);
        self.keep = if self.entries.is_empty() { longest(quotas) } else { keep };
        match self.entries.last_mut() {
            Some((at, already)) if *at == now => *already += units,
            _ => self.entries.push((now, units)),
        }
        if self.keep == longest(quotas) {
            let largest = quotas.iter().map(|quota| i128::from(quota.limit())).max().unwrap_or(0);
            self.forget_beyond(2 * largest);
        }
        units
    }

    /// Drops the oldest entry if `enough` units remain.
    fn forget_beyond(&mut self, enough: i128) {
        let units: i128 = self.entries.iter().map(|(_, units)| units).sum();
        if self.entries.len() > FORGET_ABOVE_ENTRIES + 1 && units - self.entries[0].1 >= enough {
            self.entries.remove(0);
        }
    }

    /// Takes units that were counted at `as_of` or before and still count. Returns how many there were.
    fn refund(&mut self, quotas: &[Quota], units: i128, as_of: i128) -> i128 {
        let oldest = self.read(as_of) - self.keep_with(quotas);
        let mut left = units;
        for (_, counted) in self.entries.iter_mut().rev().filter(|(at, _)| (oldest + 1..=as_of).contains(at))
        {
            let refunded = left.min(*counted);
            *counted -= refunded;
            left -= refunded;
        }
        self.entries.retain(|(_, counted)| *counted > 0);
        units - left
    }
}

/// What a request changed.
#[derive(Clone, Copy)]
pub struct Change {
    /// The time it was applied as of.
    pub as_of: u64,
    /// The units counted, or minus those given back, in the tier with the most.
    pub units: i64,
}

impl Model {
    pub fn new(algorithm: Algorithm, search: Search) -> Model {
        let windows = |sliding| State::Windows(Windows { sliding, lengths: BTreeMap::new() });
        let state = match algorithm {
            Algorithm::Fixed => windows(false),
            Algorithm::Sliding => windows(true),
            Algorithm::Log => State::Log(Log::default()),
            Algorithm::Bucket => State::Buckets(Buckets::default()),
        };
        Model { state, search, with_at: false }
    }

    /// A log of these (time, units) entries, kept for `longest`.
    pub fn of_log(entries: &[(u64, u64)], longest: WindowMs, search: Search) -> Model {
        let entries = entries.iter().map(|&(at, units)| (i128::from(at), i128::from(units))).collect();
        let state = State::Log(Log { entries, keep: i128::from(longest.get()) });
        Model { state, search, with_at: false }
    }

    /// A key with these buckets.
    pub fn of_buckets(buckets: &[Bucket], search: Search) -> Model {
        let level = |bucket: &Bucket| {
            let missing = i128::try_from(bucket.level).expect("it has 93 bits");
            let (last, limit) = (bucket.last.get().into(), bucket.limit.into());
            let level = Level { missing, last, limit, awaited: bucket.awaited };
            (i128::from(bucket.window.get()), level)
        };
        let lengths = buckets.iter().map(level).collect();
        Model { state: State::Buckets(Buckets { lengths }), search, with_at: false }
    }

    pub fn used(&self, quota: &Quota, now: u64) -> u64 {
        let (window, now) = (window_of(quota), i128::from(now));
        figure(match &self.state {
            State::Windows(windows) => windows.used(window, now),
            State::Log(log) => log.used(window, now),
            State::Buckets(buckets) => buckets.used(quota, now),
        })
    }

    /// A request of cost c is allowed when used + c <= limit in every tier.
    pub fn refuses(&self, quotas: &[Quota], cost: i64, now: u64) -> bool {
        quotas.iter().any(|quota| self.tier_refuses(quota, cost, now))
    }

    fn tier_refuses(&self, quota: &Quota, cost: i64, now: u64) -> bool {
        // A request of cost <= 0 is always allowed.
        cost > 0 && i128::from(self.used(quota, now)) + i128::from(cost) > i128::from(quota.limit())
    }

    /// The most units, up to `cost`, that no tier refuses.
    pub fn most_allowed(&self, quotas: &[Quota], cost: i64, now: u64) -> i64 {
        if cost <= 0 {
            return cost;
        }
        let most = Search::Halving
            .first(|units| units >= cost as u64 || self.refuses(quotas, units as i64 + 1, now));
        most as i64
    }

    /// Moves back what is ahead of the clock by more than its window, or its lifetime if that is longer. Returns whether anything was.
    pub fn move_back(&mut self, clock: u64) -> bool {
        let more = if self.with_at { 60_000 } else { 0 };
        self.move_back_beyond(clock, |window| window + more)
    }

    /// Moves back what is ahead of the clock by more than `most` of its window.
    pub fn move_back_beyond(&mut self, clock: u64, most: impl Fn(i128) -> i128) -> bool {
        let (mut moved, now) = (false, i128::from(clock));
        match &mut self.state {
            State::Windows(windows) => {
                for (window, counted) in &mut windows.lengths {
                    let (start, length) =
                        (start_of(*window, counted.latest), length_of(*window, counted.latest));
                    if start - now > most(length) {
                        moved = true;
                        let by = counted.latest - (number_of(*window, now) + 1);
                        counted.latest -= by;
                        let units = std::mem::take(&mut counted.units).into_iter();
                        counted.units = units.map(|(number, units)| (number - by, units)).collect();
                    }
                }
            }
            State::Log(log) => {
                let oldest = log.entries.first().map_or(0, |(at, _)| *at);
                let ahead = log.entries.last().map_or(0, |(at, _)| *at - now);
                if ahead > most(log.keep) {
                    moved = oldest > 0;
                    // Nothing is moved before 1970.
                    log.entries.iter_mut().for_each(|(at, _)| *at -= ahead.min(oldest));
                }
            }
            State::Buckets(buckets) => {
                for (window, level) in &mut buckets.lengths {
                    if level.last - now > most(*window.max(&ceil(level.missing, level.limit))) {
                        moved = true;
                        level.last = now;
                    }
                }
            }
        }
        moved
    }

    /// Counts or gives back in all tiers, or in none. Returns what changed, if anything did.
    pub fn record(&mut self, quotas: &[Quota], cost: i64, now: u64, at: bool, force: bool) -> Option<Change> {
        let units = i128::from(cost).abs();
        // Units are given back as of AT, or else as of the newest time of the log, or of the windows named.
        let as_of = if cost > 0 || at { now } else { now.max(self.newest_units_of(quotas)) };
        let when = i128::from(as_of);
        let waited = self.awaited_until().is_some_and(|until| until >= i128::from(now));
        let changed = match &mut self.state {
            State::Log(log) if cost > 0 => log.take(quotas, units, when),
            State::Log(log) => log.refund(quotas, units, when),
            State::Windows(windows) => {
                let in_each = quotas.iter().map(|quota| match cost > 0 {
                    true => windows.take(window_of(quota), units, when),
                    false => windows.refund(window_of(quota), units, when),
                });
                in_each.max().unwrap_or(0)
            }
            State::Buckets(buckets) if cost > 0 => buckets.take_in_all(quotas, units, when, force),
            State::Buckets(buckets) => buckets.refund(quotas, units, when, now.into()),
        };
        if changed > 0 && cost < 0 && !waited {
            self.delete_if_nothing_counts(quotas, i128::from(now));
        }
        (changed > 0).then_some(Change { as_of, units: cost.signum() * changed as i64 })
    }

    /// When the last one who waits has the units, if anybody does.
    fn awaited_until(&self) -> Option<i128> {
        let State::Buckets(buckets) = &self.state else { return None };
        let awaited = buckets.lengths.iter().filter(|(_, level)| level.awaited);
        awaited.map(|(window, level)| level.newest_units(*window)).max()
    }

    fn delete_if_nothing_counts(&mut self, quotas: &[Quota], now: i128) {
        match &mut self.state {
            State::Windows(windows) if windows.live(now).next().is_none() => windows.lengths.clear(),
            State::Log(log) if log.used(log.keep_with(quotas), now) == 0 => log.entries.clear(),
            State::Buckets(buckets) if buckets.live(now).next().is_none() => buckets.lengths.clear(),
            State::Windows(_) | State::Log(_) | State::Buckets(_) => {}
        }
    }

    /// The same, but of units that somebody waits for the time at which they are there.
    fn newest_units_of(&self, quotas: &[Quota]) -> u64 {
        match &self.state {
            State::Windows(_) | State::Log(_) => self.newest_of(quotas),
            State::Buckets(buckets) => {
                let newest = |window| buckets.lengths.get(&window).map(|level| level.newest_units(window));
                figure(quotas.iter().map(window_of).filter_map(newest).max().unwrap_or(0))
            }
        }
    }

    /// The latest time that anything was counted at; for windows and buckets, in those named.
    pub fn newest_of(&self, quotas: &[Quota]) -> u64 {
        let latest = |windows: &Windows, quota| {
            let window = window_of(quota);
            windows.lengths.get(&window).map_or(0, |counted| start_of(window, counted.latest))
        };
        figure(match &self.state {
            State::Log(log) => log.entries.last().map_or(0, |(at, _)| *at),
            State::Windows(windows) => quotas.iter().map(|quota| latest(windows, quota)).max().unwrap_or(0),
            State::Buckets(buckets) => {
                let named = quotas.iter().filter_map(|quota| buckets.lengths.get(&window_of(quota)));
                named.map(|level| level.last).max().unwrap_or(0)
            }
        })
    }

    /// A request that takes units fails if its windows do not fit into the key.
    pub fn check_windows_fit(&self, quotas: &[Quota], cost: i64, now: u64) -> Result<(), Mismatch> {
        let now = i128::from(now);
        let live: Vec<i128> = match &self.state {
            State::Windows(windows) => windows.live(now).collect(),
            State::Buckets(buckets) => buckets.live(now).collect(),
            State::Log(_) => return Ok(()),
        };
        let mut windows: Vec<i128> = live.into_iter().chain(quotas.iter().map(window_of)).collect();
        windows.sort();
        windows.dedup();
        if cost > 0 && windows.len() > MAX_LIVE_WINDOWS { Err(Mismatch::TooManyWindows) } else { Ok(()) }
    }

    /// The reply to the request in the current state.
    pub fn verdict(&self, quotas: &[Quota], cost: i64, now: u64, limited: bool) -> Verdict {
        let remaining = |quota: &Quota| quota.limit().saturating_sub(self.used(quota, now));
        let mut tier = quotas[0];
        for quota in &quotas[1..] {
            // On a tie, the earlier tier is shown.
            let better = if limited {
                self.wait_of_tier(quota, cost, now) > self.wait_of_tier(&tier, cost, now)
            } else {
                remaining(quota) < remaining(&tier)
            };
            if better {
                tier = *quota;
            }
        }
        let hopeless = quotas.iter().any(|quota| i128::from(cost) > i128::from(quota.limit()));
        let retry = || self.search.first(|ms| !self.refuses(quotas, cost, now + ms));
        Verdict {
            limited,
            limit: tier.limit(),
            remaining: remaining(&tier),
            retry_after_ms: (limited && !hopeless).then(retry),
            reset_after_ms: self.reset_after(&tier, now),
        }
    }

    /// The wait of a request for the whole limit; for a bucket with a limit of 0, that of its own limit.
    fn reset_after(&self, quota: &Quota, now: u64) -> u64 {
        match &self.state {
            State::Buckets(buckets) if quota.limit() == 0 => {
                let is_full = |ms| buckets.is_full(window_of(quota), i128::from(now + ms));
                self.search.first(is_full)
            }
            _ => self.wait_of_tier(quota, quota.limit() as i64, now),
        }
    }

    /// Milliseconds until all tiers allow the request; `None` if they never do.
    pub fn wait(&self, quotas: &[Quota], cost: i64, now: u64) -> Option<u64> {
        let wait = quotas.iter().map(|quota| self.wait_of_tier(quota, cost, now)).max();
        wait.filter(|wait| *wait < u64::MAX)
    }

    /// Milliseconds until the tier allows the request; `u64::MAX` if it never does.
    fn wait_of_tier(&self, quota: &Quota, cost: i64, now: u64) -> u64 {
        if i128::from(cost) > i128::from(quota.limit()) {
            return u64::MAX;
        }
        self.search.first(|ms| !self.tier_refuses(quota, cost, now + ms))
    }

    /// The windows as RL.INFO shows them.
    pub fn windows(&self, now: u64) -> Vec<WindowUsage> {
        let windows: Vec<i128> = match &self.state {
            State::Windows(windows) => windows.live(i128::from(now)).collect(),
            State::Log(log) if log.entries.is_empty() => Vec::new(),
            State::Log(log) => vec![log.keep],
            State::Buckets(buckets) => buckets.live(i128::from(now)).collect(),
        };
        let state = |window: i128| {
            let limit = match &self.state {
                State::Buckets(buckets) => Some(figure(buckets.lengths[&window].limit)),
                State::Windows(_) | State::Log(_) => None,
            };
            let length = match &self.state {
                State::Windows(windows) => length_of(window, windows.number(window, now.into())),
                State::Log(_) | State::Buckets(_) => window,
            };
            let window = WindowMs::of_number(figure(window)).expect("a call named it");
            let quota = Quota::new(limit.unwrap_or(1), window).expect("a limit");
            WindowUsage {
                window,
                window_ms: figure(length),
                limit,
                used: self.used(&quota, now),
                reset_after_ms: self.search.first(|ms| self.used(&quota, now + ms) == 0),
                counts: self.counts(window.get(), now),
            }
        };
        let mut windows: Vec<WindowUsage> = windows.into_iter().map(state).collect();
        windows.sort_by_key(|shown| shown.window_ms);
        windows
    }

    /// The two counts of a sliding window.
    fn counts(&self, window: u64, now: u64) -> Option<SlidingCounts> {
        let (window, now) = (i128::from(window), i128::from(now));
        match &self.state {
            State::Windows(windows) if windows.sliding => Some(SlidingCounts {
                current: figure(windows.current(window, now)),
                previous: figure(windows.previous(window, now)),
            }),
            _ => None,
        }
    }

    /// For a log, the number of distinct timestamps in its longest window.
    pub fn entries(&self, now: u64) -> Option<u64> {
        match &self.state {
            State::Windows(_) | State::Buckets(_) => None,
            State::Log(log) => Some(log.within(log.keep, i128::from(now)).count() as u64),
        }
    }

    pub fn is_empty(&self) -> bool {
        match &self.state {
            State::Windows(windows) => windows.lengths.is_empty(),
            State::Log(log) => log.entries.is_empty(),
            State::Buckets(buckets) => buckets.lengths.is_empty(),
        }
    }

    /// Whether it counted anything later than `now`.
    pub fn is_ahead_of(&self, now: u64) -> bool {
        match &self.state {
            State::Windows(windows) => windows.is_ahead_of(i128::from(now)),
            State::Log(log) => log.read(i128::from(now)) > i128::from(now),
            State::Buckets(buckets) => buckets.lengths.values().any(|level| level.last > i128::from(now)),
        }
    }
}

fn window_of(quota: &Quota) -> i128 {
    i128::from(quota.window().get())
}

fn longest(quotas: &[Quota]) -> i128 {
    quotas.iter().map(window_of).max().unwrap_or(0)
}

fn figure(units: i128) -> u64 {
    u64::try_from(units).expect("counts are within 0 and 2^63 - 1")
}
