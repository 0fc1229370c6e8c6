//! Sends effects to replicas and to the append-only file.

use std::ffi::{CStr, c_char};
use std::ptr::null_mut;
use std::sync::{Mutex, PoisonError};

use arrayvec::ArrayVec;
use redis_module::raw;

use super::arg::Arg;
use super::context::Context;
use super::listeners::may_listen;
use super::{api, functions};
use redis_rl_core::encoding;
use redis_rl_core::limiter::Effect;
use redis_rl_core::limiter::several::MAX_ROWS;

const COMMAND: &CStr = c"RL.APPLY";

/// Sends the command as it was called.
#[inline(always)]
pub(super) fn send_verbatim(context: Context) {
    // SAFETY: the context is valid.
    unsafe { (functions().replicate_verbatim)(context.raw()) };
}

/// Sends the effect on one key, if anything may listen.
#[inline(never)]
pub(super) fn send_one(context: Context, key: Arg, effect: Effect) {
    if !may_listen(context) {
        return send_verbatim(context);
    }
    let mut last = LAST.lock().unwrap_or_else(PoisonError::into_inner);
    let (name, format): (*const c_char, *const c_char) = (COMMAND.as_ptr(), c"ss".as_ptr());
    let word = last.word(effect).0;
    // SAFETY: the arguments match the format: s is a server string. The server takes its own reference to each.
    unsafe { api!(RedisModule_Replicate(context.raw(), name, format, key.server_string(), word)) };
}

/// Sends the effects on several keys in one command, if anything may listen.
#[inline(never)]
pub(super) fn send<'a>(context: Context, effects: impl Iterator<Item = (Arg<'a>, Effect)>) {
    if !may_listen(context) {
        return send_verbatim(context);
    }
    let mut last = LAST.lock().unwrap_or_else(PoisonError::into_inner);
    let (mut words, mut owned) = (ArrayVec::<_, { 2 * MAX_ROWS }>::new(), ArrayVec::<_, MAX_ROWS>::new());
    for (key, effect) in effects {
        let word = last.word(effect).clone();
        words.push(key.server_string());
        words.push(word.0);
        owned.push(word);
    }
    let (name, format): (*const c_char, *const c_char) = (COMMAND.as_ptr(), c"v".as_ptr());
    // SAFETY: the arguments match the format: v is an array of server strings, and its length. The server takes its own
    // reference to each.
    unsafe { api!(RedisModule_Replicate(context.raw(), name, format, words.as_ptr(), words.len())) };
}

/// The effect that was sent last, with its word: on a busy server many requests have the same effect, a unit counted in this
/// millisecond in these windows.
static LAST: Mutex<Last> = Mutex::new(Last(None));

struct Last(Option<(Effect, ServerString)>);

impl Last {
    fn word(&mut self, effect: Effect) -> &ServerString {
        if self.0.as_ref().is_none_or(|(last, _)| *last != effect) {
            self.0 = None;
        }
        let (_, word) = self.0.get_or_insert_with(|| {
            let word = ServerString::new(&encoding::encode_effect(&effect));
            (effect, word)
        });
        word
    }
}

/// A reference to a server string.
struct ServerString(*mut raw::RedisModuleString);

// SAFETY: a reference is counted and dropped only under the server's lock, whichever thread holds it.
unsafe impl Send for ServerString {}

impl ServerString {
    fn new(bytes: &[u8]) -> ServerString {
        // SAFETY: the server copies the bytes. Without a context it does not free the string by itself.
        ServerString(unsafe {
            api!(RedisModule_CreateString(null_mut(), bytes.as_ptr().cast(), bytes.len()))
        })
    }
}

impl Clone for ServerString {
    fn clone(&self) -> ServerString {
        // SAFETY: the string lives as long as this reference. Without a context the server does not free the new one.
        unsafe { api!(RedisModule_RetainString(null_mut(), self.0)) };
        ServerString(self.0)
    }
}

impl Drop for ServerString {
    fn drop(&mut self) {
        // SAFETY: the reference is ours, and dropped once.
        unsafe { api!(RedisModule_FreeString(null_mut(), self.0)) };
    }
}
