//! The state of RL.BUCKET: one bucket for each window length.
//!
//! A bucket of `limit` units refills evenly, from empty to full in one window. What is missing from it is kept as a level
//! in units times milliseconds, so that nothing is ever rounded: a unit is a window's length, and a millisecond refills
//! `limit`. A limit of 53 bits times a wait of 40 bits needs more than 64 bits, but nearly every level fits them, so only
//! the others take divisions of 128 bits.
//!
//! More can be missing than the limit. `FORCE` counts units that are used at once. `WITHIN` counts units that are not there yet, and
//! whoever was told to wait uses them later. Requests without it are refused meanwhile, so nobody overtakes.

use std::ops::{Deref, DerefMut};

use super::algorithm::WindowUsage;
use super::decision::{Refund, Refunded, State, StateMut, Tier, Usage, fit_beside};
use super::lifetime::{Change, MoveBack, TimeSource, moved_back};
use super::quota::{MAX_COUNT, MAX_SAFE_INTEGER, MAX_TIERS, Quota, UnixMs, WindowMs};

/// The bucket of one window length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bucket {
    /// The time in which it refills.
    pub window: WindowMs,
    /// When it was counted in last.
    pub last: UnixMs,
    /// Units in it when it is full.
    pub limit: u64,
    /// What is missing from it at `last`, in units times milliseconds. `FORCE` leaves at most twice the limit missing, `WITHIN` at
    /// most what refills within the window and the longest wait.
    pub level: u128,
    /// Whether whoever counted in it last was told to wait, for this bucket or for another of the request. Units that `FORCE` counted
    /// are in use.
    pub awaited: bool,
}

impl Bucket {
    /// The level of a bucket in which `units` are missing.
    #[inline(always)]
    fn level_of(&self, units: u64) -> u128 {
        u128::from(units) * u128::from(self.window.get())
    }

    /// The bucket as of `now`. An earlier time is read as its own.
    #[inline(always)]
    fn refilled(self, now: UnixMs) -> Bucket {
        let refilled = u128::from(now.since(self.last)) * u128::from(self.limit);
        Bucket { last: self.last.max(now), level: self.level.saturating_sub(refilled), ..self }
    }

    /// The bucket with another limit, full at the same time. A limit of 0 does not change it.
    #[inline(always)]
    fn with_limit(self, limit: u64) -> Bucket {
        if limit == self.limit || limit == 0 { self } else { self.scaled_to(limit) }
    }

    #[cold]
    fn scaled_to(self, limit: u64) -> Bucket {
        Bucket { limit, level: times_ratio(self.level, limit, self.limit, u128::div_ceil), ..self }
    }

    /// Units missing from it, rounded up, and at most [`MAX_COUNT`].
    #[inline(always)]
    fn used(&self) -> u64 {
        match u64::try_from(self.level) {
            // Spares nearly every request a 128-bit division, which takes much longer.
            Ok(level) => level.div_ceil(self.window.get()),
            Err(_) => self.level.div_ceil(self.level_of(1)).min(MAX_COUNT.into()) as u64,
        }
    }

    /// Milliseconds from its own time until at most `most` units are missing.
    #[inline(always)]
    fn ms_until(&self, most: u64) -> u64 {
        match self.level.saturating_sub(self.level_of(most)) {
            0 => 0,
            level => match u64::try_from(level) {
                Ok(level) => level.div_ceil(self.limit),
                Err(_) => level.div_ceil(self.limit.into()) as u64,
            },
        }
    }

    /// The time at which the units that were counted last are there: its own time, unless somebody was told to wait for them.
    fn newest_units(&self) -> UnixMs {
        let wait_ms = if self.awaited { self.ms_until(self.limit).max(1) } else { 0 };
        self.last.plus_up_to_max(wait_ms)
    }

    /// Milliseconds from `now` until it is full again.
    #[inline(always)]
    fn full_after_ms(&self, now: UnixMs) -> u64 {
        if self.level == 0 { 0 } else { self.full().since(now) }
    }

    /// The first millisecond at which it is full again.
    #[inline(always)]
    fn full(&self) -> UnixMs {
        self.last + self.ms_until(0)
    }

    /// When it is full, rounded up to an eighth of its window, so that few requests move the key's expiry.
    #[inline(always)]
    fn ends(&self) -> UnixMs {
        self.full().rounded_up_to(self.window.get().div_ceil(8))
    }

    fn is_live(&self, now: UnixMs) -> bool {
        self.full() > now
    }

    /// Counts `units`. If that is more than there are, whoever asked for them was told to wait.
    #[inline(always)]
    fn add(&mut self, units: u64) {
        self.level += self.level_of(units);
        self.awaited = self.level > self.level_of(self.limit);
        if self.awaited {
            self.level = self.level.min(self.most_missing());
        }
    }

