//! A log of few units: header and entries in one allocation.
//!
//! Millions of keys may each hold one to ten units, for logins or one-time codes. So a log starts with an
//! allocation of 32 bytes, which grows in allocator size classes. A log that outgrows the largest, or whose
//! numbers do not fit the header, becomes a [`Log`] with blocks, totals and remembered starts. It becomes short
//! again only at half of the largest size, so that it does not alternate at the boundary.
//!
//! ```text
//! 6 bytes   time of the newest entry
//! 5         milliseconds from the oldest entry to the newest
//! 4         units held
//! 5         how long units are kept, in milliseconds; 0 if it never held any
//! 1         where the time that set the key's expiry came from
//! 1         length of the older entries, in bytes
//!           the entries, as in a block of a run, the newest last
//! ```
//!
//! Numbers are little-endian. Invariants:
//!
//! - The units held are the sum of the entries; a log that holds none has no entries.
//! - The first entry is stored as 1 ms after a fictitious one.
//! - The oldest entry is older than the newest by less than the longest window, which fits 5 bytes.
//! - The allocation has the smallest size that fits, or is less than twice as large as needed.

use std::ops::Deref;

use arrayvec::ArrayVec;

use super::Limiter;
use super::decision::{Change, State, StateMut, Tier, TooManyWindows};
use super::lifetime::{Lifetime, TimeSource};
use super::log::{self, Entry, InWindow, Log};
use super::quota::{MAX_TIERS, Quota, QuotaList, UnixMs, WindowMs};
use super::run::{self, Place};

/// The smallest and the largest allocation.
const LEAST_BYTES: usize = 32;
const MOST_BYTES: usize = 256;

const HEAD_BYTES: usize = 22;

/// The largest numbers of 32, 40 and 48 bits.
const BITS_32: u64 = (1 << 32) - 1;
const BITS_40: u64 = (1 << 40) - 1;
const BITS_48: u64 = (1 << 48) - 1;

/// The header, unpacked.
#[derive(Clone, Copy)]
struct Head {
    newest: UnixMs,
    oldest: UnixMs,
    units: u64,
    retention: Option<WindowMs>,
    source: Source,
    /// Length of the older entries in bytes.
    length: usize,
}

/// A [`TimeSource`] as stored.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Source(u8);

impl From<TimeSource> for Source {
    fn from(source: TimeSource) -> Source {
        Source(match source {
            TimeSource::Loaded => 0,
            TimeSource::Clock => 1,
            TimeSource::Given => 2,
        })
    }
}

impl From<Source> for TimeSource {
    #[inline(always)]
    fn from(source: Source) -> TimeSource {
        match source {
            Source(0) => TimeSource::Loaded,
            Source(1) => TimeSource::Clock,
            Source(_) => TimeSource::Given,
        }
    }
}

/// The time since the previous entry that is stored for the first one.
const FIRST_SINCE: u64 = 1;

impl Head {
    #[inline(always)]
    fn read(bytes: &[u8]) -> Head {
        let head = bytes.first_chunk::<HEAD_BYTES>().expect("every allocation holds a header");
        let word = |at: usize| u64::from_le_bytes(head[at..at + 8].try_into().expect("8 bytes"));
        let (first, second, third) = (word(0), word(6), word(14));
        let newest_ms = first & BITS_48;
        Head {
            newest: UnixMs::saturating(newest_ms),
            oldest: UnixMs::saturating(newest_ms.saturating_sub(second & BITS_40)),
            units: second >> 40 | (third & 0xff) << 24,
            retention: WindowMs::new(third >> 8 & BITS_40),
            source: Source((third >> 48) as u8),
            length: (third >> 56) as usize,
        }
    }

    #[inline(always)]
    fn write(&self, bytes: &mut [u8]) {
        let head = bytes.first_chunk_mut::<HEAD_BYTES>().expect("every allocation holds a header");
        let mut put = |at: usize, word: u64| head[at..at + 8].copy_from_slice(&word.to_le_bytes());
        let source = u64::from(self.source.0);
        let retention = self.retention.map_or(0, WindowMs::get);
        put(0, self.newest.get());
        put(6, self.newest.since(self.oldest) | self.units << 40);
        put(14, self.units >> 24 | retention << 8 | source << 48 | (self.length as u64) << 56);
    }

