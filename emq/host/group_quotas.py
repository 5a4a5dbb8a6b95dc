"""The quotas of all groups and buckets, as a host offers them to its membership."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping

from emq.runtime.slicing import in_slices
from emq.topics import buckets, budgets
from emq.topics.model import Topic

AT_ONCE = 2_000
"""Groups whose quotas are computed in one step; then the event loop may run other tasks."""


NONE_LEFT = 1e-7
"""Sum of quotas, in starts a second, below which no group is left: less than any quota, more than rounding."""


class GroupQuotas:
    """Knows the quota of each group that is planned by itself, and the bucket of each other group.

    Computes what belongs to a topic only when the topic has changed.

    Args:
        topics: every topic of the catalog, by name.

    Attributes:
        is_new: whether there is another offer to make than the last one.
        awake: bucket to the sum of its groups' quotas, in starts a second; always up to date. Waking is no new offer.
        moved: group to its bucket, for groups that came to it since the caller last cleared this; None for those gone.
    """

    def __init__(self, topics: Mapping[str, Topic]) -> None:
        self._topics = topics
        self._known: dict[str, int] = {}
        self._quotas: dict[str, float] = {}
        self._buckets: dict[str, tuple[str, float]] = {}  # group to its bucket and its load
        self._counts: Mapping[str, int] = {}  # family to its number of buckets
        self._sharing: set[str] = set()
        self.moved: dict[str, str | None] = {}
        self.awake: dict[str, float] = {}
        self.is_new = True

    def forget(self, names: Iterable[str]) -> None:
        """Forget deleted topics."""
        for name in names:
            for index in range(self._known.pop(name, 0)):
                self._forget_group(f"{name}/{index}")
            self._sharing.discard(name)

    async def follow(self, changed: Iterable[Topic], families: Mapping[str, int]) -> None:
        """Compute the quotas of new and changed topics again; `families` has each family's number of buckets."""
        if families != self._counts:
            self._counts = families
            self.is_new = True
        async for topic in in_slices(changed):
            for index in range(topic.groups, self._known.get(topic.name, 0)):
                self._forget_group(topic.group(index))
            self._known[topic.name] = topic.groups
            for start in range(0, topic.groups, AT_ONCE):
                if start:
                    await asyncio.sleep(0)
                indices = range(start, min(start + AT_ONCE, topic.groups))
                for index, (group, load) in zip(indices, budgets.loads(topic, indices).items(), strict=True):
                    self._follow_group(group, load, buckets.bucket_of(topic, index, self._topics))
            if (topic.options.budget is not None or topic.shared_s) and topic.group(0) not in self._buckets:
                self._sharing.add(topic.name)  # those in buckets, of which there may be many, change no offer
                self.is_new = True

    def all(self) -> dict[str, float]:
        """Return the quotas of all buckets, and of all groups of no bucket, by their names; in starts a second.

        Groups of topics below a budget have 0: the budget's own groups have its whole qps. All buckets have the same.
        """
        quotas = dict(self._quotas)
        for family, count in self._counts.items():
            quotas |= dict.fromkeys(buckets.names_of(family, count), buckets.LEAST_LOAD)
        return quotas

    def units(self) -> dict[str, str]:
        """Return the unit of each topic that shares a budget, and no bucket; see `emq.topics.budgets`."""
        sharing = [
            topic for name in self._sharing if f"{name}/0" not in self._buckets and (topic := self._topics[name])
        ]
        units = {topic.name: budgets.unit_of(topic, self._topics) for topic in sharing}
        return {name: unit for name, unit in units.items() if unit is not None}

    def _follow_group(self, group: str, load: float, bucket: str | None) -> None:
        former, before = self._buckets.get(group, (None, 0.0))
        if bucket is None:
            if former is not None:
                self._forget_group(group)
            self.is_new = self.is_new or self._quotas.get(group) != load
            self._quotas[group] = load
            return
        if self._quotas.pop(group, None) is not None:
            self.is_new = True
        if former != bucket:
            self.moved[group] = bucket
        if former is not None:
            self._count(former, -before)
        self._buckets[group] = bucket, load
        self._count(bucket, load)

    def _forget_group(self, group: str) -> None:
        if self._quotas.pop(group, None) is not None:
            self.is_new = True
        elif (known := self._buckets.pop(group, None)) is not None:
            bucket, load = known
            self.moved[group] = None
            self._count(bucket, -load)

    def _count(self, bucket: str, load: float) -> None:
        self.awake[bucket] = after = self.awake.get(bucket, 0.0) + load
        if after < NONE_LEFT:
            del self.awake[bucket]
