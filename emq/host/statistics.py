"""The snapshot that a host saves of itself in the database; `emq top`, `emq hosts` and `emq trace` read it there."""

from __future__ import annotations

import msgspec

from emq.loops.timekeeping import ClockState

LIVE_S = 10.0
"""A snapshot older than this belongs to a host that is gone or cut off from its database."""

IN_SLOT = "slot"


class Totals(msgspec.Struct, frozen=True):
    """Counts since the host started.

    Attributes:
        fetched: messages read from log queues, or claimed from slots.
        started: deliveries handed to a handler.
        succeeded, failed: how they ended.
        retried: failures that are tried again later.
        dead: messages that went to the dead letters.
        expired: of these, those that had outlived their time to live.
        holes: offsets skipped because nothing was there.
        checkpoints: queues whose progress was saved, counted each time.
        fenced: groups lost to a newer owner.
        shrunk: queues that were read again because their store had come back from a crash without messages.
        broken: times that a loop, or one item of it, failed unexpectedly and was started again; the log tells of them.
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
        qps: its limit, over all hosts.
        state: "active", "paused" or "draining".
        groups: how many of its groups the host owns.
        started_per_s: deliveries started a second.
        in_flight, max_in_flight: messages started and not settled here, and the most there may be.
        buffered: messages in memory by priority, names highest first; of a sorted topic all together, as "slot".
        retries_buffered: of these, those that come from a lane.
        bound: a handler or receiver takes its messages here; they also wait while the topic is paused.
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


class HostStatistics(msgspec.Struct, frozen=True):
    """A snapshot of one host.

    Attributes:
        time: seconds since the epoch, by the host's clock.
        uptime_s: seconds since the host was made.
        topics, groups, queues: how many it owns.
        ready_queues: queues that wait to be read.
        in_flight: messages started and not settled.
        loop_lag_s: by how much the event loop woke this up too late, at worst since the last snapshot.
        store_unreachable, database_unreachable: the error, while there is one.
        busiest: at most 100 topics, the busiest first.
        clock: what it knows of the time; None where nothing keeps its clock.
    """

    host: str
    time: float
    uptime_s: float
    topics: int
    groups: int
    queues: int
    ready_queues: int
    buffered_messages: int
    buffered_bytes: int
    in_flight: int
    loop_lag_s: float
    store_unreachable: str | None
    database_unreachable: str | None
    totals: Totals
    rates: Rates
    busiest: tuple[TopicStatistics, ...]
    clock: ClockState | None = None


decode = msgspec.json.Decoder(HostStatistics).decode
"""Decode a saved snapshot (JSON text); raises `msgspec.DecodeError` on another version's."""


def waiting(host: str, now: float, why: str) -> HostStatistics:
    """The snapshot of a host that waits for its store and consumes nothing yet."""
    return HostStatistics(
        host=host,
        time=now,
        uptime_s=0.0,
        topics=0,
        groups=0,
        queues=0,
        ready_queues=0,
        buffered_messages=0,
        buffered_bytes=0,
        in_flight=0,
        loop_lag_s=0.0,
        store_unreachable=why,
        database_unreachable=None,
        totals=Totals(),
        rates=Rates(),
        busiest=(),
    )
