//! The server's callbacks for values of the native type.
//!
//! Every value is a `Box<Limiter>`, created by `OpenKey::insert`, [`rdb_load`] or [`copy`], and passed to
//! [`free`] once.

use std::borrow::Cow;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::mem::ManuallyDrop;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::null_mut;
use std::slice;

use redis_module::raw;

use crate::server::{api, c_string};
use redis_rl_core::encoding;
use redis_rl_core::limiter::{Algorithm, Limiter, Mover};

/// The name of the type. The server requires 9 characters.
pub(super) const NAME: &CStr = c"ratelimit";

/// A value is stored as one string. The string has a version of its own, so this one stays 0.
pub(super) const ENCODING_VERSION: c_int = 0;

/// The callbacks, in version 3 of the server's table, the newest that Redis 7.0 knows.
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

/// # Safety
///
/// `value` is one of ours, see the module's docs, and does not change while the reference lives.
unsafe fn limiter<'a>(value: *const c_void) -> &'a Limiter {
    // SAFETY: the caller's promise.
    unsafe { &*value.cast::<Limiter>() }
}

/// Runs a callback; returns `otherwise` if it panics. The panic hook writes to the server's log.
fn guarded<T>(otherwise: T, callback: impl FnOnce() -> T) -> T {
    catch_unwind(AssertUnwindSafe(callback)).unwrap_or(otherwise)
}

unsafe extern "C" fn rdb_load(io: *mut raw::RedisModuleIO, encoding_version: c_int) -> *mut c_void {
    guarded(null_mut(), || {
        if encoding_version != ENCODING_VERSION {
            // SAFETY: `io` is valid during the callback.
            unsafe { log_refused(io, "unknown version of the type") };
            return null_mut();
        }
        let mut len = 0;
        // SAFETY: `io` is valid during the callback. The buffer is ours to free, and null if the
        // stored bytes end too early.
        unsafe {
            let bytes = api!(RedisModule_LoadStringBuffer(io, &mut len));
            if bytes.is_null() {
                log_refused(io, "truncated");
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

/// # Safety
///
/// `io` is valid.
unsafe fn log_refused(io: *mut raw::RedisModuleIO, why: &str) {
    let why = c_string(why);
    // SAFETY: the caller's promise; the format takes one C string.
    unsafe {
        api!(RedisModule_LogIOError(
            io,
            c"warning".as_ptr(),
            c"rl: cannot load a limiter: %s".as_ptr(),
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

/// The bytes to store for a limiter. If a bug makes encoding panic, they are those of a limiter that counts nothing: a snapshot
/// that lacks a value could not be loaded at all.
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
    // SAFETY: the value is one of ours, and this is its last use.
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
    // SAFETY: `value` points to one of ours, which the server lets us move.
    guarded((), || unsafe { relocate(value, &mut Defrag { ctx }) });
    0
}

/// Moves a value and all that it holds. After a panic, `value` points to the old limiter or to an empty one.
///
/// # Safety
///
/// `value` points to one of ours, and nothing else uses it meanwhile.
unsafe fn relocate(value: *mut *mut c_void, mover: &mut impl Mover) {
    // SAFETY: the caller's promise. The server gets the box back before anything else happens to it.
    let limiter = unsafe {
        *value = Box::into_raw(mover.move_box(Box::from_raw((*value).cast::<Limiter>()))).cast();
        &mut *(*value).cast::<Limiter>()
    };
    let held = std::mem::replace(limiter, Limiter::new(Algorithm::Fixed));
    *limiter = held.relocate(mover);
}

struct Defrag {
    ctx: *mut raw::RedisModuleDefragCtx,
}

impl Defrag {
    /// Returns the new address of an allocation, or the old one if the server leaves it in place.
    ///
    /// # Safety
    ///
    /// The server allocated `memory`, and nothing else points to it. If it moves, the old address is freed.
    unsafe fn moved<T>(&mut self, memory: *mut T) -> *mut T {
        // SAFETY: the callback has not returned yet; the rest is the caller's promise.
        let moved = unsafe { api!(RedisModule_DefragAlloc(self.ctx, memory.cast())) };
        if moved.is_null() { memory } else { moved.cast() }
    }
}

impl Mover for Defrag {
    fn move_box<T>(&mut self, piece: Box<T>) -> Box<T> {
        if size_of::<T>() == 0 {
            return piece;
        }
        // SAFETY: the server allocated the box's memory, and exactly one box owns it before and after.
        unsafe { Box::from_raw(self.moved(Box::into_raw(piece))) }
    }

    fn move_vec<T>(&mut self, piece: Vec<T>) -> Vec<T> {
        if piece.capacity() == 0 || size_of::<T>() == 0 {
            return piece;
        }
        let mut piece = ManuallyDrop::new(piece);
        let (memory, len, capacity) = (piece.as_mut_ptr(), piece.len(), piece.capacity());
        // SAFETY: the server allocated the vector's memory, and exactly one vector owns it before and after.
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
    // SAFETY: `io` and `key` are valid during the callback. The arguments match the format: s is a server
    // string, b is bytes and their length.
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

#[cfg(test)]
mod tests {
    use redis_rl_core::limiter::UnixMs;

    use super::*;

    /// Panics after so many moves.
    struct Panicking {
        moves_left: usize,
    }

    impl Panicking {
        fn moved<T>(&mut self, piece: T) -> T {
            if self.moves_left == 0 {
                // A `Mover` that panics must not drop the piece.
                std::mem::forget(piece);
                panic!("a bug");
            }
            self.moves_left -= 1;
            piece
        }
    }

    impl Mover for Panicking {
        fn move_box<T>(&mut self, piece: Box<T>) -> Box<T> {
            self.moved(piece)
        }

        fn move_vec<T>(&mut self, piece: Vec<T>) -> Vec<T> {
            self.moved(piece)
        }
    }

    #[test]
    fn a_spent_limiter_counts_nothing() {
        for algorithm in Algorithm::ALL {
            let limiter = encoding::decode(encoding::spent(algorithm)).expect("a valid payload");
            assert_eq!(limiter.algorithm(), algorithm);
            assert!(limiter.windows(UnixMs::saturating(2)).iter().all(|window| window.used == 0));
        }
    }

    #[test]
    fn a_panic_while_a_value_is_moved_leaves_it_valid() {
        let mut payloads: Vec<Vec<u8>> =
            Algorithm::ALL.into_iter().map(|algorithm| encoding::spent(algorithm).to_vec()).collect();
        // A key of two windows, and a log of many entries.
        payloads.push([encoding::spent(Algorithm::Fixed), &[2, 0, 1]].concat());
        let [version, tag, .., at, units] = *encoding::spent(Algorithm::Log) else {
            panic!("it has one entry")
        };
        payloads.push([&[version, tag, 127, at, units][..], &[0, 2, 1].repeat(120)].concat());
        for payload in payloads {
            for moves_left in 0..10 {
                let limiter = encoding::decode(&payload).expect("a valid payload");
                let mut value: *mut c_void = Box::into_raw(Box::new(limiter)).cast();
                let mut mover = Panicking { moves_left };
                let moved = guarded(false, || {
                    // SAFETY: the value was just made, and nothing else uses it.
                    unsafe { relocate(&raw mut value, &mut mover) };
                    true
                });
                // SAFETY: it is valid after a panic too.
                let after = *unsafe { Box::from_raw(value.cast::<Limiter>()) };
                let unchanged = !after.is_empty() && encoding::encode(&after) == payload;
                assert!(unchanged || !moved && after.is_empty(), "{moves_left} moves of {payload:?}");
            }
        }
    }
}
