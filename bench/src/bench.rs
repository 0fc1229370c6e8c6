//! A server whose instructions are counted, one at full speed, and the measurements on them.

use std::cell::RefCell;
use std::collections::HashMap;
use std::path::Path;

use anyhow::Result;
use redis::Connection;

use crate::callgrind::{CountedServer, Instructions};
use crate::report::Report;
use crate::scripts::{Loaded, Scripts};
use crate::server::{Server, Setup, command};
use crate::throughput::{Benchmark, Sending, Spread};
use crate::workload::Workload;

/// Optional tools.
pub struct Tools {
    /// Whether instructions can be counted.
    pub valgrind: bool,
    /// The Lua scripts of other packages.
    pub scripts: Scripts,
    benchmark: Option<Benchmark>,
}

impl Tools {
    /// Looks for the tools, and reports what cannot be measured without the missing ones.
    pub fn find(setup: &Setup, report: &mut Report) -> Tools {
        let counts = || CountedServer::start(setup, setup.first_server(), &[])?.count(|| Ok(()));
        let valgrind = counts().inspect_err(|error| report.skip("instructions", error)).is_ok();
        let benchmark = Benchmark::find(setup);
        if benchmark.is_none() {
            report.skip("CPU time", "redis-benchmark is not installed");
        }
        let scripts = Scripts::find(report);
        if !setup.has_cell {
            report.skip("CL.THROTTLE", "REDIS_CELL is not set to the path of redis-cell's library");
        }
        Tools { valgrind, scripts, benchmark }
    }
}

/// A server whose instructions are counted.
pub struct Counter<'a> {
    /// How much to measure.
    pub setup: &'a Setup,
    /// The server.
    pub server: CountedServer,
    /// The scripts that it has loaded.
    pub scripts: Loaded,
    /// What a request costs, by the name of the workload.
    costs: RefCell<HashMap<String, Instructions>>,
}

impl<'a> Counter<'a> {
    /// Starts a server of this program, with these settings.
    pub fn start(
        setup: &'a Setup,
        scripts: &Scripts,
        program: &Path,
        settings: &[(&str, &str)],
    ) -> Result<Counter<'a>> {
        let server = CountedServer::start(setup, program, settings)?;
        let scripts = scripts.load(&mut server.connect()?)?;
        Ok(Counter { setup, server, scripts, costs: RefCell::default() })
    }

    /// The least of three counts, without what the server does once a second: a busy machine counts that more often.
    pub fn least_of_three(
        &self,
        connection: &mut Connection,
        mut work: impl FnMut(&mut Connection) -> Result<()>,
    ) -> Result<Instructions> {
        command("DEBUG PAUSE-CRON 1").exec(connection)?;
        let least = self.server.least_of_three(|| work(connection));
        command("DEBUG PAUSE-CRON 0").exec(connection)?;
        least
    }

    /// Instructions of the server for a request, counted on first use.
    pub fn cost(&self, workload: &Workload) -> Result<f64> {
        Ok(self.instructions(workload)?.all)
    }

    /// The same, and those of the module alone.
    pub fn instructions(&self, workload: &Workload) -> Result<Instructions> {
        let known = self.costs.borrow().get(&workload.name).copied();
        known.map_or_else(|| self.count(workload), Ok)
    }

    /// Counts the same, perhaps again. The least so far holds.
    pub fn count(&self, workload: &Workload) -> Result<Instructions> {
        eprintln!("counting: {}", workload.name);
        let requests = self.setup.size(5_000, 1_000);
        let total = workload.measure(&mut self.server.connect()?, |connection| {
            self.least_of_three(connection, |connection| workload.send(connection, requests))
        })?;
        let cost = total.each(requests);
        let mut costs = self.costs.borrow_mut();
        let least = costs.entry(workload.name.clone()).or_insert(cost);
        *least = least.least(cost);
        Ok(*least)
    }
}

/// A server at full speed.
pub struct Bench<'a> {
    /// How much to measure.
    pub setup: &'a Setup,
    /// The server.
    pub fast: Server,
    /// The scripts that it has loaded.
    pub scripts: Loaded,
    benchmark: Option<&'a Benchmark>,
}

impl<'a> Bench<'a> {
    /// Starts the first server.
    pub fn start(setup: &'a Setup, tools: &'a Tools) -> Result<Bench<'a>> {
        let fast = Server::start(setup, setup.first_server(), &[])?;
        let scripts = tools.scripts.load(&mut fast.connect()?)?;
        Ok(Bench { setup, fast, scripts, benchmark: tools.benchmark.as_ref() })
    }

    /// Microseconds of the server's CPU for a request, and their ratio to those of another workload; the two take turns. `None` if
    /// one has several commands, since redis-benchmark sends single ones.
    pub fn micros(
        &self,
        workload: &Workload,
        base: &Workload,
        sending: Sending,
    ) -> Result<Option<[Spread; 2]>> {
        let Some(benchmark) = self.benchmark else { return Ok(None) };
        if [workload, base].iter().any(|workload| workload.only_command().is_none()) {
            return Ok(None);
        }
        eprintln!("alternating: {}; {}", workload.name, base.name);
        benchmark.in_turns(&self.fast, workload, base, sending).map(Some)
    }
}
