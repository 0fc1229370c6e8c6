//! The keys of one process, and the requests that ask for units of them.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap, VecDeque};
use std::mem;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use lru::LruCache;
use redis::{RedisError, RedisResult};

use super::key::{Key, Lease, Refusal};
use super::request::{Asked, Command, Request, RequestId, Rules, Share, Step, longest_wait, slot};
use crate::{Decision, Verdict};

/// Keys that a process remembers.
pub const MAX_KEYS: usize = 10_000;
/// Longer names are not remembered, so that memory is bounded.
const LONGEST_NAME: usize = 256;
/// The largest cost that the commands accept.
const MAX_COST: u64 = (1 << 53) - 1;

/// Tells what to send and what to answer. Of the keys it remembers those that were used last.
#[derive(Debug)]
pub struct Keys {
    remember: Duration,
    /// Whether only keys of one slot can be asked for in one command.
    is_cluster: bool,
    is_closed: bool,
    /// By rules and name. The least recently used goes first.
    keys: LruCache<Arc<[u8]>, Key>,
    /// Those that went while a command of theirs was in flight.
    leaving: HashMap<Arc<[u8]>, Key>,
    requests: HashMap<RequestId, Request>,
    /// When leases end. They may have been used up, or have gone back, before.
    ends: BinaryHeap<Reverse<(Duration, Arc<[u8]>)>>,
    /// For a name that is looked up.
    name: Vec<u8>,
}

impl Keys {
    /// Repeats refusals until they are so old.
    #[must_use]
    pub fn new(remember: Duration, max_keys: NonZeroUsize, is_cluster: bool) -> Keys {
        Keys {
            remember,
            is_cluster,
            is_closed: false,
            keys: LruCache::sparse(max_keys),
            leaving: HashMap::new(),
            requests: HashMap::new(),
            ends: BinaryHeap::new(),
            name: Vec::new(),
        }
    }

    /// What a request of one share is told without asking, if that is known. It is a quicker [`take`](Keys::take).
    pub fn known(&mut self, now: Duration, key: &[u8], rules: &Rules, cost: i64) -> Option<Verdict> {
        let key = self.keys.get_mut(named(&mut self.name, rules, key))?;
        if let Some(verdict) = key.serve(now, cost) {
            key.asked += cost.unsigned_abs();
            return Some(verdict);
        }
        key.refused(now, cost)?.verdict(now)
    }

    /// A request comes.
    pub fn take(&mut self, now: Duration, id: RequestId, shares: Vec<Share>) -> Step {
        let mut step = Step::default();
        let mut request = Request::new(shares);
        if self.refuse(now, &mut request) {
            (request.missing, request.gives_back) = (0, true);
            step.answers.push((id, Ok(request.answer())));
            self.requests.insert(id, request);
            return step;
        }
        let mut alone: Vec<(u16, Vec<usize>)> = Vec::new();
        for place in 0..request.shares.len() {
            if self.take_leased(now, id, &mut request, place, &mut step) {
                continue;
            }
            let slot = self.slot(&request.shares[place].share.key);
            match alone.iter_mut().find(|(other, _)| *other == slot) {
                Some((_, places)) => places.push(place),
                None => alone.push((slot, vec![place])),
            }
        }
        for (_, places) in alone {
            let shares = places.iter().map(|place| request.shares[*place].share.clone()).collect();
            let request = Some((id, places));
            step.commands.push(Command { shares, request, in_flight: None, at: None, force: false });
        }
        self.requests.insert(id, request);
        self.answer_if_whole(now, id, &mut step);
        step
    }

    /// Whether refusals are remembered that hold. Then no share is asked for.
    fn refuse(&mut self, now: Duration, request: &mut Request) -> bool {
        let mut is_refused = false;
        for asked in &mut request.shares {
            let Share { key, rules, cost } = &asked.share;
            let Some(key) = self.keys.get(named(&mut self.name, rules, key)) else { continue };
            if !key.serves(now, *cost)
                && let Some(refusal) = key.refused(now, *cost)
            {
                asked.rows = Some(refusal.told(now));
                is_refused = true;
            }
        }
        is_refused
    }

