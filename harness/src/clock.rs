//! A server clock that changes only when the test sets it.

use std::fs;
use std::io;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::ptr;
use std::sync::atomic::{AtomicI64, Ordering};

/// Memory shared with a server, from which the preloaded `clock.c` reads the time.
pub(crate) struct Clock {
    file: PathBuf,
    unix_ms: &'static AtomicI64,
}

impl Clock {
    /// A clock set to this time, kept in `folder`.
    #[expect(unsafe_code, reason = "there is no safe way to share memory with another process")]
    pub fn at(unix_ms: i64, folder: &Path) -> io::Result<Clock> {
        let path = folder.join("clock");
        fs::write(&path, unix_ms.to_ne_bytes())?;
        let file = fs::File::options().read(true).write(true).open(&path)?;
        let (len, access) = (size_of::<AtomicI64>(), libc::PROT_READ | libc::PROT_WRITE);
        // SAFETY: a new mapping of the file's length, which is never unmapped and only accessed atomically.
        let unix_ms = unsafe {
            let memory = libc::mmap(ptr::null_mut(), len, access, libc::MAP_SHARED, file.as_raw_fd(), 0);
            if memory == libc::MAP_FAILED {
                return Err(io::Error::last_os_error());
            }
            &*memory.cast::<AtomicI64>()
        };
        Ok(Clock { file: path, unix_ms })
    }

    /// Sets the time.
    pub fn set(&self, unix_ms: i64) {
        self.unix_ms.store(unix_ms, Ordering::Relaxed);
    }

    /// Makes the server that `server` will start read this clock.
    pub fn preload_into(&self, server: &mut Command) {
        let library = Path::new(env!("OUT_DIR")).join("libclock.so");
        server.env("LD_PRELOAD", library).env("TEST_CLOCK", &self.file);
    }
}
