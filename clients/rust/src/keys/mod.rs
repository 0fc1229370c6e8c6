//! What a process decides by itself: leases, remembered refusals, requests by several policies, places.
//!
//! [`Keys`] is pure: it is told the time and what happens, and says which commands to send and what to answer.
//! `clients/porting.md` has the rules, `clients/local.json` the cases.

mod command;
mod key;
mod lease;
pub mod place;
mod request;
mod share;
pub mod turns;
pub mod way;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::mem;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use redis::{RedisError, RedisResult};

use crate::commands::{MAX_COST, Verdict, Verdicts};

use command::How;
use key::Recent;
use lease::{Lease, Refusal};
use request::State;
pub(crate) use share::longest_wait;

pub use crate::commands::slot;
pub use command::{Command, Step};
pub use request::{Answer, Request};
pub use share::{Rules, Share};

/// The most keys that a process remembers.
pub const MAX_KEYS: usize = 10_000;
/// The longest name, in bytes, that is remembered, so that memory is bounded.
const LONGEST_NAME: usize = 256;

/// The leases and remembered refusals of a process.
#[derive(Debug)]
pub struct Keys {
    remember: Duration,
    is_cluster: bool,
    is_closed: bool,
    keys: Recent,
    /// When leases end, and of which keys. Some of the leases may have been given back before.
    ends: BinaryHeap<Reverse<(Duration, Arc<[u8]>)>>,
    /// The time of the event that is handled.
    now: Duration,
    step: Step,
}

impl Keys {
    /// Refusals are repeated without asking until they are `remember` old.
    #[must_use]
    pub fn new(remember: Duration, max_keys: NonZeroUsize, is_cluster: bool) -> Keys {
        Keys {
            remember,
            is_cluster,
            is_closed: false,
            keys: Recent::new(max_keys),
            ends: BinaryHeap::new(),
            now: Duration::ZERO,
            step: Step::default(),
        }
    }

    /// The verdict on a request of one share, if a lease or a refusal decides it: a quicker [`take`](Keys::take).
    pub fn known(&mut self, now: Duration, key: &[u8], rules: &Rules, cost: i64) -> Option<Verdict> {
        let key = self.keys.used(rules, key)?;
        if let Some(verdict) = key.serve(now, cost) {
            key.asked += cost.unsigned_abs();
            return Some(verdict);
        }
        key.refused(now, cost)?.verdict(now)
    }

    /// A request comes.
    pub fn take(&mut self, now: Duration, request: &Request) -> Step {
        self.now = now;
        let mut state = request.state();
        if self.refuse(&mut state) {
            (state.missing, state.gives_back) = (0, true);
            self.step.answers.push((request.clone(), Ok(state.answer())));
            return mem::take(&mut self.step);
        }
        let mut alone: Vec<(u16, Vec<usize>)> = Vec::new();
        for index in 0..state.shares.len() {
            if !self.take_leased(request, &mut state, index) {
                let slot = slot_of(self.is_cluster, &state.shares[index].share.key);
                entry_of(&mut alone, slot).push(index);
            }
        }
        for (_, indices) in alone {
            let shares = indices.iter().map(|index| state.shares[*index].share.clone()).collect();
            self.step.commands.push(Command::ask(shares, request, indices, None));
        }
        self.answer_if_whole(request, &mut state);
        mem::take(&mut self.step)
    }

    /// Whether a remembered refusal refuses any share. Then none is asked for.
    fn refuse(&mut self, request: &mut State) -> bool {
        let (now, mut is_refused) = (self.now, false);
        for noted in &mut request.shares {
            let Share { key, rules, cost } = &noted.share;
            if let Some(key) = self.keys.used(rules, key).filter(|key| !key.serves(now, *cost))
                && let Some(refusal) = key.refused(now, *cost)
            {
                noted.rows = Some(refusal.told(now));
                is_refused = true;
            }
        }
        is_refused
    }

