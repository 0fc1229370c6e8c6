//! The functions of the server that every request calls, found once, when the module is loaded.
//!
//! Calling one of these takes one instruction; calling through `api!` takes four, as it fetches an
//! optional pointer from another crate and looks whether it is there.

use std::ffi::{c_char, c_int, c_long, c_longlong, c_void};
use std::mem::MaybeUninit;

use redis_module::raw::{self, RedisModuleCtx, RedisModuleKey, RedisModuleString, RedisModuleType};

/// See the server's documentation for each; the names are the server's.
pub(crate) struct Functions {
    pub open_key:
        unsafe extern "C" fn(*mut RedisModuleCtx, *mut RedisModuleString, c_int) -> *mut RedisModuleKey,
    pub close_key: unsafe extern "C" fn(*mut RedisModuleKey),
    pub module_type_get_type: unsafe extern "C" fn(*mut RedisModuleKey) -> *mut RedisModuleType,
    pub module_type_get_value: unsafe extern "C" fn(*mut RedisModuleKey) -> *mut c_void,
    pub string_ptr_len: unsafe extern "C" fn(*const RedisModuleString, *mut usize) -> *const c_char,
    pub signal_modified_key: unsafe extern "C" fn(*mut RedisModuleCtx, *mut RedisModuleString) -> c_int,
    pub replicate_verbatim: unsafe extern "C" fn(*mut RedisModuleCtx) -> c_int,
    pub reply_with_array: unsafe extern "C" fn(*mut RedisModuleCtx, c_long) -> c_int,
    pub reply_with_long_long: unsafe extern "C" fn(*mut RedisModuleCtx, c_longlong) -> c_int,
    pub milliseconds: unsafe extern "C" fn() -> c_longlong,
    /// Redis 7.2 and newer, and Valkey.
    pub cached_microseconds: Option<unsafe extern "C" fn() -> c_longlong>,
}

static mut FUNCTIONS: MaybeUninit<Functions> = MaybeUninit::uninit();

/// Finds the functions. `None` if the server lacks one.
///
/// # Safety
///
/// While the module is loaded and before any other use of this file, once the crate knows the
/// server's functions.
pub(super) unsafe fn find() -> Option<()> {
    let functions = &raw mut FUNCTIONS;
    // SAFETY: the crate's pointers were set before, and nobody else is here yet.
    unsafe {
        (*functions).write(Functions {
            open_key: raw::RedisModule_OpenKey?,
            close_key: raw::RedisModule_CloseKey?,
            module_type_get_type: raw::RedisModule_ModuleTypeGetType?,
            module_type_get_value: raw::RedisModule_ModuleTypeGetValue?,
            string_ptr_len: raw::RedisModule_StringPtrLen?,
            signal_modified_key: raw::RedisModule_SignalModifiedKey?,
            replicate_verbatim: raw::RedisModule_ReplicateVerbatim?,
            reply_with_array: raw::RedisModule_ReplyWithArray?,
            reply_with_long_long: raw::RedisModule_ReplyWithLongLong?,
            milliseconds: raw::RedisModule_Milliseconds?,
            cached_microseconds: raw::RedisModule_CachedMicroseconds,
        });
    }
    Some(())
}

/// The functions.
///
/// # Safety
///
/// Only once [`find`] has found them: in a command or a callback, which the server does not know
/// before.
#[inline(always)]
pub(crate) unsafe fn functions() -> &'static Functions {
    let functions = &raw const FUNCTIONS;
    // SAFETY: the caller's promise; they are not written again.
    unsafe { (*functions).assume_init_ref() }
}
