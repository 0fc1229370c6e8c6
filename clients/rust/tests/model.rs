//! Every history of a few processes that lease units of one key, explored by a model checker.
//!
//! The processes run the real decider, against a small exact server. Commands, give-backs and replies take any time and
//! overtake one another, or are lost; callers leave; processes are killed, and others start. However it goes:
//!
//! - In any span of a window, at most limit + units x processes requests pass.
//! - In any span that is shorter than a window by the time that a lease lasts, at most the limit.
//! - No process has more than `units` that are counted and not used.
//!
//! A request that its reply allows passes when the server counted it, and one that a lease serves when it is served.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use redis_rl_client::local::{Answer, Command, Key, Purpose, Rules, Settings, Step};
use redis_rl_client::{Algorithm, Quota, Verdict};
use stateright::{Checker, HasDiscoveries, Model, Property};

const WINDOW_MS: u64 = 40;
/// A twentieth.
const LEASE_MS: u64 = 2;
const IN_A_WINDOW: &str = "in a window at most limit + units x processes pass";
const IN_LESS: &str = "in a window less the time of a lease at most the limit passes";
const NOT_USED: &str = "a process has at most so many units that it has not used";
const MORE_THAN_THE_LIMIT: &str = "in a window more than the limit passes";

/// How far time goes on at once: by a little, or nearly to the end of a window.
const ADVANCES_MS: [u64; 2] = [1, WINDOW_MS - 1];

#[derive(Clone)]
struct World {
    limit: u64,
    settings: Settings,
    processes: usize,
    /// How many requests come to each process.
    requests: usize,
    /// What they cost: any of these.
    costs: &'static [u64],
    /// How often time goes on.
    advances: usize,
    /// How much goes wrong: what is lost, who is killed, who leaves.
    faults: usize,
    /// How many requests are refused by another policy after this key has served them.
    releases: usize,
    broken: Option<Broken>,
    rules: Arc<Rules>,
}

/// What a decider or a server might forget.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Broken {
    /// Units go back without the time as of which they were counted.
    GiveBackWithoutTime,
    /// A lease does not end.
    EndlessLease,
    /// A lease that has gone back goes back again.
    GiveBackTwice,
    /// Units that went back into their lease go back to the server too.
    PutBackTwice,
}

#[derive(Clone, Debug, Eq, Hash, PartialEq)]
struct State {
    now_ms: u64,
    /// Units that the server counts, by their time.
    log: BTreeMap<u64, u64>,
    processes: Vec<Process>,
    /// In order of the messages, not of time: any may be the next to arrive.
    network: Vec<Message>,
    /// Requests that passed, by their time.
    passed: BTreeMap<u64, u64>,
    advances: usize,
    faults: usize,
    releases: usize,
}

#[derive(Clone, Debug, Eq, Hash, PartialEq)]
struct Process {
    key: Key,
    requests: usize,
    /// Requests that were served, in order, while another policy may still refuse them.
    served: Vec<Served>,
}

#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
struct Served {
    cost: u64,
    counted_ms: u64,
    passed_ms: u64,
}

#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
enum Message {
    /// Of a process that was killed if there is none.
    Take {
        process: Option<usize>,
        cost: u64,
        way: Way,
    },
    GiveBack {
        units: u64,
        at_ms: u64,
    },
    Reply {
        process: usize,
        cost: u64,
        way: Way,
        taken: u64,
        retry_ms: u64,
        at_ms: u64,
    },
}

/// How units are asked for.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
enum Way {
    /// As many as fit, for all that wait.
    Partial,
    /// All or none, for all that wait.
    Whole,
    /// All or none, for requests of that cost that a reply refused.
    Again,
}

