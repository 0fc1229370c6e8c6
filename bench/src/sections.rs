//! The sections of the table, each measured as it is written.

use anyhow::{Result, ensure};

use crate::bench::{Bench, Goals, speed};
use crate::logs::LargeLog;
use crate::memory::{Keeping, bytes_a_key, bytes_a_unit};
use crate::report::{Goal, Report, Row, grouped, shown, two_places};
use crate::server::{clock_ms, pipeline, send_all};
use crate::throughput::Spread;
use crate::workload::{Algorithm, ONE_TIER, THREE_TIERS, Workload};

/// Each command beside the one that does nothing.
pub fn commands(bench: &Bench, report: &mut Report) -> Result<()> {
    let floor = Workload::floor("floor, one tier", ONE_TIER);
    let floor_of_three = Workload::floor("floor, three tiers", THREE_TIERS);
    report.section("Commands; to the floor");
    report.row(bench.row(&floor, &floor, Goals::NONE)?);
    for algorithm in Algorithm::ALL {
        report.row(bench.row(&Workload::allowed(algorithm), &floor, Goals::beside_the_floor(1.33))?);
    }
    for algorithm in Algorithm::ALL {
        report.row(bench.row(&Workload::limited(algorithm), &floor, Goals::beside_the_floor(1.30))?);
    }
    for algorithm in Algorithm::ALL {
        report.row(bench.row(&Workload::peek(algorithm), &floor, Goals::beside_the_floor(1.25))?);
    }
    report.row(bench.row(&floor_of_three, &floor_of_three, Goals::NONE)?);
    for algorithm in Algorithm::ALL {
        report.row(bench.row(&Workload::three_tiers(algorithm), &floor_of_three, Goals::NONE)?);
    }
    for other in [Workload::ping(), Workload::incr(), Workload::incr_expire()] {
        report.row(bench.row(&other, &floor, Goals::NONE)?);
    }
    for other in others(bench) {
        report.row(bench.row(&other, &floor, Goals::NONE)?);
    }
    Ok(())
}

/// What users would otherwise run, as far as it is there.
fn others(bench: &Bench) -> Vec<Workload> {
    let cell = bench.setup.has_cell.then(Workload::cell);
    cell.into_iter().chain(bench.scripts.iter().flat_map(|scripts| scripts.all())).collect()
}

/// Three tiers beside one.
pub fn three_tiers(bench: &Bench, report: &mut Report) -> Result<()> {
    report.section("Three tiers; to one");
    for algorithm in Algorithm::ALL {
        let three = Workload::three_tiers(algorithm);
        let ratio = bench.cost_ratio(&three, &Workload::allowed(algorithm))?;
        report.row(Row {
            what: three.name.clone(),
            cost: shown(bench.cost(&three)?, grouped),
            ratio: shown(ratio, two_places),
            goal: Goal::AtMost(1.25).beside(ratio),
            ..Row::default()
        });
    }
    Ok(())
}

/// Logs at their limit, of which one entry leaves as one comes.
pub fn full_logs(bench: &Bench, report: &mut Report) -> Result<()> {
    let (few, many) = (10, bench.setup.size(1_000_000, 100_000));
    report.section("RL.LOG full, one leaves as one comes, time by AT; to the floor with AT");
    let floor = Workload::floor_at();
    let floor_cost = bench.cost(&floor)?;
    report.row(Row { what: floor.name, cost: shown(floor_cost, grouped), ..Row::default() });
    let mut row_of = |limit: usize| -> Result<Option<f64>> {
        let cost = full_log(bench, limit)?;
        let ratio = cost.zip(floor_cost).map(|(cost, floor)| cost / floor);
        report.row(Row {
            what: format!("limit {}", grouped(limit as f64)),
            cost: shown(cost, grouped),
            ratio: shown(ratio, two_places),
            ..Row::default()
        });
        Ok(cost)
    };
    let costs = row_of(few)?.zip(row_of(many)?);
    // AT makes both dearer, and so the ratio smaller: the difference is set beside a request without it.
    let plain = bench.cost(&Workload::allowed(Algorithm::Log))?;
    let ratio = costs.zip(plain).map(|((few, many), plain)| 1.0 + (many - few) / plain);
    report.row(Row {
        what: format!("{} against {few}, as if without AT", grouped(many as f64)),
        ratio: shown(ratio, two_places),
        goal: Goal::AtMost(1.10).beside(ratio),
        ..Row::default()
    });
    Ok(())
}

/// Instructions for a request to a log that holds `limit` entries before and after it.
fn full_log(bench: &Bench, limit: usize) -> Result<Option<f64>> {
    const GAP_MS: u64 = 7;
    const WARM_UP: usize = 100;
    let Some(server) = &bench.counted else { return Ok(None) };
    eprintln!("counting: RL.LOG full at limit {limit}");
    let mut connection = server.connect()?;
    let window_ms = limit as u64 * GAP_MS;
    let mut next_ms = clock_ms(&mut connection)? - window_ms;
    let mut lines = std::iter::repeat_with(|| {
        next_ms += GAP_MS;
        format!("RL.LOG key {limit} {window_ms}ms AT {next_ms}")
    });
    let requests = bench.setup.size(5_000, 1_000);
    redis::cmd("FLUSHALL").exec(&mut connection)?;
    send_all(&mut connection, lines.by_ref().take(limit + WARM_UP))?;
    let total = server.least_of_three(|| {
        let answers: Vec<[i64; 5]> = pipeline(lines.by_ref().take(requests)).query(&mut connection)?;
        let full = |[limited, _, remaining, ..]: &[i64; 5]| (*limited, *remaining) == (0, 0);
        ensure!(answers.iter().all(full), "the log of {limit} entries is not at its limit");
        Ok(())
    })?;
    Ok(Some(total as f64 / requests as f64))
}

