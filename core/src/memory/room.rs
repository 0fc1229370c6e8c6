//! Whether there is memory for a request.
//!
//! An allocation that fails ends a process, and traps in WebAssembly. So a request that may allocate asks first, for the most
//! that it may need, and is refused if that is not there. It asks by an allocation of as many bytes, freed at once.

use std::hint::black_box;

use crate::limiter::{Algorithm, Key};

/// The most bytes that reading a key takes meanwhile.
pub const OF_READING: usize = 1 << 10;

/// The most bytes that a request of a key takes, apart from its name and from the list of a large log's blocks.
const OF_A_KEY: usize = 4 << 10;

/// Bytes for each allocation of a large log: its list of blocks doubles.
const OF_AN_ALLOCATION: usize = 2 * 48;

/// Bytes that requests leave which make a key or lengthen a log, so that counters and buckets that are there still count.
const SPARE: usize = 16 << 10;

/// The most bytes that a request of a key of this name allocates, and those that it must leave.
#[inline]
pub fn of_request(name: &[u8], key: &impl Key) -> usize {
    match key.limiter() {
        None => OF_A_KEY + SPARE + name.len(),
        Some(log) if log.algorithm() == Algorithm::Log => {
            OF_A_KEY + SPARE + OF_AN_ALLOCATION * log.allocations()
        }
        Some(_) => OF_A_KEY,
    }
}

/// Whether there is memory for so many bytes.
#[inline]
pub fn is_there(bytes: usize) -> bool {
    let mut probe = Vec::<u8>::new();
    let is_there = probe.try_reserve_exact(bytes).is_ok();
    // Else the compiler may leave out an allocation that nothing is written to.
    black_box(&mut probe);
    is_there
}
