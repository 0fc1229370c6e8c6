//! What the commands answer.

use redis::Value;

use crate::harness::{Server, command, figures};

const COMMANDS: [&str; 3] = ["RL.FIXED", "RL.SLIDING", "RL.LOG"];

#[test]
fn a_reply_is_five_integers_in_resp2_and_resp3() {
    let server = Server::start();
    for mut connection in [server.connect(), server.connect_resp3()] {
        for name in COMMANDS {
            server.value("DEL k");
            let reply: Value = command(&format!("{name} k 5 10s AT 20000")).query(&mut connection).unwrap();
            assert_eq!(
                figures(&reply),
                [0, 5, 4, -1, if name == "RL.SLIDING" { 10_001 } else { 10_000 }],
                "{name}"
            );
            let reply: Value = command("RL.PEEK k 5 10s AT 20000").query(&mut connection).unwrap();
            assert_eq!(figures(&reply)[..4], [0, 5, 4, -1]);
        }
    }
}
