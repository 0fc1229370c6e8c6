//! The native type `ratelimit`, and a safe handle on one key of it.
#![allow(unsafe_code)]

// What single commands call is inlined: see `command/take.rs`.

mod ffi;

use std::ffi::{c_int, c_longlong};
use std::marker::PhantomData;
use std::mem;
use std::ops::Deref;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};

use redis_module::raw;

use crate::server::registration::{LoadFailed, Loading};
use crate::server::{Arg, Call, OK, api, functions, neighbors};
use redis_rl_core::limiter::several::{Part, Parts};
use redis_rl_core::limiter::{Key, Limiter, UnixMs};
use redis_rl_core::request::Refusal;

/// The native type, set once while the module is loaded.
static TYPE: AtomicPtr<raw::RedisModuleType> = AtomicPtr::new(null_mut());

pub fn create_type(loading: &Loading) -> Result<(), LoadFailed> {
    // SAFETY: values of this type are boxed limiters, which is what the callbacks take.
    let created = unsafe { loading.create_type(ffi::NAME, ffi::ENCODING_VERSION, ffi::methods()) }?;
    TYPE.store(created, Ordering::Relaxed);
    Ok(())
}

fn native_type() -> *mut raw::RedisModuleType {
    TYPE.load(Ordering::Relaxed)
}

/// Marks an [`OpenKey`] that is open for reading.
pub struct ToRead;

/// Marks an [`OpenKey`] that is open for reading and writing.
pub struct ToWrite;

/// An open key, either empty or holding a limiter. Dropping it closes the key.
///
/// It borrows the call until it is closed. So no other module runs meanwhile, which could delete the limiter, and
/// no other handle reaches it.
pub struct OpenKey<'c, 'a, Access> {
    handle: Handle<'a>,
    call: &'c mut Call<'a>,
    access: PhantomData<Access>,
}

/// The keys of a call, all open for writing. Dropping it closes them. It borrows the call, as [`OpenKey`] does.
pub struct OpenKeys<'c, 'a, 'p, T> {
    parts: &'p mut [KeyPart<'a, T>],
    call: &'c mut Call<'a>,
}

/// A part of a call about several keys.
pub type KeyPart<'a, T> = Part<Arg<'a>, Handle<'a>, T>;

/// The server's handle on an open key. Only [`OpenKey`] and [`OpenKeys`] hold one. They lend it, mutably only if it is open for
/// writing, and close it before they give back the call.
pub struct Handle<'a> {
    key: *mut raw::RedisModuleKey,
    /// Null if the key is empty. Owned by the server, and valid until the key is closed.
    limiter: *mut Limiter,
    name: Arg<'a>,
}

impl Drop for Handle<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        // SAFETY: the handle is closed once; the server accepts null.
        unsafe { (functions().close_key)(self.key) };
    }
}

impl<'a> Handle<'a> {
    /// Opens a key. Refuses a value of another type.
    ///
    /// # Safety
    ///
    /// The call is not used until the handle is closed, except to open other keys.
    #[inline(always)]
    unsafe fn open(call: &mut Call<'a>, name: Arg<'a>, mode: u32) -> Result<Self, Refusal> {
        // SAFETY: context and name outlive the handle: they live as long as the call.
        let key = unsafe { (functions().open_key)(call.ctx(), name.server_string(), mode as c_int) };
        let mut handle = Handle { key, limiter: null_mut(), name };
        // The server returns null for a missing key that is opened for reading.
        if key.is_null() {
            return Ok(handle);
        }
        // SAFETY: the handle was just opened. Values of our type are boxed limiters, made by `insert` and
        // the callbacks.
        unsafe {
            if (functions().module_type_get_type)(key) == native_type() {
                handle.limiter = (functions().module_type_get_value)(key).cast();
            } else if api!(RedisModule_KeyType(key)) as isize != raw::REDISMODULE_KEYTYPE_EMPTY {
                return Err(Refusal::WRONG_TYPE);
            }
        }
        Ok(handle)
    }

