//! The commands of redis-rl in memory, for hosts of WebAssembly. One instance is one limiter, and imports nothing.
//!
//! A host calls `start` once. For each command it writes the words into the buffer, as their lengths (32 bits each, little-endian)
//! and then their bytes, without anything in between; calls `call`; and reads the reply, the bytes of RESP2, from the start
//! of the buffer. Whatever a host passes, a call traps only if there is no more memory.

use std::cell::RefCell;
use std::slice;

use redis_rl_core::memory::Memory;

/// Bytes of the buffer at first: more than any reply has.
const BUFFER_BYTES: usize = 16 << 10;

struct Instance {
    memory: Memory,
    /// In words, so that lengths are aligned.
    buffer: Vec<u64>,
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
        Instance { memory: Memory::seeded(max_keys as usize, seed), buffer: vec![0; BUFFER_BYTES / 8] }
    }

    fn call(&mut self, now_ms: u64, words: usize) -> usize {
        let Instance { memory, buffer } = self;
        // SAFETY: these are the bytes of the vector, which nothing else uses meanwhile.
        let buffer = unsafe { slice::from_raw_parts_mut(buffer.as_mut_ptr().cast::<u8>(), 8 * buffer.len()) };
        let Some(words) = read(buffer, words) else {
            return reply(buffer, b"-ERR Protocol error: the words do not fit the buffer\r\n");
        };
        reply(buffer, memory.call(now_ms, &words))
    }
}

/// The words in a buffer.
fn read(buffer: &[u8], words: usize) -> Option<Vec<&[u8]>> {
    let (lengths, mut bytes) = buffer.split_at_checked(words.checked_mul(4)?)?;
    let word = |length: &[u8]| {
        let length = u32::from_le_bytes(length.try_into().ok()?);
        let word;
        (word, bytes) = bytes.split_at_checked(length as usize)?;
        Some(word)
    };
    lengths.chunks_exact(4).map(word).collect()
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

/// The address of the buffer, once it has at least `bytes` bytes; null if there is no memory for them. It moves only here, when
/// it grows, and has 16 KiB at first.
#[unsafe(no_mangle)]
pub extern "C" fn buffer(bytes: usize) -> *const u8 {
    with(|Instance { buffer, .. }| {
        let more = bytes.div_ceil(8).saturating_sub(buffer.len());
        if buffer.try_reserve_exact(more).is_err() {
            return std::ptr::null();
        }
        buffer.resize(buffer.len() + more, 0);
        buffer.as_ptr().cast()
    })
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
