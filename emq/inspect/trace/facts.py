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
    """Something of its lane or slot is in prepare, and it is neither waiting nor dead."""
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
        offset: in a queue.
        due_ms: of a lane or a slot by time: when it may be claimed, milliseconds since the epoch.
        priority: name of its priority, or the number that it has in a slot by priority; empty where there is none.
        attempt: the number of the next delivery; in a slot it is known of retries only.
        error: what the last attempt failed with, or why it is dead; empty if not known.
        since_ms: since when it is dead.
        ahead: ready messages that go first at its own priority, as far as the store knows them.
        above: ready messages of higher priority in its group.
        recurring: it is an entry that publishes again and again.
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
        limit: most of them.
        bound: a handler takes the topic there.
        unreachable: why it cannot reach its store or database, if so.
    """

    host: str
    in_flight: int
    limit: int
    bound: bool = True
    unreachable: str | None = None


class Running(NamedTuple):
    """A delivery that has begun and not ended, by the trail.

    Attributes:
        live: its host still is; None where that is not known.
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
    """All that `emq.inspect.trace.waiting_reasons.why` asks.

    Attributes:
        now_ms: milliseconds since the epoch.
        place: None if the store does not have it.
        hosts: live hosts in the environment.
        consumers: those of them known to have groups of the topic.
        complete: every live host has told all its topics, so that one which none names has no consumer.
        owner: the host that owns the message's group by the trail; None where that is not known.
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
    """Whether a host is the one that a trail names: one of several processes adds its number to the source's name."""
    return host == source or host.startswith(f"{source}-")
