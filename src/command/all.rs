//! RL.ALL: decides on several keys, and counts in all of them or in none.

use super::commit;
use crate::keyspace::OpenKeys;
use crate::server::{self, Call, Command};
use crate::stats;
use redis_rl_core::limiter::several::{self, Part, Parts, Rows};
use redis_rl_core::limiter::{Mode, Time};
use redis_rl_core::reply;
use redis_rl_core::request::{self, Refusal};

pub struct All;

impl Command for All {
    fn run(call: &mut Call) -> Result<(), Refusal> {
        let (mut parts, mut rows) = (Parts::default(), Rows::new());
        let options = request::parse_rows(call.args(), &mut parts, &mut rows)?;
        let time = Time { clock: server::now(), at: options.at };
        let mut keys = OpenKeys::to_write(call, &mut parts)?;
        let answer = several::run(keys.parts(), &mut rows, options.mode == Mode::Force, time)?;
        keys.move_expiries_and_close();
        commit::carry_out_all(call, &mut parts, false, several::effect);
        let mut changed = false;
        for Part { task, pending, .. } in parts.iter() {
            stats::units(task.cost, task.outcome.change);
            changed |= pending.changed;
        }
        stats::all_answered(answer.limited, changed);
        if answer.limited {
            for (index, part) in parts.iter().enumerate() {
                let limited = rows.iter().any(|row| row.key == index && row.verdict.limited);
                commit::publish_if_limited(call, part.name, limited);
            }
        }
        reply::all(call, &answer, &rows);
        Ok(())
    }
}
