//! Which argument is refused, and what is read from the others.

use redis_rl_core::limiter::several::Parts;
use redis_rl_core::limiter::{Algorithm, Calendar, Cost, Mode, UnixMs, WindowMs};
use redis_rl_core::request::{Arguments, Refusal, Verb, parse_rows};

#[path = "../server/helpers/errors.rs"]
#[allow(dead_code, reason = "some are only of servers")]
mod errors;

const TAKE: Verb = Verb::Take(Algorithm::Log);

/// Stands for the server's own text.
const ARITY: &str = "wrong number of arguments";

fn text(refusal: Refusal) -> &'static str {
    match refusal {
        Refusal::Arity => ARITY,
        Refusal::Text(text) => text.to_str().expect("ASCII"),
    }
}

fn parse_words(words: &[&str], verb: Verb) -> Result<Arguments, &'static str> {
    Arguments::parse(words, verb).map_err(text)
}

fn parse(line: &str) -> Result<Arguments, &'static str> {
    parse_with(line, TAKE)
}

fn parse_with(line: &str, verb: Verb) -> Result<Arguments, &'static str> {
    let words: Vec<&str> = line.split(' ').filter(|word| !word.is_empty()).collect();
    parse_words(&words, verb)
}

fn window_ms(window: &str) -> Result<u64, &'static str> {
    parse(&format!("1 {window}")).map(|request| request.quotas[0].window().get())
}

#[test]
fn windows_have_a_unit_in_either_case_or_are_seconds() {
    for (windows, ms) in [
        ("1ms 1mS", 1),
        ("10 10s 10S 10000Ms", 10_000),
        ("2m 2M", 120_000),
        ("1h 1H", 3_600_000),
        ("1w 1W 7d", 604_800_000),
        ("3650d 3650D 315360000000ms 315360000", 315_360_000_000),
    ] {
        windows.split(' ').for_each(|window| assert_eq!(window_ms(window), Ok(ms), "{window}"));
    }
}

#[test]
fn other_windows_are_refused() {
    let signs = "0 0s 0ms -1 -1s +1 1.5s s ms inf d 1s\x00 \x001s १s 1µs";
    let numbers = "01 1e3 0x10 3651d 315360001 315360000001ms 99999999999999999999 9007199254740991d";
    for window in [signs, numbers, "522w 1y 1mm 1sm 1dd 1wo"].into_iter().flat_map(|line| line.split(' ')) {
        assert_eq!(window_ms(window), Err(errors::WINDOW), "{window:?}");
    }
    assert_eq!(window_ms("1 s"), Err(errors::SYNTAX));
    assert_eq!(parse_words(&["1", ""], TAKE), Err(errors::WINDOW));
}

#[test]
fn rl_fixed_has_weeks_and_months_of_the_calendar() {
    let window =
        |word: &str, verb| parse_with(&format!("1 {word}"), verb).map(|parsed| parsed.quotas[0].window());
    for verb in [Verb::Take(Algorithm::Fixed), Verb::Peek] {
        for (words, calendar) in [
            ("1w 1W", Calendar::Weeks(1)),
            ("521w", Calendar::Weeks(521)),
            ("1mo 1MO 1mO", Calendar::Months(1)),
            ("120mo", Calendar::Months(120)),
        ] {
            for word in words.split(' ') {
                assert_eq!(window(word, verb).map(WindowMs::calendar), Ok(Some(calendar)), "{word}");
            }
        }
        for word in "0w 522w 0mo 121mo 1m0 1mos 9007199254740991w 9007199254740991mo".split(' ') {
            assert_eq!(window(word, verb), Err(errors::WINDOW), "{word}");
        }
        assert!(parse_with("1 1w 2 7d 3 1mo 4 30d", verb).is_ok(), "they are different windows");
        assert_eq!(parse_with("1 1w 2 1W", verb), Err(errors::SAME_WINDOW));
    }
    for algorithm in [Algorithm::Sliding, Algorithm::Log, Algorithm::Bucket] {
        let verb = Verb::Take(algorithm);
        assert_eq!(window("1mo", verb), Err(errors::MONTHS));
        assert_eq!(window("121mo", verb), Err(errors::WINDOW));
        assert_eq!(parse_with("1 1w 2 7d", verb), Err(errors::SAME_WINDOW));
        let row = ["k", algorithm.name(), "1", "1mo", "1"];
        assert_eq!(parse_rows(&row, &mut Parts::<_, (), _>::default()).map_err(text), Err(errors::MONTHS));
    }
    assert_eq!(
        parse_with("1 1s WITHIN 2w", Verb::Take(Algorithm::Bucket)).map(|parsed| parsed.mode),
        Ok(Mode::Within(WindowMs::new(14 * 86_400_000).unwrap()))
    );
    assert_eq!(parse_with("1 1s WITHIN 1mo", Verb::Take(Algorithm::Bucket)), Err(errors::WITHIN));
}

