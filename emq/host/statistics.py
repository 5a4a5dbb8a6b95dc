"""What a host says about itself: a snapshot a second, kept in the database for those who look from outside.

Nothing here is on a message's way. Totals are read from counters that exist anyway; a topic's starts are what its
groups' counters granted and did not take back.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from emq import errors
from emq.clock import Clock
from emq.groups.owned import Gauge, OwnedTopic
from emq.loops.timekeeping import ClockState
from emq.offsets.checkpoints import CheckpointStore
from emq.topics.model import State

if TYPE_CHECKING:
    from emq.host.host import Host

INTERVAL_S = 1.0
"""How often a host that does something saves a snapshot."""

IDLE_S = 5.0
"""How often one that does nothing saves it, as a sign of life."""

LIVE_S = 10.0
"""A snapshot older than this belongs to a host that is gone or cut off from its database."""

BUSIEST = 100
"""Most topics in a snapshot, however many there are."""

SLICE_GROUPS = 500
"""Groups looked at before the event loop gets to serve others; about a third of a millisecond."""

GROUPS_PER_S = 5_000
"""Groups looked at in a second on average: a host with more renews its list of topics less often."""


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


class _Mark(NamedTuple):
    """What tells a host that does something from an idle one; cheap at any number of groups."""

    totals: Totals
    in_flight: int
    buffered: int
    groups: int
    unreachable: tuple[str | None, str | None]


decode = msgspec.json.Decoder(HostStatistics).decode
"""Decode a saved snapshot (JSON text); raises `msgspec.DecodeError` on another version's."""


