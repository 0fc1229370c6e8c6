//! All that the module asks of the server: the current call, the clock, replication, registration, the log and memory.
//! Apart from `keyspace` and the entry point, unsafe code is only here.
#![allow(unsafe_code)]

mod allocator;
mod arg;
mod call;
mod context;
mod functions;
pub mod info;
pub mod listeners;
pub mod neighbors;
pub mod registration;
mod replication;

use std::ffi::{CStr, CString, c_char, c_int};
use std::ptr::null_mut;

use redis_module::raw;

use redis_rl_core::limiter::UnixMs;

pub use arg::Arg;
pub use call::{Call, Command, Event};

/// The name that the module registers.
pub const MODULE_NAME: &CStr = c"rl";

/// The status of a call that succeeded, whether the module or the server was called.
pub const OK: c_int = raw::REDISMODULE_OK as c_int;

/// Calls a module API function that Redis 7.0 has; [`Loading`](registration::Loading) refuses older servers.
macro_rules! api {
    ($function:ident($($arg:expr),* $(,)?)) => {
        redis_module::raw::$function.expect("a function of Redis 7.0")($($arg),*)
    };
}
pub(crate) use api;
pub(crate) use functions::functions;

/// The time by the server's clock.
///
/// In Redis 7.2 and newer, and in Valkey, the cached time of this command, which does not change inside MULTI
/// and scripts. In Redis 7.0, the time of the call.
#[inline]
pub fn now() -> UnixMs {
    // SAFETY: both functions only read a clock.
    let ms = unsafe {
        match raw::RedisModule_CachedMicroseconds {
            Some(cached_microseconds) => cached_microseconds() / 1000,
            None => api!(RedisModule_Milliseconds()),
        }
    };
    // A clock before 1970 reads as 1970.
    UnixMs::saturating(u64::try_from(ms).unwrap_or(0))
}

/// Writes a warning to the server's log.
fn log(message: &str) {
    let message = c_string(message);
    let (level, format): (*const c_char, *const c_char) = (c"warning".as_ptr(), c"%s".as_ptr());
    // SAFETY: the format takes one C string; the server accepts a null context.
    unsafe { api!(RedisModule_Log(null_mut(), level, format, message.as_ptr())) };
}

/// A message as a C string, in which zero bytes become spaces.
pub(crate) fn c_string(message: &str) -> CString {
    CString::new(message.replace('\0', " ")).unwrap_or_default()
}
