"""Mistakes in budgets: their cap, the parts of their topics, and where their groups are."""

from __future__ import annotations

from mutants.mutant import Mutant

_UNIT = "tests/unit/test_budget.py::"

MUTANTS = (
    Mutant(
        "budget-grants-in-its-first-second",
        "Q",
        "a budget that moved grants in the second of the move, which its former host may have used",
        "emq/quota/budget.py",
        "self._counter = WindowCounter(self._course, now)",
        "self._counter = WindowCounter(self._course, now - 1)",
        _UNIT + "test_a_budget_starts_nothing_while_this_host_has_not_its_first_group_and_nothing_in_its_first_second",
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
        _UNIT + "test_budgets_within_budgets_hold_and_share_by_weight_on_each_level",
    ),
    Mutant(
        "own-messages-of-a-budget-are-free",
        "Q",
        "messages of the budget's own topic are not charged to the budget",
        "emq/host/budgets.py",
        "return Charge(budget, budget.own)",
        "return None",
        "tests/integration/test_budgets.py::test_topics_of_all_kinds_and_paces_share_a_budget",
    ),
    Mutant(
        "budget-deals-whole-starts-only",
        "Q",
        "a topic loses the fraction of a start that it was entitled to in a second",
        "emq/quota/budget.py",
        "member.credit = min(most, member.credit + more * member.weight)",
        "member.credit = float(int(min(most, member.credit + more * member.weight)))",
        _UNIT + "test_a_topic_is_never_more_than_two_starts_from_its_part",
    ),
    Mutant(
        "budget-keeps-starts-for-topics-that-do-not-come",
        "Q",
        "starts that a topic leaves are kept for it until the second is over",
        "emq/quota/budget.py",
        "max(0, math.ceil(member.due * (1 - now % 1.0 / KEEP_S)))",
        "member.due",
        _UNIT + "test_a_backlog_anywhere_uses_the_budget_though_the_others_come_and_go[0]",
    ),
    Mutant(
        "budget-takes-the-pace-of-a-throttled-topic",
        "I",
        "what a throttled topic would start later in the second goes to a flood beside it",
        "emq/quota/budget.py",
        "max(_at_its_pace(member, now), _fading(member, now))",
        "_fading(member, now)",
        _UNIT + "test_a_throttled_topic_gets_its_whole_rate_beside_a_flood[38]",
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
    Mutant(
        "first-topic-of-a-budget-starts-at-once",
        "Q",
        "topics below a budget start while hosts still count the budget's own groups by themselves",
        "emq/topics/budgets.py",
        "(shares.learned_s(now_s) if root.name in there else 1)",
        "1",
        "tests/unit/test_budget_catalog.py::"
        "test_topics_below_a_budget_start_nothing_until_every_host_knows_of_the_budget",
    ),
    Mutant(
        "units-are-planned-group-by-group",
        "Q",
        "the groups that share a budget are spread over the hosts, and all but one host start nothing",
        "emq/allocation/plan/units.py",
        "root = units.get(topic_of(group))",
        "root = None",
        "tests/unit/test_plan_units.py::test_a_unit_is_on_one_host_and_the_loads_stay_even_while_hosts_come_and_go[0]",
    ),
    Mutant(
        "leader-forgets-the-units",
        "Q",
        "the leader of a cluster plans without the units that it was offered",
        "emq/allocation/leader.py",
        "quotas, self._units, weights",
        "quotas, NO_UNITS, weights",
        "tests/unit/test_cluster_membership.py::test_the_groups_of_a_unit_are_on_one_host",
    ),
    Mutant(
        "budget-with-topics-can-be-deleted",
        "L",
        "a budget that topics name is deleted, and they never start anything again",
        "emq/topics/catalog_rows.py",
        "if topic.shared_s and (named_by",
        "if topic.shared_s < 0 and (named_by",
        "tests/unit/test_budget_catalog.py::test_a_budget_that_topics_name_cannot_be_deleted",
    ),
)
