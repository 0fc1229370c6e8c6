//! The cases of giving way that all packages share.

use redis_rl_client::keys::way::{Does, Way};
use serde::Deserialize;

use crate::server;

#[derive(Deserialize)]
struct Table {
    ways: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    name: String,
    steps: Vec<Step>,
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
