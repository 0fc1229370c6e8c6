//! Waiting until units are allowed.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, UNIX_EPOCH};

use redis::{RedisResult, Value};
use tokio::sync::{Notify, Semaphore, oneshot};
use tokio::task::{AbortHandle, yield_now};
use tokio::time::{sleep, timeout};

use super::asker::{Asker, Held};
use super::queues::Queues;
use crate::commands::{Algorithm, Clock, MAX_WINDOW, Quota, Verdict, explained};
use crate::keys::turns::{Says, Turn, Turns};
use crate::keys::{Command, Rules, Share};
use crate::lines::{ENDED, Redis, io_error, own_runtime};
use crate::locked;

/// A limiter that waits until units are allowed.
///
/// Of a bucket it asks once, and sleeps until its units are there: all who wait are served in the order of their calls, whatever
/// their processes. Those who wait here for a key, by this and its clones and at the same cost, move up when one of them leaves.
///
/// Of the other algorithms, one of those who wait here for a key asks, and sleeps for exactly `retry_after`. The others stand in
/// order behind it. Processes have no order among each other.
///
/// If no wait within the timeout helps, it returns the refusal: see whether the verdict is [limited](Verdict::limited). Who asks
/// is told at once, who stands behind others at its timeout.
///
/// Clones share connections, and the order in which they wait.
#[derive(Clone)]
#[must_use]
pub struct Acquire {
    rules: Arc<Rules>,
    timeout: Option<Duration>,
    sleep: Option<Arc<Sleep>>,
    asker: Asker,
    /// Those who wait for a bucket.
    turns: Arc<Queues<BucketQueue>>,
    /// Those who wait by the other algorithms, at whatever cost. Who has the permit asks.
    queues: Arc<Queues<Semaphore>>,
}

type Sleep = dyn Fn(Duration) + Send + Sync;

impl fmt::Debug for Acquire {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut fields = f.debug_struct("Acquire");
        fields.field("rules", &self.rules).field("timeout", &self.timeout).finish_non_exhaustive()
    }
}

impl Acquire {
    /// A limiter that waits without end.
    pub fn new(client: impl Into<Redis>, algorithm: Algorithm, quotas: impl AsRef<[Quota]>) -> Acquire {
        let quotas = quotas.as_ref().to_vec();
        let rules = Arc::new(Rules { algorithm, quotas, ttl: Duration::ZERO, units: 0 });
        let (asker, turns, queues) = (Asker::new(client.into()), Arc::default(), Arc::default());
        Acquire { rules, timeout: None, sleep: None, asker, turns, queues }
    }

    /// Waits at most for this long. With a timeout of 0 it asks once.
    pub fn timeout(self, timeout: Duration) -> Acquire {
        Acquire { timeout: Some(timeout), ..self }
    }

    /// Decides by this clock instead of those of the server and of this process. Tests use it to move time.
    pub fn clock(self, clock: impl Into<Clock>) -> Acquire {
        let asker = self.asker.with(|settings| settings.clock = Some(clock.into()));
        Acquire { asker, turns: Arc::default(), queues: Arc::default(), ..self }
    }

    /// Calls this in place of sleeping. Tests move the clock by it.
    pub fn sleep(self, sleep: impl Fn(Duration) + Send + Sync + 'static) -> Acquire {
        Acquire { sleep: Some(Arc::new(sleep)), turns: Arc::default(), ..self }
    }

    /// Waits until these units of a key are allowed, or until it is known that they are not in time. A future that is dropped
    /// takes nothing: what it took ahead, and what a command in flight takes, goes back.
    ///
    /// # Errors
    ///
    /// If the server replies with an error, or is silent for the [timeout](Redis::timeout). Fails at once while it is away. With
    /// a [`MemoryLimiter`](crate::MemoryLimiter), waiting needs a tokio runtime with timers.
    pub async fn take(&self, key: impl AsRef<[u8]>, cost: i64) -> RedisResult<Verdict> {
        let share = Share { key: key.as_ref().into(), rules: self.rules.clone(), cost };
        let is_hopeless = cost <= 0 || self.rules.is_hopeless(cost);
        // Who has no time to wait, or waits in vain, does not stand in line.
        if is_hopeless || self.timeout.is_some_and(|timeout| timeout.is_zero()) {
            return ask(&self.asker, share).await.map(kept);
        }
        if self.rules.algorithm == Algorithm::Bucket {
            self.in_turn(share).await
        } else {
            self.in_order(share).await
        }
    }

    /// The same on a thread without a runtime, which it blocks.
    ///
    /// # Errors
    ///
    /// As [`take`](Acquire::take).
    pub fn blocking_take(&self, key: impl AsRef<[u8]>, cost: i64) -> RedisResult<Verdict> {
        let (this, key) = (self.clone(), key.as_ref().to_vec());
        let (sender, receiver) = mpsc::channel();
        own_runtime().spawn(async move { sender.send(this.take(key, cost).await) });
        receiver.recv().unwrap_or_else(|_| Err(io_error(ENDED)))
    }

