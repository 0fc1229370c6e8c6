//! The server around the module: the call under way, the clock, the replication stream, the log
//! and the allocator. With `keyspace` the only room that holds unsafe code.
#![allow(unsafe_code)]

mod allocator;
mod functions;
mod info;
pub mod registration;
mod replication;

use std::ffi::{CStr, CString, c_char, c_int, c_long, c_longlong};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::slice;

use redis_module::raw;

use crate::limiter::{Cost, UnixMs};
use crate::request::Refusal;
use crate::stats;

/// Calls a function of the module API that Redis 7.0 has; `Loading` refuses older servers.
macro_rules! api {
    ($function:ident($($arg:expr),* $(,)?)) => {
        redis_module::raw::$function.expect("a function of Redis 7.0")($($arg),*)
    };
}
pub(crate) use api;
pub(crate) use functions::functions;

/// A command: what is to be done when it is called.
pub trait Command {
    /// Answers the call, or refuses it having changed nothing.
    fn run(call: &Call) -> Result<(), Refusal>;
}

/// A command under way: its arguments and the ways to answer.
pub struct Call<'a> {
    ctx: *mut raw::RedisModuleCtx,
    args: &'a [*mut raw::RedisModuleString],
}

/// How the server enters a command. A panic answers this client and leaves the server running.
///
/// # Safety
///
/// For the server alone: `ctx` and the `argc` strings of `argv` are valid until it returns.
pub unsafe extern "C" fn entry<C: Command>(
    ctx: *mut raw::RedisModuleCtx,
    argv: *mut *mut raw::RedisModuleString,
    argc: c_int,
) -> c_int {
    // SAFETY: the caller passes `argc` strings, the command's name first.
    let args = unsafe { slice::from_raw_parts(argv, argc as usize) };
    let call = Call { ctx, args };
    // The server counts the arguments before it calls, but not those in an append-only file.
    if args.len() < 2 {
        call.refuse(Refusal::Arity);
        return raw::REDISMODULE_OK as c_int;
    }
    match catch_unwind(AssertUnwindSafe(|| C::run(&call))) {
        Ok(Ok(())) => {}
        Ok(Err(refusal)) => call.refuse(refusal),
        Err(_) => call.refuse(Refusal::INTERNAL),
    }
    raw::REDISMODULE_OK as c_int
}

impl Call<'_> {
    /// The context, for the rooms that talk to the server.
    pub(crate) fn ctx(&self) -> *mut raw::RedisModuleCtx {
        self.ctx
    }

    /// The key that the command names: its first argument.
    pub(crate) fn key_name(&self) -> *mut raw::RedisModuleString {
        self.args[1]
    }

    /// The arguments after the key.
    #[inline(always)]
    pub fn args_after_key(&self) -> impl ExactSizeIterator<Item = &[u8]> {
        self.args[2..].iter().map(bytes)
    }

    /// The two arguments after the key, if there are just two.
    #[inline(always)]
    pub fn two_args_after_key(&self) -> Option<[&[u8]; 2]> {
        let [_, _, first, second] = self.args else { return None };
        Some([bytes(first), bytes(second)])
    }

    /// Marks the key as modified, for WATCH and for client-side caching.
    #[inline(always)]
    pub fn signal_modified(&self) {
        // SAFETY: both live as long as the call.
        unsafe { (functions().signal_modified_key)(self.ctx, self.key_name()) };
    }

    /// Publishes a keyspace event about the key.
    pub fn notify(&self, event: Event) {
        let (class, name) = match event {
            Event::Limited => (raw::REDISMODULE_NOTIFY_MODULE, c"rl.limited"),
            Event::Deleted => (raw::REDISMODULE_NOTIFY_GENERIC, c"del"),
        };
        // SAFETY: all live as long as the call.
        unsafe { api!(RedisModule_NotifyKeyspaceEvent(self.ctx, class, name.as_ptr(), self.key_name())) };
    }

    /// Tells replicas and the append-only file what this call did to its first `tiers` windows.
    #[inline(always)]
    pub fn replicate(&self, command: &CStr, tiers: usize, cost: Cost, at: UnixMs) {
        replication::replicate(self, command, tiers, cost, at);
    }

    /// Tells replicas and the append-only file to do the same as this call.
    #[inline(always)]
    pub fn replicate_verbatim(&self) {
        // SAFETY: the context lives as long as the call.
        unsafe { (functions().replicate_verbatim)(self.ctx) };
    }

    /// Answers an array of integers.
    #[inline(always)]
    pub fn reply_integers(&self, integers: &[i64]) {
        self.reply_array(integers.len());
        for integer in integers {
            self.reply_integer(*integer);
        }
    }

    /// Answers an array of which `len` answers are to follow.
    #[inline(always)]
    pub fn reply_array(&self, len: usize) {
        // SAFETY: the context lives as long as the call.
        unsafe { (functions().reply_with_array)(self.ctx, len as c_long) };
    }

    /// Answers a map of which `len` keys and values are to follow; in RESP2 a flat array.
    pub fn reply_map(&self, len: usize) {
        // SAFETY: the context lives as long as the call.
        unsafe { api!(RedisModule_ReplyWithMap(self.ctx, len as c_long)) };
    }

    /// Answers an integer.
    #[inline(always)]
    pub fn reply_integer(&self, integer: i64) {
        // SAFETY: the context lives as long as the call.
        unsafe { (functions().reply_with_long_long)(self.ctx, integer as c_longlong) };
    }

    /// Answers a bulk string.
    pub fn reply_text(&self, text: &CStr) {
        // SAFETY: the context lives as long as the call, and the server copies the text.
        unsafe { api!(RedisModule_ReplyWithCString(self.ctx, text.as_ptr())) };
    }

    /// Answers null.
    pub fn reply_null(&self) {
        // SAFETY: the context lives as long as the call.
        unsafe { api!(RedisModule_ReplyWithNull(self.ctx)) };
    }

    /// Whether the command comes from a master, or out of the append-only file.
    pub fn is_replayed(&self) -> bool {
        let replayed = raw::REDISMODULE_CTX_FLAGS_REPLICATED | raw::REDISMODULE_CTX_FLAGS_LOADING;
        // SAFETY: the context lives as long as the call.
        let flags = unsafe { api!(RedisModule_GetContextFlags(self.ctx)) } as u32;
        flags & replayed != 0
    }

    fn refuse(&self, refusal: Refusal) {
        stats::refused();
        // SAFETY: the context lives as long as the call, and the server copies the text.
        unsafe {
            match refusal {
                Refusal::Arity => api!(RedisModule_WrongArity(self.ctx)),
                Refusal::Text(text) => api!(RedisModule_ReplyWithError(self.ctx, text.as_ptr())),
            }
        };
    }
}

