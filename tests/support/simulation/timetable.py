"""An operator who creates schedules, changes them and takes them back, whatever else happens."""

from __future__ import annotations

import asyncio
import functools
import random
from typing import TYPE_CHECKING

from emq.producer import Producer
from emq.runtime import errors
from emq.timetable import schedule
from emq.topics.model import Kind
from support.simulation import occurrences
from support.simulation.occurrences import Standing, Told
from support.simulation.plans import TopicPlan
from support.simulation.work import Work

if TYPE_CHECKING:
    from support.simulation.cluster import Cluster

FIRST = 2
"""Schedules at the beginning."""

MOST = 4
"""And that stand at a time."""

LEAST_S, MOST_S = 1.0, 4.0
"""Seconds between two changes."""

SETTLED_S = 45.0
"""Seconds after the healing by which all schedules are on time."""

TRIED_S = 5.0
"""Seconds for which schedules stand in a trial."""

LOOK_S = 0.5


NOT_NOW = (errors.StoreUnavailable, errors.DatabaseUnavailable, errors.StoreFull, errors.UnknownTopic)
"""What hinders a change for a while; a topic is unknown until an operator creates it again in an empty database."""


class Timetable:
    """Keeps the schedules of one topic."""

    def __init__(self, cluster: Cluster, producer: Producer, plan: TopicPlan) -> None:
        self._cluster = cluster
        self._producer = producer
        self._plan = plan
        self._evidence = cluster.evidence
        self._rng = random.Random(f"{cluster.schedule.seed} timetable")
        self._count = 0
        self._over = asyncio.Event()

    async def run(self, until_s: float) -> None:
        """Create schedules, and take some back; to change one is to do both.

        It ends with the first change behind `until_s`.
        """
        try:
            await self._change(until_s)
        finally:
            self._over.set()

    async def _change(self, until_s: float) -> None:
        rng = self._rng
        for _ in range(FIRST):
            await self._create()
        while self._evidence.now < until_s:
            await asyncio.sleep(rng.uniform(LEAST_S, MOST_S))
            standing = self._standing()
            if standing and (len(standing) >= MOST or rng.random() < 0.4):
                await self._remove(rng.choice(standing))
            if len(standing) < MOST:
                await self._create()

    async def settle(self) -> None:
        """Wait until nobody changes any, and all schedules are on time; then take them back.

        Schedules may ask for more than their group's share, or for nearly as much: then a lane keeps what has been due
        since the faults, and a schedule waits behind it. Nobody can be on time there.
        """
        await self._over.wait()
        deadline = self._evidence.now + SETTLED_S
        while late := self._late():
            if self._evidence.now > deadline:
                for standing in late:
                    if not await self._is_behind(standing):
                        self._wrong(standing, "it is late though everything has healed")
                break
            await asyncio.sleep(LOOK_S)
        await self._remove_all()

    async def _is_behind(self, standing: Standing) -> bool:
        """Return True if its lane holds something that has been due for longer than the schedule has."""
        [lane] = await self._cluster.keeper.store.lanes.inspect([standing.group])
        due_ms = standing.due_ms(standing.fired + 1)
        return lane.next_due_ms is not None and due_ms is not None and lane.next_due_ms < due_ms

    async def try_out(self) -> None:
        """Let schedules stand for a while in which nothing goes wrong.

        They begin soon by the environment's time: where that is hours ahead of the true time, one that began soon by
        the true time would wait in its lane behind hundreds of its own occurrences, all of which it has missed.
        """
        for _ in range(FIRST):
            await self._create(await self._cluster.time_us())
        await asyncio.sleep(TRIED_S)
        for standing in self._late():
            self._wrong(standing, "it is late in calm times")
        await self._remove_all()

    def _standing(self) -> list[Standing]:
        return [standing for standing in self._evidence.occurrences.standing.values() if standing.is_there]

    def _late(self) -> list[Standing]:
        now_ms = min(member.clock.now_us() for member in self._cluster.alive) / 1000
        return [standing for standing in self._standing() if standing.is_late(now_ms)]

    async def _remove_all(self) -> None:
        deadline = self._evidence.now + SETTLED_S
        while standing := self._standing():
            if self._evidence.now > deadline:
                self._wrong(standing[0], "it cannot be taken back")
                return
            for one in standing:
                await self._remove(one)
            await asyncio.sleep(LOOK_S)

    async def _remove(self, standing: Standing) -> None:
        """Take a schedule back; one that is just being fired stays."""
        try:
            taken = await self._cluster.admin.recall(self._plan.name, [standing.id])
        except NOT_NOW as exc:
            self._evidence.note(self._plan.name, f"schedule {standing.id} may not have been taken back: {exc}")
            return
        if taken:
            self._evidence.happened["schedule taken back"] += 1

    async def _create(self, now_us: int | None = None) -> None:
        """Create a schedule that begins soon after `now_us`, by default the true time; microseconds since the epoch."""
        self._count += 1
        told = self._told(self._cluster.clock.now_us() if now_us is None else now_us)
        plan, name = self._plan, occurrences.name_of_schedule(self._plan.name, self._count)
        make = functools.partial(
            occurrences.work, key=told.key, failing=plan.failing, doomed=plan.doomed, slow=plan.slow
        )
        self._evidence.occurrences.told[name] = told, make
        priority: str | float | None = self._rng.choice(("high", "mid", "low"))
        if plan.kind is not Kind.LOG:
            priority = 20.0 if plan.kind is Kind.PRIORITY else None
        try:
            id_ = await self._producer.schedule(
                *(plan.name, Work(name, key=told.key).payload()),
                every_s=told.every_ms / 1000 or None,
                repeat=told.repeat,
                cron=told.cron,
                delay_ms=told.delay_ms,
                missed=told.missed,
                at=told.start_ms / 1000,
                key=told.key or None,
                priority=priority,
            )
        except NOT_NOW as exc:
            self._evidence.note(plan.name, f"schedule {self._count} may not have been created: {exc}")
            return
        self._evidence.happened["schedule created"] += 1
        if id_ not in self._evidence.occurrences.standing:
            self._evidence.violated("L", plan.name, f"schedule {id_} was created, and the store knows nothing of it")

    def _told(self, now_us: int) -> Told:
        rng, now_ms = self._rng, now_us // 1000
        # Eighths of a second are the same numbers in seconds and in milliseconds.
        start_ms = (now_ms // 125 + rng.randint(1, 12)) * 125
        missed: schedule.Missed = rng.choice(("skip", "once", "all"))
        key = f"s{self._count}" if rng.random() < 0.5 else ""
        delay_ms = rng.choice((0, 0, 750))
        if rng.random() < 0.6:
            # All that a clock makes due in an hour is as many as somebody asks for.
            repeat = rng.choice((4, 12)) if missed == "all" else rng.choice((None, None, 0, 6))
            return Told(self._count, start_ms, rng.choice((375, 1_000, 2_500)), repeat, 0, delay_ms, missed, key)
        period_s = 60 if missed == "all" else rng.choice((2, 5, 10))
        repeat = rng.choice((0, 2))
        return Told(self._count, start_ms, 625 if repeat else 0, repeat, period_s, delay_ms, missed, key)

    def _wrong(self, standing: Standing, text: str) -> None:
        group, told = standing.group, standing.told
        self._evidence.violated("schedule", group, f"schedule {standing.id} ({told}), {standing.fired} fired: {text}")
