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

/// The module's own instructions may be so much of what is recorded. They hardly differ from run to run.
const OWN_TOLERANCE: f64 = 1.01;

/// Ratios may. In all of a server the keys lie elsewhere in each run: its instructions differ by up to 1.2 %.
const RATIO_TOLERANCE: f64 = 1.02;

/// What was recorded of a workload: the module's own instructions for a request, all of the server as a ratio to another workload,
/// the workload, and that other. With a file, the module's own are not: they depend on how many requests come in a millisecond. A
/// figure rises only in a commit that names the feature it pays for.
type Recorded = (Option<f64>, f64, Workload, Workload);

/// On a server without persistence.
fn in_memory() -> Vec<Recorded> {
    let rows = |own, ratio, number| {
        (Some(own), ratio, Workload::keys(number, Algorithm::FIXED), Workload::keys_marked(number))
    };
    vec![
        (Some(527.0), 1.08, Workload::allowed(Algorithm::FIXED), Workload::key_marked()),
        (Some(564.0), 1.09, Workload::allowed(Algorithm::SLIDING), Workload::key_marked()),
        (Some(694.0), 1.103, Workload::allowed(Algorithm::LOG), Workload::key_marked()),
        (Some(863.0), 1.113, Workload::allowed(Algorithm::BUCKET), Workload::key_marked()),
        (Some(486.0), 1.062, Workload::limited(Algorithm::FIXED), Workload::key_opened()),
        (Some(551.0), 1.077, Workload::limited(Algorithm::SLIDING), Workload::key_opened()),
        (Some(882.0), 1.123, Workload::limited(Algorithm::LOG), Workload::key_opened()),
        (Some(546.0), 1.09, Workload::peek(Algorithm::FIXED), Workload::key_read()),
        (Some(1698.0), 1.433, Workload::three_tiers(Algorithm::FIXED), Workload::allowed(Algorithm::FIXED)),
        (Some(2368.0), 1.512, Workload::three_tiers(Algorithm::LOG), Workload::allowed(Algorithm::LOG)),
        (Some(2354.0), 1.488, Workload::three_tiers(Algorithm::BUCKET), Workload::allowed(Algorithm::BUCKET)),
        rows(2102.0, 1.131, 2),
        rows(3031.0, 1.137, 3),
        rows(4870.0, 1.147, 5),
        rows(7679.0, 1.155, 8),
    ]
}

/// On a server that writes each command to a file.
fn with_file() -> Vec<Recorded> {
    vec![
        (None, 1.844, Workload::allowed(Algorithm::FIXED), Workload::incr()),
        (None, 1.856, Workload::allowed(Algorithm::LOG), Workload::incr()),
        (None, 4.379, Workload::keys(3, Algorithm::FIXED), Workload::incr()),
    ]
}

/// The ratio when the server loads that file.
const LOADING: f64 = 3.976;

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
    for Measured { name, recorded, measured, tolerance } in of_memory?.into_iter().chain(of_file?) {
        let more = measured / recorded;
        worse += usize::from(more > tolerance);
        report.row([
            name,
            format!("{recorded:.3}"),
            format!("{measured:.3}"),
            format!("{:+.1} %", (more - 1.0) * 100.0),
        ]);
    }
    print!("{report}");
    ensure!(worse == 0, "{worse} figures are more above the recorded ones than they may be");
    Ok(())
}

/// A figure as it was recorded, and as it is now.
struct Measured {
    name: String,
    recorded: f64,
    measured: f64,
    tolerance: f64,
}

fn count_in_memory(setup: &Setup) -> Result<Vec<Measured>> {
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
    compare("", rows, &counter)
}

fn count_with_file(setup: &Setup) -> Result<Vec<Measured>> {
    let alone = &setup.alone();
    let counter = Counter::start(alone, &Scripts::default(), setup.first_server(), &APPEND_ONLY)?;
    let rows = with_file();
    count_twice(&counter, &rows, |_| true)?;
    let mut measured = compare(", with a file", rows, &counter)?;
    let load = |workload: &Workload| -> Result<f64> {
        Ok(instructions_to_load(&counter, workload)?.min(instructions_to_load(&counter, workload)?))
    };
    let (loaded, base) = (Workload::keys(3, Algorithm::FIXED), Workload::incr());
    let name = format!("{}, loaded; to {}", loaded.name, base.name);
    measured.push(Measured {
        name,
        recorded: LOADING,
        measured: load(&loaded)? / load(&base)?,
        tolerance: RATIO_TOLERANCE,
    });
    Ok(measured)
}

/// Counts some of these workloads, and then again: on a busy machine all three counts in a row may be too high.
fn count_twice(counter: &Counter, rows: &[Recorded], counts: impl Fn(&Workload) -> bool) -> Result<()> {
    let workloads = || rows.iter().flat_map(|(_, _, workload, base)| [workload, base]);
    for _ in 0..2 {
        let mut names = HashSet::new();
        for workload in workloads().filter(|workload| counts(workload) && names.insert(&workload.name)) {
            counter.count(workload)?;
        }
    }
    Ok(())
}

fn compare(suffix: &str, rows: Vec<Recorded>, counter: &Counter) -> Result<Vec<Measured>> {
    let mut measured = Vec::new();
    for (own, ratio, workload, base) in rows {
        let instructions = counter.instructions(&workload)?;
        let name = format!("{}{suffix}", workload.name);
        let to_base = instructions.all / counter.cost(&base)?;
        measured.push(Measured {
            name: format!("{name}; to {}", base.name),
            recorded: ratio,
            measured: to_base,
            tolerance: RATIO_TOLERANCE,
        });
        measured.extend(own.map(|recorded| Measured {
            name: format!("{name}; own"),
            recorded,
            measured: instructions.own,
            tolerance: OWN_TOLERANCE,
        }));
    }
    Ok(measured)
}
