//! Asks Redis on behalf of requests, each by several policies.

use std::collections::HashMap;
use std::fmt;
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use redis::aio::ConnectionLike;
use redis::{ErrorKind, FromRedisValue, RedisError, RedisResult, Value};
use tokio::runtime::Handle;
use tokio::sync::{oneshot, watch};
use tokio::task::AbortHandle;
use tokio::time::sleep;

use crate::clock::{Clock, Time};
use crate::connection::explained;
use crate::local::{
    Command, Decider, Fate, Group, Joint, JointAnswer, JointStep, MAX_KEYS, Outcome, Refusals, RequestId,
    Settings, Share, Taken,
};
use crate::timeout::ServerTimeout;
use crate::{Decision, Verdict, cmd};

/// A connection, and what this process decides by itself. Clones share both.
#[derive(Clone)]
pub(crate) struct Asker<C> {
    connection: C,
    clock: Clock,
    shared: Arc<Shared>,
}

struct Shared {
    time: Time,
    state: Mutex<State>,
    /// How many tasks wait for replies.
    tasks: watch::Sender<usize>,
}

struct State {
    joint: Joint,
    last_id: RequestId,
    waiting: HashMap<RequestId, oneshot::Sender<JointAnswer>>,
    /// Why Redis could not be asked the last time.
    error: Option<RedisError>,
    ticker: Option<AbortHandle>,
}

/// How requests are decided.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Terms {
    pub remember: Duration,
    pub is_cluster: bool,
    /// What becomes of a request that is not decided.
    pub undecided: Fate,
}