    /// Opens an empty key for writing again if there are other modules. Opening it may have deleted an expired value, of which the
    /// server tells them. What they then put there would be overwritten: this handle does not show it.
    #[cold]
    fn open_again(self, call: &mut Call<'a>) -> Result<Self, Refusal> {
        if neighbors::is_alone() {
            return Ok(self);
        }
        let name = self.name;
        drop(self);
        // SAFETY: the caller opened this handle by the same call, and holds no other.
        unsafe { Handle::open(call, name, WRITE) }
    }

    #[inline(always)]
    pub fn name(&self) -> Arg<'a> {
        self.name
    }

    /// Sets when the key expires, by the server's clock.
    pub fn expire_at(&mut self, at: UnixMs) {
        // SAFETY: the handle is open for writing.
        unsafe { api!(RedisModule_SetAbsExpire(self.key, at.get() as c_longlong)) };
    }
}

impl Key for Handle<'_> {
    #[inline(always)]
    fn limiter(&self) -> Option<&Limiter> {
        // SAFETY: null, or a limiter that only this handle reaches while the key is open; changing it needs
        // the handle mutably.
        unsafe { self.limiter.as_ref() }
    }

    #[inline(always)]
    fn limiter_mut(&mut self) -> Option<&mut Limiter> {
        // SAFETY: as in `limiter`, and this borrow is the only one.
        unsafe { self.limiter.as_mut() }
    }

    fn expires_at(&self) -> Option<UnixMs> {
        if self.limiter.is_null() {
            return None;
        }
        // SAFETY: the handle is open.
        let at = unsafe { api!(RedisModule_GetAbsExpire(self.key)) };
        // It is negative if the key never expires.
        u64::try_from(at).ok().map(UnixMs::saturating)
    }
}

/// The mode in which opening an expired key does not delete it, so that no other module runs; 0 on Redis 7.0, which has none.
fn no_expire() -> u32 {
    // SAFETY: the function only tells which modes the server has.
    let modes = unsafe { raw::RedisModule_GetOpenKeyModesAll.map_or(0, |modes| modes()) } as u32;
    modes & raw::REDISMODULE_OPEN_KEY_NOEXPIRE
}

const WRITE: u32 = raw::REDISMODULE_READ | raw::REDISMODULE_WRITE;

impl<'c, 'a> OpenKey<'c, 'a, ToRead> {
    /// Opens a key for reading. Refuses a value of another type.
    #[inline]
    pub fn to_read(call: &'c mut Call<'a>, name: Arg<'a>) -> Result<Self, Refusal> {
        OpenKey::open(call, name, raw::REDISMODULE_READ)
    }
}

impl<'c, 'a> OpenKey<'c, 'a, ToWrite> {
    /// Opens a key for reading and writing. Refuses a value of another type.
    #[inline(always)]
    pub fn to_write(call: &'c mut Call<'a>, name: Arg<'a>) -> Result<Self, Refusal> {
        OpenKey::open(call, name, WRITE)
    }

    /// Opens a key as [`to_write`](Self::to_write) does, to store a limiter in it if it is empty.
    #[inline(always)]
    pub fn to_write_or_insert(call: &'c mut Call<'a>, name: Arg<'a>) -> Result<Self, Refusal> {
        // SAFETY: the key borrows the call until the handle is closed.
        let mut handle = unsafe { Handle::open(call, name, WRITE) }?;
        if handle.limiter.is_null() {
            handle = handle.open_again(call)?;
        }
        Ok(OpenKey { handle, call, access: PhantomData })
    }

    #[inline(always)]
    pub fn handle_mut(&mut self) -> &mut Handle<'a> {
        &mut self.handle
    }

    /// Stores a limiter in the empty key and closes it, since the server tells other modules of the new key, and they may do
    /// anything to it.
    #[cold]
    pub fn insert(self, limiter: Limiter) -> &'c mut Call<'a> {
        let limiter = Box::into_raw(Box::new(limiter));
        // SAFETY: the handle is open for writing. On success the server owns the value, and passes it to
        // `free` once.
        let set =
            unsafe { api!(RedisModule_ModuleTypeSetValue(self.handle.key, native_type(), limiter.cast())) };
        // The server refuses only a key that is not open for writing, or that is being iterated over.
        if set != OK {
            // SAFETY: the box was made above, and the server did not take it.
            drop(unsafe { Box::from_raw(limiter) });
        }
        self.close()
    }

    /// Marks the key as modified, deletes it, and closes it, since newer servers tell other modules of the deletion.
    ///
    /// The mark comes first: Redis 8.6 looks up a key that is marked. For one that is gone it would count a miss and publish
    /// `keymiss`; for one that is there it calls no other module.
    #[cold]
    pub fn delete(self) -> &'c mut Call<'a> {
        let name = self.name();
        self.call.signal_modified(name);
        // SAFETY: the handle is open for writing; the limiter is not used again.
        unsafe { api!(RedisModule_DeleteKey(self.handle.key)) };
        self.close()
    }
}