    /// Until when whoever comes now waits.
    fn end(&self) -> Duration {
        self.asker.now().saturating_add(self.timeout.unwrap_or(Duration::MAX))
    }

    async fn in_turn(&self, share: Share) -> RedisResult<Verdict> {
        let within = self.timeout.unwrap_or(MAX_WINDOW).min(MAX_WINDOW);
        let queue = self.turns.of(&share, BucketQueue::is_over, || BucketQueue {
            share: share.clone(),
            asker: self.asker.clone(),
            sleep: self.sleep.clone(),
            changed: Notify::new(),
            state: Mutex::default(),
        });
        let mut waiter = queue.stand(self.end(), within);
        if let Ok(told) = waiter.told.try_recv() {
            return told;
        }
        self.asker.timers()?;
        (&mut waiter.told).await.unwrap_or_else(|_| Err(io_error(ENDED)))
    }

    async fn in_order(&self, share: Share) -> RedisResult<Verdict> {
        let end = self.end();
        let runtime = match self.asker.timers() {
            Ok(runtime) => runtime,
            Err(why) => {
                let asked = ask(&self.asker, share).await?;
                return if self.wait(&asked.1, end).is_none() { Ok(kept(asked)) } else { Err(why) };
            }
        };
        let queue = self.queues.of(&Share { cost: 0, ..share.clone() }, |_| true, || Semaphore::new(1));
        // A task of its own: it goes on for those behind it though the owner of this future may leave that alone.
        let (mut sender, receiver) = oneshot::channel();
        let this = self.clone();
        runtime.spawn(async move {
            tokio::select! {
                biased;
                () = sender.closed() => {}
                // What nobody takes goes back.
                asked = this.ask_in_order(&queue, &share, end) => drop(sender.send(asked)),
            }
        });
        receiver.await.unwrap_or_else(|_| Err(io_error(ENDED))).map(kept)
    }

    /// The first asks, and sleeps as long as it is told. Whose time is over asks a last time.
    async fn ask_in_order(
        &self,
        queue: &Semaphore,
        share: &Share,
        end: Duration,
    ) -> RedisResult<(Held, Verdict)> {
        let first = timeout(end.saturating_sub(self.asker.now()), queue.acquire()).await;
        loop {
            let asked = ask(&self.asker, share.clone()).await?;
            let Some(wait) = self.wait(&asked.1, end).filter(|_| first.is_ok()) else { return Ok(asked) };
            rest(self.sleep.as_deref(), wait).await;
        }
    }

    /// After which time it is worth to ask again.
    fn wait(&self, verdict: &Verdict, end: Duration) -> Option<Duration> {
        let wait = verdict.retry_after.filter(|_| verdict.limited)?;
        Some(wait).filter(|wait| self.asker.now().saturating_add(*wait) <= end)
    }
}

/// Asks once. What was taken goes back unless it is [`kept`].
async fn ask(asker: &Asker, share: Share) -> RedisResult<(Held, Verdict)> {
    let (held, answer) = asker.take(vec![share]).await;
    Ok((held, answer?.verdict()))
}

fn kept((held, verdict): (Held, Verdict)) -> Verdict {
    held.keep();
    verdict
}

/// Sleeps, or calls what a test has in place of that. Others go on meanwhile, however little that does.
async fn rest(by: Option<&Sleep>, pause: Duration) {
    match by {
        Some(pass) => {
            pass(pause);
            yield_now().await;
        }
        None => sleep(pause).await,
    }
}

/// Those who wait here for a bucket at the same cost. Carries out what [`Turns`] says.
struct BucketQueue {
    share: Share,
    asker: Asker,
    sleep: Option<Arc<Sleep>>,
    /// The next turn is another.
    changed: Notify,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    turns: Turns<u64, Verdict>,
    /// Those who wait for a reply or for their turn.
    waiting: HashMap<u64, oneshot::Sender<RedisResult<Verdict>>>,
    newest: u64,
    /// What goes back, and whether a task does it.
    back: Vec<Turn<Verdict>>,
    is_returning: bool,
    keeper: Option<AbortHandle>,
}

impl State {
    fn tell(&mut self, waiter: u64, verdict: RedisResult<Verdict>) {
        self.waiting.remove(&waiter).map(|sender| sender.send(verdict));
    }
}

impl BucketQueue {
    fn is_over(&self) -> bool {
        locked(&self.state).turns.is_over(self.asker.now())
    }

