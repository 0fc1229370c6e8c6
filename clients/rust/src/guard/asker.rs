//! Carries out what the machine of leases, refusals and requests says.

use std::collections::HashMap;
use std::fmt;
use std::future::poll_fn;
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::Poll;
use std::time::Duration;

use redis::{RedisError, RedisResult, Value};
use tokio::runtime::Handle;
use tokio::sync::{oneshot, watch};
use tokio::task::{AbortHandle, JoinHandle};
use tokio::time::{sleep, timeout};

use super::away::{Announcer, Node, Nodes, NotAsked};
use crate::commands::{Clock, Decision, Time, Verdict, explained};
use crate::keys::{Answer, Command, Keys, MAX_KEYS, RequestId, Rules, Share, Step};
use crate::lines::{ENDED, Redis, io_error, is_away};
use crate::locked;

/// Timeouts after which what is in flight is left to itself at the end.
const CLOSING: u32 = 5;

/// Servers, and what this process decides by itself. Clones share both.
#[derive(Clone)]
pub(crate) struct Asker {
    redis: Redis,
    clock: Clock,
    shared: Arc<Shared>,
}

struct Shared {
    time: Time,
    state: Mutex<State>,
    nodes: Nodes,
    /// How many commands are on their way.
    tasks: watch::Sender<usize>,
}

struct State {
    keys: Keys,
    last_id: RequestId,
    waiting: HashMap<RequestId, Vec<oneshot::Sender<RedisResult<Answer>>>>,
    ticker: Option<AbortHandle>,
}

impl fmt::Debug for Asker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Asker").field("redis", &self.redis).finish_non_exhaustive()
    }
}

impl Asker {
    /// Repeats refusals until they are so old.
    pub fn new(redis: Redis, clock: Clock, remember: Duration, announcer: Announcer) -> Asker {
        let max_keys = const { NonZeroUsize::new(MAX_KEYS).expect("some keys") };
        let keys = Keys::new(remember, max_keys, redis.is_cluster());
        let state = State { keys, last_id: 0, waiting: HashMap::new(), ticker: None };
        let time = Time::of(clock.clone().or(redis.clock()));
        let (state, nodes, tasks) = (Mutex::new(state), Nodes::new(announcer), watch::Sender::new(0));
        let shared = Shared { time, state, nodes, tasks };
        Asker { redis, clock, shared: Arc::new(shared) }
    }

    pub fn redis(&self) -> &Redis {
        &self.redis
    }

    pub fn nodes(&self) -> &Nodes {
        &self.shared.nodes
    }

    /// By the clock that decides when what it knows is over.
    pub fn now(&self) -> Duration {
        self.shared.time.now()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        locked(&self.shared.state)
    }

    /// What a request of one share is told without asking, if that is known.
    pub fn known(&self, key: &[u8], rules: &Rules, cost: i64) -> Option<Verdict> {
        self.state().keys.known(self.shared.time.now(), key, rules, cost)
    }

    /// Decides on a request, which is asked for at once. One whose future is dropped takes nothing, nor does one that is
    /// not kept.
    pub fn take(
        &self,
        shares: Vec<Share>,
    ) -> impl Future<Output = (Held, RedisResult<Answer>)> + Send + use<> {
        let (held, receiver, step) = {
            let mut state = self.state();
            state.last_id += 1;
            let id = state.last_id;
            let now = self.shared.time.now();
            // What is over goes back first, however the clock has moved.
            let mut step = state.keys.tick(now);
            let taken = state.keys.take(now, id, shares);
            step.commands.extend(taken.commands);
            step.answers.extend(taken.answers);
            let held = Held { asker: self.clone(), id, is_kept: AtomicBool::new(false) };
            (held, state.awaited(id), step)
        };
        self.carry_out(step);
        async {
            let answer = receiver.await.unwrap_or_else(|_| Err(io_error(ENDED)));
            (held, answer)
        }
    }

    /// Gives back all leases, and waits until all that is in flight is answered.
    pub async fn close(&self) {
        let step = {
            let mut state = self.state();
            if let Some(ticker) = state.ticker.take() {
                ticker.abort();
            }
            state.keys.close()
        };
        self.carry_out(step);
        let mut tasks = self.shared.tasks.subscribe();
        // The sender is there as long as this is.
        let _ = timeout(self.redis.patience() * CLOSING, tasks.wait_for(|tasks| *tasks == 0)).await;
    }

    /// Gives answers and sends commands; the task ends when these have their replies.
    fn carry_out(&self, step: Step) -> Option<JoinHandle<()>> {
        let Step { commands, answers } = step;
        let mut state = self.state();
        for (id, answer) in answers {
            for sender in state.waiting.remove(&id).unwrap_or_default() {
                let _ = sender.send(answer.clone());
            }
        }
        let is_ticking = state.ticker.as_ref().is_some_and(|ticker| !ticker.is_finished());
        if !is_ticking
            && state.keys.next_tick().is_some()
            && let Ok(runtime) = Handle::try_current()
        {
            state.ticker = Some(runtime.spawn(self.clone().tick()).abort_handle());
        }
        drop(state);
        let send = |command| Box::pin(InFlight::new(self.clone(), command).send());
        let mut sent: Vec<_> = commands.into_iter().map(send).collect();
        let runtime = Handle::try_current().ok()?;
        match sent.len() {
            0 => None,
            1 => sent.pop().map(|sent| runtime.spawn(sent)),
            // Of one task, so that they leave in this order: what goes back is there before the next lease is asked for.
            _ => Some(runtime.spawn(poll_fn(move |context| {
                sent.retain_mut(|sent| sent.as_mut().poll(context).is_pending());
                if sent.is_empty() { Poll::Ready(()) } else { Poll::Pending }
            }))),
        }
    }