    /// Whether a lease serves a share, or it waits for one, or is asked for with one. Else it is asked for alone.
    fn take_leased(&mut self, request: &Request, state: &mut State, index: usize) -> bool {
        let (now, share) = (self.now, state.shares[index].share.clone());
        let Share { key, rules, cost } = &share;
        let is_leased =
            rules.units > 0 && *cost > 0 && !rules.is_hopeless(*cost) && key.len() <= LONGEST_NAME;
        if self.is_closed || !is_leased {
            return false;
        }
        self.remembered(&share);
        let Some(key) = self.keys.get(&share) else { return false };
        if key.serves_share(now, state, index) {
            key.asked += cost.unsigned_abs();
            return true;
        }
        let size = if key.is_in_flight { 0 } else { key.size(now) };
        key.asked += cost.unsigned_abs();
        if key.is_in_flight {
            key.waiting.push_back((request.clone(), index));
        } else if size > 0 {
            self.ask(&share, request, index, Some(size));
        } else {
            return false;
        }
        true
    }

    /// Asks for a share with a lease of this size, in flight; with `None` alone. What is left of the lease goes back first.
    fn ask(&mut self, share: &Share, request: &Request, index: usize, size: Option<u64>) {
        self.end_lease(share);
        if let Some(key) = self.keys.get(share) {
            key.is_in_flight = size.is_some();
        }
        let size = size.map(|size| size.min((MAX_COST - share.cost).unsigned_abs()));
        self.step.commands.push(Command::ask(vec![share.clone()], request, vec![index], size));
    }

    /// The reply to a command came in, or its error.
    pub fn reply(&mut self, now: Duration, command: &Command, reply: RedisResult<Verdicts>) -> Step {
        self.now = now;
        if let Some((request, indices)) = &command.request {
            if command.settles() {
                self.note_settled(request, indices, command, reply);
            } else {
                self.note_reply(request, indices, command, reply);
            }
        }
        mem::take(&mut self.step)
    }

    fn note_reply(
        &mut self,
        request: &Request,
        indices: &[usize],
        command: &Command,
        reply: RedisResult<Verdicts>,
    ) {
        let share = &command.shares[0];
        let is_in_flight = command.in_flight.is_some();
        if is_in_flight && let Some(key) = self.keys.get(share) {
            key.is_in_flight = false;
        }
        match reply {
            Err(error) => {
                indices.iter().for_each(|_| self.fail(request, &error));
                let key = if is_in_flight { self.keys.get(share) } else { None };
                let waiting = key.map(|key| mem::take(&mut key.waiting)).unwrap_or_default();
                waiting.into_iter().for_each(|(request, _)| self.fail(&request, &error));
            }
            Ok(reply) if command.size() > 0 => self.deal(request, indices[0], share, reply.rows[0]),
            Ok(reply) => {
                let refusal = self.note(request, indices, &command.shares, &reply);
                if is_in_flight {
                    self.serve_waiting(share, refusal.as_ref());
                }
            }
        }
        if is_in_flight && self.keys.is_leaving(share) {
            self.let_go(share);
        }
    }

    fn fail(&mut self, request: &Request, error: &RedisError) {
        let state = &mut *request.state();
        state.missing -= 1;
        state.error = Some(error.clone());
        self.answer_if_whole(request, state);
    }

    /// Notes the decision on shares that were asked for together. Returns the refusal of the last of them, if it refuses.
    fn note(
        &mut self,
        request: &Request,
        indices: &[usize],
        shares: &[Share],
        reply: &Verdicts,
    ) -> Option<Refusal> {
        let state = &mut *request.state();
        let mut rows = reply.rows.iter().copied();
        let mut refusal = None;
        for (index, share) in indices.iter().zip(shares) {
            let of_share: Vec<Verdict> = rows.by_ref().take(share.rules.quotas.len()).collect();
            // Who is not blocked yet is blocked next, by a longer refusal than this, which the next reply tells.
            let is_last = !share.rules.blocks() || of_share.last().is_some_and(|row| row.limited);
            let is_told = is_last && longest_wait(&of_share).is_some();
            refusal = is_told.then(|| Refusal::new(share.cost, of_share.clone(), self.now, self.remember));
            let units = if reply.limited { 0 } else { share.cost.max(0) };
            state.note(*index, of_share, units, Some(reply.at));
            if share.cost != 0 {
                self.remember(share, refusal.as_ref());
            }
        }
        self.answer_if_whole(request, state);
        refusal
    }

