//! Windows of the calendar, which RL.FIXED has: weeks from Monday, months from the first.

use std::collections::HashMap;

use crate::helpers::errors;
use crate::helpers::hosts::{Host, Hosts};
use crate::helpers::requests::{all, used};
use harness::{APPEND_ONLY, COMMANDS, ReplicationStream, Server, without_expiry};
use redis::Value;

const DAY: i64 = 86_400_000;
const MOST: i64 = 9_007_199_254_740_991;

/// Wednesday, 28 February 2024, 12:00 UTC.
const LEAP_NOON: i64 = 1_709_121_600_000;
/// Friday, 1 March 2024, 00:00 UTC.
const MARCH: i64 = 1_709_251_200_000;
/// Monday, 4 March 2024, 00:00 UTC.
const MONDAY: i64 = 1_709_510_400_000;

/// Windows, with the beginning and the end of one, as `date -u` tells them.
const WINDOWS: [(&str, i64, i64); 22] = [
    ("1w", 0, 4 * DAY),
    ("1w", 4 * DAY, 11 * DAY),
    ("2w", 0, 11 * DAY),
    ("521w", 0, (521 * 7 - 3) * DAY),
    ("1w", MONDAY - 7 * DAY, MONDAY),
    // 31 December 2029 is a Monday.
    ("1w", 1_893_369_600_000, 1_893_974_400_000),
    ("1mo", 0, 31 * DAY),
    ("1mo", 31 * DAY, 59 * DAY),
    // February of 1972, 2000 and 2024 has 29 days, that of 2023 and 2100 has 28.
    ("1mo", 65_750_400_000, 68_256_000_000),
    ("1mo", 949_363_200_000, 951_868_800_000),
    ("1mo", 1_675_209_600_000, 1_677_628_800_000),
    ("1mo", 1_706_745_600_000, MARCH),
    ("1mo", 4_105_123_200_000, 4_107_542_400_000),
    // From 1 December 2029 to 1 January 2030.
    ("1mo", 1_890_777_600_000, 1_893_456_000_000),
    ("2mo", 1_704_067_200_000, MARCH),
    // Quarters, half years, years and a decade.
    ("3mo", 1_704_067_200_000, 1_711_929_600_000),
    ("6mo", 1_719_792_000_000, 1_735_689_600_000),
    ("12mo", 1_704_067_200_000, 1_735_689_600_000),
    ("12mo", 946_684_800_000, 978_307_200_000),
    ("24mo", 1_704_067_200_000, 1_767_225_600_000),
    ("120mo", 0, 315_532_800_000),
    ("120mo", 1_577_836_800_000, 1_893_456_000_000),
];

#[test]
fn a_window_ends_to_the_millisecond_and_waits_are_exact() {
    for (window, begin, end) in WINDOWS {
        let hosts = Hosts::with_clock_at(begin);
        let request = format!("RL.FIXED k 2 {window}");
        assert_eq!(hosts.figures(&request), [0, 2, 1, -1, end - begin], "{window} from {begin}");
        for now in [begin + 1, begin + (end - begin) / 2, end - 1] {
            hosts.set_clock(now);
            let wait = end - now;
            assert_eq!(
                hosts.figures(&format!("{request} COST 2")),
                [1, 2, 1, wait, wait],
                "{window} at {now}"
            );
            assert_eq!(hosts.figures(&format!("RL.PEEK k 1 {window}")), [1, 1, 0, wait, wait], "{window}");
        }
        assert_eq!(hosts.integer("PEXPIRETIME k"), end);
        hosts.set_clock(end);
        assert_eq!(hosts.figures(&format!("{request} COST 2"))[..3], [0, 2, 0], "{window} at {end}");
    }
}

