//! What the server calls about values of the type.
//!
//! Every value is a `Box<Limiter>`, made by `Slot::insert`, [`rdb_load`] or [`copy`] and given
//! back once, to [`free`].

use std::ffi::{CStr, c_char, c_int, c_longlong, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::null_mut;
use std::slice;

use redis_module::raw;

use crate::encoding;
use crate::limiter::counters::Counters;
use crate::limiter::log::Log;
use crate::limiter::{Limiter, MAX_SAFE_INTEGER, Mover, UnixMs, WindowMs};
use crate::server::api;

/// The name of the type, of 9 characters as the server wants it.
pub(super) const NAME: &CStr = c"ratelimit";

/// Of the one string that a value is stored as; that string has a version of its own.
pub(super) const ENCODING_VERSION: c_int = 0;

/// The callbacks, as of version 3 of this table, which Redis 7.0 knows.
pub(super) fn methods() -> raw::RedisModuleTypeMethods {
    raw::RedisModuleTypeMethods {
        version: 3,
        rdb_load: Some(rdb_load),
        rdb_save: Some(rdb_save),
        aof_rewrite: Some(aof_rewrite),
        mem_usage: Some(mem_usage),
        digest: Some(digest),
        free: Some(free),
        aux_load: None,
        aux_save: None,
        aux_save_triggers: 0,
        free_effort: Some(free_effort),
        unlink: None,
        copy: Some(copy),
        defrag: Some(defrag),
        mem_usage2: None,
        free_effort2: None,
        unlink2: None,
        copy2: None,
        aux_save2: None,
    }
}

/// The limiter behind a value of the server's.
///
/// # Safety
///
/// `value` is one of ours, see the module, and not changed while the reference lives.
unsafe fn limiter<'a>(value: *const c_void) -> &'a Limiter {
    // SAFETY: the caller's promise.
    unsafe { &*value.cast::<Limiter>() }
}

/// Runs a callback; a panic is logged by its hook and answered with `otherwise`.
fn guarded<T>(otherwise: T, callback: impl FnOnce() -> T) -> T {
    catch_unwind(AssertUnwindSafe(callback)).unwrap_or(otherwise)
}

unsafe extern "C" fn rdb_load(io: *mut raw::RedisModuleIO, encoding_version: c_int) -> *mut c_void {
    if encoding_version != ENCODING_VERSION {
        return null_mut();
    }
    guarded(null_mut(), || {
        let mut len = 0;
        // SAFETY: `io` is valid during the callback. The buffer is ours to free, and null if the
        // stored bytes end too early.
        let limiter = unsafe {
            let bytes = api!(RedisModule_LoadStringBuffer(io, &mut len));
            if bytes.is_null() {
                return null_mut();
            }
            let limiter = encoding::decode(slice::from_raw_parts(bytes.cast(), len));
            api!(RedisModule_Free(bytes.cast()));
            limiter
        };
        limiter.map_or(null_mut(), |limiter| Box::into_raw(Box::new(limiter)).cast())
    })
}

unsafe extern "C" fn rdb_save(io: *mut raw::RedisModuleIO, value: *mut c_void) {
    guarded((), || {
        // SAFETY: `io` is valid during the callback, and the value is one of ours.
        unsafe {
            let bytes = encoding::encode(limiter(value));
            api!(RedisModule_SaveStringBuffer(io, bytes.as_ptr().cast::<c_char>(), bytes.len()));
        }
    });
}

unsafe extern "C" fn digest(md: *mut raw::RedisModuleDigest, value: *mut c_void) {
    guarded((), || {
        // SAFETY: `md` is valid during the callback, and the value is one of ours.
        unsafe {
            let bytes = encoding::encode(limiter(value));
            api!(RedisModule_DigestAddStringBuffer(md, bytes.as_ptr().cast::<c_char>(), bytes.len()));
            api!(RedisModule_DigestEndSequence(md));
        }
    });
}

unsafe extern "C" fn mem_usage(value: *const c_void) -> usize {
    // SAFETY: the value is one of ours.
    size_of::<Limiter>() + unsafe { limiter(value) }.heap_bytes()
}

unsafe extern "C" fn free_effort(_key: *mut raw::RedisModuleString, value: *const c_void) -> usize {
    // SAFETY: the value is one of ours.
    unsafe { limiter(value) }.allocations()
}

unsafe extern "C" fn free(value: *mut c_void) {
    // SAFETY: the value is one of ours, and this its last use.
    guarded((), || drop(unsafe { Box::from_raw(value.cast::<Limiter>()) }));
}

unsafe extern "C" fn copy(
    _from: *mut raw::RedisModuleString,
    _to: *mut raw::RedisModuleString,
    value: *const c_void,
) -> *mut c_void {
    // SAFETY: the value is one of ours.
    guarded(null_mut(), || Box::into_raw(Box::new(unsafe { limiter(value) }.clone())).cast())
}

unsafe extern "C" fn defrag(
    ctx: *mut raw::RedisModuleDefragCtx,
    _key: *mut raw::RedisModuleString,
    value: *mut *mut c_void,
) -> c_int {
    guarded((), || {
        let mut mover = Defrag { ctx };
        // SAFETY: `value` points to one of ours, which the server lets us move.
        unsafe {
            *value = mover.moved(*value);
            (*(*value).cast::<Limiter>()).relocate(&mut mover);
        }
    });
    0
}

/// Moves memory as long as a defrag callback runs.
struct Defrag {
    ctx: *mut raw::RedisModuleDefragCtx,
}

impl Defrag {
    /// Where the same bytes are now: perhaps elsewhere, and then the old place is freed.
    ///
    /// # Safety
    ///
    /// `memory` was allocated by the server, and nothing else points to it.
    unsafe fn moved<T>(&mut self, memory: *mut T) -> *mut T {
        // SAFETY: the callback has not returned, and the caller's promise.
        let moved = unsafe { api!(RedisModule_DefragAlloc(self.ctx, memory.cast())) };
        if moved.is_null() { memory } else { moved.cast() }
    }
}

impl Mover for Defrag {
    fn move_box<T>(&mut self, piece: &mut Box<T>) {
        // SAFETY: a box of the module's is memory of the server's; the one that is read is written
        // anew before anybody sees it.
        unsafe {
            let memory = Box::into_raw(std::ptr::read(piece));
            std::ptr::write(piece, Box::from_raw(self.moved(memory)));
        }
    }

    fn move_vec<T>(&mut self, piece: &mut Vec<T>) {
        if piece.capacity() == 0 {
            return;
        }
        let mut owned = std::mem::ManuallyDrop::new(std::mem::take(piece));
        let (memory, len, capacity) = (owned.as_mut_ptr(), owned.len(), owned.capacity());
        // SAFETY: the vector's memory is the server's, and is owned by one vector before and after.
        *piece = unsafe { Vec::from_raw_parts(self.moved(memory), len, capacity) };
    }
}

unsafe extern "C" fn aof_rewrite(
    io: *mut raw::RedisModuleIO,
    key: *mut raw::RedisModuleString,
    value: *mut c_void,
) {
    guarded((), || {
        // SAFETY: the value is one of ours.
        let limiter = unsafe { limiter(value) };
        let out = AofCommands { io, key, name: limiter.algorithm().command() };
        match limiter {
            Limiter::Counters(counters) => out.counters(counters),
            Limiter::Log(log) => out.log(log),
        }
    });
}

/// The commands that make a key anew, each counting at its own time.
struct AofCommands {
    io: *mut raw::RedisModuleIO,
    key: *mut raw::RedisModuleString,
    name: &'static CStr,
}

impl AofCommands {
    /// Later windows first: a counter must not look dead to the call that makes the next.
    fn counters(&self, counters: &Counters) {
        let mut counters: Vec<_> = counters.iter().collect();
        counters.sort_by_key(|counter| std::cmp::Reverse(counter.start()));
        for counter in counters {
            let at = counter.start();
            if counter.previous > 0 {
                self.count(counter.window, counter.previous, UnixMs(at.0 - counter.window.get()));
            }
            if counter.current > 0 {
                self.count(counter.window, counter.current, at);
            } else {
                // Moves the counter on to the window that it is in.
                self.count(counter.window, 1, at);
                self.emit(counter.window, -1, at);
            }
        }
    }

    fn log(&self, log: &Log) {
        // The first entry names the window for which all are kept, the others a shorter one.
        let mut window = log.keep();
        for entry in log.iter() {
            self.count(window.unwrap_or(WindowMs::MIN), entry.units, entry.at);
            window = None;
        }
    }

    /// Counts `units`, in as many commands as it takes.
    fn count(&self, window: WindowMs, mut units: u64, at: UnixMs) {
        while units > 0 {
            let part = units.min(MAX_SAFE_INTEGER);
            self.emit(window, part as c_longlong, at);
            units -= part;
        }
    }

    fn emit(&self, window: WindowMs, cost: c_longlong, at: UnixMs) {
        let window = format!("{}ms", window.get());
        let [cost_word, force, at_word] = [c"COST", c"FORCE", c"AT"].map(CStr::as_ptr);
        // SAFETY: the format is followed by arguments of its types: s a string of the server's,
        // l a long long, b bytes and their length, c a C string.
        unsafe {
            api!(RedisModule_EmitAOF(
                self.io,
                self.name.as_ptr(),
                c"slbclccl".as_ptr(),
                self.key,
                MAX_SAFE_INTEGER as c_longlong,
                window.as_ptr(),
                window.len(),
                cost_word,
                cost,
                force,
                at_word,
                at.0 as c_longlong,
            ));
        }
    }
}
