//! Carries out what [`Keys`] says: sends its commands, delivers its answers, keeps its timer.

use std::fmt;
use std::future::poll_fn;
use std::num::NonZeroUsize;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use redis::{ErrorKind, RedisError, RedisResult, Value};
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::{AbortHandle, JoinHandle};
use tokio::time::{sleep, timeout};

use super::outages::{Announcer, Node, NotAsked, Outages};
use crate::commands::{Clock, Quota, Time, Verdict, Verdicts, explained, has_timers};
use crate::keys::{Answer, Command, Keys, MAX_KEYS, Request, Rules, Share, Step};
use crate::lines::{ENDED, Redis, io_error, is_away, own_runtime};
use crate::locked;

/// `close` waits this many timeouts for commands in flight.
const CLOSING: u32 = 5;

/// The server, and what this process decides by itself. Clones share both.
#[derive(Clone)]
pub(crate) struct Asker(Arc<Shared>);

/// What an asker is made of.
#[derive(Clone)]
pub(crate) struct AskerSettings {
    pub redis: Redis,
    /// The clock whose time commands name with `AT`.
    pub clock: Option<Clock>,
    /// How long a refusal is repeated without asking.
    pub remember: Duration,
}

struct Shared {
    settings: AskerSettings,
    /// The time by which leases and refusals end.
    time: Time,
    state: Mutex<State>,
    outages: Outages,
    /// How many commands are in flight.
    tasks: watch::Sender<usize>,
}

struct State {
    keys: Keys,
    ticker: Option<AbortHandle>,
}

impl fmt::Debug for Asker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Asker").field("redis", self.redis()).finish_non_exhaustive()
    }
}

impl Asker {
    pub fn new(redis: Redis) -> Asker {
        let settings = AskerSettings { redis, clock: None, remember: Duration::ZERO };
        Asker::of(settings, Announcer::default())
    }

    /// An asker with other settings. It knows of no leases and refusals.
    pub fn with(&self, change: impl FnOnce(&mut AskerSettings)) -> Asker {
        let mut settings = self.0.settings.clone();
        change(&mut settings);
        Asker::of(settings, self.outages().announcer())
    }

    /// An asker with the same settings that decides in this process.
    pub fn in_memory(&self) -> Asker {
        self.with(|settings| settings.redis = crate::MemoryLimiter::new().into())
    }

    fn of(settings: AskerSettings, announcer: Announcer) -> Asker {
        let AskerSettings { redis, clock, remember } = &settings;
        let max_keys = const { NonZeroUsize::new(MAX_KEYS).expect("some keys") };
        let keys = Keys::new(*remember, max_keys, redis.is_cluster());
        let state = State { keys, ticker: None };
        let time = Time::of(clock.clone().or(redis.clock()));
        let (state, outages, tasks) = (Mutex::new(state), Outages::new(announcer), watch::Sender::new(0));
        Asker(Arc::new(Shared { settings, time, state, outages, tasks }))
    }

    pub fn redis(&self) -> &Redis {
        &self.0.settings.redis
    }

    pub fn outages(&self) -> &Outages {
        &self.0.outages
    }

    /// The time by which leases, refusals and places end.
    pub fn now(&self) -> Duration {
        self.0.time.now()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        locked(&self.0.state)
    }

    /// The verdict on a request for one key, if a lease or a remembered refusal decides it.
    pub fn known(&self, key: &[u8], rules: &Rules, cost: i64) -> Option<Verdict> {
        self.state().keys.known(self.now(), key, rules, cost)
    }

    /// Decides on a request. Its commands are sent by this call, before the future is polled. If the future is dropped, or
    /// the [`Held`] without [`keep`](Held::keep), what was taken goes back.
    pub fn take(
        &self,
        shares: Vec<Share>,
    ) -> impl Future<Output = (Held, RedisResult<Answer>)> + Send + use<> {
        let request = Request::new(shares);
        let receiver = request.awaited();
        let step = {
            let (mut state, now) = (self.state(), self.now());
            // A clock of the application's own may jump past the end of a lease before the timer fires.
            let mut step = state.keys.tick(now);
            let taken = state.keys.take(now, &request);
            step.commands.extend(taken.commands);
            step.answers.extend(taken.answers);
            step
        };
        let held = Held { asker: self.clone(), request, is_kept: AtomicBool::new(false) };
        self.carry_out(step);
        async {
            let answer = receiver.await.unwrap_or_else(|_| Err(io_error(ENDED)));
            (held, answer)
        }
    }

