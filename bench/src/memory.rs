//! Measures the memory of logs and keys.

use anyhow::{Context, Result};

use crate::server::{Server, clock_ms, flush, info, send_all};

/// Sorted random times. For the same seed, they differ only by the time of day.
fn times_at_random(now_ms: u64, span_ms: u64, count: usize, seed: u64) -> Vec<u64> {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut times: Vec<u64> = (0..count).map(|_| now_ms - random.u64(..span_ms)).collect();
    times.sort_unstable();
    times
}

/// used_memory per key, for keys created by the commands.
pub fn bytes_of_each(
    server: &Server,
    keys: usize,
    commands: impl FnMut(usize) -> Vec<String>,
) -> Result<f64> {
    // A new connection for each measurement, since the buffers of a busy one are large.
    let used_memory = || -> Result<f64> {
        Ok(info(&mut server.connect()?, "used_memory")?.context("no used_memory")?.parse()?)
    };
    flush(&mut server.connect()?)?;
    let before = used_memory()?;
    send_all(&mut server.connect()?, (0..keys).flat_map(commands))?;
    Ok((used_memory()? - before) / keys as f64)
}

/// The name of a key, of 15 bytes.
pub fn name(key: usize) -> String {
    format!("key:{key:011}")
}

/// Bytes per key of `command` with this number of windows.
pub fn bytes_a_key(server: &Server, command: &str, windows: usize, keys: usize) -> Result<f64> {
    let tiers = ["100 30d", "50 1d", "10 1h"][..windows].join(" ");
    bytes_of_each(server, keys, |key| vec![format!("{command} {} {tiers}", name(key))])
}

/// Bytes per key of RL.LOG with this number of requests, at random over the last minute.
pub fn bytes_of_requests(server: &Server, requests: usize, keys: usize) -> Result<f64> {
    let now_ms = clock_ms(&mut server.connect()?)?;
    bytes_of_each(server, keys, |key| {
        let times = times_at_random(now_ms, 60_000, requests, key as u64);
        let add = |time| format!("RL.LOG {} 9007199254740991 1h AT {time}", name(key));
        times.into_iter().map(add).collect()
    })
}
