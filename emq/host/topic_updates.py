"""Updates of owned topics and their groups, after a change of the catalog or of the bound handlers."""

from __future__ import annotations

import asyncio
import fnmatch
from collections.abc import Mapping

from emq.groups import priority
from emq.groups.capacity import HORIZON_S, buffer_capacity, in_flight_limit, queue_capacity
from emq.groups.context import HostContext
from emq.groups.deliveries import NO_HANDLER, RECEIVERS
from emq.groups.owned import OwnedGroup, OwnedTopic
from emq.host.budgets import Budgets
from emq.host.group_work import GroupWork
from emq.host.handlers import Binding, Handlers, with_timeout
from emq.quota.charge import limited
from emq.runtime import extending
from emq.runtime.inputs import is_pattern
from emq.runtime.slicing import SLICE
from emq.topics.key_layouts import KeyGate
from emq.topics.model import State, Topic, quota_of


class TopicUpdates:
    """Lets owned topics and groups follow the catalog and the handlers, without a pause.

    Args:
        owned: topics with a group here, by name; `Ownership` changes them.
        groups: the groups of this host, by name; `Ownership` changes them.
    """

    def __init__(
        self,
        handlers: Handlers,
        work: GroupWork,
        owned: Mapping[str, OwnedTopic],
        groups: Mapping[str, OwnedGroup],
        budgets: Budgets,
        context: HostContext,
    ) -> None:
        self._handlers = handlers
        self._work = work
        self._owned = owned
        self._groups = groups
        self._budgets = budgets
        self._clock = context.clock
        self._deliveries = context.deliveries

    def update(self, owner: OwnedTopic, topic: Topic) -> list[OwnedGroup]:
        """Update the topic itself; return the groups here that must be updated, too."""
        if owner.throttle is not None and _named(owner.topic) != _named(topic):
            owner.set_throttle(None)  # the attributes may name another endpoint
        owner.topic = topic
        owner.charge = self._budgets.charge(topic)
        owner.counter.follow(topic, self._clock.now())
        owner.limit = in_flight_limit(topic)
        self.bind(owner)
        passed = {} if owner.gate is None else owner.gate.passed
        for group in owner.set_gate(KeyGate(topic, passed) if topic.earlier else None, self._clock.now_us()):
            self._work.dispatcher.ready(group)
        # The assignment will soon take the other groups away.
        return [group for group in owner.groups.values() if group.index < topic.groups]

    def update_group(self, group: OwnedGroup) -> None:
        """Let a group follow its topic."""
        owner, topic = group.owner, group.owner.topic
        group.quota = quota_of(topic, group.index)
        group.policy = priority.policy_for(topic)
        group.counter = limited(group.counter, owner.charge, owner.throttle)
        group.capacity = buffer_capacity(group.quota, HORIZON_S, topic.may_expire)
        group.allowance = self._work.checkpointer.allowance(group)
        for queue in group.queues:
            queue.capacity = queue_capacity(group.capacity, queue.priority, len(topic.priorities))
            self._work.readiness.add(queue)
        self._work.dispatcher.recheck(group)
        self._work.lanes.at(group.name, 0)
        if group.slot is not None:
            group.serial = topic.options.ordering == "slot"
            group.slot.slot = topic.slot(group.index)
            self._work.slots.due(group.slot.address, 0)

    def rebind(self, pattern: str) -> None:
        """Bind the owned topics that match `pattern` again, in slices, after a handler or receiver was bound."""
        if (owner := self._owned.get(pattern)) is not None:
            self._rebind_topic(owner)
        if is_pattern(pattern):
            self._rebind(pattern, list(self._owned))

    def _rebind(self, pattern: str, names: list[str]) -> None:
        updated = 0
        try:
            while names and updated < SLICE:
                name = names.pop()
                updated += 1
                if fnmatch.fnmatchcase(name, pattern) and (owner := self._owned.get(name)) is not None:
                    updated += self._rebind_topic(owner)
        finally:  # an error at one topic keeps no other from its handler
            if names:
                asyncio.get_running_loop().call_soon(self._rebind, pattern, names)

    def _rebind_topic(self, owner: OwnedTopic) -> int:
        """Bind the topic again, its groups in slices; return the number of groups in the first slice."""
        groups = self.update(owner, owner.topic)
        self._rebind_groups(owner.topic, groups)
        return min(len(groups), SLICE)

    def _rebind_groups(self, topic: Topic, groups: list[OwnedGroup]) -> None:
        """Update the groups in slices, unless the topic has changed meanwhile: `apply` updated them then."""
        for group in groups[:SLICE]:
            if group.owner.topic is topic and self._groups.get(group.name) is group:
                self.update_group(group)
        if len(groups) > SLICE:
            asyncio.get_running_loop().call_soon(self._rebind_groups, topic, groups[SLICE:])

    def bind(self, owner: OwnedTopic) -> None:
        """Give the topic the handler or receiver that is bound to its name."""
        binding = self._handlers.find(owner.topic.name)
        if self._deliveries is not None:
            owner.deliveries = self._deliveries.of(_counted_as(binding))
        owner.on_expired = self._handlers.told_of_expired(owner.topic.name)
        owner.withdraws = None if binding is None else binding.withdraws
        if binding is None or owner.topic.state is State.PAUSED:
            owner.handler = None
            return
        owner.receiver = binding.receiver
        if owner.waiting or owner.thirsty:
            owner.note_waiting()
        timeout_s = owner.topic.options.handler_timeout_s
        owner.handler = binding.call if timeout_s is None else with_timeout(binding.call, timeout_s)
        owner.batch_size = binding.batch_size


def _named(topic: Topic) -> dict[str, str]:
    """Return the attributes that may name a recipient."""
    attributes = topic.options.attributes
    return {name: value for name, value in attributes.items() if name not in extending.notes()}


def _counted_as(binding: Binding | None) -> str:
    """Return the pattern under which the metrics count a binding's deliveries: all receivers' count together."""
    if binding is None:
        return NO_HANDLER
    return binding.pattern if binding.receiver is None else RECEIVERS
