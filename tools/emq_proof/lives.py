"""Match ends with publishes for ids that are published again and again, as in sorted topics.

A publish lets a message wait, or merges with a waiting one. A message ends when it is settled, dead or recalled. While
one message is delivered, another of the same id may wait; if the delivery fails, the two become one. So an id may end
fewer times than it was published, and counts prove nothing. Times do: a delivery that a host had buffered before a
publish began cannot belong to this publish. The *reach* of an end is the latest time at which its publish may have
begun. For this the clocks of publishers and hosts must agree, up to a known difference. A publish that is recorded
twice counts once.

This module reads no files and does not need pyarrow, so that simulations can use it too.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

from emq.topics.shares import LEARN_S, MICRO
from emq.trail import events

LEARN_US = (1 + LEARN_S) * MICRO
"""Microseconds for which a host may still start buffered messages of a deleted topic; its waiting ones are recalled."""


@dataclasses.dataclass(slots=True)
class Life:
    """The events of one id; times in microseconds since 1970, in any order.

    Of an id that merges all the time it holds one number for each publish that did not merge, and for each end.

    Attributes:
        begun: start of each publish that was not merged.
        merged_us: start of the last publish that merged with a waiting message; 0 for none.
        doubted: number of failed publishes that the store may have carried out.
        replayed: start of each replay of the dead letter.
        settled, dead, recalled: reach of each such end.
        moved_us: last reach of a delivery that failed and moved from the slot to the lane, under an id of its own; -1
            for none.
        slack_us: largest difference between the clocks of publishers and hosts.
    """

    slack_us: int = 0
    begun: set[int] = dataclasses.field(default_factory=set)
    merged_us: int = 0
    doubted: int = 0
    replayed: list[int] = dataclasses.field(default_factory=list)
    settled: list[int] = dataclasses.field(default_factory=list)
    dead: list[int] = dataclasses.field(default_factory=list)
    recalled: list[int] = dataclasses.field(default_factory=list)
    moved_us: int = -1
    _running: dict[tuple[str, str, int | None], int] = dataclasses.field(default_factory=dict)

    def add(self, step: Step) -> None:
        """Add the next event, in `ORDER`."""
        event, time_us, name, origin, source, attempt, ready_us, published_us, *_ = step
        if event == events.PUBLISHED:
            self.begun.add(published_us or time_us)
        elif event == events.MERGED:
            self.merged_us = max(self.merged_us, published_us or time_us)
        elif event == events.DOUBTED:
            self.doubted += 1
        elif event == events.STARTED:
            # If the store names the publish of the message, its time is surer than a comparison of clocks.
            self._running[name, source, attempt] = max(ready_us or time_us, published_us or 0)
        elif event in _ENDS:
            reach = self._running.pop((name, source, attempt), None)
            if name != origin:
                if reach is None:
                    moved_us = self._running.pop((origin, source, attempt), time_us)
                    self.moved_us = max(self.moved_us, moved_us)
            elif event != events.RETRIED:
                # An expired message was never started.
                (self.settled if event == events.SETTLED else self.dead).append(time_us if reach is None else reach)
        elif event == events.RETURNED:
            self._running.pop((name, source, attempt), None)
        elif name == origin:
            (self.recalled if event == events.RECALLED else self.replayed).append(time_us)

    @property
    def is_published(self) -> bool:
        """True if the trail has a publish, merged or not."""
        return bool(self.begun or self.merged_us)

    @property
    def is_open(self) -> bool:
        """True if the last publish or replay has no end."""
        last = max((self.merged_us, *self.begun, *self.replayed)) - self.slack_us
        return all(reach < last for reach in (self.moved_us, *self.settled, *self.dead, *self.recalled))

    @property
    def is_buried(self) -> bool:
        """True if the message is a dead letter that was not replayed since."""
        return max(self.dead, default=-1) > max(self.replayed, default=-1)

    @property
    def settled_again(self) -> int:
        """Number of settles without a publish of their own: repeats within one publish and its settle or recall."""
        again = surplus(1 + self.doubted, self._later, self.settled)
        taken = surplus(1 + self.doubted + len(self.replayed), self._later, (*self.settled, *self.recalled))
        # A host that had claimed the message before may go on: a deletion recalls all messages of a topic.
        gone_us = min(self.recalled, default=0) + LEARN_US + self.slack_us
        return max(again, min(taken, sum(reach > gone_us for reach in self.settled) if self.recalled else 0))

    @property
    def died_again(self) -> int:
        """Number of deaths without a publish or replay of their own."""
        return surplus(1 + self.doubted + len(self.replayed), self._later, self.dead)

    @property
    def _later(self) -> list[int]:
        """Starts of the publishes after the first, as early as the clocks allow."""
        return [began - self.slack_us for began in sorted(self.begun)[1:]]


class Step(NamedTuple):
    """One of the events in `EVENTS`; `name` is its message, `origin` the message as it was published."""

    event: str
    time_us: int
    name: str
    origin: str
    source: str
    attempt: int | None
    ready_us: int | None
    published_us: int | None
    group: int | None = None
    until: int | None = None
    due_ms: int | None = None
    reason: str | None = None


ORDER = ("time_us", "attempt", "is_end")
"""Order of the steps of an origin. At one time an attempt starts, then ends, and the next one starts."""

_ENDS = (events.SETTLED, events.RETRIED, events.DEAD)
EVENTS = (
    *(events.PUBLISHED, events.MERGED, events.DOUBTED, events.STARTED, *_ENDS),
    *(events.RETURNED, events.RECALLED, events.REPLAYED),
)
"""Events that a life consists of; other events are ignored."""


def of(steps: Iterable[Step], origins: Collection[str], slack_us: int = 0) -> dict[str, Life]:
    """Return the lives of these origins.

    Args:
        steps: all events of these origins, in `ORDER`.
        origins: messages as they were published.
        slack_us: largest difference between the clocks of publishers and hosts.
    """
    lives = {origin: Life(slack_us) for origin in origins}
    for step in steps:
        lives[step.origin].add(step)
    return lives


def surplus(free: int, begun: Sequence[int], reaches: Iterable[int]) -> int:
    """Return the number of ends beyond one for each publish before them.

    Args:
        free: ends that are allowed at any time; one of them for the first publish.
        begun: starts of the other publishes, ascending; each allows one end that reaches it.
        reaches: reach of each end.
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