    /// Whether a share is served from a lease, waits, or is asked for with a lease.
    fn take_leased(
        &mut self,
        now: Duration,
        id: RequestId,
        request: &mut Request,
        place: usize,
        step: &mut Step,
    ) -> bool {
        let share = request.shares[place].share.clone();
        let Share { rules, cost, .. } = &share;
        let is_leased = !self.is_closed && rules.units > 0 && *cost > 0 && !rules.is_hopeless(*cost);
        if !is_leased || share.key.len() > LONGEST_NAME {
            return false;
        }
        let Some(key) = self.remembered(now, &share, step) else { return false };
        if serve(now, key, request, place) {
            key.asked += cost.unsigned_abs();
        } else if key.is_in_flight {
            key.asked += cost.unsigned_abs();
            key.waiting.push_back((id, place));
        } else {
            let size = key.size(now);
            key.asked += cost.unsigned_abs();
            if size == 0 {
                return false;
            }
            self.ask(&share, id, place, Some(size), step);
        }
        true
    }

    /// With a lease of this size, in flight; or alone. What is left of the lease before goes back first.
    fn ask(&mut self, share: &Share, id: RequestId, place: usize, size: Option<u64>, step: &mut Step) {
        self.end_lease(share, step);
        if let Some(key) = self.key(share) {
            key.is_in_flight = size.is_some();
        }
        step.commands.push(Command {
            shares: vec![share.clone()],
            request: Some((id, vec![place])),
            in_flight: size.map(|size| size.min(MAX_COST - share.cost.unsigned_abs())),
            at: None,
            force: false,
        });
    }

    /// The reply to a command that awaits one, or the error with which it has failed.
    pub fn reply(&mut self, now: Duration, command: &Command, reply: RedisResult<Decision>) -> Step {
        let mut step = Step::default();
        let Some((id, places)) = &command.request else { return step };
        if command.settles() {
            self.note_settled(now, *id, places, command, reply, &mut step);
            return step;
        }
        let share = &command.shares[0];
        if command.in_flight.is_some()
            && let Some(key) = self.key(share)
        {
            key.is_in_flight = false;
        }
        match reply {
            Err(error) => self.fail(now, command, *id, places, &error, &mut step),
            Ok(reply) if command.size() > 0 => {
                self.deal(now, *id, places[0], share, reply.rows[0], &mut step)
            }
            Ok(reply) => {
                let refusal = self.note(now, *id, places, &command.shares, &reply, &mut step);
                if command.in_flight.is_some() {
                    self.serve_waiting(now, share, refusal.as_ref(), &mut step);
                }
            }
        }
        self.leave(command, &mut step);
        step
    }

    fn fail(
        &mut self,
        now: Duration,
        command: &Command,
        id: RequestId,
        places: &[usize],
        error: &RedisError,
        step: &mut Step,
    ) {
        let mut failed: Vec<RequestId> = places.iter().map(|_| id).collect();
        if command.in_flight.is_some()
            && let Some(key) = self.key(&command.shares[0])
        {
            failed.extend(mem::take(&mut key.waiting).into_iter().map(|(id, _)| id));
        }
        for id in failed {
            if let Some(request) = self.requests.get_mut(&id) {
                request.missing -= 1;
                request.error = Some(error.clone());
            }
            self.answer_if_whole(now, id, step);
        }
    }

    /// What was decided of shares as a whole; returns what refuses the last of them.
    fn note(
        &mut self,
        now: Duration,
        id: RequestId,
        places: &[usize],
        shares: &[Share],
        reply: &Decision,
        step: &mut Step,
    ) -> Option<Refusal> {
        let mut rows = reply.rows.iter().copied();
        let mut refusal = None;
        for (place, share) in places.iter().zip(shares) {
            let of_share: Vec<Verdict> = rows.by_ref().take(share.rules.quotas.len()).collect();
            let refuses = longest_wait(&of_share).is_some();
            refusal = refuses.then(|| Refusal::new(share.cost, of_share.clone(), now, self.remember));
            if let Some(request) = self.requests.get_mut(&id) {
                request.note(
                    *place,
                    of_share,
                    if reply.limited { 0 } else { share.cost.max(0) },
                    Some(reply.at),
                );
            }
            if share.cost != 0 {
                self.remember(now, share, refusal.as_ref(), step);
            }
        }
        self.answer_if_whole(now, id, step);
        refusal
    }

