//! A host in memory: keys in a map, and commands that reply as a server with the module would, to the byte.
//!
//! - `keys`: the keys by name and by expiry, bounded in number.
//! - `resp`: replies as the bytes of RESP2.
//!
//! ```
//! use redis_rl_core::memory::Memory;
//!
//! let mut memory = Memory::new(100_000);
//! let reply = memory.call(1_700_000_000_000, &["RL.LOG", "login:alice", "3", "1m"]);
//! assert_eq!(reply, b"*5\r\n:0\r\n:3\r\n:2\r\n:-1\r\n:60000\r\n");
//! ```

mod keys;
mod resp;

use crate::limiter::key::{self, Take};
use crate::limiter::several::{self, Parts};
use crate::limiter::{Algorithm, Mode, Time, UnixMs};
use crate::reply::{self, Reply};
use crate::request::{self, Refusal, Request, Verb};
use keys::Keys;
use resp::Resp;

/// Keys in memory, and the commands on them.
pub struct Memory {
    keys: Keys,
    reply: Resp,
}

impl Memory {
    /// Holds at most `max_keys` keys, and at least one. Beyond that, the key that expires first is dropped for a new one. A key takes
    /// some 200 bytes; of RL.LOG, it grows with its units as on a server.
    pub fn new(max_keys: usize) -> Memory {
        Memory::seeded(max_keys, 0)
    }

    /// The same, for a target without random numbers: with a `seed` that nobody can guess, nobody can choose names that collide in
    /// the map.
    pub fn seeded(max_keys: usize, seed: u64) -> Memory {
        Memory { keys: Keys::new(max_keys, seed), reply: Resp::default() }
    }

    /// Runs a command at `now_ms`, its Unix time in milliseconds by the clock of the caller. Returns the bytes of the reply in
    /// RESP2: an error reply if the command is refused.
    ///
    /// It knows RL.FIXED, RL.SLIDING, RL.LOG, RL.BUCKET, RL.ALL, RL.PEEK and RL.INFO; of the server's own commands DEL,
    /// EXISTS, PTTL, PEXPIRETIME, DBSIZE and FLUSHALL.
    pub fn call<W: AsRef<[u8]> + Copy>(&mut self, now_ms: u64, words: &[W]) -> &[u8] {
        self.reply.clear();
        let (name, args) = words.split_first().map_or((&[][..], words), |(name, args)| (name.as_ref(), args));
        let now = UnixMs::saturating(now_ms);
        self.keys.expire(now);
        match verb(name) {
            Some(verb) => self.run(verb, args, now),
            None => self.run_of_server(name, args, now),
        }
        self.reply.bytes()
    }

    /// The number of keys held, with those that have expired and were not dropped yet.
    pub fn len(&self) -> usize {
        self.keys.len()
    }

