//! A server that is counted, one at full speed, and what can be measured on them.

use std::cell::RefCell;
use std::collections::HashMap;
use std::path::Path;

use anyhow::Result;

use crate::callgrind::CountedServer;
use crate::report::Report;
use crate::scripts::{Loaded, Scripts};
use crate::server::{Server, Setup};
use crate::throughput::{Benchmark, Rates};
use crate::workload::Workload;

/// What not every machine has.
pub struct Tools {
    /// Whether instructions can be counted.
    pub valgrind: bool,
    /// What other packages run.
    pub scripts: Scripts,
    benchmark: Option<Benchmark>,
}

impl Tools {
    /// Looks for them, and notes what cannot be measured without the missing ones.
    pub fn find(setup: &Setup, report: &mut Report) -> Tools {
        let counts = || CountedServer::start(setup, setup.first_server(), &[])?.count(|| Ok(()));
        let valgrind = counts().inspect_err(|error| report.skip("instructions", error)).is_ok();
        let benchmark = Benchmark::find(setup);
        if benchmark.is_none() {
            report.skip("requests a second", "redis-benchmark is not installed");
        }
        let scripts = Scripts::find(report);
        if !setup.has_cell {
            report.skip("CL.THROTTLE", "REDIS_CELL is not set to the path of redis-cell's library");
        }
        Tools { valgrind, scripts, benchmark }
    }
}

/// A server that is counted.
pub struct Counter<'a> {
    /// How much to measure.
    pub setup: &'a Setup,
    /// It.
    pub server: CountedServer,
    /// The scripts that it has loaded.
    pub scripts: Loaded,
    /// By the name of the workload.
    costs: RefCell<HashMap<String, f64>>,
}

impl<'a> Counter<'a> {
    /// Starts a server of this program, with these settings.
    pub fn start(
        setup: &'a Setup,
        tools: &Tools,
        program: &Path,
        settings: &[(&str, &str)],
    ) -> Result<Counter<'a>> {
        let server = CountedServer::start(setup, program, settings)?;
        let scripts = tools.scripts.load(&mut server.connect()?)?;
        Ok(Counter { setup, server, scripts, costs: RefCell::default() })
    }

    /// Instructions of the server for a request; counted once.
    pub fn cost(&self, workload: &Workload) -> Result<f64> {
        if let Some(cost) = self.costs.borrow().get(&workload.name) {
            return Ok(*cost);
        }
        eprintln!("counting: {}", workload.name);
        let requests = self.setup.size(5_000, 1_000);
        let total = workload.measure(&mut self.server.connect()?, |connection| {
            self.server.least_of_three(|| workload.send(connection, requests))
        })?;
        let cost = total as f64 / requests as f64;
        self.costs.borrow_mut().insert(workload.name.clone(), cost);
        Ok(cost)
    }
}

/// A server at full speed.
pub struct Bench<'a> {
    /// How much to measure.
    pub setup: &'a Setup,
    /// It.
    pub fast: Server,
    /// The scripts that it has loaded.
    pub scripts: Loaded,
    benchmark: Option<&'a Benchmark>,
}

impl<'a> Bench<'a> {
    /// Starts the first server, with these settings.
    pub fn start(setup: &'a Setup, tools: &'a Tools, settings: &[(&str, &str)]) -> Result<Bench<'a>> {
        let fast = Server::start(setup, setup.first_server(), settings)?;
        let scripts = tools.scripts.load(&mut fast.connect()?)?;
        Ok(Bench { setup, fast, scripts, benchmark: tools.benchmark.as_ref() })
    }

    /// Requests a second of two workloads in turns; nothing if one has several commands, since
    /// redis-benchmark sends single ones.
    pub fn rates(&self, workload: &Workload, base: &Workload) -> Result<Option<Rates<2>>> {
        let Some(benchmark) = self.benchmark else { return Ok(None) };
        if [workload, base].iter().any(|workload| workload.only_command().is_none()) {
            return Ok(None);
        }
        eprintln!("in turns: {}; {}", workload.name, base.name);
        benchmark.in_turns(&self.fast, [workload, base]).map(Some)
    }
}
