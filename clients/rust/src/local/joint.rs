//! Decisions by several policies: over several keys, some of them leased, in one slot or many.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use super::{Answer, Command, Decider, Refusals, RequestId, Rules, Step};
use crate::{All, Decision, Verdict, cmd};

/// What a request takes by one policy.
#[derive(Clone, Debug)]
pub struct Share {
    /// The key.
    pub key: Arc<[u8]>,
    /// How it is counted, and how much of it is leased.
    pub rules: Arc<Rules>,
    /// Units.
    pub cost: i64,
}

/// What a request has taken of one share, to be given back if it is refused after all.
#[derive(Clone, Debug)]
pub struct Taken {
    /// By which policy of the request.
    pub policy: usize,
    /// What was taken.
    pub share: Share,
    /// As of when.
    pub at: Option<SystemTime>,
    /// Of which command; none of a lease.
    group: Option<usize>,
}

impl Taken {
    /// What was settled is no lease's any more, and goes back by itself.
    #[must_use]
    pub fn new(policy: usize, share: Share, at: SystemTime) -> Taken {
        Taken { policy, share, at: Some(at), group: Some(usize::MAX - policy) }
    }

    /// As of the later of two times.
    #[must_use]
    pub fn at_latest(self, at: Option<SystemTime>) -> Taken {
        Taken { at: self.at.max(at), ..self }
    }
}

/// What a request is told.
#[derive(Clone, Debug)]
pub struct JointAnswer {
    /// What was decided.
    pub outcome: Outcome,
    /// The quotas of each policy, if anything is known of them; of a leased one, its tightest.
    pub rows: Vec<Option<Vec<Verdict>>>,
    /// What it has taken.
    pub taken: Vec<Taken>,
}

/// What was decided.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Outcome {
    /// By all policies.
    Allowed,
    /// By one or more, and nothing is taken. The wait is the longest of theirs; without one, no wait helps.
    Refused(Option<Duration>),
    /// None has refused, and one could not be asked.
    Away,
}

/// Keys in one slot that are asked for in one command, or given back in one.
#[derive(Clone, Debug)]
pub struct Group {
    /// Which command of which request; none for a give-back, whose reply nobody waits for.
    pub asked: Option<(RequestId, usize)>,
    /// Its keys.
    pub shares: Vec<Share>,
    /// As of when units go back.
    pub at: Option<SystemTime>,
}

impl Group {
    /// The request.
    pub fn all(&self) -> All {
        let all = all(&self.shares, |share| share.cost);
        match self.at {
            Some(at) => all.at(at),
            None => all,
        }
    }
}

/// What follows from an event: commands, those of leases first, and answers.
#[derive(Debug, Default)]
pub struct JointStep {
    /// Commands of leases.
    pub keys: Vec<Command>,
    /// Commands of groups.
    pub groups: Vec<Group>,
    /// Answers to requests.
    pub answers: Vec<(RequestId, JointAnswer)>,
}

/// What becomes of a request that could not be decided.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Fate {
    /// It passes, and what it took stays counted.
    Passes,
    /// It does not, and what it took goes back.
    Fails,
}

/// The requests in flight, on top of the machines of leased keys and of the memory of refusals.
#[derive(Debug)]
pub struct Joint {
    decider: Decider,
    refusals: Refusals,
    /// Whether only keys of one slot can be asked for in one command.
    is_cluster: bool,
    undecided: Fate,
    requests: HashMap<RequestId, Request>,
    /// Which piece of which request the decider knows by this name.
    pieces: HashMap<RequestId, (RequestId, usize)>,
    last_piece: RequestId,
}

#[derive(Debug)]
struct Request {
    shares: Vec<Share>,
    pieces: Vec<Piece>,
    /// None while it is awaited.
    fate: Option<Fate>,
}

/// What is asked for in one command, or of one lease.
#[derive(Debug)]
struct Piece {
    /// Its shares, by their place in the request.
    shares: Vec<usize>,
    is_leased: bool,
    /// By which the decider knows it while it waits for a lease.
    name: Option<RequestId>,
    state: State,
}

#[derive(Debug)]
enum State {
    Waiting,
    Decided(Decided),
    Away,
}

#[derive(Debug)]
struct Decided {
    limited: bool,
    retry_after: Option<Duration>,
    at: Option<SystemTime>,
    rows: Vec<Verdict>,
}

impl From<Verdict> for Decided {
    fn from(verdict: Verdict) -> Decided {
        let Verdict { limited, retry_after, at, .. } = verdict;
        Decided { limited, retry_after, at, rows: vec![verdict] }
    }
}

