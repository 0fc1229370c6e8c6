//! `make bench`: what a request costs, in one table from one run; and `make figures`. As it goes it says on stderr
//! what it is at.

mod bench;
mod callgrind;
mod figures;
mod logs;
mod memory;
mod report;
mod scripts;
mod sections;
mod server;
mod throughput;
mod workload;

use std::path::Path;
use std::{env, fs, thread};

use anyhow::{Context, Result};

use bench::{Bench, Tools};
use report::{Report, shown};
use server::{Setup, info};

fn main() -> Result<()> {
    let setup = Setup::from_env()?;
    if let [figures, folder, benchmark] = &env::args().skip(1).collect::<Vec<_>>()[..]
        && figures == "figures"
    {
        return figures::draw(&setup, Path::new(folder), Path::new(benchmark));
    }
    let mut report = Report::new();
    let tools = Tools::find(&setup, &mut report);

    let bench = Bench::start(&setup, &tools, &[])?;
    println!("{}\n", headline(&bench, &tools)?);
    sections::commands(&bench, &mut report)?;
    sections::three_tiers(&bench, &mut report)?;
    sections::full_logs(&bench, &mut report)?;
    sections::beside_scripts(&bench, &mut report)?;
    sections::worst_call(&bench, &mut report)?;
    sections::memory(&bench, &mut report)?;
    drop(bench);

    let bench = Bench::start(&setup, &tools, &[("appendonly", "yes"), ("appendfsync", "everysec")])?;
    sections::with_append_only_file(&bench, &mut report)?;
    println!("{report}");
    Ok(())
}

/// What was measured where.
fn headline(bench: &Bench, tools: &Tools) -> Result<String> {
    let mut connection = bench.fast.connect()?;
    let server = match info(&mut connection, "valkey_version")? {
        Some(version) => format!("Valkey {version}"),
        None => format!("Redis {}", info(&mut connection, "redis_version")?.context("no version")?),
    };
    let limits = shown(tools.version_of_scripts(), |version| format!(", `limits` {version}"));
    let cpus = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpus.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    let cpu = model.map_or("unknown CPU", |(_, model)| model);
    let cores = thread::available_parallelism()?;
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let quick = if bench.setup.quick { "\n\nBENCH_QUICK: too little is measured to compare." } else { "" };
    Ok(format!("{server}{limits}; {cpu}, {cores} cores; Linux {}{quick}", kernel.trim()))
}
