//! The algorithms, what RL.INFO shows of a window, and what moves allocations.

use std::ffi::CStr;

use super::quota::WindowMs;

/// How units are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Algorithm {
    /// One count for each window, aligned to the Unix epoch.
    Fixed,
    /// This window's count, plus the previous one's weighted by how much of it still overlaps.
    Sliding,
    /// Every unit with its own time.
    Log,
    /// What is missing from a bucket that refills evenly.
    Bucket,
}

impl Algorithm {
    /// All of them.
    pub const ALL: [Algorithm; 4] = [Algorithm::Fixed, Algorithm::Sliding, Algorithm::Log, Algorithm::Bucket];

    /// The name of its command.
    pub const fn command(self) -> &'static CStr {
        match self {
            Algorithm::Fixed => c"RL.FIXED",
            Algorithm::Sliding => c"RL.SLIDING",
            Algorithm::Log => c"RL.LOG",
            Algorithm::Bucket => c"RL.BUCKET",
        }
    }

    /// Its name in RL.INFO; in RL.ALL, in either case.
    pub const fn name(self) -> &'static str {
        match self {
            Algorithm::Fixed => "fixed",
            Algorithm::Sliding => "sliding",
            Algorithm::Log => "log",
            Algorithm::Bucket => "bucket",
        }
    }

    /// Whether what it counts depends on the limit. Then copies are told the limit too.
    pub const fn counts_by_limit(self) -> bool {
        match self {
            Algorithm::Fixed | Algorithm::Sliding | Algorithm::Log => false,
            Algorithm::Bucket => true,
        }
    }
}

/// One window of a limiter, as RL.INFO shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowUsage {
    /// The window.
    pub window: WindowMs,
    /// Its length in milliseconds: of a month, that of the one that counts now.
    pub window_ms: u64,
    /// The limit of its last count, if the algorithm counts by the limit.
    pub limit: Option<u64>,
    /// Units that count now: of a sliding window rounded down, of a bucket rounded up.
    pub used: u64,
    /// Milliseconds until none do, rounded up; 0 if none do now.
    pub reset_after_ms: u64,
    /// The two counts behind `used`, for a sliding window.
    pub counts: Option<SlidingCounts>,
}

/// The two counts of a sliding window: all of `current` and a share of `previous` are used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlidingCounts {
    /// Units counted in this window.
    pub current: u64,
    /// Units counted in the window before.
    pub previous: u64,
}

/// Moves allocations without changing their content, for active defrag.
///
/// If a move panics, it must not drop the piece: whoever lent it still points to it, and would free it again.
pub trait Mover {
    /// Returns the same box, reallocated if that helps.
    fn move_box<T>(&mut self, piece: Box<T>) -> Box<T>;
    /// Returns the same vector, reallocated if that helps.
    fn move_vec<T>(&mut self, piece: Vec<T>) -> Vec<T>;
}
