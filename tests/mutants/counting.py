"""Mistakes in counting starts: windows, buckets, the counter of a topic on a host, and the shares of a topic."""

from __future__ import annotations

from mutants.mutant import Mutant

MUTANTS = (
    Mutant(
        "window-allows-one-more",
        "Q",
        "each second allows one start more than the quota",
        "emq/quota/counter.py",
        "self._bound = self._left = shares.allowance(self._course, second)",
        "self._bound = self._left = shares.allowance(self._course, second) + 1",
        "tests/unit/test_counter.py::test_a_quota_is_dealt_out_second_by_second",
    ),
    Mutant(
        "window-grants-in-its-first-second",
        "Q",
        "a group that moved grants in the second of the move, whose quota its former owner may have used",
        "emq/quota/counter.py",
        "self._second = int(now)",
        "self._second = int(now) - 1",
        "tests/unit/test_counter.py::test_a_new_counter_grants_nothing_in_the_second_it_is_made_in",
    ),
    Mutant(
        "smooth-saves-up-without-end",
        "Q",
        "an idle group saves up more tokens than its burst",
        "emq/quota/bucket.py",
        "self.left = min(self.most, self.left + (now - self.filled_at) * self.rate)",
        "self.left = self.left + (now - self.filled_at) * self.rate",
        "tests/unit/test_counter.py::test_a_smooth_counter_starts_empty_and_fills_to_its_burst_only",
    ),
    Mutant(
        "change-counts-before-all-know",
        "Q",
        "a change of the shares counts from the next second on, while hosts still go by the old ones",
        "emq/topics/shares.py",
        "since_s = learned_s(now_s)",
        "since_s = math.floor(now_s) + 1",
        "tests/property/test_topic_cap_properties.py::"
        "test_the_sum_over_groups_keeps_the_cap_in_every_second_whatever_changes",
    ),
)
