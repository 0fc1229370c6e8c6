//! Waits for a condition.

use std::thread;
use std::time::{Duration, Instant};

/// The time limit for every condition that is waited for.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Waits until `condition` holds; panics after [`PATIENCE`].
#[track_caller]
pub fn wait_for(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < deadline, "timed out waiting for {what}");
        thread::sleep(Duration::from_millis(2));
    }
}
