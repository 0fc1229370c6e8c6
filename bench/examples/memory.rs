//! `make bench-memory`: what a million keys in memory cost, without a server.

use std::env;
use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};

use redis_rl_core::memory::Memory;

const KEYS: usize = 1_000_000;
const NOW: u64 = 1_700_000_000_000;

/// Bytes of this process in memory.
fn resident() -> usize {
    let pages = fs::read_to_string("/proc/self/statm").expect("Linux");
    4096 * pages.split(' ').nth(1).and_then(|pages| pages.parse::<usize>().ok()).expect("pages")
}

/// Runs a command on each key, in an order in which no cache helps.
fn on_each_key(memory: &mut Memory, now: u64, command: &str) -> (Duration, Duration) {
    let (begin, mut longest) = (Instant::now(), Duration::ZERO);
    for key in 0..KEYS {
        let name = format!("limit:{:09}", key * 617_321 % KEYS);
        let call = Instant::now();
        memory.call(now, &[command, &name, "100", "1m"]);
        longest = longest.max(call.elapsed());
    }
    (begin.elapsed(), longest)
}

fn a_second(time: Duration) -> f64 {
    (KEYS as f64 / time.as_secs_f64() / 1000.0).round() * 1000.0
}

fn measure(command: &str) {
    let (mut memory, before) = (Memory::new(KEYS), resident());
    let (new, _) = on_each_key(&mut memory, NOW, command);
    let bytes = (resident() - before) / memory.len();
    let (known, _) = on_each_key(&mut memory, NOW + 1, command);
    // All have expired, and go while they are made anew.
    let (expired, longest) = on_each_key(&mut memory, NOW + 600_000, command);
    let [new, known, expired] = [new, known, expired].map(a_second);
    println!("| {command} | {bytes} | {new} | {known} | {expired} | {longest:.1?} |");
}

fn main() {
    if let Some(command) = env::args().nth(1) {
        return measure(&command);
    }
    println!("| | bytes of a key | new, a second | known, a second | expired, a second | longest of those |");
    println!("| --- | --- | --- | --- | --- | --- |");
    for command in ["RL.FIXED", "RL.SLIDING", "RL.LOG", "RL.BUCKET"] {
        // In a process of its own: the memory of one is not given back before the next.
        let program = env::current_exe().expect("this program");
        let status = Command::new(program).arg(command).status().expect("it runs");
        assert!(status.success());
    }
}
