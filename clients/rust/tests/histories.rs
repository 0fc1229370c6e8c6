//! Random histories of what is pure, `clients/histories.json`, which all packages replay.
//!
//! With `WRITE_HISTORIES` set the test writes the file, else it compares: so a change to the rules is seen in it.

use std::fmt::Write;
use std::{env, fs};

use redis_rl_client::keys::place::{Event as Happens, Place, Say, State as At};
use redis_rl_client::lines::{Ask, Away, Line, Means, State};
use serde_json::{Map, Value as Json, json};

use crate::keys::{Asked, Event, Process};
use crate::server::{repository, table};

/// A generator of numbers.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Random {
        Random(seed * 0x9e37_79b9)
    }

    pub fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % end as u64) as usize
    }

    /// Takes any of these.
    pub fn pick<T>(&mut self, from: &mut Vec<T>) -> Option<T> {
        if from.is_empty() { None } else { Some(from.swap_remove(self.below(from.len()))) }
    }

    /// Any of these.
    fn any<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len())]
    }
}

fn line(random: &mut Random) -> Json {
    let (mut line, mut events, mut verdicts) = (Line::new(), Vec::new(), Vec::new());
    let mut happens = |event: Json, state: State| {
        events.push(event);
        verdicts.push(match state {
            State::GoOn => "go on",
            State::Late => "late",
            State::GiveUp => "give up",
        });
        state
    };
    // After the end some more, which change nothing.
    let (mut due, mut left, mut is_up) = (0, 60, random.below(4) > 0);
    if is_up {
        happens(json!(["up"]), line.up());
    }
    while left > 0 {
        left -= 1;
        let state = match random.below(8) {
            0 if !is_up => {
                is_up = true;
                happens(json!(["up"]), line.up())
            }
            0..=2 => {
                due += 1;
                happens(json!(["sent"]), line.sent())
            }
            3..=4 if due > 0 && is_up => {
                due -= 1;
                let (kind, means) = match random.below(12) {
                    0 => ("elsewhere", Some(Means::Elsewhere)),
                    1 => ("refused", Some(Means::Refused)),
                    2 => ("cannot", Some(Means::Cannot)),
                    _ => ("ok", None),
                };
                happens(json!(["replied", kind]), line.replied(means))
            }
            5 if random.below(10) == 0 => happens(json!(["closed"]), line.closed()),
            _ => {
                let ticks =
                    if is_up { random.any(&[1, 2, 19, 20, 21]) } else { random.any(&[3, 21, 99, 101]) };
                let mut state = State::GoOn;
                for _ in 0..ticks {
                    state = happens(json!(["tick"]), line.tick());
                    if state != State::GoOn {
                        break;
                    }
                }
                state
            }
        };
        if state != State::GoOn {
            left = left.min(4);
        }
    }
    json!({"line": events, "verdicts": verdicts})
}

fn away(random: &mut Random) -> Json {
    let (mut away, mut events, mut verdicts) = (Away::default(), Vec::new(), Vec::new());
    let mut now = 0;
    for _ in 0..50 {
        now += random.any(&[0, 1, 10, 100, 249, 250, 251]);
        let (event, verdict) = match random.below(8) {
            0 => (json!(["failed", now]), if away.failed(now) { "begins" } else { "" }),
            1..=3 => {
                let is_answered = random.below(3) > 0;
                let is_back = away.probed(is_answered);
                (json!(["probed", now, is_answered]), if is_back { "ends" } else { "" })
            }
            _ => {
                let verdict = match away.ask(now) {
                    Ask::Ask => "ask",
                    Ask::Away => "away",
                    Ask::Probe => "probe",
                };
                (json!(["ask", now]), verdict)
            }
        };
        events.push(event);
        verdicts.push(verdict);
    }
    json!({"away": events, "verdicts": verdicts})
}

