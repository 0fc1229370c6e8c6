//! A module of no-op commands, with which the benchmarks compare redis-rl.
//!
//! - `FLOOR` replies with five integers, and touches no key.
//! - `FLOOR.READ` opens its key for reading, and reads the value.
//! - `FLOOR.OPEN` opens its key for writing, and reads the value.
//! - `FLOOR.MARK` does that, and marks the key as modified.
//! - `FLOOR.ALL` takes the arguments of RL.ALL, reads every word and the clock, opens each key for writing and reads the
//!   value, marks each key, and replies as RL.ALL does.
//!
//! Values never change, and are not saved: the benchmarked servers make no snapshots.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_int, c_void};
use std::ptr::null_mut;
use std::slice;
use std::sync::atomic::{AtomicPtr, Ordering};

use redis_module::raw;

/// Calls a server function without checking that it exists: `OnLoad` has checked.
macro_rules! api {
    ($function:ident($($argument:expr),*)) => {
        raw::$function.unwrap_unchecked()($($argument),*)
    };
}

const OK: c_int = raw::REDISMODULE_OK as c_int;
const ERR: c_int = raw::REDISMODULE_ERR as c_int;
const READ: c_int = raw::REDISMODULE_READ as c_int;
const WRITE: c_int = (raw::REDISMODULE_READ | raw::REDISMODULE_WRITE) as c_int;

/// The value of each key.
const VALUE: i64 = 1_000_000;

/// Keys expire, like a limiter's.
const TIME_TO_LIVE_MS: i64 = 3_600_000;

/// Words in a row of RL.ALL.
const ROW_WORDS: usize = 5;

static TYPE: AtomicPtr<raw::RedisModuleType> = AtomicPtr::new(null_mut());

/// The module's entry point, called by the server to load it.
///
/// # Safety
///
/// Called only by the server, with a valid context.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn RedisModule_OnLoad(
    ctx: *mut raw::RedisModuleCtx,
    _argv: *mut *mut raw::RedisModuleString,
    _argc: c_int,
) -> c_int {
    let commands: [(&CStr, raw::RedisModuleCmdFunc, &CStr, c_int, c_int); 5] = [
        (c"FLOOR", Some(floor), c"write deny-oom fast", 1, 1),
        (c"FLOOR.READ", Some(read), c"readonly fast", 1, 1),
        (c"FLOOR.OPEN", Some(open), c"write deny-oom fast", 1, 1),
        (c"FLOOR.MARK", Some(mark), c"write deny-oom fast", 1, 1),
        (c"FLOOR.ALL", Some(all), c"write deny-oom", -5, 5),
    ];
    // SAFETY: the server passed `ctx`; the functions exist since Redis 7.0, and `InitAPI` finds them.
    unsafe {
        raw::Export_RedisModule_InitAPI(ctx);
        api!(RedisModule_SetModuleAttribs(ctx, c"floor".as_ptr(), 1, raw::REDISMODULE_APIVER_1 as c_int));
        // As in redis-rl, only the command itself marks a key as modified, not closing it.
        api!(RedisModule_SetModuleOptions(ctx, raw::REDISMODULE_OPTION_NO_IMPLICIT_SIGNAL_MODIFIED as c_int));
        let mut methods = raw::RedisModuleTypeMethods { version: 3, free: Some(free), ..no_methods() };
        TYPE.store(
            api!(RedisModule_CreateDataType(ctx, c"benchmark".as_ptr(), 0, &mut methods)),
            Ordering::Relaxed,
        );
        for (name, run, flags, last_key, step) in commands {
            if api!(RedisModule_CreateCommand(ctx, name.as_ptr(), run, flags.as_ptr(), 1, last_key, step))
                != OK
            {
                return ERR;
            }
        }
    }
    OK
}

const fn no_methods() -> raw::RedisModuleTypeMethods {
    // SAFETY: a version and optional functions, all of which may be zero.
    unsafe { std::mem::zeroed() }
}

unsafe extern "C" fn free(value: *mut c_void) {
    // SAFETY: the server passes a value that `value_of` made, once.
    drop(unsafe { Box::from_raw(value.cast::<i64>()) });
}

/// A command with a key: its context and its arguments.
#[derive(Clone, Copy)]
struct Call<'a> {
    ctx: *mut raw::RedisModuleCtx,
    args: &'a [*mut raw::RedisModuleString],
}

