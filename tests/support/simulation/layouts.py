"""Which layouts the keys of topics have had, and which queues refuse messages that were routed by former ones (K)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from emq.storage.names import group_of
from emq.topics.model import Topic
from emq.topics.passages import Passage, PassageStore
from support.simulation.schedule import DATABASE

if TYPE_CHECKING:
    from support.simulation.cluster import Cluster

LOOK_S = 0.2
"""Between two looks at what hosts have noted."""

NOTED_S = 3.0
"""Most seconds from a host's raise of queues until its note is seen here; a store may lose the raise meanwhile."""


class Layouts:
    """See `emq.topics.key_layouts`.

    Attributes:
        raised: by queue, the lowest layout of which the queue takes keyed messages.
    """

    def __init__(self) -> None:
        self.raised: dict[str, int] = {}
        self._former: dict[str, list[tuple[int, int]]] = {}
        self._passed: set[tuple[str, int, int]] = set()

    def changed(self, before: Topic, after: Topic) -> None:
        """Note that an operator has changed a topic."""
        if after.layout != before.layout:
            self._former.setdefault(after.name, []).append((before.layout, before.active_groups))

    def told(self, queue: str, layout: int) -> None:
        """Note that a queue was raised."""
        self.raised[queue] = max(layout, self.raised.get(queue, 0))

    def store_lost(self, raised: Mapping[str, int]) -> None:
        """Note that the store came back, and that only these queues are raised there."""
        self.raised = dict(raised)

    def takes(self, topic: Topic, passage: Passage) -> str | None:
        """Return a queue that takes messages of a layout that its group has just passed, as a host has noted."""
        if not passage.passed or passage[:3] in self._passed or passage.group >= topic.groups:
            return None
        self._passed.add(passage[:3])
        queues = topic.queues(passage.group)
        return next((queue for queue in queues if self.raised.get(queue, 0) <= passage.layout), None)

    def taken(self, topic: Topic) -> Iterator[tuple[str, int]]:
        """Yield the queues that take keyed messages by a former layout of their topic, with the layout's number."""
        for group in range(topic.groups):
            newest = max((number for number, groups in self._former.get(topic.name, ()) if group < groups), default=-1)
            for queue in topic.queues(group):
                if self.raised.get(queue, 0) <= newest:
                    yield queue, newest


async def watch(cluster: Cluster) -> None:
    """Report groups that pass a layout while their queues still take messages of it, which nobody would wait for."""
    evidence, moving = cluster.evidence, [plan.name for plan in cluster.schedule.topics if plan.moving]
    passages = PassageStore(cluster.db, cluster.checkpoints.environment)
    while moving:
        await asyncio.sleep(LOOK_S)
        found = await passages.load(moving)
        topics = {topic.name: topic for topic in await cluster.catalog.list()}
        for passage in found.values():
            queue = evidence.layouts.takes(topics[passage.topic], passage) if passage.topic in topics else None
            # A store that came back since the host has raised its queues is another matter.
            if queue is not None and not any(evidence.now - NOTED_S <= at for at in evidence.lost_at):
                text = f"it has passed layout {passage.layout}, and {queue} takes messages of that layout"
                evidence.violated("K", group_of(queue), text)


async def judge_now(cluster: Cluster) -> None:
    """At rest, no queue takes messages that a producer with an old picture of the catalog has routed."""
    if cluster.evidence.happened.keys() & set(DATABASE):
        return  # a topic that was created again has no former layouts
    moving = {plan.name for plan in cluster.schedule.topics if plan.moving}
    for topic in await cluster.catalog.list():
        for queue, layout in cluster.evidence.layouts.taken(topic) if topic.name in moving else ():
            text = f"at rest {queue} takes messages by layout {layout} of {topic.name}, which has layout {topic.layout}"
            cluster.evidence.violated("K", group_of(queue), text)
