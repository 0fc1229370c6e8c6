//! What leases save, and what they cost in exactness: 1,000 processes simulated on one hot key of RL.LOG.
//!
//! The processes run the decider of the Rust package, against an exact log. Time is simulated, so every run is the same.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::Result;
use fastrand::Rng;
use plotters::prelude::*;
use redis_rl_client::local::{Answer, Command, Key, Purpose, Rules, Settings, Step};
use redis_rl_client::{Algorithm, Quota, Verdict};

use super::{ALL, Canvas, INK, LOG, OTHER, text};

const PROCESSES: usize = 1_000;
const LIMIT: u64 = 2_000_000;
const WINDOW_MS: u64 = 10_000;
const END_MS: u64 = WINDOW_MS + WINDOW_MS / 2;
/// From a process to the server, or back.
const LATENCY_MS: u64 = 1;
/// The sizes of leases that are compared.
const UNITS: [u64; 7] = [0, 1, 3, 10, 30, 100, 300];

/// What happened with leases of one size.
struct Outcome {
    units: u64,
    commands_per_decision: f64,
    /// Requests beyond the limit that passed in the worst span of a window.
    beyond: u64,
    /// Requests that passed in the last whole window, in percent of the limit.
    used_percent: f64,
}

/// An exact log.
#[derive(Default)]
struct Server {
    entries: VecDeque<(u64, u64)>,
    used: u64,
}

impl Server {
    fn decide(&mut self, command: &Command, now_ms: u64) -> Verdict {
        while self.entries.front().is_some_and(|(at, _)| at + WINDOW_MS <= now_ms) {
            self.used -= self.entries.pop_front().map_or(0, |(_, units)| units);
        }
        if let Some(at) = command.at {
            self.give_back(command.cost.unsigned_abs(), unix_ms(at));
        }
        let (cost, room) = (command.cost.max(0).unsigned_abs(), LIMIT - self.used);
        let taken = if command.partial || cost <= room { cost.min(room) } else { 0 };
        if taken > 0 {
            self.used += taken;
            match self.entries.back_mut() {
                Some((at, units)) if *at == now_ms => *units += taken,
                _ => self.entries.push_back((now_ms, taken)),
            }
        }
        let limited = taken < cost;
        let oldest_ms = self.entries.front().map_or(now_ms, |(at, _)| *at);
        Verdict {
            limited,
            limit: LIMIT,
            remaining: LIMIT - self.used,
            retry_after: limited.then(|| Duration::from_millis(oldest_ms + WINDOW_MS - now_ms)),
            reset_after: Duration::from_millis(WINDOW_MS),
            taken: command.partial.then_some(taken as i64),
            at: command.partial.then(|| UNIX_EPOCH + Duration::from_millis(now_ms)),
        }
    }

    /// The newest units that were counted at that time or before.
    fn give_back(&mut self, mut units: u64, at_ms: u64) {
        for (at, counted) in self.entries.iter_mut().rev().filter(|(at, _)| *at <= at_ms) {
            let back = units.min(*counted);
            *counted -= back;
            self.used -= back;
            units -= back;
            if units == 0 || *at + WINDOW_MS <= at_ms {
                return;
            }
        }
    }
}

fn unix_ms(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}

/// What happens to a process, or at the server on its behalf.
enum Event {
    Request,
    Arrive(Command),
    Reply(Verdict),
    Tick,
}

struct Simulation {
    rules: Arc<Rules>,
    settings: Settings,
    demand: u64,
    server: Server,
    processes: Vec<Key>,
    /// By time, and at one time in the order in which they were foreseen.
    queue: BinaryHeap<Reverse<(u64, usize)>>,
    /// The events in the queue, each with its process.
    events: Vec<Option<(usize, Event)>>,
    free: Vec<usize>,
    /// Requests that passed in each millisecond.
    passed: Vec<u64>,
    decisions: u64,
    commands: u64,
}

