//! Whether anything listens to the replication stream: an append-only file, a replica, or a replication
//! backlog from which a replica may resume.
//!
//! Composing a command that nothing reads would cost half as much as a request. A new listener starts from
//! a snapshot written by a forked child and needs every command after the fork. So each fork makes the answer unknown, and so
//! does a replica that connects or disconnects, a change of the role or of the configuration, and the start and end of a load of
//! data, which may leave a backlog. The next command that counts finds out. It assumes a listener in a cluster, since slots
//! may migrate, and while the server loads its data, since the server does not tell then whether it has an append-only file.

use std::ffi::{CStr, c_void};
use std::sync::atomic::{AtomicBool, Ordering};

use redis_module::raw;

use super::context::Context;
use super::{OK, api};

/// Whether anything may listen, as far as is known. A request reads this flag alone, and the other only in [`may_listen`], which
/// is not inlined: to read both takes 3 % more instructions (`make bench`).
pub(super) static LISTENED_TO: AtomicBool = AtomicBool::new(true);

/// Whether that is known.
static KNOWN: AtomicBool = AtomicBool::new(true);

/// Whether anything may listen: asks the server if that is unknown.
#[inline(never)]
pub(super) fn may_listen(context: Context) -> bool {
    LISTENED_TO.load(Ordering::Relaxed) && (KNOWN.load(Ordering::Relaxed) || find_out(context))
}

/// Makes the answer unknown: until a request finds out, something may listen.
fn forget() {
    LISTENED_TO.store(true, Ordering::Relaxed);
    KNOWN.store(false, Ordering::Relaxed);
}

/// Makes the answer unknown from now on, at every event that may change it. Without these events, a listener is always assumed.
///
/// Called once nothing can fail any more: after a failed load, Redis 7.0 would still call the callback. The module finds out
/// later and has no timer: Redis 8 crashes if it gives up the load of a module that has one.
pub fn watch(context: Context) {
    let events = [
        raw::REDISMODULE_EVENT_FORK_CHILD,
        raw::REDISMODULE_EVENT_REPLICA_CHANGE,
        raw::REDISMODULE_EVENT_REPLICATION_ROLE_CHANGED,
        raw::REDISMODULE_EVENT_CONFIG,
        raw::REDISMODULE_EVENT_LOADING,
    ];
    let watched = events.into_iter().all(|id| {
        let event = raw::RedisModuleEvent { id, dataver: 1 };
        // SAFETY: the context is valid; the callback lives as long as the module.
        unsafe { api!(RedisModule_SubscribeToServerEvent(context.raw(), event, Some(on_event))) == OK }
    });
    if watched {
        forget();
    }
}

unsafe extern "C" fn on_event(
    _ctx: *mut raw::RedisModuleCtx,
    _event: raw::RedisModuleEvent,
    _subevent: u64,
    _data: *mut c_void,
) {
    forget();
}

/// Asks the server, and assumes a listener while it loads its data: the end of that is an event.
#[cold]
fn find_out(context: Context) -> bool {
    let certain_or_assumed = raw::REDISMODULE_CTX_FLAGS_AOF
        | raw::REDISMODULE_CTX_FLAGS_CLUSTER
        | raw::REDISMODULE_CTX_FLAGS_LOADING
        | raw::REDISMODULE_CTX_FLAGS_ASYNC_LOADING;
    // SAFETY: the context is valid.
    let flags = unsafe { api!(RedisModule_GetContextFlags(context.raw())) } as u32;
    let some = flags & certain_or_assumed != 0 || has_replica_or_backlog(context);
    LISTENED_TO.store(some, Ordering::Relaxed);
    KNOWN.store(true, Ordering::Relaxed);
    some
}

fn has_replica_or_backlog(context: Context) -> bool {
    // SAFETY: the context is valid; the info is freed once.
    unsafe {
        let info = api!(RedisModule_GetServerInfo(context.raw(), c"replication".as_ptr()));
        let field = |name: &CStr| {
            let mut error = 0;
            let value = api!(RedisModule_ServerInfoGetFieldUnsigned(info, name.as_ptr(), &mut error));
            // A missing field counts as a listener.
            value != 0 || error != 0
        };
        let some = field(c"connected_slaves") || field(c"repl_backlog_active");
        api!(RedisModule_FreeServerInfo(context.raw(), info));
        some
    }
}
