//! A limiter that has given back its last unit is gone before anything else runs.

use harness::{APPEND_ONLY, COMMANDS, Server, command};
use redis::Value;

const NOW: i64 = 1_900_000_000_123;

/// What another module does to the emptied key.
const WRITES: [&str; 4] = ["COPY KEY KEY:copied", "RENAME KEY KEY:moved", "MOVE KEY 1", "RL.PEEK KEY 9 1h"];

/// The names of all keys, each of which can be dumped and restored.
fn sound_keys(server: &Server) -> Vec<String> {
    let mut connection = server.connect();
    let mut all = Vec::new();
    for database in 0..2 {
        command(&format!("SELECT {database}")).exec(&mut connection).expect("SELECT");
        let keys: Vec<String> = command("KEYS *").query(&mut connection).expect("KEYS");
        for key in keys {
            let dump: Vec<u8> = redis::cmd("DUMP").arg(&key).query(&mut connection).expect("DUMP");
            let mut restore = redis::cmd("RESTORE");
            restore
                .arg("restored")
                .arg(1_000)
                .arg(dump)
                .arg("REPLACE")
                .exec(&mut connection)
                .expect("RESTORE");
            command("DEL restored").exec(&mut connection).expect("DEL");
            assert_ne!(server.value(&format!("RL.INFO {key}")), Value::Nil, "{key} holds nothing");
            all.push(key);
        }
    }
    all.sort();
    all
}

#[test]
fn another_module_never_finds_an_emptied_limiter() {
    let mut server = Server::with_neighbor(NOW, &APPEND_ONLY);
    let replica = Server::replica_of(&server, &[]);
    let mut expected = Vec::new();
    let mut case = 0;
    for (name, write) in COMMANDS.into_iter().flat_map(|name| WRITES.map(|write| (name, write))) {
        // It is told of one new key, of the second of two, or of the other that was emptied.
        for (event, teller) in [("new", "a"), ("new", "b"), ("del", "gone")] {
            for gone_first in [false, true] {
                case += 1;
                let [a, b, gone, emptied] = ["a", "b", "gone", "emptied"].map(|key| format!("{case}:{key}"));
                let algorithm = &name[3..];
                for key in [&gone, &emptied] {
                    server.value(&format!("{name} {key} 9 1h COST 2"));
                }
                let teller = format!("{case}:{teller}");
                server.value(&format!("NEIGHBOR.ON {event} {teller} {}", write.replace("KEY", &emptied)));
                let back = format!("{gone} {algorithm} 9 1h -2 {emptied} {algorithm} 9 1h -2");
                let taken = format!("{a} FIXED 9 1h 1 {b} LOG 9 1h 1");
                let rows = if gone_first { format!("{back} {taken}") } else { format!("{taken} {back}") };
                let before = server.integer("NEIGHBOR.RAN");
                server.value(&format!("RL.ALL {rows}"));
                assert!(server.integer("NEIGHBOR.RAN") > before, "RL.ALL {rows}, {event}");
                server.value("NEIGHBOR.OFF");
                expected.extend([a, b]);
            }
        }
    }
    expected.sort();
    assert_eq!(sound_keys(&server), expected);
    replica.wait_to_catch_up(&server);
    assert_eq!(replica.digest(), server.digest());
    let digest = server.digest();
    server.restart();
    assert_eq!(server.digest(), digest, "from the append-only file");
    server.value("DEBUG RELOAD");
    assert_eq!(server.digest(), digest, "from a snapshot");
    server.assert_nothing_panicked();
}
