//! The server's context, which most of its functions take.

use std::marker::PhantomData;

use redis_module::raw;

/// The context that the server passes for a command, an event or the load of the module: valid as long as that lasts.
#[derive(Clone, Copy)]
pub struct Context<'a> {
    ctx: *mut raw::RedisModuleCtx,
    valid: PhantomData<&'a ()>,
}

impl Context<'_> {
    /// # Safety
    ///
    /// The server passed `ctx`, and it is valid for the lifetime of the value.
    #[inline(always)]
    pub(super) unsafe fn new(ctx: *mut raw::RedisModuleCtx) -> Self {
        Context { ctx, valid: PhantomData }
    }

    #[inline(always)]
    pub(crate) fn raw(self) -> *mut raw::RedisModuleCtx {
        self.ctx
    }
}