impl From<Decision> for Decided {
    fn from(decision: Decision) -> Decided {
        let Decision { limited, retry_after, at, rows } = decision;
        Decided { limited, retry_after, at: Some(at), rows }
    }
}

impl Joint {
    /// No request is in flight.
    #[must_use]
    pub fn new(decider: Decider, refusals: Refusals, is_cluster: bool, undecided: Fate) -> Joint {
        Joint {
            decider,
            refusals,
            is_cluster,
            undecided,
            requests: HashMap::new(),
            pieces: HashMap::new(),
            last_piece: 0,
        }
    }

    /// A request. Its answer comes with this step or a later one.
    pub fn take(&mut self, now: Duration, id: RequestId, shares: Vec<Share>, step: &mut JointStep) {
        let pieces = self.pieces_of(&shares);
        let mut request = Request { shares, pieces, fate: None };
        for piece in &mut request.pieces {
            if let Some(refusal) = self.refusal(now, &request.shares, piece) {
                piece.state = State::Decided(refusal);
            }
        }
        if request.pieces.iter().any(|piece| matches!(piece.state, State::Decided(_))) {
            step.answers.push((id, request.answer()));
            return;
        }
        let mut keys = Step::default();
        for index in 0..request.pieces.len() {
            let shares = request.shares_of(&request.pieces[index]);
            if !request.pieces[index].is_leased {
                step.groups.push(Group { asked: Some((id, index)), shares, at: None });
                continue;
            }
            self.last_piece += 1;
            let name = self.last_piece;
            let Share { key, rules, cost } = &shares[0];
            match self.decider.take(now, key, rules, name, *cost, &mut keys) {
                Some(verdict) => request.pieces[index].state = State::Decided(verdict.into()),
                None => {
                    self.pieces.insert(name, (id, index));
                    request.pieces[index].name = Some(name);
                }
            }
        }
        self.requests.insert(id, request);
        self.settle(now, id, step);
        self.carry_out(now, keys, step);
    }

    /// One piece for each leased key, and one for all others that are in one slot.
    fn pieces_of(&self, shares: &[Share]) -> Vec<Piece> {
        let mut pieces: Vec<Piece> = Vec::new();
        let mut groups: Vec<(u16, Piece)> = Vec::new();
        for (index, Share { key, rules, cost }) in shares.iter().enumerate() {
            let new = |is_leased| Piece { shares: vec![index], is_leased, name: None, state: State::Waiting };
            if !self.decider.is_closed() && rules.is_leased(key, *cost) {
                pieces.push(new(true));
                continue;
            }
            let slot = if self.is_cluster { slot(key) } else { 0 };
            match groups.iter_mut().find(|(other, _)| *other == slot) {
                Some((_, group)) => group.shares.push(index),
                None => groups.push((slot, new(false))),
            }
        }
        pieces.extend(groups.into_iter().map(|(_, group)| group));
        pieces
    }

    /// The refusal that is remembered and holds for a piece.
    fn refusal(&mut self, now: Duration, shares: &[Share], piece: &Piece) -> Option<Decided> {
        if piece.is_leased {
            let Share { key, rules, cost } = &shares[piece.shares[0]];
            return self.decider.refusal(now, key, rules, cost.unsigned_abs()).map(Decided::from);
        }
        let shares: Vec<Share> = piece.shares.iter().map(|index| shares[*index].clone()).collect();
        self.refusals.known(now, &remembered_as(&shares), &costs(&shares)).map(Decided::from)
    }

    /// The reply to a command of a lease; none if it has failed.
    pub fn reply_to_key(
        &mut self,
        now: Duration,
        command: &Command,
        reply: Option<Verdict>,
        step: &mut JointStep,
    ) {
        let mut keys = Step::default();
        self.decider.reply(now, command, reply, &mut keys);
        self.carry_out(now, keys, step);
    }

    /// The reply to a command of a group; none if it has failed.
    pub fn reply_to_group(
        &mut self,
        now: Duration,
        group: &Group,
        reply: Option<Decision>,
        step: &mut JointStep,
    ) {
        let Some((id, piece)) = group.asked else { return };
        if let Some(decision) = &reply {
            let (name, costs) = (remembered_as(&group.shares), costs(&group.shares));
            self.refusals.remember(now, &name, &costs, decision);
        }
        let state = reply.map_or(State::Away, |decision| State::Decided(decision.into()));
        self.piece_is_in(now, id, piece, state, step);
    }

