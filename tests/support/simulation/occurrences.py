"""Schedules, and what hosts publish of them: each occurrence that is due, none before its time, none left out.

The rules are computed here from what a schedule was created with, apart from the product's own computation.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from emq.storage import lane_store, message
from emq.timetable import schedule as spec
from support.simulation.work import Work

if TYPE_CHECKING:
    from support.simulation.evidence import Evidence

MISSED_AFTER_MS = 10_000
"""As is promised: what is come to later than this is missed."""

LATE_MS = 500
"""A schedule is on time if nothing of it has been due for longer."""

OCCURRENCES = 1_000_000
"""Numbers of works: so many for each schedule, from its own on; messages of the topic come to none of these."""


class Told(NamedTuple):
    """What a schedule was created with.

    Attributes:
        number: which schedule of its topic.
        start_ms: from when on.
        every_ms, repeat, delay_ms, missed: see `emq.timetable.schedule.create`.
        period_s: of a cron expression that fires at all seconds that this divides, a divisor of 60; 0 for none.
    """

    number: int
    start_ms: int
    every_ms: int = 0
    repeat: int | None = None
    period_s: int = 0
    delay_ms: int = 0
    missed: spec.Missed = "once"
    key: str = ""

    @property
    def cron(self) -> str | None:
        if not self.period_s:
            return None
        return "0 * * * * *" if self.period_s == 60 else f"*/{self.period_s} * * * * *"

    def due_times(self) -> Iterator[int]:
        """Of all occurrences in their order, in milliseconds since the epoch."""
        if not self.period_s:
            first, count = self.start_ms + self.delay_ms, self.repeat
            n = 0
            while count is None or n <= count:
                yield first + n * self.every_ms
                n += 1
            return
        period_ms, waiting = self.period_s * 1000, list[int]()
        fires_ms = (self.start_ms // period_ms + 1) * period_ms
        while True:
            begins_ms = fires_ms + self.delay_ms
            waiting += [begins_ms + i * self.every_ms for i in range((self.repeat or 0) + 1)]
            fires_ms += period_ms
            waiting.sort()
            while waiting and waiting[0] < fires_ms + self.delay_ms:
                yield waiting.pop(0)


class Standing:
    """A schedule that the store has, or had.

    Attributes:
        fired: how many of its occurrences its entry says there have been.
        added: numbers of the occurrences that were published by turns that are over.
        turn: of turns under way, by host and epoch: what they have published.
        claimed: of turns under way: what their hosts have claimed, so that it need not be published again.
        is_there: its entry is in the store, for all that is known.
        removed_ms: when it was taken back, by the clock of the operator who did so; None if it was not.
        holders: hosts, with their epochs, that have claimed it and not settled it.
        forgotten: those of them whose claim a store forgot that lost its last moments. It may be taken back then,
            while such a host still publishes what it has come to.
        twice: those that have claimed it again before a verdict of theirs, which puts back what they have in hand.
    """

    def __init__(self, id_: str, group: str, told: Told, at: float) -> None:
        self.id = id_
        self.group = group
        self.told = told
        self.at = at
        self.fired = 0
        self.added: set[int] = set()
        self.turn: dict[tuple[str, int], set[int]] = {}
        self.claimed: dict[tuple[str, int], set[int]] = {}
        self.is_there = True
        self.removed_ms: float | None = None
        self.holders: set[tuple[str, int]] = set()
        self.forgotten: set[tuple[str, int]] = set()
        self.twice: set[tuple[str, int]] = set()
        self._due_times = told.due_times()
        self._due: list[int] = []

    def due_ms(self, number: int) -> int | None:
        """When an occurrence is due, counted from 1; None if there is none of that number."""
        while len(self._due) < number:
            due_ms = next(self._due_times, None)
            if due_ms is None:
                return None
            self._due.append(due_ms)
        return self._due[number - 1]

    def is_late(self, now_ms: float) -> bool:
        """Something has been due for a while, and it was not come to."""
        due_ms = self.due_ms(self.fired + 1)
        return self.is_there and due_ms is not None and due_ms < now_ms - LATE_MS

    def may_skip(self, number: int, now_ms: float) -> bool:
        """Whether its rule for what was missed allows to leave out an occurrence."""
        if self.told.missed == "all":
            return False
        # "once" keeps the last of those that were missed.
        last_ms = self.due_ms(number if self.told.missed == "skip" else number + 1)
        return last_ms is not None and last_ms < now_ms - MISSED_AFTER_MS


class Occurrences:
    """Attributes:
    told: schedules that somebody has wanted to create, by name of the work that they carry; see `name_of_schedule`.
    standing: by id, what the store has taken.
    clocks: of hosts and of the operator, in microseconds since the epoch.
    """

    def __init__(self, evidence: Evidence) -> None:
        self._evidence = evidence
        self.told: dict[str, tuple[Told, Callable[[str], Work]]] = {}
        self.standing: dict[str, Standing] = {}
        self.clocks: dict[str, Callable[[], int]] = {}

    def name_of(self, id_: str) -> str | None:
        """Return the name of the work of an occurrence; None if the id is that of another message."""
        schedule, _, number = id_.rpartition(".")
        standing = self.standing.get(schedule)
        return None if standing is None else _name(standing, int(number))

    def work_of(self, m: message.Message) -> Work | None:
        """Return the work that an occurrence asks for; None for another message."""
        name = self.name_of(m.id)
        if name is None:
            return None
        if name not in self._evidence.published:
            self._wrong(self.standing[m.id.rpartition(".")[0]], f"{m.id} starts, which was never published")
            return Work(name)
        return self._evidence.published[name][0]

    # ----------------------------------------------------------------------------------------- what the store has done

    def added(self, by: str, add: lane_store.LaneAdd, m: message.Message, was_new: bool) -> bool:
        """A lane has taken something; returns whether it was a schedule or an occurrence of one, added to be run."""
        if m.schedule is not None:
            self._stands(by, add, m, was_new)
            return True
        standing = self.standing.get(m.id.rpartition(".")[0])
        if standing is not None and m.attempt == 1 and not add.reason and m.error is None:
            self._fired(by, standing, int(m.id.rpartition(".")[2]), add)
        return False

    def claimed(self, by: str, epoch: int, id_: str) -> None:
        """A host has claimed an entry of a lane."""
        if (standing := self.standing.get(id_)) is not None:
            if (by, epoch) in standing.holders:
                standing.twice.add((by, epoch))
            standing.holders.add((by, epoch))
        schedule, _, number = id_.rpartition(".")
        if (standing := self.standing.get(schedule)) is not None and (by, epoch) in standing.holders:
            standing.claimed.setdefault((by, epoch), set()).add(int(number))

    def _stands(self, by: str, add: lane_store.LaneAdd, m: message.Message, was_new: bool) -> None:
        known = self.standing.get(m.id)
        if known is None:
            told, _ = self.told[Work.parse(m.payload).name]
            self.standing[m.id] = known = Standing(m.id, add.lane, told, self._evidence.now)
            self._evidence.note(add.lane, f"{by} creates schedule {m.id}: {told}")
            self._judge_due(known, add.due_ms)
        elif was_new:
            self._evidence.note(add.lane, f"{by} adds schedule {m.id} again")
            if known.removed_ms is not None and known.removed_ms >= (add.since_ms or 0):
                self._wrong(known, f"{by} adds it again, which was taken back")
            elif known.removed_ms is not None:
                # The operator's clock is behind the host's: the entry stands again, see `LaneAdd.since_ms`.
                known.removed_ms = None
            known.is_there, known.fired = True, spec.decode(m.schedule or b"").fired

    def _fired(self, by: str, standing: Standing, number: int, add: lane_store.LaneAdd) -> None:
        due_ms, now_ms = standing.due_ms(number), self._now_ms(by)
        self._evidence.note(add.lane, f"{by} publishes {standing.id}.{number}, due {add.due_ms}")
        if standing.removed_ms is not None and (by, add.epoch or 0) not in standing.forgotten:
            self._wrong(standing, f"{by} publishes occurrence {number} after it was taken back")
        if due_ms != add.due_ms:
            self._wrong(standing, f"{by} publishes occurrence {number} for {add.due_ms} instead of {due_ms}")
        elif now_ms < due_ms:
            self._wrong(standing, f"{by} publishes occurrence {number} {due_ms - now_ms:.0f} ms before its time")
        standing.turn.setdefault((by, add.epoch or 0), set()).add(number)
        name = _name(standing, number)
        self._evidence.happened["occurrences"] += 1
        if name in self._evidence.published:
            self._evidence.happened["occurrences again"] += 1
        else:
            # By the schedule, which stood since then: how late its host came to it is a delay like any other.
            self._evidence.published[name] = (
                self.told[name_of_schedule(_topic(standing), standing.told.number)][1](name),
                True,
            )
            self._evidence.confirmed_at[name] = standing.at
            self._evidence.first_due_ms[name] = add.due_ms

    def settled(self, by: str, settle: lane_store.LaneSettle, was_there: bool) -> bool:
        """A lane has carried out a verdict; returns whether it was on a schedule."""
        standing, holder = self.standing.get(settle.id), (by, settle.epoch or 0)
        if standing is None:
            return False
        if holder in standing.twice:
            standing.twice.discard(holder)
            standing.forgotten.add(holder)
        else:
            standing.holders.discard(holder)
            standing.forgotten.discard(holder)
        if not was_there:
            return True
        self._evidence.note(settle.lane, f"{by}: {settle.verdict} of schedule {settle.id}, due {settle.due_ms}")
        turn, claimed = standing.turn.pop(holder, set()), standing.claimed.pop(holder, set())
        if settle.verdict is lane_store.LaneVerdict.RECALL:
            standing.is_there, standing.removed_ms = False, self._now_ms(by)
        elif settle.verdict is lane_store.LaneVerdict.RETRY:
            fired = spec.decode(message.decode(settle.body).schedule or b"").fired
            self._judge_turn(by, standing, fired, turn, claimed)
            standing.fired = fired
            self._judge_due(standing, settle.due_ms)
        elif settle.verdict is lane_store.LaneVerdict.ACK:
            standing.is_there = False
            last = standing.fired
            while (due_ms := standing.due_ms(last + 1)) is not None and due_ms <= self._now_ms(by):
                last += 1
            self._judge_turn(by, standing, last, turn, claimed)
            if standing.due_ms(last + 1) is not None:
                self._wrong(standing, f"{by} ends it after {last} occurrences, and there are more")
        else:
            self._wrong(standing, f"{by}: {settle.verdict}")
        return True

    def _judge_turn(self, by: str, standing: Standing, fired: int, turn: set[int], claimed: set[int]) -> None:
        """What a host has published, and what it has left out, on the way to a number."""
        now_ms, name = self._now_ms(by), standing.told.missed
        if fired > 0 and (due_ms := standing.due_ms(fired)) is not None and due_ms > now_ms:
            self._wrong(standing, f"{by} goes past occurrence {fired} {due_ms - now_ms:.0f} ms before its time")
        for number in range(standing.fired + 1, fired + 1):
            if number in standing.added | turn | claimed:
                continue
            self._evidence.happened["occurrences missed"] += 1
            if not standing.may_skip(number, now_ms):
                due_ms = standing.due_ms(number)
                self._wrong(standing, f"{by} leaves out occurrence {number}, due {due_ms}, at {now_ms:.0f}: {name}")
            elif turn and number > min(turn):
                self._wrong(standing, f"{by} leaves out occurrence {number} and not {min(turn)}: {name}")
        standing.added |= turn

    def _judge_due(self, standing: Standing, due_ms: int) -> None:
        wanted = standing.due_ms(standing.fired + 1)
        if due_ms != wanted:
            self._wrong(standing, f"it waits for {due_ms} after {standing.fired} occurrences instead of {wanted}")

    # ------------------------------------------------------------------------------------------------- when it is lost

    def lost(self, entries: dict[str, bytes]) -> None:
        """The store came back with these entries of lanes, by id."""
        for id_, standing in self.standing.items():
            standing.is_there = id_ in entries
            standing.forgotten |= standing.holders
            if standing.is_there:
                # What was taken back may be there again.
                standing.removed_ms = None
                standing.fired = spec.decode(message.decode(entries[id_]).schedule or b"").fired

    def _now_ms(self, host: str) -> float:
        return self.clocks[host]() / 1000

    def _wrong(self, standing: Standing, text: str) -> None:
        self._evidence.violated("schedule", standing.group, f"schedule {standing.id} ({standing.told}): {text}")


def _topic(standing: Standing) -> str:
    return standing.group.rpartition("/")[0]


def _name(standing: Standing, number: int) -> str:
    return f"{_topic(standing)}#{standing.told.number * OCCURRENCES + number}"


def name_of_schedule(topic: str, number: int) -> str:
    """Return the name of the work that a schedule carries; no message or occurrence of the topic has this name."""
    return f"{topic}#{number * OCCURRENCES}"


def work(name: str, key: str, failing: float, doomed: float, slow: float) -> Work:
    """Return the work that an occurrence asks for; it is the same at each call."""
    rng = random.Random(name)
    fails = 0
    if rng.random() < failing:
        fails = 99 if rng.random() * failing < doomed else rng.randint(1, 2)
    return Work(name, fails, rng.randint(20, 1_500) if rng.random() < slow else 0, key)
