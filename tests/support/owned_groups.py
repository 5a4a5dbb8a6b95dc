"""Groups as their owner has them, for tests of the parts of a host that work on groups."""

from __future__ import annotations

from collections import deque

from emq.groups.capacity import Gauge
from emq.groups.offset_tracker import OffsetTracker
from emq.groups.owned import OwnedGroup, OwnedQueue, OwnedTopic
from emq.groups.priority import policy_for
from emq.quota.counter import Counter, WindowCounter
from emq.topics.model import Topic


def owned_group(
    topic: Topic, counter: Counter | None = None, epoch: int = 1, gauge: Gauge | None = None, quota: float = 0.0
) -> OwnedGroup:
    """Return the first group of a topic of its own, with one empty queue of the highest priority and its buffer."""
    owner = OwnedTopic(topic)
    group = OwnedGroup(owner, 0, epoch, counter or WindowCounter(1, 0), policy_for(topic), gauge or Gauge())
    group.quota = quota
    group.buffers = [deque()]
    if topic.priorities:
        group.queues = [OwnedQueue(group, 0, OffsetTracker(1), 1.0)]
    return group
