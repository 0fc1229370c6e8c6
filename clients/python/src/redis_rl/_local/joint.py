"""One request by several policies: some leased, the others asked slot by slot, all or nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any, NamedTuple

from .. import _wire
from .._wire import Decision, Key, Row, Verdict
from .decider import MAX_KEYS, Decider
from .key import Command, Request, Rules, Step
from .refusals import Refusals

# A tuple: to make a union takes longer than to ask whether something is of it.
_DECIDED = (Verdict, Decision)


class Share(NamedTuple):
    """What a request takes by one policy."""

    key: Key
    rules: Rules
    cost: int

    def rows(self, cost: int) -> list[Row]:
        """For RL.ALL."""
        return self.rules.rows(self.key, cost)


class Outcome(NamedTuple):
    """What a request was told by all of its policies."""

    limited: bool
    retry_after: timedelta | None
    at: int
    """As of when; of several commands, of the first."""
    rows: tuple[tuple[Verdict, ...] | None, ...]
    """Of each policy those of its quotas, of a leased one its tightest, None where nothing is known."""


class GroupCommand:
    """An RL.ALL to send, for the shares whose keys are in one slot."""

    __slots__ = ("_is_single", "asked", "at", "awaited", "gives_back", "piece", "rows")
    may_lease = False

    def __init__(
        self, rows: list[Row], asked: Asked | None = None, piece: _Group | None = None, at: int | None = None
    ) -> None:
        """``piece`` of a request is what its reply is for; ``at``, as of when it gives back."""
        self.rows, self.asked, self.piece, self.at = rows, asked, piece, at
        self.gives_back = at is not None
        # The single command is cheaper, and tells the time of one unit too.
        self._is_single = len(rows) == 1 and rows[0].cost == 1
        self.awaited = 1

    @property
    def key(self) -> Key:
        """Of any row: all are in one slot."""
        return self.rows[0].key

    def words(self, at: int | None = None) -> list[Key | int]:
        """What is sent, to decide as of ``at`` unless it gives back."""
        if self._is_single:
            row = self.rows[0]
            return _wire.take(f"RL.{row.algorithm.upper()}", row.key, [(row.limit, row.window)], 1, at=at, partial=True)
        return self.words_of_all(at)

    def words_of_all(self, at: int | None = None) -> list[Key | int]:
        """The same as RL.ALL in any case."""
        return _wire.take_all(self.rows, at=self.at if self.gives_back else at)

    def read(self, reply: Any) -> Decision:
        """What the reply says."""
        return Decision.of(_wire.verdict(reply)) if self._is_single else _wire.decision(reply)


class _Group:
    """Shares whose keys are in one slot."""

    __slots__ = ("command", "indices", "reply", "rows")

    def __init__(self, asked: Asked, indices: list[int]) -> None:
        self.indices = indices
        self.rows = [row for index in indices for row in asked.shares[index].rows(asked.shares[index].cost)]
        # Until it is replied to. Then nothing is left that only the garbage collector can free.
        self.command: GroupCommand | None = GroupCommand(self.rows, asked, self)
        self.reply: Decision | Exception | None = None

    def rows_of(self, asked: Asked, index: int) -> tuple[Verdict, ...]:
        """Those of one share."""
        assert isinstance(self.reply, Decision)
        if len(self.indices) == 1:
            return self.reply.rows
        before = sum(len(asked.shares[each].rules.quotas) for each in self.indices if each < index)
        return self.reply.rows[before : before + len(asked.shares[index].rules.quotas)]


class _Leased:
    """A share that is leased. Waits for the decider's answer."""

    __slots__ = ("asked", "indices", "is_cancelled", "reply", "request")

    def __init__(self, asked: Asked, index: int) -> None:
        self.asked, self.indices = asked, [index]
        self.reply: Verdict | Exception | None = None
        self.request: Request | None = None
        self.is_cancelled = False

    def done(self) -> bool:
        """Whether nobody awaits it any more."""
        return self.is_cancelled

    def rows_of(self, asked: Asked, index: int) -> tuple[Verdict, ...]:
        """Its tightest."""
        assert isinstance(self.reply, Verdict)
        return (self.reply,)


class Asked:
    """A request, and what has become of it."""

    __slots__ = ("counted", "goes_back", "is_answered", "outcome", "pieces", "settled", "shares", "waiter")

    def __init__(self, shares: Sequence[Share], waiter: Any = None) -> None:
        """``waiter`` is whoever is told the answer."""
        self.shares, self.waiter = shares, waiter
        self.pieces: list[_Group | _Leased] = []
        self.is_answered = False
        self.outcome: Outcome | Exception | None = None
        # Whether what it took goes back, and what comes.
        self.goes_back = False
        # The units that are counted of each share by when they were, the newest last. One RL.ALL gives back what was
        # counted at one time, so that is one number.
        self.counted: list[dict[int, int]] = [{} for _ in shares]
        # Those that were corrected: units of a lease do not go back into it then.
        self.settled: set[int] = set()

    def count(self, index: int, units: int, at: int) -> None:
        """So many units more of a share."""
        counted = self.counted[index]
        counted[at] = counted.get(at, 0) + units

    @property
    def commands(self) -> list[Command | GroupCommand]:
        """Those that may be under way."""
        commands: list[Command | GroupCommand] = []
        for piece in self.pieces:
            if isinstance(piece, _Group):
                if piece.command:
                    commands.append(piece.command)
            elif piece.request and piece.request.command:
                commands.append(piece.request.command)
        return commands


