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
use crate::server::{Arg, Key, api, functions};

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

/// Opened to be read.
pub struct ToRead;

/// Opened to be read and written.
pub struct ToWrite;

/// A key that a call names, open until this is dropped: empty, or holding a limiter.
///
/// Each [`Key`] is opened once, so nobody else touches the limiter meanwhile.
pub struct OpenKey<'a, Mode> {
    key: *mut raw::RedisModuleKey,
    /// Null if the key is empty. The server's until the key is closed.
    limiter: *mut Limiter,
    name: Arg<'a>,
    mode: PhantomData<Mode>,
}

impl<'a> OpenKey<'a, ToRead> {
    /// Opens a key to read it. Refuses a key of another type.
    #[inline]
    pub fn to_read(key: Key<'a>) -> Result<Self, Refusal> {
        OpenKey::open(key, raw::REDISMODULE_READ)
    }
}

impl<'a> OpenKey<'a, ToWrite> {
    /// Opens a key to read and write it. Refuses a key of another type.
    #[inline(always)]
    pub fn to_write(key: Key<'a>) -> Result<Self, Refusal> {
        OpenKey::open(key, raw::REDISMODULE_READ | raw::REDISMODULE_WRITE)
    }

    /// The limiter that the key holds, to be changed.
    #[inline(always)]
    pub fn limiter_mut(&mut self) -> Option<&mut Limiter> {
        // SAFETY: as in `limiter`, and this borrow is the only one.
        unsafe { self.limiter.as_mut() }
    }

    /// The limiter that the key holds; if it is empty, `fresh`, which becomes one of `algorithm`.
    #[inline(always)]
    pub fn limiter_or<'s>(
        &'s mut self,
        fresh: &'s mut Option<Limiter>,
        algorithm: Algorithm,
    ) -> &'s mut Limiter {
        // SAFETY: as in `limiter_mut`.
        match unsafe { self.limiter.as_mut() } {
            Some(limiter) => limiter,
            None => fresh.insert(Limiter::new(algorithm)),
        }
    }

    /// Puts a limiter into the key, which is empty.
    #[cold]
    pub fn insert(&mut self, limiter: Limiter) -> Result<(), Refusal> {
        let limiter = Box::into_raw(Box::new(limiter));
        // SAFETY: the handle is open for writing. If the server takes the value it is the server's,
        // which gives it back to `free` once.
        let set = unsafe { api!(RedisModule_ModuleTypeSetValue(self.key, native_type(), limiter.cast())) };
        if set != raw::REDISMODULE_OK as c_int {
            // SAFETY: made above, and the server did not take it.
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

    /// Has the key expire at a time of the server's clock.
    pub fn expire_at(&mut self, at: UnixMs) {
        // SAFETY: the handle is open for writing.
        unsafe { api!(RedisModule_SetAbsExpire(self.key, at.get() as c_longlong)) };
    }
}

impl<'a, Mode> OpenKey<'a, Mode> {
    #[inline(always)]
    fn open(key: Key<'a>, mode: u32) -> Result<Self, Refusal> {
        let name = key.name();
        // SAFETY: context and name live as long as the call, and the handle no longer than that.
        let key = unsafe { (functions().open_key)(key.call().ctx(), name.string(), mode as c_int) };
        // A missing key has no handle when opened to be read.
        let mut open = OpenKey { key, limiter: null_mut(), name, mode: PhantomData };
        if key.is_null() {
            return Ok(open);
        }
        // SAFETY: the handle was opened just now. Values of our type are what `insert` and the
        // callbacks made: boxed limiters.
        unsafe {
            if (functions().module_type_get_type)(key) == native_type() {
                open.limiter = (functions().module_type_get_value)(key).cast();
            } else if api!(RedisModule_KeyType(key)) as isize != raw::REDISMODULE_KEYTYPE_EMPTY {
                return Err(Refusal::WRONG_TYPE);
            }
        }
        Ok(open)
    }

    /// Its name.
    #[inline(always)]
    pub fn name(&self) -> Arg<'a> {
        self.name
    }

    /// The limiter that the key holds.
    #[inline(always)]
    pub fn limiter(&self) -> Option<&Limiter> {
        // SAFETY: null, or a limiter of the server's that nobody else touches while the key is open;
        // changes need this handle mutably.
        unsafe { self.limiter.as_ref() }
    }

    /// When the key expires, by the server's clock; `None` if it never does.
    pub fn expires_at(&self) -> Option<UnixMs> {
        if self.limiter.is_null() {
            return None;
        }
        // SAFETY: the handle is open.
        let at = unsafe { api!(RedisModule_GetAbsExpire(self.key)) };
        // Negative: without a time to live.
        u64::try_from(at).ok().map(UnixMs::saturating)
    }
}

impl<Mode> Drop for OpenKey<'_, Mode> {
    #[inline(always)]
    fn drop(&mut self) {
        // SAFETY: the handle is closed once; the server accepts a null one.
        unsafe { (functions().close_key)(self.key) };
    }
}
