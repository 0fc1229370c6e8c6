//! The errors of requests about one key: their texts, and that they change nothing.

use crate::helpers::hosts::{Host, Hosts};
use std::collections::BTreeSet;

use harness::{COMMANDS, Server, error_text};
use redis::Value;

use crate::helpers::errors::{
    AT, COST, FORCE_AND_PARTIAL, LIMIT, MONTHS, PAIRS, PARTIAL, SAME_WINDOW, SYNTAX, WINDOW, WITHIN,
    WITHIN_AND_OTHERS, WITHIN_OF_BUCKET, WRONGTYPE,
};
use crate::helpers::file;
use crate::helpers::requests::REQUESTS;

/// What every command refuses: the error, and what stands after the key, separated by commas. What is valid and what it means is said once, in
/// fuzz/src/parser.rs, for tests/model/arguments.rs and the fuzzer.
const REFUSED: [(&str, &str); 10] = [
    (
        LIMIT,
        "-1 1s,9007199254740992 1s,1.0 1s,1e3 1s,abc 1s,0x1 1s,+1 1s,01 1s,-0 1s,99999999999999999999999 1s",
    ),
    (
        WINDOW,
        "1 0,1 0s,1 0ms,1 -1,1 -1s,1 +1,1 01,1 1.5s,1 1e3,1 0x10,1 s,1 ms,1 d,1 inf,1 1s\0,1 \x001s,1 १s,1 1µs",
    ),
    (
        WINDOW,
        "1 3651d,1 522w,1 121mo,1 0mo,1 0w,1 1mos,1 1m0,1 1wo,1 1y,1 1mm,1 1sm,1 1dd,1 315360001,1 315360000001ms",
    ),
    (WINDOW, "1 99999999999999999999,1 9007199254740991d,1 9007199254740991w,1 9007199254740991mo"),
    (SAME_WINDOW, "1 10s 2 10000ms,1 60s 2 1m,1 1 2 1000ms,1 1w 2 1W"),
    (PAIRS, "1 1s 1 2s 1 3s 1 4s 1 5s 1 6s 1 7s 1 8s 1 9s"),
    (COST, "1 1s COST one,1 1s COST 1.5,1 1s COST -,1 1s COST --1,1 1s COST -0,1 1s COST +1"),
    (COST, "1 1s COST 9007199254740992,1 1s COST -9007199254740992,1 1s COST FORCE"),
    (AT, "1 1s AT -1,1 1s AT 9007199254740992,1 1s AT now,1 1s AT 1.5"),
    (
        SYNTAX,
        "1 1 s,1 1s BOGUS,1 1s COST 1 COST 1,1 1s AT 1 AT 1,1 1s COST,1 1s AT,1 1s COST 1 2 3s,1 1s COST 1 AT 1 %s\u{7f}",
    ),
];

const BUCKET: [&str; 1] = ["RL.BUCKET"];
const OTHERS: [&str; 3] = ["RL.SLIDING", "RL.LOG", "RL.BUCKET"];

/// The same of some commands.
const REFUSED_BY_SOME: [(&[&str], &str, &str); 10] = [
    (&COMMANDS, SYNTAX, "1 1s FORCE FORCE,1 1s PARTIAL PARTIAL,1 1s FORCE 1 2s"),
    (&COMMANDS, FORCE_AND_PARTIAL, "1 1s PARTIAL FORCE,1 1s FORCE COST 2 PARTIAL"),
    // It counts nothing, so there is nothing to force, and no part to take.
    (&["RL.PEEK"], SYNTAX, "1 1s FORCE"),
    (&["RL.PEEK"], PARTIAL, "1 1s PARTIAL"),
    (&["RL.FIXED", "RL.SLIDING", "RL.LOG", "RL.PEEK"], WITHIN_OF_BUCKET, "1 1s WITHIN 1s"),
    (&OTHERS, MONTHS, "1 1mo,1 120MO"),
    (&OTHERS, SAME_WINDOW, "1 1w 2 7d"),
    (
        &BUCKET,
        WITHIN,
        "1 1s WITHIN 0,1 1s WITHIN -1,1 1s WITHIN 1x,1 1s WITHIN 3651d,1 1s WITHIN 1.5s,1 1s WITHIN 1mo",
    ),
    (&BUCKET, WITHIN_AND_OTHERS, "1 1s WITHIN 1s FORCE,1 1s FORCE WITHIN 1s,1 1s within 1s partial"),
    (&BUCKET, SYNTAX, "1 1s WITHIN,1 1s WITHIN 1s WITHIN 1s"),
];

#[test]
fn an_error_names_the_argument_and_its_range_and_changes_nothing() {
    let server = Hosts::start();
    for name in COMMANDS {
        server.value(&format!("{name} {name} 5 10s COST 2 AT 0"));
    }
    let before = server.digest();
    let everywhere = REFUSED.map(|(error, words)| (REQUESTS.as_slice(), error, words));
    for (names, error, lines) in everywhere.into_iter().chain(REFUSED_BY_SOME) {
        for name in names {
            let key = if *name == "RL.PEEK" { "RL.FIXED" } else { name };
            for words in lines.split(',') {
                for key in [key, "missing"] {
                    assert_eq!(server.error(&format!("{name} {key} {words}")), error, "{name} {words:?}");
                }
            }
        }
    }
    assert_eq!(server.digest(), before);
}

