//! A run of (time, units) entries in time order: appended at one end, dropped from the other.
//!
//! An entry is stored as the time since the one before it, in a byte or two, and its units only
//! when they are more than one. The bytes lie in blocks, so that growing copies at most one
//! block and a million entries leave at the price of a thousand blocks. Each block knows the
//! running totals before its first entry, so any place is found by a binary search over the
//! blocks and a walk through one of them, and every count is the difference of two totals.

use std::collections::VecDeque;

use super::{Mover, varint};

/// Bytes in a full block: enough entries to make its 48 bytes of bookkeeping small, few enough
/// that a walk through one takes a microsecond or two.
const BLOCK_BYTES: usize = 1024;

/// An entry of more than one unit begins with this, which no time between two entries can be.
const UNITS_FOLLOW: u8 = 0;

/// The running totals between two entries. Wrapping: only differences mean anything.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Mark {
    /// The time of the entry before, in Unix milliseconds.
    pub at_ms: u64,
    /// Units in all entries before, ever.
    units: u64,
    /// Entries before, ever.
    entries: u64,
}

impl Mark {
    /// Units between `earlier` and this mark.
    #[inline]
    pub fn units_since(&self, earlier: &Mark) -> u64 {
        self.units.wrapping_sub(earlier.units)
    }

    /// Entries between `earlier` and this mark.
    #[inline]
    pub fn entries_since(&self, earlier: &Mark) -> u64 {
        self.entries.wrapping_sub(earlier.entries)
    }
}

/// A place between two entries. Later places compare greater.
#[derive(Clone, Copy, Debug, Default)]
pub struct Place {
    /// Number of the block, counted from the first that this run ever had.
    block: u64,
    /// Bytes of that block before the place.
    offset: usize,
    /// The totals at the place.
    pub mark: Mark,
}

impl Place {
    /// What places are told apart by: the totals follow from it.
    #[inline]
    fn key(&self) -> (u64, usize) {
        (self.block, self.offset)
    }
}

impl PartialEq for Place {
    #[inline]
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl PartialOrd for Place {
    #[inline]
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.key().cmp(&other.key()))
    }
}

#[derive(Clone, Debug)]
struct Block {
    bytes: Vec<u8>,
    before: Mark,
}

/// See the module.
#[derive(Clone, Debug, Default)]
pub struct Run {
    blocks: VecDeque<Block>,
    /// Before the oldest entry held, in the first block.
    front: Place,
    /// The time of that entry: spares nearly every request decoding it.
    oldest_at_ms: u64,
    /// After the newest entry held.
    end: Mark,
    truncations: u64,
}

impl Run {
    /// How often entries were taken away from the end: places from before mean nothing any more.
    #[inline(always)]
    pub fn truncations(&self) -> u64 {
        self.truncations
    }

    /// The place before the oldest entry held.
    #[inline(always)]
    pub fn front(&self) -> Place {
        self.front
    }

    /// The time of the oldest entry held; of the last that was held if there is none.
    #[inline(always)]
    pub fn oldest_at_ms(&self) -> u64 {
        self.oldest_at_ms
    }

    /// The totals after the newest entry held.
    #[inline(always)]
    pub fn end(&self) -> &Mark {
        &self.end
    }

