"""The day's load: publishes to every topic as its trait says, and changes topics meanwhile."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from typing import Any

from day_plan import PRIORITIES, Tenant, fate_of, topic_named
from day_record import Evidence, Journal, Sent, Version, now_us

import emq
from emq.runtime import errors
from emq.topics.model import Kind

TWINS = 6
"""How many contents a `range` topic has at a time; each is published again and again."""

FAR_MS = 3_600_000.0

CHANGED = 24
"""Topics whose qps changes while it is used, beside those whose keys move."""

DELETED = 15
"""Half of the messages in a topic that is deleted with force."""


class Load:
    """Publishes to the planned topics through one app, and writes down every publish that returned."""

    def __init__(self, app: emq.App, planned: Sequence[Tenant], evidence: Evidence, journal: Journal) -> None:
        self._app = app
        self._planned = planned
        self._evidence = evidence
        self._journal = journal
        self._chance = random.Random(f"load {evidence.seed}")
        self._far: list[tuple[str, str, str]] = []
        self._over = asyncio.Event()
        self.refused = 0

    async def create_topics(self) -> None:
        made = await self._app.admin.create([tenant.topic for tenant in self._planned])
        for topic in made:
            self._evidence.versions[topic.name] = [Version(now_us(), topic)]

    async def run(self, seconds: float, over: asyncio.Event) -> None:
        """Publish until `over`, with a course of changes, deletions and recalls that is planned for so many seconds.

        An unexpected error is the test's.
        """
        self._over = over
        async with asyncio.TaskGroup() as group:
            for tenant in self._planned:
                chance = random.Random(f"{tenant.name} {self._evidence.seed}")
                group.create_task(self._publish_to(tenant, seconds, chance))
            group.create_task(self._change(seconds))
            group.create_task(self._come_and_go(seconds))
            group.create_task(self._delete_by_force(seconds))

    async def recall_far(self) -> None:
        """Take back what was published for a time after the day; none of it may ever have started."""
        for topic, id_, name in self._far:
            if await self._app.recall(topic, id_) == {id_}:
                self._evidence.recalled.add((topic, name))

    # ------------------------------------------------------------------------------------------------------ publishing

    async def _publish_to(self, tenant: Tenant, seconds: float, chance: random.Random) -> None:
        number = 0
        if tenant.trait == "scheduled":
            await self._schedule(tenant, seconds)
            return
        if tenant.burst and tenant.of.strict:
            await self._burst(tenant, chance)
            number = tenant.burst
        while True:
            if number >= tenant.burst:
                await asyncio.sleep(chance.expovariate(tenant.rate_per_s))
            if self._over.is_set():
                return
            await self._publish(tenant, number, chance)
            number += 1

    async def _burst(self, tenant: Tenant, chance: random.Random) -> None:
        """Many at once, the low priorities first."""
        numbers = iter(range(tenant.burst))
        for priority in reversed(range(3)):
            part = [f"{next(numbers)}:{fate_of(tenant.trait, chance)}" for _ in range((tenant.burst + priority) // 3)]
            begun_us = now_us()
            try:
                await self._app.publish_many(tenant.name, part, priority=PRIORITIES[priority])
            except (errors.DatabaseUnavailable, errors.StoreUnavailable) as exc:
                self._not_known(tenant.name, [(name, 0) for name in part], exc)
                continue
            for name in part:
                self._sent(Sent(tenant.name, name, None, priority, "plain", 1, begun_us, now_us()))

    async def _publish(self, tenant: Tenant, number: int, chance: random.Random) -> None:
        name = f"{number}:{fate_of(tenant.trait, chance)}"
        told, how, amount, priority = self._told(tenant, number, chance)
        if tenant.trait == "range":
            name = f"{chance.randrange(TWINS)}x{number // 20}:{'ok' if number % 9 else 'flaky'}"
        elif tenant.trait == "sums":
            amount = chance.randrange(1, 10)
            name = str(amount)
        begun_us = now_us()
        try:
            id_ = await self._app.publish(tenant.name, name, **told)
        except (errors.DatabaseUnavailable, errors.StoreUnavailable) as exc:
            # A machine so busy that a deadline was missed. `test_day` bounds how many.
            self._not_known(tenant.name, [(name, amount if how == "sum" else 0)], exc)
            return
        except errors.TopicFull:
            if tenant.trait != "bounded":
                raise
            self.refused += 1
            return
        self._sent(Sent(tenant.name, name, told.get("key"), priority, how, amount, begun_us, now_us(), id_))
        if tenant.trait == "recalled" and number % 2:
            await self._recall_soon(tenant, id_, name, chance)
        elif tenant.trait == "recalled":
            self._far.append((tenant.name, id_, name))

    def _told(self, tenant: Tenant, number: int, chance: random.Random) -> tuple[dict[str, Any], str, int, int]:
        """Arguments of the publish, how it is to be judged, an amount, and its priority."""
        told: dict[str, Any] = {"headers": {"n": str(number)}} if number % 3 == 0 else {}
        how, priority = "plain", 0
        if not tenant.topic.is_sorted and len(tenant.topic.priorities) == 3:
            priority = chance.randrange(3)
            told["priority"] = PRIORITIES[priority]
        match tenant.trait:
            case "keyed" | "moving":
                told["key"] = f"k{number % tenant.of.keys}"
            case "delayed":
                told["delay_ms"], how = chance.choice((0.0, 10.0, 400.0, 1500.0)), "delayed"
            case "mortal":
                how = "mortal"
                if number % 4 == 0:
                    told["ttl_s"] = chance.choice((0.05, 1.0, 20.0))
            case "recalled":
                told["delay_ms"], how = (1500.0 if number % 2 else FAR_MS), "delayed"
            case "moment":
                told, how = (
                    {
                        "delay_ms": chance.choice((20.0, 200.0, 1200.0)),
                        "merge_key": f"m{number}",
                        "key": f"k{number % 3}",
                    },
                    "delayed",
                )
            case "timed":
                told, how = {"delay_ms": chance.choice((900.0, 2000.0))}, "delayed"
            case "rank" | "rankback":
                told = {"priority": chance.choice((17, 20.5, 99))}
            case "sums":
                told, how = {"priority": 50, "merge_key": f"s{number % 5}"}, "sum"
            case "range":
                told = {}
        return told, how, 1, priority

    async def _schedule(self, tenant: Tenant, seconds: float) -> None:
        repeat = max(2, int(seconds / 2))
        begun_us = now_us()
        id_ = await self._app.schedule(tenant.name, "tick:ok", every_s=1.0, repeat=repeat, missed="all")
        self._sent(Sent(tenant.name, id_, None, 1, "scheduled", 1 + repeat, begun_us, now_us()))

    async def _recall_soon(self, tenant: Tenant, id_: str, name: str, chance: random.Random) -> None:
        """Recall near its time: either it is taken back, and never starts, or it is delivered."""
        await asyncio.sleep(chance.uniform(0.5, 1.8))
        if await self._app.recall(tenant.name, id_) == {id_}:
            self._evidence.recalled.add((tenant.name, name))

    def _not_known(self, topic: str, names: list[tuple[str, int]], why: errors.EMQError) -> None:
        """These were perhaps published."""
        for name, amount in names:
            self._evidence.unknown.append((topic, name, amount))
            self._journal.write("unknown", topic, name, str(why))

    def _sent(self, sent: Sent) -> None:
        self._evidence.sent.append(sent)
        self._journal.write(*sent)

    # --------------------------------------------------------------------------------------------------------- changes

    async def _change(self, seconds: float) -> None:
        """Double, halve and restore the qps of topics that are under load."""
        able = [t for t in self._planned if t.topic.kind is Kind.LOG and not t.of.keys and t.trait != "flood"]
        chosen = self._chance.sample(able, min(CHANGED, len(able)))
        # Keys of the moving ones come to other groups each time; the grown ones have a backlog in their former groups.
        chosen = [t for t in chosen if t.trait != "grown"] + [
            t for t in self._planned if t.trait in ("moving", "grown")
        ]
        for step in range(3):
            await asyncio.sleep(seconds / 4)
            for tenant in chosen:
                qps = (tenant.topic.qps * 2, max(1.0, tenant.topic.qps / 2), tenant.topic.qps)[step]
                changed = await self._app.admin.update(tenant.name, qps=qps)
                self._evidence.versions[tenant.name].append(Version(now_us(), changed))

    async def _come_and_go(self, seconds: float) -> None:
        """Topics are made, used and deleted, and some come back under the same name."""
        for turn in range(4):
            name = f"plain-brief{turn % 2}"
            made = await self._app.admin.create([topic_named(name, 20.0)])
            self._evidence.versions.setdefault(name, []).append(Version(now_us(), made[0]))
            part = [f"{turn}.{i}:ok" for i in range(10)]
            begun_us = now_us()
            await self._app.publish_many(name, part, priority="mid")
            for each in part:
                self._sent(Sent(name, each, None, 1, "plain", 1, begun_us, now_us()))
            if turn < 2:
                await asyncio.sleep(seconds / 6)
                await self._delete(name)

    async def _delete_by_force(self, seconds: float) -> None:
        """Topics are deleted with all that waits and runs in them, and come back under the same name."""
        for turn in range(3):
            for name in ("plain-forced", "timed-forced"):
                await self._create_again(name, turn)
            await asyncio.sleep(seconds / 6)
            if turn < 2:
                for name in ("plain-forced", "timed-forced"):
                    await self._app.admin.delete(name, force=True)
                    self._evidence.forced.append((name, now_us()))

    async def _create_again(self, name: str, turn: int) -> None:
        """A topic with a backlog, a part of which is delayed."""
        made = await self._app.admin.create([topic_named(name, 5.0)])
        self._evidence.versions.setdefault(name, []).append(Version(now_us(), made[0]))
        told: dict[str, Any] = {} if made[0].is_sorted else {"priority": "mid"}
        for i in range(2 * DELETED):
            body, delay_ms = f"{turn}.{i}:ok", (1500.0 if i % 2 else 300.0)
            begun_us, delayed = now_us(), made[0].is_sorted or i % 4 == 0
            told["delay_ms"] = delay_ms if delayed else None
            try:
                id_ = await self._app.publish(name, body, **told)
            except (errors.DatabaseUnavailable, errors.StoreUnavailable) as exc:
                self._not_known(name, [(body, 0)], exc)
                continue
            how = "delayed" if delayed else "plain"
            self._sent(Sent(name, body, None, 1, how, 1, begun_us, now_us(), id_))

    async def _delete(self, name: str) -> None:
        """Without force: only once all of it was consumed, so nothing of it may be missing."""
        deadline = asyncio.get_running_loop().time() + 200
        while True:
            try:
                await self._app.admin.delete(name)
                return
            except errors.StillConsumed:
                if asyncio.get_running_loop().time() > deadline:
                    raise
                await asyncio.sleep(0.2)