    /// Remembers a refusal in place of the last one of its key, or with `None` forgets that.
    fn remember(&mut self, share: &Share, refusal: Option<&Refusal>) {
        let refusal = refusal.filter(|refusal| refusal.holds(self.now) && share.key.len() <= LONGEST_NAME);
        if refusal.is_some() {
            self.remembered(share);
        }
        if let Some(key) = self.keys.get(share) {
            key.refusal = refusal.cloned();
        }
    }

    /// Deals out what a command in flight has taken: to its own request, to those that waited, and the rest to the lease.
    fn deal(&mut self, request: &Request, index: usize, share: &Share, reply: Verdict) {
        let (now, mut refusal) = (self.now, None);
        let lease = Lease::new(reply, now, share.rules.ttl());
        let (taken, at) = (lease.left, lease.at);
        let Some(key) = self.keys.get(share) else { return };
        let lease = key.lease.insert(lease);
        let mut state = request.state();
        if state.gives_back {
            state.missing -= 1;
        } else if taken >= share.cost.unsigned_abs() {
            state.serve(now, index, lease);
            key.refusal = None;
        } else if share.cost == 1 {
            // The wait in the reply is that for one unit, as if it had been asked for alone.
            state.note(index, vec![reply], 0, None);
            refusal = Some(Refusal::new(1, vec![reply], now, self.remember));
            self.remember(share, refusal.as_ref());
        } else {
            self.ask(share, request, index, Some(0));
        }
        self.answer_if_whole(request, &mut state);
        drop(state);
        self.serve_waiting(share, refusal.as_ref());
        let kept = if self.is_closed { 0 } else { share.rules.units };
        self.give_back_beyond(share, at, kept);
        let lease = self.keys.get(share).and_then(|key| key.lease.as_mut());
        if let Some(lease) = lease.filter(|lease| lease.at == at) {
            lease.granted = lease.left;
            let ends = (lease.left > 0).then_some(lease.ends);
            let name = self.keys.name(&share.rules, &share.key);
            self.ends.extend(ends.map(|ends| Reverse((ends, name.into()))));
        }
    }

    /// Serves or refuses the requests that waited for a reply, or asks for them.
    fn serve_waiting(&mut self, share: &Share, refusal: Option<&Refusal>) {
        let mut unserved = VecDeque::new();
        let waiting = self.keys.get(share).map(|key| mem::take(&mut key.waiting));
        for (request, index) in waiting.unwrap_or_default() {
            let state = &mut *request.state();
            let Some(key) = self.keys.get(share) else { continue };
            let cost = state.shares[index].share.cost;
            if state.gives_back {
                state.missing -= 1;
            } else if key.serves_share(self.now, state, index) {
            } else if let Some(refusal) = refusal.filter(|refusal| refusal.holds_for(&share.rules, cost)) {
                state.note(index, refusal.told(self.now), 0, None);
            } else {
                unserved.push_back((request.clone(), index));
                continue;
            }
            self.answer_if_whole(&request, state);
        }
        let Some(key) = self.keys.get(share) else { return };
        if key.is_in_flight {
            key.waiting = unserved;
            return;
        }
        let Some(first) = unserved.pop_front() else { return };
        let cost = |(request, index): &(Request, usize)| request.state().shares[*index].share.cost;
        let share = Share { cost: cost(&first), ..share.clone() };
        let others = unserved.iter().map(|other| cost(other).unsigned_abs()).fold(0, u64::saturating_add);
        let size = Some(key.size(self.now).saturating_add(others)).filter(|size| *size > 0);
        key.waiting = unserved;
        self.ask(&share, &first.0, first.1, size);
    }

