"""What operators do to topics: resize, pause, delete and create them; and all of it again if the database forgot."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from emq.runtime import errors
from emq.topics import budgets
from emq.topics.model import State, Topic
from support.simulation import families
from support.simulation.budgeted import TENANT
from support.simulation.member import EPOCH_S
from support.simulation.plans import TopicPlan
from support.simulation.schedule import REBORN
from support.simulation.varied import VARIED

if TYPE_CHECKING:
    from support.simulation.cluster import Cluster

WATCH_S = 0.4

LEARN_S = 2
"""A change counts from the second that begins so long after it at the latest, as is promised."""


class CatalogOrders:
    """One after the other: each method holds `lock` while it reads or changes the catalog.

    Attributes:
        lock: held, too, from when the database has forgotten orders until they are given again.
    """

    def __init__(self, cluster: Cluster) -> None:
        self.lock = asyncio.Lock()
        self._cluster = cluster
        self._evidence = cluster.evidence
        self._plans = {plan.name: plan for plan in cluster.schedule.topics}
        self._sizes: Counter[str] = Counter()
        self._pauses = 0

    async def pause(self) -> None:
        """Pause the topic that is paused now and then; each pause ends with `go_on`."""
        async with self.lock:
            self._pauses += 1
            if self._pauses == 1:
                await self._cluster.admin.update(VARIED, state=State.PAUSED)
                self._evidence.note(VARIED, "paused")
                self._evidence.paused.append((VARIED, self._evidence.now, math.inf))

    async def go_on(self) -> None:
        """End a pause; the topic goes on with the last one."""
        async with self.lock:
            self._pauses -= 1
            if self._pauses == 0:
                _, since, _ = self._evidence.paused[-1]
                self._evidence.paused[-1] = VARIED, since, self._evidence.now
                await self._cluster.admin.update(VARIED, state=State.ACTIVE)
                self._evidence.note(VARIED, "goes on")

    async def set_qps(self, name: str, qps: float) -> None:
        """Change a topic's capacity, while hosts are well."""
        async with self.lock:
            before = (await self._cluster.catalog.get(name)).qps
            topic = await self._cluster.admin.update(name, qps=qps)
        self._evidence.note(name, f"qps is {qps} now, and was {before}")
        latest_s = int(max(member.clock.now() for member in self._cluster.alive) + 0.1) + 1 + LEARN_S
        if topic.division.since_s > latest_s:
            text = f"its new quota counts from second {topic.division.since_s} on, {latest_s} at the latest"
            self._evidence.violated("use", f"{name}/0", text)

    async def resize(self, pick: int) -> None:
        """Set the next size of a topic that has sizes, once hosts can hear of it: nobody changes an absent catalog."""
        alive = self._cluster.alive
        while alive and all(member.database.network.is_away for member in alive):
            await asyncio.sleep(WATCH_S)
        plans = [plan for plan in self._plans.values() if plan.sizes and plan.name not in (REBORN, VARIED, TENANT)]
        await self._next_size(plans[pick % len(plans)])

    async def resize_keyed(self) -> None:
        """Set the next size of the topic whose keys move."""
        await self._next_size(self._plans[VARIED])

    async def resize_budget(self) -> None:
        """Set the next size of the budget that several topics share."""
        await self._next_size(self._plans[TENANT])

    async def create_late(self, plan: TopicPlan) -> None:
        """Create a topic while hosts are at work; repeat it while the database is away."""
        async with self.lock:
            await self._cluster.admin.create([plan.topic(plan.qps)], exist_ok=True)
            self._evidence.note(plan.name, f"created with qps {plan.qps}")
            await self._cluster.look_at_quotas()

    async def _next_size(self, plan: TopicPlan) -> None:
        async with self.lock:
            self._sizes[plan.name] += 1
            qps = plan.sizes[self._sizes[plan.name] % len(plan.sizes)]
            before = await self._cluster.catalog.get(plan.name)
            self._evidence.layouts.changed(before, await self._cluster.admin.update(plan.name, qps=qps))
            self._evidence.note(plan.name, f"qps is {qps} now")

    async def create_again(self, after_s: float) -> None:
        """Delete a topic with all that it holds, and create it with its next size after a while."""
        plan = self._plans[REBORN]
        with contextlib.suppress(errors.UnknownTopic):  # it is deleted already
            async with self.lock:
                await self._delete(plan.name)
            await asyncio.sleep(after_s)
            async with self.lock:
                self._sizes[plan.name] += 1
                qps = plan.sizes[self._sizes[plan.name] % len(plan.sizes)]
                [topic] = await self._cluster.catalog.create_many([plan.topic(qps)])
                self._begins(topic)
                self._evidence.note(plan.name, f"created again with qps {qps}")
                await self._cluster.admin.create([plan.topic(qps)])  # the same again, which opens what is sealed

    async def _delete(self, name: str) -> None:
        await self._cluster.admin.delete(name, force=True)
        self._evidence.dropped(name)

    def _begins(self, topic: Topic) -> None:
        """Note from when on the groups of a topic that was just created share it in its way."""
        # If it need not wait, its first owner begins at once. That host's clock may be a little behind the database's.
        begun, divisions = topic.division, self._cluster.divisions
        since_s = begun.since_s or int(EPOCH_S + 0.25 + self._cluster.db.ahead_s + self._evidence.now) - 1
        # Hosts do not follow a clock that was set back. And no second has starts of two lives.
        seconds = [s.started_us // 1_000_000 for s in self._evidence.starts if s.work.topic == topic.name]
        since_s = max(since_s, max(seconds, default=0) + 1)
        known = [d for d in divisions[topic.name] if d.since_s < since_s]
        divisions[topic.name] = [*known, msgspec.structs.replace(begun, since_s=since_s)]
        self._evidence.note(topic.name, f"begins in second {since_s} with qps {topic.qps}")

    # ----------------------------------------------------------------------------------------------- orders forgotten

    async def give_again(self, ordered: Sequence[Topic]) -> None:
        """Whoever gave orders that the database has forgotten gives them again.

        Args:
            ordered: all topics, as operators knew them.
        """
        await families.create(self._cluster)
        wanted = {topic.name: topic for topic in budgets.in_order(ordered) if topic.options.idle_s is None}
        known = await self._cluster.catalog.list()
        there = {topic.name: topic for topic in known if topic.options.idle_s is None}
        for topic in reversed(budgets.in_order(there.values())):
            name = topic.name
            # What is there of a topic that was deleted and created again is its former life.
            if name not in wanted or (name == REBORN and topic.qps != wanted[name].qps):
                self._evidence.note(name, "is deleted again")
                await self._delete(name)
                del there[name]
        for name, topic in wanted.items():
            if (found := there.get(name)) is None:
                found = await self._create_again(topic)
            if found.qps != topic.qps:
                self._evidence.note(name, f"qps is {topic.qps} again, after {found.qps}")
                await self._cluster.admin.update(name, qps=topic.qps)
            if found.state is not topic.state:
                await self._cluster.admin.update(name, state=topic.state)
                self._evidence.note(name, f"is {topic.state} again")
        await self._cluster.look_at_quotas()

    async def _create_again(self, topic: Topic) -> Topic:
        """With all groups that it had, those that retire included: they may hold messages."""
        plan = self._plans[topic.name]
        qps = topic.qps if topic.groups == topic.active_groups else topic.groups * topic.group_qps
        [created] = await self._cluster.catalog.create_many([plan.topic(qps)])
        self._evidence.note(topic.name, f"is created anew with qps {qps}")
        if not created.division.same_shares(self._cluster.divisions[topic.name][-1]):
            self._begins(created)
        await self._cluster.admin.create([plan.topic(qps)])  # the same again, which opens what is sealed
        return created
