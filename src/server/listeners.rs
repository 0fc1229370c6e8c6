//! Whether anything listens to the replication stream: an append-only file, a replica, or a replication
//! backlog from which a replica may resume.
//!
//! Composing a command that nothing reads would cost half as much as a request. A new listener starts from
//! a snapshot written by a forked child and needs every command after the fork. So the module checks for
//! listeners at every fork, and when a replica connects or disconnects, the role changes or the
//! configuration changes. It assumes a listener in a cluster, since slots may migrate, and while the server
//! loads its data: until then the server does not tell whether it has an append-only file, and a snapshot that
//! it loads may leave it with a backlog. So the first check comes after that.

use std::ffi::{CStr, c_void};
use std::ptr::null_mut;
use std::sync::atomic::Ordering;

use redis_module::raw;

use super::registration::Loading;
use super::replication::LISTENED_TO;
use super::{OK, api};

/// Checks for listeners once the server has started, and at every event that may change the answer.
///
/// Called once nothing can fail any more: after a failed load, Redis 7.0 would still call these callbacks.
pub fn watch(loading: &Loading) {
    let events = [
        raw::REDISMODULE_EVENT_FORK_CHILD,
        raw::REDISMODULE_EVENT_REPLICA_CHANGE,
        raw::REDISMODULE_EVENT_REPLICATION_ROLE_CHANGED,
        raw::REDISMODULE_EVENT_CONFIG,
    ];
    let watched = events.into_iter().all(|id| {
        let event = raw::RedisModuleEvent { id, dataver: 1 };
        // SAFETY: the context is the loading one; the callback lives as long as the module.
        let status = unsafe { api!(RedisModule_SubscribeToServerEvent(loading.ctx, event, Some(on_event))) };
        status == OK
    });
    // Without the events, the module always assumes a listener.
    if watched {
        // The server runs timers only after it has loaded its data.
        // SAFETY: the context is the loading one; the callback lives as long as the module.
        unsafe { api!(RedisModule_CreateTimer(loading.ctx, 0, Some(on_start), null_mut())) };
    }
}

unsafe extern "C" fn on_start(ctx: *mut raw::RedisModuleCtx, _data: *mut c_void) {
    // SAFETY: the server passes a context that is valid during the call.
    unsafe { check_for_listeners(ctx) };
}

unsafe extern "C" fn on_event(
    ctx: *mut raw::RedisModuleCtx,
    _event: raw::RedisModuleEvent,
    _subevent: u64,
    _data: *mut c_void,
) {
    // SAFETY: the server passes a context that is valid during the event.
    unsafe { check_for_listeners(ctx) };
}

/// # Safety
///
/// `ctx` is valid.
unsafe fn check_for_listeners(ctx: *mut raw::RedisModuleCtx) {
    let certain_or_assumed = raw::REDISMODULE_CTX_FLAGS_AOF
        | raw::REDISMODULE_CTX_FLAGS_CLUSTER
        | raw::REDISMODULE_CTX_FLAGS_LOADING
        | raw::REDISMODULE_CTX_FLAGS_ASYNC_LOADING;
    // SAFETY: the caller's promise; the info is freed once.
    let listened_to = unsafe {
        let flags = api!(RedisModule_GetContextFlags(ctx)) as u32;
        flags & certain_or_assumed != 0 || {
            let info = api!(RedisModule_GetServerInfo(ctx, c"replication".as_ptr()));
            let field = |name: &CStr| {
                let mut error = 0;
                let value = api!(RedisModule_ServerInfoGetFieldUnsigned(info, name.as_ptr(), &mut error));
                // A missing field counts as a listener.
                value != 0 || error != 0
            };
            let listened_to = field(c"connected_slaves") || field(c"repl_backlog_active");
            api!(RedisModule_FreeServerInfo(ctx, info));
            listened_to
        }
    };
    LISTENED_TO.store(listened_to, Ordering::Relaxed);
}