    /// The newest reply counts: if it allows, nothing is remembered.
    fn remember(&mut self, now: Duration, share: &Share, refusal: Option<&Refusal>, step: &mut Step) {
        match refusal.filter(|refusal| refusal.holds(now) && share.key.len() <= LONGEST_NAME) {
            Some(refusal) => {
                if let Some(key) = self.remembered(now, share, step) {
                    key.refusal = Some(refusal.clone());
                }
            }
            None => self.forget(share),
        }
    }

    fn forget(&mut self, share: &Share) {
        if let Some(key) = self.key(share) {
            key.refusal = None;
        }
    }

    /// Of what was taken beyond the cost those are served who waited. The rest is the lease.
    fn deal(
        &mut self,
        now: Duration,
        id: RequestId,
        place: usize,
        share: &Share,
        reply: Verdict,
        step: &mut Step,
    ) {
        let (taken, at) = (reply.taken.unwrap_or(0), reply.at.unwrap_or(SystemTime::UNIX_EPOCH));
        let (lasting, mut refusal) = (share.rules.lease, None);
        let lease = Lease::new(reply, at, taken.max(0).unsigned_abs(), now, lasting);
        let gives_back = self.requests.get(&id).is_none_or(|request| request.gives_back);
        let Some(key) = key_of(&mut self.keys, &mut self.leaving, &mut self.name, share) else { return };
        key.lease = Some(lease);
        let request = self.requests.get_mut(&id).filter(|_| !gives_back);
        if let Some(request) = request {
            if taken >= share.cost {
                if let Some(lease) = &mut key.lease {
                    let verdict = lease.serve(now, share.cost);
                    request.note(place, vec![verdict], share.cost, Some(at));
                    request.shares[place].is_leased = true;
                }
                key.refusal = None;
                self.answer_if_whole(now, id, step);
            } else if share.cost == 1 {
                // Of one unit the wait is its own.
                request.note(place, vec![reply], 0, None);
                refusal = Some(Refusal::new(1, vec![reply], now, self.remember));
                self.remember(now, share, refusal.as_ref(), step);
                self.answer_if_whole(now, id, step);
            } else {
                self.ask(share, id, place, Some(0), step);
            }
        } else {
            self.miss(now, id, step);
        }
        self.serve_waiting(now, share, refusal.as_ref(), step);
        let most = if self.is_closed { 0 } else { share.rules.units };
        self.give_back_beyond(share, at, most, step);
        let lease = self.key(share).and_then(|key| key.lease.as_mut()).filter(|lease| lease.at == at);
        if let Some(ends) = lease.map(|lease| {
            lease.granted = lease.left;
            (lease.left > 0).then_some(lease.ends)
        }) && let Some(ends) = ends
        {
            self.ends.push(Reverse((ends, named(&mut self.name, &share.rules, &share.key).into())));
        }
    }

    /// A share of a request that nobody awaits any more is in.
    fn miss(&mut self, now: Duration, id: RequestId, step: &mut Step) {
        if let Some(request) = self.requests.get_mut(&id) {
            request.missing -= 1;
        }
        self.answer_if_whole(now, id, step);
    }

    /// Serves or refuses the requests that waited for a reply, or asks for them.
    fn serve_waiting(&mut self, now: Duration, share: &Share, refusal: Option<&Refusal>, step: &mut Step) {
        let Some(key) = self.key(share) else { return };
        let mut unserved = VecDeque::new();
        for (id, place) in mem::take(&mut key.waiting) {
            let Some(request) = self.requests.get_mut(&id) else { continue };
            let Some(key) = key_of(&mut self.keys, &mut self.leaving, &mut self.name, share) else { return };
            let cost = request.shares[place].share.cost;
            if request.gives_back {
                request.missing -= 1;
            } else if !serve(now, key, request, place) {
                match refusal.filter(|refusal| refusal.holds_for(&share.rules, cost)) {
                    Some(refusal) => request.note(place, refusal.told(now), 0, None),
                    None => {
                        unserved.push_back((id, place));
                        continue;
                    }
                }
            }
            self.answer_if_whole(now, id, step);
        }
        let Some(key) = self.key(share) else { return };
        if key.is_in_flight {
            key.waiting = unserved;
        } else if let Some((id, place)) = unserved.pop_front() {
            let size = key.size(now);
            key.waiting = unserved;
            let others = self.waiting_units(share);
            let first = self.requests.get(&id).map(|request| request.shares[place].share.clone());
            let size = Some(size + others).filter(|size| *size > 0);
            self.ask(&first.unwrap_or_else(|| share.clone()), id, place, size, step);
        }
    }

