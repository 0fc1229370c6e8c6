//! The keys of a process.

use std::borrow::Cow;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use lru::LruCache;

use super::{Answer, Command, Digests, Key, Purpose, RequestId, Rules, Settings, Share, Step};
use crate::Verdict;

/// The machines of all keys: those in flight, and of those at rest as many as may be remembered.
#[derive(Debug)]
pub struct Decider {
    settings: Settings,
    digests: Digests,
    in_flight: HashMap<Arc<[u8]>, Key>,
    /// The least recently used goes first.
    at_rest: LruCache<Arc<[u8]>, Key>,
    /// When leases end. The lease of a key may have ended before, and it may have another by then.
    ends: BinaryHeap<Reverse<(Duration, Arc<[u8]>)>>,
}

impl Decider {
    /// Remembers at most `max_keys` keys at rest, and asks for leases of at most `max_keys` at once.
    #[must_use]
    pub fn new(settings: Settings, max_keys: NonZeroUsize) -> Decider {
        Decider {
            settings,
            digests: Digests::default(),
            in_flight: HashMap::new(),
            at_rest: LruCache::sparse(max_keys),
            ends: BinaryHeap::new(),
        }
    }

    /// A request: its verdict, if it is known; else the answer comes with a later step.
    pub fn take(
        &mut self,
        now: Duration,
        key: &[u8],
        rules: &Arc<Rules>,
        id: RequestId,
        cost: i64,
        step: &mut Step,
    ) -> Option<Verdict> {
        if self.settings.units == 0 || !rules.is_leased(key, cost) {
            return self.take_alone(now, key, rules, id, cost, step);
        }
        let units = cost.unsigned_abs();
        let is_full = self.in_flight.len() >= self.at_rest.cap().get();
        if is_full && !self.in_flight.contains_key(key) {
            let known = self.at_rest.get_mut(key).and_then(|machine| machine.known(now, rules, units));
            return known.or_else(|| self.take_alone(now, key, rules, id, cost, step));
        }
        if let Some(machine) = self.at_rest.get_mut(key) {
            let verdict = machine.take(now, self.settings, rules, id, units, step);
            if verdict.is_none()
                && let Some((name, machine)) = self.at_rest.pop_entry(key)
            {
                self.in_flight.insert(name, machine);
            }
            return verdict;
        }
        let machine = match self.in_flight.get_mut(key) {
            Some(machine) => machine,
            None => {
                let name: Arc<[u8]> = key.into();
                self.in_flight.entry(name.clone()).or_insert_with(|| Key::new(name, rules.clone()))
            }
        };
        machine.take(now, self.settings, rules, id, units, step)
    }

    /// A request that no lease is for.
    fn take_alone(
        &mut self,
        now: Duration,
        key: &[u8],
        rules: &Arc<Rules>,
        id: RequestId,
        cost: i64,
        step: &mut Step,
    ) -> Option<Verdict> {
        let name = self.digests.name(key);
        let machine = self.at_rest.get(&*name).or_else(|| self.in_flight.get(&*name));
        let refused =
            machine.filter(|machine| machine.has_rules(rules)).and_then(|machine| machine.refused(now, cost));
        if refused.is_none() {
            step.commands.push(Command {
                key: key.into(),
                rules: rules.clone(),
                cost,
                partial: false,
                at: None,
                purpose: Purpose::Alone(id),
            });
        }
        refused
    }

    /// The reply to a command, or none if it has failed.
    pub fn reply(&mut self, now: Duration, command: &Command, reply: Option<Verdict>, step: &mut Step) {
        match command.purpose {
            Purpose::Flight | Purpose::Asked(_) => self.reply_to_machine(now, command, reply, step),
            Purpose::Alone(id) => {
                step.answers.push((id, reply.map_or(Answer::Failed, Answer::Verdict)));
                if let Some(reply) = reply {
                    self.remember_alone(now, command, reply, step);
                }
            }
            Purpose::GiveBack => {}
        }
    }

