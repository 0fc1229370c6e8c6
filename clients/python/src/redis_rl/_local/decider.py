"""The keys of one process."""

from __future__ import annotations

from collections import OrderedDict
from heapq import heappop, heappush

from .._wire import Key, Verdict
from .key import Command, KeyMachine, Request, Rules, Settings, Step
from .names import Name, name_of

MAX_KEYS = 10_000


class Decider:
    """The machines of all keys: those that a command is in flight for, and of the rest as many as may be remembered."""

    def __init__(self, remember_ms: int, max_keys: int = MAX_KEYS, *, tells_time: bool = False) -> None:
        """With refusals that are repeated for at most ``remember_ms``."""
        self._settings = Settings(remember_ms, tells_time)
        self._max_keys = max_keys
        self._in_flight: dict[Name, KeyMachine] = {}
        # The least recently used goes first.
        self._at_rest: OrderedDict[Name, KeyMachine] = OrderedDict()
        # When leases end. The lease of a key may have ended before, and it may have another by then.
        self._ends: list[tuple[int, int, Name]] = []
        self._leases = 0

    def known(self, now_ms: int, key: Key, rules: Rules, cost: int) -> Verdict | None:
        """What a request is told without asking, if that is known."""
        name = name_of(key)
        machine = self._at_rest.get(name)
        if machine is not None:
            self._at_rest.move_to_end(name)
        else:
            machine = self._in_flight.get(name)
            if machine is None:
                return None
        # In flight no units are handed out: what waits may need them.
        if machine.flight is None and 0 < cost <= rules.smallest_limit:
            return machine.known(now_ms, rules, cost)
        return machine.refused(now_ms, cost) if machine.has_rules(rules) else None

    def refused(self, now_ms: int, key: Key, rules: Rules, cost: int) -> Verdict | None:
        """What a request is refused with without asking, if the lease does not serve it."""
        machine = self._at_rest.get(name_of(key)) or self._in_flight.get(name_of(key))
        if not machine or not machine.has_rules(rules):
            return None
        if machine.flight is None and machine.serves(now_ms, rules, cost):
            return None
        return machine.refused(now_ms, cost)

    def leases(self, key: Key, rules: Rules, cost: int) -> bool:
        """Whether a request may be served from a lease."""
        has_lease = self._settings.units_of(rules) > 0 and cost > 0 and not rules.is_hopeless(cost)
        return has_lease and isinstance(name_of(key), str | bytes)

    def ask(self, now_ms: int, key: Key, request: Request) -> Step:
        """Asks for a request, now or when the command in flight for its key is answered."""
        step = Step([], [])
        name, cost, rules = name_of(key), request.cost, request.rules
        machine = self._in_flight.get(name)
        is_too_many = machine is None and len(self._in_flight) >= self._max_keys
        if is_too_many or not self.leases(key, rules, cost):
            step.commands.append(Command(key, rules, cost, [request], by_all=self._settings.tells_time))
            return step
        if machine is None:
            machine = self._at_rest.pop(name, None) or KeyMachine(key, rules)
            self._in_flight[name] = machine
        machine.waiting.append(request)
        if not machine.flight:
            machine.ask(now_ms, self._settings, step)
        return step

    def reply(self, now_ms: int, command: Command, reply: Verdict | Exception) -> Step:
        """The reply to a command that does not give back, or the error with which it has failed."""
        step = Step([], [])
        name = name_of(command.key)
        machine = self._in_flight.get(name)
        if machine and machine.flight and machine.flight.requests is command.requests:
            if isinstance(reply, Verdict):
                machine.reply(now_ms, self._settings, reply, step)
            else:
                machine.fail(now_ms, self._settings, reply, step)
        else:
            again = _answer_alone(command, reply, step)
            if isinstance(reply, Verdict):
                self._remember_alone(now_ms, name, command, reply, step)
            if machine and command in machine.apart:
                machine.apart.remove(command)
                machine.wait_again(now_ms, self._settings, again, step)
        if machine and not machine.flight:
            self._land(machine, name, step)
        return step

    def put_back(self, now_ms: int, key: Key, rules: Rules, verdict: Verdict) -> Step:
        """What was handed out and is not used goes back: to its lease, if that is still there, else to the server."""
        step = Step([], [])
        if verdict.taken:
            name = name_of(key)
            machine = self._at_rest.get(name) or self._in_flight.get(name)
            if not machine or not machine.put_back(now_ms, rules, verdict):
                _give_back(key, rules, verdict, step)
        return step

    def late(self, command: Command, reply: Verdict) -> Step:
        """A reply that came after an error was told in its place: whatever it took goes back."""
        step = Step([], [])
        _give_back(command.key, command.rules, reply, step)
        return step

    def _remember_alone(self, now_ms: int, name: Name, command: Command, reply: Verdict, step: Step) -> None:
        machine = self._in_flight.get(name) or self._at_rest.get(name)
        if not machine:
            if not reply.limited or not self._settings.remember_ms:
                return
            machine = KeyMachine(name, command.rules)
            self._rest(machine, name, step)
        elif not machine.flight:
            if name in self._at_rest:
                self._at_rest.move_to_end(name)
            if reply.limited:
                machine.set_rules(command.rules, step)
        if machine.has_rules(command.rules):
            machine.reply_alone(now_ms, self._settings, reply, command.cost)

    def _land(self, machine: KeyMachine, name: Name, step: Step) -> None:
        """No units of this key are on their way any more."""
        if machine.ends_ms is not None:
            self._leases += 1
            heappush(self._ends, (machine.ends_ms, self._leases, name))
        if not machine.apart:
            del self._in_flight[name]
            self._rest(machine, name, step)

    def _rest(self, machine: KeyMachine, name: Name, step: Step) -> None:
        """Remembers a key, and forgets another if there are too many."""
        self._at_rest[name] = machine
        if len(self._at_rest) > self._max_keys:
            self._at_rest.popitem(last=False)[1].end_lease(step)

    def tick(self, now_ms: int) -> Step:
        """Ends the leases whose time is over."""
        step = Step([], [])
        while self._ends and self._ends[0][0] <= now_ms:
            name = heappop(self._ends)[2]
            machine = self._at_rest.get(name) or self._in_flight.get(name)
            if machine:
                machine.tick(now_ms, step)
        return step

    @property
    def next_tick_ms(self) -> int | None:
        """When the next tick is due, if any is."""
        return self._ends[0][0] if self._ends else None

    @property
    def is_at_rest(self) -> bool:
        """Whether no command is in flight that may bring a lease."""
        return not self._in_flight

    def close(self) -> Step:
        """Gives back all leases. From now on requests are asked for one by one."""
        step = Step([], [])
        self._settings.is_closed = True
        for machine in (*self._at_rest.values(), *self._in_flight.values()):
            machine.end_lease(step)
        self._ends.clear()
        return step


def _answer_alone(command: Command, reply: Verdict | Exception, step: Step) -> list[Request]:
    """Answers the requests of a command that is decided as a whole; returns those that are to wait again."""
    awaited = [request for request in command.requests if request.waits]
    if isinstance(reply, Exception) or reply.limited:
        step.answers.extend((request, reply) for request in awaited)
        return []
    if awaited:
        step.answers.append((awaited[0], reply))
    else:
        _give_back(command.key, command.rules, reply, step)
    return awaited[1:]


def _give_back(key: Key, rules: Rules, verdict: Verdict, step: Step) -> None:
    """Unless nobody knows as of when."""
    if verdict.taken and verdict.taken > 0 and verdict.at is not None:
        step.commands.append(Command(key, rules, -verdict.taken, [], at=verdict.at))
