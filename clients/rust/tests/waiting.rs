//! The cases of waiting that all packages share.

use std::time::Duration;

use redis_rl_client::keys::turns::{Says, Turn, Turns};
use redis_rl_client::keys::way::{Does, Way};
use serde::Deserialize;

use crate::server;

#[derive(Deserialize)]
struct Table {
    turns: Vec<Case<TurnStep>>,
    ways: Vec<Case<Step>>,
}

#[derive(Deserialize)]
struct Case<S> {
    name: String,
    steps: Vec<S>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct TurnStep {
    at: u64,
    event: String,
    who: Option<String>,
    until: u64,
    due: u64,
    back: bool,
    says: Said,
}

#[derive(Debug, Default, Deserialize, PartialEq)]
#[serde(default)]
struct Said {
    asks: bool,
    late: bool,
    served: Vec<(String, u64)>,
    back: Vec<u64>,
}

#[test]
fn turns_are_those_of_all_packages() {
    let table: Table = server::table("waiting");
    assert!(table.turns.len() >= 10);
    let ms = Duration::from_millis;
    for Case { name, steps } in table.turns {
        let (mut turns, mut back) = (Turns::default(), Vec::new());
        for step in steps {
            let (now, until) = (ms(step.at), ms(step.until));
            let who = || step.who.clone().expect("somebody");
            let says: Says<String, ()> = match step.event.as_str() {
                "asks" => turns.asks(now, who(), until),
                "told" => turns.told(now, Turn::new(ms(step.due), ()), step.who.clone(), until),
                "refused" => turns.refused(now),
                "leaves" => turns.leaves(now, &who()),
                "returned" => {
                    let index = back.iter().position(|turn: &Turn<()>| turn.due == ms(step.due));
                    turns.returned(now, back.remove(index.expect("it is on its way")), step.back)
                }
                _ => turns.tick(now),
            };
            let due_ms = |turn: &Turn<()>| turn.due.as_millis() as u64;
            let said = Said {
                asks: says.asks,
                late: says.late,
                served: says.served.iter().map(|(who, turn)| (who.clone(), due_ms(turn))).collect(),
                back: says.back.iter().map(due_ms).collect(),
            };
            assert_eq!(said, step.says, "{name}, at {}", step.at);
            back.extend(says.back);
        }
    }
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Step {
    at: u64,
    event: String,
    limit: u64,
    held: u64,
    used: u64,
    others: i64,
    does: Option<String>,
}

#[test]
fn a_process_gives_way_as_in_all_packages() {
    let table: Table = server::table("waiting");
    assert!(table.ways.len() >= 5);
    for Case { name, steps } in table.ways {
        let mut way = Way::default();
        for step in steps {
            let does = match step.event.as_str() {
                "asks" => Some(way.asks(step.at, step.limit, step.held)),
                "looked" => Some(way.looked(step.at, step.others)),
                "taken" => {
                    way.taken(step.at, step.held, step.used);
                    None
                }
                _ => {
                    way.ended(step.at);
                    None
                }
            };
            let does = does.map(|does| match does {
                Does::Ask => "ask",
                Does::Look => "look",
                Does::GiveWay => "give way",
            });
            assert_eq!(does, step.does.as_deref(), "{name}, at {}", step.at);
        }
    }
}
