//! A connection that is made when it is needed, and given up when its [`Line`] says so.

use std::future::{Future, pending};
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, Cmd, ErrorKind, ProtocolVersion, RedisError, RedisResult, Value};
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::yield_now;
use tokio::time::sleep;

use super::errors::{is_reply, known};
use super::line::{Line, State, TICKS};
use crate::locked;

/// How often other tasks may run before a tick is told.
///
/// tokio runs the task of a timer ahead of thousands that are ready, and one of the last may be about to read a reply. Before
/// a line is late, a thread has run some 24,000 other tasks, or was idle and took tasks of busy threads.
const LAPS: u32 = 20;

pub(crate) const ENDED: &str = "the runtime that asked has ended";

type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// Makes a connection when it is needed, and a new one when that is over; also the table of a cluster's slots.
pub(crate) struct Link<T> {
    timeout: Duration,
    make: Box<dyn Fn() -> BoxFuture<RedisResult<T>> + Send + Sync>,
    life: Mutex<Option<Arc<Life<T>>>>,
}

/// One connection, from its making to its end.
struct Life<T> {
    timeout: Duration,
    runtime: Handle,
    stage: watch::Sender<Stage<T>>,
    line: Mutex<Ticked>,
}

/// A line, and whether a task tells it ticks.
#[derive(Default)]
struct Ticked {
    line: Line,
    is_told: bool,
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
        Link { timeout, make, life: Mutex::default() }
    }

    /// The current connection, or a new one.
    fn life(&self) -> RedisResult<Arc<Life<T>>> {
        let mut life = locked(&self.life);
        if let Some(life) = life.as_ref().filter(|life| !life.stage.borrow().is_over()) {
            return Ok(life.clone());
        }
        let runtime = Handle::try_current().map_err(|_| io_error("there is no tokio runtime"))?;
        let (timeout, stage) = (self.timeout, watch::Sender::new(Stage::Making));
        let new = Arc::new(Life { timeout, runtime, stage, line: Mutex::default() });
        new.runtime.spawn(keep(Keeper(Arc::downgrade(&new)), (self.make)(), new.stage.subscribe()));
        new.happens(|_| State::GoOn);
        Ok(life.insert(new).clone())
    }

    /// Whether there is a connection.
    pub fn is_up(&self) -> bool {
        locked(&self.life).as_ref().is_some_and(|life| matches!(*life.stage.borrow(), Stage::Made(_)))
    }

    /// Makes the next request use a new connection, if `is_old` is true of the current one.
    pub fn forget_made(&self, is_old: impl Fn(&T) -> bool) {
        let is_old = |life: &Life<T>| matches!(&*life.stage.borrow(), Stage::Made(made) if is_old(made));
        locked(&self.life).take_if(|life| is_old(life));
    }

    /// The reply that `send` receives on the connection, or the error with which that ends.
    pub async fn by<R, F>(&self, send: impl FnOnce(T) -> F) -> RedisResult<R>
    where
        F: Future<Output = RedisResult<R>>,
    {
        let life = self.life()?;
        let (mut making, mut stage) = (life.stage.subscribe(), life.stage.subscribe());
        let sent = async {
            let made =
                making.wait_for(|stage| !matches!(stage, Stage::Making)).await.map(|made| made.clone());
            if let Ok(Stage::Made(made)) = made { send(made).await } else { pending().await }
        };
        life.happens(Line::sent);
        let reply = tokio::select! {
            biased;
            reply = sent => reply,
            why = over(&mut stage) => Err(why),
        };
        let state = match &reply {
            Err(error) if !is_reply(error) => life.happens(Line::closed),
            Err(error) => life.happens(|line| line.replied(known(error).map(|known| known.means))),
            Ok(_) => life.happens(|line| line.replied(None)),
        };
        if let (State::GiveUp, Err(error)) = (state, &reply) {
            // The error reply is this request's alone. The others got no reply, and may have been carried out.
            let why = if is_reply(error) { given_up(error) } else { error.clone() };
            life.begin(Stage::Over(why));
        }
        reply
    }
}

impl<T> Stage<T> {
    fn is_over(&self) -> bool {
        matches!(self, Stage::Over(_))
    }
}

/// Waits until the connection is over, and returns why.
async fn over<T>(stage: &mut watch::Receiver<Stage<T>>) -> RedisError {
    match stage.wait_for(Stage::is_over).await.as_deref() {
        Ok(Stage::Over(why)) => why.clone(),
        _ => io_error(ENDED),
    }
}

