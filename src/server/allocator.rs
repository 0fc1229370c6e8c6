//! Allocates all memory through the server, so that maxmemory, MEMORY USAGE and active defrag see it.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

use redis_module::raw;

#[global_allocator]
static ALLOCATOR: ServerAllocator = ServerAllocator;

/// The server's allocator, or the system's where there is no server: in unit tests, fuzzers and benches.
///
/// A process uses only one of them: the module allocates nothing before it knows the server's functions.
struct ServerAllocator;

/// Bytes that the module has allocated, without the overhead of `malloc`. Atomic, since the server frees limiters on other
/// threads too.
static HELD: AtomicUsize = AtomicUsize::new(0);

pub(super) fn bytes_held() -> usize {
    HELD.load(Ordering::Relaxed)
}

/// The alignment that the server's allocator guarantees, as `malloc` does.
const ALIGNMENT: usize = 16;

/// Whether the server's allocator keeps that promise.
///
/// A server that notes the size before each block does not: one that was built with `MALLOC=libc` on musl, say.
pub(super) fn is_aligned() -> bool {
    let Ok(layout) = Layout::from_size_align(ALIGNMENT, 1) else { return false };
    // SAFETY: the layout has a size, and the memory is freed once, by the same layout.
    unsafe {
        let memory = ALLOCATOR.alloc(layout);
        ALLOCATOR.dealloc(memory, layout);
        memory.addr().is_multiple_of(ALIGNMENT)
    }
}

// SAFETY: memory is freed by the allocator that it came from, see above. The server's aborts the process
// rather than return null.
unsafe impl GlobalAlloc for ServerAllocator {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        HELD.fetch_add(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's layout is valid; a static of functions is written once, at load.
        unsafe {
            match raw::RedisModule_Alloc {
                Some(alloc) if layout.align() <= ALIGNMENT => alloc(padded(layout, layout.size())).cast(),
                // No type of the module needs more. If one did, failing would be better than a misaligned address.
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
        // If it shrinks, the difference wraps, and so does the sum, which is right again.
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

/// `size` rounded up, so that `malloc` picks a size class with the layout's alignment.
#[inline]
fn padded(layout: Layout, size: usize) -> usize {
    size.next_multiple_of(layout.align())
}
