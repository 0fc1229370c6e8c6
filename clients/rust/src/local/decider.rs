//! The keys of a process.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::num::NonZeroUsize;
use std::sync::Arc;

use lru::LruCache;

use super::{Answer, Command, Key, Purpose, RequestId, Rules, Settings, Step};
use crate::Verdict;

/// The machines of all keys: those in flight, and of those at rest as many as may be remembered.
#[derive(Debug)]
pub struct Decider {
    settings: Settings,
    in_flight: HashMap<Arc<[u8]>, Key>,
    /// The least recently used goes first.
    at_rest: LruCache<Arc<[u8]>, Key>,
    /// When leases end. The lease of a key may have ended before, and it may have another by then.
    ends: BinaryHeap<Reverse<(u64, Arc<[u8]>)>>,
}

impl Decider {
    /// Remembers at most `max_keys` keys at rest.
    pub fn new(settings: Settings, max_keys: NonZeroUsize) -> Decider {
        Decider {
            settings,
            in_flight: HashMap::new(),
            at_rest: LruCache::sparse(max_keys),
            ends: BinaryHeap::new(),
        }
    }

    /// A request: its verdict, if it is known; else the answer comes with a later step.
    pub fn take(
        &mut self,
        now_ms: u64,
        key: &[u8],
        rules: &Arc<Rules>,
        id: RequestId,
        cost: i64,
        step: &mut Step,
    ) -> Option<Verdict> {
        if self.settings.units == 0 || cost <= 0 || rules.is_hopeless(cost) {
            return self.take_alone(now_ms, key, rules, id, cost, step);
        }
        let cost = cost.unsigned_abs();
        if let Some(machine) = self.at_rest.get_mut(key) {
            let verdict = machine.take(now_ms, self.settings, rules, id, cost, step);
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
        machine.take(now_ms, self.settings, rules, id, cost, step)
    }

    /// A request that no lease is for.
    fn take_alone(
        &mut self,
        now_ms: u64,
        key: &[u8],
        rules: &Arc<Rules>,
        id: RequestId,
        cost: i64,
        step: &mut Step,
    ) -> Option<Verdict> {
        let machine = self.at_rest.get(key).or_else(|| self.in_flight.get(key));
        let refused = machine
            .filter(|machine| machine.has_rules(rules))
            .and_then(|machine| machine.refused(now_ms, cost));
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
    pub fn reply(&mut self, now_ms: u64, command: &Command, reply: Option<Verdict>, step: &mut Step) {
        match command.purpose {
            Purpose::Flight => self.reply_to_flight(now_ms, &command.key, reply, step),
            Purpose::Alone(id) => {
                step.answers.push((id, reply.map_or(Answer::Failed, Answer::Verdict)));
                if let Some(reply) = reply {
                    self.remember_alone(now_ms, command, reply, step);
                }
            }
            Purpose::GiveBack => {}
        }
    }

    fn reply_to_flight(&mut self, now_ms: u64, key: &[u8], reply: Option<Verdict>, step: &mut Step) {
        let Some(machine) = self.in_flight.get_mut(key) else { return };
        match reply {
            Some(reply) => machine.reply(now_ms, self.settings, reply, step),
            None => machine.fail(now_ms, self.settings, step),
        }
        if machine.is_at_rest()
            && let Some((name, machine)) = self.in_flight.remove_entry(key)
        {
            if let Some(ends_ms) = machine.ends_ms() {
                self.ends.push(Reverse((ends_ms, name.clone())));
            }
            self.keep(name, machine, step);
        }
    }

    fn remember_alone(&mut self, now_ms: u64, command: &Command, reply: Verdict, step: &mut Step) {
        let known = self.in_flight.get_mut(&command.key).or_else(|| self.at_rest.get_mut(&command.key));
        match known {
            Some(machine) => {
                if reply.limited && machine.is_at_rest() {
                    machine.set_rules(&command.rules, step);
                }
                if machine.has_rules(&command.rules) {
                    machine.reply_alone(now_ms, self.settings, reply, command.cost);
                }
            }
            None if reply.limited => {
                let mut machine = Key::new(command.key.clone(), command.rules.clone());
                machine.reply_alone(now_ms, self.settings, reply, command.cost);
                self.keep(command.key.clone(), machine, step);
            }
            None => {}
        }
    }

    /// Remembers a key at rest, and forgets another if there are too many.
    fn keep(&mut self, name: Arc<[u8]>, machine: Key, step: &mut Step) {
        if let Some((_, mut oldest)) = self.at_rest.push(name, machine) {
            oldest.end_lease(step);
        }
    }

    /// Nobody awaits the answer to a request for this key any more.
    pub fn cancel(&mut self, key: &[u8], id: RequestId) {
        if let Some(machine) = self.in_flight.get_mut(key) {
            machine.cancel(id);
        }
    }

    /// Ends the leases whose time is over.
    pub fn tick(&mut self, now_ms: u64, step: &mut Step) {
        while self.next_tick_ms().is_some_and(|ends_ms| ends_ms <= now_ms) {
            if let Some(Reverse((_, key))) = self.ends.pop()
                && let Some(machine) = self.at_rest.peek_mut(&key)
            {
                machine.tick(now_ms, step);
            }
        }
    }

    /// When the next tick is due, if any is.
    pub fn next_tick_ms(&self) -> Option<u64> {
        self.ends.peek().map(|Reverse((ends_ms, _))| *ends_ms)
    }

    /// Gives back all leases. From now on requests are asked one by one.
    pub fn close(&mut self, step: &mut Step) {
        self.settings.units = 0;
        for (_, machine) in self.at_rest.iter_mut().rev() {
            machine.end_lease(step);
        }
        self.ends.clear();
    }
}
