//! The server's CPU time for a request, while redis-benchmark sends them. On a shared machine it fluctuates, so compared workloads
//! run alternately, and each turn gives a ratio.

use std::fmt;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use redis::Connection;

use crate::server::{Server, Setup, info};
use crate::workload::{KEYS, Workload};

/// How redis-benchmark sends requests on each of its 50 connections.
#[derive(Clone, Copy)]
pub enum Sending {
    /// The next 64 leave together.
    Pipelines,
    /// The next one leaves when the last one was answered.
    OneByOne,
}

/// redis-benchmark, and how long to run it.
pub struct Benchmark {
    program: PathBuf,
    requests: u32,
    turns: usize,
}

impl Benchmark {
    /// redis-benchmark or valkey-benchmark, on the PATH or beside the server; `None` if there is neither.
    pub fn find(setup: &Setup) -> Option<Benchmark> {
        let names = ["redis-benchmark", "valkey-benchmark"];
        let beside = names.iter().map(|name| setup.first_server().with_file_name(name));
        let candidates = names.iter().map(PathBuf::from).chain(beside);
        let runs = |program: &PathBuf| Command::new(program).arg("--version").output().is_ok();
        let program = candidates.into_iter().find(runs)?;
        Some(Benchmark { program, requests: setup.size(100_000, 50_000), turns: setup.size(15, 3) })
    }

    /// Runs the two in turns, each with fresh keys: microseconds for a request of the first, and the ratio to the second.
    pub fn in_turns(
        &self,
        server: &Server,
        workload: &Workload,
        base: &Workload,
        sending: Sending,
    ) -> Result<[Spread; 2]> {
        let turn = |_| Ok((self.micros(server, workload, sending)?, self.micros(server, base, sending)?));
        let turns: Vec<(f64, f64)> = (0..self.turns).map(turn).collect::<Result<_>>()?;
        let ratios = turns.iter().map(|(own, base)| own / base);
        Ok([Spread::of(turns.iter().map(|(own, _)| *own)), Spread::of(ratios)])
    }

    /// The server's CPU time for a request, in microseconds.
    fn micros(&self, server: &Server, workload: &Workload, sending: Sending) -> Result<f64> {
        workload.measure(&mut server.connect()?, |connection| {
            let errors = info(connection, "total_error_replies")?;
            let before = cpu_seconds(connection)?;
            let pipeline = match sending {
                Sending::Pipelines => "64",
                Sending::OneByOne => "1",
            };
            let output = Command::new(&self.program)
                .args(["-p", &server.port().to_string(), "-n", &self.requests.to_string()])
                .args(["-P", pipeline, "-r", &KEYS.to_string(), "--csv"])
                .args(workload.only_command().context("it sends single commands")?.split(' '))
                .output()?;
            let seconds = cpu_seconds(connection)? - before;
            ensure!(output.status.success(), "redis-benchmark: {output:?}");
            // redis-benchmark does not report errors.
            ensure!(errors == info(connection, "total_error_replies")?, "{}: errors", workload.name);
            Ok(seconds * 1e6 / f64::from(self.requests))
        })
    }
}

/// The CPU time that the server has used.
fn cpu_seconds(connection: &mut Connection) -> Result<f64> {
    let mut field = |name| -> Result<f64> { Ok(info(connection, name)?.context("no CPU time")?.parse()?) };
    Ok(field("used_cpu_user")? + field("used_cpu_sys")?)
}

/// The median of several figures, and their middle half.
#[derive(Clone, Copy, Debug)]
pub struct Spread {
    /// The median.
    pub median: f64,
    low: f64,
    high: f64,
}

impl Spread {
    /// The spread of these figures, at least one.
    pub fn of(figures: impl Iterator<Item = f64>) -> Spread {
        let mut sorted: Vec<f64> = figures.collect();
        sorted.sort_by(f64::total_cmp);
        let at = |quarters: usize| sorted[(sorted.len() - 1) * quarters / 4];
        Spread { median: at(2), low: at(1), high: at(3) }
    }
}

impl fmt::Display for Spread {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{:.2} ({:.2} to {:.2})", self.median, self.low, self.high)
    }
}
