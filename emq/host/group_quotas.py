"""The quotas of all groups of the catalog, as a host offers them to its membership."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from emq.runtime.slicing import in_slices
from emq.topics import budgets
from emq.topics.model import Topic

AT_ONCE = 2_000
"""Groups whose quotas are computed in one step; then the event loop may run other tasks."""


class GroupQuotas:
    """Knows the quota of each group, and computes it only when the group's topic has changed.

    Args:
        topics: every topic of the catalog, by name.
    """

    def __init__(self, topics: Mapping[str, Topic]) -> None:
        self._topics = topics
        self._known: dict[str, int] = {}
        self._quotas: dict[str, float] = {}
        self._sharing: set[str] = set()

    def forget(self, names: Iterable[str]) -> None:
        """Forget deleted topics."""
        for name in names:
            for index in range(self._known.pop(name, 0)):
                self._quotas.pop(f"{name}/{index}", None)
            self._sharing.discard(name)

    async def follow(self, changed: Iterable[Topic]) -> None:
        """Compute the quotas of new and changed topics again."""
        async for topic in in_slices(changed):
            self.forget([topic.name])
            self._known[topic.name] = topic.groups
            if topic.options.budget is not None or topic.shared_s:
                self._sharing.add(topic.name)
            async for start in in_slices(range(0, topic.groups, AT_ONCE), 1):
                self._quotas |= budgets.loads(topic, range(start, min(start + AT_ONCE, topic.groups)))

    def all(self) -> dict[str, float]:
        """Return the quotas of all groups, by the names of the groups; in starts a second.

        Groups of topics below a budget have 0: the budget's own groups have its whole qps.
        """
        return dict(self._quotas)

    def units(self) -> dict[str, str]:
        """Return the unit of each topic that shares a budget; see `emq.topics.budgets`."""
        units = {name: budgets.unit_of(self._topics[name], self._topics) for name in self._sharing}
        return {name: unit for name, unit in units.items() if unit is not None}
