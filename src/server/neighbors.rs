//! Other modules: whether there are any, and whether they may have run. They may change any key when they are told of an
//! event, and opening an expired key is one.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use redis_module::raw;

use super::registration::Loading;
use super::{MODULE_NAME, OK, api};

/// Whether another module is loaded, or was since this one.
static ANY: AtomicBool = AtomicBool::new(false);

/// How many keys have expired since, on servers that cannot open one quietly.
static EXPIRATIONS: AtomicU64 = AtomicU64::new(0);

/// Whether the server can open an expired key as if it were missing: Redis 7.2 and newer, and Valkey.
#[inline]
pub fn opens_quietly() -> bool {
    // SAFETY: the pointer is set once, while the module is loaded.
    let modes = unsafe { raw::RedisModule_GetOpenKeyModesAll.map_or(0, |all| all()) };
    modes as u32 & raw::REDISMODULE_OPEN_KEY_NOEXPIRE != 0
}

/// Whether another module may be told of events.
#[inline]
pub fn any() -> bool {
    ANY.load(Ordering::Relaxed)
}

/// Runs `f`. Returns whether another module may have run meanwhile, since a key has expired. Only for servers that
/// cannot open keys quietly.
pub fn may_run_during<E>(f: impl FnOnce() -> Result<(), E>) -> Result<bool, E> {
    let before = EXPIRATIONS.load(Ordering::Relaxed);
    f()?;
    Ok(EXPIRATIONS.load(Ordering::Relaxed) != before)
}

/// Looks for modules that are loaded already, and watches for others. Called like
/// [`listeners::watch`](super::listeners::watch).
pub fn watch(loading: &Loading) {
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
            expect_neighbors(loading.ctx);
        }
    }
}

/// # Safety
///
/// `ctx` is valid, and of this module.
unsafe fn expect_neighbors(ctx: *mut raw::RedisModuleCtx) {
    if !ANY.swap(true, Ordering::Relaxed) && !opens_quietly() {
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
            expect_neighbors(ctx);
        }
    }
}
