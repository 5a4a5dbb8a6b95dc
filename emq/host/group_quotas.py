"""The quotas of all groups of the catalog, as a host offers them to its membership."""

from __future__ import annotations

from collections.abc import Mapping

from emq.runtime.slicing import in_slices
from emq.topics import budgets
from emq.topics.model import Topic

AT_ONCE = 2_000
"""Groups whose quotas are computed in one step; then the event loop may run other tasks."""


class GroupQuotas:
    """Computes the quota of each group; computes it again only when the group's topic has changed."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[Topic, dict[str, float]]] = {}

    async def of(self, topics: Mapping[str, Topic]) -> dict[str, float]:
        """Return the quotas of the groups of these topics, by the names of the groups; in starts a second.

        Groups of topics below a budget have 0: the budget's own groups have its whole qps.
        """
        for name in [name for name, (topic, _) in self._known.items() if topics.get(name) is not topic]:
            del self._known[name]
        async for topic in in_slices(topics.values()):
            if topic.name not in self._known:
                of_topic: dict[str, float] = {}
                async for start in in_slices(range(0, topic.groups, AT_ONCE), 1):
                    of_topic |= budgets.loads(topic, range(start, min(start + AT_ONCE, topic.groups)))
                self._known[topic.name] = topic, of_topic
        quotas: dict[str, float] = {}
        async for _, of_topic in in_slices(self._known.values()):
            quotas |= of_topic
        return quotas

    async def units(self, topics: Mapping[str, Topic]) -> dict[str, str]:
        """Return the unit of each topic that shares a budget; see `emq.topics.budgets`."""
        found: dict[str, str] = {}
        async for topic in in_slices(topics.values()):
            unit = budgets.unit_of(topic, topics)
            if unit is not None:
                found[topic.name] = unit
        return found
