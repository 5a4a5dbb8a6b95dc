"""The snapshot of its own statistics that a host saves in the database, for `emq top`, `emq hosts` and `emq trace`."""

from __future__ import annotations

import msgspec

from emq.runtime.timekeeping import ClockState

LIVE_S = 10.0
"""Most age, in seconds, of a live host's snapshot. A host with an older one is gone, or cut off from its database."""

MOVING_S = 5.0
"""Seconds that groups of the plan may wait, as in a move, before the host counts as in trouble."""

IN_SLOT = "slot"


class Totals(msgspec.Struct, frozen=True):
    """Counts since the host started.

    Attributes:
        fetched: messages read from log queues, or claimed from slots.
        started: deliveries handed to a handler.
        succeeded, failed: deliveries by their outcome.
        retried: failures that are tried again later.
        dead: messages that went to the dead letters.
        expired: dead messages that had outlived their time to live.
        holes: offsets skipped because the queue held nothing there.
        checkpoints: checkpoints of single queues saved.
        fenced: groups lost to a newer owner.
        shrunk: queues that were read again because their store had come back from a crash without messages.
        broken: unexpected failures of a loop or of one of its items, each followed by a new start; see the log.
    """

    fetched: int = 0
    started: int = 0
    succeeded: int = 0
    failed: int = 0
    retried: int = 0
    dead: int = 0
    expired: int = 0
    holes: int = 0
    checkpoints: int = 0
    fenced: int = 0
    shrunk: int = 0
    broken: int = 0


class Rates(msgspec.Struct, frozen=True):
    """Counts of `Totals` a second, over the time between two snapshots."""

    fetched: float = 0.0
    started: float = 0.0
    succeeded: float = 0.0
    failed: float = 0.0
    retried: float = 0.0
    dead: float = 0.0


class TopicStatistics(msgspec.Struct, frozen=True):
    """A topic on one host.

    Attributes:
        qps: the topic's limit in starts a second, over all hosts.
        state: "active", "paused" or "draining".
        groups: number of the topic's groups that the host owns.
        started_per_s: deliveries started a second.
        in_flight, max_in_flight: messages started and not settled here, and their limit.
        buffered: messages in memory by the name of their priority, highest first; all as "slot" for a sorted topic.
        retries_buffered: buffered messages that came from a lane.
        bound: True if a handler or receiver takes the topic's messages here, or if the topic is paused.
        held_by: the budget that has refused the topic starts in the last second; empty if none has.
    """

    name: str
    qps: float
    state: str
    groups: int
    started_per_s: float
    in_flight: int
    buffered: dict[str, int]
    retries_buffered: int
    max_in_flight: int = 1 << 31
    bound: bool = True
    held_by: str = ""


class ThrottledTopic(msgspec.Struct, frozen=True):
    """A topic that its handler, or push, holds below its quota on one host; see `emq.quota.throttle`.

    Attributes:
        rate: most starts a second; None while the topic is closed.
        since: time since which it is closed or limited, in seconds since the epoch.
        until: time of the next probe of a closed topic; 0 for a limited one.
        reason: the handler's or push's words.
    """

    name: str
    rate: float | None
    since: float
    until: float
    reason: str


class TroubledTopic(msgspec.Struct, frozen=True):
    """A topic of one host that may need somebody; see `emq.host.troubled_topics`.

    Attributes:
        cause: "paused" (or its endpoint is disabled), "no_handler", "closed" or "limited" (its throttle), "full" (as
            many in flight as may be), "backlog" or "dead".
        reason: the throttle's words, or why its endpoint is disabled; else empty.
        waiting: messages that only the cause keeps from starting.
        dead: dead letters.
        rate: most starts a second that the topic may make here now; 0 where nothing starts.
        drain_s: seconds until none of its messages waits, at the present rates; None for never.
    """

    name: str
    cause: str
    reason: str
    waiting: int
    dead: int
    rate: float
    drain_s: float | None


class Move(msgspec.Struct, frozen=True):
    """Groups that came to a host and left it at about the same time.

    Attributes:
        time: seconds since the epoch.
    """

    time: float
    taken: int
    let_go: int


class WatchedTopic(msgspec.Struct, frozen=True):
    """The starts in each second of topics that somebody looks at.

    Attributes:
        name: see `emq.database.watches`.
        second: the last whole second of `starts`, since the epoch.
        starts: starts in each second up to then, the oldest first.
    """

    name: str
    second: int
    starts: tuple[int, ...]


class HostStatistics(msgspec.Struct, frozen=True):
    """A snapshot of one host.

    Attributes:
        time: seconds since the epoch, by the host's clock.
        uptime_s: seconds since the host was created.
        topics, groups, queues: numbers of topics, groups and queues that the host owns.
        ready_queues: queues that wait to be read.
        in_flight: messages started and not settled.
        loop_lag_s: the longest delay, in seconds, with which the event loop woke the statistics loop since the last
            saved snapshot.
        store_unreachable, database_unreachable: the error, while the server cannot be reached; else None.
        busiest: at most 100 topics, the busiest first.
        clock: the state of the host's clock; None if nothing keeps it.
        closed, limited: numbers of topics that are throttled so.
        throttled: at most 100 of them, first those with the most messages in this host's buffers.
        lag: messages that are not done and not in flight, by the part of the lag (`emq.host.lag_parts`).
        lag_at: when `lag` was counted; None before the first look.
        troubled: at most 50 topics in trouble, the worst first.
        in_trouble: number of all topics in trouble here.
        watched: the topics that somebody looks at and that have groups here.
        quota: starts a second that the host's groups may make, when `lag` was counted.
        plan: number of the plan that the host follows; 0 before the first.
        moves: at most 10 latest moves of groups, the oldest first.
    """

    host: str
    time: float
    uptime_s: float = 0.0
    topics: int = 0
    groups: int = 0
    queues: int = 0
    ready_queues: int = 0
    buffered_messages: int = 0
    buffered_bytes: int = 0
    in_flight: int = 0
    loop_lag_s: float = 0.0
    store_unreachable: str | None = None
    database_unreachable: str | None = None
    totals: Totals = Totals()
    rates: Rates = Rates()
    busiest: tuple[TopicStatistics, ...] = ()
    clock: ClockState | None = None
    closed: int = 0
    limited: int = 0
    throttled: tuple[ThrottledTopic, ...] = ()
    lag: dict[str, int] = {}
    lag_at: float | None = None
    troubled: tuple[TroubledTopic, ...] = ()
    in_trouble: int = 0
    watched: tuple[WatchedTopic, ...] = ()
    quota: float = 0.0
    plan: int = 0
    moves: tuple[Move, ...] = ()
    level: int = 1
    unconsumed: int = 0
    unconsumed_s: float = 0.0
    unconsumed_why: str = ""

    @property
    def troubles(self) -> list[str]:
        """What keeps the host from its work, for people, a text for each cause; groups that only move are none."""
        clock = self.clock.trouble if self.clock is not None else None
        missing = self.unconsumed_why if self.unconsumed_s > MOVING_S else None
        return [text for text in (self.store_unreachable, self.database_unreachable, clock, missing) if text]


decode = msgspec.json.Decoder(HostStatistics).decode
"""Decode a saved snapshot (JSON text). Raises `msgspec.DecodeError` if the fields of another version do not fit."""