#[test]
fn the_last_month_of_all_counts_too() {
    let hosts = Hosts::start();
    // 12 October 287396; the month ends on the 31st.
    let end = 9_007_199_254_740_991 / DAY * DAY + 20 * DAY;
    for (window, end) in [("1mo", end), ("3mo", end + 61 * DAY), ("12mo", end + 61 * DAY)] {
        let request = format!("RL.FIXED k:{window} 2 {window} AT {MOST}");
        assert_eq!(hosts.figures(&request), [0, 2, 1, -1, end - MOST]);
        assert_eq!(hosts.figures(&format!("{request} COST 2")), [1, 2, 1, end - MOST, end - MOST]);
        assert_eq!(hosts.figures(&format!("{request} COST -1"))[..3], [0, 2, 2]);
    }
}

#[test]
fn a_plan_of_a_month_stands_beside_days_and_weeks_and_all_count_a_request_or_none() {
    let hosts = Hosts::with_clock_at(LEAP_NOON);
    let request = "RL.FIXED plan 3 1d 100 7d 4 1w 5 1mo";
    assert_eq!(hosts.figures(&format!("{request} COST 3"))[..3], [0, 3, 0]);
    let midnight = DAY / 2;
    assert_eq!(hosts.figures(request), [1, 3, 0, midnight, midnight]);
    hosts.step_clock(DAY);
    assert_eq!(hosts.figures(request)[..3], [0, 4, 0], "the week has no more");
    let until_monday = MONDAY - hosts.clock_ms();
    assert_eq!(hosts.figures(request), [1, 4, 0, until_monday, until_monday]);
    // The month ends before the week does.
    hosts.set_clock(MARCH);
    assert_eq!(used(&hosts.value("RL.INFO plan")), [1, 4], "in 7 days from Thursday, and in the week");
    assert_eq!(hosts.figures(request)[1], 4);
    hosts.set_clock(MONDAY);
    assert_eq!(hosts.figures(&format!("{request} COST 3"))[..3], [0, 3, 0]);
    assert_eq!(hosts.figures(request)[0], 1);
    // A key that drops them counts on as any other.
    assert_eq!(hosts.figures("RL.FIXED plan 100 7d")[..3], [0, 100, 95]);
}

#[test]
fn a_week_is_not_seven_days_nor_a_month_thirty_and_each_changes_nothing_in_the_others() {
    let hosts = Hosts::with_clock_at(LEAP_NOON);
    for window in ["1w", "7d", "1mo", "30d", "4w", "28d"] {
        assert_eq!(hosts.figures(&format!("RL.FIXED k 1 {window}"))[..3], [0, 1, 0], "{window}");
        assert_eq!(hosts.figures(&format!("RL.FIXED k 1 {window}"))[0], 1, "{window}");
    }
    assert_eq!(hosts.error("RL.FIXED k 1 1w 1 1W"), errors::SAME_WINDOW);
    assert_eq!(hosts.figures("RL.FIXED k 9 1mo 9 3mo 9 12mo")[0], 0);
    assert_eq!(hosts.error("RL.FIXED k 9 1h"), errors::LIVE_WINDOWS);
}

#[test]
fn rl_info_shows_such_a_window_with_its_name_and_the_length_that_it_has_now() {
    let hosts = Hosts::with_clock_at(LEAP_NOON);
    hosts.value("RL.FIXED k 9 1mo 9 30d 9 2w COST 2");
    let shown = |value: Value| {
        let mut info: HashMap<String, Value> = redis::from_redis_value(value).expect("a map");
        let windows: Vec<HashMap<String, Value>> =
            redis::from_redis_value(info.remove("windows").expect("windows")).expect("maps");
        let text = |window: &HashMap<String, Value>, name: &str| {
            window.get(name).map(|value| redis::from_redis_value::<String>(value.clone()).expect("a text"))
        };
        let shown = windows.iter().map(|window| {
            (text(window, "window_ms").expect("a length"), text(window, "calendar"), text(window, "used"))
        });
        shown.collect::<Vec<_>>()
    };
    let of = |days: i64, calendar: Option<&str>| {
        ((days * DAY).to_string(), calendar.map(str::to_owned), Some("2".to_owned()))
    };
    assert_eq!(
        shown(hosts.value("RL.INFO k")),
        [of(14, Some("2w")), of(29, Some("1mo")), of(30, None)],
        "shortest first"
    );
    hosts.set_clock(MARCH);
    hosts.value("RL.FIXED k 9 1mo COST 2");
    assert_eq!(shown(hosts.value("RL.INFO k")), [of(14, Some("2w")), of(30, None), of(31, Some("1mo"))]);
}

