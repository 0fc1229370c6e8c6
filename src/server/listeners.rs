//! Whether anything listens to the replication stream: an append-only file, a replica, or a replication
//! backlog from which a replica may resume.
//!
//! Composing a command that nothing reads would be most of the cost of a request. A new listener starts from
//! a snapshot written by a forked child and needs every command after the fork. So the module checks for
//! listeners at every fork, and when a replica connects or disconnects, the role changes or the
//! configuration changes. In a cluster it always assumes one, since slots migrate; and while the server
//! loads, since it hides its append-only file until it has loaded it.

use std::ffi::{CStr, c_void};

use redis_module::raw;

use super::registration::Loading;
use super::{OK, api, replication};

/// Checks for listeners now, and at every event that may change the answer.
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
    // Without the events, always assume a listener.
    if watched {
        // SAFETY: the context is the loading one.
        unsafe { check_for_listeners(loading.ctx) };
    }
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
    replication::set_listened_to(listened_to);
}
