//! Sends effects to replicas and to the append-only file.

use std::ffi::{CStr, c_char};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, Ordering};

use redis_module::raw;
use smallvec::SmallVec;

use super::{Arg, api};
use crate::encoding;
use crate::limiter::Effect;

/// Whether anything may listen to the replication stream: see `listeners`.
static LISTENED_TO: AtomicBool = AtomicBool::new(true);

/// Sets whether anything may listen.
pub(super) fn set_listened_to(listened_to: bool) {
    LISTENED_TO.store(listened_to, Ordering::Relaxed);
}

/// Whether anything may listen.
#[inline(always)]
pub(super) fn is_listened_to() -> bool {
    LISTENED_TO.load(Ordering::Relaxed)
}

const COMMAND: &CStr = c"RL.APPLY";

/// Sends the effect on one key.
#[inline(never)]
pub(super) fn send_one(ctx: *mut raw::RedisModuleCtx, key: Arg, effect: &Effect) {
    let word = encoding::encode_effect(effect);
    let (name, format): (*const c_char, *const c_char) = (COMMAND.as_ptr(), c"sb".as_ptr());
    let bytes: *const c_char = word.as_ptr().cast();
    // SAFETY: the arguments match the format: s is a server string, b is bytes and their length. The server takes its own
    // reference to the string, and copies the bytes.
    unsafe { api!(RedisModule_Replicate(ctx, name, format, key.string(), bytes, word.len())) };
}

/// Sends the effects on several keys in one command.
#[inline(never)]
pub(super) fn send<'a>(ctx: *mut raw::RedisModuleCtx, effects: impl Iterator<Item = (Arg<'a>, Effect)>) {
    let words: Words =
        effects.flat_map(|(key, effect)| [key.string(), string(&encoding::encode_effect(&effect))]).collect();
    let (name, format): (*const c_char, *const c_char) = (COMMAND.as_ptr(), c"v".as_ptr());
    // SAFETY: the arguments match the format: v is an array of server strings, and its length. The server takes its own
    // references to the strings; every other one is ours to free.
    unsafe {
        api!(RedisModule_Replicate(ctx, name, format, words.as_ptr(), words.len()));
        for word in words.iter().skip(1).step_by(2) {
            api!(RedisModule_FreeString(null_mut(), *word));
        }
    }
}

/// Keys and effects in turn.
type Words = SmallVec<[*mut raw::RedisModuleString; 8]>;

/// Creates a server string that lives until it is freed.
fn string(bytes: &[u8]) -> *mut raw::RedisModuleString {
    // SAFETY: the server copies the bytes. Without a context it does not free the string by itself.
    unsafe { api!(RedisModule_CreateString(null_mut(), bytes.as_ptr().cast(), bytes.len())) }
}
