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

/// The file of the module whose own instructions are counted.
const MODULE: &str = "/libredis_rl.so";

/// A cache of 32 kB for code, one for data, and one of 2 MB behind both.
const CACHE: [&str; 4] = ["--cache-sim=yes", "--I1=32768,8,64", "--D1=32768,8,64", "--LL=2097152,16,64"];

/// The events of a cache behind the first that does not have a line either: code, data read, data written.
const MISSES: [&str; 3] = ["ILmr", "DLmr", "DLmw"];

/// Instructions of a server.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Instructions {
    /// All of them.
    pub all: f64,
    /// Those in the code of the module.
    pub own: f64,
}

impl Instructions {
    /// The less of each.
    pub fn least(self, other: Instructions) -> Instructions {
        Instructions { all: self.all.min(other.all), own: self.own.min(other.own) }
    }

    /// The same for one of so many requests.
    pub fn each(self, requests: usize) -> Instructions {
        Instructions { all: self.all / requests as f64, own: self.own / requests as f64 }
    }
}

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
    pub fn count(&self, work: impl FnOnce() -> Result<()>) -> Result<Instructions> {
        let dump = self.dump(work)?;
        Ok(Instructions { all: total(&dump, &["Ir"])? as f64, own: in_module(&dump)? as f64 })
    }

    /// Lines of memory that the cache of 2 MB, empty at first, does not have when `work` uses them.
    pub fn misses(&self, work: impl FnOnce() -> Result<()>) -> Result<u64> {
        total(&self.dump(work)?, &MISSES)
    }

    /// What callgrind writes about `work`.
    fn dump(&self, work: impl FnOnce() -> Result<()>) -> Result<String> {
        self.control(&["--instr=on"])?;
        let worked = work();
        self.control(&["--instr=off"])?;
        // Writes what was counted since the last dump.
        self.control(&["--dump"])?;
        self.dumps.set(self.dumps.get() + 1);
        worked?;
        let path = self.server.folder().join(format!("{DUMPS}.{}", self.dumps.get()));
        fs::read_to_string(&path).with_context(|| format!("no dump {}", path.display()))
    }

    /// The least of three counts, since the server's other work can only add to it.
    pub fn least_of_three(&self, mut work: impl FnMut() -> Result<()>) -> Result<Instructions> {
        Ok(self.count(&mut work)?.least(self.count(&mut work)?).least(self.count(&mut work)?))
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

/// The sum of these events in a dump.
fn total(dump: &str, names: &[&str]) -> Result<u64> {
    let words = |prefix| {
        let line = dump.lines().find_map(|line| line.strip_prefix(prefix));
        line.map(str::split_whitespace).with_context(|| format!("the dump has no {prefix}"))
    };
    let counts = words("events:")?.zip(words("totals:")?);
    counts.filter(|(name, _)| names.contains(name)).map(|(_, count)| Ok(count.parse::<u64>()?)).sum()
}

/// The sum of the first event, instructions, in the code of the [`MODULE`]. After `ob=` a dump lists what that file costs, in lines of
/// an address and figures. A line after `calls=` is what a called function costs: that is listed where the function is.
fn in_module(dump: &str) -> Result<u64> {
    let (mut modules, mut counts, mut is_called, mut sum) = (Vec::new(), false, false, 0);
    for line in dump.lines() {
        if let Some(file) = line.strip_prefix("ob=") {
            // A number, and the name where it first stands.
            let number = file.split_whitespace().next().unwrap_or_default();
            if file.ends_with(MODULE) {
                modules.push(number);
            }
            counts = modules.contains(&number);
        } else if let Some(file) = line.strip_prefix("cob=") {
            modules.extend(file.split_whitespace().next().filter(|_| file.ends_with(MODULE)));
        } else if line.starts_with("calls=") {
            is_called = true;
        } else if line.starts_with(|first: char| first.is_ascii_digit() || "+-*".contains(first)) {
            if counts && !is_called {
                sum += line.split_whitespace().nth(1).context("a line has no figure")?.parse::<u64>()?;
            }
            is_called = false;
        }
    }
    Ok(sum)
}
