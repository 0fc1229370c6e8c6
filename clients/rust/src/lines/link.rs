//! A connection that is made when it is needed, and given up when its [`Line`] says so.

use std::future::{Future, pending, poll_fn};
use std::io;
use std::net::UdpSocket;
use std::panic::catch_unwind;
use std::pin::{Pin, pin};
use std::sync::{Arc, LazyLock, Mutex, Weak};
use std::task::Poll;
use std::thread;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{
    AsyncConnectionConfig, Client, Cmd, ErrorKind, ProtocolVersion, RedisError, RedisResult, Value,
    make_extension_error,
};
use tokio::runtime::{self, Builder, Handle};
use tokio::sync::{Notify, watch};
use tokio::task::yield_now;
use tokio::time::sleep;

use super::errors::{is_reply, known};
use super::line::{Line, State, TICKS};
use crate::commands::has_timers;
use crate::locked;

/// How often other tasks may run before a tick is told.
///
/// tokio runs the task of a timer ahead of thousands that are ready, and one of the last may be about to read a reply. Before
/// a line is late, a thread has run some 24,000 other tasks, or was idle and took tasks of busy threads.
const LAPS: u32 = 20;

pub(crate) const ENDED: &str = "the runtime that asked has ended";

const MISUSED: &str = "MISUSED";
const PANICKED: &str =
    "connecting has panicked: TLS needs a provider of rustls, by its feature ring or by install_default()";

type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// Makes a connection when it is needed, and a new one when that is over; also the table of a cluster's slots.
///
/// Each runtime that asks has its own: actix-web has one for each worker, and a handler that computes there for two seconds
/// would keep the replies to the requests of all others from being read.
pub(crate) struct Link<T> {
    timeout: Duration,
    make: Box<dyn Fn() -> BoxFuture<RedisResult<T>> + Send + Sync>,
    lives: Mutex<Vec<(runtime::Id, Arc<Life<T>>)>>,
}

/// One connection, from its making to its end.
struct Life<T> {
    timeout: Duration,
    stage: watch::Sender<Stage<T>>,
    line: watch::Sender<Line>,
    /// Wakes those who wait for the connection in the order in which they came, as `stage` does not.
    begun: Notify,
}

/// `None` while the connection is being made, then the connection, and at last the error with which it ended.
type Stage<T> = Option<RedisResult<T>>;

impl<T: Clone + Send + Sync + 'static> Link<T> {
    pub fn new<F>(timeout: Duration, make: impl Fn() -> F + Send + Sync + 'static) -> Link<T>
    where
        F: Future<Output = RedisResult<T>> + Send + 'static,
    {
        let make = Box::new(move || -> BoxFuture<_> { Box::pin(make()) });
        Link { timeout, make, lives: Mutex::default() }
    }

    /// The connection of this runtime, or a new one.
    fn life(&self) -> Arc<Life<T>> {
        let (current, own) = (Handle::try_current().ok(), own_runtime());
        let id = current.as_ref().unwrap_or(own).id();
        let mut lives = locked(&self.lives);
        lives.retain(|(_, life)| !is_over(&life.stage.borrow()));
        if let Some((_, life)) = lives.iter().find(|(of, _)| *of == id) {
            return life.clone();
        }
        let (stage, line) = (watch::Sender::new(None), watch::Sender::new(Line::new()));
        let keeper = (stage.subscribe(), line.subscribe());
        let new = Arc::new(Life { timeout: self.timeout, stage, line, begun: Notify::new() });
        let runtime = current.filter(|_| has_drivers()).unwrap_or_else(|| own.clone());
        runtime.spawn(keep(Keeper(Arc::downgrade(&new)), (self.make)(), keeper));
        lives.push((id, new.clone()));
        new
    }

    /// Whether there is a connection.
    pub fn is_up(&self) -> bool {
        locked(&self.lives).iter().any(|(_, life)| matches!(*life.stage.borrow(), Some(Ok(_))))
    }

    /// Makes the next request use a new connection, if `is_old` is true of the current one.
    pub fn forget_made(&self, is_old: impl Fn(&T) -> bool) {
        let is_old = |life: &Life<T>| matches!(&*life.stage.borrow(), Some(Ok(made)) if is_old(made));
        locked(&self.lives).retain(|(_, life)| !is_old(life));
    }

    /// The reply that `send` receives on the connection, or the error with which that ends.
    ///
    /// A connection that was closed while nothing was due, as by a proxy, is seen only now. Nothing was written to it then, so the
    /// command is sent on a new one.
    pub async fn by<R, F>(&self, send: impl Fn(T) -> F) -> RedisResult<R>
    where
        F: Future<Output = RedisResult<R>>,
    {
        match self.attempt(&send).await {
            Some(reply) => reply,
            None => self.attempt(&send).await.unwrap_or_else(|| Err(io_error("the connection is closed"))),
        }
    }

    /// `None` if the connection turns out to be closed before anything is written to it.
    async fn attempt<R, F>(&self, send: &impl Fn(T) -> F) -> Option<RedisResult<R>>
    where
        F: Future<Output = RedisResult<R>>,
    {
        let life = self.life();
        let mut stage = life.stage.subscribe();
        let was_up = matches!(*life.stage.borrow(), Some(Ok(_)));
        life.happens(Line::sent);
        let made = life.made().await;
        let mut sent = pin!(async { if let Ok(made) = made { send(made).await } else { pending().await } });
        // redis-rs hands a command to the task of its connection: it fails at once if that has ended, and else waits.
        let at_once = poll_fn(|context| Poll::Ready(sent.as_mut().poll(context))).await;
        if was_up
            && let Poll::Ready(Err(closed)) = &at_once
            && !is_reply(closed)
        {
            life.happens(Line::closed);
            life.begin(Err(closed.clone()));
            return None;
        }
        let sent = async { if let Poll::Ready(reply) = at_once { reply } else { sent.await } };
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
            life.begin(Err(why));
        }
        Some(reply)
    }
}