    /// The highest level there can be: full after the longest wait and its window.
    fn most_missing(&self) -> u128 {
        u128::from(self.limit) * u128::from(self.window.get() + WindowMs::MAX.get())
    }

    /// Counts `units`, but empties it below zero by one more bucket at most. Returns how many it counted.
    #[cold]
    fn add_to_floor(&mut self, units: u64) -> u64 {
        let before = self.level;
        let floor = self.level_of(2 * self.limit).max(before);
        self.level = floor.min(before + self.level_of(units));
        self.awaited &= before > self.level_of(self.limit);
        Bucket { level: self.level - before, ..*self }.used()
    }

    /// Puts back units that were counted at `as_of`, of a bucket with the larger of its limit and `limit`. What has refilled from then until
    /// the last units were there is left out, since others may have counted it. Returns how many of these units were missing: as of the
    /// time of the refund or, while somebody waits until then, at its own.
    fn refund(&mut self, limit: u64, Refund { units, as_of, ended_by }: Refund) -> u64 {
        let (newest, larger) = (self.newest_units(), limit.max(self.limit));
        let refilled = u128::from(newest.since(as_of)) * u128::from(larger);
        let refundable = self.level_of(units).saturating_sub(refilled);
        let back = times_ratio(refundable, self.limit, larger, |level, of| level / of);
        let now = if as_of > newest { as_of } else { ended_by };
        let missing = Bucket { level: self.refilled(now).level.min(back), ..*self };
        self.level = self.level.saturating_sub(back);
        missing.with_limit(larger).used()
    }

    /// Moves a bucket back to the clock if it is further ahead than its window is long and than it takes until it is full. Returns
    /// whether it was.
    fn move_back(&mut self, to: MoveBack) -> bool {
        let moves = to.applies(self.last, self.window.get().max(self.ms_until(0)));
        if moves {
            self.last = to.clock;
        }
        moves
    }
}

/// `level * by / of`, rounded by `divide`. In two parts, since the product may exceed 128 bits.
fn times_ratio(level: u128, by: u64, of: u64, divide: fn(u128, u128) -> u128) -> u128 {
    let (by, of) = (u128::from(by), u128::from(of));
    level / of * by + divide(level % of * by, of)
}

/// A bucket in 32 bytes, whatever its figures:
///
/// ```text
/// 53 bits   its own time
///  7        the upper bits of the window
///  2        where the time that set the key's expiry came from
///  2        1 if whoever counted last was told to wait
/// 64        the limit
/// 64        the lower bits of the level
/// 32        the upper bits of the level
/// 32        the lower bits of the window; 0 if there is no bucket
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PackedBucket {
    last: u64,
    limit: u64,
    level: u64,
    level_upper: u32,
    window: u32,
}

const _: () = assert!(size_of::<PackedBucket>() == 32);
const _: () = assert!(WindowMs::MAX.get() >> 39 == 0);

const WINDOW_SHIFT: u32 = 53;
const SOURCE_SHIFT: u32 = 60;
const AWAITED_BIT: u64 = 1 << 62;

impl PackedBucket {
    #[inline(always)]
    fn pack(bucket: &Bucket, source: TimeSource) -> PackedBucket {
        let Bucket { window, last, limit, level, awaited } = *bucket;
        let upper = window.get() >> 32 << WINDOW_SHIFT | (source as u64) << SOURCE_SHIFT;
        PackedBucket {
            last: last.get() | upper | if awaited { AWAITED_BIT } else { 0 },
            limit,
            level: level as u64,
            level_upper: (level >> 64) as u32,
            window: window.get() as u32,
        }
    }

    #[inline(always)]
    fn window_ms(&self) -> u64 {
        u64::from(self.window) | (self.last >> WINDOW_SHIFT & 0x7f) << 32
    }

    /// The bucket, if its window is `window`.
    #[inline(always)]
    fn if_window(&self, window: WindowMs) -> Option<Bucket> {
        (self.window_ms() == window.get()).then_some(Bucket {
            window,
            last: UnixMs::saturating(self.last & MAX_SAFE_INTEGER),
            limit: self.limit,
            level: u128::from(self.level_upper) << 64 | u128::from(self.level),
            awaited: self.last & AWAITED_BIT != 0,
        })
    }

    #[inline(always)]
    fn unpack(&self) -> Option<Bucket> {
        WindowMs::new(self.window_ms()).and_then(|window| self.if_window(window))
    }

    fn source(&self) -> TimeSource {
        TimeSource::from_bits((self.last >> SOURCE_SHIFT) as u8)
    }

