//! A limiter that asks the server only now and then.

use std::collections::HashMap;
use std::fmt;
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use redis::aio::ConnectionLike;
use redis::{ErrorKind, FromRedisValue, RedisError, RedisResult, Value};
use tokio::runtime::Handle;
use tokio::sync::{oneshot, watch};
use tokio::task::AbortHandle;
use tokio::time::{sleep, timeout};

use crate::clock::{Clock, Time};
use crate::connection::explained;
use crate::local::{Answer, Command, Decider, MAX_KEYS, RequestId, Rules, Settings, Step};
use crate::quota::check;
use crate::{Algorithm, Quota, Verdict};

/// How long a server may be silent before what is in flight is left to itself at the end.
const CLOSING: Duration = Duration::from_secs(1);

/// A limiter for hot keys and floods: it leases units, and remembers refusals.
///
/// A key that is asked for often has units counted ahead, at most [`units`](Leases::units), which are then handed out
/// here without asking. So at most that many units for each key and process are counted and not used, and at most
/// units x processes more pass in a window than the quotas allow. A quiet key has no lease and is exact. A refusal is
/// repeated until its wait is over, or for at most a second.
///
/// Clones share all of it, and may be used by any thread of a tokio runtime. Leases end by themselves; before the
/// process ends, [`close`](Leases::close) gives back what is left.
///
/// ```no_run
/// use redis_rl_client::{Algorithm, Leases, Quota};
///
/// # async fn limit() -> redis::RedisResult<()> {
/// let client = redis::Client::open("redis://127.0.0.1/")?;
/// let connection = client.get_multiplexed_async_connection().await?;
/// let limiter = Leases::new(connection, Algorithm::Log, [Quota::per_minute(100_000)]).units(1000);
/// let verdict = limiter.take("tenant:42", 1).await?;
/// limiter.close().await;
/// # Ok(())
/// # }
/// ```
#[must_use]
pub struct Leases<C> {
    connection: C,
    algorithm: Algorithm,
    quotas: Arc<[Quota]>,
    lease: Duration,
    rules: Arc<Rules>,
    settings: Settings,
    clock: Clock,
    shared: Arc<Shared>,
}

/// What clones share.
#[derive(Debug)]
struct Shared {
    time: Time,
    state: Mutex<State>,
    /// How many tasks wait for replies.
    tasks: watch::Sender<usize>,
}

#[derive(Debug)]
struct State {
    decider: Decider,
    last_id: RequestId,
    waiting: HashMap<RequestId, oneshot::Sender<RedisResult<Verdict>>>,
    ticker: Option<AbortHandle>,
}

impl Shared {
    fn new(settings: Settings, clock: &Clock) -> Arc<Shared> {
        let max_keys = const { NonZeroUsize::new(MAX_KEYS).expect("some keys") };
        let state = State {
            decider: Decider::new(settings, max_keys),
            last_id: 0,
            waiting: HashMap::new(),
            ticker: None,
        };
        let time = Time::of(clock.clone());
        Arc::new(Shared { time, state: Mutex::new(state), tasks: watch::Sender::new(0) })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> Duration {
        self.time.now()
    }
}

impl<C: Clone> Clone for Leases<C> {
    fn clone(&self) -> Leases<C> {
        Leases {
            connection: self.connection.clone(),
            quotas: self.quotas.clone(),
            rules: self.rules.clone(),
            clock: self.clock.clone(),
            shared: self.shared.clone(),
            ..*self
        }
    }
}

impl<C> fmt::Debug for Leases<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut fields = f.debug_struct("Leases");
        fields.field("algorithm", &self.algorithm).field("quotas", &self.quotas).field("lease", &self.lease);
        fields.field("settings", &self.settings).finish_non_exhaustive()
    }
}

