//! Four processes in Python, Node and Rust take units of one key by leases. However they and the server are disturbed, no
//! more than docs/scaling.md promises passes. `LEASES_SECONDS` is how long each test runs, by default 4.

mod forwarder;
mod holds;

use std::env;
use std::mem;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use harness::{APPEND_ONLY, Process, Random, Server, wait_for};
use tempfile::TempDir;

use crate::forwarder::Forwarder;

const LIMIT: u64 = 1_000;
const WINDOW_MS: u64 = 2_000;
const UNITS: u64 = 20;
const PROCESSES: [Language; 4] = [Language::Python, Language::Node, Language::Rust, Language::Rust];

#[derive(Clone, Copy, Debug, PartialEq)]
enum Language {
    Python,
    Node,
    Rust,
}

fn path(relative: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(relative)
}

impl Language {
    /// The worker of this name, if its package is installed.
    fn command(self, name: &str) -> Option<Command> {
        let (program, installed) = match self {
            Language::Python => ("python3".into(), path("target/examples/python")),
            Language::Node => ("node".into(), path("target/examples/node")),
            Language::Rust => {
                let worker = path(&format!("target/debug/examples/{name}"));
                (worker.clone(), worker)
            }
        };
        if !installed.exists() {
            assert!(env::var_os("CI").is_none(), "{self:?} is not installed: see make test-leases");
            eprintln!("without {self:?}, which is not installed: see make test-leases");
            return None;
        }
        let mut command = Command::new::<PathBuf>(program);
        match self {
            Language::Python => {
                command.arg(path(&format!("tests/leases/{name}.py"))).env("PYTHONPATH", installed);
            }
            // A link, so that it finds the packages beside it.
            Language::Node => {
                command
                    .args(["--preserve-symlinks", "--preserve-symlinks-main"])
                    .arg(installed.join(format!("{name}.js")));
            }
            Language::Rust => {}
        }
        Some(command)
    }
}

/// A master and its replica, behind one port.
struct Pair {
    master: Server,
    replica: Server,
    forwarder: Forwarder,
}

impl Pair {
    fn start() -> Pair {
        let master = Server::with(&APPEND_ONLY);
        let replica = Server::replica_of(&master, &APPEND_ONLY);
        let forwarder = Forwarder::to(master.port());
        Pair { master, replica, forwarder }
    }

    /// The replica becomes the master, once it has all that was counted, and the master its replica.
    fn fail_over(&mut self) {
        wait_for("the replica", || self.replica.info("master_link_status") == "up");
        wait_for("the failover", || {
            // The server may give it up; while it goes on, this is an error.
            let _ = self.master.call("FAILOVER");
            self.master.info("role") == "slave" && self.replica.info("role") == "master"
        });
        mem::swap(&mut self.master, &mut self.replica);
        self.forwarder.switch(self.master.port());
    }

    /// Commands are carried out whose replies never come, and then the connections end.
    fn lose_replies(&self, algorithm: &str) {
        let carried_out = || {
            ["allowed", "limited"]
                .map(|what| {
                    self.master.info(&format!("rl_{algorithm}_{what}")).parse::<u64>().expect("a number")
                })
                .iter()
                .sum::<u64>()
        };
        self.forwarder.lose_replies();
        let before = carried_out();
        wait_for("commands whose replies are lost", || carried_out() >= before + PROCESSES.len() as u64);
        self.forwarder.cut();
    }
}

