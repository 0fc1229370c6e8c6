//! Four processes in Python, Node and Rust hold places of one key. However they and the servers are disturbed, no more are at
//! work than the limit, and every place is free again within the time for which one is held.

use std::fs;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering::SeqCst};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use harness::{Process, Random, Server, wait_for};
use tempfile::TempDir;

use crate::{Language, PROCESSES, Pair, end};

const LIMIT: u64 = 5;
const FOR_MS: u64 = 1_500;
/// A place that is late was lost by so much before the process has said so, at most.
const SLACK_MS: u64 = 300;

fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}

/// What is known of one worker.
struct Holder {
    language: Language,
    process: Process,
    /// From when until when it was stopped.
    pauses: Vec<(u64, u64)>,
    killed: Option<u64>,
}

struct Holders {
    folder: TempDir,
    settings: Vec<(&'static str, String)>,
    all: Vec<Holder>,
}

/// A place that was held, as its worker knows.
struct Held {
    /// The process, and its number for the place.
    place: (u32, u64),
    begin: u64,
    end: u64,
    limit: u64,
}

impl Holders {
    fn start(port: u16, tasks: usize, once: bool, is_cluster: bool) -> Holders {
        let mut holders = Holders::none(port, tasks, once, is_cluster, "0.03");
        PROCESSES.into_iter().for_each(|language| holders.add(language));
        holders
    }

    /// Without any worker yet. Of their blocks `late` is the part that is longer than a place lasts.
    fn none(port: u16, tasks: usize, once: bool, is_cluster: bool, late: &str) -> Holders {
        let folder = TempDir::new().expect("a temporary folder");
        let limit = folder.path().join("limit").display().to_string();
        let settings = vec![
            ("REDIS_PORT", port.to_string()),
            ("CLUSTER", if is_cluster { "1" } else { "" }.to_owned()),
            ("LIMIT_FILE", limit),
            ("FOR_MS", FOR_MS.to_string()),
            ("TASKS", tasks.to_string()),
            ("ONCE", if once { "1" } else { "" }.to_owned()),
            ("LATE", late.to_owned()),
            // One that needs more connects all at once is not late.
            ("TIMEOUT", if once { "30" } else { "0.4" }.to_owned()),
        ];
        let holders = Holders { folder, settings, all: Vec::new() };
        holders.set_limit(LIMIT);
        holders
    }

    fn set_limit(&self, limit: u64) {
        let (new, file) = (self.folder.path().join("new"), self.folder.path().join("limit"));
        fs::write(&new, limit.to_string()).expect("a file");
        fs::rename(new, file).expect("a file");
    }

    fn add(&mut self, language: Language) {
        let Some(mut command) = language.command("holder") else { return };
        command.envs(self.settings.iter().map(|(name, value)| (name, value)));
        let log = self.folder.path().join(self.all.len().to_string());
        let process = Process::spawn(&mut command, log).expect("a worker");
        self.all.push(Holder { language, process, pauses: Vec::new(), killed: None });
    }

    fn running(&self) -> Vec<usize> {
        (0..self.all.len()).filter(|index| self.all[*index].killed.is_none()).collect()
    }

    fn kill(&mut self, index: usize) {
        let holder = &mut self.all[index];
        holder.killed = Some(now_ms());
        holder.process.kill();
    }

    /// Stops a worker until the condition holds.
    fn pause(&mut self, index: usize, what: &str, condition: impl FnMut() -> bool) {
        let begin = now_ms();
        self.all[index].process.freeze();
        wait_for(what, condition);
        self.all[index].process.thaw();
        self.all[index].pauses.push((begin, now_ms()));
    }

    /// How many places each worker that runs has held.
    fn taken_by_each(&self) -> Vec<usize> {
        self.running().iter().map(|index| self.all[*index].process.log().matches(" + ").count()).collect()
    }

    fn taken(&self) -> usize {
        self.taken_by_each().iter().sum()
    }

    /// Each worker takes a place again.
    fn wait_for_each(&self) {
        let before = self.taken_by_each();
        wait_for("each worker to hold a place again", || {
            self.taken_by_each().iter().zip(&before).all(|(now, before)| now > before)
        });
    }

    fn late(&self, index: usize) -> usize {
        self.all[index].process.log().matches(" ! ").count()
    }

    fn held(&self) -> Vec<Held> {
        self.all.iter().flat_map(Holder::held).collect()
    }