impl<C: ConnectionLike + Clone + Send + Sync + 'static> Leases<C> {
    /// Leases at most a hundredth of the smallest limit, for 100 ms, and remembers refusals for a second.
    ///
    /// # Panics
    ///
    /// If the server would refuse the quotas: 1 to 8 with different windows.
    pub fn new(connection: C, algorithm: Algorithm, quotas: impl AsRef<[Quota]>) -> Leases<C> {
        if let Err(why) = check(quotas.as_ref()) {
            panic!("{why}");
        }
        let quotas: Arc<[Quota]> = quotas.as_ref().into();
        let smallest_limit = quotas.iter().map(|quota| quota.limit).min().unwrap_or_default();
        let settings = Settings { units: smallest_limit / 100, remember: Duration::from_secs(1) };
        let lease = Duration::from_millis(100);
        Leases {
            connection,
            algorithm,
            rules: Arc::new(Rules::new(algorithm, &quotas, lease)),
            quotas,
            lease,
            settings,
            clock: Clock::default(),
            shared: Shared::new(settings, &Clock::default()),
        }
    }

    /// The largest lease of a key. With 0 every request is asked for, unless a refusal is remembered.
    pub fn units(self, units: u64) -> Leases<C> {
        let settings = Settings { units, ..self.settings };
        Leases { settings, shared: Shared::new(settings, &self.clock), ..self }
    }

    /// How long a lease lasts; never more than a twentieth of the shortest window. Then what is left is given back.
    pub fn lasting(self, lease: Duration) -> Leases<C> {
        let rules = Arc::new(Rules::new(self.algorithm, &self.quotas, lease));
        Leases { lease, rules, shared: Shared::new(self.settings, &self.clock), ..self }
    }

    /// Decides as of this clock instead of those of the server and of this process: with it a test moves time.
    pub fn clock(self, now: impl Fn() -> SystemTime + Send + Sync + 'static) -> Leases<C> {
        self.by_clock(Clock::new(now))
    }

    pub(crate) fn by_clock(self, clock: Clock) -> Leases<C> {
        Leases { shared: Shared::new(self.settings, &clock), clock, ..self }
    }

    /// How old a refusal may be that is repeated without asking. With 0 none is.
    pub fn remember(self, remember: Duration) -> Leases<C> {
        let settings = Settings { remember, ..self.settings };
        Leases { settings, shared: Shared::new(settings, &self.clock), ..self }
    }

    /// Takes units: of the lease, or by asking the server.
    ///
    /// The verdict has [`taken`](Verdict::taken) and [`at`](Verdict::at), except for a request of several units that was
    /// decided by itself. A negative cost gives units back, and 0 looks; both are always asked for.
    pub async fn take(&self, key: impl AsRef<[u8]>, cost: i64) -> RedisResult<Verdict> {
        let key = key.as_ref();
        let mut step = Step::default();
        let (id, receiver) = {
            let mut state = self.shared.state();
            let id = state.last_id + 1;
            let now = self.shared.now();
            if let Some(verdict) = state.decider.take(now, key, &self.rules, id, cost, &mut step) {
                return Ok(verdict);
            }
            state.last_id = id;
            let (sender, receiver) = oneshot::channel();
            state.waiting.insert(id, sender);
            (id, receiver)
        };
        let _cancels = Cancels { shared: &self.shared, key, id };
        self.carry_out(step, None);
        receiver.await.unwrap_or_else(|_| Err(gone()))
    }

    /// Gives back all leases, and waits until all that is in flight is answered, but at most a second.
    ///
    /// From then on requests are asked for one by one.
    pub async fn close(&self) {
        let mut step = Step::default();
        {
            let mut state = self.shared.state();
            state.decider.close(&mut step);
            if let Some(ticker) = state.ticker.take() {
                ticker.abort();
            }
        }
        self.carry_out(step, None);
        let mut tasks = self.shared.tasks.subscribe();
        // The sender is there as long as this is.
        let _ = timeout(CLOSING, tasks.wait_for(|tasks| *tasks == 0)).await;
    }

    /// Sends commands and gives answers. What has failed has failed with `error`.
    fn carry_out(&self, step: Step, error: Option<&RedisError>) {
        let Step { commands, answers } = step;
        if !answers.is_empty() {
            let mut state = self.shared.state();
            for (id, answer) in answers {
                let answer = match answer {
                    Answer::Verdict(verdict) => Ok(verdict),
                    Answer::Failed => Err(error.cloned().unwrap_or_else(gone)),
                };
                if let Some(sender) = state.waiting.remove(&id) {
                    let _ = sender.send(answer);
                }
            }
        }
        self.keep_ticking();
        // Give-backs of a key go with the command that follows them: the server has them first.
        let mut commands = commands.into_iter().peekable();
        while let Some(command) = commands.next() {
            let mut group = vec![command];
            while group.last().is_some_and(Command::gives_back)
                && let Some(next) = commands.next_if(|next| next.key == group[0].key)
            {
                group.push(next);
            }
            let in_flight = InFlight::new(self.clone(), group);
            match Handle::try_current() {
                Ok(runtime) => drop(runtime.spawn(in_flight.send())),
                Err(_) => drop(in_flight),
            }
        }
    }

    /// What follows from the reply to a command.
    fn replied(&self, command: &Command, reply: RedisResult<Verdict>) {
        let mut step = Step::default();
        let (reply, error) = match reply {
            Ok(verdict) => (Some(verdict), None),
            Err(error) => (None, Some(error)),
        };
        self.shared.state().decider.reply(self.shared.now(), command, reply, &mut step);
        self.carry_out(step, error.as_ref());
    }

    /// Has a task end leases as long as there are any.
    fn keep_ticking(&self) {
        let mut state = self.shared.state();
        let ticks = state.ticker.as_ref().is_some_and(|ticker| !ticker.is_finished());
        if !ticks
            && state.decider.next_tick().is_some()
            && let Ok(runtime) = Handle::try_current()
        {
            state.ticker = Some(runtime.spawn(self.clone().tick()).abort_handle());
        }
    }

    async fn tick(self) {
        loop {
            let mut step = Step::default();
            let next = {
                let mut state = self.shared.state();
                state.decider.tick(self.shared.now(), &mut step);
                let next = state.decider.next_tick();
                if next.is_none() {
                    state.ticker = None;
                }
                next
            };
            self.carry_out(step, None);
            let Some(next) = next else { return };
            sleep(next.saturating_sub(self.shared.now())).await;
        }
    }
}

