//! A connection that is made anew when it breaks or falls silent.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use redis::aio::ConnectionLike;
use redis::{AsyncConnectionConfig, Cmd, ErrorKind, Pipeline, RedisError, RedisFuture, RedisResult, Value};
use tokio::runtime::Handle;
use tokio::sync::watch;

use crate::timeout::ServerTimeout;

/// How many timeouts a new connection may take: it is several round trips.
const CONNECTING: u32 = 5;

/// A connection that is made when it is needed, and anew when it breaks or falls silent. Clones share it.
///
/// A connection that says nothing for the [`timeout`](Reconnecting::timeout) while answers are due is given up, and the
/// next commands go over a new one. No command is sent twice: what was lost with a connection has failed. The timeout is
/// the server's time, as that of a [`Limiter`](crate::web::Limiter): a runtime that was busy for longer reads what has
/// arrived first.
///
/// ```no_run
/// use redis_rl_client::{Quota, Reconnecting, RlAsyncCommands};
///
/// # async fn limit() -> redis::RedisResult<()> {
/// let mut redis = Reconnecting::new(redis::Client::open("redis://127.0.0.1/")?);
/// let verdict = redis.rl_log("api:42", Quota::per_second(5), 1).await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
#[must_use]
pub struct Reconnecting {
    connect: Connect,
    timeout: Arc<ServerTimeout>,
    /// Whether a connection serves until the next one is there: one to many servers, most of which may be well.
    is_kept: bool,
    state: Arc<Mutex<State>>,
}

type Connect = Arc<dyn Fn() -> BoxFuture<RedisResult<Box<dyn Link>>> + Send + Sync>;
type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;
/// A connection and its number.
type Numbered = (u64, Box<dyn Link>);

#[derive(Default)]
struct State {
    /// Of the newest connection.
    number: u64,
    connection: Option<Box<dyn Link>>,
    connecting: Option<watch::Receiver<Option<RedisResult<Numbered>>>>,
}

/// Any connection of redis-rs that can be cloned.
trait Link: ConnectionLike + Send + Sync {
    fn another(&self) -> Box<dyn Link>;
}

impl<C: ConnectionLike + Clone + Send + Sync + 'static> Link for C {
    fn another(&self) -> Box<dyn Link> {
        Box::new(self.clone())
    }
}

impl Clone for Box<dyn Link> {
    fn clone(&self) -> Box<dyn Link> {
        (**self).another()
    }
}

impl Reconnecting {
    /// Connections to one server.
    pub fn new(client: redis::Client) -> Reconnecting {
        Reconnecting::by(move || {
            let client = client.clone();
            // The timeouts of redis-rs are timers of this process.
            let config = AsyncConnectionConfig::new().set_connection_timeout(None).set_response_timeout(None);
            async move { client.get_multiplexed_async_connection_with_config(&config).await }
        })
    }

    /// Connections to a cluster.
    ///
    /// The retries of redis-rs are turned off: they would send a command again that may have been counted. What a node
    /// has not carried out, since the key is elsewhere, is sent to the node that has it.
    #[cfg(feature = "cluster-async")]
    pub fn cluster(nodes: redis::cluster::ClusterClientBuilder) -> RedisResult<Reconnecting> {
        let forever = Duration::from_secs(86_400);
        let client = nodes.retries(0).response_timeout(forever).connection_timeout(forever).build()?;
        let connections = Reconnecting::by(move || {
            let client = client.clone();
            async move { Ok(crate::redirecting::Redirecting(client.get_async_connection().await?)) }
        });
        Ok(Reconnecting { is_kept: true, ..connections })
    }

