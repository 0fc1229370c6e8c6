//! The module's section of INFO.

use std::ffi::{CStr, c_int, c_ulonglong};

use redis_module::raw;

use super::registration::{LoadFailed, Loading};
use super::{OK, allocator, api};
use crate::stats;

pub fn register(loading: &Loading) -> Result<(), LoadFailed> {
    // SAFETY: the context is valid; the callback lives as long as the module.
    let status = unsafe { api!(RedisModule_RegisterInfoFunc(loading.context.raw(), Some(add_section))) };
    if status == OK { Ok(()) } else { Err(LoadFailed) }
}

/// Adds the section to a reply, or to a crash report: reading counters is safe even then.
unsafe extern "C" fn add_section(ctx: *mut raw::RedisModuleInfoCtx, _for_crash_report: c_int) {
    const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "\0");
    let held = (c"memory_bytes", allocator::bytes_held() as u64);
    // SAFETY: the server passes a context that is valid during the call, and copies all texts.
    unsafe {
        // The server refuses a section that the caller of INFO has not asked for.
        if api!(RedisModule_InfoAddSection(ctx, c"stats".as_ptr())) != OK {
            return;
        }
        let version = CStr::from_bytes_with_nul(VERSION.as_bytes()).unwrap_or_default();
        api!(RedisModule_InfoAddFieldCString(ctx, c"version".as_ptr(), version.as_ptr()));
        for (name, figure) in stats::figures().chain([held]) {
            api!(RedisModule_InfoAddFieldULongLong(ctx, name.as_ptr(), figure as c_ulonglong));
        }
    }
}