#[test]
fn a_wrong_number_of_arguments_gets_the_servers_own_error() {
    let server = Hosts::start();
    for line in [
        "RL.FIXED",
        "RL.SLIDING k",
        "RL.LOG k 1",
        "RL.PEEK k 1",
        "RL.INFO",
        "RL.INFO k k",
        "RL.FIXED k 1 10s 2",
        "RL.ALL",
        "RL.ALL k FIXED 5 10s",
        "RL.LOAD",
        "RL.LOAD k",
        "RL.LOAD k a b",
    ] {
        let name = line.split(' ').next().unwrap();
        let error = server.error(line).to_lowercase();
        assert_eq!(
            error,
            format!("err wrong number of arguments for '{}' command", name.to_lowercase()),
            "{line}"
        );
    }
}

#[test]
fn a_key_of_another_type_is_left_unchanged() {
    let server = Server::start();
    for (key, make) in [
        ("string", "SET string 1"),
        ("list", "RPUSH list 1"),
        ("hash", "HSET hash f 1"),
        ("set", "SADD set 1"),
        ("zset", "ZADD zset 1 m"),
        ("stream", "XADD stream * f v"),
    ] {
        server.value(make);
        let before = server.digest();
        for name in REQUESTS.iter() {
            assert_eq!(server.error(&format!("{name} {key} 1 10s")), WRONGTYPE, "{name} on a {key}");
        }
        assert_eq!(server.error(&format!("RL.INFO {key}")), WRONGTYPE);
        assert_eq!(server.digest(), before);
    }
}

#[test]
fn a_key_of_another_algorithm_is_left_unchanged() {
    let server = Hosts::start();
    let names = COMMANDS;
    for name in names {
        server.value(&format!("{name} {name} 5 10s AT 0"));
    }
    let before = server.digest();
    for name in names {
        for key in names.iter().filter(|key| **key != name) {
            for options in ["", "COST 0", "COST -1", "FORCE", "AT 0"] {
                let refusal = format!("WRONGTYPE key is counted by {key}");
                assert_eq!(server.error(&format!("{name} {key} 5 10s {options}")), refusal);
            }
        }
        assert_eq!(server.error(&format!("INCR {name}")), WRONGTYPE);
        assert_eq!(server.error(&format!("GET {name}")), WRONGTYPE);
    }
    assert_eq!(server.digest(), before);
}

#[test]
fn errors_are_ascii_and_never_echo_arguments() {
    let server = Server::start();
    let mut connection = server.connect();
    let hostile: [&[u8]; 6] = [b"\r\n+OK\r\n", b"secret", b"\xff\xfe\xfd", b"", b"\0", &[b'7'; 1 << 20]];
    for place in 0..4 {
        for bytes in hostile {
            let mut arguments: [&[u8]; 4] = [b"1", b"10s", b"COST", b"1"];
            arguments[place] = bytes;
            let error =
                redis::cmd("RL.FIXED").arg("secret").arg(&arguments[..]).query::<Value>(&mut connection);
            let text = error_text(&error.unwrap_err());
            assert!(text.is_ascii() && !text.contains(['\r', '\n']), "{text:?}");
            assert!(!text.contains("secret") && !text.contains("777"), "{text:?}");
        }
    }
    assert_eq!(server.value("PING"), Value::SimpleString("PONG".into()));
}

#[test]
fn the_errors_that_troubleshooting_explains_are_those_of_the_module() {
    let (page, texts) = (file("docs/troubleshooting.md"), file("core/src/request.rs"));
    let quoted = page.lines().filter_map(|line| line.strip_prefix("- `")?.split('`').next());
    let of_the_server = ["ERR unknown command ", "ERR wrong number of arguments "];
    let ours: Vec<&str> = quoted
        .filter(|error| error.starts_with("ERR ") || error.starts_with("WRONGTYPE "))
        .filter(|error| !of_the_server.iter().any(|start| error.starts_with(start)))
        .collect();
    assert!(ours.len() > 5, "{ours:?}");
    for error in ours {
        assert!(texts.contains(&format!("c\"{}", error.trim_end_matches(" ..."))), "{error}");
    }
}

#[test]
fn the_python_client_knows_each_argument_that_a_refusal_names() {
    let (client, texts) =
        (file("clients/python/src/redis_rl/_commands/wire.py"), file("core/src/request.rs"));
    let (_, pattern) = client.split_once("_UNREADABLE = re.compile(").expect("its pattern");
    let known = pattern.split_once("((").and_then(|(_, rest)| rest.split_once(")\"")).expect("arguments").0;
    let known: BTreeSet<&str> = known.split('|').collect();
    let named = texts.split("c\"ERR ").skip(1).filter_map(|text| {
        let text = text.split('"').next()?;
        Some(text.split_once(" must ")?.0)
    });
    assert_eq!(named.collect::<BTreeSet<_>>(), known);
    let syntax = SYNTAX.strip_prefix("ERR ").expect("its code");
    assert!(pattern.contains(&format!("|{syntax}|")), "{syntax}");
}