class Recorder:
    """Takes and saves the snapshots of one host.

    Args:
        host: whose counters are read.
        gauge: the host's buffers.
        checkpoints: its database and environment are where snapshots are saved.
        name: of the host in its cluster.
    """

    def __init__(self, host: Host, gauge: Gauge, checkpoints: CheckpointStore, name: str, clock: Clock) -> None:
        self._host = host
        self._gauge = gauge
        self._database, self._environment = checkpoints.database, checkpoints.environment
        self._name = name
        self._clock = clock
        self._born = clock.now()
        self._lag_s = 0.0
        self._rates = Rates()
        self._busiest: tuple[TopicStatistics, ...] = ()
        self._mark: _Mark | None = None
        self._marked_at = self._looked_at = self._born
        self._saved_at = float("-inf")
        self._starts: dict[str, int] = {}
        self._looks_wanted = 0

    def latest(self) -> HostStatistics:
        """A snapshot: totals as they are now, rates and topics as the loop last found them. Cheap."""
        host, totals = self._host, self._totals()
        now = self._clock.now()
        return HostStatistics(
            host=self._name,
            time=now,
            uptime_s=now - self._born,
            topics=len(host.ownership.owned),
            groups=len(host.ownership.groups),
            queues=len(host.ownership.queues),
            ready_queues=len(host.readiness),
            buffered_messages=self._gauge.messages,
            buffered_bytes=self._gauge.bytes,
            in_flight=host.dispatcher.in_flight,
            loop_lag_s=self._lag_s,
            store_unreachable=host.puller.unreachable or host.slots.unreachable,
            database_unreachable=self._database.unreachable,
            totals=totals,
            rates=self._rates,
            busiest=self._busiest,
            clock=host.timekeeper.state() if host.timekeeper is not None else None,
        )

    async def record(self) -> None:
        """Save a snapshot every `INTERVAL_S` (1 s) while something happens, else every `IDLE_S` (5 s).

        Whether something happens is told from the host's total counters, so that an idle host, whatever it owns,
        pays for one comparison a second. Topics are looked at one by one only after something happened, at most
        `GROUPS_PER_S` (5,000) groups a second on average, in slices of `SLICE_GROUPS` (500). Ends by cancellation.
        """
        loop = asyncio.get_running_loop()
        while True:
            await self._round()
            due = loop.time() + INTERVAL_S
            await asyncio.sleep(INTERVAL_S)
            self._lag_s = max(self._lag_s, loop.time() - due)

    async def forget(self) -> None:
        """The host has stopped: take its snapshot out of sight. Where the database does not answer, it grows stale."""
        with contextlib.suppress(errors.DatabaseUnavailable):
            await self._database.drop_host_stats(self._environment, self._name)

    async def _round(self) -> None:
        changed = self._take_rates()
        if changed:
            # A second look afterwards finds that nothing moves any more.
            self._looks_wanted = 2
        now = self._clock.now()
        interval_s = max(INTERVAL_S, len(self._host.ownership.groups) / GROUPS_PER_S)
        look = self._looks_wanted > 0 and now - self._looked_at >= interval_s * 0.9
        if look:
            self._looks_wanted -= 1
            for _ in self._look(now):
                await asyncio.sleep(0)
        if changed or look or now - self._saved_at >= IDLE_S:
            await self._save()

    def _take_rates(self) -> bool:
        """Compute the rates since the last round; answers whether anything changed."""
        host, now = self._host, self._clock.now()
        unreachable = (host.puller.unreachable, self._database.unreachable)
        mark = _Mark(
            self._totals(),
            host.dispatcher.in_flight,
            self._gauge.messages,
            len(host.ownership.groups),
            unreachable,
        )
        before, elapsed = self._mark, max(1e-3, now - self._marked_at)
        self._mark, self._marked_at = mark, now
        if mark == before:
            self._rates = Rates()
            return False
        old = before.totals if before is not None else Totals()
        self._rates = Rates(
            *((getattr(mark.totals, f) - getattr(old, f)) / elapsed for f in Rates.__struct_fields__),
        )
        return True

    def _look(self, now: float) -> Iterator[None]:
        """Find the busiest topics; yields between slices, so that a long list does not hold up the event loop."""
        elapsed = max(1e-3, now - self._looked_at)
        starts: dict[str, int] = {}
        found: list[tuple[int, int, int, str]] = []
        looked = 0
        for name, owner in list(self._host.ownership.owned.items()):
            started = waiting = 0
            for group in list(owner.groups.values()):
                started += group.counter.reserved - group.counter.rolled_back
                waiting += group.buffered + group.held
                looked += 1
                if looked % SLICE_GROUPS == 0:
                    yield
            starts[name] = started
            # A change of pacing makes new counters, which begin at 0.
            found.append((max(0, started - self._starts.get(name, 0)), waiting, owner.in_flight, name))
        owned, busiest = self._host.ownership.owned, []
        for began, _, _, name in heapq.nlargest(BUSIEST, found):
            if name in owned:
                busiest.append((yield from _topic(owned[name], began / elapsed)))
        self._busiest = tuple(busiest)
        self._starts, self._looked_at = starts, now

    async def _save(self) -> None:
        snapshot = self.latest()
        text = msgspec.json.encode(snapshot).decode()
        try:
            await self._database.save_host_stats(self._environment, self._name, text, int(snapshot.time * 1000))
        except errors.DatabaseUnavailable:
            return  # the checkpointer says so already, and the next round tries again
        self._saved_at, self._lag_s = snapshot.time, 0.0

    def _totals(self) -> Totals:
        host = self._host
        return Totals(
            fetched=host.puller.fetched + host.slots.fetched,
            started=host.dispatcher.started,
            succeeded=host.dispatcher.succeeded,
            failed=host.dispatcher.failed,
            retried=host.settler.retried,
            dead=host.settler.dead,
            expired=host.dispatcher.expired,
            holes=host.puller.holes,
            checkpoints=host.checkpointer.saved,
            fenced=host.ownership.lost_groups,
            shrunk=host.ownership.shrunk_queues,
            broken=host.guard.broken.total(),
        )


def _topic(owner: OwnedTopic, started_per_s: float) -> Generator[None, None, TopicStatistics]:
    """Of one topic; yields between slices."""
    topic, groups = owner.topic, list(owner.groups.values())
    names = topic.priorities or (IN_SLOT,)
    buffered, retries = dict.fromkeys(names, 0), 0
    for looked, group in enumerate(groups, 1):
        if looked % SLICE_GROUPS == 0:
            yield
        if not (group.buffered or group.held):
            continue
        retries += sum(group.retries.values())
        for priority, buffer in zip(names, group.buffers, strict=True):
            buffered[priority] += len(buffer)
        for (index, _), held in group.blocked.items():
            buffered[names[index]] += len(held)
    return TopicStatistics(
        name=topic.name,
        qps=topic.qps,
        state=topic.state.value,
        groups=len(groups),
        started_per_s=started_per_s,
        in_flight=owner.in_flight,
        max_in_flight=owner.limit,
        bound=owner.handler is not None or topic.state is State.PAUSED,
        buffered=buffered,
        retries_buffered=retries,
    )


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
