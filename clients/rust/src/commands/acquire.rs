//! Waiting until units are allowed.

use std::fmt;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use redis::{Cmd, ConnectionLike, ErrorKind, FromRedisValue, RedisResult, ToSingleRedisArg, Value};
#[cfg(feature = "tokio-comp")]
use {
    super::clock::{NO_TIMERS, has_timers},
    crate::locked,
    redis::{RedisError, aio},
    std::collections::BTreeMap,
    std::pin::Pin,
    std::sync::Mutex,
    std::sync::atomic::{AtomicU64, Ordering::SeqCst},
    std::task::{Context, Waker},
    std::time::SystemTime,
    tokio::runtime::Handle,
    tokio::sync::oneshot,
};

use super::algorithm::Algorithm;
use super::clock::{Clock, Instant, Time};
use super::cmd;
use super::quota::{MAX_WINDOW, Quota};
use super::reply::{Verdict, Verdicts};
use super::request::{All, Take, write_at};
use super::turn::{Name, Turn};

/// How many units to wait for, and how long. A number converts into a cost without a timeout.
///
/// Of a bucket, it asks once, and sleeps until its units are there: all who wait are served in the order of their calls,
/// whatever their processes.
///
/// Of the other algorithms, one who was refused sleeps for exactly `retry_after` and asks again. Others of this process who wait
/// for the key by the same algorithm and quotas stand in order behind it, threads and futures alike, also those of other
/// servers. Processes have no order among each other.
///
/// If no wait within the timeout helps, it returns the refusal: see whether the verdict is [limited](Verdict::limited). Who asks
/// itself is told at once, who stands behind others at its timeout.
#[derive(Clone)]
#[must_use]
pub struct Acquire {
    cost: i64,
    timeout: Option<Duration>,
    clock: Option<Clock>,
    sleep: Option<Arc<dyn Fn(Duration) + Send + Sync>>,
}

impl Acquire {
    /// Waits for this many units.
    pub fn cost(cost: i64) -> Acquire {
        Acquire { cost, timeout: None, clock: None, sleep: None }
    }

    /// Waits at most for this long. With a timeout of 0 it asks once.
    pub fn timeout(mut self, timeout: Duration) -> Acquire {
        self.timeout = Some(timeout);
        self
    }

