//! The native type `ratelimit`, and a safe slot over one key of it.
#![allow(unsafe_code)]

mod ffi;

use std::ffi::{c_int, c_longlong};
use std::marker::PhantomData;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};

use redis_module::raw;

use crate::limiter::{Limiter, UnixMs};
use crate::request::Refusal;
use crate::server::Call;
use crate::server::registration::{Loading, Unloadable};
use crate::server::{api, functions};

/// The native type, set once while the module is loaded.
static TYPE: AtomicPtr<raw::RedisModuleType> = AtomicPtr::new(null_mut());

/// Registers the native type.
pub fn create_type(loading: &Loading) -> Result<(), Unloadable> {
    TYPE.store(loading.create_type(ffi::NAME, ffi::ENCODING_VERSION, ffi::methods())?, Ordering::Relaxed);
    Ok(())
}

fn native_type() -> *mut raw::RedisModuleType {
    TYPE.load(Ordering::Relaxed)
}

/// The key that a call names, open until this is dropped: empty, or holding a limiter.
pub struct Slot<'a> {
    key: *mut raw::RedisModuleKey,
    /// Null in an empty slot. The server's until the slot is closed, and ours to change.
    limiter: *mut Limiter,
    call: PhantomData<&'a Call<'a>>,
}

impl<'a> Slot<'a> {
    /// Opens the key to read and write it. Refuses a key of another type.
    #[inline(always)]
    pub fn open(call: &'a Call) -> Result<Slot<'a>, Refusal> {
        Slot::open_as(call, raw::REDISMODULE_READ | raw::REDISMODULE_WRITE)
    }

    /// Opens the key to read it. Refuses a key of another type.
    #[inline]
    pub fn open_to_read(call: &'a Call) -> Result<Slot<'a>, Refusal> {
        Slot::open_as(call, raw::REDISMODULE_READ)
    }

    #[inline(always)]
    fn open_as(call: &'a Call, mode: u32) -> Result<Slot<'a>, Refusal> {
        // SAFETY: context and name live as long as the call, and the slot no longer than that.
        let key = unsafe { (functions().open_key)(call.ctx(), call.key_name(), mode as c_int) };
        // A missing key has no handle when opened to be read.
        let mut slot = Slot { key, limiter: null_mut(), call: PhantomData };
        if key.is_null() {
            return Ok(slot);
        }
        // SAFETY: the handle was opened just now. Values of our type are what `insert` and the
        // callbacks made: boxed limiters.
        unsafe {
            if (functions().module_type_get_type)(key) == native_type() {
                slot.limiter = (functions().module_type_get_value)(key).cast();
            } else if api!(RedisModule_KeyType(key)) as isize != raw::REDISMODULE_KEYTYPE_EMPTY {
                return Err(Refusal::WRONG_TYPE);
            }
        }
        Ok(slot)
    }

    /// The limiter that the key holds.
    #[inline]
    pub fn limiter(&self) -> Option<&Limiter> {
        // SAFETY: null or a limiter of the server's that nobody else touches while the slot is
        // open; changes go through `limiter_mut`.
        unsafe { self.limiter.as_ref() }
    }

    /// The limiter that the key holds, to be changed.
    #[inline]
    pub fn limiter_mut(&mut self) -> Option<&mut Limiter> {
        // SAFETY: as in `limiter`, and this borrow is the only one.
        unsafe { self.limiter.as_mut() }
    }

    /// Puts a limiter into an empty slot that was opened to be written.
    pub fn insert(&mut self, limiter: Limiter) {
        self.limiter = Box::into_raw(Box::new(limiter));
        // SAFETY: the handle is open for writing. From here on the value is the server's, which
        // gives it back to `free` once.
        unsafe { api!(RedisModule_ModuleTypeSetValue(self.key, native_type(), self.limiter.cast())) };
    }

    /// Deletes the key.
    pub fn delete(&mut self) {
        self.limiter = null_mut();
        // SAFETY: the handle is open for writing; the limiter is not used again.
        unsafe { api!(RedisModule_DeleteKey(self.key)) };
    }

    /// When the key goes by itself, by the server's clock; `None` if it never does.
    #[inline]
    pub fn expires_at(&self) -> Option<UnixMs> {
        if self.limiter.is_null() {
            return None;
        }
        // SAFETY: the handle is open.
        let at = unsafe { api!(RedisModule_GetAbsExpire(self.key)) };
        // Negative: without a time to live.
        u64::try_from(at).ok().map(UnixMs)
    }

    /// Has the key go by itself at a time of the server's clock.
    #[inline]
    pub fn expire_at(&mut self, at: UnixMs) {
        // SAFETY: the handle is open for writing.
        unsafe { api!(RedisModule_SetAbsExpire(self.key, at.0 as c_longlong)) };
    }
}

impl Drop for Slot<'_> {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: the handle is closed once; the server accepts a null one.
        unsafe { (functions().close_key)(self.key) };
    }
}
