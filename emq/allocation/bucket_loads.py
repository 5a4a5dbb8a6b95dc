"""What the buckets of families do, by which the planner evens out the hosts."""

from __future__ import annotations

from collections.abc import Mapping

from emq.topics.buckets import LEAST_LOAD, is_bucket

SHARE = 0.1
"""Part of a look in the mean. With looks each half a minute, the mean is of some five minutes."""

CHANGE = 0.05
"""Least change of a load that the planner hears of, as a part of the load, or of the mean load if that is more."""

FLOOR = 0.5
"""The least load of a bucket, as a part of the mean load of all buckets. Without it, each topic that is awake for some
minutes would drive all other buckets from its host."""


LOOK_S = 30.0
"""Seconds between two looks."""

APART = 100
"""Time from a plan to the next one that only loads ask for, in times of what the plan took. So such plans take 1 % of a
core."""


class BucketLoads:
    """The load of each bucket: a running mean of the quotas of its groups that were awake.

    Topics wake and sleep within seconds. A plan by those awake at one moment would move buckets for each of them. By
    the mean, a topic that stays awake counts, and buckets in which topics come and go count alike.

    Attributes:
        changes: grows with each look after which a load differs by `CHANGE` from what the planner has heard.
    """

    def __init__(self) -> None:
        self._means: dict[str, float] = {}
        self._told: dict[str, float] = {}
        self._looks = 0
        self._look_at_s = self._even_at_s = 0.0
        self._evened = 0
        self.changes = 0

    def look_now_and_then(self, awake: Mapping[str, float], now_s: float) -> None:
        """Look, if the last look was `LOOK_S` ago."""
        if now_s >= self._look_at_s:
            self.look(awake)
            self._look_at_s = now_s + LOOK_S

    def wanted(self, now_s: float) -> int:
        """Return the number of changes that a plan should know; see `APART`."""
        if now_s >= self._even_at_s:
            self._evened = self.changes
        return self._evened

    def planned(self, began_s: float, now_s: float) -> None:
        """A plan was made, from `began_s` until now."""
        self._even_at_s = now_s + APART * (now_s - began_s)

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
        told, new = self._told, self._means
        typical = sum(new.values()) / max(1, len(new))
        for bucket in told.keys() | new.keys():
            load = told.get(bucket, 0.0)
            if abs(new.get(bucket, 0.0) - load) > CHANGE * max(load, typical):
                self._told = new
                self.changes += 1
                break

    def added_to(self, quotas: Mapping[str, float]) -> Mapping[str, float]:
        """Return the quotas, those of buckets with their loads added."""
        loads = {bucket: load for bucket, load in self._told.items() if bucket in quotas}
        if not loads:
            return quotas
        buckets = [group for group in quotas if is_bucket(group)]
        floor = FLOOR * sum(loads.values()) / len(buckets)
        return {**quotas, **{bucket: quotas[bucket] + max(floor, loads.get(bucket, 0.0)) for bucket in buckets}}