    /// Decides by this clock instead of those of the server and of this process. Tests use it to move time.
    pub fn clock(mut self, clock: impl Into<Clock>) -> Acquire {
        self.clock = Some(clock.into());
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

/// Somebody who waits, and the command that it sends.
pub(crate) struct Asked {
    acquire: Acquire,
    /// Whether it takes units that are there only after a wait.
    is_ahead: bool,
    /// Whether no wait helps.
    is_hopeless: bool,
    take: Cmd,
    give_back: Cmd,
    /// Key, algorithm and quotas.
    name: Vec<u8>,
    time: Time,
    began: Duration,
}

/// What follows from a verdict.
enum Next {
    /// It is the answer, after a wait if the units were taken ahead.
    Answer(Option<Duration>, Verdict),
    /// It is the answer: too late. What was taken ahead goes back.
    Late(Verdict),
    /// It asks again after this wait.
    Again(Duration),
}

impl Asked {
    pub fn new(
        acquire: Acquire,
        algorithm: Algorithm,
        key: impl ToSingleRedisArg,
        quotas: &[Quota],
    ) -> Asked {
        let (cost, timeout) = (acquire.cost, acquire.timeout.unwrap_or(MAX_WINDOW).min(MAX_WINDOW));
        let is_ahead = algorithm == Algorithm::Bucket && !timeout.is_zero();
        // All replies tell the time, for giving back. `PARTIAL` would take a part of several units.
        let take = match cost {
            _ if is_ahead => cmd::by(algorithm, &key, quotas, Take::cost(cost).within(timeout)),
            1 => cmd::by(algorithm, &key, quotas, Take::cost(1).partial()),
            _ => cmd::all(&All::new().key(&key, algorithm, quotas, cost)),
        };
        let back = Take::cost(cost.saturating_neg());
        let give_back = cmd::by(algorithm, &key, quotas, if is_ahead { back.partial() } else { back });
        let name = cmd::by(algorithm, &key, quotas, 1).get_packed_command();
        let time = Time::of(acquire.clock.clone());
        let is_hopeless = quotas.iter().any(|quota| cost.unsigned_abs() > quota.limit);
        Asked { is_ahead, is_hopeless, take, give_back, name, began: time.now(), time, acquire }
    }

    fn command(&self) -> Cmd {
        let mut command = self.take.clone();
        write_at(&mut command, self.acquire.clock.as_ref().map(Clock::now));
        command
    }

    /// The place behind those who wait already. Who takes units ahead needs none, since the server keeps the order; nor who waits
    /// in vain.
    fn behind_others(&self, database: i64) -> Option<Turn> {
        if self.is_ahead || self.is_hopeless {
            None
        } else {
            Turn::behind_others(&(database, self.name.clone()))
        }
    }

    /// What is left of the timeout.
    fn left(&self) -> Option<Duration> {
        let gone = self.time.now().saturating_sub(self.began);
        self.acquire.timeout.map(|timeout| timeout.saturating_sub(gone))
    }

    /// Until when it stands behind others.
    fn patience(&self) -> Option<Instant> {
        self.left().and_then(|left| Instant::now().checked_add(left))
    }

    fn next(&self, verdict: Verdict) -> Next {
        let Some(wait) = verdict.retry_after.filter(|_| verdict.limited != self.is_ahead) else {
            return Next::Answer(None, verdict);
        };
        let left = self.left().unwrap_or(Duration::MAX);
        match self.is_ahead {
            true if wait <= left => Next::Answer(Some(wait), Verdict { retry_after: None, ..verdict }),
            true => {
                let retry_after = Some(wait - left);
                Next::Late(Verdict { limited: true, retry_after, taken: Some(0), ..verdict })
            }
            false if wait <= left => Next::Again(wait),
            false => Next::Answer(None, verdict),
        }
    }

    /// The command that gives back what the verdict says was taken.
    fn back(&self, verdict: &Verdict) -> Option<Cmd> {
        let is_taken = !verdict.limited && matches!(verdict.taken, Some(1..));
        is_taken.then(|| {
            let mut back = self.give_back.clone();
            write_at(&mut back, verdict.at);
            back
        })
    }

    fn read(&self, reply: Value) -> RedisResult<Verdict> {
        if self.is_ahead || self.acquire.cost == 1 {
            return Ok(Verdict::from_redis_value(reply)?);
        }
        let verdict = Verdicts::from_redis_value(reply)?.tightest();
        let verdict = verdict.ok_or((ErrorKind::Parse, "a decision without a row"))?;
        Ok(Verdict { taken: Some(if verdict.limited { 0 } else { self.acquire.cost }), ..verdict })
    }

    pub fn run(&self, connection: &mut impl ConnectionLike) -> RedisResult<Verdict> {
        let database = connection.get_db();
        let sleep =
            |pause| self.acquire.sleep.as_ref().map_or_else(|| thread::sleep(pause), |sleep| sleep(pause));
        let mut turn = self.behind_others(database);
        loop {
            if let Some(turn) = &turn {
                turn.wait(self.patience());
            }
            let verdict = self.read(self.command().query(connection)?)?;
            match self.next(verdict) {
                Next::Answer(wait, verdict) => {
                    wait.into_iter().for_each(sleep);
                    return Ok(verdict);
                }
                Next::Late(late) => {
                    self.back(&verdict).map_or(Ok(Value::Nil), |back| back.query(connection))?;
                    return Ok(late);
                }
                Next::Again(wait) => {
                    let turn = turn.get_or_insert_with(|| Turn::stand(&(database, self.name.clone())));
                    if turn.leads(wait) {
                        sleep(wait);
                    }
                }
            }
        }
    }

    #[cfg(feature = "tokio-comp")]
    pub async fn run_async<C>(self, connection: C) -> RedisResult<Verdict>
    where
        C: aio::ConnectionLike + Clone + Send + 'static,
    {
        let (database, asked) = (connection.get_db(), Arc::new(self));
        let mut turn = asked.behind_others(database);
        loop {
            if let Some(turn) = &turn {
                turn.come(asked.patience()).await?;
            }
            let (verdict, mut units) = asked.clone().ask(connection.clone()).await?;
            match asked.next(verdict) {
                Next::Answer(wait, verdict) => {
                    if let Some(wait) = wait {
                        asked.sleep(wait).await?;
                    }
                    units.back = None;
                    return Ok(verdict);
                }
                Next::Late(late) => return Ok(late),
                Next::Again(wait) => {
                    let turn = turn.get_or_insert_with(|| Turn::stand(&(database, asked.name.clone())));
                    if turn.leads(wait) {
                        asked.sleep(wait).await?;
                    }
                }
            }
        }
    }

    /// Asks in a task that lives on if this future is dropped. Nobody has its units then, and they go back.
    #[cfg(feature = "tokio-comp")]
    async fn ask<C>(self: Arc<Self>, mut connection: C) -> RedisResult<(Verdict, Units<C>)>
    where
        C: aio::ConnectionLike + Clone + Send + 'static,
    {
        let (runtime, database) = (Handle::try_current().ok(), connection.get_db());
        let asking = async move {
            let reply = self.command().query_async(&mut connection).await?;
            let verdict = self.read(reply)?;
            let runtime = Handle::try_current().ok();
            let turn = verdict.at.filter(|_| self.is_ahead).map(|at| ((database, self.name.clone()), at));
            let units = Units { back: self.back(&verdict), turn, connection, runtime };
            Ok((verdict, units))
        };
        // Without one it is a limiter in this process, which answers at once.
        let Some(runtime) = runtime else { return asking.await };
        let (sender, receiver) = oneshot::channel();
        runtime.spawn(async move { sender.send(asking.await).map_err(drop) });
        let ended = |_| RedisError::from((ErrorKind::Io, "the runtime that asked has ended"));
        receiver.await.map_err(ended)?
    }

    #[cfg(feature = "tokio-comp")]
    async fn sleep(&self, pause: Duration) -> RedisResult<()> {
        match &self.acquire.sleep {
            Some(sleep) => sleep(pause),
            None if has_timers() => tokio::time::sleep(pause).await,
            None => return Err((ErrorKind::Client, NO_TIMERS).into()),
        }
        Ok(())
    }
}

/// Units that were taken for a future. They go back when this is dropped, unless that has them by then.
#[cfg(feature = "tokio-comp")]
struct Units<C: aio::ConnectionLike + Clone + Send + 'static> {
    back: Option<Cmd>,
    /// The key and quotas, and when they are there, if they are somebody's turn.
    turn: Option<(Name, SystemTime)>,
    connection: C,
    runtime: Option<Handle>,
}

#[cfg(feature = "tokio-comp")]
impl<C: aio::ConnectionLike + Clone + Send + 'static> Drop for Units<C> {
    fn drop(&mut self) {
        let Some(back) = self.back.take() else { return };
        let connection = self.connection.clone();
        let give_back = move || -> GivingBack {
            let (back, mut connection) = (back.clone(), connection.clone());
            Box::pin(async move {
                let verdict: RedisResult<Verdict> = back.query_async(&mut connection).await;
                verdict.map_or(true, |verdict| verdict.taken < Some(0))
            })
        };
        match (self.runtime.take(), self.turn.take()) {
            (Some(runtime), Some((name, at))) => {
                let turn = Freed { give_back: Box::new(give_back), runtime: runtime.clone() };
                let number = FREED_EVER.fetch_add(1, SeqCst);
                locked(&FREED).entry(name.clone()).or_default().insert((at, number), turn);
                drop(runtime.spawn(give_turns_back(name)));
            }
            (Some(runtime), None) => drop(runtime.spawn(give_back())),
            // A limiter in this process has it by then.
            (None, _) => drop(give_back().as_mut().poll(&mut Context::from_waker(Waker::noop()))),
        }
    }
}

