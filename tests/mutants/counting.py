"""Mistakes in counters, budgets and the time that hosts count by."""

from __future__ import annotations

from mutants.mutant import Mutant

_BUDGET = "tests/unit/test_budget.py::"

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
    Mutant(
        "budget-counts-on-every-host",
        "Q",
        "a host without the first group of the root starts messages of the unit all the same",
        "emq/quota/budget.py",
        "return self.parent is None and (self.guard is None or self.guard.stopping)",
        "return False",
        "tests/integration/test_budgets.py::test_groups_of_a_unit_on_another_host_than_its_first_group_start_nothing",
    ),
    Mutant(
        "start-is-charged-to-the-nearest-budget-only",
        "Q",
        "a budget above another does not count the starts below that",
        "emq/quota/budget.py",
        "at._counter.reserve(n, now)",
        "at._counter.reserve(n if at is self else 0, now)",
        _BUDGET + "test_budgets_within_budgets_hold_and_share_by_weight_on_each_level",
    ),
    Mutant(
        "budget-gives-everything-to-the-flood",
        "I",
        "a budget keeps no starts for a topic whose messages come one by one",
        "emq/quota/budget.py",
        "member.due = min(int(left * member.weight / weights), 2 * member.used_before + 1)",
        "member.due = 0",
        _BUDGET + "test_a_quiet_topic_does_not_wait_for_the_next_second_behind_a_flood",
    ),
    Mutant(
        "time-goes-back",
        "Q",
        "the environment's time goes back when the reference's clock does",
        "emq/runtime/timekeeping.py",
        "return Successor(max(noted.time_us, reference_us))",
        "return Successor(reference_us)",
        "tests/unit/test_timekeeping.py::test_the_time_of_an_environment_never_goes_back_and_returns_to_the_reference",
    ),
    Mutant(
        "doubtful-host-starts",
        "Q",
        "a host whose time is uncertain beyond the bound goes on",
        "emq/runtime/timekeeping.py",
        "if best is None or best.error_us >= self._bound_us:\n            return 0.0",
        "if best is None or best.error_us >= self._bound_us:\n            return float(2**40)",
        "tests/unit/test_timekeeping.py::test_the_shortest_round_trip_counts_and_one_that_is_too_long_tells_nothing",
    ),
)