impl<C> fmt::Debug for Asker<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Asker").finish_non_exhaustive()
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<C: ConnectionLike + Clone + Send + Sync + 'static> Asker<C> {
    pub fn new(connection: C, clock: Clock, terms: Terms) -> Asker<C> {
        let max_keys = const { NonZeroUsize::new(MAX_KEYS).expect("some keys") };
        let Terms { remember, is_cluster, undecided } = terms;
        let decider = Decider::new(Settings { units: u64::MAX, remember }, max_keys);
        let state = State {
            joint: Joint::new(decider, Refusals::new(remember, max_keys), is_cluster, undecided),
            last_id: 0,
            waiting: HashMap::new(),
            error: None,
            ticker: None,
        };
        let time = Time::of(clock.clone());
        let shared = Shared { time, state: Mutex::new(state), tasks: watch::Sender::new(0) };
        Asker { connection, clock, shared: Arc::new(shared) }
    }

    pub fn connection(&self) -> C {
        self.connection.clone()
    }

    /// Decides on a request, and tells why it could not be decided.
    ///
    /// A future that is dropped takes nothing.
    pub async fn take(
        &self,
        shares: Vec<Share>,
        timeout: &ServerTimeout,
    ) -> (JointAnswer, Option<RedisError>) {
        let mut step = JointStep::default();
        let (sender, receiver) = oneshot::channel();
        let id = {
            let mut state = self.shared.state();
            state.last_id += 1;
            let id = state.last_id;
            state.waiting.insert(id, sender);
            state.joint.take(self.shared.time.now(), id, shares, &mut step);
            id
        };
        let mut asked = Asked { asker: self, id, receiver };
        self.carry_out(step);
        let answer = match asked.receiver.try_recv() {
            Ok(answer) => Some(answer),
            Err(_) => timeout
                .wait(async { (&mut asked.receiver).await.map_err(|_| gone()) })
                .await
                .and_then(Result::ok),
        };
        let answer = answer.unwrap_or_else(|| {
            let mut step = JointStep::default();
            {
                let mut state = self.shared.state();
                state.error = Some(timeout.error());
                state.joint.give_up(self.shared.time.now(), id, &mut step);
            }
            self.carry_out(step);
            let nothing = JointAnswer { outcome: Outcome::Away, rows: Vec::new(), taken: Vec::new() };
            asked.receiver.try_recv().unwrap_or(nothing)
        });
        let error = (answer.outcome == Outcome::Away)
            .then(|| self.shared.state().error.clone().unwrap_or_else(|| timeout.error()));
        (answer, error)
    }

    /// Gives back what a request took that is refused after all, once, in the background.
    pub fn release(&self, taken: Vec<Taken>) {
        let mut step = JointStep::default();
        self.shared.state().joint.release(self.shared.time.now(), taken, &mut step);
        self.carry_out(step);
    }

    /// What was refused of these keys may be over.
    pub fn forget(&self, shares: &[Share]) {
        self.shared.state().joint.forget(shares);
    }

    /// Gives back all leases, and waits until all that is in flight is answered.
    pub async fn close(&self) {
        let mut step = JointStep::default();
        {
            let mut state = self.shared.state();
            state.joint.close(&mut step);
            if let Some(ticker) = state.ticker.take() {
                ticker.abort();
            }
        }
        self.carry_out(step);
        let mut tasks = self.shared.tasks.subscribe();
        // The sender is there as long as this is.
        let _ = tasks.wait_for(|tasks| *tasks == 0).await;
    }

    /// Sends commands and gives answers.
    fn carry_out(&self, step: JointStep) {
        let JointStep { keys, groups, answers } = step;
        for (id, answer) in answers {
            let sender = self.shared.state().waiting.remove(&id);
            if let Some(Err(unread)) = sender.map(|sender| sender.send(answer)) {
                self.release(unread.taken);
            }
        }
        self.keep_ticking();
        // Give-backs of a key go with the command that follows them: the server has them first.
        let mut keys = keys.into_iter().peekable();
        while let Some(command) = keys.next() {
            let mut commands = vec![command];
            while commands.last().is_some_and(Command::gives_back)
                && let Some(next) = keys.next_if(|next| next.key == commands[0].key)
            {
                commands.push(next);
            }
            self.send(Sent::Keys(commands));
        }
        groups.into_iter().for_each(|group| self.send(Sent::Group(group)));
    }

    fn send(&self, sent: Sent) {
        let in_flight = InFlight::new(self.clone(), sent);
        match Handle::try_current() {
            Ok(runtime) => drop(runtime.spawn(in_flight.send())),
            Err(_) => drop(in_flight),
        }
    }

    /// What follows from a reply.
    fn replied(&self, sent: &Sent, reply: RedisResult<Reply>) {
        let mut step = JointStep::default();
        {
            let mut state = self.shared.state();
            let now = self.shared.time.now();
            let reply = reply.map_err(|error| state.error = Some(explained(error))).ok();
            match (sent, reply) {
                (Sent::Keys(commands), reply) => {
                    let verdict = reply.and_then(|reply| match reply {
                        Reply::Verdict(verdict) => Some(verdict),
                        Reply::Decision(decision) => decision.tightest(),
                    });
                    if let Some(command) = commands.last().filter(|command| !command.gives_back()) {
                        state.joint.reply_to_key(now, command, verdict, &mut step);
                    }
                }
                (Sent::Group(group), reply) => {
                    let decision = reply.and_then(|reply| match reply {
                        Reply::Decision(decision) => Some(decision),
                        Reply::Verdict(_) => None,
                    });
                    state.joint.reply_to_group(now, group, decision, &mut step);
                }
            }
        }
        self.carry_out(step);
    }

    /// Has a task end leases as long as there are any.
    fn keep_ticking(&self) {
        let mut state = self.shared.state();
        let ticks = state.ticker.as_ref().is_some_and(|ticker| !ticker.is_finished());
        if !ticks
            && state.joint.next_tick().is_some()
            && let Ok(runtime) = Handle::try_current()
        {
            state.ticker = Some(runtime.spawn(self.clone().tick()).abort_handle());
        }
    }

    async fn tick(self) {
        loop {
            let mut step = JointStep::default();
            let next = {
                let mut state = self.shared.state();
                state.joint.tick(self.shared.time.now(), &mut step);
                let next = state.joint.next_tick();
                if next.is_none() {
                    state.ticker = None;
                }
                next
            };
            self.carry_out(step);
            let Some(next) = next else { return };
            sleep(next.saturating_sub(self.shared.time.now())).await;
        }
    }
}