    /// Bytes that the log needs with this newest entry.
    #[inline(always)]
    fn size(&self, (since, units): (u64, u64)) -> usize {
        HEAD_BYTES + self.length + run::length(since, units)
    }

    /// Whether a short log can have this header and `size`.
    #[inline(always)]
    fn fits(&self, size: usize) -> bool {
        size <= MOST_BYTES && self.units <= BITS_32 && self.newest.get() <= BITS_48
    }
}

/// A short log in its limiter. When it counts something that does not fit, the limiter becomes a [`Log`].
pub struct Short<L> {
    limiter: L,
    head: Head,
}

impl<L: Deref<Target = Limiter>> Short<L> {
    /// The short log of `limiter`, which must hold one.
    #[inline(always)]
    pub fn of(limiter: L) -> Short<L> {
        let head = Head::read(limiter.short_bytes());
        Short { limiter, head }
    }

    /// See [`Log::retention`].
    pub fn retention(&self) -> Option<WindowMs> {
        self.head.retention
    }

    /// See [`Log::entries`].
    pub fn entries(&self, now: UnixMs) -> u64 {
        let Some(retention) = self.head.retention else { return 0 };
        let usage = self.in_window(retention, now);
        let places = std::iter::successors(Some(usage.from), |place| run::step(self.older(), place));
        if usage.used == 0 { 0 } else { places.count() as u64 }
    }

    /// The entries held, oldest first.
    pub fn into_entries(self) -> impl Iterator<Item = Entry> {
        let mut place = self.front();
        std::iter::from_fn(move || {
            let next = run::step(self.all(), &place)?;
            let units = next.mark.units_since(&place.mark);
            place = next;
            Some(Entry { at: UnixMs::saturating(next.mark.at_ms), units })
        })
    }

    /// The bytes of all entries.
    #[inline(always)]
    fn all(&self) -> &[u8] {
        let end = if self.is_empty() { 0 } else { self.head.length + self.newest_entry().1 };
        self.limiter.short_bytes().get(HEAD_BYTES..HEAD_BYTES + end).unwrap_or_default()
    }

    /// The bytes of the older entries.
    #[inline(always)]
    fn older(&self) -> &[u8] {
        self.limiter.short_bytes().get(HEAD_BYTES..HEAD_BYTES + self.head.length).unwrap_or_default()
    }

    /// The newest entry as (ms since the previous one, units), and its length.
    #[inline(always)]
    fn newest_entry(&self) -> ((u64, u64), usize) {
        let bytes = self.limiter.short_bytes().get(HEAD_BYTES + self.head.length..);
        bytes.and_then(run::entry).unwrap_or_default()
    }

    /// The place before the first entry.
    #[inline(always)]
    fn front(&self) -> Place {
        Place::first(self.head.oldest.get().wrapping_sub(FIRST_SINCE))
    }

    /// See [`Log::last_to_expire`].
    #[inline(always)]
    fn last_to_expire(&self, usage: &InWindow, room: u64) -> UnixMs {
        let Head { newest, .. } = self.head;
        if let Limiter::Log(log) = &*self.limiter {
            // It just became a `Log`.
            return last_to_expire_of(log, *usage, room);
        }
        let ((_, units), _) = self.newest_entry();
        let mut place = usage.from;
        let older = if room < units { &[] } else { self.older() };
        loop {
            let Some(next) = run::step(older, &place) else { return newest };
            if usage.used - next.mark.units_since(&usage.from.mark) <= room {
                return UnixMs::saturating(next.mark.at_ms);
            }
            place = next;
        }
    }

    /// When nothing counts any more, rounded up as in [`Limiter::lifetime`](super::Limiter::lifetime).
    #[inline(always)]
    fn end(&self) -> Option<UnixMs> {
        log::end(self.head.newest, self.head.retention.filter(|_| !self.is_empty()))
    }

