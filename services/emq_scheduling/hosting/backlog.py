"""How many tasks of a pool are not done, by topic."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from emq.app import App
    from emq.topics.model import Topic

COUNT_S = 1.0
"""Least seconds between counts."""

COUNT_PART = 0.05
"""The part of the time that counting may take; it is done less often if it takes long."""


class Backlog:
    """Counts the tasks of one pool on the host that owns it.

    Args:
        root: the topic of the pool.
    """

    def __init__(self, app: App, root: str) -> None:
        self._app = app
        self._root = root
        self._counts: dict[str, int] = {}
        self._counted_at = -math.inf
        self._every_s = COUNT_S

    def topics(self) -> list[Topic]:
        """Return the topics of the pool that are awake: others hold no tasks."""
        host = self._app.host
        known = {} if host is None else host.ownership.topics
        return [topic for topic in known.values() if topic.options.budget == self._root]

    async def look(self) -> dict[str, int]:
        """Return the tasks of each topic that are not done; another object whenever they were counted again."""
        began = time.monotonic()
        if began < self._counted_at + self._every_s:
            return self._counts
        known = self.topics()
        counts = dict.fromkeys((topic.name for topic in known), 0)
        for lag in await self._app.admin.lag(known):
            counts[lag.topic] += lag.unfinished
        for slots in await self._app.admin.slot_lag(known):
            counts[slots.topic] += slots.delayed
        self._counts = counts
        self._counted_at = time.monotonic()
        self._every_s = max(COUNT_S, (self._counted_at - began) / COUNT_PART)
        return counts
