//! The current call of a command: its arguments, the keys that it may open, and its replies.

// What single commands call is inlined: see `command/take.rs`.

use std::ffi::{c_int, c_long, c_longlong};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::slice;
use std::sync::atomic::Ordering;

use redis_module::raw;

use super::arg::Arg;
use super::context::Context;
use super::listeners::LISTENED_TO;
use super::{OK, api, functions, neighbors, replication};
use crate::stats;
use redis_rl_core::limiter::Effect;
use redis_rl_core::reply::Reply;
use redis_rl_core::request::Refusal;

/// A command of the module.
pub trait Command {
    /// Runs the command and replies, or refuses.
    fn run(call: &mut Call) -> Result<(), Refusal>;
}

/// The current call.
///
/// An open key borrows it mutably, and so does all that may call other modules: opening a key, marking it as modified,
/// publishing an event. So no key is open while another module runs.
pub struct Call<'a> {
    context: Context<'a>,
    args: &'a [Arg<'a>],
}

/// The function that the server calls to run `C`. A panic becomes an error reply; the server keeps running.
///
/// # Safety
///
/// Called only by the server: `ctx` and the `argc` strings of `argv` are valid until it returns.
pub unsafe extern "C" fn entry<C: Command>(
    ctx: *mut raw::RedisModuleCtx,
    argv: *mut *mut raw::RedisModuleString,
    argc: c_int,
) -> c_int {
    // SAFETY: the server passes `argc` strings, the command's name first; an `Arg` is a transparent string.
    let (context, args) =
        unsafe { (Context::new(ctx), slice::from_raw_parts(argv.cast::<Arg>(), argc as usize)) };
    let mut call = Call { context, args };
    // The server checks the arity of a client's command, but not when it loads an append-only file.
    if args.len() < 2 {
        call.refuse(Refusal::Arity);
        return OK;
    }
    match catch_unwind(AssertUnwindSafe(|| C::run(&mut call))) {
        Ok(Ok(())) => {}
        Ok(Err(refusal)) => call.refuse(refusal),
        Err(_) => call.refuse(Refusal::INTERNAL),
    }
    OK
}

/// The keyspace events that this module publishes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// `rl.limited`, class `d` (module): a request was over a limit.
    Limited,
    /// `del`, class `g` (generic): giving back emptied the key, so it was deleted.
    Deleted,
}

impl<'a> Call<'a> {
    #[inline(always)]
    pub(crate) fn ctx(&self) -> *mut raw::RedisModuleCtx {
        self.context.raw()
    }

