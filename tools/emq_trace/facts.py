"""Known facts about a message that has not ended: plain records, so that the reasoning needs no store."""

from __future__ import annotations

import dataclasses
import enum
from typing import NamedTuple

from emq.topics.model import Topic


class Where(enum.StrEnum):
    """The part of the store that holds the message."""

    QUEUE = "queue"
    LANE = "lane"
    SLOT = "slot"


class State(enum.StrEnum):
    """The state of the message in its part of the store."""

    WAITING = "waiting"
    CLAIMED = "claimed"
    """Some entry of its lane or slot is in prepare, and the message is neither waiting nor dead."""
    DEAD = "dead"
    FINISHED = "finished"
    """The message's offset was checkpointed as finished or trimmed, and the message is nowhere else."""


@dataclasses.dataclass(frozen=True, slots=True)
class Place:
    """The place of a message in the store.

    Attributes:
        name: name of the queue, lane or slot.
        group: index in the topic.
        id: the message's id at this place: a message that left its slot has a longer id in its lane.
        offset: its offset in a queue.
        due_ms: in a lane, or in a slot by time: when a host may claim it, milliseconds since 1970.
        priority: name of its priority, or its number in a slot by priority; empty if it has none.
        attempt: number of the next delivery; in a slot known only for retries.
        error: error of the last attempt, or reason of its death; empty if not known.
        since_ms: when it became a dead letter.
        ahead: ready messages that go first at its own priority, as far as the store knows them.
        above: ready messages of higher priority in its group.
        recurring: whether it is a schedule, which publishes again and again.
    """

    where: Where
    state: State
    name: str
    group: int
    id: str = ""
    offset: int | None = None
    due_ms: int | None = None
    priority: str = ""
    attempt: int = 1
    error: str = ""
    since_ms: int | None = None
    ahead: int = 0
    above: int = 0
    recurring: bool = False


class Consumer(NamedTuple):
    """A live host that has groups of the topic.

    Attributes:
        in_flight: messages of the topic started and not settled there.
        limit: most such messages.
        bound: whether a handler takes the topic there.
        unreachable: why it cannot reach its store or database; None if it can.
    """

    host: str
    in_flight: int
    limit: int
    bound: bool = True
    unreachable: str | None = None


class Running(NamedTuple):
    """A delivery that has begun and not ended, by the trail.

    Attributes:
        live: whether its host still runs; None if not known.
    """

    host: str
    since_ms: int
    attempt: int
    live: bool | None


class Failure(NamedTuple):
    """The last failed attempt, by the trail.

    Attributes:
        at_ms: when it failed.
        due_ms: when the next one is due.
    """

    attempt: int
    at_ms: int
    due_ms: int
    reason: str


@dataclasses.dataclass(frozen=True, slots=True)
class Facts:
    """The input of `emq_trace.waiting_reasons.why`.

    Attributes:
        now_ms: milliseconds since the epoch.
        place: None if the store does not have it.
        hosts: live hosts in the environment.
        consumers: those of them known to have groups of the topic.
        complete: whether every live host has named all its topics, so that a topic without a name there has no
            consumer.
        owner: the host that owns the message's group by the trail; None if not known.
    """

    topic: Topic
    now_ms: int
    place: Place | None = None
    hosts: int = 0
    consumers: tuple[Consumer, ...] = ()
    complete: bool = True
    owner: str | None = None
    running: Running | None = None
    failure: Failure | None = None


def is_host(source: str, host: str) -> bool:
    """Return whether a trail's source is this host; one of several processes adds its number to the source's name."""
    return host == source or host.startswith(f"{source}-")
