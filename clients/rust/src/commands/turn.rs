//! Who of this process asks for a key, while others wait for it in order.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex};
use std::task::{Wake, Waker};
use std::thread::{self, Thread};
use std::time::Duration;

#[cfg(feature = "tokio-comp")]
use {
    super::clock::{NO_TIMERS, has_timers},
    redis::{ErrorKind, RedisResult},
    std::{future::poll_fn, task::Poll},
    tokio::time::sleep_until,
};

use super::clock::Instant;
use crate::locked;

/// Who is first and has not asked for so long after it wanted to may be a future that its owner leaves alone: the next goes on.
const GRACE: Duration = Duration::from_secs(1);

/// The database of a connection, and a command that names key, algorithm and quotas.
pub(super) type Name = (i64, Vec<u8>);

static QUEUES: Mutex<BTreeMap<Name, Queue>> = Mutex::new(BTreeMap::new());

/// Those who wait for a key, threads and futures alike. The first alone asks.
struct Queue {
    newest: u64,
    /// When the first asks again.
    due: Instant,
    /// Each with what wakes it.
    standing: VecDeque<(u64, Option<Waker>)>,
}

/// A place among those who wait for a key. Dropping it lets the next go on.
pub(super) struct Turn {
    name: Name,
    number: u64,
}

impl Turn {
    pub fn stand(name: &Name) -> Turn {
        let mut queues = locked(&QUEUES);
        let new = || Queue { newest: 0, due: Instant::now(), standing: VecDeque::new() };
        let queue = queues.entry(name.clone()).or_insert_with(new);
        queue.newest += 1;
        queue.standing.push_back((queue.newest, None));
        Turn { name: name.clone(), number: queue.newest }
    }

    /// A place behind others, if others wait.
    pub fn behind_others(name: &Name) -> Option<Turn> {
        let others_wait = locked(&QUEUES).contains_key(name);
        others_wait.then(|| Turn::stand(name))
    }

    /// Does something with the queue, the place in it, and the time.
    fn with<T>(&self, act: impl FnOnce(&mut Queue, usize, Instant) -> T) -> T {
        let now = Instant::now();
        let mut queues = locked(&QUEUES);
        let queue = queues.get_mut(&self.name).expect("a queue lasts as long as those who stand in it");
        let place = queue.standing.iter().position(|(number, _)| *number == self.number);
        act(queue, place.expect("who stands in a queue is there until it leaves"), now)
    }

    /// `None` if it may ask: it is first, or its patience is over. Else it is woken by then, or looks again at this time.
    pub fn look(&self, patience: Option<Instant>, waker: &Waker) -> Option<Instant> {
        self.with(|queue, place, now| {
            if place == 0 || patience.is_some_and(|end| end <= now) {
                return None;
            }
            let over = queue.due + GRACE;
            if over <= now {
                let this = queue.standing.remove(place)?;
                queue.standing.push_front(this);
                queue.due = now;
                return None;
            }
            queue.standing[place].1 = Some(waker.clone());
            Some(patience.map_or(over, |end| end.min(over)))
        })
    }

    /// Whether it is first, and so the one who sleeps for this long and asks again.
    pub fn leads(&self, pause: Duration) -> bool {
        self.with(|queue, place, now| {
            if place == 0 {
                queue.due = now + pause;
            }
            place == 0
        })
    }

    /// Keeps this thread until it may ask.
    pub fn wait(&self, patience: Option<Instant>) {
        let waker = Waker::from(Arc::new(Parked(thread::current())));
        while let Some(until) = self.look(patience, &waker) {
            thread::park_timeout(until.saturating_duration_since(Instant::now()));
        }
    }

    /// Waits until it may ask.
    #[cfg(feature = "tokio-comp")]
    pub async fn come(&self, patience: Option<Instant>) -> RedisResult<()> {
        let mut timer = None;
        poll_fn(|context| {
            loop {
                let Some(until) = self.look(patience, context.waker()) else { return Poll::Ready(Ok(())) };
                if !has_timers() {
                    return Poll::Ready(Err((ErrorKind::Client, NO_TIMERS).into()));
                }
                let timer = timer.get_or_insert_with(|| Box::pin(sleep_until(until)));
                timer.as_mut().reset(until);
                if timer.as_mut().poll(context).is_pending() {
                    return Poll::Pending;
                }
            }
        })
        .await
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let next = self.with(|queue, place, now| {
            queue.standing.remove(place);
            if place > 0 {
                return None;
            }
            queue.due = now;
            queue.standing.front_mut().and_then(|(_, waker)| waker.take())
        });
        let mut queues = locked(&QUEUES);
        if queues.get(&self.name).is_some_and(|queue| queue.standing.is_empty()) {
            queues.remove(&self.name);
        }
        drop(queues);
        next.into_iter().for_each(Waker::wake);
    }
}

/// A thread that waits.
struct Parked(Thread);

impl Wake for Parked {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}
