//! The sections of the tables, each measured as it is written.

use std::path::Path;
use std::thread;

use anyhow::{Result, ensure};

use crate::bench::{Bench, Counter, Tools};
use crate::cache::ManyKeys;
use crate::logs::LargeLog;
use crate::memory::{bytes_a_key, bytes_of_requests};
use crate::report::{Report, bold, grouped, two_places};
use crate::scripts::Loaded;
use crate::server::{Server, Setup, clock_ms, flush, pipeline, send_all};
use crate::throughput::{Sending, Spread};
use crate::workload::{Algorithm, Workload};

/// Settings of a server that writes each command to a file.
pub const APPEND_ONLY: [(&str, &str); 2] = [("appendonly", "yes"), ("appendfsync", "everysec")];
const APPEND_ONLY_TITLE: &str = "With appendonly yes, appendfsync everysec; to INCR";
const REPLICA_TITLE: &str = "With a replica; to INCR";

/// Workloads, each with the base of its ratio.
struct Section {
    title: String,
    rows: Vec<(Workload, Workload)>,
}

impl Section {
    fn new(title: &str, rows: impl IntoIterator<Item = (Workload, Workload)>) -> Section {
        Section { title: title.into(), rows: rows.into_iter().collect() }
    }

    /// Workloads that are all compared with the same base.
    fn beside(
        title: &str,
        base: impl Fn() -> Workload,
        workloads: impl IntoIterator<Item = Workload>,
    ) -> Section {
        Section::new(title, workloads.into_iter().map(|workload| (workload, base())))
    }

    /// Its rows without figures, for a server that cannot run them.
    fn empty(&self) -> Vec<Row> {
        let names = self.rows.iter().map(|(workload, _)| workload.name.clone());
        [bold(&self.title)].into_iter().chain(names).map(|name| (name, Default::default())).collect()
    }
}

/// The name of a workload, its cost and its ratio.
type Row = (String, [String; 2]);

/// The alternatives to redis-rl that are installed.
fn others(setup: &Setup, scripts: &Loaded) -> impl Iterator<Item = Workload> {
    setup.has_cell.then(Workload::cell).into_iter().chain(scripts.one_key())
}

/// Requests to a server without persistence.
fn in_memory(setup: &Setup, scripts: &Loaded) -> Vec<Section> {
    let (fixed, three_fixed) =
        (|| Workload::allowed(Algorithm::FIXED), || Workload::three_commands(Algorithm::FIXED));
    let three_keys =
        [three_fixed(), Workload::keys(3, Algorithm::FIXED)].into_iter().chain(scripts.three_keys());
    let allowed = Section::beside(
        "Allowed; to the no-op that opens its key to write and marks it as modified",
        Workload::key_marked,
        [Workload::key_marked()].into_iter().chain(Algorithm::ALL.map(Workload::allowed)),
    );
    let three_tiers =
        Algorithm::ALL.map(|algorithm| (Workload::three_tiers(algorithm), Workload::allowed(algorithm)));
    let more = [Workload::no_op(), Workload::incr(), Workload::incr_expire()];
    vec![
        allowed,
        Section::new("Three limits; to one", three_tiers),
        several_keys(),
        Section::beside("Three keys; to three commands in a pipeline", three_fixed, three_keys),
        Section::beside(
            "Other commands; to RL.FIXED, allowed",
            fixed,
            more.into_iter().chain(others(setup, scripts)),
        ),
    ]
}

/// Allowed and refused requests beside those of INCREX, which servers have from Redis 8.8 on.
fn beside_increx() -> Section {
    let ours = [Algorithm::FIXED, Algorithm::LOG];
    let allowed = [Workload::increx()].into_iter().chain(ours.map(Workload::allowed));
    let limited = [Workload::increx_limited()].into_iter().chain(ours.map(Workload::limited));
    let allowed = allowed.map(|workload| (workload, Workload::increx()));
    let limited = limited.map(|workload| (workload, Workload::increx_limited()));
    Section::new("Beside INCREX; to what it takes if it is allowed, or refused", allowed.chain(limited))
}