impl<'c, 'a, Access> OpenKey<'c, 'a, Access> {
    /// Opens a key. The server may delete an expired value now, and tell other modules.
    #[inline(always)]
    fn open(call: &'c mut Call<'a>, name: Arg<'a>, mode: u32) -> Result<Self, Refusal> {
        // SAFETY: the key borrows the call until the handle is closed.
        let handle = unsafe { Handle::open(call, name, mode) }?;
        Ok(OpenKey { handle, call, access: PhantomData })
    }

    /// Closes the key, and gives back the call.
    #[inline(always)]
    pub fn close(self) -> &'c mut Call<'a> {
        self.call
    }

    #[inline(always)]
    pub fn call(&self) -> &Call<'a> {
        self.call
    }
}

impl<'c, 'a, Access> Deref for OpenKey<'c, 'a, Access> {
    type Target = Handle<'a>;

    #[inline(always)]
    fn deref(&self) -> &Handle<'a> {
        &self.handle
    }
}

impl<'c, 'a, 'p, T> OpenKeys<'c, 'a, 'p, T> {
    /// Opens the keys of all parts for reading and writing, each once. Refuses a value of another type.
    ///
    /// No other module runs once the first of them is open. The names of parts differ, so no two handles reach one limiter.
    #[inline]
    pub fn to_write(
        call: &'c mut Call<'a>,
        parts: &'p mut Parts<Arg<'a>, Handle<'a>, T>,
    ) -> Result<Self, Refusal> {
        let mut keys = OpenKeys { parts, call };
        if !neighbors::is_alone() {
            let no_expire = no_expire();
            if no_expire != 0 {
                keys.open(WRITE | no_expire)?;
                // In this mode an expired key looks empty.
                if keys.parts.iter().all(|part| part.key.as_ref().is_none_or(|key| key.limiter().is_some())) {
                    return Ok(keys);
                }
                keys.close_all();
            }
            keys.delete_expired()?;
        }
        keys.open(WRITE)?;
        Ok(keys)
    }

    #[inline]
    fn open(&mut self, mode: u32) -> Result<(), Refusal> {
        for part in &mut *self.parts {
            // SAFETY: this borrows the call until all handles are closed.
            part.key = Some(unsafe { Handle::open(self.call, part.name, mode) }?);
        }
        Ok(())
    }

    /// Lets expired keys be deleted until no other module has run meanwhile. Then none expires any more, since time stands still
    /// during a command.
    fn delete_expired(&mut self) -> Result<(), Refusal> {
        // The second round finds no expired key, unless another module has set an expiry that is over.
        for _ in 0..=self.parts.len() {
            let touch =
                || self.parts.iter().try_for_each(|part| OpenKey::to_write(self.call, part.name).map(drop));
            if !neighbors::may_run_during(touch)? {
                return Ok(());
            }
        }
        Err(Refusal::INTERNAL)
    }

    pub fn parts(&mut self) -> &mut [KeyPart<'a, T>] {
        self.parts
    }

    /// Moves the expiries of what is in the keys, and closes them.
    #[inline]
    pub fn move_expiries_and_close(self) {
        for Part { key, pending, .. } in &mut *self.parts {
            if let (Some(at), false, Some(key)) = (pending.moved.expires, pending.emptied, &mut *key)
                && key.limiter().is_some()
            {
                key.expire_at(at);
            }
            *key = None;
        }
        // All are closed already.
        mem::forget(self);
    }

    fn close_all(&mut self) {
        for part in &mut *self.parts {
            part.key = None;
        }
    }
}

impl<T> Drop for OpenKeys<'_, '_, '_, T> {
    #[inline]
    fn drop(&mut self) {
        self.close_all();
    }
}
