//! A server's clock that stands still until the test sets it.

use std::env;
use std::fs;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::{self, Command};
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicI64, Ordering};

/// Memory that a server reads its time from; see `clock.c`, which is preloaded into it.
pub struct Clock {
    file: PathBuf,
    unix_ms: &'static AtomicI64,
}

impl Clock {
    /// A clock that stands at this time, kept in `folder`.
    #[expect(unsafe_code, reason = "there is no safe way to share memory with another process")]
    pub fn at(unix_ms: i64, folder: &Path) -> Clock {
        let path = folder.join("clock");
        fs::write(&path, unix_ms.to_ne_bytes()).expect("a file for the clock");
        let file = fs::File::options().read(true).write(true).open(&path).expect("the clock's file");
        let (len, access) = (size_of::<AtomicI64>(), libc::PROT_READ | libc::PROT_WRITE);
        // SAFETY: a new mapping, as long as the file, that is never unmapped and used atomically.
        let unix_ms = unsafe {
            let memory = libc::mmap(ptr::null_mut(), len, access, libc::MAP_SHARED, file.as_raw_fd(), 0);
            assert_ne!(memory, libc::MAP_FAILED, "memory for the clock");
            &*memory.cast::<AtomicI64>()
        };
        Clock { file: path, unix_ms }
    }

    /// Moves it to this time.
    pub fn set(&self, unix_ms: i64) {
        self.unix_ms.store(unix_ms, Ordering::Relaxed);
    }

    /// Has a server that is about to be started go by it.
    pub fn rule(&self, server: &mut Command) {
        server.env("LD_PRELOAD", library()).env("TEST_CLOCK", &self.file);
    }
}

/// `clock.c`, compiled.
fn library() -> &'static Path {
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    LIBRARY.get_or_init(|| {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/harness/clock.c");
        let library = Path::new(env!("CARGO_TARGET_TMPDIR")).join("libclock.so");
        // Gets its name when it is complete: servers of another run may be using it.
        let unfinished = library.with_extension(process::id().to_string());
        let mut compiler = Command::new(env::var_os("CC").unwrap_or("cc".into()));
        compiler.args(["-shared", "-fPIC", "-O1", "-D_GNU_SOURCE", "-o"]).arg(&unfinished).arg(source);
        assert!(compiler.status().expect("a C compiler").success(), "clock.c does not compile");
        fs::rename(unfinished, &library).expect("a file of ours");
        library
    })
}
