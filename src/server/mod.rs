//! The server around the module: the call under way, the clock, the replication stream, the log
//! and the allocator. With `keyspace` the only module that holds unsafe code.
#![allow(unsafe_code)]

mod allocator;
mod call;
mod functions;
pub mod info;
pub mod listeners;
pub mod registration;
mod replication;

use std::ffi::{CString, c_char};

use redis_module::raw;

use crate::limiter::UnixMs;

pub use call::{Arg, Call, Command, Event, Key, Keys};
pub use replication::Effect;

/// Calls a function of the module API that Redis 7.0 has; `Loading` refuses older servers.
macro_rules! api {
    ($function:ident($($arg:expr),* $(,)?)) => {
        redis_module::raw::$function.expect("a function of Redis 7.0")($($arg),*)
    };
}
pub(crate) use api;
pub(crate) use functions::functions;

/// The server's clock.
///
/// Where the server offers it (Redis 7.2 and newer, Valkey) the time that it has read for this
/// command, which stands still inside MULTI and scripts; in Redis 7.0 the time of this moment.
#[inline]
pub fn now() -> UnixMs {
    // SAFETY: both functions only read.
    let ms = unsafe {
        match functions().cached_microseconds {
            Some(cached_microseconds) => cached_microseconds() / 1000,
            None => (functions().milliseconds)(),
        }
    };
    // A clock before 1970 reads as 1970.
    UnixMs::saturating(u64::try_from(ms).unwrap_or(0))
}

/// Writes a warning to the server's log.
pub fn log_warning(message: &str) {
    log(std::ptr::null_mut(), message);
}

fn log(ctx: *mut raw::RedisModuleCtx, message: &str) {
    let message = text(message);
    let (level, format): (*const c_char, *const c_char) = (c"warning".as_ptr(), c"%s".as_ptr());
    // SAFETY: the format takes one C string; the server accepts a null context.
    unsafe { api!(RedisModule_Log(ctx, level, format, message.as_ptr())) };
}

/// `message` as a C string; a zero byte becomes a space.
pub(crate) fn text(message: &str) -> CString {
    CString::new(message.replace('\0', " ")).unwrap_or_default()
}
