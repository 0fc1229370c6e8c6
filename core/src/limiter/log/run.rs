//! A compact queue of entries in time order.
//!
//! The bytes are in blocks, so that growing copies at most one block, and dropping a million entries costs about
//! as much as dropping a thousand blocks. Each block stores the running totals before its first entry: a place
//! is found by a binary search over the blocks and then entry by entry in one of them, and every count is the
//! difference of two totals.

use std::collections::VecDeque;
use std::ops::Range;

use super::super::algorithm::Mover;
use super::entry::{self, Cursor, FIRST_SINCE, MOST_BYTES, Mark};

/// Bytes in a full block: large enough to make its 48 bytes of bookkeeping negligible, small enough that reading
/// all its entries takes a microsecond or two.
pub const BLOCK_BYTES: usize = 1024;

/// Entries in one allocation.
#[derive(Clone, Debug)]
pub struct Block {
    bytes: Vec<u8>,
    before: Mark,
}

/// A compact queue of entries.
#[derive(Clone, Debug, Default)]
pub struct Run {
    blocks: VecDeque<Block>,
    /// The place before the oldest entry held, in the first block.
    front: Cursor,
    /// The time of the oldest entry, so that most requests need not decode it.
    oldest_at_ms: u64,
    /// The totals after the newest entry held.
    end: Mark,
    /// Bytes of the newest entry, so that units of the same millisecond can join it.
    newest_length: usize,
}

impl Run {
    /// The place before the oldest entry held.
    pub fn front(&self) -> Cursor {
        self.front
    }

    /// The time of the oldest entry held, in Unix milliseconds. Out of date if the run is empty.
    pub fn oldest_at_ms(&self) -> u64 {
        self.oldest_at_ms
    }

    /// The totals after the newest entry held.
    pub fn end(&self) -> Mark {
        self.end
    }

    pub fn is_empty(&self) -> bool {
        self.end.entries == self.front.mark.entries
    }

    /// Appends at least one unit at a time no earlier than that of the newest entry; at the same time, to that entry.
    pub fn push(&mut self, at_ms: u64, mut units: u64) {
        if at_ms == self.end.at_ms && !self.is_empty() {
            let Some(already) = self.pop_newest() else { return };
            units += already;
        }
        if self.is_empty() {
            self.restart(at_ms);
        }
        let since = at_ms.wrapping_sub(self.end.at_ms);
        self.newest_length = entry::put(self.tail(), since, units);
        self.end = self.end.plus(at_ms, units);
    }

    /// Prepares an empty run for a first entry at `at_ms`. Block numbers continue, so that older places compare less
    /// than the front.
    fn restart(&mut self, at_ms: u64) {
        let before = Mark { at_ms: at_ms.wrapping_sub(FIRST_SINCE), ..self.end };
        let block = self.front.block + self.blocks.len().max(1) as u64;
        self.blocks.truncate(1);
        if let Some(block) = self.blocks.front_mut() {
            block.bytes.clear();
            block.before = before;
        }
        self.front = Cursor { block, offset: 0, mark: before };
        self.oldest_at_ms = at_ms;
        self.end = before;
    }

    /// Removes the newest entry, which may leave the last block empty. Returns its units.
    fn pop_newest(&mut self) -> Option<u64> {
        let bytes = &mut self.blocks.back_mut()?.bytes;
        let start = bytes.len() - self.newest_length;
        let ((since, units), _) = entry::read(&bytes[start..])?;
        bytes.truncate(start);
        self.end = Mark {
            at_ms: self.end.at_ms.wrapping_sub(since),
            units: self.end.units.wrapping_sub(units),
            entries: self.end.entries.wrapping_sub(1),
        };
        Some(units)
    }

    /// The bytes of the last block, for one more entry.
    fn tail(&mut self) -> &mut Vec<u8> {
        if self.blocks.back().is_none_or(|block| block.bytes.len() + MOST_BYTES > BLOCK_BYTES) {
            if self.blocks.capacity() == 0 {
                // Most logs never have more than one block.
                self.blocks.reserve_exact(1);
            }
            self.blocks.push_back(Block { bytes: Vec::new(), before: self.end });
        }
        let last = self.blocks.len() - 1;
        let bytes = &mut self.blocks[last].bytes;
        reserve(bytes, MOST_BYTES);
        bytes
    }