    /// Whether it holds no entry.
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.end.entries == self.front.mark.entries
    }

    /// Units held.
    #[inline(always)]
    pub fn units(&self) -> u64 {
        self.end.units_since(&self.front.mark)
    }

    /// Appends an entry of `units`, at least one, later than all others.
    #[inline(always)]
    pub fn push(&mut self, at_ms: u64, units: u64) {
        if self.is_empty() {
            self.restart(at_ms);
        }
        let since = at_ms.wrapping_sub(self.end.at_ms);
        if units == 1 && since < 0x80 {
            self.tail(1).push(since as u8);
        } else {
            let tail = self.tail(1 + 2 * varint::MAX_LEN);
            if units != 1 {
                tail.push(UNITS_FOLLOW);
                varint::put(tail, units);
            }
            varint::put(tail, since);
        }
        self.end = Mark {
            at_ms,
            units: self.end.units.wrapping_add(units),
            entries: self.end.entries.wrapping_add(1),
        };
    }

    /// Makes an empty run ready for a first entry at `at_ms`.
    ///
    /// That entry counts from the millisecond before it: a time between is never zero. Block
    /// numbers go on, so that places of before are seen to lie before the front.
    #[cold]
    fn restart(&mut self, at_ms: u64) {
        let before = Mark { at_ms: at_ms.wrapping_sub(1), ..self.end };
        let block = self.front.block + self.blocks.len().max(1) as u64;
        self.blocks.truncate(1);
        if let Some(block) = self.blocks.front_mut() {
            block.bytes.clear();
            block.before = before;
        }
        self.front = Place { block, offset: 0, mark: before };
        self.oldest_at_ms = at_ms;
        self.end = before;
    }

    /// The last block's bytes, with room for `most` more.
    #[inline(always)]
    fn tail(&mut self, most: usize) -> &mut Vec<u8> {
        if self.blocks.back().is_none_or(|block| block.bytes.len() + most > BLOCK_BYTES) {
            if self.blocks.capacity() == 0 {
                // Most logs have one block all their life.
                self.blocks.reserve_exact(1);
            }
            self.blocks.push_back(Block { bytes: Vec::new(), before: self.end });
        }
        let last = self.blocks.len() - 1;
        let bytes = &mut self.blocks[last].bytes;
        if bytes.capacity() - bytes.len() < most {
            grow(bytes, most);
        }
        bytes
    }

    /// The first place from `from` on whose next entry `passes` refuses, given the totals after
    /// that entry; the end if it refuses none. It must accept a first stretch and refuse the rest.
    #[inline(always)]
    pub fn seek(&self, from: Place, passes: impl Fn(&Mark) -> bool) -> Place {
        self.around_refused(from, passes).0
    }

    /// That place, and the one after the entry that is refused.
    #[inline(always)]
    pub fn around_refused(&self, from: Place, passes: impl Fn(&Mark) -> bool) -> (Place, Option<Place>) {
        let mut place = if from < self.front { self.front } else { from };
        let Some(mut index) = self.index(&place) else {
            return (place, None);
        };
        if index + 1 < self.blocks.len() && passes(&self.blocks[index + 1].before) {
            let (mut low, mut high) = (index + 1, self.blocks.len());
            while high - low > 1 {
                let middle = low + (high - low) / 2;
                if passes(&self.blocks[middle].before) { low = middle } else { high = middle }
            }
            index = low;
            place =
                Place { block: self.front.block + index as u64, offset: 0, mark: self.blocks[index].before };
        }
        let bytes = &self.blocks[index].bytes;
        while let Some(next) = step(bytes, &place) {
            if !passes(&next.mark) {
                return (place, Some(next));
            }
            place = next;
        }
        let Some(next) = self.blocks.get(index + 1) else {
            return (place, None);
        };
        place = Place { block: place.block + 1, offset: 0, mark: place.mark };
        (place, step(&next.bytes, &place))
    }

    /// The place after the entry at `place`; `None` at the end.
    pub fn after(&self, place: &Place) -> Option<Place> {
        let index = self.index(place)?;
        step(&self.blocks[index].bytes, place).or_else(|| {
            let next = self.blocks.get(index + 1)?;
            step(&next.bytes, &Place { block: place.block + 1, offset: 0, mark: place.mark })
        })
    }

    /// Every entry as (time in ms, units), oldest first.
    pub fn iter(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        let mut place = self.front;
        std::iter::from_fn(move || {
            let next = self.after(&place)?;
            let units = next.mark.units_since(&place.mark);
            place = next;
            Some((next.mark.at_ms, units))
        })
    }

    /// Forgets all entries before `place`.
    #[inline(always)]
    pub fn drop_before(&mut self, place: Place) {
        if place > self.front {
            self.advance_to(place);
        }
    }

    #[inline(never)]
    fn advance_to(&mut self, place: Place) {
        let dropped = (place.block - self.front.block) as usize;
        self.blocks.drain(..dropped.min(self.blocks.len()));
        if self.blocks.len() < self.blocks.capacity() / 8 {
            self.blocks.shrink_to(self.blocks.len() * 2);
        }
        self.front = place;
        if let Some(oldest) = self.after(&place) {
            self.oldest_at_ms = oldest.mark.at_ms;
        }
    }

    /// Forgets all entries from `place` on.
    pub fn truncate(&mut self, place: Place) {
        self.truncations += 1;
        let Some(index) = self.index(&place) else {
            return;
        };
        self.blocks.truncate(index + 1);
        self.blocks[index].bytes.truncate(place.offset);
        self.end = place.mark;
    }

    /// Bytes on the heap.
    pub fn heap_bytes(&self) -> usize {
        let full = self.blocks.len().saturating_sub(1) * BLOCK_BYTES;
        let last = self.blocks.back().map_or(0, |block| block.bytes.capacity());
        self.blocks.capacity() * size_of::<Block>() + full + last
    }

    /// How many separate pieces of memory it holds.
    pub fn allocations(&self) -> usize {
        self.blocks.len() + 1
    }

    /// See [`Limiter::relocate`](super::Limiter::relocate).
    pub fn relocate(&mut self, mover: &mut impl Mover) {
        // The same memory, as a vector.
        let mut blocks = mover.move_vec(Vec::from(std::mem::take(&mut self.blocks)));
        for block in &mut blocks {
            block.bytes = mover.move_vec(std::mem::take(&mut block.bytes));
        }
        self.blocks = VecDeque::from(blocks);
    }

    #[inline(always)]
    fn index(&self, place: &Place) -> Option<usize> {
        let index = place.block.wrapping_sub(self.front.block) as usize;
        (index < self.blocks.len()).then_some(index)
    }
}

