//! The native type `ratelimit`, and a safe handle on one key of it.
#![allow(unsafe_code)]

// Inlined for single commands: see `command::take`.

mod ffi;

use std::ffi::{c_int, c_longlong};
use std::marker::PhantomData;
use std::ops::Deref;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};

use redis_module::raw;

use crate::limiter::{Algorithm, Limiter, UnixMs};
use crate::request::{Distinct, Refusal, SmallList};
use crate::server::registration::{LoadFailed, Loading};
use crate::server::{Arg, Call, OK, api, functions, neighbors};

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
/// It keeps the call to itself until it is closed. So no other module runs and can delete the limiter, and this
/// handle has the limiter to itself.
pub struct OpenKey<'c, 'a, Mode> {
    handle: Handle<'a>,
    call: &'c mut Call<'a>,
    mode: PhantomData<Mode>,
}

/// The distinct keys of a call, all open for writing. Dropping it closes them.
///
/// It keeps the call to itself, like [`OpenKey`].
pub struct OpenKeys<'c, 'a> {
    handles: SmallList<Handle<'a>>,
    call: &'c mut Call<'a>,
}

/// The server's handle on an open key. One that is open for reading is never lent mutably. Only [`OpenKey`] and
/// [`OpenKeys`] hold one, and lend it: it is closed before they give back the call.
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

    /// Makes the key expire at `at` by the server's clock.
    pub fn expire_at(&mut self, at: UnixMs) {
        // SAFETY: the handle is open for writing.
        unsafe { api!(RedisModule_SetAbsExpire(self.key, at.get() as c_longlong)) };
    }
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

    /// The same, and again if it is empty.
    pub fn to_change(call: &'c mut Call<'a>, name: Arg<'a>) -> Result<Self, Refusal> {
        let key = OpenKey::to_write(call, name)?;
        if key.limiter().is_none() { key.open_again() } else { Ok(key) }
    }

    /// Closes a key that is empty, and opens it again if there are other modules.
    ///
    /// Opening it may have deleted an expired value. The server tells other modules so, and hides what they put there.
    pub fn open_again(self) -> Result<Self, Refusal> {
        if !neighbors::any() {
            return Ok(self);
        }
        let name = self.name();
        OpenKey::to_write(self.close(), name)
    }

    /// The handle, for changing the key.
    #[inline(always)]
    pub fn handle_mut(&mut self) -> &mut Handle<'a> {
        &mut self.handle
    }

    /// Stores a limiter in the empty key and closes it: meanwhile the server tells other modules of a new key,
    /// and they may do anything to it.
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

    /// Deletes the key and closes it: newer servers tell other modules.
    #[cold]
    pub fn delete(self) -> &'c mut Call<'a> {
        // SAFETY: the handle is open for writing; the limiter is not used again.
        unsafe { api!(RedisModule_DeleteKey(self.handle.key)) };
        self.close()
    }
}

impl<'c, 'a, Mode> OpenKey<'c, 'a, Mode> {
    /// The server may delete an expired value here, and tell other modules.
    #[inline(always)]
    fn open(call: &'c mut Call<'a>, name: Arg<'a>, mode: u32) -> Result<Self, Refusal> {
        // SAFETY: the key keeps the call to itself until the handle is closed.
        let handle = unsafe { Handle::open(call, name, mode) }?;
        Ok(OpenKey { handle, call, mode: PhantomData })
    }

    /// Closes the key, and returns the call.
    #[inline(always)]
    pub fn close(self) -> &'c mut Call<'a> {
        self.call
    }

    /// The call that opened it.
    #[inline(always)]
    pub fn call(&self) -> &Call<'a> {
        self.call
    }
}

impl<'c, 'a, Mode> Deref for OpenKey<'c, 'a, Mode> {
    type Target = Handle<'a>;

    #[inline(always)]
    fn deref(&self) -> &Handle<'a> {
        &self.handle
    }
}

impl<'c, 'a> OpenKeys<'c, 'a> {
    /// Opens keys for reading and writing. Refuses a value of another type.
    ///
    /// No other module runs once the first of them is open. Their names differ, so no two handles reach one limiter.
    pub fn to_write(call: &'c mut Call<'a>, names: &Distinct<Arg<'a>>) -> Result<Self, Refusal> {
        if neighbors::any() {
            // SAFETY: the keys keep the call to themselves until all handles are closed.
            if let Some(handles) = unsafe { open_unexpired(call, names) }? {
                return Ok(OpenKeys { handles, call });
            }
            delete_expired(call, names)?;
        }
        // SAFETY: the keys keep the call to themselves until all handles are closed.
        let handles = unsafe { open_all(call, names, WRITE) }?;
        Ok(OpenKeys { handles, call })
    }

    /// The handles, in the order of the names.
    pub fn handles(&mut self) -> &mut [Handle<'a>] {
        &mut self.handles
    }

    /// Closes the keys, and returns the call.
    pub fn close(self) -> &'c mut Call<'a> {
        self.call
    }
}

/// # Safety
///
/// The call is not used again until all handles are closed.
unsafe fn open_all<'a>(
    call: &mut Call<'a>,
    names: &Distinct<Arg<'a>>,
    mode: u32,
) -> Result<SmallList<Handle<'a>>, Refusal> {
    // SAFETY: the caller's promise.
    names.iter().map(|name| unsafe { Handle::open(call, *name, mode) }).collect()
}

/// Opens keys for writing if all hold a limiter that has not expired: then none is deleted, and no other module runs.
/// Always `None` on Redis 7.0, which deletes every expired key that it opens.
///
/// # Safety
///
/// The call is not used again until all handles are closed.
unsafe fn open_unexpired<'a>(
    call: &mut Call<'a>,
    names: &Distinct<Arg<'a>>,
) -> Result<Option<SmallList<Handle<'a>>>, Refusal> {
    // SAFETY: the function takes nothing, and only reads.
    let modes = unsafe { raw::RedisModule_GetOpenKeyModesAll.map_or(0, |modes| modes()) } as u32;
    if modes & raw::REDISMODULE_OPEN_KEY_NOEXPIRE == 0 {
        return Ok(None);
    }
    // SAFETY: the caller's promise.
    let handles = unsafe { open_all(call, names, WRITE | raw::REDISMODULE_OPEN_KEY_NOEXPIRE) }?;
    // The server shows an expired key as an empty one.
    Ok(handles.iter().all(|handle| handle.limiter().is_some()).then_some(handles))
}

/// Deletes expired keys, until none has expired and no other module has run: time stands still during a command.
fn delete_expired<'a>(call: &mut Call<'a>, names: &[Arg<'a>]) -> Result<(), Refusal> {
    let mut touch = || names.iter().try_for_each(|name| OpenKey::to_write(call, *name).map(drop));
    // More than once only if another module lets one of these keys expire.
    for _ in 0..=names.len() {
        if !neighbors::may_run_during(&mut touch)? {
            return Ok(());
        }
    }
    Err(Refusal::INTERNAL)
}