    /// Hands on what the machines of leased keys say.
    fn carry_out(&mut self, now: Duration, keys: Step, step: &mut JointStep) {
        step.keys.extend(keys.commands);
        for (name, answer) in keys.answers {
            let Some((id, piece)) = self.pieces.remove(&name) else { continue };
            let state = match answer {
                Answer::Verdict(verdict) => State::Decided(verdict.into()),
                Answer::Failed => State::Away,
            };
            self.piece_is_in(now, id, piece, state, step);
        }
    }

    fn piece_is_in(
        &mut self,
        now: Duration,
        id: RequestId,
        piece: usize,
        state: State,
        step: &mut JointStep,
    ) {
        let Some(request) = self.requests.get_mut(&id) else { return };
        request.pieces[piece].state = state;
        if request.fate == Some(Fate::Fails) {
            let taken = request.taken(piece);
            self.release(now, taken, step);
        }
        self.settle(now, id, step);
    }

    /// Answers a request of which everything is in.
    fn settle(&mut self, now: Duration, id: RequestId, step: &mut JointStep) {
        let is_whole =
            |request: &Request| request.pieces.iter().all(|piece| !matches!(piece.state, State::Waiting));
        if !self.requests.get(&id).is_some_and(is_whole) {
            return;
        }
        if let Some(request) = self.requests.remove(&id)
            && request.fate.is_none()
        {
            self.answer(now, id, &request, step);
        }
    }

    /// Answers it, and gives back what it does not keep.
    fn answer(&mut self, now: Duration, id: RequestId, request: &Request, step: &mut JointStep) -> Fate {
        let mut answer = request.answer();
        let fate = match answer.outcome {
            Outcome::Allowed => Fate::Passes,
            Outcome::Refused(_) => Fate::Fails,
            Outcome::Away => self.undecided,
        };
        if fate == Fate::Fails {
            let taken = std::mem::take(&mut answer.taken);
            self.release(now, taken, step);
        }
        step.answers.push((id, answer));
        fate
    }

    /// Nobody awaits the answer any more: what it takes goes back.
    pub fn cancel(&mut self, now: Duration, id: RequestId, step: &mut JointStep) {
        let Some(request) = self.requests.get(&id) else { return };
        let taken = request.all_taken();
        self.release(now, taken, step);
        self.leave(now, id, Fate::Fails, step);
    }

    /// The time is over to wait for Redis: it is answered by what is known.
    pub fn give_up(&mut self, now: Duration, id: RequestId, step: &mut JointStep) {
        let Some(request) = self.requests.remove(&id) else { return };
        let fate = self.answer(now, id, &request, step);
        self.requests.insert(id, request);
        self.leave(now, id, fate, step);
    }

    /// What becomes of the pieces of an answered request that are not in yet.
    fn leave(&mut self, now: Duration, id: RequestId, fate: Fate, step: &mut JointStep) {
        let Some(request) = self.requests.get_mut(&id) else { return };
        request.fate = Some(fate);
        if fate == Fate::Fails {
            for piece in request.pieces.iter_mut().filter(|piece| matches!(piece.state, State::Waiting)) {
                let Some(name) = piece.name else { continue };
                if self.decider.cancel(&request.shares[piece.shares[0]].key, name) {
                    self.pieces.remove(&name);
                    piece.state = State::Away;
                }
            }
        }
        self.settle(now, id, step);
    }

    /// Gives back what a request took that is refused after all.
    pub fn release(&mut self, now: Duration, taken: Vec<Taken>, step: &mut JointStep) {
        let mut keys = Step::default();
        let mut groups: Vec<(usize, Group)> = Vec::new();
        for Taken { share, at, group, .. } in taken {
            let Some(at) = at.filter(|_| share.cost > 0) else { continue };
            let Some(group) = group else {
                self.decider.put_back(now, &share, at, &mut keys);
                continue;
            };
            let share = Share { cost: -share.cost, ..share };
            match groups.iter_mut().find(|(other, _)| *other == group) {
                Some((_, group)) => group.shares.push(share),
                None => groups.push((group, Group { asked: None, shares: vec![share], at: Some(at) })),
            }
        }
        step.keys.extend(keys.commands);
        step.groups.extend(groups.into_iter().map(|(_, group)| group));
    }

    /// What was refused of a request for these shares may be over.
    pub fn forget(&mut self, shares: &[Share]) {
        for piece in self.pieces_of(shares).into_iter().filter(|piece| !piece.is_leased) {
            let group: Vec<Share> = piece.shares.iter().map(|index| shares[*index].clone()).collect();
            self.refusals.forget(&remembered_as(&group));
        }
    }