    /// The units with a timestamp above `now - window`. A time before the newest timestamp is read as that
    /// timestamp.
    #[inline(always)]
    fn in_window(&self, window: WindowMs, now: UnixMs) -> InWindow {
        let Head { newest, oldest, units, .. } = self.head;
        let as_of = now.max(newest);
        if oldest + window > as_of {
            return InWindow { window, now, from: self.front(), used: units };
        }
        let from = start_of(self.older(), self.front(), window, as_of);
        let used =
            if newest + window > as_of { units - from.mark.units_since(&self.front().mark) } else { 0 };
        InWindow { window, now, from, used }
    }
}

impl<L: Deref<Target = Limiter>> State for Short<L> {
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
        let last_to_expire = if room == 0 { self.head.newest } else { self.last_to_expire(usage, room) };
        (last_to_expire + usage.window).since(usage.now)
    }

    #[inline(always)]
    fn check_windows_fit(&self, _quotas: &[Quota], _now: UnixMs) -> Result<(), TooManyWindows> {
        Ok(())
    }

    #[inline(always)]
    fn is_ahead_of(&self, now: UnixMs) -> bool {
        self.head.newest > now && !self.is_empty()
    }

    fn newest(&self) -> UnixMs {
        self.head.newest
    }

    #[inline(always)]
    fn source(&self) -> TimeSource {
        self.head.source.into()
    }

    #[inline(always)]
    fn is_empty(&self) -> bool {
        self.head.units == 0
    }

    fn lifetime(&self, now: UnixMs, slack_ms: u64) -> Lifetime {
        log::lifetime(self.head.newest, self.end(), now, slack_ms)
    }

    #[inline(always)]
    fn retention_too_short_for(&self, quota: Quota) -> bool {
        self.head.retention.is_some_and(|retention| retention < quota.window())
    }
}

impl StateMut for Short<&mut Limiter> {
    #[inline(always)]
    fn add(&mut self, tiers: &mut [Tier<InWindow>], units: u64, now: UnixMs) -> Change {
        let end = self.end();
        let now = now.max(self.head.newest);
        let longest = log::longest(tiers);
        let named = longest.quota.window();
        let retention = self.head.retention.map_or(named, |retention| retention.max(named));
        let (from, used) = if retention == named {
            (longest.usage.from, longest.usage.used)
        } else {
            let InWindow { from, used, .. } = self.in_window(retention, now);
            (from, used)
        };
        let moved = from.offset() > 0;
        if moved && used > 0 {
            self.head = drop_before(self.limiter, self.head, from.offset(), from.mark.at_ms, used);
        }
        let old = self.head;
        let mut new = Head { newest: now, units: used + units, retention: Some(retention), ..old };
        let bytes = self.limiter.short_bytes_mut();
        let newest = if used == 0 {
            new = Head { oldest: now, retention: Some(named), length: 0, ..new };
            (FIRST_SINCE, units)
        } else {
            let newest = bytes.get(HEAD_BYTES + old.length..).and_then(run::entry);
            let ((since, already), length) = newest.unwrap_or_default();
            if old.newest == now {
                (since, already + units)
            } else {
                new.length += length;
                (now.since(old.newest), units)
            }
        };
        let size = new.size(newest);
        if !new.fits(size) {
            let mut quotas = QuotaList::new();
            for tier in tiers.iter() {
                quotas.push(tier.quota);
            }
            let change;
            (self.head, change) = add_as_log(self.limiter, self.head, quotas, units, now);
            for Tier { quota, usage, .. } in tiers {
                *usage = usage_as_log(self.limiter, *quota, usage.now);
            }
            return change;
        }
        let bytes = if size > bytes.len() || is_wasteful(size, bytes.len()) {
            resize(self.limiter, HEAD_BYTES + new.length, size);
            self.limiter.short_bytes_mut()
        } else {
            bytes
        };
        new.write(bytes);
        run::write(&mut bytes[HEAD_BYTES + new.length..], newest.0, newest.1);
        self.head = new;
        for Tier { quota, usage, .. } in tiers {
            if new.retention == Some(quota.window()) {
                // All units held.
                usage.from = self.front();
                usage.used = new.units;
            } else if moved || used == 0 {
                *usage = self.in_window(quota.window(), usage.now);
            } else {
                usage.used += units;
            }
        }
        let end_moved = old.retention != Some(retention) || end.is_none_or(|end| now + retention > end);
        Change { units, end_moved }
    }

