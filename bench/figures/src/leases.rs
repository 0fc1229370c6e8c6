//! What leases save, and what they cost in exactness and fairness: processes simulated on one hot key of RL.LOG.
//!
//! The processes run the machine of the Rust package, against an exact log. Time is simulated, so every run is the same.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use anyhow::Result;
use fastrand::Rng;
use plotters::prelude::*;
use redis::Arg;
use redis_rl_client::local::{Command, Keys, MAX_KEYS, Rules, Share, Step};
use redis_rl_client::{Algorithm, Decision, Quota, Verdict};

use super::{ALL, Canvas, INK, LOG, text};

/// From a process to the server, or back.
const LATENCY_MS: u64 = 1;
/// Units of the key that many processes share.
const MANY: u64 = 2_000_000;
/// The sizes of leases that are compared.
const UNITS: [u64; 7] = [0, 1, 3, 10, 30, 100, 300];

/// A limit, and processes that share it.
#[derive(Clone)]
struct Scenario {
    limit: u64,
    window_ms: u64,
    end_ms: u64,
    /// From one request of a process to the next, on average.
    pauses_ms: Vec<f64>,
}

impl Scenario {
    /// 1,000 processes that together ask for so many units in a window, of which there are 2,000,000.
    fn many(demand: u64) -> Scenario {
        // A few processes get most of the requests, as behind any load balancer.
        let mut random = Rng::with_seed(3);
        let weights: Vec<f64> = (0..1_000).map(|_| 10f64.powf(random.f64())).collect();
        let total: f64 = weights.iter().sum();
        let window_ms = 10_000;
        let pause_ms = |weight| window_ms as f64 * total / (demand as f64 * weight);
        let pauses_ms = weights.into_iter().map(pause_ms).collect();
        Scenario { limit: MANY, window_ms, end_ms: window_ms + window_ms / 2, pauses_ms }
    }

    /// A process of 20 requests a second beside four of 370, and 300 units a second.
    fn slow_beside_hot() -> Scenario {
        let requests_a_second = [20.0, 370.0, 370.0, 370.0, 370.0];
        let pauses_ms = requests_a_second.map(|requests| 1_000.0 / requests).to_vec();
        Scenario { limit: 300, window_ms: 1_000, end_ms: 60_000, pauses_ms }
    }
}

/// What happened with leases of one size.
struct Outcome {
    units: u64,
    commands_per_decision: f64,
    /// Requests beyond the limit that passed in the worst span of a window.
    beyond: u64,
    /// Requests that passed in the last whole window, in percent of the limit.
    used_percent: f64,
    /// Requests of the first process that passed, in percent.
    first_percent: f64,
}

/// An exact log.
struct Server {
    limit: u64,
    window_ms: u64,
    entries: VecDeque<(u64, u64)>,
    used: u64,
}

impl Server {
    fn decide(&mut self, command: &Command, now_ms: u64) -> Decision {
        while self.entries.front().is_some_and(|(at, _)| at + self.window_ms <= now_ms) {
            self.used -= self.entries.pop_front().map_or(0, |(_, units)| units);
        }
        let (cost, at_ms) = (number_after(command, b"COST").unwrap_or(1), number_after(command, b"AT"));
        if let Some(at_ms) = at_ms {
            self.give_back(cost.unsigned_abs(), at_ms.unsigned_abs());
        }
        let (cost, room) = (cost.max(0).unsigned_abs(), self.limit - self.used);
        let taken = cost.min(room);
        if taken > 0 {
            self.used += taken;
            match self.entries.back_mut() {
                Some((at, units)) if *at == now_ms => *units += taken,
                _ => self.entries.push_back((now_ms, taken)),
            }
        }
        let limited = taken < cost;
        let oldest_ms = self.entries.front().map_or(now_ms, |(at, _)| *at);
        let retry_after = limited.then(|| Duration::from_millis(oldest_ms + self.window_ms - now_ms));
        let at = UNIX_EPOCH + Duration::from_millis(now_ms);
        let row = Verdict {
            limited,
            limit: self.limit,
            remaining: self.limit - self.used,
            retry_after,
            reset_after: Duration::from_millis(self.window_ms),
            taken: Some(taken as i64),
            at: Some(at),
        };
        Decision { limited, retry_after, at, rows: vec![row] }
    }