    /// Ends the leases whose time is over.
    pub fn tick(&mut self, now: Duration, step: &mut JointStep) {
        let mut keys = Step::default();
        self.decider.tick(now, &mut keys);
        step.keys.extend(keys.commands);
    }

    /// When the next tick is due, if any is.
    #[must_use]
    pub fn next_tick(&self) -> Option<Duration> {
        self.decider.next_tick()
    }

    /// Gives back all leases. From now on nothing is leased.
    pub fn close(&mut self, step: &mut JointStep) {
        let mut keys = Step::default();
        self.decider.close(&mut keys);
        step.keys.extend(keys.commands);
    }
}

impl Request {
    fn shares_of(&self, piece: &Piece) -> Vec<Share> {
        piece.shares.iter().map(|index| self.shares[*index].clone()).collect()
    }

    /// What a piece has taken.
    fn taken(&self, index: usize) -> Vec<Taken> {
        let piece = &self.pieces[index];
        let State::Decided(Decided { limited: false, at, .. }) = &piece.state else { return Vec::new() };
        let group = (!piece.is_leased).then_some(index);
        let taken =
            |policy: &usize| Taken { policy: *policy, share: self.shares[*policy].clone(), at: *at, group };
        piece.shares.iter().map(taken).collect()
    }

    fn all_taken(&self) -> Vec<Taken> {
        (0..self.pieces.len()).flat_map(|index| self.taken(index)).collect()
    }

    /// What it is told by what is in.
    fn answer(&self) -> JointAnswer {
        let decided = || {
            self.pieces.iter().filter_map(|piece| match &piece.state {
                State::Decided(decided) => Some((piece, decided)),
                State::Waiting | State::Away => None,
            })
        };
        let refusals: Vec<_> = decided().filter(|(_, decided)| decided.limited).collect();
        let outcome = if !refusals.is_empty() {
            // One for which no wait helps has the longest.
            let waits: Option<Vec<Duration>> =
                refusals.iter().map(|(_, refusal)| refusal.retry_after).collect();
            Outcome::Refused(waits.and_then(|waits| waits.into_iter().max()))
        } else if decided().count() < self.pieces.len() {
            Outcome::Away
        } else {
            Outcome::Allowed
        };
        let is_refused = matches!(outcome, Outcome::Refused(_));
        let mut rows = vec![None; self.shares.len()];
        for (piece, decided) in decided() {
            let mut of_piece = decided.rows.iter().copied();
            for index in &piece.shares {
                let Share { rules, cost, .. } = &self.shares[*index];
                let count = if piece.is_leased { 1 } else { rules.quotas.len() };
                // What goes back is left again.
                let back = if is_refused && !decided.limited { cost.max(&0).unsigned_abs() } else { 0 };
                let row = |row: Verdict| Verdict { remaining: row.remaining + back, ..row };
                rows[*index] = Some(of_piece.by_ref().take(count).map(row).collect());
            }
        }
        JointAnswer { outcome, rows, taken: self.all_taken() }
    }
}

/// A refusal is remembered by keys, algorithms and limits, without costs.
fn remembered_as(shares: &[Share]) -> Vec<u8> {
    cmd::all(&all(shares, |_| 0)).get_packed_command()
}

fn all(shares: &[Share], cost: impl Fn(&Share) -> i64) -> All {
    shares.iter().fold(All::new(), |all, share| {
        all.key(&share.key[..], share.rules.algorithm, &share.rules.quotas, cost(share))
    })
}

/// Of each row.
fn costs(shares: &[Share]) -> Vec<i64> {
    shares.iter().flat_map(|share| std::iter::repeat_n(share.cost, share.rules.quotas.len())).collect()
}

/// The slot of a key on a cluster: the CRC16 of its hash tag, or of all of it.
#[must_use]
pub fn slot(key: &[u8]) -> u16 {
    let tag = key.iter().position(|byte| *byte == b'{').and_then(|start| {
        let rest = &key[start + 1..];
        rest.iter().position(|byte| *byte == b'}').filter(|length| *length > 0).map(|length| &rest[..length])
    });
    let crc = tag.unwrap_or(key).iter().fold(0u16, |crc, byte| {
        (0..8).fold(
            crc ^ u16::from(*byte) << 8,
            |crc, _| if crc & 0x8000 == 0 { crc << 1 } else { crc << 1 ^ 0x1021 },
        )
    });
    crc % 16_384
}
