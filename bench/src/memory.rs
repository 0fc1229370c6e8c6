//! What logs and keys take in memory.

use anyhow::{Context, Result, ensure};
use redis::Connection;

use crate::server::{Server, clock_ms, info, send_all};

/// How requests are remembered, each with a time of its own.
#[derive(Clone, Copy, Debug)]
pub enum Keeping {
    /// By RL.LOG.
    Log,
    /// In a list of times in seconds, as `limits` does.
    List,
    /// In a sorted set, with a member for each.
    SortedSet,
}

impl Keeping {
    /// The command that adds a request; its number makes it another than those of the same millisecond.
    fn add(self, key: &str, number: usize, time_ms: u64) -> String {
        match self {
            Keeping::Log => format!("RL.LOG {key} 9007199254740991 1h AT {time_ms}"),
            Keeping::List => {
                let micros = time_ms % 1_000 * 1_000 + number as u64 % 1_000;
                format!("LPUSH {key} {}.{micros:06}", time_ms / 1_000)
            }
            Keeping::SortedSet => format!("ZADD {key} {time_ms} {time_ms}-{number}"),
        }
    }
}

/// MEMORY USAGE for each unit beyond the first, of `units` at random over the last `span_ms`: the
/// mean of several keys.
pub fn bytes_a_unit(
    connection: &mut Connection,
    keeping: Keeping,
    units: usize,
    span_ms: u64,
    keys: u64,
) -> Result<f64> {
    redis::cmd("FLUSHALL").exec(connection)?;
    let now_ms = clock_ms(connection)?;
    let mut bytes = 0;
    for seed in 0..keys {
        let times = times_at_random(now_ms, span_ms, units, seed);
        let requests = |key: &'static str, units| {
            times.iter().enumerate().take(units).map(move |(number, time)| keeping.add(key, number, *time))
        };
        redis::cmd("DEL").arg(&["one", "all"]).exec(connection)?;
        send_all(connection, requests("one", 1))?;
        send_all(connection, requests("all", units))?;
        bytes += usage(connection, "all")? - usage(connection, "one")?;
    }
    Ok(bytes as f64 / (keys * (units as u64 - 1)) as f64)
}

fn usage(connection: &mut Connection, key: &str) -> Result<i64> {
    // Of a list or a set, every element is looked at.
    Ok(redis::cmd("MEMORY").arg(&["USAGE", key, "SAMPLES", "0"]).query(connection)?)
}

/// In order, and the same for the same seed but for the time of day.
fn times_at_random(now_ms: u64, span_ms: u64, count: usize, seed: u64) -> Vec<u64> {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut times: Vec<u64> = (0..count).map(|_| now_ms - random.u64(..span_ms)).collect();
    times.sort_unstable();
    times
}

/// used_memory for each of so many keys that `command` makes.
pub fn bytes_a_key(server: &Server, command: &str, keys: usize) -> Result<f64> {
    // Each look by a connection of its own: the buffers of one that has sent much are large.
    let used_memory = || -> Result<f64> {
        Ok(info(&mut server.connect()?, "used_memory")?.context("no used_memory")?.parse()?)
    };
    redis::cmd("FLUSHALL").exec(&mut server.connect()?)?;
    let before = used_memory()?;
    send_all(&mut server.connect()?, (0..keys).map(|key| format!("{command} key:{key:012} 100 30d")))?;
    let after = used_memory()?;
    let made: usize = redis::cmd("DBSIZE").query(&mut server.connect()?)?;
    ensure!(made == keys, "{made} of {keys} keys are there");
    Ok((after - before) / keys as f64)
}