    /// The most that were at work at once. The last of them to begin has gone by its limit, so that of one of them is no less.
    fn check(&self) -> usize {
        let held = self.held();
        let mut events: Vec<(u64, bool, usize)> = held
            .iter()
            .enumerate()
            .flat_map(|(index, each)| [(each.begin, true, index), (each.end, false, index)])
            .collect();
        // What ends in a millisecond may have made room for what begins in it.
        events.sort_unstable();
        let (mut at_work, mut most) = (Vec::new(), 0);
        for (_, begins, index) in events {
            if !begins {
                at_work.retain(|each| *each != index);
                continue;
            }
            at_work.push(index);
            let limit = at_work.iter().map(|index| held[*index].limit).max().unwrap_or(0);
            let who = || at_work.iter().map(|index| held[*index].place).collect::<Vec<_>>();
            assert!(at_work.len() as u64 <= limit, "more than {limit} are at work at once: {:?}", who());
            most = at_work.len().max(most);
        }
        most
    }
}

impl Holder {
    fn held(&self) -> Vec<Held> {
        let log = self.process.log();
        let (mut held, mut ended) = (Vec::<(u64, Held)>::new(), Vec::new());
        // The last line may be cut. The packages warn that Redis is away, and that it decides again.
        let whole = &log[..log.rfind('\n').map_or(0, |end| end + 1)];
        for line in whole.lines().filter(|line| !line.starts_with("Redis ")) {
            let words: Vec<&str> = line.split(' ').collect();
            let number = |index: usize| -> u64 {
                words
                    .get(index)
                    .and_then(|word| word.parse().ok())
                    .unwrap_or_else(|| panic!("it says: {line}"))
            };
            let (ms, place) = (number(0), number(2));
            if words[1] == "+" {
                let until = self.killed.unwrap_or_else(now_ms).max(ms);
                held.push((
                    place,
                    Held { place: (self.process.id(), place), begin: ms, end: until, limit: number(3) },
                ));
                continue;
            }
            let index = held.iter().position(|(each, _)| *each == place);
            // One that was lost has ended before it was given back.
            if let Some(index) = index {
                let (_, mut each) = held.swap_remove(index);
                each.end = if words[1] == "!" { ms - SLACK_MS } else { ms };
                ended.push(each);
            }
        }
        ended.extend(held.into_iter().map(|(_, each)| each));
        for each in &mut ended {
            let is_lost =
                |(from, to): &&(u64, u64)| (each.begin..each.end).contains(from) && to - from > FOR_MS;
            each.end = self.pauses.iter().find(is_lost).map_or(each.end, |(from, _)| *from);
        }
        // Others began and ended in one millisecond.
        ended.retain(|each| each.begin < each.end);
        ended
    }
}

/// All places are free within the time for which one is held, whoever was killed.
fn check_free(server: &Server, killed: Instant) {
    let peek = format!("RL.PEEK places {LIMIT} {FOR_MS}ms");
    wait_for("all places to be free", || server.figures(&peek)[2] == LIMIT as i64);
    let waited = killed.elapsed();
    assert!(waited < Duration::from_millis(FOR_MS + 300), "all is free only after {waited:?}");
}

fn finish(mut holders: Holders, server: &Server) {
    let killed = Instant::now();
    holders.running().into_iter().for_each(|index| holders.kill(index));
    let most = holders.check();
    println!("{most} of {LIMIT} at work at once, {} places held", holders.held().len());
    assert!(most >= LIMIT as usize, "only {most} were at work at once");
    check_free(server, killed);
}

#[test]
fn no_more_are_at_work_than_the_limit_however_workers_servers_and_the_network_fail() {
    let mut servers = Pair::start();
    let mut holders = Holders::start(servers.forwarder.port(), 20, false, false);
    let (mut random, end) = (Random::new(7), end());
    for turn in 0.. {
        holders.wait_for_each();
        if Instant::now() >= end && turn >= 11 {
            break;
        }
        let running = holders.running();
        let any = running[random.below(running.len())];
        match turn % 11 {
            0 => servers.forwarder.silence(),
            // Until the workers have given up their connections, with the renewals of some places.
            1 | 9 => servers.forwarder.lose_replies(),
            2 => servers.master.restart(),
            3 => servers.master.crash_and_restart(),
            4 => _ = servers.master.value("CLIENT PAUSE 300"),
            5 => servers.fail_over(),
            6 | 7 => {
                let language = holders.all[any].language;
                holders.kill(any);
                holders.add(language);
            }
            8 => {
                // For longer than places are held without being renewed.
                let begin = Instant::now();
                holders
                    .pause(any, "places to be lost", || begin.elapsed() > Duration::from_millis(2 * FOR_MS));
            }
            _ => {
                let (begin, late) = (Instant::now(), holders.late(any));
                holders.pause(any, "a while", || begin.elapsed() > Duration::from_millis(FOR_MS / 4));
                holders.wait_for_each();
                assert_eq!(holders.late(any), late, "nothing is lost by a pause that is shorter");
            }
        }
    }
    finish(holders, &servers.master);
}

/// Each process has one worker, so whoever gives the only place back could take it again each time.
#[test]
fn two_processes_share_one_place() {
    use Language::{Node, Python, Rust};
    for pair in [[Python, Node], [Node, Rust], [Rust, Python]] {
        let server = Server::start();
        let mut holders = Holders::none(server.port(), 1, false, false, "0");
        holders.set_limit(1);
        pair.into_iter().for_each(|language| holders.add(language));
        holders.wait_for_each();
        let before = holders.taken_by_each();
        let taken = || -> Vec<_> {
            holders.taken_by_each().iter().zip(&before).map(|(now, before)| now - before).collect()
        };
        wait_for("places of both", || taken().iter().sum::<usize>() >= 200);
        println!("{pair:?}: {:?}", taken());
        assert!(taken().iter().all(|each| *each >= 40), "{pair:?} have taken {:?}", taken());
        assert_eq!(holders.check(), 1);
    }
}

#[test]
fn who_begins_goes_by_the_limit_of_now_while_it_changes() {
    let server = Server::start();
    let holders = Holders::start(server.port(), 20, false, false);
    for limit in [3, 8, 1, 5, 0, 6, LIMIT] {
        holders.set_limit(limit);
        let before = holders.taken();
        wait_for("places by the new limit", || limit == 0 || holders.taken() > before + 40);
    }
    let most = holders.check();
    assert!(most > LIMIT as usize, "only {most} at once when the limit was more");
    finish(holders, &server);
}

#[test]
fn of_ten_thousand_at_once_five_are_at_work_and_nothing_is_left() {
    let server = Server::start();
    let mut holders = Holders::start(server.port(), 10_000 / PROCESSES.len(), true, false);
    for holder in &mut holders.all {
        assert!(holder.process.wait().success(), "{}", holder.process.log());
    }
    assert_eq!(server.integer("EXISTS places"), 0, "all has been given back");
    assert_eq!(holders.check(), LIMIT as usize);
}

/// Says so also if the test fails.
struct AtTheEnd<'a>(&'a AtomicBool);