    /// What each quota of each share would decide, asked in one write. Nothing is counted.
    pub async fn peek(&self, shares: &[Share]) -> RedisResult<Vec<Vec<Verdict>>> {
        let look = |(share, quota): (&Share, Quota)| {
            let rules = Rules { quotas: vec![quota], ..Rules::clone(&share.rules) };
            let command = Command::peek(Share { rules: rules.into(), ..share.clone() });
            let asker = self.clone();
            async move {
                let reply = asker.ask(&command).await.and_then(|reply| command.read(reply));
                reply.map(|verdicts| verdicts.rows[0]).map_err(explained)
            }
        };
        let quotas =
            shares.iter().flat_map(|share| share.rules.quotas.iter().map(move |quota| (share, *quota)));
        let looks = in_order(quotas.map(look).collect());
        let rows = if self.redis().is_memory() {
            looks.await
        } else {
            own_runtime().spawn(looks).await.map_err(|_| io_error(ENDED))?
        };
        let mut rows = rows.into_iter();
        shares.iter().map(|share| rows.by_ref().take(share.rules.quotas.len()).collect()).collect()
    }

    /// Gives back all leases, and waits for the replies that are due, at most [`CLOSING`] timeouts.
    pub async fn close(&self) {
        let step = {
            let mut state = self.state();
            if let Some(ticker) = state.ticker.take() {
                ticker.abort();
            }
            state.keys.close()
        };
        self.carry_out(step);
        let mut tasks = self.0.tasks.subscribe();
        if *tasks.borrow() > 0 {
            let longest = self.redis().patience() * CLOSING;
            let closing = async move { timeout(longest, tasks.wait_for(|tasks| *tasks == 0)).await.is_ok() };
            let _ = own_runtime().spawn(closing).await;
        }
    }

    /// Where what lasts longer than a request goes on. A limiter in this process keeps to the runtime of whoever calls, whose
    /// time a test may move; there is none without timers.
    pub fn runtime(&self) -> Option<Handle> {
        if self.redis().is_memory() {
            Handle::try_current().ok().filter(|_| has_timers())
        } else {
            Some(own_runtime().clone())
        }
    }

    /// The same for what needs its timers.
    pub fn timers(&self) -> RedisResult<Handle> {
        let why = "waiting needs a runtime of tokio with timers: build it with enable_all()";
        self.runtime().ok_or_else(|| (ErrorKind::Client, why).into())
    }

    /// Sends what a task sends, whoever drops what. A limiter in this process has answered before this returns.
    pub fn run(&self, task: impl Future<Output = ()> + Send + 'static) {
        if self.redis().is_memory() {
            let _ = pin!(task).poll(&mut Context::from_waker(Waker::noop()));
        } else {
            own_runtime().spawn(task);
        }
    }

    /// Delivers answers and sends commands. The task that is returned ends when all commands have their replies. A limiter in
    /// this process has answered before this returns.
    fn carry_out(&self, step: Step) -> Option<JoinHandle<()>> {
        let Step { commands, answers } = step;
        answers.iter().for_each(|(request, answer)| request.tell(answer));
        let mut state = self.state();
        let is_ticking = state.ticker.as_ref().is_some_and(|ticker| !ticker.is_finished());
        // Without timers, each request gives back the leases that are over.
        if !is_ticking
            && state.keys.next_tick().is_some()
            && let Some(runtime) = self.runtime()
        {
            state.ticker = Some(runtime.spawn(self.clone().tick()).abort_handle());
        }
        drop(state);
        let is_of_lease = commands.iter().any(Command::is_of_lease);
        let send = |command| {
            self.0.tasks.send_modify(|tasks| *tasks += 1);
            InFlight { asker: self.clone(), command, is_replied: false }.send()
        };
        let mut sent: Vec<_> = commands.into_iter().map(send).collect();
        if self.redis().is_memory() {
            let mut context = Context::from_waker(Waker::noop());
            sent.into_iter().for_each(|sent| _ = pin!(sent).poll(&mut context));
            return None;
        }
        // Others wait for a lease, so it is not at the mercy of a handler that computes where this is called.
        let current = Handle::try_current().ok().filter(|_| !is_of_lease);
        let runtime = current.as_ref().unwrap_or_else(|| own_runtime());
        match sent.len() {
            0 => None,
            1 => sent.pop().map(|sent| runtime.spawn(sent)),
            // What is left of a lease must reach the server before the next lease is asked for.
            _ => Some(runtime.spawn(async { _ = in_order(sent).await })),
        }
    }

    /// The reply to a command. While its node is away this fails at once, and a probe may be sent in its place.
    pub async fn ask(&self, command: &Command) -> RedisResult<Value> {
        self.may_ask(&None, command)?;
        let node = self.redis().node(command.first_key()).await;
        let node = node.inspect_err(|error| self.failed(&None, error))?;
        self.may_ask(&node, command)?;
        let reply = self.reply(command).await.inspect_err(|error| self.failed(&node, error));
        if reply.is_ok() {
            self.outages().decided();
        }
        reply
    }

    fn failed(&self, node: &Node, error: &RedisError) {
        if is_away(error) {
            self.outages().failed(node, error);
        } else if error.code() == Some("NOPERM") {
            self.outages().denied(error);
        }
    }

    async fn reply(&self, command: &Command) -> RedisResult<Value> {
        self.redis()
            .ask(command.first_key(), &command.cmd(self.0.settings.clock.as_ref().map(Clock::now)))
            .await
    }

