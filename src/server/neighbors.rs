//! Other modules: whether there are any, and whether they may have run. They may change any key when they are told of an
//! event, and opening an expired key is one.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::slice;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use redis_module::raw;

use super::registration::Loading;
use super::{MODULE_NAME, OK, api};

/// Modules that never write to a key while they are told of one, so that they count as parts of the server.
///
/// - `vectorset` of Redis 8 and `lua` of Valkey 9.1 ask to be told of no key.
/// - The official images of Redis 8 load four more. By the sources of their versions 8.0 to 8.10, `bf` and `ReJSON` ask to
///   be told of no key; `search` and `timeseries` update an index in memory, and open no key but the one that they are
///   told of. The same holds for the modules of Valkey that have two of these names: `search` 1.0 to 1.2, and `bf`.
const HARMLESS: [&[u8]; 6] = [b"vectorset", b"lua", b"search", b"ReJSON", b"timeseries", b"bf"];

/// Whether another module is loaded, or was since this one; those that are [`HARMLESS`] do not count.
static ANY: AtomicBool = AtomicBool::new(false);

/// How many keys have expired since.
static EXPIRATIONS: AtomicU64 = AtomicU64::new(0);

/// Whether another module may be told of events.
#[inline]
pub fn any() -> bool {
    ANY.load(Ordering::Relaxed)
}

/// Runs `f`, which opens keys. Returns whether another module may have run meanwhile, since a key has expired.
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
        let alone =
            !list.is_null() && (0..api!(RedisModule_CallReplyLength(list))).all(|nth| is_harmless(list, nth));
        if !list.is_null() {
            api!(RedisModule_FreeCallReply(list));
        }
        if !alone || !watched {
            expect_neighbors(loading.ctx);
        }
    }
}

/// Whether an element of MODULE LIST is [`HARMLESS`].
///
/// # Safety
///
/// `list` is the reply of MODULE LIST: for each module an array or map, which begins with `name` and the name.
unsafe fn is_harmless(list: *mut raw::RedisModuleCallReply, nth: usize) -> bool {
    // SAFETY: the caller's promise; elements live as long as the list, and the server accepts null.
    unsafe {
        let module = api!(RedisModule_CallReplyArrayElement(list, nth));
        let mut length = 0;
        let name = api!(RedisModule_CallReplyStringPtr(
            api!(RedisModule_CallReplyArrayElement(module, 1)),
            &mut length
        ));
        !name.is_null() && HARMLESS.contains(&slice::from_raw_parts(name.cast(), length))
    }
}

/// # Safety
///
/// `ctx` is valid, and of this module.
unsafe fn expect_neighbors(ctx: *mut raw::RedisModuleCtx) {
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
        let name = CStr::from_ptr((*data.cast::<raw::RedisModuleModuleChange>()).module_name);
        if name != MODULE_NAME && !HARMLESS.contains(&name.to_bytes()) {
            expect_neighbors(ctx);
        }
    }
}
