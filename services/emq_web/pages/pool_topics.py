"""Finds the topics that belong to pools of resources: tasks wait in them, under the limits of the pool."""

from __future__ import annotations

from collections.abc import Iterable

from emq.topics.model import Topic
from emq_web.pages.routing import Screen


async def pools_of(screen: Screen, topics: Iterable[str | Topic]) -> dict[str, str]:
    """Return the pool of each of these topics that belongs to one, by the topic's name."""
    topics = list(topics)
    if not topics:
        return {}
    pools = await screen.desk.catalog.versions()
    near = [topic for topic in topics if _first(topic) in pools]
    read = await screen.service.parts.app.catalog.some([topic for topic in near if isinstance(topic, str)])
    known = [read.get(topic) if isinstance(topic, str) else topic for topic in near]
    return {topic.name: pool for topic in known if topic is not None and (pool := _pool_of(topic))}


def _first(topic: str | Topic) -> str:
    return (topic if isinstance(topic, str) else topic.name).partition(".")[0]


def _pool_of(topic: Topic) -> str:
    """Return the pool, given that one has the first part of the topic's name; a plain topic may begin with it, too."""
    pool = _first(topic)
    return pool if topic.name == pool or topic.options.budget == pool else ""