/// The commands that take, in turns with each script.
pub fn beside_scripts(bench: &Bench, report: &mut Report) -> Result<()> {
    let Some(scripts) = &bench.scripts else { return Ok(()) };
    let goals = [2.0, 4.0, 4.0];
    for (script, goal) in scripts.all().into_iter().zip(goals) {
        report.section(&format!("Allowed requests; to the {}", script.name));
        let [fixed, sliding, log] = Algorithm::ALL.map(Workload::allowed);
        let rates = bench.rates([&fixed, &sliding, &log, &script])?;
        for (i, workload) in [fixed, sliding, log].into_iter().enumerate() {
            report.row(Row {
                cost: shown(bench.cost(&workload)?, grouped),
                ratio: shown(bench.cost_ratio(&workload, &script)?, two_places),
                what: workload.name,
                goal: String::new(),
                speed: speed(rates.as_ref(), i, 3, Some(Goal::AtLeast(goal))),
            });
        }
    }
    Ok(())
}

/// The commands that take where each is written to disk.
pub fn with_append_only_file(bench: &Bench, report: &mut Report) -> Result<()> {
    report.section("With appendonly yes, appendfsync everysec; to INCR");
    let incr = Workload::incr();
    report.row(bench.row(&incr, &incr, Goals::NONE)?);
    for algorithm in Algorithm::ALL {
        let allowed = Workload::allowed(algorithm);
        let goal = Goal::AtMost(16_000.0).beside(bench.cost(&allowed)?);
        report.row(Row { goal, ..bench.row(&allowed, &incr, Goals::NONE)? });
    }
    for other in others(bench) {
        report.row(bench.row(&other, &incr, Goals::NONE)?);
    }
    Ok(())
}

/// The call with the most work: every entry of a large log leaves at once.
pub fn worst_call(bench: &Bench, report: &mut Report) -> Result<()> {
    let entries = bench.setup.size(1_000_000, 100_000);
    report.section(&format!("RL.LOG, {} distinct entries leave in one call", grouped(entries as f64)));
    eprintln!("filling a log of {entries} entries");
    let mut connection = bench.fast.connect()?;
    let log = LargeLog::fill(&mut connection, entries)?;
    let ms = Spread::of(log.times_of_last_request(&mut connection, bench.setup.size(15, 3))?.into_iter());
    let cost = match &bench.counted {
        None => None,
        Some(server) => {
            eprintln!("counting: {entries} entries leave");
            let mut connection = server.connect()?;
            let log = LargeLog::fill(&mut connection, entries)?;
            let total = server.count(|| log.send_last_request(&mut connection, LargeLog::KEY))?;
            Some(total as f64 / entries as f64)
        }
    };
    let quick = Goal::AtMost(1.0).is_met_by(ms.median);
    let met = quick || cost.is_some_and(|cost| Goal::AtMost(60.0).is_met_by(cost));
    report.row(Row {
        what: "time by the slow log; instructions an entry".into(),
        cost: format!("{ms} ms") + &shown(cost, |cost| format!("; {cost:.2} an entry")),
        goal: format!("1 ms, or 60 an entry, {}", if met { "met" } else { "not met" }),
        ..Row::default()
    });
    Ok(())
}

/// Bytes for a unit, and for a key.
pub fn memory(bench: &Bench, report: &mut Report) -> Result<()> {
    const MINUTE_MS: u64 = 60_000;
    const HOUR_MS: u64 = 60 * MINUTE_MS;
    let many = bench.setup.size(1_000_000, 100_000);
    let mut connection = bench.fast.connect()?;

    eprintln!("filling logs");
    report.section("Bytes a unit beyond the first, at random over a minute (MEMORY USAGE)");
    let kept = [
        ("RL.LOG, 1,000 units", Keeping::Log, Some(Goal::AtMost(1.6))),
        ("list of times as in `limits`, 1,000 units", Keeping::List, None),
        ("sorted set, 1,000 units", Keeping::SortedSet, None),
    ];
    for (what, keeping, goal) in kept {
        let bytes = bytes_a_unit(&mut connection, keeping, 1_000, MINUTE_MS, 20)?;
        report.row(bytes_row(what.into(), bytes, goal));
    }
    report.section("Bytes a unit beyond the first, at random over an hour (MEMORY USAGE)");
    let bytes = bytes_a_unit(&mut connection, Keeping::Log, many, HOUR_MS, 1)?;
    report.row(bytes_row(format!("RL.LOG, {} units", grouped(many as f64)), bytes, Some(Goal::AtMost(1.3))));

    let keys = grouped(many as f64);
    report.section("Bytes a key with a name of 16 bytes and a time to live (used_memory)");
    for algorithm in [Algorithm::Fixed, Algorithm::Sliding] {
        let command = algorithm.command();
        eprintln!("making {keys} keys of {command}");
        let bytes = bytes_a_key(&bench.fast, command, many)?;
        report.row(bytes_row(format!("{command}, {keys} keys"), bytes, Some(Goal::AtMost(170.0))));
    }
    Ok(())
}

fn bytes_row(what: String, bytes: f64, goal: Option<Goal>) -> Row {
    let goal = shown(goal, |goal| goal.beside(Some(bytes)));
    Row { what, cost: two_places(bytes), goal, ..Row::default() }
}
