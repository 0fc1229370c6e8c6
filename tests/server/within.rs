//! WITHIN: units of a bucket are taken ahead, in the order of the calls, and the reply says how long to wait for them.

use crate::helpers::hosts::{Host, Hosts};
use harness::{ReplicationStream, Server};

const NOW: i64 = 1_900_000_000_000;

#[test]
fn who_waits_is_served_in_the_order_of_the_calls_and_nobody_overtakes() {
    let server = Hosts::with_clock_at(NOW);
    let call = "RL.BUCKET partner 1 100ms WITHIN 1s";
    assert_eq!(server.seven(call), [0, 1, 0, -1, 100, 1, NOW], "nothing to wait for");
    for turn in 1..=10 {
        let wait = 100 * turn;
        assert_eq!(server.seven(call), [0, 1, 0, wait, wait + 100, 1, NOW + wait], "turn {turn}");
    }
    // One more is not there within a second: the wait is exact.
    assert_eq!(server.seven(call), [1, 1, 0, 100, 1_100, 0, NOW]);
    server.step_clock(99);
    assert_eq!(server.seven(call)[..4], [1, 1, 0, 1]);
    // Requests without WITHIN are refused until all who wait have had their turn.
    assert_eq!(server.figures("RL.BUCKET partner 1 100ms"), [1, 1, 0, 1_001, 1_001]);
    server.step_clock(1);
    assert_eq!(server.seven(call), [0, 1, 0, 1_000, 1_100, 1, NOW + 1_100]);
    server.step_clock(1_100);
    assert_eq!(server.figures("RL.BUCKET partner 1 100ms"), [0, 1, 0, -1, 100]);
}

#[test]
fn of_several_tiers_all_must_have_the_units_within_the_time() {
    let server = Hosts::with_clock_at(NOW);
    let tiers = "RL.BUCKET k 2 1s 3 1m";
    assert_eq!(server.figures(&format!("{tiers} COST 2"))[0], 0);
    // The minute has one unit left and refills one each 20 s; the second refills one each 500 ms.
    assert_eq!(server.seven(&format!("{tiers} WITHIN 1s"))[..4], [0, 2, 0, 500]);
    assert_eq!(server.seven(&format!("{tiers} WITHIN 19999ms"))[..4], [1, 3, 0, 1]);
    let reply = server.seven(&format!("{tiers} WITHIN 20s"));
    assert_eq!([reply[0], reply[3], reply[5], reply[6]], [0, 20_000, 1, NOW + 20_000]);
    // No wait helps.
    assert_eq!(server.seven(&format!("{tiers} COST 3 WITHIN 3650d"))[..4], [1, 2, 0, -1]);
}

#[test]
fn who_cancels_gets_back_what_nobody_stands_behind() {
    let server = Hosts::with_clock_at(NOW);
    let take = |cost: i64| server.seven(&format!("RL.BUCKET k 10 10s COST {cost} WITHIN 1m"));
    let back = |cost: i64, at: i64| server.value(&format!("RL.BUCKET k 10 10s COST -{cost} AT {at}"));
    let reset = || server.figures("RL.PEEK k 10 10s")[4];
    take(10);
    let [first, second, third] = [4, 6, 2].map(|cost| take(cost)[6]);
    assert_eq!([first, second, third], [NOW + 4_000, NOW + 10_000, NOW + 12_000]);
    // The last one to wait gets all back: the next has its turn.
    back(2, third);
    assert_eq!(reset(), 20_000);
    assert_eq!(take(1)[3], 11_000);
    back(1, NOW + 11_000);
    // Behind the first stand 6 units, more than its own.
    back(4, first);
    assert_eq!(reset(), 20_000);
    // Without AT it is the newest who gives back.
    assert_eq!(server.seven("RL.BUCKET k 10 10s COST -6 WITHIN 1s"), [0, 10, 0, -1, 14_000, -6, NOW]);
    // The first one's units are the newest now.
    back(4, first);
    assert_eq!(reset(), 10_000);
}

/// The drawing in DESIGN.md.
#[test]
fn the_turn_of_the_last_goes_to_who_asks_next_and_that_of_another_is_lost() {
    let server = Hosts::with_clock_at(NOW);
    let ask = || server.seven("RL.BUCKET partner 1 100ms WITHIN 5s")[3];
    let back = |at: i64| server.seven(&format!("RL.BUCKET partner 1 100ms COST -1 PARTIAL AT {at}"))[5];
    assert_eq!([ask(), ask(), ask()], [-1, 100, 200]);
    server.step_clock(50);
    assert_eq!([back(NOW + 100), back(NOW + 200)], [0, -1]);
    server.step_clock(10);
    assert_eq!(ask(), 140);
    assert_eq!(server.figures("RL.BUCKET partner 1 100ms")[3], 240);

    // Were the six given back while one stands behind, anybody could pass before it.
    let ask = |cost: i64, options: &str| server.value(&format!("RL.BUCKET k 10 100ms COST {cost} {options}"));
    ask(5, "");
    ask(6, "WITHIN 1s");
    ask(1, "WITHIN 1s");
    ask(-6, &format!("AT {}", NOW + 70));
    assert_eq!(server.figures("RL.BUCKET k 10 100ms")[3], 30);
}

#[test]
fn who_waits_for_one_bucket_stands_in_all_that_its_request_names() {
    let server = Hosts::with_clock_at(NOW);
    let back = |at: i64| server.seven(&format!("RL.BUCKET k 10 10s COST -1 PARTIAL AT {at}"))[5];
    let ask = || server.seven("RL.BUCKET k 1 1s 10 10s WITHIN 1m")[3];
    assert_eq!([ask(), ask()], [-1, 1_000]);
    // The longer window had the unit at once.
    assert_eq!([back(NOW), back(NOW + 1)], [0, -1]);
    // Whoever counts last there without a wait ends that.
    server.value("RL.BUCKET k 10 10s");
    assert_eq!(back(NOW), -1);
}

