//! The commands as methods of connections.

use redis::{ConnectionLike, ErrorKind, RedisError, RedisResult, ServerErrorKind, ToSingleRedisArg};

use super::cmd;
use super::quota::Quota;
use super::reply::{Info, Verdict, Verdicts};
use super::request::{All, Take};

/// The methods of both traits.
macro_rules! commands {
    ($way:ident) => {
        commands! { $way takes
            /// Takes units by `RL.FIXED`: one count in each window of the clock.
            rl_fixed = fixed,
            /// Takes units by `RL.SLIDING`: the count of this window and a share of the last.
            rl_sliding = sliding,
            /// Takes units by `RL.LOG`: the time of every unit, so it is exact.
            rl_log = log,
            /// Takes units by `RL.BUCKET`: a token bucket that refills evenly.
            rl_bucket = bucket,
            /// Shows whether a request would be allowed, without counting it.
            rl_peek = peek,
        }
        commands! { $way
            /// Takes units of several keys in one step, of all or of none.
            rl_all = all(request: &All) -> Verdicts;
            /// Shows what a key holds. `None` if there is no such key.
            rl_info = info(key: impl ToSingleRedisArg) -> Option<Info>;
            /// Forgets what a key holds. Returns whether there was such a key.
            rl_reset = reset(key: impl ToSingleRedisArg) -> bool;
        }
    };
    ($way:ident takes $($(#[$doc:meta])* $method:ident = $command:ident,)*) => {
        commands! { $way $($(#[$doc])*
            $method = $command(
                key: impl ToSingleRedisArg, quotas: impl AsRef<[Quota]>, take: impl Into<Take>
            ) -> Verdict;
        )* }
    };
    (blocking $($(#[$doc:meta])* $method:ident = $command:ident($($arg:ident: $kind:ty),*) -> $reply:ty;)*) => {
        $($(#[$doc])*
        fn $method(&mut self, $($arg: $kind),*) -> RedisResult<$reply> {
            cmd::$command($($arg),*).query(self).map_err(explained)
        })*
    };
    (asynchronous $($(#[$doc:meta])* $method:ident = $command:ident($($arg:ident: $kind:ty),*) -> $reply:ty;)*) => {
        $($(#[$doc])*
        fn $method(&mut self, $($arg: $kind),*) -> impl Future<Output = RedisResult<$reply>> + Send {
            let command = cmd::$command($($arg),*);
            async move { command.query_async(self).await.map_err(explained) }
        })*
    };
}

/// The commands of redis-rl on connections, clients and cluster connections.
///
/// The third argument of the first five is a cost, or a [`Take`] with options.
pub trait RlCommands: ConnectionLike + Sized {
    commands!(blocking);
}

impl<C: ConnectionLike> RlCommands for C {}

/// The commands of redis-rl on asynchronous connections, cluster connections too.
///
/// The third argument of the first five is a cost, or a [`Take`] with options.
#[cfg(feature = "aio")]
pub trait RlAsyncCommands: redis::aio::ConnectionLike + Send + Sized {
    commands!(asynchronous);
}

#[cfg(feature = "aio")]
impl<C: redis::aio::ConnectionLike + Send> RlAsyncCommands for C {}

/// Adds to the error for an unknown command that the module is missing.
pub(crate) fn explained(error: RedisError) -> RedisError {
    match (error.kind(), error.detail()) {
        (kind @ ErrorKind::Server(ServerErrorKind::ResponseError), Some(detail))
            if detail.starts_with("unknown command") =>
        {
            (kind, "the server has not loaded the redis-rl module", detail.to_owned()).into()
        }
        _ => error,
    }
}
