//! The map in memory while memory is short: no call ends the process, and replies equal those of a map that has enough memory and
//! was asked the same, except for what was refused.

#![expect(unsafe_code, reason = "an allocator that fails")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::ptr;

use fastrand::Rng;
use redis_rl_core::memory::{MAX_WORD_BYTES, Memory, OUT_OF_MEMORY};

const NOW: u64 = 1_700_000_000_000;

thread_local! {
    /// The bytes that this thread may still allocate, if it is bounded.
    static LEFT: Cell<Option<usize>> = const { Cell::new(None) };
}

/// The system's allocator, which fails beyond [`LEFT`].
struct Bounded;

#[global_allocator]
static ALLOCATOR: Bounded = Bounded;

// SAFETY: what it allocates is the system allocator's.
unsafe impl GlobalAlloc for Bounded {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if let Some(left) = LEFT.get() {
            let Some(left) = left.checked_sub(layout.size()) else { return ptr::null_mut() };
            LEFT.set(Some(left));
        }
        // SAFETY: as the caller upholds it.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        LEFT.set(LEFT.get().map(|left| left + layout.size()));
        // SAFETY: as the caller upholds it.
        unsafe { System.dealloc(place, layout) }
    }
}

/// A map whose calls allocate no more than so many bytes together.
struct Short {
    memory: Memory,
    left: usize,
}

impl Short {
    fn new(max_keys: usize, bytes: usize) -> Short {
        Short { memory: Memory::new(max_keys), left: bytes }
    }

    fn call(&mut self, now: u64, line: &str) -> Vec<u8> {
        let words: Vec<_> = line.split(' ').collect();
        LEFT.set(Some(self.left));
        let reply = self.memory.call(now, &words);
        self.left = LEFT.replace(None).unwrap_or_default();
        reply.to_vec()
    }
}

/// A random command: mostly of few keys, some of which have long names.
fn command(random: &mut Rng, name: &dyn Fn(u64) -> String, now: u64) -> String {
    let quota =
        |random: &mut Rng| format!(" {} {}ms", [3, 100, 100_000][random.usize(..3)], 1000 << random.u8(..12));
    // A key nearly always has the same algorithm.
    let algorithm = |random: &mut Rng, key: &str| {
        let other = u8::from(random.u8(..50) == 0);
        ["FIXED", "SLIDING", "LOG", "BUCKET"][usize::from(key.as_bytes()[0] + other) % 4]
    };
    let key = name(random.u64(..40));
    match random.u8(..100) {
        0..10 => {
            let most = [3, 64][random.usize(..2)];
            let rows = (0..random.usize(1..=most)).map(|_| {
                let key = name(random.u64(..80));
                format!(" {key} {}{} {}", algorithm(random, &key), quota(random), random.i8(-3..9))
            });
            "RL.ALL".to_owned() + &rows.collect::<String>()
        }
        10..15 => format!("RL.INFO {key}"),
        15..20 => format!("DEL {key}"),
        20..22 => format!("PTTL {key}"),
        22..25 => ["FLUSHALL", "DBSIZE", "ab\r\n", "DEL", "RL.LOG"][random.usize(..5)].into(),
        what => {
            let peeks = what < 30;
            let verb = if peeks { "PEEK" } else { algorithm(random, &key) };
            let tiers = 1 + random.u8(..10).saturating_sub(6);
            let mut quotas: String = (0..tiers).map(|_| quota(random)).collect();
            if verb == "FIXED" && random.u8(..4) == 0 {
                quotas += " 100 1mo";
            }
            let options = match random.u8(..10) {
                0 => format!(" COST {}", random.i64(-50..50)),
                1 if !peeks => " PARTIAL COST 5".to_owned(),
                2 => format!(" AT {}", now + random.u64(..1000) - 500),
                3 | 4 if !peeks => " FORCE".to_owned(),
                _ => String::new(),
            };
            format!("RL.{verb} {key}{quotas}{options}")
        }
    }
}

/// Asks both maps the same. Returns how often the one with few bytes refused.
fn agree(seed: u64, bytes: usize) -> usize {
    let mut random = Rng::with_seed(seed);
    let max_keys = [3, 50, 1000][random.usize(..3)];
    let long = random.usize(1..=MAX_WORD_BYTES);
    let name = |number: u64| {
        let name = format!("{number}:");
        if number.is_multiple_of(8) { name.repeat((long / name.len()).max(1)) } else { name }
    };
    let (mut short, mut reference) = (Short::new(max_keys, bytes), Memory::new(max_keys));
    let (mut now, mut refused) = (NOW, 0);
    for _ in 0..1_500 {
        now += [0, 1, 7, 300, 5_000][random.usize(..5)];
        let line = command(&mut random, &name, now);
        let reply = short.call(now, &line);
        if reply == OUT_OF_MEMORY {
            refused += 1;
            continue;
        }
        let words: Vec<_> = line.split(' ').collect();
        let expected = reference.call(now, &words);
        let shown = |reply: &[u8]| reply.escape_ascii().to_string();
        assert_eq!(shown(&reply), shown(expected), "{:.200}", line);
    }
    refused
}

