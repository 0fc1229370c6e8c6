//! What a process decides by itself: leases, remembered refusals, requests by several policies, places.
//!
//! [`Keys`] is pure: it is told the time and what happens, and says which commands to send and what to answer.
//! `clients/porting.md` has the rules, `clients/local.json` the cases.

mod command;
mod key;
pub mod place;
mod request;
mod share;
pub mod turns;
pub mod way;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap, VecDeque};
use std::mem;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use redis::{RedisError, RedisResult};

use crate::commands::{MAX_COST, Verdict, Verdicts};

use command::How;
use key::{Known, Lease, Refusal};
use request::Request;
pub(crate) use share::longest_wait;

pub use crate::commands::slot;
pub use command::{Answer, Command, Step};
pub use share::{RequestId, Rules, Share};

/// The most keys that a process remembers.
pub const MAX_KEYS: usize = 10_000;
/// The longest name, in bytes, that is remembered, so that memory is bounded.
const LONGEST_NAME: usize = 256;

/// The leases, remembered refusals and requests of a process.
#[derive(Debug)]
pub struct Keys {
    remember: Duration,
    is_cluster: bool,
    is_closed: bool,
    keys: Known,
    requests: HashMap<RequestId, Request>,
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
            keys: Known::new(max_keys),
            requests: HashMap::new(),
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
    pub fn take(&mut self, now: Duration, id: RequestId, shares: Vec<Share>) -> Step {
        self.now = now;
        let mut request = Request::new(shares);
        if self.refuse(&mut request) {
            (request.missing, request.gives_back) = (0, true);
            self.step.answers.push((id, Ok(request.answer())));
            self.requests.insert(id, request);
            return mem::take(&mut self.step);
        }
        let mut alone: Vec<(u16, Vec<usize>)> = Vec::new();
        for index in 0..request.shares.len() {
            if !self.take_leased(id, &mut request, index) {
                let slot = slot_of(self.is_cluster, &request.shares[index].share.key);
                entry_of(&mut alone, slot).push(index);
            }
        }
        for (_, indices) in alone {
            let shares = indices.iter().map(|index| request.shares[*index].share.clone()).collect();
            self.step.commands.push(Command::ask(shares, id, indices, None));
        }
        self.requests.insert(id, request);
        self.answer_if_whole(id);
        mem::take(&mut self.step)
    }