/// The bytes of an argument.
#[inline(always)]
fn bytes(arg: &*mut raw::RedisModuleString) -> &[u8] {
    let mut len = 0;
    // SAFETY: the string lives as long as the list of arguments, and its bytes are not changed.
    unsafe {
        let bytes = (functions().string_ptr_len)(*arg, &mut len);
        slice::from_raw_parts(bytes.cast::<u8>(), len)
    }
}

/// The keyspace events that this module publishes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// `rl.limited`, of the module class: a request was over a limit.
    Limited,
    /// `del`, of the generic class: giving back left nothing to remember, so the key went.
    Deleted,
}

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
    UnixMs(u64::try_from(ms).unwrap_or(0)).min(UnixMs::MAX)
}

/// Writes a warning to the server's log.
pub fn log_warning(message: &str) {
    log(std::ptr::null_mut(), message);
}

fn log(ctx: *mut raw::RedisModuleCtx, message: &str) {
    let message = CString::new(message.replace('\0', " ")).unwrap_or_default();
    let (level, format): (*const c_char, *const c_char) = (c"warning".as_ptr(), c"%s".as_ptr());
    // SAFETY: the format takes one C string; the server accepts a null context.
    unsafe { api!(RedisModule_Log(ctx, level, format, message.as_ptr())) };
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    thread_local! {
        static REPLY: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
    }

    unsafe extern "C" fn note_error(_ctx: *mut raw::RedisModuleCtx, text: *const c_char) -> c_int {
        // SAFETY: `refuse` passes a C string.
        REPLY.set(unsafe { CStr::from_ptr(text) }.to_bytes().to_vec());
        raw::REDISMODULE_OK as c_int
    }

    unsafe extern "C" fn note_wrong_arity(_ctx: *mut raw::RedisModuleCtx) -> c_int {
        REPLY.set(b"wrong number of arguments".to_vec());
        raw::REDISMODULE_OK as c_int
    }

    struct Panicking;

    impl Command for Panicking {
        fn run(_call: &Call) -> Result<(), Refusal> {
            panic!("as a bug would");
        }
    }

    #[test]
    fn a_panic_answers_its_client_with_an_error_and_goes_no_further() {
        // SAFETY: no other test has or needs a function to reply with.
        unsafe { raw::RedisModule_ReplyWithError = Some(note_error) };
        let mut args = [std::ptr::null_mut(); 2];
        // SAFETY: two arguments are passed, and the command looks at nothing.
        let status = unsafe { entry::<Panicking>(std::ptr::null_mut(), args.as_mut_ptr(), 2) };
        assert_eq!(status, raw::REDISMODULE_OK as c_int);
        let Refusal::Text(text) = Refusal::INTERNAL else { unreachable!("it has a text") };
        assert_eq!(REPLY.take(), text.to_bytes());
    }
    #[test]
    fn a_command_without_a_key_is_refused_before_it_runs() {
        // SAFETY: no other test has or needs a function for this reply.
        unsafe { raw::RedisModule_WrongArity = Some(note_wrong_arity) };
        let mut args = [std::ptr::null_mut()];
        // SAFETY: one argument is passed, and nothing looks at it.
        unsafe { entry::<Panicking>(std::ptr::null_mut(), args.as_mut_ptr(), 1) };
        assert_eq!(REPLY.take(), b"wrong number of arguments");
    }
}
