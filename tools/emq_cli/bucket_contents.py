"""The contents of buckets, so that commands count and show groups of topics where the plan has buckets.

The plan has two kinds of entries: a group of a topic of no family, and a bucket of a family (`emq.topics.buckets`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from emq.runtime import plurals
from emq.topics.buckets import is_bucket


class Amount(NamedTuple):
    """Entries of the plan, counted.

    Attributes:
        groups: number of groups of topics, also of those in the buckets.
        buckets: number of buckets, with groups in them or without.
    """

    groups: int
    buckets: int

    def __str__(self) -> str:
        """`3 groups`, `12 buckets`, or `3 groups and 12 buckets`."""
        groups, buckets = plurals.count(self.groups, "group"), plurals.count(self.buckets, "bucket")
        if not self.buckets:
            return groups
        return f"{groups} and {buckets}" if self.groups else buckets


class BucketContents:
    """Knows which groups of topics are in which bucket: those of topics that are awake.

    Args:
        bucket_of: group to its bucket, for every group that has one.
    """

    def __init__(self, bucket_of: Mapping[str, str]) -> None:
        self._bucket_of = bucket_of
        self._groups: dict[str, list[str]] = {}
        for group, bucket in bucket_of.items():
            self._groups.setdefault(bucket, []).append(group)

    def entry_of(self, group: str) -> str:
        """Return the name by which the plan has a group: that of its bucket, else its own."""
        return self._bucket_of.get(group, group)

    def groups(self, entries: Iterable[str]) -> list[str]:
        """Return the groups of topics that these entries of the plan stand for."""
        return [group for entry in entries for group in self._inside(entry)]

    def amount(self, entries: Iterable[str]) -> Amount:
        """Count these entries of the plan."""
        entries = [*entries]
        return Amount(len(self.groups(entries)), sum(map(is_bucket, entries)))

    def _inside(self, entry: str) -> Sequence[str]:
        return self._groups.get(entry, ()) if is_bucket(entry) else (entry,)
