//! One key of one process.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use super::{Answer, Command, MAX_COST, Purpose, RequestId, Rules, Settings, Step, whole_ms};
use crate::Verdict;

/// The lease and the last refusal of a key, and the requests that wait.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
pub struct Key {
    name: Arc<[u8]>,
    rules: Arc<Rules>,
    /// Units of the next lease.
    wanted: u64,
    lease: Option<Lease>,
    refusal: Option<Refusal>,
    flight: Option<Flight>,
    /// Requests that a reply has refused without telling their wait.
    asked: Vec<Asked>,
    waiting: VecDeque<Request>,
}

/// Units that are counted and not yet used. There may be none left, or none from the start.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
struct Lease {
    left: u64,
    /// Units that it had at first.
    granted: u64,
    ends: Duration,
    /// What the last request was told that got units of it.
    verdict: Verdict,
    replied: Duration,
    /// Whether all of the units that were asked for were there.
    is_whole: bool,
}

#[derive(Clone, Debug, Eq, Hash, PartialEq)]
struct Refusal {
    /// Requests of this cost and more are refused.
    cost: u64,
    verdict: Verdict,
    replied: Duration,
    until: Duration,
}

#[derive(Clone, Debug, Eq, Hash, PartialEq)]
struct Flight {
    sent: Duration,
    requests: Vec<Request>,
    /// Units that were asked for on their behalf.
    cost: u64,
    /// Units that were asked for beyond those.
    lease: u64,
}

/// Requests of one cost, which are asked for in one command of that cost.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
struct Asked {
    /// The first of them, who may have left.
    name: RequestId,
    cost: u64,
    requests: Vec<Request>,
}

#[derive(Clone, Debug, Eq, Hash, PartialEq)]
struct Request {
    id: RequestId,
    cost: u64,
    rules: Arc<Rules>,
}

impl Key {
    /// A key of which nothing is known.
    #[must_use]
    pub fn new(name: Arc<[u8]>, rules: Arc<Rules>) -> Key {
        let (asked, waiting) = (Vec::new(), VecDeque::new());
        Key { name, rules, wanted: 0, lease: None, refusal: None, flight: None, asked, waiting }
    }

    /// Whether no reply is awaited for it.
    #[must_use]
    pub fn is_at_rest(&self) -> bool {
        self.flight.is_none() && self.asked.is_empty()
    }

    /// When its lease ends, if units of it are left then.
    #[must_use]
    pub fn ends(&self) -> Option<Duration> {
        self.lease.as_ref().filter(|lease| lease.left > 0).map(|lease| lease.ends)
    }

    /// Units that are counted and not yet used.
    #[must_use]
    pub fn left(&self) -> u64 {
        self.lease.as_ref().map_or(0, |lease| lease.left)
    }

    /// The verdict, if it is known; else the request waits.
    ///
    /// The cost is positive, and no limit is smaller.
    pub fn take(
        &mut self,
        now: Duration,
        settings: Settings,
        rules: &Arc<Rules>,
        id: RequestId,
        cost: u64,
        step: &mut Step,
    ) -> Option<Verdict> {
        if let Some(verdict) = self.known(now, rules, cost) {
            return Some(verdict);
        }
        self.waiting.push_back(Request { id, cost, rules: rules.clone() });
        if self.flight.is_none() {
            self.ask(now, settings, step);
        }
        None
    }

    /// What a request is told without asking.
    ///
    /// The cost is positive, and no limit is smaller.
    pub fn known(&mut self, now: Duration, rules: &Arc<Rules>, cost: u64) -> Option<Verdict> {
        if !self.has_rules(rules) {
            return None;
        }
        self.leased(now, cost).or_else(|| self.refused(now, cost as i64))
    }

    /// With other rules it is as if nothing were known.
    fn set_rules(&mut self, rules: &Arc<Rules>, step: &mut Step) {
        if !self.has_rules(rules) {
            self.end_lease(step);
            let (asked, waiting) = (std::mem::take(&mut self.asked), std::mem::take(&mut self.waiting));
            *self = Key { asked, waiting, ..Key::new(self.name.clone(), rules.clone()) };
        }
    }

