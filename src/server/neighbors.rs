//! Whether another module is loaded, which may change any key when it is told of an event.

use std::ffi::{CStr, c_void};
use std::sync::atomic::{AtomicBool, Ordering};

use redis_module::raw;

use super::registration::Loading;
use super::{OK, api};

/// True until it is known.
static ANY: AtomicBool = AtomicBool::new(true);

/// Whether another module is loaded, or was since this one.
#[inline(always)]
pub fn any() -> bool {
    ANY.load(Ordering::Relaxed)
}

/// Looks for modules that are loaded already, and watches for others. Called like
/// [`listeners::watch`](super::listeners::watch).
pub fn watch(loading: &Loading) {
    let event = raw::RedisModuleEvent { id: raw::REDISMODULE_EVENT_MODULE_CHANGE, dataver: 1 };
    // SAFETY: the context is the loading one; the callback lives as long as the module. MODULE LIST takes one word; its
    // reply is freed once.
    unsafe {
        if api!(RedisModule_SubscribeToServerEvent(loading.ctx, event, Some(on_change))) != OK {
            return;
        }
        let list = api!(RedisModule_Call(loading.ctx, c"MODULE".as_ptr(), c"c".as_ptr(), c"LIST".as_ptr()));
        if !list.is_null() {
            // This module is not in the list yet.
            ANY.store(api!(RedisModule_CallReplyLength(list)) > 0, Ordering::Relaxed);
            api!(RedisModule_FreeCallReply(list));
        }
    }
}

unsafe extern "C" fn on_change(
    _ctx: *mut raw::RedisModuleCtx,
    _event: raw::RedisModuleEvent,
    _subevent: u64,
    data: *mut c_void,
) {
    // SAFETY: with this event the server passes the name of the module.
    let name = unsafe { CStr::from_ptr((*data.cast::<raw::RedisModuleModuleChange>()).module_name) };
    if name != super::MODULE_NAME {
        ANY.store(true, Ordering::Relaxed);
    }
}
