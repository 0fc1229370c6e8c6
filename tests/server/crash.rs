//! A server that is killed under traffic loses no request that it has answered, and counts none that it
//! was not sent.

use std::collections::BTreeMap;

use harness::{APPEND_ONLY, COMMANDS, Random, Server, figures, pipeline, wait_for};
use redis::Value;

use crate::helpers::histories::{CLIENTS, Histories, Sent, kill_amid_traffic, rounds};
use crate::helpers::requests::used;
use crate::helpers::traffic::NOW;

/// Restarts a server that was killed, with a clock that is a second behind while it loads: what is on disk
/// must not depend on the clock.
fn start_again(server: &mut Server) {
    server.relaunch_at(NOW - 1_000);
    server.set_clock(NOW);
    server.rewrite_if_cut();
}

#[test]
fn after_a_crash_an_append_only_file_has_every_answered_request_and_none_twice() {
    for preamble in ["yes", "no"] {
        let mut random = Random::new(1);
        let mut histories = Histories::of(1_000);
        let settings = [&APPEND_ONLY[..], &[("aof-use-rdb-preamble", preamble)]].concat();
        let mut server = Server::with_clock_at(NOW, &settings);
        for round in 0..rounds() {
            let sent = kill_amid_traffic(&mut server, histories.batches(), |clients| {
                clients.wait_for_answers(random.below(1_000));
                // Without a rewrite, perhaps during one, and after one.
                if round % 3 > 0 {
                    clients.value("BGREWRITEAOF");
                    clients.wait_for_answers(random.below(500));
                }
                if round % 3 == 2 {
                    clients.wait_for_rewrite();
                    clients.wait_for_answers(random.below(500));
                }
            });
            start_again(&mut server);
            let counts = sent.iter().map(|sent| sent.replies.len()..=sent.lines.len());
            histories.assert_carried_out(&server, &sent, counts);
        }
    }
}

#[test]
fn a_crash_restores_exactly_the_last_snapshot() {
    let mut random = Random::new(2);
    let mut histories = Histories::of(2_000);
    let mut server = Server::with_clock_at(NOW, &[]);
    for round in 0..rounds() {
        let mut counts = Vec::new();
        let sent = kill_amid_traffic(&mut server, histories.batches(), |clients| {
            clients.wait_for_answers(random.below(1_000));
            let before: Vec<usize> = clients.sent().map(|sent| sent.replies.len()).collect();
            clients.value(if round % 2 == 0 { "SAVE" } else { "BGSAVE" });
            let after = clients.sent().map(|sent| sent.lines.len());
            counts = before.into_iter().zip(after).map(|(before, after)| before..=after).collect();
            wait_for("the snapshot", || clients.info("rdb_bgsave_in_progress") == "0");
            assert_eq!(clients.info("rdb_last_bgsave_status"), "ok");
            clients.wait_for_answers(random.below(500));
        });
        start_again(&mut server);
        histories.assert_carried_out(&server, &sent, counts);
    }
}

/// A request to one of a few keys; some allow every request, others soon none.
fn request(random: &mut Random, round: usize) -> String {
    let name = random.of(&COMMANDS);
    let pairs = random.of(&["1000000 1h", "1000000 1h 2000000 1d", "300 1h", "5000 1m 700 1d"]);
    let cost = random.of(&["", "COST 1", "COST 2", "COST 7", "COST 128", "COST 0"]);
    format!("{name} {name}:{}:{round} {pairs} {cost}", pairs.replace(' ', "-"))
}

/// The range of units that a key may hold, by what its clients know.
#[derive(Debug)]
struct Units {
    granted: i64,
    /// Requested but not answered.
    unanswered: i64,
}

/// Adds up what was sent, by key.
fn count(units: &mut BTreeMap<String, Units>, sent: &Sent) {
    for (i, line) in sent.lines.iter().enumerate() {
        let key = line.split(' ').nth(1).expect("a key");
        let cost = line.split_once("COST ").map_or(1, |(_, cost)| cost.parse().expect("a cost"));
        let units = units.entry(key.to_owned()).or_insert(Units { granted: 0, unanswered: 0 });
        match sent.replies.get(i) {
            Some(reply) if figures(reply)[0] == 0 => units.granted += cost,
            Some(_) => {}
            None => units.unanswered += cost,
        }
    }
}

#[test]
fn after_a_crash_no_key_has_fewer_units_than_granted_or_more_than_requested() {
    let mut random = Random::new(3);
    let mut server = Server::with_clock_at(NOW, &APPEND_ONLY);
    let (mut keys, mut limited) = (BTreeMap::new(), 0);
    for round in 0..rounds() {
        let sources = (0..CLIENTS).map(|_| {
            let mut random = Random::new(random.below(usize::MAX) as u64);
            move || (0..=random.below(8)).map(|_| request(&mut random, round)).collect()
        });
        let sent = kill_amid_traffic(&mut server, sources.collect::<Vec<_>>(), |clients| {
            clients.wait_for_answers(random.below(2_000));
            clients.value("BGREWRITEAOF");
            clients.wait_for_answers(random.below(1_000));
        });
        sent.iter().for_each(|sent| count(&mut keys, sent));
        limited += sent.iter().flat_map(|sent| &sent.replies).filter(|reply| figures(reply)[0] == 1).count();
        start_again(&mut server);
        let infos = pipeline(keys.keys().map(|key| format!("RL.INFO {key}")));
        let infos: Vec<Value> = infos.query(&mut server.connect()).expect("RL.INFO");
        for ((key, units), info) in keys.iter_mut().zip(infos) {
            let windows = used(&info);
            // The same in each of its windows; none if it was never counted in.
            let used = windows.first().copied().unwrap_or(0);
            assert!(windows.iter().all(|units| *units == used), "{key}: {windows:?}");
            let most = units.granted + units.unanswered;
            assert!((units.granted..=most).contains(&used), "{key}: {used} of {units:?}");
            // No later crash changes it.
            *units = Units { granted: used, unanswered: 0 };
        }
    }
    assert!(limited > 0, "no limit was reached");
}
