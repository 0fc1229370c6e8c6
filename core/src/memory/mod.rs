//! Keys in the memory of a process, and commands that reply as a server with the module would, to the byte.
//!
//! - `table`: the keys by name and by expiry, bounded in number.
//! - `reserve`: memory kept free for requests, which are refused without it.
//! - `resp`: replies as the bytes of RESP2.

mod reserve;
mod resp;
mod table;

use std::hash::{BuildHasher, RandomState};

use crate::limiter::key;
use crate::limiter::several::{self, Part, Parts, Rows};
use crate::limiter::{Algorithm, Mode, Request, Time, UnixMs};
use crate::reply::{self, Reply};
use crate::request::{self, Arguments, Refusal, Verb};
use reserve::{Needed, Reserve};
use resp::Resp;
use table::Table;

/// The most bytes of a word.
pub const MAX_WORD_BYTES: usize = 64 << 10;

/// The reply to a command that needs more memory than there is: not even this reply needs any.
pub const OUT_OF_MEMORY: &[u8] = b"-OOM command not allowed when this process is out of memory.\r\n";

/// Keys in memory, and the commands on them.
pub struct Memory {
    table: Table,
    reserve: Reserve,
    reply: Resp,
}

impl Memory {
    /// Holds at most `max_keys` keys, and at least one. Beyond that, the key that expires first is dropped for a new one. A key takes
    /// some 120 bytes and its name; of RL.LOG, it grows with its units as on a server.
    pub fn new(max_keys: usize) -> Memory {
        Memory::seeded(max_keys, RandomState::new().hash_one(()))
    }

    /// As [`new`](Self::new), for targets without random numbers: nobody should be able to guess `seed`, since whoever knows it can
    /// choose names that collide in the table. Allocates nothing yet.
    pub fn seeded(max_keys: usize, seed: u64) -> Memory {
        Memory { table: Table::new(max_keys, seed), reserve: Reserve::default(), reply: Resp::default() }
    }

    /// Runs a command at `now_ms`, its Unix time in milliseconds by the clock of the caller. Returns the bytes of the reply in
    /// RESP2: an error reply if the command is refused.
    ///
    /// It knows RL.FIXED, RL.SLIDING, RL.LOG, RL.BUCKET, RL.ALL, RL.PEEK and RL.INFO; of the server's own commands DEL,
    /// EXISTS, PTTL, PEXPIRETIME, DBSIZE and FLUSHALL. Words of more than [`MAX_WORD_BYTES`] are refused, and what needs memory when
    /// there is none: new keys first, then logs that lengthen. Other keys still count.
    pub fn call<W: AsRef<[u8]> + Copy>(&mut self, now_ms: u64, words: &[W]) -> &[u8] {
        if !self.reply.begin() {
            return OUT_OF_MEMORY;
        }
        let (name, args) = words.split_first().map_or((&[][..], words), |(name, args)| (name.as_ref(), args));
        let now = UnixMs::saturating(now_ms);
        self.table.expire(now);
        match verb(name) {
            _ if words.iter().any(|word| word.as_ref().len() > MAX_WORD_BYTES) => {
                self.reply.refuse(name, Refusal::LONG_WORD)
            }
            Some(verb) => {
                if let Err(refusal) = self.run(verb, args, now) {
                    self.reply.refuse(verb.name().to_bytes(), refusal);
                }
            }
            None => self.run_of_server(name, args, now),
        }
        self.reserve.keep();
        self.reply.bytes()
    }

    /// The number of keys held, with those that have expired and were not dropped yet.
    pub fn len(&self) -> usize {
        self.table.len()
    }