#[test]
fn limits_go_from_0_to_the_largest_safe_integer() {
    for limit in ["0", "1", "9007199254740991"] {
        assert_eq!(parse(&format!("{limit} 1s")).unwrap().quotas[0].limit(), limit.parse::<u64>().unwrap());
    }
    for limit in "-1 9007199254740992 1.0 1e3 abc 0x1 +1 01 99999999999999999999999 -0".split(' ') {
        assert_eq!(parse(&format!("{limit} 1s")), Err(errors::LIMIT), "{limit}");
    }
    assert_eq!(parse_words(&["", "1s"], TAKE), Err(errors::LIMIT));
}

#[test]
fn up_to_8_pairs_keep_their_order() {
    let request = parse("8 1s 7 2s 6 3s 5 4s 4 5s 3 6s 2 7s 1 8s cost 2").unwrap();
    let limits: Vec<u64> = request.quotas.iter().map(|quota| quota.limit()).collect();
    assert_eq!(limits, [8, 7, 6, 5, 4, 3, 2, 1]);
    assert_eq!(parse("8 1s 7 2s 6 3s 5 4s 4 5s 3 6s 2 7s 1 8s 0 9s"), Err(errors::PAIRS));
}

#[test]
fn equal_windows_are_refused_however_they_are_written() {
    assert_eq!(parse("1 60s 2 1m"), Err(errors::SAME_WINDOW));
    assert_eq!(parse("1 1 2 1000ms"), Err(errors::SAME_WINDOW));
}

#[test]
fn options_come_in_any_order_and_either_case_each_once() {
    let all = parse("1 1s COST -5 FORCE AT 9007199254740991").unwrap();
    assert_eq!((all.cost, all.mode, all.at), (Cost::new(-5).unwrap(), Mode::Force, Some(UnixMs::MAX)));
    assert_eq!(parse("1 1s at 9007199254740991 force cost -5"), Ok(all.clone()));
    assert_eq!(parse("1 1s fOrCe At 9007199254740991 cOsT -5"), Ok(all));
    let none = parse("1 1s").unwrap();
    assert_eq!((none.cost, none.mode, none.at), (Cost::ONE, Mode::AllOrNothing, None));
    let lines = "COST 1 COST 1,FORCE FORCE,AT 1 AT 1,COST,AT,FORCE COST,bogus,FORCE 1 2s,COST 1 2 3s";
    for line in lines.split(',') {
        assert_eq!(parse(&format!("1 1s {line}")), Err(errors::SYNTAX), "{line}");
    }
}

#[test]
fn a_peek_takes_no_force() {
    assert_eq!(parse_with("1 1s FORCE", Verb::Peek), Err(errors::SYNTAX));
    assert!(parse_with("1 1s COST 2 AT 3", Verb::Peek).is_ok());
}

#[test]
fn partial_stands_alone_and_only_where_a_part_can_be_taken() {
    assert_eq!(parse("1 1s COST 5 partial AT 3").unwrap().mode, Mode::Partial);
    assert_eq!(parse("1 1s PARTIAL PARTIAL"), Err(errors::SYNTAX));
    for both in ["1 1s PARTIAL FORCE", "1 1s FORCE COST 2 PARTIAL"] {
        assert_eq!(parse(both), Err(errors::FORCE_AND_PARTIAL), "{both}");
    }
    assert_eq!(parse_with("1 1s PARTIAL", Verb::Peek), Err(errors::PARTIAL));
    let row = ["k", "LOG", "1", "1s", "1", "PARTIAL"];
    assert_eq!(parse_rows(&row, &mut Parts::<_, (), _>::default()).map_err(text), Err(errors::PARTIAL));
}

#[test]
fn cost_and_at_are_safe_integers() {
    for (cost, value) in
        [("0", 0), ("-1", -1), ("9007199254740991", (1 << 53) - 1), ("-9007199254740991", 1 - (1 << 53))]
    {
        assert_eq!(parse(&format!("1 1s COST {cost}")).unwrap().cost.get(), value);
    }
    for cost in ["9007199254740992", "-9007199254740992", "", "-", "--1", "-0", "1.5", "x", "+1"] {
        assert_eq!(parse_words(&["1", "1s", "COST", cost], TAKE), Err(errors::COST), "{cost}");
    }
    for at in ["-1", "9007199254740992", "now", "1.5"] {
        assert_eq!(parse(&format!("1 1s AT {at}")), Err(errors::AT), "{at}");
    }
}

#[test]
fn a_limit_without_a_window_is_a_wrong_number_of_arguments() {
    assert_eq!(parse("1"), Err(ARITY));
    assert_eq!(parse("1 1s 2"), Err(ARITY));
    assert_eq!(parse(""), Err(ARITY));
}
