//! A connection that is made when it is needed, and given up when it is silent.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, Cmd, ErrorKind, RedisError, RedisResult, ServerErrorKind, Value};
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use crate::locked;

/// Turns of the runtime in a timeout.
const TURNS: u32 = 10;
/// How many timeouts a new connection may take: it is several round trips.
const CONNECTING: u32 = 5;
pub(crate) const ENDED: &str = "the runtime that asked has ended";

type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// What is made when it is needed, and again when it is over: a connection, or the table of a cluster's slots.
pub(crate) struct Link<T> {
    timeout: Duration,
    make: Box<dyn Fn() -> BoxFuture<RedisResult<T>> + Send + Sync>,
    life: Mutex<Option<Arc<Life<T>>>>,
    /// Whether nothing was heard since the last one ended.
    is_away: Arc<AtomicBool>,
}

/// One connection, from its making to its end. The task that makes it watches it, until nobody has it any more.
struct Life<T> {
    stage: watch::Receiver<Stage<T>>,
    /// Replies that are awaited.
    due: watch::Sender<u64>,
    /// Whether one came in this turn.
    is_heard: Arc<AtomicBool>,
}

#[derive(Clone)]
enum Stage<T> {
    Making,
    Made(T),
    Over(RedisError),
}

impl<T: Clone + Send + Sync + 'static> Link<T> {
    pub fn new<F>(timeout: Duration, make: impl Fn() -> F + Send + Sync + 'static) -> Link<T>
    where
        F: Future<Output = RedisResult<T>> + Send + 'static,
    {
        let make = Box::new(move || -> BoxFuture<_> { Box::pin(make()) });
        Link { timeout, make, life: Mutex::default(), is_away: Arc::default() }
    }

    /// The one that is there, or a new one.
    fn life(&self) -> RedisResult<Arc<Life<T>>> {
        let mut life = locked(&self.life);
        if let Some(life) = life.as_ref().filter(|life| !life.is_over()) {
            return Ok(life.clone());
        }
        let runtime = Handle::try_current().map_err(|_| io_error("there is no tokio runtime"))?;
        let (stage, stage_told) = watch::channel(Stage::Making);
        let (due, due_told) = watch::channel(0);
        let new = Life { stage: stage_told, due, is_heard: Arc::default() };
        let (timeout, is_heard, is_away) = (self.timeout, new.is_heard.clone(), self.is_away.clone());
        let making = (self.make)();
        runtime.spawn(async move {
            let over = match made(timeout, making).await {
                Ok(made) => {
                    stage.send_replace(Stage::Made(made));
                    silence(timeout, due_told, &is_heard).await
                }
                Err(error) => Some(error),
            };
            if let Some(error) = over {
                is_away.store(true, Ordering::Relaxed);
                stage.send_replace(Stage::Over(error));
            }
        });
        Ok(life.insert(Arc::new(new)).clone())
    }

    /// Whether nothing was heard since the last one ended.
    pub fn is_away(&self) -> bool {
        self.is_away.load(Ordering::Relaxed)
    }

    /// Has the next requests use a new one, if this is the one that there is.
    fn forget(&self, old: &Arc<Life<T>>) {
        locked(&self.life).take_if(|life| Arc::ptr_eq(life, old));
    }

    /// The same if it made something of which this is true.
    pub fn forget_made(&self, is_old: impl Fn(&T) -> bool) {
        let is_old = |life: &Life<T>| matches!(&*life.stage.borrow(), Stage::Made(made) if is_old(made));
        locked(&self.life).take_if(|life| is_old(life));
    }

    /// What `send` answers, or why it does not.
    pub async fn by<R, F>(&self, send: impl FnOnce(T) -> F) -> RedisResult<R>
    where
        F: Future<Output = RedisResult<R>>,
    {
        let life = self.life()?;
        let (mut made, mut over) = (life.stage.clone(), life.stage.clone());
        let sent = async {
            let making = made.wait_for(|stage| !matches!(stage, Stage::Making));
            // A server that was away before is not waited for that long.
            let stage = if self.is_away() {
                timeout(self.timeout, making).await.map_err(|_| silent(self.timeout))?
            } else {
                making.await
            };
            match stage.map(|stage| stage.clone()) {
                Ok(Stage::Made(made)) => send(made).await,
                Ok(Stage::Over(error)) => Err(error),
                Ok(Stage::Making) | Err(_) => Err(io_error(ENDED)),
            }
        };
        life.due.send_modify(|due| *due += 1);
        let _due = Due(&life);
        let reply = tokio::select! {
            biased;
            reply = sent => reply,
            stage = over.wait_for(|stage| matches!(stage, Stage::Over(_))) => Err(match stage.as_deref() {
                Ok(Stage::Over(error)) => error.clone(),
                _ => io_error(ENDED),
            }),
        };
        match &reply {
            Err(error) if !matches!(error.kind(), ErrorKind::Server(_)) => self.forget(&life),
            _ => {
                life.is_heard.store(true, Ordering::Relaxed);
                self.is_away.store(false, Ordering::Relaxed);
            }
        }
        // After a failover a server is a replica.
        if matches!(&reply, Err(error) if error.kind() == ErrorKind::Server(ServerErrorKind::ReadOnly)) {
            self.forget(&life);
        }
        reply
    }
}