    fn set_source(&mut self, source: TimeSource) {
        if let Some(bucket) = self.unpack() {
            *self = PackedBucket::pack(&bucket, source);
        }
    }
}

/// What holds buckets: a limiter, with one in an allocation or a list of up to eight.
pub trait BucketHolder {
    /// The buckets, shortest window first. A limiter that has none yet holds one packed bucket of zeros.
    fn slots(&self) -> &[PackedBucket];

    fn slots_mut(&mut self) -> &mut [PackedBucket];

    fn replace(&mut self, slots: Vec<PackedBucket>);
}

/// Restores buckets for a [`BucketHolder`]. `None` if there are none or too many, if windows are equal or out of order, or if a
/// figure is impossible.
pub fn restore(buckets: &[Bucket]) -> Option<Vec<PackedBucket>> {
    let is_valid = |bucket: &Bucket| {
        (1..=MAX_SAFE_INTEGER).contains(&bucket.limit)
            && bucket.last <= UnixMs::MAX
            && (1..=if bucket.awaited { bucket.most_missing() } else { bucket.level_of(2 * bucket.limit) })
                .contains(&bucket.level)
    };
    let sorted = buckets.is_sorted_by(|a, b| a.window < b.window);
    let valid = (1..=MAX_TIERS).contains(&buckets.len()) && sorted && buckets.iter().all(is_valid);
    valid.then(|| packed(buckets, TimeSource::Unknown))
}

fn packed(buckets: &[Bucket], source: TimeSource) -> Vec<PackedBucket> {
    buckets.iter().map(|bucket| PackedBucket::pack(bucket, source)).collect()
}

/// The buckets of a key, wherever they are held.
pub struct Buckets<H>(pub H);

impl<H: Deref<Target: BucketHolder>> Buckets<H> {
    /// The buckets as they were counted in last, shortest window first.
    pub fn iter(&self) -> impl Iterator<Item = Bucket> + '_ {
        self.0.slots().iter().filter_map(PackedBucket::unpack)
    }

    #[inline(always)]
    fn find(&self, window: WindowMs) -> Option<Bucket> {
        self.0.slots().iter().find_map(|slot| slot.if_window(window))
    }

    #[inline(always)]
    fn bucket(&self, quota: Quota, now: UnixMs) -> Bucket {
        let (window, limit) = (quota.window(), quota.limit());
        match self.find(window) {
            Some(bucket) => bucket.refilled(now).with_limit(limit),
            None => Bucket { window, last: now, limit, level: 0, awaited: false },
        }
    }
}

impl<H: Deref<Target: BucketHolder>> State for Buckets<H> {
    /// The bucket of the window, refilled until the time, with the limit of the quota unless that is 0.
    type Place = Bucket;

    #[inline(always)]
    fn usage(&self, quota: Quota, now: UnixMs) -> Usage<Bucket> {
        let place = self.bucket(quota, now);
        Usage { used: if quota.limit() == 0 { 0 } else { place.used() }, place }
    }

    #[inline(always)]
    fn wait_until(&self, _quota: Quota, bucket: &Bucket, most: u64, now: UnixMs) -> u64 {
        bucket.last.since(now) + bucket.ms_until(most)
    }

    #[inline(always)]
    fn reset_after_ms_without_limit(&self, bucket: &Bucket, now: UnixMs) -> u64 {
        bucket.full_after_ms(now)
    }

    fn windows_fit(&self, quotas: &[Quota], now: UnixMs) -> bool {
        let live = || self.iter().filter(|bucket| bucket.is_live(now)).map(|bucket| bucket.window);
        quotas.len() + self.0.slots().len() <= MAX_TIERS || fit_beside(quotas, live())
    }

    fn is_ahead_of(&self, now: UnixMs) -> bool {
        self.iter().any(|bucket| bucket.last > now)
    }

    fn newest_in(&self, quotas: &[Quota]) -> UnixMs {
        let named = quotas.iter().filter_map(|quota| self.find(quota.window()));
        named.map(|bucket| bucket.last).max().unwrap_or_default()
    }

    fn newest_units_in(&self, quotas: &[Quota]) -> UnixMs {
        let named = quotas.iter().filter_map(|quota| self.find(quota.window()));
        named.map(|bucket| bucket.newest_units()).max().unwrap_or_default()
    }

    fn source(&self) -> TimeSource {
        self.0.slots().first().map_or(TimeSource::Unknown, PackedBucket::source)
    }

    fn is_empty(&self) -> bool {
        self.iter().next().is_none()
    }

    /// The lifetime of the bucket that is full last.
    fn lifetime_ms(&self, now: UnixMs) -> u64 {
        self.iter().map(|bucket| bucket.ends().since(now)).max().unwrap_or(0)
    }

