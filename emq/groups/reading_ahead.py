"""How far queues are read ahead of the saved progress, and which messages may start before the rest is read.

A crash repeats what is finished and not saved. So a group's `allowance` bounds the messages that are finished or ready
to start and that no checkpoint covers. A queue at this bound is *held*: nothing more of it is read before a checkpoint
is saved.
"""

from __future__ import annotations

from emq.groups.owned import OwnedGroup, OwnedQueue
from emq.groups.priority import STRICT
from emq.quota.counter import own_counter
from emq.quota.topic_counter import GroupCounter

READ_S = 0.004
"""Seconds that a group with messages of a low priority waits for a read of a higher one."""

HELD_S = 0.25
"""Seconds between looks at a group whose queue of a higher priority is held."""


def is_held(queue: OwnedQueue) -> bool:
    """Return True if the queue may be read no further before its group's progress is saved."""
    return queue.group.ahead + queue.capacity > queue.group.allowance and left(queue) <= 0


def left(queue: OwnedQueue) -> int:
    """Return how many more messages of the queue may be read before the next save.

    A group may start what the topic's other groups here leave, so it may also use what they leave of their allowances.
    The buffers of other priorities count as full, so that the backlog of a low priority does not keep a higher one from
    being read. In the strict order of priorities, the buffers of lower priorities do not count: they start after the
    messages of this queue, see `startable`. In another order they never count as more than full: after a change to a
    lower quota they hold more than their capacity, but must not keep a higher priority in the store.
    """
    group = queue.group
    room = group.allowance - group.unsaved() - len(group.buffers[queue.priority])
    for other in group.queues:
        held = len(group.buffers[other.priority])
        if other.priority < queue.priority:
            room -= max(group.capacity, held)
        elif other is not queue and group.policy is not STRICT:
            room -= max(group.capacity, min(held, other.capacity))
    return room if room > 0 else room + _left_by_others(group)


def is_near(group: OwnedGroup) -> bool:
    """Return True if the group's allowance may bound what the group starts. Nearly always it is far off."""
    return group.ahead + group.capacity > group.allowance


def startable(group: OwnedGroup, now: float) -> int:
    """Return how many buffered messages may start without breaking the order of priorities.

    A buffer of a higher priority holds the group's share of a second. If a group starts more than its share, and the
    store has more messages of that priority, the group waits until they are read. Where that queue is held, the group
    waits also with less than its share, until a checkpoint is saved.
    """
    if group.policy is not STRICT or len(group.queues) < 2:
        return group.buffered
    share, near = _share_left(group, now), is_near(group)
    if not near and share >= group.buffered:
        return group.buffered
    ready = 0
    for queue in group.queues:
        ready += len(group.buffers[queue.priority])
        if queue.more and (queue.listed or (near and is_held(queue))):
            break
    if not near:
        return max(ready, share)
    most = group.allowance - group.unsaved()
    return min(ready, most if most >= ready else max(0, most + _left_by_others(group)))


def wait_s(group: OwnedGroup) -> float:
    """Return the seconds until the next look at a group of which nothing is `startable`."""
    return READ_S if any(queue.more and queue.listed for queue in group.queues) else HELD_S


def _share_left(group: OwnedGroup, now: float) -> int:
    """Return the starts of this second that surely keep to the order; see `startable`."""
    own = own_counter(group.counter)
    if len(group.owner.groups) == 1 or not isinstance(own, GroupCounter):
        return group.buffered
    return own.share_left(now)


def _left_by_others(group: OwnedGroup) -> int:
    """Return what the topic's other groups here leave together; those that use more than their own take from it."""
    others = [other for other in group.owner.groups.values() if other is not group]
    return max(0, sum([other.allowance - other.ahead for other in others]))
