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
//! 5         how long units are kept, in milliseconds; 0 if it never held any
//! 4         units held
//! 1         length of the older entries, in bytes
//! 1         length of the newest entry, times 4; plus where the time that set the key's expiry came from
//!           the entries, as in a block of a run, the newest last
//! ```
//!
//! Numbers are little-endian. Invariants:
//!
//! - The units held are the sum of the entries; a log that holds none has no entries, and both lengths are 0.
//! - The first entry is stored as 1 ms after a fictitious one.
//! - The oldest entry is older than the newest by less than the longest window, which fits 5 bytes.
//! - The allocation has the smallest size that fits, or is less than twice as large as needed.

use std::ops::Deref;

use arrayvec::ArrayVec;

use super::Limiter;
use super::decision::{Change, State, StateMut, Tier, TooManyWindows, Usage};
use super::lifetime::{Lifetime, TimeSource};
use super::log::{self, Entry, Log};
use super::quota::{MAX_TIERS, Quota, QuotaList, UnixMs, WindowMs};
use super::run;

/// The smallest and the largest allocation.
const LEAST_BYTES: usize = 32;
const MOST_BYTES: usize = 256;

const HEAD_BYTES: usize = 22;

/// The largest numbers of 32 and 48 bits.
const BITS_32: u64 = (1 << 32) - 1;
const BITS_48: u64 = (1 << 48) - 1;

/// The time since the previous entry that is stored for the first one.
const FIRST_SINCE: u64 = 1;

/// By the number stored in two bits. The last repeats, so that every number has one.
const SOURCES: [TimeSource; 4] =
    [TimeSource::Loaded, TimeSource::Clock, TimeSource::Given, TimeSource::Given];

/// The header, unpacked.
#[derive(Clone, Copy, Default)]
struct Head {
    newest: UnixMs,
    /// Milliseconds from the oldest entry to the newest.
    span_ms: u64,
    /// 0 if it never held any.
    retention_ms: u64,
    units: u64,
    /// Length of the older entries in bytes.
    older_length: usize,
    /// Length of the newest entry in bytes.
    newest_length: usize,
    source: TimeSource,
}

impl Head {
    #[inline(always)]
    fn read(bytes: &[u8]) -> Head {
        let head = bytes.first_chunk::<HEAD_BYTES>().expect("every allocation holds a header");
        let word = |at: usize| u64::from_le_bytes(head[at..at + 8].try_into().expect("8 bytes"));
        Head {
            newest: UnixMs::saturating(word(0) & BITS_48),
            span_ms: word(3) >> 24,
            retention_ms: word(8) >> 24,
            units: word(12) >> 32,
            older_length: head[20].into(),
            newest_length: usize::from(head[21] >> 2),
            source: SOURCES[usize::from(head[21] & 3)],
        }
    }

    #[inline(always)]
    fn write(&self, bytes: &mut [u8]) {
        let head = bytes.first_chunk_mut::<HEAD_BYTES>().expect("every allocation holds a header");
        // Each number overwrites the end of the one before.
        let mut put = |at: usize, word: u64| head[at..at + 8].copy_from_slice(&word.to_le_bytes());
        put(0, self.newest.get());
        put(6, self.span_ms);
        put(11, self.retention_ms);
        head[16..20].copy_from_slice(&(self.units as u32).to_le_bytes());
        head[20] = self.older_length as u8;
        head[21] = (self.newest_length as u8) << 2 | self.source as u8;
    }

    /// The header of a short log like `log`, except for what describes its bytes.
    fn of(log: &Log) -> Head {
        Head {
            newest: log.newest.at,
            retention_ms: log.retention().map_or(0, WindowMs::get),
            units: log.units(),
            source: log.source(),
            ..Head::default()
        }
    }

    /// The same without any entries.
    fn emptied(self) -> Head {
        let Head { newest, retention_ms, source, .. } = self;
        Head { newest, retention_ms, source, ..Head::default() }
    }

    /// Accounts for an entry later than the newest. Returns the time since the previous one, to be stored.
    #[inline(always)]
    fn append(&mut self, Entry { at, units }: Entry) -> u64 {
        let mut since = FIRST_SINCE;
        if self.units > 0 {
            since = at.since(self.newest);
            self.span_ms += since;
        }
        self.newest = at;
        self.units += units;
        self.older_length += self.newest_length;
        self.newest_length = run::length(since, units);
        since
    }