    /// Whether it is counted by these rules.
    #[must_use]
    pub fn has_rules(&self, rules: &Arc<Rules>) -> bool {
        Arc::ptr_eq(&self.rules, rules) || self.rules == *rules
    }

    /// Takes units of the lease.
    fn leased(&mut self, now: Duration, cost: u64) -> Option<Verdict> {
        let lease = self.lease.as_mut()?;
        if cost > lease.left || now >= lease.ends {
            return None;
        }
        lease.left -= cost;
        lease.verdict.remaining -= cost;
        // A refusal that came with the lease begins beyond it.
        if let Some(refusal) = &mut self.refusal
            && !refusal.verdict.is_hopeless()
        {
            refusal.cost = refusal.cost.saturating_sub(cost);
            refusal.verdict.remaining = refusal.verdict.remaining.saturating_sub(cost);
        }
        let verdict = Verdict { taken: Some(cost as i64), ..lease.verdict };
        Some(later(verdict, now - lease.replied))
    }

    /// What a request is refused with that the lease does not serve.
    #[must_use]
    pub fn refused_beyond_lease(&self, now: Duration, rules: &Arc<Rules>, cost: u64) -> Option<Verdict> {
        let is_served = self.lease.as_ref().is_some_and(|lease| cost <= lease.left && now < lease.ends);
        if is_served || !self.has_rules(rules) { None } else { self.refused(now, cost as i64) }
    }

    /// Takes units back into the lease that they are of, as if they had not been handed out.
    pub fn put_back(&mut self, now: Duration, rules: &Arc<Rules>, cost: u64, at: SystemTime) -> bool {
        if !self.has_rules(rules) {
            return false;
        }
        let is_its_own = |lease: &&mut Lease| {
            lease.verdict.at == Some(at) && now < lease.ends && lease.left + cost <= lease.granted
        };
        let Some(lease) = self.lease.as_mut().filter(is_its_own) else { return false };
        lease.left += cost;
        lease.verdict.remaining += cost;
        if let Some(refusal) = &mut self.refusal
            && refusal.replied == lease.replied
            && !refusal.verdict.is_hopeless()
        {
            refusal.cost += cost;
            refusal.verdict.remaining += cost;
        }
        true
    }

    /// The refusal that is remembered, if it holds for this cost.
    #[must_use]
    pub fn refused(&self, now: Duration, cost: i64) -> Option<Verdict> {
        let refusal = self.refusal.as_ref()?;
        let holds = now < refusal.until
            && cost >= refusal.cost as i64
            && self.rules.is_hopeless(cost) == refusal.verdict.is_hopeless();
        holds.then(|| later(refusal.verdict, now - refusal.replied))
    }

    /// Asks for the requests that wait and whose rules are those of the first, and for a lease.
    fn ask(&mut self, now: Duration, settings: Settings, step: &mut Step) {
        let Some(first) = self.waiting.front() else { return };
        let rules = first.rules.clone();
        self.set_rules(&rules, step);
        match &self.lease {
            // A request has found it used up before its time.
            Some(lease) if now < lease.ends => {
                let left = lease.left;
                if lease.is_whole {
                    self.wanted = (2 * self.wanted).max(1);
                }
                self.give_back(left, step);
                self.lease = None;
            }
            _ => self.end_lease(step),
        }
        let mut requests = Vec::new();
        let mut cost = 0;
        while let Some(request) = self.waiting.front()
            && self.has_rules(&request.rules)
            && cost + request.cost <= MAX_COST
        {
            cost += request.cost;
            requests.extend(self.waiting.pop_front());
        }
        self.wanted = self.wanted.min(settings.units).min(self.rules.units);
        let lease = self.wanted.min(MAX_COST - cost);
        step.commands.push(Command {
            key: self.name.clone(),
            rules: self.rules.clone(),
            cost: (cost + lease) as i64,
            // Alone and without a lease a request is decided as a whole, with the wait of the whole.
            partial: lease > 0 || requests.len() > 1 || cost == 1,
            at: None,
            purpose: Purpose::Flight,
        });
        self.flight = Some(Flight { sent: now, requests, cost, lease });
    }

