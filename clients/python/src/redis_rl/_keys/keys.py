"""The keys that a process knows, and the requests for their units."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from heapq import heappop, heappush

from .._commands.wire import MAX_COST, Verdict, Verdicts, tightest
from .._commands.wire import Key as Name
from .command import Command, Step
from .key import Key
from .lease import Lease, Refusal
from .request import Request
from .shares import Rules, Share, refuses

MAX_KEYS = 10_000
LONGEST_BYTES = 256


class Keys:
    """Decides what to send and what to answer. It remembers the keys that were used last."""

    def __init__(
        self, remember_ms: int, max_keys: int = MAX_KEYS, *, slot_of: Callable[[Name], int] | None = None
    ) -> None:
        """Repeats refusals for at most ``remember_ms``. On a cluster ``slot_of`` returns the slot of a key."""
        self._remember_ms, self._max_keys = remember_ms, max_keys
        self._slot_of = slot_of
        self._is_closed = False
        # Ordered by use, the least recently used first.
        self._keys: OrderedDict[tuple[Name, Rules], Key] = OrderedDict()
        # A heap of leases by their end. Some may be used up, or have gone back already. The count breaks ties.
        self._ends: list[tuple[int, int, Key, Lease]] = []
        self._leases = 0

    def known(self, now_ms: int, name: Name, rules: Rules, cost: int) -> Verdict | None:
        """Returns what a request of one share is told without asking, if that is known: a quick :meth:`take`."""
        known_by = (name, rules)
        key = self._keys.get(known_by)
        if key is None:
            return None
        self._keys.move_to_end(known_by)
        lease = key.lease
        if lease is not None and 0 < cost <= lease.left and now_ms < lease.ends_ms:
            key.asked += cost
            return lease.serve(now_ms, cost)
        rows = key.refused(now_ms, cost)
        return None if rows is None else tightest(rows)

    def take(self, now_ms: int, request: Request) -> Step:
        step = Step([], [])
        keys = [self._used(share) for share in request.shares]
        if self._refuse(now_ms, request, keys):
            step.answers.append((request, request.answer()))
            return step
        alone: dict[int, list[int]] = {}
        for index, (share, key) in enumerate(zip(request.shares, keys, strict=True)):
            if not self._take_leased(now_ms, request, index, key, step):
                alone.setdefault(self._slot(share.key), []).append(index)
        for indices in alone.values():
            step.commands.append(Command([request.shares[index] for index in indices], request, indices))
        self._answer_if_whole(now_ms, request, step)
        return step

    def _refuse(self, now_ms: int, request: Request, keys: list[Key | None]) -> bool:
        """Whether a remembered refusal holds for any share. Then no share is asked for."""
        is_refused = False
        for index, (share, key) in enumerate(zip(request.shares, keys, strict=True)):
            if key and not (share.cost > 0 and key.serves(now_ms, share.cost)):
                rows = key.refused(now_ms, share.cost)
                if rows is not None:
                    request.rows[index] = rows
                    is_refused = True
        request.gives_back = is_refused
        return is_refused

    def _take_leased(self, now_ms: int, request: Request, index: int, key: Key | None, step: Step) -> bool:
        """Serves a share from a lease, lets it wait for one, or asks for one. Else returns False."""
        share = request.shares[index]
        if self._is_closed or not share.rules.units or share.cost <= 0 or share.is_hopeless or _is_long(share.key):
            return False
        key = key or self._remembered(now_ms, share, step)
        if key.serves(now_ms, share.cost):
            key.asked += share.cost
            self._serve(now_ms, key, request, index)
        elif key.in_flight:
            key.asked += share.cost
            key.waiting.append((request, index))
        else:
            size = key.size(now_ms)
            key.asked += share.cost
            if not size:
                return False
            self._ask(key, request, index, size, step)
        return True

    def _serve(self, now_ms: int, key: Key, request: Request, index: int) -> None:
        assert key.lease
        cost = request.shares[index].cost
        request.note(index, (key.lease.serve(now_ms, cost),), cost, key.lease.at, key.lease)

    def _ask(self, key: Key, request: Request, index: int, size: int, step: Step) -> None:
        """Asks for a share and a lease of this size. What is left of the previous lease goes back first."""
        self._end_lease(key, step)
        share = request.shares[index]
        command = Command([share], request, [index], key=key if size else None, size=min(size, MAX_COST - share.cost))
        key.in_flight = size > 0
        step.commands.append(command)

    def reply(self, now_ms: int, command: Command, reply: Verdicts | Exception) -> Step:
        """Takes the reply to a command that awaits one, or the error with which the command has failed.

        A second reply does nothing: whoever was interrupted may not know whether it has told the first.
        """
        step = Step([], [])
        request, key = command.request, command.key
        assert request
        if command.is_over:
            return step
        command.is_over = True
        if command.settles:
            self._note_settled(now_ms, request, command, reply, step)
            return step
        if key:
            key.in_flight = False
        if isinstance(reply, Exception):
            self._fail(now_ms, command, request, reply, step)
        elif command.size and key:
            self._deal(now_ms, key, command, reply.rows[0], step)
        else:
            refusal = self._note(now_ms, request, command, reply, step)
            if key:
                self._serve_waiting(now_ms, key, refusal, step)
        return step

    def late(self, command: Command, reply: Verdicts | Exception) -> Step:
        """Gives back what a command was granted after all, of which an error was told before."""
        step = Step([], [])
        if isinstance(reply, Verdicts) and not command.settles:
            taken = [0 if reply.limited else share.cost for share in command.shares]
            if command.size:
                taken = [reply.rows[0].taken or 0]
            back = [
                share._replace(cost=-units) for share, units in zip(command.shares, taken, strict=True) if units > 0
            ]
            if back:
                self._send_back(back, reply.at, step)
        return step

    def _fail(self, now_ms: int, command: Command, request: Request, error: Exception, step: Step) -> None:
        failed = [(request, index) for index in command.indices]
        if command.key:
            failed += command.key.waiting
            command.key.waiting.clear()
        for each, _ in failed:
            each.missing -= 1
            each.error = error
            self._answer_if_whole(now_ms, each, step)

    def _note(self, now_ms: int, request: Request, command: Command, reply: Verdicts, step: Step) -> Refusal | None:
        """Notes what was decided of a command's shares together. Returns the refusal of the last share, if any."""
        rows, refusal = list(reply.rows), None
        for index in command.indices:
            share = request.shares[index]
            of_share = tuple(rows[: len(share.rules.quotas)])
            del rows[: len(of_share)]
            request.note(index, of_share, 0 if reply.limited else max(share.cost, 0), reply.at)
            # Who is not blocked yet is blocked next, by a longer refusal than this, which the next reply tells.
            is_last = not share.rules.blocks or of_share[-1].limited
            is_told = refuses(of_share) and is_last
            refusal = Refusal(share.cost, of_share, now_ms, self._remember_ms) if is_told else None
            if share.cost:
                self._remember(now_ms, share, refusal, step)
        self._answer_if_whole(now_ms, request, step)
        return refusal

    def _remember(self, now_ms: int, share: Share, refusal: Refusal | None, step: Step) -> None:
        """Remembers what the newest reply says of a share: its refusal, or that there is none."""
        if refusal and now_ms < refusal.until_ms and not _is_long(share.key):
            (self._used(share) or self._remembered(now_ms, share, step)).refusal = refusal
        elif key := self._keys.get(share[:2]):
            key.refusal = None

    def _deal(self, now_ms: int, key: Key, command: Command, reply: Verdict, step: Step) -> None:
        """Serves the share, then the requests that wait, from the units that were granted. The rest is leased."""
        request, [index], [share] = command.request, command.indices, command.shares
        taken, refusal = reply.taken or 0, None
        assert request
        is_taken = taken >= share.cost and not request.gives_back
        lease = key.lease = Lease(reply, taken, now_ms, key.rules.ttl_ms)
        if is_taken:
            self._serve(now_ms, key, request, index)
            key.refusal = None
            self._answer_if_whole(now_ms, request, step)
        elif request.gives_back:
            request.missing -= 1
            self._answer_if_whole(now_ms, request, step)
        elif share.cost == 1:
            # The server's wait is for the first unit that it did not grant, which is exact for a cost of one.
            refusal = Refusal(1, (reply,), now_ms, self._remember_ms)
            request.note(index, (reply,), 0, None)
            self._remember(now_ms, share, refusal, step)
            self._answer_if_whole(now_ms, request, step)
        else:
            self._end_lease(key, step)
            key.in_flight = True
            step.commands.append(Command([share], request, [index], key=key))
        self._serve_waiting(now_ms, key, refusal, step)
        if key.lease is lease:
            is_kept = not self._is_closed and self._keys.get((key.name, key.rules)) is key
            self._give_back_beyond(key, lease, key.rules.units if is_kept else 0, step)
            lease.granted = lease.left
            if lease.left:
                self._leases += 1
                heappush(self._ends, (lease.ends_ms, self._leases, key, lease))

    def _serve_waiting(self, now_ms: int, key: Key, refusal: Refusal | None, step: Step) -> None:
        """Serves or refuses the requests that waited for a reply, and asks once for those that are left."""
        waiting, key.waiting = key.waiting, []
        for request, index in waiting:
            share = request.shares[index]
            if request.gives_back:
                request.missing -= 1
            elif key.serves(now_ms, share.cost):
                self._serve(now_ms, key, request, index)
            elif refusal and refusal.holds_for(key.rules, share.cost):
                request.note(index, refusal.tell(now_ms), 0, None)
            else:
                key.waiting.append((request, index))
                continue
            self._answer_if_whole(now_ms, request, step)
        if key.waiting and not key.in_flight:
            request, index = key.waiting.pop(0)
            others = sum(each.shares[which].cost for each, which in key.waiting)
            self._ask(key, request, index, key.size(now_ms) + others, step)

    def _answer_if_whole(self, now_ms: int, request: Request, step: Step) -> None:
        """Answers a request when all its shares are answered. If any refuses, what the others took goes back."""
        if request.gives_back:
            self._give_back(now_ms, request, step)
            return
        if request.missing:
            return
        answer = request.answer()
        if answer.limited:
            request.gives_back = True
            self._give_back(now_ms, request, step)
        step.answers.append((request, request.error if request.error and not answer.limited else answer))

    def give_back(self, now_ms: int, request: Request) -> Step:
        """Gives back all that a request takes: it was cancelled, refused further in, or not decided as a whole."""
        step = Step([], [])
        if not request.gives_back:
            request.gives_back = True
            self._give_back(now_ms, request, step)
        return step

    def _give_back(self, now_ms: int, request: Request, step: Step) -> None:
        """Gives back what is counted: to the lease it came from if that lasts, else to the server as of its time."""
        by_time: dict[tuple[int, int], list[Share]] = {}
        for index, share in enumerate(request.shares):
            counted, lease, key = request.counted[index], request.leases[index], self._keys.get(share[:2])
            units = sum(counted.values())
            if lease and key and key.lease is lease and now_ms < lease.ends_ms and lease.left + units <= lease.granted:
                # In this order: after an interruption between them, units are lost and none goes back twice.
                counted.clear()
                lease.left += units
            while counted:
                at, units = counted.popitem()
                by_time.setdefault((self._slot(share.key), at), []).append(share._replace(cost=-units))
        for (_, at), shares in by_time.items():
            self._send_back(shares, at, step)

    def _send_back(self, shares: list[Share], at: int, step: Step) -> None:
        step.commands.append(Command(shares, at=at))
        self._forget(shares)

    def _forget(self, shares: Iterable[Share]) -> None:
        """Forgets the refusals of keys that units go back to."""
        for share in shares:
            if key := self._keys.get(share[:2]):
                key.refusal = None

    def settle(self, now_ms: int, request: Request, used: Mapping[int, int]) -> Step:
        """Corrects what is counted of shares, by their index, to what was used. The answer follows the last reply.

        Units that go back are no longer noted when they are sent, so that they are never sent twice.
        """
        step = Step([], [])
        request.then.update(used)
        if not request.settling:
            self._settle(request, step)
        return step

    def _settle(self, request: Request, step: Step) -> None:
        used, request.then, request.error = request.then, {}, None
        changes: dict[tuple[int, int | None], list[tuple[int, int]]] = {}
        for index, units in sorted(used.items() if not request.gives_back else ()):
            slot, counted = self._slot(request.shares[index].key), request.counted[index]
            more = units - sum(counted.values())
            if more:
                # From now on the units differ from what the lease has granted, so they cannot go back to it.
                request.leases[index] = None
            while more < 0:
                # The newest units go back first.
                at, part = counted.popitem()
                given = min(part, -more)
                if part > given:
                    counted[at] = part - given
                changes.setdefault((slot, at), []).append((index, -given))
                more += given
            if more:
                changes.setdefault((slot, None), []).append((index, more))
        for (_, at_), parts in changes.items():
            shares = [request.shares[index]._replace(cost=units) for index, units in parts]
            step.commands.append(Command(shares, request, [index for index, _ in parts], at=at_, force=at_ is None))
            if at_ is not None:
                self._forget(shares)
        request.settling = len(changes)
        if not changes:
            step.answers.append((request, request.answer()))

    def _note_settled(
        self, now_ms: int, request: Request, command: Command, reply: Verdicts | Exception, step: Step
    ) -> None:
        request.settling -= 1
        if isinstance(reply, Exception):
            request.error = reply
        else:
            rows = list(reply.rows)
            for index, share in zip(command.indices, command.shares, strict=True):
                of_share = tuple(row._replace(limited=False) for row in rows[: len(share.rules.quotas)])
                del rows[: len(of_share)]
                request.rows[index] = of_share
                if command.force:
                    request.count(index, share.cost, reply.at)
        if request.gives_back:
            # The request was refused further in while it was settled.
            self._give_back(now_ms, request, step)
        if not request.settling:
            if request.then:
                self._settle(request, step)
            else:
                step.answers.append((request, request.error or request.answer()))

    def _used(self, share: Share) -> Key | None:
        """Returns what is known of a key, and marks it as used."""
        key = self._keys.get(share[:2])
        if key:
            self._keys.move_to_end(share[:2])
        return key

    def _remembered(self, now_ms: int, share: Share, step: Step) -> Key:
        """Begins to remember a key, and forgets the least recently used if there are too many."""
        key = self._keys[share[:2]] = Key(share.key, share.rules, now_ms)
        if len(self._keys) > self._max_keys:
            self._end_lease(self._keys.popitem(last=False)[1], step)
        return key

    def _end_lease(self, key: Key, step: Step) -> None:
        if key.lease:
            self._give_back_beyond(key, key.lease, 0, step)
            key.lease = None

    def _give_back_beyond(self, key: Key, lease: Lease, kept: int, step: Step) -> None:
        units = lease.left - kept
        if units > 0:
            lease.left = kept
            self._send_back([Share(key.name, key.rules, -units)], lease.at, step)

    def tick(self, now_ms: int) -> Step:
        """Ends the leases whose time is over."""
        step = Step([], [])
        while self._ends and self._ends[0][0] <= now_ms:
            _, _, key, lease = heappop(self._ends)
            if key.lease is lease:
                self._end_lease(key, step)
        return step

    def is_due(self, now_ms: int) -> bool:
        return bool(self._ends) and self._ends[0][0] <= now_ms

    @property
    def next_tick_ms(self) -> int | None:
        """When the next tick is due, or None."""
        first = self._ends[:1]
        return first[0][0] if first else None

    def close(self) -> Step:
        """Gives back all leases. From now on nothing is leased."""
        step = Step([], [])
        self._is_closed = True
        for key in self._keys.values():
            self._end_lease(key, step)
        self._ends.clear()
        return step

    def forget(self) -> Step:
        """Forgets all keys after an interruption that may have left them in no order, and gives back their leases."""
        keys, self._keys, self._ends = self._keys, OrderedDict(), []
        step = Step([], [])
        for key in keys.values():
            self._end_lease(key, step)
        return step

    def _slot(self, key: Name) -> int:
        return self._slot_of(key) if self._slot_of else 0


def _is_long(key: Name) -> bool:
    """Whether a name is too long to remember, which would leave the memory without a bound."""
    if isinstance(key, bytes) or key.isascii():
        return len(key) > LONGEST_BYTES
    return len(key.encode(errors="surrogatepass")) > LONGEST_BYTES