#[test]
fn however_little_memory_there_is_no_call_ends_the_process_and_what_is_not_refused_is_counted() {
    let (mut some, mut none) = (0, 0);
    for seed in 0..100 {
        match agree(seed, (seed * seed * 100) as usize) {
            0 => none += 1,
            1..1_000 => some += 1,
            _ => {}
        }
    }
    assert!(some > 30 && none > 10, "{some} of 100 were short of memory, {none} were not");
}

#[test]
fn a_word_has_at_most_64_kib_whatever_the_command() {
    let mut memory = Memory::new(10);
    let (fits, long) = (vec![b'x'; MAX_WORD_BYTES], vec![b'x'; MAX_WORD_BYTES + 1]);
    let refusal = b"-ERR each word must have at most 65536 bytes\r\n";
    assert_eq!(
        memory.call(NOW, &[&b"RL.LOG"[..], &fits, b"5", b"1m"]),
        b"*5\r\n:0\r\n:5\r\n:4\r\n:-1\r\n:60000\r\n"
    );
    for command in ["RL.LOG", "RL.PEEK", "RL.INFO", "DEL", "EXISTS", "PTTL", "none", "RL.ALL"] {
        assert_eq!(memory.call(NOW, &[command.as_bytes(), &long, b"5", b"1m"]), refusal, "{command}");
    }
    assert_eq!(memory.call(NOW, &[&long[..]]), refusal);
    assert_eq!(memory.call(NOW, &[&b"EXISTS"[..], &fits, b"x"]), b":1\r\n");
}

#[test]
fn flushall_leaves_no_key_even_at_the_time_zero_and_the_next_commands_free_them() {
    for now in [0, NOW] {
        let mut memory = Memory::new(1_000);
        for key in 0..1_000 {
            memory.call(now, &["RL.LOG", &key.to_string(), "5", "1m"]);
        }
        assert_eq!(memory.call(now, &["FLUSHALL"]), b"+OK\r\n");
        assert_eq!(memory.call(now, &["FLUSHALL"]), b"+OK\r\n");
        assert!(memory.is_empty());
        assert_eq!(memory.call(now, &["EXISTS", "1", "999"]), b":0\r\n");
        for key in (0..1_000).rev() {
            let reply = memory.call(now, &["RL.LOG", &key.to_string(), "5", "1m"]).to_vec();
            assert!(reply.starts_with(b"*5\r\n:0\r\n:5\r\n:4"), "{}", reply.escape_ascii());
            assert_eq!(memory.len(), 1_000 - key);
        }
    }
}

/// Fills a map with keys until one is refused. Returns their number.
fn fill(short: &mut Short, now: u64, command: &str, padding: &str) -> usize {
    let is_refused =
        |key: &usize| short.call(now, &format!("{command} {key}{padding} 5 1h")) == OUT_OF_MEMORY;
    (0..).find(is_refused).expect("it is full")
}

#[test]
fn when_no_more_keys_fit_those_that_are_there_still_count_and_what_is_deleted_or_expires_makes_room() {
    for padding in ["", &"x".repeat(60_000)] {
        for command in ["RL.FIXED", "RL.SLIDING", "RL.BUCKET", "RL.LOG"] {
            let mut short = Short::new(1_000_000, 3_000_000);
            let keys = fill(&mut short, NOW, command, padding);
            assert!(keys > 30, "{command}: {keys}");
            for now in [NOW, NOW + 1_000, NOW + 2_000] {
                for key in 0..keys {
                    let reply = short.call(now, &format!("{command} {key}{padding} 5 1h"));
                    if command == "RL.LOG" && reply == OUT_OF_MEMORY {
                        continue;
                    }
                    assert!(reply.starts_with(b"*5\r\n:0"), "{command} {key}: {}", reply.escape_ascii());
                }
            }
            assert_eq!(short.call(NOW, &format!("DEL 0{padding}")), b":1\r\n");
            assert!(short.call(NOW, &format!("{command} 0{padding} 5 1h")).starts_with(b"*5\r\n:0"));
            assert_eq!(short.call(NOW, &format!("{command} new{padding} 5 1h")), OUT_OF_MEMORY);
            let again = fill(&mut short, NOW + 10_000_000, command, padding);
            assert!(again + 5 > keys, "{command}: {again} after {keys}");
            short.call(NOW, "FLUSHALL");
            assert_eq!(short.call(NOW, "DBSIZE"), b":0\r\n");
        }
    }
}
