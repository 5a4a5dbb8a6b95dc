"""The statistics loop: saves a snapshot of the host each second, for readers outside the host.

Messages cost no more by this: the loop reads counters that exist anyway. The starts of a topic are those that its
counters granted, less those given back.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
from collections import deque
from collections.abc import Generator, Iterator
from typing import NamedTuple, Protocol

import msgspec

from emq.allocation.bucket_membership import BucketMembership
from emq.database import host_stats, levels
from emq.groups.deliveries import SIZES
from emq.groups.owned import OwnedTopic
from emq.host.consumption import Consumption
from emq.host.group_work import GroupWork
from emq.host.lag_sampler import LagSampler
from emq.host.ownership import Ownership
from emq.host.statistics import IN_SLOT, HostStatistics, Move, Rates, ThrottledTopic, TopicStatistics, Totals
from emq.host.watched_topics import WatchedTopics
from emq.offsets.checkpoints import CheckpointStore
from emq.quota.throttle import Throttle
from emq.runtime import errors, pace
from emq.runtime.clock import Clock
from emq.runtime.guard import Guard
from emq.runtime.timekeeping import Timekeeper
from emq.topics.model import State

INTERVAL_S = 1.0
"""Seconds between the snapshots of a busy host."""

IDLE_S = 5.0
"""Seconds between the snapshots of an idle host; they are a sign of life."""

BUSIEST = 100
"""Most topics in a snapshot."""

MOVES = 10
"""Most moves of groups in a snapshot."""

MOVE_S = 5.0
"""Groups that come or go within this many seconds of each other count as one move."""

MAX_REASON = 200
"""Characters of a throttle's reason in a snapshot."""

SLICE_GROUPS = 500
"""Groups looked at in one step (about a third of a millisecond); then the event loop may run other tasks."""

GROUPS_PER_S = 5_000
"""Groups looked at in a second, on average; a host with more groups renews its list of topics less often."""


class Recorded(Protocol):
    """The parts of an `emq.host.host.Host` whose counters the recorder reads."""

    work: GroupWork
    ownership: Ownership
    guard: Guard
    timekeeper: Timekeeper | None
    membership: BucketMembership
    lag: LagSampler
    watched: WatchedTopics
    consumption: Consumption


class _Mark(NamedTuple):
    """Numbers that change while a host is busy and stay equal while it is idle; cheap with any number of groups."""

    totals: Totals
    in_flight: int
    buffered: int
    groups: int
    unreachable: tuple[str | None, str | None]