/// RL.ALL beside the least that any such command has the server do.
fn several_keys() -> Section {
    let rows = [2, 3, 5, 8].into_iter().flat_map(|number| {
        let floor = || Workload::keys_marked(number);
        [(floor(), floor()), (Workload::keys(number, Algorithm::FIXED), floor())]
    });
    let title = "Several keys; to the no-op with as many, the same words and the same reply";
    Section::new(title, rows)
}

/// Requests to a server that tells copies of each command.
fn with_copies(title: &str, setup: &Setup, scripts: &Loaded) -> Section {
    let several = [Workload::three_tiers(Algorithm::FIXED), Workload::keys(3, Algorithm::FIXED)];
    let told = [Workload::incr()].into_iter().chain(Algorithm::ALL.map(Workload::allowed)).chain(several);
    Section::beside(title, Workload::incr, told.chain(others(setup, scripts)))
}

/// Instructions of each server for a request.
pub fn instructions(setup: &Setup, tools: &Tools, report: &mut Report) -> Result<()> {
    if !tools.valgrind {
        return Ok(());
    }
    // In parallel, since one server hardly affects the count of another.
    let counted = thread::scope(|scope| {
        let count = |program| scope.spawn(move || count(setup, tools, program));
        let running: Vec<_> = setup.servers.iter().map(|program| count(program)).collect();
        running.into_iter().map(|server| server.join().expect("no panic")).collect::<Result<Vec<_>>>()
    })?;
    let columns = counted.iter().flat_map(|counted| [counted.version.as_str(), "ratio"]);
    let columns = [""].into_iter().chain(columns);
    report.table("Instructions for a request", columns, INSTRUCTIONS);
    for (i, (name, _)) in counted[0].rows.iter().enumerate() {
        let cells = counted.iter().flat_map(|counted| counted.rows[i].1.clone());
        report.row([name.clone()].into_iter().chain(cells));
    }
    Ok(())
}

const INSTRUCTIONS: &str = "\
By callgrind, of the server's process, for one request of a pipeline to 100 keys in use; the least of three times. They
hardly differ from run to run. redis-rl is the only module, except for no-ops and CL.THROTTLE.";

/// The instructions counted on one server.
struct Counted {
    version: String,
    rows: Vec<Row>,
}

fn count(setup: &Setup, tools: &Tools, program: &Path) -> Result<Counted> {
    let (alone, scripts) = (&setup.alone(), &tools.scripts);
    let (with_others, counter) =
        (Counter::start(setup, scripts, program, &[])?, Counter::start(alone, scripts, program, &[])?);
    let version = counter.server.version()?;
    eprintln!("{version}");
    let mut rows = Vec::new();
    for section in in_memory(setup, &counter.scripts) {
        rows.extend(count_section(&section, |workload| {
            if workload.is_of_another_module() { with_others.cost(workload) } else { counter.cost(workload) }
        })?);
    }
    drop(with_others);
    let section = beside_increx();
    let has_increx = Workload::increx().is_known_to(&mut counter.server.connect()?)?;
    rows.extend(if has_increx {
        count_section(&section, |workload| counter.cost(workload))?
    } else {
        section.empty()
    });
    drop(counter);
    let counter = Counter::start(alone, scripts, program, &APPEND_ONLY)?;
    let section = with_copies(APPEND_ONLY_TITLE, alone, &counter.scripts);
    rows.extend(count_section(&section, |workload| counter.cost(workload))?);
    drop(counter);
    let counter = Counter::start(alone, scripts, program, &[])?;
    let _replica = counter.server.replica(alone, program)?;
    let section = with_copies(REPLICA_TITLE, alone, &counter.scripts);
    rows.extend(count_section(&section, |workload| counter.cost(workload))?);
    Ok(Counted { version, rows })
}