    /// The reply to a command. While its node is away it is told so at once, and a probe may be sent for it.
    async fn ask(&self, command: &Command) -> RedisResult<Value> {
        self.may_ask(&None, command)?;
        let node = self.redis.node(command.first_key()).await;
        let node = node.inspect_err(|error| self.nodes().failed(&None, error))?;
        self.may_ask(&node, command)?;
        self.reply(command).await.inspect_err(|error| {
            if is_away(error) {
                self.nodes().failed(&node, error);
            }
        })
    }

    async fn reply(&self, command: &Command) -> RedisResult<Value> {
        self.redis.ask(command.first_key(), &command.cmd(self.clock.at())).await
    }

    fn may_ask(&self, node: &Node, command: &Command) -> RedisResult<()> {
        self.nodes().ask(node).map_err(|NotAsked { why, probes }| {
            if probes && let Ok(runtime) = Handle::try_current() {
                runtime.spawn(self.clone().probe(node.clone(), command.at_no_cost()));
            }
            why
        })
    }

    /// Finds out whether a node is back. After a probe that is answered a second one follows.
    async fn probe(self, node: Node, command: Command) {
        loop {
            // It waits for one timeout, also if the connection is new; the line is told of a later reply.
            let asked = tokio::spawn(self.clone().answers(node.clone(), command.clone()));
            let is_answered = timeout(self.redis.patience(), asked).await;
            let is_answered = is_answered.is_ok_and(|asked| asked.unwrap_or_default());
            let Some(wait) = self.nodes().probed(&node, is_answered) else { return };
            sleep(wait).await;
            if !matches!(self.nodes().ask(&node), Err(NotAsked { probes: true, .. })) {
                return;
            }
        }
    }

    async fn answers(self, node: Node, command: Command) -> bool {
        match self.redis.node(command.first_key()).await {
            Err(_) => false,
            Ok(found) if found != node => {
                // Its key is elsewhere by now, or the slots are known again.
                if node.is_some() {
                    self.nodes().moved(&node);
                }
                true
            }
            Ok(_) => self.reply(&command).await.err().is_none_or(|error| !is_away(&error)),
        }
    }

    async fn tick(self) {
        loop {
            let (step, next) = {
                let mut state = self.state();
                let step = state.keys.tick(self.shared.time.now());
                let next = state.keys.next_tick();
                if next.is_none() {
                    state.ticker = None;
                }
                (step, next)
            };
            self.carry_out(step);
            let Some(next) = next else { return };
            sleep(next.saturating_sub(self.shared.time.now())).await;
        }
    }
}

impl State {
    /// What a request is told next.
    fn awaited(&mut self, id: RequestId) -> oneshot::Receiver<RedisResult<Answer>> {
        let (sender, receiver) = oneshot::channel();
        self.waiting.entry(id).or_default().push(sender);
        receiver
    }
}

/// A request that may be settled or given back. Unless it is kept it takes nothing.
#[derive(Debug)]
pub(crate) struct Held {
    asker: Asker,
    id: RequestId,
    is_kept: AtomicBool,
}

impl Held {
    /// From now on it stays as it is if nobody has it any more.
    pub fn keep(&self) {
        self.is_kept.store(true, Ordering::Relaxed);
    }

    /// Gives back what the request took, once, by a task that ends when that is done.
    pub fn give_back(&self) -> Option<JoinHandle<()>> {
        let step = self.asker.state().keys.give_back(self.asker.shared.time.now(), self.id);
        self.asker.carry_out(step)
    }

    /// Corrects what was taken of the shares at these places. The last cost counts.
    #[cfg(feature = "web")]
    pub async fn settle(&self, used: Vec<(usize, i64)>) -> RedisResult<Answer> {
        let (step, receiver) = {
            let mut state = self.asker.state();
            let step = state.keys.settle(self.id, used);
            (step, state.awaited(self.id))
        };
        self.asker.carry_out(step);
        receiver.await.unwrap_or_else(|_| Err(io_error(ENDED)))
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if !*self.is_kept.get_mut() {
            self.asker.state().waiting.remove(&self.id);
            self.give_back();
        }
        self.asker.state().keys.leave_as_is(self.id);
    }
}

/// A command on its way. A runtime that ends drops it: then it has failed.
struct InFlight {
    asker: Asker,
    command: Command,
    is_replied: bool,
}

impl InFlight {
    fn new(asker: Asker, command: Command) -> InFlight {
        asker.shared.tasks.send_modify(|tasks| *tasks += 1);
        InFlight { asker, command, is_replied: false }
    }

    async fn send(mut self) {
        let reply = self.asker.ask(&self.command).await;
        let reply = reply.and_then(|reply| self.command.read(reply));
        self.replied(reply.map_err(explained));
    }

    fn replied(&mut self, reply: Result<Decision, RedisError>) {
        self.is_replied = true;
        if self.command.awaits_reply() {
            let now = self.asker.shared.time.now();
            let step = self.asker.state().keys.reply(now, &self.command, reply);
            self.asker.carry_out(step);
        }
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        if !self.is_replied {
            self.replied(Err(io_error(ENDED)));
        }
        self.asker.shared.tasks.send_modify(|tasks| *tasks -= 1);
    }
}