    /// Buckets are kept until they are full.
    fn retention_too_short_for(&self, _quota: Quota) -> bool {
        false
    }

    fn windows(&self, now: UnixMs) -> Vec<WindowUsage> {
        let shown = |bucket: Bucket| WindowUsage {
            window: bucket.window,
            window_ms: bucket.window.get(),
            limit: Some(bucket.limit),
            used: bucket.refilled(now).used(),
            reset_after_ms: bucket.full_after_ms(now),
            counts: None,
        };
        self.iter().filter(|bucket| bucket.is_live(now)).map(shown).collect()
    }
}

impl<H: DerefMut<Target: BucketHolder>> Buckets<H> {
    pub fn set_source(&mut self, source: TimeSource) {
        self.0.slots_mut().iter_mut().for_each(|slot| slot.set_source(source));
    }

    /// Replaces the bucket of the same window, or inserts `bucket`. Returns whether the end of what counts moved.
    #[inline(always)]
    fn put(&mut self, bucket: &Bucket, now: UnixMs) -> bool {
        for slot in self.0.slots_mut() {
            if let Some(old) = slot.if_window(bucket.window) {
                *slot = PackedBucket::pack(bucket, slot.source());
                return old.ends() != bucket.ends();
            }
        }
        self.insert(bucket, now);
        true
    }

    /// Marks all buckets of a request that waits for one of them.
    #[cold]
    fn mark(&mut self, tiers: &[Tier<Bucket>]) {
        for slot in self.0.slots_mut() {
            if tiers.iter().any(|tier| tier.quota.window().get() == slot.window_ms()) {
                slot.last |= AWAITED_BIT;
            }
        }
    }

    /// Inserts a bucket, and drops those that are full at `now`.
    #[cold]
    fn insert(&mut self, bucket: &Bucket, now: UnixMs) {
        let mut all: Vec<Bucket> = self.iter().filter(|old| old.is_live(now)).collect();
        let place = all.partition_point(|old| old.window < bucket.window);
        all.insert(place, *bucket);
        self.replace(&all);
    }

    /// Replaces all buckets, of which there is at least one.
    fn replace(&mut self, buckets: &[Bucket]) {
        let source = self.source();
        match (self.0.slots_mut(), buckets) {
            ([slot], [bucket]) => *slot = PackedBucket::pack(bucket, source),
            _ => self.0.replace(packed(buckets, source)),
        }
    }
}

impl<H: DerefMut<Target: BucketHolder>> StateMut for Buckets<H> {
    fn move_back(&mut self, to: MoveBack) -> bool {
        let moved = moved_back(self.iter(), |bucket| bucket.move_back(to));
        moved.map(|buckets| self.replace(&buckets)).is_some()
    }

    #[inline(always)]
    fn add(&mut self, tiers: &mut [Tier<Bucket>], units: u64, now: UnixMs) -> Change {
        let mut change = Change::default();
        for tier in tiers.iter_mut().filter(|tier| tier.quota.limit() > 0) {
            let Usage { used, place: bucket } = &mut tier.usage;
            let mut added = units;
            if tier.refuses {
                added = bucket.add_to_floor(units);
            } else {
                bucket.add(units);
                change.awaited |= bucket.awaited;
            }
            if added > 0 {
                *used = bucket.used();
                change.end_moved |= self.put(bucket, now);
                change.units = change.units.max(added);
            }
        }
        if change.awaited && tiers.len() > 1 {
            self.mark(tiers);
        }
        change
    }

    fn refund(&mut self, quotas: &[Quota], refund: Refund) -> Refunded {
        let (mut left, mut units): (Vec<Bucket>, _) = (self.iter().collect(), 0);
        let named = |bucket: &Bucket| quotas.iter().find(|quota| quota.window() == bucket.window);
        // While somebody waits, only what was counted last goes back: it leaves all tiers as if it had never been counted.
        let waits = left.iter().any(|bucket| bucket.awaited && named(bucket).is_some());
        if waits && refund.as_of < self.newest_units_in(quotas) {
            return Refunded::default();
        }
        // Of units that somebody waited for, AT names the time at which they would have been there. The bucket may be full by then,
        // and still make others wait until then.
        let waited = left.iter().any(|bucket| bucket.awaited && bucket.newest_units() >= refund.ended_by);
        for bucket in &mut left {
            if let Some(quota) = named(bucket).filter(|quota| quota.limit() > 0) {
                units = units.max(bucket.refund(quota.limit(), refund));
            }
        }
        left.retain(|bucket| bucket.level > 0);
        let emptied = units > 0 && !left.iter().any(|bucket| waited || bucket.is_live(refund.ended_by));
        if units > 0 && !emptied {
            self.replace(&left);
        }
        Refunded { units, emptied }
    }
}