fn is_over<T>(stage: &Stage<T>) -> bool {
    matches!(stage, Some(Err(_)))
}

/// Waits until the connection is over, and returns why.
async fn over<T>(stage: &mut watch::Receiver<Stage<T>>) -> RedisError {
    match stage.wait_for(is_over).await.as_deref() {
        Ok(Some(Err(why))) => why.clone(),
        _ => io_error(ENDED),
    }
}

impl<T: Clone> Life<T> {
    /// The connection when it is made, or the error with which it ended.
    async fn made(&self) -> RedisResult<T> {
        loop {
            let begun = self.begun.notified();
            let stage = self.stage.borrow().clone();
            if let Some(made) = stage {
                return made;
            }
            begun.await;
        }
    }
}

impl<T> Life<T> {
    /// Begins a stage, unless the connection is over. When it ends, all that is due fails with the error.
    fn begin(&self, next: RedisResult<T>) {
        self.stage.send_if_modified(|stage| {
            let goes_on = !is_over(stage);
            if goes_on {
                *stage = Some(next);
            }
            goes_on
        });
        self.begun.notify_waiters();
    }

    /// Tells the line of an event. Wakes the task of its ticks if they count from now on.
    fn happens(&self, event: impl FnOnce(&mut Line) -> State) -> State {
        let mut state = State::GoOn;
        self.line.send_if_modified(|line| {
            let was_ticking = line.is_ticking();
            state = event(line);
            line.is_ticking() && !was_ticking
        });
        state
    }
}

/// Ends a connection when the task that keeps it is dropped: its runtime ends, or connecting has panicked.
struct Keeper<T>(Weak<Life<T>>);

impl<T> Drop for Keeper<T> {
    fn drop(&mut self) {
        if let Some(life) = self.0.upgrade() {
            life.begin(Err(if thread::panicking() { misused(PANICKED) } else { io_error(ENDED) }));
        }
    }
}

/// Makes a connection and tells its line ticks, until it is over.
async fn keep<T>(
    life: Keeper<T>,
    making: BoxFuture<RedisResult<T>>,
    (mut stage, line): (watch::Receiver<Stage<T>>, watch::Receiver<Line>),
) {
    let made = async {
        let made = making.await;
        if let Some(life) = life.0.upgrade() {
            life.happens(if made.is_ok() { Line::up } else { Line::closed });
            life.begin(made);
        }
    };
    tokio::select! {
        biased;
        _ = async { tokio::join!(made, tick(&life.0, line)) } => {}
        _ = over(&mut stage) => {}
    }
}

/// Tells a line ticks while they count. It sleeps anew after each, so a tick that comes late counts once.
async fn tick<T>(life: &Weak<Life<T>>, mut line: watch::Receiver<Line>) {
    while line.wait_for(Line::is_ticking).await.is_ok() {
        let Some(timeout) = life.upgrade().map(|life| life.timeout) else { return };
        sleep((timeout / TICKS).max(Duration::from_micros(1))).await;
        for _ in 0..LAPS {
            yield_now().await;
        }
        if let Some(life) = life.upgrade()
            && life.happens(Line::tick) == State::Late
        {
            let late = format!("no answer in {timeout:?}");
            life.begin(Err(io::Error::new(io::ErrorKind::TimedOut, late).into()));
        }
    }
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
        self.by(move |mut connection: MultiplexedConnection| async move {
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

/// The runtime of a thread of the package's own, for what others wait for: leases, what goes back, and probes; and for all that is
/// asked where there is no runtime. It begins when it is needed, and sleeps while nothing is to be done.
pub(crate) fn own_runtime() -> &'static Handle {
    static RUNTIME: LazyLock<Handle> = LazyLock::new(|| {
        let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime of tokio");
        let handle = runtime.handle().clone();
        let run = move || runtime.block_on(pending::<()>());
        thread::Builder::new().name("redis-rl".to_owned()).spawn(run).expect("a thread for Redis");
        handle
    });
    &RUNTIME
}

/// Whether this runtime of tokio has timers and I/O. tokio tells by a panic alone that one has none.
fn has_drivers() -> bool {
    let has_io = || {
        UdpSocket::bind("127.0.0.1:0").and_then(|socket| {
            socket.set_nonblocking(true)?;
            tokio::net::UdpSocket::from_std(socket)
        })
    };
    has_timers() && catch_unwind(has_io).is_ok()
}

/// The error for a mistake of the program. It does not mean that Redis is away.
pub(crate) fn misused(why: &str) -> RedisError {
    make_extension_error(MISUSED.to_owned(), Some(why.to_owned()))
}

pub(crate) fn is_misused(error: &RedisError) -> bool {
    error.kind() == ErrorKind::Extension && error.code() == Some(MISUSED)
}

pub(crate) fn io_error(why: &'static str) -> RedisError {
    (ErrorKind::Io, why).into()
}
