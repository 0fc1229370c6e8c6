//! Commands of users and of the server that change when a key expires or where it is, and a check that copies agree on
//! every key to the byte and to the millisecond.

use std::collections::BTreeMap;

use harness::{Random, Server, command};
use redis::{Connection, Value};

/// Databases that the keys are moved between.
const DATABASES: [&str; 2] = ["SELECT 0", "SELECT 1"];

/// The DUMP of every key, and when it expires, by database and name.
pub type Keys = BTreeMap<(usize, String), (Vec<u8>, i64)>;

/// Every key of a server that has not expired by its clock.
pub fn keys(server: &Server) -> Keys {
    let mut connection = server.connect();
    let mut all = Keys::new();
    for (database, select) in DATABASES.iter().enumerate() {
        command(select).exec(&mut connection).expect("SELECT");
        for key in names(&mut connection) {
            let dump: Vec<u8> = redis::cmd("DUMP").arg(&key).query(&mut connection).expect("DUMP");
            let expires_at: i64 =
                redis::cmd("PEXPIRETIME").arg(&key).query(&mut connection).expect("PEXPIRETIME");
            all.insert((database, key), (dump, expires_at));
        }
    }
    all
}

/// Dumps a key and restores it with this time to live in milliseconds; without one if that is 0.
#[track_caller]
pub fn restore(server: &Server, key: &str, ttl_ms: i64) {
    let mut connection = server.connect();
    let payload: Vec<u8> = redis::cmd("DUMP").arg(key).query(&mut connection).expect("a payload");
    let mut restore = redis::cmd("RESTORE");
    restore.arg(key).arg(ttl_ms).arg(payload).arg("REPLACE").exec(&mut connection).expect("RESTORE");
}

/// When each of these keys expires.
pub fn expiries(keys: &Keys) -> BTreeMap<(usize, String), i64> {
    keys.iter().map(|(key, (_, expires_at))| (key.clone(), *expires_at)).collect()
}

/// Asserts that a copy has the keys of its master, once it has received everything. Its clock is set to the master's.
#[track_caller]
pub fn assert_copy(master: &Server, copy: &Server, about: &str) {
    copy.wait_to_catch_up(master);
    copy.set_clock(master.clock_ms());
    let [expected, keys] = [master, copy].map(keys);
    let differences = differences(&expected, &keys);
    assert!(differences.is_empty(), "{about}: the copy differs\n{}", differences.join("\n"));
}

/// What a copy has of each key that is not equal there, a line each, and only what differs of it.
fn differences(expected: &Keys, keys: &Keys) -> Vec<String> {
    let names = expected.keys().chain(keys.keys().filter(|name| !expected.contains_key(*name)));
    let differing = names.filter(|name| expected.get(*name) != keys.get(*name));
    let lines = differing.map(|name @ (database, key)| {
        let what = match (expected.get(name), keys.get(name)) {
            (Some(_), None) => "is missing".to_owned(),
            (None, _) => "is too many".to_owned(),
            (Some((dump, end)), Some((copied, copied_end))) if end != copied_end => {
                let content = if dump == copied { "" } else { ", and the content differs" };
                format!("expires at {copied_end}, not at {end}{content}")
            }
            (Some((dump, _)), Some((copied, _))) => format!("holds {copied:02x?}, not {dump:02x?}"),
        };
        format!("{key} of database {database} {what}")
    });
    lines.collect()
}

#[test]
fn a_copy_that_differs_is_told_by_what_differs_alone() {
    let key = |database, name: &str, byte, end| ((database, name.to_owned()), (vec![byte; 2], end));
    let master = Keys::from([key(0, "a", 1, 7), key(0, "b", 1, 7), key(0, "c", 1, 7), key(1, "a", 1, 7)]);
    let copy = Keys::from([key(0, "a", 1, 7), key(0, "b", 1, 8), key(0, "c", 2, 7), key(1, "z", 1, 7)]);
    let told = [
        "b of database 0 expires at 8, not at 7",
        "c of database 0 holds [02, 02], not [01, 01]",
        "a of database 1 is missing",
        "z of database 1 is too many",
    ];
    assert_eq!(differences(&master, &copy), told);
}

fn names(connection: &mut Connection) -> Vec<String> {
    let mut names: Vec<String> = command("KEYS *").query(connection).expect("KEYS");
    names.sort();
    names
}

/// Runs `count` such commands on random keys of a master.
pub fn disturb(master: &Server, random: &mut Random, count: usize) {
    let mut connection = master.connect();
    let now = master.clock_ms();
    for _ in 0..count {
        let select = random.of(&DATABASES);
        command(select).exec(&mut connection).expect("SELECT");
        let names = names(&mut connection);
        if names.is_empty() {
            continue;
        }
        let [key, other] = [0, 1].map(|_| names[random.below(names.len())].clone());
        let ms = random.of(&[1, 900, 2_000, 20_000, 3_600_000, 100_000_000_000]);
        let condition = random.of(&["", "", "", "NX", "XX", "GT", "LT"]);
        let line = match random.below(12) {
            0 | 1 => format!("PEXPIRE {key} {ms} {condition}"),
            2 => format!("EXPIRE {key} {} {condition}", 1 + ms / 1_000),
            3 => format!("PEXPIREAT {key} {} {condition}", now + ms),
            // In the past: the server deletes the key.
            4 if random.below(4) == 0 => format!("PEXPIREAT {key} {}", now - ms),
            4 | 5 => format!("PERSIST {key}"),
            6 => format!("COPY {key} {other} REPLACE"),
            7 => format!("RENAME {key} {other}"),
            8 => format!("MOVE {key} {}", random.below(2)),
            9 | 10 => {
                let payload: Option<Vec<u8>> =
                    redis::cmd("DUMP").arg(&key).query(&mut connection).expect("DUMP");
                let mut restore = redis::cmd("RESTORE");
                let (ttl, absolute) = if random.below(2) == 0 { (ms, false) } else { (now + ms, true) };
                let ttl = if random.below(4) == 0 { 0 } else { ttl };
                restore.arg(&other).arg(ttl).arg(payload).arg("REPLACE");
                if absolute {
                    restore.arg("ABSTTL");
                }
                let _ = restore.query::<Value>(&mut connection);
                continue;
            }
            _ => format!("DEL {key}"),
        };
        // Some are refused, such as to rename a key to itself.
        let _ = command(&line).query::<Value>(&mut connection);
    }
}