    /// What all ask for that wait for a key.
    fn waiting_units(&mut self, share: &Share) -> u64 {
        let Some(key) = key_of(&mut self.keys, &mut self.leaving, &mut self.name, share) else { return 0 };
        let cost = |(id, place): &(RequestId, usize)| {
            self.requests.get(id).map_or(0, |request| request.shares[*place].share.cost.unsigned_abs())
        };
        key.waiting.iter().map(cost).fold(0, u64::saturating_add).min(MAX_COST)
    }

    /// When all its shares are. If any refuses, what the others took goes back.
    fn answer_if_whole(&mut self, now: Duration, id: RequestId, step: &mut Step) {
        let Some(request) = self.requests.get_mut(&id) else { return };
        if !request.gives_back && request.missing == 0 {
            let answer = request.answer();
            request.gives_back = answer.limited;
            let error = request.error.take().filter(|_| !answer.limited);
            step.answers.push((id, error.map_or(Ok(answer), Err)));
        }
        if request.gives_back {
            self.give_back_counted(now, id, step);
        }
        self.remove_if_left(id);
    }

    /// Nobody wants what a request took or takes: it is cancelled, refused further in, or does not pass undecided.
    pub fn give_back(&mut self, now: Duration, id: RequestId) -> Step {
        let mut step = Step::default();
        if let Some(request) = self.requests.get_mut(&id).filter(|request| !request.gives_back) {
            request.gives_back = true;
            self.give_back_counted(now, id, &mut step);
        }
        step
    }

    /// Nobody settles it or gives it back any more.
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

    /// What is counted, once: to its lease if that is there, else as of its time.
    fn give_back_counted(&mut self, now: Duration, id: RequestId, step: &mut Step) {
        let Some(request) = self.requests.get_mut(&id) else { return };
        let mut by_time: BTreeMap<(usize, SystemTime), Vec<Share>> = BTreeMap::new();
        let mut slots = Vec::new();
        for asked in &mut request.shares {
            if asked.is_leased && !asked.counted.is_empty() {
                let Share { key, rules, .. } = &asked.share;
                let known = self.keys.peek_mut(named(&mut self.name, rules, key));
                if known.is_some_and(|key| put_back(now, key, asked)) {
                    asked.counted.clear();
                }
            }
            let slot = if self.is_cluster { slot(&asked.share.key) } else { 0 };
            for (at, units) in asked.counted.drain(..).rev() {
                let order = slots.iter().position(|other| *other == slot).unwrap_or_else(|| {
                    slots.push(slot);
                    slots.len() - 1
                });
                by_time.entry((order, at)).or_default().push(Share { cost: -units, ..asked.share.clone() });
            }
        }
        for ((_, at), shares) in by_time {
            self.send_back(shares, at, step);
        }
    }

    fn send_back(&mut self, shares: Vec<Share>, at: SystemTime, step: &mut Step) {
        shares.iter().for_each(|share| self.forget(share));
        step.commands.push(Command::back(shares, at));
    }

    /// Corrects what is counted of shares, by their place, to what was used. It is answered when all replies are in.
    ///
    /// What goes back is forgotten before it is sent: it is not sent again.
    pub fn settle(&mut self, id: RequestId, used: impl IntoIterator<Item = (usize, i64)>) -> Step {
        let mut step = Step::default();
        if let Some(request) = self.requests.get_mut(&id) {
            request.then.extend(used);
            if request.settling == 0 {
                self.begin_to_settle(id, &mut step);
            }
        }
        step
    }