impl Drop for AtTheEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, SeqCst);
    }
}

#[test]
fn a_clock_that_steps_back_lets_nobody_in() {
    let server = Server::with_clock_at(now_ms() as i64, &[]);
    let (offset, is_over) = (AtomicI64::new(0), AtomicBool::new(false));
    thread::scope(|scope| {
        let _over = AtTheEnd(&is_over);
        scope.spawn(|| {
            while !is_over.load(SeqCst) {
                let before = now_ms();
                server.set_clock(before as i64 + offset.load(SeqCst));
                wait_for("time to pass", || now_ms() > before);
            }
        });
        let mut holders = Holders::start(server.port(), 20, false, false);
        for step_ms in [1, 400, 2 * FOR_MS as i64, 3_600_000] {
            holders.wait_for_each();
            offset.fetch_sub(step_ms, SeqCst);
        }
        holders.running().into_iter().for_each(|index| holders.kill(index));
        println!("{} of {LIMIT} at work at once, {} places held", holders.check(), holders.held().len());
    });
}

/// Two masters, of which the first has the slot of the key.
fn cluster() -> [Server; 2] {
    let nodes =
        [0, 1].map(|_| Server::with(&[("cluster-enabled", "yes"), ("cluster-node-timeout", "15000")]));
    let half = nodes[0].integer("CLUSTER KEYSLOT places").clamp(1, 16_382);
    nodes[0].value(&format!("CLUSTER ADDSLOTSRANGE 0 {half}"));
    nodes[1].value(&format!("CLUSTER ADDSLOTSRANGE {} 16383", half + 1));
    // The only line: its id, address and port, and after @ that for other nodes.
    let line = nodes[0].text("CLUSTER NODES");
    let bus = line.split(['@', ',', ' ']).nth(2).expect("a port");
    nodes[1].value(&format!("CLUSTER MEET 127.0.0.1 {} {bus}", nodes[0].port()));
    wait_for("the nodes to make a cluster", || {
        nodes.iter().all(|node| {
            let info = node.text("CLUSTER INFO");
            info.contains("cluster_state:ok") && info.contains("cluster_known_nodes:2")
        })
    });
    nodes
}

#[test]
fn no_more_are_at_work_while_the_slot_moves() {
    let nodes = cluster();
    let ids = [0, 1].map(|index| nodes[index].text("CLUSTER MYID"));
    let slot = nodes[0].integer("CLUSTER KEYSLOT places");
    let holders = Holders::start(nodes[0].port(), 20, false, true);
    for turn in 0..6 {
        holders.wait_for_each();
        let (from, to) = (turn % 2, 1 - turn % 2);
        nodes[to].value(&format!("CLUSTER SETSLOT {slot} IMPORTING {}", ids[from]));
        nodes[from].value(&format!("CLUSTER SETSLOT {slot} MIGRATING {}", ids[to]));
        let before = holders.taken();
        nodes[from].value(&format!("MIGRATE 127.0.0.1 {} places 0 20000", nodes[to].port()));
        // They are asked to follow.
        wait_for("places that are taken meanwhile", || holders.taken() > before + 10);
        for node in [to, from] {
            nodes[node].value(&format!("CLUSTER SETSLOT {slot} NODE {}", ids[to]));
        }
    }
    finish(holders, &nodes[0]);
}