    /// Answers a request when all its shares are decided. If any refuses, what the others took goes back.
    fn answer_if_whole(&mut self, request: &Request, state: &mut State) {
        if !state.gives_back && state.missing == 0 {
            let answer = state.answer();
            state.gives_back = answer.limited;
            let error = state.error.take().filter(|_| !answer.limited);
            self.step.answers.push((request.clone(), error.map_or(Ok(answer), Err)));
        }
        if state.gives_back {
            self.give_back_counted(state);
        }
    }

    /// Gives back what a request took and will take: it was cancelled or refused elsewhere.
    pub fn give_back(&mut self, now: Duration, request: &Request) -> Step {
        self.now = now;
        let state = &mut *request.state();
        if !state.gives_back {
            state.gives_back = true;
            self.give_back_counted(state);
        }
        mem::take(&mut self.step)
    }

    /// Gives back what is counted of a request, once: to its lease if that is not over, else to the server as of its time.
    fn give_back_counted(&mut self, request: &mut State) {
        let mut by_time: Vec<((u16, SystemTime), Vec<Share>)> = Vec::new();
        for noted in &mut request.shares {
            if noted.is_leased
                && let Some((at, units)) = noted.counted.first().copied()
                && let Some(lease) = self.keys.get(&noted.share).and_then(|key| key.lease.as_mut())
                && lease.put_back(self.now, at, units)
            {
                noted.counted.clear();
            }
            let slot = slot_of(self.is_cluster, &noted.share.key);
            for (at, share) in noted.reduce(i64::MAX) {
                entry_of(&mut by_time, (slot, at)).push(share);
            }
        }
        by_time.into_iter().for_each(|((_, at), shares)| self.send(Command::back(shares, at)));
    }

    fn send(&mut self, command: Command) {
        if command.at.is_some() {
            // What goes back may be what a refusal lacked.
            for share in &command.shares {
                if let Some(key) = self.keys.get(share) {
                    key.refusal = None;
                }
            }
        }
        self.step.commands.push(command);
    }

    /// Corrects what is counted of shares, by index, to what was used. It is answered when all replies are in.
    ///
    /// What goes back is forgotten before it is sent, so it is never sent twice.
    pub fn settle(&mut self, request: &Request, used: impl IntoIterator<Item = (usize, i64)>) -> Step {
        let state = &mut *request.state();
        state.then.extend(used);
        if state.settling == 0 {
            self.begin_to_settle(request, state);
        }
        mem::take(&mut self.step)
    }

    fn begin_to_settle(&mut self, request: &Request, state: &mut State) {
        // The last cost of a share counts.
        let used: BTreeMap<usize, i64> = mem::take(&mut state.then).into_iter().collect();
        state.error = None;
        let mut changes: Vec<(Change, Vec<(usize, Share)>)> = Vec::new();
        for (index, units) in used.into_iter().filter(|_| !state.gives_back) {
            let noted = &mut state.shares[index];
            let slot = slot_of(self.is_cluster, &noted.share.key);
            let more = units - noted.units();
            // After a correction, the rest does not return to the lease.
            noted.is_leased &= more == 0;
            for (at, share) in noted.reduce(-more) {
                entry_of(&mut changes, (slot, Some(at))).push((index, share));
            }
            if more > 0 {
                let share = Share { cost: more, ..noted.share.clone() };
                entry_of(&mut changes, (slot, None)).push((index, share));
            }
        }
        state.settling = changes.len();
        if changes.is_empty() {
            self.step.answers.push((request.clone(), Ok(state.answer())));
        }
        for ((_, at), parts) in changes {
            let (indices, shares): (Vec<usize>, Vec<Share>) = parts.into_iter().unzip();
            let asked = Command::ask(shares, request, indices, None);
            let how = if at.is_none() { How::Force } else { How::Whole };
            self.send(Command { at, how, ..asked });
        }
    }