    fn begin_to_settle(&mut self, id: RequestId, step: &mut Step) {
        let is_cluster = self.is_cluster;
        let Some(request) = self.requests.get_mut(&id) else { return };
        // The last cost of a share counts.
        let used: BTreeMap<usize, i64> = mem::take(&mut request.then).into_iter().collect();
        request.error = None;
        let mut changes: Vec<((u16, Option<SystemTime>), Vec<(usize, i64)>)> = Vec::new();
        let mut change = |slot, at, place, units| match changes.iter_mut().find(|(of, _)| *of == (slot, at)) {
            Some((_, parts)) => parts.push((place, units)),
            None => changes.push(((slot, at), vec![(place, units)])),
        };
        for (place, units) in used.into_iter().filter(|_| !request.gives_back) {
            let asked = &mut request.shares[place];
            let slot = if is_cluster { slot(&asked.share.key) } else { 0 };
            let mut more = units - asked.units();
            if more != 0 {
                // What is left of it does not go back to the lease.
                asked.is_leased = false;
            }
            // The newest go back first.
            while more < 0
                && let Some((at, part)) = asked.counted.pop()
            {
                let given = part.min(-more);
                if part > given {
                    asked.counted.push((at, part - given));
                }
                change(slot, Some(at), place, -given);
                more += given;
            }
            if more > 0 {
                change(slot, None, place, more);
            }
        }
        request.settling = changes.len();
        if changes.is_empty() {
            step.answers.push((id, Ok(request.answer())));
        }
        for ((_, at), parts) in changes {
            let share = |(place, units): &(usize, i64)| {
                let share = self.requests.get(&id).map(|request| request.shares[*place].share.clone());
                share.map(|share| Share { cost: *units, ..share })
            };
            let shares: Vec<Share> = parts.iter().filter_map(share).collect();
            if at.is_some() {
                shares.iter().for_each(|share| self.forget(share));
            }
            let request = Some((id, parts.iter().map(|(place, _)| *place).collect()));
            step.commands.push(Command { shares, request, in_flight: None, at, force: at.is_none() });
        }
    }

    fn note_settled(
        &mut self,
        now: Duration,
        id: RequestId,
        places: &[usize],
        command: &Command,
        reply: RedisResult<Decision>,
        step: &mut Step,
    ) {
        let Some(request) = self.requests.get_mut(&id) else { return };
        request.settling -= 1;
        match reply {
            Err(error) => request.error = Some(error),
            Ok(reply) => {
                let mut rows = reply.rows.iter().map(|row| Verdict { limited: false, ..*row });
                for (place, share) in places.iter().zip(&command.shares) {
                    let asked = &mut request.shares[*place];
                    asked.rows = Some(rows.by_ref().take(share.rules.quotas.len()).collect());
                    if command.force {
                        asked.counted.push((reply.at, share.cost));
                    }
                }
            }
        }
        let (gives_back, is_in) = (request.gives_back, request.settling == 0);
        if gives_back {
            // It was refused further in meanwhile.
            self.give_back_counted(now, id, step);
        }
        let Some(request) = self.requests.get_mut(&id).filter(|_| is_in) else { return };
        if request.then.is_empty() {
            let error = request.error.take();
            step.answers.push((id, error.map_or_else(|| Ok(request.answer()), Err)));
        } else {
            self.begin_to_settle(id, step);
        }
        self.remove_if_left(id);
    }

    /// What is known of a key.
    fn key(&mut self, share: &Share) -> Option<&mut Key> {
        key_of(&mut self.keys, &mut self.leaving, &mut self.name, share)
    }

    /// A key that is used now, and remembered from now on. Another is forgotten if there are too many.
    fn remembered(&mut self, now: Duration, share: &Share, step: &mut Step) -> Option<&mut Key> {
        if self.keys.get(named(&mut self.name, &share.rules, &share.key)).is_none() {
            let name: Arc<[u8]> = (&self.name[..]).into();
            let key = self.leaving.remove(&name);
            let key = key.unwrap_or_else(|| Key::new(share.key.clone(), share.rules.clone(), now));
            if let Some((name, oldest)) = self.keys.push(name, key) {
                self.leaving.insert(name, oldest.clone());
                let Key { name: key, rules, is_in_flight, .. } = oldest;
                let share = Share { key, rules, cost: 0 };
                self.end_lease(&share, step);
                if !is_in_flight {
                    self.leaving.remove(named(&mut self.name, &share.rules, &share.key));
                }
            }
        }
        self.keys.get_mut(named(&mut self.name, &share.rules, &share.key))
    }

