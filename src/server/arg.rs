//! The arguments of a command.

use std::marker::PhantomData;
use std::slice;

use redis_module::raw;

use super::functions;

/// An argument: a server string that lives as long as the call.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub struct Arg<'a> {
    string: *mut raw::RedisModuleString,
    call: PhantomData<&'a ()>,
}

impl AsRef<[u8]> for Arg<'_> {
    #[inline(always)]
    fn as_ref(&self) -> &[u8] {
        self.bytes()
    }
}

impl<'a> Arg<'a> {
    #[inline(always)]
    pub fn bytes(self) -> &'a [u8] {
        let mut len = 0;
        // SAFETY: the string lives as long as the call, and its bytes do not change.
        unsafe {
            let bytes = (functions().string_ptr_len)(self.string, &mut len);
            slice::from_raw_parts(bytes.cast::<u8>(), len)
        }
    }

    #[inline(always)]
    pub(crate) fn server_string(self) -> *mut raw::RedisModuleString {
        self.string
    }
}