fn count_section(section: &Section, cost: impl Fn(&Workload) -> Result<f64>) -> Result<Vec<Row>> {
    let mut rows = vec![(bold(&section.title), [String::new(), String::new()])];
    for (workload, base) in &section.rows {
        let own = cost(workload)?;
        rows.push((workload.name.clone(), [grouped(own), two_places(own / cost(base)?)]));
    }
    Ok(rows)
}

/// Cache misses of the first server for a request, where keys are many.
pub fn cache_misses(setup: &Setup, tools: &Tools, report: &mut Report) -> Result<()> {
    if !tools.valgrind {
        return Ok(());
    }
    let alone = &setup.alone();
    // Between two doublings of the server's tables, lest it moves their rows meanwhile.
    let keys = setup.size(250_000, 30_000);
    let version = Server::start(alone, setup.first_server(), &[])?.version()?;
    let title = format!("Cache misses over {} keys at random, {version}", grouped(keys as f64));
    report.table(title, ["", "misses for a request", "bytes of a key (used_memory)"], CACHE_MISSES);
    for requests in ManyKeys::all() {
        eprintln!("counting cache misses: {}", requests.name);
        let measured = requests.measure(alone, keys)?;
        report.row([requests.name.into(), format!("{:.1}", measured.misses), grouped(measured.bytes)]);
    }
    Ok(())
}

const CACHE_MISSES: &str = "\
By callgrind, which simulates a last-level cache of 2 MB. Names have 15 bytes, and every key has a time to live.";

/// CPU time.
pub fn throughput(setup: &Setup, tools: &Tools, report: &mut Report) -> Result<()> {
    let bench = Bench::start(setup, tools)?;
    let title = format!("Microseconds of the server's CPU for a request, {}", bench.fast.version()?);
    report.table(title, ["", "in pipelines", "ratio", "one by one"], THROUGHPUT);
    report.section("Commands; to the no-op module command");
    let has_increx = Workload::increx().is_known_to(&mut bench.fast.connect()?)?;
    let commands = [Workload::no_op()]
        .into_iter()
        .chain(Algorithm::ALL.map(Workload::allowed))
        .chain([
            Workload::three_tiers(Algorithm::FIXED),
            Workload::keys(3, Algorithm::FIXED),
            Workload::incr(),
        ])
        .chain(has_increx.then(Workload::increx))
        .chain(others(setup, &bench.scripts))
        .chain(bench.scripts.three_keys());
    for workload in commands {
        let measured = |sending| bench.micros(&workload, &Workload::no_op(), sending);
        let Some([in_pipelines, ratio]) = measured(Sending::Pipelines)? else { continue };
        let Some([one_by_one, _]) = measured(Sending::OneByOne)? else { continue };
        let [in_pipelines, one_by_one] = [in_pipelines, one_by_one].map(|spread| two_places(spread.median));
        report.row([workload.name, in_pipelines, ratio.to_string(), one_by_one]);
    }
    Ok(())
}

const THROUGHPUT: &str = "\
By `redis-benchmark`, which sends 64 requests together or one at a time on each of 50 connections, in turns with what the ratio is
to: medians and, in parentheses, the middle half.";

/// Full logs, and logs whose entries expire at once.
pub fn large_logs(setup: &Setup, tools: &Tools, report: &mut Report) -> Result<()> {
    let bench = Bench::start(setup, tools)?;
    let counter = tools
        .valgrind
        .then(|| Counter::start(setup, &tools.scripts, setup.first_server(), &[]))
        .transpose()?;
    report.table(format!("Large logs, {}", bench.fast.version()?), ["", "measured", "ratio"], "");
    if let Some(counter) = &counter {
        full_logs(counter, report)?;
    }
    worst_call(&bench, report)
}

/// Logs at their limit, where each request expires one entry and adds one.
fn full_logs(counter: &Counter, report: &mut Report) -> Result<()> {
    let (few, many) = (10, counter.setup.size(1_000_000, 100_000));
    report.section("RL.LOG full, one entry expires as one comes, time by AT: instructions; to a limit of 10");
    let base = full_log(counter, few)?;
    for (limit, cost) in [(few, base), (many, full_log(counter, many)?)] {
        report.row([format!("limit {}", grouped(limit as f64)), grouped(cost), two_places(cost / base)]);
    }
    Ok(())
}

