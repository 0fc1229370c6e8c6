//! Other modules on Redis 7.0, which tells them that a key has expired when it is opened.
//!
//! They may change any key then, also one that is open already. Newer servers can open a key without that, see
//! [`opens_quietly`], and nothing else here is needed on them.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use redis_module::raw;

use super::registration::Loading;
use super::{MODULE_NAME, OK, api};

/// Whether another module is loaded, or was since this one.
static ANY: AtomicBool = AtomicBool::new(false);

/// How many keys have expired since.
static EXPIRATIONS: AtomicU64 = AtomicU64::new(0);

/// Whether the server can open an expired key as if it were missing: Redis 7.2 and newer, and Valkey.
#[inline]
pub fn opens_quietly() -> bool {
    // SAFETY: the pointer is set once, while the module is loaded.
    let modes = unsafe { raw::RedisModule_GetOpenKeyModesAll.map_or(0, |all| all()) };
    modes as u32 & raw::REDISMODULE_OPEN_KEY_NOEXPIRE != 0
}

/// Whether another module may be told that a key has expired.
#[inline]
pub fn any() -> bool {
    ANY.load(Ordering::Relaxed)
}

/// Runs `f`. Returns whether another module may have run meanwhile, since a key has expired.
pub fn may_run_during<E>(f: impl FnOnce() -> Result<(), E>) -> Result<bool, E> {
    let before = EXPIRATIONS.load(Ordering::Relaxed);
    f()?;
    Ok(EXPIRATIONS.load(Ordering::Relaxed) != before)
}

/// Looks for modules that are loaded already, and watches for others. Called like
/// [`listeners::watch`](super::listeners::watch).
pub fn watch(loading: &Loading) {
    if opens_quietly() {
        return;
    }
    let event = raw::RedisModuleEvent { id: raw::REDISMODULE_EVENT_MODULE_CHANGE, dataver: 1 };
    // SAFETY: the context is the loading one; the callback lives as long as the module. MODULE LIST takes one word; its
    // reply is freed once.
    unsafe {
        let watched = api!(RedisModule_SubscribeToServerEvent(loading.ctx, event, Some(on_change))) == OK;
        let list = api!(RedisModule_Call(loading.ctx, c"MODULE".as_ptr(), c"c".as_ptr(), c"LIST".as_ptr()));
        // This module is not in the list yet.
        let alone = !list.is_null() && api!(RedisModule_CallReplyLength(list)) == 0;
        if !list.is_null() {
            api!(RedisModule_FreeCallReply(list));
        }
        if !alone || !watched {
            count_expirations(loading.ctx);
        }
    }
}

/// # Safety
///
/// `ctx` is valid, and of this module.
unsafe fn count_expirations(ctx: *mut raw::RedisModuleCtx) {
    if !ANY.swap(true, Ordering::Relaxed) {
        let class = raw::REDISMODULE_NOTIFY_EXPIRED as c_int;
        // SAFETY: the caller's promise; the callback lives as long as the module.
        unsafe { api!(RedisModule_SubscribeToKeyspaceEvents(ctx, class, Some(on_expired))) };
    }
}

unsafe extern "C" fn on_expired(
    _ctx: *mut raw::RedisModuleCtx,
    _class: c_int,
    _event: *const c_char,
    _key: *mut raw::RedisModuleString,
) -> c_int {
    EXPIRATIONS.fetch_add(1, Ordering::Relaxed);
    OK
}

unsafe extern "C" fn on_change(
    ctx: *mut raw::RedisModuleCtx,
    _event: raw::RedisModuleEvent,
    _subevent: u64,
    data: *mut c_void,
) {
    // SAFETY: with this event the server passes the name of the module, and a context of this one.
    unsafe {
        if CStr::from_ptr((*data.cast::<raw::RedisModuleModuleChange>()).module_name) != MODULE_NAME {
            count_expirations(ctx);
        }
    }
}