    /// The reply to the command in flight.
    pub fn reply(&mut self, now: Duration, settings: Settings, reply: Verdict, step: &mut Step) {
        let Some(flight) = self.flight.take() else { return };
        let mut rest = match reply.taken {
            Some(taken) => taken.unsigned_abs(),
            None if reply.limited => 0,
            None if reply.at.is_some() => flight.cost,
            // It stays counted for whoever no longer awaits it: nobody can tell as of which time to give it back.
            None => flight.requests.iter().map(|request| request.cost).sum(),
        };
        let told = |rest| Verdict { remaining: reply.remaining + rest, ..reply };
        let mut refused = Vec::new();
        for request in flight.requests {
            if request.cost > rest {
                refused.push(request);
                continue;
            }
            rest -= request.cost;
            let taken = reply.taken.map(|_| request.cost as i64);
            step.answer(request.id, Verdict { limited: false, retry_after: None, taken, ..told(rest) });
        }
        let refusal = Verdict { taken: reply.taken.map(|_| 0), ..told(rest) };
        let (told_exactly, others): (Vec<Request>, Vec<Request>) =
            refused.into_iter().partition(|request| reply.taken.is_none() || request.cost == rest + 1);
        for request in told_exactly {
            step.answer(request.id, refusal);
        }
        let refused = if reply.taken.is_some() { rest + 1 } else { flight.cost };
        self.remember(now, settings, told(rest), refused);

        let left = rest.min(flight.lease).min(settings.units);
        self.lease = Some(Lease {
            left,
            granted: left,
            ends: flight.sent + self.rules.lease,
            verdict: Verdict { limited: false, retry_after: None, ..told(rest) },
            replied: now,
            is_whole: !reply.limited,
        });
        self.give_back(rest - left, step);
        if now >= flight.sent + self.rules.lease {
            self.end_lease(step);
        }
        self.ask_for_waits(others, step);
        self.serve_waiting(now, settings, step);
    }

    /// Asks for the waits of refused requests, with one command for each cost.
    fn ask_for_waits(&mut self, refused: Vec<Request>, step: &mut Step) {
        let before = self.asked.len();
        for request in refused {
            match self.asked[before..].iter_mut().find(|asked| asked.cost == request.cost) {
                Some(asked) => asked.requests.push(request),
                None => {
                    step.commands.push(Command {
                        key: self.name.clone(),
                        rules: request.rules.clone(),
                        cost: request.cost as i64,
                        partial: false,
                        at: None,
                        purpose: Purpose::Asked(request.id),
                    });
                    self.asked.push(Asked { name: request.id, cost: request.cost, requests: vec![request] });
                }
            }
        }
    }

    /// The reply to such a command, or none if it has failed.
    pub fn reply_to_asked(
        &mut self,
        now: Duration,
        settings: Settings,
        command: &Command,
        reply: Option<Verdict>,
        step: &mut Step,
    ) {
        let is_it = |asked: &Asked| {
            Purpose::Asked(asked.name) == command.purpose && asked.cost as i64 == command.cost
        };
        let Some(position) = self.asked.iter().position(is_it) else { return };
        let mut requests = self.asked.remove(position).requests.into_iter();
        let Some(reply) = reply else {
            step.answers.extend(requests.map(|request| (request.id, Answer::Failed)));
            return;
        };
        self.reply_alone(now, settings, command, reply, step);
        if reply.limited {
            requests.for_each(|request| step.answer(request.id, reply));
            return;
        }
        match requests.next() {
            Some(first) => step.answer(first.id, reply),
            None => step.give_back(command, reply.at),
        }
        requests.rev().for_each(|request| self.waiting.push_front(request));
        if self.flight.is_none() {
            self.serve_waiting(now, settings, step);
        }
    }

