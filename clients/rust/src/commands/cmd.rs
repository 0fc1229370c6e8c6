//! The commands as [`redis::Cmd`], for pipelines and scripts.

use redis::{Cmd, ToSingleRedisArg};

use super::algorithm::Algorithm;
use super::quota::Quota;
use super::request::{All, Take, with_room};

macro_rules! takes {
    ($($(#[$doc:meta])* $command:ident = $algorithm:ident;)*) => {$(
        $(#[$doc])*
        pub fn $command(key: impl ToSingleRedisArg, quotas: impl AsRef<[Quota]>, take: impl Into<Take>) -> Cmd {
            by(Algorithm::$algorithm, key, quotas, take)
        }
    )*};
}

takes! {
    /// `RL.FIXED`, answered by a [`Verdict`](crate::Verdict).
    fixed = Fixed;
    /// `RL.SLIDING`, answered by a [`Verdict`](crate::Verdict).
    sliding = Sliding;
    /// `RL.LOG`, answered by a [`Verdict`](crate::Verdict).
    log = Log;
    /// `RL.BUCKET`, answered by a [`Verdict`](crate::Verdict).
    bucket = Bucket;
}

/// The command of an algorithm, answered by a [`Verdict`](crate::Verdict).
pub fn by(
    algorithm: Algorithm,
    key: impl ToSingleRedisArg,
    quotas: impl AsRef<[Quota]>,
    take: impl Into<Take>,
) -> Cmd {
    keyed(algorithm.command(), key).arg(quotas.as_ref()).arg(take.into()).take()
}

/// `RL.PEEK`, answered by a [`Verdict`](crate::Verdict).
pub fn peek(key: impl ToSingleRedisArg, quotas: impl AsRef<[Quota]>, take: impl Into<Take>) -> Cmd {
    keyed("RL.PEEK", key).arg(quotas.as_ref()).arg(take.into()).take()
}

/// `RL.ALL`, answered by a [`Verdicts`](crate::Verdicts).
#[must_use]
pub fn all(request: &All) -> Cmd {
    request.cmd()
}

/// `RL.INFO`, answered by an `Option` of [`Info`](crate::Info): `None` if there is no such key.
pub fn info(key: impl ToSingleRedisArg) -> Cmd {
    keyed("RL.INFO", key)
}

/// `DEL`, which forgets what is counted. The reply is whether there was such a key.
pub fn reset(key: impl ToSingleRedisArg) -> Cmd {
    keyed("DEL", key)
}

fn keyed(name: &str, key: impl ToSingleRedisArg) -> Cmd {
    with_room(name).arg(key).take()
}