/// The place after the entry that starts at `place` within `bytes`; `None` at their end.
#[inline(always)]
fn step(bytes: &[u8], place: &Place) -> Option<Place> {
    let mut offset = place.offset;
    let mut units = 1;
    if *bytes.get(offset)? == UNITS_FOLLOW {
        let (value, length) = varint::get(&bytes[offset + 1..])?;
        units = value;
        offset += 1 + length;
    }
    let (since, length) = varint::get(&bytes[offset..])?;
    Some(Place {
        block: place.block,
        offset: offset + length,
        mark: Mark {
            at_ms: place.mark.at_ms.wrapping_add(since),
            units: place.mark.units.wrapping_add(units),
            entries: place.mark.entries.wrapping_add(1),
        },
    })
}

/// Makes room for `most` more bytes in steps that allocators have a size class for.
#[cold]
fn grow(bytes: &mut Vec<u8>, most: usize) {
    let wanted = bytes.len() + most;
    let size = if wanted <= 128 { wanted.next_power_of_two().max(32) } else { wanted.next_multiple_of(128) };
    bytes.reserve_exact(size - bytes.len());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filled(entries: &[(u64, u64)]) -> Run {
        let mut run = Run::default();
        for &(at_ms, units) in entries {
            run.push(at_ms, units);
        }
        run
    }

    /// Small and large gaps and costs, over several blocks.
    fn many() -> Vec<(u64, u64)> {
        let gaps = [1, 2, 127, 128, 129, 16_383, 16_384, 1 << 40];
        let units = [1, 1, 1, 2, 127, 128, 1 << 53];
        let mut at_ms = 0;
        (0..5_000)
            .map(|i| {
                at_ms += gaps[i % gaps.len()];
                (at_ms, units[i % units.len()])
            })
            .collect()
    }

    #[test]
    fn what_was_pushed_is_read_back() {
        let entries = many();
        let run = filled(&entries);
        assert!(run.blocks.len() > 10);
        assert_eq!(run.iter().collect::<Vec<_>>(), entries);
        assert_eq!(run.end().entries_since(&run.front().mark), 5_000);
        assert_eq!(run.units(), entries.iter().fold(0u64, |sum, e| sum.wrapping_add(e.1)));
    }

    #[test]
    fn a_run_may_begin_at_time_zero() {
        assert_eq!(filled(&[(0, 1), (1, 3)]).iter().collect::<Vec<_>>(), [(0, 1), (1, 3)]);
    }

    #[test]
    fn seek_finds_each_entry_from_any_place_before_it() {
        let entries = many();
        let run = filled(&entries);
        let middle = run.seek(run.front(), |mark| mark.at_ms < entries[1_234].0);
        for i in (0..entries.len()).step_by(7) {
            let wanted = entries[i].0;
            let place = run.seek(run.front(), |mark| mark.at_ms < wanted);
            assert_eq!(run.after(&place).unwrap().mark.at_ms, wanted);
            if i >= 1_234 {
                assert_eq!(run.seek(middle, |mark| mark.at_ms < wanted), place);
            }
        }
        let end = run.seek(run.front(), |_| true);
        assert_eq!(end.mark, *run.end());
        assert_eq!(run.after(&end), None);
    }

    #[test]
    fn dropping_and_truncating_leave_what_is_between() {
        let entries = many();
        for (from, to) in [(0, 5_000), (1, 4_999), (900, 901), (2_000, 2_000), (4_999, 5_000)] {
            let mut run = filled(&entries);
            let first = run.seek(run.front(), |mark| mark.entries_since(&Mark::default()) <= from as u64);
            let last = run.seek(run.front(), |mark| mark.entries_since(&Mark::default()) <= to as u64);
            run.drop_before(first);
            run.truncate(last);
            assert_eq!(run.iter().collect::<Vec<_>>(), entries[from..to]);
            assert_eq!(run.is_empty(), from == to);
            run.push(1 << 52, 9);
            assert_eq!(run.iter().last(), Some((1 << 52, 9)));
        }
    }

    #[test]
    fn a_unit_takes_a_byte_or_two() {
        let mut run = Run::default();
        for i in 0..1_000 {
            run.push(i * 60, 1);
        }
        assert!(run.heap_bytes() < 1_400, "{}", run.heap_bytes());
    }

    #[test]
    fn a_steady_run_does_not_grow() {
        let mut run = filled(&(0..1_000).map(|i| (i, 1)).collect::<Vec<_>>());
        for i in 1_000..100_000u64 {
            let place = run.seek(run.front(), |mark| mark.at_ms + 1_000 <= i);
            run.drop_before(place);
            run.push(i, 1);
        }
        assert_eq!(run.units(), 1_000);
        assert!(run.heap_bytes() <= 3 * BLOCK_BYTES + 8 * size_of::<Block>());
    }
}