    /// Bytes before the newest entry.
    #[inline(always)]
    fn newest_offset(&self) -> usize {
        HEAD_BYTES + self.older_length
    }

    /// Bytes in use.
    #[inline(always)]
    fn size(&self) -> usize {
        self.newest_offset() + self.newest_length
    }

    /// Whether a short log can have this header.
    #[inline(always)]
    fn fits(&self) -> bool {
        self.size() <= MOST_BYTES && (self.units | self.newest.get() >> 16) <= BITS_32
    }

    fn retention(&self) -> Option<WindowMs> {
        WindowMs::new(self.retention_ms)
    }

    /// When nothing counts any more, rounded up as in [`Limiter::lifetime`](super::Limiter::lifetime).
    #[inline(always)]
    fn end(&self) -> Option<UnixMs> {
        let retention = self.retention().filter(|_| self.units > 0)?;
        Some(log::end(self.newest, retention))
    }
}

/// A place between two entries.
#[derive(Clone, Copy)]
pub(super) struct Place {
    /// Bytes before it.
    offset: usize,
    /// The time of the previous entry.
    at_ms: u64,
    /// Units of all previous entries.
    units: u64,
}

impl Place {
    /// The place after the next of the `entries`; `None` at their end.
    #[inline(always)]
    fn after(&self, entries: &[u8]) -> Option<Place> {
        let ((since, units), length) = run::entry(entries.get(self.offset..)?)?;
        Some(Place {
            offset: self.offset + length,
            at_ms: self.at_ms.wrapping_add(since),
            units: self.units + units,
        })
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
        self.head.retention()
    }

    /// See [`Log::entries`].
    pub fn entries(self, now: UnixMs) -> u64 {
        let Some(retention) = self.retention() else { return 0 };
        let as_of = now.max(self.head.newest);
        self.into_entries().filter(|entry| entry.at + retention > as_of).count() as u64
    }

    /// The entries held, oldest first.
    pub fn into_entries(self) -> impl Iterator<Item = Entry> {
        let mut place = self.front();
        std::iter::from_fn(move || {
            let next = place.after(self.all())?;
            let units = next.units - place.units;
            place = next;
            Some(Entry { at: UnixMs::saturating(next.at_ms), units })
        })
    }

    /// The bytes of all entries.
    #[inline(always)]
    fn all(&self) -> &[u8] {
        self.limiter.short_bytes().get(HEAD_BYTES..self.head.size()).unwrap_or_default()
    }

    /// The place before the first entry.
    #[inline(always)]
    fn front(&self) -> Place {
        let Head { newest, span_ms, .. } = self.head;
        Place { offset: 0, at_ms: newest.get().wrapping_sub(span_ms + FIRST_SINCE), units: 0 }
    }

    /// The units with a timestamp above `now - window`. A time before the newest timestamp is read as that
    /// timestamp.
    #[inline(always)]
    fn in_window(&self, window: WindowMs, now: UnixMs) -> Usage<Place> {
        let Head { newest, span_ms, units, .. } = self.head;
        let since_newest = now.since(newest);
        let mut usage = Usage { window, now, used: units, found: self.front() };
        if since_newest + span_ms >= window.get() {
            if since_newest >= window.get() {
                usage.used = 0;
            } else {
                usage.found = start_of(self.all(), usage.found, now.max(newest).get() - window.get());
                usage.used -= usage.found.units;
            }
        }
        usage
    }
}

impl<L: Deref<Target = Limiter>> State for Short<L> {
    /// The place where the window begins.
    type Found = Place;

    #[inline(always)]
    fn usage(&self, window: WindowMs, now: UnixMs) -> Usage<Place> {
        self.in_window(window, now)
    }