    /// The command in flight has failed. Units that it may have counted stay counted.
    pub fn fail(&mut self, now: Duration, settings: Settings, step: &mut Step) {
        let Some(flight) = self.flight.take() else { return };
        step.answers.extend(flight.requests.iter().map(|request| (request.id, Answer::Failed)));
        // So that an outage loses few units.
        self.wanted = 0;
        self.serve_waiting(now, settings, step);
    }

    /// Serves the requests that wait, in order, and asks for those that it cannot tell.
    fn serve_waiting(&mut self, now: Duration, settings: Settings, step: &mut Step) {
        let mut unknown = VecDeque::new();
        for request in std::mem::take(&mut self.waiting) {
            let known = if unknown.is_empty() {
                self.known(now, &request.rules, request.cost)
            } else if self.has_rules(&request.rules) {
                self.refused(now, request.cost as i64)
            } else {
                None
            };
            match known {
                Some(verdict) => step.answer(request.id, verdict),
                None => unknown.push_back(request),
            }
        }
        self.waiting = unknown;
        self.ask(now, settings, step);
    }

    /// What was decided of a request that was sent by itself.
    pub fn reply_alone(
        &mut self,
        now: Duration,
        settings: Settings,
        command: &Command,
        reply: Verdict,
        step: &mut Step,
    ) {
        if reply.limited && self.flight.is_none() {
            self.set_rules(&command.rules, step);
        }
        if command.cost != 0 && self.has_rules(&command.rules) {
            self.remember(now, settings, reply, command.cost.unsigned_abs());
        }
    }

    /// The newest reply counts: what it refuses is remembered, and what was remembered before is forgotten.
    fn remember(&mut self, now: Duration, settings: Settings, reply: Verdict, cost: u64) {
        let remember = match reply.retry_after {
            Some(wait) => settings.remember.min(wait),
            None => settings.remember,
        };
        let verdict = Verdict { taken: reply.taken.map(|_| 0), ..reply };
        let refusal = Refusal { cost, verdict, replied: now, until: now.saturating_add(remember) };
        self.refusal = (reply.limited && !remember.is_zero()).then_some(refusal);
    }

    /// Nobody awaits the answer any more. Tells whether it was awaited.
    pub fn cancel(&mut self, id: RequestId) -> bool {
        let requests = self.waiting.len();
        self.waiting.retain(|request| request.id != id);
        let mut is_found = self.waiting.len() < requests;
        let flight = self.flight.iter_mut().map(|flight| &mut flight.requests);
        for requests in flight.chain(self.asked.iter_mut().map(|asked| &mut asked.requests)) {
            is_found |= requests.extract_if(.., |request| request.id == id).count() > 0;
        }
        is_found
    }

    /// Ends the lease if it is time.
    pub fn tick(&mut self, now: Duration, step: &mut Step) {
        if self.ends().is_some_and(|ends| now >= ends) {
            self.end_lease(step);
        }
    }

    /// Gives back what is left of the lease; then the next one is half as large.
    pub fn end_lease(&mut self, step: &mut Step) {
        let left = self.left();
        if left > 0 {
            self.wanted /= 2;
            self.give_back(left, step);
        }
        self.lease = None;
    }

    /// Gives back units of the lease as of the time when they were counted.
    fn give_back(&self, units: u64, step: &mut Step) {
        let at = self.lease.as_ref().and_then(|lease| lease.verdict.at);
        if units > 0 && at.is_some() {
            step.commands.push(Command {
                key: self.name.clone(),
                rules: self.rules.clone(),
                cost: -(units as i64),
                partial: false,
                at,
                purpose: Purpose::GiveBack,
            });
        }
    }
}

/// What is told of a decision after so long.
fn later(verdict: Verdict, gone: Duration) -> Verdict {
    let gone = whole_ms(gone);
    Verdict {
        retry_after: verdict.retry_after.map(|wait| wait.saturating_sub(gone)),
        reset_after: verdict.reset_after.saturating_sub(gone),
        ..verdict
    }
}