    /// Connections that a function makes: those of a `SentinelClient`, say. They need no timeouts of their own.
    pub fn by<C, F>(connect: impl Fn() -> F + Send + Sync + 'static) -> Reconnecting
    where
        C: ConnectionLike + Clone + Send + Sync + 'static,
        F: Future<Output = RedisResult<C>> + Send + 'static,
    {
        let connect = move || -> BoxFuture<_> {
            let connection = connect();
            Box::pin(async { Ok(Box::new(connection.await?) as Box<dyn Link>) })
        };
        Reconnecting {
            connect: Arc::new(connect),
            timeout: Arc::new(ServerTimeout::new(Duration::from_millis(100))),
            is_kept: false,
            state: Arc::default(),
        }
    }

    /// How long a connection may be silent while answers are due: 100 ms if nothing is said. To connect may take five
    /// times as long.
    ///
    /// # Panics
    ///
    /// If it is 0.
    pub fn timeout(self, timeout: Duration) -> Reconnecting {
        Reconnecting { timeout: Arc::new(ServerTimeout::new(timeout)), ..self }
    }

    /// Whether it is one to a cluster.
    #[cfg(feature = "tower")]
    pub(crate) fn is_cluster(&self) -> bool {
        self.is_kept
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn connection(&self) -> RedisResult<Numbered> {
        let mut connecting = {
            let mut state = self.state();
            if let Some(connection) = &state.connection {
                return Ok((state.number, connection.clone()));
            }
            self.connecting(&mut state)?
        };
        let made = connecting.wait_for(Option::is_some).await.map(|made| made.clone());
        made.ok().flatten().unwrap_or_else(|| {
            // The runtime that was connecting has ended.
            self.state().connecting = None;
            Err(closed("the runtime that connects has ended"))
        })
    }

    /// The connection that is being made, by a task of its own: whoever waits for it may leave.
    fn connecting(&self, state: &mut State) -> RedisResult<watch::Receiver<Option<RedisResult<Numbered>>>> {
        if let Some(connecting) = &state.connecting {
            return Ok(connecting.clone());
        }
        let runtime = Handle::try_current().map_err(|_| closed("there is no tokio runtime"))?;
        let (sender, receiver) = watch::channel(None);
        let this = self.clone();
        runtime.spawn(async move {
            let timeout = ServerTimeout::new(this.timeout.duration() * CONNECTING);
            let made = timeout.wait((this.connect)()).await.unwrap_or_else(|| Err(timeout.error()));
            let made = {
                let mut state = this.state();
                state.connecting = None;
                made.map(|connection| {
                    state.number += 1;
                    state.connection = Some(connection.clone());
                    (state.number, connection)
                })
            };
            let _ = sender.send(Some(made));
        });
        state.connecting = Some(receiver.clone());
        Ok(receiver)
    }

    /// Has the next commands go over a new connection.
    fn give_up(&self, number: u64) {
        let mut state = self.state();
        if state.number != number {
            return;
        }
        if self.is_kept {
            let _ = self.connecting(&mut state);
        } else {
            state.connection = None;
        }
    }

    /// Sends what `send` sends, and gives up a connection that breaks or is silent.
    async fn ask<T: Send + 'static>(
        &self,
        send: impl FnOnce(Box<dyn Link>) -> BoxFuture<RedisResult<T>> + Send + 'static,
    ) -> RedisResult<T> {
        let (number, connection) = self.connection().await?;
        let this = self.clone();
        Finished(Some(Box::pin(async move {
            let reply = this.timeout.wait(send(connection)).await;
            match reply {
                None => {
                    this.give_up(number);
                    Err(this.timeout.error())
                }
                Some(Err(error)) if error.is_unrecoverable_error() => {
                    this.give_up(number);
                    Err(error)
                }
                Some(reply) => reply,
            }
        })))
        .await
    }
}

impl ConnectionLike for Reconnecting {
    fn req_packed_command<'a>(&'a mut self, cmd: &'a Cmd) -> RedisFuture<'a, Value> {
        let cmd = cmd.clone();
        Box::pin(
            self.ask(|mut connection| Box::pin(async move { connection.req_packed_command(&cmd).await })),
        )
    }

    fn req_packed_commands<'a>(
        &'a mut self,
        cmd: &'a Pipeline,
        offset: usize,
        count: usize,
    ) -> RedisFuture<'a, Vec<Value>> {
        let cmd = cmd.clone();
        Box::pin(self.ask(move |mut connection| {
            Box::pin(async move { connection.req_packed_commands(&cmd, offset, count).await })
        }))
    }

    fn get_db(&self) -> i64 {
        self.state().connection.as_ref().map_or(0, |connection| connection.get_db())
    }
}

impl fmt::Debug for Reconnecting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reconnecting").field("timeout", &self.timeout.duration()).finish_non_exhaustive()
    }
}

/// A command that is on its way, whose reply shows that the connection works also if nobody waits for it any more.
struct Finished<T: Send + 'static>(Option<BoxFuture<T>>);

impl<T: Send + 'static> Future for Finished<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        let reply = self.0.as_mut().map_or(Poll::Pending, |future| future.as_mut().poll(context));
        if reply.is_ready() {
            self.0 = None;
        }
        reply
    }
}

impl<T: Send + 'static> Drop for Finished<T> {
    fn drop(&mut self) {
        if let (Some(rest), Ok(runtime)) = (self.0.take(), Handle::try_current()) {
            runtime.spawn(rest);
        }
    }
}

fn closed(why: &'static str) -> RedisError {
    RedisError::from((ErrorKind::Io, why))
}