    /// Whether it holds no key.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn run<W: AsRef<[u8]> + Copy>(&mut self, verb: Verb, args: &[W], now: UnixMs) {
        let done = match (verb, args) {
            _ if !has_arity(verb.arity(), args.len()) => Err(Refusal::Arity),
            (Verb::All, rows) => self.all(rows, now),
            (_, []) => Err(Refusal::Arity),
            (Verb::Take(algorithm), [name, args @ ..]) => self.take(algorithm, name.as_ref(), args, now),
            (Verb::Peek, [name, args @ ..]) => self.peek(name.as_ref(), args, now),
            (Verb::Info, [name, ..]) => {
                reply::info(&mut self.reply, key::info(&self.keys.get(name.as_ref(), now), now));
                Ok(())
            }
        };
        match done {
            Ok(()) => {}
            Err(Refusal::Arity) => self.reply.wrong_arity(verb.name().to_bytes()),
            Err(Refusal::Text(text)) => self.reply.error(text.to_bytes()),
        }
    }

    fn take<W: AsRef<[u8]>>(
        &mut self,
        algorithm: Algorithm,
        name: &[u8],
        args: &[W],
        now: UnixMs,
    ) -> Result<(), Refusal> {
        let Request { quotas, cost, mode, at } = Request::parse(args, Verb::Take(algorithm))?;
        let take = Take { algorithm, quotas: &quotas, cost, mode, time: Time { clock: now, at } };
        let (mut key, mut fresh) = (self.keys.get(name, now), None);
        let taken = take.run(&mut key, &mut fresh)?;
        reply::taken(&mut self.reply, &taken);
        if taken.applied.is_any() {
            self.keys.carry_out(name, fresh, taken.applied);
        }
        Ok(())
    }

    fn all<W: AsRef<[u8]> + Copy>(&mut self, words: &[W], now: UnixMs) -> Result<(), Refusal> {
        let mut rows = Parts::default();
        let options = request::parse_rows(words, &mut rows)?;
        let time = Time { clock: now, at: options.at };
        for index in 0..rows.len() {
            if rows[index].first() == index {
                rows[index].key = self.keys.lend(rows[index].name.as_ref(), now);
            }
        }
        let taken = several::take(&mut rows, options.mode == Mode::Force, time);
        for row in rows.iter_mut() {
            if let Some(held) = row.key.take() {
                self.keys.give_back(row.name.as_ref(), held);
            }
        }
        let taken = taken?;
        for row in rows.iter_mut().filter(|row| row.applied.is_any()) {
            self.keys.carry_out(row.name.as_ref(), row.fresh.take(), row.applied);
        }
        reply::all(&mut self.reply, &taken, rows.iter().map(|row| &row.what.verdict));
        Ok(())
    }

    fn peek<W: AsRef<[u8]>>(&mut self, name: &[u8], args: &[W], now: UnixMs) -> Result<(), Refusal> {
        let Request { quotas, cost, at, .. } = Request::parse(args, Verb::Peek)?;
        let verdict = key::peek(&self.keys.get(name, now), &quotas, cost, Time { clock: now, at })?;
        reply::verdict(&mut self.reply, &verdict);
        Ok(())
    }

    /// Runs one of the server's own commands.
    fn run_of_server<W: AsRef<[u8]>>(&mut self, name: &[u8], args: &[W], now: UnixMs) {
        let (keys, reply) = (&mut self.keys, &mut self.reply);
        let command = name.to_ascii_lowercase();
        match (command.as_slice(), args) {
            (b"del", [_, ..]) => {
                let deletes =
                    |name: &&W| keys.get(name.as_ref(), now).is_some() && keys.remove(name.as_ref());
                reply.integer(args.iter().filter(deletes).count() as i64);
            }
            (b"exists", [_, ..]) => {
                let exists = |name: &&W| keys.get(name.as_ref(), now).is_some();
                reply.integer(args.iter().filter(exists).count() as i64);
            }
            (b"pttl", [name]) => {
                let left = keys.get(name.as_ref(), now).map(|held| held.expires_at().since(now));
                reply.integer(left.map_or(-2, |ms| ms as i64));
            }
            (b"pexpiretime", [name]) => {
                let at = keys.get(name.as_ref(), now).map(|held| held.expires_at().get());
                reply.integer(at.map_or(-2, |ms| ms as i64));
            }
            (b"dbsize", []) => reply.integer(keys.len() as i64),
            (b"flushall", []) => {
                keys.clear();
                reply.ok();
            }
            (b"flushall", _) => reply.error(b"ERR syntax error"),
            (b"del" | b"exists" | b"pttl" | b"pexpiretime" | b"dbsize", _) => reply.wrong_arity(&command),
            _ => reply.unknown_command(name, args),
        }
    }
}

/// The command of the module that has this name, in either case.
fn verb(name: &[u8]) -> Option<Verb> {
    let verbs = Algorithm::ALL.into_iter().map(Verb::Take).chain([Verb::All, Verb::Peek, Verb::Info]);
    { verbs }.find(|verb| name.eq_ignore_ascii_case(verb.name().to_bytes()))
}

/// Whether a command of this [arity](Verb::arity) takes `words` words after its name.
fn has_arity(arity: i32, words: usize) -> bool {
    let (words, named) = (words + 1, arity.unsigned_abs() as usize);
    if arity < 0 { words >= named } else { words == named }
}
