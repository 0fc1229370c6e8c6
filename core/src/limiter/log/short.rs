//! A log of few units: header and entries in one allocation.
//!
//! Millions of keys may each hold one to ten units, for logins or one-time codes. So a log starts with an
//! allocation of 32 bytes, which grows in allocator size classes. A log that outgrows the largest, or whose
//! numbers do not fit the header, becomes [`Large`]. It becomes short again only at half of the largest size, so
//! that it does not alternate at the boundary.
//!
//! ```text
//! 6 bytes   time of the newest entry
//! 5         milliseconds from the oldest entry to the newest
//! 5         how long units are kept, in milliseconds; 0 if it never held any
//! 4         units held
//! 1         length of the older entries, in bytes
//! 1         length of the newest entry, times 4; plus where the time that set the key's expiry came from
//!           the entries, the newest last
//! ```
//!
//! Numbers are little-endian. Invariants:
//!
//! - The units held are the sum of the entries; a log that holds none has no entries, and both lengths are 0.
//! - The oldest entry is older than the newest by less than the longest window, which fits 5 bytes.
//! - The allocation has the smallest size that fits, or is less than twice as large as needed.

use std::ops::Deref;

use super::super::decision::{Refund, Refunded, StateMut, Tier, Usage};
use super::super::lifetime::{Change, MoveBack, TimeSource};
use super::super::quota::{Quota, UnixMs, WindowMs};
use super::entry::{self, Cursor, Entry, FIRST_SINCE, MOST_BYTES as ENTRY_BYTES, Mark};
use super::large::Large;
use super::{Entries, EntriesMut, longest, rounded_end};

/// Bytes of the smallest allocation.
pub const LEAST_BYTES: usize = 32;
/// Bytes of the largest allocation.
pub const MOST_BYTES: usize = 256;

const HEAD_BYTES: usize = 22;

/// The largest numbers of 32 and 48 bits.
const BITS_32: u64 = (1 << 32) - 1;
const BITS_48: u64 = (1 << 48) - 1;

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
            source: TimeSource::from_bits(head[21]),
        }
    }

    #[inline(always)]
    fn write(&self, bytes: &mut [u8]) {
        let head = bytes.first_chunk_mut::<HEAD_BYTES>().expect("every allocation holds a header");
        // A number of 6 or 5 bytes is written as 8, the last of which the next number overwrites.
        let mut put = |at: usize, word: u64| head[at..at + 8].copy_from_slice(&word.to_le_bytes());
        put(0, self.newest.get());
        put(6, self.span_ms);
        put(11, self.retention_ms);
        head[16..20].copy_from_slice(&(self.units as u32).to_le_bytes());
        head[20] = self.older_length as u8;
        head[21] = (self.newest_length as u8) << 2 | self.source as u8;
    }

    /// The header of a short log with the content of `log`, but without what describes its bytes.
    fn like(log: &Large) -> Head {
        Head {
            newest: log.newest(),
            retention_ms: log.retention().map_or(0, WindowMs::get),
            units: log.units(),
            source: log.time_source(),
            ..Head::default()
        }
    }

    /// The header as it is without entries.
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
        self.newest_length = entry::length(since, units);
        since
    }

    /// Bytes before the newest entry.
    fn newest_offset(&self) -> usize {
        HEAD_BYTES + self.older_length
    }

    /// Bytes in use.
    fn size(&self) -> usize {
        self.newest_offset() + self.newest_length
    }

    /// Whether its numbers fit the bytes that they have in a short log.
    fn fits(&self) -> bool {
        self.size() <= MOST_BYTES && (self.units | self.newest.get() >> 16) <= BITS_32
    }
}

/// What holds the allocation of a short log: a limiter, whose variant tells the size of the allocation.
pub trait LogHolder: Sized {
    /// The smallest that holds `size` bytes, beginning with `bytes`; the rest is 0.
    fn allocate(bytes: &[u8], size: usize) -> Self;
    /// The allocation.
    fn bytes(&self) -> &[u8];
    fn bytes_mut(&mut self) -> &mut [u8];
}

/// A short log in its holder.
pub struct Short<H> {
    holder: H,
    head: Head,
}

impl<H: Deref<Target: LogHolder>> Short<H> {
    #[inline(always)]
    pub fn new(holder: H) -> Short<H> {
        let head = Head::read(holder.bytes());
        Short { holder, head }
    }

    /// The bytes of all entries.
    #[inline(always)]
    fn bytes(&self) -> &[u8] {
        self.holder.bytes().get(HEAD_BYTES..self.head.size()).unwrap_or_default()
    }
}

impl<H: Deref<Target: LogHolder>> Entries for Short<H> {
    fn retention(&self) -> Option<WindowMs> {
        WindowMs::new(self.head.retention_ms)
    }

