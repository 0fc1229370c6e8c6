//! Places in flight: at most n blocks of code at work at once.

use std::fmt;
use std::future::pending;
use std::hash::{BuildHasher, RandomState};
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::{Arc, LazyLock, Mutex};
use std::time::{Duration, UNIX_EPOCH};

use redis::RedisResult;
use tokio::sync::{Notify, Semaphore, SemaphorePermit};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

use super::asker::{Asker, Held};
use super::queues::Queues;
use crate::commands::{Algorithm, Clock, MAX_LIMIT, Quota};
use crate::keys::place::{Event, Place, Say, State};
use crate::keys::way::{Does, Way};
use crate::keys::{Answer, Rules, Share};
use crate::lines::Redis;
use crate::locked;

/// In less time a place might not be renewed.
const LEAST: Duration = Duration::from_millis(100);

/// Who waits asks again after so many milliseconds, and at most so many more.
const PAUSE_MS: (u64, u64) = (20, 40);

/// One who waits behind others looks so often for each of them, since the first may be a future that its owner leaves alone.
const LEFT_ALONE: Duration = Duration::from_secs(1);

/// A process whose mark is younger than the window waits. The mark is made anew after half of that.
static MARK: LazyLock<Arc<Rules>> = LazyLock::new(|| {
    let quotas = vec![Quota::per_second(1_000_000)];
    Arc::new(Rules { algorithm: Algorithm::Log, quotas, ttl: Duration::ZERO, units: 0 })
});
const MARK_MS: u64 = 1000;

/// Limits how many blocks of code are at work at once, in all processes that ask the same Redis.
///
/// A place is held until its [`Hold`] is released or dropped. Meanwhile it is renewed every third of
/// [`ttl`](Places::ttl), so the places of a process that dies are free again within that time.
///
/// At most `n` are at work, except holders that could not renew for `ttl`, of which [`on_late`](Places::on_late) is
/// told, and after `FLUSHALL`, a `DEL` of the key, lost writes of a server or a step forward of its clock. A place whose
/// reply was lost is free again when `ttl` is over. There is no queue. With `n` of 1 it is no lock: nothing stops a holder that is late.
///
/// Clones share connections. All who use a key must use the same `ttl`; `n` may change at any time.
#[derive(Clone)]
#[must_use]
pub struct Places {
    pub(super) ttl: Duration,
    timeout: Duration,
    on_late: Option<Arc<OnLate>>,
    /// Those who wait in this process, by the key, and by `n` and `ttl`.
    queues: Arc<Queues<Queue>>,
    asker: Asker,
}

type Renewal = Pin<Box<dyn Future<Output = (Held, RedisResult<Answer>)> + Send>>;
type OnLate = dyn Fn(&[u8]) + Send + Sync;

impl fmt::Debug for Places {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut fields = f.debug_struct("Places");
        fields.field("ttl", &self.ttl).field("timeout", &self.timeout).finish_non_exhaustive()
    }
}

impl Places {
    /// Places that last for 30 seconds unless they are renewed. If none is free, [`hold`](Places::hold) does not wait.
    pub fn new(client: impl Into<Redis>) -> Places {
        let (asker, ttl) = (Asker::new(client.into()), Duration::from_secs(30));
        Places { ttl, timeout: Duration::ZERO, on_late: None, queues: Arc::default(), asker }
    }

    /// The same places by another asker.
    pub(super) fn by(&self, asker: Asker) -> Places {
        Places { asker, ..self.clone() }
    }

    /// How long a place lasts without being renewed, because its process died or cannot reach Redis: at least 100 ms.
    ///
    /// # Panics
    ///
    /// If it is not 100 ms to 3650 days.
    pub fn ttl(self, ttl: Duration) -> Places {
        let is_valid = ttl >= LEAST && Quota::new(0, ttl).check().is_ok();
        assert!(is_valid, "a place lasts from 100 ms to 3650 days");
        Places { ttl, ..self }
    }

    /// How long to wait for a place. Of those who wait for a key by this and its clones, one asks again every 20 to 60 ms, and at
    /// once when a place of theirs goes back.
    pub fn timeout(self, timeout: Duration) -> Places {
        Places { timeout, ..self }
    }