impl<'a> Call<'a> {
    /// # Safety
    ///
    /// Called only with what the server passed to a command, while that runs.
    #[inline(always)]
    unsafe fn new(
        ctx: *mut raw::RedisModuleCtx,
        argv: *mut *mut raw::RedisModuleString,
        argc: c_int,
    ) -> Call<'a> {
        // SAFETY: the server passes `argc` strings.
        Call { ctx, args: unsafe { slice::from_raw_parts(argv, argc as usize) } }
    }

    /// The value of a key opened to read or to write. An empty key counts as 0, and gets a value if it can.
    #[inline(always)]
    fn value_of(self, key: *mut raw::RedisModuleString, mode: c_int) -> i64 {
        let value_type = TYPE.load(Ordering::Relaxed);
        // SAFETY: context and name live as long as the call. The handle is closed once, and until then the
        // server keeps the value, which is a `Box`.
        unsafe {
            let open = api!(RedisModule_OpenKey(self.ctx, key, mode));
            let value = if !open.is_null() && api!(RedisModule_ModuleTypeGetType(open)) == value_type {
                *api!(RedisModule_ModuleTypeGetValue(open)).cast::<i64>()
            } else if mode == READ {
                0
            } else {
                let value = Box::into_raw(Box::new(VALUE));
                api!(RedisModule_ModuleTypeSetValue(open, value_type, value.cast()));
                api!(RedisModule_SetExpire(open, TIME_TO_LIVE_MS));
                0
            };
            api!(RedisModule_CloseKey(open));
            value
        }
    }

    /// Marks a key as modified, for WATCH and client-side caching.
    #[inline(always)]
    fn mark(self, key: *mut raw::RedisModuleString) {
        // SAFETY: context and name live as long as the call.
        unsafe { api!(RedisModule_SignalModifiedKey(self.ctx, key)) };
    }

    /// Marks the data set as modified, for snapshots.
    #[inline(always)]
    fn count_change(self) {
        // SAFETY: the context lives as long as the call.
        unsafe { api!(RedisModule_ReplicateVerbatim(self.ctx)) };
    }

    /// Has the server find the bytes of a word.
    #[inline(always)]
    fn read_word(self, word: *mut raw::RedisModuleString) {
        // SAFETY: the word lives as long as the call.
        unsafe { api!(RedisModule_StringPtrLen(word, &mut 0)) };
    }

    /// The Unix time in ms, from the same function as in redis-rl.
    #[inline(always)]
    fn now_ms(self) -> i64 {
        // SAFETY: both functions only read.
        unsafe {
            match raw::RedisModule_CachedMicroseconds {
                Some(cached_microseconds) => cached_microseconds() / 1000,
                None => api!(RedisModule_Milliseconds()),
            }
        }
    }

    #[inline(always)]
    fn array(self, len: usize) {
        // SAFETY: the context lives as long as the call.
        unsafe { api!(RedisModule_ReplyWithArray(self.ctx, len as _)) };
    }

    #[inline(always)]
    fn integer(self, integer: i64) {
        // SAFETY: the context lives as long as the call.
        unsafe { api!(RedisModule_ReplyWithLongLong(self.ctx, integer)) };
    }

    /// Replies as to an allowed request.
    #[inline(always)]
    fn answer(self, limit: i64) {
        self.array(5);
        [0, limit, 999_999, -1, 60_000].into_iter().for_each(|integer| self.integer(integer));
    }
}

/// Defines a command.
macro_rules! command {
    ($name:ident, $call:ident => $run:expr) => {
        unsafe extern "C" fn $name(
            ctx: *mut raw::RedisModuleCtx,
            argv: *mut *mut raw::RedisModuleString,
            argc: c_int,
        ) -> c_int {
            // SAFETY: the server runs the command.
            let $call = unsafe { Call::new(ctx, argv, argc) };
            $run;
            OK
        }
    };
}

command!(floor, call => call.answer(VALUE));
command!(read, call => call.answer(call.value_of(call.args[1], READ)));
command!(open, call => call.answer(call.value_of(call.args[1], WRITE)));
command!(mark, call => {
    let value = call.value_of(call.args[1], WRITE);
    call.mark(call.args[1]);
    call.count_change();
    call.answer(value);
});
command!(all, call => {
    let words = &call.args[1..];
    words.iter().for_each(|word| call.read_word(*word));
    call.array(4);
    [0, -1, call.now_ms()].into_iter().for_each(|integer| call.integer(integer));
    let rows = words.chunks_exact(ROW_WORDS);
    call.array(rows.len());
    for row in rows {
        let value = call.value_of(row[0], WRITE);
        call.mark(row[0]);
        call.answer(value);
    }
    call.count_change();
});
