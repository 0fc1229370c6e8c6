//! PARTIAL: as many of the units as fit are taken, and the reply says how many and as of when.

use crate::helpers::hosts::{Host, Hosts};
use harness::{COMMANDS, ReplicationStream, Server, command};
use redis::Value;

/// In the middle of an hour, and ahead of no clock.
const NOW: i64 = 1_700_000_000_000 / 3_600_000 * 3_600_000 + 1_800_000;

#[test]
fn of_a_request_that_does_not_fit_the_units_that_fit_are_taken_and_the_wait_is_for_one_more() {
    let server = Hosts::start();
    for name in COMMANDS {
        server.value(&format!("{name} {name} 10 1h COST 7 AT {NOW}"));
        let [limited, limit, remaining, retry_after, _, taken, at] =
            server.seven(&format!("{name} {name} 10 1h COST 9 PARTIAL AT {}", NOW + 5));
        assert_eq!([limited, limit, remaining, taken, at], [1, 10, 0, 3, NOW + 5], "{name}");
        // Waiting exactly that long is enough for one unit, and a millisecond less is not.
        for (wait, fits) in [(retry_after - 1, 0), (retry_after, 1)] {
            let peek = format!("RL.PEEK {name} 10 1h AT {}", NOW + 5 + wait);
            assert_eq!(server.figures(&peek)[0], 1 - fits, "{name}: after {wait} ms");
        }
        // Nothing is left, so nothing is taken.
        let digest = server.digest();
        let again = server.seven(&format!("{name} {name} 10 1h COST 9 PARTIAL AT {}", NOW + 5));
        assert_eq!(again[..5], [1, 10, 0, retry_after, again[4]], "{name}");
        assert_eq!(again[5..], [0, NOW + 5], "{name}");
        assert_eq!(server.digest(), digest, "{name}");
    }
}

#[test]
fn a_negative_cost_tells_how_many_units_came_back() {
    let server = Hosts::start();
    for name in COMMANDS {
        server.value(&format!("{name} {name} 10 1h COST 4 AT {NOW}"));
        let reply = server.seven(&format!("{name} {name} 10 1h COST -3 PARTIAL AT {NOW}"));
        assert_eq!([reply[0], reply[2], reply[5]], [0, 9, -3], "{name}");
        let reply = server.seven(&format!("{name} {name} 10 1h COST -3 PARTIAL AT {NOW}"));
        assert_eq!([reply[0], reply[2], reply[5]], [0, 10, -1], "{name}: no more than there is");
        let reply = server.seven(&format!("{name} {name} 10 1h COST -3 PARTIAL AT {NOW}"));
        assert_eq!([reply[2], reply[5]], [10, 0], "{name}");
    }
}

#[test]
fn units_are_given_back_as_of_the_time_in_the_reply_also_if_the_key_was_ahead() {
    let server = Hosts::start();
    for name in COMMANDS {
        for ahead in [0, 1, 3_600_000] {
            server.value(&format!("{name} {name} 10 1h COST 2 AT {}", NOW + ahead));
            let [.., taken, at] = server.seven(&format!("{name} {name} 10 1h COST 5 PARTIAL AT {NOW}"));
            let reply = server.seven(&format!("{name} {name} 10 1h COST -{taken} PARTIAL AT {at}"));
            assert_eq!(reply[5], -taken, "{name}, {ahead} ms ahead");
            assert_eq!(server.figures(&format!("RL.PEEK {name} 10 1h AT {at}"))[2], 8, "{name}");
            server.value(&format!("DEL {name}"));
        }
    }
}

#[test]
fn copies_get_the_units_that_were_taken_and_nothing_if_there_were_none() {
    let server = Server::start();
    let mut stream = ReplicationStream::of(&server);
    let replica = Server::replica_of(&server, &[]);
    for name in COMMANDS {
        server.value(&format!("{name} {name} 10 1h 20 1d COST 7 PARTIAL"));
        server.value(&format!("{name} {name} 10 1h 20 1d COST 7 PARTIAL"));
        server.value(&format!("{name} {name} 10 1h 20 1d COST 7 PARTIAL"));
        server.value(&format!("{name} {name} 10 1h 20 1d COST -2 PARTIAL"));
    }
    replica.wait_to_catch_up(&server);
    assert_eq!(replica.digest(), server.digest());
    server.value("PUBLISH effects over");
    let (mut effects, mut command) = (0, String::new());
    while command != "PUBLISH effects over" {
        command = stream.next_command().expect("a command");
        effects += usize::from(command.starts_with("RL."));
    }
    assert_eq!(effects, 3 * COMMANDS.len());
}

#[test]
fn a_request_of_which_not_all_was_taken_is_limited_for_those_who_watch() {
    let server = Server::start();
    server.value("CONFIG SET notify-keyspace-events Kd");
    let mut connection = server.connect();
    let mut events = connection.as_pubsub();
    events.psubscribe("__keyspace@0__:*").expect("PSUBSCRIBE");
    server.value("RL.LOG k 10 1h COST 7 PARTIAL");
    server.value("RL.LOG k 10 1h COST 7 PARTIAL");
    server.value("RL.LOG k 10 1h COST -1 PARTIAL");
    let event = events.get_message().expect("an event");
    assert_eq!(event.get_payload::<String>().expect("its name"), "rl.limited");
    for (field, count) in [("allowed", "2"), ("limited", "1"), ("forced", "0")]
        .map(|(name, count)| (format!("rl_log_{name}"), count))
    {
        assert_eq!(server.info(&field), count, "{field}");
    }
    assert_eq!(
        (server.info("rl_units_counted"), server.info("rl_units_given_back")),
        ("10".into(), "1".into())
    );
}

#[test]
fn the_reply_is_the_same_array_in_resp3() {
    let server = Server::start();
    let line = format!("RL.FIXED k 5 1h COST 9 PARTIAL AT {NOW}");
    let reply: Value = command(&line).query(&mut server.connect_resp3()).expect("a reply");
    let integers = [1, 5, 0, 1_800_000, 1_800_000, 5, NOW].map(Value::Int);
    assert_eq!(reply, Value::Array(integers.to_vec()));
}