    #[inline(always)]
    fn wait_until(&self, usage: &Usage<Place>, room: u64) -> u64 {
        let last_to_expire = if room == 0 || room < newest_units(&self.limiter, self.head.newest_offset()) {
            self.head.newest
        } else {
            let Place { offset, at_ms, .. } = usage.found;
            last_to_expire(&self.limiter, offset, at_ms, usage.used - room, room)
        };
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

    fn newest_of(&self, _quotas: &[Quota]) -> UnixMs {
        self.head.newest
    }

    #[inline(always)]
    fn source(&self) -> TimeSource {
        self.head.source
    }

    #[inline(always)]
    fn is_empty(&self) -> bool {
        self.head.units == 0
    }

    fn counts_nothing(&self, quotas: &[Quota], now: UnixMs) -> bool {
        self.in_window(log::retention_with(self.retention(), log::longest_of(quotas)), now).used == 0
    }

    fn lifetime(&self, now: UnixMs, slack_ms: u64) -> Lifetime {
        log::lifetime(self.head.newest, self.head.end(), now, slack_ms)
    }

    #[inline(always)]
    fn retention_too_short_for(&self, quota: Quota) -> bool {
        (1..quota.window().get()).contains(&self.head.retention_ms)
    }
}

impl StateMut for Short<&mut Limiter> {
    #[inline(always)]
    fn add(&mut self, tiers: &mut [Tier<Place>], units: u64, now: UnixMs) -> Change {
        let old = self.head;
        let now = now.max(old.newest);
        let longest = log::longest(tiers);
        let named = longest.quota.window();
        let retention = log::retention_with(old.retention(), named);
        let Usage { found: from, used, .. } =
            if retention == named { longest.usage } else { self.in_window(retention, now) };
        let expired = used == 0 || used < old.units;
        if expired {
            drop_before(self.limiter, from.offset, from.at_ms, used);
            self.head = Head::read(self.limiter.short_bytes());
        }
        let mut new = self.head;
        new.retention_ms = if used == 0 { named.get() } else { retention.get() };
        let mut entry = Entry { at: now, units };
        let since = if used > 0 && now == new.newest {
            // More units of the same millisecond.
            let newest = self.limiter.short_bytes().get(new.newest_offset()..);
            let ((since, already), _) = newest.and_then(run::entry).unwrap_or_default();
            entry.units += already;
            new.units += units;
            new.newest_length = run::length(since, entry.units);
            since
        } else {
            new.append(entry)
        };
        if new.size() > self.limiter.short_bytes().len() || !new.fits() {
            if !new.fits() {
                // Not by an iterator's closure, which costs every request some instructions.
                let mut quotas = QuotaList::new();
                for tier in tiers.iter() {
                    quotas.push(tier.quota);
                }
                let (head, change) = add_as_log(self.limiter, quotas, units, now);
                self.head = head;
                for tier in tiers {
                    tier.usage.used += units;
                }
                return change;
            }
            resize(self.limiter, new.newest_offset(), new.size());
        }
        let bytes = self.limiter.short_bytes_mut();
        new.write(bytes);
        run::write(&mut bytes[new.newest_offset()..], since, entry.units);
        self.head = new;
        if expired && is_wasteful(new.size(), bytes.len()) {
            resize(self.limiter, new.size(), new.size());
        }
        for Tier { quota, usage, .. } in tiers {
            if expired {
                *usage = self.in_window(quota.window(), usage.now);
            } else {
                usage.used += units;
            }
        }
        let end_moved = used == 0
            || old.retention_ms < retention.get()
            || now + retention > log::end(old.newest, retention);
        Change { units, end_moved }
    }