#[test]
fn for_the_other_algorithms_a_week_is_seven_days_and_months_are_refused() {
    let hosts = Hosts::start();
    for name in &COMMANDS[1..] {
        hosts.value(&format!("{name} {name} 2 1w COST 2"));
        assert_eq!(hosts.figures(&format!("{name} {name} 2 7d"))[0], 1);
        assert_eq!(
            hosts.figures(&format!("RL.PEEK {name} 2 1w")),
            hosts.figures(&format!("RL.PEEK {name} 2 7d"))
        );
        assert_eq!(hosts.error(&format!("RL.PEEK {name} 2 1w 3 7d")), errors::SAME_WINDOW);
        for refused in [format!("{name} {name} 2 1mo"), format!("RL.PEEK {name} 9 1d 2 1mo")] {
            assert_eq!(hosts.error(&refused), errors::MONTHS, "{refused}");
        }
        let row = format!("RL.ALL new FIXED 2 1mo 1 {name} {} 2 1mo 1", &name[3..]);
        assert_eq!(hosts.error(&row), errors::MONTHS);
        assert_eq!(hosts.integer("EXISTS new"), 0);
    }
    assert_eq!(hosts.figures("RL.PEEK missing 2 1mo 3 1w 4 7d"), [0, 2, 2, -1, 0]);
    assert_eq!(hosts.error("RL.FIXED k 2 121mo"), errors::WINDOW);
    assert_eq!(hosts.error("RL.BUCKET k 2 1s WITHIN 1mo"), errors::WITHIN);
    assert_eq!(hosts.seven("RL.BUCKET k 2 1s WITHIN 1w")[0], 0);
}

#[test]
fn rows_of_rl_all_name_them_beside_rows_of_other_algorithms() {
    let hosts = Hosts::with_clock_at(LEAP_NOON);
    let rows = "plan FIXED 5 1mo 2 user LOG 3 1h 2 plan FIXED 4 1d 2";
    assert_eq!(all(&hosts, &format!("RL.ALL {rows}")).limited, 0);
    let again = all(&hosts, &format!("RL.ALL {rows}"));
    assert_eq!((again.limited, again.retry_after), (1, 3_600_000));
    assert_eq!(used(&hosts.value("RL.INFO plan")), [2, 2]);
    let forced = all(&hosts, &format!("RL.ALL {rows} FORCE"));
    assert_eq!(forced.rows[0], [0, 5, 1, -1, MARCH - LEAP_NOON]);
    hosts.step_clock(3_600_000);
    let refused = all(&hosts, &format!("RL.ALL {rows}"));
    assert_eq!((refused.limited, refused.retry_after), (1, MARCH - hosts.clock_ms()));
    hosts.set_clock(MARCH);
    assert_eq!(all(&hosts, &format!("RL.ALL {rows}")).limited, 0);
}

#[test]
fn units_go_back_as_of_a_time_to_the_month_that_they_were_counted_in() {
    let hosts = Hosts::with_clock_at(LEAP_NOON);
    hosts.value("RL.FIXED k 9 1d 9 1mo COST 4");
    hosts.step_clock(DAY);
    hosts.value("RL.FIXED k 9 1d 9 1mo COST 3");
    // The day has passed, the month has not.
    assert_eq!(hosts.seven(&format!("RL.FIXED k 9 1d 9 1mo COST -4 PARTIAL AT {LEAP_NOON}"))[5], -4);
    assert_eq!(used(&hosts.value("RL.INFO k")), [3, 3]);
    hosts.set_clock(MARCH);
    hosts.value("RL.FIXED k 9 1mo");
    assert_eq!(hosts.seven(&format!("RL.FIXED k 9 1mo COST -3 PARTIAL AT {}", MARCH - 1))[5], 0);
    assert_eq!(used(&hosts.value("RL.INFO k")), [1]);
    hosts.value("RL.FIXED k 9 1mo COST -1");
    assert_eq!(hosts.integer("EXISTS k"), 0, "nothing is left");
}

