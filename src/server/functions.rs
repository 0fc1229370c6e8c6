//! The server functions that every request calls on keys, arguments and replies, looked up once when the module is loaded.
//!
//! Calling one takes one instruction. `api!` takes four: it loads an optional pointer from another crate and
//! checks it. That is 1.1 % of an allowed RL.FIXED, and 1.7 % of what a server takes to
//! load an RL.ALL of three keys from an append-only file (`make check-instructions`).

use std::ffi::{c_char, c_int, c_long, c_longlong, c_void};
use std::mem::MaybeUninit;

use redis_module::raw::{self, RedisModuleCtx, RedisModuleKey, RedisModuleString, RedisModuleType};

/// The functions, under the names that they have in the server's documentation.
pub(crate) struct Functions {
    pub open_key:
        unsafe extern "C" fn(*mut RedisModuleCtx, *mut RedisModuleString, c_int) -> *mut RedisModuleKey,
    pub close_key: unsafe extern "C" fn(*mut RedisModuleKey),
    pub module_type_get_type: unsafe extern "C" fn(*mut RedisModuleKey) -> *mut RedisModuleType,
    pub module_type_get_value: unsafe extern "C" fn(*mut RedisModuleKey) -> *mut c_void,
    pub string_ptr_len: unsafe extern "C" fn(*const RedisModuleString, *mut usize) -> *const c_char,
    pub signal_modified_key: unsafe extern "C" fn(*mut RedisModuleCtx, *mut RedisModuleString) -> c_int,
    pub replicate_verbatim: unsafe extern "C" fn(*mut RedisModuleCtx) -> c_int,
    pub get_notify_keyspace_events: unsafe extern "C" fn() -> c_int,
    pub reply_with_array: unsafe extern "C" fn(*mut RedisModuleCtx, c_long) -> c_int,
    pub reply_with_long_long: unsafe extern "C" fn(*mut RedisModuleCtx, c_longlong) -> c_int,
}

static mut FUNCTIONS: MaybeUninit<Functions> = MaybeUninit::uninit();

/// Looks up the functions. `None` if the server lacks one.
///
/// # Safety
///
/// Called once while the module is loaded, after the crate's pointers were set and before [`functions`].
pub(super) unsafe fn find() -> Option<()> {
    let functions = &raw mut FUNCTIONS;
    // SAFETY: the caller's promise: the crate's pointers are set, and nothing else reads the functions yet.
    unsafe {
        (*functions).write(Functions {
            open_key: raw::RedisModule_OpenKey?,
            close_key: raw::RedisModule_CloseKey?,
            module_type_get_type: raw::RedisModule_ModuleTypeGetType?,
            module_type_get_value: raw::RedisModule_ModuleTypeGetValue?,
            string_ptr_len: raw::RedisModule_StringPtrLen?,
            signal_modified_key: raw::RedisModule_SignalModifiedKey?,
            replicate_verbatim: raw::RedisModule_ReplicateVerbatim?,
            get_notify_keyspace_events: raw::RedisModule_GetNotifyKeyspaceEvents?,
            reply_with_array: raw::RedisModule_ReplyWithArray?,
            reply_with_long_long: raw::RedisModule_ReplyWithLongLong?,
        });
    }
    Some(())
}

/// The functions that [`find`] looked up.
///
/// # Safety
///
/// Called only after [`find`] succeeded. That holds in every command and callback, since they are registered
/// later.
#[inline(always)]
pub(crate) unsafe fn functions() -> &'static Functions {
    let functions = &raw const FUNCTIONS;
    // SAFETY: the caller's promise; nothing writes them again.
    unsafe { (*functions).assume_init_ref() }
}
