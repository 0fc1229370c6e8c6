//! All memory of the module is the server's, so that maxmemory, MEMORY USAGE and active defrag
//! see it.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

use redis_module::raw;

#[global_allocator]
static ALLOCATOR: ServerAllocator = ServerAllocator;

/// The server's allocator; the system's where no server is, in unit tests, fuzzers and benches.
///
/// A process uses one of them throughout: the module allocates nothing before it has the
/// server's functions.
struct ServerAllocator;

/// Bytes that the module holds. Limiters are also freed by the server's other threads.
static HELD: AtomicUsize = AtomicUsize::new(0);

/// Bytes that the module holds, its limiters and all else, without what `malloc` adds.
pub(super) fn bytes_held() -> usize {
    HELD.load(Ordering::Relaxed)
}

/// What the server's allocator aligns to, being `malloc`'s.
const ALIGNMENT: usize = 16;

// SAFETY: memory comes from and returns to the same allocator, see above. The server's ends the
// process rather than return null.
unsafe impl GlobalAlloc for ServerAllocator {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        HELD.fetch_add(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's layout is valid; a static of functions is written once, at load.
        unsafe {
            match raw::RedisModule_Alloc {
                Some(alloc) if layout.align() <= ALIGNMENT => alloc(padded(layout, layout.size())).cast(),
                // Nothing here is aligned to more: a refusal is better than a wrong address.
                Some(_) => std::ptr::null_mut(),
                None => System.alloc(layout),
            }
        }
    }

    #[inline]
    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        HELD.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: `memory` came from `alloc` or `realloc` with this layout.
        unsafe {
            match raw::RedisModule_Free {
                Some(free) => free(memory.cast()),
                None => System.dealloc(memory, layout),
            }
        }
    }

    #[inline]
    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        // Wrapping, so one addition is enough.
        HELD.fetch_add(new_size.wrapping_sub(layout.size()), Ordering::Relaxed);
        // SAFETY: `memory` came from `alloc` or `realloc` with this layout.
        unsafe {
            match raw::RedisModule_Realloc {
                Some(realloc) => realloc(memory.cast(), padded(layout, new_size)).cast(),
                None => System.realloc(memory, layout, new_size),
            }
        }
    }
}

/// `size` rounded up so that the size class that `malloc` picks has the layout's alignment.
#[inline]
fn padded(layout: Layout, size: usize) -> usize {
    size.next_multiple_of(layout.align())
}
