//! Counts server instructions with valgrind's callgrind: nearly the same in every run, however busy the machine.

use std::cell::Cell;
use std::ffi::OsString;
use std::fs;
use std::ops::Deref;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::server::{Server, Setup};

const DUMPS: &str = "callgrind";

/// A cache of 32 kB for code, one for data, and one of 2 MB behind both.
const CACHE: [&str; 4] = ["--cache-sim=yes", "--I1=32768,8,64", "--D1=32768,8,64", "--LL=2097152,16,64"];

/// The events of a cache behind the first that does not have a line either: code, data read, data written.
const MISSES: [&str; 3] = ["ILmr", "DLmr", "DLmw"];

/// A server under callgrind, which counts only on request.
pub struct CountedServer {
    server: Server,
    dumps: Cell<u32>,
}

impl CountedServer {
    /// A server of this program, with these settings.
    pub fn start(setup: &Setup, program: &Path, settings: &[(&str, &str)]) -> Result<CountedServer> {
        CountedServer::start_with(&[], setup, program, settings)
    }

    /// A server with the [`CACHE`], the same on every machine.
    pub fn with_cache(setup: &Setup, program: &Path) -> Result<CountedServer> {
        CountedServer::start_with(&CACHE, setup, program, &[])
    }

    fn start_with(
        cache: &[&str],
        setup: &Setup,
        program: &Path,
        settings: &[(&str, &str)],
    ) -> Result<CountedServer> {
        let valgrind = |folder: &Path| -> Vec<OsString> {
            let mut out = OsString::from("--callgrind-out-file=");
            out.push(folder.join(DUMPS));
            // The server may be a script that starts the real one.
            let options = ["--tool=callgrind", "--instr-atstart=no", "--trace-children=yes"];
            ["valgrind"].iter().chain(&options).chain(cache).map(OsString::from).chain([out]).collect()
        };
        let server = Server::start_under(valgrind, setup, program, settings)?;
        Ok(CountedServer { server, dumps: Cell::new(0) })
    }

    /// An online replica of it, at full speed.
    pub fn replica(&self, setup: &Setup, program: &Path) -> Result<Server> {
        let replica = Server::start(setup, program, &[])?;
        replica.follow(&self.server);
        Ok(replica)
    }

    /// Instructions that the server takes for `work`.
    pub fn count(&self, work: impl FnOnce() -> Result<()>) -> Result<u64> {
        self.events(&["Ir"], work)
    }

    /// Lines of memory that the cache of 2 MB, empty at first, does not have when `work` uses them.
    pub fn misses(&self, work: impl FnOnce() -> Result<()>) -> Result<u64> {
        self.events(&MISSES, work)
    }

    fn events(&self, names: &[&str], work: impl FnOnce() -> Result<()>) -> Result<u64> {
        self.control(&["--instr=on"])?;
        let worked = work();
        self.control(&["--instr=off"])?;
        // Writes what was counted since the last dump.
        self.control(&["--dump"])?;
        self.dumps.set(self.dumps.get() + 1);
        worked?;
        let path = self.server.folder().join(format!("{DUMPS}.{}", self.dumps.get()));
        let dump = fs::read_to_string(&path).with_context(|| format!("no dump {}", path.display()))?;
        let words = |prefix| {
            let line = dump.lines().find_map(|line| line.strip_prefix(prefix));
            line.map(str::split_whitespace).with_context(|| format!("the dump has no {prefix}"))
        };
        let counts = words("events:")?.zip(words("totals:")?);
        counts.filter(|(name, _)| names.contains(name)).map(|(_, count)| Ok(count.parse::<u64>()?)).sum()
    }

    /// The least of three counts, since the server's other work can only add to it.
    pub fn least_of_three(&self, mut work: impl FnMut() -> Result<()>) -> Result<u64> {
        Ok(self.count(&mut work)?.min(self.count(&mut work)?).min(self.count(&mut work)?))
    }

    fn control(&self, args: &[&str]) -> Result<()> {
        let output =
            Command::new("callgrind_control").args(args).arg(self.server.pid().to_string()).output()?;
        ensure!(output.status.success(), "callgrind_control {args:?}: {output:?}");
        Ok(())
    }
}

impl Deref for CountedServer {
    type Target = Server;

    fn deref(&self) -> &Server {
        &self.server
    }
}
