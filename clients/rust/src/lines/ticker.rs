//! The timer by which lines learn that time passes: one for all lines of a runtime with one timeout.

use std::mem;
use std::sync::{Mutex, Weak};
use std::time::Duration;

use tokio::runtime::{Handle, Id};
use tokio::task::yield_now;
use tokio::time::sleep;

use super::line::TICKS;
use crate::locked;

/// How often the timer lets other tasks run before it tells a tick.
///
/// A timer wakes its task ahead of thousands that are ready, and a reply may be read by one of the last. Before a line
/// is late, a thread has run some 24,000 others, or was idle and took what waited for busy threads.
const LAPS: u32 = 20;

/// A line that is told ticks while they count.
pub(super) trait Ticks: Send + Sync {
    /// A tick has passed. Tells whether more count.
    fn tick(&self) -> bool;
}

type Lines = Vec<Weak<dyn Ticks>>;
type Timer = (Id, Duration);

/// The lines of each timer that runs.
static TIMERS: Mutex<Vec<(Timer, Lines)>> = Mutex::new(Vec::new());

/// Tells a line ticks from now on, until no more count.
pub(super) fn start(runtime: &Handle, timeout: Duration, line: Weak<dyn Ticks>) {
    let (timer, mut timers) = ((runtime.id(), timeout), locked(&TIMERS));
    if let Some((_, lines)) = timers.iter_mut().find(|(other, _)| *other == timer) {
        lines.push(line);
    } else {
        timers.push((timer, vec![line]));
        drop(timers);
        runtime.spawn(run(Running(timer)));
    }
}

/// Its runtime may end while lines wait for ticks.
struct Running(Timer);

impl Drop for Running {
    fn drop(&mut self) {
        locked(&TIMERS).retain(|(timer, _)| *timer != self.0);
    }
}

async fn run(timer: Running) {
    let length = (timer.0.1 / TICKS).max(Duration::from_micros(1));
    loop {
        // From when the last one was told: one that comes late counts once.
        sleep(length).await;
        for _ in 0..LAPS {
            yield_now().await;
        }
        let told = {
            let mut timers = locked(&TIMERS);
            timers.iter_mut().find(|(other, _)| *other == timer.0).map(|(_, lines)| mem::take(lines))
        };
        let told = told.unwrap_or_default().into_iter();
        let ticking = told.filter(|line| line.upgrade().is_some_and(|line| line.tick())).collect::<Lines>();
        let mut timers = locked(&TIMERS);
        let Some(place) = timers.iter().position(|(other, _)| *other == timer.0) else { return };
        timers[place].1.extend(ticking);
        if timers[place].1.is_empty() {
            timers.swap_remove(place);
            // A line that starts from now on has another timer.
            mem::forget(timer);
            return;
        }
    }
}
