//! Counts server instructions with valgrind's callgrind: nearly the same in every run, however busy the machine.

use std::cell::Cell;
use std::ffi::OsString;
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use redis::Connection;

use crate::server::{Server, Setup};

const DUMPS: &str = "callgrind";

/// A server under callgrind, which counts only on request.
pub struct CountedServer {
    server: Server,
    dumps: Cell<u32>,
}

impl CountedServer {
    /// A server of this program, with these settings.
    pub fn start(setup: &Setup, program: &Path, settings: &[(&str, &str)]) -> Result<CountedServer> {
        let valgrind = |folder: &Path| -> Vec<OsString> {
            let mut out = OsString::from("--callgrind-out-file=");
            out.push(folder.join(DUMPS));
            // The server may be a script that starts the real one.
            let options = ["--tool=callgrind", "--instr-atstart=no", "--trace-children=yes"];
            ["valgrind"].iter().chain(&options).map(OsString::from).chain([out]).collect()
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

    /// A new connection.
    pub fn connect(&self) -> Result<Connection> {
        self.server.connect()
    }

    /// Its name and version.
    pub fn version(&self) -> Result<String> {
        self.server.version()
    }

    /// Instructions that the server takes for `work`.
    pub fn count(&self, work: impl FnOnce() -> Result<()>) -> Result<u64> {
        self.control(&["--instr=on"])?;
        let worked = work();
        self.control(&["--instr=off"])?;
        // Writes what was counted since the last dump.
        self.control(&["--dump"])?;
        self.dumps.set(self.dumps.get() + 1);
        worked?;
        let path = self.server.folder().join(format!("{DUMPS}.{}", self.dumps.get()));
        let dump = fs::read_to_string(&path).with_context(|| format!("no dump {}", path.display()))?;
        let totals = dump.lines().find_map(|line| line.strip_prefix("totals:"));
        totals.and_then(|total| total.trim().parse().ok()).context("the dump has no totals")
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
