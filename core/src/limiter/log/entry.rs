//! The entries of a log, their bytes, and places between them.
//!
//! An entry is stored as the time since the previous one, usually in one or two bytes, and its units only if
//! they are more than one: a zero, which no time between two entries is, then the units, then the time. The first
//! entry is stored as 1 ms after a fictitious one.

use super::super::quota::UnixMs;
use super::varint;

/// The units of one millisecond.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Entry {
    /// When they were counted.
    pub at: UnixMs,
    /// How many.
    pub units: u64,
}

/// The first byte of an entry with more than one unit.
pub const UNITS_FOLLOW: u8 = 0;

/// The time since the previous entry that is stored for the first one.
pub const FIRST_SINCE: u64 = 1;

/// Bytes in the longest entry.
pub const MOST_BYTES: usize = 1 + 2 * varint::MAX_LEN;

/// Decodes the entry at the start of `bytes`: (ms since the previous entry, units), and its length in bytes.
pub fn read(bytes: &[u8]) -> Option<((u64, u64), usize)> {
    let mut length = 0;
    let mut units = 1;
    if *bytes.first()? == UNITS_FOLLOW {
        (units, length) = varint::get(&bytes[1..])?;
        length += 1;
    }
    let (since, more) = varint::get(&bytes[length..])?;
    Some(((since, units), length + more))
}

/// The entries in `bytes`, as in [`read`].
pub fn iter(mut bytes: &[u8]) -> impl Iterator<Item = (u64, u64)> {
    std::iter::from_fn(move || {
        let (entry, length) = read(bytes)?;
        bytes = &bytes[length..];
        Some(entry)
    })
}

/// Appends an entry. Returns its length.
pub fn put(bytes: &mut Vec<u8>, since: u64, units: u64) -> usize {
    let start = bytes.len();
    if units != 1 {
        bytes.push(UNITS_FOLLOW);
        varint::put(bytes, units);
    }
    varint::put(bytes, since);
    bytes.len() - start
}

/// The length of an entry in bytes.
pub fn length(since: u64, units: u64) -> usize {
    let units = if units == 1 { 0 } else { 1 + varint::length(units) };
    units + varint::length(since)
}

/// Writes an entry to the start of `bytes`, which must have room for it. Returns its length.
#[inline(always)]
pub fn write(bytes: &mut [u8], since: u64, units: u64) -> usize {
    let mut length = 0;
    if units != 1 {
        bytes[0] = UNITS_FOLLOW;
        length = 1 + varint::write(&mut bytes[1..], units);
    }
    length + varint::write(&mut bytes[length..], since)
}

/// The running totals between two entries. They wrap; only differences are meaningful.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Mark {
    /// The time of the previous entry, in Unix milliseconds.
    pub at_ms: u64,
    /// Units in all previous entries, dropped ones included.
    pub units: u64,
    /// Number of previous entries, dropped ones included.
    pub entries: u64,
}

impl Mark {
    pub fn units_since(&self, earlier: &Mark) -> u64 {
        self.units.wrapping_sub(earlier.units)
    }

    pub fn entries_since(&self, earlier: &Mark) -> u64 {
        self.entries.wrapping_sub(earlier.entries)
    }

    /// The totals after one more entry.
    pub fn plus(&self, at_ms: u64, units: u64) -> Mark {
        Mark { at_ms, units: self.units.wrapping_add(units), entries: self.entries.wrapping_add(1) }
    }
}

/// A place between two entries. Later places compare greater.
#[derive(Clone, Copy, Debug, Default)]
pub struct Cursor {
    /// Number of the block, dropped ones included. A short log has one.
    pub block: u64,
    /// Bytes of that block before the place.
    pub offset: usize,
    /// The totals at the place.
    pub mark: Mark,
}

impl Cursor {
    /// The place after the next entry; `None` at the end of `bytes`, its block.
    #[inline]
    pub fn after(&self, bytes: &[u8]) -> Option<Cursor> {
        let ((since, units), length) = read(bytes.get(self.offset..)?)?;
        Some(Cursor {
            block: self.block,
            offset: self.offset + length,
            mark: self.mark.plus(self.mark.at_ms.wrapping_add(since), units),
        })
    }

    /// Identifies the place; the totals follow from it.
    fn place(&self) -> (u64, usize) {
        (self.block, self.offset)
    }
}

impl PartialEq for Cursor {
    fn eq(&self, other: &Self) -> bool {
        self.place() == other.place()
    }
}

impl PartialOrd for Cursor {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.place().cmp(&other.place()))
    }
}
