"""Mistakes in budgets: their cap, the parts of their topics, and where their groups are."""

from __future__ import annotations

from mutants.mutant import Mutant

_UNIT = "tests/unit/test_budget.py::"

MUTANTS = (
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
        _UNIT + "test_budgets_within_budgets_hold_and_share_by_weight_on_each_level",
    ),
    Mutant(
        "budget-gives-everything-to-the-flood",
        "I",
        "a budget keeps no starts for a topic whose messages come one by one",
        "emq/quota/budget.py",
        "member.due = min(int(left * member.weight / weights), 2 * member.used_before + 1)",
        "member.due = 0",
        _UNIT + "test_a_quiet_topic_does_not_wait_for_the_next_second_behind_a_flood",
    ),
)