    /// The arguments after the command's name.
    #[inline(always)]
    pub fn args(&self) -> &'a [Arg<'a>] {
        &self.args[1..]
    }

    #[inline(always)]
    pub fn key(&self) -> Arg<'a> {
        self.args[1]
    }

    /// The arguments after the first key.
    #[inline(always)]
    pub fn args_after_key(&self) -> &'a [Arg<'a>] {
        &self.args[2..]
    }

    /// Marks a key as modified, for WATCH and for client-side caching.
    #[inline(always)]
    pub fn signal_modified(&mut self, key: Arg) {
        // SAFETY: both live as long as the call.
        unsafe { (functions().signal_modified_key)(self.ctx(), key.server_string()) };
    }

    /// Publishes a keyspace event about a key, if another module or a subscriber may be told of it.
    pub fn notify(&mut self, event: Event, key: Arg) {
        let (class, name) = match event {
            Event::Limited => (raw::REDISMODULE_NOTIFY_MODULE, c"rl.limited"),
            Event::Deleted => (raw::REDISMODULE_NOTIFY_GENERIC, c"del"),
        };
        // Spares a limited request 1 % of its instructions, since nobody listens as a rule (`make check-instructions`).
        // SAFETY: the function only reads the server's setting.
        let published = unsafe { (functions().get_notify_keyspace_events)() };
        if neighbors::is_alone() && published & class as c_int == 0 {
            return;
        }
        // SAFETY: all live as long as the call.
        unsafe {
            api!(RedisModule_NotifyKeyspaceEvent(self.ctx(), class, name.as_ptr(), key.server_string()))
        };
    }

    /// Sends the effect on a key to replicas and the append-only file, once the call has ended. Calls no other module.
    #[inline(always)]
    pub fn replicate(&self, key: Arg, effect: impl FnOnce() -> Effect) {
        if LISTENED_TO.load(Ordering::Relaxed) {
            replication::send_one(self.context, key, effect());
        } else {
            // Nothing receives it, but only so does the server count a change since the last snapshot. It costs little.
            self.replicate_verbatim();
        }
    }

    /// Sends the effects on several keys, in one command.
    #[inline]
    pub fn replicate_all<'e, I: Iterator<Item = (Arg<'e>, Effect)>>(&self, effects: impl FnOnce() -> I) {
        if LISTENED_TO.load(Ordering::Relaxed) {
            replication::send(self.context, effects());
        } else {
            self.replicate_verbatim();
        }
    }

    /// Sends that a key does not expire.
    pub fn replicate_persist(&self, key: Arg) {
        // SAFETY: the arguments match the format: s is a server string. The server takes its own reference.
        unsafe {
            api!(RedisModule_Replicate(self.ctx(), c"PERSIST".as_ptr(), c"s".as_ptr(), key.server_string()))
        };
    }

    /// Sends this command to replicas and the append-only file as it was called.
    #[inline(always)]
    pub fn replicate_verbatim(&self) {
        replication::send_verbatim(self.context);
    }

    pub fn reply_ok(&self) {
        // SAFETY: the context lives as long as the call, and the server copies the text.
        unsafe { api!(RedisModule_ReplyWithSimpleString(self.ctx(), c"OK".as_ptr())) };
    }

    fn refuse(&self, refusal: Refusal) {
        stats::refused();
        // SAFETY: the context lives as long as the call, and the server copies the text.
        unsafe {
            match refusal {
                Refusal::Arity => api!(RedisModule_WrongArity(self.ctx())),
                Refusal::Text(text) => api!(RedisModule_ReplyWithError(self.ctx(), text.as_ptr())),
            }
        };
    }
}

impl Reply for Call<'_> {
    #[inline(always)]
    fn array(&mut self, len: usize) {
        // SAFETY: the context lives as long as the call.
        unsafe { (functions().reply_with_array)(self.ctx(), len as c_long) };
    }

    fn map(&mut self, len: usize) {
        // SAFETY: the context lives as long as the call.
        unsafe { api!(RedisModule_ReplyWithMap(self.ctx(), len as c_long)) };
    }

    #[inline(always)]
    fn integer(&mut self, integer: i64) {
        // SAFETY: the context lives as long as the call.
        unsafe { (functions().reply_with_long_long)(self.ctx(), integer as c_longlong) };
    }

    fn text(&mut self, text: &str) {
        // SAFETY: the context lives as long as the call, and the server copies the text.
        unsafe { api!(RedisModule_ReplyWithStringBuffer(self.ctx(), text.as_ptr().cast(), text.len())) };
    }

    fn null(&mut self) {
        // SAFETY: the context lives as long as the call.
        unsafe { api!(RedisModule_ReplyWithNull(self.ctx())) };
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::ffi::{CStr, c_char};

    use super::*;

    thread_local! {
        static REPLY: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
    }

    unsafe extern "C" fn note_error(_ctx: *mut raw::RedisModuleCtx, text: *const c_char) -> c_int {
        // SAFETY: `refuse` passes a C string.
        REPLY.set(unsafe { CStr::from_ptr(text) }.to_bytes().to_vec());
        OK
    }

    struct Panicking;

    impl Command for Panicking {
        fn run(_call: &mut Call) -> Result<(), Refusal> {
            panic!("a bug");
        }
    }

    #[test]
    fn a_panic_becomes_an_error_reply_and_does_not_unwind_into_the_server() {
        // SAFETY: no other test sets or calls this function.
        unsafe { raw::RedisModule_ReplyWithError = Some(note_error) };
        let mut args = [std::ptr::null_mut(); 2];
        // SAFETY: two arguments are passed, and the command reads neither.
        let status = unsafe { entry::<Panicking>(std::ptr::null_mut(), args.as_mut_ptr(), 2) };
        assert_eq!(status, OK);
        let Refusal::Text(text) = Refusal::INTERNAL else { unreachable!("it has a text") };
        assert_eq!(REPLY.take(), text.to_bytes());
    }
}
