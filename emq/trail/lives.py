"""Ids that are published again and again, as in sorted topics: which publish is it that an end belongs to?

A publish makes a message wait, or is merged with the one that waits; a message ends by being settled, dead or recalled.
While one is being delivered another of the same id may wait, and if that delivery fails, the two become one. So an id
may end fewer times than it was published, and numbers alone prove nothing. What does is time: a delivery that a host
had buffered before a publish began cannot have been of it. The *reach* of an end is the latest time at which a publish
may have begun to be answered by it. Publishers and hosts must agree about the time for this, up to the greatest
difference of their clocks; of ids that are published once no time is asked. A publish that is recorded twice is one.

Nothing here reads files or needs pyarrow, so that a simulation can check what it did in the same way.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

from emq.trail import events


@dataclasses.dataclass(slots=True)
class Life:
    """What happened to one id; times in microseconds since the epoch, in any order.

    Attributes:
        begun: when each publish that was not merged began.
        merged: when each publish began that was merged with a message that waited.
        doubted: how many publishes failed that may have been carried out.
        replayed: when each replay of its dead letter began.
        settled, dead, recalled: the reach of each such end.
        moved: of each delivery that failed and left the slot for its lane, under an id of its own.
        slack_us: by how much the clocks of publishers and hosts may differ.
    """

    begun: set[int] = dataclasses.field(default_factory=set)
    merged: list[int] = dataclasses.field(default_factory=list)
    doubted: int = 0
    replayed: list[int] = dataclasses.field(default_factory=list)
    settled: list[int] = dataclasses.field(default_factory=list)
    dead: list[int] = dataclasses.field(default_factory=list)
    recalled: list[int] = dataclasses.field(default_factory=list)
    moved: list[int] = dataclasses.field(default_factory=list)
    slack_us: int = 0

    @property
    def is_open(self) -> bool:
        """Nothing became of the last publish or replay."""
        last = max((*self.begun, *self.merged, *self.replayed), default=0) - self.slack_us
        return all(reach < last for reach in (*self.settled, *self.dead, *self.recalled, *self.moved))

    @property
    def is_buried(self) -> bool:
        """It is in the dead letters: it died, and was not replayed since."""
        return max(self.dead, default=-1) > max(self.replayed, default=-1)

    @property
    def settled_again(self) -> int:
        """Settles that no publish of their own allows: repeats within one publish and its settle."""
        return surplus(1 + self.doubted, self._later, self.settled)

    @property
    def died_again(self) -> int:
        """Deaths that neither a publish nor a replay of their own allows."""
        return surplus(1 + self.doubted + len(self.replayed), self._later, self.dead)

    @property
    def _later(self) -> list[int]:
        """When the publishes after the first began, as early as the clocks allow."""
        return [began - self.slack_us for began in sorted(self.begun)[1:]]


class Step(NamedTuple):
    """One of the events that `EVENTS` names; `name` tells its message, `origin` that as it was published."""

    event: str
    time_us: int
    name: str
    origin: str
    source: str
    attempt: int | None
    ready_us: int | None
    published_us: int | None


_ENDS = (events.SETTLED, events.RETRIED, events.DEAD)
EVENTS = (
    *(events.PUBLISHED, events.MERGED, events.DOUBTED, events.STARTED, *_ENDS),
    *(events.RECALLED, events.REPLAYED),
)
"""What lives are made of; others are passed over."""


def of(steps: Iterable[Step], origins: Collection[str], slack_us: int = 0) -> dict[str, Life]:
    """The lives of these origins.

    Args:
        steps: in order of time, all of these origins.
        slack_us: by how much the clocks of publishers and hosts may differ.
    """
    lives = {origin: Life(slack_us=slack_us) for origin in origins}
    started: dict[tuple[str, str, int | None], int] = {}
    for event, time_us, name, origin, source, attempt, ready_us, published_us in steps:
        life = lives[origin]
        if event == events.PUBLISHED:
            life.begun.add(published_us or time_us)
        elif event == events.MERGED:
            life.merged.append(published_us or time_us)
        elif event == events.DOUBTED:
            life.doubted += 1
        elif event == events.STARTED:
            # Where the store tells which publish the message is of, that goes before the clocks.
            started[name, source, attempt] = max(ready_us or time_us, published_us or 0)
        elif event in _ENDS:
            reach = started.pop((name, source, attempt), None)
            if name != origin:
                if reach is None:
                    life.moved.append(started.pop((origin, source, attempt), time_us))
            elif event != events.RETRIED:
                # What expired was never started.
                (life.settled if event == events.SETTLED else life.dead).append(time_us if reach is None else reach)
        elif event in EVENTS and name == origin:
            (life.recalled if event == events.RECALLED else life.replayed).append(time_us)
    return lives


def surplus(free: int, begun: Sequence[int], reaches: Iterable[int]) -> int:
    """How many ends there are beyond one for each publish before them.

    Args:
        free: ends that are allowed at any time; one for the first publish, whatever the clocks say.
        begun: when the other publishes began, ascending; each allows one end that reaches it.
    """
    over = published = 0
    for reach in sorted(reaches):
        while published < len(begun) and begun[published] <= reach:
            published += 1
            free += 1
        if free:
            free -= 1
        else:
            over += 1
    return over
