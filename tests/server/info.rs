//! The module's section of INFO.

use crate::harness::{Server, wait_for};

const COMMANDS: [&str; 3] = ["fixed", "sliding", "log"];

/// Figures of the section by their names, without the module's prefix.
fn figure(server: &Server, name: &str) -> u64 {
    let section: String = redis::from_redis_value(server.value("INFO rl_stats")).expect("a text");
    let line = section.lines().find_map(|line| line.strip_prefix(&format!("rl_{name}:")));
    line.unwrap_or_else(|| panic!("no {name} in {section}")).parse().expect("a number")
}

/// Allowed, limited and forced requests of one command.
fn outcomes(server: &Server, command: &str) -> [u64; 3] {
    ["allowed", "limited", "forced"].map(|outcome| figure(server, &format!("{command}_{outcome}")))
}

fn units(server: &Server) -> [u64; 2] {
    ["units_counted", "units_given_back"].map(|name| figure(server, name))
}

#[test]
fn the_section_is_the_modules_and_tells_its_version() {
    let server = Server::start();
    for section in ["rl", "rl_stats", "modules", "everything"] {
        let text: String = redis::from_redis_value(server.value(&format!("INFO {section}"))).expect("a text");
        assert!(text.contains("# rl_stats\r\n"), "{section}");
        assert!(text.contains(concat!("rl_version:", env!("CARGO_PKG_VERSION"), "\r\n")), "{section}");
    }
    let text: String = redis::from_redis_value(server.value("INFO memory")).expect("a text");
    assert!(!text.contains("rl_"), "a section that was not asked for");
}

#[test]
fn each_command_counts_its_requests_by_what_came_of_them() {
    let server = Server::start();
    for command in COMMANDS {
        let rl = format!("RL.{command} {command}");
        for _ in 0..5 {
            server.value(&format!("{rl} 3 10s AT 0"));
        }
        server.value(&format!("{rl} 3 10s FORCE AT 0"));
        // Within the limit: allowed, whatever it says.
        server.value(&format!("{rl} 9 10s FORCE AT 0"));
        server.value(&format!("{rl} 9 10s 9 20s AT 0"));
        server.value(&format!("{rl} 3 10s COST 0 AT 0"));
        assert_eq!(outcomes(&server, command), [6, 2, 1], "{command}");
        assert!(server.call(&format!("RL.PEEK {command} 1 10s AT 0")).is_ok());
        assert!(server.call(&format!("RL.PEEK {command} 99 10s AT 0")).is_ok());
        server.value(&format!("RL.INFO {command}"));
        assert_eq!(outcomes(&server, command), [6, 2, 1], "{command} and a look at it");
    }
    assert_eq!([figure(&server, "peek_allowed"), figure(&server, "peek_limited")], [3, 3]);
}

#[test]
fn units_are_counted_and_given_back_as_many_as_there_were() {
    let server = Server::start();
    let mut counted = 0;
    let mut given = 0;
    for command in COMMANDS {
        let rl = format!("RL.{command} {command}");
        server.value(&format!("{rl} 10 10s COST 7 AT 0"));
        server.value(&format!("{rl} 10 10s COST 7 AT 0"));
        server.value(&format!("{rl} 10 10s COST 7 FORCE AT 0"));
        counted += 14;
        assert_eq!(units(&server), [counted, given], "{command}");
        server.value(&format!("{rl} 10 10s COST -4 AT 0"));
        server.value(&format!("{rl} 10 10s COST -99 AT 0"));
        server.value(&format!("{rl} 10 10s COST -1 AT 0"));
        given += 14;
        assert_eq!(units(&server), [counted, given], "{command} given back");
    }
}

#[test]
fn commands_that_answer_an_error_are_counted_as_such_and_as_nothing_else() {
    let server = Server::start();
    server.value("SET text x");
    for (i, line) in
        ["RL.FIXED k -1 10s", "RL.LOG text 1 1s", "RL.PEEK k 1 0s", "RL.INFO text"].iter().enumerate()
    {
        server.error(line);
        assert_eq!(figure(&server, "errors"), i as u64 + 1, "{line}");
    }
    assert_eq!(COMMANDS.map(|command| outcomes(&server, command)), [[0; 3]; 3]);
}

#[test]
fn a_replica_and_a_restart_count_no_requests_of_others() {
    let mut server = Server::with(&[("appendonly", "yes"), ("appendfsync", "always")]);
    let replica = Server::replica_of(&server, &[]);
    for command in COMMANDS {
        server.value(&format!("RL.{command} {command} 3 1d"));
        server.value(&format!("RL.{command} {command} 3 1d COST 9 FORCE"));
        server.value(&format!("RL.{command} {command} 3 1d COST -1"));
    }
    let caught_up = || server.digest() == replica.digest();
    wait_for("the replica holds the same", caught_up);
    server.restart();
    for other in [&server, &replica] {
        assert_eq!(COMMANDS.map(|command| outcomes(other, command)), [[0; 3]; 3]);
        assert_eq!(units(other), [0, 0]);
    }
}

#[test]
fn the_memory_of_limiters_is_told_and_goes_with_them() {
    let server = Server::start();
    let base = figure(&server, "memory_bytes");
    for i in 0..2_000 {
        server.value(&format!("RL.LOG log 1000000 1d AT {}", i * 40));
    }
    let of_log = figure(&server, "memory_bytes") - base;
    assert!((2_000..5_000).contains(&of_log), "{of_log}");
    server.value("RL.FIXED fixed 1 1d");
    assert_eq!(figure(&server, "memory_bytes") - base - of_log, 16);
    server.value("UNLINK log fixed");
    wait_for("the limiters are freed", || figure(&server, "memory_bytes") == base);
}
