//! Memory kept free for requests.
//!
//! An allocation that fails ends a process, and traps in WebAssembly. So a reserve is kept, and freed while a request runs. A
//! request that may need more than that is refused before it changes anything. What stays allocated after it, such as the name
//! of a new key, must fit beside the reserve, so that keys which are there still count when no more keys fit.

use std::hint::black_box;

use arrayvec::ArrayVec;

use crate::limiter::bucket::PackedBucket;
use crate::limiter::counters::Counter;
use crate::limiter::log::run::{BLOCK_BYTES, Block};
use crate::limiter::log::short::LEAST_BYTES;
use crate::limiter::several::MAX_ROWS;
use crate::limiter::{Algorithm, Key};

/// Bytes of the reserve: those that a request of a key with the longest name needs.
const RESERVE: usize = 80 << 10;

/// The most bytes that a request of a key allocates, apart from its name and from the list of a large log's blocks. A smaller
/// reserve is of no use.
const OF_A_KEY: usize = 4 << 10;

/// Bytes in the list of a large log's blocks for each of its allocations: the list doubles when it grows.
const OF_AN_ALLOCATION: usize = 2 * size_of::<Block>();

/// Bytes of the block that a longer log needs, with some to spare.
const OF_A_BLOCK: usize = BLOCK_BYTES + 256;

/// Bytes that a counter or bucket takes in a list, with some to spare.
const OF_A_TIER: usize = 48;
const _: () = assert!(size_of::<Counter>() <= OF_A_TIER && size_of::<PackedBucket>() <= OF_A_TIER);

/// The most pieces that stay allocated after a request: two for each key.
const MOST_KEPT: usize = 2 * MAX_ROWS;

/// The memory that a request needs.
#[derive(Default)]
pub struct Needed {
    /// All that the request may allocate.
    bytes: usize,
    /// The sizes of what stays allocated.
    kept: ArrayVec<usize, MOST_KEPT>,
}

impl Needed {
    pub fn of_reading() -> Needed {
        Needed { bytes: OF_A_KEY, kept: ArrayVec::new() }
    }

    /// Adds what a request of this key needs, of which it names so many `tiers`.
    #[inline]
    pub fn add(&mut self, name: &[u8], key: &impl Key, algorithm: Algorithm, tiers: usize) {
        self.bytes += OF_A_KEY;
        match key.limiter() {
            None => {
                self.bytes += name.len();
                self.kept.push(name.len());
                self.kept.push(match (algorithm, tiers) {
                    // RL.FIXED may name a window of the calendar.
                    (Algorithm::Sliding, 1) => 0,
                    (Algorithm::Bucket, 1) | (Algorithm::Log, _) => {
                        size_of::<PackedBucket>().max(LEAST_BYTES)
                    }
                    (_, tiers) => 64 + OF_A_TIER * tiers,
                });
            }
            Some(log) if log.algorithm() == Algorithm::Log => {
                let list = OF_AN_ALLOCATION * log.allocations();
                self.bytes += list;
                self.kept.push(list + OF_A_BLOCK);
            }
            Some(_) => {}
        }
    }
}

/// The reserve: an allocation of which nothing is used.
#[derive(Default)]
pub struct Reserve(Vec<u8>);

impl Reserve {
    /// Frees the reserve for a request. Returns whether there is the memory that it needs.
    #[inline]
    pub fn lend(&mut self, needed: &Needed) -> bool {
        if self.0.capacity() < needed.bytes {
            self.0 = allocated(needed.bytes).unwrap_or_default();
        }
        let kept = || needed.kept.iter().copied().map(allocated).collect::<Option<ArrayVec<_, MOST_KEPT>>>();
        let suffices = self.0.capacity() >= needed.bytes && kept().is_some();
        self.0 = Vec::new();
        suffices
    }

    /// Keeps a reserve again, or as much of it as there is memory for.
    #[inline]
    pub fn keep(&mut self) {
        let mut bytes = RESERVE;
        while self.0.capacity() == 0 && bytes >= OF_A_KEY {
            self.0 = allocated(bytes).unwrap_or_default();
            bytes /= 2;
        }
    }
}

/// Allocates this many bytes, if there is memory for them.
#[inline]
fn allocated(bytes: usize) -> Option<Vec<u8>> {
    let mut place = Vec::new();
    place.try_reserve_exact(bytes).ok()?;
    // The compiler may leave out an allocation to which nothing is written.
    Some(black_box(place))
}
