//! Whether there is an append-only file, a replica, or a backlog that one may come back to.
//!
//! Without any of them composing the command to be sent is most of what a request costs. A new
//! listener begins with a snapshot that a forked child writes, and needs every command from the
//! fork on: so whether there is one is looked up at every fork, and whenever a replica comes or
//! leaves, the role changes, or a setting does. In a cluster, where slots move too, it is always
//! assumed.

use std::ffi::{CStr, c_int, c_void};

use redis_module::raw;

use super::registration::Loading;
use super::{api, replication};

/// Looks up whether anybody listens, now and at every event after which that may have changed.
pub fn watch(loading: &Loading) {
    let events = [
        raw::REDISMODULE_EVENT_FORK_CHILD,
        raw::REDISMODULE_EVENT_REPLICA_CHANGE,
        raw::REDISMODULE_EVENT_REPLICATION_ROLE_CHANGED,
        raw::REDISMODULE_EVENT_CONFIG,
    ];
    let watched = events.into_iter().all(|id| {
        let event = raw::RedisModuleEvent { id, dataver: 1 };
        // SAFETY: the context is the loading one; the callback is there as long as the module.
        let status = unsafe { api!(RedisModule_SubscribeToServerEvent(loading.ctx, event, Some(on_event))) };
        status == raw::REDISMODULE_OK as c_int
    });
    // A server that does not tell is one that may always listen.
    if watched {
        // SAFETY: the context is the loading one.
        unsafe { look_for_listeners(loading.ctx) };
    }
}

unsafe extern "C" fn on_event(
    ctx: *mut raw::RedisModuleCtx,
    _event: raw::RedisModuleEvent,
    _subevent: u64,
    _data: *mut c_void,
) {
    // SAFETY: the server passes a context that is valid during the event.
    unsafe { look_for_listeners(ctx) };
}

/// # Safety
///
/// `ctx` is valid.
unsafe fn look_for_listeners(ctx: *mut raw::RedisModuleCtx) {
    let certain = raw::REDISMODULE_CTX_FLAGS_AOF | raw::REDISMODULE_CTX_FLAGS_CLUSTER;
    // SAFETY: the caller's promise; the info is freed once.
    let listened_to = unsafe {
        let flags = api!(RedisModule_GetContextFlags(ctx)) as u32;
        flags & certain != 0 || {
            let info = api!(RedisModule_GetServerInfo(ctx, c"replication".as_ptr()));
            let field = |name: &CStr| {
                let mut error = 0;
                let value = api!(RedisModule_ServerInfoGetFieldUnsigned(info, name.as_ptr(), &mut error));
                // A server that does not say so may well.
                value != 0 || error != 0
            };
            let listened_to = field(c"connected_slaves") || field(c"repl_backlog_active");
            api!(RedisModule_FreeServerInfo(ctx, info));
            listened_to
        }
    };
    replication::set_listened_to(listened_to);
}
