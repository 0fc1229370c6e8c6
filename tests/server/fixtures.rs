//! Every later version loads the files of earlier ones: the version byte of the encoding is a promise, and so are the
//! commands in append-only files.
//!
//! `tests/fixtures` holds the keys that `CALLS` made on Redis 7.0.15:
//!
//! - `1.0.0.rdb`: the snapshot of SAVE.
//! - `1.0.0.aof`: an append-only file with `aof-use-rdb-preamble no`. BGREWRITEAOF wrote what the first 15 calls and
//!   `more_calls` had made, as RL.LOAD; the other calls were appended as RL.APPLY, with `LAST_CALLS` at the end. Before
//!   these `stepped 1 10s` was counted, limited by a clock an hour behind, and deleted.
//! - `1.0.0-bucket.rdb` and `1.0.0-bucket.aof`: the same of `BUCKET_CALLS`, of which the file was rewritten after the first four.
//! - `1.0.0-calendar.rdb` and `1.0.0-calendar.aof`: the same of `CALENDAR_CALLS`, rewritten after the first three.
//!
//! Never regenerate them; a new encoding adds new files.

use std::fs;
use std::path::Path;

use harness::{Server, pipeline};

/// The clock when the files were made, and when they are loaded.
const NOW: i64 = 1_900_000_000_123;

const CALLS: [&str; 22] = [
    "RL.FIXED fixed 5 1h COST 3",
    "RL.FIXED fixed:windows 9 1ms 9 7s 9 1m 9 1h 9 1d 9 7d 9 365d 9 3650d COST 2 AT 1899999999000",
    "RL.FIXED fixed:windows 9 1h 9 1d COST 4",
    "RL.FIXED fixed:most 9007199254740991 3650d COST 9007199254740991",
    "RL.FIXED fixed:most 9007199254740991 3650d COST 9007199254740991 FORCE",
    "RL.SLIDING sliding 9 1h COST 5 AT 1899996400000",
    "RL.SLIDING sliding 9 1h COST 2",
    "RL.SLIDING sliding:previous 9 1h COST 7 AT 1899996400000",
    "RL.SLIDING sliding:previous 9 1h AT 1900000000000",
    "RL.SLIDING sliding:previous 9 1h COST -1 AT 1900000000000",
    "RL.SLIDING sliding:windows 90 10s 90 1m 90 1h 90 1d COST 30 AT 1899999940000",
    "RL.SLIDING sliding:windows 90 10s 90 1m 90 1h 90 1d COST 12",
    "RL.LOG log 5 1h",
    "RL.LOG log:units 99 1h COST 40 AT 1899998000000",
    "RL.LOG log:units 99 1h AT 1899998000001",
    "RL.LOG log:units 99 1h AT 1899998000002",
    "RL.LOG log:units 99 1h COST 2 AT 1899998000129",
    "RL.LOG log:units 99 1h COST 9 AT 1899999999999",
    "RL.LOG log:windows 9 10s 20 1m 300 30d COST 7 AT 1899000000000",
    "RL.LOG log:windows 9 10s 20 1m 300 30d COST 3",
    "RL.LOG log:most 9007199254740991 1d COST 9007199254740991 AT 1899999000000",
    "RL.LOG log:most 9007199254740991 1d COST 9007199254740991 FORCE",
];

/// More calls before the append-only file was rewritten, and after: with all that an effect can be.
fn more_calls() -> [Vec<String>; 2] {
    let forced = |nth: i64| format!("RL.LOG log:forced 5 30d FORCE AT {}", NOW - 90_000_000 + 75_000 * nth);
    let after = [
        "RL.ALL all:a FIXED 9 1h 2 all:b LOG 9 1m 3 all:c SLIDING 9 1s 1 all:c SLIDING 90 1d 1",
        "RL.LOG partial 9 1h COST 12 PARTIAL",
        "RL.SLIDING emptied 9 1h COST 2",
        "RL.ALL emptied SLIDING 9 1h -2 all:b LOG 9 1m -1",
    ];
    [
        (0..1_100).map(forced).collect(),
        after.into_iter().map(str::to_owned).chain((1_100..1_110).map(forced)).collect(),
    ]
}

/// A server that has loaded a fixture under this file name.
fn load(fixture: &str, name: &str, settings: &[(&str, &str)]) -> Server {
    let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(fixture);
    let mut server = Server::with_clock_at(NOW, settings);
    server.restart_after(|folder| {
        // The append-only file of the new server, which would be loaded instead.
        let _ = fs::remove_dir_all(folder.join("appendonlydir"));
        fs::copy(fixture, folder.join(name)).expect("a fixture");
    });
    server
}

/// Asserts that every key holds what it held, and keeps counting.
fn assert_unchanged(server: &Server, more: &[String]) {
    // The digest also covers units that no longer count.
    let reference = Server::with_clock_at(NOW, &[]);
    pipeline(CALLS).exec(&mut reference.connect()).expect("all of them are counted");
    if !more.is_empty() {
        pipeline(more).exec(&mut reference.connect()).expect("all of them are counted");
    }
    assert_eq!(server.digest(), reference.digest());
    for line in CALLS {
        let key = line.split(' ').nth(1).expect("a key");
        let info = format!("RL.INFO {key}");
        assert_eq!(server.value(&info), reference.value(&info), "{key}");
        assert!(server.integer(&format!("PTTL {key}")) > 0, "{key}");
    }
    for line in CALLS {
        assert_eq!(server.value(line), reference.value(line), "{line}");
    }
    assert_eq!(server.digest(), reference.digest());
}

