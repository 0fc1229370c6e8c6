//! Three well-known designs, replayed as their authors describe them.

use crate::helpers::hosts::{Host, Hosts};

const MINUTE: u64 = 60_000;
const HOUR: u64 = 60 * MINUTE;

/// A counter for each window `floor(now / window)` that also counts the requests it refuses: 3 in 60 s.
#[test]
fn a_fixed_window_that_also_counts_limited_requests() {
    let server = Hosts::start();
    let window = 1_000 * MINUTE;
    let mut replies = Vec::new();
    for second in [0, 10, 20, 30, 59] {
        replies.push(server.figures(&format!("RL.FIXED k 3 60s FORCE AT {}", window + second * 1_000)));
    }
    assert_eq!(
        replies,
        [
            [0, 3, 2, -1, 60_000],
            [0, 3, 1, -1, 50_000],
            [0, 3, 0, -1, 40_000],
            [1, 3, 0, 30_000, 30_000],
            [1, 3, 0, 1_000, 1_000],
        ]
    );
    // All five were counted, and the next window starts empty.
    assert_eq!(server.figures(&format!("RL.PEEK k 10 60s AT {}", window + 59_999))[2], 5);
    assert_eq!(
        server.figures(&format!("RL.FIXED k 3 60s FORCE AT {}", window + MINUTE)),
        [0, 3, 2, -1, 60_000]
    );
}

/// `n = x + y * z`, rounded down: a quarter past the hour, the previous hour's count weighs three quarters.
#[test]
fn a_sliding_counter_a_quarter_past_the_hour() {
    let server = Hosts::start();
    let hour = 500_000 * HOUR;
    server.value(&format!("RL.SLIDING k 1000 1h COST 84 AT {}", hour - HOUR / 2));
    server.value(&format!("RL.SLIDING k 1000 1h COST 36 AT {}", hour + 5 * MINUTE));
    let quarter_past = hour + 15 * MINUTE;
    // 36 + 84 * 0.75 = 99
    assert_eq!(server.figures(&format!("RL.PEEK k 1000 1h AT {quarter_past}"))[2], 1_000 - 99);
    // With a maximum of 100, n = 99 is allowed and n = 100 refused.
    assert_eq!(server.figures(&format!("RL.SLIDING k 100 1h AT {quarter_past}"))[..3], [0, 100, 0]);
    let [limited, _, remaining, retry_after, _] =
        server.figures(&format!("RL.SLIDING k 100 1h AT {quarter_past}"));
    assert_eq!((limited, remaining), (1, 0));
    // 37 + floor(84 * z) falls to 99 when 84 * z < 63, just after a quarter past.
    assert_eq!(retry_after, 1);
    assert_eq!(server.figures(&format!("RL.PEEK k 100 1h AT {}", quarter_past + 1))[0], 0);
}

/// The count is rounded down: 84 * 0.7499... units of the previous hour count as 62.
#[test]
fn a_sliding_counter_rounds_down() {
    let server = Hosts::start();
    let hour = 500_000 * HOUR;
    server.value(&format!("RL.SLIDING k 1000 1h COST 84 AT {}", hour - 1));
    for (past, counted) in
        [(0, 84), (1, 83), (15 * MINUTE, 63), (15 * MINUTE + 1, 62), (HOUR - 1, 0), (HOUR, 0)]
    {
        let remaining = server.figures(&format!("RL.PEEK k 1000 1h AT {}", hour + past))[2];
        assert_eq!(1_000 - remaining, counted, "{past} ms past");
    }
}

/// A timestamp for each request, dropped when it is older than the window: 100 in 60 s.
#[test]
fn a_sliding_log_of_100_in_60_seconds() {
    let server = Hosts::start();
    let start = 1_000_000_000;
    // One request every 500 ms: after 49.5 s the window is full.
    for i in 0..100 {
        let figures = server.figures(&format!("RL.LOG k 100 60s AT {}", start + i * 500));
        assert_eq!(figures, [0, 100, 99 - i as i64, -1, 60_000]);
    }
    let now = start + 50_000;
    assert_eq!(server.figures(&format!("RL.LOG k 100 60s AT {now}")), [1, 100, 0, 10_000, 59_500]);
    assert_eq!(server.figures(&format!("RL.LOG k 100 60s AT {}", start + 59_999)), [1, 100, 0, 1, 49_501]);
    assert_eq!(server.figures(&format!("RL.LOG k 100 60s AT {}", start + 60_000)), [0, 100, 0, -1, 60_000]);
    // The next unit is free when the second request leaves the window.
    assert_eq!(server.figures(&format!("RL.LOG k 100 60s AT {}", start + 60_001))[3], 499);
}
