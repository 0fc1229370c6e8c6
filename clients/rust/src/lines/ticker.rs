//! The timer that tells lines of ticks: one for all lines of a runtime that have the same timeout.

use std::mem;
use std::sync::Mutex;
use std::time::Duration;

use tokio::runtime::{Handle, Id};
use tokio::task::yield_now;
use tokio::time::sleep;

use super::line::TICKS;
use crate::locked;

/// How often the timer lets other tasks run before it tells a tick.
///
/// tokio runs the task of a timer ahead of thousands that are ready, and one of the last may be about to read a reply. Before
/// a line is late, a thread has run some 24,000 other tasks, or was idle and took tasks of busy threads.
const LAPS: u32 = 20;

/// Tells a line that a tick has passed, and returns whether more count.
type Tick = Box<dyn Fn() -> bool + Send>;
type Timer = (Id, Duration);

/// The timers that run, with their lines.
static TIMERS: Mutex<Vec<(Timer, Vec<Tick>)>> = Mutex::new(Vec::new());

/// Tells a line of ticks until no more count.
pub(super) fn start(runtime: &Handle, timeout: Duration, line: Tick) {
    let (timer, mut timers) = ((runtime.id(), timeout), locked(&TIMERS));
    if let Some((_, lines)) = timers.iter_mut().find(|(other, _)| *other == timer) {
        lines.push(line);
    } else {
        timers.push((timer, vec![line]));
        drop(timers);
        runtime.spawn(run(Running(timer)));
    }
}

/// Removes a timer when its runtime ends while lines wait for ticks.
struct Running(Timer);

impl Drop for Running {
    fn drop(&mut self) {
        locked(&TIMERS).retain(|(timer, _)| *timer != self.0);
    }
}

async fn run(timer: Running) {
    let length = (timer.0.1 / TICKS).max(Duration::from_micros(1));
    loop {
        // It sleeps anew after each tick, so a tick that comes late counts once.
        sleep(length).await;
        for _ in 0..LAPS {
            yield_now().await;
        }
        let told = {
            let mut timers = locked(&TIMERS);
            timers.iter_mut().find(|(other, _)| *other == timer.0).map(|(_, lines)| mem::take(lines))
        };
        let ticking: Vec<Tick> = told.unwrap_or_default().into_iter().filter(|tick| tick()).collect();
        let mut timers = locked(&TIMERS);
        let Some(place) = timers.iter().position(|(other, _)| *other == timer.0) else { return };
        timers[place].1.extend(ticking);
        if timers[place].1.is_empty() {
            timers.swap_remove(place);
            // Dropping it would remove the timer of a line that starts from now on.
            mem::forget(timer);
            return;
        }
    }
}