class Joint:
    """Requests by several policies. ``clients/README.md`` in the repository has the rules."""

    def __init__(
        self, remember_ms: int, max_keys: int = MAX_KEYS, *, slot_of: Callable[[Key], int] | None = None
    ) -> None:
        """``slot_of`` tells the slot of a key, on a cluster."""
        self._decider = Decider(remember_ms, max_keys, tells_time=True)
        self._refusals = Refusals(remember_ms, max_keys)
        self._remembers = remember_ms > 0
        self._slot_of = slot_of

    def take(self, now_ms: int, asked: Asked) -> Step:
        """A request comes."""
        step = Step([], [])
        self._split(asked)
        if self._remembers and self._refuse(now_ms, asked, step):
            return step
        for piece in asked.pieces:
            if isinstance(piece, _Leased):
                self._take_leased(now_ms, piece, step)
        for piece in asked.pieces:
            if isinstance(piece, _Group) and piece.command:
                step.commands.append(piece.command)
        self._answer_if_in(now_ms, asked, step)
        return step

    def _split(self, asked: Asked) -> None:
        groups: dict[int, list[int]] = {}
        for index, share in enumerate(asked.shares):
            if share.rules.units and self._decider.leases(*share):
                asked.pieces.append(_Leased(asked, index))
            else:
                groups.setdefault(self._slot(share.key), []).append(index)
        asked.pieces += [_Group(asked, indices) for indices in groups.values()]

    def _refuse(self, now_ms: int, asked: Asked, step: Step) -> bool:
        """Whether refusals are remembered that hold: then they are told."""
        for piece in asked.pieces:
            if isinstance(piece, _Group):
                piece.reply = self._refusals.known(now_ms, piece.rows)
            else:
                piece.reply = self._decider.refused(now_ms, *asked.shares[piece.indices[0]])
        if all(piece.reply is None for piece in asked.pieces):
            return False
        asked.is_answered = asked.goes_back = True
        step.answers.append((asked, _outcome(asked)))
        return True

    def _take_leased(self, now_ms: int, piece: _Leased, step: Step) -> None:
        share = piece.asked.shares[piece.indices[0]]
        known = self._decider.known(now_ms, *share)
        if known is not None:
            _note(piece.asked, piece, known)
            return
        piece.request = Request(share.rules, share.cost, piece)
        self._merge(now_ms, self._decider.ask(now_ms, share.key, piece.request), step)

    def _merge(self, now_ms: int, of_decider: Step, step: Step) -> None:
        """What the decider says: its answers are for pieces."""
        step.commands.extend(of_decider.commands)
        for request, answer in of_decider.answers:
            piece = request.waiter
            _note(piece.asked, piece, answer)
            self._answer_if_in(now_ms, piece.asked, step)

    def reply(self, now_ms: int, command: Command | GroupCommand, reply: Any) -> Step:
        """The reply to a command that does not give back, or the error with which it has failed."""
        step = Step([], [])
        if isinstance(command, Command):
            self._merge(now_ms, self._decider.reply(now_ms, command, reply), step)
            return step
        piece, asked = command.piece, command.asked
        assert piece
        assert asked
        piece.command = None
        if isinstance(reply, Decision) and self._remembers:
            self._refusals.remember(now_ms, piece.rows, reply)
        _note(asked, piece, reply)
        if asked.goes_back:
            self._give_back(now_ms, asked, [piece], step)
        else:
            self._answer_if_in(now_ms, asked, step)
        return step

    def late(self, command: Command | GroupCommand, reply: Any) -> Step:
        """A reply that comes after an error was told in its place."""
        if isinstance(command, Command):
            return self._decider.late(command, reply)
        step = Step([], [])
        assert command.piece
        assert command.asked
        _note(command.asked, command.piece, reply)
        if command.asked.goes_back:
            self._give_back(0, command.asked, [command.piece], step)
        return step

    def _answer_if_in(self, now_ms: int, asked: Asked, step: Step) -> None:
        if asked.is_answered:
            return
        for piece in asked.pieces:
            if piece.reply is None:
                return
        self._answer(now_ms, asked, step)

    def _answer(self, now_ms: int, asked: Asked, step: Step) -> None:
        """Of what is in."""
        asked.is_answered = True
        outcome = _outcome(asked)
        errors = [piece.reply for piece in asked.pieces if isinstance(piece.reply, Exception)]
        if outcome.limited:
            self._release(now_ms, asked, step)
        step.answers.append((asked, errors[0] if errors and not outcome.limited else outcome))

    def give_up(self, now_ms: int, asked: Asked, error: Exception) -> Step:
        """Its time is over: it is refused if a refusal is in."""
        step = Step([], [])
        for piece in asked.pieces:
            if piece.reply is None and isinstance(piece, _Leased) and piece.request and not piece.request.command:
                # It has not been asked for, and is not any more.
                piece.is_cancelled = True
        if not asked.is_answered:
            missing = [piece for piece in asked.pieces if piece.reply is None]
            for piece in missing:
                piece.reply = error
            self._answer(now_ms, asked, step)
        return step

    def release(self, now_ms: int, asked: Asked) -> Step:
        """Nobody wants what it took: it is cancelled, refused further in, or does not pass undecided."""
        step = Step([], [])
        self._release(now_ms, asked, step)
        return step

    def _release(self, now_ms: int, asked: Asked, step: Step) -> None:
        if not asked.goes_back:
            asked.is_answered = asked.goes_back = True
            for piece in asked.pieces:
                if isinstance(piece, _Leased):
                    piece.is_cancelled = True
            self._give_back(now_ms, asked, asked.pieces, step)

    def give_back(self, now_ms: int, asked: Asked) -> Step:
        """What was counted of a request after it had been released."""
        step = Step([], [])
        self._give_back(now_ms, asked, asked.pieces, step)
        return step

    def _give_back(self, now_ms: int, asked: Asked, pieces: Sequence[_Group | _Leased], step: Step) -> None:
        for piece in pieces:
            if isinstance(piece, _Leased) and isinstance(piece.reply, Verdict):
                [index] = piece.indices
                share = asked.shares[index]
                if asked.counted[index] and index not in asked.settled:
                    asked.counted[index].clear()
                    back = self._decider.put_back(now_ms, share.key, share.rules, piece.reply)
                    step.commands.extend(back.commands)
        by_time: dict[tuple[int, int], list[Row]] = {}
        for piece in pieces:
            for index in piece.indices:
                counted, share = asked.counted[index], asked.shares[index]
                slot = self._slot(share.key)
                while counted:
                    at, units = counted.popitem()
                    by_time.setdefault((slot, at), []).extend(share.rows(-units))
        step.commands.extend(GroupCommand(rows, at=at) for (_, at), rows in by_time.items())

    def settle(self, asked: Asked, used: Mapping[int, int]) -> list[tuple[int | None, list[tuple[int, int]]]]:
        """How to correct what is counted of shares to what was used: as of when, which shares, and by how much.

        What goes back is forgotten before it is sent: it is not sent again.
        """
        by_slot: dict[tuple[int, int | None], list[tuple[int, int]]] = {}
        for index, units in used.items():
            slot, counted = self._slot(asked.shares[index].key), asked.counted[index]
            more = units - sum(counted.values())
            if more:
                asked.settled.add(index)
            while more < 0:
                # The newest go back first.
                at, part = counted.popitem()
                given = min(part, -more)
                if part > given:
                    counted[at] = part - given
                by_slot.setdefault((slot, at), []).append((index, -given))
                more += given
            if more:
                by_slot.setdefault((slot, None), []).append((index, more))
        for piece in asked.pieces:
            if isinstance(piece, _Group):
                self._refusals.forget(piece.rows)
        return [(at, changes) for (_, at), changes in by_slot.items()]

    def _slot(self, key: Key) -> int:
        """On one server all keys are in one."""
        return self._slot_of(key) if self._slot_of else 0

    def tick(self, now_ms: int) -> Step:
        """Ends the leases whose time is over."""
        return self._decider.tick(now_ms)

    @property
    def next_tick_ms(self) -> int | None:
        """When the next tick is due, if any is."""
        return self._decider.next_tick_ms

    def close(self) -> Step:
        """Gives back all leases. From now on nothing is leased."""
        return self._decider.close()