/// Commands for one key on their way. Only the last of them may have a reply that somebody waits for.
///
/// A runtime that ends drops it: then that command has failed.
struct InFlight<C: ConnectionLike + Clone + Send + Sync + 'static> {
    leases: Leases<C>,
    commands: Vec<Command>,
    is_answered: bool,
}

impl<C: ConnectionLike + Clone + Send + Sync + 'static> InFlight<C> {
    fn new(leases: Leases<C>, commands: Vec<Command>) -> InFlight<C> {
        leases.shared.tasks.send_modify(|tasks| *tasks += 1);
        InFlight { leases, commands, is_answered: false }
    }

    async fn send(mut self) {
        let reply = self.reply().await;
        self.answer(reply);
    }

    /// The reply to the last command.
    async fn reply(&self) -> RedisResult<Verdict> {
        let mut connection = self.leases.connection.clone();
        let words = |command: &Command| {
            let command = Command { at: command.at.or_else(|| self.leases.clock.at()), ..command.clone() };
            command.cmd()
        };
        let (last, others) = self.commands.split_last().ok_or_else(gone)?;
        let reply: Value = if others.is_empty() {
            words(last).query_async(&mut connection).await?
        } else {
            let mut pipeline = redis::pipe();
            for command in &self.commands {
                pipeline.add_command(words(command));
            }
            let mut replies: Vec<RedisResult<Value>> =
                pipeline.ignore_errors().query_async(&mut connection).await?;
            replies.pop().ok_or_else(gone)??
        };
        Ok(Verdict::from_redis_value(reply)?)
    }

    fn answer(&mut self, reply: RedisResult<Verdict>) {
        self.is_answered = true;
        if let Some(command) = self.commands.last()
            && !command.gives_back()
        {
            self.leases.replied(command, reply.map_err(explained));
        }
    }
}

impl<C: ConnectionLike + Clone + Send + Sync + 'static> Drop for InFlight<C> {
    fn drop(&mut self) {
        if !self.is_answered {
            self.answer(Err(gone()));
        }
        self.leases.shared.tasks.send_modify(|tasks| *tasks -= 1);
    }
}

/// Cancels a request when its future is dropped.
struct Cancels<'a> {
    shared: &'a Shared,
    key: &'a [u8],
    id: RequestId,
}

impl Drop for Cancels<'_> {
    fn drop(&mut self) {
        let mut state = self.shared.state();
        if state.waiting.remove(&self.id).is_some() {
            state.decider.cancel(self.key, self.id);
        }
    }
}

fn gone() -> RedisError {
    (ErrorKind::Io, "the runtime that asked has ended").into()
}
