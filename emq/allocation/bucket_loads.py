"""What the buckets of families do, by which the planner evens out the hosts."""

from __future__ import annotations

from collections.abc import Mapping

from emq.topics.buckets import LEAST_LOAD

SHARE = 0.1
"""Part of a look in the mean. With looks each half a minute, the mean is of some five minutes."""


class BucketLoads:
    """The load of each bucket: a running mean of the quotas of its groups that were awake.

    Topics wake and sleep within seconds. A plan by those awake at one moment would move buckets for each of them. By
    the mean, a topic that stays awake counts, and buckets in which topics come and go count alike.

    Attributes:
        changes: grows with each look that found other loads than the look before.
    """

    def __init__(self) -> None:
        self._means: dict[str, float] = {}
        self._looks = 0
        self.changes = 0

    def look(self, awake: Mapping[str, float]) -> None:
        """Take in what is awake now: bucket to the sum of its groups' quotas, in starts a second."""
        self._looks += 1
        share = max(1 / self._looks, SHARE)
        before, self._means = self._means, {}
        for bucket in before.keys() | awake.keys():
            mean = before.get(bucket, 0.0)
            mean += share * (awake.get(bucket, 0.0) - mean)
            if mean >= LEAST_LOAD:
                self._means[bucket] = mean
        self.changes += self._means != before

    def added_to(self, quotas: Mapping[str, float]) -> Mapping[str, float]:
        """Return the quotas, those of buckets with their loads added."""
        if not self._means:
            return quotas
        return {**quotas, **{b: quotas[b] + mean for b, mean in self._means.items() if b in quotas}}
