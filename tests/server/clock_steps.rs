//! The server's clock steps forward and back, and stands on the edges of windows, days and years.

use crate::harness::Server;

const COMMANDS: [&str; 3] = ["RL.FIXED", "RL.SLIDING", "RL.LOG"];

const SECOND: i64 = 1_000;

/// Within a window of each length.
const NOW: i64 = 1_900_000_000_123;

#[test]
fn of_a_key_that_the_clock_has_caught_up_with_waits_end_when_it_goes() {
    let server = Server::with_clock_at(NOW, &[]);
    for name in COMMANDS {
        server.set_clock(NOW);
        server.value("DEL k");
        server.value(&format!("{name} k 1 10s"));
        server.step_clock(-SECOND);
        let [limited, _, _, retry_after, _] = server.figures(&format!("{name} k 1 10s"));
        assert_eq!(limited, 1);
        // The clock is back in the window that was counted in, but the key goes as was told.
        server.step_clock(2 * SECOND);
        let rest = retry_after - 2 * SECOND;
        assert_eq!(server.figures(&format!("{name} k 1 10s")), [1, 1, 0, rest, rest], "{name}");
        assert_eq!(server.figures("RL.PEEK k 1 10s"), [1, 1, 0, rest, rest], "{name}");
        assert!(format!("{:?}", server.value("RL.INFO k")).contains(&format!("int({rest})")), "{name}");
        server.step_clock(rest - 1);
        assert_eq!(server.figures(&format!("{name} k 1 10s"))[0], 1, "{name}");
        server.step_clock(1);
        assert_eq!(server.figures(&format!("{name} k 1 10s"))[0], 0, "{name}");
    }
}
