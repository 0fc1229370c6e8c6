//! The module's section of INFO.

use harness::{APPEND_ONLY, COMMANDS, Server, wait_for};

/// The algorithms, as fields of INFO name them.
fn algorithms() -> [String; COMMANDS.len()] {
    COMMANDS.map(|name| name["RL.".len()..].to_ascii_lowercase())
}

/// A field of the section, named without the module's prefix.
fn field(server: &Server, name: &str) -> u64 {
    let section = server.text("INFO rl_stats");
    let line = section.lines().find_map(|line| line.strip_prefix(&format!("rl_{name}:")));
    line.unwrap_or_else(|| panic!("no {name} in {section}")).parse().expect("a number")
}

/// Allowed, limited and forced requests of one command.
fn outcomes(server: &Server, command: &str) -> [u64; 3] {
    ["allowed", "limited", "forced"].map(|outcome| field(server, &format!("{command}_{outcome}")))
}

fn units(server: &Server) -> [u64; 2] {
    ["units_counted", "units_given_back"].map(|name| field(server, name))
}

#[test]
fn info_has_a_section_of_the_module_with_its_version() {
    let server = Server::start();
    for section in ["rl", "rl_stats", "modules", "everything"] {
        let text = server.text(&format!("INFO {section}"));
        assert!(text.contains("# rl_stats\r\n"), "{section}");
        assert!(text.contains(concat!("rl_version:", env!("CARGO_PKG_VERSION"), "\r\n")), "{section}");
    }
    let text = server.text("INFO memory");
    assert!(!text.contains("rl_"), "a section that was not requested");
}

#[test]
fn each_command_counts_its_requests_by_outcome_and_the_units_that_changed() {
    let server = Server::start();
    let mut before = [0, 0];
    for command in &algorithms() {
        let rl = format!("RL.{command} {command}");
        for (line, outcomes_of_it, of_units) in [
            (format!("{rl} 10 10s COST 7 AT 0"), [1, 0, 0], [7, 0]),
            (format!("{rl} 10 10s COST 7 AT 0"), [1, 1, 0], [7, 0]),
            (format!("{rl} 10 10s COST 7 FORCE AT 0"), [1, 1, 1], [14, 0]),
            // A forced request within the limit counts as allowed, and a unit in several tiers once.
            (format!("{rl}:other 9 10s FORCE AT 0"), [2, 1, 1], [15, 0]),
            (format!("{rl}:other 9 10s 9 20s AT 0"), [3, 1, 1], [16, 0]),
            (format!("{rl} 10 10s COST 0 AT 0"), [4, 1, 1], [16, 0]),
            (format!("RL.PEEK {command} 1 10s AT 0"), [4, 1, 1], [16, 0]),
            (format!("RL.PEEK {command}:other 99 10s AT 0"), [4, 1, 1], [16, 0]),
            (format!("RL.INFO {command}"), [4, 1, 1], [16, 0]),
            (format!("{rl} 10 10s COST -4 AT 0"), [5, 1, 1], [16, 4]),
            (format!("{rl} 10 10s COST -99 AT 0"), [6, 1, 1], [16, 14]),
            (format!("{rl} 10 10s COST -1 AT 0"), [7, 1, 1], [16, 14]),
        ] {
            server.value(&line);
            assert_eq!(outcomes(&server, command), outcomes_of_it, "{line}");
            assert_eq!(units(&server), [0, 1].map(|i| before[i] + of_units[i]), "{line}");
        }
        before = units(&server);
    }
    assert_eq!([field(&server, "peek_allowed"), field(&server, "peek_limited")], [COMMANDS.len() as u64; 2]);
}

#[test]
fn rl_all_counts_its_requests_and_the_units_of_each_key() {
    let server = Server::start();
    let outcomes_of_all = || outcomes(&server, "all");
    for (line, outcomes, counted_and_refunded) in [
        ("RL.ALL f FIXED 3 10s 2 l LOG 5 10s 3", [1, 0, 0], [5, 0]),
        ("RL.ALL f FIXED 3 10s 2 l LOG 5 10s 1", [1, 1, 0], [5, 0]),
        ("RL.ALL f FIXED 3 10s 2 l LOG 5 10s 1 FORCE", [1, 1, 1], [8, 0]),
        // A forced request within the limits counts as allowed.
        ("RL.ALL f FIXED 9 10s 1 l LOG 9 10s 1 FORCE", [2, 1, 1], [10, 0]),
        // A unit in several tiers counts once.
        ("RL.ALL f FIXED 9 10s 1 s SLIDING 9 10s 2 f FIXED 9 20s 1", [3, 1, 1], [13, 0]),
        ("RL.ALL f FIXED 1 10s 0 l LOG 1 10s 0", [4, 1, 1], [13, 0]),
        ("RL.ALL f FIXED 1 10s -2 l LOG 1 10s -99 s SLIDING 9 10s 1", [5, 1, 1], [14, 7]),
        ("RL.ALL f LOG 1 10s 1 l LOG 1 10s 1", [5, 1, 1], [14, 7]),
    ] {
        let _ = server.call(&format!("{line} AT 0"));
        assert_eq!(outcomes_of_all(), outcomes, "{line}");
        assert_eq!(units(&server), counted_and_refunded, "{line}");
    }
    server.value("SET text x");
    for line in ["RL.FIXED k -1 10s", "RL.LOG text 1 1s", "RL.PEEK k 1 0s", "RL.INFO text"] {
        server.error(line);
    }
    assert_eq!(field(&server, "errors"), 5, "and as nothing else");
    assert!(algorithms().iter().all(|command| outcomes(&server, command) == [0; 3]));
}

#[test]
fn replicated_and_reloaded_requests_are_not_counted() {
    let mut server = Server::with(&APPEND_ONLY);
    let replica = Server::replica_of(&server, &[]);
    for command in &algorithms() {
        server.value(&format!("RL.{command} {command} 3 1d"));
        server.value(&format!("RL.{command} {command} 3 1d COST 9 FORCE"));
        server.value(&format!("RL.{command} {command} 3 1d COST -1"));
    }
    server.value("RL.ALL fixed FIXED 9 1d 1 sliding SLIDING 9 1d 1 log LOG 1 1d 1 FORCE");
    wait_for("the replica to hold the same", || server.digest() == replica.digest());
    server.restart();
    for other in [&server, &replica] {
        assert!(algorithms().iter().all(|command| outcomes(other, command) == [0; 3]));
        assert_eq!(outcomes(other, "all"), [0; 3]);
        assert_eq!(units(other), [0, 0]);
    }
}

#[test]
fn info_reports_the_memory_of_limiters_until_they_are_freed() {
    let server = Server::start();
    let base = field(&server, "memory_bytes");
    for i in 0..2_000 {
        server.value(&format!("RL.LOG log 1000000 1d AT {}", i * 40));
    }
    let of_log = field(&server, "memory_bytes") - base;
    assert!((2_000..5_000).contains(&of_log), "{of_log}");
    server.value("RL.FIXED fixed 1 1d");
    assert_eq!(field(&server, "memory_bytes") - base - of_log, 16);
    server.value("UNLINK log fixed");
    wait_for("the limiters to be freed", || field(&server, "memory_bytes") == base);
}
