//! Places in flight: at most n blocks of code at work at once.

use std::collections::HashMap;
use std::fmt;
use std::future::pending;
use std::hash::{BuildHasher, RandomState};
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::{Duration, UNIX_EPOCH};

use redis::{ErrorKind, RedisResult};
use tokio::sync::{Notify, Semaphore};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

use super::asker::{Asker, Held};
use crate::commands::{Algorithm, Clock, MAX_LIMIT, NO_TIMERS, Quota, has_timers};
use crate::keys::place::{Event, Place, Say, State};
use crate::keys::{Answer, Rules, Share};
use crate::lines::Redis;
use crate::locked;

/// In less time a place might not be renewed.
const LEAST: Duration = Duration::from_millis(100);

/// The longest pause before the second try, and before any.
const PAUSES: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));

/// Of so many places given back, one wakes nobody, so that waiters of other processes find one free.
const ONE_FOR_OTHERS: u32 = 8;

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
    queues: Arc<Queues>,
    asker: Asker,
}

/// Those who wait in this process, by the key, and by `n` and `ttl`.
type Queues = Mutex<HashMap<(Arc<[u8]>, Quota), Arc<Queue>>>;
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

    /// How long to wait for a place. Of those who wait for a key by this and its clones, one tries at random times: within 50 ms
    /// at first, then ever later, up to a second. When a place of theirs goes back, one tries at once.
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
        let share = Share { key: key.as_ref().into(), rules: self.rules(n), cost: 1 };
        let (began, mut longest) = (Instant::now(), PAUSES.0);
        // Who comes while others wait stands behind them: else a process that holds in a loop takes each place again.
        let stands_behind =
            !self.timeout.is_zero() && locked(&self.queues).contains_key(&Queue::name(&share));
        if !stands_behind {
            let hold = self.try_to_hold(&share).await?;
            if hold.is_some() || self.timeout.is_zero() {
                return Ok(hold);
            }
        }
        if !has_timers() {
            return Err((ErrorKind::Client, NO_TIMERS).into());
        }
        let waiter = Waiter::new(&self.queues, &share);
        let queue = &waiter.queue;
        let mut polls = queue.polls.try_acquire().ok();
        loop {
            let left = self.timeout.saturating_sub(began.elapsed());
            let waiting = Arc::strong_count(queue) as u32;
            let pause = match polls {
                // The more wait, the more often, or a process with places in use would leave none to others.
                Some(_) => longest.min(PAUSES.1 / waiting).max(PAUSES.0),
                // Others sleep, but the one who polls may be a future that its owner leaves alone.
                None => PAUSES.1 * waiting,
            };
            let random = f64::from(RandomState::new().hash_one(0) as u32) / f64::from(u32::MAX);
            let pause = pause.mul_f64(0.5 + 0.5 * random).min(left);
            let freed = tokio::select! {
                biased;
                freed = queue.freed.acquire() => freed.ok(),
                permit = queue.polls.acquire(), if polls.is_none() => {
                    polls = permit.ok();
                    None
                }
                () = sleep(pause) => None,
            };
            let hold = self.try_to_hold(&share).await?;
            if let Some(freed) = freed {
                freed.forget();
            }
            if hold.is_some() || began.elapsed() >= self.timeout {
                return Ok(hold);
            }
            longest = (longest * 2).min(PAUSES.1);
        }
    }

    async fn try_to_hold(&self, share: &Share) -> RedisResult<Option<Hold>> {
        let mut place = Place::new(self.ttl.as_millis() as u64, self.now());
        let (held, answer) = self.asker.take(vec![share.clone()]).await;
        let answer = answer?;
        if answer.limited {
            return Ok(None);
        }
        place.happens(taken(&answer), self.now());
        let units = Mutex::new(Units { place, held: vec![held], sent: Vec::new() });
        let (places, share, ended) = (self.clone(), share.clone(), Notify::new());
        let kept = Arc::new(Kept { places, share, units, ended });
        // Without timers a place in memory is not renewed.
        let keeper = self.asker.runtime().map(|runtime| runtime.spawn(kept.clone().keep()));
        Ok(Some(Hold { kept: Some(kept), keeper }))
    }

    fn rules(&self, n: u64) -> Arc<Rules> {
        let quotas = vec![Quota::new(n, self.ttl)];
        Arc::new(Rules { algorithm: Algorithm::Log, quotas, lease: Duration::ZERO, units: 0 })
    }

    fn now(&self) -> u64 {
        self.asker.now().as_millis() as u64
    }
}

/// A place that is held, which a task renews.
struct Kept {
    places: Places,
    share: Share,
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
            held.drain(..held.len().saturating_sub(left)).for_each(|mut held| held.keep());
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

    /// Wakes one who waits.
    fn freed(&self) {
        if let Some(queue) = locked(&self.places.queues).get(&Queue::name(&self.share))
            && queue.given.fetch_add(1, Relaxed) % ONE_FOR_OTHERS != ONE_FOR_OTHERS - 1
            && queue.freed.available_permits() < Arc::strong_count(queue)
        {
            queue.freed.add_permits(1);
        }
    }
}

/// The event that a unit was taken.
fn taken(answer: &Answer) -> Event {
    let at = answer.at.unwrap_or(UNIX_EPOCH).duration_since(UNIX_EPOCH).unwrap_or_default();
    Event::Taken { at: at.as_millis() as u64 }
}

/// What those who wait for a place of a key ask by. A permit that is dropped goes to the next of them.
struct Queue {
    /// Its one permit is that of who polls.
    polls: Semaphore,
    /// A permit for each place that went back: who gets it asks once, and forgets it when that is answered.
    freed: Semaphore,
    /// How many went back.
    given: AtomicU32,
}

impl Queue {
    fn name(share: &Share) -> (Arc<[u8]>, Quota) {
        (share.key.clone(), share.rules.quotas[0])
    }
}

/// Somebody who waits.
struct Waiter<'a> {
    queues: &'a Queues,
    share: &'a Share,
    queue: Arc<Queue>,
}

impl Waiter<'_> {
    fn new<'a>(queues: &'a Queues, share: &'a Share) -> Waiter<'a> {
        let new = || {
            Arc::new(Queue { polls: Semaphore::new(1), freed: Semaphore::new(0), given: AtomicU32::new(0) })
        };
        let queue = locked(queues).entry(Queue::name(share)).or_insert_with(new).clone();
        Waiter { queues, share, queue }
    }
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        let mut queues = locked(self.queues);
        // This one's and that of the map.
        if Arc::strong_count(&self.queue) == 2 {
            queues.remove(&Queue::name(self.share));
        }
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
