//! Sends effects to replicas and to the append-only file.

use std::ffi::{c_char, c_longlong};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};

use redis_module::raw;

use super::{Arg, Call, api};
use crate::limiter::{Algorithm, Cost, UnixMs};

/// Whether anything may listen to the replication stream: see `listeners`.
static LISTENED_TO: AtomicBool = AtomicBool::new(true);

/// Sets whether anything may listen.
pub(super) fn set_listened_to(listened_to: bool) {
    LISTENED_TO.store(listened_to, Ordering::Relaxed);
}

/// What a request did to one key, sent as `command key limit window ... [COST n] FORCE AT ms`.
pub struct Effect<'a> {
    /// The algorithm that counted it.
    pub algorithm: Algorithm,
    /// The key.
    pub key: Arg<'a>,
    /// `limit window ...`, as the caller wrote them.
    pub tiers: &'a [Arg<'a>],
    /// Units counted, or given back if negative.
    pub cost: Cost,
    /// The time it was decided as of.
    pub at: UnixMs,
}

/// Sends an effect, if anything listens.
#[inline(always)]
pub(super) fn replicate<'e>(call: &Call, effect: impl FnOnce() -> Effect<'e>) {
    if LISTENED_TO.load(Ordering::Relaxed) {
        send(call.ctx(), &effect());
    } else {
        // Nothing receives it, but it counts as a change since the last snapshot, and costs little.
        call.replicate_verbatim();
    }
}

#[inline(never)]
fn send(ctx: *mut raw::RedisModuleCtx, effect: &Effect) {
    let name: *const c_char = effect.algorithm.command().as_ptr();
    let key = effect.key.string();
    let (force, at_word) = (WORDS.force.get(), WORDS.at.get());
    let time = WORDS.time(effect.at);
    // SAFETY: the arguments match each format: s is a server string, v is an array of them and its length, c
    // is a C string, l is a long long. The server takes its own reference to each string and leaves us ours.
    unsafe {
        if let ([limit, window], Cost::ONE) = (effect.tiers, effect.cost) {
            // One string at a time, since for an array the server reallocates its argument list.
            let (format, limit, window) = (c"ssssss".as_ptr(), limit.string(), window.string());
            api!(RedisModule_Replicate(ctx, name, format, key, limit, window, force, at_word, time));
            return;
        }
        // An `Arg` is a transparent server string.
        let (tiers, count) =
            (effect.tiers.as_ptr().cast::<*mut raw::RedisModuleString>(), effect.tiers.len());
        if effect.cost == Cost::ONE {
            let format = c"svsss".as_ptr();
            api!(RedisModule_Replicate(ctx, name, format, key, tiers, count, force, at_word, time));
        } else {
            let (format, cost_word) = (c"svclsss".as_ptr(), c"COST".as_ptr());
            let cost = effect.cost.get() as c_longlong;
            api!(RedisModule_Replicate(
                ctx, name, format, key, tiers, count, cost_word, cost, force, at_word, time
            ));
        }
    }
}

/// Server strings that are sent repeatedly, created once.
///
/// Commands run on the server's thread, or on another module's thread that holds the server's lock: one at a
/// time, so relaxed loads and stores suffice.
static WORDS: Words = Words {
    force: Word::new(b"FORCE"),
    at: Word::new(b"AT"),
    last_ms: AtomicU64::new(u64::MAX),
    last_time: AtomicPtr::new(null_mut()),
};

struct Words {
    force: Word,
    at: Word,
    /// The last time sent. On a busy server many requests share a millisecond.
    last_ms: AtomicU64,
    last_time: AtomicPtr<raw::RedisModuleString>,
}

impl Words {
    fn time(&self, at: UnixMs) -> *mut raw::RedisModuleString {
        let last = self.last_time.load(Ordering::Relaxed);
        if self.last_ms.load(Ordering::Relaxed) == at.get() {
            return last;
        }
        if !last.is_null() {
            // SAFETY: the string is ours, and replaced below.
            unsafe { api!(RedisModule_FreeString(null_mut(), last)) };
        }
        let time = string(at.get().to_string().as_bytes());
        self.last_time.store(time, Ordering::Relaxed);
        self.last_ms.store(at.get(), Ordering::Relaxed);
        time
    }
}

/// A word, and its server string once created.
struct Word {
    word: &'static [u8],
    string: AtomicPtr<raw::RedisModuleString>,
}

impl Word {
    const fn new(word: &'static [u8]) -> Word {
        Word { word, string: AtomicPtr::new(null_mut()) }
    }

    fn get(&self) -> *mut raw::RedisModuleString {
        let kept = self.string.load(Ordering::Relaxed);
        if !kept.is_null() {
            return kept;
        }
        let made = string(self.word);
        self.string.store(made, Ordering::Relaxed);
        made
    }
}

/// Creates a server string that lives until it is freed.
fn string(bytes: &[u8]) -> *mut raw::RedisModuleString {
    // SAFETY: the server copies the bytes. Without a context it does not free the string by itself.
    unsafe { api!(RedisModule_CreateString(null_mut(), bytes.as_ptr().cast(), bytes.len())) }
}