    #[inline(always)]
    fn refund(&mut self, tiers: &mut [Tier<InWindow>], units: u64, as_of: UnixMs) -> Change {
        let end = self.end();
        let named = log::longest(tiers).quota.window();
        let refunded;
        (self.head, refunded) = refund(self.limiter, self.head, named, units, as_of);
        for Tier { quota, usage, .. } in tiers {
            *usage = self.in_window(quota.window(), usage.now);
        }
        Change { units: refunded, end_moved: self.end() != end }
    }
}

impl Short<&mut Limiter> {
    /// Records where the time that set the key's expiry came from.
    pub fn set_source(&mut self, source: TimeSource) {
        self.head.source = source.into();
        self.head.write(self.limiter.short_bytes_mut());
    }
}

/// Where the window that ends at `now` begins, at `from` or later.
#[inline(never)]
fn start_of(entries: &[u8], mut from: Place, window: WindowMs, now: UnixMs) -> Place {
    while let Some(next) = run::step(entries, &from)
        && next.mark.at_ms + window.get() <= now.get()
    {
        from = next;
    }
    from
}

// The functions below are not inlined, and take and return numbers by value, so that a request keeps them in
// registers.

/// Drops all entries before `offset`. `before_ms` is the time of the last one dropped, `units` what is left,
/// at least one. Returns the new header, which the caller writes.
#[inline(never)]
fn drop_before(limiter: &mut Limiter, head: Head, offset: usize, before_ms: u64, units: u64) -> Head {
    let end = head.length + Short { limiter: &*limiter, head }.newest_entry().1;
    let bytes = &mut limiter.short_bytes_mut()[HEAD_BYTES..HEAD_BYTES + end];
    let Some(((since, first), length)) = run::entry(&bytes[offset..]) else { return head };
    let rest = offset + length;
    let shorter = run::write(bytes, FIRST_SINCE, first);
    bytes.copy_within(rest.., shorter);
    Head {
        length: head.length.saturating_sub(rest - shorter),
        oldest: UnixMs::saturating(before_ms.wrapping_add(since)),
        units,
        ..head
    }
}

/// Moves the first `kept` bytes to the smallest allocation that holds `size`.
#[cold]
#[inline(never)]
fn resize(limiter: &mut Limiter, kept: usize, size: usize) {
    *limiter = allocate(&limiter.short_bytes()[..kept], size);
}

/// Takes up to `units` that were counted at `as_of` or before and still count, newest first. Returns the header
/// and how many were taken.
#[inline(never)]
fn refund(limiter: &mut Limiter, head: Head, named: WindowMs, units: u64, as_of: UnixMs) -> (Head, u64) {
    let Head { newest, retention, source, .. } = head;
    let kept_for = retention.map_or(named, |retention| retention.max(named));
    let counts = |entry: &Entry| entry.at <= as_of && entry.at + kept_for > as_of.max(newest);
    let mut left = units;
    let mut entries: Vec<Entry> = Short { limiter: &*limiter, head }.into_entries().collect();
    for entry in entries.iter_mut().rev().filter(|entry| counts(entry)) {
        let refunded = left.min(entry.units);
        entry.units -= refunded;
        left -= refunded;
    }
    let entries = entries.into_iter().filter(|entry| entry.units > 0);
    if left < units
        && let Some((head, bytes, size)) = written(newest, retention, source, entries)
    {
        let allocated = limiter.short_bytes().len();
        *limiter = allocate(&bytes[..size], if is_wasteful(size, allocated) { size } else { allocated });
        return (head, units - left);
    }
    (head, 0)
}

