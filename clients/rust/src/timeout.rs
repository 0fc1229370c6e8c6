//! How long Redis is waited for.

use std::future::Future;
use std::io;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use redis::{RedisError, RedisResult};
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep_until, timeout, timeout_at};

/// Turns of the runtime in a timeout.
const TURNS: u32 = 10;
/// Turns that a request waits at most, while Redis answers others.
const MOST_TURNS: u32 = 10 * TURNS;
/// The longest timeout, in place of any longer one: so no time overflows.
const LONGEST: Duration = Duration::from_secs(30 * 86_400);

/// A timeout that is Redis's time, not this process's.
///
/// A timer that fires says nothing about Redis if the runtime was busy: the reply may have arrived unread, and the
/// command may not have been sent. So the wait is divided into turns, in each of which the runtime reads and writes. A
/// turn that ends late shows that the runtime was busy; the next one is as long as it was late.
///
/// All requests share these turns, and one task counts them: timers of each of many thousand requests would keep the
/// runtime so busy that it reads no replies.
#[derive(Debug)]
pub(crate) struct ServerTimeout {
    timeout: Duration,
    turns: Arc<Mutex<Turns>>,
}

#[derive(Debug)]
struct Turns {
    length: Duration,
    /// The one that runs now.
    number: u64,
    ends: Instant,
    /// The one after the last reply. Redis is not away while it answers others: a burst takes a while to be sent.
    silent_from: u64,
    waiting: usize,
    counting: Option<AbortHandle>,
}

impl Turns {
    /// Begins the next turn if this one should have ended so long ago.
    fn go_on(&mut self, ago: Duration) {
        let now = Instant::now();
        if now >= self.ends + ago {
            self.number += 1;
            self.ends = now + self.length.max(now - self.ends);
        }
    }

    /// When this turn will have begun. A turn that should be over still takes a while.
    fn beginning(&self, number: u64) -> Instant {
        let others = u32::try_from(number - self.number).unwrap_or(u32::MAX).saturating_sub(1);
        self.ends.max(Instant::now() + self.length / TURNS) + self.length * others
    }
}

/// A request that waits.
struct Waiting(Arc<Mutex<Turns>>);

impl Waiting {
    /// With the first turn that is all its own.
    fn begin(turns: &Arc<Mutex<Turns>>) -> (Waiting, u64) {
        let mut state = locked(turns);
        state.waiting += 1;
        let is_counting = state.counting.as_ref().is_some_and(|task| !task.is_finished());
        if !is_counting {
            state.number += 1;
            state.ends = Instant::now() + state.length;
            state.counting = Some(tokio::spawn(count(turns.clone())).abort_handle());
        }
        (Waiting(turns.clone()), state.number + u64::from(is_counting))
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        locked(&self.0).waiting -= 1;
    }
}

fn locked(turns: &Mutex<Turns>) -> MutexGuard<'_, Turns> {
    turns.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Counts turns as long as a request waits.
async fn count(turns: Arc<Mutex<Turns>>) {
    loop {
        let (ends, length) = {
            let turns = locked(&turns);
            (turns.ends, turns.length)
        };
        sleep_until(ends).await;
        // A timer wakes its task ahead of thousands that are ready to run, and a reply may be read by one of the last.
        // What is woken on another thread is behind them. The application may have no such thread left: then it ends.
        let _ = timeout(length * TURNS, tokio::task::spawn_blocking(|| ())).await;
        let mut turns = locked(&turns);
        turns.go_on(Duration::ZERO);
        if turns.waiting == 0 {
            turns.counting = None;
            return;
        }
    }
}

impl ServerTimeout {
    /// # Panics
    ///
    /// If it is 0: then no reply could come in time.
    pub fn new(timeout: Duration) -> ServerTimeout {
        assert!(!timeout.is_zero(), "a timeout must be above 0");
        let timeout = timeout.min(LONGEST);
        let (length, ends) = (timeout / TURNS, Instant::now());
        let turns = Turns { length, number: 0, ends, silent_from: 0, waiting: 0, counting: None };
        ServerTimeout { timeout, turns: Arc::new(Mutex::new(turns)) }
    }

    pub fn duration(&self) -> Duration {
        self.timeout
    }

    /// What a request is told that was not answered.
    pub fn error(&self) -> RedisError {
        io::Error::new(io::ErrorKind::TimedOut, format!("no answer in {:?}", self.timeout)).into()
    }

