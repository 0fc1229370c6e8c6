//! A log's entries, and where its shorter windows began when they last counted, which saves walking there from the
//! front.

use std::ops::Deref;

use super::super::algorithm::Mover;
use super::super::quota::{MAX_TIERS, WindowMs};
use super::entry::Cursor;
use super::run::Run;

/// A run, and where each of the last few windows shorter than the longest began.
///
/// Removing entries anywhere but at the front invalidates these places, so it clears them.
#[derive(Clone, Debug, Default)]
pub struct RunWithStarts {
    run: Run,
    starts: Vec<Start>,
}

#[derive(Clone, Copy, Debug)]
struct Start {
    window: WindowMs,
    place: Cursor,
}

impl Deref for RunWithStarts {
    type Target = Run;

    fn deref(&self) -> &Run {
        &self.run
    }
}

impl RunWithStarts {
    /// Where `window` last began. It now begins there or later.
    pub fn start_of(&self, window: WindowMs) -> Option<Cursor> {
        self.starts.iter().find(|start| start.window == window).map(|start| start.place)
    }

    /// Remembers that `window` begins at `place`.
    pub fn remember(&mut self, window: WindowMs, place: Cursor) {
        if let Some(start) = self.starts.iter_mut().find(|start| start.window == window) {
            start.place = place;
            return;
        }
        if self.starts.len() == MAX_TIERS {
            self.starts.remove(0);
        }
        self.starts.push(Start { window, place });
    }

    /// See [`Run::push`].
    pub fn push(&mut self, at_ms: u64, units: u64) {
        self.run.push(at_ms, units);
    }

    /// See [`Run::drop_before`].
    pub fn drop_before(&mut self, place: Cursor) {
        self.run.drop_before(place);
    }

    /// See [`Run::replace`].
    pub fn replace(&mut self, from: Cursor, to: Cursor, entry: Option<(u64, u64)>) {
        self.starts.clear();
        self.run.replace(from, to, entry);
    }

    /// Bytes on the heap.
    pub fn heap_bytes(&self) -> usize {
        self.run.heap_bytes() + self.starts.capacity() * size_of::<Start>()
    }

    /// See [`Limiter::relocate`](crate::limiter::Limiter::relocate).
    pub fn relocate(&mut self, mover: &mut impl Mover) {
        self.starts = mover.move_vec(std::mem::take(&mut self.starts));
        self.run.relocate(mover);
    }
}