    /// Gets the key of a place that was not renewed in time, so that others may have it. It is called once for a place, at the
    /// latest when the place ends.
    pub fn on_late(self, tell: impl Fn(&[u8]) + Send + Sync + 'static) -> Places {
        Places { on_late: Some(Arc::new(tell)), ..self }
    }

    /// Decides by this clock instead of those of the server and of this process. Tests use it to move time.
    pub fn clock(self, clock: impl Into<Clock>) -> Places {
        Places { asker: self.asker.with(|settings| settings.clock = Some(clock.into())), ..self }
    }

    /// Takes one of `n` places. Returns `None` if all are taken. A future that is dropped takes nothing.
    ///
    /// # Errors
    ///
    /// If the server replies with an error, or is silent for the [timeout](Redis::timeout). Fails at once while it is away. To
    /// wait it needs a tokio runtime with timers, and so does a [`MemoryLimiter`](crate::MemoryLimiter) to renew places.
    pub async fn hold(&self, key: impl AsRef<[u8]>, n: u64) -> RedisResult<Option<Hold>> {
        let key = key.as_ref();
        self.hold_by(key, [b"waiting:", key].concat(), n).await
    }

    /// Takes a place of a key, and leaves a mark in another key while it waits.
    pub(super) async fn hold_by(&self, key: &[u8], mark: Vec<u8>, n: u64) -> RedisResult<Option<Hold>> {
        let share = Share { key: key.into(), rules: self.rules(n), cost: 1 };
        let queue = self.queue(&share, mark);
        let (began, waits) = (Instant::now(), !self.timeout.is_zero());
        let first = || First { queue: &queue, permit: None, is_full: false };
        // Who comes while others wait stands behind them: else a process that holds in a loop takes each place again.
        let mut turn = first();
        turn.permit = queue.polls.try_acquire().ok().filter(|_| waits);
        let _waiter = Waiter::new(&queue);
        let mut asks = !waits || turn.permit.is_some();
        loop {
            if asks {
                let hold = self.try_to_hold(&queue, &share, &mut turn).await?;
                if hold.is_some() || began.elapsed() >= self.timeout {
                    return Ok(hold);
                }
            }
            self.asker.timers()?;
            let pause = if turn.permit.is_some() {
                self.mark(&queue).await;
                Duration::from_millis(locked(&queue.state).due.saturating_sub(self.now()))
            } else {
                LEFT_ALONE * Arc::strong_count(&queue) as u32
            };
            let left = self.timeout.saturating_sub(began.elapsed());
            asks = tokio::select! {
                biased;
                () = queue.freed.notified(), if turn.permit.is_some() => true,
                permit = queue.polls.acquire(), if turn.permit.is_none() => {
                    turn.permit = permit.ok();
                    false
                }
                () = sleep(pause.min(left)) => true,
            };
        }
    }

    /// Those who wait for a place here, and the places that are held here.
    fn queue(&self, share: &Share, mark: Vec<u8>) -> Arc<Queue> {
        self.queues.of(
            share,
            |_| true,
            || {
                let mark = Share { key: mark.into(), rules: MARK.clone(), cost: 1 };
                Queue { mark, polls: Semaphore::new(1), freed: Notify::new(), state: Mutex::default() }
            },
        )
    }