    /// The reply; none if Redis sent none to anyone for the timeout.
    pub async fn wait<T>(&self, reply: impl Future<Output = RedisResult<T>>) -> Option<RedisResult<T>> {
        let mut reply = pin!(reply);
        let (_waiting, first) = Waiting::begin(&self.turns);
        loop {
            let until = {
                let mut turns = locked(&self.turns);
                // If the task that counts is on another runtime, which stands still.
                turns.go_on(self.timeout * TURNS);
                let silent_from = turns.silent_from.max(first);
                let last = (silent_from + u64::from(TURNS)).min(first + u64::from(MOST_TURNS));
                if turns.number >= last {
                    return None;
                }
                turns.beginning(last)
            };
            if let Ok(reply) = timeout_at(until, reply.as_mut()).await {
                if reply.is_ok() {
                    let mut turns = locked(&self.turns);
                    turns.silent_from = turns.number + 1;
                }
                return Some(reply);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Poll;
    use std::thread;

    use tokio::runtime::Builder;
    use tokio::time::{advance, sleep};

    use super::*;

    const TIMEOUT: Duration = Duration::from_millis(100);

    /// How long a request is waited for that is never answered.
    async fn given_up_after(timeout: &ServerTimeout) -> Duration {
        let start = Instant::now();
        assert!(timeout.wait(future::pending::<RedisResult<()>>()).await.is_none());
        start.elapsed()
    }

    fn assert_about(duration: Duration, expected: Duration) {
        let range = expected.mul_f64(0.95)..expected.mul_f64(1.3);
        assert!(range.contains(&duration), "{duration:?}, not {expected:?}");
    }

    // The clock of these tests goes on when all tasks wait, to the next timer, and by `advance`, as if they worked.

    #[tokio::test(start_paused = true)]
    async fn a_silent_server_is_given_up_after_the_timeout() {
        assert_about(given_up_after(&ServerTimeout::new(TIMEOUT)).await, TIMEOUT);
    }

    #[tokio::test]
    async fn a_timeout_may_be_as_long_as_durations_are() {
        let reply = ServerTimeout::new(Duration::MAX).wait(async { Ok(()) }).await;
        assert!(reply.expect("it was waited for").is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn a_time_in_which_the_runtime_was_busy_is_one_turn_and_is_caught_up() {
        let request = tokio::spawn(async { given_up_after(&ServerTimeout::new(TIMEOUT)).await });
        tokio::task::yield_now().await;
        let busy = 30 * TIMEOUT;
        advance(busy).await;
        assert_about(request.await.expect("no panic"), 2 * busy);
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_answers_others_is_waited_for_until_it_is_silent_or_ten_times_as_long() {
        let timeout = Arc::new(ServerTimeout::new(TIMEOUT));
        let others = timeout.clone();
        let answer_others = |times| {
            let others = others.clone();
            tokio::spawn(async move {
                for _ in 0..times {
                    let reply = async {
                        sleep(TIMEOUT / 2).await;
                        Ok(())
                    };
                    assert!(others.wait(reply).await.is_some());
                }
            })
        };
        let answered = answer_others(5);
        assert_about(given_up_after(&timeout).await, 7 * TIMEOUT / 2);
        answered.await.expect("no panic");

        let answered = answer_others(50);
        assert_about(given_up_after(&timeout).await, 10 * TIMEOUT);
        answered.abort();
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_that_waits_leaves_the_runtime_to_others() {
        let polls = AtomicUsize::new(0);
        let reply = future::poll_fn(|_| {
            polls.fetch_add(1, Ordering::Relaxed);
            Poll::<RedisResult<()>>::Pending
        });
        assert!(ServerTimeout::new(TIMEOUT).wait(reply).await.is_none());
        let polls = polls.into_inner();
        assert!(polls <= 4, "{polls}");
    }

    #[test]
    fn a_reply_that_is_read_behind_thousands_of_other_tasks_is_no_silence() {
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime");
        let (sender, receiver) = tokio::sync::oneshot::channel();
        let begun = Arc::new(std::sync::Barrier::new(2));
        let request = {
            let begun = begun.clone();
            runtime.spawn(async move {
                begun.wait();
                ServerTimeout::new(TIMEOUT).wait(async { Ok(receiver.await.is_ok()) }).await
            })
        };
        for _ in 0..1_500 {
            runtime.spawn(async { thread::sleep(TIMEOUT / 100) });
        }
        runtime.spawn(async move { sender.send(()) });
        begun.wait();
        let reply = runtime.block_on(request).expect("no panic");
        assert!(reply.expect("it was waited for").expect("no error"));
    }
}