    /// Whether it holds no key.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn run<W: AsRef<[u8]> + Copy>(&mut self, verb: Verb, args: &[W], now: UnixMs) -> Result<(), Refusal> {
        match (verb, args) {
            _ if !has_arity(verb.arity(), args.len()) => Err(Refusal::Arity),
            (Verb::All, rows) => self.all(rows, now),
            (_, []) => Err(Refusal::Arity),
            (Verb::Take(algorithm), [name, args @ ..]) => self.take(algorithm, name.as_ref(), args, now),
            (Verb::Peek, [name, args @ ..]) => self.peek(name.as_ref(), args, now),
            (Verb::Info, [name, ..]) => self.info(name.as_ref(), now),
        }
    }

    fn take<W: AsRef<[u8]>>(
        &mut self,
        algorithm: Algorithm,
        name: &[u8],
        args: &[W],
        now: UnixMs,
    ) -> Result<(), Refusal> {
        let Arguments { quotas, cost, mode, at } = Arguments::parse(args, Verb::Take(algorithm))?;
        let request = Request { algorithm, quotas: &quotas, cost, mode, time: Time { clock: now, at } };
        let may_grow = self.table.reserve(1).is_ok();
        let (mut key, mut fresh) = (self.table.get(name, now), None);
        let mut needed = Needed::default();
        needed.add(name, &key, algorithm, quotas.len());
        if !(may_grow || key.is_some()) || !self.reserve.lend(&needed) {
            return Err(Refusal::OUT_OF_MEMORY);
        }
        let answer = request.run(&mut key, &mut fresh)?;
        reply::answer(&mut self.reply, &answer);
        if answer.pending.is_any() {
            self.table.carry_out(name, fresh, answer.pending);
        }
        Ok(())
    }

    fn all<W: AsRef<[u8]> + Copy>(&mut self, words: &[W], now: UnixMs) -> Result<(), Refusal> {
        let (mut keys, mut rows) = (Parts::default(), Rows::new());
        let options = request::parse_rows(words, &mut keys, &mut rows)?;
        let time = Time { clock: now, at: options.at };
        let may_grow = self.table.reserve(keys.len()).is_ok();
        let (mut has_new, mut needed) = (false, Needed::default());
        for Part { name, key, task, .. } in keys.iter_mut() {
            let name = name.as_ref();
            *key = self.table.lend(name, now);
            needed.add(name, key, task.algorithm, task.quotas.len());
            has_new |= key.is_none();
        }
        let answer = if (may_grow || !has_new) && self.reserve.lend(&needed) {
            several::run(&mut keys, &mut rows, options.mode == Mode::Force, time).map_err(Refusal::from)
        } else {
            Err(Refusal::OUT_OF_MEMORY)
        };
        for part in keys.iter_mut() {
            if let Some(held) = part.key.take() {
                self.table.put_back(part.name.as_ref(), held);
            }
        }
        let answer = answer?;
        for part in keys.iter_mut().filter(|part| part.pending.is_any()) {
            self.table.carry_out(part.name.as_ref(), part.fresh.take(), part.pending);
        }
        reply::all(&mut self.reply, &answer, &rows);
        Ok(())
    }

    fn peek<W: AsRef<[u8]>>(&mut self, name: &[u8], args: &[W], now: UnixMs) -> Result<(), Refusal> {
        let Arguments { quotas, cost, at, .. } = Arguments::parse(args, Verb::Peek)?;
        let verdict = key::peek(&self.table.get(name, now), &quotas, cost, Time { clock: now, at })?;
        reply::verdict(&mut self.reply, &verdict);
        Ok(())
    }

    fn info(&mut self, name: &[u8], now: UnixMs) -> Result<(), Refusal> {
        let key = self.table.get(name, now);
        if !self.reserve.lend(&Needed::of_reading()) {
            return Err(Refusal::OUT_OF_MEMORY);
        }
        reply::info(&mut self.reply, key::info(&key, now));
        Ok(())
    }

    /// Runs one of the server's own commands.
    fn run_of_server<W: AsRef<[u8]>>(&mut self, name: &[u8], args: &[W], now: UnixMs) {
        let (keys, reply) = (&mut self.table, &mut self.reply);
        let command = OF_SERVER.into_iter().find(|command| name.eq_ignore_ascii_case(command));
        match (command.unwrap_or_default(), args) {
            (b"del", [_, ..]) => {
                let deletes =
                    |name: &&W| keys.get(name.as_ref(), now).is_some() && keys.remove(name.as_ref());
                reply.integer(args.iter().filter(deletes).count() as i64);
            }
            (b"exists", [_, ..]) => {
                let exists = |name: &&W| keys.get(name.as_ref(), now).is_some();
                reply.integer(args.iter().filter(exists).count() as i64);
            }
            (command @ (b"pttl" | b"pexpiretime"), [name]) => {
                let from = if command == b"pttl" { now } else { UnixMs::default() };
                let left = keys.get(name.as_ref(), now).map(|held| held.expires_at().since(from));
                reply.integer(left.map_or(-2, |ms| ms as i64));
            }
            (b"dbsize", []) => reply.integer(keys.len() as i64),
            (b"flushall", []) => {
                keys.clear();
                reply.ok();
            }
            (b"flushall", _) => reply.refuse(name, Refusal::SYNTAX),
            (command @ (b"del" | b"exists" | b"pttl" | b"pexpiretime" | b"dbsize"), _) => {
                reply.refuse(command, Refusal::Arity)
            }
            _ => reply.unknown_command(name, args),
        }
    }
}

/// The server's own commands that it knows.
const OF_SERVER: [&[u8]; 6] = [b"del", b"exists", b"pttl", b"pexpiretime", b"dbsize", b"flushall"];

/// The command of the module that has this name, in either case.
fn verb(name: &[u8]) -> Option<Verb> {
    let mut verbs = Algorithm::ALL.into_iter().map(Verb::Take).chain([Verb::All, Verb::Peek, Verb::Info]);
    verbs.find(|verb| name.eq_ignore_ascii_case(verb.name().to_bytes()))
}

/// Whether a command of this [arity](Verb::arity) takes `words` words after its name.
fn has_arity(arity: i32, words: usize) -> bool {
    let (words, named) = (words + 1, arity.unsigned_abs() as usize);
    if arity < 0 { words >= named } else { words == named }
}