const LAST_CALLS: [&str; 3] = ["RL.LOG persisted 9 1h", "PERSIST persisted", "RL.LOG persisted 9 1h"];

/// When the keys of `1.0.0.aof` expire.
const EXPIRIES: [(&str, i64); 16] = [
    ("all:a", 1_900_000_800_000),
    ("all:b", 1_900_000_065_000),
    ("all:c", 1_900_108_800_000),
    ("fixed", 1_900_000_800_000),
    ("fixed:most", 2_207_520_000_000),
    ("fixed:windows", 2_207_520_061_123),
    ("log", 1_900_003_950_000),
    ("log:forced", 1_902_916_035_000),
    ("log:most", 1_900_088_260_123),
    ("log:units", 1_900_004_010_124),
    ("log:windows", 1_902_880_060_123),
    ("partial", 1_900_003_950_000),
    ("persisted", -1),
    ("sliding", 1_900_004_460_123),
    ("sliding:previous", 1_900_004_460_123),
    ("sliding:windows", 1_900_108_920_123),
];

#[test]
fn a_snapshot_of_version_1_0_0_loads_with_every_count() {
    assert_unchanged(&load("1.0.0.rdb", "dump.rdb", &[]), &[]);
}

#[test]
fn an_append_only_file_of_version_1_0_0_loads_with_every_count_and_every_time_to_live() {
    let file = include_bytes!("../fixtures/1.0.0.aof");
    for word in ["RL.LOAD", "RL.APPLY", "DEL", "/forget", ":1", "h>1", "\n>1"] {
        assert!(file.windows(word.len()).any(|bytes| bytes == word.as_bytes()), "{word}");
    }
    let server = load("1.0.0.aof", "appendonly.aof", &[("appendonly", "yes")]);
    for (key, expires_at) in EXPIRIES {
        assert_eq!(server.integer(&format!("PEXPIRETIME {key}")), expires_at, "{key}");
    }
    let last = LAST_CALLS.map(str::to_owned).to_vec();
    assert_unchanged(&server, &[more_calls().concat(), last].concat());
}

/// Calls of RL.BUCKET: one window and several, the largest figures, below empty, given back.
const BUCKET_CALLS: [&str; 8] = [
    "RL.BUCKET bucket 7 1h COST 3 AT 1899999000001",
    "RL.BUCKET bucket:windows 9 7s 90 1h 900 1d COST 5",
    "RL.BUCKET bucket:most 9007199254740991 3650d COST 9007199254740991 FORCE",
    "RL.BUCKET bucket:below 5 1h COST 9 FORCE",
    "RL.BUCKET bucket 7 1h COST 2",
    "RL.BUCKET bucket:windows 18 1h COST 1",
    "RL.BUCKET bucket:most 9007199254740991 3650d COST -5",
    "RL.ALL bucket:below BUCKET 5 1h -1 bucket BUCKET 7 1h 1",
];

/// Calls of RL.FIXED with windows of the calendar: beside others, the largest figures, given back.
const CALENDAR_CALLS: [&str; 6] = [
    "RL.FIXED plan 500 1d 10000 1mo COST 30",
    "RL.FIXED plan:windows 9 7d 9 1w 9 521w 9 1mo 9 3mo 9 12mo 9 120mo COST 4 AT 1899999000001",
    "RL.FIXED plan:most 9007199254740991 1mo COST 9007199254740991 FORCE",
    "RL.FIXED plan:windows 9 1w 9 1mo COST 2",
    "RL.FIXED plan 500 1d 10000 1mo COST -7",
    "RL.ALL plan:most FIXED 5 1mo -1 plan:week FIXED 7 1w 1",
];

#[test]
fn buckets_in_files_of_version_1_0_0_load_with_every_unit_and_every_time_to_live() {
    let keys = ["bucket", "bucket:windows", "bucket:most", "bucket:below"];
    assert_loads("1.0.0-bucket", &BUCKET_CALLS, &keys);
}

#[test]
fn weeks_and_months_in_files_of_version_1_0_0_load_with_every_unit_and_every_time_to_live() {
    assert_loads("1.0.0-calendar", &CALENDAR_CALLS, &["plan", "plan:windows", "plan:most", "plan:week"]);
}

/// Asserts that snapshot and append-only file of this name hold what these calls make: these keys.
fn assert_loads(name: &str, calls: &[&str], keys: &[&str]) {
    let reference = Server::with_clock_at(NOW, &[]);
    calls.iter().for_each(|call| drop(reference.value(call)));
    let settings: [&[(&str, &str)]; 2] = [&[], &[("appendonly", "yes")]];
    let files = [("rdb", "dump.rdb"), ("aof", "appendonly.aof")];
    for ((kind, file), settings) in files.into_iter().zip(settings) {
        let fixture = format!("{name}.{kind}");
        let server = load(&fixture, file, settings);
        assert_eq!(server.integer("DBSIZE"), keys.len() as i64, "{fixture}");
        assert_eq!(server.digest(), reference.digest(), "{fixture}");
        for key in keys {
            for command in ["RL.INFO", "PEXPIRETIME"] {
                let line = format!("{command} {key}");
                assert_eq!(server.value(&line), reference.value(&line), "{fixture}: {line}");
            }
        }
    }
}
