//! Arguments: a valid request parses the same in every form, and nothing else does any harm.

use proptest::collection::vec;
use proptest::prelude::*;
use redis_rl::limiter::Mode;
use redis_rl::limiter::{Algorithm, MAX_SAFE_INTEGER, MAX_TIERS, Quota, UnixMs, WindowMs};
use redis_rl::request::{Options, Request};

use crate::calls::quota;
use crate::cases;
use crate::fuzzed::rows;

fn parse(args: &[Vec<u8>], options: Options) -> Option<Request> {
    Request::parse(args, options).ok()
}

/// A request before it is written as arguments.
#[derive(Clone, Debug)]
struct Meant {
    quotas: Vec<Quota>,
    cost: Option<i64>,
    mode: Mode,
    at: Option<u64>,
}

impl Meant {
    fn is_meant_by(&self, request: &Request) -> bool {
        request.quotas[..] == self.quotas
            && request.cost.get() == self.cost.unwrap_or(1)
            && request.mode == self.mode
            && request.at == self.at.map(UnixMs::saturating)
    }

    /// Writes the arguments; `style` chooses the windows' units, the order of the options and the case of letters.
    fn written(&self, style: &Style) -> Vec<Vec<u8>> {
        let mut args = Vec::new();
        for (quota, unit) in self.quotas.iter().zip(style.units) {
            args.push(quota.limit().to_string());
            args.push(window(quota.window().get(), unit));
        }
        for option in style.options {
            match option {
                "COST" => args.extend(self.cost.iter().flat_map(|cost| ["COST".into(), cost.to_string()])),
                "AT" => args.extend(self.at.iter().flat_map(|at| ["AT".into(), at.to_string()])),
                _ => match self.mode {
                    Mode::AllOrNothing => {}
                    Mode::Force => args.push("FORCE".into()),
                    Mode::Partial => args.push("PARTIAL".into()),
                },
            }
        }
        let mut lower = style.lower_case.iter().cycle();
        let mut restyled =
            |byte: u8| if lower.next() == Some(&true) { byte.to_ascii_lowercase() } else { byte };
        args.into_iter().map(|arg| arg.bytes().map(&mut restyled).collect()).collect()
    }
}

/// A window in `unit`, or in milliseconds if it is not a multiple of that unit.
fn window(ms: u64, (unit, unit_ms): (&str, u64)) -> String {
    if ms.is_multiple_of(unit_ms) { format!("{}{unit}", ms / unit_ms) } else { format!("{ms}MS") }
}

