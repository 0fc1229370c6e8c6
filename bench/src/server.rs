//! Servers to measure, with redis-rl and the floor loaded side by side.

use std::env;
use std::ffi::OsString;
use std::ops::Deref;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use harness::Launch;
use redis::Connection;

pub use harness::{clock_ms, command, info, pipeline};

/// What to measure, and how much: from the environment, and the modules beside this program.
#[derive(Clone)]
pub struct Setup {
    /// The servers' programs, at least one. Throughput, time and memory are measured on the first.
    pub servers: Vec<PathBuf>,
    /// redis-rl (`MODULE`, or the release build), the floor, and redis-cell if there is one.
    modules: Vec<PathBuf>,
    /// Whether `REDIS_CELL` names redis-cell.
    pub has_cell: bool,
    /// `BENCH_QUICK`: few rounds and small logs, to check that everything works.
    pub quick: bool,
    /// `BENCH_ONLY`: the only part to measure.
    only: Option<String>,
}

impl Setup {
    /// Reads the settings and finds the modules.
    pub fn from_env() -> Result<Setup> {
        let set = |name| env::var_os(name).filter(|value| !value.is_empty());
        let program = env::current_exe()?;
        let release = program.ancestors().nth(2).context("this program is in no folder")?.join("release");
        let cell = set("REDIS_CELL").map(PathBuf::from);
        let has_cell = cell.is_some();
        let module = set("MODULE").map_or(release.join("libredis_rl.so"), PathBuf::from);
        let modules = [module, release.join("libfloor.so")].into_iter().chain(cell);
        // Absolute paths, since the server loads them from its own folder.
        let absolute = |path: PathBuf| path.canonicalize().with_context(|| format!("no {}", path.display()));
        let modules = modules.map(absolute).collect::<Result<_>>()?;
        let servers = match set("BENCH_SERVERS") {
            Some(servers) => env::split_paths(&servers).collect(),
            None => vec![harness::server_program().into()],
        };
        let only = set("BENCH_ONLY").map(|part| part.to_string_lossy().into_owned());
        Ok(Setup { servers, modules, has_cell, quick: set("BENCH_QUICK").is_some(), only })
    }

    /// Whether to measure a part: `instructions`, `cache`, `throughput`, `logs` or `memory`.
    pub fn wants(&self, part: &str) -> bool {
        self.only.as_ref().is_none_or(|only| only == part)
    }

    /// `BENCH_ONLY=recorded`: to compare with the ratios that are recorded, and measure nothing else.
    pub fn is_check(&self) -> bool {
        self.only.as_deref() == Some("recorded")
    }

    /// The same with redis-rl alone.
    pub fn alone(&self) -> Setup {
        Setup { modules: self.modules[..1].to_vec(), has_cell: false, ..self.clone() }
    }

    /// The same with few rounds.
    pub fn quickly(&self) -> Setup {
        Setup { quick: true, ..self.clone() }
    }

    /// The module of no-ops.
    pub fn floor(&self) -> &Path {
        &self.modules[1]
    }

    /// The first server's program.
    pub fn first_server(&self) -> &Path {
        &self.servers[0]
    }

    /// `full`, or `quick` with `BENCH_QUICK`.
    pub fn size<T>(&self, full: T, quick: T) -> T {
        if self.quick { quick } else { full }
    }
}

/// A server. Dropping it stops it.
pub struct Server(harness::Server);

impl Server {
    /// A server of this program, with these settings.
    pub fn start(setup: &Setup, program: &Path, settings: &[(&str, &str)]) -> Result<Server> {
        Server::start_under(|_| Vec::new(), setup, program, settings)
    }

    /// The same under another program. `wrapper` returns its name and arguments, given the folder of the server's
    /// files.
    pub fn start_under(
        wrapper: impl FnOnce(&Path) -> Vec<OsString>,
        setup: &Setup,
        program: &Path,
        settings: &[(&str, &str)],
    ) -> Result<Server> {
        // Housekeeping is not part of a command's cost, so it runs only once a second.
        let quiet = [("hz", "1"), ("auto-aof-rewrite-percentage", "0")];
        let allowed = [("enable-debug-command", "local"), ("enable-module-command", "local")];
        let launch = Launch::server_of(program)?.settings(&quiet).settings(&allowed).settings(settings);
        let launch = setup.modules.iter().fold(launch, |launch, module| launch.module(module));
        let wrapper = wrapper(launch.folder());
        Ok(Server(launch.under(wrapper).start()?))
    }

    /// A new connection.
    pub fn connect(&self) -> Result<Connection> {
        Ok(self.0.try_connect()?)
    }

    /// Its name and version.
    pub fn version(&self) -> Result<String> {
        let mut connection = self.connect()?;
        Ok(match info(&mut connection, "valkey_version")? {
            Some(version) => format!("Valkey {version}"),
            None => format!("Redis {}", info(&mut connection, "redis_version")?.context("no version")?),
        })
    }
}

impl Deref for Server {
    type Target = harness::Server;

    fn deref(&self) -> &harness::Server {
        &self.0
    }
}

/// Deletes every key, and waits until its memory is freed: some servers do that in the background.
pub fn flush(connection: &mut Connection) -> Result<()> {
    Ok(redis::cmd("FLUSHALL").arg("SYNC").exec(connection)?)
}

/// Sends commands, none of which may fail.
pub fn send_all(connection: &mut Connection, lines: impl Iterator<Item = String>) -> Result<()> {
    let mut lines = lines.peekable();
    while lines.peek().is_some() {
        pipeline(lines.by_ref().take(10_000)).exec(connection)?;
    }
    Ok(())
}