/// Instructions for a request to a log that holds `limit` entries before and after it.
fn full_log(counter: &Counter, limit: usize) -> Result<f64> {
    const GAP_MS: u64 = 7;
    const WARM_UP: usize = 100;
    eprintln!("counting: RL.LOG full at limit {limit}");
    let mut connection = counter.server.connect()?;
    let window_ms = limit as u64 * GAP_MS;
    let mut next_ms = clock_ms(&mut connection)? - window_ms;
    let mut lines = std::iter::repeat_with(|| {
        next_ms += GAP_MS;
        format!("RL.LOG key {limit} {window_ms}ms AT {next_ms}")
    });
    let requests = counter.setup.size(5_000, 1_000);
    flush(&mut connection)?;
    send_all(&mut connection, lines.by_ref().take(limit + WARM_UP))?;
    let total = counter.server.least_of_three(|| {
        let answers: Vec<[i64; 5]> = pipeline(lines.by_ref().take(requests)).query(&mut connection)?;
        let full = |[limited, _, remaining, ..]: &[i64; 5]| (*limited, *remaining) == (0, 0);
        ensure!(answers.iter().all(full), "the log of {limit} entries is not at its limit");
        Ok(())
    })?;
    Ok(total.all / requests as f64)
}

/// The most expensive call: every entry of a large log expires at once.
fn worst_call(bench: &Bench, report: &mut Report) -> Result<()> {
    let entries = bench.setup.size(1_000_000, 100_000);
    report.section(&format!("RL.LOG, {} entries expire in one call", grouped(entries as f64)));
    eprintln!("filling a log of {entries} entries");
    let mut connection = bench.fast.connect()?;
    let log = LargeLog::fill(&mut connection, entries)?;
    let ms = Spread::of(log.times_of_last_request(&mut connection, bench.setup.size(15, 3))?.into_iter());
    report.row(["milliseconds, by the slow log".into(), ms.to_string()]);
    Ok(())
}

/// Bytes per key.
pub fn memory(bench: &Bench, report: &mut Report) -> Result<()> {
    memory_of_short_logs(bench, report)?;
    memory_of_tiers(bench, report)
}

/// Bytes per key of a log of a few requests.
fn memory_of_short_logs(bench: &Bench, report: &mut Report) -> Result<()> {
    let title = format!("Memory of a log with a name of 15 bytes (used_memory), {}", bench.fast.version()?);
    report.table(
        title,
        ["units in a key", "RL.LOG"],
        "At random over a minute. Of a million keys each takes 4 to 9 bytes less.",
    );
    for requests in [1, 2, 5, 10, 20, 50, 100, 1_000] {
        eprintln!("making keys of {requests} requests");
        let keys = bench.setup.size(100_000, 10_000).min(2_000_000 / requests);
        report.row([requests.to_string(), grouped(bytes_of_requests(&bench.fast, requests, keys)?)]);
    }
    Ok(())
}

/// Bytes per key with several windows.
fn memory_of_tiers(bench: &Bench, report: &mut Report) -> Result<()> {
    let title = format!("Memory of a limiter with several limits (used_memory), {}", bench.fast.version()?);
    let commands = Algorithm::ALL.map(|algorithm| algorithm.command);
    report.table(title, ["limits"].into_iter().chain(commands), "One unit in each.");
    let keys = bench.setup.size(1_000_000, 100_000);
    for tiers in 1..=3 {
        eprintln!("making {} keys of {tiers} tiers", grouped(keys as f64));
        let mut row = vec![tiers.to_string()];
        for command in commands {
            row.push(grouped(bytes_a_key(&bench.fast, command, tiers, keys)?));
        }
        report.row(row);
    }
    Ok(())
}
