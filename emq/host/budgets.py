"""The budgets of the topics on one host; see `emq.topics.budgets` and `emq.quota.budget`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from emq.groups.owned import OwnedGroup
from emq.quota.budget import Budget
from emq.quota.charge import Charge
from emq.runtime.clock import Clock
from emq.topics.model import Topic


class Budgets:
    """Makes the counters of budgets when a topic on this host first needs them, and lets them follow the catalog.

    A budget whose topic this host does not know starts nothing. Counters of a unit that has left stay until the topic
    is deleted. They do no harm, since the root gets a new counter whenever the unit comes.
    """

    def __init__(self, topics: Mapping[str, Topic], groups: Mapping[str, OwnedGroup], clock: Clock) -> None:
        """Args:
        topics: every topic of the catalog as the host knows it, by name.
        groups: the groups of this host, by name.
        """
        self._topics = topics
        self._groups = groups
        self._clock = clock
        self._budgets: dict[str, Budget] = {}

    def charge(self, topic: Topic) -> Charge | None:
        """Return the budgets that each start of the topic is charged to; None if there are none."""
        if topic.shared_s:
            budget = self._of(topic.name)
            return Charge(budget, budget.own)
        if topic.options.budget is not None:
            budget = self._of(topic.options.budget)
            return Charge(budget, budget.member_of(topic))
        return None

    def acquired(self, group: OwnedGroup) -> None:
        """Let the budgets of a unit begin if this host has acquired the first group of its root."""
        topic = group.owner.topic
        if group.index == 0 and topic.shared_s and topic.options.budget is None:
            self._guard(self._of(topic.name))

    def follow(self, topic: Topic) -> None:
        """Follow a change of a topic: its qps if it is a budget here, its weight if it has one."""
        if (budget := self._budgets.get(topic.name)) is not None:
            parent = None if topic.options.budget is None else self._of(topic.options.budget)
            budget.follow(topic, parent, self._clock.now())
            self._guard(budget)
        elif topic.options.budget is not None and (above := self._budgets.get(topic.options.budget)) is not None:
            above.member_of(topic)

    def forget(self, names: Iterable[str]) -> None:
        """Forget deleted topics, which `topics` still has."""
        deleted = [self._topics[name] for name in names if name in self._topics]
        for topic in deleted:
            above = None if topic.options.budget is None else self._budgets.get(topic.options.budget)
            if above is not None:
                above.forget(topic.name)
        for topic in deleted:
            if (budget := self._budgets.get(topic.name)) is not None:
                budget.end()
                if not budget.has_members:  # else a database that lost changes knows topics below, but not this one
                    del self._budgets[topic.name]

    def _of(self, name: str) -> Budget:
        """Return the budget of that name; make it, and those above it, if this host has none."""
        budget = self._budgets.get(name)
        if budget is None:
            budget = self._budgets[name] = Budget(name)
            if (topic := self._topics.get(name)) is not None:
                self.follow(topic)
        return budget

    def _guard(self, budget: Budget) -> None:
        """Bind a root's budget to the root's first group, if this host owns that group."""
        first = self._groups.get(f"{budget.name}/0")
        if budget.parent is None and first is not None and first is not budget.guard:
            budget.begin(first, self._clock.now())
