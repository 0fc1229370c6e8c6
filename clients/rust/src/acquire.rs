//! Waiting until units are allowed.

use std::fmt;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use redis::{ConnectionLike, RedisResult, ToSingleRedisArg};

use crate::clock::Clock;
use crate::{Algorithm, Quota, Take, Verdict, cmd};

/// How to wait for units: how many, and at most how long. A number is a cost, without a timeout.
///
/// It asks; if refused, it sleeps for exactly `retry_after` and asks again. If that is longer than what is left of the
/// timeout, or if no wait helps, it answers the refusal at once: see whether the verdict
/// [is allowed](Verdict::is_allowed). Those who wait have no order among them.
///
/// ```no_run
/// # use std::time::Duration;
/// use redis_rl_client::{Acquire, Algorithm, Quota, RlCommands};
///
/// # fn main() -> redis::RedisResult<()> {
/// # let mut connection = redis::Client::open("redis://127.0.0.1/")?.get_connection()?;
/// let ten_seconds = Acquire::cost(1).timeout(Duration::from_secs(10));
/// let verdict = connection.rl_acquire(Algorithm::Log, "mail", Quota::per_second(5), ten_seconds)?;
/// if verdict.is_allowed() {
///     println!("send it");
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
#[must_use]
pub struct Acquire {
    cost: i64,
    timeout: Option<Duration>,
    clock: Clock,
    sleep: Option<Arc<dyn Fn(Duration) + Send + Sync>>,
}

impl Acquire {
    /// Waits for so many units.
    pub fn cost(cost: i64) -> Acquire {
        Acquire { cost, timeout: None, clock: Clock::default(), sleep: None }
    }

    /// Waits at most so long. With a timeout of 0 it asks once.
    pub fn timeout(mut self, timeout: Duration) -> Acquire {
        self.timeout = Some(timeout);
        self
    }

    /// Decides as of this clock instead of those of the server and of this process, for tests.
    pub fn clock(mut self, now: impl Fn() -> SystemTime + Send + Sync + 'static) -> Acquire {
        self.clock = Clock::new(now);
        self
    }

    /// Is called in place of sleeping, for tests: it may move the clock.
    pub fn sleep(mut self, sleep: impl Fn(Duration) + Send + Sync + 'static) -> Acquire {
        self.sleep = Some(Arc::new(sleep));
        self
    }

    pub(crate) fn run<C: ConnectionLike>(
        &self,
        connection: &mut C,
        algorithm: Algorithm,
        key: impl ToSingleRedisArg,
        quotas: &[Quota],
    ) -> RedisResult<Verdict> {
        let waiting = Waiting::begin(self);
        loop {
            let take = Take::cost(self.cost);
            let take = self.clock.at().map_or(take, |at| take.at(at));
            let verdict: Verdict = cmd::by(algorithm, &key, quotas, take).query(connection)?;
            let Some(pause) = waiting.pause(&verdict) else { return Ok(verdict) };
            match &self.sleep {
                Some(sleep) => sleep(pause),
                None => thread::sleep(pause),
            }
        }
    }
}

impl From<i64> for Acquire {
    fn from(cost: i64) -> Acquire {
        Acquire::cost(cost)
    }
}

impl fmt::Debug for Acquire {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut fields = f.debug_struct("Acquire");
        fields.field("cost", &self.cost).field("timeout", &self.timeout).finish_non_exhaustive()
    }
}

struct Waiting<'a> {
    acquire: &'a Acquire,
    began: Instant,
    began_at: Option<SystemTime>,
}

