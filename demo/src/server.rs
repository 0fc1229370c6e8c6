//! A server of the demo's own: on a free port of this machine, in a temporary folder, gone with
//! the value.

use std::env;
use std::fs::{self, File};
use std::io;
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use tempfile::TempDir;

/// How long the server may take to start.
const PATIENCE: Duration = Duration::from_secs(20);

/// A server with the module. Dropping it ends it.
pub struct Server {
    child: Child,
    port: u16,
    _folder: TempDir,
}

impl Server {
    /// Starts `REDIS_SERVER`, `redis-server` if that is not set, with the module in the file `module`.
    pub fn start(module: &Path) -> io::Result<Server> {
        let program = env::var_os("REDIS_SERVER").unwrap_or("redis-server".into());
        for _ in 0..10 {
            let folder = TempDir::with_prefix("redis-rl-demo-")?;
            let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
            let log = File::create(folder.path().join("log"))?;
            let child = Command::new(&program)
                .args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", "", "--dir"])
                .arg(folder.path())
                .arg("--loadmodule")
                .arg(module)
                .stdin(Stdio::null())
                .stdout(log.try_clone()?)
                .stderr(log)
                .spawn()
                .map_err(|error| {
                    io::Error::other(format!("{} does not start: {error}", program.display()))
                })?;
            let mut server = Server { child, port, _folder: folder };
            if server.is_up()? {
                return Ok(server);
            }
            let log = fs::read_to_string(server._folder.path().join("log")).unwrap_or_default();
            // Somebody else may have taken the port in the meantime.
            if !log.contains("Address already in use") {
                return Err(io::Error::other(format!("the server does not start:\n{log}")));
            }
        }
        Err(io::Error::other("there is no free port"))
    }

    /// Its port on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Waits until it listens; false if it ends before, or never does.
    fn is_up(&mut self) -> io::Result<bool> {
        let deadline = Instant::now() + PATIENCE;
        while self.child.try_wait()?.is_none() && Instant::now() < deadline {
            if TcpStream::connect(("127.0.0.1", self.port)).is_ok() {
                // Somebody else's server may have answered, and this one have ended for it.
                return Ok(self.child.try_wait()?.is_none());
            }
            thread::sleep(Duration::from_millis(10));
        }
        Ok(false)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
