//! Benchmarks of the pure modules, without a server, to find the line that got slower.
//!
//! `make bench-limiters` prints the instructions of each case, which are the same in every run, and those of the
//! previous run. It leaves a profile of each case for `callgrind_annotate`.
#![allow(missing_docs)]

use std::hint::black_box;
use std::path::Path;
use std::process::{Command, Stdio};
use std::{env, fs};

use comfy_table::Table;
use comfy_table::presets::ASCII_MARKDOWN;
use redis_rl_core::encoding::{decode, encode};
use redis_rl_core::limiter::several::{Parts, Rows};
use redis_rl_core::limiter::{
    Algorithm, Cost, Limiter, Mode, Quota, QuotaList, Request, Time, UnixMs, WindowMs,
};
use redis_rl_core::request::{self, Arguments, Verb};

fn main() {
    let case = env::args().nth(1).and_then(|name| CASES.iter().find(|case| case.0 == name));
    match case {
        Some((_, run)) => run(),
        None => print_all(),
    }
}

/// The cases. Each runs in a process of its own, and ends it.
const CASES: &[(&str, fn())] = &[
    ("fixed, one tier", || take(in_use(Algorithm::Fixed, ONE))),
    ("fixed, three tiers", || take(in_use(Algorithm::Fixed, THREE))),
    ("fixed, limited", || take(used_up(Algorithm::Fixed))),
    ("sliding, one tier", || take(in_use(Algorithm::Sliding, ONE))),
    ("sliding, three tiers", || take(in_use(Algorithm::Sliding, THREE))),
    ("sliding, limited", || take(used_up(Algorithm::Sliding))),
    ("log, one tier", || take(in_use(Algorithm::Log, ONE))),
    ("log, three tiers", || take(in_use(Algorithm::Log, THREE))),
    ("log, limited", || take(used_up(Algorithm::Log))),
    ("bucket, one tier", || take(in_use(Algorithm::Bucket, ONE))),
    ("bucket, three tiers", || take(in_use(Algorithm::Bucket, THREE))),
    ("log full at 10, one expires", || take(full_log(10, GAP_MS))),
    ("log full at 1000000, one expires", || take(full_log(1_000_000, GAP_MS))),
    ("log full at 1000000, all expire", || take(full_log(1_000_000, 1_000_000 * GAP_MS))),
    ("peek, fixed", || peek(in_use(Algorithm::Fixed, ONE))),
    ("peek, sliding", || peek(in_use(Algorithm::Sliding, ONE))),
    ("peek, log", || peek(in_use(Algorithm::Log, ONE))),
    ("peek, bucket", || peek(in_use(Algorithm::Bucket, ONE))),
    ("parse, one tier", || parse_one_tier("1000000", "60s")),
    ("parse, three tiers", || parse(&["1000000", "60s", "10000000", "1h", "100000000", "1d"])),
    ("parse, options", || parse(&["1000000", "60s", "COST", "5", "FORCE", "AT", "1700000000000"])),
    ("parse, RL.ALL with three rows", || {
        parse_rows("a FIXED 1000000 60s 1 b LOG 10 1m 2 c SLIDING 500 1h 1")
    }),
    ("encode, fixed", || to_bytes(in_use(Algorithm::Fixed, ONE))),
    ("encode, sliding", || to_bytes(in_use(Algorithm::Sliding, ONE))),
    ("encode, bucket", || to_bytes(in_use(Algorithm::Bucket, ONE))),
    ("encode, log of 1000 entries", || to_bytes(full_log(1_000, 0))),
    ("decode, fixed", || from_bytes(in_use(Algorithm::Fixed, ONE))),
    ("decode, sliding", || from_bytes(in_use(Algorithm::Sliding, ONE))),
    ("decode, bucket", || from_bytes(in_use(Algorithm::Bucket, ONE))),
    ("decode, log of 1000 entries", || from_bytes(full_log(1_000, 0))),
];

/// Runs each case under callgrind, which counts the instructions inside `measured`.
fn print_all() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("limiters");
    fs::create_dir_all(&folder).expect("a folder for the profiles");
    let mut table = Table::new();
    table.load_style(ASCII_MARKDOWN).set_header(["", "instructions", "the run before"]);
    for (name, _) in CASES {
        let profile = folder.join(name.replace(", ", "-").replace(' ', "-"));
        let before = instructions(&profile);
        let status = Command::new("valgrind")
            .args(["--tool=callgrind", "--toggle-collect=*measured*"])
            .arg(format!("--callgrind-out-file={}", profile.display()))
            .arg(env::current_exe().expect("a path"))
            .arg(name)
            .stderr(Stdio::null())
            .status();
        assert!(status.is_ok_and(|status| status.success()), "valgrind does not run");
        table.add_row([(*name).into(), instructions(&profile), before]);
    }
    println!("{table}\n\nProfiles: {}", folder.display());
}

