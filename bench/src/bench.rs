//! Two servers with the same settings, one that is counted and one at full speed, and what can be
//! measured on them.

use std::cell::RefCell;
use std::collections::HashMap;

use anyhow::Result;

use crate::callgrind::CountedServer;
use crate::report::{Goal, Report, Row, Speed, grouped, shown, two_places};
use crate::scripts::{ScriptWorkloads, Scripts};
use crate::server::{Server, Setup};
use crate::throughput::{Benchmark, Rates};
use crate::workload::Workload;

/// What not every machine has.
pub struct Tools {
    valgrind: bool,
    benchmark: Option<Benchmark>,
    scripts: Option<Scripts>,
}

impl Tools {
    /// Looks for them, and notes what cannot be measured without the missing ones.
    pub fn find(setup: &Setup, report: &mut Report) -> Tools {
        let counts = || CountedServer::start(setup, &[])?.count(|| Ok(()));
        let valgrind = counts().inspect_err(|error| report.skip("instructions", error)).is_ok();
        let benchmark = Benchmark::find(setup);
        match &benchmark {
            Some(_) => report
                .skip("requests a second of MULTI and of full logs", "redis-benchmark repeats one command"),
            None => report.skip("requests a second", "redis-benchmark is not installed"),
        }
        let scripts = Scripts::find().inspect_err(|error| report.skip("Lua scripts", error)).ok();
        if !setup.has_cell {
            report.skip("CL.THROTTLE", "REDIS_CELL is not set to the path of redis-cell's library");
        }
        Tools { valgrind, benchmark, scripts }
    }

    /// The version of the package that the scripts are from.
    pub fn version_of_scripts(&self) -> Option<&str> {
        self.scripts.as_ref().map(|scripts| scripts.version.as_str())
    }
}

/// See the module.
pub struct Bench<'a> {
    /// How much to measure.
    pub setup: &'a Setup,
    /// The one under callgrind, where there is valgrind.
    pub counted: Option<CountedServer>,
    /// The one at full speed.
    pub fast: Server,
    /// Requests to the scripts, which both have loaded.
    pub scripts: Option<ScriptWorkloads>,
    benchmark: Option<&'a Benchmark>,
    /// By the name of the workload.
    costs: RefCell<HashMap<String, f64>>,
}

impl<'a> Bench<'a> {
    /// Starts both servers with these settings.
    pub fn start(setup: &'a Setup, tools: &'a Tools, settings: &[(&str, &str)]) -> Result<Bench<'a>> {
        let fast = Server::start(setup, settings)?;
        let counted = tools.valgrind.then(|| CountedServer::start(setup, settings)).transpose()?;
        let load = |scripts: &Scripts| {
            if let Some(counted) = &counted {
                scripts.load(&mut counted.connect()?)?;
            }
            scripts.load(&mut fast.connect()?)
        };
        let scripts = tools.scripts.as_ref().map(load).transpose()?;
        Ok(Bench {
            setup,
            counted,
            fast,
            scripts,
            benchmark: tools.benchmark.as_ref(),
            costs: RefCell::default(),
        })
    }

    /// Instructions of the server for a request; counted once.
    pub fn cost(&self, workload: &Workload) -> Result<Option<f64>> {
        let Some(server) = &self.counted else { return Ok(None) };
        if let Some(cost) = self.costs.borrow().get(&workload.name) {
            return Ok(Some(*cost));
        }
        eprintln!("counting: {}", workload.name);
        let requests = self.setup.size(5_000, 1_000);
        let total = workload.measure(&mut server.connect()?, |connection| {
            server.least_of_three(|| workload.send(connection, requests))
        })?;
        let cost = total as f64 / requests as f64;
        self.costs.borrow_mut().insert(workload.name.clone(), cost);
        Ok(Some(cost))
    }

    /// The instructions for one by those for another.
    pub fn cost_ratio(&self, workload: &Workload, base: &Workload) -> Result<Option<f64>> {
        Ok(self.cost(workload)?.zip(self.cost(base)?).map(|(cost, base)| cost / base))
    }

    /// Requests a second of workloads in turns; nothing if one has several commands, since
    /// redis-benchmark sends single ones.
    pub fn rates<const N: usize>(&self, workloads: [&Workload; N]) -> Result<Option<Rates<N>>> {
        let Some(benchmark) = self.benchmark else { return Ok(None) };
        if workloads.iter().any(|workload| workload.only_command().is_none()) {
            return Ok(None);
        }
        eprintln!("in turns: {}", workloads.map(|workload| workload.name.as_str()).join("; "));
        benchmark.in_turns(&self.fast, workloads).map(Some)
    }

    /// A row with the instructions and the requests a second of one workload, beside another.
    pub fn row(&self, workload: &Workload, base: &Workload, goals: Goals) -> Result<Row> {
        let ratio = self.cost_ratio(workload, base)?;
        let rates = self.rates([workload, base])?;
        Ok(Row {
            what: workload.name.clone(),
            cost: shown(self.cost(workload)?, grouped),
            ratio: shown(ratio, two_places),
            goal: shown(goals.ratio, |goal| goal.beside(ratio)),
            speed: speed(rates.as_ref(), 0, 1, goals.rate),
        })
    }
}

/// How fast one of the workloads is, beside another.
pub fn speed<const N: usize>(rates: Option<&Rates<N>>, of: usize, to: usize, goal: Option<Goal>) -> Speed {
    let ratio = rates.map(|rates| rates.ratio(of, to));
    Speed {
        a_second: shown(rates, |rates| grouped(rates.a_second(of).median)),
        ratio: shown(ratio, |ratio| ratio.to_string()),
        goal: shown(goal, |goal| goal.beside(ratio.map(|ratio| ratio.median))),
        cpu_ratio: shown(rates, |rates| rates.cpu_ratio(of, to).to_string()),
    }
}

/// What a row is to reach.
#[derive(Clone, Copy)]
pub struct Goals {
    ratio: Option<Goal>,
    rate: Option<Goal>,
}

impl Goals {
    /// Nothing in particular.
    pub const NONE: Goals = Goals { ratio: None, rate: None };

    /// Beside a command that does nothing: at most so many times the instructions, and nearly as
    /// many requests a second.
    pub const fn beside_the_floor(most: f64) -> Goals {
        Goals { ratio: Some(Goal::AtMost(most)), rate: Some(Goal::AtLeast(0.80)) }
    }
}