class Recorder:
    """Takes and saves the snapshots of one host.

    Args:
        host: its counters are recorded.
        checkpoints: tells the database and environment in which to save snapshots.

    Attributes:
        lags: counts of the delays with which the event loop woke the loop below, by size; see `Deliveries`.
        lagged_us: sum of these delays, in microseconds.
        throttled, limited: topics that were closed or limited at the last look, and the limited ones among them.
    """

    def __init__(self, host: Recorded, checkpoints: CheckpointStore, clock: Clock) -> None:
        self._host, self._work, self._ownership = host, host.work, host.ownership
        self._database, self._environment = checkpoints.database, checkpoints.environment
        self._name = host.membership.host
        self._clock = clock
        self._born = clock.now()
        self._lag_s = 0.0
        self._rates = Rates()
        self._busiest: tuple[TopicStatistics, ...] = ()
        self._throttled: tuple[ThrottledTopic, ...] = ()
        self.throttled = self.limited = 0
        self._mark: _Mark | None = None
        self._marked_at = self._looked_at = self._born
        self._saved_at = float("-inf")
        self._starts: dict[str, int] = {}
        self._looks_wanted = 0
        self._moves: deque[Move] = deque(maxlen=MOVES)
        self._moved = (0, 0)
        self.lags = [0] * SIZES
        self.lagged_us = 0

    def latest(self) -> HostStatistics:
        """Return a snapshot: totals of this moment, rates and topics as the loop last found them. Cheap."""
        host, work, ownership, now = self._host, self._work, self._ownership, self._clock.now()
        missing = host.consumption.unconsumed()
        return HostStatistics(
            host=self._name,
            time=now,
            uptime_s=now - self._born,
            topics=len(ownership.owned),
            groups=len(ownership.groups),
            queues=len(ownership.queues),
            ready_queues=len(work.readiness),
            buffered_messages=work.gauge.messages,
            buffered_bytes=work.gauge.bytes,
            in_flight=work.dispatcher.flight.count,
            loop_lag_s=self._lag_s,
            store_unreachable=self.store_unreachable,
            database_unreachable=self._database.unreachable,
            totals=self._totals(),
            rates=self._rates,
            busiest=self._busiest,
            clock=host.timekeeper.state() if host.timekeeper is not None else None,
            closed=self.throttled - self.limited,
            limited=self.limited,
            throttled=self._throttled,
            lag={part.value: n for part, n in host.lag.counts.items()} if host.lag.sampled_at is not None else {},
            lag_at=host.lag.sampled_at,
            troubled=host.lag.troubled,
            in_trouble=host.lag.in_trouble,
            watched=host.watched.latest(),
            quota=host.lag.quota,
            plan=plan.version if (plan := host.membership.plan) is not None else 0,
            moves=tuple(self._moves),
            level=levels.LEVEL,
            unconsumed=missing.groups,
            unconsumed_s=round(missing.for_s, 1),
            unconsumed_why=str(missing) if missing.groups else "",
        )

    @property
    def store_unreachable(self) -> str | None:
        """The error of the store, or of the part of it that does not answer; None while all is well."""
        work = self._work
        return work.puller.unreachable or work.slots.unreachable or work.lanes.unreachable or self._host.lag.unreachable

    async def record(self) -> None:
        """Save a snapshot every `INTERVAL_S` (1 s) while the host is busy or watched, else every `IDLE_S` (5 s).

        The loop tells busy from idle by the host's totals, so an idle host costs one comparison a second. After a
        change the loop looks at the topics one by one: at most `GROUPS_PER_S` (5,000) groups a second on average, in
        slices of `SLICE_GROUPS` (500). Ends by cancellation.
        """
        loop = asyncio.get_running_loop()
        while True:
            await self._round()
            due = pace.end_of_rest(INTERVAL_S)
            await asyncio.sleep(due - loop.time())
            late_us = max(0, int((loop.time() - due) * 1e6))
            self.lags[min(late_us.bit_length(), SIZES - 1)] += 1
            self.lagged_us += late_us
            self._lag_s = max(self._lag_s, late_us / 1e6)

    async def forget(self) -> None:
        """Delete the snapshot of the stopping host. If the database does not answer, the snapshot becomes stale."""
        with contextlib.suppress(errors.DatabaseUnavailable):
            await host_stats.drop(self._database, self._environment, self._name)

    async def _round(self) -> None:
        changed = self._take_rates()
        if changed:
            # A second look, after the last change, brings the topics' rates back to 0.
            self._looks_wanted = 2
        now = self._clock.now()
        self._note_moves(now)
        interval_s = max(INTERVAL_S, len(self._ownership.groups) / GROUPS_PER_S)
        look = self._looks_wanted > 0 and now - self._looked_at >= interval_s * 0.9
        if look:
            self._looks_wanted -= 1
            for _ in self._look(now):
                await asyncio.sleep(0)
        if changed or look or self._host.watched.names or now - self._saved_at >= IDLE_S:
            await self._save()

    def _note_moves(self, now: float) -> None:
        """Note the groups that have come and gone since the last round; those of a few seconds are one move."""
        before, self._moved = self._moved, (self._ownership.taken, self._ownership.let_go)
        taken, let_go = (after - former for after, former in zip(self._moved, before, strict=True))
        if not taken and not let_go:
            return
        last = self._moves[-1] if self._moves else None
        if last is not None and now - last.time <= MOVE_S:
            self._moves[-1] = Move(now, last.taken + taken, last.let_go + let_go)
        else:
            self._moves.append(Move(now, taken, let_go))

    def _take_rates(self) -> bool:
        """Compute the rates since the last round. Returns True if any total changed."""
        now, work = self._clock.now(), self._work
        unreachable = (self.store_unreachable, self._database.unreachable)
        counts = (work.dispatcher.flight.count, work.gauge.messages, len(self._ownership.groups))
        mark = _Mark(self._totals(), *counts, unreachable)
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
        throttled: list[tuple[int, str, ThrottledTopic]] = []
        looked = 0
        for name, owner in list(self._ownership.owned.items()):
            started = waiting = 0
            for group in list(owner.groups.values()):
                started += group.counter.reserved - group.counter.rolled_back
                waiting += group.buffered + group.held
                looked += 1
                if looked % SLICE_GROUPS == 0:
                    yield
            starts[name] = started
            if (throttle := owner.throttle_at(now)) is not None:
                throttled.append((waiting, name, _throttled(name, throttle)))
            began = max(0, started - self._starts.get(name, 0))  # not below 0: groups may have gone since
            if began or waiting or owner.in_flight or len(found) < BUSIEST:  # of those at rest, not all are compared
                found.append((began, waiting, owner.in_flight, name))
        owned, busiest = self._ownership.owned, []
        for began, _, _, name in heapq.nlargest(BUSIEST, found):
            if name in owned:
                busiest.append((yield from _topic(owned[name], began / elapsed, now)))
        self._busiest = tuple(busiest)
        self._throttled = tuple(topic for _, _, topic in heapq.nlargest(BUSIEST, throttled))
        self.throttled = len(throttled)
        self.limited = sum(topic.rate is not None for _, _, topic in throttled)
        self._starts, self._looked_at = starts, now

    async def _save(self) -> None:
        self._host.consumption.look()
        snapshot = self.latest()
        text = msgspec.json.encode(snapshot).decode()
        try:
            wanted = await host_stats.save(
                self._database, self._environment, self._name, text, int(snapshot.time * 1000)
            )
        except errors.DatabaseUnavailable:
            return  # the checkpointer has logged the error; the next round tries again
        self._host.watched.watch(wanted)
        self._saved_at, self._lag_s = snapshot.time, 0.0

    def _totals(self) -> Totals:
        work, ownership = self._work, self._ownership
        return Totals(
            fetched=work.puller.fetched + work.slots.fetched,
            started=work.dispatcher.started,
            succeeded=work.endings.succeeded,
            failed=work.endings.failed,
            retried=work.settler.retried,
            dead=work.settler.dead,
            expired=work.endings.expired,
            holes=work.puller.holes,
            checkpoints=work.checkpointer.saved,
            fenced=ownership.losses.groups,
            shrunk=ownership.shrunk_queues,
            broken=self._host.guard.broken.total(),
        )


def _throttled(name: str, throttle: Throttle) -> ThrottledTopic:
    rate = throttle.rate if throttle.is_limited else None
    return ThrottledTopic(name, rate, throttle.since, throttle.until, throttle.reason[:MAX_REASON])


def _topic(owner: OwnedTopic, started_per_s: float, now: float) -> Generator[None, None, TopicStatistics]:
    """Return the statistics of one topic; yield between slices."""
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
        held_by="" if owner.charge is None else owner.charge.held_by(now) or "",
    )
