//! Throughput, measured by redis-benchmark. On a shared machine it fluctuates, so compared workloads run
//! alternately, and each turn gives a ratio.

use std::fmt;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use redis::Connection;

use crate::server::{Server, Setup, info};
use crate::workload::{KEYS, Workload};

/// Requests sent before the first reply is read.
const PIPELINE: u32 = 64;

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

    /// Runs the two in turns, each with fresh keys: requests a second of the first, and the ratio by CPU time.
    pub fn in_turns(&self, server: &Server, workload: &Workload, base: &Workload) -> Result<[Spread; 2]> {
        let turn = |_| Ok((self.run(server, workload)?, self.run(server, base)?));
        let turns: Vec<(Rate, Rate)> = (0..self.turns).map(turn).collect::<Result<_>>()?;
        let ratio = |(own, base): &(Rate, Rate)| own.a_cpu_second / base.a_cpu_second;
        Ok([Spread::of(turns.iter().map(|(own, _)| own.a_second)), Spread::of(turns.iter().map(ratio))])
    }

    fn run(&self, server: &Server, workload: &Workload) -> Result<Rate> {
        workload.measure(&mut server.connect()?, |connection| {
            let errors = info(connection, "total_error_replies")?;
            let before = cpu_seconds(connection)?;
            let output = Command::new(&self.program)
                .args(["-p", &server.port().to_string(), "-n", &self.requests.to_string()])
                .args(["-P", &PIPELINE.to_string(), "-r", &KEYS.to_string(), "--csv"])
                .args(workload.only_command().context("it sends single commands")?.split(' '))
                .output()?;
            let seconds = cpu_seconds(connection)? - before;
            // redis-benchmark does not report errors.
            ensure!(errors == info(connection, "total_error_replies")?, "{}: errors", workload.name);
            let csv = String::from_utf8_lossy(&output.stdout);
            let a_second = a_second(&csv).with_context(|| format!("no rate in {output:?}"))?;
            Ok(Rate { a_second, a_cpu_second: f64::from(self.requests) / seconds })
        })
    }
}

/// Requests a second.
struct Rate {
    /// In elapsed time, as redis-benchmark measured it on a shared machine.
    a_second: f64,
    /// In CPU time of the server.
    a_cpu_second: f64,
}

/// The CPU time that the server has used.
fn cpu_seconds(connection: &mut Connection) -> Result<f64> {
    let mut field = |name| -> Result<f64> { Ok(info(connection, name)?.context("no CPU time")?.parse()?) };
    Ok(field("used_cpu_user")? + field("used_cpu_sys")?)
}

/// The second field in the last line of CSV.
fn a_second(csv: &str) -> Option<f64> {
    csv.lines().last()?.split("\",\"").nth(1)?.trim_matches('"').parse().ok()
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