    fn refund(&mut self, quotas: &[Quota], units: u64, as_of: UnixMs) -> u64 {
        let units = refund(self.limiter, log::longest_of(quotas), units, as_of);
        self.head = Head::read(self.limiter.short_bytes());
        units
    }
}

impl Short<&mut Limiter> {
    /// Records where the time that set the key's expiry came from.
    pub fn set_source(&mut self, source: TimeSource) {
        self.head.source = source;
        self.head.write(self.limiter.short_bytes_mut());
    }
}

// The functions below are not inlined, and take and return numbers by value, so that a request keeps them in
// registers.

/// The first place, from `from` on, before an entry later than `expired_ms`.
#[inline(never)]
fn start_of(entries: &[u8], from: Place, expired_ms: u64) -> Place {
    let mut place = from;
    while let Some(next) = place.after(entries)
        && next.at_ms <= expired_ms
    {
        place = next;
    }
    place
}

/// The units of the newest entry, at `offset`; 0 if the limiter just became a [`Log`].
#[inline(never)]
fn newest_units(limiter: &Limiter, offset: usize) -> u64 {
    limiter.short_bytes().get(offset..).map_or(0, run::units)
}

/// The time of the newest entry that must expire so that `surplus` units expire and `room` still count. The
/// entry before `offset` is of `at_ms`.
#[inline(never)]
fn last_to_expire(limiter: &Limiter, offset: usize, at_ms: u64, surplus: u64, room: u64) -> UnixMs {
    if let Limiter::Log(log) = limiter {
        // It just became a `Log`.
        return log.last_to_expire(log.front(), room);
    }
    let short = Short::of(limiter);
    let mut place = Place { offset, at_ms, units: 0 };
    while place.units < surplus
        && let Some(next) = place.after(short.all())
    {
        place = next;
    }
    UnixMs::saturating(place.at_ms)
}

/// Drops all entries before `offset`. `before_ms` is the time of the last one dropped, `units` what is left;
/// if that is nothing, drops all.
#[inline(never)]
fn drop_before(limiter: &mut Limiter, offset: usize, before_ms: u64, units: u64) {
    let Short { head, .. } = Short::of(&*limiter);
    let bytes = limiter.short_bytes_mut();
    let mut new = Head { units, ..head.emptied() };
    if units > 0
        && let Some(((since, first), length)) = run::entry(&bytes[HEAD_BYTES + offset..])
    {
        let rest = HEAD_BYTES + offset + length;
        let shorter = run::write(&mut bytes[HEAD_BYTES..], FIRST_SINCE, first);
        bytes.copy_within(rest..head.size(), HEAD_BYTES + shorter);
        let length = shorter + head.size() - rest;
        // The first entry may be the newest.
        new.newest_length = head.newest_length.min(length);
        new.older_length = length - new.newest_length;
        new.span_ms = head.newest.get() - before_ms.wrapping_add(since);
    }
    new.write(bytes);
}

/// Moves the first `kept` bytes to the smallest allocation that holds `size`.
#[cold]
#[inline(never)]
fn resize(limiter: &mut Limiter, kept: usize, size: usize) {
    *limiter = allocate(&limiter.short_bytes()[..kept], size);
}

/// Takes up to `units` that were counted at `as_of` or before and still count, newest first. Returns how many
/// were taken.
#[inline(never)]
fn refund(limiter: &mut Limiter, named: WindowMs, units: u64, as_of: UnixMs) -> u64 {
    let short = Short::of(&*limiter);
    let head = short.head;
    let retention = log::retention_with(short.retention(), named);
    let counts = |entry: &Entry| entry.at <= as_of && entry.at + retention > as_of.max(head.newest);
    let mut left = units;
    let mut entries: Vec<Entry> = short.into_entries().collect();
    for entry in entries.iter_mut().rev().filter(|entry| counts(entry)) {
        let refunded = left.min(entry.units);
        entry.units -= refunded;
        left -= refunded;
    }
    let entries = entries.into_iter().filter(|entry| entry.units > 0);
    if left < units
        && let Some((size, bytes)) = written(head, entries)
    {
        let allocated = limiter.short_bytes().len();
        *limiter = allocate(&bytes[..size], if is_wasteful(size, allocated) { size } else { allocated });
        return units - left;
    }
    0
}

/// Turns the limiter into a [`Log`], and counts there.
#[cold]
#[inline(never)]
fn add_as_log(limiter: &mut Limiter, quotas: QuotaList, units: u64, now: UnixMs) -> (Head, Change) {
    let short = Short::of(&*limiter);
    let mut log = Box::new(Log::of(short.retention(), short.head.source, short.into_entries()));
    let mut large = log.as_mut();
    let tier = |quota: Quota| Tier::new(quota, large.usage(quota.window(), now));
    let mut tiers: ArrayVec<Tier<_>, MAX_TIERS> = quotas.into_iter().map(tier).collect();
    let change = large.add(&mut tiers, units, now);
    let head = Head::of(&log);
    *limiter = Limiter::Log(log);
    (head, change)
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
    let (size, bytes) = written(Head::of(log), log.iter())?;
    (size <= most_bytes).then(|| allocate(&bytes[..size], size))
}

/// Writes a short log of these entries, oldest first, with the rest of its header from `head`. Returns its size
/// and bytes; `None` if they do not fit.
fn written(head: Head, entries: impl Iterator<Item = Entry>) -> Option<(usize, [u8; MOST_BYTES])> {
    let mut bytes = [0; MOST_BYTES];
    let mut head = head.emptied();
    for entry in entries {
        let since = head.append(entry);
        if !head.fits() {
            return None;
        }
        run::write(&mut bytes[head.newest_offset()..], since, entry.units);
    }
    head.write(&mut bytes);
    Some((head.size(), bytes))
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
