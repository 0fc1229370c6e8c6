//! Whether there are other modules, and whether they may have run. They may change any key when they are told of an event, and
//! that a key has expired, which the server finds out when the key is opened, is an event too.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::slice;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use redis_module::raw;

use super::context::Context;
use super::{MODULE_NAME, OK, api};

/// Modules that, by their sources, never write to a key while they are told of one. If no other is loaded, effects on several new
/// keys are sent in one command: see [`may_write`]. Nothing else depends on a name.
///
/// - `vectorset` of Redis 8 and `lua` of Valkey 9.1 ask to be told of no key.
/// - The official images of Redis 8 load four more. In their versions 8.0 to 8.10, `bf` and `ReJSON` ask to be told of no
///   key; `search` and `timeseries` update an index in memory. The same holds for the modules of Valkey that have two of
///   these names: `search` 1.0 to 1.2, and `bf`.
const HARMLESS: [&[u8]; 6] = [b"vectorset", b"lua", b"search", b"ReJSON", b"timeseries", b"bf"];

/// Whether another module is loaded, or was since this one.
static ANY: AtomicBool = AtomicBool::new(false);

/// Whether one of them is not [`HARMLESS`].
static MAY_WRITE: AtomicBool = AtomicBool::new(false);

/// How many keys have expired since another module was loaded.
static EXPIRATIONS: AtomicU64 = AtomicU64::new(0);

/// Whether no other module is told of events.
#[inline]
pub fn is_alone() -> bool {
    !ANY.load(Ordering::Relaxed)
}

/// Whether another module may write to a key while it is told of one.
pub fn may_write() -> bool {
    MAY_WRITE.load(Ordering::Relaxed)
}

/// Runs `f`, which opens keys. Returns whether a key has expired meanwhile, so that another module may have run.
pub fn may_run_during<E>(f: impl FnOnce() -> Result<(), E>) -> Result<bool, E> {
    let before = EXPIRATIONS.load(Ordering::Relaxed);
    f()?;
    Ok(EXPIRATIONS.load(Ordering::Relaxed) != before)
}

/// Looks for modules that are loaded already, and watches for others. Called like
/// [`listeners::watch`](super::listeners::watch).
pub fn watch(context: Context) {
    let event = raw::RedisModuleEvent { id: raw::REDISMODULE_EVENT_MODULE_CHANGE, dataver: 1 };
    // SAFETY: the context is valid; the callback lives as long as the module. MODULE LIST takes one word; its
    // reply is freed once.
    unsafe {
        let watched = api!(RedisModule_SubscribeToServerEvent(context.raw(), event, Some(on_change))) == OK;
        let list = api!(RedisModule_Call(context.raw(), c"MODULE".as_ptr(), c"c".as_ptr(), c"LIST".as_ptr()));
        if !watched || list.is_null() {
            expect_neighbor(context, b"");
        }
        // This module is not in the list yet.
        if !list.is_null() {
            for nth in 0..api!(RedisModule_CallReplyLength(list)) {
                expect_neighbor(context, name(list, nth));
            }
            api!(RedisModule_FreeCallReply(list));
        }
    }
}

/// The name of a module; nothing if it cannot be read.
///
/// # Safety
///
/// `list` is the reply of MODULE LIST: for each module an array or map, which begins with `name` and the name.
unsafe fn name<'a>(list: *mut raw::RedisModuleCallReply, nth: usize) -> &'a [u8] {
    // SAFETY: the caller's promise; elements live as long as the list, and the server accepts null.
    unsafe {
        let module = api!(RedisModule_CallReplyArrayElement(list, nth));
        let mut length = 0;
        let name = api!(RedisModule_CallReplyStringPtr(
            api!(RedisModule_CallReplyArrayElement(module, 1)),
            &mut length
        ));
        if name.is_null() { b"" } else { slice::from_raw_parts(name.cast(), length) }
    }
}

/// Expects that a module of this name may run from now on.
fn expect_neighbor(context: Context, name: &[u8]) {
    if !HARMLESS.contains(&name) {
        MAY_WRITE.store(true, Ordering::Relaxed);
    }
    if !ANY.swap(true, Ordering::Relaxed) {
        let class = raw::REDISMODULE_NOTIFY_EXPIRED as c_int;
        // SAFETY: the context is valid; the callback lives as long as the module.
        unsafe { api!(RedisModule_SubscribeToKeyspaceEvents(context.raw(), class, Some(on_expired))) };
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
        if name != MODULE_NAME {
            expect_neighbor(Context::new(ctx), name.to_bytes());
        }
    }
}