    /// The newest units that were counted at that time or before.
    fn give_back(&mut self, mut units: u64, at_ms: u64) {
        for (at, counted) in self.entries.iter_mut().rev().filter(|(at, _)| *at <= at_ms) {
            let back = units.min(*counted);
            *counted -= back;
            self.used -= back;
            units -= back;
            if units == 0 || *at + self.window_ms <= at_ms {
                return;
            }
        }
    }
}

/// The number that follows this word of a command.
fn number_after(command: &Command, word: &[u8]) -> Option<i64> {
    let command = command.cmd(None);
    let mut words = command.args_iter();
    words.find(|other| matches!(other, Arg::Simple(other) if *other == word))?;
    match words.next()? {
        Arg::Simple(number) => std::str::from_utf8(number).ok()?.parse().ok(),
        _ => None,
    }
}

/// What happens to a process, or at the server on its behalf.
enum Event {
    Request,
    Arrive(Command),
    Reply(Command, Decision),
    Tick,
}

struct Simulation {
    share: Share,
    units: u64,
    scenario: Scenario,
    server: Server,
    processes: Vec<Keys>,
    /// By time, and at one time in the order in which they were foreseen.
    queue: BinaryHeap<Reverse<(u64, usize)>>,
    /// The events in the queue, each with its process.
    events: Vec<Option<(usize, Event)>>,
    free: Vec<usize>,
    /// Requests that passed in each millisecond.
    passed: Vec<u64>,
    /// Requests of the first process: those that came, and those that passed.
    first: (u64, u64),
    decisions: u64,
    commands: u64,
}

impl Simulation {
    /// Processes with leases of so many units.
    fn new(units: u64, scenario: Scenario) -> Simulation {
        let Scenario { limit, window_ms, end_ms, .. } = scenario;
        let quota = Quota::new(limit, Duration::from_millis(window_ms));
        let rules = Rules::new(Algorithm::Log, &[quota], Duration::from_millis(100), units);
        let max_keys = const { NonZeroUsize::new(MAX_KEYS).expect("some keys") };
        let keys = |_: &f64| Keys::new(Duration::from_secs(1), max_keys, false);
        Simulation {
            processes: scenario.pauses_ms.iter().map(keys).collect(),
            share: Share { key: Arc::from(&b"hot"[..]), rules: Arc::new(rules), cost: 1 },
            units,
            server: Server { limit, window_ms, entries: VecDeque::new(), used: 0 },
            queue: BinaryHeap::new(),
            events: Vec::new(),
            free: Vec::new(),
            passed: vec![0; (end_ms + 10 * LATENCY_MS) as usize],
            first: (0, 0),
            decisions: 0,
            commands: 0,
            scenario,
        }
    }

    fn pass(&mut self, process: usize, now_ms: u64, requests: u64) {
        self.passed[now_ms as usize] += requests;
        if process == 0 {
            self.first.1 += requests;
        }
    }

    fn plan(&mut self, at_ms: u64, process: usize, event: Event) {
        let place = self.free.pop().unwrap_or_else(|| {
            self.events.push(None);
            self.events.len() - 1
        });
        self.events[place] = Some((process, event));
        self.queue.push(Reverse((at_ms, place)));
    }