/// Turns the limiter into a [`Log`], and counts there.
#[cold]
#[inline(never)]
fn add_as_log(
    limiter: &mut Limiter,
    head: Head,
    quotas: QuotaList,
    units: u64,
    now: UnixMs,
) -> (Head, Change) {
    let entries = Short { limiter: &*limiter, head }.into_entries();
    let mut log = Box::new(Log::of(head.retention, head.source.into(), entries));
    let mut large = log.as_mut();
    let tier = |quota: Quota| Tier::new(quota, large.usage(quota, now));
    let mut tiers: ArrayVec<Tier<InWindow>, MAX_TIERS> = quotas.into_iter().map(tier).collect();
    let change = large.add(&mut tiers, units, now);
    let head =
        Head { newest: log.newest.at, units: log.units(), retention: log.retention(), length: 0, ..head };
    *limiter = Limiter::Log(log);
    (head, change)
}

/// Looks up what counts, after [`add_as_log`].
#[cold]
#[inline(never)]
fn usage_as_log(limiter: &Limiter, quota: Quota, now: UnixMs) -> InWindow {
    let Limiter::Log(log) = limiter else { unreachable!("it just became a log") };
    log.as_ref().usage(quota, now)
}

/// See [`Log::last_to_expire`].
#[cold]
#[inline(never)]
fn last_to_expire_of(log: &Log, usage: InWindow, room: u64) -> UnixMs {
    log.last_to_expire(&usage, room)
}

/// Returns `log` as a short log; `None` if it is too large. One that `has_shrunk` must fit half of the largest
/// size.
pub fn shortened(log: &Log, has_shrunk: bool) -> Option<Limiter> {
    let (most_bytes, most_units) =
        if has_shrunk { (MOST_BYTES / 2, BITS_32 / 2) } else { (MOST_BYTES, BITS_32) };
    if log.holds_nothing()
        || log.units() > most_units
        || log.bytes_up_to(MOST_BYTES) + HEAD_BYTES >= most_bytes
    {
        return None;
    }
    let (_, bytes, size) = written(log.newest.at, log.retention(), log.source().into(), log.iter())?;
    (size <= most_bytes).then(|| allocate(&bytes[..size], size))
}

/// Writes a short log of these entries, oldest first. Returns its header, bytes and size; `None` if they do not
/// fit. Without entries, `newest` is the time of the last one that it held.
fn written(
    newest: UnixMs,
    retention: Option<WindowMs>,
    source: Source,
    entries: impl Iterator<Item = Entry>,
) -> Option<(Head, [u8; MOST_BYTES], usize)> {
    let mut bytes = [0; MOST_BYTES];
    let mut head = Head { newest, oldest: newest, units: 0, retention, source, length: 0 };
    let mut size = HEAD_BYTES;
    for Entry { at, units } in entries {
        let mut newest = (at.since(head.newest), units);
        if head.units == 0 {
            newest.0 = FIRST_SINCE;
            head.oldest = at;
        }
        head.newest = at;
        head.units += units;
        head.length = size - HEAD_BYTES;
        if !head.fits(head.size(newest)) {
            return None;
        }
        size += run::write(&mut bytes[size..], newest.0, newest.1);
    }
    head.write(&mut bytes);
    Some((head, bytes, size))
}

/// Whether an allocation of `allocated` bytes should be replaced by a smaller one for `size`.
#[inline(always)]
fn is_wasteful(size: usize, allocated: usize) -> bool {
    2 * size <= allocated && allocated > LEAST_BYTES
}

/// Copies `bytes` to the smallest allocation that holds `size`.
fn allocate(bytes: &[u8], size: usize) -> Limiter {
    fn filled<const N: usize>(bytes: &[u8]) -> Box<[u8; N]> {
        let mut filled = Box::new([0; N]);
        filled[..bytes.len()].copy_from_slice(bytes);
        filled
    }
    match size {
        0..=LEAST_BYTES => Limiter::Short32(filled(bytes)),
        33..=48 => Limiter::Short48(filled(bytes)),
        49..=64 => Limiter::Short64(filled(bytes)),
        65..=128 => Limiter::Short128(filled(bytes)),
        129..=MOST_BYTES => Limiter::Short256(filled(bytes)),
        _ => unreachable!("a short log fits the largest allocation"),
    }
}

/// An empty short log.
#[inline]
pub fn empty() -> Limiter {
    Limiter::Short32(Box::new([0; LEAST_BYTES]))
}