#[derive(Clone, Debug)]
struct Style {
    units: [(&'static str, u64); MAX_TIERS],
    options: [&'static str; 3],
    lower_case: Vec<bool>,
}

fn meant() -> impl Strategy<Value = Meant> {
    let unit_ms = prop::sample::select(vec![1, 1_000, 60_000, 3_600_000, 86_400_000]);
    let window = (1..=3650u64, unit_ms).prop_map(|(number, unit_ms)| number * unit_ms);
    let windows = vec(prop_oneof![window, 1..=WindowMs::MAX.get()], 1..=MAX_TIERS);
    let limit = prop_oneof![0..100u64, 0..=MAX_SAFE_INTEGER, Just(MAX_SAFE_INTEGER)];
    const MAX: i64 = MAX_SAFE_INTEGER as i64;
    let cost = prop::option::of(prop_oneof![-9..9i64, -MAX..=MAX, Just(MAX), Just(-MAX)]);
    let at = prop::option::of(prop_oneof![0..9u64, 0..=MAX_SAFE_INTEGER, Just(MAX_SAFE_INTEGER)]);
    let mode = prop::sample::select(vec![Mode::AllOrNothing, Mode::Force, Mode::Partial]);
    (windows, vec(limit, MAX_TIERS), cost, mode, at).prop_map(|(windows, limits, cost, mode, at)| {
        let mut quotas: Vec<Quota> = Vec::new();
        for (window, limit) in windows.into_iter().filter_map(WindowMs::new).zip(limits) {
            if quotas.iter().all(|quota| quota.window() != window) {
                quotas.push(quota(limit, window));
            }
        }
        Meant { quotas, cost, mode, at }
    })
}

fn style() -> impl Strategy<Value = Style> {
    let units = [("MS", 1), ("S", 1_000), ("", 1_000), ("M", 60_000), ("H", 3_600_000), ("D", 86_400_000)];
    let unit = prop::sample::select(units.to_vec());
    let options = Just(["COST", "AT", "mode"]).prop_shuffle();
    (prop::array::uniform8(unit), options, vec(any::<bool>(), 1..20))
        .prop_map(|(units, options, lower_case)| Style { units, options, lower_case })
}

fn argument() -> impl Strategy<Value = Vec<u8>> {
    let valid = ["0", "1", "5", "10", "60", "1s", "2M", "3h", "1d", "250ms"];
    let options = ["COST", "cost", "AT", "at", "FORCE", "Force", "PARTIAL", "partial"];
    let edges = [
        "9007199254740991",
        "9007199254740992",
        "-9007199254740991",
        "-9007199254740992",
        "3650d",
        "3651d",
        "315360000001ms",
    ];
    let nearly = [
        "",
        "-1",
        "+1",
        "-0",
        "00",
        "01",
        "0s",
        "1.5",
        "1e3",
        ".",
        "-",
        "s",
        "ms",
        "1w",
        "1sm",
        "FORC",
        "PARTIA",
        "COSTS",
        "A",
        "18446744073709551616",
        "9007199254740991d",
        "1\0",
        "١",
    ];
    let words = |words: &[&str]| {
        prop::sample::select(words.iter().map(|word| word.as_bytes().to_vec()).collect::<Vec<_>>())
    };
    prop_oneof![
        16 => words(&valid),
        8 => words(&options),
        3 => words(&edges),
        2 => words(&nearly),
        1 => vec(any::<u8>(), 0..24),
    ]
}

proptest! {
    #![proptest_config(cases(1000))]

    #[test]
    fn a_valid_request_reads_the_same_in_any_unit_order_and_case(meant in meant(), style in style()) {
        let args = meant.written(&style);
        let request = parse(&args, Options::CostAndMode).expect("a valid request");
        prop_assert!(meant.is_meant_by(&request), "{:?}", request);
        prop_assert_eq!(parse(&args, Options::Cost), (meant.mode == Mode::AllOrNothing).then_some(request));
    }
}

proptest! {
    #![proptest_config(cases(8000))]

    #[test]
    fn every_accepted_request_is_within_bounds_and_round_trips(
        args in vec(argument(), 0..12),
        options in prop::sample::select(vec![Options::CostAndMode, Options::Cost]),
        style in style(),
    ) {
        let Some(request) = parse(&args, options) else { return Ok(()) };
        let quotas = &request.quotas;
        prop_assert!((1..=MAX_TIERS).contains(&quotas.len()));
        for (i, quota) in quotas.iter().enumerate() {
            prop_assert!(quota.limit() <= MAX_SAFE_INTEGER);
            prop_assert!(quotas[..i].iter().all(|other| other.window() != quota.window()));
        }
        prop_assert!(request.cost.get().unsigned_abs() <= MAX_SAFE_INTEGER);
        prop_assert!(request.at.is_none_or(|at| at <= UnixMs::MAX));
        prop_assert!(options == Options::CostAndMode || request.mode == Mode::AllOrNothing);

        // Every field, so that a new one is asked for here.
        let Request { quotas, cost, mode, at } = request.clone();
        let meant = Meant {
            quotas: quotas.to_vec(),
            cost: Some(cost.get()),
            mode,
            at: at.map(|at| at.get()),
        };
        prop_assert_eq!(parse(&meant.written(&style), options), Some(request));
    }
}

/// A row of RL.ALL, usually a valid one about one of a few keys.
fn row() -> impl Strategy<Value = Vec<Vec<u8>>> {
    let words = |words: &[&str]| {
        prop::sample::select(words.iter().map(|word| word.as_bytes().to_vec()).collect::<Vec<_>>())
    };
    let algorithms = [&["FIXED", "FIXED", "FIXED", "lOg"], &Algorithm::ALL.map(Algorithm::name)[..]].concat();
    let windows = ["1s", "1000MS", "2M", "3h", "1d", "250ms", "7", "8", "9", "10", "11", "12", "13"];
    let row = (
        words(&["a", "a", "a", "b", "FIXED", ""]),
        words(&algorithms),
        words(&["0", "1", "60", "9007199254740991"]),
        words(&windows),
        words(&["1", "1", "1", "1", "0", "-1"]),
    );
    let row = row.prop_map(|(key, algorithm, limit, window, cost)| vec![key, algorithm, limit, window, cost]);
    let spoilt = (row.clone(), 0..5usize, argument()).prop_map(|(mut row, place, word)| {
        row[place] = word;
        row
    });
    prop_oneof![12 => row, 1 => spoilt]
}

proptest! {
    #![proptest_config(cases(8000))]

    #[test]
    fn rows_are_parsed_as_documented_or_refused(
        rows in vec(row(), 0..12),
        options in vec(argument(), 0..5),
        more in 0..60usize,
    ) {
        let mut words: Vec<&[u8]> = rows.iter().flatten().map(Vec::as_slice).collect();
        // Sometimes many keys.
        let names: Vec<String> = (0..if more > 50 { more } else { 0 }).map(|key| key.to_string()).collect();
        words.extend(names.iter().flat_map(|name| [name.as_bytes(), b"LOG", b"5", b"1s", b"2"]));
        words.extend(options.iter().map(Vec::as_slice));
        rows::check(&words);
    }
}