    /// Tells the turns of an event, and does what they say. Returns whether whoever comes needs a command.
    fn happens(self: &Arc<Self>, event: impl FnOnce(&mut State, Duration) -> Says<u64, Verdict>) -> bool {
        let mut state = locked(&self.state);
        let due = state.turns.next_tick();
        let Says { served, back, asks, .. } = event(&mut state, self.asker.now());
        for (waiter, turn) in served {
            state.tell(waiter, Ok(Verdict { retry_after: None, ..turn.verdict }));
        }
        state.back.extend(back);
        let returns = !state.is_returning && !state.back.is_empty();
        state.is_returning |= returns;
        if due != state.turns.next_tick() {
            self.changed.notify_one();
        }
        let is_kept = state.keeper.as_ref().is_some_and(|keeper| !keeper.is_finished());
        if !is_kept
            && state.turns.next_tick().is_some()
            && let Ok(runtime) = self.asker.timers()
        {
            state.keeper = Some(runtime.spawn(self.clone().keep()).abort_handle());
        }
        drop(state);
        if returns {
            self.asker.run(self.clone().give_back());
        }
        asks
    }

    /// Somebody comes, and waits until `end` at most.
    fn stand(self: Arc<Self>, end: Duration, within: Duration) -> Waiter {
        let (sender, told) = oneshot::channel();
        let mut number = 0;
        let asks = self.happens(|state, now| {
            state.newest += 1;
            number = state.newest;
            state.waiting.insert(number, sender);
            state.turns.asks(now, number, end)
        });
        if asks {
            self.asker.run(self.clone().ask(number, end, within));
        }
        Waiter { queue: self, number, told }
    }

    /// Asks for a turn. If whoever waits for it leaves meanwhile, it is that of those behind.
    async fn ask(self: Arc<Self>, waiter: u64, end: Duration, within: Duration) {
        let reply = self.send(Command::ahead(self.share.clone(), within)).await;
        self.happens(|state, now| match reply {
            Ok(verdict) if !verdict.limited => {
                let turn = Turn::new(now + verdict.retry_after.unwrap_or_default(), verdict);
                let rest = turn.due.saturating_sub(end);
                let still = state.waiting.contains_key(&waiter).then_some(waiter);
                let says = state.turns.told(now, turn, still, end);
                if says.late {
                    let late = Verdict { limited: true, retry_after: Some(rest), taken: Some(0), ..verdict };
                    state.tell(waiter, Ok(late));
                }
                says
            }
            refused => {
                state.tell(waiter, refused);
                state.turns.refused(now)
            }
        });
    }

    async fn send(&self, command: Command) -> RedisResult<Verdict> {
        let reply = self.asker.ask(&command).await.and_then(|reply: Value| command.read(reply));
        reply.map(|verdicts| verdicts.rows[0]).map_err(explained)
    }

    /// Gives turns back, one after another and the last first: what stands in front of another cannot go back.
    async fn give_back(self: Arc<Self>) {
        loop {
            let turn = {
                let state = &mut *locked(&self.state);
                let last = (0..state.back.len()).max_by_key(|index| state.back[*index].due);
                state.is_returning = last.is_some();
                last.map(|last| state.back.swap_remove(last))
            };
            let Some(turn) = turn else { return };
            let share = Share { cost: -self.share.cost, ..self.share.clone() };
            let reply = self.send(Command::not_ahead(share, turn.verdict.at.unwrap_or(UNIX_EPOCH))).await;
            let is_back = reply.map_or(true, |verdict| verdict.taken < Some(0));
            self.happens(|state, now| state.turns.returned(now, turn, is_back));
        }
    }

    /// Serves those who wait, until nobody does.
    async fn keep(self: Arc<Self>) {
        loop {
            let due = {
                let state = &mut *locked(&self.state);
                let due = state.turns.next_tick();
                state.keeper.take_if(|_| due.is_none());
                due
            };
            let Some(due) = due else { return };
            let pause = due.saturating_sub(self.asker.now());
            tokio::select! {
                () = rest(self.sleep.as_deref(), pause) => {}
                () = self.changed.notified() => {}
            }
            self.happens(|state, now| state.turns.tick(now));
        }
    }
}

/// One who waits for its turn.
struct Waiter {
    queue: Arc<BucketQueue>,
    number: u64,
    told: oneshot::Receiver<RedisResult<Verdict>>,
}

impl Drop for Waiter {
    fn drop(&mut self) {
        let (queue, told) = (self.queue.clone(), &mut self.told);
        queue.happens(|state, now| match (state.waiting.remove(&self.number), told.try_recv()) {
            (Some(_), _) => state.turns.leaves(now, &self.number),
            // It has just had its turn, and does not use it.
            (None, Ok(Ok(verdict))) if !verdict.limited => state.turns.unused(now, Turn::new(now, verdict)),
            (None, _) => state.turns.tick(now),
        });
    }
}
