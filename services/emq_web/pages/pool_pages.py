"""The paths of the pages about pools of resources, for operators, and the pools to which topics belong."""

from __future__ import annotations

from collections.abc import Iterable

from starlette.responses import Response

from emq.topics.model import Topic
from emq_scheduling.topics import family_of, root_name
from emq_web.pages import changes, pools_screen
from emq_web.pages.routing import AdminView, Screen, new_router
from emq_web.scheduling import catalog

POOLS = 50
"""Pools on a page."""

router = new_router()


@router.get("/pools")
async def pools(screen: AdminView, after: str = "") -> Response:
    page = await catalog.summaries(screen.desk, POOLS, after)
    return screen.answer_either("pools", page=page, after=after)


@router.get("/pools/{pool}")
async def pool(pool: str, screen: AdminView, start: int = 0, done: str = "") -> Response:
    stored = await screen.desk.catalog.get(pool)
    snapshot = await screen.desk.snapshots.load(pool)
    now = pools_screen.of(stored, snapshot, screen.desk.now(), max(0, start))
    return screen.answer_either("pool", now=now, done=changes.DONE.get(done, ""))


async def pools_of(screen: Screen, topics: Iterable[str | Topic]) -> dict[str, str]:
    """Return the pool of each of these topics that belongs to one, by the topic's name: its tasks wait there.

    Args:
        topics: names, topics, or what families give to theirs.
    """
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
    root = root_name(pool)
    return pool if root in (topic.name, topic.options.budget) or topic.name == family_of(pool) else ""