    async fn try_to_hold(
        &self,
        queue: &Arc<Queue>,
        share: &Share,
        turn: &mut First<'_>,
    ) -> RedisResult<Option<Hold>> {
        let n = share.rules.quotas[0].limit;
        let pause = PAUSE_MS.0 + RandomState::new().hash_one(0) % PAUSE_MS.1;
        let mut does = {
            let state = &mut *locked(&queue.state);
            state.due = self.now() + pause;
            state.way.asks(self.now(), n, state.held)
        };
        if does == Does::Look {
            let others = self.others(queue).await;
            does = locked(&queue.state).way.looked(self.now(), others);
        }
        let rules = if does == Does::GiveWay { self.rules(n.saturating_sub(1)) } else { share.rules.clone() };
        let mut place = Place::new(self.ttl.as_millis() as u64, self.now());
        let (held, answer) = self.asker.take(vec![Share { rules, ..share.clone() }]).await;
        let answer = answer?;
        if answer.limited {
            return Ok(None);
        }
        place.happens(taken(&answer), self.now());
        if let Some(&[row]) = answer.rows[0].as_deref() {
            let state = &mut *locked(&queue.state);
            state.held += 1;
            state.way.taken(self.now(), state.held, row.limit.saturating_sub(row.remaining));
            turn.is_full = row.remaining == 0;
        }
        let units = Mutex::new(Units { place, held: vec![held], sent: Vec::new() });
        let (places, share, queue, ended) = (self.clone(), share.clone(), queue.clone(), Notify::new());
        let kept = Arc::new(Kept { places, share, queue, units, ended });
        // Without timers a place in memory is not renewed.
        let keeper = self.asker.runtime().map(|runtime| runtime.spawn(kept.clone().keep()));
        Ok(Some(Hold { kept: Some(kept), keeper }))
    }

    /// Leaves a mark by which others see that somebody waits, unless there is one.
    async fn mark(&self, queue: &Queue) {
        let now = self.now();
        if locked(&queue.state).mark.as_ref().is_none_or(|(at, _)| now >= at + MARK_MS / 2) {
            let (mark, _) = self.asker.take(vec![queue.mark.clone()]).await;
            // The one before goes back.
            let before = locked(&queue.state).mark.replace((now, mark));
            drop(before);
        }
    }

    /// How many other processes wait; 0 if it is not known.
    async fn others(&self, queue: &Queue) -> i64 {
        let now = self.now();
        let own = locked(&queue.state).mark.as_ref().is_some_and(|(at, _)| now < at + MARK_MS);
        let looked = self.asker.peek(std::slice::from_ref(&queue.mark)).await;
        looked.map_or(0, |rows| (rows[0][0].limit - rows[0][0].remaining) as i64 - i64::from(own))
    }

    fn rules(&self, n: u64) -> Arc<Rules> {
        let quotas = vec![Quota::new(n, self.ttl)];
        Arc::new(Rules { algorithm: Algorithm::Log, quotas, ttl: Duration::ZERO, units: 0 })
    }

    fn now(&self) -> u64 {
        self.asker.now().as_millis() as u64
    }
}

/// A place that is held, which a task renews.
struct Kept {
    places: Places,
    share: Share,
    queue: Arc<Queue>,
    units: Mutex<Units>,
    /// Wakes the task when the block has ended.
    ended: Notify,
}

struct Units {
    place: Place,
    /// The requests that have taken a unit for it, the oldest first.
    held: Vec<Held>,
    /// What goes back, on its way to Redis.
    sent: Vec<JoinHandle<()>>,
}

impl Kept {
    /// Tells the place of an event, and gives back what it says. Returns the request for another unit, if it is to be renewed.
    fn happens(&self, event: Event, by: Option<Held>) -> Option<Renewal> {
        let (mut is_late, mut renewal) = (false, None);
        {
            let Units { place, held, sent } = &mut *locked(&self.units);
            held.extend(by);
            for say in place.happens(event, self.places.now()) {
                match say {
                    Say::Take => {
                        renewal = Some(Share { rules: self.places.rules(MAX_LIMIT), ..self.share.clone() });
                    }
                    Say::GiveBackOld => sent.extend(held.remove(0).give_back()),
                    Say::GiveBackNew => sent.extend(held.pop().and_then(|held| held.give_back())),
                    Say::Late => is_late = true,
                }
            }
            // A unit that is neither held nor given back leaves by itself.
            let left = usize::from(place.state() != State::Over);
            held.drain(..held.len().saturating_sub(left)).for_each(|held| held.keep());
        }
        if is_late && let Some(tell) = &self.places.on_late {
            // The place goes on though the hook may panic.
            let _ = catch_unwind(AssertUnwindSafe(|| tell(&self.share.key)));
        }
        renewal.map(|share| -> Renewal { Box::pin(self.places.asker.take(vec![share])) })
    }

    fn place(&self) -> Place {
        locked(&self.units).place.clone()
    }

