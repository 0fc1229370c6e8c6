//! `make bench` measures what a request costs, in one run. Progress goes to stderr.

mod bench;
mod cache;
mod callgrind;
mod file;
mod logs;
mod memory;
mod recorded;
mod report;
mod scripts;
mod sections;
mod server;
mod throughput;
mod workload;

use std::{fs, thread};

use anyhow::Result;

use bench::{Bench, Tools};
use report::Report;
use server::Setup;

fn main() -> Result<()> {
    let setup = Setup::from_env()?;
    if setup.is_check() {
        return recorded::check(&setup);
    }
    let mut report = Report::default();
    let tools = Tools::find(&setup, &mut report);
    println!("{}\n", headline(&setup, &tools)?);
    if setup.wants("instructions") {
        sections::instructions(&setup, &tools, &mut report)?;
    }
    if setup.wants("cache") {
        sections::cache_misses(&setup, &tools, &mut report)?;
    }
    if setup.wants("throughput") {
        sections::throughput(&setup, &tools, &mut report)?;
    }
    if setup.wants("logs") {
        sections::large_logs(&setup, &tools, &mut report)?;
    }
    if setup.wants("memory") {
        sections::memory(&Bench::start(&setup, &tools)?, &mut report)?;
    }
    println!("{report}");
    Ok(())
}

/// The servers and the machine measured.
fn headline(setup: &Setup, tools: &Tools) -> Result<String> {
    let packages: String = tools.scripts.packages.iter().map(|package| format!("{package}; ")).collect();
    let cpus = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpus.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    let cpu = model.map_or("unknown CPU", |(_, model)| model);
    let cores = thread::available_parallelism()?;
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let quick = if setup.quick { "\n\nBENCH_QUICK: too short a run for comparisons." } else { "" };
    Ok(format!("{packages}{cpu}, {cores} cores; Linux {}{quick}", kernel.trim()))
}