impl Simulation {
    /// Processes with leases of so many units, and so many requests in a window by all of them.
    fn new(units: u64, demand: u64) -> Simulation {
        let quota = Quota::new(LIMIT, Duration::from_millis(WINDOW_MS));
        let rules = Arc::new(Rules::new(Algorithm::Log, &[quota], Duration::from_millis(100)));
        let name: Arc<[u8]> = Arc::from(&b"hot"[..]);
        Simulation {
            processes: (0..PROCESSES).map(|_| Key::new(name.clone(), rules.clone())).collect(),
            rules,
            settings: Settings { units, remember_ms: 1_000 },
            demand,
            server: Server::default(),
            queue: BinaryHeap::new(),
            events: Vec::new(),
            free: Vec::new(),
            passed: vec![0; (END_MS + 10 * LATENCY_MS) as usize],
            decisions: 0,
            commands: 0,
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
        // A few processes get most of the requests, as behind any load balancer.
        let mut random = Rng::with_seed(3);
        let weights: Vec<f64> = (0..PROCESSES).map(|_| 10f64.powf(random.f64())).collect();
        let total: f64 = weights.iter().sum();
        let pauses_ms: Vec<f64> =
            weights.iter().map(|weight| WINDOW_MS as f64 * total / (self.demand as f64 * weight)).collect();
        let mut next_ms: Vec<f64> = pauses_ms.iter().map(|pause| pause * random.f64()).collect();
        for (process, at_ms) in next_ms.iter().enumerate() {
            self.plan(*at_ms as u64, process, Event::Request);
        }
        while let Some(Reverse((now_ms, place))) = self.queue.pop() {
            let Some((process, event)) = self.events[place].take() else { continue };
            self.free.push(place);
            if now_ms >= END_MS {
                break;
            }
            let mut step = Step::default();
            match event {
                Event::Request => {
                    self.decisions += 1;
                    let id = self.decisions;
                    let rules = &self.rules;
                    let known = self.processes[process].take(now_ms, self.settings, rules, id, 1, &mut step);
                    if known.is_some_and(|verdict| !verdict.limited) {
                        self.passed[now_ms as usize] += 1;
                    }
                    // Exponential: requests come independently of each other.
                    next_ms[process] -= (1.0 - random.f64()).ln() * pauses_ms[process];
                    self.plan((next_ms[process] as u64).max(now_ms), process, Event::Request);
                }
                Event::Arrive(command) => {
                    let verdict = self.server.decide(&command, now_ms);
                    if command.purpose == Purpose::Flight {
                        self.plan(now_ms + LATENCY_MS, process, Event::Reply(verdict));
                    }
                }
                Event::Reply(verdict) => {
                    self.processes[process].reply(now_ms, self.settings, verdict, &mut step);
                    if let Some(ends_ms) = self.processes[process].ends_ms() {
                        self.plan(ends_ms.max(now_ms), process, Event::Tick);
                    }
                }
                Event::Tick => self.processes[process].tick(now_ms, &mut step),
            }
            for command in step.commands {
                self.commands += 1;
                self.plan(now_ms + LATENCY_MS, process, Event::Arrive(command));
            }
            let is_allowed = |answer: &Answer| matches!(answer, Answer::Verdict(verdict) if !verdict.limited);
            let allowed = step.answers.iter().filter(|(_, answer)| is_allowed(answer)).count() as u64;
            self.passed[now_ms as usize] += allowed;
        }
        self.outcome()
    }

    fn outcome(self) -> Outcome {
        let in_span: Vec<u64> =
            self.passed.windows(WINDOW_MS as usize).map(|span| span.iter().sum()).collect();
        let most = in_span.iter().copied().max().unwrap_or(0);
        let last = in_span[(END_MS - WINDOW_MS) as usize];
        Outcome {
            units: self.settings.units,
            commands_per_decision: self.commands as f64 / self.decisions as f64,
            beyond: most.saturating_sub(LIMIT),
            used_percent: last as f64 * 100.0 / LIMIT as f64,
        }
    }
}

pub fn draw(canvas: &Canvas) -> Result<()> {
    let run = |demand| UNITS.map(|units| Simulation::new(units, demand).run());
    let (quiet, busy) = (run(LIMIT / 2), run(2 * LIMIT));
    println!("| units | commands for 100 decisions at half the limit | at twice the limit | beyond | used |");
    println!("| --- | --- | --- | --- | --- |");
    for (quiet, busy) in quiet.iter().zip(&busy) {
        println!(
            "| {} | {:.1} | {:.1} | {} | {:.1} % |",
            quiet.units,
            100.0 * quiet.commands_per_decision,
            100.0 * busy.commands_per_decision,
            busy.beyond,
            busy.used_percent,
        );
    }
    let title = "A key of 200,000 requests a second that 1,000 processes share, by the largest lease of each";
    canvas.draw(&Text::new(title, (20, 12), text(17)))?;
    let (_, panel) = canvas.split_vertically(40);
    let last = UNITS.len() as f64 - 1.0;
    let most_beyond = busy.iter().map(|outcome| outcome.beyond).max().unwrap_or(0).max(10) as f64 * 1.5;
    let mut chart = ChartBuilder::on(&panel)
        .margin(12)
        .margin_top(70)
        .x_label_area_size(40)
        .y_label_area_size(60)
        .right_y_label_area_size(60)
        .build_cartesian_2d(0.0..last, 0.0..100.0)?
        .set_secondary_coord(0.0..last, 0.0..most_beyond);
    chart
        .configure_mesh()
        .disable_mesh()
        .axis_style(INK)
        .label_style(text(13))
        .x_labels(UNITS.len())
        .x_label_formatter(&|index| UNITS[index.round() as usize].to_string())
        .x_desc("units")
        .y_desc("commands for 100 decisions")
        .y_label_formatter(&|n| format!("{n}"))
        .draw()?;
    chart
        .configure_secondary_axes()
        .axis_style(INK)
        .label_style(text(13))
        .y_desc("requests beyond the limit")
        .y_label_formatter(&|n| format!("{n}"))
        .draw()?;
    let points = |outcomes: &[Outcome], figure: fn(&Outcome) -> f64| {
        outcomes.iter().map(figure).enumerate().map(|(x, y)| (x as f64, y)).collect::<Vec<_>>()
    };
    let commands = |outcome: &Outcome| 100.0 * outcome.commands_per_decision;
    chart.draw_series(LineSeries::new(points(&quiet, commands), LOG.stroke_width(3)))?;
    chart.draw_series(LineSeries::new(points(&busy, commands), ALL.stroke_width(3)))?;
    let beyond = points(&busy, |outcome| outcome.beyond as f64);
    chart.draw_secondary_series(LineSeries::new(beyond, OTHER.stroke_width(3)))?;
    let legend = [
        ("commands, while half of the limit is asked for", LOG),
        ("commands, while twice the limit is asked for", ALL),
        ("requests beyond the limit of 2,000,000 then, in the worst span of a window", OTHER),
    ];
    for (line, (label, color)) in legend.into_iter().enumerate() {
        panel.draw(&Text::new(label, (80, 6 + 20 * line as i32), text(14).color(&color)))?;
    }
    Ok(())
}