    fn run(mut self) -> Outcome {
        let mut random = Rng::with_seed(4);
        let pauses_ms = self.scenario.pauses_ms.clone();
        let mut next_ms: Vec<f64> = pauses_ms.iter().map(|pause| pause * random.f64()).collect();
        for (process, at_ms) in next_ms.iter().enumerate() {
            self.plan(*at_ms as u64, process, Event::Request);
        }
        while let Some(Reverse((now_ms, place))) = self.queue.pop() {
            let Some((process, event)) = self.events[place].take() else { continue };
            self.free.push(place);
            if now_ms >= self.scenario.end_ms {
                break;
            }
            let now = Duration::from_millis(now_ms);
            let keys = &mut self.processes[process];
            let step = match event {
                Event::Request => {
                    self.decisions += 1;
                    let id = self.decisions;
                    let step = keys.take(now, id, vec![self.share.clone()]);
                    keys.leave_as_is(id);
                    self.first.0 += u64::from(process == 0);
                    // Exponential: requests come independently of each other.
                    next_ms[process] -= (1.0 - random.f64()).ln() * pauses_ms[process];
                    self.plan((next_ms[process] as u64).max(now_ms), process, Event::Request);
                    step
                }
                Event::Arrive(command) => {
                    let decision = self.server.decide(&command, now_ms);
                    if command.awaits_reply() {
                        self.plan(now_ms + LATENCY_MS, process, Event::Reply(command, decision));
                    }
                    Step::default()
                }
                Event::Reply(command, decision) => {
                    let step = keys.reply(now, &command, Ok(decision));
                    if let Some(ends) = keys.next_tick() {
                        self.plan((ends.as_millis() as u64).max(now_ms), process, Event::Tick);
                    }
                    step
                }
                Event::Tick => keys.tick(now),
            };
            for command in step.commands {
                self.commands += 1;
                self.plan(now_ms + LATENCY_MS, process, Event::Arrive(command));
            }
            let answers = step.answers.iter();
            let allowed = answers.filter(|(_, answer)| answer.as_ref().is_ok_and(|answer| !answer.limited));
            self.pass(process, now_ms, allowed.count() as u64);
        }
        self.outcome()
    }

    fn outcome(self) -> Outcome {
        let Scenario { limit, window_ms, end_ms, .. } = self.scenario;
        let in_span: Vec<u64> =
            self.passed.windows(window_ms as usize).map(|span| span.iter().sum()).collect();
        let most = in_span.iter().copied().max().unwrap_or(0);
        let last = in_span[(end_ms - window_ms) as usize];
        Outcome {
            units: self.units,
            commands_per_decision: self.commands as f64 / self.decisions as f64,
            beyond: most.saturating_sub(limit),
            used_percent: last as f64 * 100.0 / limit as f64,
            first_percent: self.first.1 as f64 * 100.0 / self.first.0 as f64,
        }
    }
}

pub fn draw(canvas: &Canvas) -> Result<()> {
    let run = |scenario: Scenario| UNITS.map(|units| Simulation::new(units, scenario.clone()).run());
    let (quiet, busy) = (run(Scenario::many(MANY / 2)), run(Scenario::many(2 * MANY)));
    let unequal = run(Scenario::slow_beside_hot());
    println!(
        "| units | commands for 100 decisions at half the limit | at twice the limit | beyond | used | slow |"
    );
    println!("| --- | --- | --- | --- | --- | --- |");
    for ((quiet, busy), unequal) in quiet.iter().zip(&busy).zip(&unequal) {
        println!(
            "| {} | {:.1} | {:.1} | {} | {:.1} % | {:.1} % |",
            quiet.units,
            100.0 * quiet.commands_per_decision,
            100.0 * busy.commands_per_decision,
            busy.beyond,
            busy.used_percent,
            unequal.first_percent,
        );
    }
    let title =
        "Commands for 100 decisions on a key that 1,000 processes share, by the largest lease of each";
    canvas.draw(&Text::new(title, (20, 12), text(17)))?;
    let (_, panel) = canvas.split_vertically(40);
    let last = UNITS.len() as f64 - 1.0;
    let mut chart = ChartBuilder::on(&panel)
        .margin(12)
        .margin_top(50)
        .x_label_area_size(40)
        .y_label_area_size(40)
        .build_cartesian_2d(0.0..last, 0.0..100.0)?;
    chart
        .configure_mesh()
        .disable_mesh()
        .axis_style(INK)
        .label_style(text(13))
        .x_labels(UNITS.len())
        .x_label_formatter(&|index| UNITS[index.round() as usize].to_string())
        .x_desc("units")
        .y_label_formatter(&|n| format!("{n}"))
        .draw()?;
    let lines =
        [("half of the limit is asked for", &quiet, LOG), ("twice the limit is asked for", &busy, ALL)];
    for (line, (label, outcomes, color)) in lines.into_iter().enumerate() {
        let commands = outcomes.iter().map(|outcome| 100.0 * outcome.commands_per_decision);
        let points = commands.enumerate().map(|(x, y)| (x as f64, y));
        chart.draw_series(LineSeries::new(points, color.stroke_width(3)))?;
        panel.draw(&Text::new(label, (80, 6 + 20 * line as i32), text(14).color(&color)))?;
    }
    Ok(())
}