def _note(asked: Asked, piece: _Group | _Leased, reply: Any) -> None:
    """A piece is in."""
    piece.reply = reply
    if isinstance(reply, _DECIDED) and not reply.limited:
        for index in piece.indices:
            if (cost := asked.shares[index].cost) and reply.at is not None:
                asked.count(index, cost, reply.at)


def _outcome(asked: Asked) -> Outcome:
    """Of the pieces that are in."""
    waits = [
        piece.reply.retry_after for piece in asked.pieces if isinstance(piece.reply, _DECIDED) and piece.reply.limited
    ]
    # That no wait helps is the longest.
    retry_after = max((wait for wait in waits if wait is not None), default=None) if None not in waits else None
    rows: list[tuple[Verdict, ...] | None] = [None] * len(asked.shares)
    at = 0
    for piece in asked.pieces:
        reply = piece.reply
        if not isinstance(reply, _DECIDED):
            continue
        at = at or reply.at or 0
        for index in piece.indices:
            rows[index] = piece.rows_of(asked, index)
            if waits and not reply.limited:
                rows[index] = without(rows[index] or (), asked.shares[index].cost)
    return Outcome(bool(waits), retry_after, at, tuple(rows))


def without(rows: tuple[Verdict, ...], cost: int) -> tuple[Verdict, ...]:
    """The figures when what a request took is back."""
    return tuple(row._replace(remaining=row.remaining + cost, retry_after=None) for row in rows)
