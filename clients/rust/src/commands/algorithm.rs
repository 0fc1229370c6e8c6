//! The algorithms.

use redis::{RedisWrite, ToRedisArgs, ToSingleRedisArg};

/// The algorithm by which a key counts.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
#[non_exhaustive]
pub enum Algorithm {
    /// Fixed windows: one count in each window of the clock.
    Fixed,
    /// A sliding window: the count of this window, and a share of the last.
    Sliding,
    /// A log, which is exact: every unit is free again one window after it was taken.
    Log,
    /// A token bucket: a burst of the whole limit, then an even stream.
    Bucket,
}

impl Algorithm {
    /// All algorithms.
    pub const EVERY: &[Algorithm] =
        &[Algorithm::Fixed, Algorithm::Sliding, Algorithm::Log, Algorithm::Bucket];

    pub(crate) fn command(self) -> &'static str {
        match self {
            Algorithm::Fixed => "RL.FIXED",
            Algorithm::Sliding => "RL.SLIDING",
            Algorithm::Log => "RL.LOG",
            Algorithm::Bucket => "RL.BUCKET",
        }
    }

    fn name(self) -> &'static str {
        &self.command()["RL.".len()..]
    }

    /// The algorithm of this name, in either case.
    pub(crate) fn named(name: &str) -> Option<Algorithm> {
        Algorithm::EVERY.iter().copied().find(|algorithm| algorithm.name().eq_ignore_ascii_case(name))
    }
}

impl ToRedisArgs for Algorithm {
    fn write_redis_args<W: ?Sized + RedisWrite>(&self, out: &mut W) {
        out.write_arg(self.name().as_bytes());
    }
}

impl ToSingleRedisArg for Algorithm {}
