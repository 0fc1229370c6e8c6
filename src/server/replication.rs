//! What is sent to replicas and to the append-only file, and whether anybody takes it.

use std::cell::Cell;
use std::ffi::{CStr, c_char, c_int, c_longlong, c_void};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, Ordering};

use redis_module::raw;

use super::registration::Loading;
use super::{Call, api};
use crate::limiter::{Cost, UnixMs};

/// Whether there is an append-only file, a replica, or a backlog that one may come back to.
///
/// Without any of them composing the command to be sent is most of what a request costs. A new
/// listener begins with a snapshot that a forked child writes, and needs every command from the
/// fork on: so whether there is one is looked up at every fork, and whenever a replica comes or
/// goes, the role changes, or a setting does. In a cluster, where slots move too, it is always
/// assumed.
static LISTENED_TO: AtomicBool = AtomicBool::new(true);

/// Looks up whether anybody listens, now and at every event after which that may have changed.
pub(super) fn watch_for_listeners(loading: &Loading) {
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
    LISTENED_TO.store(listened_to, Ordering::Relaxed);
}

/// Sends what a call did, with its time: `command key limit window ... [COST n] FORCE AT ms`, the
/// first `tiers` pairs of the call.
#[inline(always)]
pub(super) fn replicate(call: &Call, command: &CStr, tiers: usize, cost: Cost, at: UnixMs) {
    if LISTENED_TO.load(Ordering::Relaxed) {
        send(call, command, tiers, cost, at);
    } else {
        // Goes nowhere, but counts as a change since the last RDB snapshot.
        call.replicate_verbatim();
    }
}

#[inline(never)]
fn send(call: &Call, command: &CStr, tiers: usize, cost: Cost, at: UnixMs) {
    let key_and_pairs = &call.args[1..2 + 2 * tiers];
    let (ctx, name): (_, *const c_char) = (call.ctx(), command.as_ptr());
    WORDS.with(|words| {
        let ([force, at_word], time) = (words.force_at(), words.time(at));
        // SAFETY: each format is followed by arguments of its types: s a string, v an array of
        // strings and its length, c a C string, l a long long. The server takes a share of each
        // string of ours and leaves us ours.
        unsafe {
            if let ([key, limit, window], Cost(1)) = (key_and_pairs, cost) {
                // String by string: for an array the server moves its own list to make room.
                let format = c"ssssss".as_ptr();
                api!(RedisModule_Replicate(ctx, name, format, *key, *limit, *window, force, at_word, time));
                return;
            }
            let (pairs, count) = (key_and_pairs.as_ptr(), key_and_pairs.len());
            if cost == Cost(1) {
                let format = c"vsss".as_ptr();
                api!(RedisModule_Replicate(ctx, name, format, pairs, count, force, at_word, time));
            } else {
                let (format, cost_word) = (c"vclsss".as_ptr(), c"COST".as_ptr());
                let cost = cost.0 as c_longlong;
                api!(RedisModule_Replicate(
                    ctx, name, format, pairs, count, cost_word, cost, force, at_word, time
                ));
            }
        }
    });
}

thread_local! {
    /// Commands run on one thread, the server's.
    static WORDS: Words = const { Words { force_at: Cell::new([null_mut(); 2]), time: Cell::new((UnixMs(0), null_mut())) } };
}

/// Strings that are sent again and again, kept so that they are made once.
struct Words {
    force_at: Cell<[*mut raw::RedisModuleString; 2]>,
    /// The last time sent: of a busy server's requests many fall into one millisecond.
    time: Cell<(UnixMs, *mut raw::RedisModuleString)>,
}

impl Words {
    fn force_at(&self) -> [*mut raw::RedisModuleString; 2] {
        if self.force_at.get()[0].is_null() {
            self.force_at.set([string(b"FORCE"), string(b"AT")]);
        }
        self.force_at.get()
    }

    fn time(&self, at: UnixMs) -> *mut raw::RedisModuleString {
        let (last, last_string) = self.time.get();
        if last == at && !last_string.is_null() {
            return last_string;
        }
        if !last_string.is_null() {
            // SAFETY: the string is ours, and replaced below.
            unsafe { api!(RedisModule_FreeString(null_mut(), last_string)) };
        }
        let time = string(at.0.to_string().as_bytes());
        self.time.set((at, time));
        time
    }
}

/// A string of the server's that lives until it is freed.
fn string(bytes: &[u8]) -> *mut raw::RedisModuleString {
    // SAFETY: the server copies the bytes; without a context nothing frees the string for us.
    unsafe { api!(RedisModule_CreateString(null_mut(), bytes.as_ptr().cast(), bytes.len())) }
}