    fn may_ask(&self, node: &Node, command: &Command) -> RedisResult<()> {
        self.outages().ask(node).map_err(|NotAsked { why, probes }| {
            if probes {
                tokio::spawn(self.clone().probe(node.clone(), command.at_no_cost()));
            }
            why
        })
    }

    /// Sends probes to a node. A probe that is answered is followed by another, until the node is back; any other ends this.
    async fn probe(self, node: Node, command: Command) {
        loop {
            // A task of its own: after the timeout the connection still learns of the reply, and is not taken for silent.
            let asked = tokio::spawn(self.clone().answer(node.clone(), command.clone()));
            let answer = timeout(self.redis().patience(), asked).await.ok().and_then(Result::ok);
            if let Some(Err(why)) = &answer {
                self.outages().still_away(&node, why);
            }
            let is_answered = matches!(answer, Some(Ok(())));
            let Some(wait) = self.outages().probed(&node, is_answered) else { return };
            sleep(wait).await;
            if !matches!(self.outages().ask(&node), Err(NotAsked { probes: true, .. })) {
                return;
            }
        }
    }

    /// Whether a probe is answered, or why its node is still away.
    async fn answer(self, node: Node, command: Command) -> RedisResult<()> {
        if self.redis().node(command.first_key()).await? != node {
            // The key is on another node by now, or the nodes tell their slots again.
            if node.is_some() {
                self.outages().back(&node);
            }
            return Ok(());
        }
        match self.reply(&command).await {
            Err(error) if is_away(&error) => Err(error),
            _ => Ok(()),
        }
    }

    async fn tick(self) {
        loop {
            let (step, next) = {
                let mut state = self.state();
                let step = state.keys.tick(self.now());
                let next = state.keys.next_tick();
                if next.is_none() {
                    state.ticker = None;
                }
                (step, next)
            };
            self.carry_out(step);
            let Some(next) = next else { return };
            sleep(next.saturating_sub(self.now())).await;
        }
    }
}

/// What all of them return. They are polled in this order, so commands leave in it, and in one write.
async fn in_order<F: Future>(all: Vec<F>) -> Vec<F::Output> {
    let mut all: Vec<_> = all.into_iter().map(|one| (Box::pin(one), None)).collect();
    poll_fn(|context| {
        for (one, output) in all.iter_mut().filter(|(_, output)| output.is_none()) {
            if let Poll::Ready(ready) = one.as_mut().poll(context) {
                *output = Some(ready);
            }
        }
        if all.iter().all(|(_, output)| output.is_some()) { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    all.into_iter().filter_map(|(_, output)| output).collect()
}

/// A request that may be settled or given back. If it is dropped before [`keep`](Held::keep), what it took goes back.
pub(crate) struct Held {
    asker: Asker,
    request: Request,
    is_kept: AtomicBool,
}

impl Held {
    /// What has answered it.
    pub fn asker(&self) -> &Asker {
        &self.asker
    }

    /// Lets the request keep what it took when this is dropped.
    pub fn keep(&self) {
        self.is_kept.store(true, Relaxed);
    }

    /// Whether what it took goes back, or has.
    pub fn gives_back(&self) -> bool {
        self.request.gives_back()
    }

    /// Gives back what the request took, once. The task that is returned ends when Redis has it.
    pub fn give_back(&self) -> Option<JoinHandle<()>> {
        let step = self.asker.state().keys.give_back(self.asker.now(), &self.request);
        self.asker.carry_out(step)
    }

    /// Corrects what was taken of the shares at these indices. The last cost of a share counts. Its commands are sent by this
    /// call, before the future is polled.
    pub fn settle(
        &self,
        used: Vec<(usize, i64)>,
    ) -> impl Future<Output = RedisResult<Answer>> + Send + use<> {
        let receiver = self.request.awaited();
        let step = self.asker.state().keys.settle(&self.request, used);
        self.asker.carry_out(step);
        async { receiver.await.unwrap_or_else(|_| Err(io_error(ENDED))) }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if !self.is_kept.load(Relaxed) {
            self.give_back();
        }
    }
}

/// A command in flight. If its task panics, as in a hook, those who wait for it get an error.
struct InFlight {
    asker: Asker,
    command: Command,
    is_replied: bool,
}

impl InFlight {
    async fn send(mut self) {
        let reply = self.asker.ask(&self.command).await;
        let reply = reply.and_then(|reply| self.command.read(reply));
        self.replied(reply.map_err(explained));
    }

    fn replied(&mut self, reply: Result<Verdicts, RedisError>) {
        self.is_replied = true;
        if self.command.awaits_reply() {
            let step = self.asker.state().keys.reply(self.asker.now(), &self.command, reply);
            self.asker.carry_out(step);
        }
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        if !self.is_replied {
            self.replied(Err(io_error(ENDED)));
        }
        self.asker.0.tasks.send_modify(|tasks| *tasks -= 1);
    }
}
