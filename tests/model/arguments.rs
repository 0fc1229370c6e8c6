//! Arguments: nearly valid ones are parsed as documented, or refused.

use proptest::collection::vec;
use proptest::prelude::*;
use redis_rl_core::limiter::{Algorithm, MAX_TIERS, WindowMs};

use crate::cases;
use crate::fuzzed::parser::{MOST, OPTIONS, UNITS, Value, check_request, check_rows};

type Words = Vec<Vec<u8>>;

fn one_of(words: &[&str]) -> impl Strategy<Value = Vec<u8>> + use<> {
    prop::sample::select(words.iter().map(|word| word.as_bytes().to_vec()).collect::<Vec<_>>())
}

/// A number from `least` to the largest, or just beyond.
fn number(least: i128) -> impl Strategy<Value = Vec<u8>> {
    let number =
        prop_oneof![8 => 0..100i128, 4 => least..=MOST, 1 => MOST - 1..=MOST + 1, 1 => least - 1..=least];
    number.prop_map(|number| number.to_string().into())
}

/// A window in any unit, rarely too long.
fn window() -> impl Strategy<Value = Vec<u8>> {
    let number = prop_oneof![6 => 1..=12u64, 3 => 1..=3_650u64, 1 => 1..=WindowMs::MAX.get()];
    let units: Vec<&str> = UNITS.iter().map(|(unit, _)| *unit).chain(["MO"]).collect();
    (number, prop::sample::select(units)).prop_map(|(number, unit)| format!("{number}{unit}").into())
}

/// Up to all options in any order.
fn options() -> impl Strategy<Value = Words> {
    let option = OPTIONS.map(|(name, value)| match value {
        Value::None => Just(vec![name.into()]).boxed(),
        Value::From(least) => number(least).prop_map(move |number| vec![name.into(), number]).boxed(),
        Value::Window => window().prop_map(move |window| vec![name.into(), window]).boxed(),
    });
    (option, Just((0..OPTIONS.len()).collect::<Vec<_>>()).prop_shuffle(), 0..=OPTIONS.len())
        .prop_map(|(options, order, count)| order[..count].iter().flat_map(|i| options[*i].clone()).collect())
}

/// A word that is valid elsewhere, almost valid, or not at all.
fn nonsense() -> impl Strategy<Value = Vec<u8>> {
    let nearly = "|-1|+1|-0|00|01|0s|1.5|1e3|.|-|s|ms|1w|522w|1mo|121mo|1sm|FORC|PARTIA|COSTS|A|3651d|315360000001ms|1\0|١";
    let beyond =
        "9007199254740991d|-9007199254740992|18446744073709551616|340282366920938463463374607431768211456";
    let elsewhere = "0|1|5|60|1s|2M|COST|AT|FORCE|PARTIAL|WITHIN|LOG";
    let words = |line: &str| one_of(&line.split('|').collect::<Vec<_>>());
    prop_oneof![8 => words(elsewhere), 2 => words(nearly), 1 => words(beyond), 1 => vec(any::<u8>(), 0..24)]
}

/// The same words in any case; of some, one word becomes another, or goes.
fn spoilt(words: impl Strategy<Value = Words>) -> impl Strategy<Value = Words> {
    let spoil = prop::option::weighted(0.3, (any::<prop::sample::Index>(), nonsense(), any::<bool>()));
    (words, spoil, vec(any::<bool>(), 1..20)).prop_map(|(mut words, spoil, lower_case)| {
        let mut lower = lower_case.into_iter().cycle();
        let letters = words.iter_mut().flatten().filter(|_| lower.next() == Some(true));
        letters.for_each(|letter| letter.make_ascii_lowercase());
        if let Some((at, word, removes)) = spoil {
            let at = at.index(words.len() + 1);
            let end = words.len().min(at + 1);
            words.splice(at..end, if removes { vec![] } else { vec![word] });
        }
        words
    })
}

fn request() -> impl Strategy<Value = Words> {
    let pairs =
        prop_oneof![3 => vec((number(0), window()), 1), 1 => vec((number(0), window()), 1..=MAX_TIERS + 1)];
    (pairs, options()).prop_map(|(pairs, options)| {
        pairs.into_iter().flat_map(|(limit, window)| [limit, window]).chain(options).collect()
    })
}

/// Rows of a few keys, or of many.
fn rows() -> impl Strategy<Value = Words> {
    let algorithms = [&["FIXED"; 9], &Algorithm::ALL.map(Algorithm::name)[..]].concat();
    let row = (
        one_of(&["a", "a", "a", "b", ""]),
        one_of(&algorithms),
        number(0),
        window(),
        one_of(&["1", "1", "1", "1", "0", "-1"]),
    );
    let few = vec(row, 0..12).prop_map(|rows| {
        rows.into_iter()
            .flat_map(|(key, algorithm, limit, window, cost)| [key, algorithm, limit, window, cost])
            .collect()
    });
    let many = (60..68).prop_map(|keys| {
        (0..keys).flat_map(|key| [&format!("{key}"), "LOG", "5", "1s", "2"].map(Into::into)).collect()
    });
    (prop_oneof![9 => few, 1 => many], options())
        .prop_map(|(rows, options): (Words, Words)| [rows, options].concat())
}

fn refs(words: &Words) -> Vec<&[u8]> {
    words.iter().map(Vec::as_slice).collect()
}

proptest! {
    #![proptest_config(cases(8000))]

    #[test]
    fn arguments_are_parsed_as_documented_or_refused(words in spoilt(request())) {
        check_request(&refs(&words));
    }

    #[test]
    fn rows_are_parsed_as_documented_or_refused(words in spoilt(rows())) {
        check_rows(&refs(&words));
    }
}
