//! Memory for requests.
//!
//! An allocation that fails ends a process, and traps in WebAssembly. So a reserve is kept, and freed while a request runs, which
//! is refused before that if it may need more. What stays allocated after it, such as the name of a new key, must fit beside the
//! reserve, so that keys which are there still count when no more keys fit.

use std::hint::black_box;

use arrayvec::ArrayVec;

use crate::limiter::several::MAX_ROWS;
use crate::limiter::{Algorithm, Key};

/// The reserve: for a request of a key with the longest name.
const RESERVE: usize = 80 << 10;

/// The most bytes that a request of a key allocates, apart from its name and from the list of a large log's blocks. The least that
/// is worth keeping.
const OF_A_KEY: usize = 4 << 10;

/// Bytes for each allocation of a large log: its list of blocks doubles.
const OF_AN_ALLOCATION: usize = 2 * 48;

/// Bytes of a log that lengthens.
const OF_A_BLOCK: usize = 1280;

/// The memory that a request needs.
#[derive(Default)]
pub struct Needed {
    /// All that it may allocate.
    bytes: usize,
    /// What stays allocated: at most two pieces for each key.
    kept: ArrayVec<usize, { 2 * MAX_ROWS }>,
}

impl Needed {
    /// What reading a key needs.
    pub fn of_reading() -> Needed {
        Needed { bytes: OF_A_KEY, kept: ArrayVec::new() }
    }

    /// Adds what a request of this key needs, of which it names so many tiers.
    #[inline]
    pub fn add(&mut self, name: &[u8], key: &impl Key, algorithm: Algorithm, tiers: usize) {
        self.bytes += OF_A_KEY;
        match key.limiter() {
            None => {
                self.bytes += name.len();
                self.kept.push(name.len());
                self.kept.push(match (algorithm, tiers) {
                    (Algorithm::Fixed | Algorithm::Sliding, 1) => 0,
                    (Algorithm::Bucket, 1) | (Algorithm::Log, _) => 32,
                    (_, tiers) => 64 + 48 * tiers,
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

/// The reserve.
#[derive(Default)]
pub struct Room {
    reserve: Vec<u8>,
}

impl Room {
    /// Frees the reserve for a request, if there is the memory that it needs.
    #[inline]
    pub fn open(&mut self, needed: &Needed) -> bool {
        if self.reserve.capacity() < needed.bytes {
            self.reserve = allocated(needed.bytes).unwrap_or_default();
        }
        let opens = self.reserve.capacity() >= needed.bytes && {
            let kept: Option<ArrayVec<_, { 2 * MAX_ROWS }>> =
                needed.kept.iter().copied().map(allocated).collect();
            kept.is_some()
        };
        self.reserve = Vec::new();
        opens
    }

    /// Keeps a reserve again, or as much of it as there is memory for.
    #[inline]
    pub fn close(&mut self) {
        let mut bytes = RESERVE;
        while self.reserve.capacity() == 0 && bytes >= OF_A_KEY {
            self.reserve = allocated(bytes).unwrap_or_default();
            bytes /= 2;
        }
    }
}

/// So many bytes, if there is memory for them.
#[inline]
fn allocated(bytes: usize) -> Option<Vec<u8>> {
    let mut place = Vec::new();
    place.try_reserve_exact(bytes).ok()?;
    // Else the compiler may leave out an allocation that nothing is written to.
    Some(black_box(place))
}
