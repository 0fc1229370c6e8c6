//! Places in flight: at most n blocks of code at work at once.

use std::collections::HashMap;
use std::fmt;
use std::future::pending;
use std::hash::{BuildHasher, RandomState};
use std::pin::Pin;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use redis::RedisResult;
use tokio::sync::{Semaphore, oneshot};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

use super::asker::{Asker, Held};
use crate::commands::{Algorithm, Clock, MAX_LIMIT, Quota};
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
/// [`lasting`](Places::lasting), so the places of a process that dies are free again within that time.
///
/// At most `n` are at work, except holders that could not renew for `lasting`, of which [`on_late`](Places::on_late) is
/// told, and after `FLUSHALL`, a `DEL` of the key, lost writes of a server or a step forward of its clock. A place whose
/// reply was lost is free again when `lasting` is over. There is no queue. With `n` of 1 it is no lock: nothing stops a holder that is late.
///
/// Clones share connections. All who use a key must use the same `lasting`; `n` may change at any time.
#[derive(Clone)]
#[must_use]
pub struct Places {
    lasting: Duration,
    timeout: Duration,
    on_late: Option<Arc<OnLate>>,
    queues: Arc<Queues>,
    asker: Asker,
}

/// Those who wait in this process, by the key, and by `n` and `lasting`.
type Queues = Mutex<HashMap<(Arc<[u8]>, Quota), Arc<Queue>>>;
type Renewal = Pin<Box<dyn Future<Output = (Held, RedisResult<Answer>)> + Send>>;
type OnLate = dyn Fn(&[u8]) + Send + Sync;

impl fmt::Debug for Places {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut fields = f.debug_struct("Places");
        fields.field("lasting", &self.lasting).field("timeout", &self.timeout).finish_non_exhaustive()
    }
}

impl Places {
    /// Places that last for 30 seconds unless they are renewed. If none is free, [`hold`](Places::hold) does not wait.
    pub fn new(client: impl Into<Redis>) -> Places {
        let (asker, lasting) = (Asker::new(client.into()), Duration::from_secs(30));
        Places { lasting, timeout: Duration::ZERO, on_late: None, queues: Arc::default(), asker }
    }

    /// How long a place lasts without being renewed, because its process died or cannot reach Redis: at least 100 ms.
    ///
    /// # Panics
    ///
    /// If it is not 100 ms to 3650 days.
    pub fn lasting(self, lasting: Duration) -> Places {
        let is_valid = lasting >= LEAST && Quota::new(0, lasting).check().is_ok();
        assert!(is_valid, "a place lasts from 100 ms to 3650 days");
        Places { lasting, ..self }
    }

    /// How long to wait for a place. Of those who wait for a key by this and its clones, one tries at random times: within 50 ms
    /// at first, then ever later, up to a second. When a place of theirs goes back, one tries at once.
    pub fn timeout(self, timeout: Duration) -> Places {
        Places { timeout, ..self }
    }

    /// Gets the key of a place that was not renewed in time, so that others may have it. It is called once for a place, in a
    /// task of its own.
    pub fn on_late(self, tell: impl Fn(&[u8]) + Send + Sync + 'static) -> Places {
        Places { on_late: Some(Arc::new(tell)), ..self }
    }

    /// Decides by this clock instead of those of the server and of this process. Tests use it to move time.
    pub fn clock(self, now: impl Fn() -> SystemTime + Send + Sync + 'static) -> Places {
        Places { asker: self.asker.with(|settings| settings.clock = Clock::new(now)), ..self }
    }

