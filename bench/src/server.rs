//! Servers to measure: each on a free loopback port, in a temporary folder, with redis-rl and the
//! floor loaded side by side, and gone when this program is.

use std::env;
use std::ffi::OsString;
use std::fs::File;
use std::net::TcpListener;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use redis::Connection;
use tempfile::TempDir;

/// How long a server may take to start; under valgrind that is some seconds.
const PATIENCE: Duration = Duration::from_secs(120);

/// What is measured, and how much of it: from the environment, and from beside this program.
pub struct Setup {
    /// `REDIS_SERVER`, `redis-server` if it is not set.
    server: OsString,
    /// redis-rl, the floor, and redis-cell if there is one.
    modules: Vec<PathBuf>,
    /// Whether `REDIS_CELL` names redis-cell.
    pub has_cell: bool,
    /// `BENCH_QUICK`: few rounds and small logs, to see that everything works.
    pub quick: bool,
}

impl Setup {
    /// Reads the settings and finds the modules.
    pub fn from_env() -> Result<Setup> {
        let set = |name| env::var_os(name).filter(|value| !value.is_empty());
        let folder = env::current_exe()?.parent().context("a program has a folder")?.to_owned();
        let cell = set("REDIS_CELL").map(PathBuf::from);
        let has_cell = cell.is_some();
        let modules = [folder.join("libredis_rl.so"), folder.join("libfloor.so")].into_iter().chain(cell);
        // Absolute: the server loads them from its own folder.
        let absolute = |path: PathBuf| path.canonicalize().with_context(|| format!("no {}", path.display()));
        Ok(Setup {
            server: set("REDIS_SERVER").unwrap_or("redis-server".into()),
            modules: modules.map(absolute).collect::<Result<_>>()?,
            has_cell,
            quick: set("BENCH_QUICK").is_some(),
        })
    }

    /// `full`, or `quick` with `BENCH_QUICK`.
    pub fn size<T>(&self, full: T, quick: T) -> T {
        if self.quick { quick } else { full }
    }

    /// The server to run, as it was named.
    pub fn server(&self) -> &Path {
        Path::new(&self.server)
    }
}

/// A server. Dropping it ends it.
pub struct Server {
    child: Child,
    port: u16,
    folder: TempDir,
}

impl Server {
    /// A server with these settings.
    pub fn start(setup: &Setup, settings: &[(&str, &str)]) -> Result<Server> {
        Server::start_under(|_| Vec::new(), setup, settings)
    }

    /// The same under another program: `wrapper` is its name and arguments, given the folder that
    /// the server keeps its files in.
    pub fn start_under(
        wrapper: impl Fn(&Path) -> Vec<OsString>,
        setup: &Setup,
        settings: &[(&str, &str)],
    ) -> Result<Server> {
        for _ in 0..10 {
            let folder = TempDir::new()?;
            let mut line = wrapper(folder.path());
            line.push(setup.server.clone());
            let mut command = Command::new(&line[0]);
            command.args(&line[1..]);
            let server = Server::launch(command, folder, setup, settings)?;
            if let Ok(server) = server.once_it_answers()? {
                return Ok(server);
            }
        }
        bail!("no free port")
    }

    fn launch(
        mut command: Command,
        folder: TempDir,
        setup: &Setup,
        settings: &[(&str, &str)],
    ) -> Result<Server> {
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        command.args(["--bind", "127.0.0.1", "--port", &port.to_string(), "--dir"]).arg(folder.path());
        // Housekeeping is no part of what a command costs: once a second is enough.
        let base = [("save", ""), ("hz", "1"), ("auto-aof-rewrite-percentage", "0")];
        for (name, value) in base.iter().chain(settings) {
            command.arg(format!("--{name}")).arg(value);
        }
        for module in &setup.modules {
            command.arg("--loadmodule").arg(module);
        }
        let log = File::create(folder.path().join("log"))?;
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        end_with_this_program(&mut command);
        let child = command.spawn().with_context(|| format!("cannot run {:?}", command.get_program()))?;
        Ok(Server { child, port, folder })
    }

    /// The server when it answers, or `Err(PortTaken)` if somebody else was faster.
    fn once_it_answers(mut self) -> Result<Result<Server, PortTaken>> {
        let deadline = Instant::now() + PATIENCE;
        while Instant::now() < deadline && self.child.try_wait()?.is_none() {
            let ping = |mut connection| Ok(redis::cmd("PING").exec(&mut connection)?);
            if self.connect().and_then(ping).is_ok() {
                return Ok(Ok(self));
            }
            thread::sleep(Duration::from_millis(20));
        }
        let log = std::fs::read_to_string(self.folder().join("log"))?;
        if log.contains("Address already in use") { Ok(Err(PortTaken)) } else { bail!("no server:\n{log}") }
    }

    /// A new connection.
    pub fn connect(&self) -> Result<Connection> {
        Ok(redis::Client::open(("127.0.0.1", self.port))?.get_connection()?)
    }

    /// Its port on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Its process, or that of the program that it runs under.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The folder it keeps its files in.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }
}

/// Somebody else listens on the port.
struct PortTaken;

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Has the system end the process when this program ends, even if that is killed.
#[expect(unsafe_code, reason = "there is no safe way to ask for a signal on the parent's death")]
fn end_with_this_program(command: &mut Command) {
    // SAFETY: prctl may be called between fork and exec, and touches no memory.
    unsafe {
        command.pre_exec(|| {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
            Ok(())
        });
    }
}

/// A field of INFO, or nothing if this server has none of that name.
pub fn info(connection: &mut Connection, field: &str) -> Result<Option<String>> {
    let info: String = redis::cmd("INFO").arg("everything").query(connection)?;
    let value = info.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
    Ok(value.map(str::to_owned))
}

/// A command whose arguments are separated by spaces.
pub fn command(line: &str) -> redis::Cmd {
    let mut words = line.split(' ');
    let mut command = redis::cmd(words.next().unwrap_or_default());
    command.arg(words.collect::<Vec<_>>());
    command
}

/// The server's clock, in Unix milliseconds.
pub fn clock_ms(connection: &mut Connection) -> Result<u64> {
    let (seconds, micros): (u64, u64) = redis::cmd("TIME").query(connection)?;
    Ok(seconds * 1_000 + micros / 1_000)
}

/// Commands to be sent all at once, the arguments of each separated by spaces.
pub fn pipeline(lines: impl Iterator<Item = String>) -> redis::Pipeline {
    let mut pipeline = redis::pipe();
    for line in lines {
        pipeline.add_command(command(&line));
    }
    pipeline
}

/// Sends any number of commands, none of which may be answered with an error.
pub fn send_all(connection: &mut Connection, lines: impl Iterator<Item = String>) -> Result<()> {
    let mut lines = lines.peekable();
    while lines.peek().is_some() {
        pipeline(lines.by_ref().take(10_000)).exec(connection)?;
    }
    Ok(())
}