/// Tells whether the units went back. If no reply came, they did.
#[cfg(feature = "tokio-comp")]
type GivingBack = Pin<Box<dyn Future<Output = bool> + Send>>;

/// A turn that nobody waits for.
#[cfg(feature = "tokio-comp")]
struct Freed {
    give_back: Box<dyn Fn() -> GivingBack + Send>,
    runtime: Handle,
}

/// The turns of a bucket that nobody waits for, by their times.
#[cfg(feature = "tokio-comp")]
type FreedTurns = BTreeMap<(SystemTime, u64), Freed>;

#[cfg(feature = "tokio-comp")]
static FREED: Mutex<BTreeMap<Name, FreedTurns>> = Mutex::new(BTreeMap::new());
#[cfg(feature = "tokio-comp")]
static FREED_EVER: AtomicU64 = AtomicU64::new(0);
/// How many turns went back.
#[cfg(feature = "tokio-comp")]
static RETURNED: AtomicU64 = AtomicU64::new(0);

/// A turn that cannot go back yet is tried again within this time.
#[cfg(feature = "tokio-comp")]
const TOGETHER: Duration = Duration::from_secs(1);

/// Gives turns of a bucket back, the last one first.
///
/// Only the last turn of a bucket can go back, and futures are often dropped together, in any order and by several threads. So
/// whenever one went back, the one before it is tried again.
#[cfg(feature = "tokio-comp")]
async fn give_turns_back(name: Name) {
    loop {
        let last = locked(&FREED).get_mut(&name).and_then(FreedTurns::pop_last);
        let Some((when, turn)) = last else { return };
        let returned = RETURNED.load(SeqCst);
        if turn.runtime.spawn((turn.give_back)()).await.unwrap_or(true) {
            RETURNED.fetch_add(1, SeqCst);
            continue;
        }
        locked(&FREED).entry(name.clone()).or_default().insert(when, turn);
        if returned != RETURNED.load(SeqCst) {
            continue;
        }
        if has_timers() {
            tokio::time::sleep(TOGETHER).await;
        }
        let mut freed = locked(&FREED);
        if let Some(turns) = freed.get_mut(&name) {
            turns.remove(&when);
        }
        freed.retain(|_, turns| !turns.is_empty());
        return;
    }
}