    /// Renews the place until it is over and Redis has it back.
    async fn keep(self: Arc<Self>) {
        let mut renewal: Renewal = Box::pin(pending());
        while self.place().state() != State::Over {
            let left = self.place().due().map(|due| due.saturating_sub(self.places.now()));
            let next = tokio::select! {
                biased;
                (by, answer) = &mut renewal => {
                    renewal = Box::pin(pending());
                    match answer {
                        Ok(answer) if !answer.limited => self.happens(taken(&answer), Some(by)),
                        _ => self.happens(Event::Failed, None),
                    }
                }
                () = self.ended.notified() => None,
                () = sleep(Duration::from_millis(left.unwrap_or_default())), if left.is_some() => {
                    self.happens(Event::Tick, None)
                }
            };
            renewal = next.unwrap_or(renewal);
        }
        let sent = mem::take(&mut locked(&self.units).sent);
        for task in sent {
            let _ = task.await;
        }
        self.freed();
    }

    /// The first who waits asks at once.
    fn freed(&self) {
        let state = &mut *locked(&self.queue.state);
        state.held -= 1;
        state.way.ended(self.places.now());
        self.queue.freed.notify_one();
    }
}

/// The event that a unit was taken.
fn taken(answer: &Answer) -> Event {
    let at = answer.at.unwrap_or(UNIX_EPOCH).duration_since(UNIX_EPOCH).unwrap_or_default();
    Event::Taken { at: at.as_millis() as u64 }
}

/// Those of a process who wait for a place of a key by the same n and time, and the places that it holds.
struct Queue {
    /// What others see if somebody waits here.
    mark: Share,
    /// Its one permit is that of the first, who asks for all.
    polls: Semaphore,
    /// A place went back, or may be free.
    freed: Notify,
    state: Mutex<Waiting>,
}

#[derive(Default)]
struct Waiting {
    way: Way,
    /// How many places are held here.
    held: u64,
    /// When the first asks next.
    due: u64,
    waiters: usize,
    /// The unit by which others see that somebody waits, and when it was asked for. It goes back when it is dropped.
    mark: Option<(u64, Held)>,
}

/// Who may be the first. When it leaves, the next asks at once, unless it is known that no place is free.
struct First<'a> {
    queue: &'a Queue,
    permit: Option<SemaphorePermit<'a>>,
    is_full: bool,
}

impl Drop for First<'_> {
    fn drop(&mut self) {
        if self.permit.is_some() && !self.is_full {
            self.queue.freed.notify_one();
        }
    }
}

/// Somebody who waits.
struct Waiter<'a>(&'a Queue);

impl Waiter<'_> {
    fn new(queue: &Queue) -> Waiter<'_> {
        locked(&queue.state).waiters += 1;
        Waiter(queue)
    }
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        let mark = {
            let state = &mut *locked(&self.0.state);
            state.waiters -= 1;
            if state.waiters == 0 { state.mark.take() } else { None }
        };
        drop(mark);
    }
}

/// A place that is held, until it is released or dropped.
#[must_use = "the place is given back when this is dropped"]
pub struct Hold {
    /// `None` if the block runs without a place, since Redis is away.
    kept: Option<Arc<Kept>>,
    keeper: Option<JoinHandle<()>>,
}

impl Hold {
    pub(super) fn without_place() -> Hold {
        Hold { kept: None, keeper: None }
    }

    /// Gives the place back, as dropping does, and waits until that is done.
    pub async fn release(mut self) {
        self.end();
        if let Some(keeper) = &mut self.keeper {
            let _ = keeper.await;
        }
    }

    fn end(&self) {
        if let Some(kept) = &self.kept {
            kept.happens(Event::End, None);
            kept.ended.notify_one();
        }
    }

    /// Whether the place was ever not renewed in time: others may have it since.
    #[must_use]
    pub fn is_late(&self) -> bool {
        self.kept.as_ref().is_some_and(|kept| kept.place().is_late(kept.places.now()))
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.end();
        if let (Some(kept), None) = (&self.kept, &self.keeper) {
            kept.freed();
        }
    }
}

impl fmt::Debug for Hold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hold").field("is_late", &self.is_late()).finish_non_exhaustive()
    }
}