impl Message {
    /// The process that waits for it, or for the reply to it, and what was asked for.
    fn awaited_by(self) -> Option<(usize, u64, Way)> {
        match self {
            Message::Take { process, cost, way } => Some((process?, cost, way)),
            Message::Reply { process, cost, way, .. } => Some((process, cost, way)),
            Message::GiveBack { .. } => None,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Action {
    Request(usize, u64),
    Arrive(Message),
    Lose(Message),
    Advance(u64),
    Tick(usize),
    /// Nobody awaits the answers any more.
    Leave(usize),
    /// Another policy refuses it.
    Release(usize, Served),
    Kill(usize),
}

/// The names of requests are what they cost: who leaves is everyone of that cost.
const NAMES: [u64; 2] = [1, 2];

impl World {
    fn new(limit: u64, units: u64) -> World {
        let quota = Quota::new(limit, Duration::from_millis(WINDOW_MS));
        World {
            limit,
            settings: Settings { units, remember: Duration::ZERO },
            processes: 1,
            requests: 0,
            costs: &[1],
            advances: 0,
            faults: 0,
            releases: 0,
            broken: None,
            rules: Arc::new(Rules::new(Algorithm::Log, &[quota], Duration::from_secs(1))),
        }
    }

    fn process(&self) -> Process {
        let name: Arc<[u8]> = Arc::from(&b"k"[..]);
        Process { key: Key::new(name, self.rules.clone()), requests: 0, served: Vec::new() }
    }

    /// The time that a decider is told.
    fn told(&self, state: &State) -> Duration {
        Duration::from_millis(if self.broken == Some(Broken::EndlessLease) { 0 } else { state.now_ms })
    }

    fn carry_out(&self, state: &mut State, process: usize, step: Step, counted_ms: Option<u64>) {
        for (cost, answer) in step.answers {
            if let Answer::Verdict(verdict) = answer {
                let is_counted_now = verdict.at.is_none_or(|at| Some(ms(at)) == counted_ms);
                self.pass(state, process, verdict, cost, counted_ms.filter(|_| is_counted_now));
            }
        }
        for command in step.commands {
            state.network.push(match command.purpose {
                Purpose::GiveBack => Message::GiveBack {
                    units: command.cost.unsigned_abs(),
                    at_ms: ms(command.at.expect("a time")),
                },
                purpose => {
                    let way = match purpose {
                        Purpose::Flight if command.partial => Way::Partial,
                        Purpose::Flight => Way::Whole,
                        _ => Way::Again,
                    };
                    Message::Take { process: Some(process), cost: command.cost.unsigned_abs(), way }
                }
            });
        }
        state.network.sort_unstable();
    }

    fn pass(&self, state: &mut State, process: usize, verdict: Verdict, cost: u64, counted_ms: Option<u64>) {
        if !verdict.limited {
            let passed_ms = counted_ms.unwrap_or(state.now_ms);
            *state.passed.entry(passed_ms).or_default() += cost;
            if state.releases < self.releases
                && let Some(at) = verdict.at
            {
                let served = &mut state.processes[process].served;
                served.push(Served { cost, counted_ms: ms(at), passed_ms });
                served.sort_unstable();
            }
        }
    }

    fn arrive(&self, state: &mut State, message: Message) {
        match message {
            Message::Take { process, cost, way } => {
                let (taken, retry_ms) = self.take(state, cost, way);
                let Some(process) = process else { return };
                let at_ms = state.now_ms;
                state.network.push(Message::Reply { process, cost, way, taken, retry_ms, at_ms });
                state.network.sort_unstable();
            }
            Message::GiveBack { units, at_ms } => {
                let as_of_ms =
                    if self.broken == Some(Broken::GiveBackWithoutTime) { u64::MAX } else { at_ms };
                self.expire(state);
                give_back(&mut state.log, units, as_of_ms);
            }
            Message::Reply { process, cost, way, taken, retry_ms, at_ms } => {
                let limited = taken < cost;
                let is_partial = way == Way::Partial;
                let reply = Verdict {
                    limited,
                    limit: self.limit,
                    // No decision rests on it.
                    remaining: 0,
                    retry_after: limited.then(|| Duration::from_millis(retry_ms)),
                    reset_after: Duration::ZERO,
                    taken: is_partial.then_some(taken as i64),
                    at: is_partial.then(|| time(at_ms)),
                };
                self.reply(state, process, cost, way, Some(reply), Some(at_ms));
            }
        }
    }

    /// Has the decider know of a reply, or that there will be none.
    fn reply(
        &self,
        state: &mut State,
        process: usize,
        cost: u64,
        way: Way,
        reply: Option<Verdict>,
        at_ms: Option<u64>,
    ) {
        let mut step = Step::default();
        let now = self.told(state);
        let key = &mut state.processes[process].key;
        match reply {
            _ if way == Way::Again => {
                let command = self.command(cost);
                key.reply_to_asked(now, self.settings, &command, reply, &mut step);
            }
            Some(reply) => key.reply(now, self.settings, reply, &mut step),
            None => key.fail(now, self.settings, &mut step),
        }
        self.carry_out(state, process, step, at_ms);
    }

    /// What asks again for requests of this cost.
    fn command(&self, cost: u64) -> Command {
        Command {
            key: Arc::from(&b"k"[..]),
            rules: self.rules.clone(),
            cost: cost as i64,
            partial: false,
            at: None,
            purpose: Purpose::Asked(cost),
        }
    }

    fn expire(&self, state: &mut State) {
        state.log.retain(|at_ms, _| at_ms + WINDOW_MS > state.now_ms);
    }

    /// How many of the units fit and are counted, and how long it is until one more would.
    fn take(&self, state: &mut State, cost: u64, way: Way) -> (u64, u64) {
        self.expire(state);
        let mut taken = cost.min(self.limit - state.log.values().sum::<u64>());
        if way != Way::Partial && taken < cost {
            taken = 0;
        }
        if taken > 0 {
            *state.log.entry(state.now_ms).or_default() += taken;
        }
        let oldest_ms = state.log.keys().next().copied().unwrap_or(state.now_ms);
        (taken, oldest_ms + WINDOW_MS - state.now_ms)
    }

    /// The most requests that passed in a span of this length.
    fn most_in(state: &State, span_ms: u64) -> u64 {
        let from = |start: u64| state.passed.range(start..start + span_ms).map(|(_, passed)| passed).sum();
        state.passed.keys().map(|start| from(*start)).max().unwrap_or(0)
    }
}

/// Gives back units that were counted by then, the newest first.
fn give_back(log: &mut BTreeMap<u64, u64>, mut units: u64, as_of_ms: u64) {
    for (_, counted) in log.range_mut(..=as_of_ms).rev() {
        let back = units.min(*counted);
        *counted -= back;
        units -= back;
    }
    log.retain(|_, counted| *counted > 0);
}

fn time(ms: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_millis(ms)
}

fn ms(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).expect("after 1970").as_millis() as u64
}

impl Model for World {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State {
            now_ms: 1_000,
            log: BTreeMap::new(),
            processes: vec![self.process(); self.processes],
            network: Vec::new(),
            passed: BTreeMap::new(),
            advances: 0,
            faults: 0,
            releases: 0,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        let mut network = state.network.clone();
        network.dedup();
        actions.extend(network.iter().map(|message| Action::Arrive(*message)));
        let may_fail = state.faults < self.faults && self.broken.is_none();
        if may_fail {
            actions.extend(network.iter().map(|message| Action::Lose(*message)));
        }
        if state.advances < self.advances {
            actions.extend(ADVANCES_MS.map(Action::Advance));
        }
        for (index, process) in state.processes.iter().enumerate() {
            if process.requests < self.requests {
                actions.extend(self.costs.iter().map(|cost| Action::Request(index, *cost)));
            }
            let may_tick = self.broken != Some(Broken::GiveBackTwice) || state.faults < self.faults;
            if may_tick && process.key.ends().is_some_and(|ends| ends <= self.told(state)) {
                actions.push(Action::Tick(index));
            }
            if state.releases < self.releases {
                let mut served = process.served.clone();
                served.dedup();
                actions.extend(served.into_iter().map(|served| Action::Release(index, served)));
            }
            if may_fail {
                if !process.key.is_at_rest() {
                    actions.push(Action::Leave(index));
                }
                actions.push(Action::Kill(index));
            }
        }
    }

    fn next_state(&self, state: &State, action: Action) -> Option<State> {
        let mut state = state.clone();
        let now = self.told(&state);
        let mut step = Step::default();
        match action {
            Action::Request(index, cost) => {
                let process = &mut state.processes[index];
                process.requests += 1;
                let known = process.key.take(now, self.settings, &self.rules, cost, cost, &mut step);
                if let Some(verdict) = known {
                    self.pass(&mut state, index, verdict, cost, None);
                }
                self.carry_out(&mut state, index, step, None);
            }
            Action::Arrive(message) => {
                remove(&mut state.network, message);
                self.arrive(&mut state, message);
            }
            Action::Lose(message) => {
                remove(&mut state.network, message);
                state.faults += 1;
                if let Some((process, cost, way)) = message.awaited_by() {
                    self.reply(&mut state, process, cost, way, None, None);
                }
            }
            Action::Advance(by_ms) => {
                state.now_ms += by_ms;
                state.advances += 1;
            }
            Action::Tick(index) => {
                let key = &mut state.processes[index].key;
                let before = key.clone();
                key.tick(now, &mut step);
                if self.broken == Some(Broken::GiveBackTwice) {
                    *key = before;
                    state.faults += 1;
                }
                self.carry_out(&mut state, index, step, None);
            }
            Action::Leave(index) => {
                state.faults += 1;
                for name in NAMES {
                    state.processes[index].key.cancel(name);
                }
            }
            Action::Release(index, served) => {
                state.releases += 1;
                let Served { cost, counted_ms, passed_ms } = served;
                let process = &mut state.processes[index];
                let position = process.served.iter().position(|other| *other == served).expect("a request");
                process.served.remove(position);
                let is_in_lease = process.key.put_back(now, &self.rules, cost, time(counted_ms));
                if !is_in_lease || self.broken == Some(Broken::PutBackTwice) {
                    state.network.push(Message::GiveBack { units: cost, at_ms: counted_ms });
                    state.network.sort_unstable();
                }
                let passed = state.passed.get_mut(&passed_ms).expect("it had passed");
                *passed -= cost;
                if *passed == 0 {
                    state.passed.remove(&passed_ms);
                }
                if state.releases == self.releases {
                    state.processes.iter_mut().for_each(|process| process.served.clear());
                }
            }
            Action::Kill(index) => {
                state.faults += 1;
                let requests = state.processes[index].requests;
                state.processes[index] = Process { requests, ..self.process() };
                // Its commands may still arrive. Nobody reads the replies.
                state.network.retain(
                    |message| !matches!(message, Message::Reply { process, .. } if *process == index),
                );
                for message in &mut state.network {
                    if let Message::Take { process, .. } = message
                        && *process == Some(index)
                    {
                        *process = None;
                    }
                }
                state.network.sort_unstable();
            }
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<World>> {
        vec![
            Property::always(IN_A_WINDOW, |world: &World, state: &State| {
                let units = world.settings.units * world.processes as u64;
                World::most_in(state, WINDOW_MS) <= world.limit + units
            }),
            Property::always(IN_LESS, |world: &World, state: &State| {
                World::most_in(state, WINDOW_MS - LEASE_MS) <= world.limit
            }),
            Property::always(NOT_USED, |world: &World, state: &State| {
                state.processes.iter().all(|process| process.key.left() <= world.settings.units)
            }),
            Property::sometimes(MORE_THAN_THE_LIMIT, |world: &World, state: &State| {
                World::most_in(state, WINDOW_MS) > world.limit
            }),
        ]
    }
}

fn remove(network: &mut Vec<Message>, message: Message) {
    let position = network.iter().position(|other| *other == message).expect("a message on its way");
    network.remove(position);
}

/// Explores all of it.
fn bounds_hold(world: World) -> impl Checker<World> {
    let checker = world.checker().spawn_bfs().join();
    assert!(checker.is_done());
    for property in [IN_A_WINDOW, IN_LESS, NOT_USED] {
        checker.assert_no_discovery(property);
    }
    checker
}

#[test]
fn two_processes_pass_at_most_the_limit_and_their_leases() {
    let checker = bounds_hold(World { processes: 2, requests: 3, advances: 2, ..World::new(3, 1) });
    checker.assert_any_discovery(MORE_THAN_THE_LIMIT);
}

#[test]
fn three_processes_pass_at_most_the_limit_and_their_leases() {
    bounds_hold(World { processes: 3, requests: 2, advances: 1, ..World::new(3, 1) });
}

#[test]
fn so_it_is_when_something_is_lost_or_somebody_leaves_or_is_killed() {
    bounds_hold(World { processes: 2, requests: 2, advances: 2, faults: 1, ..World::new(2, 1) });
}

#[test]
fn so_it_is_when_a_lease_has_doubled() {
    bounds_hold(World { requests: 5, advances: 3, faults: 1, ..World::new(3, 2) });
}

#[test]
fn so_it_is_when_requests_cost_more_than_one_and_ask_again_for_their_wait() {
    let costs = &[1, 2];
    bounds_hold(World { processes: 2, requests: 2, costs, advances: 1, faults: 1, ..World::new(3, 1) });
    bounds_hold(World { requests: 4, costs, advances: 2, faults: 1, ..World::new(3, 2) });
}

#[test]
fn so_it_is_when_another_policy_refuses_what_a_lease_has_served() {
    bounds_hold(World { requests: 6, advances: 2, releases: 2, faults: 1, ..World::new(3, 2) });
    bounds_hold(World { processes: 2, requests: 3, advances: 1, releases: 1, ..World::new(2, 1) });
}

/// Explores until a bound is broken, and says how.
fn breaks(world: World, property: &'static str) {
    let checker = world.checker().finish_when(HasDiscoveries::AnyOf([property].into())).spawn_bfs().join();
    checker.assert_any_discovery(property);
}

#[test]
fn a_give_back_without_its_time_breaks_the_bounds() {
    let broken = Some(Broken::GiveBackWithoutTime);
    breaks(World { requests: 6, advances: 2, broken, ..World::new(3, 1) }, IN_LESS);
    breaks(World { requests: 9, advances: 4, broken, ..World::new(3, 1) }, IN_A_WINDOW);
}

#[test]
fn a_lease_that_does_not_end_breaks_the_bound_of_a_shorter_span() {
    let broken = Some(Broken::EndlessLease);
    breaks(World { processes: 2, requests: 4, advances: 2, broken, ..World::new(3, 1) }, IN_LESS);
}

#[test]
fn a_lease_that_goes_back_twice_breaks_the_bounds() {
    let world = World { requests: 5, advances: 2, faults: 3, ..World::new(3, 1) };
    for property in [IN_LESS, IN_A_WINDOW] {
        breaks(World { broken: Some(Broken::GiveBackTwice), ..world.clone() }, property);
    }
}

#[test]
fn units_that_go_back_into_their_lease_and_to_the_server_break_the_bounds() {
    let broken = Some(Broken::PutBackTwice);
    let world = World { requests: 6, advances: 2, releases: 2, broken, ..World::new(3, 1) };
    breaks(world, IN_LESS);
}