    /// Takes one of `n` places. Returns `None` if all are taken. A future that is dropped takes nothing.
    ///
    /// # Errors
    ///
    /// If the server replies with an error, or is silent for the [timeout](Redis::timeout). Fails at once while it is away.
    ///
    /// # Panics
    ///
    /// If there is no tokio runtime.
    pub async fn hold(&self, key: impl AsRef<[u8]>, n: u64) -> RedisResult<Option<Hold>> {
        let share = Share { key: key.as_ref().into(), rules: self.rules(n), cost: 1 };
        let (began, mut longest) = (Instant::now(), PAUSES.0);
        let hold = self.try_to_hold(&share).await?;
        if hold.is_some() || self.timeout.is_zero() {
            return Ok(hold);
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
        let mut place = Place::new(self.lasting.as_millis() as u64, self.now());
        let (held, answer) = self.asker.take(vec![share.clone()]).await;
        let answer = answer?;
        if answer.limited {
            return Ok(None);
        }
        place.happens(taken(&answer), self.now());
        let ((end, ended), place) = (oneshot::channel(), Arc::new(Mutex::new(place)));
        let keeper = tokio::spawn(self.clone().keep((share.clone(), place.clone(), held), ended));
        Ok(Some(Hold { end, keeper, place, asker: self.asker.clone() }))
    }

    fn rules(&self, n: u64) -> Arc<Rules> {
        let quotas = vec![Quota::new(n, self.lasting)];
        Arc::new(Rules { algorithm: Algorithm::Log, quotas, lease: Duration::ZERO, units: 0 })
    }

    fn now(&self) -> u64 {
        self.asker.now().as_millis() as u64
    }

    /// Renews a place until its [`Hold`] is dropped, then gives it back.
    async fn keep(
        self,
        (share, place, held): (Share, Arc<Mutex<Place>>, Held),
        mut ended: oneshot::Receiver<()>,
    ) {
        // The requests that have taken a unit for it, the oldest first.
        let mut held = vec![held];
        let (mut renewal, mut sent): (Renewal, _) = (Box::pin(pending()), Vec::new());
        let state = || locked(&place).state();
        while state() != State::Over {
            let left = locked(&place).due().map(|due| due.saturating_sub(self.now()));
            let event = tokio::select! {
                biased;
                (by, answer) = &mut renewal => {
                    renewal = Box::pin(pending());
                    match answer {
                        Ok(answer) if !answer.limited => {
                            held.push(by);
                            taken(&answer)
                        }
                        _ => Event::Failed,
                    }
                }
                _ = &mut ended, if state() != State::Ending => Event::End,
                () = sleep(Duration::from_millis(left.unwrap_or_default())), if left.is_some() => Event::Tick,
            };
            sent.clear();
            let says = locked(&place).happens(event, self.now());
            for say in says {
                match say {
                    Say::Take => {
                        let share = Share { rules: self.rules(MAX_LIMIT), ..share.clone() };
                        renewal = Box::pin(self.asker.take(vec![share]));
                    }
                    Say::GiveBackOld => sent.extend(held.remove(0).give_back()),
                    Say::GiveBackNew => sent.extend(held.pop().and_then(|held| held.give_back())),
                    Say::Late => {
                        if let Some(tell) = self.on_late.clone() {
                            let key = share.key.clone();
                            // The place is kept though the hook may panic.
                            tokio::spawn(async move { tell(&key) });
                        }
                    }
                }
            }
            if state() == State::Held {
                // What is not given back leaves by itself.
                while held.len() > 1 {
                    held.remove(0).keep();
                }
            }
        }
        held.iter_mut().for_each(Held::keep);
        // `release` returns when Redis has the place back.
        for task in sent {
            let _ = task.await;
        }
        if let Some(queue) = locked(&self.queues).get(&Queue::name(&share))
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
#[derive(Debug)]
#[must_use = "the place is given back when this is dropped"]
pub struct Hold {
    end: oneshot::Sender<()>,
    keeper: JoinHandle<()>,
    place: Arc<Mutex<Place>>,
    asker: Asker,
}

impl Hold {
    /// Gives the place back, as dropping does, and waits until that is done.
    pub async fn release(self) {
        drop(self.end);
        let _ = self.keeper.await;
    }

    /// Whether the place was ever not renewed in time: others may have it since.
    #[must_use]
    pub fn is_late(&self) -> bool {
        locked(&self.place).is_late(self.asker.now().as_millis() as u64)
    }
}
