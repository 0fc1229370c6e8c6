//! Waiting until units are allowed.

use std::fmt;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, SystemTime};

use redis::{Cmd, ConnectionLike, ErrorKind, FromRedisValue, RedisResult, ToSingleRedisArg, Value};
#[cfg(feature = "tokio-comp")]
use {redis::RedisError, tokio::runtime::Handle, tokio::sync::oneshot};

use super::clock::{Clock, Time};
use super::cmd;
use super::quota::Quota;
use super::reply::{Verdict, Verdicts};
use super::request::{Algorithm, All, Take, write_at};

/// How many units to wait for, and how long. A number converts into a cost without a timeout.
///
/// A waiter that is refused sleeps for exactly `retry_after` and asks again. If no wait within the timeout helps, it returns
/// the refusal at once: see whether the verdict is [limited](Verdict::limited). Waiters have no order.
#[derive(Clone)]
#[must_use]
pub struct Acquire {
    cost: i64,
    timeout: Option<Duration>,
    clock: Clock,
    sleep: Option<Arc<dyn Fn(Duration) + Send + Sync>>,
}

impl Acquire {
    /// Waits for this many units.
    pub fn cost(cost: i64) -> Acquire {
        Acquire { cost, timeout: None, clock: Clock::default(), sleep: None }
    }

    /// Waits at most for this long. With a timeout of 0 it asks once.
    pub fn timeout(mut self, timeout: Duration) -> Acquire {
        self.timeout = Some(timeout);
        self
    }

    /// Decides by this clock instead of those of the server and of this process. Tests use it to move time.
    pub fn clock(mut self, now: impl Fn() -> SystemTime + Send + Sync + 'static) -> Acquire {
        self.clock = Clock::new(now);
        self
    }

    /// Calls this in place of sleeping. Tests move the clock by it.
    pub fn sleep(mut self, sleep: impl Fn(Duration) + Send + Sync + 'static) -> Acquire {
        self.sleep = Some(Arc::new(sleep));
        self
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

/// A waiter, and the command that it repeats.
pub(crate) struct Asked {
    acquire: Acquire,
    take: Cmd,
    give_back: Cmd,
    time: Time,
    began: Duration,
}

impl Asked {
    pub fn new(
        acquire: Acquire,
        algorithm: Algorithm,
        key: impl ToSingleRedisArg,
        quotas: &[Quota],
    ) -> Asked {
        // Both replies tell the time, for giving back. `PARTIAL` would take a part of several units.
        let take = match acquire.cost {
            1 => cmd::by(algorithm, &key, quotas, Take::cost(1).partial()),
            cost => cmd::all(&All::new().key(&key, algorithm, quotas, cost)),
        };
        let give_back = cmd::by(algorithm, &key, quotas, acquire.cost.saturating_neg());
        let time = Time::of(acquire.clock.clone());
        Asked { take, give_back, began: time.now(), time, acquire }
    }

    fn command(&self) -> Cmd {
        let mut command = self.take.clone();
        write_at(&mut command, self.acquire.clock.at());
        command
    }

    /// How long to sleep before asking again. `None` if the verdict is the answer.
    fn pause(&self, verdict: &Verdict) -> Option<Duration> {
        let wait = verdict.retry_after.filter(|_| verdict.limited)?;
        let gone = self.time.now() - self.began;
        let in_time = self.acquire.timeout.is_none_or(|timeout| gone.saturating_add(wait) <= timeout);
        in_time.then_some(wait)
    }

    pub fn run(&self, connection: &mut impl ConnectionLike) -> RedisResult<Verdict> {
        loop {
            let verdict = read(self.acquire.cost, self.command().query(connection)?)?;
            let Some(pause) = self.pause(&verdict) else { return Ok(verdict) };
            self.acquire.sleep.as_ref().map_or_else(|| thread::sleep(pause), |sleep| sleep(pause));
        }
    }

    #[cfg(feature = "tokio-comp")]
    pub async fn run_async<C>(&self, connection: C) -> RedisResult<Verdict>
    where
        C: redis::aio::ConnectionLike + Clone + Send + 'static,
    {
        loop {
            let (cost, command, mut give_back) = (self.acquire.cost, self.command(), self.give_back.clone());
            let mut connection = connection.clone();
            let runtime = Handle::try_current().ok();
            let verdict = if let Some(runtime) = &runtime {
                let (sender, receiver) = oneshot::channel();
                // The task lives on if this future is dropped, and gives back what the command has taken.
                runtime.spawn(async move {
                    let reply: RedisResult<Value> = command.query_async(&mut connection).await;
                    let verdict = reply.and_then(|reply| read(cost, reply));
                    let at = match &verdict {
                        Ok(Verdict { limited: false, taken: Some(1..), at, .. }) => Some(*at),
                        _ => None,
                    };
                    let (received, is_received) = oneshot::channel::<()>();
                    let _ = sender.send((verdict, received));
                    if let (Some(at), Err(_)) = (at, is_received.await) {
                        write_at(&mut give_back, at);
                        let _: RedisResult<Value> = give_back.query_async(&mut connection).await;
                    }
                });
                let ended = |_| RedisError::from((ErrorKind::Io, "the runtime that asked has ended"));
                let (verdict, received) = receiver.await.map_err(ended)?;
                let _ = received.send(());
                verdict?
            } else {
                // A limiter in this process answers at once.
                read(cost, command.query_async(&mut connection).await?)?
            };
            let Some(pause) = self.pause(&verdict) else { return Ok(verdict) };
            match &self.acquire.sleep {
                Some(sleep) => sleep(pause),
                None if runtime.is_some() => tokio::time::sleep(pause).await,
                None => return Err((ErrorKind::Client, "acquire sleeps on a runtime of tokio").into()),
            }
        }
    }
}

/// Reads the reply to the command that takes this cost.
fn read(cost: i64, reply: Value) -> RedisResult<Verdict> {
    if cost == 1 {
        return Ok(Verdict::from_redis_value(reply)?);
    }
    let verdict = Verdicts::from_redis_value(reply)?.tightest();
    let verdict = verdict.ok_or((ErrorKind::Parse, "a decision without a row"))?;
    Ok(Verdict { taken: Some(if verdict.limited { 0 } else { cost }), ..verdict })
}