fn place(random: &mut Random) -> Json {
    let (for_ms, at) = (random.any(&[1, 30, 120, 30_000]), random.any(&[0, 7]));
    let (mut place, mut now, mut server) = (Place::new(for_ms, at), at, 1_000_000);
    let (mut events, mut says, mut states, mut dues) = (vec![], vec![], vec![], vec![]);
    while events.len() < 12 {
        let due = place.due().unwrap_or(now);
        now = now.max(random.any(&[
            now,
            now + 1,
            now + for_ms / 5,
            due.saturating_sub(1),
            due,
            due,
            due + for_ms,
        ]));
        // The server's clock may stand still, and be set back.
        server = random.any(&[
            server,
            server + 1,
            server + for_ms,
            server + for_ms,
            server - 1,
            server - 3 * for_ms,
        ]);
        let taken = Happens::Taken { at: server };
        // Most of those that are on their way are answered, and most of those that are held are renewed.
        let (name, event) = match (place.state(), random.below(16)) {
            (At::Asked | At::Gone | At::Renewing | At::Ending, 0..=6) => ("taken", taken),
            (_, 0) => ("taken", taken),
            (At::Asked, 7) | (At::Renewing, 7..=8) | (_, 8) => ("refused", Happens::Refused),
            (At::Renewing, 9..=11) | (_, 9) => ("failed", Happens::Failed),
            (At::Held | At::Renewing, 12..=13) | (_, 12) => ("end", Happens::End),
            _ => ("tick", Happens::Tick),
        };
        let said = place.happens(event, now).into_iter().map(|say| match say {
            Say::Take => "take",
            Say::GiveBackOld => "give back old",
            Say::GiveBackNew => "give back new",
            Say::Late => "late",
        });
        events.push(if event == taken { json!([name, now, server]) } else { json!([name, now]) });
        says.push(said.collect::<Vec<_>>());
        states.push(match place.state() {
            At::Asked => "asked",
            At::Gone => "gone",
            At::Held => "held",
            At::Renewing => "renewing",
            At::Ending => "ending",
            At::Over => "over",
        });
        dues.push(place.due());
        // Once over it stays so.
        if place.state() == At::Over && random.below(2) == 0 {
            break;
        }
    }
    let of = json!({"for_ms": for_ms, "at": at, "events": events});
    json!({"place": of, "says": says, "states": states, "dues": dues})
}

/// Keys of a history, by its policies. Names but the last two are in slots of their own.
const KEYS: [(&str, &str); 7] =
    [("k", "a"), ("k", "b"), ("m", "a"), ("m", "c"), ("n", "b"), ("{s}x", "b"), ("{s}y", "c")];

fn settings(random: &mut Random) -> Map<String, Json> {
    let settings = json!({
        "remember_ms": random.any(&[0, 20, 1_000]),
        "max_keys": random.any(&[3, 3, 4, 100]),
        "cluster": random.below(2) == 0,
    });
    settings.as_object().expect("a map").clone()
}

fn policy(random: &mut Random, algorithms: &[&str]) -> Json {
    let limits = random.any(&[
        &[(100, "1m")][..],
        &[(100, "1m")],
        &[(4, "1s")],
        &[(0, "1h")],
        &[(50, "400ms"), (100, "1h")],
    ]);
    json!({
        "algorithm": random.any(algorithms),
        "limits": limits,
        "units": random.any(&[0, 2, 4, 8, 8, 8]),
        "for_ms": random.any(&[10, 100]),
    })
}

/// What a server may say to a command: whatever its counts are, others take and give back units too.
fn reply(random: &mut Random, words: &str, now: u64) -> Json {
    let at = 10_000 + now + random.any(&[0, 0, 1, 2]);
    let words: Vec<&str> = words.split(' ').collect();
    let after = |name: &str| words.iter().position(|word| *word == name).map(|place| words[place + 1]);
    let number = |word: &str| word.parse::<i64>().expect("a number");
    if words[0] != "RL.ALL" {
        let (cost, limit) = (after("COST").map_or(1, number), number(words[2]));
        let taken = if random.below(3) > 0 { cost } else { random.below(cost.max(1) as usize) as i64 };
        let taken = taken.min(limit);
        let limited = i64::from(taken < cost);
        let left = if limited == 1 { 0 } else { random.below((limit - taken) as usize + 1) as i64 };
        let wait = if limited == 0 || limit == 0 { -1 } else { random.any(&[3, 30, 60_000]) };
        return json!([limited, limit, left, wait, random.any(&[40, 60_000]), taken, at]);
    }
    let rows = words[1..].chunks_exact(5).filter(|row| number_or_none(row[2]).is_some());
    let (mut longest, mut told) = (None, Vec::new());
    for row in rows {
        let (limit, cost) = (number(row[2]), number(row[4]));
        let limited = cost > 0 && (cost > limit || random.below(4) == 0);
        let wait = if cost > limit { -1 } else { random.any(&[3, 30, 60_000]) };
        if limited {
            longest = longest.max(Some(if wait < 0 { i64::MAX } else { wait }));
        }
        let left = random.below(if limited { cost.min(limit) as usize } else { limit as usize + 1 }.max(1));
        let wait = if limited { wait } else { -1 };
        told.push(json!([i64::from(limited), limit, left, wait, random.any(&[40, 60_000])]));
    }
    let wait = longest.filter(|wait| *wait < i64::MAX).unwrap_or(-1);
    json!([i64::from(longest.is_some()), wait, at, told])
}

fn number_or_none(word: &str) -> Option<i64> {
    word.parse().ok()
}

