//! Any words are parsed as rows of RL.ALL as documented, or refused.

use redis_rl::limiter::several::{self, MAX_ROWS, Part, Parts};
use redis_rl::limiter::{Algorithm, MAX_TIERS, Quota};
use redis_rl::request::{AllOptions, parse_rows};

use super::words::{MOST, can_be_shown, integer, window_of};

/// Checks the parser of rows against [`Meant`].
pub fn check(words: &[&[u8]]) {
    let mut rows = Parts::<_, (), _>::default();
    match (parse_rows(words, &mut rows), Meant::by(words)) {
        (Ok(options), Some(meant)) => assert!(meant.is(&rows, options), "{meant:?} is parsed otherwise"),
        (Err(refusal), None) => assert!(can_be_shown(refusal), "{refusal:?}"),
        (options, meant) => panic!("{meant:?} is parsed as {options:?}"),
    }
}

/// The documented meaning of words, by a parser of its own.
#[derive(Debug, Default)]
struct Meant<'a> {
    rows: Vec<Row<'a>>,
    force: bool,
    at: Option<i128>,
}

#[derive(Debug)]
struct Row<'a> {
    key: &'a [u8],
    algorithm: Algorithm,
    quota: Quota,
    cost: i128,
}

impl<'a> Meant<'a> {
    /// `None` if they are not valid.
    fn by(words: &[&'a [u8]]) -> Option<Meant<'a>> {
        let mut meant = Meant::default();
        let rows = words.chunks_exact(5);
        let options = rows.remainder();
        if options.len() == 4 {
            return None;
        }
        for row in rows {
            let row = Row::by(row)?;
            let its: Vec<&Row> = meant.rows.iter().filter(|other| other.key == row.key).collect();
            let agrees = |other: &&Row| {
                other.algorithm == row.algorithm
                    && other.cost == row.cost
                    && other.quota.window() != row.quota.window()
            };
            if its.len() == MAX_TIERS || !its.iter().all(agrees) {
                return None;
            }
            meant.rows.push(row);
        }
        if !(1..=MAX_ROWS).contains(&meant.rows.len()) {
            return None;
        }
        let mut options = options.iter().map(|option| text(option));
        while let Some(option) = options.next() {
            match option?.as_str() {
                "FORCE" if !meant.force => meant.force = true,
                "AT" if meant.at.is_none() => {
                    let at = integer(&options.next()??)?;
                    meant.at = Some(at).filter(|at| (0..=MOST).contains(at));
                    meant.at?;
                }
                _ => return None,
            }
        }
        Some(meant)
    }

    fn is(&self, rows: &[Part<&[u8], (), several::Row>], options: AllOptions) -> bool {
        // Every field, so that a new one is asked for here.
        let AllOptions { force, at } = options;
        let is_meant = |(index, meant): (usize, &Row)| {
            let row = &rows[index];
            let first = self.rows.iter().position(|other| other.key == meant.key);
            let tiers = self.rows.iter().filter(|other| other.key == meant.key).count();
            (row.name, Some(row.first())) == (meant.key, first)
                && (row.first() < index || row.what.tiers == tiers)
                && row.what.algorithm == meant.algorithm
                && row.what.quota == meant.quota
                && i128::from(row.what.cost.get()) == meant.cost
        };
        rows.len() == self.rows.len()
            && self.rows.iter().enumerate().all(is_meant)
            && force == self.force
            && at.map(|at| i128::from(at.get())) == self.at
    }
}

impl<'a> Row<'a> {
    fn by(row: &[&'a [u8]]) -> Option<Row<'a>> {
        let [key, algorithm, limit, window, cost] = row else { return None };
        let name = text(algorithm)?.to_ascii_lowercase();
        let algorithm = Algorithm::ALL.into_iter().find(|algorithm| algorithm.name() == name)?;
        let limit = integer(&text(limit)?).filter(|limit| (0..=MOST).contains(limit))?;
        let cost = integer(&text(cost)?).filter(|cost| (-MOST..=MOST).contains(cost))?;
        let quota = Quota::new(limit as u64, window_of(&text(window)?)?)?;
        Some(Row { key, algorithm, quota, cost })
    }
}

/// In upper case.
fn text(word: &[u8]) -> Option<String> {
    String::from_utf8(word.to_vec()).ok().map(|text| text.to_ascii_uppercase())
}
