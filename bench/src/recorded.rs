//! `make check-instructions`: what requests cost beside the least that such a command costs, and the ratios recorded of it.

use std::collections::HashSet;
use std::thread;

use anyhow::{Result, ensure};

use crate::bench::Counter;
use crate::file::instructions_to_load;
use crate::report::Report;
use crate::scripts::Scripts;
use crate::sections::APPEND_ONLY;
use crate::server::{Setup, command};
use crate::workload::{Algorithm, Workload};

/// The server on which the ratios were recorded.
const SERVER: &str = "Redis 7.0.";

/// A request may cost so much of its recorded ratio.
const TOLERANCE: f64 = 1.02;

/// A ratio of two workloads, as it was when it was recorded.
type Recorded = (f64, Workload, Workload);

/// On a server without persistence.
fn in_memory() -> Vec<Recorded> {
    let rows =
        |ratio, number| (ratio, Workload::keys(number, Algorithm::FIXED), Workload::keys_marked(number));
    vec![
        (1.094, Workload::allowed(Algorithm::FIXED), Workload::key_marked()),
        (1.111, Workload::allowed(Algorithm::SLIDING), Workload::key_marked()),
        (1.108, Workload::allowed(Algorithm::LOG), Workload::key_marked()),
        (1.122, Workload::allowed(Algorithm::BUCKET), Workload::key_marked()),
        (1.088, Workload::limited(Algorithm::FIXED), Workload::key_opened()),
        (1.109, Workload::limited(Algorithm::SLIDING), Workload::key_opened()),
        (1.138, Workload::limited(Algorithm::LOG), Workload::key_opened()),
        (1.107, Workload::peek(Algorithm::FIXED), Workload::key_read()),
        (1.433, Workload::three_tiers(Algorithm::FIXED), Workload::allowed(Algorithm::FIXED)),
        (1.512, Workload::three_tiers(Algorithm::LOG), Workload::allowed(Algorithm::LOG)),
        (1.490, Workload::three_tiers(Algorithm::BUCKET), Workload::allowed(Algorithm::BUCKET)),
        rows(1.141, 2),
        rows(1.157, 3),
        rows(1.180, 5),
        rows(1.214, 8),
    ]
}

/// On a server that writes each command to a file.
fn with_file() -> Vec<Recorded> {
    vec![
        (1.844, Workload::allowed(Algorithm::FIXED), Workload::incr()),
        (1.856, Workload::allowed(Algorithm::LOG), Workload::incr()),
        (4.438, Workload::keys(3, Algorithm::FIXED), Workload::incr()),
    ]
}

/// When the server loads that file.
fn loading() -> Vec<Recorded> {
    vec![(4.041, Workload::keys(3, Algorithm::FIXED), Workload::incr())]
}

/// Compares what this server takes with what is recorded.
pub fn check(setup: &Setup) -> Result<()> {
    // Many requests would give the same ratios.
    let setup = &setup.quickly();
    let (of_memory, of_file) = thread::scope(|scope| {
        let (memory, file) = (scope.spawn(|| count_in_memory(setup)), scope.spawn(|| count_with_file(setup)));
        (memory.join().expect("no panic"), file.join().expect("no panic"))
    });
    let mut report = Report::default();
    report.table("Instructions", ["", "recorded", "measured", "more"], "");
    let mut worse = 0;
    for (name, recorded, measured) in of_memory?.into_iter().chain(of_file?) {
        let more = measured / recorded;
        worse += usize::from(more > TOLERANCE);
        report.row([
            name,
            format!("{recorded:.3}"),
            format!("{measured:.3}"),
            format!("{:+.1} %", (more - 1.0) * 100.0),
        ]);
    }
    print!("{report}");
    ensure!(worse == 0, "{worse} ratios are more than 2 % above the recorded ones");
    Ok(())
}

/// The name of each row, its recorded ratio, and the one measured now.
type Measured = Vec<(String, f64, f64)>;

fn count_in_memory(setup: &Setup) -> Result<Measured> {
    let alone = &setup.alone();
    let counter = Counter::start(alone, &Scripts::default(), setup.first_server(), &[])?;
    let version = counter.server.version()?;
    ensure!(version.starts_with(SERVER), "this is {version}: the ratios are those of {SERVER}x");
    let rows = in_memory();
    count_twice(&counter, &rows, |workload| !workload.is_of_another_module())?;
    // Only now, since RL.ALL does more beside another module. On the same server, so that keys share the buckets of its table
    // with the same others.
    command(&format!("MODULE LOAD {}", setup.floor().display())).exec(&mut counter.server.connect()?)?;
    count_twice(&counter, &rows, Workload::is_of_another_module)?;
    compare("", rows, |workload| counter.cost(workload))
}

fn count_with_file(setup: &Setup) -> Result<Measured> {
    let alone = &setup.alone();
    let counter = Counter::start(alone, &Scripts::default(), setup.first_server(), &APPEND_ONLY)?;
    let rows = with_file();
    count_twice(&counter, &rows, |_| true)?;
    let mut measured = compare(", with a file", rows, |workload| counter.cost(workload))?;
    let load = |workload: &Workload| {
        Ok(instructions_to_load(&counter, workload)?.min(instructions_to_load(&counter, workload)?))
    };
    measured.extend(compare(", loaded", loading(), load)?);
    Ok(measured)
}

/// Counts some of these workloads, and then again: on a busy machine all three counts in a row may be too high.
fn count_twice(counter: &Counter, rows: &[Recorded], counts: impl Fn(&Workload) -> bool) -> Result<()> {
    let workloads = || rows.iter().flat_map(|(_, workload, base)| [workload, base]);
    for _ in 0..2 {
        let mut names = HashSet::new();
        for workload in workloads().filter(|workload| counts(workload) && names.insert(&workload.name)) {
            counter.count(workload)?;
        }
    }
    Ok(())
}

fn compare(suffix: &str, rows: Vec<Recorded>, cost: impl Fn(&Workload) -> Result<f64>) -> Result<Measured> {
    let row = |(ratio, workload, base): Recorded| {
        let measured = cost(&workload)? / cost(&base)?;
        Ok((format!("{}{suffix}; to {}", workload.name, base.name), ratio, measured))
    };
    rows.into_iter().map(row).collect()
}