/// Commands of one write. Only the last of them may have a reply that somebody waits for.
enum Sent {
    Keys(Vec<Command>),
    Group(Group),
}

enum Reply {
    Verdict(Verdict),
    Decision(Decision),
}

/// Commands on their way. A runtime that ends drops them: then they have failed.
struct InFlight<C: ConnectionLike + Clone + Send + Sync + 'static> {
    asker: Asker<C>,
    sent: Sent,
    is_answered: bool,
}

impl<C: ConnectionLike + Clone + Send + Sync + 'static> InFlight<C> {
    fn new(asker: Asker<C>, sent: Sent) -> InFlight<C> {
        asker.shared.tasks.send_modify(|tasks| *tasks += 1);
        InFlight { asker, sent, is_answered: false }
    }

    async fn send(mut self) {
        let reply = self.reply().await;
        self.is_answered = true;
        self.asker.replied(&self.sent, reply);
    }

    async fn reply(&self) -> RedisResult<Reply> {
        let mut connection = self.asker.connection.clone();
        let commands = match &self.sent {
            Sent::Keys(commands) => commands,
            Sent::Group(group) => {
                let all = group.all();
                let all = match group.at.or_else(|| self.asker.clock.at()) {
                    Some(at) => all.at(at),
                    None => all,
                };
                return cmd::all(&all).query_async(&mut connection).await.map(Reply::Decision);
            }
        };
        // One that is decided as a whole is asked for its time too.
        let is_timed = |command: &Command| !command.partial && !command.gives_back();
        let words = |command: &Command| {
            let command = Command { at: command.at.or_else(|| self.asker.clock.at()), ..command.clone() };
            if is_timed(&command) { command.all() } else { command.cmd() }
        };
        let (last, others) = commands.split_last().ok_or_else(gone)?;
        let reply: Value = if others.is_empty() {
            words(last).query_async(&mut connection).await?
        } else {
            let mut pipeline = redis::pipe();
            for command in commands {
                pipeline.add_command(words(command));
            }
            let mut replies: Vec<RedisResult<Value>> =
                pipeline.ignore_errors().query_async(&mut connection).await?;
            replies.pop().ok_or_else(gone)??
        };
        Ok(if is_timed(last) {
            Reply::Decision(Decision::from_redis_value(reply)?)
        } else {
            Reply::Verdict(Verdict::from_redis_value(reply)?)
        })
    }
}

impl<C: ConnectionLike + Clone + Send + Sync + 'static> Drop for InFlight<C> {
    fn drop(&mut self) {
        if !self.is_answered {
            self.asker.replied(&self.sent, Err(gone()));
        }
        self.asker.shared.tasks.send_modify(|tasks| *tasks -= 1);
    }
}

/// A request. One whose future is dropped takes nothing.
struct Asked<'a, C: ConnectionLike + Clone + Send + Sync + 'static> {
    asker: &'a Asker<C>,
    id: RequestId,
    receiver: oneshot::Receiver<JointAnswer>,
}

impl<C: ConnectionLike + Clone + Send + Sync + 'static> Drop for Asked<'_, C> {
    fn drop(&mut self) {
        self.receiver.close();
        if let Ok(unread) = self.receiver.try_recv() {
            return self.asker.release(unread.taken);
        }
        let mut step = JointStep::default();
        {
            let mut state = self.asker.shared.state();
            if state.waiting.remove(&self.id).is_none() {
                return;
            }
            state.joint.cancel(self.asker.shared.time.now(), self.id, &mut step);
        }
        self.asker.carry_out(step);
    }
}

fn gone() -> RedisError {
    (ErrorKind::Io, "the runtime that asked has ended").into()
}
