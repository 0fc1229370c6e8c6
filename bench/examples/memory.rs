//! `make bench-memory`: what keys in memory cost, without a server: as many as there are by default, and a million.

use std::env;
use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};

use redis_rl_core::memory::Memory;

const KEYS: [usize; 2] = [100_000, 1_000_000];
const NOW: u64 = 1_700_000_000_000;

/// Bytes of this process in memory.
fn resident() -> usize {
    let pages = fs::read_to_string("/proc/self/statm").expect("Linux");
    4096 * pages.split(' ').nth(1).and_then(|pages| pages.parse::<usize>().ok()).expect("pages")
}

/// How often a command ran a second, and the longest that it took.
struct Ran {
    a_second: f64,
    longest: Duration,
}

/// Runs a command on so many keys, in an order in which no cache helps, whose names begin alike.
fn on_each_key(memory: &mut Memory, now: u64, command: &str, keys: usize, prefix: &str) -> Ran {
    let (begin, mut longest) = (Instant::now(), Duration::ZERO);
    for key in 0..keys {
        let name = format!("{prefix}:{:09}", key * 617_321 % keys);
        let call = Instant::now();
        memory.call(now, &[command, &name, "100", "1m"]);
        longest = longest.max(call.elapsed());
    }
    let a_second = (keys as f64 / begin.elapsed().as_secs_f64() / 1000.0).round() * 1000.0;
    Ran { a_second, longest }
}

fn measure(command: &str, keys: usize) {
    let (mut memory, before) = (Memory::new(keys), resident());
    let new = on_each_key(&mut memory, NOW, command, keys, "limit");
    let bytes = (resident() - before) / memory.len();
    let known = on_each_key(&mut memory, NOW + 1, command, keys, "limit");
    // One is dropped for each new one.
    let evicted = on_each_key(&mut memory, NOW + 2, command, keys, "other");
    // All have expired, and are dropped while they are made anew.
    let expired = on_each_key(&mut memory, NOW + 600_000, command, keys, "other");
    let flush = Instant::now();
    memory.call(NOW + 600_000, &["FLUSHALL"]);
    let flush = flush.elapsed();
    let flushed = on_each_key(&mut memory, NOW + 600_000, command, keys, "limit");
    print!("| {command} | {keys} | {bytes} |");
    for Ran { a_second, longest } in [new, known, evicted, expired, flushed] {
        print!(" {a_second} ({longest:.1?}) |");
    }
    println!(" {flush:.1?} |");
}

fn main() {
    let args: Vec<String> = env::args().collect();
    if let [_, command, keys] = &args[..] {
        return measure(command, keys.parse().expect("a number"));
    }
    println!("Calls a second, and in brackets the longest of them:\n");
    println!("| | keys | bytes of a key | new | known | evicting | expired | after FLUSHALL | FLUSHALL |");
    println!("| --- | --- | --- | --- | --- | --- | --- | --- | --- |");
    for keys in KEYS {
        for command in ["RL.FIXED", "RL.SLIDING", "RL.LOG", "RL.BUCKET"] {
            // In a process of its own: the memory of one is not given back before the next.
            let program = env::current_exe().expect("this program");
            let status = Command::new(program).args([command, &keys.to_string()]).status().expect("it runs");
            assert!(status.success());
        }
    }
}
