//! Any arguments after the key, one a line, are parsed as documented or refused, and likewise all of them as rows
//! of RL.ALL.

use redis_rl::limiter::Mode;
use redis_rl::limiter::{MAX_TIERS, Quota};
use redis_rl::request::{Options, Request};

use super::rows;
use super::words::{MOST, can_be_shown, integer, window_of};

/// Checks the parser against [`Meant`], with and without FORCE and PARTIAL as options.
pub fn check(lines: &[u8]) {
    let args: Vec<&[u8]> = lines.split(|byte| *byte == b'\n').collect();
    for options in [Options::CostAndMode, Options::Cost] {
        let read = Request::parse(&args, options);
        let meant = Meant::by(&args)
            .filter(|meant| options == Options::CostAndMode || meant.mode == Mode::AllOrNothing);
        match (read, meant) {
            (Ok(request), Some(meant)) => assert!(meant.is(&request), "{meant:?} is parsed as {request:?}"),
            (Err(refusal), None) => assert!(can_be_shown(refusal), "{refusal:?}"),
            (read, meant) => panic!("{meant:?} is parsed as {read:?}"),
        }
    }
    rows::check(&args);
}

/// The documented meaning of arguments, by a parser of its own.
#[derive(Debug, Default)]
struct Meant {
    quotas: Vec<Quota>,
    cost: Option<i128>,
    mode: Mode,
    at: Option<i128>,
}

impl Meant {
    /// `None` if they are not valid. No limit or window looks like an option's name, so the pairs end at the first
    /// of those.
    fn by(args: &[&[u8]]) -> Option<Meant> {
        let args: Vec<String> =
            args.iter().map(|arg| String::from_utf8(arg.to_vec()).ok()).collect::<Option<_>>()?;
        let mut args: Vec<String> = args.iter().map(|arg| arg.to_ascii_uppercase()).collect();
        let is_option = |arg: &String| ["COST", "AT", "FORCE", "PARTIAL"].contains(&arg.as_str());
        let pairs_end = args.iter().position(is_option).unwrap_or(args.len());
        let options = args.split_off(pairs_end);

        let mut meant = Meant::default();
        for pair in args.chunks(2) {
            let [limit, window] = pair else { return None };
            let limit = integer(limit).filter(|limit| (0..=MOST).contains(limit))?;
            let quota = Quota::new(limit as u64, window_of(window)?)?;
            if meant.quotas.iter().any(|other| other.window() == quota.window()) {
                return None;
            }
            meant.quotas.push(quota);
        }
        if !(1..=MAX_TIERS).contains(&meant.quotas.len()) {
            return None;
        }

        let mut options = options.iter();
        while let Some(option) = options.next() {
            match option.as_str() {
                "COST" if meant.cost.is_none() => {
                    let cost = integer(options.next()?)?;
                    meant.cost = Some(cost).filter(|cost| (-MOST..=MOST).contains(cost));
                    meant.cost?;
                }
                "AT" if meant.at.is_none() => {
                    let at = integer(options.next()?)?;
                    meant.at = Some(at).filter(|at| (0..=MOST).contains(at));
                    meant.at?;
                }
                "FORCE" if meant.mode == Mode::AllOrNothing => meant.mode = Mode::Force,
                "PARTIAL" if meant.mode == Mode::AllOrNothing => meant.mode = Mode::Partial,
                _ => return None,
            }
        }
        Some(meant)
    }

    fn is(&self, request: &Request) -> bool {
        // Every field, so that a new one is asked for here.
        let Request { quotas, cost, mode, at } = request;
        quotas[..] == self.quotas
            && i128::from(cost.get()) == self.cost.unwrap_or(1)
            && *mode == self.mode
            && at.map(|at| i128::from(at.get())) == self.at
    }
}