    fn newest(&self) -> UnixMs {
        self.head.newest
    }

    fn time_source(&self) -> TimeSource {
        self.head.source
    }

    fn front(&self) -> Cursor {
        let Head { newest, span_ms, .. } = self.head;
        let at_ms = newest.get().wrapping_sub(span_ms + FIRST_SINCE);
        Cursor { mark: Mark { at_ms, ..Mark::default() }, ..Cursor::default() }
    }

    fn units_after(&self, mark: &Mark) -> u64 {
        self.head.units - mark.units
    }

    fn entries_after(&self, mark: &Mark) -> u64 {
        self.iter().count() as u64 - mark.entries
    }

    #[inline(always)]
    fn in_window(&self, window: WindowMs, now: UnixMs) -> Usage<Cursor> {
        let Head { newest, span_ms, units, .. } = self.head;
        let front = self.front();
        if now.since(newest) + span_ms < window.get() {
            // Every entry still counts, as is usual unless the log is full.
            return Usage { used: units, place: front };
        }
        let expired_ms = now.max(newest).get() - window.get();
        let (place, _) = self.seek(front, |mark| mark.at_ms <= expired_ms);
        Usage { used: units - place.mark.units, place }
    }

    #[inline(always)]
    fn seek(&self, from: Cursor, passes: impl Fn(&Mark) -> bool) -> (Cursor, Option<Cursor>) {
        let mut place = from;
        while let Some(next) = place.after(self.bytes()) {
            if !passes(&next.mark) {
                return (place, Some(next));
            }
            place = next;
        }
        (place, None)
    }

    fn pieces(&self) -> impl Iterator<Item = &[u8]> {
        std::iter::once(self.bytes())
    }
}

impl<H: LogHolder> Short<&mut H> {
    pub fn set_source(&mut self, source: TimeSource) {
        self.head.source = source;
        self.head.write(self.holder.bytes_mut());
    }

    /// Whether `units` at `now` fit even if nothing has expired. It is a quick look, which may say no to units that would just fit.
    pub fn surely_has_room(&self, units: u64, now: UnixMs) -> bool {
        let numbers = self.head.units | units | now.get() >> 16;
        self.head.size() + ENTRY_BYTES <= MOST_BYTES && numbers <= BITS_32 / 2
    }

    /// Makes room for `units` at `now` by dropping what has expired. Returns whether they fit.
    pub fn make_room(&mut self, quotas: &[Quota], units: u64, now: UnixMs) -> bool {
        self.surely_has_room(units, now) || {
            let tier = |quota: &Quota| {
                let usage = self.in_window(quota.window(), now);
                Tier { quota: *quota, usage, refuses: false }
            };
            let mut longest = quotas.iter().max_by_key(|quota| quota.window()).map(tier);
            self.drop_expired(longest.as_mut_slice(), now);
            self.with(units, now).0.fits()
        }
    }

    /// The header after `units` more at `now` or, if that is later, at the time of the newest entry; and what to store
    /// as the newest entry: the time since the previous one, and its units.
    #[inline(always)]
    fn with(&self, units: u64, now: UnixMs) -> (Head, u64, u64) {
        let mut head = self.head;
        if head.units > 0 && now <= head.newest {
            let newest = self.bytes().get(head.older_length..).and_then(entry::read);
            let ((since, already), _) = newest.unwrap_or_default();
            head.units += units;
            head.newest_length = entry::length(since, already + units);
            (head, since, already + units)
        } else {
            let since = head.append(Entry { at: now.max(head.newest), units });
            (head, since, units)
        }
    }

    /// Drops the entries that have left the longest window, and updates the tiers. Returns that window, and the units
    /// that are left.
    #[inline(always)]
    fn drop_expired(&mut self, tiers: &mut [Tier<Cursor>], now: UnixMs) -> (WindowMs, u64) {
        let longest = longest(tiers);
        let named = longest.quota.window();
        let retention = self.retention().map_or(named, |retention| retention.max(named));
        let usage = if retention == named { longest.usage } else { self.in_window(retention, now) };
        if usage.used < self.head.units {
            let Cursor { offset, mark: Mark { at_ms, units, .. }, .. } = usage.place;
            drop_before(self.holder, offset, at_ms, units);
            self.head = Head::read(self.holder.bytes());
            for tier in tiers {
                tier.usage = self.in_window(tier.quota.window(), now);
            }
        }
        (if usage.used == 0 { named } else { retention }, usage.used)
    }
}

/// Moves the first `kept` bytes to the smallest allocation that holds `size`.
fn resize<H: LogHolder>(holder: &mut H, kept: usize, size: usize) {
    *holder = H::allocate(&holder.bytes()[..kept], size);
}

