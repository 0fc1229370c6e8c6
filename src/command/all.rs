//! RL.ALL: decides on several keys, and counts in all of them or in none.

use super::commit;
use crate::keyspace::OpenKeys;
use crate::server::{self, Call, Command};
use crate::stats;
use redis_rl_core::limiter::several::{self, Parts};
use redis_rl_core::limiter::{Mode, Time};
use redis_rl_core::reply;
use redis_rl_core::request::{self, Refusal};

pub struct All;

impl Command for All {
    fn run(call: &mut Call) -> Result<(), Refusal> {
        let mut rows = Parts::default();
        let options = request::parse_rows(call.args(), &mut rows)?;
        let time = Time { clock: server::now(), at: options.at };
        let mut keys = OpenKeys::to_write(call, &mut rows)?;
        let answer = several::run(keys.parts(), options.mode == Mode::Force, time)?;
        keys.move_expiries_and_close();
        commit::carry_out_all(call, &mut rows, false, several::effect);
        let mut changed = false;
        for row in rows.iter() {
            if let Some(of_key) = &row.task.of_key {
                stats::units(row.task.cost, of_key.outcome.change);
            }
            changed |= row.pending.changed;
        }
        stats::all_answered(answer.limited, changed);
        if answer.limited {
            for row in rows.iter() {
                let limited = row.task.of_key.is_some_and(|of_key| of_key.limited);
                commit::publish_if_limited(call, row.name, limited);
            }
        }
        reply::all(call, &answer, rows.iter().map(|row| &row.task.verdict));
        Ok(())
    }
}