impl<T> Life<T> {
    fn is_over(&self) -> bool {
        // Without a sender its runtime has ended.
        matches!(*self.stage.borrow(), Stage::Over(_)) || self.stage.has_changed().is_err()
    }
}

/// A reply that is awaited.
struct Due<'a, T>(&'a Life<T>);

impl<T> Drop for Due<'_, T> {
    fn drop(&mut self) {
        self.0.due.send_modify(|due| {
            *due -= 1;
            // It is not silent to those who ask next.
            if *due == 0 {
                self.0.is_heard.store(true, Ordering::Relaxed);
            }
        });
    }
}

/// What is made, if that takes no longer than some timeouts.
async fn made<T>(timeout: Duration, mut making: BoxFuture<RedisResult<T>>) -> RedisResult<T> {
    for _ in 0..CONNECTING * TURNS {
        tokio::select! {
            biased;
            made = &mut making => return made,
            () = turn(timeout) => {}
        }
    }
    Err(silent(timeout))
}

/// Waits until nothing was heard for a timeout though replies were due; none if nobody has the connection any more.
async fn silence(
    timeout: Duration,
    mut due: watch::Receiver<u64>,
    is_heard: &AtomicBool,
) -> Option<RedisError> {
    let mut silent_turns = 0;
    while silent_turns < TURNS {
        if *due.borrow() == 0 {
            due.wait_for(|due| *due > 0).await.ok()?;
            is_heard.store(false, Ordering::Relaxed);
            silent_turns = 0;
        }
        turn(timeout).await;
        silent_turns = if is_heard.swap(false, Ordering::Relaxed) { 0 } else { silent_turns + 1 };
    }
    Some(silent(timeout))
}

/// A part of a timeout, in which the runtime reads and writes.
///
/// A timer that fires says nothing about the server if the runtime was busy: the reply may have arrived unread, and the
/// command may not have been sent.
async fn turn(whole: Duration) {
    let length = whole / TURNS;
    sleep(length).await;
    // A timer wakes its task ahead of thousands that are ready to run, and a reply may be read by one of the last.
    // What is woken on another thread is behind them. The application may have no such thread left: then it ends.
    let _ = timeout(whole, tokio::task::spawn_blocking(|| ())).await;
}

impl Link<MultiplexedConnection> {
    /// Connections to the server of this client.
    pub fn to<F>(
        timeout: Duration,
        config: AsyncConnectionConfig,
        client: impl Fn() -> F + Send + Sync + 'static,
    ) -> Self
    where
        F: Future<Output = RedisResult<Client>> + Send + 'static,
    {
        Link::new(timeout, move || {
            let (client, config) = (client(), config.clone());
            async move { client.await?.get_multiplexed_async_connection_with_config(&config).await }
        })
    }

    /// The reply to a command; if `asking`, from a node that is about to get its slot.
    pub async fn ask(&self, command: &Cmd, asking: bool) -> RedisResult<Value> {
        self.by(async |mut connection| {
            if !asking {
                return command.query_async(&mut connection).await;
            }
            let mut both = redis::pipe();
            both.cmd("ASKING").ignore().add_command(command.clone());
            let (reply,) = both.query_async(&mut connection).await?;
            Ok(reply)
        })
        .await
    }
}

fn silent(timeout: Duration) -> RedisError {
    io::Error::new(io::ErrorKind::TimedOut, format!("no answer in {timeout:?}")).into()
}

pub(crate) fn io_error(why: &'static str) -> RedisError {
    (ErrorKind::Io, why).into()
}