/// Drops all entries before a place with this offset, time and units.
fn drop_before(holder: &mut impl LogHolder, offset: usize, at_ms: u64, units: u64) {
    let bytes = holder.bytes_mut();
    let head = Head::read(bytes);
    let mut new = Head { units: head.units - units, ..head.emptied() };
    if new.units > 0
        && let Some(((since, first), length)) = entry::read(&bytes[HEAD_BYTES + offset..])
    {
        let rest = HEAD_BYTES + offset + length;
        let shorter = entry::write(&mut bytes[HEAD_BYTES..], FIRST_SINCE, first);
        bytes.copy_within(rest..head.size(), HEAD_BYTES + shorter);
        let length = shorter + head.size() - rest;
        // If only one entry is left, it is the newest too.
        new.newest_length = head.newest_length.min(length);
        new.older_length = length - new.newest_length;
        new.span_ms = head.newest.get() - at_ms.wrapping_add(since);
    }
    new.write(bytes);
}

impl<H: LogHolder> StateMut for Short<&mut H> {
    fn move_back(&mut self, to: MoveBack) -> bool {
        let by_ms = self.ms_to_move_back(to);
        self.head.newest = UnixMs::saturating(self.head.newest.get() - by_ms);
        self.head.write(self.holder.bytes_mut());
        by_ms > 0
    }

    /// The units must fit: see [`Short::make_room`].
    #[inline(always)]
    fn add(&mut self, tiers: &mut [Tier<Cursor>], units: u64, now: UnixMs) -> Change {
        let old = self.head;
        let (retention, used) = self.drop_expired(tiers, now);
        let (mut new, since, entry_units) = self.with(units, now);
        new.retention_ms = retention.get();
        if new.size() > self.holder.bytes().len() {
            resize(self.holder, new.newest_offset(), new.size());
        }
        let bytes = self.holder.bytes_mut();
        new.write(bytes);
        entry::write(&mut bytes[new.newest_offset()..], since, entry_units);
        let (allocated, expired) = (bytes.len(), used < old.units);
        self.head = new;
        if expired && is_wasteful(new.size(), allocated) {
            resize(self.holder, new.size(), new.size());
        }
        for tier in tiers {
            if used == 0 {
                tier.usage = self.in_window(tier.quota.window(), now);
            } else {
                tier.usage.used += units;
            }
        }
        let end_moved = used == 0
            || old.retention_ms < retention.get()
            || new.newest + retention > rounded_end(old.newest, retention);
        Change { units, end_moved, ..Change::default() }
    }

    fn refund(&mut self, quotas: &[Quota], refund: Refund) -> Refunded {
        EntriesMut::refund(self, quotas, refund)
    }
}

impl<H: LogHolder> EntriesMut for Short<&mut H> {
    fn replace(&mut self, from: Cursor, to: Cursor, kept: Option<Entry>) {
        let before = self.iter().take(from.mark.entries as usize);
        let after = self.iter().skip(to.mark.entries as usize);
        // They always fit, since there are fewer than before.
        let Some((size, bytes)) = written(self.head, before.chain(kept).chain(after)) else { return };
        let allocated = self.holder.bytes().len();
        let size = if is_wasteful(size, allocated) { size } else { allocated };
        *self.holder = H::allocate(&bytes[..size], size);
        self.head = Head::read(self.holder.bytes());
    }
}

/// A large log with the same content.
pub fn lengthened(short: &impl Entries) -> Box<Large> {
    Box::new(Large::with_entries(short.retention(), short.time_source(), short.iter()))
}

/// Returns `log` as a short log; `None` if it is too large. One that `has_shrunk` must fit half of the largest
/// size.
pub fn shortened<H: LogHolder>(log: &Large, has_shrunk: bool) -> Option<H> {
    let (most_bytes, most_units) =
        if has_shrunk { (MOST_BYTES / 2, BITS_32 / 2) } else { (MOST_BYTES, BITS_32) };
    if log.units() == 0 || log.units() > most_units || log.bytes_up_to(MOST_BYTES) + HEAD_BYTES >= most_bytes
    {
        return None;
    }
    let (size, bytes) = written(Head::like(log), log.iter())?;
    (size <= most_bytes).then(|| H::allocate(&bytes[..size], size))
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
        entry::write(&mut bytes[head.newest_offset()..], since, entry.units);
    }
    head.write(&mut bytes);
    Some((head.size(), bytes))
}

/// Whether an allocation of `allocated` bytes should be replaced by a smaller one for `size`.
fn is_wasteful(size: usize, allocated: usize) -> bool {
    2 * size <= allocated && allocated > LEAST_BYTES
}

/// A log that never held any units.
pub fn empty<H: LogHolder>() -> H {
    H::allocate(&[], LEAST_BYTES)
}