    fn note_settled(
        &mut self,
        request: &Request,
        indices: &[usize],
        command: &Command,
        reply: RedisResult<Verdicts>,
    ) {
        let state = &mut *request.state();
        state.settling -= 1;
        match reply {
            Err(error) => state.error = Some(error),
            Ok(reply) => {
                let mut rows = reply.rows.iter().map(|row| Verdict { limited: false, ..*row });
                for (index, share) in indices.iter().zip(&command.shares) {
                    let noted = &mut state.shares[*index];
                    noted.rows = Some(rows.by_ref().take(share.rules.quotas.len()).collect());
                    let is_more = command.how == How::Force;
                    noted.counted.extend(is_more.then_some((reply.at, share.cost)));
                }
            }
        }
        if state.gives_back {
            // The request was refused further in while it was settled.
            self.give_back_counted(state);
        }
        if state.settling > 0 {
        } else if state.then.is_empty() {
            let error = state.error.take();
            let answer = error.map_or_else(|| Ok(state.answer()), Err);
            self.step.answers.push((request.clone(), answer));
        } else {
            self.begin_to_settle(request, state);
        }
    }

    /// Remembers a key. If there are too many, another is forgotten, and its lease goes back.
    fn remembered(&mut self, share: &Share) {
        if let Some(oldest) = self.keys.remember(share, self.now) {
            self.let_go(&oldest);
        }
    }

    /// Gives back the lease of a key that is no longer remembered.
    fn let_go(&mut self, share: &Share) {
        self.end_lease(share);
        self.keys.leave(share);
    }

    fn end_lease(&mut self, share: &Share) {
        if let Some(at) = self.keys.get(share).and_then(|key| Some(key.lease.as_ref()?.at)) {
            self.give_back_beyond(share, at, 0);
        }
        if let Some(key) = self.keys.get(share) {
            key.lease = None;
        }
    }

    /// Gives back what is left beyond `kept` of the lease that was counted at this time.
    fn give_back_beyond(&mut self, share: &Share, at: SystemTime, kept: u64) {
        let lease = self.keys.get(share).and_then(|key| key.lease.as_mut());
        if let Some(lease) = lease.filter(|lease| lease.at == at && lease.left > kept) {
            let units = (lease.left - kept) as i64;
            lease.left = kept;
            let back = Command::back(vec![Share { cost: -units, ..share.clone() }], at);
            self.send(Command { in_flight: Some(0), ..back });
        }
    }

    /// Ends the leases whose time is over.
    pub fn tick(&mut self, now: Duration) -> Step {
        self.now = now;
        while self.next_tick().is_some_and(|ends| ends <= now)
            && let Some(Reverse((ends, name))) = self.ends.pop()
        {
            let share = self.keys.leased_until(&name, ends);
            share.into_iter().for_each(|share| self.end_lease(&share));
        }
        mem::take(&mut self.step)
    }

    /// When the next tick is due, if any is.
    #[must_use]
    pub fn next_tick(&self) -> Option<Duration> {
        self.ends.peek().map(|Reverse((ends, _))| *ends)
    }

    /// Gives back all leases. Nothing is leased any more.
    pub fn close(&mut self) -> Step {
        self.is_closed = true;
        self.keys.all().iter().for_each(|share| self.end_lease(share));
        self.ends.clear();
        mem::take(&mut self.step)
    }
}

/// The slot of a key: only keys of one slot can be asked for in one command. A single server counts as one slot.
fn slot_of(is_cluster: bool, key: &[u8]) -> u16 {
    if is_cluster { slot(key) } else { 0 }
}

/// A slot, and as of when units go back; `None` if more are counted.
type Change = (u16, Option<SystemTime>);

/// The value of a key, which is added if it is new. A list keeps the order, and is short.
fn entry_of<K: PartialEq, V: Default>(all: &mut Vec<(K, V)>, key: K) -> &mut V {
    let index = all.iter().position(|(other, _)| *other == key).unwrap_or_else(|| {
        all.push((key, V::default()));
        all.len() - 1
    });
    &mut all[index].1
}
