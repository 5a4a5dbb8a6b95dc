"""Buckets: the parts of a family that the plan gives to hosts. Each has the groups whose names hash into it.

So a topic that a first publish makes has an owner before it exists, and the plan does not grow with the topics. The
first level, from group to bucket, never changes; the second, from bucket to host, is the plan. It is the two-level
hashing of Redis Cluster's slots.

Topics that share a budget share the bucket of the budget's first group. Groups of topics of no family are in no bucket,
nor those of topics with `TopicOptions.buckets` 0.
"""

from __future__ import annotations

import functools
import zlib
from collections.abc import Mapping, Sequence

from emq.topics import budgets
from emq.topics.model import Topic

BUCKETS = 1_024
"""Buckets of a family that does not say it: many for each host, so that they can be shared out evenly."""

LEAST_LOAD = 2.0**-10
"""Load of a bucket in which no topic is awake, in starts a second: little, but all hosts get as many such buckets."""

_MARK = "*/bucket/"
"""In names of buckets, and in no name of a group: names of topics have no slash."""


def name_of(family: str, number: int) -> str:
    """Return the name of a bucket, which is a group to the cluster."""
    return f"{family}/bucket/{number}"


@functools.lru_cache(1_000)
def names_of(family: str, count: int = BUCKETS) -> Sequence[str]:
    """Return the names of all buckets of a family. Cached, so that the groups of a bucket share one name."""
    return tuple(name_of(family, number) for number in range(count))


def is_bucket(group: str) -> bool:
    """Return whether this is the name of a bucket, and not of a group."""
    return _MARK in group


def family_of(name: str) -> str | None:
    """Return the family of a bucket, by the bucket's name or by that without the number; None for other names."""
    family, mark, _ = f"{name}/".partition(_MARK)
    return f"{family}*" if mark else None


def bucket_of(topic: Topic, index: int, topics: Mapping[str, Topic]) -> str | None:
    """Return the bucket of a topic's group; None if the group is planned by itself.

    Args:
        topics: the budgets above the topic, by name.
    """
    root = topic if topic.options.budget is None else topics.get(budgets.above(topic, topics)[-1])
    if root is None or not root.family or not root.options.buckets:
        return None
    group = root.group(0) if root.shared_s or root is not topic else topic.group(index)
    names = names_of(root.family, root.options.buckets)
    return names[zlib.crc32(group.encode()) % len(names)]
