//! A module with one command, `FLOOR`, that does nothing and answers five integers: what any
//! command of a module costs before it does any work. The benchmarks measure against it.
#![allow(unsafe_code)]

use std::ffi::c_int;

use redis_module::raw;

/// Where the server enters the module to load it.
///
/// # Safety
///
/// For the server alone: `ctx` is the context that it made for this.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn RedisModule_OnLoad(
    ctx: *mut raw::RedisModuleCtx,
    _argv: *mut *mut raw::RedisModuleString,
    _argc: c_int,
) -> c_int {
    // SAFETY: `ctx` is what the server passed; the functions are those of Redis 7.0.
    unsafe {
        raw::Export_RedisModule_Init(ctx, c"floor".as_ptr(), 1, raw::REDISMODULE_APIVER_1 as c_int);
        let create = raw::RedisModule_CreateCommand.expect("CreateCommand");
        create(ctx, c"FLOOR".as_ptr(), Some(floor), c"write deny-oom fast".as_ptr(), 1, 1, 1)
    }
}

/// Answers what an allowed request is answered.
///
/// # Safety
///
/// For the server alone.
unsafe extern "C" fn floor(
    ctx: *mut raw::RedisModuleCtx,
    _argv: *mut *mut raw::RedisModuleString,
    _argc: c_int,
) -> c_int {
    // SAFETY: the context is valid during the call.
    unsafe {
        raw::RedisModule_ReplyWithArray.expect("ReplyWithArray")(ctx, 5);
        let integer = raw::RedisModule_ReplyWithLongLong.expect("ReplyWithLongLong");
        for figure in [0, 1_000_000, 999_999, -1, 60_000] {
            integer(ctx, figure);
        }
    }
    raw::REDISMODULE_OK as c_int
}