    /// A key that is no longer remembered goes after its last reply.
    fn leave(&mut self, command: &Command, step: &mut Step) {
        let share = &command.shares[0];
        if command.in_flight.is_none() || self.leaving.is_empty() {
            return;
        }
        let name = named(&mut self.name, &share.rules, &share.key);
        if self.leaving.get(name).is_some_and(|key| !key.is_in_flight) {
            self.end_lease(share, step);
            self.leaving.remove(named(&mut self.name, &share.rules, &share.key));
        }
    }

    fn end_lease(&mut self, share: &Share, step: &mut Step) {
        if let Some(at) = self.key(share).and_then(|key| Some(key.lease.as_ref()?.at)) {
            self.give_back_beyond(share, at, 0, step);
        }
        if let Some(key) = self.key(share) {
            key.lease = None;
        }
    }

    /// Gives back what is left of the lease of this time beyond `kept`.
    fn give_back_beyond(&mut self, share: &Share, at: SystemTime, kept: u64, step: &mut Step) {
        let lease = self.key(share).and_then(|key| key.lease.as_mut());
        let Some(lease) = lease.filter(|lease| lease.at == at && lease.left > kept) else { return };
        let units = lease.left - kept;
        lease.left = kept;
        self.send_back(vec![Share { cost: -(units as i64), ..share.clone() }], at, step);
    }

    /// Ends the leases whose time is over.
    pub fn tick(&mut self, now: Duration) -> Step {
        let mut step = Step::default();
        while self.next_tick().is_some_and(|ends| ends <= now) {
            let Some(Reverse((ends, name))) = self.ends.pop() else { break };
            let key = self.keys.peek(&name).or_else(|| self.leaving.get(&name));
            if let Some(key) = key.filter(|key| key.lease.as_ref().is_some_and(|lease| lease.ends == ends)) {
                let share = Share { key: key.name.clone(), rules: key.rules.clone(), cost: 0 };
                self.end_lease(&share, &mut step);
            }
        }
        step
    }

    /// When the next tick is due, if any is.
    #[must_use]
    pub fn next_tick(&self) -> Option<Duration> {
        self.ends.peek().map(|Reverse((ends, _))| *ends)
    }

    /// Gives back all leases. From now on nothing is leased.
    pub fn close(&mut self) -> Step {
        let mut step = Step::default();
        self.is_closed = true;
        let share = |key: &Key| Share { key: key.name.clone(), rules: key.rules.clone(), cost: 0 };
        let shares: Vec<Share> = self.keys.iter().rev().map(|(_, key)| share(key)).collect();
        for share in shares {
            self.end_lease(&share, &mut step);
        }
        self.ends.clear();
        step
    }

    /// On one server all keys are in one.
    fn slot(&self, key: &[u8]) -> u16 {
        if self.is_cluster { slot(key) } else { 0 }
    }
}

/// By what a key is remembered.
fn named<'a>(name: &'a mut Vec<u8>, rules: &Rules, key: &[u8]) -> &'a [u8] {
    name.clear();
    name.extend_from_slice(&rules.tag);
    name.extend_from_slice(key);
    name
}

fn key_of<'a>(
    known: &'a mut LruCache<Arc<[u8]>, Key>,
    leaving: &'a mut HashMap<Arc<[u8]>, Key>,
    name: &mut Vec<u8>,
    share: &Share,
) -> Option<&'a mut Key> {
    let name = named(name, &share.rules, &share.key);
    known.peek_mut(name).or_else(|| leaving.get_mut(name))
}

/// Serves a share from the lease, if that has the units.
fn serve(now: Duration, key: &mut Key, request: &mut Request, place: usize) -> bool {
    let cost = request.shares[place].share.cost;
    let Some(verdict) = key.serve(now, cost) else { return false };
    request.note(place, vec![verdict], cost, verdict.at);
    request.shares[place].is_leased = true;
    true
}

/// Whether what a request took of a lease is back in it.
fn put_back(now: Duration, key: &mut Key, asked: &Asked) -> bool {
    let units = asked.units().max(0).unsigned_abs();
    let is_its_own = |lease: &&mut Lease| {
        let is_same = asked.counted.first().is_some_and(|(at, _)| *at == lease.at);
        is_same && now < lease.ends && lease.left + units <= lease.granted
    };
    let lease = key.lease.as_mut().filter(is_its_own);
    lease.map(|lease| lease.left += units).is_some()
}
