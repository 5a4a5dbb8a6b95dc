"""Operators' work on whole pools: count waiting tasks, delete."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from emq.runtime import errors, plurals
from emq.topics.families import MAX_TOPICS
from emq_scheduling import topics
from emq_scheduling.limits.usage_keeper import UsageTable
from emq_scheduling.pools.catalog import Also, PoolCatalog
from emq_scheduling.records.snapshots import Snapshots

if TYPE_CHECKING:
    from emq.app import App
    from emq.topics.model import Topic

AT_ONCE = 1_000
"""Topics deleted in one step."""


async def waiting(app: App, pool: str) -> dict[str, int]:
    """Return the number of unfinished tasks by type, without types that have none.

    Running tasks count, too, and those that wait for another attempt.
    """
    found: Counter[str] = Counter()
    known = await _topics(app, pool)
    for lag in await app.admin.lag(known):
        found[topics.parsed(lag.topic)[1]] += lag.unfinished
    for lanes in await app.admin.slot_lag(known):
        found[topics.parsed(lanes.topic)[1]] += lanes.ready + lanes.delayed + lanes.claimed
    return {kind: n for kind, n in found.items() if n}


async def delete(
    app: App, name: str, version: int | None = None, *, force: bool = False, also: Also | None = None
) -> int:
    """Delete a pool, with the topics in which its tasks wait; return how many tasks went with it.

    Its records stay until they are too old.

    Args:
        version, also: as for `PoolCatalog.delete`.
        force: also if tasks of it wait or run.

    Raises:
        UnknownPool: there is no such pool.
        ChangedMeanwhile: the pool has another version; read it again.
        TasksWaiting: tasks of it wait or run, and `force` is not set. The pool is as it was.
    """
    catalog = PoolCatalog(app.database, app.settings.environment)
    stored = await catalog.get(name)
    counts = await waiting(app, name)
    if counts and not force:
        raise refused(name, counts)
    await catalog.delete(name, version, also=also)  # so that nothing more is submitted
    of_types = await _families_of_types(app, name)
    for family in of_types:
        await app.families.set(family, {}, {"max_topics": 0})  # a submitter that still knows the pool makes no topics
    deleted = 0
    try:
        while found := await _topics(app, name):
            for start in range(0, len(found), AT_ONCE):
                deleted += await _deleted(app, found[start : start + AT_ONCE], force)
    except errors.StillConsumed:  # somebody submitted a task meanwhile
        for family in of_types:
            await app.families.set(family, {}, {"max_topics": MAX_TOPICS})
        await catalog.put(stored.pool, 0)
        raise refused(name, await waiting(app, name)) from None
    for family in of_types:
        await app.families.delete(family)
    await _delete_root(app, name)
    await forget(app, name)
    return deleted


async def forget(app: App, name: str) -> None:
    """Forget the use of limits and the last snapshot of a deleted pool. Safe to repeat."""
    environment = app.settings.environment
    await UsageTable(app.database, environment).drop(name)
    await Snapshots(app.database, environment).drop(name)


async def _deleted(app: App, some: Sequence[Topic], force: bool) -> int:
    """Delete topics; return how many messages went. Raises `StillConsumed` without `force` if one has a message."""
    with contextlib.suppress(errors.UnknownTopic):  # one has gone to sleep meanwhile; the caller looks again
        if force:
            return await app.admin.delete_all(some)
        for topic in some:
            await app.admin.delete(topic.name)
    return 0


async def _delete_root(app: App, name: str) -> None:
    """Delete the topic that the pool's other topics named as their budget, unless something else lies in it."""
    with contextlib.suppress(errors.UnknownTopic, errors.StillConsumed, errors.StillNamed):
        await app.admin.delete(topics.root_name(name))
        await app.families.delete(topics.family_of(name))


async def _families_of_types(app: App, pool: str) -> list[str]:
    """Return the families of the tenants of the pool's types, also of former types."""
    root = topics.root_name(pool)
    return [found.name for found in await app.families.matching(f"{pool}.*") if found.topic.options.budget == root]


async def _topics(app: App, pool: str) -> list[Topic]:
    """Return the topics in which tasks of the pool wait."""
    root = topics.root_name(pool)
    return [topic for topic in await app.catalog.list(f"{pool}.*") if topic.options.budget == root]


def refused(name: str, counts: dict[str, int]) -> errors.TasksWaiting:
    """Return the error for a pool that is not deleted because of its tasks, by type."""
    by_type = ", ".join(f"{kind} {n:,}" for kind, n in counts.items())
    n = sum(counts.values())
    return errors.TasksWaiting(
        f"{plurals.count(n, 'task')} of pool {name!r} {'waits or runs' if n == 1 else 'wait or run'} ({by_type}); let "
        "them end, or delete the pool with force"
    )
