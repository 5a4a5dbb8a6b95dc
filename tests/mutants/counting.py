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
        "window-lowers-its-quota-late",
        "Q",
        "a lower quota counts from the next second on only",
        "emq/quota/counter.py",
        "bound = min(self._bound, shares.allowance(self._course, self._second))",
        "bound = self._bound",
        "tests/unit/test_counter.py::test_a_lower_quota_counts_at_once_also_for_what_is_reserved_and_given_back",
    ),
    Mutant(
        "smooth-starts-full",
        "Q",
        "a group gains a burst whenever it moves",
        "emq/quota/smooth.py",
        "self._tokens = 0  # one token is den * MICRO of these",
        "self._tokens = self._capacity",
        "tests/unit/test_counter.py::test_a_smooth_counter_starts_empty_and_fills_to_its_burst_only",
    ),
    Mutant(
        "smooth-saves-up-without-end",
        "Q",
        "an idle group saves up more tokens than its burst",
        "emq/quota/smooth.py",
        "self._tokens = min(self._capacity, self._tokens + (now_us - self._at_us) * self._num)",
        "self._tokens += (now_us - self._at_us) * self._num",
        "tests/unit/test_counter.py::test_a_smooth_counter_starts_empty_and_fills_to_its_burst_only",
    ),
    Mutant(
        "group-that-comes-counts-at-once",
        "Q",
        "the share of a group that moved counts in the second of the move, in which its former owner may have used it",
        "emq/quota/topic_counter.py",
        "counted = sorted([group.index for group in groups if not self.is_window or now >= group.since_s + 1])",
        "counted = sorted([group.index for group in groups])",
        "tests/unit/test_topic_counter.py::test_a_group_that_came_in_a_second_before_anything_started_does_not_count_in_it",
    ),
    Mutant(
        "group-that-goes-counts-on",
        "Q",
        "the share of a group that was let go of counts on here, beside its next owner",
        "emq/quota/topic_counter.py",
        "            self._moved(now, 0.0)",
        "            pass",
        "tests/unit/test_topic_counter.py::test_the_share_of_a_group_that_goes_is_used_in_this_second_and_not_in_the_next",
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
    Mutant(
        "half-of-a-cap-is-used",
        "Q",
        "the groups' shares add up to half of the topic's qps",
        "emq/topics/shares.py",
        "base, extra = divmod(total // MICRO, self.members)",
        "base, extra = divmod(total // MICRO // 2, self.members)",
        "tests/property/test_topic_cap_properties.py::test_the_shares_of_a_division_add_up_to_what_the_topic_may_start",
    ),
    Mutant(
        "throttle-saves-up",
        "Q",
        "an idle topic below a throttle saves up starts without end",
        "emq/quota/throttle.py",
        "self._tokens = min(self._most, self._tokens + (now - self._at) * self.rate)",
        "self._tokens = self._tokens + (now - self._at) * self.rate",
        "tests/unit/test_throttles.py::test_a_limit_that_rises_counts_at_once",
    ),
)