impl Waiting<'_> {
    fn begin(acquire: &Acquire) -> Waiting<'_> {
        Waiting { acquire, began: Instant::now(), began_at: acquire.clock.at() }
    }

    /// How long to sleep before asking again; none if the verdict is the answer.
    fn pause(&self, verdict: &Verdict) -> Option<Duration> {
        let wait = verdict.retry_after.filter(|_| verdict.limited)?;
        let gone = match (self.began_at, self.acquire.clock.at()) {
            (Some(began), Some(now)) => now.duration_since(began).unwrap_or_default(),
            _ => self.began.elapsed(),
        };
        let in_time = self.acquire.timeout.is_none_or(|timeout| gone.saturating_add(wait) <= timeout);
        in_time.then_some(wait)
    }
}

#[cfg(feature = "tokio-comp")]
mod asynchronous {
    use redis::aio::ConnectionLike;
    use redis::{Cmd, ErrorKind, FromRedisValue, RedisError, Value};
    use tokio::sync::oneshot;
    use tokio::time::sleep;

    use super::*;
    use crate::request::write_at;
    use crate::{All, Decision};

    impl Acquire {
        pub(crate) async fn run_async<C>(self, connection: C, request: Request) -> RedisResult<Verdict>
        where
            C: ConnectionLike + Clone + Send + 'static,
        {
            let waiting = Waiting::begin(&self);
            loop {
                let verdict = request.clone().ask(connection.clone(), self.clock.at()).await?;
                let Some(pause) = waiting.pause(&verdict) else { return Ok(verdict) };
                match &self.sleep {
                    Some(sleep) => sleep(pause),
                    None => sleep(pause).await,
                }
            }
        }

        pub(crate) fn request(
            &self,
            algorithm: Algorithm,
            key: impl ToSingleRedisArg,
            quotas: &[Quota],
        ) -> Request {
            // `PARTIAL` would take a part of several units.
            let take = if self.cost == 1 {
                cmd::by(algorithm, &key, quotas, Take::cost(1).partial())
            } else {
                cmd::all(&All::new().key(&key, algorithm, quotas, self.cost))
            };
            let give_back = cmd::by(algorithm, &key, quotas, self.cost.saturating_neg());
            Request { cost: self.cost, take, give_back }
        }
    }

    /// What is asked for, again and again. The replies tell as of which time units were counted.
    #[derive(Clone)]
    pub(crate) struct Request {
        cost: i64,
        take: Cmd,
        give_back: Cmd,
    }

    impl Request {
        /// In a task of its own: what it takes goes back if nobody reads the reply.
        async fn ask<C>(self, mut connection: C, at: Option<SystemTime>) -> RedisResult<Verdict>
        where
            C: ConnectionLike + Send + 'static,
        {
            let (sender, receiver) = oneshot::channel();
            let (read, is_read) = oneshot::channel();
            tokio::spawn(async move {
                let verdict = self.take(&mut connection, at).await;
                let counted = verdict.as_ref().ok().filter(|verdict| !verdict.limited && self.cost > 0);
                let counted = counted.and_then(|verdict| verdict.at);
                let is_unread = sender.send(verdict).is_err() || is_read.await.is_err();
                if is_unread && counted.is_some() {
                    let mut command = self.give_back;
                    write_at(&mut command, counted);
                    let _: RedisResult<Value> = command.query_async(&mut connection).await;
                }
            });
            let ended = |_| RedisError::from((ErrorKind::Io, "the runtime that asked has ended"));
            let verdict = receiver.await.map_err(ended)?;
            let _ = read.send(());
            verdict
        }

        async fn take(
            &self,
            connection: &mut impl ConnectionLike,
            at: Option<SystemTime>,
        ) -> RedisResult<Verdict> {
            let mut command = self.take.clone();
            write_at(&mut command, at);
            let reply: Value = command.query_async(connection).await?;
            if self.cost == 1 {
                return Ok(Verdict::from_redis_value(reply)?);
            }
            let verdict = Decision::from_redis_value(reply)?.tightest();
            let verdict = verdict.ok_or((ErrorKind::Parse, "a decision without a row"))?;
            Ok(Verdict { taken: Some(if verdict.limited { 0 } else { self.cost }), ..verdict })
        }
    }
}