    /// The places around the first entry that `passes` rejects, as [`Entries::seek`](super::Entries::seek) has them.
    pub fn seek(&self, from: Cursor, passes: impl Fn(&Mark) -> bool) -> (Cursor, Option<Cursor>) {
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
                Cursor { block: self.front.block + index as u64, offset: 0, mark: self.blocks[index].before };
        }
        let bytes = &self.blocks[index].bytes;
        while let Some(next) = place.after(bytes) {
            if !passes(&next.mark) {
                return (place, Some(next));
            }
            place = next;
        }
        (place, self.after(&place))
    }

    /// The place after the entry at `place`; `None` at the end.
    pub fn after(&self, place: &Cursor) -> Option<Cursor> {
        let index = self.index(place)?;
        place.after(&self.blocks[index].bytes).or_else(|| {
            let next = self.blocks.get(index + 1)?;
            Cursor { block: place.block + 1, offset: 0, mark: place.mark }.after(&next.bytes)
        })
    }

    /// The bytes of the entries held, oldest first.
    pub fn pieces(&self) -> impl Iterator<Item = &[u8]> {
        let first = self.blocks.front().map(|block| &block.bytes[self.front.offset..]);
        first.into_iter().chain(self.blocks.iter().skip(1).map(|block| block.bytes.as_slice()))
    }

    /// Drops all entries before `place`.
    pub fn drop_before(&mut self, place: Cursor) {
        if place > self.front {
            let dropped = (place.block - self.front.block) as usize;
            self.drop_blocks(0..dropped.min(self.blocks.len()));
            self.front = place;
            self.look_up_oldest();
        }
    }

    fn drop_blocks(&mut self, blocks: Range<usize>) {
        self.blocks.drain(blocks);
        if self.blocks.len() < self.blocks.capacity() / 8 {
            self.blocks.shrink_to(self.blocks.len() * 2);
        }
    }

    fn look_up_oldest(&mut self) {
        if let Some(oldest) = self.after(&self.front) {
            self.oldest_at_ms = oldest.mark.at_ms;
        }
    }

    /// Drops all entries from `place` on.
    fn truncate(&mut self, place: Cursor) {
        let Some(mut index) = self.index(&place) else { return };
        self.blocks[index].bytes.truncate(place.offset);
        if place.offset == 0 && index > 0 {
            index -= 1;
        }
        self.blocks.truncate(index + 1);
        self.end = place.mark;
    }

    /// Replaces all entries from `from` to `to` by `entry`, as (time in ms, units), or by none. Its time must lie
    /// between those of its neighbors.
    ///
    /// The next entry is rewritten, since it stores the time since the previous one. In later blocks only the
    /// totals change, so that in the middle of a million entries this takes microseconds.
    pub fn replace(&mut self, from: Cursor, to: Cursor, entry: Option<(u64, u64)>) {
        match (self.index(&from), self.after(&to)) {
            (Some(first), Some(next)) => self.replace_between(first, from, to, next, entry),
            _ => {
                self.truncate(from);
                if let Some((at_ms, units)) = entry {
                    self.push(at_ms, units);
                }
            }
        }
        self.measure_newest();
    }

    fn replace_between(
        &mut self,
        first: usize,
        from: Cursor,
        to: Cursor,
        next: Cursor,
        entry: Option<(u64, u64)>,
    ) {
        let last = (next.block - self.front.block) as usize;
        let rest = self.blocks[last].bytes.split_off(next.offset);
        let head = &mut self.blocks[first].bytes;
        head.truncate(from.offset);
        let mut before = from.mark;
        if let Some((at_ms, units)) = entry {
            entry::put(head, at_ms.wrapping_sub(before.at_ms), units);
            before = before.plus(at_ms, units);
        }
        let next_units = next.mark.units_since(&to.mark);
        let mut bytes = Vec::new();
        grow(&mut bytes, MOST_BYTES + rest.len());
        entry::put(&mut bytes, next.mark.at_ms.wrapping_sub(before.at_ms), next_units);
        bytes.extend_from_slice(&rest);

        let after = before.plus(next.mark.at_ms, next_units);
        let (units_gone, entries_gone) = (next.mark.units_since(&after), next.mark.entries_since(&after));
        let later = self.blocks.range_mut(last + 1..).map(|block| &mut block.before);
        for mark in later.chain(std::iter::once(&mut self.end)) {
            mark.units = mark.units.wrapping_sub(units_gone);
            mark.entries = mark.entries.wrapping_sub(entries_gone);
        }
        if first == last {
            self.blocks[first].bytes.append(&mut bytes);
        } else {
            self.blocks[last] = Block { bytes, before };
            self.drop_blocks(first + 1..last);
        }
        // From the last pair to the first, since a join moves the blocks after it.
        for index in (first.saturating_sub(1)..=first + 1).rev() {
            self.join_with_next(index);
        }
        self.look_up_oldest();
    }

    /// Moves all entries to a time that is `by_ms` earlier. The oldest must not be moved before 1970.
    pub fn move_back(&mut self, by_ms: u64) {
        let marks = self.blocks.iter_mut().map(|block| &mut block.before);
        for mark in marks.chain([&mut self.front.mark, &mut self.end]) {
            mark.at_ms = mark.at_ms.wrapping_sub(by_ms);
        }
        self.oldest_at_ms = self.oldest_at_ms.wrapping_sub(by_ms);
    }

    /// Finds the length of the newest entry again, by reading its block.
    fn measure_newest(&mut self) {
        let Some(last) = self.blocks.back() else { return };
        // The first block may begin with bytes of dropped entries, which can be decoded too.
        let newest = entry::iter(&last.bytes).last();
        self.newest_length = newest.map_or(0, |(since, units)| entry::length(since, units));
    }

    /// Joins two blocks that fit into one, so that many small refunds do not leave many small blocks. An empty
    /// block is always joined: [`Run::seek`] relies on an entry before every block but the first.
    fn join_with_next(&mut self, index: usize) {
        let length = |index: usize| self.blocks.get(index).map(|block: &Block| block.bytes.len());
        let (Some(one), Some(two)) = (length(index), length(index + 1)) else { return };
        if (one == 0 || one + two <= BLOCK_BYTES)
            && let Some(next) = self.blocks.remove(index + 1)
        {
            let bytes = &mut self.blocks[index].bytes;
            reserve(bytes, two);
            bytes.extend_from_slice(&next.bytes);
        }
    }

    /// Bytes of all entries held, or any number above `most` if there are more than `most`.
    pub fn bytes_up_to(&self, most: usize) -> usize {
        // An entry takes at least a byte, so a long run is known without visiting its blocks.
        if self.end.entries_since(&self.front.mark) > most as u64 {
            return most + 1;
        }
        let bytes: usize = self.blocks.iter().map(|block| block.bytes.len()).sum();
        bytes - self.front.offset
    }

    /// Bytes on the heap.
    pub fn heap_bytes(&self) -> usize {
        let bytes: usize = self.blocks.iter().map(|block| block.bytes.capacity()).sum();
        self.blocks.capacity() * size_of::<Block>() + bytes
    }

    /// The number of allocations it holds.
    pub fn allocations(&self) -> usize {
        self.blocks.len() + 1
    }

    /// Passes every allocation through `mover`.
    pub fn relocate(&mut self, mover: &mut impl Mover) {
        // The conversions to a vector and back keep the allocation.
        let mut blocks = mover.move_vec(Vec::from(std::mem::take(&mut self.blocks)));
        for block in &mut blocks {
            block.bytes = mover.move_vec(std::mem::take(&mut block.bytes));
        }
        self.blocks = VecDeque::from(blocks);
    }

    /// The index of the block of a place; `None` if the run has no such block.
    fn index(&self, place: &Cursor) -> Option<usize> {
        let index = place.block.wrapping_sub(self.front.block) as usize;
        (index < self.blocks.len()).then_some(index)
    }
}

/// Reserves `most` more bytes.
fn reserve(bytes: &mut Vec<u8>, most: usize) {
    if bytes.capacity() - bytes.len() < most {
        grow(bytes, most);
    }
}

/// Allocates `most` more bytes, up to the next of the allocator's size classes: the rest of it would be lost.
fn grow(bytes: &mut Vec<u8>, most: usize) {
    let wanted = bytes.len() + most;
    let size = if wanted <= 128 { wanted.next_power_of_two().max(32) } else { wanted.next_multiple_of(128) };
    bytes.reserve_exact(size - bytes.len());
}

#[cfg(test)]
mod tests;
