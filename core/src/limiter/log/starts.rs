//! Where the shorter windows of a log began when they last counted. It spares looking for these places from the front: without
//! it, a request of three tiers in a log of 1,000 entries takes 44,618 instructions instead of 1,451 (`make bench-limiters`).

use super::super::algorithm::Mover;
use super::super::quota::{MAX_TIERS, WindowMs};
use super::entry::Cursor;

/// Where each of the last few windows shorter than the longest began.
#[derive(Clone, Debug, Default)]
pub struct Starts(Vec<(WindowMs, Cursor)>);

impl Starts {
    /// Where `window` last began. It now begins there or later.
    pub fn of(&self, window: WindowMs) -> Option<Cursor> {
        self.0.iter().find(|start| start.0 == window).map(|start| start.1)
    }

    /// Remembers that `window` begins at `place`.
    pub fn remember(&mut self, window: WindowMs, place: Cursor) {
        if let Some(start) = self.0.iter_mut().find(|start| start.0 == window) {
            start.1 = place;
            return;
        }
        if self.0.len() == MAX_TIERS {
            self.0.remove(0);
        }
        self.0.push((window, place));
    }

    /// Forgets all places. To be called when entries are removed that are not the oldest: then places after them are wrong.
    pub fn clear(&mut self) {
        self.0.clear();
    }

    /// Bytes on the heap.
    pub fn heap_bytes(&self) -> usize {
        self.0.capacity() * size_of::<(WindowMs, Cursor)>()
    }

    /// Passes every allocation through `mover`.
    pub fn relocate(&mut self, mover: &mut impl Mover) {
        self.0 = mover.move_vec(std::mem::take(&mut self.0));
    }
}
