"""Checks that working hosts never hold more in memory than they should."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from emq.groups.capacity import MAX_BUFFER, MIN_BUFFER
from emq.groups.owned import OwnedGroup, OwnedTopic

if TYPE_CHECKING:
    from support.simulation.cluster import Cluster
    from support.simulation.member import Member
    from support.simulation.plans import TopicPlan

LOOK_S = 0.5
"""Between two looks."""


async def watch(cluster: Cluster) -> None:
    """Look again and again; report each kind of excess once for each group."""
    told: set[tuple[str, str]] = set()
    plans = {plan.name: plan for plan in cluster.schedule.topics}
    moved = _Moved()
    while True:
        await asyncio.sleep(LOOK_S)
        for member in cluster.alive:
            for place, what, text in _excesses(member, plans, moved):
                if (place, what) not in told:
                    told.add((place, what))
                    cluster.evidence.violated("memory", place, f"{member.life}: {text} {what}")


class _Moved:
    """Of each group, the messages that were held while keys moved, and may still be held after that.

    While keys move, a queue is read far ahead, since an old message may lie behind new ones that wait for it. What was
    read then stays in memory until it is started, at the group's rate.
    """

    def __init__(self) -> None:
        self._left: dict[OwnedGroup, int] = {}

    def left(self, group: OwnedGroup) -> int:
        before = math.inf if group.owner.gate is not None else self._left.get(group, 0)
        left = self._left[group] = int(min(before, group.held))
        return left


def _excesses(member: Member, plans: dict[str, TopicPlan], moved: _Moved) -> Iterator[tuple[str, str, str]]:
    """Yield the place, the kind of excess, and its amount."""
    for owner in member.host.ownership.owned.values():
        most = _in_flight(owner, plans[owner.topic.name])
        if owner.in_flight > most:
            yield f"{owner.topic.name}/0", "in flight", f"{owner.in_flight} of {most}"
    for group in member.host.ownership.groups.values():
        yield from _of_group(group, group.owner, plans[group.owner.topic.name], moved.left(group))


def _in_flight(owner: OwnedTopic, plan: TopicPlan) -> int:
    """Five seconds of the largest quota that the topic may have had, and what a visit was granted beyond.

    What expires is in flight, too, until it is a dead letter: all that was buffered may expire at once, while the store
    takes nothing.
    """
    qps = max(plan.qps, owner.topic.qps, MOST_QPS, *plan.sizes)
    expired = sum(_buffered(group, plan) for group in owner.groups.values()) if owner.topic.may_expire else 0
    return max(8, math.ceil(5 * qps)) + owner.batch_size + expired


def _capacity(group: OwnedGroup, plan: TopicPlan) -> int:
    """Of one buffer; a change of the quota leaves what was buffered before."""
    return MAX_BUFFER if group.owner.topic.may_expire else max(MIN_BUFFER, round(plan.group_qps) + 1)


def _buffered(group: OwnedGroup, plan: TopicPlan) -> int:
    """Of each priority what its queue and the lane may bring."""
    capacity = _capacity(group, plan)
    return len(group.buffers) * (min(MAX_BUFFER, 2 * capacity) + capacity)


def _of_group(group: OwnedGroup, owner: OwnedTopic, plan: TopicPlan, moved: int) -> Iterator[tuple[str, str, str]]:
    priorities, most = len(group.buffers), _buffered(group, plan)
    queue = min(MAX_BUFFER, 2 * _capacity(group, plan))
    if group.buffered > most:
        yield group.name, "buffered", f"{group.buffered} of {most}"
    if group.buffered != sum(map(len, group.buffers)):
        yield group.name, "counted as buffered", f"{group.buffered} instead of {sum(map(len, group.buffers))}"
    if owner.gate is None and group.held > (held := priorities * 5 * queue + most + moved):
        yield group.name, "held", f"{group.held} of {held}"
    for one in group.queues:
        # Between two of them lies a message that was in flight, here or at the owner that saved them.
        if (ranges := len(one.tracker.finished())) > _in_flight(owner, plan):
            yield group.name, f"finished ranges of {one.name}", f"{ranges} of {_in_flight(owner, plan)}"
    if group.slot is not None and group.slot.buffered > most:
        yield group.name, "members buffered", f"{group.slot.buffered} of {most}"


MOST_QPS = 40.0
"""To which a trial may set a topic."""