fn instructions(profile: &Path) -> String {
    let profile = fs::read_to_string(profile).unwrap_or_default();
    let totals = profile.lines().find_map(|line| line.strip_prefix("totals: "));
    totals.unwrap_or_default().to_owned()
}

/// Runs the code to count.
#[inline(never)]
fn measured<T>(work: impl FnOnce() -> T) -> T {
    black_box(work())
}

const MINUTE_MS: u64 = 60_000;
const HOUR_MS: u64 = 60 * MINUTE_MS;
const DAY_MS: u64 = 24 * HOUR_MS;

/// A time in the middle of a minute, an hour and a day.
const NOW: UnixMs = UnixMs::saturating(19_675 * DAY_MS + DAY_MS / 2 + HOUR_MS / 2 + MINUTE_MS / 2);

/// A limit that is not reached.
const PLENTY: u64 = 1_000_000_000;

const ONE: &[(u64, u64)] = &[(PLENTY, MINUTE_MS)];
const THREE: &[(u64, u64)] = &[(PLENTY, MINUTE_MS), (PLENTY, HOUR_MS), (PLENTY, DAY_MS)];

/// The time between two entries of a full log.
const GAP_MS: u64 = 7;

/// A limiter, and its next request.
struct Case {
    limiter: Limiter,
    quotas: QuotaList,
    now: UnixMs,
}

impl Case {
    /// A case with an empty limiter.
    fn new(algorithm: Algorithm, tiers: &[(u64, u64)]) -> Case {
        let window = |ms| WindowMs::new(ms).expect("a valid window");
        let quota =
            |&(limit, window_ms): &(u64, u64)| Quota::new(limit, window(window_ms)).expect("a valid limit");
        Case { limiter: Limiter::new(algorithm), quotas: tiers.iter().map(quota).collect(), now: NOW }
    }

    #[inline(always)]
    fn take(&mut self) {
        let Case { limiter, quotas, now } = self;
        let decision = limiter.decide_and_commit(request(limiter.algorithm(), quotas, *now));
        black_box(decision.expect("its own algorithm, and no more windows than fit"));
    }

    fn take_at(&mut self, now: u64) {
        self.now = UnixMs::saturating(now);
        self.take();
    }
}

/// A limiter with units in the previous window of each tier, or for a log in the first half of the current one,
/// and ten units in the last ten seconds.
fn in_use(algorithm: Algorithm, tiers: &[(u64, u64)]) -> Case {
    let mut case = Case::new(algorithm, tiers);
    for (_, window_ms) in tiers.iter().rev() {
        case.take_at(NOW.get() - if algorithm == Algorithm::Log { window_ms / 2 } else { *window_ms });
    }
    for second in (1..=10).rev() {
        case.take_at(NOW.get() - second * 1_000);
    }
    Case { now: NOW, ..case }
}

/// The same with the limit used up.
fn used_up(algorithm: Algorithm) -> Case {
    Case { quotas: Case::new(algorithm, &[(10, MINUTE_MS)]).quotas, ..in_use(algorithm, ONE) }
}

/// A log at its limit, whose next request comes `later_ms` after its last.
fn full_log(limit: u64, later_ms: u64) -> Case {
    let mut case = Case::new(Algorithm::Log, &[(limit, limit * GAP_MS)]);
    for i in 0..limit {
        case.take_at(NOW.get() + i * GAP_MS);
    }
    Case { now: UnixMs::saturating(case.now.get() + later_ms), ..case }
}

fn request(algorithm: Algorithm, quotas: &[Quota], now: UnixMs) -> Request<'_> {
    let time = Time { clock: now, at: None };
    Request { algorithm, quotas, cost: Cost::ONE, mode: Mode::AllOrNothing, time }
}

fn take(mut case: Case) {
    measured(|| black_box(&mut case).take());
}

fn peek(case: Case) {
    let Case { limiter, quotas, now } = &case;
    measured(|| black_box(limiter).peek(request(limiter.algorithm(), quotas, *now))).expect("a verdict");
}

fn parse_one_tier(limit: &str, window: &str) {
    measured(|| request::parse_plain_quota(black_box(limit).as_bytes(), window.as_bytes())).expect("a quota");
}

fn parse(args: &[&str]) {
    measured(|| Arguments::parse(black_box(args), Verb::Take(Algorithm::Log))).expect("a request");
}

/// Parses rows, each with a key of its own.
fn parse_rows(words: &str) {
    let words: Vec<&str> = words.split(' ').collect();
    let (mut keys, mut rows) = (Parts::<_, (), _>::default(), Rows::new());
    measured(|| request::parse_rows(black_box(&words), &mut keys, &mut rows)).expect("rows");
}

fn to_bytes(case: Case) {
    measured(|| encode(black_box(&case.limiter)));
}

fn from_bytes(case: Case) {
    let bytes = encode(&case.limiter);
    measured(|| decode(black_box(&bytes))).expect("a limiter");
}
