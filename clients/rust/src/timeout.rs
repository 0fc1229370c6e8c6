//! How long Redis is waited for.

use std::future::Future;
use std::io;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use redis::{RedisError, RedisResult};
use tokio::time::{Instant, timeout};

/// Turns of the runtime in a timeout.
const TURNS: u32 = 10;
/// Turns that a request waits at most, while Redis answers others.
const MOST_TURNS: u32 = 10 * TURNS;

/// A timeout that is Redis's time, not this process's.
///
/// A timer that fires says nothing about Redis if the runtime was busy: the reply may have arrived unread, and the
/// command may not have been sent. So the wait is divided into turns, in each of which the runtime reads and writes. A
/// turn that ends late shows that the runtime was busy; the next one is as long as it was late.
#[derive(Debug)]
pub(crate) struct ServerTimeout {
    timeout: Duration,
    /// Replies so far. Redis is not away while it answers others: a burst takes a while to be sent.
    replies: AtomicU64,
}

impl ServerTimeout {
    /// # Panics
    ///
    /// If it is 0: then no reply could come in time.
    pub fn new(timeout: Duration) -> ServerTimeout {
        assert!(!timeout.is_zero(), "a timeout must be above 0");
        ServerTimeout { timeout, replies: AtomicU64::new(0) }
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
        let (mut late, mut silent) = (Duration::ZERO, 0);
        for _ in 0..MOST_TURNS {
            let replies = self.replies.load(Ordering::Relaxed);
            let (start, turn) = (Instant::now(), late.max(self.timeout / TURNS));
            if let Ok(reply) = timeout(turn, reply.as_mut()).await {
                self.replies.fetch_add(u64::from(reply.is_ok()), Ordering::Relaxed);
                return Some(reply);
            }
            late = start.elapsed().saturating_sub(turn);
            silent = if self.replies.load(Ordering::Relaxed) == replies { silent + 1 } else { 0 };
            if silent == TURNS {
                break;
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use std::future;
    use std::sync::Arc;

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
}