/// None if a key leaves while its command is in flight: what each package then knows of it is its own.
fn keys(random: &mut Random) -> Option<Json> {
    let settings = settings(random);
    // Different ones, since a key is known by its algorithm and limits, whatever else its policies say.
    let algorithms = [("a", &["fixed", "bucket"][..]), ("b", &["log"]), ("c", &["sliding"])];
    let named = |(name, algorithms): (&str, _)| (name.to_owned(), policy(random, algorithms));
    let policies: Map<String, Json> = algorithms.into_iter().map(named).collect();
    let own = policies
        .iter()
        .map(|(name, policy)| (Some(name.clone()), policy.as_object().expect("a map").clone()));
    let mut process = Process::new(&settings, own);
    let (mut now, mut requests, mut answered) =
        (0, Vec::<(String, usize)>::new(), Vec::<(String, usize)>::new());
    let mut steps = Vec::new();
    let length = 12 + random.below(16);
    for turn in 0..length {
        now += random.any(&[0, 0, 0, 1, 2, 5, 10, 10, 60, 100]);
        let mut event = Event { at: now, ..Event::default() };
        let mut sent = process.sent();
        let kind = random.below(14);
        if kind < 5 && (turn < length - 4 || sent.is_empty()) {
            event.event = "take".into();
            event.name = (requests.len() + 1).to_string();
            let mut left: Vec<_> = KEYS.to_vec();
            let shares = random.any(&[1, 1, 1, 2, 3]);
            for place in 0..shares {
                // Most ask for the first, which is hot.
                let place = if place == 0 && random.below(3) > 0 { 0 } else { random.below(left.len()) };
                let (key, policy) = left.remove(place);
                // One command names a key once.
                left.retain(|(other, _)| *other != key);
                let cost = random.any(&[1, 1, 1, 1, 2, 3, 5, 0, 9, -1]);
                let cost = Some(cost).filter(|cost| *cost != 1);
                event.shares.push(Asked { key: key.into(), cost, policy: Some(policy.into()) });
            }
            requests.push((event.name.clone(), event.shares.len()));
        } else if kind < 9
            && let Some(to) = random.pick(&mut sent)
        {
            let is_lost = random.below(10) == 0;
            event.event = if is_lost { "error" } else { "reply" }.into();
            event.reply = if is_lost { Json::Null } else { reply(random, &to, now) };
            event.to = to;
        } else if (10..12).contains(&kind) && !answered.is_empty() {
            let (name, shares) = answered[random.below(answered.len())].clone();
            event.event = "settle".into();
            event.name = name;
            event.used =
                (0..shares).map(|_| random.any(&[None, Some(0), Some(1), Some(2), Some(4)])).collect();
        } else if kind == 12 && !requests.is_empty() {
            event.event = "give_back".into();
            event.name = requests[random.below(requests.len())].0.clone();
        } else if random.below(8) == 0 {
            event.event = "close".into();
        } else {
            event.event = "tick".into();
        }
        (event.sends, event.answers) = process.happens(&event);
        if process.has_leaving_keys() {
            return None;
        }
        answered.extend(requests.iter().filter(|(name, _)| event.answers.contains_key(name)).cloned());
        steps.push(event);
    }
    Some(json!({"keys": {"settings": settings, "policies": policies, "steps": steps}}))
}

#[test]
fn the_file_is_what_the_seeds_make() {
    let mut made = String::from("[");
    let by =
        |make: fn(&mut Random) -> Option<Json>| (1..).filter_map(move |seed| make(&mut Random::new(seed)));
    let lines = by(|random| Some(line(random))).take(100);
    let aways = by(|random| Some(away(random))).take(100);
    let places = by(|random| Some(place(random))).take(160);
    for history in by(keys).take(300).chain(lines).chain(aways).chain(places) {
        let separator = if made.len() == 1 { "\n" } else { ",\n" };
        write!(made, "{separator}{history}").expect("memory");
    }
    made.push_str("\n]\n");
    let path = repository("clients/histories.json");
    if env::var_os("WRITE_HISTORIES").is_some() {
        fs::write(&path, &made).expect("the file");
    }
    let written = fs::read_to_string(&path).expect("the file");
    let differs = made.lines().zip(written.lines()).position(|(made, written)| made != written);
    assert_eq!(differs, None, "this line of clients/histories.json is not what the seeds make");
    assert_eq!(made.len(), written.len());
    assert!(made.len() < 1_000_000, "{} bytes", made.len());
}

#[test]
fn histories_of_places_have_clocks_that_are_set_back_and_blocks_that_end_late() {
    let (mut set_back, mut late) = (0, 0);
    for place in table::<Vec<Json>>("histories").iter().filter(|history| !history["place"].is_null()) {
        let all = |name| place[name].as_array().into_iter().flatten();
        let before = [json!("asked")];
        let before = before.iter().chain(all("states"));
        let events = place["place"]["events"].as_array().into_iter().flatten();
        for ((event, says), before) in events.zip(all("says")).zip(before) {
            let says = says.as_array().expect("a list");
            let is_renewed = event[0] == "taken" && (before == "renewing" || before == "ending");
            set_back += usize::from(is_renewed && !says.contains(&json!("give back old")));
            late += usize::from(event[0] == "end" && says.contains(&json!("late")));
        }
    }
    assert!(set_back >= 20 && late >= 10, "{set_back} {late}");
}
