//! The commands of redis-rl in memory, for hosts of WebAssembly. One instance is one limiter, and imports nothing.
//!
//! A host calls `start` once, then `buffer`. For each command it writes the words into the buffer, as their lengths (32 bits each,
//! little-endian) and then their bytes, without anything in between; calls `call`; and reads the reply, the bytes of RESP2, from the
//! start of the buffer. Whatever a host passes, no call traps: without memory, `buffer` returns null and `call` an error reply.

use std::cell::RefCell;
use std::hash::RandomState;
use std::{ptr, slice};

use redis_rl_core::memory::{Memory, OUT_OF_MEMORY};

/// The fewest bytes of the buffer: more than any reply has.
const LEAST_BYTES: usize = 16 << 10;

/// A larger buffer becomes smaller again.
const KEPT_BYTES: usize = 1 << 20;

const TOO_LONG: &[u8] = b"-ERR Protocol error: the words do not fit the buffer\r\n";

struct Instance {
    memory: Memory,
    /// In words, so that lengths are aligned.
    buffer: Vec<u64>,
    /// Whether std has its random state: it allocates some bytes for it, once.
    has_random_state: bool,
}

thread_local! {
    static INSTANCE: RefCell<Option<Instance>> = const { RefCell::new(None) };
}

/// Runs `run` with the instance; before `start`, with one that holds at most a million keys.
fn with<T>(run: impl FnOnce(&mut Instance) -> T) -> T {
    INSTANCE.with_borrow_mut(|instance| run(instance.get_or_insert_with(|| Instance::new(1_000_000, 0))))
}

impl Instance {
    fn new(max_keys: u32, seed: u64) -> Instance {
        Instance {
            memory: Memory::seeded(max_keys as usize, seed),
            buffer: Vec::new(),
            has_random_state: false,
        }
    }

    /// See [`buffer`].
    fn buffer(&mut self, bytes: usize) -> *const u8 {
        if !self.has_random_state {
            if !self.replace_buffer(LEAST_BYTES / 8) {
                return ptr::null();
            }
            // It takes some of these.
            self.buffer = Vec::new();
            let _ = RandomState::new();
            self.has_random_state = true;
        }
        let (least, wanted) = (LEAST_BYTES / 8, bytes.max(LEAST_BYTES).div_ceil(8));
        let (len, kept) = (self.buffer.len(), wanted.max(KEPT_BYTES / 8));
        if (wanted..=kept).contains(&len) || self.replace_buffer(wanted) {
            return self.buffer.as_ptr().cast();
        }
        // The old one was freed, and had as many bytes.
        self.replace_buffer(least);
        ptr::null()
    }

    /// Replaces the buffer by one of so many words. Returns whether there is memory for it; else there is no buffer.
    fn replace_buffer(&mut self, words: usize) -> bool {
        self.buffer = Vec::new();
        let is_there = self.buffer.try_reserve_exact(words).is_ok();
        if is_there {
            self.buffer.resize(words, 0);
        }
        is_there
    }

    fn call(&mut self, now_ms: u64, words: usize) -> usize {
        let Instance { memory, buffer, .. } = self;
        // SAFETY: these are the bytes of the vector, which nothing else uses meanwhile.
        let buffer = unsafe { slice::from_raw_parts_mut(buffer.as_mut_ptr().cast::<u8>(), 8 * buffer.len()) };
        match read(buffer, words) {
            Ok(words) => reply(buffer, memory.call(now_ms, &words)),
            Err(error) => reply(buffer, error),
        }
    }
}

/// The words in a buffer, or an error reply.
fn read(buffer: &[u8], count: usize) -> Result<Vec<&[u8]>, &'static [u8]> {
    let (lengths, mut bytes) =
        count.checked_mul(4).and_then(|end| buffer.split_at_checked(end)).ok_or(TOO_LONG)?;
    let mut words = Vec::new();
    words.try_reserve_exact(count).map_err(|_| OUT_OF_MEMORY)?;
    for length in lengths.chunks_exact(4) {
        let length = u32::from_le_bytes(length.try_into().map_err(|_| TOO_LONG)?);
        let (word, rest) = bytes.split_at_checked(length as usize).ok_or(TOO_LONG)?;
        words.push(word);
        bytes = rest;
    }
    Ok(words)
}

/// Writes a reply to the start of the buffer. Returns its length.
fn reply(buffer: &mut [u8], reply: &[u8]) -> usize {
    let Some(place) = buffer.get_mut(..reply.len()) else { return 0 };
    place.copy_from_slice(reply);
    reply.len()
}

/// Forgets all keys, and holds at most `max_keys` from now on. With a random `seed`, nobody can choose names that collide.
#[unsafe(no_mangle)]
pub extern "C" fn start(max_keys: u32, seed: u64) {
    with(|instance| instance.memory = Memory::seeded(max_keys as usize, seed));
}

/// The address of the buffer, once it has at least `bytes` bytes, and at least 16 KiB; null if there is no memory for them. It moves
/// only here: when it grows, when it has more than 1 MiB and fewer are wanted, and when null is returned.
#[unsafe(no_mangle)]
pub extern "C" fn buffer(bytes: usize) -> *const u8 {
    with(|instance| instance.buffer(bytes))
}

/// Runs the command in the buffer, of `words` words, at `now_ms`, a Unix time in milliseconds. Returns the length of the reply in
/// bytes.
#[unsafe(no_mangle)]
pub extern "C" fn call(now_ms: f64, words: usize) -> usize {
    // A cast to an integer saturates.
    with(|instance| instance.call(now_ms as u64, words))
}

/// The number of keys held.
#[unsafe(no_mangle)]
pub extern "C" fn keys() -> usize {
    with(|instance| instance.memory.len())
}
