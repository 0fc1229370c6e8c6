//! The native type `ratelimit`, and a safe handle on one key of it.
#![allow(unsafe_code)]

mod ffi;

use std::ffi::{c_int, c_longlong};
use std::marker::PhantomData;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};

use redis_module::raw;

use crate::limiter::{Algorithm, Limiter, UnixMs};
use crate::request::Refusal;
use crate::server::registration::{LoadFailed, Loading};
use crate::server::{Arg, Key, OK, api, functions};

/// The native type, set once while the module is loaded.
static TYPE: AtomicPtr<raw::RedisModuleType> = AtomicPtr::new(null_mut());

/// Registers the native type.
pub fn create_type(loading: &Loading) -> Result<(), LoadFailed> {
    TYPE.store(loading.create_type(ffi::NAME, ffi::ENCODING_VERSION, ffi::methods())?, Ordering::Relaxed);
    Ok(())
}

fn native_type() -> *mut raw::RedisModuleType {
    TYPE.load(Ordering::Relaxed)
}

/// Marks a key opened for reading.
pub struct ToRead;

/// Marks a key opened for reading and writing.
pub struct ToWrite;

/// An open key, either empty or holding a limiter. Dropping it closes the key.
///
/// Each [`Key`] is opened at most once, so this handle has the limiter to itself.
pub struct OpenKey<'a, Mode> {
    key: *mut raw::RedisModuleKey,
    /// Null if the key is empty. Owned by the server, and valid until the key is closed.
    limiter: *mut Limiter,
    name: Arg<'a>,
    mode: PhantomData<Mode>,
}

impl<'a> OpenKey<'a, ToRead> {
    /// Opens a key for reading. Refuses a value of another type.
    #[inline]
    pub fn to_read(key: Key<'a>) -> Result<Self, Refusal> {
        OpenKey::open(key, raw::REDISMODULE_READ)
    }
}

impl<'a> OpenKey<'a, ToWrite> {
    /// Opens a key for reading and writing. Refuses a value of another type.
    #[inline(always)]
    pub fn to_write(key: Key<'a>) -> Result<Self, Refusal> {
        OpenKey::open(key, raw::REDISMODULE_READ | raw::REDISMODULE_WRITE)
    }

    /// The limiter in the key, mutably; `None` if the key is empty.
    #[inline(always)]
    pub fn limiter_mut(&mut self) -> Option<&mut Limiter> {
        // SAFETY: as in `limiter`, and this borrow is the only one.
        unsafe { self.limiter.as_mut() }
    }

    /// The limiter in the key. If the key is empty, a new one of `algorithm`, placed in `fresh`.
    #[inline(always)]
    pub fn limiter_or<'s>(
        &'s mut self,
        fresh: &'s mut Option<Limiter>,
        algorithm: Algorithm,
    ) -> &'s mut Limiter {
        match self.limiter_mut() {
            Some(limiter) => limiter,
            None => fresh.get_or_insert_with(|| Limiter::new(algorithm)),
        }
    }

    /// Stores a limiter in an empty key.
    #[cold]
    pub fn insert(&mut self, limiter: Limiter) -> Result<(), Refusal> {
        let limiter = Box::into_raw(Box::new(limiter));
        // SAFETY: the handle is open for writing. On success the server owns the value, and passes it to
        // `free` once.
        let set = unsafe { api!(RedisModule_ModuleTypeSetValue(self.key, native_type(), limiter.cast())) };
        if set != OK {
            // SAFETY: the box was made above, and the server did not take it.
            drop(unsafe { Box::from_raw(limiter) });
            return Err(Refusal::INTERNAL);
        }
        self.limiter = limiter;
        Ok(())
    }

    /// Deletes the key.
    #[cold]
    pub fn delete(&mut self) {
        self.limiter = null_mut();
        // SAFETY: the handle is open for writing; the limiter is not used again.
        unsafe { api!(RedisModule_DeleteKey(self.key)) };
    }

    /// Makes the key expire at `at` by the server's clock.
    pub fn expire_at(&mut self, at: UnixMs) {
        // SAFETY: the handle is open for writing.
        unsafe { api!(RedisModule_SetAbsExpire(self.key, at.get() as c_longlong)) };
    }
}

impl<'a, Mode> OpenKey<'a, Mode> {
    #[inline(always)]
    fn open(key: Key<'a>, mode: u32) -> Result<Self, Refusal> {
        let name = key.name();
        // SAFETY: context and name outlive the handle: they live as long as the call.
        let key = unsafe { (functions().open_key)(key.call().ctx(), name.string(), mode as c_int) };
        // The server returns null for a missing key that is opened for reading.
        let mut open = OpenKey { key, limiter: null_mut(), name, mode: PhantomData };
        if key.is_null() {
            return Ok(open);
        }
        // SAFETY: the handle was just opened. Values of our type are boxed limiters, made by `insert` and
        // the callbacks.
        unsafe {
            if (functions().module_type_get_type)(key) == native_type() {
                open.limiter = (functions().module_type_get_value)(key).cast();
            } else if api!(RedisModule_KeyType(key)) as isize != raw::REDISMODULE_KEYTYPE_EMPTY {
                return Err(Refusal::WRONG_TYPE);
            }
        }
        Ok(open)
    }

    /// The name of the key.
    #[inline(always)]
    pub fn name(&self) -> Arg<'a> {
        self.name
    }

    /// The limiter in the key; `None` if the key is empty.
    #[inline(always)]
    pub fn limiter(&self) -> Option<&Limiter> {
        // SAFETY: null, or a limiter that only this handle reaches while the key is open; changing it needs
        // the handle mutably.
        unsafe { self.limiter.as_ref() }
    }

    /// When the key expires by the server's clock; `None` if it is empty or never expires.
    pub fn expires_at(&self) -> Option<UnixMs> {
        if self.limiter.is_null() {
            return None;
        }
        // SAFETY: the handle is open.
        let at = unsafe { api!(RedisModule_GetAbsExpire(self.key)) };
        // Negative: no time to live.
        u64::try_from(at).ok().map(UnixMs::saturating)
    }
}

impl<Mode> Drop for OpenKey<'_, Mode> {
    #[inline(always)]
    fn drop(&mut self) {
        // SAFETY: the handle is closed once; the server accepts null.
        unsafe { (functions().close_key)(self.key) };
    }
}
