//! Where a log's shorter windows began when they last counted: saves walking there from the front.

use super::Mover;
use super::quota::{MAX_TIERS, WindowMs};
use super::run::{Place, Run};

/// For each of the last few windows shorter than the longest, where it began. What was remembered
/// before entries were taken away from the end of the run is not used any more.
#[derive(Clone, Debug, Default)]
pub struct Starts {
    starts: Vec<Start>,
    /// [`Run::truncations`] when they were remembered.
    truncations: u64,
}

#[derive(Clone, Copy, Debug)]
struct Start {
    window: WindowMs,
    place: Place,
}

impl Starts {
    /// Where `window` began in `run`; it begins there now, or later.
    #[inline(always)]
    pub fn of(&self, window: WindowMs, run: &Run) -> Option<Place> {
        let start = self.starts.iter().find(|start| start.window == window)?;
        (self.truncations == run.truncations()).then_some(start.place)
    }

    /// Remembers that `window` begins at `place` in `run`.
    pub fn remember(&mut self, window: WindowMs, place: Place, run: &Run) {
        if self.truncations != run.truncations() {
            self.starts.clear();
            self.truncations = run.truncations();
        }
        if let Some(start) = self.starts.iter_mut().find(|start| start.window == window) {
            start.place = place;
            return;
        }
        if self.starts.len() == MAX_TIERS {
            self.starts.remove(0);
        }
        self.starts.push(Start { window, place });
    }

    /// Bytes on the heap.
    pub fn heap_bytes(&self) -> usize {
        self.starts.capacity() * size_of::<Start>()
    }

    /// See [`Limiter::relocate`](super::Limiter::relocate).
    pub fn relocate(&mut self, mover: &mut impl Mover) {
        self.starts = mover.move_vec(std::mem::take(&mut self.starts));
    }
}