/// The workers on a port, and what earlier ones printed.
struct Workers {
    port: u16,
    settings: [(&'static str, String); 5],
    folder: TempDir,
    running: Vec<(Language, Process)>,
    ended: Vec<String>,
}

impl Workers {
    fn start(port: u16, algorithm: &str, window: String, units: u64, remember_ms: u64) -> Workers {
        let settings = [
            ("ALGORITHM", algorithm.to_owned()),
            ("LIMIT", LIMIT.to_string()),
            ("WINDOW", window),
            ("UNITS", units.to_string()),
            ("REMEMBER_MS", remember_ms.to_string()),
        ];
        let folder = TempDir::new().expect("a temporary folder");
        let mut workers = Workers { port, settings, folder, running: Vec::new(), ended: Vec::new() };
        PROCESSES.into_iter().for_each(|language| workers.add(language));
        workers
    }

    fn add(&mut self, language: Language) {
        let Some(mut command) = language.command("worker") else { return };
        command.env("REDIS_PORT", self.port.to_string());
        command.envs(self.settings.iter().map(|(name, value)| (name, value)));
        let log = self.folder.path().join(format!("{}-{}", self.ended.len(), self.running.len()));
        self.running.push((language, Process::spawn(&mut command, log).expect("a worker")));
    }

    /// Kills a worker, and starts another like it.
    fn replace(&mut self, index: usize) {
        let (language, mut worker) = self.running.remove(index);
        worker.kill();
        self.ended.push(worker.log());
        self.add(language);
    }

    fn kill_all(&mut self) {
        while !self.running.is_empty() {
            let (_, mut worker) = self.running.remove(0);
            worker.kill();
            self.ended.push(worker.log());
        }
    }

    /// How many requests passed in each of those that run.
    fn passed_by_each(&self) -> Vec<usize> {
        self.running.iter().map(|(_, worker)| times(&worker.log()).len()).collect()
    }

    /// When requests passed, in order.
    fn passed(&self) -> Vec<u64> {
        let logs = self.running.iter().map(|(_, worker)| worker.log());
        let mut passed: Vec<u64> =
            logs.chain(self.ended.iter().cloned()).flat_map(|log| times(&log)).collect();
        passed.sort_unstable();
        passed
    }
}

/// The last line may be cut. The packages warn that Redis is away, and that it decides again.
fn times(log: &str) -> Vec<u64> {
    let whole = &log[..log.rfind('\n').map_or(0, |end| end + 1)];
    let time = |line: &str| line.parse().unwrap_or_else(|_| panic!("a worker says: {line}"));
    whole.lines().filter(|line| !line.starts_with("Redis ")).map(time).collect()
}

/// Each span within which requests that passed are counted, and how many an algorithm lets through in it at most.
fn spans(algorithm: &str) -> Vec<(u64, u64)> {
    match algorithm {
        // What refills meanwhile passes on top of a full bucket.
        "bucket" => [8, 2, 1].map(|part| (WINDOW_MS / part, LIMIT + LIMIT / part)).to_vec(),
        _ => vec![(WINDOW_MS, LIMIT)],
    }
}

/// The most that passed in any span of this length (a log, a bucket), or in a window of the clock.
fn most_within(span_ms: u64, algorithm: &str, passed: &[u64]) -> u64 {
    let of = |start: usize| {
        let end = match algorithm {
            // The server counts in whole milliseconds, and so do the clocks of the workers.
            "log" | "bucket" => passed[start] + span_ms - 2,
            _ => (passed[start] / span_ms + 1) * span_ms,
        };
        passed[start..].iter().take_while(|time| **time < end).count() as u64
    };
    (0..passed.len()).map(of).max().unwrap_or(0)
}

fn end() -> Instant {
    let seconds =
        env::var("LEASES_SECONDS").map_or(4, |seconds| seconds.parse().expect("a number of seconds"));
    Instant::now() + Duration::from_secs(seconds)
}

/// Disturbs the workers, the servers and the network, until the end and each in its turn, each time after some requests have
/// passed.
fn disturb(algorithm: &str, servers: &mut Pair, workers: &mut Workers) {
    let (mut random, end) = (Random::new(5), end());
    for turn in 0.. {
        let before = workers.passed().len();
        wait_for("requests that pass", || workers.passed().len() >= before + LIMIT as usize / 4);
        if Instant::now() >= end && turn >= 8 {
            return;
        }
        match turn % 8 {
            0 => servers.forwarder.silence(),
            1 => servers.lose_replies(algorithm),
            2 => servers.master.restart(),
            3 => servers.master.crash_and_restart(),
            4 => _ = servers.master.value("CLIENT PAUSE 300"),
            5 => servers.fail_over(),
            _ => workers.replace(random.below(workers.running.len())),
        }
        // However it was disturbed, each worker goes on.
        let before = workers.passed_by_each();
        wait_for("a request of each worker that passes", || {
            workers.passed_by_each().iter().zip(&before).all(|(now, before)| now > before)
        });
    }
}

fn check(algorithm: &str) {
    let mut servers = Pair::start();
    let mut workers =
        Workers::start(servers.forwarder.port(), algorithm, format!("{WINDOW_MS}ms"), UNITS, 1_000);
    disturb(algorithm, &mut servers, &mut workers);
    workers.kill_all();
    for (span_ms, allowed) in spans(algorithm) {
        let most = most_within(span_ms, algorithm, &workers.passed());
        let bound = allowed + UNITS * PROCESSES.len() as u64;
        println!("{algorithm}: {most} in {span_ms} ms, of {bound} at most");
        assert!(most <= bound, "{most} passed in {span_ms} ms, of {bound} at most");
        assert!(most * 10 >= LIMIT * 9, "only {most} of {LIMIT} passed in the best {span_ms} ms");
    }
    let reset_after = servers.master.figures(&format!("RL.PEEK hot {LIMIT} {WINDOW_MS}ms"))[4];
    let longest = if algorithm == "sliding" { 2 * WINDOW_MS } else { WINDOW_MS };
    assert!(reset_after <= longest as i64, "all is free again after a window, not after {reset_after} ms");
}

#[test]
fn a_log_lets_at_most_the_leases_of_all_processes_pass_beyond_its_limit() {
    check("log");
}

#[test]
fn a_fixed_window_lets_at_most_the_leases_of_all_processes_pass_beyond_its_limit() {
    check("fixed");
}

#[test]
fn a_sliding_window_lets_at_most_the_leases_of_all_processes_pass_beyond_its_limit() {
    check("sliding");
}

#[test]
fn a_bucket_lets_at_most_the_leases_of_all_processes_pass_beyond_it() {
    check("bucket");
}

#[test]
fn without_leases_exactly_the_limit_passes() {
    let server = Server::start();
    let mut workers = Workers::start(server.port(), "log", "1h".to_owned(), 0, 0);
    let limited = || server.info("rl_log_limited").parse::<u64>().expect("a number");
    // By then what was allowed before was printed: each process asks for 20 at a time.
    wait_for("refusals", || limited() > LIMIT);
    workers.kill_all();
    assert_eq!(workers.passed().len() as u64, LIMIT);
}