    /// Whether a remembered refusal refuses any share. Then none is asked for.
    fn refuse(&mut self, request: &mut Request) -> bool {
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
    fn take_leased(&mut self, id: RequestId, request: &mut Request, index: usize) -> bool {
        let (now, share) = (self.now, request.shares[index].share.clone());
        let Share { key, rules, cost } = &share;
        let is_leased =
            rules.units > 0 && *cost > 0 && !rules.is_hopeless(*cost) && key.len() <= LONGEST_NAME;
        if self.is_closed || !is_leased {
            return false;
        }
        self.remembered(&share);
        let Some(key) = self.keys.get(&share) else { return false };
        if request.is_served(now, index, key) {
            key.asked += cost.unsigned_abs();
            return true;
        }
        let size = if key.is_in_flight { 0 } else { key.size(now) };
        key.asked += cost.unsigned_abs();
        if key.is_in_flight {
            key.waiting.push_back((id, index));
        } else if size > 0 {
            self.ask(&share, id, index, Some(size));
        } else {
            return false;
        }
        true
    }

    /// Asks for a share with a lease of this size, in flight; with `None` alone. What is left of the lease goes back first.
    fn ask(&mut self, share: &Share, id: RequestId, index: usize, size: Option<u64>) {
        self.end_lease(share);
        if let Some(key) = self.keys.get(share) {
            key.is_in_flight = size.is_some();
        }
        let size = size.map(|size| size.min((MAX_COST - share.cost).unsigned_abs()));
        self.step.commands.push(Command::ask(vec![share.clone()], id, vec![index], size));
    }

    /// The reply to a command came in, or its error.
    pub fn reply(&mut self, now: Duration, command: &Command, reply: RedisResult<Verdicts>) -> Step {
        self.now = now;
        if let Some((id, indices)) = &command.request {
            if command.settles() {
                self.note_settled(*id, indices, command, reply);
            } else {
                self.note_reply(*id, indices, command, reply);
            }
        }
        mem::take(&mut self.step)
    }

    fn note_reply(
        &mut self,
        id: RequestId,
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
                indices.iter().for_each(|_| self.fail(id, &error));
                let key = if is_in_flight { self.keys.get(share) } else { None };
                let waiting = key.map(|key| mem::take(&mut key.waiting)).unwrap_or_default();
                waiting.into_iter().for_each(|(id, _)| self.fail(id, &error));
            }
            Ok(reply) if command.size() > 0 => self.deal(id, indices[0], share, reply.rows[0]),
            Ok(reply) => {
                let refusal = self.note(id, indices, &command.shares, &reply);
                if is_in_flight {
                    self.serve_waiting(share, refusal.as_ref());
                }
            }
        }
        if is_in_flight && self.keys.is_leaving(share) {
            self.let_go(share);
        }
    }

    fn fail(&mut self, id: RequestId, error: &RedisError) {
        if let Some(request) = self.requests.get_mut(&id) {
            request.missing -= 1;
            request.error = Some(error.clone());
        }
        self.answer_if_whole(id);
    }

    /// Notes the decision on shares that were asked for together. Returns the refusal of the last of them, if it refuses.
    fn note(
        &mut self,
        id: RequestId,
        indices: &[usize],
        shares: &[Share],
        reply: &Verdicts,
    ) -> Option<Refusal> {
        let mut rows = reply.rows.iter().copied();
        let mut refusal = None;
        for (index, share) in indices.iter().zip(shares) {
            let of_share: Vec<Verdict> = rows.by_ref().take(share.rules.quotas.len()).collect();
            // Who is not blocked yet is blocked next, by a longer refusal than this, which the next reply tells.
            let is_last = !share.rules.blocks() || of_share.last().is_some_and(|row| row.limited);
            let is_told = is_last && longest_wait(&of_share).is_some();
            refusal = is_told.then(|| Refusal::new(share.cost, of_share.clone(), self.now, self.remember));
            if let Some(request) = self.requests.get_mut(&id) {
                let units = if reply.limited { 0 } else { share.cost.max(0) };
                request.note(*index, of_share, units, Some(reply.at));
            }
            if share.cost != 0 {
                self.remember(share, refusal.as_ref());
            }
        }
        self.answer_if_whole(id);
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
    fn deal(&mut self, id: RequestId, index: usize, share: &Share, reply: Verdict) {
        let (now, mut refusal) = (self.now, None);
        let lease = Lease::new(reply, now, share.rules.ttl());
        let (taken, at) = (lease.left, lease.at);
        let Some(key) = self.keys.get(share) else { return };
        key.lease = Some(lease);
        match self.requests.get_mut(&id) {
            Some(request) if !request.gives_back => {
                if taken >= share.cost.unsigned_abs() {
                    key.refusal = None;
                    request.serve(now, index, key);
                } else if share.cost == 1 {
                    // The wait in the reply is that for one unit, as if it had been asked for alone.
                    request.note(index, vec![reply], 0, None);
                    refusal = Some(Refusal::new(1, vec![reply], now, self.remember));
                    self.remember(share, refusal.as_ref());
                } else {
                    self.ask(share, id, index, Some(0));
                }
            }
            Some(request) => request.missing -= 1,
            None => {}
        }
        self.answer_if_whole(id);
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
        for (id, index) in waiting.unwrap_or_default() {
            let (Some(request), Some(key)) = (self.requests.get_mut(&id), self.keys.get(share)) else {
                continue;
            };
            let cost = request.shares[index].share.cost;
            if request.gives_back {
                request.missing -= 1;
            } else if request.is_served(self.now, index, key) {
            } else if let Some(refusal) = refusal.filter(|refusal| refusal.holds_for(&share.rules, cost)) {
                request.note(index, refusal.told(self.now), 0, None);
            } else {
                unserved.push_back((id, index));
                continue;
            }
            self.answer_if_whole(id);
        }
        let Some(key) = self.keys.get(share) else { return };
        if key.is_in_flight || unserved.is_empty() {
            key.waiting = unserved;
            return;
        }
        let cost = |(id, index): &(RequestId, usize)| {
            self.requests.get(id).map_or(0, |request| request.shares[*index].share.cost)
        };
        let first = unserved.pop_front().unwrap_or_default();
        let share = Share { cost: cost(&first), ..share.clone() };
        let others = unserved.iter().map(|other| cost(other).unsigned_abs()).fold(0, u64::saturating_add);
        let size = Some(key.size(self.now).saturating_add(others)).filter(|size| *size > 0);
        key.waiting = unserved;
        self.ask(&share, first.0, first.1, size);
    }

    /// Answers a request when all its shares are decided. If any refuses, what the others took goes back.
    fn answer_if_whole(&mut self, id: RequestId) {
        let Some(request) = self.requests.get_mut(&id) else { return };
        if !request.gives_back && request.missing == 0 {
            let answer = request.answer();
            request.gives_back = answer.limited;
            let error = request.error.take().filter(|_| !answer.limited);
            self.step.answers.push((id, error.map_or(Ok(answer), Err)));
        }
        if request.gives_back {
            self.give_back_counted(id);
        }
        self.remove_if_left(id);
    }

    /// Gives back what a request took and will take: it was cancelled or refused elsewhere.
    pub fn give_back(&mut self, now: Duration, id: RequestId) -> Step {
        self.now = now;
        if let Some(request) = self.requests.get_mut(&id).filter(|request| !request.gives_back) {
            request.gives_back = true;
            self.give_back_counted(id);
        }
        mem::take(&mut self.step)
    }

    /// Forgets a request when its replies are in: nobody settles it or gives it back any more.
    pub fn leave_as_is(&mut self, id: RequestId) {
        if let Some(request) = self.requests.get_mut(&id) {
            request.is_left = true;
        }
        self.remove_if_left(id);
    }

    fn remove_if_left(&mut self, id: RequestId) {
        let is_over = |request: &Request| request.is_left && request.missing == 0 && request.settling == 0;
        if self.requests.get(&id).is_some_and(is_over) {
            self.requests.remove(&id);
        }
    }

    /// Gives back what is counted of a request, once: to its lease if that is not over, else to the server as of its time.
    fn give_back_counted(&mut self, id: RequestId) {
        let (now, is_cluster) = (self.now, self.is_cluster);
        let Some(request) = self.requests.get_mut(&id) else { return };
        let mut by_time: Vec<((u16, SystemTime), Vec<Share>)> = Vec::new();
        for noted in &mut request.shares {
            if noted.is_leased
                && let Some((at, units)) = noted.counted.first().copied()
                && let Some(lease) = self.keys.get(&noted.share).and_then(|key| key.lease.as_mut())
                && lease.put_back(now, at, units)
            {
                noted.counted.clear();
            }
            let slot = slot_of(is_cluster, &noted.share.key);
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
    pub fn settle(&mut self, id: RequestId, used: impl IntoIterator<Item = (usize, i64)>) -> Step {
        if let Some(request) = self.requests.get_mut(&id) {
            request.then.extend(used);
            if request.settling == 0 {
                self.begin_to_settle(id);
            }
        }
        mem::take(&mut self.step)
    }

    fn begin_to_settle(&mut self, id: RequestId) {
        let is_cluster = self.is_cluster;
        let Some(request) = self.requests.get_mut(&id) else { return };
        // The last cost of a share counts.
        let used: BTreeMap<usize, i64> = mem::take(&mut request.then).into_iter().collect();
        request.error = None;
        let mut changes: Vec<(Change, Vec<(usize, Share)>)> = Vec::new();
        for (index, units) in used.into_iter().filter(|_| !request.gives_back) {
            let noted = &mut request.shares[index];
            let slot = slot_of(is_cluster, &noted.share.key);
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
        request.settling = changes.len();
        if changes.is_empty() {
            self.step.answers.push((id, Ok(request.answer())));
        }
        for ((_, at), parts) in changes {
            let (indices, shares): (Vec<usize>, Vec<Share>) = parts.into_iter().unzip();
            let asked = Command::ask(shares, id, indices, None);
            let how = if at.is_none() { How::Force } else { How::Whole };
            self.send(Command { at, how, ..asked });
        }
    }

    fn note_settled(
        &mut self,
        id: RequestId,
        indices: &[usize],
        command: &Command,
        reply: RedisResult<Verdicts>,
    ) {
        let Some(request) = self.requests.get_mut(&id) else { return };
        request.settling -= 1;
        match reply {
            Err(error) => request.error = Some(error),
            Ok(reply) => {
                let mut rows = reply.rows.iter().map(|row| Verdict { limited: false, ..*row });
                for (index, share) in indices.iter().zip(&command.shares) {
                    let noted = &mut request.shares[*index];
                    noted.rows = Some(rows.by_ref().take(share.rules.quotas.len()).collect());
                    let is_more = command.how == How::Force;
                    noted.counted.extend(is_more.then_some((reply.at, share.cost)));
                }
            }
        }
        let (is_in, gives_back) = (request.settling == 0, request.gives_back);
        if gives_back {
            // The request was refused further in while it was settled.
            self.give_back_counted(id);
        }
        if let Some(request) = self.requests.get_mut(&id).filter(|_| is_in) {
            if request.then.is_empty() {
                let error = request.error.take();
                self.step.answers.push((id, error.map_or_else(|| Ok(request.answer()), Err)));
            } else {
                self.begin_to_settle(id);
            }
        }
        self.remove_if_left(id);
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