impl<T> Life<T> {
    /// Begins a stage, unless the connection is over. When it ends, all that is due fails with the error.
    fn begin(&self, next: Stage<T>) {
        self.stage.send_if_modified(|stage| {
            let goes_on = !stage.is_over();
            if goes_on {
                *stage = next;
            }
            goes_on
        });
    }
}

impl<T: Send + Sync + 'static> Life<T> {
    /// Tells the line of an event, and starts the task for its ticks if they count from now on.
    fn happens(self: &Arc<Self>, event: impl FnOnce(&mut Line) -> State) -> State {
        let (state, starts) = {
            let Ticked { line, is_told } = &mut *locked(&self.line);
            let state = event(line);
            let starts = line.is_ticking() && !*is_told;
            *is_told |= starts;
            (state, starts)
        };
        if starts {
            self.runtime.spawn(tick(Arc::downgrade(self), self.timeout));
        }
        state
    }

    /// Tells the line that a tick has passed. Returns whether more count.
    fn tick(&self) -> bool {
        let (state, is_ticking) = {
            let Ticked { line, is_told } = &mut *locked(&self.line);
            let state = line.tick();
            *is_told = line.is_ticking();
            (state, *is_told)
        };
        if state == State::Late {
            let late = format!("no answer in {:?}", self.timeout);
            self.begin(Stage::Over(io::Error::new(io::ErrorKind::TimedOut, late).into()));
        }
        is_ticking
    }
}

/// Tells a line ticks until no more count. It sleeps anew after each, so a tick that comes late counts once.
async fn tick<T: Send + Sync + 'static>(life: Weak<Life<T>>, timeout: Duration) {
    loop {
        sleep((timeout / TICKS).max(Duration::from_micros(1))).await;
        for _ in 0..LAPS {
            yield_now().await;
        }
        if !life.upgrade().is_some_and(|life| life.tick()) {
            return;
        }
    }
}

/// Ends a connection when its runtime ends, and so drops the task that keeps it.
struct Keeper<T>(Weak<Life<T>>);

impl<T> Drop for Keeper<T> {
    fn drop(&mut self) {
        if let Some(life) = self.0.upgrade() {
            life.begin(Stage::Over(io_error(ENDED)));
        }
    }
}

/// Makes a connection, and waits until it is over.
async fn keep<T: Send + Sync + 'static>(
    life: Keeper<T>,
    making: BoxFuture<RedisResult<T>>,
    mut stage: watch::Receiver<Stage<T>>,
) {
    let made = tokio::select! {
        biased;
        made = making => made,
        _ = over(&mut stage) => return,
    };
    if let Some(life) = life.0.upgrade() {
        match made {
            Ok(made) => {
                life.happens(Line::up);
                life.begin(Stage::Made(made));
            }
            Err(error) => {
                life.happens(Line::closed);
                life.begin(Stage::Over(error));
            }
        }
    }
    over(&mut stage).await;
}

impl Link<MultiplexedConnection> {
    /// A link to the server that `client` names each time.
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
            async move {
                let client = client.await?;
                let made = client.get_multiplexed_async_connection_with_config(&config).await;
                match made {
                    Err(error)
                        if !is_reply(&error)
                            && error.is_connection_dropped()
                            && !error.is_connection_refusal() =>
                    {
                        Err(last_words(client, &config).await.unwrap_or(error))
                    }
                    made => made,
                }
            }
        })
    }

    /// The reply to a command. With `asking` from a node that is importing its slot.
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

/// The error with which a server hangs up on a new connection, as when it has too many: it is sent in place of the first
/// reply. redis-rs returns it only if its handshake has a single command.
async fn last_words(client: Client, config: &AsyncConnectionConfig) -> Option<RedisError> {
    let info = client.get_connection_info().clone();
    let hello = info.redis_settings().clone().set_protocol(ProtocolVersion::RESP3).set_db(0);
    let client = Client::open(info.set_redis_settings(hello.set_skip_set_lib_name())).ok()?;
    let made = client.get_multiplexed_async_connection_with_config(config).await;
    made.err().filter(|error| known(error).is_some())
}

fn given_up(error: &RedisError) -> RedisError {
    (ErrorKind::Io, "the connection is given up", error.to_string()).into()
}

pub(crate) fn io_error(why: &'static str) -> RedisError {
    (ErrorKind::Io, why).into()
}
