"""What is planted in the budgets of a simulated cluster is found by its judges."""

from __future__ import annotations

from typing import Any

import pytest

from emq.allocation.plan import units
from emq.host.budgets import Budgets
from emq.quota import budget
from emq.quota.budget import Budget
from emq.quota.charge import Charge
from emq.topics.model import Topic
from emq.topics.shares import share_of
from support.simulation.budgeted import CHANNEL, RESIZE_BUDGET, TENANT, budgeted
from support.simulation.plans import Event, TopicPlan
from support.simulation.run import Outcome, carry_out
from support.simulation.schedule import Schedule, schedule

LOG: dict[str, Any] = {"max_attempts": 3, "backoff_s": (0.3, 0.8), "jitter": 0.0}
UNIT = (
    TopicPlan(TENANT, 12.0, 4.0, 3.0, options=LOG),
    TopicPlan(CHANNEL, 6.0, 6.0, 3.0, options={**LOG, "budget": TENANT}),
    TopicPlan("endpoint-0", 12.0, 12.0, 5.0, options={**LOG, "budget": TENANT}),
    TopicPlan("endpoint-1", 12.0, 12.0, 5.0, options={**LOG, "budget": CHANNEL}),
)


def outcome(*events: Event, topics: tuple[TopicPlan, ...] = UNIT) -> Outcome:
    return carry_out(Schedule(1, True, (0.0,), 3, topics, events))


def broken(found: Outcome) -> set[str]:
    return {violation.promise for violation in found.violations}


def test_a_budget_holds_while_hosts_join_and_leave() -> None:
    found = outcome(Event(5.0, "join", 0, 0.0, 0.0), Event(9.0, "leave", 0, 0.0, 0.0))
    assert found.violations == []
    assert {start.work.topic for start in found.evidence.starts} == {plan.name for plan in UNIT}


@pytest.mark.parametrize("created_s", [5.3, 8.0])
def test_a_topic_becomes_a_budget_while_it_works(created_s: float) -> None:
    topics = (UNIT[0]._replace(rate=15.0), *(plan._replace(created_s=created_s) for plan in UNIT[1:]))
    found = outcome(topics=topics)
    assert found.violations == []
    hosts = {start.host for start in found.evidence.starts if start.at < created_s}
    assert len(hosts) > 1, "before that, its groups are on several hosts"


def test_a_start_that_is_charged_to_no_budget_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def free(self: Budgets, topic: Topic) -> Charge | None:
        return None

    monkeypatch.setattr(Budgets, "charge", free)
    assert "Q" in broken(outcome())


def test_an_inner_budget_that_does_not_count_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    left = Budget._own_left

    def endless(self: Budget, now: float) -> int:
        return left(self, now) if self.parent is None else 100

    monkeypatch.setattr(Budget, "_own_left", endless)
    [*places] = {v.group for v in outcome().violations if v.promise == "Q"}
    assert places == [CHANNEL]


def test_groups_of_a_unit_on_several_hosts_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(units, "united", lambda quotas, previous, of: units.United(quotas, previous, {}))
    assert "L" in broken(outcome()), "what lies on a host without the root's first group never starts"


def test_a_budget_that_is_not_used_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget, "share_of", lambda qps, origin_s: share_of(qps / 2, origin_s))
    found = outcome()
    assert "use" in broken(found)
    assert "Q" not in broken(found)


def test_many_seeds_have_budgets_of_all_forms() -> None:
    made = {seed: budgeted(seed) for seed in range(240)}
    with_budget = {seed: plans for seed, plans in made.items() if plans}
    assert 80 <= len(with_budget) <= 160
    for trait in (
        lambda plans: any(plan.name == CHANNEL for plan in plans),
        lambda plans: any(plan.created_s for plan in plans),
        lambda plans: any(plan.is_smooth for plan in plans),
        lambda plans: any(plan.kind != "log" for plan in plans),
        lambda plans: plans[0].qps > plans[0].group_qps,
    ):
        assert sum(map(trait, with_budget.values())) >= 20
    resized = [seed for seed in with_budget if RESIZE_BUDGET in {event.what for event in schedule(seed).events}]
    assert len(resized) >= 20