    fn reply_to_machine(
        &mut self,
        now: Duration,
        command: &Command,
        reply: Option<Verdict>,
        step: &mut Step,
    ) {
        let Some(machine) = self.in_flight.get_mut(&command.key) else { return };
        match reply {
            _ if command.purpose != Purpose::Flight => {
                machine.reply_to_asked(now, self.settings, command, reply, step);
            }
            Some(reply) => machine.reply(now, self.settings, reply, step),
            None => machine.fail(now, self.settings, step),
        }
        if let Some(ends) = machine.ends() {
            self.ends.push(Reverse((ends, command.key.clone())));
        }
        if machine.is_at_rest()
            && let Some((name, machine)) = self.in_flight.remove_entry(&command.key)
        {
            self.keep(name, machine, step);
        }
    }

    fn remember_alone(&mut self, now: Duration, command: &Command, reply: Verdict, step: &mut Step) {
        let name = self.digests.name(&command.key);
        if let Some(machine) = self.in_flight.get_mut(&*name).or_else(|| self.at_rest.get_mut(&*name)) {
            machine.reply_alone(now, self.settings, command, reply, step);
        } else if reply.limited {
            let name: Arc<[u8]> = match name {
                Cow::Borrowed(_) => command.key.clone(),
                Cow::Owned(digest) => digest.into(),
            };
            let mut machine = Key::new(name.clone(), command.rules.clone());
            machine.reply_alone(now, self.settings, command, reply, step);
            self.keep(name, machine, step);
        }
    }

    /// Remembers a key at rest, and forgets another if there are too many.
    fn keep(&mut self, name: Arc<[u8]>, machine: Key, step: &mut Step) {
        if let Some((_, mut oldest)) = self.at_rest.push(name, machine) {
            oldest.end_lease(step);
        }
    }

    /// Whether it leases nothing any more.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.settings.units == 0
    }

    /// What a request is refused with that no lease serves.
    pub fn refusal(&mut self, now: Duration, key: &[u8], rules: &Arc<Rules>, cost: u64) -> Option<Verdict> {
        let machine = self.at_rest.get(key).or_else(|| self.in_flight.get(key))?;
        machine.refused_beyond_lease(now, rules, cost)
    }

    /// Takes units back that a request took and does not use: into their lease if it is still there, else they go back.
    pub fn put_back(&mut self, now: Duration, share: &Share, at: SystemTime, step: &mut Step) {
        let Share { key, rules, cost } = share;
        if let Some(machine) = self.at_rest.peek_mut(key).or_else(|| self.in_flight.get_mut(key))
            && machine.put_back(now, rules, cost.unsigned_abs(), at)
        {
            self.ends.extend(machine.ends().map(|ends| Reverse((ends, key.clone()))));
            return;
        }
        step.commands.push(Command {
            key: key.clone(),
            rules: rules.clone(),
            cost: -cost,
            partial: false,
            at: Some(at),
            purpose: Purpose::GiveBack,
        });
    }

    /// Nobody awaits the answer to a request for this key any more. Tells whether none will come.
    pub fn cancel(&mut self, key: &[u8], id: RequestId) -> bool {
        self.in_flight.get_mut(key).is_some_and(|machine| machine.cancel(id))
    }

    /// Ends the leases whose time is over.
    pub fn tick(&mut self, now: Duration, step: &mut Step) {
        while self.next_tick().is_some_and(|ends| ends <= now) {
            if let Some(Reverse((_, key))) = self.ends.pop()
                && let Some(machine) = self.at_rest.peek_mut(&key).or_else(|| self.in_flight.get_mut(&key))
            {
                machine.tick(now, step);
            }
        }
    }

    /// When the next tick is due, if any is.
    #[must_use]
    pub fn next_tick(&self) -> Option<Duration> {
        self.ends.peek().map(|Reverse((ends, _))| *ends)
    }

    /// Gives back all leases. From now on requests are asked one by one.
    pub fn close(&mut self, step: &mut Step) {
        self.settings.units = 0;
        let at_rest = self.at_rest.iter_mut().rev().map(|(_, machine)| machine);
        for machine in at_rest.chain(self.in_flight.values_mut()) {
            machine.end_lease(step);
        }
        self.ends.clear();
    }
}