#[test]
fn a_clock_that_steps_back_over_an_edge_frees_nothing_and_one_too_far_ahead_is_moved_back() {
    let hosts = Hosts::with_clock_at(MARCH + 1);
    hosts.value("RL.FIXED k 2 1mo COST 2");
    hosts.set_clock(MARCH - 1);
    let april = MARCH + 31 * DAY;
    let wait = april - (MARCH - 1);
    assert_eq!(hosts.figures("RL.FIXED k 2 1mo"), [1, 2, 0, wait, wait]);
    // A month's length further back it stays. Beyond that it becomes the month after the present one.
    hosts.set_clock(MARCH - 31 * DAY);
    let wait = april - hosts.clock_ms();
    assert_eq!(hosts.figures("RL.FIXED k 2 1mo"), [1, 2, 0, wait, wait]);
    hosts.step_clock(-1);
    // It is January, the 30th.
    let wait = MARCH - hosts.clock_ms();
    assert_eq!(hosts.figures("RL.PEEK k 2 1mo"), [1, 2, 0, wait, wait], "it looks as if it were moved");
    assert_eq!(hosts.integer("PEXPIRETIME k"), april);
    assert_eq!(hosts.figures("RL.FIXED k 2 1mo"), [1, 2, 0, wait, wait]);
    assert_eq!(hosts.integer("PEXPIRETIME k"), MARCH);
}

#[test]
fn copies_are_told_the_windows_and_hold_the_same_after_every_way_of_storing() {
    let mut server = Server::with_clock_at(LEAP_NOON, &APPEND_ONLY);
    let replica = Server::replica_of(&server, &[]);
    let mut stream = ReplicationStream::of(&server);
    for (request, sent) in [
        ("RL.FIXED k 9 1d 9 2w 9 1mo AT 1709121600000", "RL.APPLY k F:1709121600000/1d/2w/1mo"),
        ("RL.FIXED k 9 12mo COST 3 AT 1709121600001", "RL.APPLY k F3:1709121600001/12mo"),
        ("RL.FIXED k 9 12mo COST -1 AT 1709121600001", "RL.APPLY k F-1:1709121600001/12mo"),
    ] {
        server.value(request);
        assert_eq!(without_expiry(&stream.commands(&server)), [sent], "{request}");
    }
    drop(stream);
    server.value("RL.ALL a FIXED 9 1mo 2 b FIXED 9 1w 1 c LOG 9 1w 1");
    replica.wait_to_catch_up(&server);
    let (digest, expiry) = (server.digest(), server.integer("PEXPIRETIME k"));
    let same = |server: &Server, how: &str| {
        assert_eq!((server.digest(), server.integer("PEXPIRETIME k")), (digest.clone(), expiry), "{how}");
        assert_eq!(used(&server.value("RL.INFO k")), [1, 1, 1, 2], "{how}");
    };
    same(&replica, "a replica");
    server.crash_and_restart();
    same(&server, "the append-only file");
    server.value("BGREWRITEAOF");
    server.wait_for_rewrite();
    server.crash_and_restart();
    same(&server, "a rewritten file");
    server.value("DEBUG RELOAD");
    same(&server, "a snapshot");
    server.value("COPY k copied");
    let both = [server.value("DEBUG DIGEST-VALUE k copied")]
        .map(|digests| redis::from_redis_value::<Vec<String>>(digests).expect("two"));
    assert_eq!(both[0][0], both[0][1], "COPY");
    let memory = |line: &str| {
        server.value("DEL m");
        server.value(&format!("RL.FIXED m {line}"));
        server.integer("MEMORY USAGE m")
    };
    assert!(memory("9 1mo") <= memory("9 1d 9 30d"), "no more bytes than several windows take");
}