#[test]
fn in_event_time_a_cancelled_turn_ends_no_others() {
    let server = Hosts::with_clock_at(NOW);
    // Long before the clock.
    let then = NOW - 900_000_000;
    let take = || server.seven(&format!("RL.BUCKET k 1 100ms WITHIN 1m AT {then}"))[3];
    assert_eq!([take(), take(), take()], [-1, 100, 200]);
    server.value(&format!("RL.BUCKET k 1 100ms COST -1 AT {}", then + 200));
    assert_eq!(server.integer("EXISTS k"), 1);
    assert_eq!(take(), 200);
}

#[test]
fn after_force_nobody_waits_and_all_that_was_counted_goes_back() {
    let server = Hosts::with_clock_at(NOW);
    server.value("RL.BUCKET k 10 10s COST 10");
    server.value("RL.BUCKET k 10 10s COST 5 FORCE");
    assert_eq!(server.figures("RL.PEEK k 10 10s")[4], 15_000);
    server.value(&format!("RL.BUCKET k 10 10s COST -5 AT {NOW}"));
    assert_eq!(server.figures("RL.PEEK k 10 10s")[4], 10_000);
    // Behind two buckets that are missing FORCE adds nothing.
    assert_eq!(server.seven("RL.BUCKET k 10 10s COST 10 WITHIN 1m")[3], 10_000);
    assert_eq!(server.seven("RL.BUCKET k 10 10s COST 10 WITHIN 1m")[3], 20_000);
    let digest = server.digest();
    server.value("RL.BUCKET k 10 10s COST 3 FORCE");
    assert_eq!(server.digest(), digest);
}

#[test]
fn copies_hold_what_was_taken_ahead_and_who_waits() {
    let mut master = Server::with_clock_at(NOW, &[("appendonly", "yes")]);
    let replica = Server::replica_of(&master, &[]);
    let mut stream = ReplicationStream::of(&master);
    master.value("RL.BUCKET k 10 10s COST 10 WITHIN 1s");
    master.value("RL.BUCKET k 10 10s COST 3 WITHIN 1m");
    master.value("RL.BUCKET k 9 10s COST 3 WITHIN 1ms");
    master.value("RL.BUCKET k 10 10s COST -2 WITHIN 1m");
    let sent = stream.commands(&master);
    let sent: Vec<&str> = sent.iter().map(|line| line.split('>').next().expect("a line")).collect();
    let at = NOW + 3_000;
    assert_eq!(
        sent,
        [
            format!("RL.APPLY k B10:{NOW}/10/10s"),
            format!("RL.APPLY k B3:{NOW}/10/10s/ahead"),
            format!("RL.APPLY k B-2:{at}/10/10s"),
        ]
    );
    // The largest figures: a level of 93 bits.
    let most = 9_007_199_254_740_991_u64;
    master.value(&format!("RL.BUCKET most {most} 1ms COST {most}"));
    for _ in 0..3 {
        master.value(&format!("RL.BUCKET most {most} 1ms COST {most} WITHIN 3650d"));
    }
    master.value("RL.BUCKET most 1 3650d COST 1 WITHIN 3650d");
    master.value("RL.BUCKET most 1 3650d COST 1 WITHIN 3650d");
    replica.wait_to_catch_up(&master);
    let digest = master.digest();
    assert_eq!(replica.digest(), digest);
    let expiry = |server: &Server| ["k", "most"].map(|key| server.integer(&format!("PEXPIRETIME {key}")));
    assert_eq!(expiry(&replica), expiry(&master));
    let before = expiry(&master);
    for rewritten in [false, true] {
        if rewritten {
            master.value("BGREWRITEAOF");
            master.wait_for_rewrite();
        }
        master.kill();
        master.relaunch_at(NOW);
        assert_eq!(master.digest(), digest, "rewritten: {rewritten}");
        assert_eq!(expiry(&master), before, "rewritten: {rewritten}");
    }
    master.value("COPY most other");
    assert_eq!(master.value("RL.INFO other"), master.value("RL.INFO most"));
}

#[test]
fn a_clock_that_steps_back_keeps_nobody_waiting_for_it() {
    let server = Hosts::with_clock_at(NOW);
    server.value("RL.BUCKET k 10 10s COST 10");
    server.step_clock(-5_000);
    // A plain request waits for the clock too; who is told a time is told one that holds.
    assert_eq!(server.figures("RL.BUCKET k 10 10s")[3], 6_000);
    assert_eq!(server.seven("RL.BUCKET k 10 10s WITHIN 1m")[3], 1_000);
    assert_eq!(server.seven("RL.BUCKET k 10 10s WITHIN 1m")[3], 2_000);
    // A peek does not move it first.
    server.step_clock(-5_000);
    assert_eq!(server.figures("RL.PEEK k 10 10s")[3], 8_000);
    assert_eq!(server.seven("RL.BUCKET k 10 10s WITHIN 1m")[3], 3_000);
    let replica = Server::replica_of(&server.server, &[]);
    replica.wait_to_catch_up(&server.server);
    assert_eq!(replica.digest(), server.digest());
}

#[test]
fn what_takes_nothing_waits_for_nothing() {
    let server = Hosts::start();
    server.value("RL.BUCKET k 1 1h");
    assert_eq!(server.seven("RL.BUCKET k 1 1h COST 0 WITHIN 1s")[..4], [0, 1, 0, -1]);
    assert_eq!(server.seven("RL.BUCKET k 0 1h WITHIN 3650d")[..4], [1, 0, 0, -1]);
}
