//! What the server calls about values of the type.
//!
//! Every value is a `Box<Limiter>`, made by `OpenKey::insert`, [`rdb_load`] or [`copy`] and given
//! back once, to [`free`].

use std::borrow::Cow;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::mem::ManuallyDrop;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::null_mut;
use std::slice;

use redis_module::raw;

use crate::encoding;
use crate::limiter::{Algorithm, Limiter, Mover};
use crate::server::{api, text};

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
    guarded(null_mut(), || {
        if encoding_version != ENCODING_VERSION {
            // SAFETY: `io` is valid during the callback.
            unsafe { log_refused(io, "it is stored in a form that this module does not know") };
            return null_mut();
        }
        let mut len = 0;
        // SAFETY: `io` is valid during the callback. The buffer is ours to free, and null if the
        // stored bytes end too early.
        unsafe {
            let bytes = api!(RedisModule_LoadStringBuffer(io, &mut len));
            if bytes.is_null() {
                log_refused(io, "it ends too early");
                return null_mut();
            }
            let limiter = encoding::decode(slice::from_raw_parts(bytes.cast(), len));
            api!(RedisModule_Free(bytes.cast()));
            match limiter {
                Ok(limiter) => Box::into_raw(Box::new(limiter)).cast(),
                Err(invalid) => {
                    log_refused(io, &invalid.to_string());
                    null_mut()
                }
            }
        }
    })
}

/// Tells the server's log why a payload is refused.
///
/// # Safety
///
/// `io` is valid.
unsafe fn log_refused(io: *mut raw::RedisModuleIO, why: &str) {
    let why = text(why);
    // SAFETY: the caller's promise; the format takes one C string.
    unsafe {
        api!(RedisModule_LogIOError(
            io,
            c"warning".as_ptr(),
            c"rl: a stored limiter is refused: %s".as_ptr(),
            why.as_ptr(),
        ));
    }
}

unsafe extern "C" fn rdb_save(io: *mut raw::RedisModuleIO, value: *mut c_void) {
    // SAFETY: the value is one of ours.
    let bytes = stored(unsafe { limiter(value) });
    // SAFETY: `io` is valid during the callback.
    unsafe { api!(RedisModule_SaveStringBuffer(io, bytes.as_ptr().cast::<c_char>(), bytes.len())) };
}

/// The bytes that a limiter is stored as.
///
/// Should a bug make it impossible, those of a spent one: a snapshot without a value could not be
/// loaded at all. The log tells.
fn stored(limiter: &Limiter) -> Cow<'static, [u8]> {
    let spent = Cow::Borrowed(encoding::spent(limiter.algorithm()));
    guarded(spent, || Cow::Owned(encoding::encode(limiter)))
}

unsafe extern "C" fn digest(md: *mut raw::RedisModuleDigest, value: *mut c_void) {
    // SAFETY: the value is one of ours.
    let bytes = stored(unsafe { limiter(value) });
    // SAFETY: `md` is valid during the callback.
    unsafe {
        api!(RedisModule_DigestAddStringBuffer(md, bytes.as_ptr().cast::<c_char>(), bytes.len()));
        api!(RedisModule_DigestEndSequence(md));
    }
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
        // SAFETY: `value` points to one of ours, which the server lets us move; the server gets the
        // box back.
        unsafe {
            let mut limiter = mover.move_box(Box::from_raw((*value).cast::<Limiter>()));
            let held = std::mem::replace(&mut *limiter, Limiter::new(Algorithm::Fixed));
            *limiter = held.relocate(&mut mover);
            *value = Box::into_raw(limiter).cast();
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
    fn move_box<T>(&mut self, piece: Box<T>) -> Box<T> {
        if size_of::<T>() == 0 {
            return piece;
        }
        // SAFETY: the box's memory is the server's, and is owned by one box before and after.
        unsafe { Box::from_raw(self.moved(Box::into_raw(piece))) }
    }

    fn move_vec<T>(&mut self, piece: Vec<T>) -> Vec<T> {
        if piece.capacity() == 0 || size_of::<T>() == 0 {
            return piece;
        }
        let mut piece = ManuallyDrop::new(piece);
        let (memory, len, capacity) = (piece.as_mut_ptr(), piece.len(), piece.capacity());
        // SAFETY: the vector's memory is the server's, and is owned by one vector before and after.
        unsafe { Vec::from_raw_parts(self.moved(memory), len, capacity) }
    }
}

unsafe extern "C" fn aof_rewrite(
    io: *mut raw::RedisModuleIO,
    key: *mut raw::RedisModuleString,
    value: *mut c_void,
) {
    // SAFETY: the value is one of ours.
    let bytes = stored(unsafe { limiter(value) });
    // SAFETY: `io` and `key` are valid during the callback. The format is followed by arguments of its
    // types: s a string of the server's, b bytes and their length.
    unsafe {
        api!(RedisModule_EmitAOF(
            io,
            c"RL.LOAD".as_ptr(),
            c"sb".as_ptr(),
            key,
            bytes.as_ptr().cast::<c_char>(),
            bytes.len()
        ));
    }
}
