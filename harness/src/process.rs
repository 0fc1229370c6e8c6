//! A child process that never outlives its parent, and how to launch a server.

use std::env;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io;
use std::net::TcpListener;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use redis::RedisResult;
use tempfile::TempDir;

use crate::clock::Clock;
use crate::wait::PATIENCE;
use crate::wire;

/// A child process that writes to a log file. It is killed when this is dropped, and by the kernel when the
/// thread that started it ends, for whatever reason.
pub struct Process {
    child: Child,
    log: PathBuf,
}

impl Process {
    /// Starts the program. Truncates `log` first.
    #[expect(unsafe_code, reason = "there is no safe way to ask for a signal on the parent's death")]
    pub fn spawn(command: &mut Command, log: PathBuf) -> io::Result<Process> {
        let file = File::create(&log)?;
        command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file);
        // SAFETY: prctl may be called between fork and exec, and touches no memory.
        unsafe {
            command.pre_exec(|| {
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                Ok(())
            });
        }
        match command.spawn() {
            Ok(child) => Ok(Process { child, log }),
            Err(error) => Err(io::Error::other(format!("cannot run {:?}: {error}", command.get_program()))),
        }
    }

    /// The process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Whether it is still running.
    pub fn is_running(&mut self) -> bool {
        self.child.try_wait().expect("a child of ours").is_none()
    }

    /// Waits until it ends.
    pub fn wait(&mut self) -> ExitStatus {
        self.child.wait().expect("a child of ours")
    }

    /// Asks it to end.
    pub fn terminate(&self) {
        self.signal(libc::SIGTERM);
    }

    /// Stops it until [`Process::thaw`].
    pub fn freeze(&self) {
        self.signal(libc::SIGSTOP);
    }

    /// Lets it go on.
    pub fn thaw(&self) {
        self.signal(libc::SIGCONT);
    }

    #[expect(unsafe_code, reason = "there is no safe way to send a signal other than SIGKILL")]
    fn signal(&self, signal: i32) {
        // SAFETY: kill touches no memory; the process is a child that was not waited for yet.
        let sent = unsafe { libc::kill(self.id() as i32, signal) };
        assert_eq!(sent, 0, "the process runs");
    }

    /// Kills it and waits until it ends.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Its output so far.
    pub fn log(&self) -> String {
        String::from_utf8_lossy(&fs::read(&self.log).unwrap_or_default()).into_owned()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// How to launch a server: its command line without the port, and the folder for its files.
pub struct Launch {
    line: Vec<OsString>,
    folder: TempDir,
    pub(crate) clock: Option<Clock>,
}

impl Launch {
    /// A server without persistence.
    pub fn server() -> io::Result<Launch> {
        Launch::server_of(server_program())
    }

    /// A server without persistence that runs `program`.
    pub fn server_of(program: impl Into<OsString>) -> io::Result<Launch> {
        Ok(Launch::program(program.into())?.settings(&[("save", "")]))
    }

    /// A Sentinel with this configuration file.
    pub fn sentinel(configuration: &str) -> io::Result<Launch> {
        let mut launch = Launch::program(server_program())?;
        let file = launch.folder().join("sentinel.conf");
        fs::write(&file, configuration)?;
        launch.line.extend([file.into(), "--sentinel".into()]);
        Ok(launch)
    }

    fn program(program: OsString) -> io::Result<Launch> {
        Ok(Launch { line: vec![program], folder: TempDir::new()?, clock: None })
    }

    /// Adds settings.
    pub fn settings(self, settings: &[(&str, &str)]) -> Launch {
        settings.iter().fold(self, |launch, (name, value)| launch.setting(name, value))
    }

    /// Loads a module.
    pub fn module(self, path: &Path) -> Launch {
        self.setting("loadmodule", path)
    }

    /// Loads a module whose argument is its name.
    pub fn module_named(mut self, path: &Path, name: &str) -> Launch {
        self = self.module(path);
        self.line.push(name.into());
        self
    }

    fn setting(mut self, name: &str, value: impl AsRef<OsStr>) -> Launch {
        self.line.extend([format!("--{name}").into(), value.as_ref().to_owned()]);
        self
    }

    /// Gives the server a clock set to this Unix time in milliseconds, which changes only when the test sets it.
    pub fn clock_at(mut self, unix_ms: i64) -> io::Result<Launch> {
        self.clock = Some(Clock::at(unix_ms, self.folder())?);
        // That thread waits until a time of this clock, which is past by the system's: it would never sleep.
        Ok(self.setting("jemalloc-bg-thread", "no"))
    }

    /// Runs the server under another program, such as valgrind, in the same process.
    pub fn under(mut self, wrapper: impl IntoIterator<Item = OsString>) -> Launch {
        self.line.splice(0..0, wrapper);
        self
    }

    /// The folder for the server's files.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Starts the server on a port from `port`; asks for another while the port is in use.
    pub(crate) fn run(&self, port: impl Fn() -> u16) -> io::Result<(Process, u16)> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let port = port();
            let mut process = self.spawn(port)?;
            while process.is_running() && Instant::now() < deadline {
                if is_ready(&process, port).unwrap_or(false) {
                    return Ok((process, port));
                }
                thread::sleep(Duration::from_millis(5));
            }
            let log = process.log();
            if !log.contains("Address already in use") || Instant::now() > deadline {
                return Err(io::Error::other(format!("the server does not start:\n{log}")));
            }
        }
    }

    fn spawn(&self, port: u16) -> io::Result<Process> {
        let mut command = Command::new(&self.line[0]);
        command.args(&self.line[1..]).args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--dir"]);
        command.arg(self.folder());
        let has = |setting| self.line.iter().any(|word| word == setting);
        if has("--cluster-enabled") && !has("--cluster-port") {
            // The default, 10,000 above the port, may exceed 65535.
            command.args(["--cluster-port", &free_port().to_string()]);
        }
        if let Some(clock) = &self.clock {
            clock.preload_into(&mut command);
        }
        Process::spawn(&mut command, self.folder().join("log"))
    }
}

/// Whether the server has loaded its data, and the port belongs to this process.
fn is_ready(process: &Process, port: u16) -> RedisResult<bool> {
    let mut connection = wire::connect(port, "resp2")?;
    wire::command("PING").exec(&mut connection)?;
    Ok(wire::info(&mut connection, "process_id")? == Some(process.id().to_string()))
}

/// The program in `REDIS_SERVER`, or `redis-server`.
pub fn server_program() -> OsString {
    env::var_os("REDIS_SERVER").filter(|name| !name.is_empty()).unwrap_or("redis-server".into())
}

/// The redis-cli or valkey-cli beside that program, or else redis-cli on the PATH.
pub fn cli() -> PathBuf {
    let server = PathBuf::from(server_program());
    let name = server.file_name().unwrap_or_default().to_string_lossy().replace("-server", "-cli");
    let beside = server.with_file_name(name);
    let runs = Command::new(&beside).arg("--version").output().is_ok();
    if runs { beside } else { "redis-cli".into() }
}

/// A free port on 127.0.0.1.
pub fn free_port() -> u16 {
    let address = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
    address.expect("a free port").port()
}
